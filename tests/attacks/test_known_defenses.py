"""Attackers who know the defence: closed forms that clipping leaves exact, what entries still say, and gains over not knowing."""

from dataclasses import replace

import pytest
import torch

from attacks.analytic_features import AnalyticFeatures
from attacks.common import closed_form, data_fit, gradient_distance, labels, problem
from attacks.features import unclipping
from attacks.floors import Grey
from attacks.inverting_gradients import InvertingGradients
from attacks.matching import Matching
from attacks.posterior import Posterior
from attacks.staged import Staged
from attacks.update_matching import UpdateMatching
from defenses.clip import Clip
from defenses.dp_adam import DPAdam
from defenses.dp_fedavg import DPFedAvg
from defenses.dp_sgd import DPSGD
from defenses.gaussian import Gaussian
from defenses.prune import Prune
from defenses.quantize import Quantize
from defenses.sign import Sign
from privbench import registry
from privbench.defending import described
from privbench.observation import knowledge, wire
from privbench.scoring.image_scores import psnr_db
from privbench.types import Knowledge, LocalSteps, Networks
from tests.builders.small_artifacts import artifact, defended, digits, images_like_the_victims, networks, update

X, Y = digits(2)
NOTHING = Knowledge()
# Of the gradients here, whose norms are 4.5 to 4.9.
CLIP = 0.3
# A name that says that there is a defence, and nothing of it.
UNDESCRIBED = {"name": "undescribed"}
DEFENSES = {
    "clip": Clip(CLIP),
    "dp-sgd": DPSGD(noise=3e-4, clip=CLIP),
    "dp-adam": DPAdam(noise=3e-4, clip=CLIP),
    "dp-fedavg": DPFedAvg(noise=3e-4, clip=CLIP),
    "gaussian": Gaussian(1e-8, clip=CLIP),
    "prune": Prune(0.1),
    "quantize": Quantize(4),
    "sign": Sign(),
}
SETTINGS = {
    "matching": Matching(steps=25),
    "inverting-gradients": InvertingGradients(steps=60, restarts=1),
    "staged": Staged(steps=40, feature_steps=40, peel_levels=1, starts=3),
    "posterior": Posterior(direction_steps=15, steps=15, starts=3),
}
PAIRS = [
    *(("matching", name) for name in ("clip", "prune", "quantize", "sign")),
    *(("inverting-gradients", name) for name in ("prune", "quantize", "sign")),
    *(("staged", name) for name in ("clip", "dp-sgd", "prune", "quantize", "sign")),
    *(("posterior", name) for name in ("dp-sgd", "dp-adam", "dp-fedavg", "gaussian")),
]


def naive(seen):
    """The same uploads, of which the attacker is told the variance of noise at most."""
    noise = {"variance": seen.defense["variance"]} if "variance" in seen.defense else {}
    return replace(seen, defense=UNDESCRIBED | noise)


def psnr(attack, seen, knowledge=NOTHING):
    return float(psnr_db(attack.reconstruct(seen, knowledge, 0).images.float(), X[: seen.victims, None]).mean())


@pytest.mark.parametrize(("attack", "name"), PAIRS)
def test_an_attacker_who_knows_the_defence_beats_the_same_attack_without(attack, name):
    seen = defended(DEFENSES[name], X[:1], Y[:1])
    known = Knowledge(auxiliary=images_like_the_victims()) if attack == "posterior" else NOTHING
    assert psnr(SETTINGS[attack], seen, known) > psnr(SETTINGS[attack], naive(seen), known) + 1


@pytest.mark.parametrize("defense", [Gaussian(1e-3), DPSGD(noise=1e-2, clip=CLIP), Prune(0.17)])
def test_features_of_a_private_extractor_are_read_better_by_who_knows_the_defence(defense):
    known = Knowledge(initial=Networks(networks(), {"extractor": {}, "classifier": {}}))
    seen, attack = defended(defense, X[:1], Y[:1], ("classifier",)), AnalyticFeatures(steps=60)
    assert psnr(attack, seen, known) > psnr(attack, replace(seen, defense=UNDESCRIBED), known) + 1


UPDATES = ("clip", "prune", "quantize", "sign")


