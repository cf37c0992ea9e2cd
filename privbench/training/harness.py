"""Rounds of federated training: broadcast, client phases, defence, upload, average, server phases, evaluation.

A run is a function of its specification: every draw comes from a stream named by seed, client, round and epoch, so a run
that was killed in the middle of a round repeats that round from the last checkpoint and ends with the same numbers.
The history holds the accuracy of every model that a client has after a round: personal (after local training, the paper's
"personalized model"), uploaded (the same as it was sent, after the defence of the update), and broadcast (with what the server
sends next in place of the shared parts). `measured` of the specification says which of them counts: it selects the round with the
best validation accuracy per client, stops training, and is reported.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from privbench import registry, written_defense
from privbench.data.readers.resize import pixels
from privbench.errors import UserError
from privbench.methods.base import Method, Nets, Phase, RoundClock, SamplingContext
from privbench.networks.model import Model
from privbench.seeds import stream
from privbench.spec import Measured, Schedule, TrainSpec
from privbench.system import machine
from privbench.tensors import Parts, average, moved
from privbench.training import checkpoint, evaluation, training_files
from privbench.training.engine import PhaseRun, Plan, Protect, StageContext, one_thread, run_alone, run_stacked
from privbench.training.history import best_rounds
from privbench.training.state import Prediction, Replica, Snapshot, State
from privbench.types import Defense, Federation, Progress, no_progress

Execution = Literal["alone", "stacked"]
Features = Callable[
    [Tensor, Tensor | None], Tensor
]  # (which images [B], which flipped [B] or None) -> E(x) [B, c, s, s]
FEATURE_BYTES = 2**28  # of one client's features, at most
FLOAT_BYTES = 4


@dataclass(frozen=True)
class Setup:
    """What is fixed for one seed's run."""

    spec: TrainSpec
    model: Model
    method: Method
    defense: Defense
    federation: Federation
    images: tuple[Tensor, ...]  # every client's training images on the device, [N, C, H, W] uint8
    labels: tuple[Tensor, ...]
    public: Tensor | None  # public images on the device where the server trains on them, [N, C, H, W] uint8
    weights: Tensor  # w_i: [K]
    counts: Tensor | None  # n_i^y: [K, Y], where the method uploads them
    device: torch.device


def prepare(spec: TrainSpec, federation: Federation, device: torch.device) -> Setup:
    """Resolves the specification's names and moves the training images to the device.

    UserError: a method that trains on public images, and none in the federation.
    """
    method: Method = registry.create(registry.resolve("method", spec.method), spec.method_settings)
    channels = int(federation.clients[0].train.images.shape[1])
    model = Model(spec.backbone, channels, len(federation.classes), spec.image_size, **method.networks(spec.backbone))
    sizes = torch.tensor([len(c.train.labels) for c in federation.clients], dtype=torch.get_default_dtype())
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
        written_defense.create(spec.defense, spec.where),
        federation,
        tuple(c.train.images.to(device) for c in federation.clients),
        tuple(c.train.labels.to(device) for c in federation.clients),
        federation.public.images.to(device) if federation.public is not None and distils_on_public else None,
        (sizes / sizes.sum()).to(device),
        federation.label_counts().to(device, sizes.dtype) if method.uploads_counts else None,
        device,
    )


def initial(setup: Setup) -> State:
    """Round 0. Every client starts from the same networks, as in the reference implementation."""
    method, device = setup.method, setup.device
    params, buffers = _drawn(setup.model, (*method.parts, *method.serves), setup.spec.seed)
    whole = Replica(moved(params, device), moved(buffers, device))
    return _round_0(whole, method.parts, method.shared_parts, method.serves, len(setup.federation.clients))


def _drawn(model: Model, parts: Sequence[str], seed: int) -> tuple[Parts, Parts]:
    """(parameters, buffers) that training starts from."""
    each = {part: model.net(part).init(stream(seed, "init", part)) for part in parts}
    return {part: own[0] for part, own in each.items()}, {part: own[1] for part, own in each.items()}


def _round_0(whole: Replica, parts: Sequence[str], shares: Sequence[str], serves: Sequence[str], clients: int) -> State:
    server = Replica(*networks_of(whole, (*shares, *serves)))
    return State(
        0, server, [Replica(*networks_of(whole, parts)) for _ in range(clients)], [networks_of(whole, shares)] * clients
    )


