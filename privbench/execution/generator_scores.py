"""Scores of a run's generators of images: precision and recall, and who recognises the images that they were trained on.

Made once for all cells of the run from the snapshot of its best round, and kept beside its training. A client's generator is
scored against the client's images; the server's against those of every client. Test images are those of all clients of the same
domain. Nobody trains on them. Nor does the feature space, which comes from the validation images (scoring/real_features.py).

Precision and recall compare generated images with as many test images, and are made for the labels of these. For reference,
training images are compared with the same test images. Members are training images of the client, non-members test images, of every
class as many as members: a class may be easier than another. Where a data set's test images are unlike its training images,
non-members are training images that were held out of all clients. Generators of other clients of the domain calibrate: up to
REFERENCES where samples are searched, one where z is descended on, over fewer images.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from privbench.data.partition import take
from privbench.data.readers.resize import pixels
from privbench.errors import UserError
from privbench.execution import at_round
from privbench.methods.base import Method
from privbench.networks.model import Model
from privbench.records.entries import Curve, Generators, GeneratorScores, Manifolds, Membership, RealImages
from privbench.records.store import Store
from privbench.registry import create, resolve
from privbench.scoring import generator_attacks, manifolds, membership, real_features
from privbench.scoring.generator_attacks import Generate, Samples
from privbench.seeds import stream
from privbench.spec import TrainSpec
from privbench.system import files
from privbench.tensors import Params
from privbench.training import checkpoint, harness, history, training_files
from privbench.training.engine.alone import one_thread
from privbench.training.state import Setup, Snapshot
from privbench.types import Batch, Federation, Images

NAMES = ("generator scores",)  # of the random streams
MOST_COMPARED = 2000  # images of either kind of precision and recall
MOST_MEMBERS, MOST_DESCENDED = 1000, 200  # of a client, with as many non-members; those of the white-box attack
REFERENCES = 3
Attack = Literal["black-box", "white-box"]


class Generator(NamedTuple):
    """A generator, and the client whose images it is scored against."""

    holder: Literal["client", "server"]
    client: int
    generate: Generate


class Queries(NamedTuple):
    """Images of which an attacker asks whether they were trained on: members and as many non-members, each of a member's class."""

    members: Batch
    non_members: Batch

    def first(self, pairs: int) -> Queries:
        """So many of either, at most."""
        return Queries(*(Batch(*(t[:pairs] for t in each)) for each in self))

    @property
    def together(self) -> Batch:
        """Members, then non-members."""
        return Batch(*(torch.cat(pair) for pair in zip(*self, strict=True)))


def check(spec: TrainSpec, federation: Federation) -> None:
    """UserError where a run has no generators of images, or nothing to score them against."""
    method: Method = create(resolve("method", spec.method), spec.method_settings)
    if method.networks(spec.backbone).get("gan") != "image":
        raise UserError(f"{spec.method} trains no generator of images, so that there is none to score")
    least = manifolds.NEIGHBOURS + 1
    for k, client in enumerate(federation.clients):
        if min(len(client.train.labels), len(test_images(federation, k).labels)) < least:
            raise UserError(
                f"client {k + 1} has fewer than {least} training or test images to score a generator against"
            )
    if not any(len(client.validation.labels) for client in federation.clients):
        raise UserError("no client has validation images, which give the features that generators are scored in")


def of_run(store: Store, spec: TrainSpec, federation: Federation, samples: int) -> dict[str, Any] | None:
    """The scores of a finished run by so many samples of each generator, as `Generators` writes them; None without samples.

    UserError as `check`.
    """
    if not samples:
        return None
    check(spec, federation)
    path = store.generators(spec, samples)
    round_ = scored_round(checkpoint.history(store.train(spec), spec.id) or [])
    if not files.to_write(path):
        written = files.read_digested(path)
        files.check_identity(path, written, spec=spec.id, round=round_)
        with training_files.reading(path):
            return Generators(**written["generators"]).model_dump()
    setup = harness.prepare(spec, federation, torch.device("cpu"))
    shot = at_round.snapshot(store, spec, round_, federation, "cpu", lambda *_: None)
    scores = scored(setup, harness.snapshot_of(setup, store.train(spec), shot), samples).model_dump()
    files.write_digested(path, {"spec": spec.id, "round": round_, "generators": scores})
    return scores


