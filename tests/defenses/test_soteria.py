"""Soteria: what it prunes, against a plain loop over entries; in training and on what is observed."""

import pytest
import torch
import torch.nn.functional as F

from defenses.soteria import Soteria, sensitivity
from privbench import presets, written_defense
from privbench.errors import UserError
from privbench.networks.model import Model
from privbench.observation import observe
from privbench.seeds import stream
from privbench.training import harness, phase_plans
from privbench.training.state import Snapshot
from privbench.types import LocalSteps
from tests.builders.federations import digits_federation

RATE = 0.4
WEIGHT = "fc1.weight"


def prepared(defense="soteria:0.4", method="fedavg", backbone="lenet5"):
    spec = presets.train_spec("smoke", "digits", method, clients=2, defense=defense, backbone=backbone)
    return harness.prepare(spec, digits_federation((20, 35)), torch.device("cpu"))


def loop(extractor, params, images):
    """||dr_i/dX|| / r_i by one backward pass for every entry; no image is in another's features."""
    x = images.clone().requires_grad_()
    r = extractor.apply(params, {}, x, train=False)[0].flatten(1)
    slopes = [torch.autograd.grad(r[:, i].sum(), x, retain_graph=True)[0] for i in range(r.shape[1])]
    return torch.stack([slope.flatten(1).norm(dim=1) for slope in slopes], 1) / r.detach()


def pruned_by_hand(gradients, model, params, images, rate=RATE):
    """The gradients without the entries of smallest summed sensitivity."""
    total = loop(model.net("extractor"), params["extractor"], images).sum(0)
    weight = gradients["classifier"][WEIGHT].clone()
    for i in sorted(range(len(total)), key=lambda i: float(total[i]))[: round(rate * len(total))]:
        weight[:, i] = 0
    return gradients | {"classifier": gradients["classifier"] | {WEIGHT: weight}}


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("channels", [1, 3])
def test_the_sensitivity_of_every_entry_is_that_of_a_plain_loop(channels):
    model = Model("lenet5", channels, 10)
    params, _ = model.net("extractor").init(stream(3, "E"))
    images = torch.rand(2, channels, 32, 32, generator=torch.Generator().manual_seed(0))
    expected = loop(model.net("extractor"), params, images)
    torch.testing.assert_close(sensitivity(model, params, images), expected, rtol=1e-9, atol=0)


def test_the_largest_share_by_representation_over_slope_is_pruned():
    # r_i / ||dr_i/dX|| falls from left to right, whatever the image.
    each = torch.tensor([[0.1, 0.2, 0.3, 0.4, 9.0], [0.1, 0.2, 0.3, 5.0, 0.9]])
    assert Soteria(0.4).mask(each).tolist() == [False, False, True, True, True]
    assert Soteria(0.6).mask(each).tolist() == [False, False, False, True, True]


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("batch", [1, 3])
def test_the_observed_gradient_is_the_true_one_with_columns_of_zeros(batch):
    def observed(defense):
        setup = prepared(defense)
        state = harness.initial(setup)
        shot = Snapshot(0, state.server, state.clients, state.uploads)
        seen, truth = observe.observe(
            shot, setup.federation, setup.model, setup.method, setup.defense, method_name="fedavg", dataset="digits",
            victims=2, batch_size=batch, labels_known=False, seed=0,
        )  # fmt: skip
        return setup, seen, truth

    setup, seen, truth = observed("soteria:0.4")
    _, exact, _ = observed("none")
    for v in range(2):
        gradients = {p: {n: t[v] for n, t in net.items()} for p, net in exact.gradients.items()}
        images = truth.images[v].to(torch.float64)
        expected = pruned_by_hand(gradients, setup.model, exact.weights, images)
        for part, net in expected.items():
            for name, t in net.items():
                torch.testing.assert_close(seen.gradients[part][name][v], t, rtol=1e-6, atol=1e-9)
        assert int((seen.gradients["classifier"][WEIGHT][v] == 0).all(0).sum()) == 160
    assert seen.defense == {"name": "soteria", "rate": 0.4, "zeros": "columns", "where": "step"}


