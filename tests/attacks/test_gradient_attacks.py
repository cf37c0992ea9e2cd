"""The published gradient attacks: their equations, what each claims, and one line for a wrong choice."""

import pytest
import torch

from attacks.common import adam, gradient_distance, labels, lbfgs, priors, problem
from attacks.common.batched import each_of
from attacks.dlg import DLG
from attacks.feature_statistics import FeatureStatistics
from attacks.features import signal_decoder
from attacks.features.gradient_signals import Signals, noised, simulated
from attacks.features.untrained_generator import draw, weight_shapes
from attacks.floors import Grey
from attacks.learned_inverse import LearnedInverse
from attacks.matching import Matching
from attacks.unsplit import UnSplit
from privbench.errors import UserError
from privbench.registry import create
from privbench.scoring.image_scores import psnr_db
from privbench.seeds import stream
from privbench.types import Batch, Knowledge
from tests.builders.small_artifacts import artifact, smooth_images

NOTHING = Knowledge()
Y = torch.tensor([3, 0, 9])


def psnr(attack, shown, x, know=NOTHING):
    return psnr_db(attack.reconstruct(shown, know, 0).images[:, 0], x)


def test_signed_adam_in_a_box_equals_torchs_adam_on_signs():
    target = torch.tensor([[0.9, -0.4, 0.1]], dtype=torch.float64)
    x = torch.full((1, 3), 0.5, dtype=torch.float64)
    end = adam.minimise(
        lambda x, data: (x - data["t"]).square().sum(), x, {"t": target}, steps=16, lr=0.1, sign=True, box=(0.0, 1.0)
    )
    leaf = x.clone().requires_grad_()
    optimiser = torch.optim.Adam([leaf], lr=0.1)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [6, 10, 14], gamma=0.1)
    losses, points = [], []
    for _ in range(17):
        optimiser.zero_grad()
        loss = (leaf - target).square().sum()
        loss.backward()
        losses.append(loss.item())
        points.append(leaf.detach().clone())
        leaf.grad.sign_()
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            leaf.clamp_(0, 1)
    best = min(range(17), key=losses.__getitem__)
    torch.testing.assert_close(end.x, points[best], atol=1e-6, rtol=0)
    assert end.loss.item() == pytest.approx(losses[best], rel=1e-5)


def test_absolute_variation_by_hand():
    x = torch.tensor([[[[0.0, 1.0], [0.0, 3.0]]]])
    assert priors.absolute_variation(x).item() == pytest.approx((1 + 3) / 2 + (0 + 2) / 2)


def test_dlg_on_soft_labels_finds_the_label():
    reconstruction = DLG(steps=60, labels="descended").reconstruct(artifact(smooth_images(3), Y), NOTHING, 0)
    assert reconstruction.labels[:, 0].tolist() == Y.tolist()


@pytest.mark.parametrize("restarts", [1, 2])
def test_dlg_starts_from_uniform_noise_by_default(restarts):
    shown = artifact(smooth_images(2), Y[:2])
    posed, shape = problem.make(shown, 7), (1, 1, 32, 32)
    noise = [
        torch.rand(shape, generator=stream(7, "attacker", "start", v, r), dtype=torch.float64)
        for v in range(2)
        for r in range(restarts)
    ]

    def objective(x, data):
        products = gradient_distance.gradient_products(
            posed, x, data["labels"], {name: data[name] for name in posed.observed}
        )
        return gradient_distance.squared_distance(products)

    end = lbfgs.minimise(objective, torch.stack(noise), problem.data(posed, restarts), steps=8)
    reconstruction = DLG(steps=8, restarts=restarts).reconstruct(shown, NOTHING, 7)
    losses = end.loss.view(2, restarts)
    assert torch.equal(reconstruction.loss, losses.min(1).values)
    assert torch.equal(reconstruction.images, end.x.view(2, restarts, *shape)[torch.arange(2), losses.argmin(1)])
    assert torch.equal(
        reconstruction.images, DLG(steps=8, restarts=restarts, start="noise").reconstruct(shown, NOTHING, 7).images
    )


@pytest.mark.parametrize("labels", ["recovered", "descended"])
def test_dlg_from_grey_ends_lower_and_nearer_than_from_noise(labels):
    x = smooth_images(2)
    shown = artifact(x, Y[:2])
    grey, noise = (
        DLG(steps=80, labels=labels, start=start).reconstruct(shown, NOTHING, 0) for start in ("grey", "noise")
    )
    assert (grey.loss < noise.loss).all(), (grey.loss, noise.loss)
    assert (grey.loss < 1e-4 * grey.trace[:, 0]).all()
    gain = psnr_db(grey.images[:, 0], x) - psnr_db(noise.images[:, 0], x)
    assert gain.min() > 3, gain


