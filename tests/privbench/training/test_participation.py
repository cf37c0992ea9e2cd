"""Rounds in which some clients take part alone, by SecureGAN: sums, turns, bytes, engines, epsilon of each client, bad input."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from defenses.common import accounting
from defenses.common.accounting import Releases
from privbench import presets, registry
from privbench.errors import UserError
from privbench.execution import audit, canaries
from privbench.methods import participation
from privbench.methods.base import Normal, Phase, Stage, UniformClass
from privbench.methods.fedcg import FedCG
from privbench.methods.secure_gan import SecureGAN
from privbench.training import aggregation, checkpoint, defended, harness
from tests.builders.federations import digits_federation

pytestmark = pytest.mark.usefixtures("quick_accounts")

CPU = torch.device("cpu")
SIZES = (10, 15, 13)


def prepared(defense="none", sizes=SIZES, method="secure-gan", seed=0, **changes):
    spec = presets.train_spec(
        "smoke", "digits", method, clients=len(sizes), defense=defense, seed=seed,
        changes={"rounds": 4, "local_epochs": 1} | changes,
    )  # fmt: skip
    return harness.prepare(spec, digits_federation(sizes), CPU)


def trained(setup, rounds, execution="alone"):
    state = harness.initial(setup)
    for _ in range(rounds):
        harness.train_round([setup], [state], execution)
    return state


def flat(networks):
    return torch.cat([t.flatten() for group in networks for _, net in sorted(group.items()) for t in net.values()])


def generator(replica):
    return {part: replica.params[part] for part in ("generator",)}, {"generator": replica.buffers["generator"]}


@pytest.mark.parametrize("backend", ["none", "masks", "ckks"])
def test_the_first_round_ends_in_the_weighted_mean_of_all_generators(backend):
    if backend == "ckks":
        pytest.importorskip("tenseal")
    setup = prepared("none" if backend == "none" else f"secure-aggregation:{backend}")
    state = trained(setup, 1)
    each, total = [flat(generator(client)).double() for client in state.clients], sum(SIZES)
    mean = sum(n * g for n, g in zip(SIZES, each, strict=True)) / total
    assert min(float((g - mean).abs().max()) for g in each) > 1e-3
    bound = 0.0 if backend == "none" else setup.defense.fixed_point.error(SIZES)
    # Both are stored in single precision, in which the plain mean is added up, too.
    gap = (flat((state.server.params, state.server.buffers)).double() - mean).abs()
    assert bool((gap <= bound + 3e-7 * mean.abs().clamp_min(1e-3)).all())
    assert ("aggregation_seconds" in state.history[0]) == (backend != "none")
    assert "participants" not in state.history[0]


def test_in_later_rounds_one_client_alone_changes_the_server():
    setup = prepared("secure-aggregation:masks")
    state = trained(setup, 1)
    for turn in (0, 1, 2, 0):
        discriminators = [flat(({"d": client.params["discriminator"]}, {})) for client in state.clients]
        harness.train_round([setup], [state], "alone")
        entry = state.history[-1]
        assert entry["participants"] == [turn]
        assert "aggregation_seconds" not in entry
        # What it sent is what the server holds, to the bit; the others are as they were.
        assert torch.equal(flat((state.server.params, state.server.buffers)), flat(generator(state.clients[turn])))
        assert torch.equal(flat(state.uploads[turn]), flat(generator(state.clients[turn])))
        changed = [
            not torch.equal(before, flat(({"d": client.params["discriminator"]}, {})))
            for before, client in zip(discriminators, state.clients, strict=True)
        ]
        assert changed == [k == turn for k in range(3)]
        assert [len(values) for values in entry["loss"].values()] == [1, 1, 3]
    # The generator of client 2, whose only turn was before the last, is its own of that turn.
    assert not torch.equal(flat(generator(state.clients[2])), flat((state.server.params, state.server.buffers)))


def test_the_classifiers_that_measure_are_trained_on_the_server_s_generator_by_every_client():
    setup = prepared(sizes=(9, 9))
    before = trained(setup, 1)

    def measured(server=0.0, client=0.0):
        replicas = [
            replace(
                each, params=each.params | {"generator": {n: t + client for n, t in each.params["generator"].items()}}
            )
            for each in before.clients
        ]
        held = {"generator": {n: t + server for n, t in before.server.params["generator"].items()}}
        state = replace(before, server=replace(before.server, params=held), clients=replicas)
        losses = harness.measure([setup], [state], "alone")
        for one, other in zip(state.clients, replicas, strict=True):
            assert one is other
        return losses, state

    losses, state = measured()
    for client, other in zip(state.clients, before.clients, strict=True):
        changed = {
            p for p in client.params if any(not torch.equal(t, other.params[p][n]) for n, t in client.params[p].items())
        }
        assert changed == {"extractor", "classifier"}
    # A client's own generator is not asked.
    assert measured(client=9.0)[0] == losses != measured(server=0.1)[0]


@pytest.mark.parametrize("defense", ["none", "secure-aggregation:masks"])
def test_bytes_are_those_of_the_networks_that_travelled(defense):
    setup = prepared(defense)
    state = trained(setup, 2)
    plain = aggregation.size((state.server.params, state.server.buffers))
    assert plain == 4 * flat((state.server.params, state.server.buffers)).numel()
    first, second = state.history
    # Under masks a number takes 8 bytes in place of 4, and the client's number of images is one more.
    assert first["bytes_up"] == [plain if defense == "none" else 2 * plain + 8] * 3
    assert first["bytes_down"] == [plain] * 3
    assert second["bytes_up"] == second["bytes_down"] == [plain, 0, 0]


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("defense", ["none", "dp-adam:noise=1"])
def test_stacked_seeds_equal_each_alone(defense):
    sizes = (4, 9)
    setups = [prepared(defense, sizes, seed=seed, batch=8) for seed in (0, 1)]
    states = [harness.initial(setup) for setup in setups]
    for _ in range(2):
        harness.train_round(setups, states, "stacked")
    for setup, state in zip(setups, states, strict=True):
        alone = trained(setup, 2)
        for one, other in zip((*state.clients, state.server), (*alone.clients, alone.server), strict=True):
            torch.testing.assert_close(
                flat((one.params, one.buffers)), flat((other.params, other.buffers)), rtol=0, atol=1e-8
            )
        assert [e["test_accuracy"] for e in state.history] == [e["test_accuracy"] for e in alone.history]


def test_epsilon_is_that_of_the_rounds_in_which_a_client_took_part():
    setup = prepared("dp-adam:noise=2", sizes=(20, 20, 31))
    turns = [participation.rounds_of(setup.method, k, 3, 6) for k in range(3)]
    assert turns == [3, 3, 2]
    for promise, size, times in zip(defended.guarantees(setup, 6), (20, 20, 31), turns, strict=True):
        # One epoch of ceil(n / 16) Poisson samples a round, of the discriminator alone.
        spent = accounting.spent((Releases(2.0, 16 / size, 2 * times),), 1e-5)
        assert promise.epsilon == spent.epsilon
        assert promise.covers == ("discriminator", "generator")
        assert "batch-norm statistics" not in promise.leaves_out
    first = defended.guarantees(setup, 1)
    assert first[0].epsilon == first[1].epsilon < defended.guarantees(setup, 2)[0].epsilon
    assert first[1] == defended.guarantees(setup, 2)[1]


def test_an_epsilon_that_is_asked_for_is_kept_whoever_takes_part_most_often():
    # The small client has two rounds of five, the large ones more or fewer.
    setup = prepared("dp-adam:epsilon=80", sizes=(60, 60, 20), rounds=5)
    promises = defended.guarantees(setup, 5)
    assert all(promise.epsilon <= 80 for promise in promises)
    assert max(promise.epsilon for promise in promises) > 75
    # Where all clients take part in every round there is more to protect.
    everyone = prepared("dp-adam:epsilon=80", sizes=(60, 60, 20), rounds=5, method="dp-gan")
    assert setup.defense.noise < everyone.defense.noise


def test_of_two_defences_the_sum_acts_in_the_first_round_and_privacy_in_all():
    both, alone = (
        prepared(f"dp-adam:noise=1{more}", sizes=(9, 9), batch=8) for more in ("+secure-aggregation:masks", "")
    )
    assert defended.guarantees(both, 3) == defended.guarantees(alone, 3)
    assert defended.guarantees(both, 3)[0].epsilon > defended.guarantees(both, 1)[0].epsilon
    state, plain = trained(both, 2), trained(alone, 2)
    assert ["aggregation_seconds" in entry for entry in state.history] == [True, False]
    torch.testing.assert_close(flat(generator(state.clients[1])), flat(generator(plain.clients[1])), rtol=0, atol=0)
    # In the clear: what the server holds is what its one sender trained.
    assert torch.equal(flat((state.server.params, state.server.buffers)), flat(generator(state.clients[0])))


def test_a_client_that_sends_whole_updates_is_accounted_for_the_rounds_in_which_it_sends():
    setup = prepared("dp-fedavg:noise=3", sizes=(20, 20, 20))
    promises = defended.guarantees(setup, 2)
    assert promises[0].epsilon == accounting.spent((Releases(3.0, 1.0, 2),), 1e-5).epsilon
    assert promises[1].epsilon == accounting.spent((Releases(3.0, 1.0, 1),), 1e-5).epsilon


def test_an_audit_is_of_the_rounds_in_which_its_client_took_part(monkeypatch):
    setup = prepared("dp-adam:noise=2", sizes=(30, 20, 31))
    asked = []

    def one_run(setup, number, rounds):
        asked.append(rounds)
        return canaries.CanaryScores(torch.arange(number) % 2 == 0, torch.zeros(number))

    monkeypatch.setattr(canaries, "one_run", one_run)
    made = audit.audited(setup, 5, 10, single_releases=10)
    assert asked == [participation.rounds_of(setup.method, 1, 3, 5)] == [2]
    assert made.claimed == defended.guarantees(setup, 5)[1].epsilon


def test_a_killed_run_ends_with_the_same_networks(tmp_path):
    setup = prepared("secure-aggregation:masks", generator_epochs=1)
    whole, state = trained(setup, 3), trained(setup, 2)
    checkpoint.begin(tmp_path, setup.spec)
    checkpoint.keep(tmp_path, setup.spec, state)
    again = harness.state_of(setup, tmp_path, checkpoint.load(tmp_path, setup.spec, CPU))
    harness.train_round([setup], [again], "alone")
    assert torch.equal(
        flat((again.server.params, again.server.buffers)), flat((whole.server.params, whole.server.buffers))
    )
    assert [e["participants"] for e in again.history[1:]] == [[0], [1]]


def test_every_other_method_has_all_clients_in_every_round():
    for name in set(registry.METHODS) - {"secure-gan"}:
        method = registry.create(registry.resolve("method", name), {})
        assert participation.of_round(method, 7, 3) == (0, 1, 2)
        assert method.measuring() == ()


@dataclass(frozen=True)
class Wrong(SecureGAN):
    """Names clients that there are not."""

    def participants(self, round_, clients):
        """None, one too many, or one twice."""
        return {1: (), 2: (clients,), 3: (1, 1), 4: (-1,)}[round_]


@dataclass(frozen=True)
class OneAtATime(FedCG):
    """Two clients that take turns, and a server whose loss says what it sees."""

    seen: ClassVar[list[tuple[int, list[float]]]] = []

    def participants(self, round_, clients):
        """Client 0, then client 1, and so on."""
        return (round_ % clients,)

    def server(self):
        """The classifier's stage, of which only the setting is of interest."""

        def loss(nets, batch, clock):
            self.seen.append((len(nets.clients), nets.weights.tolist()))
            return nets.classifier(nets.generator(batch.noise["z"], batch.noise["y"])).square().mean()

        draws = {"z": Normal(), "y": UniformClass()}
        return (Phase((Stage("distillation", ("classifier",), loss, "server", draws),), "server_steps"),)


def test_a_server_s_losses_see_the_clients_that_took_part_alone():
    setup = replace(prepared(method="fedcg", sizes=(10, 15), server_steps=1), method=OneAtATime())
    state = harness.initial(setup)
    harness.learn([setup], [state], "alone")
    assert OneAtATime.seen == [(1, [1.0])]


def test_clients_that_there_are_not_are_refused_in_one_line():
    for round_ in (1, 2, 3, 4):
        with pytest.raises(UserError, match=r"^Wrong.participants should name one client or more from 0 to 2"):
            participation.of_round(Wrong(), round_, 3)
    with pytest.raises(UserError, match=r"^secure aggregation of one client hides nothing.*use --clients 2 or more"):
        prepared("secure-aggregation", sizes=(20,))
