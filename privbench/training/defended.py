"""A run's defence: planned for what its clients will do, bound to a client's random stream, and what it guarantees in the end."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from privbench import registry, written_defense
from privbench.data import tasks
from privbench.defense import Defense, Facts, Guarantee, StageFacts
from privbench.errors import UserError
from privbench.methods import participation
from privbench.methods.base import Method, Phase
from privbench.networks.model import Model
from privbench.seeds import stream
from privbench.spec import Optimiser, Schedule, TrainSpec, optimiser
from privbench.tensors import Parts
from privbench.training import phase_plans
from privbench.training.engine.plan import LocalDefense
from privbench.training.state import Setup
from privbench.types import CLASSIFICATION

# The endings of batch norm's buffers, this suite's and torch's.
OF_MEANS = (".mean", ".running_mean")
OF_BATCH_NORM = (*OF_MEANS, ".var", ".running_var")


def facts(method: Method, schedule: Schedule, examples: int, rounds: int, sent_buffers: Sequence[str]) -> Facts:
    """What a client with that many training images (`examples`) does in the `rounds` rounds in which it takes part.

    `sent_buffers`: what of its networks' buffers depends on its images, as `statistics` says.
    """
    stages, shape = [], method.client_tasks
    batch, epoch = schedule.batch, examples
    if shape is not None:
        batch, epoch = min(batch, shape.support), shape.support
    for phase in method.client():
        steps = phase_plans.epochs(phase, schedule) * (schedule.client_steps or math.ceil(epoch / batch))
        stages += [StageFacts(s.name, s.trains, s.reads, batch, steps) for s in phase.stages]
    besides = ["number of training images", "validation accuracy"]
    besides += ["classes of its images and how many it has of each"] if shape is not None else []
    besides += ["label counts"] if method.uploads_counts else []
    return Facts(examples, rounds, tuple(stages), tuple(method.shared_parts), (*besides, *sent_buffers))


def examples(method: Method, labels: Tensor) -> int:
    """How many training images a client's mini-batches are drawn from in a round; of tasks, at least so many."""
    return len(labels) if method.client_tasks is None else tasks.smallest_pool(labels, method.client_tasks)


def smallest_client(method: Method, labels: Sequence[Tensor]) -> tuple[int, int]:
    """(the client with the fewest examples, how many it has), of all clients' training labels; the first of equals."""
    sizes = [examples(method, each) for each in labels]
    return sizes.index(min(sizes)), min(sizes)


def planned(spec: TrainSpec, method: Method, model: Model, sizes: Sequence[int]) -> tuple[Defense, Model]:
    """(the defence of a run with its noise solved for, the networks that train under it); `sizes`: each client's `examples`.

    UserError: a defence that acts on every image or adds messages up, of a method that cannot have it.
    """
    defense: Defense = written_defense.create(spec.defense, spec.where)
    if "example" in defense.places:
        check_images(spec.method, method)
    if "aggregate" in defense.places:
        check_sums(spec.method, method, len(sizes))
    if "network" in defense.places:
        model = defense.network(model)
    if "example" in defense.places:
        check_buffers(model)
    sends, schedule = statistics(method, model), spec.schedule
    every = [
        facts(method, schedule, size, participation.rounds_of(method, k, len(sizes), schedule.rounds), sends)
        for k, size in enumerate(sizes)
    ]
    return defense.planned(most_exposed(every)), model


def most_exposed(every: Sequence[Facts]) -> list[Facts]:
    """Of clients that take as many steps in as many rounds the one with the fewest images, the smallest client first.

    The fewer images, the higher the rate at which they are sampled. A larger client may take one more step, at a lower rate, and
    need more noise all the same. A client that never takes part is left out, unless none does.
    """
    smallest: dict[tuple[int, ...], Facts] = {}
    for client in sorted(every, key=lambda client: client.examples):
        smallest.setdefault((client.rounds, *(stage.steps for stage in client.stages)), client)
    return [client for client in smallest.values() if client.rounds] or list(smallest.values())


def check_images(name: str, method: Method) -> None:
    """UserError where a stage that reads images trains the generator, whose batch norm has no gradient of one image.

    And where several stages of a phase read images: they share its mini-batches, so that together they are one release with less
    noise, and no two independent ones, as which they would be accounted for.
    """
    for phase in method.client():
        if sum(stage.reads == "images" for stage in phase.stages) > 1:
            raise UserError(
                f"a defence that clips the gradient of every image does not fit {name}: several stages of one phase read the same "
                "mini-batch of images; give each a phase of its own, or train their parts in one stage"
            )
        for stage in phase.stages:
            if stage.reads == "images" and "generator" in stage.trains:
                raise UserError(
                    f"a defence that clips the gradient of every image does not fit {name}: its generator is trained on images, "
                    f"through batch norm; try --defense {registry.OF_MESSAGES}, which acts on what the client sends"
                )


