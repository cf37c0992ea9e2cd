"""The concentrated classifier: where a gradient's energy goes, what noise leaves of it, and when it is sent."""

from dataclasses import replace

import pytest
import torch

from attacks.common import closed_form
from attacks.crafted import classifiers, concentrated, dry_run
from attacks.crafted.classifiers import HONEST
from attacks.crafted.readout import CONCENTRATED_CLAIM
from attacks.imprint import Imprint
from attacks.posterior import Posterior
from defenses.clip import Clip
from defenses.dp_adam import DPAdam
from defenses.dp_fedavg import DPFedAvg
from defenses.dp_sgd import DPSGD
from defenses.gaussian import Gaussian
from defenses.none import NoDefense
from defenses.prune import Prune
from privbench import written_defense
from privbench.scoring.image_scores import psnr_db
from privbench.types import Batch, ExpectedUpload, Knowledge, LocalSteps, Networks
from tests.builders.small_artifacts import MODEL, artifact, images_like_the_victims, logits, networks, smooth_images

ADAM = {"lr": 3e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0}
SGD = {"kind": "sgd", "lr": 0.1, "weight_decay": 0.0}
BOTH, C = ("extractor", "classifier"), ("classifier",)
KNOWN = Knowledge(images_like_the_victims(100))
CLIP = 0.3
X, Y = smooth_images(8), torch.tensor([3, 0, 9, 1, 5, 7, 2, 4])


def broadcast(parts=BOTH):
    return Networks({p: networks()[p] for p in parts}, {p: {} for p in parts})


def concentrated_networks(clip=CLIP):
    whole = networks()
    return whole | {"classifier": concentrated.crafted(whole["classifier"], clip)}


def uploads(defense, crafted=True, x=X, y=Y):
    """What single images give under a defence, at the concentrated classifier or at the honest one."""
    params = concentrated_networks() if crafted else networks()
    victims = Batch(x[:, None], y[:, None])
    return dry_run.observed(MODEL, Networks(params, {}), victims, ExpectedUpload(1, defense), 0)


def privately(seen):
    """The same where the extractor stays with the clients."""
    shared = {name: {"classifier": getattr(seen, name)["classifier"]} for name in ("gradients", "weights", "buffers")}
    return replace(seen, **shared)


def features(x=X):
    return logits(networks(), x)[1].double()


# What is crafted.


@pytest.mark.parametrize("clip", [0.3, 3.0, 100.0])
def test_nine_tenths_of_the_energy_are_in_the_row_of_the_features_and_the_norm_is_above_the_clip(clip):
    each = artifact(X, Y, weights=concentrated_networks(clip)).gradients
    energy = {f"{p}/{n}": t.double().square().flatten(1).sum(1) for p, net in each.items() for n, t in net.items()}
    whole = torch.stack([*energy.values()]).sum(0)
    assert (whole.sqrt() > clip).all()
    rows = each["classifier"]["fc1.weight"]
    assert (rows[:, 1:] == 0).all()
    assert all((t == 0).all() for t in each["extractor"].values())
    assert (energy["classifier/fc1.weight"] / whole > 0.85).all()
    # Shares are those that are asked for where features have the mean square that is guessed.
    guessed = features().square().flatten(1).mean(1) / concentrated.SQUARE
    scale = (energy["classifier/fc2.weight"] + energy["classifier/fc2.bias"]) / energy["classifier/fc1.weight"]
    torch.testing.assert_close(scale * guessed, torch.full_like(scale, concentrated.SCALE_SHARE), rtol=1e-3, atol=0)


def test_every_class_is_as_probable_whatever_the_image():
    z, _ = logits(concentrated_networks(), X)
    torch.testing.assert_close(z.softmax(1), torch.full_like(z, 0.1), rtol=1e-4, atol=0)


def test_it_is_known_from_other_crafted_classifiers_and_from_honest_ones():
    assert concentrated.is_concentrated(concentrated_networks()["classifier"])
    assert not concentrated.is_concentrated(networks()["classifier"])
    for noise in (0.0, 0.1):
        for batch_size in (1, 2):
            other = classifiers.made_for(MODEL, broadcast(), KNOWN.auxiliary, batch_size, noise).params["classifier"]
            assert not concentrated.is_concentrated(other)
    assert classifiers.is_crafted(concentrated_networks()["classifier"])


