"""Fishing: one image of a batch outweighs all others, is read as if it had been alone, and the others end as the floor."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from attacks.common import no_information
from attacks.crafted import magnified
from attacks.crafted.magnified_readout import MagnifiedReadout
from attacks.fishing import SENT_HONESTLY, Fishing
from attacks.floors import ClassMean
from defenses.clip import Clip
from defenses.gaussian import Gaussian
from defenses.none import NoDefense
from privbench import presets
from privbench.errors import AttackRefused, UserError
from privbench.execution import applicability, one_attack, preconditions
from privbench.scoring import broadcast_checks
from privbench.scoring.image_scores import psnr_db
from privbench.types import Batch, ExpectedUpload, Knowledge, Networks, Outcome
from tests.builders.small_artifacts import MODEL, artifact, central_network, logits

B = 12
UNTRIED = Fishing(rehearsal_images=0)
NOTHING = {"extractor": {}, "classifier": {}}
# e_j differs by a factor of 2 between classes, and E's gradient from image to image by some factor more.
SPREAD = 20
# In double precision sums of some thousand terms are right to more than ten digits.
UNIT = 1e-10


def network():
    """A network trained centrally, test digits, and the attacker's images."""
    return central_network(400, 0)


def sent(attack=UNTRIED, defense=None, size=B, **expected):
    """(networks as the clients get them, honest networks, what the attacker has)."""
    params, _, known = network()
    knowledge = Knowledge(known, expected=ExpectedUpload(size, defense or NoDefense(), **expected))
    crafted = attack.craft(MODEL, Networks(params, NOTHING), knowledge, 0).params
    return params | crafted, params, Knowledge(known)


def batches(count, size=B):
    _, (x, y), _ = network()
    return x[: count * size], y[: count * size]


def along(weights, images):
    """t, times the steepest slope, of images, in double precision."""
    _, h = logits(weights, images)
    return h.detach().flatten(1).double() @ weights["classifier"]["fc1.weight"][-1].double()


def gradient(weights, x, y):
    """Plain autograd of the mean cross-entropy, in double precision."""
    params = {p: {n: t.detach().double().requires_grad_() for n, t in net.items()} for p, net in weights.items()}
    F.cross_entropy(logits(params, x.double())[0], y).backward()
    return {p: {n: t.grad for n, t in net.items()} for p, net in params.items()}


def leaders(weights, x, size=B):
    """(the image [V] with the largest s t of each batch, by how much it is ahead of the next)."""
    largest = along(weights, x).unflatten(0, (-1, size)).topk(2, 1)
    return largest.indices[:, 0], largest.values[:, 0] - largest.values[:, 1]


def test_the_extractor_s_gradient_of_a_batch_is_that_of_the_image_with_the_largest_t():
    weights, _, _ = sent()
    x, y = batches(6)
    first, ahead = leaders(weights, x)
    assert (ahead > 10).sum() >= 3
    for v in torch.nonzero(ahead > 10)[:, 0].tolist():
        rows = slice(v * B, (v + 1) * B)
        whole, i = gradient(weights, x[rows], y[rows]), v * B + int(first[v])
        one = gradient(weights, x[i : i + 1], y[i : i + 1])
        # In the flattest row the next image counts for exp(-0.9 (t_1 - t_2)) of this one.
        error = SPREAD * B * float(torch.exp(-magnified.FLATTEST * ahead[v])) + UNIT
        for name in ("conv1.weight", "conv2.weight"):
            gap = (B * whole["extractor"][name] - one["extractor"][name]).norm()
            assert gap < error * one["extractor"][name].norm(), (v, name)


def test_what_is_read_is_the_gradient_that_this_image_would_have_sent_by_itself():
    weights, _, known = sent()
    x, y = batches(6)
    seen = artifact(x, y, batch_size=B, weights=weights)
    features = magnified.features_of(seen, known.auxiliary).images
    first, ahead = leaders(weights, x)
    read = magnified.alone(seen, features)
    assert (read.batch_size, read.victims, len(read.client)) == (1, 6, 6)
    for v in torch.nonzero(ahead > 15)[:, 0].tolist():
        i = v * B + int(first[v])
        assert int(read.labels[v]) == int(y[i])
        alone = gradient(read.weights, x[i : i + 1], y[i : i + 1])
        for part, net in alone.items():
            for name, t in net.items():
                # exp(-0.9 * 15) is 1e-6, and features in single precision are as exact.
                assert (read.gradients[part][name][v] - t).norm() < 1e-3 * t.norm(), (v, name)


