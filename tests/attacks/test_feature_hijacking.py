"""Feature hijacking: the crafted networks are the pilot's, clients that train on them move towards it, all else is refused."""

import dataclasses

import pytest
import torch

from attacks.crafted.pilot import to_class_means
from attacks.feature_hijacking import FeatureHijacking
from attacks.features import disaggregation
from attacks.floors import ClassMean, Grey
from attacks.shadow import shadow_federation, surrogate_training
from attacks.shadow.surrogate_attack import SurrogateAttack
from privbench import presets, seeds
from privbench.errors import UserError
from privbench.networks.model import Model
from privbench.observation import active_server, observe
from privbench.scoring.image_scores import score
from privbench.seeds import stream
from privbench.training import federation as federations
from privbench.training import harness
from privbench.training.state import Replica
from privbench.types import Batch, Knowledge, Networks
from tests.attacks.test_broken_uploads import planted
from tests.builders.small_artifacts import MODEL, artifact, networks, smooth_images

pytestmark = pytest.mark.usefixtures("small_shadows")

Y = torch.tensor([3, 0, 9])
SHORT = {
    "steps": 10,
    "members": 1,
    "train_steps": 4,
    "shadow_rounds": 2,
    "shadow_steps": 4,
    "pilot_steps": 60,
    "generator_steps": 60,
}
ATTACK = FeatureHijacking(**SHORT)
# For what does not ask whether hijacking serves.
BRIEF = FeatureHijacking(**SHORT | {"shadow_rounds": 1, "pilot_steps": 4, "generator_steps": 4})
CPU = torch.device("cpu")


def images_like_the_victims(count=40):
    return Batch(smooth_images(count + 3)[3:], torch.arange(count) % 10)


def broadcast():
    made = {part: MODEL.net(part).init(stream(0, "test", part)) for part in ("classifier", "generator")}
    return Networks({p: params for p, (params, _) in made.items()}, {p: buffers for p, (_, buffers) in made.items()})


@pytest.fixture(scope="module")
def crafted():
    return ATTACK.craft(MODEL, broadcast(), Knowledge(images_like_the_victims()), 0)


@pytest.fixture(scope="module")
def briefly_crafted():
    return BRIEF.craft(MODEL, broadcast(), Knowledge(images_like_the_victims()), 0)


def samples(sent, count=200):
    y = torch.arange(count) % 10
    z = torch.randn(count, MODEL.noise_dim, generator=torch.Generator().manual_seed(1))
    return MODEL.net("generator").apply(sent.params["generator"], sent.buffers["generator"], z, y, train=False)[0], y


def test_the_crafted_generator_lies_nearer_to_the_pilots_class_means_than_the_honest_one(crafted):
    know = Knowledge(images_like_the_victims())
    extractor, classifier = ATTACK.hijacking.pilot(MODEL, know.auxiliary, 0, know)
    distance = to_class_means(MODEL, extractor, know.auxiliary)
    assert float(distance(*samples(crafted))) < 0.2 * float(distance(*samples(broadcast())))
    assert all(torch.equal(t, classifier[n]) for n, t in crafted.params["classifier"].items())
    assert set(crafted.buffers["generator"]) == set(broadcast().buffers["generator"])


def test_the_distance_to_class_means_is_eq_2_but_for_a_constant():
    auxiliary = images_like_the_victims()
    extractor = networks(3)["extractor"]
    h = surrogate_training.extract(MODEL, extractor, auxiliary.images)
    imitated = h[torch.randperm(40, generator=torch.Generator().manual_seed(0))[:10]]  # any ten samples of one class
    mean = imitated.mean(0)
    eq_2 = torch.stack([(h[0] - g).square().mean() for g in imitated]).mean()
    torch.testing.assert_close(eq_2 - (imitated - mean).square().mean(), (h[0] - mean).square().mean())
    distance = to_class_means(MODEL, extractor, Batch(auxiliary.images[:1], torch.tensor([4])))
    assert float(distance(h[:1], torch.tensor([4]))) == 0
    assert float(distance(h[1:2], torch.tensor([4]))) == pytest.approx(float((h[1] - h[0]).square().mean()))
    assert float(distance(h[1:2], torch.tensor([5]))) == 0  # of a class without images


