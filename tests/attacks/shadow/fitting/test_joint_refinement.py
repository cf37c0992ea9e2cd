"""Extractors refined together with the images behind uploads, which nobody knows."""

import itertools
from dataclasses import replace

import pytest
import torch

from attacks.features import inversion
from attacks.joint import Joint
from attacks.shadow import alignment, shadow_federation
from attacks.shadow.fitting import calibration, joint_refinement
from attacks.shadow.fitting.extractor_descent import Calibration, Uploads
from attacks.shadow.selection import Choice
from attacks.shadow.surrogate_attack import SurrogateAttack
from privbench import presets, registry
from privbench.execution import attack_cell
from privbench.execution.one_attack import attack_artifact
from privbench.types import Knowledge
from tests.builders.refusals import refused
from tests.builders.small_artifacts import MODEL, artifact, images_like_the_victims, networks, smooth_images

X = smooth_images(16).double()
Y = torch.arange(16) % 10
HOW = Calibration(MODEL, exact=True, scale=0.5, steps=60)
PRIOR = inversion.learned(images_like_the_victims(), 10, X)
TRUE = networks(0)["extractor"]


def wrong(seed, by=0.2):
    """The true extractor but for so much of each tensor's size."""
    rng = torch.Generator().manual_seed(seed)
    return {n: t + by * t.square().mean().sqrt() * torch.randn(t.shape, generator=rng) for n, t in TRUE.items()}


def features(x):
    return MODEL.net("extractor").apply({n: t.double() for n, t in TRUE.items()}, {}, x, train=False)[0]


def uploads(rows, noise=None):
    h = features(X[rows])
    return Uploads(
        calibration.pairs(torch.zeros_like(X[rows]), h, None, noise, MODEL, calibration.TAU_OF_UNKNOWN), Y[rows]
    )


def error(params, rows):
    """Root mean square error of the logit features of some images, relative to their spread."""
    whole = calibration.pairs(X[rows], features(X[rows]), None, None, MODEL)
    gap = calibration.features(HOW, params, whole.images) - whole.target
    return float((gap.square() * whole.precision).mean().sqrt() * calibration.TAU)


def test_uploads_of_unknown_images_bring_the_extractor_nearer():
    start = wrong(1)
    (end,) = joint_refinement.refined(HOW, PRIOR, [start], [uploads(slice(0, 12))])
    # On images that sent nothing.
    assert error(end, slice(12, 16)) < 0.7 * error(start, slice(12, 16))


def test_clients_with_unequal_numbers_of_uploads_end_together_as_alone():
    how, starts = HOW._replace(steps=4), [wrong(3), wrong(4)]
    each = [uploads(slice(0, 2)), uploads(slice(2, 7))]
    together = joint_refinement.refined(how, PRIOR, starts, each)
    for start, one, params in zip(starts, each, together, strict=True):
        (alone,) = joint_refinement.refined(how, PRIOR, [start], [one])
        for name, t in alone.items():
            torch.testing.assert_close(params[name], t, rtol=1e-6, atol=1e-9, msg=name)


def test_a_narrower_prior_keeps_the_extractor_nearer_to_its_start():
    start = wrong(5)
    ends = [
        joint_refinement.refined(HOW._replace(scale=scale, steps=20), PRIOR, [start], [uploads(slice(0, 6))])[0]
        for scale in (0.01, 0.1, 1.0)
    ]
    moved = [sum(float((end[n] - start[n]).square().sum()) for n in start) for end in ends]
    assert all(less < more for less, more in itertools.pairwise(moved))


@pytest.mark.parametrize("count", [2, 5])
def test_it_is_validated_on_clients_with_as_many_uploads_as_the_attacked_ones(count):
    seen = artifact(smooth_images(count), torch.arange(count) % 10, ("classifier",), weights=networks(0))
    known = Knowledge(images_like_the_victims())
    view = shadow_federation.real(seen, known, 0, "joint")
    other, images = joint_refinement.joint(Joint(shadow_steps=2)).shadow(view, 1, 0, known)
    assert other.client.bincount().tolist() == [count] * shadow_federation.CLIENTS
    assert len(images) == count * shadow_federation.CLIENTS


SHORT = {
    "steps": 3, "exact_steps": 3, "members": 1, "train_steps": 2, "shadow_rounds": 1, "shadow_steps": 2, "align_steps": 2,
    "joint_steps": 3,
}  # fmt: skip


def with_kept(count=2, kept=3):
    """(victims' uploads, all with kept ones behind, what the server kept of the attacked round and of an earlier one)."""
    every = replace(
        artifact(X[: count + kept].float(), Y[: count + kept], ("classifier",), weights=networks(0)), round=1
    )
    seen, more = every.select(torch.arange(count)), every.select(torch.arange(count, count + kept))
    return seen, every, (replace(more, round=0, gradients={}), more)


def through_refined(patch):
    patch.setattr(SurrogateAttack, "choice", lambda *_: Choice("joint", 0.1))


def attacked(seen, rounds, **settings):
    whole = Knowledge(images_like_the_victims(), rounds=rounds)
    return attack_artifact("joint", SHORT | settings, seen, whole, 0, torch.device("cpu"), lambda *_: None)


def test_victims_with_kept_uploads_end_as_among_as_many_victims(monkeypatch):
    """Uploads of earlier rounds, where the extractor was another, take no part."""
    through_refined(monkeypatch)
    seen, every, rounds = with_kept()
    end, alone, among = attacked(seen, rounds, uploads="kept"), attacked(seen, rounds), attacked(every, None)
    for name in ("images", "labels", "loss", "trace", "restart", "outcome"):
        assert torch.equal(getattr(end, name), getattr(among, name)[: seen.victims]), name
    assert len(end.images) == seen.victims
    assert not torch.allclose(end.images, alone.images, atol=1e-4)


def test_the_shadow_of_kept_uploads_has_as_many_a_client(monkeypatch):
    noted, original = [], shadow_federation.shadow

    def shadow(*args, victims=None, **more):
        noted.append(victims)
        return original(*args, victims=victims, **more)

    monkeypatch.setattr(shadow_federation, "shadow", shadow)
    monkeypatch.setattr(alignment, "FOLDS", 2)
    seen, every, rounds = with_kept()
    attacked(seen, rounds, uploads="kept")
    assert every.victims in noted
    assert seen.victims not in noted


def test_kept_uploads_are_declared_asked_for_and_given_where_they_are_used_and_nowhere_else():
    seen, _, rounds = with_kept()
    assert Joint.needs == Joint().needs
    assert Joint(uploads="kept").needs == Joint.needs | {"rounds"}
    tags = [attack_cell._knowledge("joint", seen, {}, {"uploads": each})["tag"] for each in ("victims", "kept")]
    assert tags == [f"gradient + auxiliary{more} + generator" for more in ("", " + kept uploads")]
    train = presets.train_spec("quick", "digits", "fedsplit")
    usual, more = (presets.cell_spec("quick", train, "joint", attack_settings=s) for s in ({}, {"uploads": "kept"}))
    assert (usual.uploads_per_round, more.uploads_per_round) == (None, presets.UPLOADS_PER_ROUND)
    assert usual.attack_settings == {}
    assert registry.needs("joint", more.attack_settings) == Joint.needs | {"rounds"}
    refused(lambda: attacked(seen, None, uploads="kept"), "joint needs uploads of the same images")
    assert rounds[-1].round == seen.round
