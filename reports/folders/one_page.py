"""All that a folder of results says, as one report: findings, cells, pictures, checks, and where each number comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from privbench import registry
from privbench.records.checks import CheckMessage
from privbench.records.schema import AttackRecord, InferenceRecord, Record
from privbench.spec import CellSpec
from reports.figures import curves
from reports.folders import cell_table, pictures, provenance
from reports.folders.contents import Contents
from reports.records import comparison, grouping, remarks, table_checks
from reports.records.labels import group, in_order, label, title_of, unique
from reports.records.measured import strongest
from reports.records.number_text import NONE, spread_text
from reports.records.quotable import SMOKE_NOTE, is_quotable, quotable
from reports.records.remarks import CAVEAT
from reports.tables import attack_table, inference_table, published_form, sentences
from reports.tables.report import OnPage, Report, Table

FINDINGS, LEFT_OUT = "Findings", "Not on this page"
MOST_CELLS = 1000
MOST_FINDINGS, MOST_DIFFERENCES = 30, 10
MOST_FORMS = 12  # tables of methods side by side
# Titles of the lists that the terminal shows, too, and the tables that are their parts.
SHOWN = (FINDINGS, inference_table.TITLE, LEFT_OUT)
SORRY = "The figures need reconstructions, which a file of records does not hold."


def report(contents: Contents, *, with_pictures: bool = True) -> Report:
    """The report of what lies in one place; pictures and where numbers come from stand on its HTML page alone."""
    records, more = chosen(contents.records)
    attacked = [r for r in records if isinstance(r, AttackRecord)]
    messages = table_checks.by_record(attacked)
    left_out = [*contents.left_out, *more]
    tables = [_findings(records), cell_table.table(records, messages)]
    if with_pictures:
        drawn, lines = _pictures(contents, records)
        tables += drawn
        left_out += lines
    tables += _forms(contents, attacked, left_out)
    tables += attack_table.between_methods(attacked)
    tables += inference_table.section([r for r in records if isinstance(r, InferenceRecord)])
    for title, notes in (
        ("Gaps", remarks.gap_lines(contents.gaps)),
        (LEFT_OUT, left_out),
        ("Checks and remarks", remarks.remarks(attacked) if attacked else []),
        ("How to read it", remarks.header(attacked) if attacked else remarks.training_header(records)),
    ):
        tables += [Table(title, (), (), notes)] if notes else []
    tables.append(_provenance(contents, records, messages))
    return Report(
        f"Results: {contents.name}", _notes(contents, attacked), tables, attack_table.frame(attacked).to_dict("records")
    )


def chosen(records: Sequence[Record]) -> tuple[list[Record], list[str]]:
    """(the records of a page, in the order of tables; what is left out where there are more than MOST_CELLS).

    Of attacks those are kept that reconstruct best, method by method: what left out the worst leaks would flatter.
    """
    attacked = [r for r in records if isinstance(r, AttackRecord)]
    others = [r for r in records if not isinstance(r, AttackRecord)]
    if len(records) <= MOST_CELLS:
        return [*in_order(attacked), *others], []
    plain = others[: MOST_CELLS // 2]
    pairs = pictures.strongest_of_each([(r.cell, r) for r in in_order(attacked)], MOST_CELLS - len(plain))
    line = (
        f"{len(records) - len(pairs) - len(plain)} of {len(records)} cells: the page has the {len(pairs)} attacks that reconstruct "
        f"best, method by method, and {len(plain)} of {len(others)} cells of inferences or without an attack"
    )
    return [*(r for _, r in pairs), *plain], [line]


def _notes(contents: Contents, attacked: Sequence[AttackRecord]) -> list[str]:
    """What a reader must know before the first number."""
    smoke = [r for r in contents.records if not is_quotable(r.cell.preset)]
    count = len(contents.records)
    return [
        f"{count} cell{'s' * (count != 1)}, measured on {remarks.machines(contents.records)}.",
        *([SMOKE_NOTE[0].upper() + SMOKE_NOTE[1:]] if smoke else []),
        *([CAVEAT] if attacked else []),
    ]


def _findings(records: Sequence[Record]) -> Table:
    """One sentence for each method of each table, with its interval, the largest gains first; then differences between methods."""
    attacked = [
        r for r in quotable([r for r in records if isinstance(r, AttackRecord)]) if r.attack not in registry.FLOORS
    ]
    trained_as = grouping.training_words(r.cell for r in attacked)
    tables = {r.id: (group(r.cell), trained_as[r.cell.id]) for r in attacked}
    keys = unique(tables.values())
    parts = [[*title_of(key).split(", "), *([f"trained with {trained}"] if trained else [])] for key, trained in keys]
    names, common = cell_table.distinct(parts) if keys else ([], [])
    rows = [
        (f"{name}, {words}" if words != NONE else name, strongest(of_method))
        for key, words in zip(keys, names, strict=True)
        for name, of_method in _by_method([r for r in attacked if tables[r.id] == key]).items()
    ]
    rows.sort(key=lambda each: (not each[1].is_significant, -each[1].gain_db.mean))
    lines = [sentences.in_one(row, where) for where, row in rows[:MOST_FINDINGS]]
    lines += (
        [f"{len(rows) - len(lines)} more methods and settings stand in the table of cells."]
        if len(rows) > len(lines)
        else []
    )
    differences = [c for c in comparison.between_methods_of_each(attacked) if c.differ]
    differences.sort(key=lambda c: -abs(c.difference_db.mean))
    lines += [
        f"{c.name}: PSNR differs by {sentences.level(c.difference_db)}, strongest attack on each, paired by victim "
        f"(p {comparison.p_text(c.holm)} after Holm)."
        for c in differences[:MOST_DIFFERENCES]
    ]
    more = len(differences) - MOST_DIFFERENCES
    lines += [f"{more} more differences stand under 'Between methods'."] if more > 0 else []
    if not attacked:
        lines = [
            f"{grouping.title(key)}, {name}: test accuracy {spread_text(r.accuracy.mean, r.accuracy.std, 1)}% over {len(r.seeds)} "
            f"seed{'s' * (len(r.seeds) != 1)}."
            for key in grouping.settings(records)
            for name, r in grouping.chosen(records, key).items()
            if is_quotable(r.cell.preset)
        ][:MOST_FINDINGS]
    text = [f"All of them: {', '.join(common)}."] if common else [] if lines else ["None: smoke runs measure nothing."]
    return Table(FINDINGS, (), (), lines, text=text)


def _of_several_trainings(cells: Sequence[CellSpec], trained_as: Mapping[str, str]) -> set[tuple[Any, ...]]:
    """The groups in which one method with one defence was trained in several ways: each is a table of its own."""
    columns: dict[tuple[Any, ...], set[str]] = {}
    for cell in cells:
        columns.setdefault((group(cell), label(cell)), set()).add(trained_as[cell.id])
    return {key for (key, _), of_column in columns.items() if len(of_column) > 1}


def _by_method(records: Sequence[AttackRecord]) -> dict[str, list[AttackRecord]]:
    return {name: [r for r in records if label(r.cell) == name] for name in unique(label(r.cell) for r in records)}


def _pictures(contents: Contents, records: Sequence[Record]) -> tuple[list[Table], list[str]]:
    """(the sections with pictures, what is left out)."""
    attacked = [r for r in records if isinstance(r, AttackRecord)]
    tables, left_out = [], []
    if attacked and contents.store is None:
        left_out.append(SORRY)
    elif attacked and contents.store is not None:
        drawn = pictures.grids(contents.store, [r.cell for r in attacked], attacked)
        left_out += map(contents.without_place, drawn.left_out)
        if drawn.pictures:
            tables.append(Table("Reconstructions", (), (), on_paper=(), on_page=OnPage(pictures=drawn.pictures)))
    drawn = pictures.lines(records)
    left_out += drawn.left_out
    if drawn.pictures:
        tables.append(Table("Curves", (), (), on_paper=(), on_page=OnPage(pictures=drawn.pictures)))
        ends = curves.report(records, pictures.QUANTITIES, "").tables
        tables += [table._replace(is_part=True, is_detail=True) for table in ends[: 2 * pictures.MOST_CURVES]]
    return tables, left_out


def _forms(contents: Contents, attacked: Sequence[AttackRecord], left_out: list[str]) -> list[Table]:
    """Methods side by side, a table for each data set, round and setting."""
    gaps = [gap for gap in contents.gaps if gap.cell.attack is not None]
    cells = [*(r.cell for r in attacked), *(gap.cell for gap in gaps)]
    trained_as = grouping.training_words(cells)
    several = _of_several_trainings(cells, trained_as)
    trained = {cell.id: trained_as[cell.id] if group(cell) in several else "" for cell in cells}
    forms = []
    for how in unique(trained[r.cell.id] for r in attacked):
        alike = [r for r in attacked if trained[r.cell.id] == how]
        for form in published_form.compact(alike, [gap for gap in gaps if trained[gap.cell.id] == how]):
            title = f"{form.title}, trained with {how}" if how else form.title
            forms.append(Table(title, form.columns, form.rows, is_part=True))
    if len(forms) > MOST_FORMS:
        left_out.append(
            f"{len(forms) - MOST_FORMS} of {len(forms)} tables of methods side by side; their numbers stand in the table of cells"
        )
    head = Table("Methods side by side", (), (), text=["Rows are what is asked of each method, columns are methods."])
    return [head, *forms[:MOST_FORMS]] if forms else []


def _provenance(contents: Contents, records: Sequence[Record], messages: Mapping[str, Sequence[CheckMessage]]) -> Table:
    """Every record with its checks."""
    attacked = [r for r in records if isinstance(r, AttackRecord)]
    scores = dict(zip([r.id for r in attacked], attack_table.long_rows(attacked), strict=True))
    entries = [
        provenance.entry(
            r, scores.get(r.id, {}), messages.get(r.id, ()), contents.name, is_folder=contents.store is not None
        )
        for r in records
    ]
    if contents.store is None:
        text = "Every record with its checks and its digest, which detects an accident and no deceit."
    else:
        text = (
            "Every record with its checks, its digest and the command that makes it again. "
            "The digest detects an accident and no deceit; the command is the check."
        )
    return Table("Where each number comes from", (), (), text=[text], is_detail=True, on_page=OnPage(entries=entries))
