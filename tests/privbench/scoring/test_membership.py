"""Recognition of members: ROC, areas and rates against scikit-learn and plain counts; what chance gives; intervals that cover."""

from itertools import combinations

import numpy as np
import pytest
from sklearn.metrics import auc, roc_auc_score, roc_curve

from privbench.scoring import membership

RNG = np.random.default_rng(0)


@pytest.fixture
def few_resamples(monkeypatch):
    monkeypatch.setattr(membership, "RESAMPLES", 400)


def scores(m, n, shift=0.0, rng=RNG, digits=None):
    members, non_members = rng.normal(shift, 1, m), rng.normal(0, 1, n)
    return (members, non_members) if digits is None else (members.round(digits), non_members.round(digits))


@pytest.mark.parametrize("digits", [None, 1, 0])
def test_the_curve_and_its_area_are_scikit_learn_s(digits):
    members, non_members = scores(70, 50, 0.5, digits=digits)
    truth, each = np.repeat([1, 0], [70, 50]), np.concatenate([members, non_members])
    order = membership.recognition(members, non_members)
    false_positive_rate, true_positive_rate, _ = roc_curve(truth, each, drop_intermediate=False)
    curve = membership.curve(order)
    # scikit-learn leaves out fewer of the points on a line.
    points = set(zip(false_positive_rate.round(5), true_positive_rate.round(5), strict=True))
    assert set(zip(*curve, strict=True)) <= points
    assert auc(*curve) == pytest.approx(roc_auc_score(truth, each), abs=1e-5)
    assert membership.auc(order) == pytest.approx(roc_auc_score(truth, each))
    again = membership.of_curve(*curve, 70, 50)
    assert membership.auc(again) == pytest.approx(membership.auc(order))
    for rate in (0.0, 0.01, 0.1, 0.5):
        threshold = np.sort(non_members)[::-1][int(rate * 50)]
        assert membership.true_positives(order, rate) == int((members > threshold).sum())
        if digits is None:
            assert membership.true_positives(again, rate) == membership.true_positives(order, rate)


def test_what_is_no_number_counts_as_the_lowest():
    order = membership.recognition(np.array([np.nan, 1.0]), np.array([0.0, np.nan]))
    assert (order.members.tolist(), order.non_members.tolist()) == ([1, 0, 1], [0, 1, 1])
    # 1 > 0, 1 > nan, 0 > nan wrongly, nan = nan.
    assert membership.auc(order) == pytest.approx((1 + 1 + 0 + 0.5) / 4)


def test_the_p_value_counts_orders():
    """Every order of 4 members and 5 non-members is as likely; rate 0.2 allows one non-member."""
    orders = list(combinations(range(9), 4))
    for hits in range(5):
        enough = 0
        for places in orders:
            non_members = [place for place in range(9) if place not in places]
            enough += sum(place < non_members[1] for place in places) >= hits
        assert membership.p_value(hits, 4, 5, 0.2) == pytest.approx(enough / len(orders))


def test_what_n_can_prove():
    least = membership.least_provable(300, 300, 0.01)
    t = round(least * 300)
    assert membership.p_value(t, 300, 300, 0.01) < 0.05 <= membership.p_value(t - 1, 300, 300, 0.01)
    assert membership.least_provable(3000, 3000, 0.01) < least
    assert membership.least_provable(2, 2, 0.01) is None


def test_chance_of_few_others_is_above_the_rate():
    """Every order of 4 members and 5 non-members is as likely; rate 0.2 allows one non-member above the threshold."""
    hits = []
    for places in combinations(range(9), 4):
        non_members = [place for place in range(9) if place not in places]
        order = membership.recognition(-np.array(places, float), -np.array(non_members, float))
        hits.append(membership.true_positives(order, 0.2) / 4)
    assert np.mean(hits) == pytest.approx(membership.chance(5, 0.2))
    assert membership.chance(100, 0.01) == pytest.approx(2 / 101)