@pytest.fixture(scope="module")
def hijacked(tmp_path_factory):
    """Two FedCG clients of sixty digits after three hijacked rounds: (setup, snapshot, knowledge, the attack)."""
    folder = tmp_path_factory.mktemp("hijacked")
    method = {"ramp_rounds": 1, "gan": "dense"}
    changes = {"rounds": 3, "local_epochs": 15}
    train = presets.train_spec(
        "smoke", "digits", "fedcg", clients=2, per_client=60, method_settings=method, changes=changes
    )
    federation, _ = federations.of(train, None)
    setup = harness.prepare(train, federation, CPU)
    settings = {
        "steps": 30, "members": 1, "train_steps": 40, "shadow_rounds": 3, "shadow_steps": 40, "pilot_steps": 150,
        "generator_steps": 60,
    }  # fmt: skip
    cell = presets.cell_spec("smoke", train, "feature-hijacking", attack_settings=settings)
    shot = active_server.trained(cell, setup, 3, folder, folder / "run", None)
    know = Knowledge(observe.auxiliary(federation), cache=folder / "trained")
    return setup, shot, know, FeatureHijacking(**settings)


@pytest.mark.thorough  # in a small form: test_the_shadow_is_hijacked_by_a_pilot_of_other_images
def test_hijacked_clients_move_towards_the_pilot_and_honest_ones_do_not(hijacked):
    setup, shot, know, attack = hijacked
    honest = harness.initial(setup)
    for _ in range(3):
        harness.train_round([setup], [honest], "alone")
    extractor, _ = attack.hijacking.pilot(setup.model, know.auxiliary, seeds.of_attacker(setup.spec.id, 3), know)
    distance = to_class_means(setup.model, extractor, know.auxiliary)

    def gap(client: Replica, k: int) -> float:
        images = setup.federation.clients[k].train
        h = surrogate_training.extract(setup.model, client.params["extractor"], images.images / 255)
        return float(distance(h, images.labels))

    for k, (hijacked_client, honest_client) in enumerate(zip(shot.clients, honest.clients, strict=True)):
        assert gap(hijacked_client, k) < 0.8 * gap(honest_client, k)


@pytest.mark.thorough
def test_hijacking_beats_the_floor_on_digits(hijacked):
    setup, shot, know, attack = hijacked
    seen, truth = observe.observe(
        shot, setup.federation, setup.model, setup.method, setup.defense, method_name="fedcg", dataset="digits",
        victims=12, batch_size=1, labels_known=False, seed=0,
    )  # fmt: skip
    made = attack.reconstruct(seen, know, seeds.of_attacker(setup.spec.id, 3))
    scores = score(made, truth)
    floor = score(ClassMean().reconstruct(seen, know, 0), truth)
    assert scores.label_accuracy.min() == 1
    assert (scores.psnr_db - floor.psnr_db).mean() > 2
    assert (made.loss < 0.5 * made.trace[:, 0]).all()


def shown(crafted, **changes):
    seen = dataclasses.replace(artifact(smooth_images(3), Y, ("classifier",)), weights=crafted.params)
    return dataclasses.replace(seen, round=2, **changes)


