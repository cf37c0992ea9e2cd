"""Every attack and everything that a defence may do: the attack knows it and gains by that, or its record says that it does not.

What an attack knows is shown to help in one of three places: here (`CASES`), in tests/attacks/test_known_defenses.py (`PAIRS`,
`UPDATES`) and in tests/attacks/test_representation.py (`NAMES`). Or there is nothing to gain, because what the attack reads is the
same as without the defence (`NOTHING_LOST`, shown here too), or for a reason that stands in `NOTHING_GAINED`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, NamedTuple

import pytest
import torch

from attacks.crafted import dry_run, pilot
from attacks.imprint import Imprint
from attacks.label_distribution import LabelDistribution
from attacks.model_inconsistency import ModelInconsistency
from attacks.posterior import Posterior
from attacks.shadow import alignment, recipes, selection, shadow_federation
from attacks.shadow.recipes import Recipe
from attacks.staged import Staged
from defenses.clip import Clip
from defenses.dp_sgd import DPSGD
from defenses.gaussian import Gaussian
from defenses.none import NoDefense
from defenses.prune import Prune
from privbench import registry, written_defense
from privbench.defending import described
from privbench.defending.described import CLIPS_IMAGES
from privbench.observation import knowledge
from privbench.records import checks
from privbench.scoring.image_scores import psnr_db, psnr_of
from privbench.scoring.statement_scores import total_variation
from privbench.types import Artifact, Batch, Colluder, ExpectedUpload, Knowledge, Networks
from tests.attacks import test_claims, test_known_defenses, test_representation
from tests.attacks.test_known_defenses import CLIP, UNDESCRIBED, naive
from tests.attacks.test_model_inconsistency import attacked
from tests.builders.small_artifacts import (
    MODEL,
    artifact,
    defended,
    digits,
    images_like_the_victims,
    networks,
    smooth_images,
)

pytestmark = pytest.mark.usefixtures("small_shadows")

C = ("classifier",)
X, Y = smooth_images(3), torch.tensor([3, 0, 9])
WHOLE = Networks(networks(), {"extractor": {}, "classifier": {}})
KNOWN = Knowledge(
    images_like_the_victims(100), initial=WHOLE, colluder={0: Colluder(*WHOLE, images_like_the_victims(100))}, oracle={0: WHOLE}
)  # fmt: skip
# Through surrogates that are the victims' own extractor (`one_extractor`), so that training them takes no time.
BRIEF = {"steps": 20, "exact_steps": 20, "members": 1, "train_steps": 1, "shadow_rounds": 1, "shadow_steps": 1}
ALIGNED = BRIEF | {"align_steps": 1}


class Uploads(NamedTuple):
    """What a server sees, whose images it is of, and what the attacker holds besides."""

    seen: Artifact
    images: torch.Tensor  # [V, C, H, W]
    known: Knowledge


def unaware(uploads: Uploads) -> Uploads:
    """The same to an attacker who is told that there is a defence, and nothing of it."""

    def told(seen: Artifact) -> Artifact:
        return replace(seen, defense=UNDESCRIBED)

    known = uploads.known
    if known.known is not None:
        known = replace(known, known=known.known._replace(seen=told(known.known.seen)))
    if known.rounds is not None:
        known = replace(known, rounds=tuple(map(told, known.rounds)))
    return Uploads(told(uploads.seen), uploads.images, known)


def noised(seen: Artifact, variance: float, seed: int = 1) -> Artifact:
    """Gradients under Gaussian noise."""
    rng = torch.Generator().manual_seed(seed)
    gradients = {
        p: {n: t + variance**0.5 * torch.randn(t.shape, generator=rng) for n, t in net.items()}
        for p, net in seen.gradients.items()
    }
    return replace(seen, gradients=gradients, defense={"name": "gaussian", "variance": variance, "where": "step"})


def features(variance: float) -> Uploads:
    """The noised classifier's gradient of clients with the initial extractor, which they keep."""
    return Uploads(artifact(X, Y, C, noise=variance), X, KNOWN)


