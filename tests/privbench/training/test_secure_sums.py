"""Training under secure aggregation: the plain weighted average up to the stated error, bytes as sent, and what is refused."""

import pytest
import torch

from privbench import presets, registry
from privbench.errors import UserError
from privbench.records.unlike import unlike
from privbench.training import aggregation, checkpoint, defended, harness
from tests.builders.federations import digits_federation

CPU = torch.device("cpu")
SIZES = (20, 31, 26)


def prepared(method, defense, sizes=SIZES, **settings):
    spec = presets.train_spec(
        "smoke", "digits", method, clients=len(sizes), defense=defense, method_settings=settings or None,
        changes={"local_epochs": 1},
    )  # fmt: skip
    return harness.prepare(spec, digits_federation(sizes), CPU)


def after_a_round(setup):
    state = harness.initial(setup)
    harness.train_round([setup], [state], "alone")
    return state


@pytest.mark.parametrize("backend", ["masks", "ckks"])
@pytest.mark.parametrize("method", ["fedavg", "fedsplit"])
def test_a_round_ends_in_the_plain_weighted_average_up_to_the_stated_error(method, backend):
    if backend == "ckks":
        pytest.importorskip("tenseal")
    plain, summed = (prepared(method, d) for d in ("none", f"secure-aggregation:{backend}"))
    states = [after_a_round(setup) for setup in (plain, summed)]
    bound = summed.defense.fixed_point.error(SIZES)
    for part, net in states[0].server.params.items():
        for name, t in net.items():
            other = states[1].server.params[part][name]
            # Of both the mean is stored in single precision, and the plain one is added up in it.
            assert float((other - t).abs().max()) <= bound + 3e-7 * float(t.abs().max())
    # Local training is the same: the sum is taken after it.
    assert torch.equal(states[0].clients[1].params["classifier"]["fc1.weight"],
                       states[1].clients[1].params["classifier"]["fc1.weight"])  # fmt: skip


def test_the_history_says_what_clients_sent_and_how_long_adding_up_took():
    setup = prepared("fedavg", "secure-aggregation")
    entry = after_a_round(setup).history[0]
    entries = sum(
        t.numel()
        for part in setup.method.shared_parts
        for t in setup.model.net(part).init(torch.Generator())[0].values()
    )
    assert entry["bytes_up"] == [8 * (entries + 1)] * 3
    assert 0 < entry["aggregation_seconds"] < entry["seconds"]
    assert "aggregation_seconds" not in after_a_round(prepared("fedavg", "none")).history[0]


def test_generators_batch_norm_statistics_and_label_counts_are_added_up_too():
    setup = prepared("fedmd-cg", "secure-aggregation", aggregator="ave")
    state = after_a_round(setup)
    plain = after_a_round(prepared("fedmd-cg", "none", aggregator="ave"))
    for groups in ((state.server.params, plain.server.params), (state.server.buffers, plain.server.buffers)):
        for part, net in groups[1].items():
            for name, t in net.items():
                torch.testing.assert_close(groups[0][part][name], t, rtol=1e-6, atol=1e-7)
    sent = sum(t.numel() for group in state.uploads[0] for net in group.values() for t in net.values())
    # Each of the two messages ends in its weight.
    assert state.history[0]["bytes_up"] == [8 * (sent + 1) + 8 * (10 + 1)] * 3
    counts = setup.federation.label_counts()
    mean = aggregation.sum_of_counts(setup.defense, counts, torch.Generator()).tensors[aggregation.COUNTS]["n"]
    assert torch.equal((3 * mean).round().long(), counts.sum(0))


@pytest.mark.usefixtures("double_precision")
def test_seeds_trained_together_and_the_stacked_engine_end_in_the_same_sums():
    setup = prepared("fedavg", "secure-aggregation")
    alone, stacked = after_a_round(setup), harness.initial(setup)
    harness.train_round([setup], [stacked], "stacked")
    # The two updates agree as tests/privbench/training/test_engine.py asks, and each sum rounds by the stated error at most.
    most = 1e-8 + 2 * setup.defense.fixed_point.error(SIZES)
    for part, net in alone.server.params.items():
        for name, t in net.items():
            assert float((stacked.server.params[part][name] - t).abs().max()) <= most


def test_one_client_is_refused_in_one_line():
    with pytest.raises(UserError, match=r"^secure aggregation of one client hides nothing.*use --clients 2 or more"):
        prepared("fedavg", "secure-aggregation", sizes=(20,))


READS_SINGLE_UPLOADS = {"feddf": "--method fedavg", "fedgen": "--method fedavg"} | dict.fromkeys(
    ("fedcg", "nfl-cgan", "fedmd-cg"), "--set aggregator=ave"
)


@pytest.mark.parametrize("name", registry.METHODS)
def test_methods_whose_server_reads_single_uploads_are_refused_with_the_way_out(name):
    method = registry.create(registry.resolve("method", name), {})
    if not method.server():
        defended.check_sums(name, method, 2)
        return
    with pytest.raises(UserError, match=f"the server of {name} reads .* try {READS_SINGLE_UPLOADS[name]}, or"):
        defended.check_sums(name, method, 2)
    if "aggregator" in READS_SINGLE_UPLOADS[name]:
        defended.check_sums(name, registry.create(registry.resolve("method", name), {"aggregator": "ave"}), 2)


def test_a_method_that_shares_nothing_has_nothing_to_add_up():
    state = after_a_round(prepared("local", "secure-aggregation"))
    assert state.history[0]["bytes_up"] == [0, 0, 0]


def test_a_run_that_is_repeated_is_compared_but_for_what_is_measured():
    entry = {"round": 1, "bytes_up": [100], "aggregation_seconds": 0.1, "test_accuracy": [50.0]}
    assert list(unlike(entry, entry | {"bytes_up": [101], "aggregation_seconds": 0.2}, "")) == []
    assert list(unlike(entry, entry | {"test_accuracy": [51.0]}, "")) == ["test_accuracy[0]: 50.0 then, 51.0 now"]
    plain = {"bytes_up": [100], "aggregation_seconds": None}
    assert list(unlike(plain, plain | {"bytes_up": [101]}, "")) == ["bytes_up[0]: 100 then, 101 now"]


def test_a_killed_run_ends_with_the_same_networks_under_ciphertexts_too(tmp_path):
    pytest.importorskip("tenseal")
    setup = prepared("fedavg", "secure-aggregation:ckks")
    whole, again = (harness.initial(setup) for _ in range(2))
    for state in (whole, again):
        harness.train_round([setup], [state], "alone")
    checkpoint.begin(tmp_path, setup.spec)
    checkpoint.save(tmp_path, setup.spec, again)
    again = checkpoint.load(tmp_path, setup.spec, CPU)
    for state in (whole, again):
        harness.train_round([setup], [state], "alone")
    for part, net in whole.server.params.items():
        assert all(torch.equal(t, again.server.params[part][name]) for name, t in net.items())
    assert [set(entry) >= {"aggregation_seconds", "bytes_up"} for entry in again.history] == [True, True]
