"""Whole attacks by fitted extractors: clients together and alone, rounds that the chain cannot begin at, uploads it cannot read."""

from dataclasses import replace

import pytest
import torch

from attacks.calibrated import Calibrated
from attacks.chained import Chained
from attacks.common import no_information
from attacks.features import disaggregation
from privbench.types import Knowledge, KnownImages, Networks, Outcome
from tests.builders.small_artifacts import artifact, images_like_the_victims, networks, smooth_images

CLASSIFIER = ("classifier",)
BUFFERS = {"extractor": {}, "classifier": {}}
X = smooth_images(20)
Y = torch.arange(20) % 10
VICTIMS, KEPT = (torch.arange(0, 2), torch.arange(2, 4)), (torch.arange(4, 12), torch.arange(12, 20))
INITIAL = networks()
BRIEF = {"steps": 6, "fit_steps": 6, "refine_steps": 4}


def trained(client, size=0.02):
    """The initial networks after a client's training: each number moved by its share of its tensor's spread."""
    rng = torch.Generator().manual_seed(client)
    moved = {name: t + size * t.std() * torch.randn(t.shape, generator=rng) for name, t in INITIAL["extractor"].items()}
    return INITIAL | {"extractor": moved}


def uploads(rows, extractors, *, round_=0, **options):
    """Gradients of the classifier, the rows [n] of each client through its own extractor."""
    each = [
        artifact(X[of_client], Y[of_client], CLASSIFIER, weights=params, **options)
        for of_client, params in zip(rows, extractors, strict=True)
    ]
    of_parts = [one.gradients["classifier"] for one in each]
    gradients = {name: torch.cat([of[name] for of in of_parts]) for name in of_parts[0]}
    labels = None if each[0].labels is None else torch.cat([one.labels for one in each])
    client = torch.cat([torch.full((one.victims,), k) for k, one in enumerate(each)])
    return replace(
        each[0], gradients={"classifier": gradients}, labels=labels, client=client, round=round_, uploads={}, upload_buffers={}
    )  # fmt: skip


def knowledge(extractors):
    """What both attackers know of two clients: eight images each with their labels, and what was kept of rounds 0 and 1."""
    rows = KEPT[: len(extractors)]
    seen = uploads(rows, extractors, round_=1, known=True)
    return Knowledge(
        images_like_the_victims(),
        initial=Networks(INITIAL, BUFFERS),
        known=KnownImages(X[torch.cat(rows)][:, None], seen, 0.0),
        rounds=(uploads(rows, [INITIAL] * len(rows)), uploads(rows, extractors, round_=1)),
    )


def of_client(known, k):
    """The same of one client alone."""
    rows = torch.nonzero(known.known.seen.client == k)[:, 0]
    one = KnownImages(known.known.images[rows], known.known.seen.select(rows), 0.0)
    return replace(known, known=one, rounds=tuple(each.select(rows) for each in known.rounds))


@pytest.mark.parametrize("attack", [Calibrated(**BRIEF), Chained(find_steps=6, again_steps=4, **BRIEF)])
def test_clients_attacked_together_end_as_alone(attack):
    extractors = [trained(1), trained(2)]
    seen, known = uploads(VICTIMS, extractors, round_=1), knowledge(extractors)
    together = attack.reconstruct(seen, known, 0)
    for k, rows in enumerate(VICTIMS):
        alone = attack.reconstruct(seen.select(rows), of_client(known, k), 0)
        torch.testing.assert_close(together.images[rows], alone.images, atol=1e-4, rtol=1e-4)
        assert torch.equal(together.outcome[rows], alone.outcome)


def chained(rounds, initial=INITIAL, **settings):
    """(victims' mean squared error, reconstruction, class means) of one client whose uploads of some rounds were kept."""
    extractors = [trained(1)]
    known = replace(knowledge(extractors), initial=Networks(initial, BUFFERS), rounds=tuple(rounds))
    seen = uploads(VICTIMS[:1], extractors, round_=rounds[-1].round)
    end = Chained(find_steps=40, **settings).reconstruct(seen, known, 0)
    error = float((end.images[:, 0] - X[VICTIMS[0]]).square().mean())
    return error, end, no_information.class_mean(seen, known).images


ENOUGH = {"steps": 40, "fit_steps": 100, "refine_steps": 20}


@pytest.mark.parametrize("last", [False, True])
def test_kept_uploads_that_cannot_be_read_end_at_the_class_means_if_they_are_of_the_attacked_round(last):
    rounds = list(knowledge([trained(1)]).rounds)
    # Noisy gradients of two images each cannot be separated.
    batches = uploads(KEPT[:1], [trained(1)], batch_size=2, noise=1e-3)
    rounds = [rounds[0], replace(batches, round=1)] if last else [batches, rounds[1]]
    _, end, floor = chained(rounds, **BRIEF)
    assert (end.outcome == (Outcome.GAVE_UP if last else Outcome.RECONSTRUCTED)).all()
    assert torch.allclose(end.images, floor.to(end.images)) == last