def untold(uploads: Callable[[float], Uploads], variance: float) -> Uploads:
    """Without a generator, whose moments would be those of other features."""
    made = uploads(variance)
    return made._replace(seen=replace(made.seen, uploads={}, upload_buffers={}))


def surprised(variance: float) -> Uploads:
    """Twelve images unlike what the network was trained on, so that their gradients stand out of some noise."""
    seen, x, known = test_claims.surprised()
    known = replace(known, auxiliary=Batch(*(t[:200] for t in known.auxiliary)))
    return Uploads(artifact(x[:, 0], torch.arange(len(x)) % 10, weights=seen.weights, noise=variance), x[:, 0], known)


def first(uploads: Callable[[float], Uploads], count: int, variance: float) -> Uploads:
    """The first few victims."""
    made = uploads(variance)
    return made._replace(seen=made.seen.select(torch.arange(count)), images=made.images[:count])


def calibrating(variance: float) -> Uploads:
    """Eight images of the client are known, with their uploads."""
    seen, x, known = test_claims.calibrating()
    of_known = known.known._replace(seen=noised(known.known.seen, variance, 2))
    return Uploads(noised(seen, variance), x[:, 0], replace(known, known=of_known))


def chaining(variance: float) -> Uploads:
    """The server kept eight uploads of two rounds."""
    seen, x, known = test_claims.chaining()
    rounds = tuple(noised(one, variance, 3 + i) for i, one in enumerate(known.rounds))
    return Uploads(noised(seen, variance), x[:, 0], replace(known, rounds=rounds))


def pruned(parts: tuple[str, ...]) -> Uploads:
    """A sixth of the entries of two digits' gradients."""
    x, y = digits(2)
    return Uploads(defended(Prune(0.17), x, y, parts), x, KNOWN)


def soteria() -> Uploads:
    """The classifier's gradient with columns of zeros."""
    seen, x, _ = test_representation.pruned(parts=C)
    return Uploads(seen, x, KNOWN)


@dataclass(frozen=True)
class Case:
    """An attack on a defence, and by how much more who knows the defence reconstructs, at least."""

    attack: str
    kind: str
    uploads: Callable[[], Uploads]
    settings: dict[str, Any] = field(default_factory=dict)
    gain_db: float = 1.0


UNSPLIT = {"turns": 5, "steps": 20, "lr": 0.05}
CASES = (
    Case("oracle", "noise", partial(features, 1e-8), {"steps": 40}, 3.0),
    Case("oracle-decoder", "noise", partial(features, 1e-7), {"decoder_steps": 60}),
    Case("collusion", "noise", partial(untold, features, 1e-8), ALIGNED, 3.0),
    Case("initial-surrogate", "noise", partial(untold, features, 1e-8), ALIGNED, 3.0),
    Case("surrogate", "noise", partial(untold, features, 1e-4), BRIEF, 3.0),
    Case("aligned-surrogate", "noise", partial(untold, features, 1e-4), ALIGNED, 3.0),
    Case("joint", "noise", partial(untold, features, 1e-4), ALIGNED | {"joint_steps": 3}, 3.0),
    Case("feature-hijacking", "noise", partial(features, 1e-4), BRIEF, 3.0),
    Case("calibrated", "noise", partial(calibrating, 1e-9), {"steps": 20, "fit_steps": 50, "refine_steps": 20}),
    Case("chained", "noise", partial(chaining, 1e-9), {"steps": 20, "fit_steps": 50, "find_steps": 20, "refine_steps": 20}),
    Case("learned-inverse", "noise", partial(surprised, 0.1), {"epochs": 8}),
    Case("staged", "noise", partial(first, surprised, 1, 1e-3), {"feature_steps": 15, "steps": 10, "starts": 3}),
    Case("unsplit", "prune", partial(pruned, ("extractor", "classifier")), UNSPLIT, 3.0),
    Case("oracle", "prune", partial(pruned, C), {"steps": 40}, 3.0),
    Case("unsplit", "columns", soteria, UNSPLIT),
    Case("oracle", "columns", soteria, {"steps": 40}, 3.0),
    Case("analytic-features", "columns", soteria, {"steps": 40}, 3.0),
)  # fmt: skip


