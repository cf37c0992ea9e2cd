"""Labels in closed form from the last layer's gradient, dL/db_c = mean over images of (p_c - 1[c = y]), dL/dw_c the same times a.

One image: only its own class has a negative entry (iDLG, Zhao et al. 2020, arXiv 2001.02610): exact without noise. Under noise
of known variance all entries of [dL/db_c | dL/dw_c] are put together, for inputs a of the usual mean (Model.last_inputs).

Clipping, rounding and signs keep the signs of dL/db, and the largest entry of a tensor; so does pruning, where it leaves any.

Several images: n_c = sum_i p_ic - B dL/db_c. As p > 0, class c comes at least max(0, floor(-B dL/db_c) + 1) times, once at least
where an entry of dL/dw_c is negative (where inputs a are not): `fewest`, exact without noise. Where these add up to B, they are the
labels. Otherwise p is needed, which follows iLRG (Ma et al., ICLR 2023): the images of class j have the mean input
a_j ~ dL/dw_j / dL/db_j, hence p_j = softmax(W a_j + b), and B dL/db = sum_j n_j p_j - n is solved for n; of classes without
a negative entry it is the prediction for the mean input of the others. Rounding keeps `fewest` and the sum B. That is an estimate;
attacks/features/disaggregation.py checks it against the whole gradient.

A clipped message is s dL/db with 0 < s <= 1. Signs and `fewest` hold for any s, and p does not depend on it. Unless the norm says
that nothing was clipped, the counts are those of the s whose whole numbers explain the direction of dL/db best: ours. Under noise,
and in sums over clients that were clipped one by one, s is taken for 1.

Sums over clients whose images count for different weights w_i (sum 1): the same equations hold with n_c = B sum of w_i over the
images of class c, which is no whole number. Class c comes more often than -dL/db_c / max w. Labels are assigned to images so that
their weights add up to n_c / B as nearly as a search by single changes and exchanges brings them.

Steps of Adam move every entry by about the learning rate, so that dL/dw_c over dL/db_c is no mean input, and the size of dL/db_c
is lost. What is left is that b_c rises where class c pulls more often than the network expects: n_c ~ max(0, U_c) for the change
U of b, once at least without a defence (`of_adam`; ours).

A gradient that is not finite shows no label. It is read as one of zeros, so that the result is classes in any event.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.common import data_fit
from privbench import tensors
from privbench.defending import described
from privbench.errors import UserError
from privbench.networks.base import LinearClassifier
from privbench.networks.model import LastInputs, Model
from privbench.tensors import Params
from privbench.types import Artifact

ROUNDING = 1e-5  # of a count, in single precision
SEARCH = 4  # changes per image, at most, when labels are assigned to images of different weights
MOST_CLIPPED = 1e4  # 1 / s, at most
NOT_CLIPPED = 1 - 1e-5  # of the bound, below which the norm of a message says that it was sent as it was
MISSING = 10.0  # what a label that is known to be there and is not adds to a squared distance of shares
SMALLEST_GAIN = 1e-12
TINY = 1e-300  # in place of a division by 0
EXACT = ("soteria", "precode")  # defences that leave the gradient of the last layer as it is
PROBES = 256  # levels of one input for all units of the layer before the last, and as many draws of different ones
RIDGE = 1e-8  # relative to the mean square of what enters the last layer
SOFTEST = 1e-3  # ridge of the linear system: towards p uniform over the classes


def noise_variance(artifact: Artifact) -> float:
    """The variance per coordinate of the defence's noise, which the attacker knows; 0 without one."""
    return described.noise_variance(artifact.defense)