@pytest.mark.parametrize("optimiser", ["lbfgs", "adam"])
def test_eq_7_and_eq_8_begin_and_descend_as_their_settings_say(optimiser):
    shown = artifact(smooth_images(2), Y[:2], parts=("classifier",))
    normal = [
        torch.randn((1, 1, 32, 32), generator=stream(7, "attacker", "start", v, 0), dtype=torch.float64)
        for v in range(2)
    ]
    for attack in (DLG, FeatureStatistics):
        begin = attack(steps=1, lr=1e-12, optimiser="adam", start="normal").reconstruct(shown, NOTHING, 7).images
        assert torch.allclose(begin, torch.stack(normal), atol=1e-11, rtol=0), attack
        ends = [attack(steps=8, optimiser=optimiser, start=start).reconstruct(shown, NOTHING, 7)
                for start in ("noise", "normal", "grey")]  # fmt: skip
        assert len({float(end.trace[0, 0]) for end in ends}) == 3
        assert all((end.loss < end.trace[:, 0]).all() for end in ends)
        other = attack(steps=8, optimiser="adam" if optimiser == "lbfgs" else "lbfgs").reconstruct(shown, NOTHING, 7)
        assert not torch.equal(other.images, ends[0].images)
        assert torch.equal(other.trace[:, 0], ends[0].trace[:, 0])


def test_dlg_from_grey_has_one_start_unless_labels_descend_too():
    shown = artifact(smooth_images(2), Y[:2])
    once, twice = (DLG(steps=6, restarts=r, start="grey").reconstruct(shown, NOTHING, 0) for r in (1, 2))
    assert torch.equal(once.images, twice.images)
    assert once.gradient_evaluations == twice.gradient_evaluations
    # Where labels descend too, every restart draws its own, the first of three as the only one. Compared where the descent
    # begins: steps of L-BFGS magnify the rounding that differs with the number of problems descended together.
    one, three = (
        DLG(steps=0, restarts=r, start="grey", labels="descended").reconstruct(shown, NOTHING, 0) for r in (1, 3)
    )
    assert three.gradient_evaluations == 3 * one.gradient_evaluations
    first = three.restart == 0
    assert not first.all()
    torch.testing.assert_close(three.loss[first], one.loss[first], rtol=1e-9, atol=0)
    assert (three.loss[~first] < 0.99 * one.loss[~first]).all()


def test_matching_beats_plain_dlg_from_grey_and_from_noise_and_its_own_older_form():
    x = smooth_images(2)
    shown = artifact(x, Y[:2])
    best = psnr(Matching(steps=75), shown, x)
    for start in ("grey", "noise"):
        assert (best > psnr(DLG(steps=75, start=start), shown, x) + 1).all(), start
    layered = Matching(steps=75, scale="layer", weight=3e-4)
    assert (best > psnr(layered, shown, x) + 1).all()


def test_every_step_of_matching_contributes_on_an_untrained_network():
    x = smooth_images(2)
    shown, plain = artifact(x, Y[:2]), {"steps": 75, "weight": 0.0, "start": "random"}
    steps = [
        Matching(**plain, precision="single"),
        Matching(**plain),
        Matching(steps=75, start="random"),
        Matching(steps=75),
    ]
    means = [float(psnr(attack, shown, x).mean()) for attack in steps]
    assert means[0] < means[1] < means[2] < means[3], means


def test_grnns_generator_draws_images_of_any_side_in_range():
    shapes = weight_shapes(3)
    w = 0.05 * torch.randn(sum(a * b for a, b in shapes), generator=torch.Generator().manual_seed(0))
    for side in (32, 40):
        images = draw(w, torch.randn(2, 64, generator=torch.Generator().manual_seed(1)), shapes, side)
        assert images.shape == (2, 3, side, side)
        assert 0 < images.min() < images.max() < 1
    both = each_of(lambda w, z: draw(w, z, shapes, 32))(w.expand(2, -1), torch.ones(2, 1, 64))
    torch.testing.assert_close(both[0], both[1])


def test_unsplit_explains_the_features_better_than_a_fixed_surrogate_does():
    shown = artifact(smooth_images(2), Y[:2], ("classifier",))
    losses = [
        UnSplit(turns=4, steps=15, stand_in_weight=0.1, extractor_lr=lr).reconstruct(shown, NOTHING, 0).loss
        for lr in (1e-9, 3e-3)
    ]
    assert (losses[1] < 0.5 * losses[0]).all()


