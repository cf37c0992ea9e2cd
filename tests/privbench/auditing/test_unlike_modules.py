"""Modules, clients and files unlike those of the tutorials: audited rightly, or refused in one line."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import privbench
from privbench.auditing import audit
from privbench.auditing.attack_series import AttackFailure
from privbench.auditing.captures import captured, local_steps
from privbench.capture import LocalWork
from privbench.errors import UserError
from privbench.types import LocalSteps

SIDE = 16
Y = torch.tensor([3])
BRIEF = {"attack": ["matching"], "settings": {"steps": 60}}


def smooth(count=1, seed=0):
    rough = torch.rand(count, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(rough, size=SIDE, mode="bilinear", align_corners=False)


def cnn(outputs=5):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(512, outputs))


def gradients_of(module, x, y=Y, loss=F.cross_entropy):
    module.zero_grad()
    loss(module(x), y).backward()
    return {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}


def stepped(module, x, y=Y, lr=0.5):
    """The state after one step of SGD."""
    other = cnn().to(next(module.parameters()).dtype)
    other.load_state_dict(module.state_dict())
    for p, own in zip(other.parameters(), module.parameters(), strict=True):
        p.requires_grad_(own.requires_grad)
    optimiser = torch.optim.SGD([p for p in other.parameters() if p.requires_grad], lr=lr)
    F.cross_entropy(other(x), y).backward()
    optimiser.step()
    return other.state_dict()


def psnr(result, attack="matching"):
    return float(result.frame().set_index("attack")["psnr_db"][attack])


def test_an_update_in_double_precision_leaves_the_module_and_what_went_down_as_they_are(tmp_path):
    module, x = cnn().double(), smooth().double()
    after, before = stepped(module, x), {n: t.clone() for n, t in module.state_dict().items()}
    result = privbench.audit(
        module, before=module.state_dict(), after=after, local_lr=0.5, labels=Y, truth=(x, Y),
        attack=["grey", "update-matching"], settings={"steps": 30, "start_steps": 30}, out=tmp_path,
    )  # fmt: skip
    assert all(torch.equal(t, before[n]) for n, t in module.state_dict().items())
    assert float(result.frame().set_index("attack")["explained_percent"]["update-matching"]) > 90


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_messages_in_half_precision_are_attacked_as_rounded_ones(dtype, tmp_path):
    module, x = cnn(), smooth()
    sent = {n: t.to(dtype) for n, t in gradients_of(module, x).items()}
    result = privbench.audit(module, gradients=sent, truth=(x, Y), out=tmp_path, **BRIEF)
    exact = privbench.audit(module, gradients=gradients_of(module, x), truth=(x, Y), out=tmp_path, **BRIEF)
    assert psnr(result) == pytest.approx(psnr(exact), abs=1)


def test_gradients_of_mixed_precision_are_attacked_once_their_rounding_is_declared(tmp_path):
    module, x = cnn(), smooth()
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(module(x), Y)
    loss.backward()
    sent = {n: p.grad.clone() for n, p in module.named_parameters()}
    with pytest.raises(UserError, match="rounded to bf16 or fp16 look alike, and are declared by --defense and --wire"):
        privbench.audit(module, gradients=sent, truth=(x, Y), out=tmp_path, **BRIEF)
    result = privbench.audit(module, gradients=sent, truth=(x, Y), wire="bf16", out=tmp_path, **BRIEF)
    assert psnr(result) > 15
    with pytest.raises(UserError, match="--wire takes float32, bf16, fp16, but 'half' was given"):
        privbench.audit(module, gradients=sent, truth=(x, Y), wire="half", out=tmp_path, **BRIEF)


def test_images_whose_axes_are_in_another_order_are_refused(tmp_path):
    module, x = cnn(), smooth()
    with pytest.raises(UserError, match=r"true images should end in the axes .* channels come first"):
        privbench.audit(
            module, gradients=gradients_of(module, x), truth=(x.permute(0, 2, 3, 1), Y), input_shape=(3, SIDE, SIDE),
            out=tmp_path,
        )  # fmt: skip


def test_a_backbone_that_is_frozen_is_known_and_its_update_is_attacked(tmp_path):
    module, x = cnn(), smooth()
    for p in module[0].parameters():
        p.requires_grad_(False)
    said = {"before": module.state_dict(), "local_lr": 0.5, "labels": Y, "truth": (x, Y), "attack": ["update-matching"]}
    said |= {"settings": {"steps": 60, "start_steps": 60}, "out": tmp_path}
    result = privbench.audit(module, after=stepped(module, x), **said)
    assert psnr(result, "update-matching") > 20
    after = stepped(module, x)
    for p in module[0].parameters():
        p.requires_grad_(True)
    undeclared = privbench.audit(module, after=after, **said)
    assert any("0.weight, 0.bias did not change in any message" in note for note in undeclared.notes)


def test_labels_that_are_no_classes_are_refused(tmp_path):
    module, x = cnn(1), smooth()
    sent = gradients_of(module, x, torch.tensor([[0.7]]), F.mse_loss)
    with pytest.raises(UserError, match="labels are whole numbers; put the targets of a regression into a `loss`"):
        privbench.audit(
            module, gradients=sent, labels=torch.tensor([0.7]), loss=F.mse_loss, truth=(x, None), out=tmp_path
        )
    with pytest.raises(UserError, match="one output, of which the cross-entropy is 0"):
        privbench.audit(module, gradients=sent, truth=(x, None), out=tmp_path)


def test_a_head_of_one_output_has_two_classes_under_a_loss_of_ones_own(tmp_path):
    module, x = cnn(1), smooth()

    def loss(outputs, labels):
        return F.binary_cross_entropy_with_logits(outputs[:, 0], labels.to(outputs))

    sent = gradients_of(module, x, torch.tensor([1]), loss)
    result = privbench.audit(module, gradients=sent, labels=[1], loss=loss, truth=(x, None), out=tmp_path, **BRIEF)
    assert psnr(result) > 15
    with pytest.raises(UserError, match="the declared loss should return one number"):
        privbench.audit(
            module, gradients=sent, labels=[1], truth=(x, None), out=tmp_path, **BRIEF,
            loss=lambda outputs, labels: F.binary_cross_entropy_with_logits(outputs[:, 0], labels.to(outputs), reduction="none"),
        )  # fmt: skip


class LogProbabilities(nn.Module):
    """The usual form of torch's own examples: log-softmax as a function, for F.nll_loss."""

    def __init__(self, logits):
        super().__init__()
        self.logits = logits

    def forward(self, x):
        return F.log_softmax(self.logits(x), dim=1)


