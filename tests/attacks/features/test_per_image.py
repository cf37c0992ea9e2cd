"""Batches of private extractors: every image whose features are separated is a victim of its own, the others end at the floor."""

from dataclasses import replace

import pytest
import torch

from attacks.analytic_features import AnalyticFeatures
from attacks.features import disaggregation, per_image
from attacks.floors import ClassMean, Grey
from attacks.oracle import Oracle
from privbench import registry
from privbench.errors import UserError
from privbench.networks.model import Model
from privbench.observation import knowledge
from privbench.records.victims import loss_fell
from privbench.scoring.image_scores import assignment, psnr_db
from privbench.types import Batch, Colluder, Knowledge, Networks
from tests.builders.small_artifacts import artifact, images_like_the_victims, networks, smooth_images

pytestmark = pytest.mark.usefixtures("small_shadows")

C = ("classifier",)
Y = torch.tensor([7, 3, 0, 4])
VICTIM_NETWORKS, FOREIGN = (Networks(networks(seed), {"extractor": {}, "classifier": {}}) for seed in (0, 1))
BRIEF = {
    "steps": 8, "exact_steps": 8, "members": 1, "train_steps": 4, "shadow_rounds": 1, "shadow_steps": 4, "align_steps": 4,
    "decoder_steps": 4, "joint_steps": 4,
}  # fmt: skip
PRIVATE = (
    "surrogate", "aligned-surrogate", "joint", "initial-surrogate", "decoder", "collusion", "oracle", "oracle-decoder",
    "analytic-features",
)  # fmt: skip


@pytest.fixture(autouse=True)
def few_restarts(monkeypatch):
    """Distinct classes at an untrained network are separated from any start."""
    monkeypatch.setattr(disaggregation, "RESTARTS", 4)
    monkeypatch.setattr(disaggregation, "EXCHANGES", 1)


def made(name):
    attack = registry.resolve("attack", name)
    return attack(**{setting: value for setting, value in BRIEF.items() if setting in attack.__dataclass_fields__})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where what attackers with auxiliary images train, and separate, is kept for all of these tests."""
    return tmp_path_factory.mktemp("trained")


def known(attack, cache=None):
    """What an attack's needs name of everything; client 1's colluder holds its own extractor, client 0's does not."""
    oracle = {0: VICTIM_NETWORKS, 1: VICTIM_NETWORKS}
    # No images, so that whoever holds the right extractor has the oracle's prior to the bit.
    none = Batch(*(t[:0] for t in images_like_the_victims()))
    colluder = {0: Colluder(*FOREIGN, none), 1: Colluder(*VICTIM_NETWORKS, none)}
    whole = Knowledge(images_like_the_victims(), initial=VICTIM_NETWORKS, colluder=colluder, oracle=oracle, cache=cache)
    return knowledge.only(attack.needs, whole, "the attack")


def run(attack, seen, cache=None, seed=0):
    return attack.reconstruct(seen, known(attack, cache), seed)


def shown(x=None, y=Y, **options):
    """Two batches of two images, the first of client 1, the second of client 0."""
    seen = artifact(smooth_images(4) if x is None else x, y, C, batch_size=2, **options)
    return replace(seen, client=torch.tensor([1, 0]), uploads={}, upload_buffers={})


def in_order(images, truth):
    """Batches [V, B, ...] in the order that fits the truth best (Hungarian method), as scores have it."""
    return torch.stack([x[assignment(x, t)] for x, t in zip(images, truth, strict=True)])


def test_gradients_of_single_images_average_to_the_batch_s():
    seen = shown()
    ones = per_image.singles(seen, disaggregation.disaggregate(seen, 0))
    assert (ones.victims, ones.batch_size, ones.client.tolist()) == (4, 1, [1, 1, 0, 0])
    for name, whole in seen.gradients["classifier"].items():
        mean = ones.gradients["classifier"][name].unflatten(0, (2, 2)).mean(1)
        torch.testing.assert_close(mean, whole.double(), atol=1e-6 * float(whole.abs().max()), rtol=0)


@pytest.mark.parametrize("attack", [Oracle(steps=60), AnalyticFeatures(steps=60)])
def test_separated_features_lead_to_the_images_of_single_victims(attack, folder):
    x = smooth_images(4)
    truth = x.view(2, 2, 1, 32, 32)
    single = replace(artifact(x, Y, C), client=torch.tensor([1, 1, 0, 0]), uploads={}, upload_buffers={})
    alone, together = run(attack, single), run(attack, shown(), folder)
    separated, alone_images = in_order(together.images, truth), alone.images.view(truth.shape)
    assert psnr_db(separated, alone_images).min() > 40
    assert psnr_db(alone_images, truth).min() > 18
    assert [sorted(batch) for batch in together.labels.tolist()] == [[3, 7], [0, 4]]
    torch.testing.assert_close(together.loss, alone.loss.view(2, 2).mean(1), rtol=0.05, atol=0)
    assert loss_fell(together.trace) == [True, True]


