"""Rounds of federated training: broadcast, client phases, defence, upload, average, server phases, evaluation.

A run is a function of its specification: every draw comes from a stream named by seed, client, round and epoch, so a run
that was killed in the middle of a round repeats that round from the last checkpoint and ends with the same numbers.
The history holds the accuracy of every model that a client has after a round: personal (after local training, the paper's
"personalized model"), uploaded (the same as it was sent, after the defence of the update), and broadcast (with what the server
sends next in place of the shared parts). `measured` of the specification says which of them counts: it selects the round with the
best validation accuracy per client, stops training, and is reported.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch

from privbench.defense import Sum
from privbench.errors import UserError
from privbench.methods.base import RoundClock
from privbench.networks.model import Model
from privbench.spec import Schedule, TrainSpec
from privbench.system import machine
from privbench.tensors import moved
from privbench.training import (
    aggregation,
    checkpoint,
    defended,
    evaluation,
    local_training,
    phase_plans,
    training_files,
)
from privbench.training.engine.plan import UNDEFENDED, PhaseRun, StageContext
from privbench.training.federation import method_of, model_of
from privbench.training.history import best_rounds
from privbench.training.local_training import ENGINES, Execution, Learner, Losses
from privbench.training.state import Replica, Setup, Snapshot, State, drawn, networks_of
from privbench.types import Federation, Progress, no_progress


class Learned(NamedTuple):
    """What a round says of itself, beside what it left in its states."""

    # The mean loss of every stage in its last epoch, seed after seed: one value per client that took part, or one per server.
    losses: Losses
    # What the clients of each seed sent to a server that gets sums alone; None where it gets their messages.
    sums: list[Sum | None]


def prepare(spec: TrainSpec, federation: Federation, device: torch.device) -> Setup:
    """Resolves the specification's names and moves the training images to the device.

    UserError: a method that trains on public images, and none in the federation.
    """
    method, model = method_of(spec), model_of(spec, federation)
    each = [client.train.labels for client in federation.clients]
    defense, model = defended.planned(spec, method, model, [defended.examples(method, labels) for labels in each])
    sizes = torch.tensor([method.counts_for(len(labels)) for labels in each], dtype=torch.get_default_dtype())
    distils_on_public = any(phase.public for phase in method.server())
    if distils_on_public and federation.public is None:
        way = "; choose a data set that does" if spec.partition == "domain" else "; lower --per-client"
        raise UserError(
            f"{spec.method} trains its server on public images, but {spec.dataset} with {spec.clients} clients of "
            f"{spec.per_client} images holds none out{way}"
        )
    return Setup(
        spec,
        model,
        method,
        defense,
        federation,
        tuple(c.train.images.to(device) for c in federation.clients),
        tuple(c.train.labels.to(device) for c in federation.clients),
        federation.public.images.to(device) if federation.public is not None and distils_on_public else None,
        (sizes / sizes.sum()).to(device),
        federation.label_counts().to(device, sizes.dtype) if method.uploads_counts else None,
        device,
    )


def initial(setup: Setup) -> State:
    """Round 0. Every client starts from the same networks, as in the reference implementation.

    Under the initialisation "per-client", client k draws the parts that never leave it from a stream of its own instead.
    """
    method, device, seed = setup.method, setup.device, setup.spec.seed
    params, buffers = drawn(setup.model, (*method.parts, *method.serves), seed)
    whole = Replica(moved(params, device), moved(buffers, device))
    state = _round_0(whole, method.parts, method.shared_parts, method.serves, len(setup.federation.clients))
    if setup.spec.initialisation == "per-client":
        for k, client in enumerate(state.clients):
            params, buffers = drawn(setup.model, method.private_parts, seed, "client", k)
            client.params = client.params | moved(params, device)
            client.buffers = client.buffers | moved(buffers, device)
    return state


def _round_0(whole: Replica, parts: Sequence[str], shared: Sequence[str], serves: Sequence[str], clients: int) -> State:
    server = Replica(*networks_of(whole, (*shared, *serves)))
    return State(
        0, server, [Replica(*networks_of(whole, parts)) for _ in range(clients)], [networks_of(whole, shared)] * clients
    )


@lru_cache(maxsize=16)
def _outline(
    model: Model, parts: tuple[str, ...], shared: tuple[str, ...], serves: tuple[str, ...], clients: int
) -> State:
    """Round 0 without its numbers: tensors of shape and type alone, which is what a snapshot is compared with, time and again."""
    params, buffers = drawn(model, (*parts, *serves), 0)
    nowhere = torch.device("meta")
    return _round_0(Replica(moved(params, nowhere), moved(buffers, nowhere)), parts, shared, serves, clients)


def train_round(
    setups: Sequence[Setup], states: Sequence[State], execution: Execution, progress: Progress = no_progress
) -> None:
    """One round of S seeds, in place on their states, and what the history says of it; `setups` differ in the seed alone."""
    started = time.perf_counter()
    losses, sums = learn(setups, states, execution, progress)
    seconds = time.perf_counter() - started
    losses |= measure(setups, states, execution, progress)
    setup, round_ = setups[0], states[0].round + 1
    clients, taking_part = len(setup.federation.clients), setup.taking_part(round_)
    counts = setup.federation.label_counts()[0].nbytes
    counts_up, counts_down = setup.method.uploads_counts * counts, setup.method.broadcasts_counts * counts
    partial = {"participants": list(taking_part)} if len(taking_part) < clients else {}
    for s, state in enumerate(states):
        loss = {n: v[s * (each := len(v) // len(states)) : (s + 1) * each] for n, v in losses.items()}
        predictions = evaluation.predictions(setups[s], state)
        bytes_down = aggregation.size((state.server.params, state.server.buffers)) + counts_down
        state.round = round_
        state.history.append(
            {
                "round": round_,
                "loss": loss,
                **evaluation.of_round(setups[s], state, predictions),
                "seconds": seconds / len(states),
                "machine": machine.trained_on(setup.device),
                **aggregation.sent(state, taking_part, sums[s], counts_up),
                "bytes_down": [bytes_down if k in taking_part else 0 for k in range(clients)],
                **partial,
            }
        )
        state.predictions = [
            new if best == round_ else old
            for best, old, new in zip(
                best_rounds(state.history), state.predictions or predictions, predictions, strict=True
            )
        ]


def learn(
    setups: Sequence[Setup], states: Sequence[State], execution: Execution, progress: Progress = no_progress
) -> Learned:
    """A round's broadcast, local training, average and server phases, in place; nothing is evaluated, no round is counted.

    Clients that do not take part stay as they are.
    """
    engine, setup, schedule = ENGINES[execution], setups[0], setups[0].spec.schedule
    clock = RoundClock(states[0].round + 1, schedule.rounds)
    overwritten = [part for part in setup.method.shared_parts if part not in setup.method.keeps]
    pairs = [(s, k) for s in range(len(setups)) for k in setup.taking_part(clock.round)]
    for s, k in pairs:
        client, (params, buffers) = states[s].clients[k], networks_of(states[s].server, overwritten)
        client.params, client.buffers = client.params | params, client.buffers | buffers
        if setup.method.client_tasks is not None:
            client.moments = {}  # of another task
    learners = _learners(setups, states, pairs)
    losses = local_training.run(learners, clock.round, setup.method.client(), execution, progress)

    sums = [aggregation.collect(each, state, clock.round) for each, state in zip(setups, states, strict=True)]
    for phase in setup.method.server():
        if not phase_plans.length(phase, schedule):
            continue
        job = PhaseRun(setup.model, phase, clock, defended.optimisers(setup, phase, defended=False))
        plans = [phase_plans.server_plan(each, clock.round, phase) for each in setups]
        context = [_at_server(each, state, clock.round) for each, state in zip(setups, states, strict=True)]
        servers = [st.server for st in states]
        losses |= local_training.columns(engine(job, servers, context, plans, [UNDEFENDED] * len(states)))
    return Learned(losses, sums)


def _at_server(setup: Setup, state: State, round_: int) -> StageContext:
    """What the server's losses see of a round: the uploads of the clients that took part, and what each counts for among them."""
    part = list(setup.taking_part(round_))
    counts = None if setup.counts is None else setup.counts[part]
    return StageContext(None, tuple(state.uploads[k] for k in part), aggregation.weights_of(setup, part), counts)


