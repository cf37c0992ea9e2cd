"""Which attacks pool uploads, found out by experiment: the first victim alone, and among five others.

An attack that does not say `pools` must make the same of a victim whether or not others are attacked beside it. One that does must
make something else of it. Private extractors are FedCG's, broadcast ones FedAvg's and, in part, FedPer's.
"""

import copy

import pytest
import torch

from attacks.crafted import classifiers, saturated
from attacks.features import layerwise
from attacks.shadow import selection
from attacks.shadow.fitting import held_out
from attacks.shadow.fitting.calibration import Fit
from attacks.unsplit import UnSplit
from privbench import presets, registry
from privbench.execution import attack_cell, one_attack
from privbench.observation import knowledge, observe
from privbench.training import checkpoint, harness
from privbench.training.state import Replica
from privbench.types import ExpectedUpload, Knowledge, LocalSteps, Networks
from tests.builders.federations import digits_federation
from tests.builders.other_uploads import other_uploads
from tests.test_contracts import PRIVATE, short, trust_surrogates

pytestmark = pytest.mark.usefixtures("small_shadows")

CPU = torch.device("cpu")
CLIENTS, VICTIMS = 2, 6
GATED = ("surrogate", "feature-hijacking")  # they pool only to decide whether their shadow validation applies
UPDATES = LocalSteps(2, {"kind": "sgd", "lr": 0.1, "weight_decay": 0.0})
# The first victim's upload as often as there are victims, so that shapes stay as they are.
ALONE = torch.zeros(VICTIMS, dtype=torch.int64)
# A problem that ends sooner leaves the others in smaller batches, which kernels sum in another order: single precision, and a few
# steps of a descent enlarge it.
ROUNDING = 1e-4
DIFFERENT = 10 * ROUNDING
LONGER = {"align_steps": 15, "train_steps": 10}


