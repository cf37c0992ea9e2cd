"""The ladder of several methods on a page: who gets images back, with which knowledge, from which round on, and at what cost.

A pure function of records: per data set and round a table of sets of knowledge by methods; per data set one sentence a method, made
of the numbers, and the cost; then all messages of checks, counted. Everything else: reports/tables/ladder.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from privbench import registry
from privbench.observation import knowledge
from privbench.records import checks
from privbench.records.schema import AttackRecord
from privbench.scoring.statistics import LEAST_SEEDS
from reports.records import grouping, knowledge_sets, quotable, table_checks
from reports.records.knowledge_sets import LadderRow
from reports.records.labels import (
    MISSING,
    NONE,
    REFUSED,
    Gap,
    asked_text,
    attacker_text,
    group,
    knowledge_text,
    label,
    place,
    published,
    published_text,
    range_text,
    round_place,
    rounds_text,
    shared_parts,
    span,
    spread_text,
    title_of,
    unique,
    where_shared,
)
from reports.records.measured import ORACLE, Measured
from reports.records.published import of_papers_attack
from reports.records.quotable import NOT_SHOWN, PLUMBING, is_plumbing, is_quotable
from reports.records.remarks import header, of_training
from reports.tables import ladder, render
from reports.tables.ladder import rung, rungs
from reports.tables.report import Report, Table

CHECK_COLUMNS = ("check", "cells", "data sets", "rounds", "methods", "attacks", "for example")
GAP_COLUMNS = ("attack", "methods", "data sets", "rounds", "reason")
Column = list[AttackRecord]  # of one method
# Rows of the matrix that hold no score.
SHOWN_IN_SMOKE = frozenset(
    {"accuracy of the trained method, %", "accuracy of the attacked networks, %", "attacked round", "n / failures"}
)


def report(records: Sequence[AttackRecord], gaps: Sequence[Gap] = ()) -> Report:
    """The whole page."""
    found = table_checks.by_record(records)
    forms, numbers = [], []
    for key in grouping.settings(records):
        own = [r for r in records if grouping.setting(r.cell) == key]
        lost = [gap for gap in gaps if grouping.setting(gap.cell) == key and gap.state != REFUSED]
        matrices = [_matrix(some, lost) for some in _by_round(own)]
        forms += [
            *matrices,
            Table(f"{grouping.title(key)}: in words", (), (), verdicts(own, lost)),
            _cost(grouping.title(key), own),
        ]
        numbers += _numbers(own, found)
    if is_plumbing(records):
        found = {r.id: [] for r in records}
    forms.append(Table("Doubts", CHECK_COLUMNS, _check_rows(records, found), of_training(records), words=True))
    if gaps:
        forms.append(Table("Not run", GAP_COLUMNS, gap_rows(gaps), words=True))
    return Report("The attack ladder", [*header(records), how(records)], forms, numbers)


def how(records: Sequence[AttackRecord]) -> str:
    """How to read the tables, with how many cells may stand out by chance."""
    cells = sum(
        len(knowledge_sets.rows(column, attacker_text, some))
        for some in _by_round(records)
        for column in _columns(some, []).values()
    )
    return (
        f"A cell is the best attack whose knowledge lies within the row's, its name beneath; it may need less. It is bold where "
        f"{LEAST_SEEDS} seeds or more were attacked and the 95% interval of its paired gain over the floor lies above 0, each cell "
        f"by itself: of {cells} cells that gained nothing at most some {cells * 0.025:.0f} would be, by chance. The long tables "
        "hold every "
        "attack, and tests adjusted for their number." + _of_sharing(records)
    )


def _of_sharing(records: Sequence[AttackRecord]) -> str:
    """Which methods shared what some tags say was used where it is shared."""
    told = []
    for part in unique(part for r in records for part in where_shared(attacker_text(r))):
        sharing = unique(label(r.cell) for r in records if part in shared_parts(r.cell.train.method))
        told.append(f" Of these methods {', '.join(sharing) or 'none'} shared the {part}.")
    return "".join(told)


def _by_round(records: Sequence[AttackRecord]) -> list[list[AttackRecord]]:
    """Records table by table, the untrained model first; data sets in the order given."""
    settings = grouping.settings(records)
    keys = sorted(
        unique((settings.index(grouping.setting(r.cell)), round_place(r.cell.round), group(r.cell)) for r in records),
        key=lambda key: key[:2],
    )
    return [[r for r in records if group(r.cell) == key] for *_, key in keys]


def _columns(records: Sequence[AttackRecord], lost: Sequence[Gap]) -> dict[str, Column]:
    """Method -> its records, in the published order; a method of which nothing is there keeps its column."""
    names = unique(label(cell) for cell in sorted([*(r.cell for r in records), *(g.cell for g in lost)], key=place))
    return {name: [r for r in records if label(r.cell) == name] for name in names}


def _tags(records: Sequence[AttackRecord]) -> dict[str, list[AttackRecord]]:
    """Set of knowledge -> the attacks that need all of it, rungs from below."""
    attacks = in_rungs([r for r in records if r.attack not in registry.FLOORS])
    return {tag: [r for r in attacks if attacker_text(r) == tag] for tag in unique(map(attacker_text, attacks))}


def in_rungs(records: Sequence[AttackRecord]) -> list[AttackRecord]:
    """Rungs from below."""
    return sorted(records, key=lambda r: ladder.order(r)[:2])


def _matrix(records: Sequence[AttackRecord], lost: Sequence[Gap]) -> Table:
    """Knowledge down, methods across, at one round of one data set."""
    asked = records[0].cell.round
    lost = [gap for gap in lost if gap.cell.round == asked]
    columns = _columns(records, lost)

    def row(name: str, text: Callable[[Column], str]) -> list[str]:
        return [name, *(text(own) if own else MISSING for own in columns.values())]

    body = [
        row("accuracy of the trained method, %", lambda own: spread_text(own[0].accuracy.mean, own[0].accuracy.std))
    ]
    body += _published_row("  published, %", columns, _published_accuracy)
    body.append(row("accuracy of the attacked networks, %", lambda own: f"{own[0].accuracy_at_round:.2f}"))
    if not asked.isdigit():
        body.append(row("attacked round", lambda own: rounds_text(own[0])))
    body.append(row("L0 floor, dB", lambda own: f"{own[0].floor.psnr_db:.2f} {render.small(own[0].floor.name)}"))
    rows = {
        name: {row.knowledge: row for row in knowledge_sets.rows(own, attacker_text, records)}
        for name, own in columns.items()
    }
    for tag, alike in _tags(records).items():
        cells = [_cell(rows[name].get(tag), tag, own, _of(lost, name)) for name, own in columns.items()]
        body.append([f"{rungs(alike)} {tag}", *cells])
    body += _published_row("published, dB", columns, _published_psnr)
    body.append(
        row(
            "n / failures",
            lambda own: f"{span(sorted({r.scores.n for r in own}))} / {max(r.scores.failures for r in own)}",
        )
    )
    if not is_quotable(records[0].cell.preset):
        body = [[name, *cells] if name in SHOWN_IN_SMOKE else [name, *map(_unquotable, cells)] for name, *cells in body]
    return Table(title_of(group(records[0].cell)), ["", *columns], body)


def _unquotable(cell: str) -> str:
    """A cell of scores as a smoke table shows it."""
    return cell if cell in (NONE, MISSING) else NOT_SHOWN


def _of(lost: Sequence[Gap], name: str) -> list[Gap]:
    return [gap for gap in lost if label(gap.cell) == name]


def _cell(row: LadderRow | None, tag: str, own: Column, lost: Sequence[Gap]) -> str:
    """The best attack within one set of knowledge on one method; that it is missing, where one that needs all of the set is."""
    known = {attacker_text(r) for r in own}
    if tag not in known and any(knowledge.tag(registry.resolve("attack", gap.attack)) == tag for gap in lost):
        return MISSING
    if row is None:
        return NONE
    text = range_text(row.best.psnr_db)
    return f"{render.bold(text) if row.best.is_sure else text} {render.small(row.best.name)}"


def _published_row(name: str, columns: dict[str, Column], text: Callable[[AttackRecord], str]) -> list[list[str]]:
    """The row of published values, where there is one."""
    cells = [text(own[0]) if own else NONE for own in columns.values()]
    return [[name, *cells]] if any(cell != NONE for cell in cells) else []


def _published_accuracy(r: AttackRecord) -> str:
    return published_text(published(r.cell)[0])


def _published_psnr(r: AttackRecord) -> str:
    psnr = of_papers_attack(r.cell)
    below = psnr is not None and psnr.value < r.floor.psnr_db
    return published_text(psnr) + (" (below the floor)" if below else "")


def verdicts(records: Sequence[AttackRecord], lost: Sequence[Gap] = ()) -> list[str]:
    """One line per method of one data set; nothing but what smoke runs are for where these are some."""
    if not all(is_quotable(r.cell.preset) for r in records):
        return [PLUMBING]
    return [
        f"{name}: {_verdict(own, [g for g in lost if label(g.cell) == name])}"
        for name, own in _columns(records, lost).items()
    ]


def _verdict(own: Column, lost: Sequence[Gap]) -> str:
    """Where an attacker surely gains, where none does, what the oracle says, and what is missing."""
    by_round = {
        some[0].cell.round: knowledge_sets.distinct(knowledge_sets.rows(in_rungs(some), attacker_text))
        for some in _by_round(own)
    }
    attackers = {when: [row for row in best if rung(row.first) != ORACLE] for when, best in by_round.items()}
    attackers = {when: best for when, best in attackers.items() if best}
    sure = {when: [row for row in best if row.is_sure] for when, best in attackers.items()}
    gained, not_gained = [w for w in sure if sure[w]], [w for w in sure if not sure[w]]
    told = []
    if gained:
        told.append(f"surely gains over the floor at {_how({w: sure[w] for w in gained})}.")
    few = sorted({row.gain_db.seeds for best in attackers.values() for row in best if row.gain_db.is_few})
    if not_gained and few:
        told.append(f"{span(few)} seed(s) are too few to say where an attack surely gains.")
    elif not_gained:
        where = f"at {_rounds(not_gained)}" if gained else "at any attacked round"
        told.append(f"No attack surely gains {where}, which bounds these attacks and is no proof of privacy.")
    if not attackers:
        told.append("No attack was run.")
    told.append(_of_oracle([row for best in by_round.values() for row in best if rung(row.first) == ORACLE]))
    if lost:
        told.append(f"{len(lost)} cell(s) are missing.")
    return " ".join(sentence for sentence in told if sentence)


def _how(sure: dict[str, list[Measured]]) -> str:
    """At which rounds, with how little knowledge, by which attacks, and what the strongest of all gains more."""
    least = {when: min(some, key=lambda row: (rung(row.first), -row.scores.psnr_db)) for when, some in sure.items()}
    clauses = []
    for known in unique(_known(row) for row in least.values()):
        own = {when: row for when, row in least.items() if _known(row) == known}
        attacks = ", ".join(unique(row.name for row in own.values()))
        clauses.append(
            f"{_rounds(list(own))} with no more than {' '.join(known)} ({attacks}, {_gains(list(own.values()))})"
        )
    best = max((row for some in sure.values() for row in some), key=lambda row: row.gain_db.mean)
    if not any(best is row for row in least.values()):
        most = f"{range_text(best.gain_db, sign=True)} dB at {_name(best.first.cell.round)}"
        clauses.append(f"the most is {most} by {best.name} ({knowledge_text(best.first)})")
    return "; ".join(clauses)


def _known(row: Measured) -> tuple[str, str]:
    return rung(row.first), knowledge_text(row.first)


def _gains(some: Sequence[Measured]) -> str:
    """The gain of one attack with its interval, or the span of several."""
    if len(some) == 1:
        return f"{range_text(some[0].gain_db, sign=True)} dB"
    return f"{span(unique(f'{gain:+.2f}' for gain in sorted(row.gain_db.mean for row in some)))} dB"


def _of_oracle(oracles: Sequence[Measured]) -> str:
    """What the victim's own networks would give."""
    if not oracles:
        return ""
    told = _gains(oracles)
    if any(row.gain_db.is_few for row in oracles):
        return f"The oracle, a reference, gains {told}."
    failing = [row.first.cell.round for row in oracles if not row.is_sure]
    if not failing:
        return f"The oracle, a reference, surely gains at every attacked round ({told})."
    where = "any attacked round" if len(failing) == len(oracles) else _rounds(failing)
    return f"The oracle does not surely gain at {where} ({told}), so that a failure there says nothing."


