"""The engine: stacked replicas equal replicas alone, and both equal torch's own optimiser."""

import pytest
import torch

from benchmarks import plain
from privbench import presets, registry, spec
from privbench.training import federation as federations
from privbench.training import harness, phase_plans
from privbench.training.engine.descent import adam, sgd
from privbench.training.state import Moments
from tests.builders.federations import digits_federation, learn_round

pytestmark = pytest.mark.usefixtures("double_precision")

METHODS = tuple(name for name in registry.METHODS if name != "lg-fedavg")  # another name of fedsplit
CHEAPER = {"nfl-cgan": {"gan": "dense"}}  # its convolutional generator is that of fedcg
# Two mini-batches of few images in one round: of SecureGAN's next one test_participation.py says the same.
OF_IMAGES = {"sizes": (12, 12), "changes": {"batch": 8}, "rounds": 1}
VARIANTS = (
    ("fedcg", {"gan": "dense", "aggregator": "kdc"}, {}),
    ("fedgen", {"gan": "dense"}, {}),
    ("fedmd-cg", {"diversity": 2, "aggregator": "kd", "without": "mse_global"}, {}),
    ("fedmd-cg", {"diversity": 1}, {"client_steps": 3, "task": {"kind": "sgd", "lr": 0.05, "weight_decay": 1e-4}}),
)


def trained(
    method,
    execution,
    seeds=(0,),
    sizes=(20, 20),
    defense="none",
    where="step",
    rounds=2,
    flip=False,
    settings=None,
    changes=None,
):
    federation = digits_federation(sizes, flip)
    specs = [
        presets.train_spec(
            "smoke", "digits", method, clients=len(sizes), defense=defense, where=where, seed=s,
            method_settings=settings, changes=changes,
        )
        for s in seeds
    ]  # fmt: skip
    setups = [harness.prepare(each, federation, torch.device("cpu")) for each in specs]
    states = [harness.initial(setup) for setup in setups]
    for _ in range(rounds):
        learn_round(setups, states, execution)
    return states


def networks(state):
    for replica in (state.server, *state.clients):
        for part in replica.params:
            yield from replica.params[part].items()
            yield from replica.buffers[part].items()


