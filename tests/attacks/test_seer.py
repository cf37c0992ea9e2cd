"""SEER: behind a secret projection one image of a batch is left, which the property decides; before it none leads."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from attacks.common import no_information
from attacks.crafted.secret import readout, training
from attacks.seer import SENT_HONESTLY, Seer
from defenses.clip import Clip
from defenses.gaussian import Gaussian
from defenses.none import NoDefense
from privbench.scoring import broadcast_checks
from privbench.scoring.image_scores import psnr_db, score
from privbench.seeds import stream
from privbench.types import Batch, ExpectedUpload, Knowledge, Networks, Outcome, Truth
from tests.attacks.test_claims import best_floor
from tests.attacks.test_model_inconsistency import attacked
from tests.builders.small_artifacts import MODEL, artifact, central_network, networks, over_victims

B, BATCHES = 8, 60
SHORT = Seer(start_steps=400, train_steps=2000, decoder_steps=500, rehearsal_images=0)
BRIEF = Seer(start_steps=3, train_steps=3, decoder_steps=3, rehearsal_images=0)
NOTHING = {"extractor": {}, "classifier": {}}


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """The server's images, and where it keeps the reconstructors that it fits."""
    return Knowledge(central_network(400, 0)[2], cache=tmp_path_factory.mktemp("kept"))


def honest():
    return Networks(central_network(400, 0)[0], NOTHING)


def crafted(attack, seed=0, defense=None, size=B):
    known = Knowledge(central_network(400, 0)[2], expected=ExpectedUpload(size, defense or NoDefense()))
    return attack.craft(MODEL, honest(), known, seed)


# Networks are trained, and the last digits of a processor decide where that ends. What is asserted below held in 14 draws of
# starting networks (seeds 0 to 5) and instruction sets, the worst of which stands beside each bound.
def sent(darkest=False, seed=0):
    """The networks as the clients get them."""
    return trained(darkest, seed)


@cache
def trained(darkest, seed):
    """They are kept under both arguments, whichever of them a test leaves out."""
    return honest().params | crafted(replace(SHORT, darkest=darkest), seed).params


@cache
def drawn(batches=BATCHES):
    """Batches of test digits, which nobody trained on: rows [V, B], images, labels."""
    _, (x, y), _ = central_network(400, 0)
    rows = torch.randint(len(y), (batches, B), generator=stream(0, "test", "seer"))
    return rows, x, y


def energies(weights):
    """(energy behind the projection, energy before it) of every image [V, B], and how bright it is."""
    rows, x, y = drawn()
    h = training.features(MODEL, weights["extractor"], x)
    d = training.responses(MODEL, weights["classifier"], h, y)[0].detach()
    behind, before = (d @ training.secret(0, 120).T).square().sum(1), d.square().sum(1)
    return behind[rows], before[rows], x.flatten(1).mean(1)[rows]


def lead(energy):
    """The largest of each batch relative to all others together, as a ratio of lengths [V]."""
    largest = energy.amax(1)
    return (largest / (energy.sum(1) - largest)).sqrt()


def test_secret_directions_are_orthonormal_and_of_the_seed():
    u = training.secret(0, 120)
    torch.testing.assert_close(u @ u.T, torch.eye(4))
    assert torch.equal(u, training.secret(0, 120))
    assert not torch.equal(u, training.secret(1, 120))


def test_dz_of_one_image_is_what_autograd_gives_for_it_alone():
    params, (x, y), _ = central_network(400, 0)
    h = training.features(MODEL, params["extractor"], x[:3])
    d, _ = training.responses(MODEL, params["classifier"], h, y[:3])
    for i in range(3):
        seen = artifact(x[i : i + 1], y[i : i + 1], weights=params)
        torch.testing.assert_close(d[i].detach(), seen.gradients["classifier"]["fc1.bias"][0])


def test_all_images_but_one_are_near_the_null_space_of_the_projection_and_not_before_it():
    behind, before, _ = energies(sent())
    # 1.74 times, and 30% of the batches against 2% at most.
    assert lead(behind).median() > 1.3 * lead(before).median()
    assert (lead(behind) > 3).double().mean() > (lead(before) > 3).double().mean() + 0.1
    # A secret that nothing was trained for shows no image more than the plain gradient does.
    other = training.secret(1, 120)
    rows, x, y = drawn()
    h = training.features(MODEL, sent()["extractor"], x)
    d = training.responses(MODEL, sent()["classifier"], h, y)[0].detach()
    # 1.26 times.
    assert lead((d @ other.T).square().sum(1)[rows]).median() < 1.5 * lead(before).median()


