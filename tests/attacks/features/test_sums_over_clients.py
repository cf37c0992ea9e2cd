"""Sums over clients that count for different weights: labels counted, features separated, gradients and updates matched."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from attacks.common import gradient_distance, labels, problem, updates
from attacks.crafted import gradient_bins
from attacks.features import disaggregation, per_image
from attacks.staged import Staged
from privbench.networks.model import Model
from privbench.scoring.image_scores import score
from privbench.spec import Adam
from privbench.types import Knowledge, LocalSteps, Truth
from tests.builders.small_artifacts import artifact, logits, networks, smooth_images, update

LABELS = torch.tensor([1, 7, 3, 7, 0, 4])
SHARES = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
SECURE = {"name": "secure-aggregation", "backend": "masks", "exact": True}


def summed(y=LABELS, shares=SHARES, weights=None):
    """Sums of one image of each of K clients: the last is of `y` from K on, and so forth."""
    clients, each = len(shares), artifact(smooth_images(len(y)), y, weights=weights)

    def weighted(t):
        return torch.einsum("k,vk...->v...", shares.to(t), t.unflatten(0, (-1, clients)))

    return replace(
        each, gradients={p: {n: weighted(t) for n, t in net.items()} for p, net in each.gradients.items()},
        client=each.client[::clients], batch_size=clients, defense=SECURE,
        member_weights=shares.expand(len(y) // clients, -1).clone(),
    )  # fmt: skip


def confident(strength=20.0):
    """Networks with uneven predictions, as training makes them."""
    params = networks()
    params["classifier"]["fc3.weight"] = strength * params["classifier"]["fc3.weight"]
    return params


@pytest.mark.parametrize("params", [None, confident()])
def test_labels_are_assigned_to_the_images_that_weigh_as_much(params):
    seen = summed(weights=params)
    assert labels.recover(seen).tolist() == LABELS.view(2, 3).tolist()
    assert (labels.fewest(seen).sum(1) >= 2).all()


def test_taking_sums_for_means_recovers_other_labels():
    """Why weights matter: -B dL/db of the heaviest image's class says twice as many as there are."""
    y = torch.tensor([1, 7, 3])
    shares = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    naive = replace(summed(y, shares), member_weights=None)
    assert labels.recover(summed(y, shares)).tolist() == [[1, 7, 3]]
    assert labels.recover(naive).sort().values.tolist() != [[1, 3, 7]]


