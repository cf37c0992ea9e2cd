"""An active server: the classifier it sends sorts the images of a batch into rows of its first layer's gradient.

Every row of the crafted first layer looks along one direction w at one level c_j: z_j = s_j (w h - c_j). The sigmoid's slope
is not 0 only near z_j = 0, so row j's gradient holds the images with w h near c_j and no others; where that is one image,
dL/dW_j / dL/db_j is its h, whatever the size of the batch. The levels are quantiles of w h over auxiliary images, w their
features' first principal direction. Two neighbouring rows that agree hold one image: a mixture changes from row to row.

What the rows bring is used as far as it goes:
    one image, E broadcast     The steep layer leaves dL/dh = (sum_j s_j dL/db_j) w, so that E's gradient is that of the plain w h,
                               times a number. As a gentle classifier would have brought it (`gentled`), it goes to `staged`.
    the same under noise       dL/db drowns, but the slopes have made E's gradient large. With g = grad of w E(x) over E's
                               parameters and u = (1, E(x)), the most probable image (attacks/posterior.py) of
                                   ||G_E - a g||^2 + ||[dL/db | dL/dW] - d u'||^2     each with its best a and d,
                               which are not asked to fit x: they hang on it too steeply to descend on.
    one image, E private       h in closed form, and the stand-ins of `aligned-surrogate` for E, trained through the classifier that
                               an honest server would have sent. Without that one (an artifact file alone), and for an
                               image that falls on no level, the class mean.
    a batch, E broadcast       features of single images are inverted as in attacks/staged.py; under noise those of rows that
                               stand out of it, given its variance and the prior of the auxiliary images. For an image without
                               such a row that is their mean.
    a batch, E private         only features are won; the class means are handed in.

Fowl et al.: Robbing the Fed, ICLR 2022, arXiv 2110.13057 (bins of a ReLU layer, told apart by differences of rows; a
sigmoid's slope makes bins of its own). Deviations: the layer stands at its place in the architecture, behind the extractor,
as a client would look at shapes, so that features are imprinted and not images; the later layers are sent as they are. Where
E is private, w is that of a random stand-in's features, and levels are spread over all that w h can be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from attacks import (
    broken,
    case,
    descend,
    features,
    imprinted_rows,
    inversion,
    labels,
    match,
    posterior,
    staged,
)
from attacks.aligned_surrogate import AlignedSurrogate
from attacks.case import Case
from attacks.floors import ClassMean
from privbench.errors import UserError
from privbench.nets import LinearClassifier, Model
from privbench.seeds import stream
from privbench.settings import Count
from privbench.types import Artifact, Batch, Knowledge, Networks, Params, Reconstruction, Report, no_report

SHARPNESS = 5.0  # of z from one level to the next
WIDENED = 1.2  # the range of levels, relative to that of the auxiliary images
DEAD = 1e-36  # largest |dL/db_j| of an image that no level is near: single precision has lost its h
GENTLE = 2.0  # |z| of the outermost levels, as a gentle classifier has it
STAGE = 5  # a stage of the cooled descent under noise takes one in so many of the direct one's steps


@dataclass(frozen=True)
class Imprint(AlignedSurrogate):
    """Features of any batch from one crafted classifier, and what they and E's gradient tell of the images."""

    feature_steps: Count = 300  # of the inversion of a batch's features, and of the descent under noise

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "auxiliary"})
    knowledge: ClassVar[str] = "active server + auxiliary"
    rung: ClassVar[str] = "L7"
    active: ClassVar[bool] = True
    revision: ClassVar[int] = 1  # 1: the noise, the auxiliary images and E's gradient are used

    def craft(self, model: Model, broadcast: Networks, knowledge: Knowledge, seed: int) -> Networks:
        """The classifier to send in place of the broadcast one; UserError unless its first layer is linear."""
        if not isinstance(model.classifier, LinearClassifier):
            raise UserError(f"imprint needs a classifier that begins with a linear layer, but it is {model.backbone}'s")
        assert knowledge.auxiliary is not None, "the needs name auxiliary images"
        params, buffers = broadcast.params.get("extractor"), broadcast.buffers.get("extractor", {})
        if params is None:
            params, buffers = model.net("extractor").init(stream(seed, "attacker", "stand-in"))
        images = knowledge.auxiliary.images
        with torch.no_grad():
            h, _ = model.net("extractor").apply(params, buffers, images, train=False)
        h = h.flatten(1).double()
        _, _, directions = torch.linalg.svd(h - h.mean(0), full_matrices=False)
        w, classifier = directions[0], broadcast.params["classifier"]
        rows = len(classifier["fc1.bias"])
        t = h @ w
        levels = _quantiles(t, rows) if "extractor" in broadcast.params else _whole_range(w, rows)
        gap = (levels[2:] - levels[:-2]) / 2
        gap = torch.cat([gap[:1], gap, gap[-1:]]).clamp_min(1e-3 * (levels[-1] - levels[0]) / rows)
        slope = SHARPNESS / gap
        crafted = {"fc1.weight": slope[:, None] * w, "fc1.bias": -slope * levels}
        return Networks({"classifier": classifier | {n: t.to(classifier[n]) for n, t in crafted.items()}}, {})

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, report: Report = no_report
    ) -> Reconstruction:
        """All victims; UserError where the classifier is not a crafted one."""
        weight = artifact.weights["classifier"].get("fc1.weight", torch.eye(2))
        if torch.linalg.matrix_rank(weight.double(), rtol=1e-5) != 1:
            raise UserError(
                "imprint reads what its own crafted classifier brought back, but these clients got an honest one; name it "
                "with --attack in a run of your own"
            )
        return broken.set_aside(artifact, lambda sound: self._sound(sound, knowledge, seed, report))

    def _sound(self, artifact: Artifact, knowledge: Knowledge, seed: int, report: Report) -> Reconstruction:
        if "extractor" not in artifact.weights:
            return self._private(artifact, knowledge, seed, report)
        if artifact.batch_size > 1:
            return self._batches(artifact, knowledge, seed, report)
        if labels.noise_variance(artifact):
            return self._noised(artifact, knowledge, seed, report)
        return staged.once(gentled(artifact), knowledge, seed, report)

    def _private(self, artifact: Artifact, knowledge: Knowledge, seed: int, report: Report) -> Reconstruction:
        if artifact.batch_size > 1 or knowledge.broadcast is None:
            case.check_batch_size(artifact)
            return ClassMean().reconstruct(artifact, knowledge, seed, report)
        honest = {"classifier": knowledge.broadcast.params["classifier"]}
        whole = replace(artifact, weights=artifact.weights | honest)
        dead = artifact.gradients["classifier"]["fc1.bias"].abs().amax(1) < DEAD
        means = ClassMean().reconstruct(artifact, knowledge, seed, report)
        if bool(dead.all()):
            return means
        if not bool(dead.any()):
            return super().reconstruct(whole, knowledge, seed, report)
        rows = torch.nonzero(~dead)[:, 0]
        found = super().reconstruct(whole.some(rows), knowledge, seed, report)
        return broken.put(means, rows, found)

    def _noised(self, artifact: Artifact, knowledge: Knowledge, seed: int, report: Report) -> Reconstruction:
        own = case.make(artifact, seed)
        belief = _belief(knowledge, artifact.model.classes, own)
        mean = labels.probabilities(artifact).to(belief.means) @ belief.means
        cooling_steps = max(1, self.feature_steps // STAGE)
        end = posterior.most_probable(imprinted(own), own, belief, mean, self.feature_steps, cooling_steps, report)
        return descend.reconstruction(end, 1, own.labels)

    def _batches(self, artifact: Artifact, knowledge: Knowledge, seed: int, report: Report) -> Reconstruction:
        own, variance = case.make(artifact, seed), labels.noise_variance(artifact)
        if not variance:
            h, start = imprinted_rows.features_of(artifact), case.plain_start(artifact, seed)
            end = staged.Staged(feature_steps=self.feature_steps).invert(own, h, None, start, report)
            return descend.reconstruction(end, 1, own.labels)
        h, error = imprinted_rows.noisy_features_of(artifact, variance)
        nobody = torch.zeros(h.shape[0] * h.shape[1], dtype=torch.int64, device=h.device)  # whose label each row is
        end = inversion.invert(
            own.model, [own.weights["extractor"]], _belief(knowledge, 1, own), h.flatten(0, 1), nobody, error.flatten(),
            exact=False, steps=self.feature_steps, report=report,
        )  # fmt: skip
        x, loss, trace = (
            end.x[:, 0].unflatten(0, error.shape),
            end.loss.view_as(error),
            end.trace.unflatten(0, error.shape),
        )
        whole = descend.Descent(x, loss.sum(1), trace.sum(1), end.evaluations)
        return descend.reconstruction(whole, 1, own.labels)


def _belief(knowledge: Knowledge, classes: int, own: Case) -> inversion.Belief:
    """What auxiliary images tell of others, by class or (one class) of all together."""
    assert knowledge.auxiliary is not None, "the needs name auxiliary images"
    images, y = knowledge.auxiliary
    return inversion.learned(
        Batch(images, y if classes > 1 else torch.zeros_like(y)), classes, own.weights["extractor"]["conv1.weight"]
    )


def _quantiles(t: Tensor, rows: int) -> Tensor:
    """Levels [rows] among which the w h of images like the auxiliary ones, t [N], are spread evenly."""
    levels = torch.quantile(t, torch.linspace(0, 1, rows, dtype=t.dtype, device=t.device))
    return t.mean() + WIDENED * (levels - t.mean())


def _whole_range(w: Tensor, rows: int) -> Tensor:
    """Levels [rows] over all that w h can be of features in [0, 1]: of a private E nothing else is known."""
    lowest, highest = float(w.clamp_max(0).sum()), float(w.clamp_min(0).sum())
    return torch.linspace(lowest, highest, rows, dtype=w.dtype, device=w.device)


def direction(classifier: Params) -> Tensor:
    """w [n], of unit length, along which every row of the crafted layer looks."""
    return torch.linalg.svd(classifier["fc1.weight"].double(), full_matrices=False).Vh[0]


def gentled(artifact: Artifact) -> Artifact:
    """One-image gradients as a classifier of moderate slopes along the same w would have brought them; no noise.

    With one image, G_E = (sum_j s_j dL/db_j) grad of w E(x) over E's parameters: only the number hangs on the slopes. The
    client's rounding of z_j, which steep slopes make large, is in that number alone: it is read off dL/db.
    """
    sent, h = artifact.weights["classifier"], features.closed_form(artifact)
    assert h is not None, "of one image through a linear layer, features have a closed form"
    w, y = direction(sent), labels.recover(artifact)
    slopes = sent["fc1.weight"].double() @ w
    levels = -sent["fc1.bias"].double() / slopes
    slope = GENTLE / ((levels.max() - levels.min()) / 2)
    gentle = {n: t.double() for n, t in sent.items()}
    gentle |= {"fc1.weight": slope * w.expand(len(levels), -1), "fc1.bias": -slope * levels}
    own = artifact.model.classifier

    def loss(params: Params, h: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(own.apply(params, {}, h[None], train=False)[0], y)

    each = descend.each_of(lambda h, y: grad(loss)(gentle, h, y))
    found: Params = each(h, y)  # type: ignore[assignment]  # a dict of tensors comes back as one
    brought = artifact.gradients["classifier"]["fc1.bias"].double() @ slopes
    factor = torch.where(brought == 0, 0.0, found["fc1.bias"].sum(1) * slope / brought)
    extractor = {
        n: g.double() * factor.view(-1, *(1,) * (g.ndim - 1)) for n, g in artifact.gradients["extractor"].items()
    }
    weights, gradients = artifact.weights | {"classifier": gentle}, {"extractor": extractor, "classifier": found}
    return replace(artifact, weights=weights, gradients=artifact.gradients | gradients)


def imprinted(own: Case) -> posterior.Distance:
    """min over a of ||G_E - a g||^2 + min over d of ||[dL/db | dL/dW] - d u'||^2 of one victim's x [1, C, H, W]."""
    extractor, w = own.model.net("extractor"), direction(own.weights["classifier"])

    def along(params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        h = extractor.apply(params, {}, x, train=own.train)[0].flatten()
        return w @ h, h

    def distance(x: Tensor, data: dict[str, Tensor]) -> Tensor:
        g, h = grad(along, has_aux=True)(own.weights["extractor"], x)
        each = [match.products_of(g[n], data[f"extractor/{n}"]) for n in g]
        norm, cross, observed = (torch.stack(parts).sum() for parts in zip(*each, strict=True))
        bias, weight = data["classifier/fc1.bias"], data["classifier/fc1.weight"]
        explained = (bias + weight @ h).square().sum() / (1 + h.square().sum())
        return (
            observed - cross.square() / norm.clamp_min(1e-300) + bias.square().sum() + weight.square().sum() - explained
        )

    return distance
