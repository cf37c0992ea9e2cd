"""Scores against scikit-image, and the rules that keep them honest."""

import itertools
import math

import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from privbench import score
from privbench.types import Reconstruction, Truth


def pair(victims=3, batch=1, channels=3):
    rng = torch.Generator().manual_seed(0)
    truth = torch.rand(victims, batch, channels, 32, 32, generator=rng)
    return (truth + 0.3 * torch.randn(truth.shape, generator=rng)), truth


def reconstruction(images, labels=None):
    v, b = images.shape[:2]
    zero = torch.zeros(v)
    return Reconstruction(
        images, torch.zeros(v, b).long() if labels is None else labels, zero, zero[:, None], zero.long(), 0
    )


@pytest.mark.parametrize("channels", [1, 3])
def test_psnr_and_ssim_are_scikit_images(channels):
    image, truth = pair(channels=channels)
    for v in range(3):
        a, b = truth[v, 0].numpy(), image[v, 0].clamp(0, 1).numpy()
        assert float(score.psnr_db(image, truth)[v, 0]) == pytest.approx(
            peak_signal_noise_ratio(a, b, data_range=1), rel=1e-5
        )
        expected = structural_similarity(a, b, data_range=1, channel_axis=0)
        assert float(score.ssim(image, truth)[v, 0]) == pytest.approx(expected, rel=1e-4)


def test_the_raw_score_is_not_clipped():
    truth = torch.ones(1, 1, 1, 8, 8)
    assert float(score.psnr_db(truth + 1, truth)) == math.inf
    assert float(score.psnr_raw_db(truth + 1, truth)) == 0.0


def test_a_hand_value():
    truth = torch.zeros(1, 1, 8, 8)
    assert float(score.psnr_db(truth + 0.1, truth)) == pytest.approx(20.0, abs=1e-5)


def test_one_exact_image_does_not_make_a_mean_infinite():
    _, truth = pair(2)
    scores = score.score(reconstruction(truth), Truth(truth, torch.zeros(2, 1).long()))
    assert scores.psnr_db.tolist() == [100.0, 100.0]


def test_a_failed_victim_is_counted_and_scored_as_grey():
    image, truth = pair(2)
    image[1, 0, 0, 3, 3] = torch.nan
    scores = score.score(reconstruction(image), Truth(truth, torch.zeros(2, 1).long()))
    assert scores.failed.tolist() == [False, True]
    grey = score.psnr_db(torch.full_like(truth[1, 0], 0.5), truth[1, 0])
    assert float(scores.psnr_db[1]) == pytest.approx(float(grey))
    assert scores.psnr_raw_db.isfinite().all()


def test_a_shuffled_batch_scores_as_the_ordered_one():
    image, truth = pair(2, batch=4)
    order = torch.tensor([2, 0, 3, 1])
    labels = torch.arange(4).expand(2, 4)
    a = score.score(reconstruction(image, labels), Truth(truth, labels))
    b = score.score(reconstruction(image[:, order], labels[:, order]), Truth(truth, labels))
    torch.testing.assert_close(a.psnr_db, b.psnr_db)
    assert b.label_accuracy.tolist() == [1.0, 1.0]


def test_labels_count_as_a_bag():
    _, truth = pair(1, batch=3)
    found = reconstruction(truth, torch.tensor([[5, 5, 1]]))
    assert score.score(found, Truth(truth, torch.tensor([[1, 5, 2]]))).label_accuracy.item() == pytest.approx(2 / 3)


def test_the_interval_holds_the_mean_and_narrows_with_more_victims():
    rng = torch.Generator().manual_seed(0)
    few, many = torch.randn(20, generator=rng).tolist(), torch.randn(2000, generator=rng).tolist()
    a, b = score.interval(few), score.interval(many)
    assert a.low < a.mean < a.high
    assert b.high - b.low < (a.high - a.low) / 4
    assert (b.high - b.low) == pytest.approx(2 * 1.96 / math.sqrt(2000), rel=0.15)
    assert score.interval([3.0]) == (3.0, 3.0, 3.0)
    assert score.interval([3.0, 3.0]) == (3.0, 3.0, 3.0)
    assert score.interval(few) == a


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [1.0, math.inf]])
def test_an_interval_of_nothing_or_of_a_value_that_is_not_finite_is_refused(values):
    with pytest.raises(ValueError, match="at least one value, and every value finite"):
        score.interval(values)


def test_the_interval_draws_from_a_named_stream_and_not_from_the_global_one(monkeypatch):
    values = [x**1.5 for x in range(40)]
    named = score.interval(values)
    monkeypatch.setattr(score, "stream", lambda seed, *names: torch.Generator().manual_seed(12345))
    assert score.interval(values) != named


def test_the_interval_covers_the_true_mean_about_as_often_as_it_says():
    rng = torch.Generator().manual_seed(3)
    hits = 0
    for _ in range(200):
        found = score.interval(torch.randn(32, generator=rng).tolist())
        hits += found.low <= 0 <= found.high
    assert 0.88 <= hits / 200 <= 0.99


def test_each_image_is_capped_before_the_mean_of_its_batch():
    image, truth = pair(1, batch=2)
    image[0, 0] = truth[0, 0]
    found = score.score(reconstruction(image), Truth(truth, torch.zeros(1, 2).long()))
    rest = float(score.psnr_db(image[0, 1], truth[0, 1]))
    assert float(found.psnr_db[0]) == pytest.approx((100 + rest) / 2)


def test_a_failed_victim_fails_with_its_whole_batch():
    image, truth = pair(2, batch=2)
    image[1, 0, 0, 0, 0] = -math.inf
    images, failed = score.aligned(image, Truth(truth, torch.zeros(2, 2).long()))
    assert failed.tolist() == [False, True]
    assert (images[1] == 0.5).all()
    assert torch.equal(images[0], image[0].double())


def test_the_assignment_is_the_best_of_all_orders():
    image, truth = pair(1, batch=4)
    image = truth.roll(1, dims=1) + 2.0 * (image - truth)
    order = score.assignment(image[0], truth[0])
    errors = {
        p: float((image[0, list(p)].clamp(0, 1) - truth[0]).square().mean()) for p in itertools.permutations(range(4))
    }
    assert tuple(order.tolist()) == min(errors, key=errors.__getitem__)


def test_a_reconstruction_of_another_shape_is_refused():
    image, truth = pair(2)
    with pytest.raises(ValueError, match="does not fit truth"):
        score.score(reconstruction(image[:1]), Truth(truth, torch.zeros(2, 1).long()))
