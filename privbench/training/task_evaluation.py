"""What a meta-learner is worth: its networks take some steps on the support set of a task, and then classify the task's queries.

Validation tasks are drawn from the validation images of all clients together, test tasks from the test images; where a data set is
split by class, no client has trained on their classes. Every client has tasks of its own, so that the accuracy that a record has of
a client is that of its tasks. Tasks and mini-batches are the same after every round. The steps are those of the clients' training:
the same stage and mini-batches, and the schedule's optimiser, which starts afresh; without a defence, as nothing is sent. All
networks that are fine-tuned at once are stacked (privbench/training/engine/stacked.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

import torch
from torch import Tensor

from privbench.data import tasks
from privbench.data.partition import gather
from privbench.data.readers.resize import pixels
from privbench.data.tasks import Task, TaskShape
from privbench.methods.base import Nets, Phase, RoundClock, SamplingContext
from privbench.seeds import stream
from privbench.tensors import moved
from privbench.training.engine.alone import one_thread
from privbench.training.engine.plan import UNDEFENDED, PhaseRun, Plan, StageContext
from privbench.training.engine.stacked import run_stacked
from privbench.training.phase_plans import mini_batches
from privbench.training.state import Prediction, Replica, Setup, drawn
from privbench.types import Images

Purpose = Literal["validation", "test"]
AT_ONCE = 16  # tasks: networks of a few images are fastest in stacks that the cache holds
QUANTILE = 1.96  # of the normal distribution, for 95%
LONGER = 5  # times the steps, for networks that nothing was learned by


def predictions(setup: Setup, learner: Replica, purpose: Purpose, longer: int = 1) -> list[Prediction]:
    """What the fine-tuned networks say of the queries of each client's tasks, one task after another: [K].

    `longer`: after so many times the steps.
    """
    shape = _shape(setup)
    shape = shape._replace(tuning_steps=longer * shape.tuning_steps)
    every = _tasks(setup, shape, purpose)
    pool = _pool(setup, purpose)
    logits: list[Tensor] = []
    with one_thread(), torch.no_grad():
        for first in range(0, len(every), AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, len(every)))
            logits += _logits(setup, learner, pool, [(n, every[n]) for n in numbers], shape, purpose)
    by_client = [slice(k * shape.per_client, (k + 1) * shape.per_client) for k in range(len(setup.federation.clients))]
    return [
        Prediction(torch.cat(logits[rows]), torch.cat([task.query_labels for task in every[rows]]))
        for rows in by_client
    ]


def scores(setup: Setup, each: Sequence[Prediction]) -> list[float]:
    """The accuracy of every task of all clients, percent."""
    shape = _shape(setup)
    right = [(one.logits.argmax(1) == one.labels).double().view(shape.per_client, -1).mean(1) for one in each]
    return (100 * torch.cat(right)).tolist()


def summary(setup: Setup, each: Sequence[Prediction], first: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the history says of the test tasks of a round (history.TaskScores).

    `first` is the first round's, which says what the networks that training began with are worth; None in that round.
    """
    values, shape = scores(setup, each), _shape(setup)
    of_round: dict[str, Any] = {"ways": shape.ways, "shots": shape.shots, "tasks": len(values)}
    of_round |= {"accuracy": fmean(values), "half_width": half_width(values)}
    if first is not None:
        return of_round | {name: value for name, value in first.items() if name.startswith("untrained")}
    params, buffers = drawn(setup.model, setup.method.observed().trains, setup.spec.seed)
    start = Replica(moved(params, setup.device), moved(buffers, setup.device))
    floors = {"untrained": 1, "untrained_longer": LONGER}
    for name, longer in floors.items():
        floor = scores(setup, predictions(setup, start, "test", longer))
        of_round |= {f"{name}_accuracy": fmean(floor), f"{name}_half_width": half_width(floor)}
    return of_round


def half_width(values: Sequence[float]) -> float:
    """Of the 95% interval around the mean of n tasks, 1.96 times its standard error; 0 of a single one."""
    if len(values) < 2:
        return 0.0
    return QUANTILE * float(torch.tensor(values, dtype=torch.float64).std()) / math.sqrt(len(values))


def _shape(setup: Setup) -> TaskShape:
    shape = setup.method.test_tasks
    assert shape is not None, "only methods that learn from tasks are tested on tasks"
    return shape


def _pool(setup: Setup, purpose: Purpose) -> Images:
    """The images of one purpose of all clients together."""
    sets = [getattr(client, purpose) for client in setup.federation.clients]
    return gather(sets, torch.arange(sum(len(part.labels) for part in sets)))


def _tasks(setup: Setup, shape: TaskShape, purpose: Purpose) -> list[Task]:
    """Client after client."""
    labels = _pool(setup, purpose).labels
    seed, clients = setup.spec.seed, len(setup.federation.clients)
    return [
        tasks.draw(labels, shape, stream(seed, "client", k, purpose, "task", j))
        for k in range(clients)
        for j in range(shape.per_client)
    ]


def _logits(
    setup: Setup, learner: Replica, pool: Images, each: Sequence[tuple[int, Task]], shape: TaskShape, purpose: Purpose
) -> list[Tensor]:
    """Of each numbered task's queries [N Q, N], on the CPU, by networks fine-tuned on its support set."""
    side, stage = setup.model.image_size, setup.method.observed()
    parts = stage.trains
    learners = [
        Replica({p: dict(learner.params[p]) for p in parts}, {p: dict(learner.buffers[p]) for p in parts}) for _ in each
    ]
    plans = [
        _plan(setup, pixels(pool.images[task.support].to(setup.device), side), task, shape, (purpose, n))
        for n, task in each
    ]
    job = PhaseRun(
        setup.model, Phase((stage,), "local_epochs"), RoundClock(1, 1), {stage.name: setup.spec.schedule.task}
    )
    around = StageContext((learner.params, learner.buffers), (), None)
    with torch.enable_grad():
        run_stacked(job, learners, [around] * len(each), plans, [UNDEFENDED] * len(each))
    logits = []
    for one, (_, task) in zip(learners, each, strict=True):
        nets = Nets(setup.model, one.params, one.buffers)
        queries = pixels(pool.images[task.queries].to(setup.device), side)
        logits.append(nets.classifier(nets.extractor(queries)).cpu())
    return logits


def _plan(setup: Setup, support: Tensor, task: Task, shape: TaskShape, names: tuple[str | int, ...]) -> Plan:
    """The mini-batches and draws of one fine-tuning."""
    stage, names = setup.method.observed(), ("tuning", *names)
    batch = min(setup.spec.schedule.batch, shape.support)
    index = mini_batches(len(support), batch, stream(setup.spec.seed, *names, "batches"), shape.tuning_steps)
    context = SamplingContext(setup.model, None)
    noise = {
        name: draw.sample(tuple(index.shape), context, stream(setup.spec.seed, *names, name)).to(setup.device)
        for name, draw in stage.draws.items()
    }
    index = index.to(setup.device)
    labels = task.support_labels.to(setup.device)[index]
    return Plan(lambda step: support[index[step]], labels, {stage.name: noise})
