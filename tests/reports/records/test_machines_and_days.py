"""Machines and days above tables are those of all seeds, also of seeds that were merged."""

from privbench.records import pooling
from reports.records import remarks
from tests.builders.records import changed, record

LATER = {"machine": "Intel, 8C", "cores": 8, "date": "2026-11-30"}


def of_seed(seed, **environment):
    made = record(attack="dlg", seeds=(0,), environments=[environment])
    cell = made.cell.with_seeds((seed,))
    return changed(made, seeds=(seed,)).model_copy(update={"cell": cell, "id": cell.id})


def test_merged_seeds_are_of_both_machines_and_both_days():
    first, second = of_seed(0, machine="AMD", cores=1, date="2026-11-25"), of_seed(1, **LATER)
    torch = first.environment["torch"]
    assert remarks.machines([first]) == f"AMD, 1 core, torch {torch}, 2026-11-25"
    merged = pooling.one([first, second])
    both = f"AMD or Intel, 8C, 1 or 8 cores, torch {torch}"
    assert remarks.machines([merged]) == f"{both}, 2026-11-25 to 2026-11-30"
    assert f"; cpu: {both}; 2026-11-25 to 2026-11-30." in remarks.header([merged])[0]
    assert pooling.one([merged, of_seed(2, machine="AMD", cores=1, date="2026-11-24")]).notes[-1] == (
        "the seeds differ in date: 2026-11-24 | 2026-11-25 | 2026-11-30"
    )


def test_other_machines_of_other_records_are_listed_apart():
    each = [of_seed(0, machine="AMD", cores=2, date="2026-11-25"), of_seed(0, **LATER)]
    torch = each[0].environment["torch"]
    expected = f"AMD, 2 cores, torch {torch}; Intel, 8C, 8 cores, torch {torch}, 2026-11-25 to 2026-11-30"
    assert remarks.machines(each) == expected
