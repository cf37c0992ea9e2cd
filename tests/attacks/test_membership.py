"""Which images a client trained on: shadow federations, statistics, likelihood ratio, and the attack as a whole."""

import dataclasses
from typing import NamedTuple

import pytest
import torch

from attacks.membership_inference import MembershipInference
from attacks.shadow import likelihood_ratio, membership_statistics, trained_federations
from privbench.errors import UserError
from privbench.scoring.statement_scores import of_membership
from privbench.seeds import stream
from privbench.types import Candidates, Knowledge
from tests.builders.memorised import attacked


@pytest.fixture(scope="module")
def overfitted():
    return attacked("fedavg", rounds=2, epochs=30, backbone="mlp")


def area(case, seed=1, **settings):
    whole = dataclasses.replace(case.whole, sent=case.sent) if settings.get("networks") == "sent" else case.whole
    answers = MembershipInference(**settings).infer(case.seen, whole, seed).answers
    assert answers.shape == case.members.shape
    return sum(each.score for each in of_membership(answers, case.whole.candidates, case.members)) / len(answers)


def test_members_of_an_overfitted_network_are_recognised(overfitted):
    assert area(overfitted, pairs=2) > 0.65
    alone = attacked("fedavg", rounds=2, epochs=30, backbone="mlp", sizes=(40,))
    assert area(alone, pairs=2) > 0.85


def test_what_each_client_sent_tells_more_than_the_average_of_both(overfitted):
    assert area(overfitted, pairs=2, networks="sent") > area(overfitted, pairs=2) + 0.05


def test_shadow_clients_send_networks_of_their_own(overfitted):
    """With what each client sent, a shadow is one of its clients, which trained on its own candidates alone."""
    asked = trained_federations.pictures(overfitted.whole)
    known = dataclasses.replace(overfitted.whole, sent=overfitted.sent)
    shadows = trained_federations.shadows(overfitted.seen, known, asked, 1, 7, Nothing())
    assert len(shadows) == 4
    for number in (0, 1):
        owner = trained_federations.dealt(asked, known, number, 7)[: len(asked.batch.labels)][asked.of]
        for k in (0, 1):
            assert torch.equal(shadows[2 * number + k].inside, owner == k)
            assert torch.equal(shadows[2 * number + k].outside, owner < 0)
    for part in ("extractor", "classifier"):
        weights = [next(iter(s.seen.params[part].values())) for s in shadows]
        assert not torch.equal(weights[0], weights[1])
    real = trained_federations.real(overfitted.seen, overfitted.sent)
    for k, seen in enumerate(real):
        assert seen.params["classifier"] is overfitted.sent[k].params["classifier"]


def test_an_untrained_network_tells_nothing():
    case = attacked("fedavg", rounds=0, epochs=1, backbone="mlp")
    # Three standard deviations of an area by chance (Hanley and McNeil 1982), of the pairs of both clients.
    pairs = case.members.shape[1] // 2
    deviation = ((2 * pairs + 1) / (12 * pairs**2) / len(case.members)) ** 0.5
    assert abs(area(case, pairs=2) - 0.5) < 3 * deviation


def test_the_answer_does_not_depend_on_the_order_of_candidates(overfitted):
    images, labels = overfitted.whole.candidates
    order = torch.randperm(labels.shape[1], generator=stream(0, "order"))
    other = dataclasses.replace(overfitted.whole, candidates=Candidates(images[:, order], labels[:, order]))
    before = MembershipInference(pairs=1).infer(overfitted.seen, overfitted.whole, 1).answers
    after = MembershipInference(pairs=1).infer(overfitted.seen, other, 1).answers
    # Double precision, but for logits of single precision whose products are summed in another order.
    assert torch.allclose(before[:, order], after, atol=1e-3)


class Nothing(NamedTuple):
    """Where progress goes."""

    def __call__(self, done, total, what):
        """Silent."""


def test_two_shadow_federations_train_on_every_candidate_once(overfitted):
    asked = trained_federations.pictures(overfitted.whole)
    count, auxiliary = len(asked.batch.labels), len(overfitted.whole.auxiliary.labels)
    for number in (0, 2):
        one, other = (trained_federations.dealt(asked, overfitted.whole, n, 5) for n in (number, number + 1))
        assert len(one) == count + auxiliary
        assert torch.equal(one[:count] >= 0, other[:count] < 0)
        assert bool((one[count:] >= 0).all() and (other[count:] >= 0).all())
        for owner in (one, other):
            sizes = torch.bincount(owner[owner >= 0], minlength=2)
            assert int(sizes.max() - sizes.min()) <= 1


