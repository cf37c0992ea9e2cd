"""Uploads that are not finite, zero, or of another batch size than declared: no other victim suffers, and none is passed over."""

from dataclasses import replace

import pytest
import torch

from attacks.common import labels
from attacks.features import disaggregation
from privbench import registry
from privbench.errors import UserError
from privbench.records.victims import loss_fell
from privbench.types import Batch, Colluder, Knowledge, Networks
from tests.attacks.test_claims import CLAIMS, SHORT, handed, imprinted, untrained, with_few
from tests.builders.small_artifacts import artifact, images_like_the_victims, networks, smooth_images

pytestmark = pytest.mark.usefixtures("small_shadows")

C = ("classifier",)
Y = torch.tensor([3, 0, 9])
PRIVATE = (
    "surrogate", "aligned-surrogate", "joint", "initial-surrogate", "decoder", "collusion", "oracle", "oracle-decoder",
    "analytic-features",
)  # fmt: skip
AS_WITHOUT_IT = PRIVATE[:6]  # pool over victims; all others draw by the victim's number, and pool nothing
REFINED = ("calibrated", "chained")  # pool over victims, too; what they know is that of their claims
VICTIM_NETWORKS, FOREIGN = (Networks(networks(seed), {"extractor": {}, "classifier": {}}) for seed in (0, 1))


def made(name):
    """An attack with settings that make it quick."""
    attack, brief = registry.resolve("attack", name), SHORT | {"steps": 3, "exact_steps": 4, "shadow_rounds": 1}
    return attack(**{setting: value for setting, value in brief.items() if setting in attack.__dataclass_fields__})


def known(initial, colluder, colluding_images=40):
    images = Batch(*(t[:colluding_images] for t in images_like_the_victims()))
    colluders = {k: Colluder(*held, images) for k, held in colluder.items()}
    whole = Knowledge(
        images_like_the_victims(), initial=initial, colluder=colluders, oracle=dict.fromkeys(colluder, VICTIM_NETWORKS)
    )
    return lambda attack: handed(attack, whole)


def planted(seen, victim, value):
    """The artifact with one victim's upload made of one value."""

    def of(parts):
        return {part: {n: put(t, victim, value) for n, t in net.items()} for part, net in parts.items()}

    return replace(seen, gradients=of(seen.gradients), updates=of(seen.updates))


def put(t, victim, value):
    t = t.clone()
    t[victim] = value
    return t


def twice(uploads):
    """What one client uploads, for two."""
    return {part: {n: torch.cat([t, t]) for n, t in net.items()} for part, net in uploads.items()}


@pytest.mark.parametrize(
    ("name", "clients", "noise", "value"),
    [
        *((name, (0, 0, 0), 0.0, torch.nan) for name in AS_WITHOUT_IT),
        ("collusion", (1, 0, 0), 1e-6, torch.inf),
        ("surrogate", (0, 0, 0), 0.0, 0.0),
        ("aligned-surrogate", (0, 0, 0), 0.0, 0.0),
    ],
)
def test_sound_victims_end_as_if_the_broken_one_had_not_been_there(name, clients, noise, value):
    attack, whole = made(name), known(FOREIGN, {0: FOREIGN, 1: VICTIM_NETWORKS})
    seen = replace(artifact(smooth_images(3), Y, C, noise=noise), client=torch.tensor(clients), round=1)
    seen = replace(seen, uploads=twice(seen.uploads), upload_buffers=twice(seen.upload_buffers))
    reconstruction = attack.reconstruct(planted(seen, 0, value), whole(attack), 0)
    alone = attack.reconstruct(seen.select(torch.tensor([1, 2])), whole(attack), 0)
    for field in ("images", "labels", "loss", "trace", "restart"):
        assert torch.equal(
            getattr(reconstruction, field)[1:], getattr(alone, field).to(getattr(reconstruction, field))
        ), field
    assert reconstruction.loss[0].isnan()
    assert reconstruction.trace[0].isnan().all()
    assert (reconstruction.images[0] == 0.5).all()


@pytest.mark.parametrize("name", REFINED)
def test_a_broken_upload_refines_no_extractor(name):
    seen, _, whole = CLAIMS[name].shown()
    attack = made(name)
    among = attack.reconstruct(planted(seen, 0, torch.nan), handed(attack, whole), 0)
    without = attack.reconstruct(seen.select(torch.arange(1, len(seen.client))), handed(attack, whole), 0)
    for field in ("images", "labels", "loss"):
        assert torch.equal(getattr(among, field)[1:], getattr(without, field)), field
    assert among.loss[0].isnan()


