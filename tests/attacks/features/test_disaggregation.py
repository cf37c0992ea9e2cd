"""Batches: labels counted and features separated exactly where the gradient allows, and a wrong batch size refused."""

from dataclasses import replace

import pytest
import torch

from attacks.common import labels, problem
from attacks.crafted import gradient_bins
from attacks.features import disaggregation
from attacks.floors import Grey
from attacks.imprint import Imprint
from attacks.staged import Staged
from defenses.clip import Clip
from defenses.none import NoDefense
from privbench.errors import UserError
from privbench.scoring.image_scores import score
from privbench.types import Batch, ExpectedUpload, Knowledge, Networks, Truth
from tests.builders.small_artifacts import MODEL, artifact, defended, logits, networks, smooth_images

SEVERAL = torch.tensor([1, 1, 7, 3, 0, 4, 9, 2])


def counts(y):
    return torch.stack([torch.bincount(one, minlength=10) for one in y])


def confident(params, strength=20.0):
    """Networks with sharp predictions: what training makes of the last layer."""
    sharp = {p: dict(net) for p, net in params.items()}
    sharp["classifier"]["fc3.weight"] = strength * params["classifier"]["fc3.weight"]
    return sharp


@pytest.fixture(params=["untrained", "sharp"])
def shown(request, monkeypatch):
    """Two batches of four at networks with even, and with uneven predictions."""
    params = networks() if request.param == "untrained" else confident(networks())
    monkeypatch.setattr("tests.builders.small_artifacts.networks", lambda **_: params)
    return artifact(smooth_images(8), SEVERAL, batch_size=4), params


def test_the_fewest_of_each_class_are_never_more_than_there_are(shown):
    seen, _ = shown
    fewest = labels.fewest(seen)
    assert (fewest <= counts(SEVERAL.view(2, 4))).all()
    assert (fewest.sum(1) >= 3).all()


def test_a_loss_on_imitated_features_leaves_no_class_certain(shown):
    """Their classes, of which an image may have none, lower the last bias's gradient as the images' do."""
    seen, _ = shown
    assert int(labels.fewest(seen).sum()) > 0
    mixed = replace(seen, imitated=4)
    assert not labels.fewest(mixed).any()
    assert (counts(labels.recover(mixed)).sum(1) == 4).all()


def test_recovered_labels_keep_the_fewest_and_the_size(shown):
    seen, _ = shown
    recovered = counts(labels.recover(seen))
    assert (recovered >= labels.fewest(seen)).all()
    assert recovered.sum(1).tolist() == [4, 4]


def test_the_linear_system_gives_the_counts_where_predictions_do_not_depend_on_the_image(monkeypatch):
    params = networks()
    params["classifier"]["fc3.weight"] = torch.zeros_like(params["classifier"]["fc3.weight"])
    params["classifier"]["fc3.bias"] = torch.linspace(-2, 2, 10)
    monkeypatch.setattr("tests.builders.small_artifacts.networks", lambda **_: params)
    y = torch.tensor([9, 9, 9, 8, 1, 9])
    seen = artifact(smooth_images(6), y, batch_size=6)
    torch.testing.assert_close(labels.expected_counts(seen), counts(y[None]).double(), atol=0.05, rtol=0)
    assert torch.equal(counts(labels.recover(seen)), counts(y[None]))


def test_no_class_is_certain_under_a_defence():
    assert not labels.fewest(artifact(smooth_images(4), SEVERAL[:4], batch_size=4, noise=1e-3)).any()


@pytest.mark.parametrize("bound", [1.0, 0.3, 0.03])
def test_a_clipped_batch_shows_the_labels_that_it_showed_before(bound, shown):
    seen, _ = shown
    whole = [t.flatten(1) for net in seen.gradients.values() for t in net.values()]
    assert float(torch.cat(whole, 1).norm(dim=1).min()) > bound
    sent = defended(Clip(bound), smooth_images(8), SEVERAL, batch=4)
    assert torch.equal(labels.recover(sent), labels.recover(seen))
    assert (labels.fewest(sent) <= counts(SEVERAL.view(2, 4))).all()
    assert labels.fewest(sent).any()


