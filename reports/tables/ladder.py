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
from privbench.scoring import epsilon_bounds
from reports.records import comparison, guarantees, knowledge_sets, measured, quotable, table_checks
from reports.records.comparison import Comparison
from reports.records.knowledge_sets import LadderRow
from reports.records.labels import Gap, fields_of, group, knowledge_text, label, place, pooled_text, title_of, unique
from reports.records.measured import ORACLE, Measured, strongest
from reports.records.number_text import NONE, range_text
from reports.records.quotable import SMOKE_NOTE, is_quotable, is_smoke
from reports.records.remarks import CAVEAT, gap_lines, header, left_out, override_lines, remarks
from reports.tables import broadcast_table
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
    all_blocks = []
    for key in unique(group(r.cell) for r in records):
        of_group = sorted((r for r in records if group(r.cell) == key), key=lambda r: place(r.cell))
        for name in unique(label(r.cell) for r in of_group):
            every = sorted((r for r in of_group if label(r.cell) == name), key=order)
            rows = knowledge_sets.rows(every)
            best = knowledge_sets.distinct(rows)
            floor = every[0].floor
            floor_text = (
                f"floor {floor.psnr_db:.2f} dB ({floor.name})" if is_quotable(key[3]) else f"floor {floor.name}"
            )
            names = [f"{' or '.join(unique(map(knowledge_text, row.attacks)))} ({row.name})" for row in best]
            tests = comparison.against_floor(best, names) if is_quotable(key[3]) else []
            floors = next((measured.of(r) for r in every if r.attack == floor.name), None)
            all_blocks.append(Block(f"{name}: {title_of(key)}", floor_text, floors, rows, every, tests))
    return all_blocks


def rung(record: AttackRecord) -> str:
    """L0 to L8, or OWN."""
    return record.knowledge.rung or OWN


def rungs(records: Sequence[AttackRecord]) -> str:
    """The rungs of some attacks, e.g. "L1-L2"."""
    names = sorted({rung(r) for r in records})
    return names[0] if len(names) == 1 else f"{names[0]}-{names[-1]}"


def order(record: AttackRecord) -> tuple[str, str, float]:
    """Rungs from below, and the stronger of two attacks of one tag first."""
    return (rung(record), knowledge_text(record), -record.scores.psnr_db)


def row(
    attack: Measured,
    messages: dict[str, list[checks.CheckMessage]],
    knowledge: str = "",
    among: Sequence[AttackRecord] = (),
) -> dict[str, str]:
    """One row's cells under COLUMNS, of an attack or of some `knowledge`; `among` are all attacks that need all of that."""
    s, floor = attack.scores, measured.returned_text(attack)
    cells = {
        "rung": rungs(among or attack.attacks),
        "knowledge": f"{knowledge or knowledge_text(attack.first)}{pooled_text(attack.first)}",
        "strongest attack": attack.name + (f" ({floor})" if floor else ""),
        "PSNR dB": range_text(attack.psnr_db),
        "gain over the floor dB": range_text(attack.gain_db, sign=True),
        "worst 5%, dB": f"{s.worst_db:.2f}",
        "above 20 dB": f"{100 * s.exposed:.0f}%",
        "SSIM": f"{s.ssim:.3f}",
        "feature error": NONE if s.feature_error is None else f"{s.feature_error:.3f}",
        "identified": measured.identified_text(s),
        "labels right": f"{100 * s.label_accuracy:.0f}%",
        "n / failures": f"{s.n} / {s.failures}",
        "seconds": f"{sum(r.cost.attack_seconds for r in attack.attacks):.1f}",
        "gradient evaluations": f"{sum(r.cost.gradient_evaluations for r in attack.attacks):,}",
        "checks": checks.names(message for r in attack.attacks for message in messages[r.id]),
    }
    return quotable.cells(attack.first.cell.preset, cells, NONE)


def best_rows(block: Block, messages: dict[str, list[checks.CheckMessage]]) -> list[dict[str, str]]:
    """The best floor, then one row per set of knowledge."""
    floors = [] if block.floors is None else [row(block.floors, messages)]
    return [*floors, *(row(each.best, messages, each.knowledge, each.alike) for each in block.rows)]


def strongest_line(block: Block) -> str:
    """The block's answer in one sentence."""
    attacks = [r for r in block.every if r.attack not in registry.FLOORS]
    if not attacks:
        return f"{block.floor}; no attack was run."
    if is_smoke(block.every):
        return SMOKE_NOTE
    best = strongest(attacks)
    known = "; ".join(unique(knowledge_text(r) for r in best.attacks))
    references = [r for r in attacks if rung(r) == ORACLE]
    reference = (
        f" Reference, with the victim's own networks: {range_text(strongest(references).psnr_db)} dB."
        if references
        else ""
    )
    return (
        f"{block.floor[0].upper()}{block.floor[1:]}; strongest attack: {best.name} ({known}), "
        f"{range_text(best.psnr_db)} dB, {range_text(best.gain_db, sign=True)} dB over the floor, n = {best.scores.n}, "
        f"{best.scores.failures} failed.{_verdict(best)}{reference} The defence gives {best.first.guarantee}"
        f"{_covered(best.first)}.{_audited(best.first)}"
    )