def _name(when: str) -> str:
    return f"the {when} round" if when in ("best", "last") else f"round {when}"


def _rounds(some: Sequence[str]) -> str:
    """E.g. "rounds 0, 1 and best"."""
    if len(some) == 1:
        return _name(some[0])
    return f"rounds {', '.join(some[:-1])} and {some[-1]}"


def _cost(title: str, records: Sequence[AttackRecord]) -> Table:
    """Seconds and gradient evaluations of the attacks of each tag, and what training took."""
    columns = _columns(records, [])
    body = []
    for tag, alike in _tags(records).items():
        cells = [_cost_text(_tags(own).get(tag, []), own) for own in columns.values()]
        body.append([f"{rungs(alike)} {tag}", *cells])
    attacks = [[r for each in _tags(own).values() for r in each] for own in columns.values()]
    body.append(["all attacks", *(_cost_text(some, own) for some, own in zip(attacks, columns.values(), strict=True))])
    body.append(["training", *(f"{_seconds(own[0].cost.train_seconds)} s" for own in columns.values())])
    notes = [
        "Seconds of all attacks with that knowledge, summed over seeds and rounds; gradient evaluations per victim, summed over "
        "these attacks, mean over rounds. What an attack trains is trained once per artifact, in the seconds of the first that "
        "needs it."
    ]
    return Table(f"{title}: cost", ["", *columns], body, notes)


