"""An artifact made ready for descending: double precision, one dict of tensors per victim, a surrogate for E or C where private."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from attacks.common import bottleneck, closed_form, data_fit, labels
from attacks.common.bottleneck import NOISE
from attacks.common.data_fit import DataFit
from privbench import tensors
from privbench.defending import described
from privbench.errors import UserError
from privbench.networks.model import Model
from privbench.seeds import stream
from privbench.tensors import Params, Parts
from privbench.types import CLASSIFICATION, Artifact

RANK = 1e-5  # of the largest singular value; what single precision adds is 1e-8
NEARLY_GREY = 0.2  # share of uniform noise in the start
Sample = Callable[..., Tensor]  # torch.rand or torch.randn
MASK = "dropout mask"
WEIGHTS = "image weights"
COLUMNS = "columns of the first layer"
BESIDES = (MASK, WEIGHTS, COLUMNS, NOISE)  # of what is observed: no gradient of a parameter
Start = Literal["noise", "normal", "grey"]  # uniform pixels, N(0, 1) ones, or 0.5


class InversionProblem(NamedTuple):
    """What the attacks descend on."""

    model: Model
    weights: Parts  # extractor and classifier; one that the artifact does not have is a random surrogate
    buffers: Parts  # their batch-norm statistics: broadcast, or a surrogate's initial ones
    train: bool  # the mode in which the gradients were taken (privbench.networks.model.Model.train_mode)
    # "<part>/<parameter>" -> [V, ...]; and what is known beside gradients: MASK, what dropout multiplied each feature by
    # [V, B, c, s, s]; WEIGHTS [V, B], with sum 1, where the images of a sum over clients count for different ones; COLUMNS [V, n],
    # 0 where a defence zeroed a column of C's first weight gradient, else 1; and NOISE [V, B, k], the eps of a bottleneck.
    observed: dict[str, Tensor]
    labels: Tensor  # [V, B]; -1 where nothing shows them (attacks/common/labels.py)
    extractor_known: bool
    variance: float  # of the defence's noise per coordinate; 0 when there is none
    senders: int = 1  # clients whose images are summed, as many of each, one client's after another's
    fit: DataFit = data_fit.PLAIN  # what else the defence did to the gradient


def make(
    artifact: Artifact, seed: int, dtype: torch.dtype = torch.float64, *, needs_labels: bool = True
) -> InversionProblem:
    """The inversion problem of an artifact, with a surrogate E~ or C~ where the method keeps that part private.

    A surrogate has the true architecture and is drawn from the attacker's own stream. UserError: a gradient of more images than
    the artifact says (`check_batch_size`), or one that does not show its labels; without `needs_labels` these are -1 then.
    """
    check_batch_size(artifact)
    device = artifact.client.device
    extractor_known = "extractor" in artifact.weights
    weights, buffers = dict(artifact.weights), dict(artifact.buffers)
    # The names of random streams, which decide bits.
    for part, name in (("extractor", "stand-in"), ("classifier", "stand-in classifier")):
        if part not in weights:
            weights[part], buffers[part] = artifact.model.net(part).init(stream(seed, "attacker", name))

    def ready(parts: Parts) -> Parts:
        return {part: {n: t.to(device, dtype) for n, t in parts.get(part, {}).items()} for part in CLASSIFICATION}

    return InversionProblem(
        model=artifact.model,
        weights=ready(weights),
        buffers=ready(buffers),
        train=artifact.model.train_mode(artifact.images_per_client),
        observed={f"{p}/{n}": t.to(dtype) for p, g in artifact.gradients.items() for n, t in g.items()}
        | beside_gradients(artifact, dtype),
        labels=labels.recover(artifact) if needs_labels or labels.are_shown(artifact) else labels.unknown(artifact),
        extractor_known=extractor_known,
        variance=labels.noise_variance(artifact),
        senders=artifact.senders,
        fit=data_fit.of(artifact),
    )


def feature_slope(posed: InversionProblem) -> Tensor:
    """dL/dh of one-image gradients, [V, c, s, s]: W' dL/db of the linear layer that the features enter.

    As exact as what was sent. The label and the probabilities give it too, but worse where the network is sure of the image: a
    client's p_y - 1 is a difference in single precision, so that its relative error is some 1e-7 / (1 - p_y).
    """
    layer = posed.model.classifier.features_layer
    bias, rows = posed.observed[f"classifier/{layer}.bias"], posed.weights["classifier"][f"{layer}.weight"]
    return (bias @ rows).unflatten(1, posed.model.feature_shape)


def shows_dropout(artifact: Artifact) -> bool:
    """Whether a zero of the gradient is one that dropout made; pruning makes them too."""
    return bool(artifact.model.dropout) and not data_fit.of(artifact).pruned


def hides_dropout(posed: InversionProblem) -> bool:
    """Whether features were dropped, and the gradient does not show which."""
    return bool(posed.model.dropout) and MASK not in posed.observed


def beside_gradients(artifact: Artifact, dtype: torch.dtype) -> dict[str, Tensor]:
    """MASK, COLUMNS and NOISE as far as the gradients of an artifact show them, and WEIGHTS."""
    data: dict[str, Tensor] = {}
    if artifact.image_weights is not None:
        data[WEIGHTS] = artifact.image_weights.to(dtype)
    # A column may be zero by the defence as well as by dropout, so that it does not show which.
    if shows_dropout(artifact) and not closed_form.prunes(artifact):
        data |= factors(artifact.model, closed_form.of_single(artifact), dtype)
    if (columns := closed_form.columns(artifact)) is not None:
        data[COLUMNS] = columns.to(dtype)
    if (noise := bottleneck.noise(artifact)) is not None:
        data[NOISE] = noise.to(dtype)
    return data


def factors(
    model: Model, features: closed_form.Features | None, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    """What dropout multiplied features of images [V, c, s, s] or batches [V, B, c, s, s] by, under MASK; {} where unknown."""
    if not model.dropout or features is None or features.known is None:
        return {}
    mask = features.known if features.known.ndim == 5 else features.known[:, None]
    return {MASK: mask.to(dtype) / (1 - model.dropout)}


def check_batch_size(artifact: Artifact) -> None:
    """Refuses a batch size that the rank of a linear layer's gradient [dL/db | dL/dW] contradicts: each image adds at most 1.

    So does each imitated feature of the client's loss. A defence may change any rank, so only undefended gradients
    are checked. A lower rank contradicts nothing: images alike.
    Singular values are computed only where `_nearly_of_rank` does not settle it.
    """
    if not described.is_exact(artifact.defense) or "classifier" not in artifact.gradients:
        return
    gradient, classifier = artifact.gradients["classifier"], artifact.model.classifier
    layer = classifier.features_layer or classifier.logits_layer
    if layer not in {name.removesuffix(".bias") for name in gradient}:
        return
    whole = torch.cat([gradient[f"{layer}.bias"][..., None], gradient[f"{layer}.weight"]], -1).double()
    whole = whole.where(tensors.finite_rows(whole)[:, None, None], 0.0)
    most = artifact.batch_size + artifact.imitated
    doubtful = torch.nonzero(~_nearly_of_rank(whole, most))[:, 0]
    if not len(doubtful):
        return
    whole = whole[doubtful]
    size = torch.linalg.eigvalsh(whole @ whole.mT).clamp_min(0).sqrt()
    rank = (size > RANK * size[:, -1:]).sum(1)
    worst = int(rank.argmax())
    if int(rank[worst]) > most:
        raise UserError(
            f"the gradient of victim {int(doubtful[worst])} has rank {int(rank[worst])}, so it is one of at least that many "
            f"images, but the artifact says batch size {artifact.batch_size}; noise, pruning, weight decay, and numbers that were "
            "rounded to bf16 or fp16 look alike, and are declared by --defense and --wire"
        )


def _nearly_of_rank(matrices: Tensor, most: int) -> Tensor:
    """Whether [V, m, n] have a rank of `most` for sure: singular value most + 1 is at most RANK of the largest one, [V] bool.

    The norm of what is left after `most` projections, each along the longest row left, is no smaller than the former
    (Eckart and Young 1936), and the longest row no longer than the latter. False decides nothing.
    """
    if most >= min(matrices.shape[1:]):
        return torch.ones(len(matrices), dtype=torch.bool, device=matrices.device)
    remaining, everyone = matrices, torch.arange(len(matrices), device=matrices.device)
    largest = matrices.norm(dim=2).amax(1)
    for _ in range(most):
        row = remaining[everyone, remaining.norm(dim=2).argmax(1)][:, :, None]
        unit = row / row.norm(dim=1, keepdim=True).clamp_min(1e-300)
        remaining = torch.baddbmm(remaining, remaining @ unit, unit.mT, alpha=-1)
    return remaining.flatten(1).norm(dim=1) <= RANK * largest


def features(posed: InversionProblem, x: Tensor) -> Tensor:
    """E(x) [B, c, s, s] of one victim's candidate, through the true or the surrogate extractor."""
    return applied(posed, "extractor", posed.weights["extractor"], x)


