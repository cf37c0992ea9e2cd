"""The attack ladder: how much a server reconstructs, by what it knows.

A pure function of records. One block per data set, round, method and defence: for every set of knowledge the best attack whose
knowledge lies within it (reports/records/knowledge_sets.py), in the order of the rungs. Beneath it stand every attack that was
run, the paired tests against the floor, and what checks say of the numbers (reports/records/remarks.py).
docs/reading_results.md says how to read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from privbench import registry
from privbench.records import checks
from privbench.records.schema import AttackRecord
from reports.records import comparison, knowledge_sets, measured, quotable, table_checks
from reports.records.comparison import Comparison
from reports.records.knowledge_sets import LadderRow
from reports.records.labels import (
    NONE,
    Gap,
    fields_of,
    group,
    knowledge_text,
    label,
    place,
    pooled_text,
    range_text,
    title_of,
    unique,
)
from reports.records.measured import ORACLE, Measured, strongest
from reports.records.quotable import PLUMBING, is_plumbing, is_quotable
from reports.records.remarks import CAVEAT, gap_lines, header, remarks
from reports.tables.report import Report, Table

HOW = "A row is the best attack whose knowledge lies within the row's; it may need less."
OWN = "own"  # the rung of a user's attack that declares none
COLUMNS = (
    "rung", "knowledge", "strongest attack", "PSNR dB", "gain over the floor dB", "worst 5%, dB", "above 20 dB", "SSIM",
    "feature error", "identified", "labels right", "n / failures", "seconds", "gradient evaluations", "checks",
)  # fmt: skip
SHORT = (
    "rung", "knowledge", "strongest attack", "PSNR dB", "gain over the floor dB", "identified", "n / failures", "checks",
)  # fmt: skip


class Block(NamedTuple):
    """The ladder of one method at one round."""

    title: str
    floor: str  # in words
    floors: Measured | None  # the best floor, where it was made
    rows: list[LadderRow]  # one per set of knowledge, in the order of the rungs
    every: list[AttackRecord]
    tests: list[Comparison]  # of those attacks against the floor


def blocks(records: Sequence[AttackRecord]) -> list[Block]:
    """One block per table, method and defence, in the published order."""
    found = []
    for key in unique(group(r.cell) for r in records):
        own = sorted((r for r in records if group(r.cell) == key), key=lambda r: place(r.cell))
        for name in unique(label(r.cell) for r in own):
            every = sorted((r for r in own if label(r.cell) == name), key=order)
            rows = knowledge_sets.rows(every)
            best = knowledge_sets.distinct(rows)
            floor = every[0].floor
            floor_text = (
                f"floor {floor.psnr_db:.2f} dB ({floor.name})" if is_quotable(key[3]) else f"floor {floor.name}"
            )
            names = [f"{knowledge_text(own.first)} ({own.name})" for own in best]
            tests = comparison.against_floor(best, names) if is_quotable(key[3]) else []
            floors = next((measured.of(r) for r in every if r.attack == floor.name), None)
            found.append(Block(f"{name}: {title_of(key)}", floor_text, floors, rows, every, tests))
    return found


def rung(record: AttackRecord) -> str:
    """L0 to L8, or OWN."""
    return record.knowledge.rung or OWN


def rungs(records: Sequence[AttackRecord]) -> str:
    """The rungs of some attacks, e.g. "L1-L2"."""
    found = sorted({rung(r) for r in records})
    return found[0] if len(found) == 1 else f"{found[0]}-{found[-1]}"


def order(record: AttackRecord) -> tuple[str, str, float]:
    """Rungs from below, and the stronger of two attacks of one tag first."""
    return (rung(record), knowledge_text(record), -record.scores.psnr_db)


def row(
    own: Measured, messages: dict[str, list[checks.CheckMessage]], known: str = "", among: Sequence[AttackRecord] = ()
) -> dict[str, str]:
    """One row's cells under COLUMNS, of an attack or of what is `known`; `among` are all attacks that need all of that."""
    s, floor = own.scores, measured.returned_text(own)
    cells = {
        "rung": rungs(among or own.attacks),
        "knowledge": f"{known or knowledge_text(own.first)}{pooled_text(own.first)}",
        "strongest attack": own.name + (f" ({floor})" if floor else ""),
        "PSNR dB": range_text(own.psnr_db),
        "gain over the floor dB": range_text(own.gain_db, sign=True),
        "worst 5%, dB": f"{s.worst_db:.2f}",
        "above 20 dB": f"{100 * s.exposed:.0f}%",
        "SSIM": f"{s.ssim:.3f}",
        "feature error": NONE if s.feature_error is None else f"{s.feature_error:.3f}",
        "identified": f"{100 * s.identification:.0f}% (chance {100 * s.identification_chance:.3g}%)",
        "labels right": f"{100 * s.label_accuracy:.0f}%",
        "n / failures": f"{s.n} / {s.failures}",
        "seconds": f"{sum(r.cost.attack_seconds for r in own.attacks):.1f}",
        "gradient evaluations": f"{sum(r.cost.gradient_evaluations for r in own.attacks):,}",
        "checks": checks.names(flag for r in own.attacks for flag in messages[r.id]),
    }
    return quotable.cells(own.first.cell.preset, cells, NONE)