@pytest.mark.parametrize("darkest", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_the_property_decides_which_image_survives(darkest):
    behind, _, light = energies(sent(darkest))
    light = -light if darkest else light
    top = light.topk(2, 1).values
    clear = (top[:, 0] - top[:, 1]) > (top[:, 0] - top[:, 1]).median()
    named, opposite = (behind.argmax(1) == by for by in (light.argmax(1), light.argmin(1)))
    # 0.67, where one of eight is chance.
    assert named[clear].double().mean() > 0.4
    assert opposite.double().mean() < 0.125


def test_one_image_of_a_batch_comes_back_and_the_others_are_class_means(known):
    rows, x, y = drawn()
    seen = artifact(x[rows.flatten()], y[rows.flatten()], batch_size=B, weights=sent())
    answer, floor = SHORT.reconstruct(seen, known, 0), no_information.class_mean(seen, known)
    read = answer.outcome == Outcome.RECONSTRUCTED
    assert answer.notes == (
        f"seer read one image of each of {int(read.sum())} of {BATCHES} batches of 8; all other images are class means",
    )
    # 0.45 to 0.73.
    assert 0.1 < read.double().mean() < 1
    scores = []
    for v in range(BATCHES):
        changed = [b for b in range(B) if not torch.equal(answer.images[v, b].float(), floor.images[v, b].float())]
        assert len(changed) == int(read[v])
        if changed:
            scores.append(float(psnr_db(answer.images[v, changed[0]].float()[None], x[rows[v]]).max()))
    # The class means score 15.8 dB.
    assert torch.tensor(scores).median() > 20
    alone = SHORT.reconstruct(seen.select(torch.tensor([3])), known, 0)
    torch.testing.assert_close(alone.images[0], answer.images[3])


@pytest.mark.thorough
def test_over_three_attackers_it_beats_the_best_floor():
    _, (x, y), known = central_network(400, 0)
    count = len(y) // B
    x, y, known = x[: count * B], y[: count * B], Knowledge(known)
    truth = Truth(x.unflatten(0, (count, B)), torch.zeros(count, B, dtype=torch.long))
    gains = []
    for seed in range(3):
        seen = artifact(x, y, batch_size=B, weights=sent(seed=seed))
        scored = score(SHORT.reconstruct(seen, known, seed), truth).psnr_db
        gains.append(scored - best_floor(seen, known, truth))
    # 0.13 to 0.49 dB of one attacker, the mean of 17 draws 0.36.
    gain = torch.cat(gains)
    assert gain.mean() > 0.1
    assert over_victims(gain).low > 0


def test_another_seed_s_secret_reads_fewer_batches(known):
    rows, x, y = drawn()
    seen = artifact(x[rows.flatten()], y[rows.flatten()], batch_size=B, weights=sent())
    # How well a reconstructor decodes is not asked: seed 0's is kept from the test above, or is fitted now.
    own, other = ((SHORT.reconstruct(seen, known, s).outcome == Outcome.RECONSTRUCTED).double().mean() for s in (0, 1))
    # 0.28 fewer of all batches.
    assert other < own - 0.1


def test_a_clip_of_the_whole_message_changes_nothing_that_is_read():
    rows, x, y = drawn()
    seen = artifact(x[rows.flatten()], y[rows.flatten()], batch_size=B, weights=sent())
    small = {p: {n: t / 7 for n, t in net.items()} for p, net in seen.gradients.items()}
    short = replace(seen, gradients=small, defense=Clip(1.0).describe())
    usual = torch.tensor(1.0)
    one, other = (readout.of_artifact(each, 0, usual) for each in (seen, short))
    torch.testing.assert_close(one.h, other.h, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(one.apart, other.apart, rtol=1e-3, atol=1e-5)


def test_what_is_crafted_depends_on_the_seed_alone():
    one, again, other = (crafted(BRIEF, seed).params for seed in (0, 0, 1))
    assert all(torch.equal(t, again[part][n]) for part, net in one.items() for n, t in net.items())
    assert not torch.equal(one["classifier"]["fc1.weight"], other["classifier"]["fc1.weight"])


def test_clients_that_compare_the_gradients_of_their_images_see_no_more_than_from_an_honest_server():
    _, (x, y), _ = central_network(400, 0)
    checks = {
        name: broadcast_checks.of_networks(MODEL, networks, Networks({}, {}), Batch(x[:16], y[:16]))
        for name, networks in (("sent", Networks(sent(), NOTHING)), ("honest", honest()))
    }
    assert checks["sent"]["one of many"] < 1.5 * checks["honest"]["one of many"]
    assert checks["sent"]["loss"] < checks["honest"]["loss"] + 0.5


def test_a_server_stays_honest_under_noise_and_to_one_image_and_says_so():
    assert crafted(BRIEF, defense=Gaussian(1e-3)).params == {}
    assert crafted(BRIEF, size=1).params == {}
    _, (x, y), known = central_network(400, 0)
    seen = artifact(x[:B], y[:B], batch_size=B, weights=honest().params)
    answer = BRIEF.reconstruct(seen, Knowledge(known, broadcast=honest()), 0)
    assert answer.outcome.tolist() == [Outcome.NOT_APPLICABLE]
    assert answer.notes == (SENT_HONESTLY,)


def test_a_dry_run_keeps_networks_that_read_nothing_from_being_sent():
    known = Knowledge(central_network(400, 0)[2], expected=ExpectedUpload(B, NoDefense()))
    untrained = Networks(networks(), NOTHING)
    tried, sent_untried = (
        replace(BRIEF, rehearsal_images=count).craft(MODEL, untrained, known, 0).params for count in (16, 0)
    )
    assert tried == {}
    assert set(sent_untried) == {"extractor", "classifier"}


def test_a_secure_sum_is_projected_as_the_weighted_batches_of_its_clients(tmp_path):
    brief = {"start_steps": 3, "train_steps": 3, "decoder_steps": 3, "rehearsal_images": 0}
    seen, truth, shot, _, _ = attacked(tmp_path, attack="seer", batch=2, **brief)
    weights = {part: shot.server.params[part] for part in ("extractor", "classifier")}
    h = training.features(seen.model, weights["extractor"], truth.images[0])
    d = training.responses(seen.model, weights["classifier"], h, truth.labels[0])[0].detach().double()
    shares = seen.member_weights[0].repeat_interleave(2) / 2
    t = (shares[:, None] * d).sum(0)
    torch.testing.assert_close(seen.gradients["classifier"]["fc1.bias"][0].double(), t, rtol=1e-4, atol=1e-7)
    s = torch.einsum("b,bm,bn->mn", shares, d, h.double())
    torch.testing.assert_close(seen.gradients["classifier"]["fc1.weight"][0].double(), s, rtol=1e-4, atol=1e-7)