def test_assigned_labels_are_the_nearest_of_all():
    """Against every assignment of six images to three classes."""
    rng = torch.Generator().manual_seed(0)
    every = torch.cartesian_prod(*[torch.arange(3)] * 6)
    nearest = 0
    for _ in range(20):
        weights = torch.rand(6, generator=rng, dtype=torch.float64)
        weights = weights / weights.sum()
        truth = torch.randint(3, (6,), generator=rng)
        shares = torch.zeros(3, dtype=torch.float64).index_add(0, truth, weights)
        of_all = torch.zeros(len(every), 3, dtype=torch.float64).scatter_add(1, every, weights.expand(len(every), -1))
        chosen = labels.assigned(shares, torch.zeros(3, dtype=torch.int64), weights)
        gap = (torch.zeros(3, dtype=torch.float64).index_add(0, chosen, weights) - shares).square().sum()
        assert gap <= (of_all - shares).square().sum(1).sort().values[len(every) // 20]
        nearest += bool((chosen == truth).all())
    # The search takes single steps, so that it may end elsewhere; chance is 1 in 729.
    assert nearest >= 8


def test_a_label_that_is_known_to_be_there_is_assigned():
    shares, weights = torch.tensor([1.0, 0.0], dtype=torch.float64), torch.tensor([0.6, 0.4], dtype=torch.float64)
    assert labels.assigned(shares, torch.tensor([0, 0]), weights).tolist() == [0, 0]
    assert labels.assigned(shares, torch.tensor([1, 1]), weights).tolist() == [0, 1]


def test_equal_weights_are_a_batch():
    y, even = LABELS[:3], torch.full((3,), 1 / 3, dtype=torch.float64)
    seen, batch = summed(y, even), artifact(smooth_images(3), y, batch_size=3)
    assert seen.image_weights is None
    assert torch.equal(labels.fewest(seen), labels.fewest(batch))
    assert labels.recover(seen).tolist() == labels.recover(batch).tolist()


@pytest.fixture(scope="module")
def separated():
    """Of both sums."""
    return disaggregation.disaggregate(summed(), 0)


def test_separated_features_are_the_true_ones_each_with_its_own_weight(separated):
    true = logits(networks(), smooth_images(6))[1].double().flatten(1)
    assert separated.sound.all()
    assert separated.labels.tolist() == LABELS.view(2, 3).tolist()
    spread = (true - true.mean(0)).norm(dim=1).mean()
    assert (separated.h.flatten(0, 1).flatten(1) - true).norm(dim=1).max() < 1e-3 * spread


def test_taking_sums_for_means_separates_nothing():
    naive = replace(summed(), member_weights=None, labels=LABELS.view(2, 3))
    assert not disaggregation.disaggregate(naive, 0).sound.any()


def test_an_exchange_between_weights_is_found_by_the_residual(monkeypatch):
    seen = summed().select(torch.tensor([0]))
    monkeypatch.setattr(labels, "recover", lambda seen: torch.tensor([[7, 1, 3]]))
    monkeypatch.setattr(labels, "fewest", lambda seen: torch.zeros(1, 10, dtype=torch.int64))
    assert disaggregation.disaggregate(seen, 0).labels.tolist() == [[1, 7, 3]]


def test_separated_images_become_uploads_of_one_image_each(separated):
    singles = per_image.singles(summed(), separated)
    alone = artifact(smooth_images(6), LABELS).gradients["classifier"]["fc1.weight"]
    torch.testing.assert_close(singles.gradients["classifier"]["fc1.weight"].float(), alone, rtol=1e-2, atol=1e-5)
    assert (singles.batch_size, singles.senders, singles.image_weights) == (1, 1, None)


def test_the_true_images_match_a_sum_and_its_mean_does_not():
    for seen, low in ((summed(), True), (replace(summed(), member_weights=None), False)):
        posed = problem.make(replace(seen, labels=LABELS.view(2, 3)), 0)
        data = {name: t[0] for name, t in problem.data(posed).items()}
        products = gradient_distance.candidate_products(posed, smooth_images(6)[:3].double(), data)
        assert (float(gradient_distance.layer_scaled_distance(products)) < 1e-8) == low


def test_staged_inverts_every_client_s_image():
    seen = summed(LABELS[:3])
    truth = Truth(smooth_images(6)[None, :3], LABELS[None, :3])
    scores = score(Staged(feature_steps=60, steps=40).reconstruct(seen, Knowledge(), 0), truth)
    naive = score(
        Staged(feature_steps=60, steps=40).reconstruct(replace(seen, member_weights=None), Knowledge(), 0), truth
    )
    assert scores.label_accuracy[0] == 1
    assert scores.psnr_db[0] > 20
    assert scores.psnr_db[0] > naive.psnr_db[0] + 5


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_simulated_steps_of_each_client_add_up_to_the_observed_update(kind):
    setting = {"kind": "sgd", "lr": 0.1, "weight_decay": 0.0} if kind == "sgd" else Adam(lr=1e-3).model_dump()
    local = LocalSteps(3, setting)
    each = update(smooth_images(3), LABELS[:3], local)
    change = {
        p: {n: torch.einsum("k,k...->...", SHARES.to(t), t)[None] for n, t in net.items()}
        for p, net in each.updates.items()
    }
    seen = replace(
        each, updates=change, client=each.client[:1], batch_size=3, defense=SECURE, member_weights=SHARES[None]
    )
    posed = problem.make(updates.as_gradient(seen, local), 0)
    simulated = updates.local_change(posed, smooth_images(3).double(), LABELS[:3], local, seen.image_weights[0])
    for name, t in updates.observed(seen).items():
        # What single precision adds to three steps, and to the sign of gradients near 0 under Adam.
        assert float((simulated[name] - t[0]).norm()) < (5e-3 if kind == "sgd" else 0.05) * float(t.norm())
    assert updates.without_adam(seen) == (seen, {})


def test_batch_norm_has_the_statistics_of_each_client_s_images():
    model = Model("resnet18", 3, 10)
    net = model.net("extractor")
    params, buffers = net.init(torch.Generator().manual_seed(0))
    posed = problem.InversionProblem(
        model, {"extractor": params}, {"extractor": buffers}, True, {}, torch.zeros(0), True, 0.0, senders=2
    )
    x = smooth_images(4, channels=3)
    each = [net.apply(params, buffers, half, train=True)[0] for half in x.chunk(2)]
    assert torch.equal(problem.features(posed, x), torch.cat(each))
    assert not torch.allclose(problem.features(posed, x), net.apply(params, buffers, x, train=True)[0])


def test_rows_of_a_crafted_layer_show_labels_whatever_the_weight_of_their_image():
    seen = summed(LABELS[:3])
    for k in range(3):
        x = smooth_images(6)[k : k + 1]
        params = {p: {n: t.clone().requires_grad_() for n, t in net.items()} for p, net in networks().items()}
        F.cross_entropy(logits(params, x)[0], LABELS[k : k + 1]).backward()
        alone = SHARES[k] * params["classifier"]["fc1.bias"].grad
        one = replace(seen, gradients={"classifier": {"fc1.bias": alone[None]}})
        h = logits(networks(), x)[1][0].double()
        label, gap = gradient_bins.likeliest_label(one, 0, h, torch.arange(50))
        assert label == LABELS[k]
        assert gap < 1e-4