def applied(posed: InversionProblem, part: str, params: Params, inputs: Tensor, *more: Tensor) -> Tensor:
    """What a part makes of inputs [B, ...], and of `more` that it takes [B, ...], in the mode of the observed gradient.

    In train mode batch norm has statistics of each client's images, and so the images of each go through by themselves.
    """
    net, buffers = posed.model.net(part), posed.buffers[part]
    senders = posed.senders if posed.train else 1
    by_sender = zip(*(t.chunk(senders) for t in (inputs, *more)), strict=True) if senders > 1 else [(inputs, *more)]
    each = [net.apply(params, buffers, *one, train=posed.train)[0] for one in by_sender]
    return each[0] if len(each) == 1 else torch.cat(each)


def repeat(t: Tensor, times: int) -> Tensor:
    """Each victim's row `times` times in a row, for its restarts."""
    return t.repeat_interleave(times, 0)


def data(posed: InversionProblem, restarts: int = 1) -> dict[str, Tensor]:
    """What every restart of every victim descends on: the observed gradient by name, and "labels"; [V x restarts, ...].

    Each parameter's |G|^2, which no candidate changes, is summed here, once, under the name `squared(name)`.
    """
    sizes = {squared(name): _squared_norms(t) for name, t in posed.observed.items() if name not in BESIDES}
    return {name: repeat(t, restarts) for name, t in (posed.observed | sizes | {"labels": posed.labels}).items()}


