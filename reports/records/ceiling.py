"""The ceiling of an attack table where the table itself has none: undefended FedAvg attacked earlier, in the same folder."""

from __future__ import annotations

from collections.abc import Sequence

from privbench.errors import UserError
from privbench.records import schema
from privbench.records.schema import AttackRecord
from privbench.records.store import Store
from privbench.spec import CellSpec
from reports.records import knowledge_sets
from reports.records.labels import group
from reports.records.measured import strongest
from reports.records.number_text import NONE

# Of a training run, what a method may have otherwise than FedAvg and still be compared with it.
_FREE = frozenset({"method", "method_settings", "defense", "where", "schedule"})
# Of its schedule, what FedAvg's clients train by.
_TASK = frozenset({"rounds", "local_epochs", "client_steps", "batch", "patience", "task"})


def references(store: Store, records: Sequence[AttackRecord]) -> list[AttackRecord]:
    """Finished attacks on undefended FedAvg under the same folder that belong beside some records, where these hold none.

    They are of the same data, layout, seeds, victims and schedule, and their attackers know no more than those of the records do
    together. A record that cannot be read is passed over: the command that it belongs to names it.
    """
    lacking = [r for r in records if not any(is_ceiling(o.cell) and group(o.cell) == group(r.cell) for o in records)]
    comparable = {_comparable(r.cell) for r in lacking}
    together = frozenset[str]().union(*(knowledge_sets.knowledge_of(r) for r in records))
    implied = knowledge_sets.implied(together | {"gradient", knowledge_sets.NATURAL})
    ceilings = []
    for cell in store.cells() if comparable else ():
        if (
            cell.attack is None
            or not is_ceiling(cell)
            or _comparable(cell) not in comparable
            or not store.record(cell).exists()
        ):
            continue
        try:
            record = schema.read(store.record(cell))
        except UserError:
            continue
        if isinstance(record, AttackRecord) and knowledge_sets.knowledge_of(record) <= implied:
            ceilings.append(record)
    return ceilings


def _comparable(cell: CellSpec) -> tuple[object, ...]:
    """What two cells have in common whose PSNR may stand in one table."""
    train = {name: value for name, value in cell.train.model_dump(mode="json").items() if name not in _FREE}
    schedule = cell.train.schedule.model_dump(mode="json", include=set(_TASK))
    return (*group(cell), cell.seeds, cell.victims, str(sorted(train.items())), str(sorted(schedule.items())))


def ceiling_of(records: Sequence[AttackRecord]) -> str:
    """The strongest attack on undefended FedAvg among some records, dB."""
    undefended = [r for r in records if is_ceiling(r.cell)]
    return f"{strongest(undefended).psnr_db.mean:.2f}" if undefended else NONE


def is_ceiling(cell: CellSpec) -> bool:
    """Whether a cell is of undefended FedAvg."""
    return cell.train.method == "fedavg" and cell.train.defense == "none"
