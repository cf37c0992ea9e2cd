"""A client's whole local update: how its networks change in K steps on the victim batch, taken by the suite's own engine.

The attacked client's data set is the victim batch alone. Each of its K steps takes the whole batch, or as many of its images as a
mini-batch holds, from one shuffle after another, which no server sees. Images are not flipped. The optimiser is that of the task
stage with fresh moments, or plain SGD at a rate of its own. The loss is the one whose gradient would be attacked
(privbench/observation/observe.py).
A server that receives weights in place of gradients computes this change from them. It knows K, the size of mini-batches and the
optimiser, as federated protocols fix them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

from privbench.methods.base import Method, MiniBatch, Phase, RoundClock, Stage
from privbench.networks.model import Model
from privbench.seeds import stream
from privbench.spec import SGD, Adam, CellSpec, Optimiser, Schedule
from privbench.tensors import Parts
from privbench.training.engine import PhaseRun, Plan, StageContext, run_alone
from privbench.training.state import Replica, Snapshot
from privbench.types import CLASSIFICATION, Defense, LocalSteps, LocalTraining


def local_steps(cell: CellSpec) -> LocalSteps | None:
    """What a cell's clients do before they send: None where it attacks gradients."""
    if cell.observe == "gradient":
        return None
    schedule = cell.train.schedule
    optimiser: Optimiser = schedule.task if cell.local_lr is None else SGD(kind="sgd", lr=cell.local_lr)
    batch = cell.local_batch if cell.local_batch and cell.local_batch < cell.batch_size else None
    epoch = math.ceil(cell.batch_size / batch) if batch else 1
    steps = cell.local_steps or schedule.client_steps or schedule.local_epochs * epoch
    return LocalSteps(steps, optimiser.model_dump(), batch)


def local_training(schedule: Schedule, samples: Sequence[int]) -> LocalTraining:
    """How clients with that many training images train on the task by a schedule."""
    each = [schedule.client_steps or schedule.local_epochs * math.ceil(n / schedule.batch) for n in samples]
    return LocalTraining(schedule.task.model_dump(), schedule.batch, round(median(each)))


def optimiser_of(local: LocalSteps) -> Optimiser:
    """The optimiser that a client's steps were taken by."""
    setting: dict[str, Any] = dict(local.optimiser)
    return SGD(**setting) if "kind" in setting else Adam(**setting)


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
) -> Parts:
    """Networks after K steps minus networks before, over the shared parts of E and C, after the defence at its own place.

    `batch` holds the draws of every step, [K, N, ...] of the N images in all. The shuffles are the first draws from `rng`.
    """
    own, server = snapshot.clients[client], snapshot.server
    before = {p: {n: t.clone() for n, t in (own.params | server.params)[p].items()} for p in CLASSIFICATION}
    replica = Replica(before, {p: dict((own.buffers | server.buffers)[p]) for p in CLASSIFICATION})
    loss = method.observed().loss
    phase = Phase((Stage("local", CLASSIFICATION, loss, "task"),), "local_epochs")
    job = PhaseRun(model, phase, clock, {"task": optimiser_of(local)})
    order = taken(local, len(batch.labels), rng)
    every = torch.arange(len(order))[:, None]
    plan = Plan(
        lambda step: batch.images[order[step]],
        batch.labels[order],
        {"local": {n: t[every, order] for n, t in batch.noise.items()}},
    )
    shared = tuple(p for p in CLASSIFICATION if p in method.shared_parts)

    def protect(parts: Parts) -> Parts:
        return {p: defense.protect(t, rng) if p in shared else t for p, t in parts.items()}

    at_steps = protect if defense.where == "step" else lambda parts: parts
    run_alone(job, [replica], [StageContext((server.params, server.buffers), (), None)], [plan], [at_steps])
    change = {p: {n: replica.params[p][n] - t for n, t in before[p].items()} for p in shared}
    return protect(change) if defense.where == "update" else change


def taken(local: LocalSteps, samples: int, rng: torch.Generator) -> Tensor:
    """Which of a client's images each step takes, [K, images]."""
    if local.batch is None:
        return torch.arange(samples).expand(local.steps, -1)
    wanted = local.steps * local.batch
    shuffles = [torch.randperm(samples, generator=rng) for _ in range(math.ceil(wanted / samples))]
    return torch.cat(shuffles)[:wanted].view(local.steps, local.batch)


def defence_stream(seed: int, victim: int) -> torch.Generator:
    """Where the defence of one victim's update draws from."""
    return stream(seed, "victims", victim, "update defence")