def test_noised_signals_are_distributed_as_those_of_noisy_gradients():
    rng = torch.Generator().manual_seed(0)
    d, h = torch.randn(1, 30, generator=rng), torch.rand(1, 8, generator=rng)
    variance, many = 0.01, 4000
    shown = problem.make(artifact(smooth_images(1), Y[:1], noise=variance), 0, torch.float32)
    clean = Signals(d.expand(many, -1), h.expand(many, -1), torch.zeros(many, 2), torch.full((many, 10), 0.1))
    made = noised(clean, shown, False, rng)
    noise = variance**0.5
    bias = d + noise * torch.randn(many, 30, generator=rng)
    rows = d[..., None] * h[:, None] + noise * torch.randn(many, 30, 8, generator=rng)
    direct = (bias[..., None] * rows).sum(1) / bias.square().sum(1, keepdim=True)
    torch.testing.assert_close(made.h.mean(0), direct.mean(0), atol=5e-3, rtol=0)
    torch.testing.assert_close(made.h.std(0), direct.std(0), rtol=0.08, atol=0)
    assert made.e.std() == pytest.approx(noise, rel=0.05)


def test_simulated_labels_are_distributed_as_those_recovered_from_noisy_gradients():
    """Of one image 800 times: the error p - e_y of the label as the server estimates it, mean and spread of each class's."""
    many, variance = 800, 1e-3
    x, y = smooth_images(1), Y[:1]
    seen = artifact(x.expand(many, -1, -1, -1), y.expand(many), noise=variance)
    recovered = labels.probabilities(seen)[:, 0]
    posed = problem.make(seen.select(torch.arange(1)), 0, torch.float32)
    clean = simulated(posed, Batch(x, y), False, torch.Generator())
    made = noised(Signals(*(t.expand(many, -1) for t in clean)), posed, False, torch.Generator().manual_seed(1)).y
    # Probabilities of 800 draws: their means differ by sampling alone, 4 standard errors of a difference.
    error = 4 * (recovered.var(0) / many + made.double().var(0) / many).sqrt() + 1e-6
    assert ((made.double().mean(0) - recovered.mean(0)).abs() < error).all(), (made.mean(0), recovered.mean(0))


def test_a_learned_inverse_knows_the_label_where_the_gradient_says_nothing():
    """Planted: noise that drowns everything, classes that are each of one brightness, and labels that are declared known."""
    y = torch.arange(200) // 20
    flat = (0.05 + 0.1 * y)[:, None, None, None].expand(200, 1, 32, 32).contiguous()
    seen = artifact(flat[::20], y[::20], noise=1e3, known=True)
    reconstruction = LearnedInverse(epochs=60).reconstruct(seen, Knowledge(auxiliary=Batch(flat, y)), 0)
    level = reconstruction.images.mean((1, 2, 3, 4))
    error = (level - flat[::20].mean((1, 2, 3))).abs().mean()
    assert error < 0.1, level  # 0.25 without the label: then one brightness answers for all


def test_a_learned_inverse_beats_grey_under_noise_and_is_trained_once(tmp_path, monkeypatch):
    images = smooth_images(303)
    x, other = images[:3], Batch(images[3:], torch.arange(300) % 10)
    shown = artifact(x, Y, noise=1e-8)
    attack, know = LearnedInverse(epochs=20), Knowledge(auxiliary=other, cache=tmp_path)
    reconstruction = attack.reconstruct(shown, know, 0)
    assert psnr_db(reconstruction.images[:, 0], x).mean() > psnr(Grey(), shown, x).mean() + 1
    assert (reconstruction.trace[:, -1] < reconstruction.trace[:, 0]).all()
    monkeypatch.setattr(signal_decoder, "train", None)
    assert torch.equal(reconstruction.images, attack.reconstruct(shown, know, 0).images)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: create(DLG, {"labels": "guessed"}),
            "labels should be 'recovered' or 'descended', but 'guessed' was given; its default is 'recovered'",
        ),
        (
            lambda: create(DLG, {"start": "white"}),
            "start should be 'noise', 'normal' or 'grey', but 'white' was given; its default is 'noise'",
        ),
        (lambda: create(Matching, {"start": "white"}), "start should be 'random' or 'grey', but 'white' was given"),
        (lambda: create(Matching, {"scale": "x"}), "scale should be 'total', 'layer' or 'none', but 'x' was given"),
        (
            lambda: LearnedInverse().reconstruct(artifact(smooth_images(2), Y[:2], batch_size=2), NOTHING, 0),
            "one image per gradient off a classifier that begins with a linear layer; try --attack staged",
        ),
        (
            lambda: UnSplit().reconstruct(artifact(smooth_images(2), Y[:2], batch_size=2, noise=0.1), NOTHING, 0),
            "an exact gradient",
        ),
    ],
)
def test_a_wrong_choice_gets_one_line(make, message):
    with pytest.raises(UserError, match=message) as error:
        make()
    assert "\n" not in str(error.value)