def test_intervals_cover_the_true_area_and_rate(few_resamples):
    """N(1, 1) against N(0, 1): the area is Phi(1/sqrt 2), the rate at 10% Phi(1 - 1.2816)."""
    rng, areas, rates = np.random.default_rng(3), 0, 0
    for i in range(60):
        order = membership.recognition(*scores(60, 60, 1.0, rng))
        low, high = np.quantile(membership.auc_resamples(order, str(i)), [0.025, 0.975])
        areas += low <= 0.7602 <= high
        low, high = np.quantile(membership.rate_resamples(order, 0.1, str(i)), [0.025, 0.975])
        rates += low <= 0.3892 <= high
    # Of 60 at 95%: 50 or fewer with a probability of 0.1%.
    assert areas > 50
    assert rates > 50


def test_clients_share_the_error_of_the_held_out_images(few_resamples):
    """Areas of clients with other members and the same non-members vary together, and the interval of their mean counts it."""
    rng = np.random.default_rng(4)
    non_members = rng.normal(0, 1, 100)
    orders = [membership.recognition(rng.normal(0, 1, 1000), non_members) for _ in range(4)]
    each = np.stack([membership.auc_resamples(order, str(k)) for k, order in enumerate(orders)])
    assert np.corrcoef(each)[0, 1] > 0.8
    assert each.mean(0).std() > 0.9 * each.std(1).mean()


def test_a_share_of_nothing_is_not_sure():
    low, high = np.quantile(membership.share_resamples(0, 20, "none"), [0.025, 0.975])
    assert low < 0.001
    assert 0.1 < high < 0.2


def test_draws_of_one_number_of_resamples_are_not_those_of_another(monkeypatch):
    """They are kept for the next call, which may want more of them."""
    order = membership.recognition(*scores(30, 25, 0.5))
    for resamples in (7, 5, 7):
        monkeypatch.setattr(membership, "RESAMPLES", resamples)
        assert membership.auc_resamples(order, "a").shape == (resamples,)
        assert membership.rate_resamples(order, 0.1, "a").shape == (resamples,)


def test_resamples_are_those_of_a_plain_loop_over_what_is_drawn(monkeypatch):
    """Ties among the scores, and rates at which no non-member, some and all may exceed the threshold."""
    monkeypatch.setattr(membership, "RESAMPLES", 20)
    members, non_members = (np.round(each, 1) for each in scores(30, 25, 0.5))
    order, falling = membership.recognition(members, non_members), np.sort(non_members)[::-1]
    drawn = membership._drawn(25, 20)
    for rate in (0, 0.1, 0.5, 1):
        first = membership._drawn_at(25, 20, membership._allowed(order, rate))
        exceeding = membership._members_above(order)[first]
        for resample, counted in zip(drawn, exceeding, strict=True):
            thresholds = [-np.inf, *falling]
            allowed = [t for t in thresholds if (falling[resample] > t).sum() <= rate * 25]
            assert counted == (members > min(allowed)).sum()
    areas = membership._areas(order.members[None].repeat(20, 0), membership._steps(order)[drawn])
    for resample, area in zip(drawn, areas, strict=True):
        wins = [(m > n) + (m == n) / 2 for m in members for n in falling[resample]]
        assert area == pytest.approx(np.mean(wins), abs=1e-12)


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_the_variance_of_an_area_is_that_of_areas_of_other_images(shift):
    """Hanley and McNeil take scores for exponential; of normal ones they are within a fifth here. 4,000 areas err by 2%."""
    rng = np.random.default_rng(0)
    areas = [membership.auc(membership.recognition(*scores(40, 60, shift, rng))) for _ in range(4000)]
    assert membership.area_variance(float(np.mean(areas)), 40, 60) == pytest.approx(np.var(areas), rel=0.2)
    assert membership.area_variance(1.0, 40, 60) == 0


def test_the_variance_of_resamples_is_their_own_where_they_are_normal_and_more_at_an_end():
    rng = np.random.default_rng(1)
    assert membership.error_variance(0.5, rng.normal(0.5, 0.1, 100_000)) == pytest.approx(0.01, rel=0.05)
    none = membership.share_resamples(0, 50, "none")
    assert membership.error_variance(0.0, none) > 2 * np.var(none)