def best_rows(block: Block, messages: dict[str, list[checks.CheckMessage]]) -> list[dict[str, str]]:
    """The best floor, then one row per set of knowledge."""
    floors = [] if block.floors is None else [row(block.floors, messages)]
    return [*floors, *(row(each.best, messages, each.knowledge, each.alike) for each in block.rows)]


def strongest_line(block: Block) -> str:
    """The block's answer in one sentence."""
    attacks = [r for r in block.every if r.attack not in registry.FLOORS]
    if not attacks:
        return f"{block.floor}; no attack was run."
    if is_plumbing(block.every):
        return PLUMBING
    own = strongest(attacks)
    known = "; ".join(unique(knowledge_text(r) for r in own.attacks))
    references = [r for r in attacks if rung(r) == ORACLE]
    reference = (
        f" Reference, with the victim's own networks: {range_text(strongest(references).psnr_db)} dB."
        if references
        else ""
    )
    return (
        f"{block.floor[0].upper()}{block.floor[1:]}; strongest attack: {own.name} ({known}), "
        f"{range_text(own.psnr_db)} dB, {range_text(own.gain_db, sign=True)} dB over the floor, n = {own.scores.n}, "
        f"{own.scores.failures} failed.{_verdict(own)}{reference} The defence gives {own.first.guarantee}."
    )


def _verdict(own: Measured) -> str:
    """Whether the floor is surely beaten, where that needs a sentence."""
    if own.is_sure:
        return ""
    if own.gain_db.is_few:
        return f" {len(own.first.seeds)} seed(s) are too few to say whether any attack surely beats the floor."
    return " No attack surely beats the floor, which bounds these attacks and is no proof of privacy."


def report(records: Sequence[AttackRecord], gaps: Sequence[Gap] = ()) -> Report:
    """The whole ladder: what methods give away against each other, then the blocks."""
    messages, found = table_checks.by_record(records), blocks(records)
    tables = []
    if tests := comparison.between_methods_of_each(records):
        rows = comparison.rows(tests)
        tables.append(Table("Between methods", comparison.COLUMNS, rows, text=[comparison.HOW], on_paper=()))
    tables += [table for block in found for table in _tables(block, messages)]
    missing, told = gap_lines(gaps), remarks(records)
    tables += [
        Table(title, (), (), lines) for title, lines in (("Not run", missing), ("Doubts and remarks", told)) if lines
    ]
    return Report(
        "Attack ladder",
        [*header(records), HOW],
        tables,
        [quotable.numbers(r.cell.preset, _csv_row(r, messages[r.id])) for block in found for r in block.every],
        messages=[*(f"not run: {line}" for line in missing), *told, CAVEAT],
        caption=f"[95% interval over seeds, clients and victims]. {measured.CHOSEN} {CAVEAT}",
    )


def _tables(block: Block, messages: dict[str, list[checks.CheckMessage]]) -> list[Table]:
    """The strongest attacks of one block, then every attack and the tests, which stand in the files alone."""
    every = [row(measured.of(r), messages) for r in block.every]
    names = ["attack" if name == "strongest attack" else name for name in COLUMNS]
    found = [
        Table(block.title, SHORT, _cells(best_rows(block, messages), SHORT), text=[strongest_line(block)]),
        Table("Every attack", names, _cells(every, COLUMNS), is_part=True, is_detail=True, on_paper=()),
    ]
    if block.tests:
        rows = comparison.rows(block.tests)
        found.append(
            Table(
                "Against the floor, paired",
                comparison.COLUMNS,
                rows,
                is_part=True,
                is_detail=True,
                on_paper=(),
            )
        )
    return found


def _cells(rows: Sequence[dict[str, str]], columns: Sequence[str]) -> list[list[str]]:
    return [[each[name] for name in columns] for each in rows]


def _csv_row(r: AttackRecord, messages: Sequence[checks.CheckMessage]) -> dict[str, Any]:
    own = measured.of(r)
    kept = ("preset", "dataset", "method", "defense", "where", "attack", "round", "victims", "batch_size")
    return {
        "id": r.id,
        **fields_of(r.cell, kept),
        "observe": r.cell.observe,
        "attacked_rounds": " ".join(map(str, r.rounds)),
        "rung": rung(r),
        "knowledge": knowledge_text(r),
        "uploads_pooled": r.knowledge.pools,
        **measured.psnr_columns(own),
        **measured.score_columns(own),
        "attack_seconds": r.cost.attack_seconds,
        "gradient_evaluations": r.cost.gradient_evaluations,
        "guarantee": r.guarantee,
        "checks": " ".join(checks.each_name(messages)),
    }
