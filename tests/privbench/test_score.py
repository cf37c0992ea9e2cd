"""Scores against scikit-image, and the rules that keep them honest."""

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
