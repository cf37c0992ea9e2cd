"""Scores against scikit-image, and the rules that keep them honest."""

import importlib.util
import itertools
import math

import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from privbench.scoring import image_scores, learned_distance
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
        assert float(image_scores.psnr_db(image, truth)[v, 0]) == pytest.approx(
            peak_signal_noise_ratio(a, b, data_range=1), rel=1e-5
        )
        expected = structural_similarity(a, b, data_range=1, channel_axis=0)
        assert float(image_scores.ssim(image, truth)[v, 0]) == pytest.approx(expected, rel=1e-4)


def test_the_raw_score_is_not_clipped():
    truth = torch.ones(1, 1, 1, 8, 8)
    assert float(image_scores.psnr_db(truth + 1, truth)) == math.inf
    assert float(image_scores.psnr_raw_db(truth + 1, truth)) == 0.0


def test_a_hand_value():
    truth = torch.zeros(1, 1, 8, 8)
    assert float(image_scores.psnr_db(truth + 0.1, truth)) == pytest.approx(20.0, abs=1e-5)


def test_one_exact_image_does_not_make_a_mean_infinite():
    _, truth = pair(2)
    scores = image_scores.score(reconstruction(truth), Truth(truth, torch.zeros(2, 1).long()))
    assert scores.psnr_db.tolist() == [100.0, 100.0]


def test_a_failed_victim_is_counted_and_scored_as_grey():
    image, truth = pair(2)
    image[1, 0, 0, 3, 3] = torch.nan
    scores = image_scores.score(reconstruction(image), Truth(truth, torch.zeros(2, 1).long()))
    assert scores.failed.tolist() == [False, True]
    grey = image_scores.psnr_db(torch.full_like(truth[1, 0], 0.5), truth[1, 0])
    assert float(scores.psnr_db[1]) == pytest.approx(float(grey))
    assert scores.psnr_raw_db.isfinite().all()


def test_a_shuffled_batch_scores_as_the_ordered_one():
    image, truth = pair(2, batch=4)
    order = torch.tensor([2, 0, 3, 1])
    labels = torch.arange(4).expand(2, 4)
    a = image_scores.score(reconstruction(image, labels), Truth(truth, labels))
    b = image_scores.score(reconstruction(image[:, order], labels[:, order]), Truth(truth, labels))
    torch.testing.assert_close(a.psnr_db, b.psnr_db)
    assert b.label_accuracy.tolist() == [1.0, 1.0]


def test_labels_count_as_a_bag():
    _, truth = pair(1, batch=3)
    attacked = reconstruction(truth, torch.tensor([[5, 5, 1]]))
    assert image_scores.score(attacked, Truth(truth, torch.tensor([[1, 5, 2]]))).label_accuracy.item() == pytest.approx(
        2 / 3
    )


def test_each_image_is_capped_before_the_mean_of_its_batch():
    image, truth = pair(1, batch=2)
    image[0, 0] = truth[0, 0]
    scores = image_scores.score(reconstruction(image), Truth(truth, torch.zeros(1, 2).long()))
    rest = float(image_scores.psnr_db(image[0, 1], truth[0, 1]))
    assert float(scores.psnr_db[0]) == pytest.approx((100 + rest) / 2)


def test_a_failed_victim_fails_with_its_whole_batch():
    image, truth = pair(2, batch=2)
    image[1, 0, 0, 0, 0] = -math.inf
    images, failed = image_scores.aligned(image, Truth(truth, torch.zeros(2, 2).long()))
    assert failed.tolist() == [False, True]
    assert (images[1] == 0.5).all()
    assert torch.equal(images[0], image[0].double())


def test_the_assignment_is_the_best_of_all_orders():
    image, truth = pair(1, batch=4)
    image = truth.roll(1, dims=1) + 2.0 * (image - truth)
    order = image_scores.assignment(image[0], truth[0])
    errors = {
        p: float((image[0, list(p)].clamp(0, 1) - truth[0]).square().mean()) for p in itertools.permutations(range(4))
    }
    assert tuple(order.tolist()) == min(errors, key=errors.__getitem__)


def test_a_reconstruction_of_another_shape_is_refused():
    image, truth = pair(2)
    with pytest.raises(ValueError, match="does not fit truth"):
        image_scores.score(reconstruction(image[:1]), Truth(truth, torch.zeros(2, 1).long()))


