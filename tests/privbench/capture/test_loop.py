"""A plain training loop: what is recorded is what left, at the weights that were received, and nothing else."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.optimizer import _global_optimizer_post_hooks

import privbench
from privbench.capture import LocalWork, read, read_truth
from privbench.capture.writing import CaptureWriter
from privbench.errors import UserError
from privbench.system.file_headers import read_header


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4))


def batch(seed, size=5):
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(size, 1, 4, 4, generator=rng), torch.randint(4, (size,), generator=rng)


def state_of(model):
    return {name: t.clone() for name, t in model.state_dict().items()}


def gradient_of(model):
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(t, b[name]) and t.dtype == b[name].dtype for name, t in a.items())


def both(sent):
    return sent.parameters | sent.buffers


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.LBFGS])
def test_each_gradient_is_recorded_with_the_state_that_it_was_taken_at(optimizer, tmp_path):
    """Buffers as they were before the forward pass, which changes them; a pass in evaluation between changes nothing."""
    model = network()
    steps = optimizer(model.parameters(), lr=0.1)
    states, gradients = [], []
    with privbench.capture(model, tmp_path) as seen:
        for step in range(3):
            images, labels = batch(step)
            states.append(state_of(model))
            cross_entropy(model(images), labels).backward()
            gradients.append(gradient_of(model))
            seen.gradient(batch_size=len(images), client=7)
            steps.step(lambda: 0.0)
            steps.zero_grad()
            model.eval()(images)
            model.train()
    captured = read(tmp_path)
    assert [each.number for each in captured.rounds] == [0, 1, 2]
    for round_, state, gradient in zip(captured, states, gradients, strict=True):
        (message,), (received,) = round_.messages, round_.broadcasts
        assert same(both(received), state)
        assert same(message.parameters, gradient)
        assert (message.kind, message.clients, message.of, message.examples) == ("gradient", (7,), 1, 5)
        assert (message.training, message.local, message.buffers, message.labels) == (True, None, {}, None)
    assert not same(states[0], states[1])
    assert [*received.buffers] == ["1.running_mean", "1.running_var", "1.num_batches_tracked"]


def test_recording_changes_nothing(tmp_path):
    ends = []
    for folder in (None, tmp_path):
        model = network()
        steps = torch.optim.Adam(model.parameters(), lr=0.1)
        seen = privbench.capture(model, folder) if folder else None
        if seen:
            seen.__enter__()
        for step in range(3):
            steps.zero_grad()
            cross_entropy(model(batch(step)[0]), batch(step)[1]).backward()
            if seen:
                seen.gradient()
            steps.step()
        if seen:
            seen.__exit__(None, None, None)
        ends.append(state_of(model))
        assert not model._forward_pre_hooks
        assert not _global_optimizer_post_hooks
    assert same(*ends)


def test_accumulated_gradients_are_one_message_at_the_state_before_the_first_pass(tmp_path):
    model = network()
    before = state_of(model)
    with privbench.capture(model, tmp_path) as seen:
        for step in range(2):
            (cross_entropy(model(batch(step)[0]), batch(step)[1]) / 2).backward()
        seen.gradient(batch_size=10)
    (round_,) = read(tmp_path)
    assert same(both(round_.broadcasts[0]), before)
    assert same(round_.messages[0].parameters, gradient_of(model))


def test_two_gradients_at_the_same_weights_have_the_buffers_that_each_began_with(tmp_path):
    model, states = network(), []
    with privbench.capture(model, tmp_path) as seen:
        for step in range(2):
            states.append(state_of(model))
            model.zero_grad()
            cross_entropy(model(batch(step)[0]), batch(step)[1]).backward()
            seen.gradient()
    assert [same(both(r.broadcasts[0]), state) for r, state in zip(read(tmp_path), states, strict=True)] == [True, True]
    assert not same(*states)


@pytest.mark.parametrize("fused", [False, True])
def test_steps_that_are_not_recorded_are_passed_over(fused, tmp_path):
    model = network()
    steps = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=fused)
    with privbench.capture(model, tmp_path) as seen:
        for step in range(4):
            steps.zero_grad()
            before = state_of(model)
            cross_entropy(model(batch(step)[0]), batch(step)[1]).backward()
            if step == 3:
                seen.gradient()
            steps.step()
    (round_,) = read(tmp_path)
    assert same(both(round_.broadcasts[0]), before)


@pytest.mark.parametrize("how", [{}, {"foreach": True}, {"fused": True}])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_a_gradient_recorded_after_the_step_is_refused(optimizer, how, tmp_path):
    """By an optimiser of its own; fused ones change parameters unseen by autograd."""
    model, other = network(), network()
    steps = optimizer(model.parameters(), lr=0.1, **how)
    with privbench.capture(model, tmp_path / "other") as seen:
        cross_entropy(model(batch(0)[0]), batch(0)[1]).backward()
        optimizer(other.parameters(), lr=0.1, **how).step()
        seen.gradient()
    model.zero_grad()
    with privbench.capture(model, tmp_path) as seen:
        cross_entropy(model(batch(0)[0]), batch(0)[1]).backward()
        steps.step()
        with pytest.raises(UserError, match=r"changed since the forward pass; call seen\.gradient\(\) after backward"):
            seen.gradient()
    assert not (tmp_path / "index.json").exists()


def test_what_cannot_be_recorded_as_it_was_is_refused(tmp_path):
    model = network()
    images, labels = batch(0)
    with privbench.capture(model, tmp_path) as seen:
        with pytest.raises(UserError, match="no parameter has a gradient"):
            seen.gradient()
        with pytest.raises(UserError, match=r"call seen\.broadcast\(\) before the local steps"):
            seen.update()
        with pytest.raises(UserError, match="no forward pass of the model was seen"):
            seen.gradient(gradients={"0.weight": torch.ones(3, 1, 3, 3)})
        seen.broadcast()
        cross_entropy(model(images), labels).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        with pytest.raises(UserError, match="not those of the round's broadcast"):
            seen.gradient()
        with pytest.raises(UserError, match="give one of the two"):
            seen.update(state_of(model), difference=state_of(model))
        with pytest.raises(UserError, match="round 0 does not come after round 0"):
            seen.broadcast(round=0)
        with pytest.raises(UserError, match="'x' is no tensor but a int"):
            seen.update({"x": 3})
        with pytest.raises(UserError, match=r"'module\.0\.weight' is no tensor of the model"):
            seen.update({f"module.{name}": t for name, t in state_of(model).items()})
        with pytest.raises(UserError, match=r"'4.bias' has shape \[3\], but \[4\] in the model"):
            seen.update(difference={"4.bias": torch.zeros(3)})
    with pytest.raises(UserError, match="holds a capture already"):
        seen = privbench.capture(network(), one_round(tmp_path / "run"))


def one_round(folder):
    model = network()
    with privbench.capture(model, folder) as seen:
        seen.broadcast()
        seen.update()
    return folder


def test_rounds_of_several_clients_hold_the_broadcast_and_what_each_sent(tmp_path):
    """Federated averaging by hand: weights of two clients, the difference of a third, and the sum of two."""
    server = network()
    sent, states = [], []
    with privbench.capture(server, tmp_path) as seen:
        for number in (3, 4):
            seen.broadcast(round=number)
            states.append(state_of(server))
            ends = []
            for client in (2, 0):
                mine = copy.deepcopy(server)
                steps = torch.optim.SGD(mine.parameters(), lr=0.1, momentum=0.9)
                for step in range(2):
                    steps.zero_grad()
                    cross_entropy(mine(batch(step)[0]), batch(step)[1]).backward()
                    steps.step()
                local = LocalWork.of(steps, steps=2, batch_size=5)
                seen.update(mine.state_dict(), client=client, examples=10, local=local)
                ends.append(state_of(mine))
            difference = {name: ends[0][name] - t for name, t in states[-1].items() if name == "4.weight"}
            seen.update(difference=difference, client=1)
            mean = {name: (ends[0][name] + ends[1][name]) / 2 for name in ("0.weight", "0.bias")}
            seen.update(mean, client=[2, 0])
            sent.append((*ends, difference, mean))
            server.load_state_dict(ends[0])
    captured = read(tmp_path)
    assert [each.number for each in captured.rounds] == [3, 4]
    for round_, state, messages in zip(captured, states, sent, strict=True):
        assert same(both(round_.broadcasts[0]), state)
        assert [same(both(m), s) for m, s in zip(round_.messages, messages, strict=True)] == [True] * 4
        assert [m.kind for m in round_.messages] == ["weights", "weights", "update", "weights"]
        assert [m.clients for m in round_.messages] == [(2,), (0,), (1,), (0, 2)]
        assert [m.aggregate for m in round_.messages] == [False, False, False, True]
        local = round_.messages[0].local
        assert (local.steps, local.batch_size, local.optimizer) == (2, 5, "SGD")
        assert (local.settings["lr"], local.settings["momentum"]) == (0.1, 0.9)
    assert not same(states[0], states[1])


def test_gradients_of_several_clients_belong_to_the_broadcast_that_each_received(tmp_path):
    model = network().eval()
    other = state_of(network())
    other["4.bias"] += 1
    with privbench.capture(model, tmp_path) as seen:
        seen.broadcast()
        seen.broadcast(other, clients=[5, 4])
        for client in (0, 5):
            model.zero_grad()
            model.load_state_dict(other if client == 5 else seen_state(seen))
            cross_entropy(model(batch(client)[0]), batch(client)[1]).backward()
            seen.gradient(client=client, buffers=True)
        seen.gradient(client=[0, 4])
    (round_,) = read(tmp_path)
    assert [m.broadcast for m in round_.messages] == [0, 1, None]
    assert round_.broadcasts[1].clients == (4, 5)
    assert same(both(round_.broadcasts[1]), other)
    assert [*round_.messages[0].buffers] == [name for name in other if name.startswith("1.r") or "num" in name]


def seen_state(seen):
    return both(seen._broadcasts[0])


def test_labels_leave_only_when_they_are_declared_and_truth_stays_in_its_own_file(tmp_path):
    for kept in (False, True):
        model, folder = network(), tmp_path / str(kept)
        with privbench.capture(model, folder, truth=kept) as seen:
            for step, declared in enumerate((False, True)):
                images, labels = batch(step)
                model.zero_grad()
                cross_entropy(model(images), labels).backward()
                seen.gradient(labels=labels if declared else None, truth=(images, labels))
        captured = read(folder)
        silent, open_ = (round_.messages[0] for round_ in captured)
        assert silent.labels is None
        assert torch.equal(open_.labels, batch(1)[1])
        assert (silent.examples, open_.examples) == (5, 5)
        names = {name for path in folder.glob("round-*") for name in read_header(path).tensors}
        assert not [name for name in names if "inputs" in name or "targets" in name]
        if kept:
            for number in (0, 1):
                truth = read_truth(captured, number)[0]
                assert torch.equal(truth.inputs, batch(number)[0])
                assert torch.equal(truth.targets, batch(number)[1])
        else:
            assert not (folder / "truth").exists()
            assert read_truth(captured, 0) == {}


def test_what_left_before_an_error_is_there(tmp_path):
    model = network()

    def loop(seen):
        seen.broadcast()
        seen.update(client=1)
        raise RuntimeError("the loop broke")

    with pytest.raises(RuntimeError, match="the loop broke"), privbench.capture(model, tmp_path) as seen:
        loop(seen)
    (round_,) = read(tmp_path)
    assert [m.clients for m in round_.messages] == [(1,)]


def test_a_capture_is_continued(tmp_path):
    folder = one_round(tmp_path / "run")
    model = network()
    with privbench.capture(model, folder, append=True) as seen:
        cross_entropy(model(batch(0)[0]), batch(0)[1]).backward()
        seen.gradient()
    assert [(r.number, r.messages[0].kind) for r in read(folder)] == [(0, "weights"), (1, "gradient")]


def test_a_gradient_of_a_layer_that_is_frozen_is_not_there_and_one_of_half_precision_stays_so(tmp_path):
    model = nn.Sequential(
        nn.Embedding(9, 4, sparse=True), nn.Flatten(), nn.Linear(8, 2).requires_grad_(requires_grad=False)
    )
    model[0].half()
    with privbench.capture(model, tmp_path) as seen:
        model[2](model[1](model[0](torch.tensor([[1, 2]])).float())).sum().backward()
        seen.gradient(batch_size=1)
    (round_,) = read(tmp_path)
    assert [*round_.messages[0].parameters] == ["0.weight"]
    sent = round_.messages[0].parameters["0.weight"]
    assert sent.dtype == torch.float16
    assert torch.equal(sent, model[0].weight.grad.to_dense())


def test_settings_that_groups_of_parameters_do_not_share_stand_in_a_row():
    model = network()
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[4].parameters(), "lr": 0.2}]
    local = LocalWork.of(torch.optim.AdamW(groups, betas=(0.8, 0.9)))
    assert local.settings["lr"] == (0.1, 0.2)
    assert local.settings["betas"] == (0.8, 0.9)
    assert "params" not in local.settings


def by_hand(model, optimiser):
    for p in model.parameters():
        p.data -= 0.1 * p.grad.data


@pytest.mark.parametrize(
    ("prepare", "forward", "step"),
    [
        (nn.Module.eval, lambda model: model, None),
        (nn.Module.train, lambda model: lambda x: [x := layer(x) for layer in model][-1], None),
        (nn.Module.eval, lambda model: torch.compile(model, backend="eager"), None),
        (nn.Module.eval, lambda model: model, by_hand),
    ],
    ids=["eval", "layer by layer", "compiled", "by hand"],
)
def test_after_the_step_a_gradient_is_refused_however_the_model_ran(prepare, forward, step, tmp_path):
    model = nn.Sequential(nn.Linear(4, 3), nn.Sigmoid(), nn.Linear(3, 2))
    prepare(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    with privbench.capture(model, tmp_path) as seen:
        for _ in range(2):
            optimiser.zero_grad()
            forward(model)(torch.rand(2, 4)).sum().backward()
            seen.gradient(batch_size=2)
            optimiser.step() if step is None else step(model, optimiser)
        optimiser.zero_grad()
        forward(model)(torch.rand(2, 4)).sum().backward()
        optimiser.step() if step is None else step(model, optimiser)
        with pytest.raises(UserError, match="before the optimiser's step"):
            seen.gradient(batch_size=2)


def test_gradients_of_several_backward_passes_are_one_message(tmp_path):
    model = nn.Sequential(nn.Linear(4, 3), nn.Sigmoid(), nn.Linear(3, 2)).eval()
    with privbench.capture(model, tmp_path) as seen:
        for _ in range(3):
            model(torch.rand(2, 4)).sum().backward()
        seen.gradient(batch_size=6)
    (round_,) = read(tmp_path)
    assert [message.examples for message in round_.messages] == [6]


def test_a_copy_of_a_captured_model_copies_nothing_that_was_recorded(tmp_path):
    model = network()
    with privbench.capture(model, tmp_path) as seen:
        seen.broadcast()
        client = copy.deepcopy(model)
        assert [hook.__self__ for hook in client._forward_pre_hooks.values()] == [{}]
        client.train()(batch(0)[0])
        assert seen._forward is None


def test_a_model_that_is_saved_whole_takes_nothing_of_the_capture_along(tmp_path):
    """Neither what was recorded nor the training examples; the model is one that works."""
    model = network()
    with privbench.capture(model, tmp_path / "run", truth=True) as seen:
        for _ in range(2):
            seen.broadcast()
            images, labels = taken(model)
            seen.gradient(truth=(images, labels))
            torch.save(model, tmp_path / "model.pt")
        assert b"privbench" not in (tmp_path / "model.pt").read_bytes()
        saved = torch.load(tmp_path / "model.pt", weights_only=False)
        assert torch.equal(saved.eval()(images), model.eval()(images))
    assert len(read(tmp_path / "run").rounds) == 2


def taken(model, seed=0):
    """Takes a gradient of five examples; returns them."""
    images, labels = batch(seed)
    model.zero_grad()
    cross_entropy(model(images), labels).backward()
    return images, labels


def test_whole_numbers_of_numpy_and_torch_and_lists_of_labels_are_what_they_say(tmp_path):
    model = network()
    with privbench.capture(model, tmp_path) as seen:
        taken(model)
        seen.gradient(batch_size=np.int64(5), client=np.int64(3), labels=[0, 1, 2, 3, 0])
        seen.broadcast(round=np.int32(4))
        taken(model)
        seen.gradient(torch.tensor(5), client=np.array([2, 1]), labels=np.array([0, 1, 2, 3, 0]))
        seen.update(
            examples=5, client=torch.tensor(1), local=LocalWork(np.int64(3), torch.tensor(2), "SGD", {"lr": 0.1})
        )
    first, second = read(tmp_path)
    assert second.number == 4
    assert (first.messages[0].clients, first.messages[0].examples) == ((3,), 5)
    assert (second.messages[0].clients, second.messages[0].labels.tolist()) == ((1, 2), [0, 1, 2, 3, 0])
    assert (second.messages[1].local.steps, second.messages[1].local.batch_size) == (3, 2)


WRONG = {
    "no number of examples": ({"batch_size": 2.0}, "the number of examples should be a whole number, but 2.0"),
    "a truth value": ({"batch_size": True}, "should be a whole number, but True"),
    "no examples": ({"batch_size": 0}, "examples should be a whole number from 1"),
    "a negative client": ({"batch_size": 5, "client": -1}, "should be a whole number from 0"),
    "a name of a client": ({"batch_size": 5, "client": "ab"}, "client should be a whole number, or several, but 'ab'"),
    "no client": ({"batch_size": 5, "client": None}, "client should be a whole number, or several, but None"),
    "labels that are none": ({"batch_size": 5, "labels": ["a"]}, "labels should be numbers"),
    "too few labels": ({"batch_size": 5, "labels": [0, 1]}, "there should be one for each of its 5 examples"),
    "gradients in a list": ({"batch_size": 5, "gradients": [torch.zeros(2)]}, "as tensors by name; this list has no names"),
    "a tensor without numbers": ({"batch_size": 5, "gradients": {"4.bias": torch.zeros(4, device="meta")}}, "cannot be copied"),
    "a short truth": ({"batch_size": 5, "truth": (torch.zeros(1, 1, 4, 4), torch.zeros(5))}, "1 inputs and 5 targets .* of 5"),
    "half a truth": ({"batch_size": 5, "truth": (torch.zeros(5, 1, 4, 4),)}, r"truth should be \(inputs, targets\)"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "said"), WRONG.values(), ids=WRONG)
def test_a_wrong_message_is_refused_when_it_is_given_and_costs_no_other(given, said, tmp_path):
    model = network()
    with privbench.capture(model, tmp_path / "alone", truth=True) as seen:
        taken(model)
        with pytest.raises(UserError, match=said) as refusal:
            seen.gradient(**given)
        assert "\n" not in str(refusal.value)
        seen.gradient(batch_size=5)
    assert [each.number for each in read(tmp_path / "alone").rounds] == [0]
    with privbench.capture(model, tmp_path / "round", truth=True) as seen:
        seen.broadcast()
        taken(model)
        seen.gradient(batch_size=5, client=0)
        with pytest.raises(UserError, match=said):
            seen.gradient(**given)
    (round_,) = read(tmp_path / "round")
    assert len(round_.messages) == 1


def test_an_error_of_the_loop_is_what_is_raised_and_the_index_is_whole(tmp_path, monkeypatch):
    model = network()
    add = CaptureWriter.add

    def failing(self, round_, truth=None):
        if round_.number == 70:
            raise UserError("the disk is full")
        add(self, round_, truth)

    def loop():
        with privbench.capture(model, tmp_path) as seen:
            taken(model)
            for _ in range(70):
                seen.broadcast()
                seen.gradient(batch_size=5)
            seen.broadcast()
            seen.gradient(batch_size=5)
            raise ZeroDivisionError("of the loop")

    monkeypatch.setattr(CaptureWriter, "add", failing)
    with pytest.raises(ZeroDivisionError, match="of the loop") as raised:
        loop()
    assert raised.value.__notes__ == ["the capture is not whole: the disk is full"]
    assert len(read(tmp_path).rounds) == len([*tmp_path.glob("round-*")]) == 70


def test_two_captures_into_one_folder_are_refused(tmp_path):
    one, other = network(), network()
    with privbench.capture(one, tmp_path) as first, privbench.capture(other, tmp_path) as second:
        taken(one)
        first.gradient(batch_size=5)
        taken(other)
        with pytest.raises(UserError, match=r"is at work on .*; give each process a folder of its own"):
            second.gradient(batch_size=5)
    late = privbench.capture(one, tmp_path / "late")
    with privbench.capture(other, tmp_path / "late") as seen:
        taken(other)
        seen.gradient(batch_size=5)
    with late:
        taken(one)
        with pytest.raises(UserError, match="holds a capture that was not there when this one began"):
            late.gradient(batch_size=5)
    assert len(read(tmp_path).rounds) == len(read(tmp_path / "late").rounds) == 1


def test_weights_that_are_nan_have_not_changed(tmp_path):
    model = network()
    with torch.no_grad():
        model[4].weight[0, 0] = float("nan")
    with privbench.capture(model, tmp_path) as seen:
        taken(model)
        seen.gradient(batch_size=5)
        seen.broadcast()
        taken(model)
        seen.gradient(batch_size=5)
        with torch.no_grad():
            model[4].weight[1, 1] += 1
        with pytest.raises(UserError, match="are not those of the round's broadcast"):
            seen.gradient(batch_size=5)
    assert len(read(tmp_path).rounds) == 2


def test_the_mode_is_that_of_the_training_and_not_of_a_test_before_the_message_is_sent(tmp_path):
    model, recorded = network(), []
    with privbench.capture(model, tmp_path) as seen:
        for train in (True, False):
            seen.broadcast()
            model.train(train)
            taken(model)
            model.train(not train)
            seen.gradient(5)
            model.train(train)
            taken(model)
            model.train(not train)
            seen.update()
            recorded += [train, train]
    assert [m.training for round_ in read(tmp_path) for m in round_.messages] == recorded


@pytest.mark.parametrize(("drops", "recorded"), [(False, False), (True, None)])
def test_the_mode_of_frozen_batch_norm_counts(drops, recorded, tmp_path):
    """It takes its running statistics, although the module around it is in training mode; with dropout that draws it is neither."""
    model = nn.Sequential(network(), nn.Dropout()) if drops else network()
    model.train()
    next(each for each in model.modules() if isinstance(each, nn.BatchNorm2d)).eval()
    with privbench.capture(model, tmp_path) as seen:
        seen.broadcast()
        taken(model)
        seen.gradient(5)
        seen.update()
    assert [m.training for m in read(tmp_path).round(0).messages] == [recorded, recorded]


@pytest.mark.parametrize(
    ("wrapper", "inner"),
    [(nn.DataParallel, "module"), (lambda model: torch.compile(model, backend="eager"), "_orig_mod")],
    ids=["several devices", "compiled"],
)
def test_a_wrapper_is_refused_before_the_training_whose_names_no_audit_would_know(wrapper, inner, tmp_path):
    with pytest.raises(UserError, match=rf"takes the module inside this \w+, .*: model\.{inner}$"):
        privbench.capture(wrapper(network()), tmp_path)


def test_outside_its_block_a_capture_records_nothing(tmp_path):
    """Where nothing follows the model's passes any more, or not yet."""
    model = network()
    seen = privbench.capture(model, tmp_path / "seen")

    def refused():
        for record in (lambda: seen.gradient(batch_size=5), seen.broadcast, seen.update):
            with pytest.raises(UserError, match="is not open; record inside its `with` block"):
                record()

    refused()
    with seen:
        cross_entropy(model(batch(0)[0]), batch(0)[1]).backward()
        seen.gradient(batch_size=5)
    refused()
    (only,) = read(tmp_path / "seen")
    assert len(only.messages) == 1


def test_local_work_has_a_rate_that_is_a_tensor_and_takes_a_step(tmp_path):
    optimizer = torch.optim.SGD(network().parameters(), lr=torch.tensor(0.25))
    assert LocalWork.of(optimizer, steps=1).settings["lr"] == 0.25
    with pytest.raises(UserError, match="at least one local step, but steps=0 was given"):
        LocalWork.of(optimizer, steps=0)
