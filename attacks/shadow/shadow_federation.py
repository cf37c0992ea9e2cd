"""A federation as its server sees it, and one of the attacker's own in which he can check what an attack is worth.

A `ServerView` holds what attacks on private extractors use: the broadcast classifier, closed-form features of each victim,
labels, auxiliary images, per client what is known of its features, and possibly a colluder's extractor. `real` makes it from
an artifact. `shadow` makes another around the same classifier: half of the auxiliary images are dealt to a few clients, each of
which trains a private extractor through the classifier that was broadcast; some of their training images become victims, and
the attacker there has the other half of the images. He knows those victims, so an attack's free numbers are chosen where they
serve best in the shadow. Shadow clients train as the server has the attacked ones train (Artifact.training).
Shokri et al., S&P 2017, arXiv 1610.05820, used shadow models to train an attack; here they choose its settings.

What the shadow leaves out: generators (what they make is taken to be distributed as the client's features), the defence, flips of
images, the method's own losses besides cross-entropy, and the history: real extractors come from one start and have followed many
broadcasts. On `photos` that leaves them as unlike as those of independent starts (docs/appendix/tuning.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attacks.common import batched, closed_form, labels, problem, training_cache
from attacks.common.closed_form import Features
from attacks.features import inversion
from attacks.features.inversion import ClassPrior, Extractors
from attacks.shadow import surrogate_training
from attacks.shadow.surrogate_training import Align
from privbench.errors import UserError
from privbench.networks.base import LinearClassifier
from privbench.networks.model import Model
from privbench.seeds import stream
from privbench.tensors import Params
from privbench.types import Artifact, Batch, Knowledge, LocalTraining, Progress

CLIENTS = 3
VICTIMS = 6  # of each shadow client: about as many as a real one has, on whom alignment depends
USUAL_STEPS = 100  # of a shadow client in a round, where it is not known how many the attacked ones take
GENERATED = 64  # generator samples per class
SMALL = 0.25  # of a variance of noise, relative to that of features over images


class ServerView(NamedTuple):
    """What an attack on a private extractor uses."""

    name: str  # "real" or "shadow", part of the names of its draws
    model: Model
    classifier: Params
    h: Tensor  # [V, c, s, s] float64
    # [V, c, s, s] bool: which features dropout left (attacks/common/closed_form.py); None without dropout
    known: Tensor | None
    noise: Tensor | None  # [V] variance of h
    labels: Tensor  # [V]
    probability: Tensor | None  # [V, Y] of each class, where noise leaves labels uncertain; None where they are known
    client: Tensor  # [V]
    victim: Tensor  # [V] each victim's number, which it keeps in `select`
    auxiliary: Batch
    # Attacked client -> features as it has them [N, c, s, s], with their classes, where a generator makes some.
    generated: dict[int, Batch]
    colluder: dict[int, Params]  # attacked client -> the extractor of another client, where one colludes
    training: LocalTraining | None  # how the server has its clients train, where that is known

    @property
    def clients(self) -> list[int]:
        """The attacked clients, in ascending order."""
        return clients_of(self.client)


def select(view: ServerView, rows: Tensor) -> ServerView:
    """The same view of some of its victims, possibly several times."""
    noise, known, probability = (None if t is None else t[rows] for t in (view.noise, view.known, view.probability))
    return view._replace(
        h=view.h[rows],
        known=known,
        noise=noise,
        labels=view.labels[rows],
        probability=probability,
        client=view.client[rows],
        victim=view.victim[rows],
    )


def of_clients(view: ServerView, nets: Mapping[int, list[Params]]) -> Extractors:
    """What stands in for each client's extractor, client -> networks, for each of its victims."""
    return {v: nets[k] for v, k in zip(view.victim.tolist(), view.client.tolist(), strict=True)}


def by_extractors(
    view: ServerView,
    prior: ClassPrior,
    nets: Extractors,
    variance: Tensor,
    *,
    exact: bool,
    steps: int,
    progress: Progress,
) -> batched.Descent:
    """attacks/features/inversion.py for all victims that a server sees, each through its extractors; `variance` [V].

    Where labels are uncertain, an image's prior has the mean that their probabilities give.
    """
    y = view.labels
    if view.probability is not None:
        prior = prior._replace(means=expected(view, prior.means))
        y = torch.arange(len(y), device=y.device)
    return inversion.invert(
        view.model, [nets[victim] for victim in view.victim.tolist()], prior, view.h, y, variance,
        exact=exact, steps=steps, mask=view.known, progress=progress,
    )  # fmt: skip


def expected(view: ServerView, of_classes: Tensor) -> Tensor:
    """Of something of every class [Y, ...] what each victim's label says [V, ...]: the expectation where it is uncertain."""
    if view.probability is None:
        return of_classes[view.labels]
    return torch.einsum("vy,y...->v...", view.probability.to(of_classes), of_classes)


