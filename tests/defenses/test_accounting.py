"""Epsilon: by a closed form, by the library, by its direction, and solved for."""

import math

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from defenses.common import accounting
from defenses.common.accounting import Releases
from privbench.errors import UserError

DELTA = 1e-5


def gaussian_epsilon(noise_multiplier: float, times: int, delta: float) -> float:
    """Of `times` Gaussian mechanisms without sampling, exactly (Balle, Wang, ICML 2018, Theorem 8), mu = sqrt(times) / sigma."""
    mu = math.sqrt(times) / noise_multiplier

    def gap(epsilon: float) -> float:
        later = epsilon + norm.logcdf(-mu / 2 - epsilon / mu)
        return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(later) - delta)

    return float(brentq(gap, 0, mu**2 + 20 * mu))


@pytest.mark.parametrize(("noise", "times"), [(50.0, 100), (5.0, 1), (2.0, 1), (8.0, 30)])
def test_without_sampling_epsilon_is_the_gaussian_mechanism_s(noise, times):
    exact = gaussian_epsilon(noise, times, DELTA)
    spent = accounting.spent((Releases(noise, 1.0, times),), DELTA)
    assert spent == (pytest.approx(exact, rel=1e-6), DELTA, "exact")
    # Sampled at a rate of all but 1 it is hardly less; losses are rounded up to multiples of 1e-4, once a release.
    sampled = accounting.spent((Releases(noise, 1 - 1e-9, times),), DELTA)
    assert sampled.accountant == "PLD"
    assert exact - 1e-3 <= sampled.epsilon <= exact + 1e-4 * times + 1e-3


# SecureGAN prints the noise 0.005, 0.5, 5 and 8; next to none of it stands in a test below.
@pytest.mark.parametrize(
    ("noise", "sampling", "times"),
    [(1.1, 256 / 60000, 14040), (0.7, 0.1, 10), (0.5, 0.1, 20), (5.0, 0.1, 1000), (8.0, 0.1, 1000)],
)
def test_epsilon_is_the_library_s(noise, sampling, times):
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant().compose(PoissonSampledDpEvent(sampling, GaussianDpEvent(noise)), times)
    spent = accounting.spent((Releases(noise, sampling, times),), DELTA)
    assert spent.epsilon == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-9)


def test_a_well_known_setting_has_a_well_known_epsilon():
    # 60 epochs of batches of 256 of 60,000 images at noise 1.1. TensorFlow Privacy's older accountant prints 2.60.
    assert accounting.spent((Releases(1.1, 256 / 60000, 14040),), DELTA).epsilon == pytest.approx(2.38, abs=0.005)


def test_epsilon_grows_with_releases_and_with_sampling_and_falls_with_noise():
    def of(noise, sampling, times):
        return accounting.spent((Releases(noise, sampling, times),), DELTA).epsilon

    for dimension in ([of(2, 0.1, n) for n in (1, 5, 20)], [of(2, q, 5) for q in (0.1, 0.5, 1)]):
        assert dimension == sorted(dimension)
        assert len({*dimension}) == len(dimension)
    by_noise = [of(noise, 0.1, 5) for noise in (2, 3, 4)]
    assert by_noise == sorted(by_noise, reverse=True)


def test_releases_compose():
    twice = accounting.spent((Releases(2, 0.1, 10), Releases(2, 0.1, 10)), DELTA).epsilon
    assert twice == pytest.approx(accounting.spent((Releases(2, 0.1, 20),), DELTA).epsilon, abs=1e-3)
    assert twice > accounting.spent((Releases(2, 0.1, 10),), DELTA).epsilon


def test_without_noise_nothing_is_guaranteed_and_without_releases_nothing_is_spent():
    assert accounting.spent((Releases(0.0, 0.1, 1),), DELTA).epsilon == math.inf
    assert accounting.spent((Releases(0.0, 0.1, 0),), DELTA).epsilon == 0
    assert accounting.spent((), DELTA).epsilon == 0


def test_mechanisms_of_different_noise_compose_exactly():
    # 1/1^2 + 3/2^2 + ... = 1/sigma^2 of one mechanism.
    both = accounting.spent((Releases(1.0, 1.0, 1), Releases(2.0, 1.0, 3)), DELTA).epsilon
    assert both == pytest.approx(gaussian_epsilon((1 + 3 / 4) ** -0.5, 1, DELTA), rel=1e-6)


def test_next_to_no_noise_ends_in_a_large_epsilon_and_not_in_all_memory():
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    spent = accounting.spent((Releases(0.005, 0.1, 100),), DELTA)
    assert spent.epsilon > 1e6
    assert spent.accountant == "RDP"
    accountant = RdpAccountant().compose(PoissonSampledDpEvent(0.1, GaussianDpEvent(0.005)), 100)
    assert spent.epsilon == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-9)


# In a small form: at a smaller and at a larger one, in less time.
@pytest.mark.parametrize("epsilon", [1.0, pytest.param(8.0, marks=pytest.mark.thorough), 300.0])
def test_the_solved_noise_guarantees_what_was_asked_for_and_hardly_more(epsilon):
    planned = (Releases(0.0, 0.2, 30), Releases(0.0, 0.2, 10))

    def at(noise):
        return accounting.spent(tuple(each._replace(noise_multiplier=noise) for each in planned), DELTA).epsilon

    noise = accounting.noise_multiplier(epsilon, DELTA, planned)
    assert at(noise) <= epsilon < 1.01 * at(noise * (1 - 2 * accounting.TOLERANCE))


@pytest.mark.parametrize(
    ("epsilon", "delta", "says"),
    [
        (0.0, DELTA, "epsilon should be from 0.0001 to 10000, but 0 was given"),
        (-1.0, DELTA, "epsilon should be from"),
        (math.inf, DELTA, "epsilon should be from 0.0001 to 10000, but inf was given"),
        (math.nan, DELTA, "epsilon should be from"),
        (1e-9, DELTA, "epsilon should be from"),
        (1e300, DELTA, "epsilon should be from"),
        (8.0, 1.0, "delta should lie between 0 and 1, both left out, but 1 was given"),
        (8.0, 0.0, "delta should lie between 0 and 1"),
        (1e-4, 1e-300, "no noise guarantees epsilon 0.0001"),
    ],
)
def test_what_cannot_be_guaranteed_is_refused_in_a_line(epsilon, delta, says):
    with pytest.raises(UserError, match=says):
        accounting.noise_multiplier(epsilon, delta, (Releases(0.0, 1.0, 10),))


def test_noise_for_no_release_at_all_is_refused():
    with pytest.raises(UserError, match="no release is planned"):
        accounting.noise_multiplier(8.0, DELTA, ())