@lru_cache(maxsize=16)
def _outline(
    model: Model, parts: tuple[str, ...], shares: tuple[str, ...], serves: tuple[str, ...], clients: int
) -> State:
    """Round 0 without its numbers: tensors of shape and type alone, which is what a snapshot is compared with, time and again."""
    params, buffers = _drawn(model, (*parts, *serves), 0)
    nowhere = torch.device("meta")
    return _round_0(Replica(moved(params, nowhere), moved(buffers, nowhere)), parts, shares, serves, clients)


def networks_of(replica: Replica, parts: Sequence[str]) -> tuple[Parts, Parts]:
    """(parameters, buffers) of some parts alone, such as those that may leave a client."""
    return {p: replica.params[p] for p in parts}, {p: replica.buffers[p] for p in parts}


def train_round(
    setups: Sequence[Setup], states: Sequence[State], execution: Execution, progress: Progress = no_progress
) -> None:
    """One round of S seeds, in place on their states, and what the history says of it; `setups` differ in the seed alone."""
    started = time.perf_counter()
    losses = learn(setups, states, execution, progress)
    seconds = time.perf_counter() - started
    setup, round_ = setups[0], states[0].round + 1
    clients = len(setup.federation.clients)
    counts = setup.federation.label_counts()[0].nbytes
    counts_up, counts_down = setup.method.uploads_counts * counts, setup.method.broadcasts_counts * counts
    for s, state in enumerate(states):
        own = {
            n: v[s * clients : (s + 1) * clients] if len(v) == clients * len(states) else v[s : s + 1]
            for n, v in losses.items()
        }
        predictions = predict(setups[s], state)
        state.round = round_
        state.history.append(
            {
                "round": round_,
                "loss": own,
                **evaluate(setups[s], state, predictions),
                "seconds": seconds / len(states),
                "machine": machine.trained_on(setup.device),
                "bytes_up": [_bytes(u) + counts_up for u in state.uploads],
                "bytes_down": [_bytes((state.server.params, state.server.buffers)) + counts_down] * clients,
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
) -> dict[str, list[float]]:
    """A round's broadcast, local training, average and server phases, in place; nothing is evaluated, no round is counted.

    Returns the mean loss of every stage in its last epoch, seed after seed: one value per client, or one per server.
    """
    run = {"alone": run_alone, "stacked": run_stacked}[execution]
    setup, schedule = setups[0], setups[0].spec.schedule
    clock = RoundClock(states[0].round + 1, schedule.rounds)
    optimisers = {"task": schedule.task, "generator": schedule.generator, "server": schedule.server}
    overwritten = [part for part in setup.method.shared_parts if part not in setup.method.keeps]
    pairs = [(s, k) for s in range(len(setups)) for k in range(len(setup.federation.clients))]

    replicas, around, protects = [], [], []
    for s, k in pairs:
        state, client = states[s], states[s].clients[k]
        params, buffers = networks_of(state.server, overwritten)
        client.params, client.buffers = client.params | params, client.buffers | buffers
        replicas.append(client)
        around.append(StageContext((state.server.params, state.server.buffers), (), None))
        protects.append(_protector(setups[s], k, clock.round, "step"))
    losses: dict[str, list[float]] = {}
    for phase in setup.method.client():
        job = PhaseRun(setup.model, phase, clock, optimisers)
        epochs = 1 if schedule.client_steps else length(phase, schedule)
        kept = [_features(setups[s], k, states[s].clients[k]) if phase.features else None for s, k in pairs]
        for epoch in range(epochs):
            progress(
                clock.round - 1, clock.rounds, f"{setup.spec.method} {phase.stages[0].name} epoch {epoch + 1}/{epochs}"
            )
            plans = [
                client_plan(setups[s], k, clock.round, phase, epoch, own)
                for (s, k), own in zip(pairs, kept, strict=True)
            ]
            losses |= _columns(run(job, replicas, around, plans, protects))

    for s, state in enumerate(states):
        state.uploads = [_upload(setups[s], state, k, clock.round) for k in range(len(state.clients))]
        for part in setup.method.shared_parts:
            state.server.params[part] = average([u[0][part] for u in state.uploads], setups[s].weights)
            state.server.buffers[part] = average([u[1][part] for u in state.uploads], setups[s].weights)
    for phase in setup.method.server():
        job = PhaseRun(setup.model, phase, clock, optimisers)
        plans = [server_plan(each, clock.round, phase) for each in setups]
        context = [
            StageContext(None, tuple(state.uploads), own.weights, own.counts)
            for own, state in zip(setups, states, strict=True)
        ]
        servers = [st.server for st in states]
        losses |= _columns(run(job, servers, context, plans, [_identity] * len(states)))
    return losses


def length(phase: Phase, schedule: Schedule) -> int:
    """How many epochs (client) or steps (server) a phase lasts."""
    return int(getattr(schedule, phase.length))


def mini_batches(samples: int, batch: int, rng: torch.Generator, steps: int | None = None) -> Tensor:
    """Indices [steps, batch] from one shuffle after another; by default the steps of one epoch, ceil(samples / batch).

    Full batches keep every step's loss a plain mean, and let clients smaller than a batch take part.
    """
    steps = math.ceil(samples / batch) if steps is None else steps
    shuffles = [torch.randperm(samples, generator=rng) for _ in range(math.ceil(steps * batch / samples))]
    return torch.cat(shuffles)[: steps * batch].view(steps, batch)


def _features(setup: Setup, k: int, client: Replica) -> Features:
    """How a phase with `features` obtains those of client k, whose extractor it does not train.

    E(x) of all its images and, where training flips them, of all flipped ones, so that an epoch only reads them; of every
    mini-batch anew where they would take more than FEATURE_BYTES. On one thread, as the rest of training (engine.run_alone).
    """
    nets = Nets(setup.model, client.params, client.buffers)
    size, flip = setup.model.image_size, setup.federation.flip

    @torch.no_grad()
    def of(images: Tensor) -> Tensor:
        return nets.extractor(images)

    images = setup.images[k]
    if len(images) * (1 + flip) * math.prod(setup.model.feature_shape) * FLOAT_BYTES > FEATURE_BYTES:
        return lambda index, flipped: of(_pixels(images[index], flipped, size))
    pieces = images.split(max(evaluation.PIXELS // size**2, 1))
    with one_thread():
        each = [torch.cat([of(pixels(x, size)) for x in pieces])]
        each += [torch.cat([of(pixels(x, size).flip(-1)) for x in pieces])] if flip else []
    table = torch.stack(each)
    return lambda index, flipped: table[0, index] if flipped is None else table[flipped.long(), index]


def client_plan(setup: Setup, k: int, round_: int, phase: Phase, epoch: int, features: Features | None = None) -> Plan:
    """Client k's mini-batches and draws of one epoch, from streams of their own; of `features` where the phase has them."""
    spec = setup.spec
    names = ("client", k, "round", round_, phase.stages[0].name, "epoch", epoch)
    schedule = spec.schedule
    rng = stream(spec.seed, *names, "batches")
    index = mini_batches(len(setup.labels[k]), schedule.batch, rng, schedule.client_steps)
    flip = (
        torch.rand(index.shape, generator=stream(spec.seed, *names, "flips")) < 0.5 if setup.federation.flip else None
    )
    noise = _draws(setup, phase, index.shape, names)
    index, images = index.to(setup.device), setup.images[k]
    flip = flip.to(setup.device) if flip is not None else None

    def flipped(step: int) -> Tensor | None:
        return None if flip is None else flip[step]

    def step_images(step: int) -> Tensor:
        return _pixels(images[index[step]], flipped(step), setup.model.image_size)

    by_step = None if features is None else lambda step: features(index[step], flipped(step))
    return Plan(step_images, setup.labels[k][index], noise, by_step)


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
    setup: Setup, phase: Phase, shape: Sequence[int], names: Sequence[str | int]
) -> dict[str, dict[str, Tensor]]:
    known = SamplingContext(setup.model, setup.counts)
    return {
        stage.name: {
            name: draw.sample(tuple(shape), known, stream(setup.spec.seed, *names, stage.name, name)).to(setup.device)
            for name, draw in stage.draws.items()
        }
        for stage in phase.stages
    }  # fmt: skip


def _identity(parts: Parts) -> Parts:
    return parts


def _protector(setup: Setup, k: int, round_: int, where: str) -> Protect:
    """The defence bound to one client's stream of one round; only shared parts are touched, only at its own place."""
    if setup.defense.where != where:
        return _identity
    rng = stream(setup.spec.seed, "client", k, "round", round_, "defence", where)
    shares = setup.method.shared_parts
    return lambda parts: {p: setup.defense.protect(t, rng) if p in shares else t for p, t in parts.items()}


def _upload(setup: Setup, state: State, k: int, round_: int) -> tuple[Parts, Parts]:
    """What client k sends: its shared parts, their change since the broadcast defended where the defence acts on it."""
    params, buffers = networks_of(state.clients[k], setup.method.shared_parts)
    if setup.defense.where != "update":
        return params, buffers
    received = state.server.params
    change = {p: {n: t - received[p][n] for n, t in params[p].items()} for p in params}
    change = _protector(setup, k, round_, "update")(change)
    return {p: {n: received[p][n] + t for n, t in change[p].items()} for p in change}, buffers


def models(setup: Setup, state: State) -> dict[Measured, list[Replica]]:
    """Every model that the clients have after a round: model -> [K]. Where two of them are the same, so are their objects.

    Noise on the update touches what is sent and, averaged over the clients, what comes back; noise on every step is in all three.
    """
    shares = setup.method.shared_parts
    personal = list(state.clients)
    uploaded = [_with(client, *sent) for client, sent in zip(personal, state.uploads, strict=True)]
    server = networks_of(state.server, shares)
    return {
        "personal": personal,
        "uploaded": uploaded if shares and setup.defense.where == "update" else personal,
        "broadcast": [_with(client, *server) for client in personal] if shares else personal,
    }


def _with(client: Replica, params: Parts, buffers: Parts) -> Replica:
    return Replica(client.params | params, client.buffers | buffers)


def predict(setup: Setup, state: State, model: Measured | None = None) -> list[Prediction]:
    """What each client's model says of its test images, by default the measured one: [K]."""
    clients = zip(models(setup, state)[model or setup.spec.measured], setup.federation.clients, strict=True)
    return [evaluation.predict(setup.model, client, own.test, setup.device) for client, own in clients]


def evaluate(setup: Setup, state: State, predictions: Sequence[Prediction]) -> dict[str, Any]:
    """What the history says of the networks after a round: accuracies in percent, consistency in nats.

    `validation_accuracy` and `test_accuracy` are those of the measured model, whose `predictions` of the test images are given;
    `global_accuracy` is that of the weighted average of the clients' measured models on all their test images.
    """
    model, data, device = setup.model, setup.federation.clients, setup.device
    each = models(setup, state)
    measured = each[setup.spec.measured]
    found: dict[Measured, dict[str, list[float]]] = {}
    for name, clients in each.items():
        same = next((other for other in found if each[other] is clients), None)
        if same is not None:
            found[name] = found[same]
            continue
        found[name] = {
            "validation": [
                evaluation.accuracy(model, client, own.validation, device)
                for client, own in zip(clients, data, strict=True)
            ],
            "test": [
                evaluation.right(p) for p in (predictions if clients is measured else predict(setup, state, name))
            ],
        }
    whole = evaluation.average_model(measured, setup.weights)
    has_generator = "generator" in setup.method.parts
    return {
        "validation_accuracy": found[setup.spec.measured]["validation"],
        "test_accuracy": found[setup.spec.measured]["test"],
        "models": found,
        "global_accuracy": evaluation.pooled_accuracy(model, whole, [own.test for own in data], device),
        "consistency": [
            evaluation.consistency(model, client, setup.labels[k], stream(setup.spec.seed, "client", k, "consistency"))
            for k, client in enumerate(state.clients)
            if has_generator
        ],
    }


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
        state.predictions = state.predictions or predict(setup, state)  # of the initial networks, without any round
        checkpoint.finish(folder, setup.spec, state)


def state_at(setup: Setup, folder: Path, round_: int, progress: Progress = no_progress) -> State:
    """The whole state after `round_` rounds: trained again from the nearest that `folder` kept, to the same numbers."""
    state = state_of(setup, folder, checkpoint.nearest(folder, setup.spec, round_, setup.device))
    advance(setup, state, round_, progress)
    return state


def advance(setup: Setup, state: State, round_: int, progress: Progress = no_progress) -> None:
    """Trains a state on, in place, until `round_` rounds are behind it."""
    while state.round < round_:
        progress(state.round, round_, f"{setup.spec.method}: repeating round {state.round + 1}, which was not kept")
        train_round([setup], [state], "alone")


def state_of(setup: Setup, folder: Path, kept: State | None) -> State:
    """The state that the run in a folder kept, or its beginning; Damaged where the networks of what it kept are not the run's."""
    start = initial(setup)
    if kept is None:
        return start
    with training_files.reading(folder):
        training_files.check_state(kept, start)
    return kept


def snapshot_of(setup: Setup, folder: Path, shot: Snapshot) -> Snapshot:
    """The same snapshot; Damaged where its networks are not those of the run in the folder."""
    with training_files.reading(folder):
        method, clients = setup.method, len(setup.federation.clients)
        parts = (tuple(method.parts), tuple(method.shared_parts), tuple(method.serves))
        training_files.check_snapshot(shot, _outline(setup.model, *parts, clients))
    return shot


def _columns(rows: list[dict[str, float]]) -> dict[str, list[float]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def _bytes(networks: tuple[Parts, Parts]) -> int:
    return sum(t.numel() * t.element_size() for parts in networks for p in parts.values() for t in p.values())
