"""Attacks on ResNet-18: batch norm, no linear classifier, no closed form."""

import pytest
import torch
import torch.nn.functional as F

from attacks.common import closed_form, gradient_distance, labels, priors, problem
from attacks.common.batched import CHUNK, chunk_size
from attacks.features.equations import layer_equations
from privbench import presets, registry
from privbench.errors import UserError
from privbench.execution import one_attack
from privbench.networks.model import Model
from privbench.observation import artifact_files as artifacts
from privbench.observation import observe
from privbench.seeds import stream
from privbench.training import checkpoint, harness
from privbench.types import Knowledge
from tests.builders.federations import digits_federation
from tests.builders.small_artifacts import error_of_squared_distance, problem_of, smooth_images

pytestmark = pytest.mark.usefixtures("narrow_resnet")
CPU = torch.device("cpu")
MODEL = Model("resnet18", 1, 10)


def networks():
    """Double-precision networks whose running statistics are not the initial ones: parameters and buffers by part."""
    params, buffers = {}, {}
    for part in ("extractor", "classifier"):
        initial, state = MODEL.net(part).init(stream(0, part))
        params[part] = {n: t.double() for n, t in initial.items()}
        buffers[part] = {
            n: t.double() + 0.3 * torch.rand(len(t), generator=stream(0, part, n)) for n, t in state.items()
        }
    return params, buffers


def plain_gradient(params, buffers, x, y, parts, train):
    leaves = {p: {n: t.clone().requires_grad_() for n, t in net.items()} for p, net in params.items()}
    h, _ = MODEL.net("extractor").apply(leaves["extractor"], buffers["extractor"], x, train=train)
    logits, _ = MODEL.net("classifier").apply(leaves["classifier"], buffers["classifier"], h, train=train)
    F.cross_entropy(logits, y).backward()
    return {f"{p}/{n}": t.grad for p in parts for n, t in leaves[p].items()}


@pytest.mark.parametrize(("batch", "train"), [(1, False), (3, True)])
@pytest.mark.parametrize("parts", [("extractor", "classifier"), ("classifier",)])
def test_equation_7_equals_an_explicit_sum_over_all_parameters(batch, train, parts):
    params, buffers = networks()
    x, x_true = torch.rand(2, batch, 1, 32, 32, dtype=torch.float64, generator=stream(0, "x"))
    y = torch.arange(batch)
    simulated, observed = (plain_gradient(params, buffers, images, y, parts, train) for images in (x, x_true))
    by_hand = sum(((simulated[name] - observed[name]) ** 2).sum().item() for name in simulated)
    products = gradient_distance.gradient_products(problem_of(params, buffers, train, MODEL), x, y, observed)
    assert set(products) == set(observed)
    assert gradient_distance.squared_distance(products).item() == pytest.approx(
        by_hand, rel=0, abs=error_of_squared_distance(products)
    )


@pytest.fixture(scope="module")
def observed(narrow_resnet, tmp_path_factory):
    """Artifacts of one round of FedSplit and of the untrained FedAvg, read back from disk."""
    artifacts_of = {}
    federation = digits_federation((16, 16))
    # Four images a batch: of two, batch norm leaves little but the sign of their difference in layers of one place.
    for method, rounds, victims, batch_size in (("fedsplit", 1, 2, 1), ("fedavg", 0, 1, 4)):
        folder = tmp_path_factory.mktemp(method)
        each = presets.train_spec("smoke", "digits", method, backbone="resnet18", clients=2, changes={"rounds": 1})
        setup = harness.prepare(each, federation, CPU)
        state = harness.initial(setup)
        for _ in range(rounds):
            harness.train_round([setup], [state], "alone")
        checkpoint.save_snapshot(folder, each, state)
        shot = checkpoint.load_snapshot(folder, each.id, rounds)
        seen, truth = observe.observe(
            shot, federation, setup.model, setup.method, setup.defense, method_name=method, dataset="digits",
            victims=victims, batch_size=batch_size, labels_known=False, seed=0,
        )  # fmt: skip
        artifacts.save(seen, folder / "artifact")
        artifacts_of[method] = artifacts.load(folder / "artifact"), truth, shot
    return artifacts_of


