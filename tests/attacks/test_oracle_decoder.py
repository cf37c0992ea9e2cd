"""The second reference: a decoder trained through the victim's true extractor."""

from dataclasses import replace

import pytest
import torch

from attacks.floors import ClassMean
from attacks.oracle_decoder import OracleDecoder
from attacks.shadow import learned_decoder, shadow_federation, true_extractor_decoder
from privbench.scoring.image_scores import psnr_db
from privbench.types import Batch, Knowledge, Networks, Outcome
from tests.builders.small_artifacts import artifact, images_like_the_victims, networks, smooth_images

Y = torch.tensor([3, 0, 9])
NONE = {"extractor": {}, "classifier": {}}
ATTACK = OracleDecoder(decoder_steps=60)


def whole(seed=0, count=100):
    return Knowledge(images_like_the_victims(count), oracle={0: Networks(networks(seed), NONE)})


def shown(**options):
    return artifact(smooth_images(3), Y, ("classifier",), **options)


def scores(reconstruction):
    return psnr_db(reconstruction.images[:, 0], smooth_images(3))


def test_it_beats_the_class_mean_through_the_true_extractor_and_not_through_another():
    seen = shown()
    floor = scores(ClassMean().reconstruct(seen, whole(), 0))
    true, other = ATTACK.reconstruct(seen, whole(), 0), ATTACK.reconstruct(seen, whole(1), 0)
    assert float((scores(true) - floor).mean()) > 1
    assert float(scores(true).mean()) > float(scores(other).mean()) + 1
    assert (true.loss < other.loss).all()
    assert true.outcome is None or not true.outcome.any()


def test_under_noise_the_decoder_sees_features_as_noisy_as_the_victims():
    seen = shown(noise=1e-8)
    reconstruction = ATTACK.reconstruct(seen, whole(), 0)
    assert reconstruction.images.isfinite().all()
    clean = torch.rand(200, 16, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    view = server_view(seen)
    moments = {"expected": clean.mean(0), "variance": torch.full((16, 5, 5), 1e6, dtype=torch.float64)}
    copies = learned_decoder.with_noise(moments, view, clean, 0, "training")
    assert len(copies) == learned_decoder.NOISY_COPIES
    assert torch.equal(learned_decoder.with_noise({}, server_view(shown()), clean, 0, "training")[0], clean)
    # Beside so large a variance nothing is drawn to the mean. 8 x 200 levels are drawn of three, which differ by half at most, so
    # that their mean has a relative error of 1%.
    spread = float((torch.stack(copies) - clean).square().mean())
    assert spread == pytest.approx(float(view.noise.mean()), rel=0.06)


def test_features_that_noise_hides_are_drawn_to_the_mean():
    moments = {"expected": torch.full((2, 1, 1), 0.5), "variance": torch.full((2, 1, 1), 0.01)}
    h = torch.tensor([[[[0.9]], [[0.1]]]] * 3)
    drawn = learned_decoder.shrunk(moments, h, torch.tensor([0.0, 0.01, 1e9]))
    torch.testing.assert_close(drawn[:, 0, 0, 0], torch.tensor([0.9, 0.7, 0.5]))
    assert torch.equal(learned_decoder.shrunk({}, h, None), h)


def server_view(seen):
    return shadow_federation.real(seen, whole(), 0, "a test")


def test_the_share_comes_from_images_that_the_decoder_was_not_trained_on(monkeypatch):
    trained = []
    fitted = learned_decoder.fitted

    def watched(view, *rest):
        trained.append(view.auxiliary)
        return fitted(view, *rest)

    monkeypatch.setattr(learned_decoder, "fitted", watched)
    images = images_like_the_victims(100).images
    made = true_extractor_decoder.trained(server_view(shown()), networks()["extractor"], ATTACK.decoder_steps, 0)
    assert 0 <= float(made["share"]) <= 1
    assert torch.equal(trained[0].images, images[torch.arange(100) % true_extractor_decoder.HELD_OUT != 0])


def test_with_too_few_auxiliary_images_it_gives_up():
    few = whole()
    few = replace(few, auxiliary=Batch(*(t[:3] for t in few.auxiliary)))
    reconstruction = ATTACK.reconstruct(shown(), few, 0)
    assert reconstruction.outcome.tolist() == [Outcome.GAVE_UP] * 3
    means = learned_decoder.class_means(shadow_federation.real(shown(), few, 0, "a test"))
    assert torch.equal(reconstruction.images[:, 0], means[Y])
