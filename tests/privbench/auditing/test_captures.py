"""An audit of a folder that privbench.capture wrote: the same value as from tensors, its truth for scores alone."""

import copy
import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from typer.testing import CliRunner

import privbench
from attacks.common import problem, updates
from attacks.update_matching import UpdateMatching
from privbench.auditing import observed
from privbench.auditing.captures import captured, local_steps
from privbench.auditing.request import AuditRequest
from privbench.capture import LocalWork
from privbench.cli import main as cli
from privbench.errors import UserError
from privbench.networks.module_model import model_of
from privbench.types import Knowledge
from tests.builders import user_modules
from tests.builders.user_modules import form_of, gradient_of

MEAN, STD = 0.5, 0.25


def batches(count, size=1):
    rng = torch.Generator().manual_seed(4)
    rough = torch.rand(count, size, 3, 6, 6, generator=rng)
    images = F.interpolate(rough.flatten(0, 1), size=32, mode="bilinear").unflatten(0, (count, size))
    return images, torch.randint(10, (count, size), generator=rng)


@pytest.fixture(scope="module")
def gradients(tmp_path_factory):
    """(folder, module, images, labels) of one round with the gradients of three clients, whose truth is kept."""
    folder, module = tmp_path_factory.mktemp("capture") / "run", user_modules.flower_cnn().eval()
    images, labels = batches(3)
    with privbench.capture(module, folder, truth=True) as seen:
        seen.broadcast()
        for client, (x, y) in enumerate(zip((images - MEAN) / STD, labels, strict=True)):
            module.zero_grad()
            F.cross_entropy(module(x), y).backward()
            seen.gradient(batch_size=1, client=client, truth=(x, y))
    return folder, module, images, labels


@pytest.mark.parametrize("said", [{"labels": [1]}, {"before": {}}])
def test_what_a_capture_says_itself_cannot_be_said_beside_it(said, gradients):
    folder, module, *_ = gradients
    with pytest.raises(UserError, match=f"--{next(iter(said))} goes with files of tensors"):
        privbench.audit(module, received=folder, mean=MEAN, std=STD, attack="grey", **said)


def test_captured_gradients_are_those_that_the_module_had(gradients):
    folder, module, images, labels = gradients
    came = captured(folder, module)
    assert (came.received.kind, came.received.count, came.received.batch_size) == ("gradient", 3, 1)
    assert came.training is False
    for v in range(3):
        own = gradient_of(module, (images[v] - MEAN) / STD, labels[v])
        assert all(torch.equal(came.received.messages[n][v], t) for n, t in own.items())
    assert all(torch.equal(came.received.weights[n], p) for n, p in module.named_parameters())
    assert torch.equal(came.truth[1], labels)


def test_the_command_reads_the_folder_takes_mode_and_truth_from_it_and_scores(gradients, tmp_path, monkeypatch):
    folder, _, images, labels = gradients
    (tmp_path / "code_of_a_user.py").write_text("from tests.builders.user_modules import flower_cnn as build\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    done = CliRunner().invoke(
        cli.app,
        ["audit", str(folder), "--model", "code_of_a_user:build", "--mean", str(MEAN), "--std", str(STD), "--attack", "matching",
         "--attack-set", "steps=5", "--out", str(tmp_path / "seen")],
    )  # fmt: skip
    assert done.exception is None, done.exception
    text = (tmp_path / "seen" / "audit.md").read_text()
    assert "FlowerCNN in eval mode, head from fc1; 3 gradients of 1 image(s) each, labels not known" in text
    assert "100% right" in text
    again = privbench.audit(
        user_modules.flower_cnn(), received=folder, truth=(images, labels), mean=MEAN, std=STD, attack="matching",
        settings={"steps": 5}, out=tmp_path / "again",
    )  # fmt: skip
    scores = [(tmp_path / name / "audit.csv").read_text() for name in ("seen", "again")]
    assert float(again.frame()["psnr_db"][0]) == pytest.approx(float(scores[0].splitlines()[1].split(",")[3]), abs=1e-3)