@pytest.mark.usefixtures("double_precision")
def test_a_round_of_training_equals_a_plain_loop_with_pruned_gradients():
    setup = prepared()
    state = harness.initial(setup)
    schedule = setup.spec.schedule
    (phase,) = setup.method.client()
    plan = phase_plans.client_plan(setup, 0, 1, phase, 0)
    params = {p: {n: t.clone().requires_grad_() for n, t in net.items()} for p, net in state.clients[0].params.items()}
    leaves = [t for net in params.values() for t in net.values()]
    adam = torch.optim.Adam(leaves, schedule.task.lr, weight_decay=schedule.task.weight_decay)
    for step in range(plan.steps):
        x, y = plan.images(step).to(torch.float64), plan.labels[step]
        h, _ = setup.model.net("extractor").apply(params["extractor"], {}, x, train=True)
        loss = F.cross_entropy(setup.model.classifier.apply(params["classifier"], {}, h, train=True)[0], y)
        grads = iter(torch.autograd.grad(loss, leaves))
        gradients = {p: {n: next(grads) for n in net} for p, net in params.items()}
        detached = {p: {n: t.detach() for n, t in net.items()} for p, net in params.items()}
        gradients = pruned_by_hand(gradients, setup.model, detached, x)
        for part, net in params.items():
            for name, t in net.items():
                t.grad = gradients[part][name]
        adam.step()
    harness.train_round([setup], [state], "alone")
    for part, net in params.items():
        for name, t in net.items():
            torch.testing.assert_close(state.clients[0].params[part][name], t.detach(), rtol=0, atol=1e-9)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("defense", ["soteria:0.4", "precode:size=16,beta=0.01"])
@pytest.mark.parametrize("method", ["fedavg", "fedmd-cg"])
def test_stacked_training_equals_each_client_alone(defense, method):
    ends = []
    for execution in ("alone", "stacked"):
        setup = prepared(defense, method)
        state = harness.initial(setup)
        harness.train_round([setup], [state], execution)
        ends.append(state)
    for one, other in zip(ends[0].clients, ends[1].clients, strict=True):
        for part, net in one.params.items():
            for name, t in net.items():
                torch.testing.assert_close(other.params[part][name], t, rtol=0, atol=1e-9)


def test_a_whole_update_holds_no_move_along_what_was_pruned():
    setup = prepared()
    state = harness.initial(setup)
    shot = Snapshot(0, state.server, state.clients, state.uploads)
    sgd = {"kind": "sgd", "lr": 0.1, "weight_decay": 0.0}
    seen, _ = observe.observe(
        shot, setup.federation, setup.model, setup.method, setup.defense, method_name="fedavg", dataset="digits",
        victims=1, batch_size=2, labels_known=False, seed=0, local=LocalSteps(1, sgd),
    )  # fmt: skip
    assert int((seen.updates["classifier"][WEIGHT][0] == 0).all(0).sum()) == 160


@pytest.mark.parametrize(("text", "message"), [
    ("soteria:0", "a rate above 0 and below 1, but 0 was given"), ("soteria:1", "below 1, but 1 was given"),
    ("soteria", "needs a value for rate"), ("precode:0", "a size from 1 to 4096, but 0 was given"),
    ("precode:size=8,beta=-1", "a beta of at least 0, but -1 was given"),
])  # fmt: skip
def test_a_setting_that_is_none_gets_one_line(text, message):
    with pytest.raises(UserError, match=message) as caught:
        written_defense.create(text, "update")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("backbone", ["mlp", "convnet", "vit"])
def test_an_extractor_without_slopes_in_closed_form_is_refused_for_that_and_not_for_its_classifier(backbone):
    with pytest.raises(UserError, match=rf"which {backbone}'s extractor has in no closed form; .*precode") as caught:
        Soteria(0.4).network(Model(backbone, 1, 10))
    assert "convolutions" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_classifier_that_begins_with_convolutions_is_refused_in_one_line():
    with pytest.raises(UserError, match=r"resnet18's classifier begins with convolutions; .*precode") as caught:
        prepared(backbone="resnet18")
    assert "\n" not in str(caught.value)