def test_a_batch_below_the_bound_shows_what_it_shows_without_one(shown):
    seen, _ = shown
    sent = defended(Clip(1e3), smooth_images(8), SEVERAL, batch=4)
    assert torch.equal(labels.recover(sent), labels.recover(seen))
    assert torch.equal(labels.fewest(sent), labels.fewest(seen))


@pytest.mark.parametrize("more", [{"variance": 1e-9}, {"wire": "bf16"}])
def test_a_clipped_batch_that_was_changed_further_has_no_certain_class(more):
    sent = defended(Clip(0.3), smooth_images(4), SEVERAL[:4], batch=4)
    assert not labels.fewest(replace(sent, defense=sent.defense | more)).any()


def test_separated_features_are_the_true_ones_of_distinct_classes(shown):
    seen, params = shown
    seen = seen.select(torch.arange(1, seen.victims))
    separated = disaggregation.disaggregate(seen, 0)
    true = logits(params, smooth_images(8))[1].double()[4:].flatten(1)
    assert separated.sound.all()
    assert counts(separated.labels).tolist() == counts(SEVERAL[None, 4:]).tolist()
    spread = (true - true.mean(0)).norm(dim=1).mean()
    nearest = torch.cdist(separated.h[0].flatten(1), true).min(0)
    assert nearest.values.max() < 1e-3 * spread
    assert sorted(nearest.indices.tolist()) == [0, 1, 2, 3]


def test_a_wrong_label_leaves_a_residual():
    seen = artifact(smooth_images(2), SEVERAL[2:4], batch_size=2)
    right = disaggregation.disaggregate(replace(seen, labels=SEVERAL[None, 2:4]), 0)
    wrong = disaggregation.disaggregate(replace(seen, labels=torch.tensor([[7, 5]])), 0)
    assert right.sound.all()
    assert not wrong.sound.any()


def test_an_exchanged_label_is_found_by_the_residual(monkeypatch):
    seen = artifact(smooth_images(2), SEVERAL[2:4], batch_size=2)
    monkeypatch.setattr(labels, "recover", lambda seen: torch.tensor([[5, 7]]))
    monkeypatch.setattr(labels, "fewest", lambda seen: torch.zeros(1, 10, dtype=torch.int64))
    assert disaggregation.disaggregate(seen, 0).labels.tolist() == [[3, 7]]


def test_batches_attacked_together_end_as_each_alone():
    x = smooth_images(4)
    both = disaggregation.disaggregate(artifact(x, SEVERAL[2:6], batch_size=2), 0)
    first = disaggregation.disaggregate(artifact(x[:2], SEVERAL[2:4], batch_size=2), 0)
    torch.testing.assert_close(both.h[0], first.h[0], atol=1e-5, rtol=1e-5)


def test_staged_inverts_separated_features():
    x = smooth_images(2)
    seen = artifact(x, SEVERAL[2:4], batch_size=2)
    truth = Truth(x[None], SEVERAL[None, 2:4])
    scores = score(Staged(feature_steps=60, steps=40).reconstruct(seen, Knowledge(), 0), truth)
    grey = score(Grey().reconstruct(seen, Knowledge(), 0), truth)
    assert scores.psnr_db[0] > grey.psnr_db[0] + 5
    assert scores.label_accuracy[0] == 1


def test_a_batch_size_that_the_rank_contradicts_is_refused_in_one_line():
    seen = artifact(smooth_images(4), SEVERAL[2:6], batch_size=4)
    with pytest.raises(
        UserError, match="has rank 4, so it is one of at least that many images, but the artifact says batch size 2"
    ) as e:
        problem.make(replace(seen, batch_size=2), 0)
    assert "\n" not in str(e.value)
    problem.make(seen, 0)
    problem.make(artifact(smooth_images(4), SEVERAL[2:6], batch_size=2, noise=1e-3), 0)  # noise has every rank


