"""An audit of a user's module from gradients or updates to a table: in Python, on the command line, with and without a truth."""

import math
import re
import sys
from dataclasses import replace
from io import StringIO

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from sklearn.datasets import load_breast_cancer
from torch import nn
from typer.testing import CliRunner

import privbench
from privbench.auditing import evidence
from privbench.cli import main as cli
from privbench.errors import UserError
from privbench.types import LocalSteps, Reconstruction
from tests.builders import user_modules
from tests.builders.user_modules import form_of, gradient_of, seen_by_server

NORMAL = {"mean": 0.5, "std": 0.25}


def smooth(count, seed=0):
    rough = torch.rand(count, 3, 6, 6, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(rough, size=32, mode="bilinear", align_corners=False)


def entered(images):
    return (images - NORMAL["mean"]) / NORMAL["std"]


def sent_by(module, images, labels, *, batch=1, train=False):
    """Gradients of the messages, parameter -> [M, ...]."""
    parts = zip(entered(images).split(batch), labels.split(batch), strict=True)
    each = [gradient_of(module, x, y, train=train) for x, y in parts]
    return {name: torch.stack([one[name] for one in each]) for name in each[0]}


@pytest.fixture(scope="module")
def cnn():
    """(the module, its true images and labels, their gradients)."""
    module, images, labels = user_modules.flower_cnn(), smooth(2), torch.tensor([3, 7])
    return module, images, labels, sent_by(module, images, labels)


@pytest.fixture(scope="module")
def cancer():
    """(vectors [N, 30] of the breast-cancer data, their labels, mean and standard deviation by feature)."""
    x, y = (torch.tensor(t) for t in load_breast_cancer(return_X_y=True))
    x = x.float()
    return x, y, x.mean(0), x.std(0)


def test_a_cnn_is_attacked_and_scored_beside_its_floors(cnn, tmp_path):
    module, images, labels, gradients = cnn
    before = {name: t.clone() for name, t in module.state_dict().items()}
    result = privbench.audit(
        module, gradients=gradients, truth=(images, labels), mode="eval", attack=["grey", "matching"],
        settings={"steps": 40}, out=tmp_path, **NORMAL,
    )  # fmt: skip
    assert all(torch.equal(t, before[name]) for name, t in module.state_dict().items())
    table = result.frame().set_index("attack")
    assert table["psnr_db"]["matching"] > table["psnr_db"]["grey"] == pytest.approx(table["floor_db"]["matching"])
    assert table["explained_percent"]["matching"] > 90
    assert table["explained_by_grey_percent"]["matching"] < table["explained_percent"]["matching"]
    assert table["explained_by_grey_percent"].isna()["grey"]
    assert table["label_accuracy"]["matching"] == 1
    assert bool(table["is_scored"].all())
    # Of several messages there are intervals, over no seeds.
    assert re.search(
        r"\| matching \| gradient \| \d+\.\d\d \[\d+\.\d\d, \d+\.\d\d\] \|", (tmp_path / "audit.md").read_text()
    )
    written = StringIO(result.frame().to_csv(index=False))
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "audit.csv"), pd.read_csv(written))
    text = (tmp_path / "audit.md").read_text()
    assert "FlowerCNN in eval mode, head from fc1; 2 gradients of 1 image(s) each" in text
    assert {"audit.tex", "audit.html", "audit-grid.png", "audit-matching.safetensors"} <= {
        p.name for p in tmp_path.iterdir()
    }
    assert result.images("matching").shape == (2, 1, 3, 32, 32)
    assert "| matching | gradient |" in repr(result)


