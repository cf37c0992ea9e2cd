"""Cells of the paper preset, which published values stand beside, for the reports' tests."""

from functools import cache

from reports import study


@cache
def paper_cells(name):
    """Every cell of a study in the paper preset."""
    return study.cells(study.read(name), "paper")


def paper_cell(name, **wanted):
    """The first of them whose cell or training has these fields."""
    for cell in paper_cells(name):
        fields = cell.flat()
        if all(fields[field] == value for field, value in wanted.items()):
            return cell
    raise LookupError(f"{name} has no cell with {wanted}")


def in_paper(record, name="attack-table", **wanted):
    """The record as one of a study's cells in the paper preset; what was attacked and how, and the seeds, stay its own."""
    own = {field: record.spec[field] for field in ("dataset", "method", "defense")}
    cell = paper_cell(name, **own, **wanted)
    return record.model_copy(update={"spec": with_training(record.spec, cell)})


def with_training(spec, cell):
    """A record's specification with the training and the preset of a cell."""
    of_attack = ("round", "victims", "batch_size", "labels_known")
    kept = {name: value for name, value in spec.items() if spec["attack"] is not None or name not in of_attack}
    return kept | cell.train.model_dump() | {"preset": cell.preset}
