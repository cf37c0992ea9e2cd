"""A whole local update: taken for one gradient, of which labels and first images are made, and simulated step by step.

One step of Adam hides its gradient poorly: single precision distinguishes g / (|g| + eps) from a sign for most
entries of an untrained LeNet, and it is taken back to g (`without_adam`; ours).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor
from torch.func import grad

from attacks.common import bottleneck, data_fit, labels
from attacks.common.problem import MASK, InversionProblem
from privbench.defending import described
from privbench.networks.normalisation import statistics_with_slopes
from privbench.observation import simulated_steps
from privbench.observation.local_update import optimiser_of
from privbench.spec import SGD, Adam
from privbench.tensors import Params, Parts
from privbench.training.engine.descent import ADAM_EPS
from privbench.types import Artifact, LocalSteps

SEVERAL_STEPS = "local steps"  # in place of the name of a defence, of an update that is taken for a gradient
TRUSTED = 0.02  # relative error at which an entry of a gradient counts half
LOST = 0.2  # and above which it does not count
NOTHING: Mapping[str, Tensor] = MappingProxyType({})
ROUNDINGS = 2.0  # up to which what is left of a weight decay counts as nothing
STATISTICS = "statistics"  # in the names of running statistics, beside parameters
TINY = 1e-40  # in place of a division by 0


def nearly_gradients(artifact: Artifact) -> Artifact:
    """An artifact of gradients as it is; one of updates with what comes nearest to the gradients they began with."""
    artifact, _ = without_adam(artifact)
    return artifact if artifact.local is None else as_gradient(artifact, artifact.local)


def labelled_gradients(artifact: Artifact) -> Artifact:
    """`nearly_gradients`, with labels where their own equations would not show them (`with_labels`)."""
    return with_labels(nearly_gradients(artifact), artifact)


def with_labels(gradients: Artifact, artifact: Artifact) -> Artifact:
    """What stands for the gradients of updates, with the labels that batches moved by Adam show; anything else as it is.

    Of sums of several clients' updates the labels stay those of the gradients, as do single images', which are right.
    """
    local, updated = artifact.local, artifact.updates.get("classifier", {})
    bias = updated.get(f"{artifact.model.classifier.logits_layer}.bias")
    by_adam = local is not None and isinstance(optimiser_of(local), Adam)
    if not by_adam or bias is None or artifact.labels is not None or not labels.are_shown(gradients):
        return gradients
    if artifact.batch_size == 1 or artifact.member_weights is not None:
        return gradients
    exact = described.is_exact(artifact.defense) and not artifact.imitated
    return replace(gradients, labels=labels.of_adam(bias, artifact.batch_size, exact=exact))


def without_adam(artifact: Artifact) -> tuple[Artifact, dict[str, Tensor]]:
    """One step of Adam as the step of SGD (rate 1) that it hides; how far each entry is to be trusted, [V, ...] in [0, 1] by name.

    From zero moments the step is -lr g / (|g| + eps), weight decay in g. It is no mere sign: 1 - |step| / lr = eps / (|g| + eps),
    which single precision still distinguishes from 0 where |g| lies below about 1e-3; there g = eps u / (1 - |u|) with u =
    -step / lr. The error of u is that of storing theta in single precision, and of the few roundings of the step.
    Anything else (several steps, SGD, Adam without bias correction, a defended update) comes back as it is, with an empty dict:
    trusted everywhere.
    """
    local = artifact.local
    setting = None if local is None else optimiser_of(local)
    if local is None or local.steps > 1 or not isinstance(setting, Adam) or not setting.bias_correction:
        return artifact, {}
    if artifact.defense.get("name") != "none":
        return artifact, {}
    updates: Parts = {}
    trust: dict[str, Tensor] = {}
    for part, net in artifact.updates.items():
        updates[part] = {}
        for name, step in net.items():
            theta, ulp = artifact.weights[part][name].double(), torch.finfo(step.dtype).eps
            u = -step.double() / setting.lr
            error = ulp * (theta.abs() / (4 * setting.lr) + 1)
            short = (1 - u.abs()).clamp_min(error.expand_as(u))  # eps / (|g| + eps)
            relative = error / short
            trust[f"{part}/{name}"] = torch.where(relative < LOST, 1 / (1 + (relative / TRUSTED).square()), 0.0)
            left = setting.weight_decay * theta - ADAM_EPS * u / short
            updates[part][name] = _with_zeros(artifact, left, ADAM_EPS * error / short.square())
    sgd = {"kind": "sgd", "lr": 1.0, "weight_decay": 0.0}
    return replace(artifact, updates=updates, local=LocalSteps(1, sgd)), trust


def noise_variance(artifact: Artifact) -> float:
    """The variance that the defence's noise gives each entry of a whole update; 0 without noise, and where it is not normal.

    Noise in each of K steps of SGD adds up to lr^2 K times its variance; what it does to later gradients is left out. Adam divides
    its noisy gradients by their size.
    """
    variance, local = labels.noise_variance(artifact), artifact.local
    if not variance or local is None or not described.noises_steps(artifact.defense):
        return variance
    setting = optimiser_of(local)
    return variance * setting.lr**2 * local.steps if isinstance(setting, SGD) else 0.0


def with_steady_rows(as_gradient: Artifact, trust: dict[str, Tensor]) -> Artifact:
    """The gradient with the rows of C's first layer scaled so that a least-squares h weighs each by its precision.

    Row j says h = dL/dW_j / d_j; with d_j scaled to 1 / (its relative error), sum_j d_j dL/dW_j / sum_j d_j^2 is the weighted mean.
    """
    layer, gradient = as_gradient.model.classifier.features_layer, as_gradient.gradients.get("classifier", {})
    w = trust.get(f"classifier/{layer}.bias")
    if w is None:
        return as_gradient
    weight, bias = f"{layer}.weight", f"{layer}.bias"
    scale = (w / (1 - w).clamp_min(TINY)).sqrt() / gradient[bias].abs().clamp_min(TINY)
    rows = {bias: gradient[bias] * scale, weight: gradient[weight] * scale[..., None]}
    return replace(as_gradient, gradients=as_gradient.gradients | {"classifier": gradient | rows})


def as_gradient(artifact: Artifact, local: LocalSteps) -> Artifact:
    """The update taken for one gradient: -U / (lr K), less SGD's weight decay of the broadcast networks.

    It is that for K = 1 and SGD, and near it for small steps. The defence is named SEVERAL_STEPS, so that nothing about rank and
    signs is taken to be exact; its number format stays, and that the images of every step were clipped. Weight decay stays in
    what was clipped, by a factor that nobody knows, or rounded entry by entry, and where an active server sent clients different
    networks.
    """
    rate, decay = optimiser_of(local).lr * local.steps, _weight_decay(artifact, local)
    gradients = {p: {n: -t / rate for n, t in net.items()} for p, net in artifact.updates.items()}
    if decay:
        theta, ulp = artifact.weights, torch.finfo(torch.float32).eps
        gradients = {
            p: {
                n: _with_zeros(artifact, t - decay * theta[p][n], ulp * theta[p][n].abs() / rate)
                for n, t in net.items()
            }
            for p, net in gradients.items()
        }
    variance, fit = noise_variance(artifact) / rate**2, data_fit.of(artifact)
    defense = {"name": SEVERAL_STEPS} | ({"variance": variance} if variance else {})
    defense |= {} if fit.clip is None else {"clip": fit.clip / rate}
    defense |= {"clips": "example"} if described.CLIPS_IMAGES in described.kinds(artifact.defense) else {}
    defense |= {n: t for n, t in artifact.defense.items() if n == "wire"}
    if fit.by_entry:
        # Intervals of entries are relative to the largest, the smallest or the mean entry, whatever the rate.
        defense |= {n: t for n, t in artifact.defense.items() if n in ("keep", "bits")} | {"signs": fit.signs}
    return replace(artifact, gradients=gradients, updates={}, local=None, defense=defense)


def _with_zeros(artifact: Artifact, left: Tensor, rounding: Tensor) -> Tensor:
    """What is left of an update without its weight decay: 0 within a few times its rounding, where zeros tell what was dropped.

    Theta is stored in single precision, so that the decay of a parameter that no feature reached does not cancel.
    """
    if not artifact.model.dropout:
        return left
    return torch.where(left.abs() <= ROUNDINGS * rounding, 0.0, left)


def _weight_decay(artifact: Artifact, local: LocalSteps) -> float:
    """The weight decay that an update has in it as it is; 0 where `as_gradient` leaves it, and of Adam, who divides it."""
    setting, fit = optimiser_of(local), data_fit.of(artifact)
    differ = artifact.others is not None or artifact.divided is not None
    if isinstance(setting, Adam) or fit.clip is not None or fit.by_entry or differ:
        return 0.0
    return setting.weight_decay


def observed(artifact: Artifact) -> dict[str, Tensor]:
    """The observed change of the networks in double precision, [V, ...] by "<part>/<parameter>"."""
    return {f"{p}/{n}": t.double() for p, net in artifact.updates.items() for n, t in net.items()}


def statistics(artifact: Artifact) -> dict[str, Tensor]:
    """The observed change of E's running statistics in double precision, [V, ...] by "extractor/STATISTICS/<buffer>".

    Of steps on mini-batches none: they are simulated on all images at once, whose variances are others. 0 where a statistic is
    not finite, as where a step did not move it: neither tells anything (`trust_in`).
    """
    if artifact.local is not None and artifact.local.batch is not None:
        return {}
    moved = {n: t for n, t in artifact.update_buffers.get("extractor", {}).items() if t.is_floating_point()}
    sound = {n: t.flatten(1).isfinite().all(1).view(-1, *(1,) * (t.ndim - 1)) for n, t in moved.items()}
    return {f"extractor/{STATISTICS}/{n}": t.double().where(sound[n], 0.0) for n, t in moved.items()}


def trust_in(statistics: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """How far each entry of `statistics` is to be trusted: 0 where a whole statistic is 0, else 1."""
    return {
        n: (t.flatten(1) != 0).any(1).to(t).view(-1, *(1,) * (t.ndim - 1)).expand_as(t) for n, t in statistics.items()
    }


def local_change(
    posed: InversionProblem,
    x: Tensor,
    y: Tensor,
    local: LocalSteps,
    weights: Tensor | None = None,
    drawn: Mapping[str, Tensor] = NOTHING,
) -> dict[str, Tensor]:
    """Networks after the local steps on x [B, C, H, W], y [B] minus networks before, by "<part>/<parameter>".

    Of steps that move running statistics also these, named as in `statistics`.

    Of several clients' images the sum of the changes that each takes by itself, by what its images count for (`weights` [B], alike
    by default). `drawn` has the draws of one client that are known (`shown_draws`), for every step alike.
    """
    if posed.senders == 1:
        return _change_of_one(posed, x, y, local, drawn)
    shares = (
        x.new_full((posed.senders,), 1 / posed.senders) if weights is None else weights.view(posed.senders, -1).sum(1)
    )
    each = [
        _change_of_one(posed, *one, local, NOTHING)
        for one in zip(x.chunk(posed.senders), y.chunk(posed.senders), strict=True)
    ]
    return {name: sum((w * change[name] for w, change in zip(shares, each, strict=True)), torch.zeros_like(t))
            for name, t in each[0].items()}  # fmt: skip


def shown_draws(posed: InversionProblem, local: LocalSteps) -> dict[str, Tensor]:
    """What one step of one client shows of its own draws: MASK of dropout and NOISE of a bottleneck, as far as they are known.

    Of several steps, each of which draws anew, nothing: they are simulated with all features and the bottleneck's mean.
    """
    if local.steps > 1 or posed.senders > 1:
        return {}
    return {name: posed.observed[name] for name in (MASK, bottleneck.NOISE) if name in posed.observed}


def _change_of_one(
    posed: InversionProblem, x: Tensor, y: Tensor, local: LocalSteps, drawn: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The same of one client's images."""
    extractor, classifier = posed.model.net("extractor"), posed.model.net("classifier")

    def loss(params: Parts, buffers: Params) -> tuple[Tensor, Params]:
        """Of the task, and the extractor's running statistics."""
        h, moved = extractor.apply(params["extractor"], buffers, x, train=posed.train)
        h = h * drawn[MASK] if MASK in drawn else h
        sampling = bottleneck.sampling(posed.model, drawn.get(bottleneck.NOISE))
        logits, _ = classifier.apply(params["classifier"], posed.buffers["classifier"], h, *sampling, train=posed.train)
        return posed.model.loss(logits, y) + bottleneck.divergence(posed.model, params["classifier"], h), moved

    def gradient(params: Parts, buffers: Params) -> tuple[Parts, Params]:
        with statistics_with_slopes():
            return grad(loss, has_aux=True)(params, buffers)

    before = posed.buffers["extractor"]
    params, after = simulated_steps.after_steps(local, posed.weights, before, gradient)
    compared = before if posed.train else {}
    moved = {f"extractor/{STATISTICS}/{n}": after[n] - t for n, t in compared.items() if t.is_floating_point()}
    return moved | {f"{p}/{n}": t - posed.weights[p][n] for p, net in params.items() for n, t in net.items()}


def relative_gap(change: Mapping[str, Tensor], observed: Mapping[str, Tensor], trust: Mapping[str, Tensor]) -> Tensor:
    """Mean over parameters of ||change - U||^2 / ||U||^2; entries count by `trust`, and a parameter by its mean of that."""
    gaps, shares = [], []
    for n, w in trust.items():
        gaps.append((w * (change[n] - observed[n]).square()).sum() / (w * observed[n].square()).sum().clamp_min(1e-300))
        shares.append(w.mean())
    share = torch.stack(shares)
    return (torch.stack(gaps) * share).sum() / share.sum()
