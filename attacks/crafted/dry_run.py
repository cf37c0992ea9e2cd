"""A dry run: what a network that a server might send would bring back, on images of the server's own.

The server plays the client. It takes the gradient of auxiliary images at the networks in question, or the client's local steps.
It lets the defence that it knows act on that, on each step or on the whole, and rounds it to the number format of uploads. It
attacks the outcome with the rest of its auxiliary images as it would attack the victims, and compares with the images, which here
it knows. The server sends the honest classifier where that scores higher, e.g. where a defence clips.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from attacks.common import data_fit, no_information, updates
from attacks.crafted import classifiers, concentrated, heads
from privbench import tensors
from privbench.defending import described
from privbench.defense import Defense
from privbench.methods.base import MiniBatch, Nets, RoundClock, SamplingContext, classifier_draws, proximal_term
from privbench.networks.model import Model
from privbench.observation import client_message, defended_upload, local_update, wire
from privbench.scoring import image_scores
from privbench.scoring.statistics import CAP_DB
from privbench.seeds import stream
from privbench.spec import SGD
from privbench.tensors import Parts
from privbench.training import defended
from privbench.training.engine.plan import StageContext
from privbench.types import (
    CLASSIFICATION,
    Artifact,
    Batch,
    ExpectedUpload,
    Knowledge,
    LocalSteps,
    Networks,
    Progress,
    Reconstruction,
    no_progress,
)

Attack = Callable[[Artifact, Knowledge, int, Progress], Reconstruction]
# What clients are sent in place of some of the broadcast networks: one to all, or to each its own; nothing by an honest server.
Sent = tuple[Networks, ...]
STREAM = "rehearsal"  # in the names of random streams, which decide bits
DECADES, STEPS_PER_DECADE = 38, 8  # of the numbers that are sent to see which arrive
NOISES = 10_000  # numbers sent through a defence to see how much noise it adds


class Passive(Protocol):
    """An attack on the uploads of an honest server."""

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = ...
    ) -> Reconstruction:
        """All victims."""
        ...


def noise_std(defense: Defense, seed: int, batch_size: int = 1) -> float:
    """The standard deviation of what a defence makes of zeros, gradients of so many images; 0 where it adds no noise."""
    zeros = {"zeros": {"zeros": torch.zeros(NOISES)}}
    rng = stream(seed, "attacker", STREAM, "noise")
    noise = defended_upload.gradient(defense, lambda: zeros, lambda: [zeros] * batch_size, ("zeros",), rng)
    return float(noise["zeros"]["zeros"].std())


def gradient_noise_std(expected: ExpectedUpload, seed: int) -> float:
    """The same in the expected uploads, whole updates taken for gradients."""
    local, images = expected.local, expected.images_per_client
    if local is not None and local.batch is not None:
        images = local.batch
    # In the mean of several messages.
    noise = noise_std(expected.defense, seed, images) * math.hypot(*expected.shares) * expected.noise_factor
    if local is None:
        return noise
    setting = local_update.optimiser_of(local)
    if not described.noises_steps(expected.defense.describe()):
        return noise / (setting.lr * local.steps)
    # The noises of K steps of SGD are independent. Adam divides them by their size, for which one step's noise stands.
    return noise / math.sqrt(local.steps) if isinstance(setting, SGD) else noise


def largest_entry(expected: ExpectedUpload) -> float:
    """The largest entry of a message that arrives as a number, seen by sending numbers of all sizes.

    Number formats end somewhere, and so do the whole numbers of which secure aggregation makes sums.
    """
    sizes = torch.logspace(0, DECADES, STEPS_PER_DECADE * DECADES + 1)
    message = wire.rounded({"sizes": {"sizes": sizes}}, expected.wire)
    if expected.weights is not None:
        rng = stream(0, "attacker", STREAM, "sizes")
        message = expected.defense.aggregate([message] * len(expected.weights), expected.weights, rng).tensors
    arrives = message["sizes"]["sizes"].isfinite()
    return min(float(sizes.where(arrives, 0.0).max()), expected.largest)


def clips(defense: Defense) -> bool:
    """Whether a defence bounds the norm of gradients, alone or with others."""
    return any(data_fit.CLIP & described.kinds(one) for one in described.single(defense.describe()))


def better_classifier(
    model: Model,
    broadcast: Networks,
    knowledge: Knowledge,
    most_images: int,
    seed: int,
    read: Attack,
    passive: Callable[[Artifact], Passive],
) -> Networks:
    """Of the classifiers that serve the expected uploads the one that brings back most, or HONEST where none brings back more.

    Tried where E is broadcast, on `most_images` of the auxiliary ones; 0 takes the first of them, untried. With E private nobody
    can try, and an honest classifier gives the same features of one image without noise.
    """
    assert knowledge.expected is not None, "active attacks are told of the uploads to come"
    expected, noise = knowledge.expected, gradient_noise_std(knowledge.expected, seed)
    tried_on = most_images if "extractor" in broadcast.params else 0

    def made(images: Batch) -> tuple[Sent, ...]:
        return tuple((one,) for one in candidates(model, broadcast, images, expected, noise))

    return to_all(best(model, broadcast, knowledge, tried_on, seed, made, read, passive))


def to_all(sent: Sent) -> Networks:
    """What all clients are sent, where they are sent the same."""
    return sent[0] if sent else classifiers.HONEST


def best(
    model: Model,
    broadcast: Networks,
    knowledge: Knowledge,
    most_images: int,
    seed: int,
    made_of: Callable[[Batch], tuple[Sent, ...]],
    read: Attack,
    passive: Callable[[Artifact], Passive],
) -> Sent:
    """Of what an attack makes of auxiliary images that which brings back most; nothing where the honest networks bring as much.

    `read` is the attack on what crafted networks bring back, `passive` gives that on the uploads of an honest server. Where that
    attack fails its answer may be worth less than class means, which anybody can return: the better of the two counts as honest.
    The first of what is made, untried, where `most_images` is 0, or where the auxiliary images are too few to deal out a batch and
    to craft from the rest.
    """
    assert knowledge.auxiliary is not None, "the needs name auxiliary images"
    assert knowledge.expected is not None, "active attacks are told of the uploads to come"
    expected = knowledge.expected
    if not all(bool(t.isfinite().all()) for part in CLASSIFICATION for t in broadcast.params.get(part, {}).values()):
        # Training diverged: nothing is read of what nothing can be crafted of.
        return ()
    made = made_of(knowledge.auxiliary)
    if not made:
        return ()
    others, attackers = halves(knowledge.auxiliary, seed)
    kept = min(expected.batch_size, classifiers.FEWEST_IMAGES)
    if not most_images or len(others.labels) < expected.batch_size or len(attackers.labels) < kept:
        return made[0]
    clients, attacker = batches(others, most_images, expected.batch_size), Knowledge(attackers)

    def upload_of(sent: Sent) -> Artifact:
        whole = tuple(Networks(broadcast.params | one.params, broadcast.buffers) for one in sent)
        return observed(model, whole[0], clients, expected, seed, whole if len(whole) > 1 else None)

    def worth(upload: Artifact, attack: Callable[[Artifact], Reconstruction]) -> float:
        return psnr_db(attack, upload, clients.images)

    honest = upload_of((classifiers.HONEST,))
    as_gradients = updates.nearly_gradients(honest)
    scores = [
        max(
            worth(as_gradients, lambda seen: passive(seen).reconstruct(seen, attacker, seed, no_progress)),
            # Batches that Adam moved show their labels in the updates alone.
            worth(honest, lambda seen: no_information.class_mean(seen, attacker)),
        )
    ]
    scores += [
        worth(upload_of(sent), lambda seen: read(seen, attacker, seed, no_progress)) for sent in made_of(attackers)
    ]
    return ((), *made)[scores.index(max(scores))]


def candidates(
    model: Model, broadcast: Networks, auxiliary: Batch, expected: ExpectedUpload, noise: float
) -> tuple[Networks, ...]:
    """The classifiers that may bring back more than an honest one, the best first, where noise has that standard deviation."""
    batch_size, is_private = expected.batch_size, "extractor" not in broadcast.params
    is_lenet5 = model.backbone == heads.LENET5
    kind = heads.kind_of(model, broadcast.params["classifier"])
    if not is_lenet5 and not heads.gains(kind, batch_size, noise):
        return ()
    norm = concentrated.least_norm(expected, noise) if is_lenet5 else None
    best: tuple[Networks, ...] = ()
    if norm is not None:
        best = (Networks({"classifier": concentrated.crafted(broadcast.params["classifier"], norm)}, {}),)
    # No other gradient can exceed noise that is scaled to the bound of a norm.
    only = bool(noise) and clips(expected.defense)
    if is_private and (best or only or not (noise or batch_size > 1)):
        return best if noise else ()
    if best and only:
        return best
    largest = largest_entry(expected) if noise else math.inf
    return (classifiers.made_for(model, broadcast, auxiliary, batch_size, noise, largest), *best)


def halves(auxiliary: Batch, seed: int) -> tuple[Batch, Batch]:
    """The auxiliary images dealt out: (those of the clients that the server plays, those of the attacker)."""
    order = torch.randperm(len(auxiliary.labels), generator=stream(seed, "attacker", STREAM, "halves"))
    clients, attackers = order.tensor_split(2)
    return Batch(*(t[clients] for t in auxiliary)), Batch(*(t[attackers] for t in auxiliary))


def batches(images: Batch, most: int, size: int) -> Batch:
    """At most so many of some images, in batches of one size: [n, B, C, H, W] and [n, B]; n is 1 where size > most."""
    count = min(max(most // size, 1), len(images.labels) // size)
    return Batch(*(t[: count * size].unflatten(0, (count, size)) for t in images))


def observed(
    model: Model,
    networks: Networks,
    clients: Batch,
    expected: ExpectedUpload,
    seed: int,
    divided: tuple[Networks, ...] | None = None,
) -> Artifact:
    """What clients with the batches [n, B, ...] would send of all `networks`, which they were sent, or each one of its own."""
    received = divided or (networks,) * len(expected.shares)
    sent: list[Parts] = []
    (n, size), weights = clients.labels.shape, expected.weights
    for v, (x, y) in enumerate(zip(*clients, strict=True)):
        rng = stream(seed, "attacker", STREAM, "defence", v)
        of_each = zip(*(t.split(expected.images_per_client) for t in (x, y)), strict=True)
        messages = [_sent(model, own, Batch(*one), expected, rng) for own, one in zip(received, of_each, strict=True)]
        whole = messages[0] if weights is None else expected.defense.aggregate(messages, weights, rng).tensors
        sent.append(_with_noise_of_others(whole, expected, seed, rng))
    stacked = {
        part: {name: torch.stack([one[part][name] for one in sent]) for name in networks.params[part]}
        for part in CLASSIFICATION
    }
    defense = defended_upload.described(
        expected.defense, expected.local, expected.images_per_client, expected.wire, expected.shares
    )
    if "variance" in defense:
        defense["variance"] = float(defense["variance"]) * expected.noise_factor**2
    # Of one client the message is the sum, as where it was isolated in one.
    summed = len(expected.shares) > 1
    defense = defense if summed else described.of_one_message(defense)
    return Artifact(
        method="dry run",
        dataset="auxiliary",
        model=model,
        round=0,
        shared_parts=CLASSIFICATION,
        gradients=stacked if expected.local is None else {},
        updates={} if expected.local is None else stacked,
        local=expected.local,
        weights={part: networks.params[part] for part in CLASSIFICATION},
        buffers={part: networks.buffers.get(part, {}) for part in CLASSIFICATION},
        uploads={},
        upload_buffers={},
        client=torch.zeros(n, dtype=torch.int64),
        batch_size=size,
        image_shape=(int(clients.images.shape[2]), int(clients.images.shape[3]), int(clients.images.shape[4])),
        labels=clients.labels if expected.labels_known else None,
        defense=defense,
        member_weights=torch.tensor(expected.shares, dtype=torch.float64).expand(n, -1).clone() if summed else None,
        divided=divided,
    )


def _with_noise_of_others(upload: Parts, expected: ExpectedUpload, seed: int, rng: torch.Generator) -> Parts:
    """An upload with the noise that comes besides its own."""
    if expected.noise_factor == 1:
        return upload
    own = gradient_noise_std(expected._replace(noise_factor=1.0), seed)
    std = own * math.sqrt(expected.noise_factor**2 - 1)
    return {
        part: {name: t + std * torch.randn(t.shape, generator=rng).to(t) for name, t in net.items()}
        for part, net in upload.items()
    }


def _sent(model: Model, networks: Networks, batch: Batch, expected: ExpectedUpload, rng: torch.Generator) -> Parts:
    """What one client with the batch [B, ...] would send."""
    defense = expected.defense
    if expected.local is not None:
        change = local_change(model, networks, batch, expected.local, defense, rng)
        defended = defense.message(change, rng) if "message" in defense.places else change
        return wire.rounded(defended, expected.wire)
    train = model.train_mode(len(batch.labels))
    start, mini = _start(model, networks), _drawn(model, (len(batch.labels),), batch, rng)
    of_one = partial(client_message.gradient_at, start, parts=CLASSIFICATION, train=train)
    exact = defended_upload.represented(defense, partial(of_one, mini), model, start.networks, batch.images)
    each = partial(client_message.by_image, of_one, mini)
    return wire.rounded(defended_upload.gradient(defense, exact, each, CLASSIFICATION, rng), expected.wire)


def local_change(
    model: Model, networks: Networks, batch: Batch, local: LocalSteps, defense: Defense, rng: torch.Generator
) -> Parts:
    """How E and C change in a client's local steps on one batch [B, ...], part -> parameter -> [...].

    What the defence does to the whole message is left to the caller.
    """
    mini = _drawn(model, (local.steps, len(batch.labels)), batch, rng)
    at_steps = defended.local(defense, CLASSIFICATION, rng)
    return local_update.change_in_steps(_start(model, networks, local.proximal), mini, local, at_steps, rng)[0]


def _start(model: Model, networks: Networks, proximal: float = 0.0) -> local_update.Start:
    """A client that was sent some networks, in training on the task."""
    around, pair = StageContext(None, (), None), (networks.params, networks.buffers)

    def loss(nets: Nets, batch: MiniBatch, clock: RoundClock) -> Tensor:
        of_task = _task_loss(nets, batch, clock)
        return of_task + proximal_term(nets.params, networks.params, proximal) if proximal else of_task

    return local_update.Start(model, pair, loss, around, RoundClock(1, 1))


def _drawn(model: Model, shape: tuple[int, ...], batch: Batch, rng: torch.Generator) -> MiniBatch:
    """A batch with what its client draws for the classifier, [*shape, ...]."""
    context = SamplingContext(model, None)
    return MiniBatch(*batch, {name: draw.sample(shape, context, rng) for name, draw in classifier_draws().items()})


def _task_loss(nets: Nets, batch: MiniBatch, clock: RoundClock) -> Tensor:
    """The mean cross-entropy of a mini-batch."""
    return nets.model.loss(nets.classifier(nets.extractor(batch.images), batch.drawn()), batch.labels)


def psnr_db(attack: Callable[[Artifact], Reconstruction], artifact: Artifact, images: Tensor) -> float:
    """The mean PSNR in dB of what an attack makes of an artifact of images [n, B, C, H, W]; the order of a batch is free.

    Minus infinity where an upload is not finite: what overflows on the wire is worth less than any image.
    """
    if not bool(tensors.finite_rows(*(g for net in artifact.gradients.values() for g in net.values())).all()):
        return -math.inf
    reconstructed = attack(artifact).images.nan_to_num(nan=0.5)
    aligned = torch.stack(
        [one[image_scores.assignment(one, true)] for one, true in zip(reconstructed, images, strict=True)]
    )
    return float(image_scores.psnr_db(aligned, images).clamp_max(CAP_DB).mean())
