"""Where the fit of `calibrated` begins, and what an attacker has to know for that."""

from dataclasses import replace

import torch

from attacks.calibrated import Calibrated
from attacks.shadow import recipes, shadow_federation
from attacks.shadow.fitting import calibrated_extractors, refinement
from attacks.shadow.settings import SurrogateSettings
from privbench import presets, registry
from privbench.execution import attack_cell
from privbench.execution.one_attack import attack_artifact
from privbench.scoring.image_scores import psnr_db
from privbench.seeds import stream
from privbench.types import Knowledge, KnownImages, Networks
from tests.builders.refusals import refused
from tests.builders.small_artifacts import MODEL, artifact, images_like_the_victims, networks, smooth_images

C, CPU = ("classifier",), torch.device("cpu")
X, Y = smooth_images(5), torch.arange(5)
SHORT = {"steps": 3, "fit_steps": 3, "refine_steps": 0}


def scene(initial=0):
    """Three victims of two clients, whose extractor is that of seed 0, one known image of each, and the networks of some start."""
    seen = artifact(X[:3], Y[:3], C, weights=networks(0))
    seen = replace(seen, client=torch.tensor([0, 1, 0]), uploads={}, upload_buffers={})
    of_known = replace(artifact(X[3:], Y[3:], C, weights=networks(0), known=True), client=torch.tensor([0, 1]))
    begun = Networks(networks(initial), {"extractor": {}, "classifier": {}})
    known = KnownImages(X[3:, None], of_known, 0.0)
    return seen, Knowledge(images_like_the_victims(), initial=begun, known=known)


def begun_at(monkeypatch, seen, whole, **settings):
    """The extractors that the fits of one run begin at, one a client."""
    noted, original = [], refinement.kinds

    def kinds(how, steps, prior, starts, *rest):
        noted.extend(starts)
        return original(how, steps, prior, starts, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(refinement, "kinds", kinds)
        attack_artifact("calibrated", SHORT | settings, seen, whole, 7, CPU, lambda *_: None)
    return noted


def same(one, other):
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


def test_by_default_each_client_has_a_random_start_of_its_own(monkeypatch):
    first, second = begun_at(monkeypatch, *scene())
    for k, start in enumerate((first, second)):
        drawn, _ = MODEL.net("extractor").init(stream(7, "attacker", "calibrated", "start", k))
        assert same(start, drawn)
    assert not same(first, second)


def test_with_the_initial_networks_every_fit_begins_at_the_initial_extractor(monkeypatch):
    starts = begun_at(monkeypatch, *scene(initial=4), start="initial")
    assert len(starts) == 2
    assert all(same(start, networks(4)["extractor"]) for start in starts)


def test_a_surrogate_as_start_is_the_first_that_the_attack_surrogate_trains(monkeypatch):
    seen, whole = scene()
    monkeypatch.setattr(calibrated_extractors, "SurrogateSettings", lambda: SurrogateSettings(train_steps=2))
    starts = begun_at(monkeypatch, seen, whole, start="surrogate")
    view = shadow_federation.real(seen, whole, 7, "test")
    trained = recipes.trained_alone(SurrogateSettings(train_steps=2), view, 7, whole)
    assert all(same(start, trained[0][0]) for start in starts)


def test_where_the_client_kept_its_initial_extractor_one_known_image_is_enough_from_there():
    """From a random start the fit to one image is worth little; from the client's own extractor nothing is left to fit."""
    seen, whole = scene()
    settings = {"steps": 60, "fit_steps": 30, "refine_steps": 0}
    gained = {
        start: attack_artifact("calibrated", settings | {"start": start}, seen, whole, 0, CPU, lambda *_: None)
        for start in ("random", "initial")
    }
    scores = {start: float(psnr_db(end.images[:, 0], X[:3]).mean()) for start, end in gained.items()}
    assert scores["initial"] > scores["random"] + 5


def test_the_initial_networks_are_declared_where_they_are_used_and_nowhere_else():
    seen, _ = scene()
    assert Calibrated.needs == Calibrated().needs == Calibrated(start="surrogate").needs
    assert Calibrated(start="initial").needs == Calibrated.needs | {"initial"}
    assert registry.needs("calibrated", {"start": "initial"}) == Calibrated.needs | {"initial"}
    usual, more = (attack_cell._knowledge("calibrated", seen, {}, {"start": start}) for start in ("random", "initial"))
    assert usual["tag"] == "gradient + auxiliary + known images"
    assert more["tag"] == more["tag_in_general"] == "gradient + auxiliary + known images + initial networks"
    assert set(more["needs"]) - set(usual["needs"]) == {"initial"}


def test_an_attacker_with_a_random_start_is_not_given_the_initial_networks(monkeypatch):
    given, original = [], Calibrated.reconstruct

    def reconstruct(self, seen, knowledge, *rest):
        given.append(knowledge.initial)
        return original(self, seen, knowledge, *rest)

    monkeypatch.setattr(Calibrated, "reconstruct", reconstruct)
    for start in ("random", "initial"):
        attack_artifact("calibrated", SHORT | {"start": start}, *scene(), 0, CPU, lambda *_: None)
    assert given[0] is None
    assert given[1] is not None


def test_without_initial_networks_that_start_is_refused():
    seen, whole = scene()
    settings = SHORT | {"start": "initial"}
    refused(
        lambda: attack_artifact("calibrated", settings, seen, replace(whole, initial=None), 0, CPU, lambda *_: None),
        "calibrated needs the networks the clients started with",
    )
    refused(lambda: registry.create(Calibrated, {"start": "elsewhere"}), "'random', 'initial' or 'surrogate'")


def test_a_cell_of_the_usual_start_says_nothing_of_it():
    train = presets.train_spec("quick", "digits", "fedsplit")
    plain, named = (
        presets.cell_spec("quick", train, "calibrated", attack_settings=s) for s in ({}, {"start": "initial"})
    )
    assert plain.attack_settings == {}
    assert plain.id != named.id
    assert plain.known_images == named.known_images