def measure(
    setups: Sequence[Setup], states: Sequence[State], execution: Execution, progress: Progress = no_progress
) -> Losses:
    """What a method trains of every client to be measured by, in place, after a round that is not counted yet."""
    pairs = [(s, k) for s in range(len(setups)) for k in range(len(setups[0].federation.clients))]
    learners, phases = _learners(setups, states, pairs), setups[0].method.measuring()
    return local_training.run(learners, states[0].round + 1, phases, execution, progress, undefended=True)


def _learners(setups: Sequence[Setup], states: Sequence[State], pairs: Sequence[tuple[int, int]]) -> list[Learner]:
    """The clients that (seed, client) `pairs` name."""
    return [Learner(setups[s], k, states[s].server, states[s].clients[k]) for s, k in pairs]


def finished(state: State, schedule: Schedule) -> bool:
    """All rounds are done, or no client improved its validation accuracy for `patience` rounds."""
    if state.round >= schedule.rounds:
        return True
    if state.round <= schedule.patience:
        return False
    by_client = list(zip(*[entry["validation_accuracy"] for entry in state.history], strict=True))
    return all(max(series[: -schedule.patience]) >= max(series[-schedule.patience :]) for series in by_client)


def train(
    specs: Sequence[TrainSpec],
    federations: Sequence[Federation],
    folders: Sequence[Path],
    device: torch.device,
    execution: Execution,
    progress: Progress = no_progress,
) -> None:
    """Trains S seeds of one specification to the end, each in its own folder, resuming from their checkpoints."""
    setups = [prepare(spec, fed, device) for spec, fed in zip(specs, federations, strict=True)]
    states = []
    for setup, folder in zip(setups, folders, strict=True):
        checkpoint.begin(folder, setup.spec)
        state = state_of(setup, folder, checkpoint.load(folder, setup.spec, device))
        if state.round == 0:
            checkpoint.keep(folder, setup.spec, state)
        states.append(state)
    schedule = setups[0].spec.schedule
    while True:
        # Seeds stopped at different rounds (a kill between two checkpoints) catch up before they go on together.
        open_ = [i for i, state in enumerate(states) if not finished(state, schedule)]
        if not open_:
            break
        behind = min(states[i].round for i in open_)
        now = [i for i in open_ if states[i].round == behind]
        train_round([setups[i] for i in now], [states[i] for i in now], execution, progress)
        for i in now:
            checkpoint.keep(folders[i], setups[i].spec, states[i])
    for setup, state, folder in zip(setups, states, folders, strict=True):
        state.predictions = state.predictions or evaluation.predictions(
            setup, state
        )  # of the initial networks, without any round
        checkpoint.finish(folder, setup.spec, state)