def test_the_shadow_is_hijacked_by_a_pilot_of_other_images(crafted, tmp_path):
    know = Knowledge(images_like_the_victims(), cache=tmp_path)
    real = shadow_federation.real(shown(crafted), know, 0, "test")
    attack = FeatureHijacking(**SHORT | {"shadow_steps": 40, "active_rounds": 1})
    shadow, _ = attack.hijacking.shadow(real, 2, 0, know)
    plain, _ = shadow_federation.shadow(real, 2, 80, 0, know)
    pilot, classifier = attack.hijacking.pilot(MODEL, shadow.auxiliary, 0, know)
    distance = to_class_means(MODEL, pilot, shadow.auxiliary)
    assert float(distance(shadow.h.float(), shadow.labels)) < 0.8 * float(distance(plain.h.float(), plain.labels))
    assert all(torch.equal(t, classifier[n]) for n, t in shadow.classifier.items())
    assert not torch.equal(
        pilot["conv1.weight"], attack.hijacking.pilot(MODEL, know.auxiliary, 0, know)[0]["conv1.weight"]
    )


def test_what_was_trained_is_read_back_with_the_same_result(briefly_crafted, tmp_path, monkeypatch):
    know = Knowledge(images_like_the_victims(), cache=tmp_path)
    first = BRIEF.reconstruct(shown(briefly_crafted), know, 0)
    for name in ("train", "train_client"):
        monkeypatch.setattr(surrogate_training, name, lambda *_args, **_more: pytest.fail("trained again"))
    second = BRIEF.reconstruct(shown(briefly_crafted), know, 0)
    assert torch.equal(first.images, second.images)


def test_clients_of_an_honest_server_are_refused_in_one_line():
    seen, know = artifact(smooth_images(3), Y, ("classifier",)), Knowledge(images_like_the_victims())
    with pytest.raises(UserError, match="but these got others; name it with --attack in a run of your own") as caught:
        BRIEF.reconstruct(seen, know, 0)
    assert "\n" not in str(caught.value)


def test_a_classifier_without_a_linear_layer_is_refused_in_one_line():
    know = Knowledge(images_like_the_victims())
    with pytest.raises(UserError, match="begins with a linear layer, but it is resnet18's"):
        ATTACK.craft(Model("resnet18", 1, 10), broadcast(), know, 0)


def test_uploads_that_say_nothing_are_set_aside_and_the_others_end_as_without_them(briefly_crafted, tmp_path):
    know, seen = Knowledge(images_like_the_victims(), cache=tmp_path), shown(briefly_crafted)
    alone = BRIEF.reconstruct(seen.select(torch.tensor([0, 2])), know, 0)
    for value in (torch.nan, torch.inf, 0.0):
        broken = planted(seen, 1, value)
        reconstruction = BRIEF.reconstruct(broken, know, 0)
        for field in ("images", "labels", "loss", "trace", "restart"):
            assert torch.equal(getattr(reconstruction, field)[[0, 2]], getattr(alone, field)), (value, field)
        assert reconstruction.loss[1].isnan()
        assert (reconstruction.images[1] == 0.5).all()
        assert BRIEF.reconstruct(broken.select(torch.tensor([1])), know, 0).loss.isnan().all()


def test_hijacked_batches_are_attacked_image_by_image(crafted, monkeypatch):
    monkeypatch.setattr(disaggregation, "RESTARTS", 4)
    params = networks() | {"classifier": crafted.params["classifier"]}
    batch = artifact(smooth_images(4), torch.tensor([7, 3, 0, 4]), ("classifier",), batch_size=2, weights=params)
    handed = []
    monkeypatch.setattr(
        SurrogateAttack, "of_single",
        lambda _self, one, *_: handed.append(one) or Grey().reconstruct(one, Knowledge(), 0),
    )  # fmt: skip
    reconstruction = ATTACK.reconstruct(batch, Knowledge(images_like_the_victims()), 0)
    assert [(one.victims, one.batch_size) for one in handed] == [(4, 1)]
    assert reconstruction.images.shape == (2, 2, 1, 32, 32)
    with pytest.raises(UserError, match=r"has rank 2.*but the artifact says batch size 1"):
        ATTACK.reconstruct(dataclasses.replace(batch, batch_size=1), Knowledge(images_like_the_victims()), 0)