@pytest.mark.parametrize("difference", [False, True])
def test_captured_updates_are_weights_after_less_before_with_their_steps(difference, tmp_path):
    module = user_modules.mlp()
    images, labels = torch.rand(2, 4, 30), torch.tensor([[0, 1, 1, 0], [1, 1, 0, 0]])
    wanted = []
    with privbench.capture(module, tmp_path / "run") as seen:
        seen.broadcast()
        for client, (x, y) in enumerate(zip(images, labels, strict=True)):
            local = copy.deepcopy(module)
            optimizer = torch.optim.SGD(local.parameters(), lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                F.cross_entropy(local(x), y).backward()
                optimizer.step()
            change = {n: t - module.state_dict()[n] for n, t in local.state_dict().items()}
            work = LocalWork.of(optimizer, steps=3, batch_size=4)
            sent = (None, change) if difference else (local.state_dict(), None)
            seen.update(sent[0], difference=sent[1], client=client, examples=4, local=work)
            wanted.append(change)
    came = captured(tmp_path / "run", module)
    assert (came.received.kind, came.received.count, came.received.batch_size) == ("update", 2, 4)
    assert came.received.local.steps == 3
    assert came.received.local.optimiser == {"kind": "sgd", "lr": 0.1, "weight_decay": 0.0}
    assert came.truth is None
    for v, change in enumerate(wanted):
        torch.testing.assert_close({n: t[v] for n, t in came.received.messages.items()}, change)


@pytest.mark.parametrize(
    ("said", "simulated", "note"),
    [
        ({}, (5, "Adam", 0.01), None),
        (
            {"local_steps": 7},
            (7, "Adam", 0.01),
            "says steps 5 of the local steps; simulated are those declared, steps 7.",
        ),
        ({"local_lr": 0.5}, (5, "sgd", 0.5), "says optimizer Adam, lr 0.01 of .* declared, optimizer SGD, lr 0.5."),
    ],
)
def test_declared_steps_count_and_the_rest_is_as_captured(said, simulated, note, tmp_path):
    module = user_modules.mlp()
    with privbench.capture(module, tmp_path / "run") as seen:
        seen.broadcast()
        local = LocalWork.of(torch.optim.Adam(module.parameters(), lr=0.01), steps=5, batch_size=2)
        seen.update(examples=4, local=local)
    came = AuditRequest(received=tmp_path / "run", **said).load(module)
    local = came.received.local
    assert (local.steps, local.optimiser.get("kind", "Adam"), local.optimiser["lr"]) == simulated
    assert local.batch == 2
    notes = [each for each in came.notes if each.startswith("The capture says")]
    assert len(notes) == (note is not None)
    assert note is None or re.search(note, notes[0])


@pytest.mark.parametrize("said", [{"local_steps": 2}, {"local_lr": 0.1}])
def test_steps_declared_of_gradients_are_refused(said, gradients):
    folder, module, *_ = gradients
    with pytest.raises(UserError, match=r"local steps go with updates, but round 0 of .* has gradients"):
        privbench.audit(module, received=folder, attack="grey", **said)
    with pytest.raises(UserError, match="local steps go with an update"):
        privbench.audit(module, gradients={}, attack="grey", **said)


def test_messages_of_one_client_of_several_are_chosen(tmp_path):
    module = user_modules.mlp()
    with privbench.capture(module, tmp_path / "run") as seen:
        seen.broadcast()
        for client, size in enumerate((2, 4, 4)):
            module.zero_grad()
            F.cross_entropy(module(torch.rand(size, 30)), torch.zeros(size, dtype=torch.int64)).backward()
            seen.gradient(batch_size=size, client=client)
    first, others = captured(tmp_path / "run", module), captured(tmp_path / "run", module, clients=[1, 2])
    assert (first.received.count, first.received.batch_size) == (1, 2)
    assert first.notes == (
        "1 message(s) (of client 0) are attacked; 2 (of client 1, 2) are of another kind, or of other numbers of images or steps, "
        "and were left out; choose with --client.",
    )
    assert (others.received.count, others.received.batch_size, others.notes) == (2, 4, ())
    with pytest.raises(UserError, match="round 0 has no message of client 7; known: 0, 1, 2"):
        captured(tmp_path / "run", module, clients=[7])


def test_messages_that_came_about_otherwise_are_left_out_and_counted(tmp_path):
    module = user_modules.mlp()
    with privbench.capture(module, tmp_path / "run") as seen:
        for sizes in ((2, 2, 3), (1,)):
            seen.broadcast()
            for size in sizes:
                module.zero_grad()
                F.cross_entropy(module(torch.rand(size, 30)), torch.zeros(size, dtype=torch.int64)).backward()
                seen.gradient(batch_size=size)
    came = captured(tmp_path / "run", module)
    assert (came.received.count, came.received.batch_size) == (2, 2)
    assert came.notes == (
        "Round 0 of 2 captured ones; choose another with --round.",
        "2 message(s) (of client 0) are attacked; 1 (of client 0) are of another kind, or of other numbers of images or steps, and "
        "were left out.",
    )
    assert captured(tmp_path / "run", module, 1).received.batch_size == 1
    with pytest.raises(UserError, match="has no round 7"):
        captured(tmp_path / "run", module, 7)
    with pytest.raises(UserError, match=r"of another module: '0.weight' has shape \[16, 31\] in this one"):
        captured(tmp_path / "run", user_modules.mlp(31))


def test_weights_whose_broadcast_lacks_a_parameter_are_refused_in_one_line(tmp_path):
    module = user_modules.mlp()
    state = module.state_dict()
    with privbench.capture(module, tmp_path / "run") as seen:
        seen.broadcast({n: t for n, t in state.items() if n != "0.bias"})
        work = LocalWork.of(torch.optim.SGD(module.parameters(), lr=0.1), steps=1)
        seen.update(state, client=0, examples=4, local=work)
    with pytest.raises(UserError, match=r"'0.bias' of the weights before has nothing, but shape \[16\] in the module"):
        captured(tmp_path / "run", module)


@pytest.mark.parametrize(
    ("is_gradient", "name"), [(True, "0.running_mean"), (False, "0.running_mean"), (False, "0.weight")]
)
def test_a_broadcast_of_other_shapes_is_refused_in_one_line(is_gradient, name, tmp_path):
    module = nn.Sequential(nn.BatchNorm1d(30), nn.Linear(30, 3))
    state = module.state_dict()
    with privbench.capture(module, tmp_path / "run") as seen:
        seen.broadcast({**state, name: torch.zeros(7)})
        if is_gradient:
            F.cross_entropy(module(torch.rand(4, 30)), torch.zeros(4, dtype=torch.int64)).backward()
            seen.gradient(batch_size=4)
        else:
            work = LocalWork.of(torch.optim.SGD(module.parameters(), lr=0.1), steps=1)
            seen.update(state, client=0, examples=4, local=work)
    with pytest.raises(
        UserError, match=rf"'{name}' of the weights before in round 0 .* has shape \[7\], but \[30\] in"
    ):
        captured(tmp_path / "run", module)


def test_truth_of_several_forms_is_not_stacked_and_said(tmp_path):
    module = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1, 3))
    with privbench.capture(module, tmp_path / "run", truth=True) as seen:
        seen.broadcast()
        for client, side in enumerate((8, 9)):
            x, y = torch.rand(2, 1, side, side), torch.tensor([0, 1])
            module.zero_grad()
            F.cross_entropy(module(x), y).backward()
            seen.gradient(batch_size=2, client=client, truth=(x, y))
    came = captured(tmp_path / "run", module)
    assert came.received.count == 2
    assert came.truth is None
    assert came.notes[-1] == (
        "The truth that was kept is not that of 2 image(s) of one form behind each message, so nothing is scored by it."
    )
    assert captured(tmp_path / "run", module, clients=[1]).truth[0].shape == (1, 2, 1, 9, 9)