def distance(a, b):
    return max(float((x - y).abs().max()) for (_, x), (_, y) in zip(networks(a), networks(b), strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_stacked_clients_and_seeds_equal_each_alone(method):
    how = {"settings": CHEAPER.get(method), "rounds": 1 if method in ("fedcg", "reptile") else 2}
    how |= OF_IMAGES if method in ("dp-gan", "secure-gan") else {}
    stacked = trained(method, "stacked", seeds=(0, 1), **how)
    for seed, state in enumerate(stacked):
        assert distance(state, trained(method, "alone", seeds=(seed,), **how)[0]) < 1e-8


@pytest.mark.parametrize(("method", "settings", "changes"), VARIANTS)
def test_stacked_equals_alone_for_every_aggregator_generator_and_optimiser(method, settings, changes):
    how = {"sizes": (37, 16), "settings": settings, "changes": changes}
    stacked = trained(method, "stacked", seeds=(0, 1), **how)
    for seed, state in enumerate(stacked):
        assert distance(state, trained(method, "alone", seeds=(seed,), **how)[0]) < 1e-8
    if "client_steps" in changes:
        assert [client.moments["task"].steps for client in stacked[0].clients] == [6, 6]


def test_seeds_with_clients_of_other_sizes_are_averaged_by_their_own_weights():
    """As Dirichlet partitions are: the seeds of one stacked run differ in their clients' sizes and label counts."""
    each = [presets.train_spec("smoke", "digits", "fedmd-cg", clients=2, seed=s) for s in (0, 1)]
    sizes = ((20, 40), (40, 10))
    setups = [harness.prepare(e, digits_federation(n), torch.device("cpu")) for e, n in zip(each, sizes, strict=True)]
    states = [harness.initial(setup) for setup in setups]
    learn_round(setups, states, "stacked")
    for seed, state in enumerate(states):
        alone = harness.initial(setups[seed])
        learn_round([setups[seed]], [alone], "alone")
        assert distance(state, alone) < 1e-8


@pytest.mark.parametrize("method", ["fedavg", "fedcg"])
def test_ragged_clients_stacked_equal_each_alone(method):
    sizes = (18, 8, 3)  # three steps, one step, and fewer images than a batch
    how = {"sizes": sizes, "flip": True, "rounds": 1, "changes": {"batch": 8}}
    alone, stacked = (trained(method, e, **how)[0] for e in ("alone", "stacked"))
    assert distance(alone, stacked) < 1e-8
    steps = [client.moments["task"].steps for client in stacked.clients]
    assert steps == [3, 1, 1]


def test_the_defence_draws_the_same_noise_stacked_and_alone():
    alone, stacked = (trained("fedsplit", e, defense="gaussian:0.1", rounds=1)[0] for e in ("alone", "stacked"))
    assert distance(alone, stacked) < 1e-8
    assert distance(alone, trained("fedsplit", "alone", rounds=1)[0]) > 1e-3


def test_another_seed_gives_other_networks():
    assert distance(trained("fedavg", "alone")[0], trained("fedavg", "alone", seeds=(1,))[0]) > 1e-2


def test_adam_equals_torch_adam_with_weight_decay():
    rng = torch.Generator().manual_seed(0)
    start, grads = torch.randn(2, 7, generator=rng), torch.randn(5, 2, 7, generator=rng)
    setting = spec.Adam(lr=0.01, beta1=0.5, beta2=0.9, weight_decay=0.1)
    flat, moments = start.clone(), Moments(torch.zeros(2, 7), torch.zeros(2, 7), 0)
    steps = torch.zeros(2)
    reference = torch.nn.Parameter(start.clone())
    optimiser = torch.optim.Adam([reference], lr=0.01, betas=(0.5, 0.9), weight_decay=0.1)
    for grad in grads:
        steps += 1
        adam(list(flat), list(grad.clone()), list(moments.mean), list(moments.square), list(steps), setting)
        reference.grad = grad.clone()
        optimiser.step()
    torch.testing.assert_close(flat, reference.detach())


def test_sgd_equals_torch_sgd_with_weight_decay():
    rng = torch.Generator().manual_seed(0)
    start, grads = torch.randn(2, 7, generator=rng), torch.randn(5, 2, 7, generator=rng)
    flat, reference = start.clone(), torch.nn.Parameter(start.clone())
    optimiser = torch.optim.SGD([reference], lr=0.05, weight_decay=0.1)
    for grad in grads:
        sgd(list(flat), list(grad.clone()), spec.SGD(kind="sgd", lr=0.05, weight_decay=0.1))
        reference.grad = grad.clone()
        optimiser.step()
    torch.testing.assert_close(flat, reference.detach())


def test_each_replica_counts_its_own_adam_steps():
    setting = spec.Adam(lr=0.01)
    early, late, *zeros = torch.zeros(6, 3)
    grads, steps = [torch.ones(3), torch.ones(3)], [torch.tensor(1.0), torch.tensor(10.0)]
    adam([early, late], grads, zeros[:2], zeros[2:], steps, setting)
    torch.testing.assert_close(early, torch.full((3,), -0.01))
    assert not torch.allclose(early, late)


@pytest.mark.parametrize("method", ["fedavg", "fedsplit", "fedcg"])
def test_two_rounds_equal_a_plain_torch_loop(method):
    """The reference path: torch.nn layers, torch.optim.Adam, one client after another."""
    changes = {"local_epochs": 2, "generator_epochs": 1, "server_steps": 2, "batch": 8}
    each = presets.train_spec("smoke", "digits", method, clients=2, changes=changes)
    setup = harness.prepare(each, digits_federation((10, 17)), torch.device("cpu"))
    state = harness.initial(setup)
    reference = plain.Training(setup, state)
    begin = dict(state.server.params)
    for _ in range(2):
        learn_round([setup], [state], "alone")
        reference.round()
    assert relative_gap(begin, state.server.params) > 1e-2
    for replica, modules in [(state.server, reference.server), *zip(state.clients, reference.clients, strict=True)]:
        for values in (replica.params, replica.buffers):
            expected = {part: plain.values(net, part, values[part]) for part, net in modules.items()}
            assert relative_gap({part: values[part] for part in expected}, expected) < 1e-9


@pytest.mark.parametrize("execution", ["alone", "stacked"])
def test_features_computed_once_in_a_phase_equal_those_of_every_mini_batch(execution, monkeypatch):
    how = {
        "sizes": (20, 16),
        "flip": True,
        "rounds": 2,
        "settings": {"gan": "dense"},
        "changes": {"generator_epochs": 2},
    }
    table = trained("fedcg", execution, **how)[0]
    unflipped = trained("fedcg", execution, **how | {"flip": False})[0]
    monkeypatch.setattr(phase_plans, "FEATURE_BYTES", 0)
    anew = trained("fedcg", execution, **how)[0]
    assert relative_gap(anew.clients[0].params, table.clients[0].params) < 1e-9
    assert relative_gap(anew.clients[0].params, unflipped.clients[0].params) > 1e-6


def relative_gap(one, other):
    """The largest ||a - b|| / ||a|| over networks."""
    flat = [
        [torch.cat([p[n].flatten() for n in sorted(p)]) for _, p in sorted(each.items()) if p] for each in (one, other)
    ]
    return max(float((a - b).norm() / a.norm()) for a, b in zip(*flat, strict=True)) if flat[0] else 0.0


def test_features_do_not_depend_on_the_number_of_threads():
    # In single precision and of many images, where operations are split over threads.
    before, kind = torch.get_num_threads(), torch.get_default_dtype()
    train = presets.train_spec("quick", "digits", "fedcg")
    try:
        torch.set_default_dtype(torch.float32)
        setup = harness.prepare(train, federations.of(train, None)[0], torch.device("cpu"))
        client, every = harness.initial(setup).clients[0], torch.arange(len(setup.labels[0]))
        tables = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            tables.append(phase_plans.features_of(setup, 0, client)(every, None))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
        torch.set_default_dtype(kind)
    assert torch.equal(*tables)


@pytest.mark.parametrize("method", ["fedavg", "fedcg"])
def test_the_numbers_do_not_depend_on_how_many_clients_train_at_a_time(method):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = trained(method, "alone", rounds=1)[0]
        torch.set_num_threads(2)
        two = trained(method, "alone", rounds=1)[0]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert distance(one, two) == 0