def test_without_a_truth_the_attackers_evidence_stands_and_images_are_marked_as_unscored(cnn, tmp_path):
    module, _, _, gradients = cnn
    aux = (smooth(20, seed=1), torch.arange(20) % 10)
    result = privbench.audit(
        module, gradients=gradients, input_shape=(3, 32, 32), mode="eval", attack="ladder", auxiliary=aux,
        settings={"steps": 2, "feature_steps": 2, "epochs": 1, "turns": 1}, out=tmp_path, **NORMAL,
    )  # fmt: skip
    assert [row.name for row in result.rows] == [
        "grey", "dataset-mean", "class-mean", "nearest-auxiliary", "dlg", "idlg", "inverting-gradients", "extractor-matching",
        "matching", "grnn", "unsplit", "learned-inverse", "staged",
    ]  # fmt: skip
    assert not any("internal error" in each.reason for each in result.missing)
    assert {each.attack for each in result.missing} >= {"imprint", "posterior", "surrogate"}
    assert "psnr_db" not in result.frame()
    text = (tmp_path / "audit.md").read_text()
    assert "UNSCORED" in text
    assert re.search(r"\| matching \| gradient \| -?\d+\.\d \| -?\d+\.\d \| 3 7 \| reconstructed 2 \|", text)
    assert "imprint reads what its own crafted classifier brought back, but these clients got an honest one" in text
    assert (tmp_path / "audit-grid.png").exists()


def test_the_true_images_explain_everything_and_others_less(cnn):
    module, images, labels, _ = cnn
    seen = seen_by_server(module, images[:, None], labels[:, None], form=form_of())
    empty = torch.zeros(2)

    def of(x):
        made = Reconstruction(x[:, None], labels[:, None], empty, empty[:, None], empty.long(), 0)
        return evidence.explained(seen, made).tolist()

    assert of(images) == pytest.approx([100, 100], abs=1e-4)
    assert max(of(images.flip(0))) < 99
    made = Reconstruction(images[:, None], labels[:, None], empty, empty[:, None], empty.long(), 0)
    assert evidence.explained_by_grey(seen, made).tolist() == of(torch.full_like(images, 0.5))
    for lost in (torch.inf, -torch.inf, torch.nan):
        broken = images.clone()
        broken[1, 0, 0, 0] = lost
        assert [math.isnan(share) for share in of(broken)] == [False, True]


def test_an_update_is_explained_and_matched_by_its_local_steps(cnn, tmp_path):
    module, images, labels, _ = cnn
    client = user_modules.flower_cnn().eval()
    optimiser = torch.optim.SGD(client.parameters(), lr=0.05)
    for _ in range(2):
        optimiser.zero_grad()
        F.cross_entropy(client(entered(images)), labels).backward()
        optimiser.step()
    result = privbench.audit(
        module, before=module.state_dict(), after=client.state_dict(), batch_size=2, local_steps=2, local_lr=0.05,
        truth=(images, labels), labels=labels, mode="eval", attack="update-matching",
        settings={"steps": 3, "start_steps": 2, "feature_steps": 2}, out=tmp_path, **NORMAL,
    )  # fmt: skip
    (row,) = result.rows
    assert row.result.reconstruction.loss.isfinite().all()
    seen = seen_by_server(module, images[None], labels[None], form=form_of())
    change = {n: client.state_dict()[n] - t for n, t in module.state_dict().items()}
    whole = replace(
        seen, gradients={}, updates=seen.model.parts({n: t[None] for n, t in change.items()}),
        local=LocalSteps(2, {"kind": "sgd", "lr": 0.05, "weight_decay": 0.0}),
    )  # fmt: skip
    empty = torch.zeros(1)
    true = Reconstruction(images[None], labels[None], empty, empty[:, None], empty.long(), 0)
    assert evidence.explained(whole, true).tolist() == pytest.approx([100], abs=1e-3)


def test_posterior_applies_where_noise_is_declared(cnn, tmp_path):
    module, images, labels, gradients = cnn
    rng = torch.Generator().manual_seed(0)
    noisy = {n: t + 1e-3 * torch.randn(t.shape, generator=rng) for n, t in gradients.items()}
    result = privbench.audit(
        module, gradients=noisy, truth=(images, labels), mode="eval", attack="posterior", defense="gaussian:1e-6",
        auxiliary=(smooth(20, seed=1), torch.arange(20) % 10), out=tmp_path, **NORMAL,
        settings={"steps": 2, "direction_steps": 2, "starts": 3},
    )  # fmt: skip
    assert result.rows[0].result.measured.scores.n == 2
    assert result.rows[0].result.reconstruction.labels.tolist() == [[3], [7]]


