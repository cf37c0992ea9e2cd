"""What a phase is run on: the mini-batches and draws of one epoch, from streams named by seed, client, round and epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from privbench.data import tasks
from privbench.data.readers.resize import PIXELS, pixels
from privbench.methods.base import Nets, Phase, SamplingContext, Stage
from privbench.seeds import stream
from privbench.spec import Schedule
from privbench.training import per_example
from privbench.training.engine.alone import one_thread
from privbench.training.engine.plan import Plan, PrivateSample
from privbench.training.state import Replica, Setup

Features = Callable[
    [Tensor, Tensor | None], Tensor
]  # (which images [B], which flipped [B] or None) -> E(x) [B, c, s, s]
FEATURE_BYTES = 2**28  # of one client's features, at most
FLOAT_BYTES = 4


def length(phase: Phase, schedule: Schedule) -> int:
    """How many epochs (client) or steps (server) a phase lasts."""
    return int(getattr(schedule, phase.length))


def epochs(phase: Phase, schedule: Schedule) -> int:
    """How many epochs a client's phase lasts; one, of so many steps, where the schedule names `client_steps`."""
    return 1 if schedule.client_steps else length(phase, schedule)


def mini_batches(samples: int, batch: int, rng: torch.Generator, steps: int | None = None) -> Tensor:
    """Indices [steps, batch] from one shuffle after another; by default the steps of one epoch, ceil(samples / batch).

    Full batches keep every step's loss a plain mean, and let clients smaller than a batch take part.
    """
    steps = _steps(samples, batch, steps)
    shuffles = [torch.randperm(samples, generator=rng) for _ in range(math.ceil(steps * batch / samples))]
    return torch.cat(shuffles)[: steps * batch].view(steps, batch)


def _steps(samples: int, batch: int, steps: int | None) -> int:
    """Those that were asked for, else those of one epoch."""
    return math.ceil(samples / batch) if steps is None else steps