@pytest.mark.parametrize("name", PRIVATE)
def test_every_attack_on_a_private_extractor_returns_a_batch_s_images(name, folder):
    seen = shown()
    reconstruction = run(made(name), seen, folder)
    assert reconstruction.images.shape == (2, 2, 1, 32, 32)
    assert reconstruction.labels.shape == (2, 2)
    assert reconstruction.loss.shape == reconstruction.restart.shape == (2,)
    assert reconstruction.trace.shape[0] == 2
    assert reconstruction.images.isfinite().all()
    assert reconstruction.notes == ()
    if name in ("collusion", "initial-surrogate"):  # the one holds client 1's own extractor, the other both clients'
        oracle = run(made("oracle"), seen, folder)
        same = [torch.equal(one, other) for one, other in zip(reconstruction.images, oracle.images, strict=True)]
        assert same == [True, name == "initial-surrogate"]


def test_a_batch_is_separated_once_for_all_attackers_with_auxiliary_images(tmp_path, monkeypatch):
    seen, attack = shown(), Oracle(steps=4)
    plain, first = run(attack, seen), run(attack, seen, tmp_path)
    monkeypatch.setattr(disaggregation, "disaggregate", lambda *_: pytest.fail("separated again"))
    again = run(attack, seen, tmp_path)
    run(made("surrogate"), seen, tmp_path)
    for other in (first, again):
        assert all(torch.equal(a, b) for a, b in zip(plain[:5], other[:5], strict=True))
        assert other.gradient_evaluations == plain.gradient_evaluations
    with pytest.raises(pytest.fail.Exception):
        run(attack, seen, tmp_path, seed=1)


def floor_of(attack, seen):
    """What a batch that cannot be separated ends at."""
    floor = ClassMean() if "auxiliary" in attack.needs else Grey()
    return run(floor, seen).images


@pytest.mark.parametrize("name", ["surrogate", "decoder", "oracle", "analytic-features"])
def test_a_batch_that_cannot_be_separated_ends_at_the_floor_and_leaves_the_other_alone(name, folder):
    x, attack = smooth_images(4)[[0, 0, 2, 3]], made(name)
    twins = shown(x, torch.tensor([7, 7, 0, 4]))
    reconstruction, other = run(attack, twins, folder), run(attack, twins.select(torch.tensor([1])), folder)
    assert torch.equal(reconstruction.images[0].float(), floor_of(attack, twins)[0])
    assert reconstruction.labels[0].tolist() == [7, 7]
    assert reconstruction.loss[0] == 0
    assert loss_fell(reconstruction.trace)[0] is None
    torch.testing.assert_close(reconstruction.images[1], other.images[0], atol=1e-4, rtol=0)
    (note,) = reconstruction.notes
    assert note == (
        "1 of 2 batches of 2 images could not be separated into single features; for these the attack returns the class "
        "means, or grey without auxiliary images"
    )


@pytest.mark.parametrize("name", PRIVATE)
def test_noised_batches_end_at_the_floor_without_a_descent(name):
    seen, attack = shown(noise=1e-3), made(name)
    reconstruction = run(attack, seen)
    assert torch.equal(reconstruction.images, floor_of(attack, seen))
    assert reconstruction.trace.shape == (2, 1)
    assert reconstruction.gradient_evaluations == 0
    reason = "2 of 2 batches of 2 images are of defended gradients and so were not separated"
    assert [note.split(" into")[0] for note in reconstruction.notes] == [reason]


def test_rounded_gradients_are_not_called_defended():
    seen = shown()
    (note,) = run(made("oracle"), replace(seen, defense=seen.defense | {"wire": "bf16"})).notes
    assert note.startswith("2 of 2 batches of 2 images are of rounded gradients and so were not separated")


def test_a_broken_batch_is_a_failure_and_changes_no_other():
    seen, attack = shown(), made("oracle")
    gradients = {n: t.clone() for n, t in seen.gradients["classifier"].items()}
    gradients["fc2.weight"][0, 0, 0] = torch.nan
    reconstruction = run(attack, replace(seen, gradients={"classifier": gradients}))
    alone = run(attack, seen.select(torch.tensor([1])))
    assert torch.equal(reconstruction.images[1], alone.images[0])
    assert reconstruction.loss[0].isnan()
    assert (reconstruction.images[0] == 0.5).all()


@pytest.mark.parametrize("name", PRIVATE)
@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_classifier_that_begins_with_convolutions_gets_one_line(name, batch_size):
    seen = replace(shown(), model=Model("resnet18", 1, 10), batch_size=batch_size)
    with pytest.raises(UserError, match="the classifier of resnet18 begins with convolutions; attack lenet5") as e:
        run(made(name), seen)
    assert "\n" not in str(e.value)
