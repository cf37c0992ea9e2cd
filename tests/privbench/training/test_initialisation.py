"""Clients that draw the networks which they keep: what differs between them, what does not, and what an attacker then lacks."""

import pytest
import torch

from privbench import presets, registry
from privbench.execution import attack_cell, preconditions
from privbench.execution.one_attack import attack_artifact
from privbench.observation import observe
from privbench.records.store import Store
from privbench.seeds import stream
from privbench.training import checkpoint, federation, harness
from tests.builders.federations import digits_federation
from tests.builders.refusals import refused

CPU = torch.device("cpu")
KEPT = {
    "fedsplit": {"extractor"},
    "fedper": {"classifier"},
    "fedcg": {"extractor", "discriminator"},
    "local": {"extractor", "classifier"},
}
OF_THE_START = ("analytic-features", "chained", "initial-surrogate")


def train_spec(method, how="per-client", **chosen):
    settings = {"gan": "dense"} if method == "fedcg" else None
    return presets.train_spec(
        "smoke", "digits", method, clients=2, initialisation=how, method_settings=settings, **chosen
    )


def started(method, how="per-client", **chosen):
    setup = harness.prepare(train_spec(method, how, **chosen), digits_federation(), CPU)
    return setup, harness.initial(setup)


def same(a, b, part):
    """Whether two replicas have the same bits in a part."""
    groups = ((a.params[part], b.params[part]), (a.buffers[part], b.buffers[part]))
    return all(torch.equal(t, other[name]) for one, other in groups for name, t in one.items())


@pytest.mark.parametrize("method", KEPT)
def test_clients_differ_in_what_they_keep_and_in_nothing_that_they_share(method):
    setup, state = started(method)
    common = started(method, "shared")[1]
    first, second = state.clients
    assert set(first.params) == set(setup.method.parts)
    assert {part for part in first.params if not same(first, second, part)} == KEPT[method]
    for part in set(first.params) - KEPT[method]:
        assert same(first, common.clients[0], part)
        assert same(first, state.server, part)
    # What they keep is nobody's common start either.
    assert not any(same(client, common.clients[0], part) for client in state.clients for part in KEPT[method])


def test_a_client_draws_from_a_stream_of_its_own_whatever_the_others_are():
    setup, state = started("fedsplit", seed=3)
    for k, client in enumerate(state.clients):
        params, _ = setup.model.net("extractor").init(stream(3, "init", "extractor", "client", k))
        assert all(torch.equal(t, params[name]) for name, t in client.params["extractor"].items())
    alone = harness.prepare(train_spec("fedsplit", seed=3), digits_federation((20, 20, 20)), CPU)
    assert all(same(a, b, "extractor") for a, b in zip(harness.initial(alone).clients, state.clients, strict=False))


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("method", ["fedsplit", "fedcg"])
def test_stacked_clients_and_seeds_equal_each_alone(method):
    def trained(execution, seeds):
        setups, states = zip(*(started(method, seed=s) for s in seeds), strict=True)
        harness.train_round(setups, states, execution)
        return states

    for seed, stacked in enumerate(trained("stacked", (0, 1))):
        (alone,) = trained("alone", (seed,))
        for a, b in zip((stacked.server, *stacked.clients), (alone.server, *alone.clients), strict=True):
            for part, net in a.params.items():
                for name, t in net.items():
                    torch.testing.assert_close(t, b.params[part][name], atol=1e-8, rtol=0)
        assert not same(*stacked.clients, "extractor")


def test_a_run_resumed_from_disk_has_every_clients_own_start(tmp_path):
    setup, state = started("fedsplit")
    checkpoint.begin(tmp_path, setup.spec)
    checkpoint.keep(tmp_path, setup.spec, state)
    shot, loaded = checkpoint.load_snapshot(tmp_path, setup.spec.id, 0), checkpoint.load(tmp_path, setup.spec, CPU)
    for client, kept, again in zip(state.clients, shot.clients, loaded.clients, strict=True):
        assert same(client, kept, "extractor")
        assert same(client, again, "extractor")


def test_a_method_whose_clients_keep_nothing_is_refused_before_training():
    refused(lambda: federation.of(train_spec("fedavg"), None), "--initialisation per-client", "fedavg", "keeps none")
    federation.of(train_spec("fedavg", "shared"), None)


@pytest.mark.parametrize("attack", OF_THE_START)
def test_attacks_from_the_initial_networks_are_refused_before_training(attack, tmp_path):
    cells = [
        presets.cell_spec("smoke", train_spec("fedsplit", how), attack, victims=2) for how in ("shared", "per-client")
    ]
    (reason,) = preconditions.impossible(Store(tmp_path), cells, None, workers=1).items()
    assert reason[0] == cells[1].id
    for words in (attack, "--initialisation per-client", "leave that option out"):
        assert words in reason[1]
    assert "\n" not in reason[1]


def test_so_is_a_setting_that_begins_at_them(tmp_path):
    for how, faults in (("shared", 0), ("per-client", 1)):
        cells = [
            presets.cell_spec(
                "smoke", train_spec("fedsplit", how), "calibrated", victims=2, attack_settings={"start": start}
            )
            for start in ("random", "initial")
        ]
        reasons = preconditions.impossible(Store(tmp_path), cells, None, workers=1)
        assert list(reasons) == [cells[1].id][:faults]
        assert all(
            "calibrated needs the networks that all clients started with" in reason for reason in reasons.values()
        )


def test_those_are_all_attacks_that_need_the_initial_networks():
    assert {name for name in registry.ATTACKS if "initial" in registry.resolve("attack", name).needs} == set(
        OF_THE_START
    )


def test_no_attacker_is_given_a_start_that_nobody_knows(tmp_path):
    setup, state = started("fedsplit")
    checkpoint.begin(tmp_path, setup.spec)
    checkpoint.keep(tmp_path, setup.spec, state)
    shot = checkpoint.load_snapshot(tmp_path, setup.spec.id, 0)
    seen, _ = observe.observe(
        shot, setup.federation, setup.model, setup.method, setup.defense, method_name="fedsplit", dataset="digits",
        victims=2, batch_size=1, labels_known=False, seed=0,
    )  # fmt: skip

    def known(how):
        spec = train_spec("fedsplit", how)
        cell = presets.cell_spec("smoke", spec, "oracle", victims=2)
        return attack_cell.knowledge_of(Store(tmp_path), cell, spec, setup.federation, seen, shot)

    assert known("per-client").initial is None
    assert known("shared").initial is not None
    # The reference still has each client's own.
    assert same(state.clients[1], known("per-client").oracle[1], "extractor")
    refused(
        lambda: attack_artifact("analytic-features", {}, seen, known("per-client"), 0, CPU, lambda *_: None),
        "analytic-features needs the networks the clients started with",
    )


def test_a_usual_start_is_no_part_of_the_name_of_a_run():
    plain = presets.train_spec("quick", "digits", "fedsplit")
    named = presets.train_spec("quick", "digits", "fedsplit", initialisation="shared")
    own = presets.train_spec("quick", "digits", "fedsplit", initialisation="per-client")
    assert plain.id == named.id != own.id
    assert "initialisation" not in plain.model_dump()
    assert own.model_dump()["initialisation"] == "per-client"
