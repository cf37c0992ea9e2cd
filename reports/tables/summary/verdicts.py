"""What the ladder of one method says in words: where an attacker gains significantly, with what, and what the oracle says."""

from __future__ import annotations

from collections.abc import Sequence

from privbench.records.schema import AttackRecord
from reports.records import knowledge_sets
from reports.records.labels import Gap, attacker_text, knowledge_text, label, unique
from reports.records.measured import ORACLE, Measured
from reports.records.number_text import range_text, span
from reports.records.quotable import SMOKE_NOTE, is_quotable
from reports.tables.ladder import rung
from reports.tables.summary.columns import Column, columns_of, in_rungs, rounds_of


def verdicts(records: Sequence[AttackRecord], lost: Sequence[Gap] = ()) -> list[str]:
    """One line per method of one data set; nothing but what smoke runs are for where these are some."""
    if not all(is_quotable(r.cell.preset) for r in records):
        return [SMOKE_NOTE]
    return [
        f"{name}: {_verdict(column, [g for g in lost if label(g.cell) == name])}"
        for name, column in columns_of(records, lost).items()
    ]


def _verdict(column: Column, lost: Sequence[Gap]) -> str:
    """Where an attacker gains significantly, where none does, what the oracle says, and what is missing."""
    by_round = {
        of_round[0].cell.round: knowledge_sets.distinct(knowledge_sets.rows(in_rungs(of_round), attacker_text))
        for of_round in rounds_of(column)
    }
    attackers = {when: [row for row in best if _rung(row) != ORACLE] for when, best in by_round.items()}
    attackers = {when: best for when, best in attackers.items() if best}
    significant = {when: [row for row in best if row.is_significant] for when, best in attackers.items()}
    gained, not_gained = [w for w in significant if significant[w]], [w for w in significant if not significant[w]]
    sentences = []
    if gained:
        sentences.append(f"gains significantly over the floor at {_how({w: significant[w] for w in gained})}.")
    of_few = [when for when in not_gained if any(row.gain_db.is_few for row in attackers[when])]
    if of_few:
        seeds = sorted({row.gain_db.seeds for when in of_few for row in attackers[when] if row.gain_db.is_few})
        where = f" at {_rounds(of_few)}" if len(of_few) < len(attackers) else ""
        sentences.append(
            f"{span(seeds)} seed{'s are' if seeds != [1] else ' is'} too few to say whether an attack gains significantly{where}."
        )
    if not_gained := [when for when in not_gained if when not in of_few]:
        where = f"at {_rounds(not_gained)}" if len(not_gained) < len(attackers) else "at any attacked round"
        sentences.append(
            f"With no set of knowledge does the strongest attack gain significantly {where}, which bounds these attacks and is no "
            "proof of privacy."
        )
    if not attackers:
        sentences.append("No attack was run.")
    sentences.append(_of_oracle([row for best in by_round.values() for row in best if _rung(row) == ORACLE]))
    if lost:
        sentences.append(f"{len(lost)} cell(s) are missing.")
    return " ".join(sentence for sentence in sentences if sentence)


def _how(significant: dict[str, list[Measured]]) -> str:
    """At which rounds, with how little knowledge, by which attacks, and what the strongest of all gains more."""
    least = {when: min(rows, key=lambda row: (_rung(row), -row.scores.psnr_db)) for when, rows in significant.items()}
    clauses = []
    for known in unique(_known(row) for row in least.values()):
        alike = {when: row for when, row in least.items() if _known(row) == known}
        attacks = ", ".join(unique(row.name for row in alike.values()))
        clauses.append(
            f"{_rounds(list(alike))} with no more than {' '.join(known)} ({attacks}, {_gains(list(alike.values()))})"
        )
    best = max((row for rows in significant.values() for row in rows), key=lambda row: row.gain_db.mean)
    if not any(best is row for row in least.values()):
        most = f"{range_text(best.gain_db, sign=True)} dB at {_name(best.first.cell.round)}"
        clauses.append(f"the most is {most} by {best.name} ({_knowledge(best)})")
    return "; ".join(clauses)


def _known(row: Measured) -> tuple[str, str]:
    return _rung(row), _knowledge(row)


def _rung(row: Measured) -> str:
    """The highest of its attacks', as a row's victims are those of all of them."""
    return max(rung(r) for r in row.attacks)


def _knowledge(row: Measured) -> str:
    return " or ".join(unique(knowledge_text(r) for r in row.attacks))


def _gains(rows: Sequence[Measured]) -> str:
    """The gain of one attack with its interval, or the span of several."""
    if len(rows) == 1:
        return f"{range_text(rows[0].gain_db, sign=True)} dB"
    return f"{span(unique(f'{gain:+.2f}' for gain in sorted(row.gain_db.mean for row in rows)))} dB"


def _of_oracle(oracles: Sequence[Measured]) -> str:
    """What the victim's own networks would give."""
    if not oracles:
        return ""
    gains = _gains(oracles)
    if any(row.gain_db.is_few for row in oracles):
        return f"The oracle, a reference, gains {gains}."
    failing = [row.first.cell.round for row in oracles if not row.is_significant]
    if not failing:
        return f"The oracle, a reference, gains significantly at every attacked round ({gains})."
    where = "any attacked round" if len(failing) == len(oracles) else _rounds(failing)
    return f"The oracle does not gain significantly at {where} ({gains}), so that a failure there says nothing."


def _name(when: str) -> str:
    return f"the {when} round" if when in ("best", "last") else f"round {when}"


def _rounds(rounds: Sequence[str]) -> str:
    """E.g. "rounds 0, 1 and best"."""
    if len(rounds) == 1:
        return _name(rounds[0])
    return f"rounds {', '.join(rounds[:-1])} and {rounds[-1]}"