WORK = LocalWork(2, 4, "SGD", {"lr": 0.1, "momentum": 0, "weight_decay": 0.01})


def test_local_work_of_torchs_optimisers_is_read():
    sgd, adam = local_steps(WORK, 8), local_steps(LocalWork.of(torch.optim.Adam([torch.zeros(1)], lr=0.01), steps=1), 8)
    assert (sgd.steps, sgd.batch, sgd.optimiser) == (2, 4, {"kind": "sgd", "lr": 0.1, "weight_decay": 0.01})
    assert adam.optimiser == {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0}
    assert local_steps(replace(WORK, batch_size=8), 8).batch is None


def test_a_rate_of_zero_is_refused_in_one_line():
    with pytest.raises(UserError, match=r"SGD's lr: Input should be greater than 0, but 0\.0 was given"):
        local_steps(replace(WORK, settings={"lr": 0.0}), 8)
    with pytest.raises(UserError, match="Adam's lr: Input should be greater than 0"):
        local_steps(replace(WORK, optimizer="Adam", settings={"lr": 0}), 8)


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (None, "does not say by which steps"),
        (replace(WORK, steps=None), "does not say by which steps"),
        (replace(WORK, settings={"lr": 0.1, "momentum": 0.9}), "SGD with momentum are not simulated"),
        (replace(WORK, settings={}), "does not say the rate of SGD"),
        (replace(WORK, optimizer="RMSprop"), "of RMSprop are not simulated, only of SGD and Adam"),
    ],
)
def test_steps_that_are_not_known_or_not_simulated_are_refused_with_the_way_out(work, said):
    with pytest.raises(UserError, match=f"{said}.*--local-steps (and|with) --local-lr"):
        local_steps(work, 8)


