"""Every attack on every backbone beside LeNet-5 and ResNet-18: it runs for a few steps, or is refused in one line."""

import dataclasses

import pytest
import torch

from attacks.common import closed_form
from attacks.features import disaggregation
from privbench import presets, registry
from privbench.errors import AttackRefused
from privbench.execution import applicability, one_attack
from privbench.observation import knowledge, observe
from privbench.training import checkpoint, harness
from privbench.types import Knowledge, LocalSteps, Networks
from tests.builders.federations import digits_federation
from tests.builders.other_uploads import other_uploads
from tests.conftest import narrow, shrink_shadows
from tests.test_contracts import SHORT

CPU = torch.device("cpu")
NAMES = ("mlp", "convnet", "resnet18-torchvision", "vit")
METHODS = ("fedavg", "fedcg")  # everything shared; the extractor private and a generator besides
LINEAR_HEAD = ("mlp", "convnet", "vit")
CRAFTED = {"imprint", "fishing", "seer", "client-rows", "model-inconsistency", "feature-hijacking"}
SURROGATES = {"surrogate", "aligned-surrogate", "joint", "initial-surrogate", "decoder", "collusion", "oracle"} | {
    "oracle-decoder", "analytic-features", "calibrated", "chained",
}  # fmt: skip
OTHER = {"unsplit", "learned-inverse"}  # which read the features off a first linear layer
ELSEWHERE = {"posterior", "generated-images"}  # of noise, and of generators of images
# What a small run leaves to `make test-thorough`: of FedAvg all but these, of FedCG these on a second backbone.
OF_FEDAVG = {"staged", "learned-inverse", "extractor-matching"}
SLOW = {"joint", "initial-surrogate", "collusion", "aligned-surrogate", "update-matching", "matching"}


@pytest.fixture(scope="module")
def observed(tmp_path_factory):
    """(artifact, truth, whole knowledge) after a round of two clients, by backbone and method; and of updates."""
    with pytest.MonkeyPatch.context() as patch:
        narrow(patch)
        shrink_shadows(patch)
        yield {
            key: one for name in NAMES for method in METHODS for key, one in of_method(name, method, tmp_path_factory)
        }


def of_method(name, method, folders):
    folder, federation = folders.mktemp(method), digits_federation((20, 20))
    each = presets.train_spec("smoke", "digits", method, backbone=name, clients=2, changes={"rounds": 1})
    setup = harness.prepare(each, federation, CPU)
    state = harness.initial(setup)
    checkpoint.save_snapshot(folder, each, state)
    start = checkpoint.load_snapshot(folder, each.id, 0)
    harness.train_round([setup], [state], "alone")
    checkpoint.save_snapshot(folder, each, state)
    shot = checkpoint.load_snapshot(folder, each.id, 1)
    local = LocalSteps(2, {"kind": "sgd", "lr": 0.1, "weight_decay": 0.0})
    for kind, batch, steps in (("gradient", 1, None), ("batch", 2, None), ("update", 1, local)):
        seen, truth = observe.observe(
            shot, federation, setup.model, setup.method, setup.defense, method_name=method, dataset="digits",
            victims=2, batch_size=batch, labels_known=False, seed=0, local=steps,
        )  # fmt: skip
        whole = Knowledge(
            auxiliary=observe.auxiliary(federation), initial=knowledge.of_client(shot, 0),
            colluder=knowledge.colluder(shot, seen, federation), oracle=knowledge.oracle(shot, seen),
            broadcast=Networks(shot.server.params, shot.server.buffers), **other_uploads(setup, method, start, shot),
        )  # fmt: skip
        yield (name, method, kind), (seen, truth, whole, each)


def refusal(attack, train, seen):
    """Why an attack is refused before training, or on the artifact; nothing where it is not."""
    cell = presets.cell_spec("smoke", train, attack, attack_settings=short(attack), victims=2)
    plugin = registry.resolve("attack", attack)
    try:
        one_attack.check_needs(attack, plugin, seen)
    except AttackRefused as error:
        return str(error)
    return applicability.exceeded(attack, applicability.of(plugin), cell)


def short(attack):
    """One step of everything."""
    fields = {f.name for f in dataclasses.fields(registry.resolve("attack", attack))}
    return {field: min(steps, 1) for field, steps in SHORT.items() if field in fields}


def is_left_out(attack, name, method):
    return attack not in OF_FEDAVG if method == "fedavg" else attack in SLOW and name != "mlp"


@pytest.mark.parametrize("width", ["small", pytest.param("whole", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", METHODS)
def test_every_attack_runs_or_is_refused_in_one_line(name, method, width, observed):
    refused = {}
    for attack in registry.ATTACKS:
        kind = "update" if attack == "update-matching" else "gradient"
        seen, truth, whole, train = observed[name, method, kind]
        reason = refusal(attack, train, seen)
        if reason:
            assert "\n" not in reason
            assert attack in reason
            refused[attack] = reason
        if reason or (width == "small" and is_left_out(attack, name, method)):
            continue
        reconstruction = one_attack.attack_artifact(attack, short(attack), seen, whole, 0, CPU, lambda *_: None)
        assert reconstruction.images.shape == truth.images.shape, attack
        assert reconstruction.images.isfinite().all(), attack
        assert reconstruction.loss.isfinite().all(), attack
    private = {a for a in registry.ATTACKS if applicability.of(registry.resolve("attack", a)).private_extractor}
    # Behind ReLUs there is no layerwise inversion, and an MLP has no extractor.
    expected = ELSEWHERE | CRAFTED - {"imprint"} | {"layerwise"}
    # Its surrogates have no batch statistics, and are needed where the extractor is private.
    if name not in LINEAR_HEAD or (name, method) == ("convnet", "fedcg"):
        expected |= {"imprint"}
    expected |= private | {"feature-statistics"} if method == "fedavg" else {"learned-inverse", "extractor-matching"}
    if name == "convnet":
        expected |= SURROGATES
    if name not in LINEAR_HEAD:
        expected |= SURROGATES | OTHER
    assert set(refused) == expected
    assert name in LINEAR_HEAD or "begins with convolutions" in refused["imprint"]


@pytest.mark.parametrize("name", LINEAR_HEAD)
def test_features_are_read_off_the_head_in_closed_form(name, observed):
    seen, truth, whole, _ = observed[name, "fedcg", "gradient"]
    h = closed_form.closed_form(seen)
    for v in range(2):
        oracle = whole.oracle[int(seen.client[v])] if isinstance(whole.oracle, dict) else None
        extractor = oracle.params["extractor"] if oracle is not None else None
        assert extractor is not None
        expected, _ = seen.model.net("extractor").apply(
            extractor, oracle.buffers["extractor"], truth.images[v], train=False
        )
        torch.testing.assert_close(h[v], expected[0].double(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["convnet", "vit"])
def test_a_batch_of_two_is_separated_into_features_by_the_head(name, observed):
    """Of different classes: the head's gradient is sum_i d_i [1, h_i]', of rank two."""
    seen, truth, _, _ = observed[name, "fedavg", "batch"]
    apart = dataclasses.replace(seen, labels=truth.labels)
    assert disaggregation.possible(apart)
    ended = disaggregation.disaggregate(apart, 0)
    assert ended.h.shape == (2, 2, *seen.model.feature_shape)
    for v in torch.nonzero(ended.sound)[:, 0].tolist():
        expected, _ = seen.model.net("extractor").apply(
            seen.weights["extractor"], seen.buffers["extractor"], truth.images[v], train=True
        )
        torch.testing.assert_close(ended.h[v], expected.double(), rtol=0.05, atol=0.02)
    assert ended.sound.any()