def features_of(setup: Setup, k: int, client: Replica) -> Features:
    """How a phase with `features` obtains those of client k, whose extractor it does not train.

    E(x) of all its images and, where training flips them, of all flipped ones, so that an epoch only reads them; of every
    mini-batch anew where they would take more than FEATURE_BYTES. On one thread, as the rest of training (engine/alone.py).
    """
    nets = Nets(setup.model, client.params, client.buffers)
    size, flip = setup.model.image_size, setup.federation.flip

    @torch.no_grad()
    def of(images: Tensor) -> Tensor:
        return nets.extractor(images)

    images = setup.images[k]
    if len(images) * (1 + flip) * math.prod(setup.model.feature_shape) * FLOAT_BYTES > FEATURE_BYTES:
        return lambda index, flipped: of(_pixels(images[index], flipped, size))
    pieces = images.split(max(PIXELS // size**2, 1))
    with one_thread():
        each = [torch.cat([of(pixels(x, size)) for x in pieces])]
        each += [torch.cat([of(pixels(x, size).flip(-1)) for x in pieces])] if flip else []
    table = torch.stack(each)
    return lambda index, flipped: table[0, index] if flipped is None else table[flipped.long(), index]


def client_plan(setup: Setup, k: int, round_: int, phase: Phase, epoch: int, features: Features | None = None) -> Plan:
    """Client k's mini-batches and draws of one epoch, from streams of their own; of `features` where the phase has them."""
    spec = setup.spec
    names = ("client", k, "round", round_, phase.stages[0].name, "epoch", epoch)
    examples = of_round(setup, k, round_)
    rng = stream(spec.seed, *names, "batches")
    samples, sample = len(examples.labels), None
    if "example" in setup.defense.places:
        drawn = per_example.poisson(samples, examples.batch, examples.steps, rng)
        index = drawn.rows
        labels = torch.randint(
            setup.model.classes, (len(index), examples.batch), generator=stream(spec.seed, *names, "labels")
        )
        sample = PrivateSample(drawn.included.to(setup.device), drawn.expected, labels.to(setup.device))
    else:
        index = mini_batches(samples, examples.batch, rng, examples.steps)
    flip = (
        torch.rand(index.shape, generator=stream(spec.seed, *names, "flips")) < 0.5 if setup.federation.flip else None
    )
    noise = _draws(setup, phase, index.shape, names, None if sample is None else sample.labels.shape)
    index, images = index.to(setup.device), setup.images[k]
    step_labels = examples.labels[index]
    if examples.rows is not None:
        index = examples.rows[index]
    flip = flip.to(setup.device) if flip is not None else None

    def flipped(step: int) -> Tensor | None:
        return None if flip is None else flip[step]

    def step_images(step: int) -> Tensor:
        return _pixels(images[index[step]], flipped(step), setup.model.image_size)

    by_step = None if features is None else lambda step: features(index[step], flipped(step))
    return Plan(step_images, step_labels, noise, by_step, sample)


class RoundImages(NamedTuple):
    """What a client trains on in one round: all of its images, or those of a task."""

    labels: Tensor  # [n] int64
    rows: Tensor | None  # [n] int64, which of its training images those are; None: all of them, in their order
    batch: int  # images per mini-batch
    steps: int  # mini-batches of an epoch


def of_round(setup: Setup, k: int, round_: int) -> RoundImages:
    """Client k's images of one round; of a task, one draw for all epochs.

    Where a defence acts on every image, mini-batches are drawn from all images of the task's classes, as many of them as otherwise.
    """
    schedule, shape = setup.spec.schedule, setup.method.client_tasks
    if shape is None:
        labels = setup.labels[k]
        return RoundImages(labels, None, schedule.batch, _steps(len(labels), schedule.batch, schedule.client_steps))
    draw = tasks.pool if "example" in setup.defense.places else tasks.support_set
    drawn = draw(setup.labels[k].cpu(), shape, stream(setup.spec.seed, "client", k, "round", round_, "task"))
    batch = min(schedule.batch, shape.support)
    steps = _steps(shape.support, batch, schedule.client_steps)
    return RoundImages(drawn.labels.to(setup.device), drawn.rows.to(setup.device), batch, steps)


def _pixels(images: Tensor, flipped: Tensor | None, side: int) -> Tensor:
    """Stored images as networks see them, those flipped that are `flipped` [B]."""
    batch = pixels(images, side)
    return batch if flipped is None else torch.where(flipped[:, None, None, None], batch.flip(-1), batch)


def server_plan(setup: Setup, round_: int, phase: Phase) -> Plan:
    """The server's draws of one phase, and mini-batches of the public images where it is on them."""
    shape = (length(phase, setup.spec.schedule), setup.spec.schedule.batch)
    names = ("server", "round", round_, phase.stages[0].name)
    noise = _draws(setup, phase, shape, names)
    labels = torch.zeros(shape, dtype=torch.int64, device=setup.device)
    public = setup.public
    if not phase.public or public is None:
        nothing = torch.zeros(0, device=setup.device)
        return Plan(lambda step: nothing, labels, noise)
    rng = stream(setup.spec.seed, *names, "batches")
    index = mini_batches(len(public), shape[1], rng, shape[0]).to(setup.device)
    return Plan(lambda step: pixels(public[index[step]], setup.model.image_size), labels, noise)


def _draws(
    setup: Setup,
    phase: Phase,
    shape: Sequence[int],
    names: Sequence[str | int],
    of_labels: Sequence[int] | None = None,
) -> dict[str, dict[str, Tensor]]:
    """Every stage's draws of leading axes `shape`; `of_labels` of those that read labels alone, where they differ."""
    context = SamplingContext(setup.model, setup.counts)

    def leading(stage: Stage) -> tuple[int, ...]:
        return tuple(of_labels if of_labels is not None and stage.reads == "labels" else shape)

    return {
        stage.name: {
            name: draw.sample(leading(stage), context, stream(setup.spec.seed, *names, stage.name, name)).to(setup.device)
            for name, draw in stage.draws.items()
        }
        for stage in phase.stages
    }  # fmt: skip