def recover(artifact: Artifact) -> Tensor:
    """Known or recovered labels [V, B] int64; -1 without C's gradient.

    Recovered ones ascend within a batch, but where its images count for different weights.
    """
    if artifact.labels is not None:
        return artifact.labels
    if "classifier" not in artifact.gradients:
        return unknown(artifact)
    _inputs(artifact.model)
    if artifact.batch_size == 1:
        return _error(artifact).argmin(1, keepdim=True)
    if artifact.image_weights is not None:
        shares = expected_counts(artifact) / artifact.batch_size
        return torch.stack(
            [assigned(*one) for one in zip(shares, fewest(artifact), artifact.image_weights.to(shares), strict=True)]
        )
    counts = _rounded(expected_counts(artifact), fewest(artifact), artifact.batch_size)
    if bool((was_clipped := _clipped(artifact)).any()):
        counts = torch.where(was_clipped[:, None], _counts_of_direction(artifact), counts)
    return _in_order(counts)


def of_adam(change: Tensor, batch_size: int, *, exact: bool) -> Tensor:
    """Labels [V, B] int64, ascending, of batches of one client from the change U [V, Y] of the last bias in steps of Adam.

    `exact`: nothing but Adam acted on the change. Then each class whose bias rose is taken to occur, unless these are more than B;
    weight decay alone could raise that of a class which the network rules out.
    """
    rise = change.double().where(tensors.finite_rows(change)[:, None], 0.0).clamp_min(0)
    once = (rise > 0).long() if exact else torch.zeros_like(rise, dtype=torch.int64)
    once = once.where((once.sum(1) <= batch_size)[:, None], 0)
    counts = _rounded(batch_size * rise / rise.sum(1, keepdim=True).clamp_min(TINY), once, batch_size)
    return _in_order(counts)


def unknown(artifact: Artifact) -> Tensor:
    """-1 for every label: [V, B]."""
    return torch.full((artifact.victims, artifact.batch_size), -1, device=artifact.client.device)


def are_shown(artifact: Artifact) -> bool:
    """Whether labels are known, or whether C's gradient shows them."""
    return artifact.labels is not None or (
        "classifier" in artifact.gradients and artifact.model.last_inputs is not None
    )


def _inputs(model: Model) -> LastInputs:
    """What enters the layer of the logits; UserError where its gradient does not show the labels."""
    if model.last_inputs is None:
        raise UserError(
            f"the gradient of {model.backbone} does not show the labels, as its loss is not cross-entropy or its outputs are not "
            "those of a linear layer with a bias; declare the labels"
        )
    return model.last_inputs


def probabilities(artifact: Artifact) -> Tensor:
    """How probable each class is for each image of a batch, [V, B, Y]: 1 for the recovered labels, but for one noisy image.

    Under noise of variance s^2 on d = p - e_y, with p and all classes alike before it was seen: softmax(-d / s^2).
    """
    if artifact.labels is None and artifact.batch_size == 1 and noise_variance(artifact):
        _, weight = _last(artifact)
        variance = noise_variance(artifact) / float(_target_share(artifact).square().mean())
        remaining, error = variance / precision(artifact.model, weight.shape[2]), _error(artifact)
        return given_error(error * _scale(artifact, error, remaining), remaining)[:, None]
    return F.one_hot(recover(artifact), artifact.model.classes).double()


def precision(model: Model, inputs: int) -> float:
    """How much less variance the noise has in the estimate of d = p - e_y than in a coordinate, with so many inputs."""
    mean: float = _inputs(model).mean
    return 1 + mean**2 * inputs


def estimate(model: Model, bias: Tensor, sums: Tensor, inputs: int) -> Tensor:
    """The least-squares d = p - e_y [V, Y] of dL/db and the sums of the rows of dL/dw, for inputs a that are their usual mean."""
    return (bias + _inputs(model).mean * sums) / precision(model, inputs)


def given_error(error: Tensor, variance: float) -> Tensor:
    """The probability of each class [V, Y] given an estimate of d = p - e_y, which has that much variance from noise."""
    if not variance:
        return F.one_hot(error.argmin(1), error.shape[1]).to(error)
    return torch.softmax(-error / variance, 1)