@pytest.fixture(autouse=True)
def one_iteration_of_peeling(monkeypatch):
    """`staged` begins with the layerwise inversion, which takes most of the time of attacks on a broadcast extractor."""
    whole = layerwise.invert
    monkeypatch.setattr(
        layerwise, "invert",
        lambda shared, h, gaussian, most, *rest, **named: whole(shared, h, gaussian, min(most, 1), *rest, **named),
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Method -> (its set-up, its snapshot after one round, its initial networks, its snapshot before)."""
    states = {}
    for name in ("fedcg", "fedcg + gaussian", "fedavg", "fedavg + gaussian", "fedper"):
        method, defense = name.removesuffix(" + gaussian"), "gaussian:0.001" if "gaussian" in name else "none"
        each = presets.train_spec("smoke", "digits", method, clients=CLIENTS, defense=defense, changes={"rounds": 1})
        setup, folder = harness.prepare(each, digits_federation((20, 20)), CPU), tmp_path_factory.mktemp(method)
        state = harness.initial(setup)
        start = knowledge.initial(
            Replica(state.clients[0].params | state.server.params, state.clients[0].buffers | state.server.buffers)
        )
        start = start._replace(params=copy.deepcopy(start.params))
        checkpoint.save_snapshot(folder, each, state)
        untrained = checkpoint.load_snapshot(folder, each.id, 0)
        harness.train_round([setup], [state], "alone")
        checkpoint.save_snapshot(folder, each, state)
        states[name] = setup, checkpoint.load_snapshot(folder, each.id, 1), start, untrained
    return states


def shown(trained, name, attack):
    """(what the server sees of six victims of an attack, three of a client; all that may be known besides)."""
    setup, first, start, untrained = trained[name]
    shot = first
    auxiliary = observe.auxiliary(setup.federation)
    plugin = registry.create(registry.resolve("attack", attack), short(attack))
    if registry.is_active(attack):
        server, handed = shot.server, Knowledge(auxiliary, expected=ExpectedUpload(1, setup.defense))
        sent = plugin.craft(setup.model, Networks(server.params, server.buffers), handed, 0)
        shot = shot._replace(server=Replica(server.params | sent.params, server.buffers | sent.buffers))
    local = UPDATES if any(need.startswith("update:") for need in plugin.needs) else None
    seen, _ = observe.observe(
        shot, setup.federation, setup.model, setup.method, setup.defense, method_name=setup.spec.method, dataset="digits",
        victims=VICTIMS, batch_size=1, labels_known=False, seed=0, local=local,
    )  # fmt: skip
    # A step of it takes seconds with six; these two are of one client.
    seen = seen.select(torch.arange(2)) if attack == "layerwise" else seen
    honest = first.server
    whole = Knowledge(
        auxiliary=auxiliary, initial=start, colluder=knowledge.colluder(first, seen, setup.federation),
        oracle=knowledge.oracle(first, seen), broadcast=Networks(honest.params, honest.buffers),
        **other_uploads(setup, setup.spec.method, untrained, first),
    )  # fmt: skip
    return seen, whole


def brief(attack):
    """Settings that make an attack quick, and let what it pools show."""
    return {field: LONGER.get(field, value) for field, value in short(attack).items()}


def gap(attack, seen, whole):
    """The largest difference of a pixel of one victim's image, alone and among the others, of a range of 1.

    It is the first victim of whose image anything can be read: under a saturated classifier some leave no gradient.
    """
    crafted = attack == "imprint" and classifiers.is_saturated(seen.weights["classifier"])
    row = int(saturated.above_noise(seen)[0]) if crafted else 0
    alone, among = (
        one_attack.attack_artifact(attack, brief(attack), each, whole, 0, CPU, lambda *_: None).images[row].double()
        for each in (seen.select(ALONE[: seen.victims] + row), seen)
    )
    return float((alone - among).abs().max())


def met(name):
    """The attacks that can be made of a method's gradients or updates, and that do work of their own there."""
    method = registry.create(registry.resolve("method", name.removesuffix(" + gaussian")), {})
    offered = observe.offers(method) | observe.offers(method, update=True) | set(knowledge.FIELDS)
    offered_attacks = [a for a in registry.ATTACKS if registry.resolve("attack", a).needs <= offered]
    if name == "fedavg + gaussian":
        return ["staged", "learned-inverse", "posterior"]
    # One needs noise, one reads generators of images, two take several images (tests/attacks/test_claims.py).
    elsewhere = ("posterior", "generated-images", "fishing", "seer")
    return [a for a in offered_attacks if a not in elsewhere and (name == "fedcg" or a not in PRIVATE)]


def pools(attack):
    return bool(getattr(registry.create(registry.resolve("attack", attack), {}), "pools", False))


@pytest.mark.parametrize("name", ["fedcg", "fedavg", "fedavg + gaussian", "fedper"])
def test_an_attack_that_does_not_pool_makes_the_same_of_a_victim_alone_and_among_others(name, trained, monkeypatch):
    trust_surrogates(monkeypatch)
    single = [a for a in met(name) if name != "fedcg" or not pools(a)]
    gaps = {attack: gap(attack, *shown(trained, name, attack)) for attack in single}
    assert len(gaps) == {"fedcg": 16, "fedavg": 16, "fedavg + gaussian": 3, "fedper": 4}[name], list(gaps)
    assert {a: difference for a, difference in gaps.items() if not difference <= ROUNDING} == {}


def test_an_attack_that_pools_makes_something_else_of_a_victim_among_others(trained, monkeypatch):
    trust_surrogates(monkeypatch)
    pooling = [a for a in met("fedcg") if pools(a) and a not in GATED]
    assert pooling == [
        "imprint", "aligned-surrogate", "joint", "initial-surrogate", "decoder", "calibrated", "chained", "collusion",
    ]  # fmt: skip
    # Two images, left out one by one, do not say surely whether a refinement serves.
    monkeypatch.setattr(
        held_out, "trusted", lambda _how, _prior, kinds, *_: [Fit(one.params, 0.1) for one in kinds[-1]]
    )
    # Of single images without noise nothing is crafted, so that `imprint` reads nothing.
    setups = {attack: "fedcg + gaussian" if attack == "imprint" else "fedcg" for attack in pooling}
    gaps = {attack: gap(attack, *shown(trained, setups[attack], attack)) for attack in pooling}
    assert {a: difference for a, difference in gaps.items() if not difference > DIFFERENT} == {}


@pytest.mark.parametrize("attack", GATED)
def test_an_attack_that_pools_to_doubt_its_shadow_validation_does_so_by_the_other_victims_too(
    attack, trained, monkeypatch
):
    """With a threshold between the shift of the victim's own features and that of all, one of the two alone is inverted."""
    seen, whole = shown(trained, "fedcg", attack)
    shifts, original = [], selection.applies

    def noted(recipe, real, shadow_shift, seed, knowledge):
        shifts.append(recipe.shift(real, recipe.extractors(real, seed, knowledge), seed, knowledge))
        return original(recipe, real, shadow_shift, seed, knowledge)

    monkeypatch.setattr(selection, "applies", noted)
    monkeypatch.setattr(selection, "best", lambda _: (0, 0.1))
    gap(attack, seen, whole)
    alone, among = shifts[0], shifts[-1]
    assert abs(alone - among) > ROUNDING * among
    between = (alone + among) / 2
    monkeypatch.setattr(
        selection,
        "applies",
        lambda recipe, real, _, *rest: recipe.shift(real, recipe.extractors(real, *rest), *rest) <= between,
    )
    assert gap(attack, seen, whole) > DIFFERENT
    assert pools(attack)


def test_a_common_surrogate_of_unsplit_is_declared_and_pools(trained, monkeypatch):
    seen, whole = shown(trained, "fedcg", "unsplit")
    settings = short("unsplit") | {"stand_in_of": "client"}
    assert (UnSplit().pools, UnSplit(stand_in_of="client").pools) == (False, True)
    alone, among = (
        one_attack.attack_artifact("unsplit", settings, each, whole, 0, CPU, lambda *_: None).images[0]
        for each in (seen.select(ALONE), seen)
    )
    assert float((alone - among).abs().max()) > DIFFERENT


def test_a_record_says_how_many_uploads_of_a_client_were_pooled(trained):
    pooled = {}
    for name in ("fedcg", "fedavg"):
        for attack, settings in (("aligned-surrogate", {}), ("staged", {}), ("unsplit", {"stand_in_of": "client"})):
            seen, _ = shown(trained, name, attack)
            pooled[name, attack] = attack_cell._knowledge(attack, seen, {}, settings)["pools"]
    assert pooled == {
        ("fedcg", "aligned-surrogate"): 3, ("fedcg", "staged"): None, ("fedcg", "unsplit"): 3,
        ("fedavg", "aligned-surrogate"): None, ("fedavg", "staged"): None, ("fedavg", "unsplit"): None,
    }  # fmt: skip
