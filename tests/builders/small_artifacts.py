"""Small artifacts for the attacks' tests, made with plain autograd and not with the suite's own observation."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.common.gradient_distance import Products
from attacks.common.problem import InversionProblem
from privbench.data.digits import load as load_digits
from privbench.defense import Defense
from privbench.networks.layers import POSITIVE, uniform_init
from privbench.networks.model import LastInputs, Model
from privbench.scoring.statistics import Interval, interval
from privbench.seeds import stream
from privbench.tensors import Params, Parts
from privbench.types import Artifact, Batch, LocalSteps


class _OfOneClient(NamedTuple):
    seed: int = 0
    client: int = 0


def over_victims(gain: Tensor) -> Interval:
    """The mean [V] of victims of one client, with its interval."""
    return interval(gain.tolist(), [_OfOneClient()] * len(gain))


MODEL = Model("lenet5", 1, 10)


class OneConvolution(Model):
    """UnSplit's MNIST network (the authors' `MnistNet`) cut behind its first block, without its second convolution.

    E: Conv(1,8,5) ReLU MaxPool2 of images in [0, 1] as they are -> [B, 8, 14, 14];  C: Linear(1568,120) ReLU Linear(120,84) ReLU
    Linear(84,10), so that the features come in closed form. No backbone of the suite: other attacks expect features in (0, 1).
    """

    feature_shape = (8, 14, 14)
    feature_range = POSITIVE
    last_inputs = LastInputs(0.5, False)  # as every number so far was measured with
    classifier = property(lambda self: self)
    features_layer = "fc1"
    logits_layer = "fc3"
    widths: ClassVar[dict[str, tuple[int, int]]] = {"fc1": (1568, 120), "fc2": (120, 84), "fc3": (84, 10)}

    def __post_init__(self) -> None:
        """There is no such backbone, and nothing to refuse."""

    def net(self, part: str) -> Any:
        return {"extractor": FirstBlock(), "classifier": self}.get(part) or MODEL.net(part)

    def init(self, rng: torch.Generator) -> tuple[Params, Params]:
        made = {n: uniform_init(shape, i, rng) for layer, (i, o) in self.widths.items()
                for n, shape in ((f"{layer}.weight", (o, i)), (f"{layer}.bias", (o,)))}  # fmt: skip
        return made, {}

    def apply(self, params: Params, buffers: Params, features: Tensor, *, train: bool) -> tuple[Tensor, Params]:
        return self.linear_layers(params, features)[0], buffers

    def linear_layers(self, params: Params, features: Tensor) -> tuple[Tensor, Params]:
        inputs, z = {}, features.flatten(1)
        for layer in self.widths:
            inputs[layer] = z if layer == "fc1" else F.relu(z)
            z = F.linear(inputs[layer], params[f"{layer}.weight"]) + params[f"{layer}.bias"]
        return z, inputs


class FirstBlock:
    """E of the above."""

    def init(self, rng: torch.Generator) -> tuple[Params, Params]:
        return {"conv1.weight": uniform_init((8, 1, 5, 5), 25, rng), "conv1.bias": uniform_init((8,), 25, rng)}, {}

    def apply(self, params: Params, buffers: Params, images: Tensor, *, train: bool) -> tuple[Tensor, Params]:
        # Pooled first: the same maximum, of a quarter of the values.
        return F.relu(F.max_pool2d(F.conv2d(images, params["conv1.weight"], params["conv1.bias"]), 2)), buffers


SHALLOW = OneConvolution("one convolution", 1, 10)
# What one sum in double precision may err by, relative to its summands: the longest has 48,000, which log2(48,000) = 16 pairwise
# additions join (lanes and blocks take fewer), and four such sums make a product of Eq. 7.
UNIT = 64 * torch.finfo(torch.float64).eps


def error_of_squared_distance(products: Mapping[str, Products]) -> float:
    """What ||g - G||^2 may err by in another order of summation: its terms |g|^2, g.G and |G|^2 cancel, their errors do not."""
    return UNIT * sum(float(p.candidate + 2 * p.cross.abs() + p.observed) for p in products.values())


def smooth_images(count: int, channels: int = 1) -> Tensor:
    """Blurred noise in [0, 1]: [count, channels, 32, 32]."""
    rough = torch.rand(count, channels, 5, 5, generator=torch.Generator().manual_seed(3))
    return F.interpolate(rough, size=32, mode="bicubic").clamp(0, 1)


def logits(params: Parts, x: Tensor, model: Model | None = None) -> tuple[Tensor, Tensor]:
    model = model or MODEL
    h, _ = model.net("extractor").apply(params["extractor"], {}, x, train=True)
    return model.net("classifier").apply(params["classifier"], {}, h, train=True)[0], h


def networks(seed: int = 0, parts: Sequence[str] = ("extractor", "classifier"), model: Model | None = None) -> Parts:
    return {part: (model or MODEL).net(part).init(stream(seed, "test", part))[0] for part in parts}


def problem_of(
    weights: Parts, buffers: Parts | None = None, train: bool = True, model: Model = MODEL
) -> InversionProblem:
    """An inversion problem of networks alone: parameters and running statistics by part, no observation."""
    nothing: Parts = {part: {} for part in weights}
    empty = torch.zeros(0)
    return InversionProblem(model, weights, buffers or nothing, train, {}, empty, extractor_known=True, variance=0.0)


def images_like_the_victims(count: int = 40) -> Batch:
    """Auxiliary images of the kind of `smooth_images`, others than those, with classes in turn."""
    rough = torch.rand(count, 1, 5, 5, generator=torch.Generator().manual_seed(8))
    return Batch(F.interpolate(rough, size=32, mode="bicubic").clamp(0, 1), torch.arange(count) % 10)


def artifact(
    images: Tensor,
    labels: Tensor,
    parts: tuple[str, ...] = ("extractor", "classifier"),
    batch_size: int = 1,
    noise: float = 0.0,
    known: bool = False,
    weights: Parts | None = None,
    model: Model | None = None,
) -> Artifact:
    """An artifact of victims [V x B] with the gradients of `parts` at the networks `weights`; `noise` is a variance."""
    model = model or MODEL
    weights = weights or networks(model=model)
    gradients: dict[str, dict[str, list[Tensor]]] = {part: {} for part in parts}
    rng = torch.Generator().manual_seed(5)
    for x, y in zip(images.split(batch_size), labels.split(batch_size), strict=True):
        params = {p: {n: t.clone().requires_grad_() for n, t in net.items()} for p, net in weights.items()}
        F.cross_entropy(logits(params, x, model)[0], y).backward()
        for part in parts:
            for name, t in params[part].items():
                assert t.grad is not None
                noisy = t.grad + noise**0.5 * torch.randn(t.shape, generator=rng)
                gradients[part].setdefault(name, []).append(noisy)
    uploads, buffers = model.net("generator").init(stream(0, "test", "generator"))
    shares_generator = parts == ("classifier",)
    return Artifact(
        method="test", dataset="digits", model=model, round=0, shared_parts=parts,
        gradients={p: {n: torch.stack(g) for n, g in part.items()} for p, part in gradients.items()},
        weights={p: weights[p] for p in parts}, buffers={p: {} for p in parts},
        uploads={"generator": {n: t[None] for n, t in uploads.items()}} if shares_generator else {},
        upload_buffers={"generator": {n: t[None] for n, t in buffers.items()}} if shares_generator else {},
        client=torch.zeros(len(images) // batch_size, dtype=torch.int64), batch_size=batch_size,
        image_shape=(1, 32, 32), labels=labels.view(-1, batch_size) if known else None,
        defense={"name": "gaussian", "variance": noise, "where": "step"} if noise else {"name": "none"},
    )  # fmt: skip


def defended(
    defense: Defense,
    images: Tensor,
    labels: Tensor,
    parts: tuple[str, ...] = ("extractor", "classifier"),
    batch: int = 1,
) -> Artifact:
    """An artifact whose gradients of `parts` went through a defence of every image or of the message, described as it says."""
    rng, sent = torch.Generator().manual_seed(6), []
    by_image = artifact(images, labels).gradients
    for rows in torch.arange(len(images)).split(batch):
        each = {p: {n: t[rows] for n, t in net.items()} for p, net in by_image.items()}
        if "example" in defense.places:
            made = defense.example(each, torch.ones(batch, dtype=torch.bool), batch, rng)
            sent.append({p: made[p] for p in parts})
        else:
            sent.append(defense.message({p: {n: t.mean(0) for n, t in each[p].items()} for p in parts}, rng))
    variance = defense.noise_variance(batch)
    return replace(
        artifact(images, labels, parts, batch),
        gradients={p: {n: torch.stack([one[p][n] for one in sent]) for n in sent[0][p]} for p in parts},
        defense=defense.describe() | ({"variance": variance} if variance else {}),
    )


@cache
def digits(count: int) -> Batch:
    """The first test digits, as images in [0, 1]."""
    test = load_digits(Path()).domains["all"].test
    return Batch(test.images[:count].float() / 255, test.labels[:count])


@cache
def trained_on_digits(count: int = 12, seed: int = 0) -> tuple[Artifact, Tensor, Batch]:
    """The classifier's gradients of digits at a network trained centrally on others, these victims, and a third set to know.

    400 steps of Adam on 600 training digits, 92% to 95% of the test digits right; the attacker knows the other 600, and victims
    are test digits.
    """
    params, test, known = central_network(400, seed)
    x, y = (t[:count] for t in test)
    seen = artifact(x, y, ("classifier",), weights=params)
    return replace(seen, round=2, uploads={}, upload_buffers={}), x, known


@cache
def central_network(steps: int, seed: int = 0, model: Model | None = None) -> tuple[Parts, Batch, Batch]:
    """Networks after `steps` of Adam on 600 training digits, the test digits, and the other training digits."""
    digits = load_digits(Path()).domains["all"]
    train, test = ((one.images.float() / 255, one.labels) for one in (digits.train, digits.test))
    params = {
        part: {n: t.requires_grad_() for n, t in net.items()} for part, net in networks(seed, model=model).items()
    }
    optimiser = torch.optim.Adam([t for net in params.values() for t in net.values()], lr=3e-3)
    rng = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        index = torch.randint(600, (32,), generator=rng)
        optimiser.zero_grad()
        F.cross_entropy(logits(params, train[0][index], model)[0], train[1][index]).backward()
        optimiser.step()
    params = {part: {n: t.detach() for n, t in net.items()} for part, net in params.items()}
    return params, Batch(*test), Batch(*(t[600:] for t in train))


def update(
    images: Tensor, labels: Tensor, local: LocalSteps, weights: Parts | None = None, batch_size: int = 1
) -> Artifact:
    """An artifact of FedAvg's whole local updates on batches of images [V B, C, H, W], by torch's own optimiser."""
    before = weights or networks()
    sent: dict[str, dict[str, list[Tensor]]] = {"extractor": {}, "classifier": {}}
    for x, y in zip(images.split(batch_size), labels.split(batch_size), strict=True):
        params = {p: {n: t.clone().requires_grad_() for n, t in net.items()} for p, net in before.items()}
        leaves = [t for net in params.values() for t in net.values()]
        optimiser = initialised_by(local, leaves)
        for _ in range(local.steps):
            optimiser.zero_grad()
            F.cross_entropy(logits(params, x)[0], y).backward()
            optimiser.step()
        for part, net in params.items():
            for name, t in net.items():
                sent[part].setdefault(name, []).append((t - before[part][name]).detach())
    changes = {p: {n: torch.stack(t) for n, t in net.items()} for p, net in sent.items()}
    plain = artifact(images, labels, batch_size=batch_size, weights=before)
    return replace(plain, gradients={}, updates=changes, local=local)


def initialised_by(local: LocalSteps, leaves: Sequence[Tensor]) -> torch.optim.Optimizer:
    """torch's optimiser for the client's local steps."""
    settings: dict[str, Any] = dict(local.optimiser)
    if settings.pop("kind", "adam") == "sgd":
        return torch.optim.SGD(leaves, **settings)
    betas = settings.pop("beta1"), settings.pop("beta2")
    return torch.optim.Adam(leaves, betas=betas, **settings)