def test_one_images_gradient_is_taken_on_running_statistics_and_depends_on_the_image(observed):
    seen, truth, shot = observed["fedsplit"]
    for v, k in enumerate(seen.client.tolist()):
        params, buffers = ({**private, **shared} for private, shared in zip(
            (shot.clients[k].params, shot.clients[k].buffers), (shot.server.params, shot.server.buffers), strict=True
        ))  # fmt: skip
        both = [{p: parts[p] for p in ("extractor", "classifier")} for parts in (params, buffers)]
        expected = plain_gradient(*both, truth.images[v], truth.labels[v], ("classifier",), train=False)
        for name, t in expected.items():
            torch.testing.assert_close(seen.gradients["classifier"][name.removeprefix("classifier/")][v], t)
        assert all(t.abs().max() > 0 for t in expected.values())


def test_a_batchs_gradient_is_taken_in_train_mode(observed):
    seen, truth, shot = observed["fedavg"]
    expected = plain_gradient(
        shot.server.params, shot.server.buffers, truth.images[0], truth.labels[0], ("extractor",), train=True
    )
    for name, t in expected.items():
        torch.testing.assert_close(seen.gradients["extractor"][name.removeprefix("extractor/")][0], t)
    other = dict(
        shot.server.buffers["extractor"],
        **{"bn1.mean": torch.full_like(shot.server.buffers["extractor"]["bn1.mean"], 9.0)},
    )
    same = plain_gradient(
        shot.server.params,
        {**shot.server.buffers, "extractor": other},
        truth.images[0],
        truth.labels[0],
        ("extractor",),
        True,
    )
    assert all(torch.equal(t, same[name]) for name, t in expected.items()), "the running statistics must not matter"


def test_labels_are_read_off_the_last_layers_bias(observed):
    seen, truth, _ = observed["fedsplit"]
    assert torch.equal(labels.recover(seen), truth.labels)


def test_there_are_no_closed_form_features_and_no_layerwise_inversion(observed):
    seen, _, _ = observed["fedsplit"]
    assert closed_form.closed_form(seen) is None
    gaussian = priors.natural(1, 32, 0.1, (1.0, 1.0), torch.zeros(1))
    with pytest.raises(
        UserError, match="layerwise inversion solves LeNet-5's equations, but the networks are resnet18"
    ):
        layer_equations.linear_maps(problem.make(seen, 0), gaussian)


@pytest.mark.parametrize("method", ["fedsplit", "fedavg"])
def test_staged_lowers_its_objective_without_closed_forms(method, observed):
    """One image in eval mode through a surrogate; four images in train mode. The other attacks: tests/test_command_line.py."""
    seen, truth, _ = observed[method]
    reconstruction = one_attack.attack_artifact("staged", {"steps": 1}, seen, Knowledge(), 0, CPU, lambda *_: None)
    assert reconstruction.images.shape == truth.images.shape
    assert (reconstruction.trace[:, -1] < reconstruction.trace[:, 0]).all()


def test_every_floor_can_be_scored(observed):
    seen, truth, _ = observed["fedsplit"]
    whole = Knowledge(auxiliary=observe.auxiliary(digits_federation((16, 16))))
    for name in registry.FLOORS:
        reconstruction = one_attack.attack_artifact(name, {}, seen, whole, 0, CPU, lambda *_: None)
        assert reconstruction.images.shape == truth.images.shape


def test_a_network_with_the_wrong_statistics_is_named(observed, tmp_path):
    seen, _, _ = observed["fedavg"]
    damaged = dict(seen.buffers, classifier={})
    with pytest.raises(UserError, match=r"broadcast of classifier.layer3.0.bn1.mean should have shape .* has nothing"):
        artifacts.save(type(seen)(**{**seen.__dict__, "buffers": damaged}), tmp_path / "artifact")


def test_problems_with_large_data_descend_in_smaller_chunks():
    start = torch.zeros(100, 1, 1, 32, 32)
    assert chunk_size(start, {"g": torch.zeros(1).expand(100, 60_000)}) == CHUNK
    assert chunk_size(start, {"g": torch.zeros(1, dtype=torch.float64).expand(100, 11_000_000)}) == 3
    assert chunk_size(start, {"g": torch.zeros(1).expand(100, 10**9)}) == 1
    assert smooth_images(1).shape == start[0].shape