def check_buffers(model: Model) -> None:
    """UserError where a buffer of E or C follows the images, as no clipping reaches it; those of batch norm are gone by then."""
    if following := [f"{part}.{name}" for part in CLASSIFICATION for name in followed(model, part)]:
        raise UserError(
            f"a defence that clips the gradient of every image does not fit backbone '{model.backbone}': its buffer {following[0]} "
            f"follows the images in training, and no clipping reaches it; freeze it, or try --defense {registry.OF_MESSAGES}"
        )


def check_sums(name: str, method: Method, clients: int) -> None:
    """UserError where a server that gets the sum of all messages alone would get a client's own, or could not do its work."""
    if clients < 2:
        raise UserError(
            "secure aggregation of one client hides nothing, as the sum is that client's message; use --clients 2 or more, or "
            "another defence"
        )
    if method.server():
        way = "--set aggregator=ave" if hasattr(method, "aggregator") else "--method fedavg"
        raise UserError(
            f"the server of {name} reads the networks of single clients, but secure aggregation gives it their sum alone; "
            f"try {way}, or another defence"
        )


def statistics(method: Method, model: Model) -> tuple[str, ...]:
    """What of the buffers that clients send depends on their images, in words: running statistics of batch norm, and others."""
    shared = [part for part in method.shared_parts if part != "generator" or not _private_generator(method, model)]
    names = [name for part in shared for name in model.net(part).init(stream(0, "names"))[1]]
    normed = any(name.endswith(OF_MEANS) for name in names)
    others = [
        f"buffer {part}.{name}"
        for part in shared
        if part in CLASSIFICATION
        for name in followed(model, part)
        if not (normed and name.endswith(OF_BATCH_NORM))
    ]
    return (*(("batch-norm statistics",) if normed else ()), *others)


def followed(model: Model, part: str) -> list[str]:
    """The buffers of E or C that a step on one batch leaves otherwise than a step on another one, where all else is the same."""
    net = model.net(part)
    params, buffers = net.init(stream(0, "names"))
    if not buffers:
        return []
    shape = (model.channels, model.image_size, model.image_size) if part == "extractor" else model.feature_shape
    rng = stream(0, "two batches")
    first, second = (net.apply(params, buffers, torch.rand(2, *shape, generator=rng), train=True)[1] for _ in range(2))
    return [name for name in buffers if not torch.equal(first[name], second[name])]


def _private_generator(method: Method, model: Model) -> bool:
    """Whether the generator's statistics follow from noise and uniform labels alone."""
    return model.norm == "group" and all(
        stage.reads == "labels" for phase in method.client() for stage in phase.stages if "generator" in stage.trains
    )


def guarantees(setup: Setup, rounds: int) -> list[Guarantee | None]:
    """What is guaranteed for each client after `rounds` rounds, for those of them in which it took part: [K]."""
    method, clients = setup.method, len(setup.labels)
    sends = statistics(method, setup.model)
    part = [participation.rounds_of(method, k, clients, rounds) for k in range(clients)]
    return [
        setup.defense.guarantee(facts(method, setup.spec.schedule, examples(method, labels), times, sends))
        for labels, times in zip(setup.labels, part, strict=True)
    ]


def optimisers(setup: Setup, phase: Phase, *, defended: bool) -> dict[str, Optimiser]:
    """Those of a phase, by stage: the schedule's, but for stages whose images a defence clips.

    `defended`: the phase is a client's under the run's defence, not the server's, nor a client's on its own account.
    """
    schedule = setup.spec.schedule
    usual = {"task": schedule.task, "generator": schedule.generator, "server": schedule.server}
    return {
        stage.name: stepping(setup.defense, usual[stage.optimiser])
        if defended and stage.reads == "images"
        else usual[stage.optimiser]
        for stage in phase.stages
    }


def stepping(defense: Defense, setting: Optimiser) -> Optimiser:
    """The optimiser of stages that read images under a defence, in place of the schedule's where every image is clipped."""
    return optimiser(defense.optimiser(setting.model_dump())) if "example" in defense.places else setting


def in_round(setup: Setup, k: int, round_: int) -> LocalDefense:
    """The defence in client k's local training of one round, on a random stream of its own."""
    rng = stream(setup.spec.seed, "client", k, "round", round_, "defence", "step")
    return local(setup.defense, setup.method.shared_parts, rng)


def local(defense: Defense, shared: Sequence[str], rng: torch.Generator) -> LocalDefense:
    """The defence at its places in local training."""
    places = defense.places
    return LocalDefense(
        step=(lambda parts: of_shared(defense, parts, shared, rng)) if "step" in places else None,
        example=(lambda each, included, expected: defense.example(each, included, expected, rng))
        if "example" in places
        else None,
        representation=defense.representation if "representation" in places else None,
    )


def of_shared(defense: Defense, parts: Parts, shared: Sequence[str], rng: torch.Generator) -> Parts:
    """A step's gradient with its shared parts defended together, the others as they are."""
    seen = {part: params for part, params in parts.items() if part in shared}
    return parts | defense.step(seen, rng) if seen else parts


def sent(setup: Setup, k: int, round_: int, change: Parts) -> Parts:
    """What client k sends in place of the change of its shared parts."""
    rng = stream(setup.spec.seed, "client", k, "round", round_, "defence", "update")
    return setup.defense.message(change, rng)
