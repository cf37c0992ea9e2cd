"""The federation of a training run: its data set read once per process and laid out over clients."""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path

from privbench import data
from privbench.data import partition
from privbench.data.dataset import Dataset, sound
from privbench.data.paper_setup import PROTOCOLS
from privbench.errors import UserError
from privbench.spec import TrainSpec
from privbench.types import Federation


@cache
def laid_out(  # noqa: PLR0913 (cached by what a layout depends on)
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
    """A data set, read once for all seeds of a process and checked."""
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