@pytest.mark.parametrize("most", [1, 2, 5])
def test_projections_call_no_matrix_low_in_rank_that_singular_values_do_not(most):
    """Of matrices whose next singular value passes RANK, from far below to far above it; zeros have every rank."""
    rng = torch.Generator().manual_seed(most)
    u, v = (torch.linalg.qr(torch.randn(40, n, 12, generator=rng, dtype=torch.float64)).Q for n in (30, 50))
    sizes = torch.ones(40, 12, dtype=torch.float64)
    sizes[:, most:] = problem.RANK * torch.logspace(-3, 3, 40, dtype=torch.float64)[:, None]
    matrices = u * sizes[:, None] @ v.mT
    sure = problem._nearly_of_rank(matrices, most)
    exact = torch.linalg.svdvals(matrices)
    assert not (sure & (exact[:, most] > problem.RANK * exact[:, 0])).any()
    assert sure[0]
    assert not sure[-1]
    assert problem._nearly_of_rank(matrices[:2] * 0, most).all()


def test_a_rank_that_no_matrix_can_pass_takes_no_projection(monkeypatch):
    """A stranger's file may say millions of features; one pass for each would take hours."""
    monkeypatch.setattr(torch, "baddbmm", lambda *args, **kwargs: pytest.fail("a projection was made"))
    matrices = torch.randn(3, 10, 85, generator=torch.Generator().manual_seed(0))
    assert problem._nearly_of_rank(matrices, 10).tolist() == [True] * 3
    assert problem._nearly_of_rank(matrices, 10**9).tolist() == [True] * 3


def crafted(batch_size, monkeypatch):
    """(the artifact of imprinted batches, their features, images) of twelve images."""
    params, x, y = networks(), smooth_images(12), torch.arange(12) % 10
    other = smooth_images(212)[12:]
    assert torch.equal(smooth_images(212)[:12], x)
    know = Knowledge(
        Batch(other, torch.zeros(200, dtype=torch.int64)), expected=ExpectedUpload(batch_size, NoDefense())
    )
    sent = (
        params
        | Imprint(rehearsal_images=0)
        .craft(MODEL, Networks(params, {"extractor": {}, "classifier": {}}), know, 0)
        .params
    )
    monkeypatch.setattr("tests.builders.small_artifacts.networks", lambda **_: sent)
    return artifact(x, y, batch_size=batch_size), logits(sent, x)[1].double(), x


def test_an_imprinted_layer_holds_the_features_of_single_images(monkeypatch):
    seen, h, _ = crafted(6, monkeypatch)
    features = gradient_bins.features_of(seen).h.flatten(2)
    spread = (h - h.mean(0)).flatten(1).norm(dim=1).mean()
    apart = torch.stack(
        [torch.cdist(f, t).min(0).values for f, t in zip(features, h.flatten(1).view(2, 6, -1), strict=True)]
    )
    assert (apart < 0.01 * spread).float().mean() > 0.6


def test_imprint_beats_the_floor_on_a_batch_of_twelve(monkeypatch):
    seen, _, x = crafted(12, monkeypatch)
    truth = Truth(x[None], seen.client.new_zeros(1, 12))
    scores = score(Imprint(feature_steps=60).reconstruct(seen, Knowledge(), 0), truth)
    assert scores.psnr_db[0] > score(Grey().reconstruct(seen, Knowledge(), 0), truth).psnr_db[0] + 1


def test_imprint_refuses_an_honest_classifier():
    with pytest.raises(UserError, match="but these clients got an honest one"):
        Imprint().reconstruct(artifact(smooth_images(2), SEVERAL[:2]), Knowledge(), 0)
