"""A federation as its server sees it, and one of the attacker's own in which he can check what an attack is worth.

A `World` holds what the attacks on private extractors look at: the broadcast classifier, closed-form features of each victim,
labels, auxiliary images, per client what is known of its features, and possibly a colluder's extractor. `real` makes it from
an artifact. `shadow` makes another from half of the auxiliary images: a small federation is trained on them by the server's
own hands (private extractors, averaged classifiers), some of its training images become victims, and the attacker there has
the other half of the images. He knows those victims, so an attack's free numbers are chosen where they serve best in the
shadow.
Shokri et al., S&P 2017, arXiv 1610.05820, used shadow models to train an attack; here they choose its settings.

What the shadow leaves out: generators (their class-conditional moments are taken as exact), the defence, the method's own losses
besides cross-entropy. Few rounds and images make its extractors less alike than, or alike as, the real ones: nobody knows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attacks import features, labels, surrogates, trained
from attacks.surrogates import Align, Moments
from privbench.errors import UserError
from privbench.nets import Model
from privbench.seeds import stream
from privbench.types import Artifact, Batch, Knowledge, Params

CLIENTS = 2
VICTIMS = 8  # of each shadow client, at most
GENERATED = 64  # generator samples per class


class World(NamedTuple):
    """What an attacker of a private extractor looks at."""

    name: str  # "real" or "shadow", part of the names of its draws
    model: Model
    classifier: Params
    h: Tensor  # [V, c, s, s] float64
    noise: Tensor | None  # [V] variance of h
    labels: Tensor  # [V]
    client: Tensor  # [V]
    auxiliary: Batch
    moments: dict[
        int, Moments
    ]  # attacked client -> class-conditional moments of its features, where a generator tells them
    colluder: dict[int, Params]  # attacked client -> the extractor of another client, where one colludes


class Hijack(NamedTuple):
    """What the server of a hijacked shadow sends in its last rounds, in place of the average."""

    rounds: int
    classifier: Params
    align: Align  # the pull of the generator it sends, at its full weight
    depends_on: list[Tensor]  # all that `align` is made of


def required_features(artifact: Artifact, who: str) -> Tensor:
    """Closed-form h [V, c, s, s]; UserError where there is none."""
    h = features.closed_form(artifact)
    if h is not None:
        return h
    reason = (
        f"its gradients are of {artifact.batch_size} images each; attack with --batch-size 1"
        if artifact.batch_size > 1
        else f"the classifier of {artifact.model.backbone} begins with convolutions; attack lenet5"
    )
    raise UserError(f"{who} needs the features of each image in closed form, but {reason}")


def real(artifact: Artifact, knowledge: Knowledge, seed: int, who: str) -> World:
    """The world of an artifact; UserError without closed-form features or auxiliary images."""
    assert knowledge.auxiliary is not None, f"the needs of {who} name auxiliary images"
    colluder = knowledge.colluder or {}
    return World(
        "real",
        artifact.model,
        artifact.weights["classifier"],
        required_features(artifact, who),
        features.noise_variance(artifact),
        labels.recover(artifact)[:, 0],
        artifact.client,
        knowledge.auxiliary,
        {k: _generated(artifact, k, seed) for k in _clients(artifact)} if "generator" in artifact.uploads else {},
        {k: own.params["extractor"] for k, own in colluder.items()},
    )


def _clients(artifact: Artifact) -> list[int]:
    return sorted(set(artifact.client.tolist()))


def _generated(artifact: Artifact, client: int, seed: int) -> Moments:
    """Class-conditional moments of what a client's uploaded generator makes, in eval mode."""
    model, device = artifact.model, artifact.client.device
    params = {n: t[client] for n, t in artifact.uploads["generator"].items()}
    buffers = {n: t[client] for n, t in artifact.upload_buffers["generator"].items()}
    y = torch.arange(model.classes, device=device).repeat_interleave(GENERATED)
    z = torch.randn(len(y), model.noise_dim, generator=stream(seed, "attacker", "generated", client)).to(device)
    with torch.no_grad():
        h, _ = model.net("generator").apply(params, buffers, z, y, train=False)
    return surrogates.class_moments(h, y, model.classes)