def test_every_original_identifies_itself_and_one_image_for_all_scores_chance():
    _, truth = pair(5, batch=2)
    assert image_scores.identification(truth, truth).tolist() == [1.0] * 5
    same = truth[:1, :1].expand_as(truth)
    assert image_scores.identification(same, truth).mean().item() == pytest.approx(1 / 5)
    grey = torch.full_like(truth, 0.5)
    assert image_scores.identification(grey, truth).mean().item() == pytest.approx(1 / 5)


def test_an_image_nearest_to_another_victims_original_is_not_identified():
    _, truth = pair(4)
    swapped = truth[[1, 0, 2, 3]]
    assert image_scores.identification(swapped, truth).tolist() == [0.0, 0.0, 1.0, 1.0]


def test_equal_originals_share_the_hit():
    _, truth = pair(4)
    truth[1] = truth[0]
    assert image_scores.identification(truth, truth).tolist() == [0.5, 0.5, 1.0, 1.0]


def test_within_a_batch_any_original_is_its_own():
    _, truth = pair(3, batch=2)
    assert image_scores.identification(truth.flip(1), truth).tolist() == [1.0] * 3


def test_the_feature_error_is_relative_and_of_the_victims_own_network():
    truth = torch.ones(2, 1, 1, 8, 8)
    image = truth * torch.tensor([0.5, 0.25]).view(2, 1, 1, 1, 1)
    victims = []

    def features(victim, x):
        victims.append(victim)
        return (victim + 1) * x.mean((1, 2, 3), keepdim=True)

    assert image_scores.feature_error(image, truth, features).tolist() == pytest.approx([0.5, 0.75])
    assert victims == [0, 0, 1, 1]
    scores = image_scores.score(reconstruction(image), Truth(truth, torch.zeros(2, 1).long()), features)
    assert scores.feature_error.tolist() == pytest.approx([0.5, 0.75])
    assert image_scores.score(reconstruction(image), Truth(truth, torch.zeros(2, 1).long())).feature_error is None


def test_a_digest_names_the_picture_and_not_its_storage():
    stored = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    names = image_scores.digests(stored.double() / 255)
    assert names == image_scores.digests(stored.float() / 255)
    assert len(set(names)) == 3
    assert all(len(name) == 16 for name in names)
    stored[0, 0, 0, 0] ^= 1
    assert image_scores.digests(stored.float() / 255)[0] != names[0]
    assert image_scores.digests(torch.zeros(1, 1, 2, 8)) != image_scores.digests(torch.zeros(1, 1, 4, 4))


@pytest.fixture
def asked_anew():
    """LPIPS is looked for in the test's own surroundings, and again after it."""
    learned_distance.missing.cache_clear()
    yield
    learned_distance.missing.cache_clear()


@pytest.fixture
def with_package(monkeypatch, tmp_path, asked_anew):
    """A package lpips that does not load, and an empty hub cache."""
    (tmp_path / "lpips.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    return tmp_path


def test_lpips_is_absent_without_the_package(monkeypatch, asked_anew):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert learned_distance.missing() == "the package lpips is not installed"
    image, truth = pair(2)
    assert learned_distance.lpips(image, truth) is None
    assert image_scores.score(reconstruction(image), Truth(truth, torch.zeros(2, 1).long())).lpips is None


def test_lpips_is_absent_without_its_weights_and_never_downloads_them(with_package):
    assert "are not in torch's hub cache" in learned_distance.missing()


def test_lpips_that_does_not_load_is_absent_with_the_reason(with_package):
    (with_package / "checkpoints").mkdir()
    (with_package / "checkpoints" / learned_distance.BACKBONE_FILE).write_bytes(b"")
    assert learned_distance.missing() == "the package lpips does not load (operator torchvision::nms does not exist)"


@pytest.mark.parametrize("channels", [1, 3])
def test_lpips_hands_clipped_colour_images_in_minus_one_to_one_to_the_network(channels):
    image, truth = pair(2, batch=2, channels=channels)

    def network(a, b):
        assert a.shape == b.shape == (2, 3, 32, 32)
        assert a.dtype == torch.float32
        assert -1 <= float(a.min()) < 0 < float(a.max()) <= 1
        return (a - b).square().mean((1, 2, 3), keepdim=True)

    expected = 4 * (image.clamp(0, 1) - truth).square().mean((1, 2, 3, 4))
    torch.testing.assert_close(learned_distance.lpips(image, truth, network), expected.double())
    assert learned_distance.lpips(truth, truth, network).tolist() == [0.0, 0.0]