def check_features(artifact: Artifact, who: str) -> None:
    """UserError where no linear layer takes the features, or of gradients of more than the images that the artifact says."""
    closed_form.check_not_mixed(artifact)
    if artifact.model.last_inputs is None:
        raise UserError(
            f"{who} trains surrogates by cross-entropy, but the clients' loss is another; try --attack staged"
        )
    if not isinstance(artifact.model.classifier, LinearClassifier):
        raise UserError(
            f"{who} needs the features of each image in closed form, but the classifier of {artifact.model.backbone} begins with "
            "convolutions; attack lenet5"
        )
    problem.check_batch_size(artifact)


def required_features(artifact: Artifact, who: str) -> tuple[Features, Tensor | None]:
    """Features [V, c, s, s] of one-image gradients, and the variance [V] of their noise; UserError as `check_features`."""
    check_features(artifact, who)
    read = closed_form.with_noise(artifact)
    assert read is not None, "attacks/features/per_image.py makes batches single images"
    return read


def real(artifact: Artifact, knowledge: Knowledge, seed: int, who: str) -> ServerView:
    """The view of the server that an artifact gives; UserError without closed-form features or auxiliary images."""
    assert knowledge.auxiliary is not None, f"the needs of {who} name auxiliary images"
    clients, colluder = clients_of(artifact.client), knowledge.colluder or {}
    generated = by_generators(artifact, clients, seed) if "generator" in artifact.uploads else {}
    features, noise = required_features(artifact, who)
    return ServerView(
        "real",
        artifact.model,
        artifact.weights["classifier"],
        *features,
        noise,
        labels.recover(artifact)[:, 0],
        labels.probabilities(artifact)[:, 0] if labels.noise_variance(artifact) and artifact.labels is None else None,
        artifact.client,
        torch.arange(artifact.victims, device=artifact.client.device),
        knowledge.auxiliary,
        generated,
        {k: other.params["extractor"] for k, other in colluder.items() if k in clients},
        artifact.training,
    )


def clients_of(client: Tensor) -> list[int]:
    """The clients [V] that sent some uploads, each once and in ascending order."""
    return sorted(set(client.tolist()))


def by_generators(artifact: Artifact, clients: list[int], seed: int) -> dict[int, Batch]:
    """What the generator of each client makes, of those whose features have finite moments."""
    each = {k: _generated(artifact, k, seed) for k in clients}
    return {k: batch for k, batch in each.items() if _has_moments(batch, artifact.model.classes)}


def _has_moments(features: Batch, classes: int) -> bool:
    return all(bool(t.isfinite().all()) for t in surrogate_training.class_moments(*features, classes))


def _generated(artifact: Artifact, client: int, seed: int) -> Batch:
    """What a client's uploaded generator makes."""
    params, buffers = (
        {n: t[client] for n, t in each["generator"].items()} for each in (artifact.uploads, artifact.upload_buffers)
    )
    return made_by(artifact.model, params, buffers, stream(seed, "attacker", "generated", client))


def made_by(model: Model, params: Params, buffers: Params, rng: torch.Generator) -> Batch:
    """GENERATED features of each class, as a generator makes them in eval mode."""
    device = next(iter(params.values())).device
    y = torch.arange(model.classes, device=device).repeat_interleave(GENERATED)
    z = torch.randn(len(y), model.noise_dim, generator=rng).to(device)
    with torch.no_grad():
        h, _ = model.net("generator").apply(params, buffers, z, y, train=False)
    return Batch(h, y)


class Pull(NamedTuple):
    """What draws the features of a hijacked shadow's clients, besides the cross-entropy."""

    align: Align
    depends_on: list[Tensor]  # all that `align` is made of


def shadow(
    view: ServerView,
    rounds: int,
    most_steps: int,
    seed: int,
    knowledge: Knowledge,
    start: Params | None = None,
    pull: Pull | None = None,
    victims: int | None = None,
) -> tuple[ServerView, Tensor]:
    """A shadow of what a server sees, and its victims' images [V', C, H, W]; at least four auxiliary images are needed.

    Each of its clients has so many `victims` (default VICTIMS), as far as its images go.

    Each client takes as many steps a round as the attacked clients do, USUAL_STEPS where that is not known, `most_steps` at most.
    `start` is what its clients' extractors start from; without one each has a random start of its own.
    """
    images, classes = view.auxiliary
    clients, attackers = _halves(view, seed)
    training = training_of(view, most_steps)
    shares = [share for share in clients.tensor_split(CLIENTS) if len(share)]
    begun = "shared" if start is not None else "own"
    trained = training_cache.cached(
        knowledge.cache,
        "hijacked-shadow" if pull else "shadow",
        {"rounds": rounds, "seed": seed, "start": begun, **training_settings(training, view.model)},
        [
            images,
            classes,
            *view.classifier.values(),
            *(t for _, t in sorted((start or {}).items())),
            *(pull.depends_on if pull else ()),
        ],
        lambda: _clients_of(view, [Batch(images[s], classes[s]) for s in shares], rounds, training, seed, start, pull),
        images.device,
    )
    extractors = [_take(trained, f"extractor{k}/") for k in range(len(shares))]
    attacked = [share[: VICTIMS if victims is None else victims] for share in shares]
    seen = torch.cat(attacked)
    h = torch.cat(
        [surrogate_training.extract(view.model, e, images[v]) for e, v in zip(extractors, attacked, strict=True)]
    ).double()
    generated = dict[int, Batch]()
    if view.generated:
        for k, share in enumerate(shares):
            generated[k] = Batch(surrogate_training.extract(view.model, extractors[k], images[share]), classes[share])
    noise = None if view.noise is None else noise_levels(view.noise, len(h), seed)
    h = h if noise is None else noised(h, noise, seed)
    other = ServerView(
        "shadow",
        view.model,
        view.classifier,
        *(Features(h, None) if view.known is None else dropped(view, h, seed)),
        noise,
        classes[seen],
        None,
        torch.cat([torch.full((len(v),), k) for k, v in enumerate(attacked)]).to(classes.device),
        torch.arange(len(seen), device=classes.device),
        Batch(images[attackers], classes[attackers]),
        generated,
        {k: extractors[(k + 1) % len(shares)] for k in range(len(shares))} if view.colluder else {},
        view.training,
    )
    return other, images[seen]