def shadow(
    world: World, rounds: int, steps: int, seed: int, knowledge: Knowledge, hijack: Hijack | None = None
) -> tuple[World, Tensor]:
    """A shadow of a world, and its victims' images [V', C, H, W]; at least four auxiliary images are needed.

    Its last rounds are hijacked where there is a `hijack`.
    """
    images, classes = world.auxiliary
    theirs, mine = _halves(world, seed)
    shares = theirs.tensor_split(CLIENTS)
    settings = {"rounds": rounds, "steps": steps, "seed": seed} | ({"hijacked": hijack.rounds} if hijack else {})
    kept = trained.kept(
        knowledge.cache,
        "hijacked-shadow" if hijack else "shadow",
        settings,
        [images, classes, *([*hijack.depends_on, *hijack.classifier.values()] if hijack else [])],
        lambda: _federate(world, [Batch(images[s], classes[s]) for s in shares], rounds, steps, seed, hijack),
        images.device,
    )
    extractors = [_take(kept, f"extractor{k}/") for k in range(CLIENTS)]
    victims = [share[:VICTIMS] for share in shares]
    seen = torch.cat(victims)
    h = torch.cat(
        [surrogates.extract(world.model, e, images[v]) for e, v in zip(extractors, victims, strict=True)]
    ).double()
    moments = {}
    if world.moments:
        for k, share in enumerate(shares):
            own = surrogates.extract(world.model, extractors[k], images[share])
            moments[k] = surrogates.class_moments(own, classes[share], world.model.classes)
    other = World(
        "shadow",
        world.model,
        _take(kept, "classifier/"),
        h,
        None if world.noise is None else world.noise.median().expand(len(h)),
        classes[seen],
        torch.cat([torch.full((len(v),), k) for k, v in enumerate(victims)]).to(classes.device),
        Batch(images[mine], classes[mine]),
        moments,
        {k: extractors[(k + 1) % CLIENTS] for k in range(CLIENTS)} if world.colluder else {},
    )
    if world.noise is not None:
        rng = stream(seed, "attacker", "shadow", "noise")
        draws = torch.randn(h.shape, generator=rng, dtype=torch.float64).to(h)
        other = other._replace(h=h + world.noise.median().sqrt() * draws)
    return other, images[seen]


def attackers_half(world: World, seed: int) -> Batch:
    """The auxiliary images that the shadow of a world leaves to its attacker."""
    _, mine = _halves(world, seed)
    return Batch(world.auxiliary.images[mine], world.auxiliary.labels[mine])


def _halves(world: World, seed: int) -> tuple[Tensor, Tensor]:
    """Indices of the auxiliary images: (the shadow clients', the shadow attacker's)."""
    classes = world.auxiliary.labels
    order = torch.randperm(len(classes), generator=stream(seed, "attacker", "shadow", "halves")).to(classes.device)
    theirs, mine = order.tensor_split(2)
    return theirs, mine


def _federate(
    world: World, shares: list[Batch], rounds: int, steps: int, seed: int, hijack: Hijack | None
) -> dict[str, Tensor]:
    """Private extractors after some rounds from one random start, and the classifier that is sent then."""
    names = ("attacker", "shadow")
    model, like = world.model, world.auxiliary.images
    start = {
        part: {n: t.to(like) for n, t in model.net(part).init(stream(seed, *names, part))[0].items()}
        for part in ("extractor", "classifier")
    }
    extractors, average = [start["extractor"]] * len(shares), start["classifier"]
    for round_ in range(rounds):
        now = hijack if hijack and round_ >= rounds - hijack.rounds else None
        sent, align = (now.classifier, now.align) if now else (average, None)
        ends = [
            surrogates.train_both(
                model, e, sent, share, steps, stream(seed, *names, "round", round_, "client", k), align, 1.0
            )
            for k, (e, share) in enumerate(zip(extractors, shares, strict=True))
        ]
        extractors = [e for e, _ in ends]
        average = {n: torch.stack([c[n] for _, c in ends]).mean(0) for n in average}
    kept = {f"classifier/{n}": t for n, t in (hijack.classifier if hijack else average).items()}
    return kept | {f"extractor{k}/{n}": t for k, own in enumerate(extractors) for n, t in own.items()}


def _take(tensors: dict[str, Tensor], prefix: str) -> Params:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
