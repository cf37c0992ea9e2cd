"""Labels in closed form from the last layer's gradient, dL/db_c = mean over images of (p_c - 1[c = y]), dL/dw_c the same times a.

One image: only its own class has a negative entry (iDLG, Zhao et al. 2020, arXiv 2001.02610): exact without noise. Under noise
of known variance all entries of [dL/db_c | dL/dw_c] are put together, as the inputs a are not negative and about INPUT.

Several images: n_c = sum_i p_ic - B dL/db_c. As p > 0, class c comes at least max(0, floor(-B dL/db_c) + 1) times, once at least
where an entry of dL/dw_c is negative (its inputs a are not): `fewest`, exact without noise. Where these add up to B, they are the
labels. Otherwise p is needed, which follows iLRG (Ma et al., ICLR 2023): the images of class j have the mean input
a_j ~ dL/dw_j / dL/db_j, hence p_j = softmax(W a_j + b), and B dL/db = sum_j n_j p_j - n is solved for n; the model's mean
prediction replaces that of classes without a negative entry. Rounding keeps `fewest` and the sum B. That is an estimate;
attacks/features/disaggregation.py checks it against the whole gradient.

A gradient that is not finite shows no label. It is read as one of zeros, so that the result is classes in any event.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from privbench import tensors, written_defense
from privbench.types import Artifact

ROUNDING = 1e-5  # of a count, in single precision
INPUT = 0.5  # of the last layer behind a sigmoid, in the mean
SOFTEST = 1e-3  # ridge of the linear system: towards p uniform over the classes


def noise_variance(artifact: Artifact) -> float:
    """The variance per coordinate of the defence's noise, which the attacker knows; 0 without one."""
    return written_defense.noise_variance(artifact.defense)


def recover(artifact: Artifact) -> Tensor:
    """Known or recovered labels [V, B] int64, in ascending order within a batch when recovered; -1 without C's gradient."""
    if artifact.labels is not None:
        return artifact.labels
    if "classifier" not in artifact.gradients:
        return torch.full((artifact.victims, artifact.batch_size), -1, device=artifact.client.device)
    bias, _ = _last(artifact)
    if artifact.batch_size == 1:
        return _error(artifact).argmin(1, keepdim=True)
    counts = [
        _rounded(one, least, artifact.batch_size)
        for one, least in zip(expected_counts(artifact), fewest(artifact), strict=True)
    ]
    classes = torch.arange(bias.shape[1], device=bias.device)
    return torch.stack([torch.repeat_interleave(classes, each) for each in counts])


def probabilities(artifact: Artifact) -> Tensor:
    """How probable each class is for each image of a batch, [V, B, Y]: 1 for the recovered labels, but for one noisy image.

    Under noise of variance s^2 on d = p - e_y, with p and all classes alike before it was seen: softmax(-d / s^2).
    """
    if artifact.labels is None and artifact.batch_size == 1 and (variance := noise_variance(artifact)):
        _, weight = _last(artifact)
        return given_error(_error(artifact), variance / precision(weight.shape[2]))[:, None]
    return F.one_hot(recover(artifact), artifact.model.classes).double()


def precision(inputs: int) -> float:
    """How much less variance the noise has in the estimate of d = p - e_y than in a coordinate, with so many inputs."""
    return 1 + INPUT**2 * inputs


def estimate(bias: Tensor, sums: Tensor, inputs: int) -> Tensor:
    """The least-squares d = p - e_y [V, Y] of dL/db and the sums of the rows of dL/dw, for inputs a = INPUT."""
    return (bias + INPUT * sums) / precision(inputs)


def given_error(error: Tensor, variance: float) -> Tensor:
    """The probability of each class [V, Y] given an estimate of d = p - e_y, which has that much variance from noise."""
    if not variance:
        return F.one_hot(error.argmin(1), error.shape[1]).to(error)
    return torch.softmax(-error / variance, 1)


def _error(artifact: Artifact) -> Tensor:
    """d = p - e_y of one-image gradients, [V, Y]: dL/db without noise, else the least-squares estimate for inputs a = INPUT."""
    bias, weight = _last(artifact)
    if not noise_variance(artifact):
        return bias
    return estimate(bias, weight.sum(2), weight.shape[2])


def fewest(artifact: Artifact) -> Tensor:
    """How often each class occurs in a batch at least, [V, Y] int64; zeros under a defence, which may change any sign."""
    bias, weight = _last(artifact)
    if artifact.defense.get("name", "none") != "none":
        return torch.zeros_like(bias, dtype=torch.int64)
    often = (torch.floor(-artifact.batch_size * bias - ROUNDING) + 1).clamp_min(0)
    edge = ROUNDING * weight.abs().flatten(1).amax(1)
    once = (weight.amin(2) < -edge[:, None]) | (bias < -ROUNDING)
    least = torch.maximum(often, once.to(often)).long()
    return torch.where((least.sum(1) <= artifact.batch_size)[:, None], least, torch.zeros_like(least))


def expected_counts(artifact: Artifact) -> Tensor:
    """The solution n [V, Y] of B dL/db = sum_j n_j p_j - n with sum n = B: real numbers around the true counts."""
    bias, weight = _last(artifact)
    b, classes = artifact.batch_size, bias.shape[1]
    layer = artifact.model.classifier.logits_layer
    own = {n: artifact.weights["classifier"][f"{layer}.{n}"].to(bias) for n in ("weight", "bias")}
    present = bias < 0
    inputs = weight / torch.where(present, bias, -1.0)[..., None]  # [V, Y, n]
    mean = (inputs * (present * -bias)[..., None]).sum(1) / (present * -bias).sum(1, keepdim=True).clamp_min(1e-300)
    inputs = torch.where(present[..., None], inputs, mean[:, None])
    p = torch.softmax(inputs @ own["weight"].T + own["bias"], 2)  # [V, j, c]
    system = p.mT - torch.eye(classes).to(p)
    both = torch.cat([system, torch.ones_like(system[:, :1])], 1)
    prior = (1 / classes - bias) * b  # p uniform
    target = torch.cat([b * bias, torch.full_like(bias[:, :1], b)], 1) - (both @ prior[..., None])[..., 0]
    normal = both.mT @ both + SOFTEST * torch.eye(classes).to(p)
    return prior + torch.linalg.solve(normal, both.mT @ target[..., None])[..., 0]


def _last(artifact: Artifact) -> tuple[Tensor, Tensor]:
    """dL/db [V, Y] and dL/dw [V, Y, n] of the layer that makes the logits; zeros for victims where they are not finite."""
    gradient, layer = artifact.gradients["classifier"], artifact.model.classifier.logits_layer
    bias, weight = gradient[f"{layer}.bias"].double(), gradient[f"{layer}.weight"].double()
    sound = tensors.finite_rows(bias, weight)
    return bias.where(sound[:, None], 0.0), weight.where(sound[:, None, None], 0.0)


def _rounded(expected: Tensor, fewest: Tensor, batch: int) -> Tensor:
    """Counts [Y] int64 near `expected` that add up to `batch`, none below `fewest`: one by one where most is missing."""
    counts = fewest.clone()
    for _ in range(batch - int(counts.sum())):
        counts[(expected - counts).argmax()] += 1
    return counts