def test_a_chain_that_begins_after_round_0_trusts_the_initial_extractor_by_no_more_than_the_spread_of_features():
    """The same uploads of clients who never trained: said to be of round 0 they show the images, said to be of round 1 little."""
    rows = VICTIMS[0]

    def error(number):
        known = replace(knowledge([INITIAL]), rounds=(uploads(KEPT[:1], [INITIAL], round_=number),))
        end = Chained(find_steps=40, **ENOUGH).reconstruct(uploads((rows,), [INITIAL], round_=number), known, 0)
        return float((end.images[:, 0] - X[rows]).square().mean())

    seen = uploads((rows,), [INITIAL])
    floor = float((no_information.class_mean(seen, knowledge([INITIAL])).images[:, 0] - X[rows]).square().mean())
    assert 10 * error(0) < error(1) < 1.1 * floor


def test_known_images_of_batches_are_paired_with_the_features_that_are_theirs():
    """Nothing in a batch's gradient says which feature is which image's, two of one label among them."""
    labels, rows = torch.tensor([0, 3, 3, 5, 1, 2, 7, 4]), KEPT[0]
    extractor, seen = trained(1), uploads(VICTIMS[:1], [trained(1)])
    batches = artifact(X[rows], labels, CLASSIFIER, batch_size=4, known=True, weights=extractor)
    batches = replace(batches, uploads={}, upload_buffers={})
    known = replace(knowledge([extractor]), known=KnownImages(X[rows].view(2, 4, 1, 32, 32), batches, 0.0))
    end = Calibrated(**ENOUGH).reconstruct(seen, known, 0)
    floor = no_information.class_mean(seen, known).images
    error, worst = (float((images[:, 0] - X[VICTIMS[0]]).square().mean()) for images in (end.images, floor))
    assert error < 0.1 * worst


@pytest.mark.parametrize("size", [1, 2])
def test_it_is_known_which_upload_is_of_which_known_images_and_no_order_within_an_upload(size):
    rows, extractor = KEPT[0], trained(1)
    seen, shown = uploads(VICTIMS[:1], [extractor], round_=1), X[rows].view(-1, size, 1, 32, 32)
    of_them = uploads((rows,), [extractor], round_=1, batch_size=size, known=True)

    def end(images, labels):
        known = KnownImages(images, replace(of_them, labels=labels), 0.0)
        return Calibrated(**BRIEF).reconstruct(seen, replace(knowledge([extractor]), known=known), 0).images

    right = end(shown, of_them.labels)
    torch.testing.assert_close(end(shown.flip(1), of_them.labels.flip(1)), right, atol=1e-3, rtol=0)
    assert (end(shown.roll(1, 0), of_them.labels.roll(1, 0)) - right).abs().max() > 0.02


def separates_all_but(monkeypatch, number):
    """Separation of batches fails for one of them; its features are then noise, as a failed search leaves them."""
    separate = disaggregation.disaggregate

    def failing(seen, *arguments):
        batches = separate(seen, *arguments)
        residual, h = batches.residual.clone(), batches.h.clone()
        residual[number], h[number] = 1.0, torch.rand(h[number].shape, generator=torch.Generator().manual_seed(0)).to(h)
        return batches._replace(residual=residual, h=h)

    monkeypatch.setattr(disaggregation, "disaggregate", failing)


@pytest.mark.parametrize("attack", [Calibrated(**ENOUGH), Chained(find_steps=40, **ENOUGH)])
def test_one_batch_that_cannot_be_separated_costs_its_own_images_alone(attack, monkeypatch):
    rows, extractor = KEPT[0], trained(1)
    seen = uploads(VICTIMS[:1], [extractor], round_=1)

    def batches(params, round_):
        return uploads((rows,), [params], round_=round_, batch_size=2, known=True)

    def error():
        shown = KnownImages(X[rows].view(4, 2, 1, 32, 32), batches(extractor, 1), 0.0)
        known = replace(knowledge([extractor]), known=shown, rounds=(batches(INITIAL, 0), batches(extractor, 1)))
        end = attack.reconstruct(seen, known, 0)
        assert (end.outcome == Outcome.RECONSTRUCTED).all()
        return float((end.images[:, 0] - X[VICTIMS[0]]).square().mean())

    floor = no_information.class_mean(seen, knowledge([extractor])).images
    separates_all_but(monkeypatch, 1)
    assert error() < 0.3 * float((floor[:, 0] - X[VICTIMS[0]]).square().mean())
