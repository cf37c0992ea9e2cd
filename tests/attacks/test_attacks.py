"""Closed forms are exact, attacks lower their objectives, victims do not see each other, and the truth is out of reach."""

import pytest
import torch

from attacks.common import closed_form, labels
from attacks.dlg import DLG
from attacks.feature_statistics import FeatureStatistics
from attacks.features.generator_statistics import statistics
from attacks.floors import ClassMean, DatasetMean, Grey
from attacks.grnn import GRNN
from attacks.idlg import IDLG
from attacks.inverting_gradients import InvertingGradients
from attacks.matching import Matching
from attacks.staged import Staged
from attacks.unsplit import UnSplit
from benchmarks.tune import scan
from privbench.scoring.image_scores import psnr_db
from privbench.types import Batch, Knowledge
from tests.builders.small_artifacts import artifact, logits, networks, smooth_images

NOTHING = Knowledge()
Y = torch.tensor([3, 0, 9])
QUICK = {
    "dlg": (DLG(steps=6), ("extractor", "classifier")),
    "dlg through a surrogate": (DLG(steps=6, restarts=2), ("classifier",)),
    "dlg by adam": (DLG(steps=12, optimiser="adam"), ("extractor", "classifier")),
    "dlg from grey": (DLG(steps=6, start="grey"), ("extractor", "classifier")),
    "dlg from grey on soft labels": (DLG(steps=6, start="grey", labels="descended", restarts=2), ("classifier",)),
    "feature-statistics": (FeatureStatistics(steps=6, restarts=2), ("classifier",)),
    "dlg on soft labels": (DLG(steps=6, labels="descended"), ("extractor", "classifier")),
    "idlg": (IDLG(steps=6), ("extractor", "classifier")),
    "inverting-gradients": (InvertingGradients(steps=12), ("extractor", "classifier")),
    "matching": (Matching(steps=6), ("extractor", "classifier")),
    "matching by adam from noise": (Matching(steps=12, optimiser="adam", start="random"), ("classifier",)),
    "grnn": (GRNN(steps=12), ("extractor", "classifier")),
    "unsplit": (UnSplit(turns=2, steps=6), ("classifier",)),
    "unsplit with a shared extractor": (UnSplit(turns=2, steps=6), ("extractor", "classifier")),
    "staged": (Staged(steps=6, feature_steps=6, peel_iterations=1), ("extractor", "classifier")),
    "staged without layerwise inversion": (
        Staged(steps=6, feature_steps=6, peel_iterations=0),
        ("extractor", "classifier"),
    ),
    "staged through a surrogate": (Staged(steps=6, feature_steps=6), ("classifier",)),
}


def test_closed_form_features_are_the_true_features():
    x = smooth_images(3)
    features = closed_form.closed_form(artifact(x, Y))
    torch.testing.assert_close(features, logits(networks(), x)[1].double(), atol=1e-6, rtol=0)


def test_closed_form_features_average_out_noise_over_rows():
    x = smooth_images(3)
    true = logits(networks(), x)[1].double()
    shown = artifact(x, Y, noise=1e-6)
    all_rows = (closed_form.closed_form(shown) - true).square().mean()
    gradient = shown.gradients["classifier"]
    one_row = (gradient["fc1.weight"][:, 0] / gradient["fc1.bias"][:, :1]).double() - true.flatten(1)
    assert all_rows < one_row.square().mean()


def test_batches_have_no_closed_form():
    assert closed_form.closed_form(artifact(smooth_images(4), torch.arange(4), batch_size=2)) is None


def test_labels_of_single_images_are_always_right():
    y = torch.arange(10).repeat(3)
    shown = artifact(smooth_images(30), y)
    assert torch.equal(labels.recover(shown)[:, 0], y)


def test_label_counts_of_batches_are_right_at_the_untrained_network():
    y = torch.tensor([1, 1, 7, 3, 0, 0, 0, 0])
    recovered = labels.recover(artifact(smooth_images(8), y, batch_size=4))
    assert recovered.tolist() == [[1, 1, 3, 7], [0, 0, 0, 0]]


def test_labels_under_noise_come_from_the_whole_last_layer():
    x, y = smooth_images(40), torch.arange(40) % 10
    shown = artifact(x, y, noise=0.1)
    bias_alone = shown.gradients["classifier"]["fc3.bias"].argmin(1) == y
    correct = labels.recover(shown)[:, 0] == y
    assert bias_alone.float().mean() < 0.95 < correct.float().mean()


def test_a_class_is_as_probable_as_the_noise_leaves_it():
    y = torch.arange(40) % 10
    exact, noisy, hopeless = (
        labels.probabilities(artifact(smooth_images(40), y, noise=v))[:, 0] for v in (0.0, 0.1, 100.0)
    )
    assert torch.equal(exact, torch.nn.functional.one_hot(y, 10).double())
    for p in (noisy, hopeless):
        torch.testing.assert_close(p.sum(1), torch.ones(40, dtype=torch.float64))
    assert noisy.gather(1, y[:, None]).mean() > 0.9
    assert hopeless.max() < 0.3
    assert labels.probabilities(artifact(smooth_images(4), y[:4], batch_size=2)).shape == (2, 2, 10)