def scored_round(rounds: Sequence[dict[str, Any]]) -> int:
    """After which round generators are scored: the one with the best validation accuracy, mean over clients."""
    return history.best_round(rounds)


def scored(setup: Setup, shot: Snapshot, samples: int) -> Generators:
    """The scores of all generators of a snapshot."""
    federation, model, seed = setup.federation, setup.model, setup.spec.seed
    with one_thread():
        generators = of_snapshot(model, shot)
        features = real_features.trained_on(
            _batch(_together([c.validation for c in federation.clients]), model), model.classes, seed
        )
        z = torch.randn(samples, model.noise_dim, generator=stream(seed, *NAMES, "samples"))
        labels = torch.arange(samples) % model.classes
        drawn = [generator_attacks.sampled(each.generate, z, labels) for each in generators]
        attacked = [_membership(setup, generators, drawn, i) for i in range(len(generators))]
        compared = [_compared(setup, each, features) for each in generators]
    accuracies = real_accuracies(setup)
    by_client = {each.client: real for each, (_, real) in zip(generators, compared, strict=True)}
    return Generators(
        round=shot.round,
        samples=samples,
        real=[RealImages(accuracy=accuracies[k], manifolds=by_client[k]) for k in range(len(federation.clients))],
        each=[
            GeneratorScores(holder=each.holder, client=each.client, manifolds=coverage, membership=recognised)
            for each, (coverage, _), recognised in zip(generators, compared, attacked, strict=True)
        ],
    )


def of_snapshot(model: Model, shot: Snapshot) -> list[Generator]:
    """Every client's generator, private or as it was sent, and then the server's, if it has one, once for every client."""
    generators = []
    for k, (client, (params, buffers)) in enumerate(zip(shot.clients, shot.uploads, strict=True)):
        networks = client.params | params, client.buffers | buffers
        generators.append(Generator("client", k, _apply(model, *(parts["generator"] for parts in networks))))
    if "generator" in shot.server.params:
        whole = _apply(model, shot.server.params["generator"], shot.server.buffers["generator"])
        generators += [Generator("server", k, whole) for k in range(len(shot.clients))]
    return generators


def _apply(model: Model, params: Params, buffers: Params) -> Generate:
    net = model.net("generator")

    def generate(z: Tensor, labels: Tensor) -> Tensor:
        images: Tensor = net.apply(params, buffers, z, labels, train=False)[0]
        return images

    return generate


def real_accuracies(setup: Setup) -> list[float | None]:
    """Test accuracy of each client's classifier trained on its own real images: the run's schedule, and nothing shared."""
    spec = setup.spec.model_copy(update={"method": "local", "method_settings": {}, "defense": "none"})
    alone = harness.prepare(spec, setup.federation, setup.device)
    state = harness.initial(alone)
    while not harness.finished(state, spec.schedule):
        harness.train_round([alone], [state], "alone")
    if not state.history:
        return [None] * len(setup.federation.clients)
    return [each if math.isfinite(each) else None for each in history.selected_accuracy(state.history)]


def _compared(setup: Setup, generator: Generator, features: real_features.Features) -> tuple[Manifolds, Manifolds]:
    """(of generated images, of the client's training images) against the same test images, equally many of each."""
    k, seed, model = generator.client, setup.spec.seed, setup.model
    training, test = setup.federation.clients[k].train, test_images(setup.federation, k)
    count = min(len(training.labels), len(test.labels), MOST_COMPARED)
    real, also_real = (
        _batch(_drawn(images, count, stream(seed, *NAMES, name, k)), model)
        for images, name in ((test, "compared test"), (training, "compared training"))
    )
    z = torch.randn(count, model.noise_dim, generator=stream(seed, *NAMES, "compared"))
    generated = generator_attacks.sampled(generator.generate, z, real.labels).images
    at = features(real.images)
    return _manifolds(at, features(generated)), _manifolds(at, features(also_real.images))


def _manifolds(real: Tensor, others: Tensor) -> Manifolds:
    precise, recalled = manifolds.coverage(real, others)
    return Manifolds(images=len(others), precise=int(precise.sum()), recalled=int(recalled.sum()))