@pytest.fixture
def one_extractor(monkeypatch):
    """Every surrogate, every shadow client's extractor and a pilot is the victims' own, and every shadow resembles its federation.

    So that a shadow validation decides by the noise alone.
    """
    extractor = networks()["extractor"]

    def of_all(settings, view, *_):
        return {victim: [extractor] for victim in view.victim.tolist()}

    for module, name in ((recipes, "trained_alone"), (alignment, "from_plain"), (alignment, "from_start")):
        monkeypatch.setattr(module, name, of_all)
    monkeypatch.setattr(
        shadow_federation, "_clients_of",
        lambda view, shares, *_: {f"extractor{k}/{n}": t for k in range(len(shares)) for n, t in extractor.items()},
    )  # fmt: skip
    monkeypatch.setattr(selection, "applies", lambda *_: True)
    monkeypatch.setattr(pilot.Hijacking, "pilot", lambda *_: (extractor, networks()["classifier"]))
    monkeypatch.setattr(
        pilot.Hijacking, "recipes",
        lambda self: (Recipe("pilot", partial(of_all, None), recipes.shadow_of(self.surrogates), {}, recipes.moment_shift),),
    )  # fmt: skip


def made(name, settings):
    return registry.create(registry.resolve("attack", name), settings)


def reconstructed(attack, uploads):
    images = attack.reconstruct(uploads.seen, test_claims.handed(attack, uploads.known), 0).images
    return images.float().flatten(0, 1)


@pytest.mark.usefixtures("one_extractor")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.attack}-{case.kind}")
def test_an_attacker_who_knows_the_defence_beats_the_same_attack_without(case):
    uploads, attack = case.uploads(), made(case.attack, case.settings)
    assert case.kind in described.kinds(uploads.seen.defense)
    aware, blind = (
        float(psnr_db(reconstructed(attack, each), each.images).mean()) for each in (uploads, unaware(uploads))
    )
    assert aware > blind + case.gain_db


def test_posterior_needs_the_noise_as_it_is():
    """Without noise it refuses, so that its naive form is one that is told of a hundredth of the variance."""
    uploads = first(surprised, 1, 1e-3)
    less = replace(uploads.seen, defense=uploads.seen.defense | {"variance": 1e-5})
    attack = Posterior(direction_steps=10, steps=30, starts=2)
    aware, blind = (
        float(psnr_db(reconstructed(attack, uploads._replace(seen=seen)), uploads.images).mean())
        for seen in (uploads.seen, less)
    )
    assert aware > blind + 2


def test_who_knows_clip_and_noise_states_label_distributions_better_than_who_knows_the_noise_alone():
    x, y = digits(30)
    seen = defended(DPSGD(noise=3.0, clip=CLIP), x, y)
    true = torch.bincount(y, minlength=10).double() / len(y)
    gaps = [
        float(total_variation(LabelDistribution().infer(each, Knowledge(), 0).answers, true[None]).mean())
        for each in (seen, naive(seen), replace(seen, defense=UNDESCRIBED))
    ]
    assert gaps[0] < gaps[1] - 0.02 < gaps[2] - 0.04


@pytest.fixture
def brief_imprint(monkeypatch):
    """A tenth of the steps: on these images and on three digits, who is told still ends 15 dB above who is not."""
    short = {"steps": 60, "feature_steps": 60, "peel_levels": 2}
    monkeypatch.setattr("attacks.imprint.Staged", lambda **chosen: Staged(**short | chosen))


