"""Features of noised gradients in closed form: what all columns say of them, with the variance that is said."""

from dataclasses import replace

import pytest
import torch

from attacks.common import closed_form
from privbench.observation import wire
from tests.builders.small_artifacts import MODEL, artifact, logits, networks, smooth_images

COUNT = 24
X = smooth_images(COUNT)
Y = torch.arange(COUNT) % 10
C = ("classifier",)
# ||d|| is 0.015 to 0.021 here, so that the noise of dL/db, sigma sqrt(120), exceeds it from a variance of 3e-6 on.
FAINT, CLEAR = 1e-5, 1e-7


def seen(variance):
    return artifact(X, Y, C, noise=variance)


def truth():
    return logits(networks(), X)[1].double()


def d_norm():
    return artifact(X, Y, C).gradients["classifier"]["fc1.bias"].double().norm(dim=1)


@pytest.mark.parametrize("variance", [CLEAR, 1e-6, FAINT])
def test_the_error_of_noised_features_is_the_one_that_is_said(variance):
    features, noise = closed_form.with_noise(seen(variance))
    squared = (features.h - truth()).square().flatten(1).mean(1)
    # Each image's scale is off by a factor of its own, which an image's 400 errors share; over 24 images the ratio's mean
    # has a standard deviation below a third even where that is all of the error.
    assert 0.3 < float((squared / noise).mean()) < 2
    # No estimate that does not know d has less than sigma^2 / ||d||^2; the prior of the scale alone may take a part.
    assert float((noise / (variance / d_norm().square())).median()) == pytest.approx(1, rel=0.6)


def test_features_come_back_from_noise_that_the_gradient_of_the_bias_alone_drowns_in():
    shown = seen(FAINT)
    error = (closed_form.with_noise(shown)[0].h - truth()).square().mean()
    by_bias = (closed_form.closed_form(shown) - truth()).square().mean()
    assert error < by_bias / 3


def test_features_below_the_noise_are_said_to_be_unknown():
    features, noise = closed_form.with_noise(artifact(X, Y, C, noise=10.0))
    assert features.h.isfinite().all()
    # A feature in (0, 1) that nothing is known of has a variance of 1/12.
    assert (noise > 1 / 12).all()


def test_without_noise_features_are_those_of_single_images_and_have_no_variance():
    shown = artifact(X, Y, C)
    features, noise = closed_form.with_noise(shown)
    assert noise is None
    assert torch.equal(features.h, closed_form.closed_form(shown))
    assert closed_form.with_noise(artifact(X, Y, C, batch_size=2)) is None


def test_a_gradient_that_is_not_finite_spoils_no_other():
    shown = seen(FAINT)
    broken = {name: t.clone() for name, t in shown.gradients["classifier"].items()}
    broken["fc1.weight"][3] = torch.nan
    features, noise = closed_form.with_noise(replace(shown, gradients={"classifier": broken}))
    alone, of_alone = closed_form.with_noise(shown)
    others = torch.arange(COUNT) != 3
    torch.testing.assert_close(features.h[others], alone.h[others])
    torch.testing.assert_close(noise[others], of_alone[others])
    assert features.h[3].isnan().all()
    assert noise[3].isnan()


class Unbounded:
    """A network whose features are not in (0, 1)."""

    has_sigmoid_features = False


@pytest.mark.parametrize("kind", ["positive", "any"])
def test_features_of_any_range_come_back(kind):
    rng = torch.Generator().manual_seed(0)
    h = 1.5 * torch.randn(16, 128, generator=rng, dtype=torch.float64)
    h = h.relu() if kind == "positive" else h
    d = torch.randn(16, 32, generator=rng, dtype=torch.float64)
    d = 0.5 * d / d.norm(dim=1, keepdim=True)
    sigma = 0.05
    rows = d[:, :, None] * h[:, None] + sigma * torch.randn(16, 32, 128, generator=rng, dtype=torch.float64)
    bias = d + sigma * torch.randn(16, 32, generator=rng, dtype=torch.float64)
    found, noise = closed_form.of_rank_one(Unbounded(), rows, bias, sigma**2)
    # The scale is known to sigma / ||d|| = 10% alone, which is common to all of an image's features.
    squared = (found - h).square().mean(1)
    assert 0.3 < float((squared / noise).mean()) < 2
    assert squared.mean() < (closed_form.least_squares(rows, bias) - h).square().mean() / 2


@pytest.mark.parametrize("scale", [0.0, 1e-3])
def test_features_of_any_range_that_noise_hides_are_said_to_be_unknown(scale):
    rng = torch.Generator().manual_seed(0)
    h = torch.randn(16, 128, generator=rng, dtype=torch.float64)
    d = scale * torch.randn(16, 32, generator=rng, dtype=torch.float64)
    rows = d[:, :, None] * h[:, None] + 0.05 * torch.randn(16, 32, 128, generator=rng, dtype=torch.float64)
    found, noise = closed_form.of_rank_one(
        Unbounded(), rows, d + 0.05 * torch.randn(16, 32, generator=rng).double(), 0.05**2
    )
    assert ((found - h).square().mean(1) < 9 * noise).all()
    # Features here vary by 1.
    assert (noise > 0.3).all()


def test_a_gradient_of_zeros_has_finite_features():
    zeros = torch.zeros(2, 32, 128, dtype=torch.float64)
    found, noise = closed_form.of_rank_one(MODEL, zeros, zeros[:, :, 0], 1e-3)
    assert found.isfinite().all()
    assert noise.isfinite().all()


def test_of_one_row_there_is_the_quotient_alone():
    rows, bias = torch.tensor([[[2.0, 4.0]]], dtype=torch.float64), torch.tensor([[2.0]], dtype=torch.float64)
    h, noise = closed_form.of_rank_one(MODEL, rows, bias, 1.0)
    assert h.tolist() == [[1.0, 2.0]]
    assert noise.tolist() == [1 / 3]


def rounded(form, defense=None, kept=C):
    """What arrives of such gradients in a number format."""
    plain = artifact(X, Y, kept)
    return replace(
        plain, gradients=wire.rounded(plain.gradients, form), defense=wire.described(defense or plain.defense, form)
    )


@pytest.mark.parametrize("form", ["bf16", "fp16"])
def test_the_error_that_a_number_format_gives_features_is_the_one_that_is_said(form):
    features, noise = closed_form.with_noise(rounded(form))
    squared = (features.h - truth()).square().flatten(1).mean(1)
    # The errors of d are some hundred, which all of an image's features share.
    assert 0.5 < float((squared / noise).mean()) < 2
    assert closed_form.with_noise(rounded("float32"))[1] is None
    # Entries that were rounded before are as far off as that says.
    assert closed_form.with_noise(rounded(form, {"name": "quantize", "bits": 4}))[1] is None


@pytest.mark.parametrize(
    ("form", "steps"),
    [
        ("bf16", (2**-7, 2**-7, 2**-6, 2**-17)),
        # Ten bits behind the point, and nothing finer than 2^-24.
        ("fp16", (2**-10, 2**-10, 2**-9, 2**-20)),
    ],
)
def test_the_step_of_a_number_format_is_that_from_one_number_to_the_next(form, steps):
    values = torch.tensor([1.0, 1.5, -3.0, 1e-3], dtype=torch.float64)
    assert tuple(wire.step(values, {"wire": form}).tolist()) == steps
    if form == "fp16":
        assert wire.step(torch.tensor([0.0, 2**-24, -1e-6]), {"wire": form}).tolist() == [2**-24] * 3
