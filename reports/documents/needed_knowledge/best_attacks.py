"""How often each attack of some ladders was the best of what knows as much, before training and after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from privbench import registry
from privbench.execution.ladder import UNTRAINED
from privbench.records.schema import AttackRecord
from reports.documents.findings import by_method
from reports.documents.needed_knowledge import knowledge_tables
from reports.records import knowledge_sets
from reports.records.labels import unique
from reports.tables import render
from reports.tables.summary.columns import in_rungs

COLUMNS = ("attacked", "the best", "with a significant gain")


def table(ladders: Iterable[Sequence[AttackRecord]]) -> str:
    """A row an attack, in cells: a column of a ladder at one round.

    An attack is the best of a cell where a set of knowledge has it as its strongest attack, chosen for one seed at least.
    """
    counts: tuple[Counter[tuple[str, bool]], ...] = (Counter(), Counter(), Counter())
    attacked, best, gained = counts
    for records in ladders:
        for round_ in unique(r.cell.round for r in records):
            untrained = round_ == UNTRAINED
            for of_cell in by_method(records, round_).values():
                rows = knowledge_sets.rows(in_rungs(of_cell), knowledge_tables.tag_of)
                attacked.update({(r.attack, untrained) for r in of_cell})
                best.update({(r.attack, untrained) for row in rows for r in row.best.attacks})
                gained.update(
                    {(r.attack, untrained) for row in rows if row.best.is_significant for r in row.best.attacks}
                )
    head = [f"{stage}: {column}" for stage in ("untrained", "trained") for column in COLUMNS]
    body = [
        [f"`{name}`", *(str(count[name, untrained]) for untrained in (True, False) for count in counts)]
        for name in registry.ATTACKS
        if name not in registry.FLOORS and attacked[name, True] + attacked[name, False]
    ]
    return render.markdown(["attack", *head], body)
