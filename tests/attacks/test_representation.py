"""Attackers who know of Soteria and PRECODE, against the same attacks without that knowledge; gradients by plain autograd."""

from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F

from attacks.common import bottleneck, closed_form, gradient_distance, labels, problem
from attacks.dlg import DLG
from attacks.imprint import Imprint
from attacks.inverting_gradients import InvertingGradients
from attacks.learned_inverse import LearnedInverse
from attacks.matching import Matching
from attacks.oracle import Oracle
from attacks.shadow import shadow_federation
from attacks.staged import Staged
from defenses.precode import Precode
from defenses.soteria import Soteria
from privbench.errors import AttackRefused
from privbench.execution import applicability, one_attack
from privbench.networks.model import Model
from privbench.scoring.image_scores import psnr_db
from privbench.seeds import stream
from privbench.types import Knowledge, Networks
from tests.builders.small_artifacts import (
    MODEL,
    artifact,
    central_network,
    images_like_the_victims,
    logits,
    networks,
    smooth_images,
)

Y = torch.tensor([3, 0])
RATE, SIZE = 0.4, 32
BOTTLENECKED = Precode(SIZE).network(MODEL)
WHOLE = Knowledge(images_like_the_victims(), oracle={0: Networks(networks(), {"extractor": {}, "classifier": {}})})
DESCENTS = [
    Staged(steps=20, feature_steps=20), DLG(steps=20, start="grey"), Matching(steps=20),
    InvertingGradients(steps=60, restarts=1),
]  # fmt: skip
TRAINED = Staged(steps=30, feature_steps=30)
NAMES = ["staged", "dlg", "matching", "inverting-gradients"]


@cache
def victims(trained):
    """(networks, images, labels): untrained on smooth images, or after 400 steps on digits."""
    if not trained:
        return networks(), smooth_images(2), Y
    weights, test, _ = central_network(400, 0)
    return weights, test.images[:2], test.labels[:2]


def pruned(trained=False, parts=("extractor", "classifier"), batch_size=1):
    """(artifact under Soteria, images, the entries that it left)."""
    weights, x, y = victims(trained)
    plain, defense = artifact(x, y, parts, weights=weights, batch_size=batch_size), Soteria(RATE)
    whole = {p: {n: t.clone() for n, t in net.items()} for p, net in plain.gradients.items()}
    for v, images in enumerate(x.split(batch_size)):
        one = {p: {n: t[v] for n, t in net.items()} for p, net in plain.gradients.items()}
        made = defense.representation(one, MODEL, (weights, {}), images)
        whole["classifier"]["fc1.weight"][v] = made["classifier"]["fc1.weight"]
    left = whole["classifier"]["fc1.weight"].any(1)
    return replace(plain, gradients=whole, defense=defense.describe()), x, left


def unaware(seen):
    """The same to an attacker who takes zeros for what the client computed."""
    return replace(seen, defense={"name": "another"})


def noise(v, batch_size):
    return torch.randn(batch_size, SIZE, generator=torch.Generator().manual_seed(v))


def bottlenecked(trained=False, parts=("extractor", "classifier"), batch_size=1, model=BOTTLENECKED):
    """(artifact under PRECODE, images, the true features)."""
    weights, x, y = victims(trained)
    if model.backbone != "lenet5":
        weights = {part: model.net(part).init(stream(0, "test", part))[0] for part in parts}
    drawn = model.classifier.init(stream(2, "test", "bottleneck"))[0]
    weights = weights | {"classifier": drawn | weights["classifier"]}
    state = {part: model.net(part).init(stream(0, "test", part))[1] for part in ("extractor", "classifier")}
    each = {part: {name: [] for name in weights[part]} for part in parts}
    for v, (images, classes) in enumerate(zip(x.split(batch_size), y.split(batch_size), strict=True)):
        params = {p: {n: t.clone().requires_grad_() for n, t in net.items()} for p, net in weights.items()}
        h, _ = model.net("extractor").apply(params["extractor"], state["extractor"], images, train=False)
        out, _ = model.classifier.apply(params["classifier"], state["classifier"], h, noise(v, batch_size), train=False)
        kl = model.classifier.divergence(params["classifier"], h).mean()
        (F.cross_entropy(out, classes) + model.kl_weight * kl).backward()
        for part in parts:
            for name, t in params[part].items():
                each[part][name].append(t.grad)
    plain = artifact(x, y, parts, batch_size=batch_size, known=True)
    h, _ = model.net("extractor").apply(weights["extractor"], state["extractor"], x, train=False)
    return replace(
        plain, model=model, weights={p: weights[p] for p in parts}, buffers={p: state[p] for p in parts},
        gradients={p: {n: torch.stack(t) for n, t in net.items()} for p, net in each.items()},
        defense=Precode(SIZE).describe(),
    ), x, h.detach()  # fmt: skip