def test_a_private_extractor_is_attacked_through_surrogates_of_the_users_own_network(cnn, tmp_path):
    module, images, labels, gradients = cnn
    head = {n: t for n, t in gradients.items() if n.startswith("fc")}
    result = privbench.audit(
        module, gradients=head, shared=["classifier"], truth=(images, labels), mode="eval",
        attack=["surrogate", "matching"], auxiliary=(smooth(20, seed=1), torch.arange(20) % 10), out=tmp_path, **NORMAL,
        settings={"steps": 2, "train_steps": 2, "shadow_steps": 2, "members": 1},
    )  # fmt: skip
    assert [row.name for row in result.rows] == ["surrogate", "matching"]
    assert all(row.explained is None for row in result.rows)


@pytest.mark.parametrize(
    ("make", "shape", "size", "train"),
    [
        pytest.param(
            user_modules.torchvision_resnet18, (3, 16, 16), 2, True, id="torchvision's ResNet-18 by batch statistics"
        ),
        pytest.param(user_modules.vit_tiny, (3, 32, 32), 1, True, id="a ViT"),
    ],
)
def test_a_resnet_and_a_vit_are_attacked_unchanged(make, shape, size, train, tmp_path):
    module, labels = make(), torch.arange(size)
    images = F.interpolate(smooth(size), size=shape[1])
    gradients = sent_by(module, images, labels, batch=size, train=train)
    result = privbench.audit(
        module, gradients=gradients, truth=(images, labels), batch_size=size, mode="train", attack="inverting-gradients",
        settings={"steps": 1, "restarts": 1}, out=tmp_path, **NORMAL,
    )  # fmt: skip
    made = result.rows[0].result.reconstruction
    # A cosine distance, and the variation of noise.
    assert 0 < made.loss < 3
    assert made.trace.shape == (1, 2)
    assert sorted(made.labels[0].tolist()) == labels.tolist()


def test_the_input_of_an_mlp_on_tabular_data_is_recovered_to_rounding(cancer, tmp_path):
    x, y, mean, std = cancer
    rows = torch.tensor([0, 20, 1, 22])
    module = user_modules.mlp()
    gradients = [gradient_of(module, (x[r] - mean) / std, y[r]) for r in rows.split(1)]
    result = privbench.audit(
        module, gradients={n: torch.stack([g[n] for g in gradients]) for n in gradients[0]},
        truth=(x[rows], y[rows]), input_shape=[30], mean=mean, std=std, mode="eval", attack=["staged", "class-mean"],
        auxiliary=(x[100:200], y[100:200]), out=tmp_path,
    )  # fmt: skip
    table = result.frame().set_index("attack")
    assert table["error_std"]["staged"] < 1e-4 < 0.1 < table["error_std"]["class-mean"]
    assert table["r2"]["staged"] == pytest.approx(1, abs=1e-6)
    assert table["explained_percent"]["staged"] == pytest.approx(100, abs=1e-3)
    assert "psnr_db" not in table
    assert not (tmp_path / "audit-grid.png").exists()


def audit_of_rows(x, y, folder):
    """Of an MLP on tabular data whose features nobody described, one row a message."""
    module = user_modules.mlp()
    gradients = [gradient_of(module, row[None], label[None]) for row, label in zip(x, y, strict=True)]
    stacked = {n: torch.stack([g[n] for g in gradients]) for n in gradients[0]}
    return privbench.audit(
        module, gradients=stacked, truth=(x, y), input_shape=[30], mode="eval", attack=["staged", "grey"], out=folder
    )