def test_a_picture_that_is_asked_about_twice_is_one_picture():
    images = torch.rand(2, 3, 1, 4, 4, generator=stream(0, "pictures"))
    images[1, 0] = images[0, 2]
    labels = torch.tensor([[0, 1, 2], [2, 4, 5]])
    asked = trained_federations.pictures(Knowledge(candidates=Candidates(images, labels)))
    assert len(asked.batch.labels) == 5
    assert asked.of[2] == asked.of[3]
    assert torch.equal(asked.batch.images[asked.of], images.flatten(0, 1))
    assert torch.equal(asked.batch.labels[asked.of], labels.flatten())


@pytest.mark.usefixtures("small_shadows")
def test_a_shadow_says_who_trained_on_what():
    case = attacked("fedmd-cg", rounds=1, epochs=1, sizes=(24, 24))
    asked = trained_federations.pictures(case.whole)
    shadows = trained_federations.shadows(case.seen, case.whole, asked, 1, 7, Nothing())
    assert len(shadows) == 4  # two federations of two clients, each with a generator of its own
    for number in (0, 1):
        owner = trained_federations.dealt(asked, case.whole, number, 7)[: len(asked.batch.labels)][asked.of]
        for k in (0, 1):
            shadow = shadows[2 * number + k]
            assert torch.equal(shadow.inside, owner == k)
            assert torch.equal(shadow.outside, owner < 0)
            assert {*shadow.seen.params} == {"classifier", "generator"}
    generators = [next(iter(s.seen.params["generator"].values())) for s in shadows]
    assert not torch.equal(generators[0], generators[1])
    answers = MembershipInference(pairs=1, steps=2).infer(case.seen, case.whole, 7).answers
    assert bool(((answers >= 0) & (answers <= 1)).all())


def test_a_federation_needs_an_image_for_every_client(overfitted):
    asked = trained_federations.pictures(overfitted.whole)
    many = dataclasses.replace(overfitted.whole, specification={"clients": 10_000})
    with pytest.raises(UserError, match="10000 clients"):
        trained_federations.dealt(asked, many, 0, 0)


def test_confidence_is_the_logit_of_the_probability_of_the_true_class():
    logits = torch.tensor([[2.0, -1.0, 0.5], [0.0, 0.0, 0.0]], dtype=torch.float64)
    labels = torch.tensor([2, 1])
    p = logits.softmax(1)[torch.arange(2), labels]
    assert torch.allclose(membership_statistics.confidence(logits, labels), (p / (1 - p)).log(), rtol=1e-12)


def test_a_feature_that_a_generator_repeats_is_nearest_to_it():
    rng = stream(0, "features")
    made = torch.rand(12, 2, 2, 2, generator=rng)
    classes = torch.arange(2).repeat_interleave(6)
    h = torch.cat([made[[1, 8]], torch.rand(2, 2, 2, 2, generator=rng)]).double()
    labels = torch.tensor([0, 1, 0, 1])
    near = membership_statistics.nearness(h, labels, made, classes)
    assert float(near[:2].min()) > float(near[2:].max())
    spread = made.double().flatten(1).var(0).mean() + membership_statistics.TINY
    for i in (2, 3):
        rows = [made[j].double() for j in range(12) if classes[j] == labels[i]]
        least = min(float((h[i] - row).square().mean()) for row in rows)
        # The distance is computed by a product of matrices: a relative error of about 1e-16 * |h|^2 / distance^2.
        assert float(near[i]) == pytest.approx(-float((least / spread + membership_statistics.TINY).log()), rel=1e-9)


