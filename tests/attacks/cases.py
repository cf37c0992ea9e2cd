"""Small artifacts for the attacks' tests, made with plain autograd and not with the suite's own observation."""

import torch
import torch.nn.functional as F

from attacks.case import Case
from privbench.nets import Model
from privbench.seeds import stream
from privbench.types import Artifact

MODEL = Model("lenet5", 1, 10)


def smooth_images(count, channels=1):
    """Blurred noise in [0, 1]: [count, channels, 32, 32]."""
    rough = torch.rand(count, channels, 5, 5, generator=torch.Generator().manual_seed(3))
    return F.interpolate(rough, size=32, mode="bicubic").clamp(0, 1)


def logits(params, x):
    h, _ = MODEL.net("extractor").apply(params["extractor"], {}, x, train=True)
    return MODEL.net("classifier").apply(params["classifier"], {}, h, train=True)[0], h


def networks(seed=0, parts=("extractor", "classifier")):
    return {part: MODEL.net(part).init(stream(seed, "test", part))[0] for part in parts}


def case_of(weights, buffers=None, train=True, model=MODEL):
    """The networks of a case alone: parameters and running statistics by part, no observation."""
    nothing = {part: {} for part in weights}
    empty = torch.zeros(0)
    return Case(model, weights, buffers or nothing, train, {}, empty, extractor_known=True, variance=0.0)


def artifact(images, labels, parts=("extractor", "classifier"), batch_size=1, noise=0.0, known=False, weights=None):
    """An artifact of victims [V x B] with the gradients of `parts`; `noise` is a variance, `weights` default to `networks()`."""
    own = weights or networks()
    gradients = {part: {} for part in parts}
    rng = torch.Generator().manual_seed(5)
    for x, y in zip(images.split(batch_size), labels.split(batch_size), strict=True):
        params = {p: {n: t.clone().requires_grad_() for n, t in net.items()} for p, net in own.items()}
        F.cross_entropy(logits(params, x)[0], y).backward()
        for part in parts:
            for name, t in params[part].items():
                noisy = t.grad + noise**0.5 * torch.randn(t.shape, generator=rng)
                gradients[part].setdefault(name, []).append(noisy)
    uploads, buffers = MODEL.net("generator").init(stream(0, "test", "generator"))
    shares_generator = parts == ("classifier",)
    return Artifact(
        method="test", dataset="digits", model=MODEL, round=0, shares=parts,
        gradients={p: {n: torch.stack(g) for n, g in part.items()} for p, part in gradients.items()},
        weights={p: own[p] for p in parts}, buffers={p: {} for p in parts},
        uploads={"generator": {n: t[None] for n, t in uploads.items()}} if shares_generator else {},
        upload_buffers={"generator": {n: t[None] for n, t in buffers.items()}} if shares_generator else {},
        client=torch.zeros(len(images) // batch_size, dtype=torch.int64), batch_size=batch_size,
        image_shape=(1, 32, 32), labels=labels.view(-1, batch_size) if known else None,
        defense={"name": "gaussian", "variance": noise, "where": "step"} if noise else {"name": "none"},
    )  # fmt: skip