def test_one_image_of_each_batch_comes_back_and_the_others_are_class_means():
    weights, _, known = sent()
    x, y = batches(6)
    seen = artifact(x, y, batch_size=B, weights=weights)
    answer, floor = UNTRIED.reconstruct(seen, known, 0), ClassMean().reconstruct(seen, known, 0)
    first, ahead = leaders(weights, x)
    true = x.unflatten(0, (-1, B))
    read = answer.outcome == Outcome.RECONSTRUCTED
    assert answer.notes[0].startswith(f"fishing read one image of each of {int(read.sum())} of 6 batches of 12;")
    assert bool(read[ahead > 10].all())
    for v in range(6):
        changed = [b for b in range(B) if not torch.equal(answer.images[v, b].float(), floor.images[v, b].float())]
        assert len(changed) == int(read[v])
        if ahead[v] > 15:
            (place,) = changed
            assert float(psnr_db(answer.images[v, place].float(), true[v, first[v]])) > 40
            assert int(answer.labels[v, place]) == int(y[v * B + int(first[v])])
    assert torch.equal(answer.labels, y.view(-1, B).sort(1).values)


def test_a_batch_in_which_two_images_lead_ends_as_the_floor():
    weights, _, known = sent()
    x, y = batches(30)
    _, ahead = leaders(weights, x)
    v = int(ahead.argmin())
    assert ahead[v] < 1.5
    rows = slice(v * B, (v + 1) * B)
    seen = artifact(x[rows], y[rows], batch_size=B, weights=weights)
    answer = UNTRIED.reconstruct(seen, known, 0)
    assert answer.outcome.tolist() == [Outcome.GAVE_UP]
    assert torch.equal(answer.images, ClassMean().reconstruct(seen, known, 0).images)


def test_where_a_class_is_named_its_images_alone_leave_a_gradient_before_the_last_layer():
    attack = replace(UNTRIED, fished_class=3)
    weights, _, known = sent(attack)
    x, y = batches(6)
    for rows in ([int(i) for i in torch.nonzero(y != 3)[:B, 0]], [int(i) for i in torch.nonzero(y == 3)[:1, 0]]):
        felt = {
            n for n, t in gradient(weights, x[rows], y[rows])["classifier"].items() if bool((t.abs() > 1e-60).any())
        }
        assert (felt == {"fc3.weight", "fc3.bias"}) == (len(rows) > 1)
    others = artifact(x[y != 3][:B], y[y != 3][:B], batch_size=B, weights=weights)
    assert attack.reconstruct(others, known, 0).outcome.tolist() == [Outcome.GAVE_UP]
    answer = attack.reconstruct(artifact(x, y, batch_size=B, weights=weights), known, 0)
    t = along(weights, x).where(y == 3, -torch.inf).unflatten(0, (-1, B)).topk(2, 1)
    clear = torch.nonzero(t.values[:, 0] - t.values[:, 1] > 15)[:, 0].tolist()
    assert clear
    for v in clear:
        true = x[v * B + int(t.indices[v, 0])]
        assert max(float(psnr_db(one.float(), true)) for one in answer.images[v]) > 40


