"""All cells of a folder in one table, a row each, which a reader of the HTML page sorts and filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from privbench import registry
from privbench.records import checks
from privbench.records.checks import CheckMessage
from privbench.records.schema import AttackRecord, InferenceRecord, Record
from privbench.spec import CellSpec
from reports.folders import provenance
from reports.records import grouping, measured, quotable, remarks
from reports.records.labels import group, inferred_text, knowledge_text, label, round_text, title_of
from reports.records.number_text import NONE, range_text, spread_text
from reports.tables import render
from reports.tables.report import OnPage, Table

FILTERS = ("data set", "round", "method", "defence", "attack", "knowledge", "setting", "checks")
# Where all cells agree in one of these it has no column, but a sentence.
COMMON = ("data set", "round", "defence", "knowledge", "setting")
HOW = (
    "One row a cell: one attack on one method at one round, over all its seeds. Its name leads to where its numbers come from. "
    "A click on a heading sorts."
)


def table(records: Sequence[Record], messages: Mapping[str, Sequence[CheckMessage]]) -> Table:
    """A row for each record, in the order given; `messages` of attacks by record (reports/records/table_checks.py).

    What all cells have in common stands above it once. What none of them has is left out.
    """
    settings, common = distinct([setting(r.cell) for r in records])
    rows = [_row(r, messages.get(r.id, ())) | {"setting": text} for r, text in zip(records, settings, strict=True)]
    alike = [name for name in COMMON if len({row[name] for row in rows}) == 1]
    empty = [name for name in rows[0] if all(row[name] == NONE for row in rows)]
    columns = [name for name in rows[0] if name not in (*alike, *empty)]
    same = [*(f"{name} {rows[0][name]}" for name in alike if rows[0][name] != NONE), *common]
    return Table(
        "Cells",
        columns,
        [[row[name] for name in columns] for row in rows],
        text=[HOW, *([f"All cells: {', '.join(same)}."] if same and len(rows) > 1 else [])],
        on_paper=(),
        on_page=OnPage([name for name in FILTERS if name in columns], [provenance.anchor(r) for r in records]),
    )


def method_and_defence(cell: CellSpec) -> tuple[str, str]:
    """The two parts of a column's heading, e.g. ("FedCG", "Gaussian 0.1"); "none" without a defence."""
    bare = label(cell.model_copy(update={"train": cell.train.model_copy(update={"defense": "none"})}))
    return bare, label(cell).removeprefix(bare).removeprefix(" + ") or "none"


def setting(cell: CellSpec) -> list[str]:
    """What a cell has beside its data set, round, method, defence and attack: preset, clients, what is not as in the preset."""
    changed = sorted(grouping.training_overrides(cell).items())
    if cell.attack is None:
        conditions = grouping.title(grouping.setting(cell)).split(", ")[1:]
    else:
        conditions = title_of(group(cell)).partition(f"round {round_text(cell.round)}, ")[2].split(", ")
        changed += sorted(remarks.attack_overrides(cell).items())
    return [*conditions, *(f"{name} {value}" for name, value in changed)]


def data_set(cell: CellSpec) -> str:
    """The data set, with its domains where not all are used."""
    name = registry.short(cell.train.dataset)
    return f"{name} ({', '.join(cell.train.domains)})" if cell.train.domains else name


def distinct(settings: Sequence[list[str]]) -> tuple[list[str], list[str]]:
    """(each of some settings in words, without the parts that all have; those parts)."""
    common = [part for part in settings[0] if all(part in each for each in settings)]
    return [", ".join(part for part in each if part not in common) or NONE for each in settings], common


def _row(r: Record, messages: Sequence[CheckMessage]) -> dict[str, str]:
    cell = r.cell
    method, defence = method_and_defence(cell)
    named = {"cell": r.id, "data set": data_set(cell)}
    accuracy = {"accuracy, %": spread_text(r.accuracy.mean, r.accuracy.std, 1)}
    if not isinstance(r, AttackRecord):
        about = {"round": NONE, "method": method, "defence": defence, "attack": NONE, "knowledge": NONE}
        if isinstance(r, InferenceRecord):
            # What it states stands in tables of its own.
            about |= {"round": round_text(cell.round), "attack": r.attack, "knowledge": inferred_text(r)}
        scores = ("setting", "PSNR dB", "gain dB")
        return named | about | dict.fromkeys(scores, NONE) | accuracy | dict.fromkeys(("n / failures", "checks"), NONE)
    row = measured.of(r)
    gain = range_text(row.gain_db, sign=True)
    whole = {
        **named,
        "round": round_text(cell.round),
        "method": method,
        "defence": defence,
        "attack": r.attack,
        "knowledge": knowledge_text(r),
        "setting": NONE,
        "PSNR dB": range_text(row.psnr_db),
        "gain dB": render.bold(gain) if row.is_significant else gain,
        **accuracy,
        "n / failures": f"{r.scores.n} / {r.scores.failures}",
        "checks": checks.names(messages),
    }
    return quotable.cells(cell.preset, whole, NONE)