def test_a_feature_that_no_victim_varies_hides_no_reconstruction(cancer, tmp_path):
    """Such as a one-hot column: in units of its spread, 0, any rounding would be infinitely wrong."""
    x, y, mean, std = cancer
    rows = torch.tensor([0, 20, 1])
    units = ((x[rows] - mean) / std).index_fill(1, torch.tensor([4, 7]), 0.0)
    result = audit_of_rows(units, y[rows], tmp_path)
    table = result.frame().set_index("attack")
    assert table["error_std"]["staged"] < 1e-3 < 0.1 < table["error_std"]["grey"] < 10
    assert table["r2"]["staged"] == pytest.approx(1, abs=1e-5)
    assert "Constant features, which no score counts: 2 of 30." in result.notes


def test_one_vector_alone_is_unscored_and_says_what_would_score_it(cancer, tmp_path):
    x, y, mean, std = cancer
    text = repr(audit_of_rows((x[:1] - mean) / std, y[:1], tmp_path))
    assert "UNSCORED: one vector alone" in text
    assert "give the mean and the standard deviation of every feature" in text
    assert "no truth was given" not in text


def test_a_module_that_vmap_cannot_batch_is_attacked_one_message_after_another(tmp_path):
    class Peeking(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Conv2d(3, 4, 3)
            self.head = nn.Linear(4, 10)

        def forward(self, x):
            h = torch.tanh(self.layer(x)).mean((2, 3))
            # A decision by a number, which a batch of messages does not have.
            return self.head(h if x.shape[0] > 5 or x.device.type == "meta" or h.detach().sum().item() < 1e9 else -h)

    torch.manual_seed(0)
    module, images, labels = Peeking(), smooth(2), torch.tensor([3, 7])
    result = privbench.audit(
        module, gradients=sent_by(module, images, labels), truth=(images, labels), attack="dlg", settings={"steps": 2},
        out=tmp_path, **NORMAL,
    )  # fmt: skip
    (row,) = result.rows
    assert any(note.startswith("victims are attacked one after another, because") for note in row.result.notes)
    assert (row.result.reconstruction.trace[:, -1] < row.result.reconstruction.trace[:, 0]).all()


class Recurrent(nn.Module):
    """Rows of an image, one after another, through torch's own recurrent layer."""

    def __init__(self):
        super().__init__()
        self.rows = nn.GRU(96, 16, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.rows(x.permute(0, 2, 1, 3).flatten(2))[0][:, -1])


def test_recurrent_modules_are_attacked_as_others_are(tmp_path):
    torch.manual_seed(0)
    module, images, labels = Recurrent(), smooth(2), torch.tensor([3, 7])
    result = privbench.audit(
        module, gradients=sent_by(module, images, labels), truth=(images, labels), out=tmp_path,
        attack=["matching", "dlg", "inverting-gradients", "extractor-matching", "staged"],
        settings={"steps": 3, "feature_steps": 2}, **NORMAL,
    )  # fmt: skip
    assert len(result.rows) == 5
    for row in result.rows:
        trace = row.result.reconstruction.trace
        assert (trace[:, -1] < trace[:, 0]).all(), row.name


def test_an_extractor_without_biases_is_matched(tmp_path):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 6, 5, stride=4, bias=False), nn.Sigmoid(), nn.Flatten(), nn.Linear(294, 10))
    images, labels = smooth(2), torch.tensor([3, 7])
    (row,) = privbench.audit(
        module, gradients=sent_by(module, images, labels), truth=(images, labels), attack="extractor-matching",
        settings={"steps": 5}, out=tmp_path, **NORMAL,
    ).rows  # fmt: skip
    assert (row.result.reconstruction.trace[:, -1] < row.result.reconstruction.trace[:, 0]).all()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda t, g: {}, None),
        (lambda t, g: {"mean": 0.0, "std": 1.0}, "Look at the weights that went down, mean and std"),
        (lambda t, g: {"truth": (t[0].flip(0), t[1])}, "Look at the weights that went down, mean and std"),
        (lambda t, g: {"gradients": {n: -x for n, x in g.items()}}, "with the other sign"),
        (lambda t, g: {"gradients": {n: 0.1 * x for n, x in g.items()}}, "0.1 times what they give does: a clip of the sender"),
        (lambda t, g: {"gradients": {n: 2 * x.mean(0) for n, x in g.items()}, "batch_size": 2},
         "the sender's loss adds up over the 2 images of a batch"),
        (lambda t, g: {"gradients": {n: x.mean(0) for n, x in g.items()}, "batch_size": 2}, None),
        (lambda t, g: {"gradients": {n: x.bfloat16() for n, x in g.items()}}, None),
    ],
)  # fmt: skip
def test_a_set_up_in_which_the_true_images_do_not_give_the_messages_is_said_to_be_another(changed, said, cnn, tmp_path):
    module, images, labels, gradients = cnn
    asked = {
        "gradients": gradients,
        "truth": (images, labels),
        "mode": "eval",
        "attack": "grey",
        "out": tmp_path,
        **NORMAL,
    }
    result = privbench.audit(module, **asked | changed((images, labels), gradients))
    text, first = (tmp_path / "audit.md").read_text(), (result.report().messages or [""])[0]
    if said is None:
        assert result.warnings == ()
        assert "The true images explain all of every message, as these are declared." in result.notes
        return
    (warning,) = result.warnings
    assert warning.startswith("THE TRUE IMAGES DO NOT EXPLAIN THE MESSAGES as declared: ")
    assert said in warning
    assert warning in text
    assert warning == first


