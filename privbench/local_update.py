"""A client's whole local update: how its networks change in K steps on the victim batch, taken by the suite's own engine.

The attacked client's data set is the victim batch alone; each of its K steps takes the whole batch, without flips, by the
optimiser of its task stage with fresh moments (or by plain SGD at a rate of its own), on the same loss whose gradient would
be attacked (privbench/observe.py). `broadcast minus what comes back` is what a server sees that is sent weights in place of
gradients. The server knows K and the optimiser, as federated protocols fix them.
"""

from __future__ import annotations

from typing import Any

import torch

from privbench.checkpoint import Snapshot
from privbench.engine import Job, Plan, Replica, Surroundings, run_alone
from privbench.methods.form import Clock, Method, MiniBatch, Phase, Stage
from privbench.nets import Model
from privbench.seeds import stream
from privbench.spec import SGD, Adam, CellSpec, Optimiser
from privbench.types import CLASSIFICATION, Defense, LocalSteps, Parts


def local_steps(cell: CellSpec) -> LocalSteps | None:
    """What a cell's clients do before they send: None where it attacks gradients."""
    if cell.observe == "gradient":
        return None
    schedule = cell.train.schedule
    optimiser: Optimiser = schedule.task if cell.local_lr is None else SGD(kind="sgd", lr=cell.local_lr)
    return LocalSteps(cell.local_steps or schedule.local_epochs, optimiser.model_dump())


def optimiser_of(local: LocalSteps) -> Optimiser:
    """The optimiser that a client's steps were taken by."""
    setting: dict[str, Any] = dict(local.optimiser)
    return SGD(**setting) if "kind" in setting else Adam(**setting)


def client_update(
    model: Model,
    snapshot: Snapshot,
    client: int,
    batch: MiniBatch,
    method: Method,
    defense: Defense,
    local: LocalSteps,
    clock: Clock,
    rng: torch.Generator,
) -> Parts:
    """Networks after K steps minus networks before, over the shared parts of E and C, after the defence at its own place.

    `batch` holds the draws of every step, [K, B, ...].
    """
    own, server = snapshot.clients[client], snapshot.server
    before = {p: {n: t.clone() for n, t in (own.params | server.params)[p].items()} for p in CLASSIFICATION}
    replica = Replica(before, {p: dict((own.buffers | server.buffers)[p]) for p in CLASSIFICATION})
    loss = method.observed().loss
    phase = Phase((Stage("local", CLASSIFICATION, loss, "task"),), "local_epochs")
    job = Job(model, phase, clock, {"task": optimiser_of(local)})
    noise = {"local": batch.noise}
    plan = Plan(lambda step: batch.images, batch.labels.expand(local.steps, -1), noise)
    shared = tuple(p for p in CLASSIFICATION if p in method.shares)

    def protect(parts: Parts) -> Parts:
        return {p: defense.protect(t, rng) if p in shared else t for p, t in parts.items()}

    at_steps = protect if defense.where == "step" else lambda parts: parts
    run_alone(job, [replica], [Surroundings((server.params, server.buffers), (), None)], [plan], [at_steps])
    change = {p: {n: replica.params[p][n] - t for n, t in before[p].items()} for p in shared}
    return protect(change) if defense.where == "update" else change


def defence_stream(seed: int, victim: int) -> torch.Generator:
    """Where the defence of one victim's update draws from."""
    return stream(seed, "victims", victim, "update defence")
