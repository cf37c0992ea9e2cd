"""The ladder of several methods on a page: who gets images back, with which knowledge, from which round on, and at what cost.

A pure function of records: per data set and round a table of sets of knowledge by methods; per data set one sentence a method, made
of the numbers, and the cost; then all messages of checks, counted. Everything else: reports/tables/ladder.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from privbench import registry
from privbench.observation import knowledge
from privbench.records import checks
from privbench.records.means import Scores
from privbench.records.schema import AttackRecord
from privbench.scoring.statistics import LEAST_SEEDS
from reports.records import grouping, guarantees, knowledge_sets, quotable, remarks, table_checks
from reports.records.knowledge_sets import LadderRow
from reports.records.labels import (
    MISSING,
    REFUSED,
    Gap,
    attacker_text,
    group,
    label,
    published,
    rounds_text,
    shared_parts,
    title_of,
    unique,
    where_shared,
)
from reports.records.number_text import NONE, published_text, range_text, span, spread_text
from reports.records.published import of_papers_attack
from reports.records.quotable import NOT_SHOWN, is_quotable, is_smoke
from reports.records.remarks import header, left_out, of_training
from reports.tables import broadcast_table, render
from reports.tables.ladder import rungs
from reports.tables.report import Report, Table
from reports.tables.summary.columns import Column, columns_of, in_rungs, rounds_of, tags_of
from reports.tables.summary.counts import CHECK_COLUMNS, GAP_COLUMNS, check_rows, gap_rows
from reports.tables.summary.verdicts import verdicts

# Rows of the matrix that hold no score.
SHOWN_IN_SMOKE = frozenset(
    {
        "accuracy of the trained method, %",
        "accuracy of the attacked networks, %",
        "attacked round",
        "n",
        guarantees.EPSILON,
        guarantees.AUDITED,
    }
)


def report(records: Sequence[AttackRecord], gaps: Sequence[Gap] = ()) -> Report:
    """The whole page."""
    messages = table_checks.by_record(records)
    forms, numbers = [], []
    for key in grouping.settings(records):
        of_setting = [r for r in records if grouping.setting(r.cell) == key]
        lost = [gap for gap in gaps if grouping.setting(gap.cell) == key and gap.state != REFUSED]
        matrices = [_matrix(of_round, lost) for of_round in rounds_of(of_setting)]
        forms += [
            *matrices,
            Table(f"{grouping.title(key)}: in words", (), (), verdicts(of_setting, lost)),
            _cost(grouping.title(key), of_setting),
        ]
        numbers += _numbers(of_setting, messages)
    forms += broadcast_table.tables(records)
    if is_smoke(records):
        messages = {r.id: [] for r in records}
    forms.append(Table("Checks", CHECK_COLUMNS, check_rows(records, messages), of_training(records), words=True))
    if gaps:
        forms.append(Table("Not run", GAP_COLUMNS, gap_rows(gaps), words=True))
    return Report(
        "The attack ladder",
        [*header(records), *remarks.override_lines(records), how(records), *left_out(records, gaps)],
        forms,
        numbers,
    )


def how(records: Sequence[AttackRecord]) -> str:
    """How to read the tables, with how many cells may stand out by chance."""
    cells = [
        row
        for of_round in rounds_of(records)
        for column in columns_of(of_round, []).values()
        for row in knowledge_sets.rows(column, attacker_text, of_round)
    ]
    failed = " Behind the name stands for how many of the n victims it failed, if any; they count in the PSNR with their score."
    return (
        "A cell is the best attack whose knowledge lies within the row's, its name beneath; it may need less. "
        f"{NONE} stands where no attack with all of it was made, or it applied to no victim."
        + (failed if any(row.best.scores.failures for row in cells) else "")
        + f" It is bold where {LEAST_SEEDS} seeds or more were attacked and the 95% interval of its paired gain over the floor "
        "lies above 0 while some image was reconstructed and, of several attacks that were chosen among, one gains by itself, "
        f"adjusted for their number. That is each cell by itself: of {len(cells)} cells that gained nothing at most "
        f"about {math.ceil(len(cells) * 0.025)} "
        "would be bold by chance. The long tables hold every attack, its failures, and tests adjusted for their number."
        + _of_sharing(records)
    )


def _of_sharing(records: Sequence[AttackRecord]) -> str:
    """Which methods shared what some tags say was used where it is shared."""
    sentences = []
    for part in unique(part for r in records for part in where_shared(attacker_text(r))):
        sharing = unique(label(r.cell) for r in records if part in shared_parts(r.cell.train.method))
        sentences.append(f" Of these methods {', '.join(sharing) or 'none'} shared the {part}.")
    return "".join(sentences)


def _matrix(records: Sequence[AttackRecord], lost: Sequence[Gap]) -> Table:
    """Knowledge down, methods across, at one round of one data set."""
    round_ = records[0].cell.round
    lost = [gap for gap in lost if gap.cell.round == round_]
    columns = columns_of(records, lost)

    def row(name: str, text: Callable[[Column], str]) -> list[str]:
        return [name, *(text(column) if column else MISSING for column in columns.values())]

    body = [
        row(
            "accuracy of the trained method, %",
            lambda column: spread_text(column[0].accuracy.mean, column[0].accuracy.std),
        )
    ]
    body += _published_row("  published, %", columns, _published_accuracy)
    body += guarantees.rows(records, row)
    body.append(row("accuracy of the attacked networks, %", lambda column: f"{column[0].accuracy_at_round.mean:.2f}"))
    if not round_.isdigit():
        body.append(row("attacked round", lambda column: rounds_text(column[0])))
    body.append(
        row("L0 floor, dB", lambda column: f"{column[0].floor.psnr_db:.2f} {render.small(column[0].floor.name)}")
    )
    rows = {
        name: {row.knowledge: row for row in knowledge_sets.rows(column, attacker_text, records)}
        for name, column in columns.items()
    }
    for tag, alike in tags_of(records).items():
        cells = [_cell(rows[name].get(tag), tag, column, _of(lost, name)) for name, column in columns.items()]
        if any(cell != NONE for cell in cells):
            body.append([f"{rungs(alike)} {tag}", *cells])
    body += _published_row("published, dB", columns, _published_psnr)
    body.append(row("n", lambda column: span(sorted({r.scores.n for r in column}))))
    if not is_quotable(records[0].cell.preset):
        body = [[name, *cells] if name in SHOWN_IN_SMOKE else [name, *map(_unquotable, cells)] for name, *cells in body]
    return Table(title_of(group(records[0].cell)), ["", *columns], body)


def _unquotable(cell: str) -> str:
    """A cell of scores as a smoke table shows it."""
    return cell if cell in (NONE, MISSING) else NOT_SHOWN


def _of(lost: Sequence[Gap], name: str) -> list[Gap]:
    return [gap for gap in lost if label(gap.cell) == name]


def _tag(gap: Gap) -> str:
    """What the attack of a missing cell knows."""
    return knowledge.tag(registry.create(registry.resolve("attack", gap.attack), gap.cell.attack_settings))


def _cell(row: LadderRow | None, tag: str, column: Column, lost: Sequence[Gap]) -> str:
    """The best attack within one set of knowledge on one method; that it is missing, where one that needs all of the set is."""
    tags = {attacker_text(r) for r in column}
    if tag not in tags and tag in map(_tag, lost):
        return MISSING
    if row is None:
        return NONE
    text = range_text(row.best.psnr_db)
    return f"{render.bold(text) if row.best.is_significant else text} {render.small(row.best.name + _failed(row.best.scores))}"


def _failed(scores: Scores) -> str:
    """For how many victims an attack failed, to follow its name; nothing where for none."""
    if not scores.failures:
        return ""
    return f", {'all' if scores.failures == scores.n else scores.failures} failed"


def _published_row(name: str, columns: dict[str, Column], text: Callable[[AttackRecord], str]) -> list[list[str]]:
    """The row of published values, where there is one."""
    cells = [text(column[0]) if column else NONE for column in columns.values()]
    return [[name, *cells]] if any(cell != NONE for cell in cells) else []


def _published_accuracy(r: AttackRecord) -> str:
    return published_text(published(r.cell)[0])


def _published_psnr(r: AttackRecord) -> str:
    psnr = of_papers_attack(r.cell)
    below = psnr is not None and psnr.value < r.floor.psnr_db
    return published_text(psnr) + (" (below the floor)" if below else "")


def _cost(title: str, records: Sequence[AttackRecord]) -> Table:
    """Seconds and gradient evaluations of the attacks of each tag, and what training took."""
    columns = columns_of(records, [])
    body = []
    for tag, alike in tags_of(records).items():
        cells = [_cost_text(tags_of(column).get(tag, []), column) for column in columns.values()]
        body.append([f"{rungs(alike)} {tag}", *cells])
    attacks = [[r for each in tags_of(column).values() for r in each] for column in columns.values()]
    body.append(
        [
            "all attacks",
            *(_cost_text(of_column, column) for of_column, column in zip(attacks, columns.values(), strict=True)),
        ]
    )
    body.append(["training", *(f"{_seconds(column[0].cost.train_seconds)} s" for column in columns.values())])
    notes = [
        "Seconds of all attacks with that knowledge, summed over seeds and rounds; gradient evaluations per victim, summed over "
        "these attacks, mean over rounds. What an attack trains is trained once per artifact, in the seconds of the first that "
        "needs it."
    ]
    return Table(f"{title}: cost", ["", *columns], body, notes)


def cost(attacks: Sequence[AttackRecord], column: Column) -> tuple[float, float]:
    """(seconds over seeds and rounds, gradient evaluations per victim and round) of some attacks on one method."""
    rounds = len({r.cell.round for r in column})
    evaluations = sum(r.cost.gradient_evaluations / r.scores.n for r in attacks) / rounds
    return sum(r.cost.attack_seconds for r in attacks), evaluations


def _cost_text(attacks: Sequence[AttackRecord], column: Column) -> str:
    if not attacks:
        return NONE
    seconds, evaluations = cost(attacks, column)
    return f"{_seconds(seconds)} s; {evaluations:,.0f}"


def _seconds(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def _numbers(records: Sequence[AttackRecord], messages: dict[str, list[checks.CheckMessage]]) -> list[dict[str, Any]]:
    """The CSV rows of one data set: one per round, method and set of knowledge."""
    numbers = []
    for of_round in rounds_of(records):
        tags = tags_of(of_round)
        for name, column in columns_of(of_round, []).items():
            for row in knowledge_sets.rows(column, attacker_text, in_rungs(of_round)):
                row_messages = [message for r in row.best.attacks for message in messages[r.id]]
                number = _number(name, row, rungs(tags[row.knowledge]), column, row_messages)
                numbers.append(number | guarantees.columns(row.best.first, records))
    return numbers


def _number(
    name: str, row: LadderRow, height: str, column: Column, messages: Sequence[checks.CheckMessage]
) -> dict[str, Any]:
    best, alike = row.best, row.alike
    r, s = best.first, best.scores
    seconds, evaluations = cost(alike, column)
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
        "significantly_above_floor": best.is_significant,
        "worst_5_percent_db": s.worst_db,
        "share_above_20_db": s.exposed,
        "identification": s.identification,
        "identification_floor": s.identification_floor,
        "accuracy_percent": r.accuracy.mean,
        "accuracy_std": r.accuracy.std,
        "accuracy_at_round_percent": r.accuracy_at_round.mean,
        "published_psnr_db": None if psnr is None else psnr.value,
        "n": s.n,
        "failures": s.failures,
        "seeds": " ".join(map(str, r.cell.seeds)),
        "attacks": " ".join(each.attack for each in alike),
        "attack_seconds": seconds,
        "gradient_evaluations_per_victim": evaluations,
        "checks": " ".join(checks.each_name(messages)),
    }
    return quotable.numbers(r.cell.preset, numbers)