def _covered(record: AttackRecord) -> str:
    """Of which networks the guarantee is, and of what not."""
    if guarantees.epsilon(record) is None:
        return ""
    return f" for the training of {guarantees.covered_text(record)}, and none for {guarantees.left_out_text(record)}"


def _audited(record: AttackRecord) -> str:
    """What an audit proves of the guarantee, where there was one."""
    proved = guarantees.proved(record)
    if proved is None:
        return ""
    low, most = map(epsilon_bounds.rounded_down, (proved.lower_bound, proved.provable))
    return f" An audit with {proved.canaries:,} canaries shows that epsilon is at least {low:.2f}; it could have shown {most:.2f}."


def _verdict(best: Measured) -> str:
    """Whether the strongest attack beats the floor significantly, where that needs a sentence."""
    if best.is_significant:
        return ""
    if best.gain_db.is_few:
        return f" {len(best.first.seeds)} seed(s) are too few to say whether it beats the floor significantly."
    return " It does not beat the floor significantly, which bounds the attacks run here and is no proof of privacy."


def report(records: Sequence[AttackRecord], gaps: Sequence[Gap] = ()) -> Report:
    """The whole ladder: what methods give away against each other, then the blocks."""
    messages, all_blocks = table_checks.by_record(records), blocks(records)
    tables = []
    if tests := comparison.between_methods_of_each(records):
        rows = comparison.rows(tests)
        tables.append(Table("Between methods", comparison.COLUMNS, rows, text=[comparison.HOW], on_paper=()))
    tables += [table for block in all_blocks for table in _tables(block, messages)]
    tables += broadcast_table.tables(records)
    missing, remark_lines = gap_lines(gaps), remarks(records)
    tables += [
        Table(title, (), (), lines)
        for title, lines in (("Not run", missing), ("Checks and remarks", remark_lines))
        if lines
    ]
    return Report(
        "Attack ladder",
        [*header(records), *override_lines(records), HOW, *left_out(records, gaps)],
        tables,
        [
            quotable.numbers(r.cell.preset, _csv_row(r, messages[r.id]) | guarantees.columns(r, records))
            for block in all_blocks
            for r in block.every
        ],
        messages=[*(f"not run: {line}" for line in missing), *remark_lines, CAVEAT],
        caption=f"[95% interval of Student's t over seeds]. {measured.CHOSEN} {CAVEAT}",
    )


def _tables(block: Block, messages: dict[str, list[checks.CheckMessage]]) -> list[Table]:
    """The strongest attacks of one block, then every attack and the tests, which stand in the files alone."""
    every = [row(measured.of(r), messages) for r in block.every]
    names = ["attack" if name == "strongest attack" else name for name in COLUMNS]
    tables = [
        Table(block.title, SHORT, _cells(best_rows(block, messages), SHORT), text=[strongest_line(block)]),
        Table("Every attack", names, _cells(every, COLUMNS), is_part=True, is_detail=True, on_paper=()),
    ]
    if block.tests:
        rows = comparison.rows(block.tests)
        tables.append(
            Table(
                "Against the floor, paired",
                comparison.COLUMNS,
                rows,
                is_part=True,
                is_detail=True,
                on_paper=(),
            )
        )
    return tables


def _cells(rows: Sequence[dict[str, str]], columns: Sequence[str]) -> list[list[str]]:
    return [[each[name] for name in columns] for each in rows]


def _csv_row(r: AttackRecord, messages: Sequence[checks.CheckMessage]) -> dict[str, Any]:
    row = measured.of(r)
    columns = ("preset", "dataset", "method", "defense", "where", "attack", "round", "victims", "batch_size")
    return {
        "id": r.id,
        **fields_of(r.cell, columns),
        "observe": r.cell.observe,
        "attacked_rounds": " ".join(map(str, r.rounds)),
        "rung": rung(r),
        "knowledge": knowledge_text(r),
        "uploads_pooled": r.knowledge.pools,
        **measured.psnr_columns(row),
        **measured.score_columns(row),
        "attack_seconds": r.cost.attack_seconds,
        "gradient_evaluations": r.cost.gradient_evaluations,
        "guarantee": r.guarantee,
        "checks": " ".join(checks.each_name(messages)),
    }