# What comes back.


@pytest.mark.parametrize(
    "defense", [NoDefense(), Clip(CLIP), Clip(1e3)], ids=["none", "clip", "clip that does not bind"]
)
def test_without_noise_features_and_labels_are_exact(defense):
    read = concentrated.features_of(uploads(defense))
    assert read.labels.tolist() == Y.tolist()
    assert (read.variance == 0).all()
    # Gradients come in single precision, and the scale is a sum of 168 of their entries.
    torch.testing.assert_close(read.h, features(), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    "defense", [DPSGD(noise=1e-3, clip=CLIP), Gaussian(9e-8, clip=CLIP), Gaussian(1e-6)], ids=lambda d: type(d).__name__
)
def test_noisy_features_have_the_variance_that_is_said(defense):
    x = smooth_images(40)
    read = concentrated.features_of(uploads(defense, x=x, y=torch.arange(40) % 10))
    assert read.labels.tolist() == [*range(10)] * 4
    z = (read.h - features(x)).flatten(1) / read.variance.sqrt()[:, None]
    # 40 times 400 numbers: the mean square of normal ones has the standard deviation sqrt(2 / 16,000) = 0.011. The scale's own
    # error, common to an image's features, adds SCALE_SHARE and a fifth of that.
    assert 0.95 < float(z.square().mean()) < 1.1


def test_under_noise_that_hides_all_features_stay_small_and_say_so():
    read = concentrated.features_of(uploads(DPSGD(noise=10.0, clip=CLIP)))
    assert read.h.isfinite().all()
    assert (read.variance > features().var()).all()
    assert (read.variance <= concentrated.MOST_VARIANCE * (1 + 1e-9)).all()
    shown = concentrated.of_features(uploads(DPSGD(noise=10.0, clip=CLIP)), read)
    torch.testing.assert_close(closed_form.with_noise(shown)[1], read.variance)


def test_attacks_on_features_see_them_with_their_variance():
    seen = uploads(DPSGD(noise=3e-4, clip=CLIP))
    read = concentrated.features_of(seen)
    shown = concentrated.of_features(seen, read)
    features, variance = closed_form.with_noise(shown)
    torch.testing.assert_close(features.h, read.h)
    torch.testing.assert_close(variance, read.variance)


def test_features_of_a_private_extractor_are_a_hundred_times_as_exact_as_an_honest_servers():
    defense = DPSGD(noise=3e-4, clip=CLIP)
    crafted, honest = (privately(uploads(defense, crafted)) for crafted in (True, False))
    errors = [
        float((h - features()).square().mean())
        for h in (concentrated.features_of(crafted).h, closed_form.closed_form(honest))
    ]
    assert errors[0] < errors[1] / 100


def test_images_come_back_where_an_honest_server_reads_none():
    """Through E that is broadcast; nine tenths of an untrained network's gradient are in its last layer."""
    defense = DPSGD(noise=3e-4, clip=CLIP)
    honest = Posterior(direction_steps=50, steps=100, starts=3).reconstruct(uploads(defense, crafted=False), KNOWN, 0)
    answer = Imprint(exact_steps=60).reconstruct(uploads(defense), replace(KNOWN, broadcast=broadcast()), 0)
    passive, active = (psnr_db(one.images[:, 0].float(), X) for one in (honest, answer))
    assert float((active - passive).mean()) > 8
    assert (active > passive).all()
    assert answer.labels[:, 0].tolist() == Y.tolist()
    assert answer.notes == (CONCENTRATED_CLAIM,)


# When it is sent.


def expecting(defense, parts=BOTH, batch_size=1, **others):
    known = replace(KNOWN, expected=ExpectedUpload(batch_size, defense, **others))
    return Imprint(rehearsal_images=0).craft(MODEL, broadcast(parts), known, 0)


@pytest.mark.parametrize("parts", [BOTH, C], ids=["E broadcast", "E private"])
@pytest.mark.parametrize(
    "defense",
    [
        DPSGD(noise=0.1, clip=CLIP),
        DPAdam(noise=0.1, clip=CLIP),
        DPFedAvg(noise=0.1, clip=CLIP),
        Gaussian(0.1, clip=CLIP),
    ],
    ids=lambda defense: type(defense).__name__,
)
def test_it_is_sent_where_the_gradient_of_one_image_is_clipped_and_noised(defense, parts):
    assert concentrated.is_concentrated(expecting(defense, parts).params["classifier"])