@pytest.mark.parametrize("module", [LogProbabilities(cnn()), nn.Sequential(*cnn(), nn.LogSoftmax(1))])
@pytest.mark.parametrize("declared", [{}, {"loss": F.nll_loss}, {"loss": F.cross_entropy}])
def test_nll_of_log_probabilities_is_cross_entropy(module, declared, tmp_path):
    """So the labels are read off the last layer, and nobody has to declare them."""
    x = smooth()
    sent = gradients_of(module, x, Y, F.nll_loss)
    result = privbench.audit(module, gradients=sent, truth=(x, Y), out=tmp_path, **declared, **BRIEF)
    row = result.frame().set_index("attack").loc["matching"]
    assert row["label_accuracy"] == 1
    assert row["psnr_db"] > 15
    assert "loss: cross-entropy" in str(result)


def smoothed(outputs, labels):
    return F.cross_entropy(outputs, labels, label_smoothing=0.1)


@pytest.mark.parametrize(
    ("module", "loss"), [(cnn(), smoothed), (LogProbabilities(cnn()), smoothed), (cnn(), F.nll_loss)]
)
def test_other_losses_are_not_taken_for_cross_entropy(module, loss, tmp_path):
    x = smooth()
    with pytest.raises(UserError, match="with a loss of your own the labels have to be declared"):
        privbench.audit(module, gradients=gradients_of(module, x, Y, loss), loss=loss, truth=(x, Y), out=tmp_path)


def test_what_was_not_said_of_what_went_down_is_named(tmp_path):
    module, x = cnn(), smooth()
    bare = privbench.audit(module, gradients=gradients_of(module, x), truth=(x, Y), out=tmp_path, **BRIEF)
    assert any("Nothing was said of the weights that went down" in note for note in bare.notes)
    assert "Nothing was said of the weights" in repr(bare)
    whole = privbench.audit(
        module, before=module.state_dict(), gradients=gradients_of(module, x), truth=(x, Y), out=tmp_path, **BRIEF
    )
    assert whole.notes == ("The true images explain all of every message, as these are declared.",)


def test_a_module_with_batch_norm_that_comes_in_eval_mode_is_audited_in_train_mode(tmp_path):
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.Sigmoid(), nn.Flatten(), nn.Linear(512, 5)
    )
    x = smooth()
    sent = gradients_of(module.train(), x)
    result = privbench.audit(module.eval(), gradients=sent, mode="train", truth=(x, Y), out=tmp_path, **BRIEF)
    assert psnr(result) > 14


