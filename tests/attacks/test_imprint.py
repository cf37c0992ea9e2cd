"""Imprint: what it crafts, when it prefers to be honest, and what comes back of one image and of batches."""

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F

from attacks.aligned_surrogate import AlignedSurrogate
from attacks.common import no_information, problem, updates
from attacks.crafted import classifiers, concentrated, dry_run, gradient_bins
from attacks.crafted.classifiers import HONEST
from attacks.crafted.readout import CLAIM, OTHERWISE_CLAIM, SENT_HONESTLY
from attacks.features import per_image
from attacks.features.separation.row_spaces import Disaggregated
from attacks.floors import ClassMean
from attacks.imprint import Imprint, passive
from attacks.posterior import Posterior
from attacks.staged import Staged
from defenses.clip import Clip
from defenses.common import clipping
from defenses.dp_adam import DPAdam
from defenses.dp_sgd import DPSGD
from defenses.gaussian import Gaussian
from defenses.none import NoDefense
from defenses.prune import Prune
from privbench import written_defense
from privbench.defense import Defense
from privbench.errors import UserError
from privbench.networks.model import Model
from privbench.observation import wire
from privbench.scoring.image_scores import psnr_db
from privbench.types import Batch, ExpectedUpload, Knowledge, LocalSteps, Networks, Outcome, no_progress
from tests.builders.small_artifacts import (
    MODEL,
    artifact,
    central_network,
    images_like_the_victims,
    logits,
    networks,
    smooth_images,
    update,
)

Y = torch.tensor([3, 2, 9])
# Of an error of half a grey level of 255, below which two pictures are the same one.
SAME_PIXELS_DB = 54.15
KNOWN = Knowledge(images_like_the_victims(100))
BRIEF = {"steps": 5, "members": 1, "train_steps": 5, "shadow_rounds": 1, "shadow_steps": 5, "align_steps": 5}


@dataclass(frozen=True)
class Clipped(Defense):
    """A user's defence: the norm of what is sent of each part is at most 1, and then noise."""

    variance: float = 1e-3

    @property
    def places(self):
        return frozenset({"message"})

    def message(self, tensors, rng):
        bounded = {part: clipping.clipped({part: params}, 1.0)[part] for part, params in tensors.items()}
        return Gaussian(self.variance).message(bounded, rng)

    def describe(self):
        return {"name": "clipped", "variance": self.variance}


def defense_of(noise):
    return Gaussian(noise) if noise else NoDefense()


def sent(params=None, batch_size=1, noise=0.0, known=KNOWN, parts=("extractor", "classifier")):
    """The networks with the classifier crafted in place of the honest one, without a dry run."""
    params = params or networks()
    broadcast = Networks({p: params[p] for p in parts}, {p: {} for p in parts})
    expected = ExpectedUpload(batch_size, defense_of(noise))
    return params | Imprint(rehearsal_images=0).craft(MODEL, broadcast, replace(known, expected=expected), 0).params


def observed(count=3, batch_size=1, noise=0.0, parts=("extractor", "classifier")):
    """(artifact at the crafted classifier, images)."""
    x, y = smooth_images(count), torch.arange(count) % 10 if count > 3 else Y
    params = sent(batch_size=batch_size, noise=noise, parts=parts)
    return artifact(x, y, parts, weights=params, batch_size=batch_size, noise=noise), x


def psnr(reconstruction, x):
    return psnr_db(reconstruction.images.float().flatten(0, 1), x).mean()


def honest_networks(parts=("extractor", "classifier")):
    return Networks({p: networks()[p] for p in parts}, {p: {} for p in parts})


# What is crafted.


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_a_crafted_classifier_looks_along_one_direction_and_is_saturated_under_noise_alone(batch_size, noise):
    made = sent(batch_size=batch_size, noise=noise)["classifier"]
    assert classifiers.is_crafted(made)
    assert classifiers.is_saturated(made) == bool(noise)
    assert not classifiers.is_crafted(networks()["classifier"])
    assert {n: t.shape for n, t in made.items()} == {n: t.shape for n, t in networks()["classifier"].items()}
    assert all(t.isfinite().all() for t in made.values())


