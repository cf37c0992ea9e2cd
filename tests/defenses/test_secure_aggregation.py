"""Secure aggregation: sums against the plain mean, what a server holds before the last message, bytes, and bad input."""

import math
import sys

import numpy as np
import pytest
import torch
from scipy import stats

from defenses.common import homomorphic, masks
from defenses.secure_aggregation import SecureAggregation
from privbench import written_defense
from privbench.errors import UserError
from privbench.seeds import stream

CLIENTS, WEIGHTS = 4, [20, 35, 7, 120]
ENTRIES = 40_000


@pytest.fixture(params=["masks", "ckks"])
def backend(request):
    if request.param == "ckks":
        pytest.importorskip("tenseal")
    return request.param


def messages(clients=CLIENTS, dtype=torch.float64):
    """Two parts, three shapes; entries from 1e-6 to 100."""
    rng = stream(0, "secure aggregation")

    def drawn(*shape):
        return torch.randn(shape, generator=rng, dtype=dtype) * 10 ** (8 * torch.rand(shape, generator=rng) - 6)

    return [
        {"extractor": {"weight": drawn(7, 1000), "bias": drawn(7)}, "classifier": {"scale": drawn()}}
        for _ in range(clients)
    ]


def plain_mean(each, weights):
    return {
        part: {n: sum(w * m[part][n].double() for w, m in zip(weights, each, strict=True)) / sum(weights) for n in net}
        for part, net in each[0].items()
    }


def largest_gap(a, b):
    return max(float((a[p][n].double() - t).abs().max()) for p, net in b.items() for n, t in net.items())


def test_the_sum_is_the_weighted_mean_up_to_the_rounding_of_fixed_point(backend):
    each, defense = messages(), SecureAggregation(backend)
    summed = defense.aggregate(each, WEIGHTS, stream(1, "seeds"))
    gap, bound = largest_gap(summed.tensors, plain_mean(each, WEIGHTS)), defense.fixed_point.error(WEIGHTS)
    assert bound == CLIENTS / (2 * sum(WEIGHTS) * 2.0 ** {"masks": 32, "ckks": 24}[backend])
    # Something is rounded, and by no more than is stated; what double precision adds to entries of 100 is 1e-14.
    assert bound / 100 < gap < bound + 1e-13
    assert summed.seconds > 0


def test_two_runs_open_the_same_bits_whatever_the_masks_and_the_keys(backend):
    each, defense = messages(dtype=torch.float32), SecureAggregation(backend)
    one, other = (defense.aggregate(each, WEIGHTS, stream(seed, "seeds")).tensors for seed in (1, 2))
    assert all(torch.equal(t, other[p][n]) for p, net in one.items() for n, t in net.items())
    assert all(t.dtype == torch.float32 for net in one.values() for t in net.values())


def test_bytes_are_those_that_clients_serialise(backend):
    entries = sum(t.numel() for net in messages()[0].values() for t in net.values()) + 1
    sent = SecureAggregation(backend).aggregate(messages(), WEIGHTS, stream(1, "seeds")).bytes_sent
    if backend == "masks":
        assert sent == (8 * entries,) * CLIENTS
    else:
        # Two polynomials of 8192 coefficients under two primes of 8 bytes each, and a compressed header, per 4096 numbers.
        chunks = math.ceil(entries / homomorphic.SLOTS)
        assert all(0.8 < s / (chunks * 2 * homomorphic.RING * 2 * 8) < 1.2 for s in sent)


def seen(value, clients=CLIENTS, seed=3):
    """What a server of masks holds of clients whose messages are all `value`."""
    seeds, server = masks.pair_seeds(clients, stream(seed, "seeds")), masks.MaskedSum(clients)
    for k in range(clients):
        server.receive(k, masks.masked(k, clients, np.full(ENTRIES, value, np.int64), seeds))
    return server


def bytes_p_value(words):
    """Of the chi-square test that all bytes are equally frequent."""
    return stats.chisquare(np.bincount(words.view(np.uint8), minlength=256)).pvalue