@pytest.mark.parametrize(
    ("module", "said", "message"),
    [
        (nn.DataParallel(cnn()), {}, "takes the module inside a wrapper for several devices: module.module"),
        (cnn(), {"mode": "Train"}, "--mode takes train or eval, but 'Train' was given"),
    ],
)
def test_what_cannot_be_audited_is_refused_in_one_line(module, said, message, tmp_path):
    with pytest.raises(UserError, match=message):
        privbench.audit(module, gradients=gradients_of(cnn(), smooth()), truth=(smooth(), Y), out=tmp_path, **said)


def test_numbers_of_extended_precision_are_refused_in_one_line(tmp_path):
    np.savez(
        tmp_path / "sent.npz", **{n: t.numpy().astype(np.longdouble) for n, t in gradients_of(cnn(), smooth()).items()}
    )
    with pytest.raises(UserError, match="not numbers"):
        privbench.audit(cnn(), gradients=tmp_path / "sent.npz", truth=(smooth(), Y), out=tmp_path)


def test_where_no_attack_can_be_made_the_table_says_that_nothing_was_attacked(tmp_path):
    module, x = cnn(), smooth()
    made = privbench.audit(
        module,
        gradients=gradients_of(module, x),
        truth=(x, Y),
        attack=["grey", "dlg"],
        settings={"steps": 5},
        out=tmp_path,
    )
    missing = (AttackFailure("dlg", "of more images"), AttackFailure("idlg", "the same"))
    (note,) = audit._not_made(made.rows[:1], missing)
    assert note.startswith("NOTHING WAS ATTACKED")
    assert "Of 2 attacks none could be made, e.g. dlg: of more images" in note
    assert audit._not_made(made.rows, missing) == audit._not_made(made.rows[:1], ()) == []


def groups(module, *each):
    weights = [p for n, p in module.named_parameters() if n.endswith("weight")]
    biases = [p for n, p in module.named_parameters() if n.endswith("bias")]
    return [{"params": weights, **each[0]}, {"params": biases, **each[1]}]


@pytest.mark.parametrize(
    ("optimiser", "said"),
    [
        (lambda m: torch.optim.SGD(groups(m, {"momentum": 0.9}, {"momentum": 0.0}), lr=0.1), "SGD with momentum"),
        (lambda m: torch.optim.SGD(groups(m, {"weight_decay": 0.1}, {"weight_decay": 0.0}), lr=0.1), "several values of weight"),
        (lambda m: torch.optim.SGD(groups(m, {"lr": 0.1}, {"lr": 0.2}), lr=0.1), "several values of lr"),
        (lambda m: torch.optim.Adam(groups(m, {"betas": (0.9, 0.9)}, {"betas": (0.8, 0.9)})), "several values of betas"),
        (lambda m: torch.optim.Adam(m.parameters(), eps=0.1), "Adam with eps 0.1"),
    ],
)  # fmt: skip
def test_steps_that_differ_between_groups_or_by_eps_are_not_taken_for_others(optimiser, said):
    with pytest.raises(UserError, match=said):
        local_steps(LocalWork.of(optimiser(cnn()), steps=1, batch_size=1), 1)


def test_declared_steps_say_what_of_the_captured_ones_they_leave_out_and_small_differences_stay(tmp_path):
    module, x = cnn().double(), smooth().double()
    optimiser = torch.optim.SGD(module.parameters(), lr=1e-9, momentum=0.9, weight_decay=0.05)
    with privbench.capture(module, tmp_path / "run") as seen:
        seen.broadcast()
        before = {n: t.clone() for n, t in module.state_dict().items()}
        other = cnn().double()
        other.load_state_dict(before)
        F.cross_entropy(other(x), Y).backward()
        after = {n: p.detach() - 1e-9 * p.grad for n, p in other.named_parameters()}
        module.eval()
        seen.update(after, examples=1, local=LocalWork.of(optimiser, steps=1, batch_size=1))
    came = captured(tmp_path / "run", module, local=LocalSteps(1, {"kind": "sgd", "lr": 1e-9, "weight_decay": 0.0}))
    assert any("SGD with momentum, weight_decay; simulated are steps without it" in note for note in came.notes)
    # The mode of the captured module says nothing of the one that trained.
    assert came.training is None
    for name, p in other.named_parameters():
        torch.testing.assert_close(came.received.messages[name][0], -1e-9 * p.grad, rtol=1e-4, atol=1e-15)