def _membership(
    setup: Setup, generators: Sequence[Generator], drawn: Sequence[Samples], index: int
) -> list[Membership]:
    """Every attack on one generator; nothing where the client has no class of which there is a test image."""
    generator = generators[index]
    queries = matched(setup, generator.client)
    if not len(queries.members.labels):
        return []
    # The server's generator has seen the images of all clients: there is none to compare it with.
    others = _references(setup.federation, generator.client) if generator.holder == "client" else []
    searched = [generator_attacks.black_box(queries.together, drawn[i]).distances for i in (index, *others)]
    fewer = queries.first(MOST_DESCENDED)
    reached = []
    for i in (index, *others[:1]):
        start = drawn[i].z[generator_attacks.black_box(fewer.together, drawn[i]).sample]
        reached.append(generator_attacks.white_box(generators[i].generate, fewer.together, start))
    attacks: Mapping[Attack, list[Tensor]] = {"black-box": searched, "white-box": reached}
    return [
        _recognised(attack, calibrated, distances)
        for attack, distances in attacks.items()
        for calibrated in ((False, True) if others else (False,))
    ]


def _recognised(attack: Attack, calibrated: bool, distances: Sequence[Tensor]) -> Membership:
    """Of the distances to the attacked generator, and to those that calibrate."""
    target, count = distances[0], len(distances[0]) // 2
    scores = (torch.stack(list(distances[1:])).mean(0) if calibrated else 0) - target
    order = membership.recognition(scores[:count].numpy(), scores[count:].numpy())
    false_positive_rate, true_positive_rate = membership.curve(order)
    roc = Curve(false_positive_rate=false_positive_rate, true_positive_rate=true_positive_rate)
    return Membership(attack=attack, calibrated=calibrated, members=count, non_members=count, roc=roc)


def matched(setup: Setup, client: int) -> Queries:
    """Training images of a client and as many others, pair by pair of one class, in random order."""
    training, others = setup.federation.clients[client].train, non_members(setup.federation, client)
    rng = stream(setup.spec.seed, *NAMES, "members", client)
    chosen = paired(training.labels, others.labels, setup.model.classes, rng)[:, :MOST_MEMBERS]
    return Queries(
        *(_batch(take(images, rows), setup.model) for images, rows in zip((training, others), chosen, strict=True))
    )


def paired(training: Tensor, test: Tensor, classes: int, rng: torch.Generator) -> Tensor:
    """Rows of training and of test images by their labels [n] and [m], pair by pair of one class, in random order: [2, P]."""
    pairs = []
    for label in range(classes):
        each = [(labels == label).nonzero()[:, 0] for labels in (training, test)]
        count = min(map(len, each))
        pairs.append(torch.stack([rows[torch.randperm(len(rows), generator=rng)[:count]] for rows in each]))
    every = torch.cat(pairs, 1)
    return every[:, torch.randperm(every.shape[1], generator=rng)]


def _references(federation: Federation, client: int) -> list[int]:
    """Other clients of the domain, the next ones first."""
    count, domain = len(federation.clients), federation.clients[client].domain
    following = [(client + i) % count for i in range(1, count)]
    return [k for k in following if federation.clients[k].domain == domain][:REFERENCES]


def non_members(federation: Federation, client: int) -> Images:
    """Images that no client trained on, and that differ from a client's training images by nothing else; none where there are none.

    Test images of its domain; where these are unlike training images, those that were held out of all clients.
    """
    if federation.test_alike:
        return test_images(federation, client)
    held_out = federation.public
    return (
        held_out if held_out is not None else take(federation.clients[client].test, torch.zeros(0, dtype=torch.int64))
    )


def test_images(federation: Federation, client: int) -> Images:
    """The test images of all clients of a client's domain."""
    domain = federation.clients[client].domain
    return _together([each.test for each in federation.clients if each.domain == domain])


def _together(sets: Sequence[Images]) -> Images:
    return Images(torch.cat([each.images for each in sets]), torch.cat([each.labels for each in sets]))


def _drawn(images: Images, count: int, rng: torch.Generator) -> Images:
    return take(images, torch.randperm(len(images.labels), generator=rng)[:count])


def _batch(images: Images, model: Model) -> Batch:
    return Batch(pixels(images.images, model.image_size), images.labels)