def test_a_clip_of_the_message_changes_nothing():
    weights, _, known = sent()
    x, y = batches(4)
    exact, clip = artifact(x, y, batch_size=B, weights=weights), Clip(0.01)
    norms = torch.stack([t.flatten(1).square().sum(1) for net in exact.gradients.values() for t in net.values()])
    factor = (0.01 / norms.sum(0).sqrt()).clamp_max(1)
    assert bool((factor < 0.5).all())
    gradients = {
        p: {n: t * factor.view(-1, *(1,) * (t.ndim - 1)) for n, t in net.items()} for p, net in exact.gradients.items()
    }
    clipped = replace(exact, gradients=gradients, defense=clip.describe())
    one, other = (
        magnified.alone(seen, magnified.features_of(seen, known.auxiliary).images) for seen in (exact, clipped)
    )
    for name in ("conv1.weight", "conv2.weight"):
        each = [F.normalize(seen.gradients["extractor"][name].flatten(1), dim=1) for seen in (one, other)]
        torch.testing.assert_close(*each, atol=1e-5, rtol=0)
    # The label, too, though it is read off the size of the gradient.
    alone = leaders(weights, x)[1] > 10
    assert alone.sum() >= 2
    assert torch.equal(one.labels[alone, 0], y[leaders(weights, x)[0] + B * torch.arange(4)][alone])
    assert torch.equal(other.labels[alone], one.labels[alone])


def test_the_server_is_honest_under_noise_and_where_what_it_crafts_is_lost():
    _, params, known = sent()
    noisy, _, _ = sent(Fishing(), Gaussian(1e-3))
    assert noisy["classifier"] is params["classifier"]
    # Half precision ends long before exp(-75): the shorter reach is tried first.
    coarse = ExpectedUpload(B, NoDefense(), "fp16")
    assert magnified.reaches(coarse) == (magnified.SHORT_REACH, magnified.REACH)
    seen = artifact(*batches(1), batch_size=B, weights=params)
    answer = UNTRIED.reconstruct(seen, replace(known, broadcast=Networks(params, NOTHING)), 0)
    assert answer.outcome.tolist() == [Outcome.NOT_APPLICABLE]
    assert answer.notes == (SENT_HONESTLY,)


def test_the_dry_run_keeps_what_brings_back_more_than_the_honest_classifier_and_nothing_else(monkeypatch):
    weights, _, _ = sent(Fishing(rehearsal_images=3 * B))
    assert magnified.is_magnified(weights["classifier"])
    monkeypatch.setattr(MagnifiedReadout, "read", lambda _, seen, *__: no_information.grey(seen))
    weights, params, _ = sent(Fishing(rehearsal_images=3 * B))
    assert weights["classifier"] is params["classifier"]


def test_clients_notice_by_one_of_their_images_that_exceeds_all_others():
    weights, params, _ = sent()
    batch, private = Batch(*(t[:6] for t in batches(1))), Networks({}, {})
    crafted, honest = (
        broadcast_checks.of_networks(MODEL, Networks(each, NOTHING), private, batch)["one of many"]
        for each in (weights, params)
    )
    assert honest is not None
    # None: in double precision nothing is left of the others.
    assert crafted is None or crafted > 10 * honest


def test_other_networks_and_single_images_are_refused_in_one_line():
    _, params, known = sent()
    honest = artifact(*batches(1), batch_size=B, weights=params)
    with pytest.raises(UserError, match="these clients got another one"):
        UNTRIED.reconstruct(honest, known, 0)
    with pytest.raises(UserError, match="fished_class=10, but classes are 0 to 9"):
        replace(UNTRIED, fished_class=10).check(honest.model, 4)
    single = artifact(*(t[:2] for t in batches(1)), weights=params)
    with pytest.raises(AttackRefused, match="singles one image out of several"):
        one_attack.attack_artifact("fishing", {}, single, known, 0, torch.device("cpu"), lambda *_: None)
    train = presets.train_spec("smoke", "digits", "fedavg")
    limits = applicability.of(Fishing)
    cells = [presets.cell_spec("smoke", train, "fishing", batch_size=size) for size in (1, 8)]
    faults = [applicability.exceeded("fishing", limits, cell) for cell in cells]
    wrong = presets.cell_spec("smoke", train, "fishing", batch_size=8, attack_settings={"fished_class": 10}, victims=2)
    with pytest.raises(UserError, match="fished_class=10, but classes are 0 to 9"):
        preconditions._check(wrong, None)
    assert "add --batch-size 8" in faults[0]
    assert faults[1] == ""