def _scale(artifact: Artifact, error: Tensor, remaining: float) -> Tensor | float:
    """s of clipped gradients, [V, 1], from the estimate s d [V, Y] with noise of variance v = `remaining`; 1 without clipping.

    |d|^2 = 1 - 1 / Y for the uniform p of an untrained network; given s d + noise, the class has the log-odds -s (s d) / v.
    """
    if data_fit.of(artifact).clip is None:
        return 1.0
    classes = error.shape[1]
    energy = (error.square().sum(1, keepdim=True) - classes * remaining).clamp_min(0)
    return (energy * classes / (classes - 1)).sqrt().clamp_max(1)


def _error(artifact: Artifact) -> Tensor:
    """d = p - e_y of one-image gradients, [V, Y]: dL/db without noise, else the least-squares estimate.

    Also of pruned gradients: where dL/db was left out, entries of dL/dw may have been sent.
    """
    bias, weight = _last(artifact)
    if not noise_variance(artifact) and not data_fit.of(artifact).pruned:
        return bias
    return estimate(artifact.model, bias, weight.sum(2), weight.shape[2])


def fewest(artifact: Artifact) -> Tensor:
    """How often each class occurs in a batch at least, [V, Y] int64; zeros under a defence that may change any sign.

    Zeros, too, where they would add up to more than the batch, and where imitated features have a part in the gradient.
    """
    bias, weight = _last(artifact)
    if artifact.imitated:
        return torch.zeros_like(bias, dtype=torch.int64)
    exact = artifact.defense.get("name") in EXACT and "wire" not in artifact.defense
    if not exact and not described.is_exact(artifact.defense) and not is_clipped_alone(artifact):
        return torch.zeros_like(bias, dtype=torch.int64)
    weights = artifact.image_weights
    often = -artifact.batch_size * bias if weights is None else -bias / weights.to(bias).amax(1, keepdim=True)
    often = (torch.floor(often - ROUNDING) + 1).clamp_min(0)
    edge = ROUNDING * weight.abs().flatten(1).amax(1)
    once = bias < -ROUNDING
    if not _inputs(artifact.model).negative:
        once = once | (weight.amin(2) < -edge[:, None])
    least = torch.maximum(often, once.to(often)).long()
    return torch.where((least.sum(1) <= artifact.batch_size)[:, None], least, torch.zeros_like(least))


def expected_counts(artifact: Artifact) -> Tensor:
    """The solution n [V, Y] of B dL/db = sum_j n_j p_j - n with sum n = B: real numbers around the true counts.

    Where images count for different weights, around B times what those of a class add up to.
    """
    bias, _ = _last(artifact)
    return _solved(artifact, bias, _predictions(artifact))


def is_clipped_alone(artifact: Artifact) -> bool:
    """Whether clipping of each whole message, which is one client's, is all that the defence does."""
    alone = artifact.defense.get("name") == "clip" and described.kinds(artifact.defense) == {"clip"}
    return alone and "wire" not in artifact.defense and artifact.member_weights is None


def _clipped(artifact: Artifact) -> Tensor:
    """Whether each message was clipped, as far as its norm says, where nothing else was done to it: [V] bool."""
    if not is_clipped_alone(artifact):
        return torch.zeros(artifact.victims, dtype=torch.bool, device=artifact.client.device)
    every = [t.double().flatten(1) for net in artifact.gradients.values() for t in net.values()]
    norm = torch.stack([t.square().sum(1) for t in every]).sum(0).sqrt()
    return norm >= NOT_CLIPPED * float(artifact.defense["clip"])