def test_known_labels_are_taken_as_they_are():
    assert labels.recover(artifact(smooth_images(3), Y, known=True))[:, 0].tolist() == Y.tolist()


@pytest.mark.parametrize("name", QUICK)
def test_an_attack_lowers_its_own_objective(name):
    attack, parts = QUICK[name]
    reconstruction = attack.reconstruct(artifact(smooth_images(2), Y[:2], parts), NOTHING, 0)
    assert (reconstruction.trace[:, -1] < reconstruction.trace[:, 0]).all()
    assert torch.equal(reconstruction.loss, reconstruction.trace[:, -1])
    assert reconstruction.images.shape == (2, 1, 1, 32, 32)
    least = (
        3 if name == "staged" else 6
    )  # layer by layer: grey, the step that victims share, and one of the victim's own
    assert reconstruction.gradient_evaluations >= 2 * least


@pytest.mark.parametrize("name", QUICK)
def test_victims_attacked_together_end_as_each_alone(name):
    attack, parts = QUICK[name]
    x = smooth_images(3)
    together = attack.reconstruct(artifact(x, Y, parts), NOTHING, 0)
    first = attack.reconstruct(artifact(x[:1], Y[:1], parts), NOTHING, 0)
    torch.testing.assert_close(together.images[0], first.images[0], atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(together.loss[0], first.loss[0])


def test_staged_comes_close_on_an_untrained_network_and_plain_dlg_does_not():
    x = smooth_images(2)
    shown = artifact(x, Y[:2])
    staged = psnr_db(
        Staged(steps=60, feature_steps=60, peel_iterations=0).reconstruct(shown, NOTHING, 0).images[:, 0], x
    )
    dlg = psnr_db(DLG(steps=60).reconstruct(shown, NOTHING, 0).images[:, 0], x)
    grey = psnr_db(Grey().reconstruct(shown, NOTHING, 0).images[:, 0], x)
    assert (staged > grey + 5).all()
    assert (staged > dlg + 3).all()


def test_a_hopeless_inversion_ends_plain_instead_of_noisy():
    x = smooth_images(2)
    for shown in (artifact(x, Y[:2], ("classifier",)), artifact(x, Y[:2], noise=0.1)):
        psnr = psnr_db(Staged(steps=20).reconstruct(shown, NOTHING, 0).images[:, 0], x)
        grey = psnr_db(Grey().reconstruct(shown, NOTHING, 0).images[:, 0], x)
        assert (psnr > grey - 1).all()


def test_a_batch_gradient_is_matched_without_closed_forms():
    reconstruction = Staged(steps=10).reconstruct(artifact(smooth_images(2), Y[:2], batch_size=2), NOTHING, 0)
    assert reconstruction.images.shape == (1, 2, 1, 32, 32)
    assert reconstruction.trace[0, -1] < 0.8 * reconstruction.trace[0, 0]


def test_the_generators_statistics_are_those_of_its_samples_given_the_label():
    shown = artifact(smooth_images(2), Y[:2], ("classifier",))
    mean, variance = statistics(shown, Y[:2, None], 0)
    generator = {n: t[0].double() for n, t in shown.uploads["generator"].items()}
    buffers = {n: t[0].double() for n, t in shown.upload_buffers["generator"].items()}
    z = torch.randn(600, 100, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    h, _ = shown.model.net("generator").apply(generator, buffers, z, Y[:1].expand(600), train=False)
    torch.testing.assert_close(mean[0], h.mean((0, 2, 3)), rtol=0.02, atol=1e-3)
    torch.testing.assert_close(variance[0], h.var((0, 2, 3)), rtol=0.2, atol=1e-6)


def test_floors_are_what_they_say():
    auxiliary = Batch(torch.stack([torch.full((1, 32, 32), v) for v in (0.2, 0.4, 0.9)]), torch.tensor([3, 3, 0]))
    shown = artifact(smooth_images(3), Y)
    know = Knowledge(auxiliary=auxiliary)
    assert (Grey().reconstruct(shown, NOTHING, 0).images == 0.5).all()
    torch.testing.assert_close(DatasetMean().reconstruct(shown, know, 0).images, torch.full((3, 1, 1, 32, 32), 0.5))
    by_class = ClassMean().reconstruct(shown, know, 0).images.flatten(1)[:, 0]
    torch.testing.assert_close(by_class, torch.tensor([0.3, 0.9, 0.5]))  # no image of class 9: the data set's mean


def test_the_scan_ranks_settings_by_the_attackers_own_images():
    x = smooth_images(2)
    trials = scan(
        Staged, {"feature_steps": [2, 40], "steps": [2], "peel_iterations": [0]}, artifact(x, Y[:2]), x[:, None]
    )
    assert [t.settings["feature_steps"] for t in trials] == [40, 2]
    assert trials[0].psnr_db > trials[1].psnr_db
