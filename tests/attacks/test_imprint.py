"""Imprint: what the crafted layer brings back of one image and of batches, with noise and without, E broadcast and private."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from attacks import case, features, imprint, imprinted_rows
from attacks.aligned_surrogate import AlignedSurrogate
from attacks.floors import ClassMean
from attacks.imprint import Imprint
from attacks.posterior import Posterior
from privbench.score import psnr_db
from privbench.types import Knowledge, Networks
from tests.attacks.cases import MODEL, artifact, images_like_the_victims, logits, networks, smooth_images

Y = torch.tensor([3, 0, 9])
KNOWN = Knowledge(images_like_the_victims(100))
STAND_IN = {"steps": 5, "members": 1, "train_steps": 5, "shadow_rounds": 1, "shadow_steps": 5, "align_steps": 5}


def sent():
    """The initial extractor and the classifier crafted in place of the initial one."""
    own = networks()
    return own | Imprint().craft(MODEL, Networks(own, {"extractor": {}, "classifier": {}}), KNOWN, 0).params


def observed(count=3, **options):
    """(artifact at the crafted classifier, images)."""
    x = smooth_images(count)
    return artifact(x, torch.arange(count) % 10 if count > 3 else Y, own=sent(), **options), x


def psnr(found, x):
    return psnr_db(found.images.float().flatten(0, 1), x).mean()


def test_gentled_gradients_are_those_of_the_gentle_classifier_by_plain_autograd():
    seen, x = observed()
    gentle = imprint.gentled(seen)
    double = {p: {n: t.double() for n, t in net.items()} for p, net in gentle.weights.items()}
    for v in range(3):
        own = {p: {n: t.clone().requires_grad_() for n, t in net.items()} for p, net in double.items()}
        F.cross_entropy(logits(own, x[v : v + 1].double())[0], Y[v : v + 1]).backward()
        for part, net in own.items():
            for name, t in net.items():
                gap = (gentle.gradients[part][name][v] - t.grad).norm() / t.grad.norm()
                assert gap < 1e-3, (part, name, gap)


def test_an_upload_of_zeros_is_gentled_into_finite_numbers():
    seen, _ = observed()
    nothing = {p: {n: torch.zeros_like(t) for n, t in net.items()} for p, net in seen.gradients.items()}
    gentle = imprint.gentled(replace(seen, gradients=nothing))
    assert all(bool(t.isfinite().all()) for net in gentle.gradients.values() for t in net.values())


def test_the_profiled_distance_is_the_least_over_both_amplitudes():
    seen, x = observed()
    own = case.make(seen, 0)
    distance, data = imprint.imprinted(own), {n: t[0] for n, t in own.observed.items()}
    other = x[1:2].double()
    e = {n: t.requires_grad_() for n, t in own.weights["extractor"].items()}
    h = MODEL.net("extractor").apply(e, {}, other, train=True)[0].flatten()
    w = imprint.direction(own.weights["classifier"])
    g = torch.cat([t.flatten() for t in torch.autograd.grad(h @ w, list(e.values()))])[:, None]
    target = torch.cat([data[f"extractor/{n}"].flatten() for n in e])[:, None]
    rows = torch.cat([data["classifier/fc1.bias"][:, None], data["classifier/fc1.weight"]], 1)
    u = torch.cat([torch.ones(1, dtype=torch.float64), h.detach()])[:, None]
    a, d = torch.linalg.lstsq(g, target).solution, torch.linalg.lstsq(u, rows.T).solution
    by_hand = (target - g @ a).square().sum() + (rows.T - u @ d).square().sum()
    assert distance(other, data).item() == pytest.approx(by_hand.item(), rel=1e-6)
    size = target.square().sum() + rows.square().sum()
    assert distance(x[:1].double(), data) < 1e-6 * size
    assert by_hand > 1e-3 * size


def test_one_image_comes_back_as_from_an_honest_classifier():
    seen, x = observed()
    assert psnr(Imprint().reconstruct(seen, KNOWN, 0), x) > 30


def test_under_noise_the_crafted_layer_tells_more_than_an_honest_one():
    seen, x = observed(noise=1e-3)
    found = Imprint(feature_steps=60).reconstruct(seen, KNOWN, 0)
    honest = artifact(x, Y, noise=1e-3)
    passive = Posterior(steps=60, cooling_steps=12).reconstruct(honest, KNOWN, 0)
    floor = psnr(ClassMean().reconstruct(seen, KNOWN, 0), x)
    assert psnr(found, x) > max(floor, psnr(passive, x)) + 1
    assert torch.equal(found.labels[:, 0], Y)


def test_under_hopeless_noise_the_answer_is_the_mean_image():
    for size in (1, 3):
        seen, x = observed(noise=1e8, batch_size=size)
        found = Imprint(feature_steps=20).reconstruct(seen, KNOWN, 0)
        mean = KNOWN.auxiliary.images.mean(0)
        assert (found.images - mean).square().mean() < 0.01
        assert psnr(found, x) > psnr_db(mean.expand_as(x), x).mean() - 1


def test_noisy_rows_give_each_images_features_and_say_how_sure_they_are():
    seen, x = observed(6, batch_size=6)
    biases = seen.gradients["classifier"]["fc1.bias"]
    variance = float((1e-4 * biases.abs().max()) ** 2)
    rng = torch.Generator().manual_seed(0)
    noisy = {
        n: t + variance**0.5 * torch.randn(t.shape, generator=rng) if n.startswith("fc1") else t
        for n, t in seen.gradients["classifier"].items()
    }
    h, error = imprinted_rows.noisy_features_of(
        replace(seen, gradients=seen.gradients | {"classifier": noisy}), variance
    )
    sure = error[0].isfinite()
    assert sure.sum() >= 3
    true = logits(sent(), x)[1].double().flatten(1)
    gaps = torch.cdist(h.flatten(2)[0], true).square().min(1).values / true.shape[1]
    assert (gaps[sure] < 2 * error[0][sure]).float().mean() > 0.7
    assert (h.flatten(2)[0][~sure] == 0).all()


def test_private_extractors_are_attacked_through_the_classifier_an_honest_server_would_have_sent():
    seen, _ = observed(parts=("classifier",))
    honest = Networks({"classifier": networks()["classifier"]}, {"classifier": {}})
    found = Imprint(**STAND_IN).reconstruct(seen, replace(KNOWN, broadcast=honest), 0)
    passive = replace(seen, weights={"classifier": honest.params["classifier"]})
    assert torch.equal(found.images, AlignedSurrogate(**STAND_IN).reconstruct(passive, KNOWN, 0).images)


def test_the_features_of_a_private_extractor_are_those_an_honest_classifier_brings():
    seen, x = observed(parts=("classifier",))
    torch.testing.assert_close(features.closed_form(seen), logits(networks(), x)[1].double(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("place", [0.02, 0.3, 0.97])
def test_whatever_a_private_extractor_makes_of_an_image_falls_on_a_level(place):
    """Features anywhere in [0, 1], far from those of the stand-in that the levels were made without."""
    own = (
        Imprint().craft(MODEL, Networks({"classifier": networks()["classifier"]}, {"classifier": {}}), KNOWN, 0).params
    )
    w = {n: t.clone().requires_grad_() for n, t in own["classifier"].items()}
    h = (place + 0.03 * torch.rand(MODEL.feature_shape, generator=torch.Generator().manual_seed(0)))[None]
    F.cross_entropy(MODEL.classifier.apply(w, {}, h, train=True)[0], Y[:1]).backward()
    found = w["fc1.weight"].grad.double().T @ w["fc1.bias"].grad.double() / w["fc1.bias"].grad.double().square().sum()
    torch.testing.assert_close(found, h.flatten().double(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("size", [1, 3])
def test_without_the_honest_classifier_or_of_a_batch_private_extractors_leave_the_class_means(size):
    seen, _ = observed(parts=("classifier",), batch_size=size)
    found = Imprint(**STAND_IN).reconstruct(seen, KNOWN, 0)
    assert torch.equal(found.images, ClassMean().reconstruct(seen, KNOWN, 0).images)


def test_an_image_that_falls_on_no_level_of_a_private_extractor_is_its_class_mean():
    seen, _ = observed(parts=("classifier",))
    honest = Networks({"classifier": networks()["classifier"]}, {"classifier": {}})
    for t in (seen.gradients["classifier"]["fc1.bias"], seen.gradients["classifier"]["fc1.weight"]):
        t[1] = 0
    found = Imprint(**STAND_IN).reconstruct(seen, replace(KNOWN, broadcast=honest), 0)
    assert torch.equal(found.images[1].float(), ClassMean().reconstruct(seen, KNOWN, 0).images[1])
    assert found.images.isfinite().all()