def _squared_norms(gradients: Tensor) -> Tensor:
    """|G|^2 of each of [V, ...]: [V], to the same bits on any number of threads.

    A row by itself torch would split among its threads, and add up in another order: it is summed beside a second one.
    """
    rows = gradients.flatten(1)
    return (rows.expand(2, -1) if len(rows) == 1 else rows).square().sum(1)[: len(rows)]


def squared(name: str) -> str:
    """The name under which data hold the squared norm of an observed parameter's gradient."""
    return f"|{name}|^2"


def observed_of(posed: InversionProblem, data: dict[str, Tensor]) -> dict[str, Tensor]:
    """The observed gradient among one problem's data, with its squared norms, and a bottleneck's noise, where they are there."""
    names = [name for parameter in posed.observed for name in (parameter, squared(parameter))]
    return {name: data[name] for name in dict.fromkeys((*names, NOISE)) if name in data}


def random_start(artifact: Artifact, restarts: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Uniform pixels [V x restarts, B, C, H, W]; every victim and restart has a stream of its own."""
    shape = (artifact.batch_size, *artifact.image_shape)
    return draws(artifact, shape, restarts, seed, "start", torch.rand).to(dtype)


def starts(artifact: Artifact, start: Start, restarts: int, seed: int) -> Tensor:
    """What descents in double precision start from, [V x restarts, B, C, H, W]; grey is the same for all restarts."""
    if start == "grey":
        return repeat(plain_start(artifact, seed), restarts)
    if start == "noise":
        return random_start(artifact, restarts, seed)
    return draws(artifact, (artifact.batch_size, *artifact.image_shape), restarts, seed, "start")


def draws(
    artifact: Artifact, shape: tuple[int, ...], restarts: int, seed: int, name: str, sample: Sample = torch.randn
) -> Tensor:
    """Double-precision draws [V x restarts, *shape], standard normal by default; a stream per victim and restart."""
    streams = [stream(seed, "attacker", name, v, r) for v in range(artifact.victims) for r in range(restarts)]
    each = [sample(shape, generator=rng, dtype=torch.float64) for rng in streams]
    return torch.stack(each).to(artifact.client.device)


def grey_start(artifact: Artifact, dtype: torch.dtype = torch.float64) -> Tensor:
    """Grey images [V, B, C, H, W]."""
    shape = (artifact.victims, artifact.batch_size, *artifact.image_shape)
    return torch.full(shape, 0.5, dtype=dtype, device=artifact.client.device)


def plain_start(artifact: Artifact, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Grey images [V, B, C, H, W]; nearly grey ones for networks with kinks, which grey enters as zero, without a slope."""
    grey = grey_start(artifact, dtype)
    if artifact.model.is_smooth:
        return grey
    return grey.lerp(random_start(artifact, 1, seed, dtype), NEARLY_GREY)