def cost(some: Sequence[AttackRecord], own: Column) -> tuple[float, float]:
    """(seconds over seeds and rounds, gradient evaluations per victim and round) of some attacks on one method."""
    rounds = len({r.cell.round for r in own})
    evaluations = sum(r.cost.gradient_evaluations / r.scores.n for r in some) / rounds
    return sum(r.cost.attack_seconds for r in some), evaluations


def _cost_text(some: Sequence[AttackRecord], own: Column) -> str:
    if not some:
        return NONE
    seconds, evaluations = cost(some, own)
    return f"{_seconds(seconds)} s; {evaluations:,.0f}"


def _seconds(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def _check_rows(records: Sequence[AttackRecord], found: dict[str, list[checks.CheckMessage]]) -> list[list[str]]:
    """One row per check: how many cells fail it, which, and the first of its sentences."""
    raised: dict[str, list[tuple[AttackRecord, str]]] = {}
    for r in records:
        for flag in found[r.id]:
            raised.setdefault(flag.name, []).append((r, flag.sentence))
    names: list[Callable[[AttackRecord], str]] = [
        lambda r: grouping.short_title(grouping.setting(r.cell)), lambda r: asked_text(r.cell.round), lambda r: label(r.cell),
        lambda r: r.attack,
    ]  # fmt: skip
    body = []
    for name, cells in raised.items():
        concerned = list({r.id: r for r, _ in cells}.values())
        where = [_share([of(r) for r in concerned], unique(of(r) for r in records)) for of in names]
        first, sentence = cells[0]
        example = f"{', '.join(of(first) for of in names)}: {sentence}"
        body.append([name, f"{len(concerned)} of {len(records)}", *where, example])
    return body


def _share(values: Sequence[str], every: Sequence[str]) -> str:
    """Which values, the most frequent first, with their numbers; or that all are concerned."""
    counts = Counter(values)
    if len(counts) == len(every) > 1:
        return "all"
    return ", ".join(f"{value} ({number})" if len(counts) > 1 else value for value, number in counts.most_common())


def gap_rows(gaps: Sequence[Gap]) -> list[list[str]]:
    """One row per attack and reason."""
    told = []
    for attack, reason in unique((g.attack, g.reason) for g in gaps):
        own = [g.cell for g in gaps if (g.attack, g.reason) == (attack, reason)]
        where = (
            (label(c) for c in own), (registry.short(c.train.dataset) for c in own), (asked_text(c.round) for c in own),
        )  # fmt: skip
        told.append([attack, *(", ".join(unique(each)) for each in where), reason])
    return told


def _numbers(records: Sequence[AttackRecord], found: dict[str, list[checks.CheckMessage]]) -> list[dict[str, Any]]:
    """The CSV rows of one data set: one per round, method and set of knowledge."""
    told = []
    for some in _by_round(records):
        tags = _tags(some)
        for name, own in _columns(some, []).items():
            for row in knowledge_sets.rows(own, attacker_text, in_rungs(some)):
                flagged = [flag for r in row.best.attacks for flag in found[r.id]]
                told.append(_number(name, row, rungs(tags[row.knowledge]), own, flagged))
    return told


def _number(name: str, row: LadderRow, height: str, own: Column, told: Sequence[checks.CheckMessage]) -> dict[str, Any]:
    best, alike = row.best, row.alike
    r, s = best.first, best.scores
    seconds, evaluations = cost(alike, own)
    psnr = of_papers_attack(r.cell)
    numbers = {
        "setting": grouping.title(grouping.setting(r.cell)),
        "round": r.cell.round,
        "attacked_rounds": " ".join(map(str, r.rounds)),
        "method": name,
        "rung": height,
        "knowledge": row.knowledge,
        "strongest": best.name,
        "psnr_db": s.psnr_db,
        "psnr_low": best.psnr_db.low,
        "psnr_high": best.psnr_db.high,
        "floor": best.floor.name,
        "floor_db": best.floor.psnr_db,
        "gain_db": best.gain_db.mean,
        "gain_low": best.gain_db.low,
        "gain_high": best.gain_db.high,
        "surely_above_floor": best.is_sure,
        "worst_5_percent_db": s.worst_db,
        "share_above_20_db": s.exposed,
        "identification": s.identification,
        "accuracy_percent": r.accuracy.mean,
        "accuracy_std": r.accuracy.std,
        "accuracy_at_round_percent": r.accuracy_at_round,
        "published_psnr_db": None if psnr is None else psnr.value,
        "n": s.n,
        "failures": s.failures,
        "seeds": " ".join(map(str, r.cell.seeds)),
        "attacks": " ".join(each.attack for each in alike),
        "attack_seconds": seconds,
        "gradient_evaluations_per_victim": evaluations,
        "checks": " ".join(checks.each_name(told)),
    }
    return quotable.numbers(r.cell.preset, numbers)