def test_a_mode_that_nobody_said_is_said_to_be_assumed(tmp_path):
    """Of another module's weights a capture does not know the mode; in the other mode the true image explains nothing."""
    module = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(64, 3))
    with privbench.capture(module, tmp_path / "run") as seen:
        seen.broadcast()
        seen.update(copy.deepcopy(module).state_dict(), examples=2)
    said = {"received": tmp_path / "run", "input_shape": [1, 8, 8], "local_lr": 0.1, "attack": "grey", "out": tmp_path}

    def is_assumed(**more):
        return any(
            "batch norm is taken in train mode" in note for note in privbench.audit(module, **said, **more).notes
        )

    assert is_assumed()
    assert not is_assumed(mode="train")


@pytest.mark.parametrize("difference", [False, True])
def test_running_statistics_that_clients_sent_are_simulated_as_theirs_moved(difference, tmp_path):
    """Of a module of the user's own, over two real steps of torch, and fitted by `update-matching`."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 4, 5, stride=3), nn.BatchNorm2d(4), nn.Sigmoid(), nn.Flatten(), nn.Linear(400, 10)
    )
    images, labels = batches(1, size=4)
    client = copy.deepcopy(module).train()
    optimizer = torch.optim.SGD(client.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(client((images[0] - MEAN) / STD), labels[0]).backward()
        optimizer.step()
    change = {n: t - module.state_dict()[n] for n, t in client.state_dict().items()}
    sent = (None, change) if difference else (client.state_dict(), None)
    with privbench.capture(module, tmp_path / "run") as seen:
        seen.broadcast()
        seen.update(sent[0], difference=sent[1], examples=4, local=LocalWork.of(optimizer, steps=2))
    received = captured(tmp_path / "run", module).received
    model = model_of(module, form_of(mean=MEAN, std=STD), train=True)
    artifact = observed.artifact_of(model, received)
    assert artifact.update_buffers["extractor"].keys() == {"1.running_mean", "1.running_var"}
    posed = problem.make(updates.as_gradient(artifact, received.local), 0)
    made, moved = (
        updates.local_change(posed, images[0].double(), labels[0], received.local),
        updates.statistics(artifact),
    )
    for name, t in moved.items():
        assert name in made
        torch.testing.assert_close(made[name], t[0], rtol=1e-3, atol=1e-5)
    broken = replace(artifact, update_buffers={"extractor": {
        "1.running_mean": torch.full((1, 4), torch.nan), "1.running_var": torch.zeros(1, 4)}})  # fmt: skip
    assert all(not t.any() for t in updates.trust_in(updates.statistics(broken)).values())
    labelled = [replace(one, labels=labels) for one in (artifact, broken, replace(artifact, update_buffers={}))]
    attack = UpdateMatching(steps=3, feature_steps=1, start_steps=1, peel_iterations=0)
    ends = [attack.reconstruct(one, Knowledge(), 0).images for one in labelled]
    assert all(end.isfinite().all() for end in ends)
    torch.testing.assert_close(ends[1], ends[2])
    assert not torch.allclose(ends[0], ends[1])


def test_truth_that_is_left_out_and_buffers_that_changed_are_said(tmp_path):
    """A buffer that is a constant tells nothing of the images."""
    module = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(64, 3))
    truth, work = (torch.rand(2, 1, 8, 8), torch.zeros(2)), LocalWork(1, None, "SGD", {"lr": 0.1})
    with privbench.capture(module, tmp_path / "run", truth=True) as seen:
        seen.broadcast()
        seen.update(examples=2, local=work, truth=truth)
        seen.broadcast()
        module(truth[0])
        seen.update(examples=2, local=work, truth=truth)
    still, changed = (captured(tmp_path / "run", module, number) for number in range(2))
    assert not any("buffers" in note for note in still.notes)
    assert any("`update-matching` alone reads the buffers" in note for note in changed.notes)
    assert still.truth is not None
    other = captured(tmp_path / "run", module, batch_size=1)
    assert other.truth is None
    assert any("is not that of 1 image(s) of one form behind each message" in note for note in other.notes)
