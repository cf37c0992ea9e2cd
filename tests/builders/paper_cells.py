"""Cells of the paper preset, which published values stand beside, for the reports' tests."""

from functools import cache
from typing import Any, TypeVar

from privbench.records.schema import Record
from privbench.spec import CellSpec
from reports.studies import definition, study_cells

R = TypeVar("R", bound=Record)


@cache
def paper_cells(name: str) -> list[CellSpec]:
    """Every cell of a study in the paper preset."""
    return study_cells.of(definition.read(name), "paper")


def paper_cell(name: str, **wanted: Any) -> CellSpec:
    """The first of them whose cell or training has these fields."""
    for cell in paper_cells(name):
        parts = {field: cell if field in CellSpec.model_fields else cell.train for field in wanted}
        if all(getattr(parts[field], field) == value for field, value in wanted.items()):
            return cell
    raise LookupError(f"{name} has no cell with {wanted}")


def in_paper(record: R, name: str = "attack-table", **wanted: Any) -> R:
    """The record as one of a study's cells in the paper preset; what was attacked and how, and the seeds, stay its own."""
    options = {field: getattr(record.cell.train, field) for field in ("dataset", "method", "defense")}
    return trained_as(record, paper_cell(name, **options, **wanted))


def trained_as(record: R, cell: CellSpec) -> R:
    """The record with the training and the preset of a cell."""
    cell_of_record = record.cell.model_copy(update={"train": cell.train, "preset": cell.preset})
    return record.model_copy(update={"cell": cell_of_record})