def without_noise(monkeypatch):
    """From now on attackers take every bottleneck at its mean."""
    monkeypatch.setattr(bottleneck, "noise", lambda artifact: None)
    monkeypatch.setattr(bottleneck, "minimise", lambda model, objective, start, data, descend: descend(
        objective, start, data
    ))  # fmt: skip


def mean_psnr(attack, seen, x, knowledge=WHOLE):
    reconstruction = attack.reconstruct(seen, knowledge, 0)
    return float(psnr_db(reconstruction.images.flatten(0, 1), x).mean())


def test_features_that_soteria_left_are_exact_and_the_pruned_ones_unknown():
    seen, x, left = pruned(parts=("classifier",))
    h, known = closed_form.of_single(seen)
    true = logits(networks(), x)[1].double()
    assert int((~left).sum()) == 2 * round(RATE * 400)
    assert torch.equal(known.flatten(1), left)
    torch.testing.assert_close(h[known], true[known], atol=1e-6, rtol=0)
    assert closed_form.of_single(unaware(seen)).known is None


@pytest.mark.parametrize("batch_size", [1, 2])
def test_the_distance_of_a_true_image_is_zero_without_the_pruned_columns_alone(batch_size):
    seen, x, _ = pruned(batch_size=batch_size)
    for each, explains in ((seen, True), (unaware(seen), False)):
        posed = problem.make(each, 0)
        posed = posed._replace(labels=Y.view(-1, batch_size))
        data = {n: t[0] for n, t in problem.data(posed).items()}
        gap = gradient_distance.relative_distance(
            gradient_distance.candidate_products(posed, x[:batch_size].double(), data)
        )
        assert (float(gap) < 1e-9) == explains
        assert (float(gap) > 1e-4) != explains


def test_labels_of_batches_are_as_exact_under_soteria_as_without():
    seen, _, _ = pruned(batch_size=2)
    assert torch.equal(labels.recover(seen), Y.sort().values[None])
    assert int(labels.fewest(seen).sum()) == 2


@pytest.mark.parametrize("attack", DESCENTS, ids=NAMES)
def test_who_knows_of_soteria_reconstructs_more_than_who_matches_zeros(attack):
    seen, x, _ = pruned()
    assert mean_psnr(attack, seen, x) > mean_psnr(attack, unaware(seen), x) + 2


def test_and_so_on_a_trained_network_and_where_the_extractor_is_private():
    seen, x, _ = pruned(trained=True)
    assert mean_psnr(TRAINED, seen, x) > mean_psnr(TRAINED, unaware(seen), x) + 5
    seen, x, _ = pruned(parts=("classifier",))
    oracle = Oracle(steps=40)
    assert mean_psnr(oracle, seen, x) > mean_psnr(oracle, unaware(seen), x) + 3


def test_a_shadow_federation_loses_as_many_features_as_soteria_prunes():
    seen, _, _ = pruned(parts=("classifier",))
    real = shadow_federation.real(seen, WHOLE, 0, "test")
    dropped = shadow_federation.dropped(real, torch.rand(20, 16, 5, 5), 0)
    # Of 8,000 draws: four standard errors.
    assert float(dropped.known.double().mean()) == pytest.approx(1 - RATE, abs=4 * (0.24 / 8_000) ** 0.5)


