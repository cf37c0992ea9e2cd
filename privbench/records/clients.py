"""clients.json of a training run: who holds how many images of which class, so that it can be drawn without the data."""

from __future__ import annotations

from typing import Any, NamedTuple

from privbench.data import partition
from privbench.errors import UserError
from privbench.records.store import Store
from privbench.spec import TrainSpec
from privbench.system import files
from privbench.types import Federation


class Clients(NamedTuple):
    """Who holds how many images of which class in a training run."""

    classes: list[str]
    clients: list[dict[str, Any]]  # privbench.data.partition.census
    public: int  # images of no client


def write_clients(store: Store, spec: TrainSpec, fed: Federation) -> None:
    """Writes clients.json, from which the label histogram is drawn without training or reading the data again."""
    if files.to_write(store.clients(spec)):
        public = 0 if fed.public is None else len(fed.public.labels)
        content = Clients(list(fed.classes), partition.census(fed), public)
        files.write_digested(store.clients(spec), {"spec": spec.id, **content._asdict()})


def read_clients(store: Store, spec: TrainSpec) -> Clients:
    """What `write_clients` wrote; UserError when the file is missing, damaged, altered or another run's."""
    path = store.clients(spec)
    if not path.exists():
        raise UserError(f"run {spec.id} has no clients.json: an earlier version trained it; leave --run out")
    value = files.read_digested(path)
    files.check_identity(path, value, spec=spec.id)
    try:
        return Clients(**{name: value[name] for name in Clients._fields})
    except KeyError as error:
        raise UserError(f"{path} is damaged (no {error}); remove it and run the same command again") from error