def training_of(view: ServerView, most_steps: int) -> LocalTraining:
    """How a shadow's clients train: as the attacked ones do, as far as that is known, and `most_steps` a round at most."""
    training = view.training or LocalTraining(
        surrogate_training.USUAL_OPTIMISER.model_dump(), surrogate_training.CLIENT_BATCH, USUAL_STEPS
    )
    return training._replace(steps=min(training.steps, most_steps))


def training_settings(training: LocalTraining | None, model: Model) -> dict[str, Any]:
    """What a name in a cache says of how clients train."""
    return {"training": str(training)} | ({"dropout": model.dropout} if model.dropout else {})


def attackers_half(view: ServerView, seed: int) -> Batch:
    """The auxiliary images that a shadow federation leaves to its attacker."""
    _, attackers = _halves(view, seed)
    return Batch(view.auxiliary.images[attackers], view.auxiliary.labels[attackers])


def _halves(view: ServerView, seed: int) -> tuple[Tensor, Tensor]:
    """Indices of the auxiliary images: (the shadow clients', the shadow attacker's)."""
    classes = view.auxiliary.labels
    order = torch.randperm(len(classes), generator=stream(seed, "attacker", "shadow", "halves")).to(classes.device)
    clients, attackers = order.tensor_split(2)
    return clients, attackers


def noise_levels(noise: Tensor, count: int, seed: int, name: str = "shadow") -> Tensor:
    """So many variances, each that of one of some victims' features [V]: an image that the classifier knows well shows little."""
    rng = stream(seed, "attacker", name, "noise levels")
    return noise[torch.randint(len(noise), (count,), generator=rng).to(noise.device)]


def noised(h: Tensor, variance: Tensor, seed: int, name: str = "shadow") -> Tensor:
    """Features [n, c, s, s] with Gaussian noise, each image's of its own variance [n]."""
    rng = stream(seed, "attacker", name, "noise")
    return h + variance.to(h).sqrt().view(-1, 1, 1, 1) * torch.randn(h.shape, generator=rng, dtype=torch.float64).to(h)


def shows_features(noise: Tensor, features: Tensor) -> Tensor:
    """Which uploads [V] bool show whose extractor made them: their noise is small beside what features [n, c, s, s] vary by."""
    return noise < SMALL * features.var(0).mean().to(noise)


def dropped(view: ServerView, h: Tensor, seed: int) -> Features:
    """Features [n, c, s, s] as gradients show them that lack some: as many as dropout leaves, else as of the victims are known."""
    assert view.known is not None, "the victims' gradients show which are known"
    share = 1 - view.model.dropout if view.model.dropout else float(view.known.double().mean())
    rng = stream(seed, "attacker", "shadow", "dropout")
    mask = torch.empty(h.shape).bernoulli_(share, generator=rng).bool().to(h.device)
    return closed_form.imputed(h, mask)


def _clients_of(
    view: ServerView,
    shares: list[Batch],
    rounds: int,
    local: LocalTraining,
    seed: int,
    start: Params | None,
    pull: Pull | None,
) -> dict[str, Tensor]:
    """Private extractors that the broadcast classifier understands, each trained on a share of the images."""
    names, trained = ("attacker", "shadow"), dict[str, Tensor]()
    for k, share in enumerate(shares):
        begun = start or view.model.net("extractor").init(stream(seed, *names, "client", k))[0]
        begun = {n: t.to(view.auxiliary.images) for n, t in begun.items()}
        rng = stream(seed, *names, "client", k, "batches")
        align = pull.align if pull else None
        end, _ = surrogate_training.train_client(view.model, begun, view.classifier, share, rounds, local, rng, align)
        trained |= {f"extractor{k}/{n}": t for n, t in end.items()}
    return trained


def _take(tensors: dict[str, Tensor], prefix: str) -> Params:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