@pytest.mark.parametrize("trained", [False, True], ids=["untrained", "trained"])
def test_precode_before_a_linear_encoder_hides_no_feature_from_the_closed_form(trained):
    """The finding: the encoder's gradient is d h', so that h and eps follow whatever eps was."""
    seen, _, true = bottlenecked(trained)
    h, known = closed_form.of_single(seen)
    assert known is None
    torch.testing.assert_close(h, true.double(), atol=2e-6, rtol=0)
    eps = torch.stack([noise(v, 1) for v in range(2)]).double()
    torch.testing.assert_close(bottleneck.noise(seen), eps, atol=1e-4, rtol=0)


def test_precode_shows_the_features_of_a_classifier_that_shows_none_by_itself():
    resnet = Model("resnet18", 1, 10)
    assert resnet.classifier.features_layer is None
    seen, _, true = bottlenecked(parts=("extractor", "classifier"), model=Precode(SIZE).network(resnet))
    torch.testing.assert_close(closed_form.of_single(seen).h, true.double(), atol=1e-4, rtol=1e-4)
    plain = replace(seen, model=resnet)
    assert closed_form.of_single(plain) is None


@pytest.mark.parametrize("batch_size", [1, 2])
def test_the_true_image_and_noise_explain_a_bottlenecked_gradient_and_the_mean_does_not(batch_size):
    seen, x, _ = bottlenecked(batch_size=batch_size)
    posed = problem.make(seen, 0)
    data = {n: t[0] for n, t in problem.data(posed).items()}
    assert (bottleneck.NOISE in data) == (batch_size == 1)

    def gap(data):
        products = gradient_distance.candidate_products(posed, x[:batch_size].double(), data)
        return float(gradient_distance.relative_distance(products))

    assert gap(data | {bottleneck.NOISE: noise(0, batch_size).double()}) < 1e-9
    assert gap({n: t for n, t in data.items() if n != bottleneck.NOISE}) > 1e-3


@pytest.mark.parametrize("attack", DESCENTS, ids=NAMES)
def test_who_samples_as_the_client_did_reconstructs_more_than_who_takes_the_mean(attack, monkeypatch):
    seen, x, _ = bottlenecked()
    aware = mean_psnr(attack, seen, x)
    without_noise(monkeypatch)
    assert aware > mean_psnr(attack, seen, x) + 2


def test_staged_reconstructs_a_trained_networks_images_through_precode_almost_exactly(monkeypatch):
    seen, x, _ = bottlenecked(trained=True)
    assert mean_psnr(Staged(), seen, x) > 40
    without_noise(monkeypatch)
    assert mean_psnr(TRAINED, seen, x) < 20


@pytest.mark.parametrize("attack", [DESCENTS[1], DESCENTS[2], DESCENTS[3]], ids=NAMES[1:])
def test_a_batchs_noise_is_descended_on_with_its_images(attack, monkeypatch):
    seen, x, _ = bottlenecked(batch_size=2)
    aware = attack.reconstruct(seen, WHOLE, 0)
    assert aware.images.shape == (1, 2, 1, 32, 32)
    without_noise(monkeypatch)
    naive = attack.reconstruct(seen, WHOLE, 0)

    def best(reconstruction):
        both = [
            float(psnr_db(images, x).mean()) for images in (reconstruction.images[0], reconstruction.images[0].flip(0))
        ]
        return max(both)

    assert float(aware.loss) < float(naive.loss)
    assert best(aware) > best(naive) + 0.2


def test_attacks_on_features_and_learned_inverses_read_the_encoder():
    seen, x, _ = bottlenecked(parts=("classifier",))
    assert mean_psnr(Oracle(steps=80), seen, x) > 20
    seen, x, _ = bottlenecked()
    reconstruction = LearnedInverse(epochs=2).reconstruct(seen, WHOLE, 0)
    assert reconstruction.images.isfinite().all()


def test_an_active_server_that_crafts_the_first_layer_is_refused_before_a_bottleneck():
    seen, _, _ = bottlenecked()
    fault = applicability.exceeded_by("imprint", Imprint.limits, seen)
    assert "bottleneck; try --attack staged" in fault
    with pytest.raises(AttackRefused, match="crafts the first layer"):
        one_attack.check_needs("imprint", Imprint(), seen)