@pytest.mark.parametrize(
    ("defense", "others"),
    [
        (Prune(0.1), {}),
        (DPSGD(noise=0.1, clip=CLIP), {"batch_size": 2}),
        (Gaussian(0.1, clip=CLIP), {"local": LocalSteps(2, SGD)}),
        (Gaussian(0.1, clip=CLIP), {"local": LocalSteps(1, ADAM)}),
        (written_defense.create("clip:0.3+prune:0.1", "a test"), {}),
    ],
    ids=["prune", "batch", "two steps", "adam", "pruned"],
)
@pytest.mark.parametrize("parts", [BOTH, C], ids=["E broadcast", "E private"])
def test_elsewhere_it_is_not(defense, others, parts):
    expected = ExpectedUpload(**{"batch_size": 1, "defense": defense} | others)
    made = dry_run.candidates(
        MODEL, broadcast(parts), KNOWN.auxiliary, expected, dry_run.gradient_noise_std(expected, 0)
    )
    assert not any(concentrated.is_concentrated(one.params["classifier"]) for one in made)


@pytest.mark.parametrize(
    "defense", [NoDefense(), Clip(CLIP), Gaussian(0.1)], ids=lambda defense: type(defense).__name__
)
@pytest.mark.parametrize(
    "others", [{}, {"wire": "fp16"}, {"local": LocalSteps(1, SGD)}], ids=["gradient", "fp16", "one step"]
)
def test_the_dry_run_tries_it_beside_others_where_nothing_is_both_clipped_and_noised(defense, others):
    expected = ExpectedUpload(1, defense, **others)
    made = dry_run.candidates(MODEL, broadcast(), KNOWN.auxiliary, expected, dry_run.gradient_noise_std(expected, 0))
    assert [concentrated.is_concentrated(one.params["classifier"]) for one in made] == [False, True]


@pytest.mark.parametrize(
    ("defense", "rate"),
    [(Clip(CLIP), 0.01), (DPFedAvg(noise=0.02, clip=CLIP), 0.01), (DPSGD(noise=0.02, clip=CLIP), 1.0)],
)
def test_a_clip_of_the_message_is_of_a_step_as_long_as_the_rate_says(defense, rate):
    local = LocalSteps(1, {"kind": "sgd", "lr": 0.01, "weight_decay": 0.0})
    of_gradient, of_update = (
        concentrated.least_norm(ExpectedUpload(1, defense, local=one), 0.0) for one in (None, local)
    )
    assert of_update == pytest.approx(of_gradient / rate)
    # The step is then longer than the clip allows, by as much as a gradient would be.
    head = concentrated.crafted(networks()["classifier"], of_update)
    seen = dry_run.observed(
        MODEL,
        Networks(networks() | {"classifier": head}, {}),
        Batch(X[:, None], Y[:, None]),
        ExpectedUpload(1, NoDefense()),
        0,
    )
    norm = sum(t.double().square().flatten(1).sum(1) for net in seen.gradients.values() for t in net.values()).sqrt()
    sent = norm * (0.01 if rate != 1 else 1)
    assert bool((sent > CLIP).all())


def test_private_extractors_get_it_under_any_noise():
    """An honest classifier gives the same features without noise, and nobody could try which is better."""
    assert concentrated.is_concentrated(expecting(Gaussian(0.1), C).params["classifier"])
    assert expecting(NoDefense(), C) == expecting(Clip(CLIP), C) == HONEST


def test_the_dry_run_sends_it_where_it_brings_back_more(monkeypatch):
    monkeypatch.setattr("attacks.imprint.Posterior", lambda: Posterior(steps=30, direction_steps=20, starts=3))
    known = replace(KNOWN, expected=ExpectedUpload(1, DPSGD(noise=1e-3, clip=CLIP)))
    sent = Imprint(rehearsal_images=4, exact_steps=40).craft(MODEL, broadcast(), known, 0)
    assert concentrated.is_concentrated(sent.params["classifier"])


def test_a_smaller_clip_needs_no_larger_weights():
    small, large = (concentrated.crafted(networks()["classifier"], clip) for clip in (0.01, 1.0))
    assert all(torch.equal(small[name], large[name]) for name in small)