def _counts_of_direction(artifact: Artifact) -> Tensor:
    """The counts [V, Y] int64 that explain a gradient s dL/db best, for any 0 < s <= 1.

        max over counts n of  cos(dL/db, sum_j n_j p_j - n)
    over those that are found for 1 / s from 1 to MOST_CLIPPED, in steps that change no count by more than half an image.
    """
    bias, _ = _last(artifact)
    p, least = _predictions(artifact), fewest(artifact)
    steps = math.ceil(math.log(MOST_CLIPPED) / math.log1p(1 / (2 * artifact.batch_size)))
    best = torch.full_like(bias[:, 0], -torch.inf)
    counts = torch.zeros_like(least)
    for inverse in torch.logspace(0, math.log10(MOST_CLIPPED), steps + 1, dtype=torch.float64).tolist():
        tried = _rounded(_solved(artifact, inverse * bias, p), least, artifact.batch_size)
        explained = (p.mT @ tried.to(p)[..., None])[..., 0] - tried
        cosine = F.cosine_similarity(bias, explained, dim=1)
        better = cosine > best + SMALLEST_GAIN
        best, counts = torch.where(better, cosine, best), torch.where(better[:, None], tried, counts)
    return counts


def _predictions(artifact: Artifact) -> Tensor:
    """p [V, j, c]: what the network says of the images of class j, from their mean input. The scale of the gradient is free."""
    bias, weight = _last(artifact)
    layer = artifact.model.classifier.logits_layer
    last_layer = {n: artifact.weights["classifier"][f"{layer}.{n}"].to(bias) for n in ("weight", "bias")}
    present = bias < 0
    inputs = weight / torch.where(present, bias, -1.0)[..., None]  # [V, Y, n]
    mean = (inputs * (present * -bias)[..., None]).sum(1) / (present * -bias).sum(1, keepdim=True).clamp_min(1e-300)
    inputs = torch.where(present[..., None], inputs, mean[:, None])
    return torch.softmax(inputs @ last_layer["weight"].T + last_layer["bias"], 2)


def _solved(artifact: Artifact, bias: Tensor, p: Tensor) -> Tensor:
    """The counts n [V, Y] of dL/db [V, Y], real numbers."""
    b, classes = artifact.batch_size, bias.shape[1]
    system = p.mT - torch.eye(classes).to(p)
    both = torch.cat([system, torch.ones_like(system[:, :1])], 1)
    prior = (1 / classes - bias) * b  # p uniform
    target = torch.cat([b * bias, torch.full_like(bias[:, :1], b)], 1) - (both @ prior[..., None])[..., 0]
    normal = both.mT @ both + SOFTEST * torch.eye(classes).to(p)
    return prior + torch.linalg.solve(normal, both.mT @ target[..., None])[..., 0]


def _last(artifact: Artifact) -> tuple[Tensor, Tensor]:
    """dL/db [V, Y] and dL/dw [V, Y, n] of the layer that makes the logits; zeros for victims where they are not finite.

    Of sums with a target, those of the target's images alone.
    """
    gradient, layer = artifact.gradients["classifier"], artifact.model.classifier.logits_layer
    share = _target_share(artifact)
    weight = gradient[f"{layer}.weight"].double() / share[:, None, None]
    bias = gradient[f"{layer}.bias"].double() if artifact.target is None else of_target(artifact)
    bias = bias / share[:, None]
    sound = tensors.finite_rows(bias, weight)
    return bias.where(sound[:, None], 0.0), weight.where(sound[:, None, None], 0.0)


def _target_share(artifact: Artifact) -> Tensor:
    """w [V], by which the gradients of a sum's target are multiplied; 1 where there is no target."""
    if artifact.target is None:
        return torch.ones(artifact.victims, dtype=torch.float64, device=artifact.client.device)
    assert artifact.member_weights is not None, "only sums have a target"
    return artifact.member_weights[:, artifact.target]


