"""The federation of a training run: its data set read once per process and laid out over clients."""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from privbench import data
from privbench.data import partition
from privbench.data.dataset import Dataset, sound
from privbench.data.paper_setup import PROTOCOLS
from privbench.errors import UserError
from privbench.records.store import Store
from privbench.spec import TrainSpec
from privbench.system import files
from privbench.types import Federation


@cache
def laid_out(
    dataset: str,
    domains: tuple[str, ...] | None,
    root: Path | None,
    clients: int,
    per_client: int,
    how: str,
    seed: int,
    image_size: int = 32,
    omega: float | None = None,
    minimum: int | None = None,
    protocol: str = "fedcg",
) -> tuple[Federation, str]:
    """A data set laid out over clients, and the note on what differs from the published one."""
    loaded = read(dataset, root, domains, image_size)
    fed = partition.federate(
        loaded,
        clients=clients,
        per_client=per_client,
        how=how,
        seed=seed,
        omega=omega,
        minimum=minimum,
        protocol=protocol,
    )
    return fed, "; ".join(note for note in (loaded.note, PROTOCOLS[protocol].differs) if note)


@lru_cache(maxsize=1)
def read(dataset: str, root: Path | None, domains: tuple[str, ...] | None, image_size: int) -> Dataset:
    """A data set, read once for all seeds of a process and looked over."""
    return sound(data.load(dataset, root, domains, image_size), image_size)


def of(spec: TrainSpec, root: Path | None) -> tuple[Federation, str]:
    """The federation of a training run; UserError when the user's folder is no longer what the run was specified on."""
    if spec.content is not None and data.content(spec.dataset) != spec.content:
        raise UserError(f"the files of {spec.dataset} have changed since this run began; run the command again")
    fed, note = laid_out(
        spec.dataset,
        spec.domains,
        root,
        spec.clients,
        spec.per_client,
        spec.partition,
        spec.seed,
        spec.image_size,
        spec.omega,
        spec.min_per_client,
        spec.protocol,
    )
    return fed._replace(flip=fed.flip and spec.flip), note


class Clients(NamedTuple):
    """Who holds how many images of which class in a training run."""

    classes: list[str]
    clients: list[dict[str, Any]]  # privbench.data.partition.census
    public: int  # images of no client


def write_clients(store: Store, spec: TrainSpec, fed: Federation) -> None:
    """Writes clients.json, from which the label histogram is drawn without training or reading the data again."""
    if files.to_write(store.clients(spec)):
        public = 0 if fed.public is None else len(fed.public.labels)
        found = Clients(list(fed.classes), partition.census(fed), public)
        files.write_digested(store.clients(spec), {"spec": spec.id, **found._asdict()})


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
