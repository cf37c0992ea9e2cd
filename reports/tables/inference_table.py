"""What else is learned of clients, beside their images: statements of inferences, with what anybody could state.

A pure function of records. A row is a method and an inference at one attacked round. The gain is how much better the statement is
than the best floor, client by client, above 0 where the attack tells something.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from privbench.records.entries import Statement
from privbench.records.schema import InferenceRecord, Record
from privbench.scoring.statement_scores import QUESTIONS
from privbench.scoring.statistics import Interval, interval
from privbench.spec import CellSpec
from reports.records import grouping, quotable, remarks
from reports.records.labels import inferred_text, label, observed_words, round_text, unique
from reports.records.number_text import range_text
from reports.tables.inferences import membership_rows
from reports.tables.render import bold
from reports.tables.report import Report, Table

TITLE = "What else is learned"
INTERVALS = "[95% interval of Student's t over seeds]."
COLUMNS = ("method", "inference", "attacker knows", "round", "score", "floor", "gain", "clients")


def report(records: Sequence[InferenceRecord]) -> Report:
    """A table per setting and question, and each client's statement in the numbers."""
    tables = []
    for key in unique(_setting(r.cell) for r in records):
        of_setting = [r for r in records if _setting(r.cell) == key]
        for question in unique(r.question for r in of_setting):
            each = [r for r in of_setting if r.question == question]
            title = f"{', '.join(key)}: {QUESTIONS[question].title}"
            if QUESTIONS[question].of_candidates:
                tables.append(Table(title, membership_rows.COLUMNS, [membership_rows.row(r) for r in each]))
            else:
                tables.append(Table(title, COLUMNS, [row(r) for r in each]))
    notes = [
        *remarks.training_header(records), *remarks.override_lines(records), *how(records), *remarks.of_few_seeds(records)
    ]  # fmt: skip
    return Report(TITLE, notes, tables, [line for r in records for line in _numbers(r)])


def _setting(cell: CellSpec) -> tuple[str, ...]:
    """What the records of a table have in common: as others have it, and what the server saw."""
    return grouping.title(grouping.setting(cell)), *observed_words(cell)


def section(records: Sequence[InferenceRecord]) -> list[Table]:
    """The same as a part of another report: how to read it, then its tables; nothing without records."""
    if not records:
        return []
    return [Table(TITLE, (), (), how(records)), *(t._replace(is_part=True) for t in report(records).tables)]


def beneath(whole: Report, records: Sequence[Record]) -> Report:
    """A report with the tables of the inferences among some records as its last ones; its numbers stay as they are."""
    inferred = [r for r in records if isinstance(r, InferenceRecord)]
    return whole._replace(tables=[*whole.tables, *section(inferred)])


def row(r: InferenceRecord) -> list[str]:
    """The cells of one record; those with a score say nothing in smoke."""
    advantage = gain(r)
    text = range_text(advantage, sign=True, digits=3)
    cells = {
        "method": label(r.cell),
        "inference": r.attack,
        "attacker knows": inferred_text(r),
        "round": round_text(r.cell.round),
        "score": range_text(score(r).within(0, 1), digits=3),
        "floor": f"{range_text(floor(r).within(0, 1), digits=3)} <sub>{r.floor}</sub>",
        "gain": bold(text) if advantage.significantly_above else text,
        "clients": str(len(r.statements)),
    }
    if not quotable.is_quotable(r.cell.preset):
        cells |= dict.fromkeys(("score", "floor", "gain"), quotable.NOT_SHOWN)
    return [cells[name] for name in COLUMNS]


def score(r: InferenceRecord) -> Interval:
    """The mean over clients and seeds."""
    return interval([s.score for s in r.statements], r.statements)


def floor(r: InferenceRecord) -> Interval:
    """The same of the best floor."""
    return interval([s.floors[r.floor] for s in r.statements], r.statements)


def gain(r: InferenceRecord) -> Interval:
    """The mean over clients and seeds of how much better a statement is than the best floor; no more than a score can be."""
    floors = [s.floors[r.floor] for s in r.statements]
    least, most = min(floors), max(floors)
    least, most = (least - 1, most) if QUESTIONS[r.question].is_error else (-most, 1 - least)
    return interval([_gain(r, s) for s in r.statements], r.statements).within(least, most)


def how(records: Sequence[InferenceRecord]) -> list[str]:
    """What the numbers are."""
    lines = []
    for question in unique(r.question for r in records):
        inference = QUESTIONS[question]
        if inference.of_candidates:
            lines += membership_rows.how([r for r in records if r.question == question])
            continue
        better = "lower" if inference.is_error else "higher"
        lines.append(f"Score of the {inference.title}: {inference.score}, 0 to 1, {better} is better.")
    for r in records:
        lines += [f"{label(r.cell)}, {r.attack}: {message.sentence}." for message in r.messages]
    if any(r.knowledge.pools_clients for r in records):
        lines.append("'Pools': each answer is made of what so many clients sent, or were asked about, together.")
    if all(QUESTIONS[r.question].of_candidates for r in records):
        return [*lines, INTERVALS]
    return [
        *lines,
        "Floor: what anybody could state who received nothing, the best of several. Gain: how much better the statement is.",
        f"{INTERVALS} Bold: the gain is significantly above 0.",
    ]


def _gain(r: InferenceRecord, one: Statement) -> float:
    better = one.floors[r.floor] - one.score
    return better if QUESTIONS[r.question].is_error else -better


def _numbers(r: InferenceRecord) -> list[dict[str, Any]]:
    """One row per seed and client, the mean of none."""
    about = {
        "id": r.id, "dataset": r.cell.train.dataset, "method": label(r.cell), "inference": r.attack,
        "question": r.question, "round": r.cell.round, "observe": r.cell.observe, "batch_size": r.cell.batch_size,
        "wire": r.cell.wire, "attack_settings": grouping.override_text(remarks.attack_overrides(r.cell)),
        "training_settings": grouping.override_text(grouping.training_overrides(r.cell)),
    }  # fmt: skip
    return [
        about
        | {"seed": s.seed, "client": s.client + 1, "uploads": s.uploads}
        | _scores(r, {"score": s.score} | {f"floor_{name}": value for name, value in s.floors.items()})
        for s in r.statements
    ]


def _scores(r: InferenceRecord, values: dict[str, float]) -> dict[str, float]:
    return values if quotable.is_quotable(r.cell.preset) else dict.fromkeys(values, float("nan"))