def of_target(artifact: Artifact) -> Tensor:
    """w dL/db [V, Y] of the last layer and of the target's images alone, where other clients add to that of the sum: ours.

    The others add nothing to dL/dW = sum_b d_b a_b' (attacks/crafted/isolation.py), a_b what enters the layer for image b. So
        dL/db = sum_b d_b = (dL/dW) v    for v with a_b' v = 1 for every b
    v is the ridge solution over what may enter the layer in the networks that the target received.
    """
    assert artifact.member_weights is not None, "only sums have a target"
    params, layer = artifact.weights["classifier"], artifact.model.classifier.logits_layer
    before = before_last(artifact.model, params)
    weight, bias = params[f"{before}.weight"].double(), params[f"{before}.bias"].double()
    levels = torch.linspace(0, 1, PROBES, dtype=torch.float64)[:, None].expand(-1, weight.shape[1])
    drawn = torch.rand(PROBES, weight.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a = torch.sigmoid(torch.cat([levels, drawn]).to(weight) @ weight.T + bias)
    square = a.T @ a / len(a)
    # Noise in dL/dW is carried into the estimate by |v|.
    noise = noise_variance(artifact) / float(artifact.member_weights[:, artifact.target].square().mean())
    ridge = (RIDGE * square.diagonal().mean() + noise) * torch.eye(len(square)).to(a)
    return artifact.gradients["classifier"][f"{layer}.weight"].double() @ torch.linalg.solve(square + ridge, a.mean(0))


def before_last(model: Model, params: Params) -> str:
    """The name of the layer whose units enter the one that makes the logits, in a classifier of linear layers."""
    classifier = model.classifier
    assert isinstance(classifier, LinearClassifier), "the limits of attacks on one client of a sum demand one"
    features = params[f"{classifier.features_layer}.weight"]
    return list(classifier.linear_layers(params, features.new_zeros(1, features.shape[1]))[1])[-2]


def assigned(shares: Tensor, fewest: Tensor, weights: Tensor) -> Tensor:
    """Labels [B] of images with `weights` [B] that come nearest to each class's share of them [Y], none less often than `fewest`.

    From the heaviest image on, each gets the class of which most is missing; then single labels are changed, or exchanged between
    two images, as long as the squared distance falls.
    """
    chosen = torch.zeros_like(weights, dtype=torch.int64)
    missing = shares.clone()
    for i in weights.argsort(descending=True, stable=True).tolist():
        chosen[i] = missing.argmax()
        missing[chosen[i]] -= weights[i]
    everyone = torch.arange(len(weights), device=weights.device)
    for _ in range(SEARCH * len(weights)):
        counts = torch.bincount(chosen, minlength=len(shares))
        missed = missing[chosen]
        # Of changing the label of each image to each class, [B, Y].
        change = 2 * weights[:, None] * (missed[:, None] - missing + weights[:, None])
        change += MISSING * ((counts <= fewest)[chosen][:, None].to(change) - (counts < fewest).to(change))
        change[everyone, chosen] = 0
        # Of exchanging the labels of two images, [B, B].
        gap = weights[:, None] - weights
        exchange = torch.where(chosen[:, None] == chosen, 0.0, 2 * gap * (missed[:, None] - missed + gap))
        best, pair = int(change.argmin()), int(exchange.argmin())
        if min(change.flatten()[best], exchange.flatten()[pair]) > -SMALLEST_GAIN:
            break
        if change.flatten()[best] <= exchange.flatten()[pair]:
            image, into = divmod(best, len(shares))
            chosen[image] = into
        else:
            i, j = divmod(pair, len(weights))
            chosen[i], chosen[j] = chosen[j].clone(), chosen[i].clone()
        missing = shares - torch.zeros_like(shares).index_add(0, chosen, weights)
    return chosen


def _rounded(expected: Tensor, fewest: Tensor, batch: int) -> Tensor:
    """Counts [V, Y] int64 near `expected` that add up to `batch`, none below `fewest`: one by one where most is missing."""
    counts = fewest.clone()
    while bool((open_ := counts.sum(1) < batch).any()):
        most = (expected - counts).argmax(1, keepdim=True)
        counts = counts.scatter_add(1, most, open_[:, None].to(counts))
    return counts


def _in_order(counts: Tensor) -> Tensor:
    """Labels [V, B] of counts [V, Y] that add up to B each, in ascending order."""
    classes = torch.arange(counts.shape[1], device=counts.device)
    return torch.stack([torch.repeat_interleave(classes, each) for each in counts])