@pytest.mark.parametrize(("sign", "said"), [(1.0, False), (-1.0, True)])
def test_without_a_truth_it_is_said_that_no_images_explain_the_messages(sign, said, cnn, tmp_path):
    module, _, labels, gradients = cnn
    result = privbench.audit(
        module, gradients={n: sign * t for n, t in gradients.items()}, labels=labels, input_shape=(3, 32, 32), mode="eval",
        attack="matching", settings={"steps": 20}, out=tmp_path, **NORMAL,
    )  # fmt: skip
    assert any(note.startswith("No attack's images explain half") for note in result.notes) == said


@pytest.mark.parametrize("rate", [1e-1, 1e-6])
@pytest.mark.parametrize(("declared", "is_said"), [(1.0, False), (2.0, True)])
def test_the_set_up_of_an_update_is_checked_to_within_what_weights_are_stored(rate, declared, is_said, cnn, tmp_path):
    """At the small rate what is stored of a step is largely rounding, and nothing is said."""
    module, images, labels, _ = cnn
    client = user_modules.flower_cnn().eval()
    F.cross_entropy(client(entered(images)), labels).backward()
    after = {n: (p - rate * p.grad).detach() for n, p in client.named_parameters()}
    result = privbench.audit(
        module, before=module.state_dict(), after=after, batch_size=2, local_lr=declared * rate, truth=(images, labels),
        mode="eval", attack="grey", out=tmp_path, **NORMAL,
    )  # fmt: skip
    said = [text for text in (*result.warnings, *result.notes) if "true images" in text.lower()]
    if rate < 1e-3:
        assert not said
        return
    assert len(said) == 1
    assert ("0.5 times what they give does: a clip of the sender, or another rate" in said[0]) == is_said


def test_nothing_is_said_of_the_set_up_where_it_cannot_be_checked(cnn, tmp_path):
    module, images, labels, gradients = cnn
    asked = {"gradients": gradients, "mode": "eval", "attack": "grey", "out": tmp_path, **NORMAL}
    for unknown in ({"truth": (images, None)}, {"truth": (images, labels), "defense": "gaussian:0.1"}):
        result = privbench.audit(module, **asked | unknown)
        assert result.warnings == ()
        assert not any("The true images" in note for note in result.notes)


def test_explained_is_the_median_over_messages(cnn, tmp_path):
    """One message that is nearly zero is far from explained by anything."""
    module, images, labels, _ = cnn
    three = {n: torch.cat([t, t[:1]]) for n, t in sent_by(module, images, labels).items()}
    small = {n: t * torch.tensor([1.0, 1, 1e-6]).view(3, *[1] * (t.ndim - 1)) for n, t in three.items()}
    (row,) = privbench.audit(
        module, gradients=small, input_shape=(3, 32, 32), mode="eval", labels=torch.tensor([3, 7, 3]), attack="matching",
        settings={"steps": 20}, out=tmp_path, **NORMAL,
    ).rows  # fmt: skip
    assert row.explained_percent == pytest.approx(float(row.explained.median()))


