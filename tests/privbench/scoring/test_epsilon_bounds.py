"""Bounds on epsilon: against published values, hand values, and simulated mechanisms."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm

from privbench.execution import canaries
from privbench.scoring import epsilon_bounds

DELTA = 1e-5


@pytest.mark.parametrize(
    ("canaries", "guesses", "right", "delta", "published"),
    # Steinke, Nasr, Jagielski, arXiv 2305.08846v1: appendix D (rounded), section 7 (cut off).
    [(1000, 100, 75, 1e-4, 0.673), (100_000, 1510, 1439, 1e-5, 2.675)],
)
def test_the_bound_of_one_run_equals_the_published_ones(canaries, guesses, right, delta, published):
    assert epsilon_bounds.lower_bound(canaries, guesses, right, delta) == pytest.approx(published, abs=1e-3)


@pytest.mark.parametrize(
    ("epsilon", "printed"),
    [(12.341, 12.4), (8.0, 8.0), (8.0000001, 8.01), (0.1 + 0.2, 0.3), (104.4, 105), (0, 0), (math.inf, math.inf)],
)
def test_a_claim_is_printed_rounded_up(epsilon, printed):
    assert epsilon_bounds.rounded_up(epsilon) == pytest.approx(printed, rel=1e-12)


@pytest.mark.parametrize(("bound", "printed"), [(1.7566, 1.75), (0.999, 0.99), (0.3, 0.3), (0.29, 0.29), (0.0, 0.0)])
def test_a_lower_bound_is_printed_rounded_down(bound, printed):
    assert epsilon_bounds.rounded_down(bound) == pytest.approx(printed, rel=1e-12)


def test_the_p_value_equals_a_loop_over_the_formula():
    m, r, v, epsilon, delta = 60, 40, 29, 0.4, 1e-3
    chance = math.exp(epsilon) / (1 + math.exp(epsilon))
    mass = [math.comb(r, k) * chance**k * (1 - chance) ** (r - k) for k in range(r + 1)]
    beta = sum(mass[v:])
    alpha = max(sum(mass[max(v - i, 0) : v]) / i for i in range(1, m + 1))
    assert epsilon_bounds.p_value(m, r, v, epsilon, delta) == pytest.approx(beta + 2 * m * delta * alpha)


@pytest.mark.parametrize("canaries", [100, 1000])
def test_all_right_guesses_prove_about_the_logarithm_of_a_third_of_the_canaries(canaries):
    # 0.95 = 1 - (e^eps / (1 + e^eps))^m, without delta.
    proved = epsilon_bounds.lower_bound(canaries, canaries, canaries, 0.0)
    assert proved == pytest.approx(math.log(canaries / 3), abs=0.02)


def test_guesses_at_chance_prove_nothing():
    assert epsilon_bounds.lower_bound(1000, 1000, 510, DELTA) == 0.0


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 8.0, 50.0])
def test_mu_is_that_of_the_gaussian_mechanism_with_that_epsilon(epsilon):
    mu = epsilon_bounds.gaussian_mu(epsilon, DELTA)
    # P[loss > eps] - e^eps P[-loss > eps], by integration over the mechanism's output.
    x = np.linspace(-40, 80, 2_000_001)
    densities = norm.pdf(x, mu) - np.exp(epsilon) * norm.pdf(x)
    assert np.clip(densities, 0, None).sum() * (x[1] - x[0]) == pytest.approx(DELTA, rel=1e-3)


def test_a_sound_gaussian_mechanism_is_seldom_refuted_and_its_bound_lies_near_what_was_planned():
    mu, m = epsilon_bounds.gaussian_mu(8.0, DELTA), 1000
    guesses = epsilon_bounds.guesses_for(m, mu, DELTA)
    rng, bounds = np.random.default_rng(0), []
    for _ in range(40):
        took_part = rng.random(m) < 0.5
        order = np.argsort(rng.normal(size=m) + mu * took_part)
        right = (~took_part[order[: guesses // 2]]).sum() + took_part[order[-(guesses // 2) :]].sum()
        bounds.append(epsilon_bounds.lower_bound(m, guesses, int(right), DELTA))
    assert max(bounds) < 8.0
    assert np.mean(bounds) > 2.0


def test_the_most_are_guessed_where_no_number_of_guesses_can_prove_anything():
    assert epsilon_bounds.guesses_for(50, 0.01, DELTA) == 20
    assert epsilon_bounds.guesses_for(2, 0.01, DELTA) == 2


@pytest.mark.parametrize("m", [100, 1000])
def test_scores_that_show_every_coin_prove_the_most(m):
    """Guessing all, half of them heads, some guesses would be wrong for certain: coins seldom show heads in just half of all."""
    guesses = epsilon_bounds.guesses_for(m, epsilon_bounds.LARGEST_MU, DELTA)
    assert guesses < m
    for seed in range(50):
        took_part = torch.rand(m, generator=torch.Generator().manual_seed(seed)) < 0.5
        scores = canaries.CanaryScores(took_part, 1e6 * took_part.double())
        assert scores.right(guesses) == guesses


def test_single_releases_allow_what_a_gaussian_mechanism_gives():
    advantage = epsilon_bounds.advantage(1.0)
    assert 0.5 + advantage / 2 == pytest.approx(norm.cdf(0.5))
    assert epsilon_bounds.single_p_value(100, 80, advantage) == pytest.approx(binom.sf(79, 100, norm.cdf(0.5)))


def test_how_far_releases_go_refutes_what_is_not_clipped():
    sound = np.random.default_rng(0).normal(1.0, 2.0, size=1000).max()
    assert epsilon_bounds.reach_p_value(1000, float(sound), 2.0) > 0.01
    assert epsilon_bounds.reach_p_value(1000, 1.0 + 2.0 * 8, 2.0) < 1e-9
    assert epsilon_bounds.reach_p_value(1, 1.0, 2.0) == pytest.approx(0.5)


@pytest.mark.parametrize("numbers", [(10, 11, 5), (10, 5, 6), (10, 5, -1)])
def test_numbers_that_are_no_audit_are_refused(numbers):
    with pytest.raises(ValueError, match="is no audit"):
        epsilon_bounds.p_value(*numbers, 1.0, DELTA)
