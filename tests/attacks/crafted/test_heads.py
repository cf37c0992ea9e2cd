"""Crafted heads beside LeNet-5's: of several layers with any activation between them, and of a single one."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from attacks.crafted import class_sums, classifiers, dry_run, gradient_bins, heads, saturated
from attacks.crafted.classifiers import HONEST
from attacks.imprint import Imprint
from attacks.staged import Staged
from defenses.clip import Clip
from defenses.gaussian import Gaussian
from defenses.none import NoDefense
from privbench import presets, registry
from privbench.errors import UserError
from privbench.execution import applicability
from privbench.networks.layers import UNIT
from privbench.networks.model import Model
from privbench.scoring.image_scores import psnr_db
from privbench.types import ExpectedUpload, Knowledge, Networks, Outcome
from tests.builders.small_artifacts import (
    OneConvolution,
    artifact,
    images_like_the_victims,
    logits,
    networks,
    smooth_images,
)

KNOWN = Knowledge(images_like_the_victims(200))
MLP = Model("mlp", 1, 10)
BOTH = ("extractor", "classifier")
Y = torch.tensor([3, 2, 9, 0, 5, 7])


class Activated(OneConvolution):
    """The same network with another activation between the layers of its head."""

    def __init__(self, activation):
        super().__init__("activated", 1, 10)
        object.__setattr__(self, "activation", activation)

    def linear_layers(self, params, features):
        inputs, z = {}, features.flatten(1)
        for layer in self.widths:
            inputs[layer] = z if layer == "fc1" else self.activation(z)
            z = F.linear(inputs[layer], params[f"{layer}.weight"]) + params[f"{layer}.bias"]
        return z, inputs


STEPS = {"relu": F.relu, "leaky": lambda z: F.leaky_relu(z, 0.1), "gelu": F.gelu, "elu": F.elu, "softplus": F.softplus}
BUMPS = {"tanh": torch.tanh, "sigmoid": torch.sigmoid}


def honest(model, parts=BOTH):
    return Networks({p: networks(model=model)[p] for p in parts}, {p: {} for p in parts})


def sent(model, batch_size, defense=None, parts=BOTH):
    expected = ExpectedUpload(batch_size, defense or NoDefense())
    made = Imprint(rehearsal_images=0).craft(model, honest(model, parts), replace(KNOWN, expected=expected), 0)
    return networks(model=model) | made.params


def seen_of(model, labels=Y, noise=0.0, batch_size=None):
    """(artifact of one batch of images with some labels, their features [B, n])."""
    x, size = smooth_images(len(labels)), batch_size or len(labels)
    params = sent(model, size, Gaussian(noise) if noise else None)
    seen = artifact(x, labels, batch_size=size, weights=params, noise=noise, model=model)
    return seen, logits(params, x, model)[1].double().flatten(1)


def found(seen, h):
    """(how far each image of the batch that is said to be alone is from a true one, relative; the labels; whose each is)."""
    binned = gradient_bins.features_of(seen)
    y = gradient_bins.labels_of(seen, binned)[0]
    alone = y != gradient_bins.NONE
    gap = torch.cdist(binned.h[0].flatten(1)[alone], h) / h.norm(dim=1)
    return gap.amin(1), y[alone], gap.argmin(1)


@pytest.mark.parametrize("name", [*STEPS, *BUMPS])
def test_what_lies_between_the_layers_of_a_head_is_found_by_trying_it(name):
    model = Activated((STEPS | BUMPS)[name])
    assert heads.kind_of(model, networks(model=model)["classifier"]) == ("steps" if name in STEPS else "bumps")


@pytest.mark.parametrize("name", [*STEPS, *BUMPS])
def test_rows_of_a_head_hold_features_and_labels_of_single_images_whatever_its_activation(name):
    seen, h = seen_of(Activated((STEPS | BUMPS)[name]))
    gap, y, whose = found(seen, h)
    assert len(gap) >= 4
    assert gap.max() < gradient_bins.SAME
    assert torch.equal(y, Y[whose])


def test_noise_is_drowned_by_a_saturated_head_of_relus():
    model = Activated(F.relu)
    params = sent(model, 6, Gaussian(1e-2))
    below, above = classifiers.winners_of(params["classifier"])
    y = torch.tensor([c for c in range(10) if c not in (below, above)])[:6]
    seen, h = seen_of(model, y, noise=1e-2)
    gap, found_labels, whose = found(replace(seen, defense={"name": "none"}), h)
    assert len(gap) >= 3
    assert gap.max() < gradient_bins.SAME
    assert torch.equal(found_labels, y[whose])


def test_single_images_under_noise_come_back_through_a_saturated_head_of_relus():
    model = Activated(F.relu)
    seen, h = seen_of(model, Y, noise=1e-2, batch_size=1)
    rows = saturated.above_noise(seen)
    assert len(rows) >= 4
    denoised = saturated.denoised(seen.select(rows))
    assert torch.equal(denoised.labels[:, 0], Y[rows])
    weight, bias = (denoised.gradients["classifier"][f"fc1.{n}"] for n in ("weight", "bias"))
    read = (bias[:, :, None] * weight).sum(1) / bias.square().sum(1, keepdim=True)
    torch.testing.assert_close(read, h[rows], rtol=1e-2, atol=1e-3)


def test_images_alone_in_their_class_come_back_from_a_single_layer_in_closed_form():
    y = torch.tensor([3, 2, 9, 0, 5, 3])
    seen, h = seen_of(MLP, y)
    binned = gradient_bins.features_of(seen)
    labels = gradient_bins.labels_of(seen, binned)[0]
    alone = labels != gradient_bins.NONE
    assert sorted(labels[alone].tolist()) == [0, 2, 5, 9]
    for label, one in zip(labels[alone], binned.h[0].flatten(1)[alone], strict=True):
        # Entries are sums in single precision of at most B terms of the size of h.
        torch.testing.assert_close(one, h[y == label][0], rtol=0, atol=float(1e-4 * h.abs().max()))
    mixed = binned.h[0].flatten(1)[~alone]
    torch.testing.assert_close(mixed, h[y == 3].mean(0).expand(2, -1), rtol=0, atol=float(1e-4 * h.abs().max()))


@pytest.mark.parametrize("norm", [100.0, 1.0, 0.01])
def test_a_clip_of_the_message_is_undone_before_a_single_layer_is_read(norm):
    y = torch.tensor([3, 2, 9, 0, 5, 3])
    seen, _ = seen_of(MLP, y)
    whole = gradient_bins.features_of(seen)
    each = {p: {n: t[0] for n, t in net.items()} for p, net in seen.gradients.items()}
    short = Clip(norm).message(each, torch.Generator())
    clipped = replace(
        seen,
        gradients={p: {n: t[None] for n, t in net.items()} for p, net in short.items()},
        defense=Clip(norm).describe(),
    )
    read = gradient_bins.features_of(clipped)
    assert torch.equal(read.row, whole.row)
    # Single precision divides by s and multiplies with it again.
    torch.testing.assert_close(read.h, whole.h, rtol=0, atol=float(1e-4 * whole.h.abs().max()))


def test_where_every_class_has_an_image_only_the_rarest_class_is_lost():
    y = torch.arange(10)
    seen, h = seen_of(MLP, y)
    _, labels, whose = found(seen, h)
    rarest = int(seen.weights["classifier"]["fc3.bias"].argmax())
    assert sorted(labels.tolist()) == [c for c in range(10) if c != rarest]
    binned = gradient_bins.features_of(seen)
    alone = gradient_bins.labels_of(seen, binned)[0] != gradient_bins.NONE
    error = (binned.h[0].flatten(1)[alone] - h[whose]).norm(dim=1) / h[whose].norm(dim=1)
    # The missing sum counts for RARE, times the batch over an image.
    assert error.max() < 2 * class_sums.RARE * len(y)


def test_sums_of_images_of_different_weights_are_taken_for_one_only_where_they_are_one():
    weights = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64)
    h = torch.rand(3, 4, dtype=torch.float64)
    p = torch.softmax(torch.tensor([0.0, 0.0, 0.0, 5.0, 0.0], dtype=torch.float64), 0)
    for y, rows in (([0, 1, 2], [0, 1, 2]), ([0, 0, 2], [-1, -1, 2])):
        d = weights[0][:, None] * (p - F.one_hot(torch.tensor(y), 5))
        read, row = class_sums._of_batch(d.T @ h, d.sum(0), p, weights[0])
        if rows == [0, 1, 2]:
            # 0.5 may be 0.2 + 0.3.
            assert row.tolist() == [0, 1, -1]
            torch.testing.assert_close(read[:2], h[:2])
        else:
            assert set(row.tolist()) == {-1}


def test_a_batch_comes_back_above_the_floor_through_a_head_of_relus():
    x = smooth_images(6)
    seen, _ = seen_of(Activated(F.relu))
    ended = Imprint(feature_steps=60, rehearsal_images=0).reconstruct(seen, KNOWN, 0)
    floor = KNOWN.auxiliary.images.mean(0).expand_as(x)
    gap = torch.cdist(ended.images[0].flatten(1).float(), x.flatten(1))
    scores = psnr_db(ended.images[0][gap.argmin(0)].float(), x)
    # One of the six has no row of its own.
    assert scores.sort().values[1:].mean() > psnr_db(floor, x).mean() + 5


@pytest.mark.parametrize(("batch_size", "noise"), [(1, 0.0), (1, 1e-3), (6, 1e-3)])
def test_a_head_of_one_layer_stays_honest_where_crafting_shows_no_more(batch_size, noise):
    expected = ExpectedUpload(batch_size, Gaussian(noise) if noise else NoDefense())
    assert Imprint().craft(MLP, honest(MLP), replace(KNOWN, expected=expected), 0) == HONEST
    seen = artifact(smooth_images(batch_size), Y[:batch_size], batch_size=batch_size, noise=noise, model=MLP)
    ended = Imprint().reconstruct(seen, replace(KNOWN, broadcast=honest(MLP)), 0)
    assert ended.outcome.tolist() == [Outcome.NOT_APPLICABLE]


class Honest:
    """What `imprint` reads of uploads that an honest classifier brought back."""

    def reconstruct(self, seen, knowledge, seed, progress):
        return Imprint().reconstruct(seen, replace(KNOWN, broadcast=honest(MLP)), seed, progress)


def test_the_dry_run_tries_a_head_of_one_layer_on_the_servers_own_images(monkeypatch):
    expected = ExpectedUpload(4, NoDefense())
    known = replace(KNOWN, expected=expected)
    quick = Staged(peel_iterations=1, peel_levels=1, feature_steps=10, steps=10, starts=1)
    monkeypatch.setattr("attacks.imprint.passive", lambda _: quick)
    made = Imprint(rehearsal_images=4, feature_steps=10).craft(MLP, honest(MLP), known, 0)
    assert made == HONEST or classifiers.is_crafted(made.params["classifier"], "fc3")
    assert dry_run.better_classifier(
        MLP, honest(MLP), known, 4, 0,
        lambda seen, *_: quick.reconstruct(seen, KNOWN, 0)._replace(images=torch.zeros(len(seen.client), 4, 1, 32, 32)),
        lambda _: Honest(),
    ) == HONEST  # fmt: skip


class Private(Activated):
    """With features in (0, 1)."""

    feature_range = UNIT


def test_heads_whose_rows_cannot_be_laid_are_refused_in_one_line():
    expected = replace(KNOWN, expected=ExpectedUpload(4, NoDefense()))

    def reason(model, parts=BOTH):
        with pytest.raises(UserError) as error:
            Imprint(rehearsal_images=0).craft(model, honest(model, parts), expected, 0)
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "no activation lies between fc1 and fc2" in reason(Activated(lambda z: z))
    assert "more than an activation of single units" in reason(Activated(lambda z: z.softmax(1)))
    assert "more than an activation of single units" in reason(Activated(lambda z: F.layer_norm(z, z.shape[1:])))
    assert "nobody knows their range" in reason(Activated(F.relu), ("classifier",))
    private = Private(F.relu)
    made = Imprint(rehearsal_images=0).craft(private, honest(private, ("classifier",)), expected, 0)
    assert classifiers.is_crafted(made.params["classifier"])


@pytest.mark.parametrize(
    ("backbone", "method", "reason"),
    [
        ("mlp", "fedavg", ""), ("convnet", "fedavg", ""), ("vit", "fedavg", ""), ("mlp", "fedsplit", ""), ("vit", "fedsplit", ""),
        ("convnet", "fedsplit", "without the statistics of batch norm that convnet's has"),
        ("resnet18", "fedavg", "begins with convolutions"), ("resnet18-torchvision", "fedavg", "begins with convolutions"),
    ],
)  # fmt: skip
def test_it_is_said_before_training_on_which_backbones_a_head_can_be_crafted(backbone, method, reason):
    train = presets.train_spec("smoke", "digits", method, backbone=backbone)
    cell = presets.cell_spec("smoke", train, "imprint", batch_size=4)
    said = applicability.exceeded("imprint", applicability.of(registry.resolve("attack", "imprint")), cell)
    assert (reason in said) if reason else not said