def test_under_a_quiet_classifier_every_class_leaves_a_gradient_of_its_own_size():
    made, h = sent()["classifier"], logits(networks(), smooth_images(1))[1].double()
    seen = artifact(smooth_images(2), Y[:2], weights=sent())
    sizes = torch.stack([per_image.gradient_of(seen, h[0], y)["fc1.bias"].sum() for y in torch.arange(10)])
    gaps = (sizes[:, None] - sizes).abs() + torch.eye(10)
    assert sizes.abs().min() > 0.1 * sizes.abs().max()
    assert gaps.min() > 0.01 * sizes.abs().max()
    assert made["fc1.weight"].dtype == torch.float32


def test_under_a_saturated_classifier_one_of_two_classes_wins_by_the_side_of_the_level():
    params = sent(noise=1e-3)
    winners = logits(params, KNOWN.auxiliary.images)[0].argmax(1)
    below, above = classifiers.winners_of(params["classifier"])
    assert set(winners.tolist()) == {below, above}
    t = logits(params, KNOWN.auxiliary.images)[1].flatten(1) @ params["classifier"]["fc1.weight"][0]
    assert t[winners == below].max() < t[winners == above].min()


def test_the_winning_classes_are_those_best_separated_and_each_wins_where_the_other_lies():
    t = torch.cat([torch.linspace(-1, 1, 40), torch.linspace(4, 5, 20), torch.linspace(-6, -5, 20)]).double()
    y = torch.cat([torch.arange(40) % 2, torch.full((20,), 2), torch.full((20,), 3)])
    apart, winners = classifiers.best_separated(t, y, 5)
    assert (winners.below, winners.above) == (2, 3)  # class 2 wins below the level, and its images lie above
    assert -5 < winners.level < 4
    assert apart > classifiers.best_separated(t[:60], y[:60], 5)[0]