def imprinted(expected, defense, batch, *, told):
    """Mean PSNR in dB of three images after the server sent what it crafts for uploads under the defence `expected`."""
    attack, networks_of_all = Imprint(rehearsal_images=0, feature_steps=60), Networks(networks(), WHOLE.buffers)
    known = replace(KNOWN, expected=ExpectedUpload(batch, expected))
    sent = networks() | attack.craft(MODEL, networks_of_all, known, 0).params
    victims = Batch(X.unflatten(0, (-1, batch)), Y.view(-1, batch))
    seen = dry_run.observed(MODEL, Networks(sent, {}), victims, ExpectedUpload(batch, defense), 0)
    seen = seen if told else replace(seen, defense=UNDESCRIBED)
    return dry_run.psnr_db(lambda seen: attack.reconstruct(seen, KNOWN, 0), seen, victims.images)


@pytest.mark.usefixtures("brief_imprint")
def test_an_active_server_that_expects_noise_drowns_it_and_one_that_does_not_reads_none_of_a_batch():
    noise = Gaussian(1e-3)
    aware, blind = imprinted(noise, noise, 3, told=True), imprinted(NoDefense(), noise, 3, told=False)
    assert aware > blind + 10
    # As without a defence: noise drowns under a saturated classifier.
    assert aware > imprinted(NoDefense(), NoDefense(), 3, told=True) - 1


@pytest.mark.usefixtures("brief_imprint")
def test_an_active_server_that_expects_a_clip_and_noise_puts_the_energy_where_it_tells_most():
    defense = DPSGD(noise=3e-4, clip=CLIP)
    aware, blind = imprinted(defense, defense, 1, told=True), imprinted(NoDefense(), defense, 1, told=False)
    assert aware > blind + 5


@pytest.mark.usefixtures("brief_imprint")
def test_clipping_alone_takes_nothing_from_an_active_server():
    clip = Clip(CLIP)
    assert imprinted(clip, clip, 3, told=True) > imprinted(NoDefense(), NoDefense(), 3, told=True) - 1


def test_who_isolates_a_client_under_noise_and_secure_aggregation_knows_the_noise(tmp_path, monkeypatch):
    """Its trial says that what it would craft overflows in fixed point, so that it is honest and weighs the noise."""
    monkeypatch.setattr("attacks.imprint.Staged", lambda **_: Staged(steps=20, feature_steps=20, peel_levels=2))
    monkeypatch.setattr("attacks.imprint.Posterior", lambda **_: Posterior(steps=10, direction_steps=10, starts=2))

    def recovered(folder, images, *, told):
        settings = {"target": 1, "rehearsal_images": images}
        seen, truth, _, _, known = attacked(folder, "gaussian:0.001+secure-aggregation", victims=2, **settings)
        seen = seen if told else replace(seen, defense=UNDESCRIBED)
        return float(psnr_of(ModelInconsistency(**settings).reconstruct(seen, known, 0), truth).mean())

    aware = recovered(tmp_path / "aware", 2, told=True)
    monkeypatch.setattr(dry_run, "gradient_noise_std", lambda *_: 0.0)
    assert aware > recovered(tmp_path / "naive", 0, told=False) + 5


# Features in closed form, and signs, stay as they are when the whole gradient is scaled down.
NOTHING_LOST = {
    "oracle": {"steps": 10}, "oracle-decoder": {"decoder_steps": 3}, "collusion": ALIGNED, "initial-surrogate": ALIGNED,
    "surrogate": BRIEF, "aligned-surrogate": ALIGNED, "feature-hijacking": BRIEF, "decoder": ALIGNED | {"decoder_steps": 3},
    "joint": ALIGNED | {"joint_steps": 3},
    "analytic-features": {"steps": 10}, "unsplit": {"turns": 2, "steps": 5},
    "calibrated": {"steps": 5, "fit_steps": 5, "refine_steps": 5},
    "chained": {"steps": 5, "fit_steps": 5, "find_steps": 5, "refine_steps": 5}, "staged": {"steps": 3, "feature_steps": 3},
}  # fmt: skip


