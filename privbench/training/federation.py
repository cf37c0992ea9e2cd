"""The federation of a training run: its data set read once per process and laid out over clients."""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path

from privbench import data, registry
from privbench.data import partition, tasks
from privbench.data.dataset import Dataset, sound
from privbench.data.paper_setup import PROTOCOLS
from privbench.errors import UserError
from privbench.methods.base import Method
from privbench.networks.model import Model
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
    content: str | None = None,
) -> tuple[Federation, str]:
    """A data set laid out over clients, and the note on what differs from the published one.

    `content` stands for the files of a folder (`TrainSpec.content`), so that nothing is kept of files that have changed.
    """
    loaded = read(dataset, root, domains, image_size, content)
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
def read(
    dataset: str, root: Path | None, domains: tuple[str, ...] | None, image_size: int, content: str | None = None
) -> Dataset:
    """A data set, read once for all seeds of a process and checked; `content` as of `laid_out`."""
    return sound(data.load(dataset, root, domains, image_size), image_size)


def of(spec: TrainSpec, root: Path | None) -> tuple[Federation, str]:
    """The federation of a training run, with a note; UserError as `of_data`, and where its method cannot have the data or start."""
    _check_start(spec)
    fed, note = of_data(spec, root)
    return fed, "; ".join(part for part in (note, _check_tasks(spec, fed)) if part)


def of_data(spec: TrainSpec, root: Path | None) -> tuple[Federation, str]:
    """The same for any method; UserError when it cannot be, or the user's folder has changed since it was specified."""
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
        spec.content,
    )
    return fed._replace(flip=fed.flip and spec.flip), note


def method_of(spec: TrainSpec) -> Method:
    """The method of a training run, with its settings."""
    method: Method = registry.create(registry.resolve("method", spec.method), spec.method_settings)
    return method


def model_of(spec: TrainSpec, federation: Federation) -> Model:
    """The networks of a training run, as its method has them."""
    method, channels = method_of(spec), int(federation.clients[0].train.images.shape[1])
    classes = len(federation.classes) if method.client_tasks is None else method.client_tasks.ways
    return registry.model(spec.backbone, channels, classes, spec.image_size, **method.networks(spec.backbone))


def as_known(spec: TrainSpec, federation: Federation) -> Federation:
    """A federation as an attacker of the run knows it: of a method that learns from tasks with the names of classes in a task."""
    shape = method_of(spec).client_tasks
    return federation if shape is None else tasks.relabelled(federation, shape.ways)


def _check_start(spec: TrainSpec) -> None:
    """UserError where clients should draw what they keep to themselves, and keep nothing."""
    if spec.initialisation == "per-client" and not method_of(spec).private_parts:
        raise UserError(
            f"with --initialisation per-client each client draws the networks that it keeps, but with {spec.method} it keeps "
            "none; leave the option out, or try --method fedsplit"
        )


def _check_tasks(spec: TrainSpec, fed: Federation) -> str:
    """A note on the classes of test tasks; UserError unless a method that learns from tasks, and it alone, can have the data."""
    method = method_of(spec)
    if method.client_tasks is None or method.test_tasks is None:
        if fed.by_class:
            raise UserError(
                f"{spec.dataset} is split by class, so that {spec.method} would be tested on classes that no client has; try "
                f"--method {registry.OF_TASKS}, or another data set"
            )
        return ""
    tasks.check(fed, method.client_tasks, method.test_tasks)
    where = registry.short(spec.dataset)
    return "" if fed.by_class else f"{where} is not split by class: test tasks are of classes that clients train on"