def drawn(shift, images, shadows, dimensions=1):
    """(statistics, inside, outside, of the attacked network, members) of Gaussians: mu_i + shift where a shadow has seen i."""
    rng = stream(0, "gaussians", images, shadows)
    centre = 3 * torch.randn(images, dimensions, generator=rng, dtype=torch.float64)
    half = torch.stack([torch.randperm(images, generator=rng) % 2 == 0 for _ in range(shadows // 2)])
    inside = torch.cat([half, ~half])
    noise = torch.randn(shadows, images, dimensions, generator=rng, dtype=torch.float64)
    members = torch.randperm(images, generator=rng) % 2 == 0
    attacked = centre + members[:, None] * shift + torch.randn(images, dimensions, generator=rng, dtype=torch.float64)
    return centre + inside[..., None] * shift + noise, inside, ~inside, attacked, members


def test_a_fit_is_that_of_a_loop_over_images():
    statistics, inside, outside, _, _ = drawn(1.0, 6, 4)
    fit = likelihood_ratio.fitted(statistics, inside, outside)
    each = []
    for i in range(6):
        values = statistics[:, i, 0]
        each.append(float(values[inside[:, i]].mean() - values[outside[:, i]].mean()))
    common = sum(each) / 6
    squares = 0.0
    for i in range(6):
        values = [float(statistics[m, i, 0]) - common * bool(inside[m, i]) for m in range(4)]
        squares += sum((v - sum(values) / 4) ** 2 for v in values)
    variance = squares / (4 * 6 - 6 - 1)
    noise = variance * (1 / 2 + 1 / 2)
    share = min(1.0, max(0.0, 1 - noise / (sum((d - common) ** 2 for d in each) / 6)))
    assert fit.shift[:, 0].tolist() == pytest.approx([common + share * (d - common) for d in each])
    assert float(fit.covariance) == pytest.approx(variance * 1.25)


def test_the_ratio_finds_what_the_difference_of_two_gaussians_allows():
    statistics, inside, outside, seen, members = drawn(2.0, 2000, 8)
    ratios = likelihood_ratio.log_ratios(seen, likelihood_ratio.fitted(statistics, inside, outside))
    nothing = Candidates(torch.zeros(1, 2000, 1, 1, 1), torch.zeros(1, 2000, dtype=torch.int64))
    [scored] = of_membership(ratios.sigmoid()[None], nothing, members[None])
    # Phi(2 / sqrt(2 (1 + 1/8))) = 0.909: of a shift of 2 with the error of a mean of eight shadows.
    assert scored.score == pytest.approx(0.909, abs=0.03)
    said = ratios.sigmoid()
    sure = (said > 0.7) & (said < 0.9)
    assert float(members[sure].double().mean()) == pytest.approx(float(said[sure].mean()), abs=0.08)


def test_a_ratio_of_nothing_or_of_no_number_is_even():
    statistics, inside, outside, seen, _ = drawn(0.0, 4, 4)
    nothing = likelihood_ratio.fitted(torch.zeros_like(statistics), inside, outside)
    assert likelihood_ratio.log_ratios(torch.zeros(4, 1, dtype=torch.float64), nothing).tolist() == [0.0] * 4
    fit = likelihood_ratio.fitted(statistics, inside, outside)
    assert likelihood_ratio.log_ratios(torch.full_like(seen, torch.nan), fit).tolist() == [0.0] * 4


def test_distinct_ratios_keep_distinct_probabilities():
    ratios = torch.tensor([-4000.0, -50.0, -40.0, -12.5, 0.0, 3.0, 11.9, 12.1, 40.0, 50.0, 4000.0], dtype=torch.float64)
    said = likelihood_ratio.probabilities(ratios)
    assert bool((said.diff() > 0).all())
    within = ratios.abs() <= likelihood_ratio.LINEAR
    assert torch.equal(said[within], ratios[within].sigmoid())


def test_one_number_that_is_none_takes_no_other_answer_away():
    """The others' answers are those without that image, whose shift and residuals are then no part of what images share."""
    statistics, inside, outside, seen, _ = drawn(2.0, 40, 8)
    rest = torch.arange(40) != 3
    without = likelihood_ratio.fitted(statistics[:, rest], inside[:, rest], outside[:, rest])
    wanted = likelihood_ratio.log_ratios(seen[rest], without)
    broken = statistics.clone()
    broken[:, 3] = torch.inf
    for one in (seen, seen.index_fill(0, torch.tensor([3]), -torch.inf)):
        ratios = likelihood_ratio.log_ratios(one, likelihood_ratio.fitted(broken, inside, outside))
        assert float(ratios[3]) == 0
        torch.testing.assert_close(ratios[rest], wanted)


def test_a_shadow_that_diverged_is_left_out():
    """What is fitted is what the three others alone give."""
    statistics, inside, outside, seen, _ = drawn(2.0, 40, 4, dimensions=2)
    broken = statistics.clone()
    broken[0] = torch.nan
    fit = likelihood_ratio.fitted(broken, inside, outside)
    alone = likelihood_ratio.fitted(statistics[1:], inside[1:], outside[1:])
    for ours, other in zip(fit, alone, strict=True):
        torch.testing.assert_close(ours, other)
    assert (likelihood_ratio.log_ratios(seen, fit) != 0).all()
    # Of two shadows one tells nothing of a shift.
    fit = likelihood_ratio.fitted(broken[:2], inside[:2], outside[:2])
    assert not likelihood_ratio.log_ratios(seen, fit).any()


def test_an_image_that_no_shadow_trained_on_takes_the_shift_of_the_others():
    statistics, inside, outside, seen, _ = drawn(2.0, 40, 4)
    broken = statistics.where(~inside[..., None] | (torch.arange(40) != 3)[:, None], torch.nan)
    fit = likelihood_ratio.fitted(broken, inside, outside)
    others = torch.arange(40) != 3
    common = (statistics * inside[..., None]).sum(0) / inside.sum(0)[:, None]
    common = (common - (statistics * outside[..., None]).sum(0) / outside.sum(0)[:, None])[others].mean(0)
    torch.testing.assert_close(fit.shift[3], common)
    assert float(likelihood_ratio.log_ratios(seen, fit)[3]) != 0