@pytest.mark.parametrize(
    "name", [name for name in (*CLAIMS, *registry.FLOORS) if name not in (*AS_WITHOUT_IT, *REFINED)]
)
def test_a_broken_upload_leaves_the_other_victims_alone(name):
    seen, _, whole = imprinted(6) if name == "imprint" else CLAIMS[name].shown() if name in CLAIMS else untrained()
    attack = made(name)
    healthy, broken = (
        attack.reconstruct(each, with_few(handed(attack, whole)), 0) for each in (seen, planted(seen, 0, torch.nan))
    )
    torch.testing.assert_close(broken.images[1:], healthy.images[1:], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(broken.loss[1:], healthy.loss[1:])
    assert torch.equal(broken.labels[1:], healthy.labels[1:])
    if name not in registry.FLOORS:  # which look at no more than the label
        assert not broken.loss[0].isfinite() or not broken.images[0].isfinite().all()


@pytest.mark.parametrize("name", PRIVATE)
def test_an_artifact_of_broken_uploads_alone_is_one_of_failures(name):
    attack, whole = made(name), known(VICTIM_NETWORKS, {0: VICTIM_NETWORKS})
    seen = artifact(smooth_images(2), Y[:2], C)
    reconstruction = attack.reconstruct(planted(planted(seen, 0, torch.nan), 1, torch.nan), whole(attack), 0)
    assert reconstruction.loss.isnan().all()
    assert reconstruction.images.shape == (2, 1, 1, 32, 32)
    assert reconstruction.images.isfinite().all()


@pytest.mark.parametrize("name", PRIVATE)
@pytest.mark.parametrize("declared", [1, 2])
def test_a_gradient_of_four_images_declared_as_fewer_is_refused(name, declared):
    seen = replace(artifact(smooth_images(4), torch.tensor([7, 3, 0, 4]), C, batch_size=4), batch_size=declared)
    attack, whole = made(name), known(VICTIM_NETWORKS, {0: VICTIM_NETWORKS})
    with pytest.raises(UserError, match=rf"has rank 4.*but the artifact says batch size {declared}"):
        attack.reconstruct(seen, whole(attack), 0)


def test_labels_of_a_broken_batch_are_classes_and_the_others_stay():
    seen = artifact(smooth_images(6), torch.tensor([1, 1, 7, 3, 0, 4]), batch_size=2)
    whole = labels.recover(seen)
    for value in (torch.nan, torch.inf, -torch.inf):
        recovered = labels.recover(planted(seen, 1, value))
        assert torch.equal(recovered[[0, 2]], whole[[0, 2]])
        assert ((recovered[1] >= 0) & (recovered[1] < 10)).all()
        assert torch.equal(recovered, labels.recover(planted(seen, 1, value)))


@pytest.mark.parametrize("value", [torch.nan, 0.0])
def test_a_batch_without_a_gradient_is_left_out_of_the_separation(value, monkeypatch):
    monkeypatch.setattr(disaggregation, "RESTARTS", 4)
    seen = artifact(smooth_images(4), torch.tensor([7, 3, 0, 4]), batch_size=2)
    whole, separated = disaggregation.disaggregate(seen, 0), disaggregation.disaggregate(planted(seen, 0, value), 0)
    assert separated.sound.tolist() == [False, True]
    assert separated.residual[0].isnan()
    torch.testing.assert_close(separated.h[1], whole.h[1], atol=1e-6, rtol=1e-6)
    assert torch.equal(separated.labels[1], whole.labels[1])


def test_a_victim_that_was_not_descended_on_is_distinguished_from_one_whose_loss_did_not_fall():
    """Client 0's extractor is not its colluder's, and too few images are at hand for a shadow validation; client 1's is."""
    attack, whole = made("collusion"), known(FOREIGN, {0: FOREIGN, 1: VICTIM_NETWORKS}, colluding_images=0)
    seen = artifact(smooth_images(3), Y, C)
    seen = replace(seen, client=torch.tensor([0, 1, 0]), uploads={}, upload_buffers={})
    few = replace(whole(attack), auxiliary=images_like_the_victims(3))
    reconstruction = attack.reconstruct(seen, few, 0)
    assert loss_fell(reconstruction.trace) == [None, True, None]
    assert reconstruction.loss.tolist()[::2] == [0, 0]
