"""A client's whole local update: how its networks change in K steps on the victim batch, taken by the suite's own engine.

The attacked client's data set is the victim batch alone. Each of its K steps takes the whole batch, or as many of its images as a
mini-batch holds, from one shuffle after another, which no server sees. Images are not flipped. Steps on one image are taken in eval
mode, as its gradient is (privbench.networks.model.Model.train_mode). The optimiser is that of the task stage with fresh moments, or
that of a defence of single images, or plain SGD at a rate of its own. The loss is the one whose gradient would be attacked
(privbench/observation/client_message.py).
A server that receives weights in place of gradients computes this change from them. It knows K, the size of mini-batches and the
optimiser, as federated protocols fix them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from privbench import written_defense
from privbench.data.tasks import TaskShape
from privbench.defense import Defense
from privbench.methods.base import Loss, Method, MiniBatch, Nets, Phase, RoundClock, Stage
from privbench.networks.model import Model
from privbench.seeds import stream
from privbench.spec import SGD, CellSpec, Optimiser, Schedule, optimiser
from privbench.tensors import Parts
from privbench.training import defended, per_example
from privbench.training.engine.alone import run_alone
from privbench.training.engine.plan import LocalDefense, PhaseRun, Plan, PrivateSample, StageContext
from privbench.training.state import Replica, Snapshot
from privbench.types import CLASSIFICATION, LocalSteps, LocalTraining


def local_steps(cell: CellSpec) -> LocalSteps | None:
    """What a cell's clients do before they send: None where it attacks gradients."""
    if cell.observe == "gradient":
        return None
    schedule = cell.train.schedule
    defense = written_defense.create(cell.train.defense, cell.train.where)
    usual = defended.stepping(defense, schedule.task)
    optimiser = usual if cell.local_lr is None else SGD(kind="sgd", lr=cell.local_lr)
    batch = cell.local_batch if cell.local_batch and cell.local_batch < cell.batch_size else None
    epoch = math.ceil(cell.batch_size / batch) if batch else 1
    steps = cell.local_steps or schedule.client_steps or schedule.local_epochs * epoch
    return LocalSteps(steps, optimiser.model_dump(), batch)


def of_method(local: LocalSteps | None, method: Method) -> LocalSteps | None:
    """The same steps with what a method's loss adds to the task's; None stays None."""
    return None if local is None else local._replace(proximal=method.proximal)


def local_training(
    schedule: Schedule, samples: Sequence[int], shape: TaskShape | None = None, defense: Defense | None = None
) -> LocalTraining:
    """How clients with that many training images train on the task by a schedule, under a defence; `shape`: on few-shot tasks."""
    batch = schedule.batch
    if shape is not None:
        batch, samples = min(batch, shape.support), [shape.support]
    each = [schedule.client_steps or schedule.local_epochs * math.ceil(n / batch) for n in samples]
    usual = schedule.task if defense is None else defended.stepping(defense, schedule.task)
    return LocalTraining(usual.model_dump(), batch, round(median(each)))


def optimiser_of(local: LocalSteps) -> Optimiser:
    """The optimiser that a client's steps were taken by."""
    return optimiser(local.optimiser)


class Start(NamedTuple):
    """Where local steps begin, and what they descend."""

    model: Model
    networks: tuple[Parts, Parts]  # (parameters, buffers), with those of E and C
    loss: Loss
    around: StageContext  # what the loss may see besides
    clock: RoundClock


def client_update(  # noqa: PLR0913 (what a local update depends on)
    model: Model,
    snapshot: Snapshot,
    client: int,
    batch: MiniBatch,
    method: Method,
    defense: Defense,
    local: LocalSteps,
    clock: RoundClock,
    rng: torch.Generator,
) -> tuple[Parts, Parts]:
    """(parameters, running statistics) after K steps minus before, of the shared parts of E and C.

    The former after the defence at its own place; no defence acts on the latter. `batch` and `rng` as in `change_in_steps`.
    """
    server, shared = snapshot.received(client), tuple(p for p in CLASSIFICATION if p in method.shared_parts)
    around = StageContext((server.params, server.buffers), (), None)
    start = Start(model, snapshot.networks(client), method.observed().loss, around, clock)
    whole, statistics = change_in_steps(start, batch, local, defended.local(defense, shared, rng), rng)
    change, sent = {p: whole[p] for p in shared}, {p: net for p, net in statistics.items() if p in shared}
    return defense.message(change, rng) if "message" in defense.places else change, sent


def change_in_steps(
    start: Start, batch: MiniBatch, local: LocalSteps, at_steps: LocalDefense, rng: torch.Generator
) -> tuple[Parts, Parts]:
    """How E and C change in K local steps, each step's gradient defended: part -> parameter -> [...], and part -> buffer -> [...].

    The latter are the running statistics, of the parts that have some; none where steps are taken in eval mode. `batch` holds the
    draws of every step, [K, N, ...] of the N images in all. The shuffles are the first draws from `rng`.
    """
    model, (params, buffers) = start.model, start.networks
    before = {p: {n: t.detach().clone() for n, t in params[p].items()} for p in CLASSIFICATION}
    replica = Replica(before, {p: dict(buffers.get(p, {})) for p in CLASSIFICATION})
    samples, sample = len(batch.labels), None
    is_train = model.train_mode(local.batch or samples)
    loss = start.loss if is_train else _in_eval_mode(start.loss)
    phase = Phase((Stage("local", CLASSIFICATION, loss, "task"),), "local_epochs")
    job = PhaseRun(model, phase, start.clock, {"local": optimiser_of(local)})
    if at_steps.example is not None:
        drawn = per_example.poisson(samples, local.batch or samples, local.steps, rng)
        order, sample = (
            drawn.rows,
            PrivateSample(drawn.included, drawn.expected, batch.labels.new_zeros(local.steps, 0)),
        )
    else:
        order = rows_of_steps(local, samples, rng)
    every = torch.arange(len(order))[:, None]
    plan = Plan(
        lambda step: batch.images[order[step]],
        batch.labels[order],
        {"local": {n: t[every, order] for n, t in batch.noise.items()}},
        sample=sample,
    )
    run_alone(job, [replica], [start.around], [plan], [at_steps])
    change = {p: {n: replica.params[p][n] - t for n, t in before[p].items()} for p in CLASSIFICATION}
    moved = [p for p in CLASSIFICATION if buffers.get(p)] if is_train else []
    return change, {p: {n: replica.buffers[p][n] - t for n, t in buffers[p].items()} for p in moved}


def _in_eval_mode(loss: Loss) -> Loss:
    """A loss of networks that are trained, and evaluated as if they were not."""

    def evaluated(nets: Nets, batch: MiniBatch, clock: RoundClock) -> Tensor:
        still = nets.in_eval_mode()
        return still.penalised(loss(still, batch, clock))

    return evaluated


def rows_of_steps(local: LocalSteps, samples: int, rng: torch.Generator) -> Tensor:
    """Which of a client's images each step takes, [K, images]."""
    if local.batch is None:
        return torch.arange(samples).expand(local.steps, -1)
    count = local.steps * local.batch
    shuffles = [torch.randperm(samples, generator=rng) for _ in range(math.ceil(count / samples))]
    return torch.cat(shuffles)[:count].view(local.steps, local.batch)


def defence_stream(seed: int, named: str, upload: int) -> torch.Generator:
    """Where the shuffles and the defence of one update draw from; `named`: `ChosenImages.named`, of whose images it is."""
    return stream(seed, named, upload, "update defence")