def test_fishers_discriminant_of_two_gaussians_is_the_whitened_difference_of_their_means():
    rng = torch.Generator().manual_seed(0)
    scale = torch.tensor([1.0, 0.1, 3.0], dtype=torch.float64)
    y = torch.arange(20_000) % 2
    h = scale * torch.randn(20_000, 3, generator=rng, dtype=torch.float64) + y[:, None] * torch.tensor([1.0, 0.2, 1.0])
    within = torch.stack([(h[y == c] - h[y == c].mean(0)).T @ (h[y == c] - h[y == c].mean(0)) for c in (0, 1)]).sum(0)
    within = within / len(h)
    by_hand = torch.linalg.solve(
        within + classifiers.SHRUNK * within.diagonal().mean() * torch.eye(3), h[y == 0].mean(0) - h[y == 1].mean(0)
    )
    discriminant = classifiers.between_classes(h, y, 2)[0]
    torch.testing.assert_close(discriminant, by_hand / by_hand.norm(), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("place", [0.02, 0.3, 0.97])
@pytest.mark.parametrize("batch_size", [2, 1])
def test_whatever_a_private_extractor_makes_of_an_image_falls_on_a_level(place, batch_size):
    """Features anywhere in [0, 1]; a single image is sent a crafted classifier under noise alone."""
    params = sent(batch_size=batch_size, noise=0.0 if batch_size > 1 else 1e-3, parts=("classifier",))
    w = {n: t.clone().requires_grad_() for n, t in params["classifier"].items()}
    h = (place + 0.03 * torch.rand(MODEL.feature_shape, generator=torch.Generator().manual_seed(0)))[None]
    F.cross_entropy(MODEL.classifier.apply(w, {}, h, train=True)[0], Y[:1]).backward()
    features = (
        w["fc1.weight"].grad.double().T @ w["fc1.bias"].grad.double() / w["fc1.bias"].grad.double().square().sum()
    )
    torch.testing.assert_close(features, h.flatten().double(), atol=1e-4, rtol=1e-4)


def test_few_auxiliary_images_of_few_classes_are_enough_to_craft():
    few = Knowledge(Batch(*(t[:1] for t in KNOWN.auxiliary)))
    for noise in (0.0, 1e-3):
        assert all(t.isfinite().all() for t in sent(noise=noise, known=few)["classifier"].values())


def test_a_classifier_that_begins_with_convolutions_is_refused():
    with pytest.raises(UserError, match="begins with a linear layer"):
        Imprint().craft(
            Model("resnet18", 1, 10), honest_networks(), replace(KNOWN, expected=ExpectedUpload(1, NoDefense())), 0
        )


# The choice.


def choice(defense, monkeypatch, batch_size=1):
    """What is sent after a dry run on four images."""
    monkeypatch.setattr("attacks.imprint.Posterior", lambda: Posterior(steps=20, direction_steps=10, starts=3))
    monkeypatch.setattr("attacks.imprint.Staged", lambda **_: Staged(steps=20, feature_steps=20, peel_levels=2))
    known = replace(KNOWN, expected=ExpectedUpload(batch_size, defense))
    return Imprint(rehearsal_images=4, feature_steps=20).craft(MODEL, honest_networks(), known, 0)


def test_the_dry_run_prefers_a_crafted_classifier_where_noise_can_be_drowned(monkeypatch):
    made = choice(Gaussian(1e-3), monkeypatch)
    assert classifiers.is_saturated(made.params["classifier"])


def test_the_dry_run_prefers_to_be_honest_where_a_defence_clips(monkeypatch):
    assert choice(Clipped(), monkeypatch) == HONEST


@pytest.mark.parametrize(
    ("defense", "honest"),
    [(Clip(0.3), None), (DPSGD(noise=3e-4, clip=0.3), False), (Prune(0.01), True)],
    ids=["clip", "dp-sgd", "prune"],
)
def test_under_a_known_defence_the_dry_run_sends_what_brings_back_more_of_the_victims(defense, honest, monkeypatch):
    """Three victims that the dry run did not see; clipping alone is taken back, so that either classifier serves."""
    chosen = choice(defense, monkeypatch)
    if honest is None:
        # Either classifier is as good, so that rounding may choose.
        honest = chosen == HONEST
    assert (chosen == HONEST) == honest
    attack, victims = Imprint(rehearsal_images=0), Batch(smooth_images(3)[:, None], Y[:, None])
    expected, scores = ExpectedUpload(1, defense), {}
    for crafts in (True, False):
        made = attack.craft(MODEL, honest_networks(), replace(KNOWN, expected=expected), 0) if crafts else HONEST
        seen = dry_run.observed(MODEL, Networks(networks() | made.params, {}), victims, expected, 0)
        read = attack.readout.read if crafts else passive(seen).reconstruct
        scores[not crafts] = dry_run.psnr_db(
            lambda seen, read=read: read(seen, KNOWN, 0, no_progress), seen, victims.images
        )
    assert scores[honest] > scores[not honest] - 1


@pytest.mark.parametrize(("noise", "batch_size", "crafts"), [(0.1, 1, True), (0.1, 2, False), (0.0, 2, True)])
def test_nothing_is_crafted_of_batches_of_private_extractors_that_are_clipped_and_noised(noise, batch_size, crafts):
    known = replace(KNOWN, expected=ExpectedUpload(batch_size, DPSGD(noise=noise, clip=0.3)))
    made = Imprint(rehearsal_images=0).craft(MODEL, honest_networks(("classifier",)), known, 0)
    assert (made != HONEST) == crafts


class Listening:
    """A passive attack that notes which images it is given."""

    def __init__(self, given):
        self.given = given

    def reconstruct(self, seen, known, *_):
        self.given.append(known.auxiliary)


@pytest.mark.parametrize("defense", [DPSGD(noise=1.0, clip=0.3), DPAdam(noise=1.0, clip=0.3)], ids=["sgd", "adam"])
def test_a_batch_in_a_whole_update_of_clipped_and_noised_steps_is_read(defense):
    """The noise is far from negligible beside a clipped gradient, so that no rank counts images."""
    local = LocalSteps(1, {"kind": "sgd", "lr": 0.1, "weight_decay": 0.0})
    known = replace(KNOWN, expected=ExpectedUpload(4, defense, local=local))
    attack = Imprint(rehearsal_images=0, feature_steps=5)
    made = attack.craft(MODEL, honest_networks(), known, 0)
    victims = Batch(smooth_images(4)[None], torch.tensor([[3, 2, 9, 1]]))
    seen = dry_run.observed(MODEL, Networks(networks() | made.params, {}), victims, known.expected, 0)
    assert bool(attack.readout.read(seen, KNOWN, 0, no_progress).images.isfinite().all())


def test_a_batch_of_clipped_and_noised_gradients_is_read_and_not_taken_for_one_of_more_images():
    expected = ExpectedUpload(3, DPSGD(noise=1.0, clip=0.3))
    made = classifiers.made_for(MODEL, honest_networks(), KNOWN.auxiliary, 3, dry_run.gradient_noise_std(expected, 0))
    assert classifiers.is_saturated(made.params["classifier"])
    victims = Batch(smooth_images(3)[None], Y[None])
    seen = dry_run.observed(MODEL, Networks(networks() | made.params, {}), victims, expected, 0)
    answer = Imprint(**BRIEF, feature_steps=5).readout.read(seen, KNOWN, 0, no_progress)
    assert answer.images.shape == (1, 3, 1, 32, 32)
    assert bool(answer.images.isfinite().all())


def test_the_dry_run_is_on_images_that_nothing_was_crafted_of_and_no_prior_was_learned_from(monkeypatch):
    looked_at, attacked_from = [], []
    monkeypatch.setattr(
        "attacks.crafted.dry_run.observed",
        lambda m, broadcast, clients, *_: looked_at.append(clients.images),
    )
    monkeypatch.setattr("attacks.crafted.dry_run.updates.nearly_gradients", lambda seen: seen)
    monkeypatch.setattr("attacks.crafted.dry_run.psnr_db", lambda attack, seen, images: float(attack(seen) is None))
    monkeypatch.setattr(
        "attacks.crafted.readout.Readout.read", lambda s, seen, known, *_: attacked_from.append(known.auxiliary)
    )
    monkeypatch.setattr("attacks.imprint.passive", lambda seen: Listening(attacked_from))
    monkeypatch.setattr(
        "attacks.crafted.dry_run.no_information.class_mean", lambda seen, known: attacked_from.append(known.auxiliary)
    )
    Imprint().craft(MODEL, honest_networks(), replace(KNOWN, expected=ExpectedUpload(2, NoDefense())), 0)
    # The honest uploads are attacked twice: by the passive attack, and by class means.
    assert (len(looked_at), len(attacked_from)) == (2, 3)
    assert looked_at[0].shape == (6, 2, 1, 32, 32)  # twelve images
    assert torch.equal(*looked_at)
    for one in looked_at[0].flatten(0, 1):
        for known in attacked_from:
            assert len(known.labels) == 50
            assert not (known.images == one).flatten(1).all(1).any()


def test_gradients_of_the_dry_run_are_those_of_clients():
    x, y = smooth_images(4), torch.tensor([1, 2, 3, 4])
    clients = Batch(x.unflatten(0, (2, 2)), y.view(2, 2))
    seen = dry_run.observed(MODEL, honest_networks(), clients, ExpectedUpload(2, NoDefense()), 0)
    for part, net in artifact(x, y, batch_size=2).gradients.items():
        for name, t in net.items():
            torch.testing.assert_close(seen.gradients[part][name], t)
    noisy = dry_run.observed(MODEL, honest_networks(), clients, ExpectedUpload(2, Gaussian(0.25)), 0)
    gap = noisy.gradients["classifier"]["fc1.weight"] - seen.gradients["classifier"]["fc1.weight"]
    assert gap.std().item() == pytest.approx(0.5, rel=0.02)
    assert noisy.defense == Gaussian(0.25).describe()


def test_noise_is_measured_on_zeros():
    assert dry_run.noise_std(NoDefense(), 0) == 0
    assert dry_run.noise_std(Gaussian(0.04), 0) == pytest.approx(0.2, rel=0.05)
    assert dry_run.noise_std(Clipped(0.04), 0) == pytest.approx(0.2, rel=0.05)


def test_of_one_image_of_a_private_extractor_nothing_is_crafted():
    known = replace(KNOWN, expected=ExpectedUpload(1, NoDefense()))
    assert Imprint().craft(MODEL, honest_networks(("classifier",)), known, 0) == HONEST


@pytest.mark.parametrize("parts", [("extractor", "classifier"), ("classifier",)])
@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_an_honest_server_does_not_apply_and_ends_at_the_class_means(noise, parts):
    seen = artifact(smooth_images(3), Y, parts, noise=noise)
    reconstruction = Imprint().reconstruct(seen, replace(KNOWN, broadcast=honest_networks(parts)), 0)
    assert reconstruction.outcome.tolist() == [Outcome.NOT_APPLICABLE] * 3
    assert reconstruction.notes == (SENT_HONESTLY,)
    assert torch.equal(reconstruction.images, ClassMean().reconstruct(seen, KNOWN, 0).images)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_networks_of_a_training_that_diverged_are_honest_ones(batch_size):
    lost = {p: {n: torch.full_like(t, torch.nan) for n, t in net.items()} for p, net in networks().items()}
    seen = artifact(smooth_images(4), torch.tensor([3, 2, 9, 0]), weights=lost, batch_size=batch_size)
    known = replace(KNOWN, broadcast=Networks(lost, {"extractor": {}, "classifier": {}}))
    assert (Imprint().reconstruct(seen, known, 0).outcome == Outcome.NOT_APPLICABLE).all()
    with pytest.raises(UserError, match="got an honest one"):
        Imprint().reconstruct(seen, KNOWN, 0)


def test_the_class_means_of_an_honest_server_have_the_labels_that_adam_shows():
    """The same as the floor of class means, whose labels are those of the biases that rose."""
    local = LocalSteps(3, {"lr": 0.003, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0})
    seen = update(smooth_images(4), torch.tensor([0, 3, 7, 7]), local, batch_size=4)
    ended = Imprint().reconstruct(seen, replace(KNOWN, broadcast=honest_networks()), 0)
    floor = ClassMean().reconstruct(seen, KNOWN, 0)
    assert ended.labels.tolist() == floor.labels.tolist() == [[0, 3, 7, 7]]
    assert torch.equal(ended.images, floor.images)


def test_under_noise_a_crafted_classifier_has_to_beat_an_attack_that_weighs_it():
    seen = [artifact(smooth_images(1), Y[:1], noise=noise) for noise in (0.0, 1e-3)]
    assert [type(passive(each)) for each in seen] == [Staged, Posterior]


def test_an_honest_classifier_that_is_not_known_to_be_its_own_choice_is_refused():
    seen = artifact(smooth_images(3), Y)
    other = Networks(networks(seed=1), {"extractor": {}, "classifier": {}})
    for known in (KNOWN, replace(KNOWN, broadcast=other)):
        with pytest.raises(UserError, match="but these clients got an honest one"):
            Imprint().reconstruct(seen, known, 0)


# What comes back.


def test_one_image_comes_back_as_from_an_honest_classifier():
    seen, x = observed()
    honest = Staged().reconstruct(artifact(x, Y), Knowledge(), 0)
    # Both return the same picture; how far above SAME_PIXELS_DB they end is rounding.
    assert psnr(Imprint().reconstruct(seen, KNOWN, 0), x) > min(SAME_PIXELS_DB, psnr(honest, x) - 1)
    assert psnr(honest, x) > 30


@pytest.mark.parametrize("noise", [1e-3, 10.0])
def test_a_saturated_classifier_raises_gradients_above_the_noise(noise):
    seen, x = observed(noise=noise)
    reconstruction = Imprint().reconstruct(seen, KNOWN, 0)
    assert psnr(reconstruction, x) > 30
    assert torch.equal(reconstruction.labels[:, 0], Y)


def test_of_the_class_that_wins_nothing_is_left_but_the_mean_of_both_that_can():
    params = sent(noise=1e-3)
    x = smooth_images(3)
    won = logits(params, x)[0].argmax(1)
    y = torch.stack([won[0], (won[1] + 1) % 10, (won[2] + 1) % 10])
    seen = artifact(x, y, weights=params, noise=1e-3)
    reconstruction = Imprint().reconstruct(seen, KNOWN, 0)
    images, classes = KNOWN.auxiliary
    either = sum(classes == c for c in classifiers.winners_of(params["classifier"])).bool()
    torch.testing.assert_close(reconstruction.images[0, 0].float(), images[either].mean(0))
    assert psnr_db(reconstruction.images[1:, 0].float(), x[1:]).min() > 25
    assert reconstruction.trace[0, 1:].isnan().all()


def test_private_extractors_under_noise_are_attacked_by_features_without_it():
    seen, x = observed(noise=0.1, parts=("classifier",))
    read = concentrated.features_of(seen)
    assert (read.variance < concentrated.NEGLIGIBLE).all()
    # Of 1,200 normal numbers none is likely to be six standard deviations away.
    assert ((read.h - logits(networks(), x)[1]).abs() < 6 * read.variance.sqrt()[:, None, None, None]).all()
    reconstruction = Imprint(**BRIEF).reconstruct(seen, replace(KNOWN, broadcast=honest_networks(("classifier",))), 0)
    passive = AlignedSurrogate(**BRIEF).reconstruct(artifact(x, Y, ("classifier",), known=True), KNOWN, 0)
    torch.testing.assert_close(reconstruction.images, passive.images, atol=1e-2, rtol=1e-2)


def test_without_the_honest_classifier_private_extractors_leave_the_class_means():
    seen, _ = observed(noise=1e-3, parts=("classifier",))
    reconstruction = Imprint(**BRIEF).reconstruct(seen, KNOWN, 0)
    known = replace(seen, labels=reconstruction.labels)
    assert torch.equal(reconstruction.images.float(), ClassMean().reconstruct(known, KNOWN, 0).images)


def test_batches_under_noise_come_back_as_without_it():
    """Twelve images at once, whose classes are not those that win."""
    x = smooth_images(12)
    ends = []
    for noise in (0.0, 1e-3):
        params = sent(batch_size=12, noise=noise, known=Knowledge(images_like_the_victims(200)))
        a, b = classifiers.winners_of(params["classifier"]) if noise else (0, 1)
        y = torch.tensor([c for c in range(10) if c not in (a, b)] * 2)[:12]
        seen = artifact(x, y, weights=params, batch_size=12, noise=noise)
        features = gradient_bins.features_of(replace(seen, defense={"name": "none"}))
        ends.append((features.row != gradient_bins.NONE).sum())
        apart = torch.cdist(features.h[0].flatten(1), logits(params, x)[1].double().flatten(1)).min(1).values
        assert (apart < 1e-2).sum() >= 6
    assert ends[0] == ends[1]


@pytest.mark.parametrize("form", ["float32", "bf16"])
def test_batches_under_noise_are_read_in_their_number_format(form):
    """The noise is drowned in both; the rounding stays, and is no sign of a larger batch."""
    params, x = sent(batch_size=4, noise=0.1), smooth_images(4)
    taken = classifiers.winners_of(params["classifier"])
    y = torch.tensor([c for c in range(10) if c not in taken][:4])
    seen = artifact(x, y, weights=params, batch_size=4, noise=0.1)
    rounded = replace(
        seen, gradients=wire.rounded(seen.gradients, form), defense=wire.described(Gaussian(0.1).describe(), form)
    )
    ended = Imprint(feature_steps=60).reconstruct(rounded, KNOWN, 0)
    gap = torch.cdist(ended.images[0].flatten(1).float(), x.flatten(1))
    scores = psnr_db(ended.images[0][gap.argmin(0)].float(), x)
    floor = psnr_db(KNOWN.auxiliary.images.mean(0).expand_as(x), x)
    assert (scores > floor + 3).sum() >= 2, (scores, floor)


# Batches of a private extractor.


def digits_in_batches(size=2, count=12):
    """(artifact of batches of digits at a private extractor, its features [V, B, n], labels, honest networks, what is known)."""
    params, test, known = central_network(400, 0)
    x, y = (t[:count] for t in test)
    honest = Networks({"classifier": params["classifier"]}, {"classifier": {}})
    made = params | sent(params, size, known=Knowledge(known), parts=("classifier",))
    seen = replace(
        artifact(x, y, ("classifier",), batch_size=size, weights=made), uploads={}, upload_buffers={}, round=2
    )
    h = logits(params, x)[1].double().flatten(1).unflatten(0, (-1, size))
    return seen, h, y.view(-1, size), honest, Knowledge(known, broadcast=honest)


def test_rows_hold_features_and_labels_of_single_images_of_a_private_extractor():
    seen, h, y, _, _ = digits_in_batches()
    features = gradient_bins.features_of(seen)
    labels = gradient_bins.labels_of(seen, features)
    alone = labels != gradient_bins.NONE
    assert alone.float().mean() > 0.7
    gap = torch.cdist(features.h.flatten(2), h)
    assert gap.min(2).values[alone].max() < 1e-2 * h.flatten(0, 1).norm(dim=1).mean()
    assert torch.equal(labels[alone], y.gather(1, gap.argmin(2))[alone])


@pytest.mark.parametrize("several", [False, True], ids=["one message", "rows of one client"])
@pytest.mark.parametrize("share", [2.0, 0.5, 0.01], ids=["not clipped", "clipped", "far"])
def test_rows_hold_labels_where_a_clip_has_shortened_the_message(share, several):
    """By the last bias, or, as rows of one of several clients have it, by the rows alone.

    At least three of eight images have a row of their own in every batch. Three rows may not tell by how much they are short.
    """
    seen, h, y, _, _ = digits_in_batches(8, 32)
    norms = torch.stack([t.flatten(1).square().sum(1) for t in seen.gradients["classifier"].values()]).sum(0).sqrt()
    bound = share * float(norms.max() if share > 1 else norms.min())
    each = [
        clipping.clipped({"classifier": {n: t[v] for n, t in seen.gradients["classifier"].items()}}, bound)[
            "classifier"
        ]
        for v in range(seen.victims)
    ]
    defense = Clip(bound).describe()
    if several:
        defense = written_defense.create(f"clip:{bound}+secure-aggregation", "update").describe()
    gradients = {"classifier": {n: torch.stack([one[n] for one in each]) for n in each[0]}}
    clipped = replace(seen, gradients=gradients, defense=defense)
    features = gradient_bins.features_of(clipped)
    labels = gradient_bins.labels_of(clipped, features)
    alone = labels != gradient_bins.NONE
    assert int((alone.sum(1) >= 3).sum()) >= 4 - several
    gap = torch.cdist(features.h.flatten(2), h)
    assert torch.equal(labels[alone], y.gather(1, gap.argmin(2))[alone])


def test_every_image_with_a_row_of_its_own_is_a_victim_of_its_own():
    seen, _, y, honest, known = digits_in_batches()
    reconstruction = Imprint(**BRIEF).reconstruct(seen, known, 0)
    rows = gradient_bins.features_of(seen)
    labels = gradient_bins.labels_of(seen, rows)
    assert torch.equal(reconstruction.labels.sort(1).values, y.sort(1).values)
    # At an honest classifier the same features and labels would be attacked so:
    plain = replace(seen, weights={"classifier": honest.params["classifier"]})
    each = per_image.singles(plain, Disaggregated(rows.h, reconstruction.labels, labels[:, 0], 0))
    alone = torch.nonzero((labels != gradient_bins.NONE).flatten())[:, 0]
    passive = AlignedSurrogate(**BRIEF).reconstruct(each.select(alone), known, 0)
    torch.testing.assert_close(reconstruction.images.flatten(0, 1)[alone], passive.images[:, 0], atol=1e-4, rtol=1e-4)


def test_images_without_a_row_of_their_own_end_at_the_class_means(monkeypatch):
    seen, _, _, _, known = digits_in_batches()
    monkeypatch.setattr(
        "attacks.crafted.gradient_bins.labels_of", lambda seen, features: torch.full_like(features.row, -1)
    )
    reconstruction = Imprint(**BRIEF).reconstruct(seen, known, 0)
    means = ClassMean().reconstruct(seen, known, 0)
    assert torch.equal(reconstruction.images, means.images)
    assert reconstruction.trace.shape[1] == 1


def test_a_batch_larger_than_declared_is_refused():
    seen, _ = observed(6, batch_size=6)
    with pytest.raises(UserError, match="batch size 2"):
        Imprint().reconstruct(replace(seen, batch_size=2), KNOWN, 0)
    assert problem.make(seen, 0).labels.shape == (1, 6)


# What of it survives the wire.


@pytest.mark.parametrize("noise", [0.0, 1e-3])
@pytest.mark.parametrize(("batch_size", "parts"), [(1, ("extractor", "classifier")), (2, ("classifier",))])
def test_what_a_crafted_classifier_brought_back_says_that_it_holds_for_such_gradients_alone(batch_size, parts, noise):
    seen, _ = observed(4, batch_size=batch_size, noise=noise, parts=parts)
    attack = Imprint(**BRIEF, feature_steps=5)
    assert attack.reconstruct(seen, KNOWN, 0).notes == (CLAIM,)
    for limit in ("single-precision", "one step", "nobody clips", "nothing else", "imprint-on-the-wire.md"):
        assert limit in CLAIM


@pytest.mark.parametrize("done", [{"defense": Clip(1.0).describe()}, {"defense": {"name": "rounded", "wire": "fp16"}}])
def test_of_clipped_and_rounded_uploads_no_note_says_that_nobody_clips(done, monkeypatch):
    monkeypatch.setattr("attacks.crafted.readout.Readout.read", lambda s, seen, *_: no_information.grey(seen))
    seen = replace(observed()[0], **done)
    assert Imprint().reconstruct(seen, KNOWN, 0).notes == (OTHERWISE_CLAIM,)


ADAM = LocalSteps(1, {"lr": 3e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0})
SGD = LocalSteps(1, {"kind": "sgd", "lr": 0.1, "weight_decay": 0.0})


def in_format(seen, form):
    return replace(seen, gradients=wire.rounded(seen.gradients, form), defense=wire.described(seen.defense, form))


def test_in_half_precision_a_saturated_gradient_overflows_and_every_victim_is_a_failure():
    seen, _ = observed(noise=1e-3)
    size = torch.cat([g.flatten() for net in seen.gradients.values() for g in net.values()]).square().mean().sqrt()
    assert size > torch.finfo(torch.float16).max
    reconstruction = Imprint().reconstruct(in_format(seen, "fp16"), KNOWN, 0)
    assert (reconstruction.images == 0.5).all()
    assert reconstruction.loss.isnan().all()


def test_a_server_that_knows_of_half_precision_sends_what_it_holds_under_noise(monkeypatch):
    monkeypatch.setattr("attacks.imprint.Posterior", lambda: Posterior(steps=20, direction_steps=10, starts=3))
    x, y = smooth_images(23)[3:], torch.arange(20) % 10
    known = replace(Knowledge(Batch(x, y)), expected=ExpectedUpload(1, Gaussian(1e-3), "fp16"))
    made = Imprint(rehearsal_images=2).craft(MODEL, honest_networks(), known, 0)
    assert concentrated.is_concentrated(made.params["classifier"])
    seen = in_format(artifact(smooth_images(3), Y, weights=networks() | made.params, noise=1e-3), "fp16")
    assert psnr(Imprint().reconstruct(seen, KNOWN, 0), smooth_images(3)) > 25


def test_uploads_of_the_dry_run_are_in_the_format_that_clients_send():
    clients = Batch(smooth_images(2)[:, None], torch.tensor([[1], [2]]))
    plain, sent_ = (dry_run.observed(MODEL, honest_networks(), clients, ExpectedUpload(1, NoDefense(), form), 0)
                    for form in ("float32", "bf16"))  # fmt: skip
    for part, net in wire.rounded(plain.gradients, "bf16").items():
        for name, t in net.items():
            assert torch.equal(t, sent_.gradients[part][name])
    assert sent_.defense["wire"] == "bf16"


def test_a_step_of_sgd_in_the_dry_run_is_its_gradient_and_one_of_adam_is_no_longer_than_its_rate():
    clients = Batch(smooth_images(2)[:, None], torch.tensor([[1], [2]]))
    whole = Networks(sent(noise=1e-3), {"extractor": {}, "classifier": {}})
    gradient, step = (dry_run.observed(MODEL, honest_networks(), clients, ExpectedUpload(1, NoDefense(), local=local), 0)
                      for local in (None, SGD))  # fmt: skip
    for part, net in gradient.gradients.items():
        for name, t in net.items():
            # A step is the difference of two weights of size 0.1: rounded at 1e-8, and divided by the rate.
            torch.testing.assert_close(updates.nearly_gradients(step).gradients[part][name], t, rtol=0, atol=1e-6)
    x = clients.images[0].double()
    for broadcast in (honest_networks(), whole):
        double = {p: {n: t.double() for n, t in net.items()} for p, net in broadcast.params.items()}
        y = (logits(double, x)[0].argmax(1) + 1) % 10  # a class that has won leaves no gradient
        whole, drawn = Networks(double, broadcast.buffers), torch.Generator()
        change = dry_run.local_change(MODEL, whole, Batch(x, y), ADAM, NoDefense(), drawn)
        # Weights of 1e13, as the last layer of a saturated classifier has, are stored to within the very step.
        stored = [t[double[p][n].abs() < 1e6].abs() for p, net in change.items() for n, t in net.items()]
        largest = float(torch.cat(stored).max())
        assert largest == pytest.approx(3e-3, rel=1e-3)


def test_whole_updates_by_one_step_of_sgd_are_read_as_gradients(monkeypatch):
    # On these images and two other triples it ends 7 to 16 dB above the floor.
    monkeypatch.setattr("attacks.imprint.Staged", lambda **_: Staged(steps=60, feature_steps=60, peel_levels=2))
    x, params = smooth_images(3), sent()
    seen = update(x, Y, SGD, params)
    reconstruction = Imprint().reconstruct(seen, KNOWN, 0)
    floor = ClassMean().reconstruct(artifact(x, Y, weights=params), KNOWN, 0)
    assert psnr(reconstruction, x) > psnr(floor, x) + 5
    assert torch.equal(reconstruction.labels[:, 0], Y)


@pytest.mark.parametrize("parts", [(), ("extractor",)])
def test_without_a_classifier_on_the_wire_it_says_so_in_one_line(parts):
    broadcast = Networks({p: networks()[p] for p in parts}, {p: {} for p in parts})
    with pytest.raises(UserError, match="does not broadcast; try --attack") as error:
        Imprint().craft(MODEL, broadcast, replace(KNOWN, expected=ExpectedUpload(1, NoDefense())), 0)
    assert "\n" not in str(error.value)