def test_a_second_audit_leaves_no_images_of_the_first(cnn, tmp_path):
    module, images, labels, gradients = cnn
    own = tmp_path / "audit-mine.safetensors"
    own.write_bytes(b"kept")
    asked = {"gradients": gradients, "truth": (images, labels), "settings": {"steps": 1}, "out": tmp_path, **NORMAL}
    for attack in ("matching", "dlg"):
        privbench.audit(module, attack=attack, **asked)
    assert {p.name for p in tmp_path.glob("*.safetensors")} == {"audit-dlg.safetensors", own.name}


@pytest.mark.parametrize("make", [lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(10)),
                                  lambda: user_modules.flower_cnn().to("meta")], ids=["lazy", "meta"])  # fmt: skip
def test_a_module_without_numbers_is_refused_in_one_line(make, tmp_path):
    with pytest.raises(UserError, match="the module has weights without numbers"):
        privbench.audit(make(), gradients={}, input_shape=(3, 32, 32), attack="grey", out=tmp_path)


def test_a_loss_of_the_callers_own_is_matched_where_labels_are_declared(cnn, tmp_path):
    module, images, labels, _ = cnn

    def brier(outputs, labels):
        return (outputs.softmax(1) - F.one_hot(labels, 10)).square().sum(1).mean()

    module.zero_grad()
    brier(module.eval()(entered(images)), labels).backward()
    gradients = {n: p.grad.clone() for n, p in module.named_parameters()}
    asked = {
        "gradients": gradients, "batch_size": 2, "truth": (images, labels), "mode": "eval", "loss": brier,
        "attack": "matching", "settings": {"steps": 3}, "out": tmp_path, **NORMAL,
    }  # fmt: skip
    with pytest.raises(UserError, match="with a loss of your own the labels have to be declared"):
        privbench.audit(module, **asked)
    for wrong, said in (
        (F.mse_loss, r"the declared loss cannot be taken of outputs \[2, 10\] and labels \[2\]: "),
        (lambda o, y: float(brier(o, y)), "the declared loss should return a tensor, but it returned a float"),
    ):
        with pytest.raises(UserError, match=said):
            privbench.audit(module, labels=labels, **(asked | {"loss": wrong}))
    (row,) = privbench.audit(module, labels=labels, **asked).rows
    assert (row.result.reconstruction.trace[:, -1] < row.result.reconstruction.trace[:, 0]).all()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"gradient": {}}, "there is no option 'gradient'; did you mean 'gradients'?"),
        ({"gradients": None}, "an audit takes one of .* but none was given"),
        ({"input_shape": (3, 16, 16), "truth": None}, "cannot be called on images of shape"),
        ({"input_shape": None, "truth": None}, "say with --input-shape which images the module takes"),
        ({"mean": [0.5, 0.5]}, "--mean takes one number or 3, but 2 were given"),
        ({"mean": float("nan")}, "--mean takes finite numbers, but nan was given"),
        ({"round": 3}, "--round goes with a captured folder"),
        ({"local_lr": 0.1}, "local steps go with an update, --after"),
        ({"std": 0.0}, "--std should be above 0"),
        ({"range": (1, 0)}, "--range takes a lower and a higher end"),
        ({"shared": ["generator"]}, "there is no part 'generator'; known: extractor, classifier"),
        ({"loss": "mse"}, "loss is cross-entropy, or a callable in Python"),
        ({"attack": "macthing"}, "unknown attack 'macthing'; did you mean 'matching'"),
        ({"attack": "posterior"}, "posterior weighs the noise that uploads carry, but these carry none"),
        ({"attack": "surrogate"}, "surrogate attacks private extractors"),
        ({"truth": (torch.rand(3, 3, 32, 32), None)}, "the truth of 2 message"),
        ({"head": ["fc9"]}, "the module has no submodule 'fc9'"),
        ({"extractor": ["conv9"]}, "the module has no submodule 'conv9'"),
        ({"extractor": "conv9"}, "the module has no submodule 'conv9'"),
        ({"extractor": ["conv1", "fc1"]}, "'fc1' is declared as the extractor's, but the head holds it"),
        ({"gradients": {"fc3.bias": None}}, "holds no tensor of the module"),
        ({"auxiliary": (torch.rand(4, 1, 32, 32), torch.zeros(4))}, "auxiliary images should be"),
        (
            {"auxiliary": (torch.rand(4, 3, 32, 32), None)},
            r"auxiliary takes .* \(images, labels\), but a tuple of Tensor, None",
        ),
        ({"batch_size": 0}, "--batch-size takes a whole number from 1, but 0 was given"),
        ({"batch_size": 2.5}, "--batch-size takes a whole number from 1, but 2.5 was given"),
        ({"gradients": [torch.zeros(3)]}, "gradients takes tensors by name, or a file, but a list was given"),
        ({"gradients": {"fc3.bias": np.zeros(10)}}, "'fc3.bias' of gradients is no tensor but a ndarray"),
        ({"truth": [torch.rand(2, 3, 32, 32), None]}, "truth takes .* but a list of Tensor, NoneType was given"),
        ({"truth": (np.zeros((2, 3, 32, 32)), None)}, "truth takes .* but a tuple of ndarray, NoneType was given"),
        ({"input_shape": 3072}, r"input_shape takes \[C, H, W\] of images or \[D\] of vectors, but 3072"),
        ({"range": 255}, r"range takes two numbers, e.g. \(0, 255\), but 255 was given"),
        ({"input_shape": "3,32,32"}, r"input_shape takes \[C, H, W\] of images .* but '3,32,32' was given"),
        ({"input_shape": (3.7, 32, 32)}, r"input_shape takes \[C, H, W\] of images"),
        ({"mean": "a"}, "--mean takes numbers, but 'a' was given"),
        ({"client": [0]}, "--client goes with a captured folder"),
        ({"labels": torch.zeros(2, dtype=torch.complex64)}, "a tensor of labels should hold real numbers"),
        (
            {"gradients": {"fc3.bias": torch.zeros(10).to_sparse()}},
            "'fc3.bias' of gradients should hold real numbers, all of",
        ),
        (
            {"gradients": {"fc3.bias": torch.zeros(10, dtype=torch.bool)}},
            "should hold floating-point numbers, but it is torch.bool",
        ),
        (
            {"before": {**user_modules.flower_cnn().state_dict(), "fc3.bias": torch.zeros(9)}},
            r"'fc3.bias' of the state before should have shape \[10\], but it has \[9\]",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(changed, said, cnn, tmp_path):
    module, images, labels, gradients = cnn
    asked = {"gradients": gradients, "truth": (images, labels), "attack": "grey", "out": tmp_path, **NORMAL} | changed
    with pytest.raises(UserError, match=said) as refusal:
        privbench.audit(module, **asked)
    assert "\n" not in str(refusal.value)


@pytest.fixture
def files(cnn, tmp_path, monkeypatch):
    """A folder with a module's code and what came of it, as files."""
    module, images, labels, gradients = cnn
    (tmp_path / "users_own_code.py").write_text(
        "from tests.builders.user_modules import FlowerCNN as draws, flower_cnn as build\n\ndef fails():\n    return 1 // 0\n"
        "\ndef meta():\n    return build().to('meta')\n\ndef lazy():\n    from torch import nn\n    return nn.LazyLinear(3)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    save_file(module.state_dict(), "before.safetensors")
    np.savez("gradients.npz", **{n: t.numpy() for n, t in gradients.items()})
    np.savez("truth.npz", images=(255 * images).round().byte().numpy(), labels=labels.numpy())
    yield tmp_path
    sys.modules.pop("users_own_code", None)


def command(*words):
    done = CliRunner().invoke(cli.app, ["audit", *words])
    return done.output if done.exception is None or isinstance(done.exception, SystemExit) else done.exception


def test_the_command_audits_files_with_code_that_the_user_names(files):
    output = command(
        "--model", "users_own_code:build", "--gradients", "gradients.npz", "--before", "before.safetensors",
        "--truth", "truth.npz", "--mean", "0.5", "--std", "0.25,0.25,0.25", "--mode", "eval", "--attack", "grey",
        "--attack", "matching", "--attack-set", "steps=5", "--split", "extractor=conv1,conv2;classifier=fc1,fc2,fc3",
        "--out", "seen",
    )  # fmt: skip
    assert "matching" in output
    table = pd.read_csv(files / "seen" / "audit.csv").set_index("attack")
    assert table["psnr_db"].notna().all()
    assert table["label_accuracy"]["matching"] == 1


def test_a_command_that_attacked_nothing_says_so_first_and_ends_with_status_1(files, cnn):
    """Undeclared noise makes every gradient look like one of more images."""
    rng = torch.Generator().manual_seed(0)
    noised = {n: (t + 1e-3 * torch.randn(t.shape, generator=rng)).numpy() for n, t in cnn[3].items()}
    np.savez("noised.npz", **noised)
    done = CliRunner().invoke(
        cli.app,
        ["audit", "--model", "users_own_code:build", "--gradients", "noised.npz", "--truth", "truth.npz", "--mean", "0.5",
         "--std", "0.25", "--mode", "eval", "--attack", "ladder", "--attack-set", "steps=1", "--out", "seen"],
    )  # fmt: skip
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 1
    lines = done.output.splitlines()
    (first,) = (n for n, line in enumerate(lines) if line.startswith("- NOTHING WAS ATTACKED"))
    assert not any(line.startswith("- ") for line in lines[:first])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "users_own_code"], "a model is written package.module:function, but 'users_own_code' was given"),
        (["--model", "users_own_code:nothing"], "has no function 'nothing'"),
        (["--model", "no_such_code:build"], "there is no module 'no_such_code' on the Python path"),
        (["--model", "users_own_code:fails"], "model 'users_own_code:fails' cannot be built: .*ZeroDivisionError"),
        (["--gradients", "gradients.pt"], "a pickle .* is never read"),
        (["--gradients", "gone.npz"], "there is no file gone.npz"),
        (["--split", "head=fc1"], "--split is written extractor=MODULE"),
        (["--range", "0"], "--range takes two numbers"),
        (["--model", "users_own_code:meta"], "the module has weights without numbers"),
        (["--model", "users_own_code:lazy"], "the module has weights without numbers"),
        (
            ["--model", "users_own_code:draws"],
            "has other weights at every call; name those that went down by --before FILE",
        ),
        (["--mode", "test"], "--mode takes train or eval"),
        (["--input-shape", "3,32.5,32"], "--input-shape takes whole numbers"),
        (["--after", "before.safetensors", "--gradients", "gradients.npz"], "--gradients and --after were given"),
        (["--model", "users_own_code.py:build"], "a module is named as it is imported, without .py"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(words, said, files):
    (files / "gradients.pt").write_bytes(b"\x80\x04.")
    named = dict(zip(words[::2], words[1::2], strict=True))
    usual = {
        "--model": "users_own_code:build",
        "--gradients": "gradients.npz",
        "--truth": "truth.npz",
        "--attack": "grey",
    }
    refusal = command(*(word for pair in (usual | named).items() for word in pair))
    assert isinstance(refusal, UserError)
    assert re.search(said, str(refusal))
    assert "\n" not in str(refusal)


@pytest.mark.parametrize("defense", ["dp-sgd:epsilon=8", "dp-adam:epsilon=8", "clip:1+dp-fedavg:epsilon=8"])
def test_a_noise_that_follows_from_a_training_is_asked_for(defense, cnn, tmp_path):
    module, _, _, gradients = cnn
    with pytest.raises(UserError, match=r"give the noise, e\.g\. dp-\w+:noise=1,clip=1"):
        privbench.audit(module, gradients=gradients, input_shape=(3, 32, 32), defense=defense, out=tmp_path / "out")