SUBSETS = [(0,), (1,), (2,), (3,), (0, 1), (1, 3), (2, 3), (0, 1, 2), (0, 2, 3)]


@pytest.mark.parametrize("value", [0, 1, -(2**40)])
def test_masked_messages_and_the_sum_of_any_proper_subset_are_uniform(value):
    server = seen(value)
    for subset in SUBSETS:
        words = np.sum([server.received[k] for k in subset], axis=0, dtype=np.uint64)
        # 27 tests on fixed seeds; a message that showed through would give p-values of 0.
        assert bytes_p_value(words) > 1e-4
        assert stats.kstest(words.astype(np.float64) / 2.0**64, "uniform").pvalue > 1e-4
    assert bytes_p_value(server.opened().view(np.uint64)) == 0


def test_what_the_server_holds_does_not_change_in_distribution_with_the_message():
    for subset in SUBSETS:
        plain, other = (
            np.sum([seen(value, seed=seed).received[k] for k in subset], axis=0, dtype=np.uint64)
            for value, seed in ((0, 4), (123_456_789_000, 5))
        )
        assert stats.ks_2samp(plain.astype(np.float64), other.astype(np.float64)).pvalue > 1e-4


def test_a_sum_opens_with_the_last_message_and_not_before():
    server = seen(5)
    assert (server.opened() == 5 * CLIENTS).all()
    del server.received[2]
    with pytest.raises(ValueError, match=r"those of \[2\] are missing"):
        server.opened()


def test_the_server_of_ciphertexts_holds_no_secret_key_and_the_sum_opens_for_its_holder():
    pytest.importorskip("tenseal")
    holder = homomorphic.KeyHolder()
    public, message = holder.public(), np.arange(-2500, 2500)
    server = homomorphic.EncryptedSum(public)
    assert not server.context.is_private()
    for _ in range(3):
        server.receive(homomorphic.encrypted(public, message, 24))
    assert len(server.total) == 2
    with pytest.raises(ValueError, match="secret_key"):
        server.total[0].decrypt()
    assert (holder.decrypted(server.summed(), 5000, 24) == 3 * message).all()
    # One message encrypts to other bytes every time.
    assert homomorphic.encrypted(public, message, 24) != homomorphic.encrypted(public, message, 24)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e9])
def test_an_entry_that_no_sum_can_carry_is_lost_and_the_others_are_not(backend, value):
    each = [{"classifier": {"bias": torch.tensor([0.5, v, 2.0])}} for v in (1.0, value)]
    mean = SecureAggregation(backend).aggregate(each, [20, 20], stream(0, "seeds")).tensors["classifier"]["bias"]
    assert mean.isnan().tolist() == [False, True, False]
    assert mean[[0, 2]].tolist() == [0.5, 2.0]


def test_largest_numbers_that_are_let_through_add_up_without_wrapping():
    each = [{"classifier": {"bias": torch.tensor([s * 2.0**29 / 20 * 0.999], dtype=torch.float64)}} for s in (1, 1)]
    summed = SecureAggregation().aggregate(each, [20, 20], stream(0, "seeds"))
    assert float(summed.tensors["classifier"]["bias"]) == pytest.approx(2.0**29 / 20 * 0.999, rel=1e-12)


def test_settings_are_read_and_bad_ones_refused_in_one_line():
    assert written_defense.create("secure-aggregation", "update").backend == "masks"
    assert written_defense.canonical("secure-aggregation:backend=ckks") == "secure-aggregation:ckks"
    with pytest.raises(UserError, match="has the backends masks and ckks, but 'paillier' was given"):
        written_defense.create("secure-aggregation:paillier", "update")


def test_missing_tenseal_gets_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "tenseal", None)
    with pytest.raises(UserError, match=r"needs the package tenseal; install it with .* or choose backend=masks$"):
        written_defense.create("secure-aggregation:ckks", "update").planned([])
    assert written_defense.create("secure-aggregation:masks", "update").planned([]).backend == "masks"
