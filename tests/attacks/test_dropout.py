"""Dropout before the classifier: a gradient tells which features it took away, and attacks go without these."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from attacks.analytic_features import AnalyticFeatures
from attacks.calibrated import Calibrated
from attacks.chained import Chained
from attacks.common import closed_form, gradient_distance, labels, problem
from attacks.crafted import saturated
from attacks.dlg import DLG
from attacks.features import disaggregation, gradient_signals, inversion
from attacks.oracle import Oracle
from attacks.shadow import known_extractor, shadow_federation
from attacks.staged import Staged
from attacks.unsplit import UnSplit
from privbench.observation import knowledge
from privbench.scoring.image_scores import psnr_db
from privbench.types import Batch, Knowledge, KnownImages, Networks
from tests.builders.small_artifacts import MODEL, artifact, images_like_the_victims, logits, networks, smooth_images

RATE = 0.2
DROPPING = replace(MODEL, dropout=RATE)
Y = torch.tensor([3, 0, 9, 5])
# Of the victims, then of eight other images of the same client.
WITH_OTHERS = torch.cat([Y, torch.tensor([1, 2, 3, 4, 6, 7, 8, 9])])
WHOLE = Knowledge(
    images_like_the_victims(),
    initial=Networks(networks(), {"extractor": {}, "classifier": {}}),
    oracle={0: Networks(networks(), {"extractor": {}, "classifier": {}})},
)


def masks(count, seed=5):
    return torch.rand(count, 16, 5, 5, generator=torch.Generator().manual_seed(seed)) < 1 - RATE


def shown(parts=("classifier",), batch_size=1, noise=0.0, labels=Y, weights=None, seed=5):
    """(artifact, true features, masks): gradients of a classifier that sees m h / (1 - p), by plain autograd."""
    count, weights = len(labels), weights or networks()
    x, keep = smooth_images(count), masks(count, seed)
    gradients = {part: {name: [] for name in weights[part]} for part in parts}
    rng = torch.Generator().manual_seed(1)
    for rows in torch.arange(count).split(batch_size):
        params = {p: {n: t.clone().requires_grad_() for n, t in net.items()} for p, net in weights.items()}
        h = logits(params, x[rows])[1]
        out, _ = MODEL.classifier.linear_layers(params["classifier"], h * keep[rows] / (1 - RATE))
        F.cross_entropy(out, labels[rows]).backward()
        for part in parts:
            for name, t in params[part].items():
                gradients[part][name].append(t.grad + noise**0.5 * torch.randn(t.shape, generator=rng))
    plain = artifact(x, labels, parts, batch_size=batch_size, noise=noise, known=True, weights=weights)
    stacked = {part: {name: torch.stack(each) for name, each in net.items()} for part, net in gradients.items()}
    return replace(plain, model=DROPPING, gradients=stacked), logits(weights, x)[1].double(), keep


def as_if_without(seen):
    """The same gradients to an attacker who takes what entered the classifier for the features."""
    return replace(seen, model=MODEL)


def mean_psnr(reconstruction):
    x = smooth_images(4)
    return float(psnr_db(reconstruction.images.flatten(0, 1), x).mean())


def test_the_kept_features_are_recovered_exactly_and_the_dropped_ones_are_unknown():
    seen, true, keep = shown()
    h, known = closed_form.of_single(seen)
    assert 0.7 < keep.float().mean() < 0.9
    assert torch.equal(known, keep)
    torch.testing.assert_close(h[keep], true[keep], atol=1e-6, rtol=0)
    for v, c in ((0, 0), (3, 15)):
        expected = true[v, c][keep[v, c]].mean()
        torch.testing.assert_close(h[v, c][~keep[v, c]], expected.expand(int((~keep[v, c]).sum())), atol=1e-6, rtol=0)
    torch.testing.assert_close(closed_form.seen(seen), true * keep / (1 - RATE), atol=1e-6, rtol=0)


def test_without_dropout_every_feature_is_what_was_seen():
    seen = artifact(smooth_images(4), Y, ("classifier",))
    assert closed_form.of_single(seen).known is None
    assert torch.equal(closed_form.closed_form(seen), closed_form.seen(seen))


def test_under_noise_features_are_right_on_average_and_their_variance_is_that_of_noise_and_mask():
    seen, true, _ = shown(noise=1e-8)
    (h, known), variance = closed_form.with_noise(seen)
    assert known is None
    squares = true.square().flatten(1).mean(1)
    # m / (1 - p) has mean 1 and variance p / (1 - p), so the mean of 1,600 features has sqrt(squares / 4 / 1600).
    assert abs(float((h - true).mean())) < 4 * float(squares.mean() / 4 / 1600) ** 0.5
    of_noise = closed_form.with_noise(as_if_without(seen))[1]
    # The energy of 400 features of about the same size varies by 2.5% with the mask, four times which is allowed.
    torch.testing.assert_close(variance, of_noise + RATE / (1 - RATE) * squares, rtol=0.1, atol=0)
    assert (variance > 10 * of_noise).all()


def test_a_channel_that_was_dropped_whole_takes_the_mean_of_the_others():
    h, known = torch.rand(2, 4, 3, 3), torch.ones(2, 4, 3, 3, dtype=torch.bool)
    known[0, 1] = False
    imputed = closed_form.imputed(h, known).h
    torch.testing.assert_close(imputed[0, 1], h[0][[0, 2, 3]].mean().expand(3, 3))
    assert torch.equal(imputed[1], h[1])


@pytest.mark.parametrize(
    ("attack", "parts"),
    [
        (Oracle(steps=80), ("classifier",)),
        (AnalyticFeatures(steps=80), ("classifier",)),
        (Staged(steps=30, feature_steps=60), ("extractor", "classifier")),
        (UnSplit(turns=10, steps=10), ("extractor", "classifier")),
    ],
    ids=["oracle", "analytic-features", "staged", "unsplit"],
)
def test_who_knows_of_dropout_reconstructs_more_than_who_takes_zeros_for_features(attack, parts):
    seen, _, _ = shown(parts)
    assert (
        mean_psnr(attack.reconstruct(seen, WHOLE, 0)) > mean_psnr(attack.reconstruct(as_if_without(seen), WHOLE, 0)) + 1
    )


# With masks and moved extractors of three seeds the gains over who takes zeros for features are 3.7 to 4.3 and 15 to 16 dB.
FIT = {"steps": 12, "fit_steps": 20, "refine_steps": 5}


@pytest.mark.parametrize("attack", [Calibrated(**FIT), Chained(find_steps=20, **FIT)], ids=["calibrated", "chained"])
def test_a_fit_to_features_goes_without_those_that_were_dropped(attack):
    """Of each image other features are missing in every round, as each step of training draws a mask of its own."""
    rng, start, victims, others = torch.Generator().manual_seed(1), networks(), torch.arange(4), torch.arange(4, 12)
    extractor = {n: t + 0.02 * t.std() * torch.randn(t.shape, generator=rng) for n, t in start["extractor"].items()}
    after = start | {"extractor": extractor}
    seen, first = shown(labels=WITH_OTHERS, weights=after)[0], shown(labels=WITH_OTHERS, seed=6)[0]
    seen, first = (replace(one, uploads={}, upload_buffers={}, round=r) for one, r in ((seen, 1), (first, 0)))

    def of(unaware):
        now, before = (as_if_without(one) if unaware else one for one in (seen, first))
        kept = now.select(others)
        known = KnownImages(smooth_images(12)[4:, None], kept, 0.0)
        return mean_psnr(
            attack.reconstruct(
                now.select(victims), replace(WHOLE, known=known, rounds=(before.select(others), kept)), 0
            )
        )

    assert of(unaware=False) > of(unaware=True) + 1


@pytest.mark.parametrize("exactly", [True, False], ids=["through the logit", "through the features"])
def test_an_inversion_does_not_look_at_what_was_dropped(exactly):
    seen, _, keep = shown()
    h, known = closed_form.of_single(seen)
    other = h.where(known, torch.rand(h.shape, generator=torch.Generator().manual_seed(2), dtype=h.dtype))
    prior, net = inversion.learned(WHOLE.auxiliary, 10, h), networks()["extractor"]

    def inverted(h):
        variance = torch.full((4,), 1e-4, dtype=h.dtype)
        return inversion.invert(MODEL, [[net]] * 4, prior, h, Y, variance, exact=exactly, steps=5, mask=known)

    assert torch.equal(inverted(h).x, inverted(other).x)
    assert not torch.equal(inverted(h).x, inversion.invert(
        MODEL, [[net]] * 4, prior, h, Y, torch.full((4,), 1e-4, dtype=h.dtype), exact=exactly, steps=5
    ).x)  # fmt: skip
    torch.testing.assert_close(inversion.spread(h, known)[0], h[0][keep[0]].var())
    posed, start = problem.make(seen, 0), problem.grey_start(seen)
    ends = [
        Staged(feature_steps=5).descents.invert(posed, closed_form.Features(t, known).batched(), None, start).x
        for t in (h, other)
    ]
    assert torch.equal(*ends)
    gap = gradient_distance.feature_distance(h[0] + 1, h[0], known[0])
    assert float(gap) == pytest.approx(1 / float(h[0][keep[0]].var(correction=0)))


def test_a_batch_whose_masks_differ_is_separated_and_its_images_attacked_one_by_one():
    seen, true, keep = shown(batch_size=2, labels=Y[:2])
    separated = disaggregation.disaggregate(seen, 0)
    assert separated.sound.all()
    undropped = closed_form.undropped(DROPPING, separated.h, closed_form.BLURRED)
    order = (separated.h[0][:, None] - true * keep / (1 - RATE)).flatten(2).norm(dim=2).argmin(1)
    assert sorted(order.tolist()) == [0, 1]
    assert torch.equal(undropped.known[0], keep[order])
    torch.testing.assert_close(undropped.h[0][undropped.known[0]], true[order][keep[order]], atol=2e-3, rtol=0)
    aware, unaware = (Oracle(steps=80).reconstruct(each, WHOLE, 0) for each in (seen, as_if_without(seen)))
    true_images = smooth_images(2)[None]

    def best_order(reconstruction):
        each = torch.stack(
            [psnr_db(reconstruction.images, true_images), psnr_db(reconstruction.images.flip(1), true_images)]
        )
        return float(each.mean(2).amax(0).mean())

    assert best_order(aware) > best_order(unaware) + 1


def test_gradient_matching_simulates_the_mask_that_it_saw():
    seen, _, _ = shown(("extractor", "classifier"))
    posed, x = problem.make(seen, 0), smooth_images(4).double()[:, None]

    def gap(posed, v):
        observed = {name: t[v] for name, t in posed.observed.items()}
        return float(
            gradient_distance.relative_distance(
                gradient_distance.gradient_products(posed, x[v], posed.labels[v], observed)
            )
        )

    unaware = problem.make(as_if_without(seen), 0)
    for v in range(4):
        # The images' own gradients, in single precision.
        assert gap(posed, v) < 1e-9
        assert gap(unaware, v) > 1e-4
    reconstruction = DLG(steps=8).reconstruct(seen, WHOLE, 0)
    assert (reconstruction.trace[:, -1] < reconstruction.trace[:, 0]).all()


def test_an_extractor_that_is_a_victims_own_is_distinguished_from_another_under_dropout_too():
    seen, _, _ = shown()
    real = shadow_federation.real(seen, WHOLE, 0, "test")
    assert torch.equal(real.known, masks(4))
    extractor, other = networks()["extractor"], networks(1)["extractor"]
    assert known_extractor.fitting(real, {0: extractor}, 40, 0, lambda *_: None) == {0}
    assert known_extractor.fitting(real, {0: other}, 40, 0, lambda *_: None) == set()


def test_a_shadow_federations_victims_lose_features_as_the_real_ones_do():
    seen, _, _ = shown()
    real = shadow_federation.real(seen, WHOLE, 0, "test")
    other, _ = shadow_federation.shadow(real, 1, 3, 0, WHOLE)
    assert 0.7 < other.known.float().mean() < 0.9
    # The same networks, whose gradients show all features.
    without, _ = shadow_federation.shadow(real._replace(known=None), 1, 3, 0, WHOLE)
    assert without.known is None
    assert torch.equal(other.h[other.known], without.h[other.known])
    assert not torch.equal(other.h, without.h)
    selected = shadow_federation.select(real, torch.tensor([2, 0]))
    assert torch.equal(selected.known, real.known[[2, 0]])


def test_cleared_gradients_of_a_saturated_classifier_keep_what_entered_it():
    seen, true, keep = shown()
    again = closed_form.of_single(saturated.denoised(seen))
    assert torch.equal(again.known, keep)
    torch.testing.assert_close(again.h[keep], true[keep], atol=1e-5, rtol=0)


def test_what_is_learned_from_loses_features_as_the_victims_do(monkeypatch):
    """Signals of the victims' own images: as many features are filled in, and the layers behind answer to what is left."""
    seen, _, keep = shown(("extractor", "classifier"))
    posed = problem.make(seen, 0, torch.float32)
    real = gradient_signals.observed(posed, labels.probabilities(seen)[:, 0])
    made = gradient_signals.simulated(posed, Batch(smooth_images(4), Y), True, torch.Generator().manual_seed(0))
    ones = replace(seen, model=MODEL)
    whole = gradient_signals.simulated(
        problem.make(ones, 0, torch.float32), Batch(smooth_images(4), Y), True, torch.Generator()
    )
    # Of 25 features of a channel, those filled in by the mean of the others repeat one another.
    repeated = [float((s.h.view(4, 16, 25).sort(-1).values.diff() == 0).double().mean()) for s in (real, made, whole)]
    assert repeated[0] == pytest.approx((25 * RATE - 1) / 24, abs=0.06)
    assert repeated[1] == pytest.approx((25 * RATE - 1) / 24, abs=0.06)
    assert repeated[2] == 0
    monkeypatch.setattr(torch.Tensor, "bernoulli_", lambda t, *_, **__: t.copy_(keep[:, None]))
    same = gradient_signals.simulated(posed, Batch(smooth_images(4), Y), True, torch.Generator())
    torch.testing.assert_close(same.d, real.d, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(same.h, real.h, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(same.e, real.e, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize(("defense", "known"), [({"name": "prune", "keep": 0.1}, ["dropout"]), ({"name": "none"}, [])])
def test_a_defence_whose_zeros_hide_dropout_is_said_to_be_unknown(defense, known):
    seen = replace(shown(("extractor", "classifier"))[0], defense=defense)
    assert knowledge.not_modelled(Staged(), seen) == known
    assert knowledge.not_modelled(Staged(), replace(seen, model=MODEL)) == []


def test_features_are_not_traded_for_gradients_where_a_defence_hides_what_was_dropped():
    """Soteria's columns of zeros: the inversion of features ends it, as a gradient with all features is another image's."""
    seen, _, _ = shown(("extractor", "classifier"))
    first, layer = seen.gradients["classifier"], MODEL.classifier.features_layer
    columns = torch.rand(400, generator=torch.Generator().manual_seed(3)) < 0.7
    gradients = seen.gradients | {"classifier": first | {f"{layer}.weight": first[f"{layer}.weight"] * columns}}
    hidden = replace(seen, gradients=gradients, defense={"name": "soteria", "rate": 0.3, "zeros": "columns"})
    short, long = (
        Staged(feature_steps=50, steps=steps, peel_iterations=0).reconstruct(hidden, Knowledge(), 0)
        for steps in (1, 60)
    )
    assert torch.equal(short.images, long.images)
    assert float(psnr_db(long.images[:, 0], smooth_images(4)).mean()) > 15