@pytest.mark.usefixtures("one_extractor")
@pytest.mark.parametrize("name", NOTHING_LOST)
def test_clipping_alone_takes_nothing_from_an_attack_on_features(name):
    attack = made(name, NOTHING_LOST[name])
    exact = {"calibrated": test_claims.calibrating, "chained": test_claims.chaining}.get(name)
    seen, known = (lambda one: (one[0], one[2]))(exact()) if exact else (artifact(X, Y, C), KNOWN)
    each = [Uploads(seen, X, known), Uploads(clipped(seen), X, replace(
        known,
        known=None if known.known is None else known.known._replace(seen=clipped(known.known.seen)),
        rounds=None if known.rounds is None else tuple(map(clipped, known.rounds)),
    ))]  # fmt: skip
    one, other = (reconstructed(attack, uploads) for uploads in each)
    # Clipping rounds every entry once more, and a descent carries that on.
    torch.testing.assert_close(one, other, atol=1e-2, rtol=0)


def clipped(seen: Artifact) -> Artifact:
    """Every upload scaled down to the same norm, below that of the smallest."""
    norms = torch.stack([t.flatten(1).square().sum(1) for net in seen.gradients.values() for t in net.values()])
    norms = norms.sum(0).sqrt()
    bound = float(norms.min()) / 2
    gradients = {
        p: {n: t * (bound / norms).view(-1, *(1,) * (t.ndim - 1)) for n, t in net.items()}
        for p, net in seen.gradients.items()
    }
    return replace(seen, gradients=gradients, defense=Clip(bound).describe())


# Why nothing is gained where an attack knows what was done; the first entries are shown by the tests above or elsewhere.
FEATURES_STAY = "features in closed form do not change with the length of a gradient"
NOTHING_GAINED = {
    **{(name, kind): FEATURES_STAY for name in NOTHING_LOST for kind in ("clip", CLIPS_IMAGES)},
    **{(name, kind): "a gradient that is matched up to a factor has no length" for name in (
        "inverting-gradients", "extractor-matching") for kind in ("clip", CLIPS_IMAGES)},
    **{(name, "bottleneck"): "the encoder shows the features, and the networks show the encoder" for name in (
        "analytic-features", "oracle", "unsplit")},
    **{(name, kind): "clipping alone takes nothing from what was crafted" for name in (
        "imprint", "model-inconsistency", "fishing")
       for kind in ("clip", CLIPS_IMAGES)},
    **{("seer", kind): "features are a ratio of two parts of one gradient, whatever its length" for kind in ("clip", CLIPS_IMAGES)},
    # Shown in tests/attacks/test_layerwise_attack.py.
    **{("layerwise", kind): "a clip scales both sides of every equation alike" for kind in ("clip", CLIPS_IMAGES)},
    ("decoder", "noise"): "it keeps less of answers of more energy than in the shadow, told of the noise or not",
    **{("property-inference", kind): "domains are named rightly, told of the clip or not" for kind in ("clip", CLIPS_IMAGES)},
    ("label-distribution", "noise"): "told without the clip, the noise is the naive form of the test above",
}  # fmt: skip


@cache
def shown() -> set[tuple[str, str]]:
    """(attack, what a defence does) that a test shows to be worth knowing."""
    pairs = {(case.attack, case.kind) for case in CASES}
    pairs |= {
        ("posterior", "noise"),
        ("imprint", "noise"),
        ("model-inconsistency", "noise"),
        ("property-inference", "noise"),
    }
    pairs |= {("label-distribution", kind) for kind in ("clip", CLIPS_IMAGES)}
    for attack, name in test_known_defenses.PAIRS:
        pairs |= {
            (attack, kind) for kind in described.kinds(test_known_defenses.DEFENSES[name].describe() | NOISE[name])
        }
    pairs |= {("update-matching", name) for name in (*test_known_defenses.UPDATES, "noise")}
    pairs |= {("analytic-features", kind) for kind in ("noise", CLIPS_IMAGES, "prune")}
    pairs |= {(name, kind) for name in test_representation.NAMES for kind in ("columns", "bottleneck")}
    # The gradient of one image is the whole message; a whole update is of several gradients.
    return pairs | {(name, CLIPS_IMAGES) for name, kind in pairs if kind == "clip" and name != "update-matching"}