def state_at(setup: Setup, folder: Path, round_: int, progress: Progress = no_progress) -> State:
    """The whole state after `round_` rounds: trained again from the nearest that `folder` kept.

    On a CPU to the same numbers. On a GPU, where seeds train together, sums of one seed alone may be taken in another order, so
    that the numbers are the same up to rounding and what training makes of it.
    """
    state = state_of(setup, folder, checkpoint.nearest(folder, setup.spec, round_, setup.device))
    advance(setup, state, round_, progress)
    return state


def advance(setup: Setup, state: State, round_: int, progress: Progress = no_progress) -> None:
    """Trains a state on, in place, until `round_` rounds are behind it."""
    while state.round < round_:
        progress(state.round, round_, f"{setup.spec.method}: repeating round {state.round + 1}, which was not kept")
        train_round([setup], [state], local_training.usual(setup.device))


def state_of(setup: Setup, folder: Path, saved: State | None) -> State:
    """The state that the run in a folder kept, or its beginning; Damaged where the networks of what it kept are not the run's."""
    start = initial(setup)
    if saved is None:
        return start
    with training_files.reading(folder):
        training_files.check_state(saved, start)
    return saved


def snapshot_of(setup: Setup, folder: Path, shot: Snapshot) -> Snapshot:
    """The same snapshot; Damaged where its networks are not those of the run in the folder."""
    with training_files.reading(folder):
        method, clients = setup.method, len(setup.federation.clients)
        parts = (tuple(method.parts), tuple(method.shared_parts), tuple(method.serves))
        training_files.check_snapshot(shot, _outline(setup.model, *parts, clients))
    return shot