@pytest.mark.parametrize(("name", "local_steps"), [*((name, 1) for name in UPDATES), ("clip", 5)])
def test_whole_updates_are_matched_as_the_defence_made_them(name, local_steps):
    seen = update(X[:1], Y[:1], LocalSteps(local_steps, {"kind": "sgd", "lr": 0.1, "weight_decay": 0.0}))
    defense, rng = Clip(CLIP / 10) if name == "clip" else DEFENSES[name], torch.Generator().manual_seed(1)
    each = [
        defense.message({p: {n: t[v] for n, t in net.items()} for p, net in seen.updates.items()}, rng)
        for v in range(1)
    ]
    sent = {p: {n: torch.stack([one[p][n] for one in each]) for n in net} for p, net in each[0].items()}
    # Signs leave so little that it takes more steps until the naive form has fitted what is not there.
    steps = 20 if name == "sign" else 8
    seen, attack = replace(seen, updates=sent, defense=defense.describe()), UpdateMatching(steps, start_steps=25)
    assert psnr(attack, seen) > psnr(attack, replace(seen, defense=UNDESCRIBED)) + 1


@pytest.mark.parametrize("parts", [("extractor", "classifier"), ("classifier",)])
@pytest.mark.parametrize("defense", [Clip(CLIP), DPSGD(noise=0.0, clip=CLIP)])
def test_clipping_alone_leaves_labels_and_features_exact_and_is_taken_back(defense, parts):
    seen, exact = defended(defense, X, Y, parts), artifact(X, Y, parts)
    assert torch.equal(labels.recover(seen)[:, 0], Y)
    torch.testing.assert_close(closed_form.closed_form(seen), closed_form.closed_form(exact), atol=1e-6, rtol=0)
    whole = unclipping.unclipped(seen)
    assert whole.defense == {"name": "none"}
    for part in parts:
        for name, t in exact.gradients[part].items():
            torch.testing.assert_close(whole.gradients[part][name], t, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("form", ["bf16", "fp16"])
def test_a_clipped_gradient_that_was_rounded_on_its_way_is_taken_back_and_is_not_exact_after_it(form):
    """What attacks took for a gradient of one image exactly would be refused as a larger batch's, since rounding adds rank."""
    exact = artifact(X, Y)
    clipped = defended(Clip(CLIP), X, Y)
    seen = replace(
        clipped, gradients=wire.rounded(clipped.gradients, form), defense=wire.described(clipped.defense, form)
    )
    whole = unclipping.unclipped(seen)
    assert whole.defense == {"name": "rounded", "wire": form}
    # Of a gradient's entries, relative to the largest: half a step of the format's mantissa, and as much again for the scale.
    error = {"bf16": 2**-8, "fp16": 2**-11}[form]
    for name, t in exact.gradients["classifier"].items():
        assert (whole.gradients["classifier"][name] - t).abs().max() < 2 * error * t.abs().max()
    assert psnr(Staged(steps=5, feature_steps=40, peel_levels=1), seen) > psnr(Grey(), seen) + 3


def test_what_was_clipped_and_noised_is_not_taken_back():
    seen = defended(DEFENSES["dp-sgd"], X, Y)
    assert unclipping.unclipped(seen) is seen


@pytest.mark.parametrize("name", ["clip", "prune", "quantize", "sign"])
def test_labels_survive(name):
    x, y = digits(20)
    assert torch.equal(labels.recover(defended(DEFENSES[name], x, y))[:, 0], y)


def test_a_class_is_as_probable_as_clipped_gradients_under_noise_leave_it():
    x, y = digits(30)
    seen = defended(DPSGD(noise=1.0, clip=CLIP), x, y)
    known, unknown = (
        labels.probabilities(each)[:, 0].gather(1, y[:, None]).log().mean() for each in (seen, naive(seen))
    )
    assert known > unknown + 1
    assert labels.probabilities(defended(DPSGD(noise=100.0, clip=CLIP), x, y)).max() < 0.3


def test_features_of_a_pruned_gradient_are_exact_where_it_shows_them():
    seen, exact = defended(Prune(0.17), X, Y), closed_form.closed_form(artifact(X, Y))
    features = closed_form.of_single(seen)
    assert 0 < features.known.double().mean() < 1
    torch.testing.assert_close(features.h[features.known], exact[features.known], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["prune", "quantize", "sign", "clip", "dp-sgd"])
@pytest.mark.parametrize("batch", [1, 2])
def test_the_true_image_explains_what_was_sent(name, batch):
    defense = DPSGD(noise=0.0, clip=CLIP) if name == "dp-sgd" else DEFENSES[name]
    seen = replace(defended(defense, X, Y, batch=batch), labels=Y.view(-1, batch))
    posed = problem.make(seen, 0)
    data = {n: t[0] for n, t in problem.data(posed).items()}
    gaps = [
        float(gradient_distance.relative_distance(gradient_distance.fitted_products(posed, x, data)))
        for x in (X[:batch].double(), torch.full_like(X[:batch], 0.5).double())
    ]
    assert gaps[0] < 1e-4 * gaps[1]


def test_a_private_extractor_leaves_the_scale_of_clipping_to_be_fitted():
    seen = defended(DPSGD(noise=0.0, clip=CLIP), X, Y, ("classifier",))
    posed = problem.make(seen, 0)
    assert not posed.fit.norm_seen
    assert data_fit.clip_scale(posed.fit, torch.tensor(4.0), torch.tensor(1.0)) == 0.25
    assert data_fit.clip_scale(posed.fit, torch.tensor(4.0), torch.tensor(5.0)) == 1
    # The bound of a message is that of the parts that are sent.
    assert data_fit.of(defended(Clip(CLIP), X, Y, ("classifier",))).norm_seen


def test_the_nearest_gradient_moves_entries_into_their_intervals():
    sent, g = torch.tensor([0.0, 3.0, 0.0, -2.0]), torch.tensor([-5.0, 1.0, 0.5, -2.5])
    (pruned,) = data_fit.nearest(data_fit.DataFit(pruned=True), {"w": g}, {"w": sent}).values()
    assert pruned.tolist() == [-2.0, 3.0, 0.5, -2.0]
    (rounded,) = data_fit.nearest(data_fit.DataFit(levels=3), {"w": g}, {"w": sent}).values()
    assert rounded.tolist() == [-1.0, 2.0, 0.5, -2.5]
    signs = torch.tensor([2.0, 2.0, -2.0, -2.0])
    (of_signs,) = data_fit.nearest(data_fit.DataFit(signs=True), {"w": g}, {"w": signs}).values()
    assert of_signs.tolist() == pytest.approx([0.0, 8 / 3.5, 0.0, -2.5 * 8 / 3.5])


def test_what_a_defence_does_is_read_from_its_description():
    kinds = {name: described.kinds(defended(defense, X, Y).defense) for name, defense in DEFENSES.items()}
    assert kinds == {
        "clip": {"clip"}, "dp-sgd": {"clip images", "noise"}, "dp-adam": {"clip images", "noise"},
        "dp-fedavg": {"clip", "noise"}, "gaussian": {"clip", "noise"}, "prune": {"prune"}, "quantize": {"quantize"},
        "sign": {"sign"},
    }  # fmt: skip
    assert described.kinds({"name": "none"}) == described.kinds(Gaussian(0.0).describe()) == set()
    assert described.kinds({"name": "somebody:Elses"}) == {"somebody:Elses"}


def test_an_attack_says_what_of_a_defence_it_has_no_form_for():
    seen = replace(artifact(X, Y), defense={"name": "prune", "keep": 0.1, "variance": 0.1})
    not_modelled = {
        name: knowledge.not_modelled(registry.resolve("attack", name), seen)
        for name in ("grey", "class-mean", "dlg", "matching", "posterior", "staged")
    }
    assert not_modelled == {
        "grey": [], "class-mean": [], "dlg": ["noise", "prune"], "matching": ["noise"], "posterior": ["prune"], "staged": [],
    }  # fmt: skip


GRADIENT_ALONE = {
    name: registry.create(registry.resolve("attack", name), {"steps": 3})
    for name in ("dlg", "idlg", "grnn", "inverting-gradients", "matching", "extractor-matching")
} | {"staged": Staged(steps=3, feature_steps=3, peel_iterations=1, peel_levels=1)}
# A cosine, and a gradient that is matched up to a factor, do not mind the scale.
ANY_SCALE = ("extractor-matching", "inverting-gradients")


@pytest.mark.parametrize("name", GRADIENT_ALONE)
def test_an_attack_reads_of_a_defence_what_it_says_that_it_knows_and_nothing_else(name):
    attack = GRADIENT_ALONE[name]
    knows = getattr(type(attack), "knows", frozenset())
    assert knows <= described.EVERY_KIND
    for kind in ("clip", "prune", "quantize", "sign"):
        seen = defended(DEFENSES[kind], X[:1], Y[:1])
        with_it, without = (
            attack.reconstruct(each, NOTHING, 0).images for each in (seen, replace(seen, defense=UNDESCRIBED))
        )
        scaled = kind == "clip" and name in ANY_SCALE
        assert torch.equal(with_it, without) == (kind not in knows or scaled), kind


def test_every_attack_knows_kinds_that_there_are():
    for name in registry.ATTACKS:
        assert getattr(registry.resolve("attack", name), "knows", frozenset()) <= described.EVERY_KIND, name
    assert data_fit.EVERY == described.EVERY_KIND