NOISE = {
    name: {"variance": v} if (v := one.noise_variance(1)) else {} for name, one in test_known_defenses.DEFENSES.items()
}


def test_everything_that_an_attack_knows_is_shown_to_help_or_to_need_no_help():
    known = {
        (name, kind)
        for name in registry.KINDS["attack"]
        for kind in getattr(registry.resolve("attack", name), "knows", frozenset())
    }
    assert known <= shown() | set(NOTHING_GAINED), known - shown() - set(NOTHING_GAINED)
    assert len(known) == 100
    # Nothing is excused twice, or of an attack that does not claim to know it.
    assert set(NOTHING_GAINED) - shown() <= known | {(name, CLIPS_IMAGES) for name, kind in known if kind == "clip"}


WRITTEN = {
    "none": "none", "gaussian": "gaussian:0.1", "dp-sgd": "dp-sgd:noise=1", "dp-adam": "dp-adam:noise=1",
    "dp-fedavg": "dp-fedavg:noise=1", "clip": "clip:1", "prune": "prune:0.1", "quantize": "quantize:4", "sign": "sign",
    "secure-aggregation": "secure-aggregation:masks", "soteria": "soteria:0.4", "precode": "precode:32",
}  # fmt: skip
DOES = {
    "none": (), "gaussian": ("noise",), "dp-sgd": (CLIPS_IMAGES, "noise"), "dp-adam": (CLIPS_IMAGES, "noise"),
    "dp-fedavg": ("clip", "noise"), "clip": ("clip",), "prune": ("prune",), "quantize": ("quantize",), "sign": ("sign",),
    # What it does is undone in the sum.
    "secure-aggregation": (), "soteria": ("columns",), "precode": ("bottleneck",),
}  # fmt: skip


@pytest.mark.parametrize("parts", [("extractor", "classifier"), C], ids=["broadcast", "private"])
@pytest.mark.parametrize("defense", WRITTEN)
def test_for_every_attack_a_defence_has_a_shown_form_or_the_record_says_that_the_attacker_does_not_know_it(
    defense, parts
):
    assert {*WRITTEN} == {*DOES} == {*registry.DEFENSES}
    chosen = written_defense.create(WRITTEN[defense], "update")
    variance = chosen.noise_variance(1)
    description = chosen.describe() | ({"variance": variance} if variance else {})
    seen = replace(artifact(X, Y, parts), defense=description)
    for name in registry.KINDS["attack"]:
        attack = registry.resolve("attack", name)
        messages = checks.defense_unknown(knowledge.not_modelled(attack, seen))
        reads = any(need.startswith(("gradient", "update")) for need in attack.needs | knowledge.uses(attack))
        unshown = [kind for kind in DOES[defense] if (name, kind) not in shown() | set(NOTHING_GAINED)]
        if reads and unshown:
            (message,) = messages
            assert message.sentence.startswith("this attacker does not know the defence"), name
            assert all(kind in message.sentence for kind in unshown), name
        # Of a private extractor `staged` knows less than it does where the extractor is broadcast.
        elif not (name == "staged" and defense in ("quantize", "sign") and "extractor" not in parts):
            assert not messages, (name, defense)


def test_where_the_extractor_is_private_rounding_signs_and_batches_clipped_image_by_image_are_not_known():
    def unknown(name, text, batch=1, parts=C):
        seen = replace(artifact(X[:2], Y[:2], parts, batch), defense=written_defense.create(text, "update").describe())
        return knowledge.not_modelled(registry.resolve("attack", name), seen)

    for text in ("quantize:4", "sign"):
        assert unknown("staged", text) == [text.partition(":")[0]]
        assert unknown("staged", text, parts=("extractor", "classifier")) == unknown("matching", text) == []
    assert unknown("matching", "dp-sgd:noise=0", batch=2) == [CLIPS_IMAGES]
    assert unknown("matching", "dp-sgd:noise=0") == []
    assert unknown("matching", "dp-sgd:noise=0", 2, ("extractor", "classifier")) == []
