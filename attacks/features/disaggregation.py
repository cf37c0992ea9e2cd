"""The features of a batch's single images, separated by what the classifier says of them.

The first linear layer's gradient with its bias is  G = [dL/db | dL/dW] = sum_i w_i d_i [1, h_i]',  of rank at most B (w_i = 1/B,
but in sums over clients that count for different weights): its row
space holds every [1, h_i]. So [1, h_i] = c_i R for a basis R of that space, and B x B numbers c are left of B x 400. The d_i
are no unknowns: the classifier and the labels give them for any h_i. The c are found by gradient matching through the
classifier alone,
    min over c of  mean over parameters l of ||g_l(c) - G_l||^2 / ||G_l||^2  +  mean squared distance of h from [0, 1]
the last term only where features end in a sigmoid,
where c_i R begins with 1, with R scaled by G's singular values; h is what enters C, with dropout within [0, 1 / (1 - p)]. Starts:
C = B pinv(D') G' with D of points strewn around a common one; a short descent of many, a long one of the best.

In the spirit of the cocktail-party attack (Kariyappa et al., ICML 2023, arXiv 2209.05578), with the known classifier in place of
independent h_i. The residual is the attacker's own certificate: below SEPARATED labels and features explain all of the
classifier's gradient. They are then right, up to directions that G leaves below single precision, in every measurement
(docs/appendix/attacks.md); noise, and images whose d_i are parallel, leave nothing to separate; a gradient that is zero or not
finite is left out, with NaN for its features and residual. Labels: attacks/common/labels.py, and where
their residual stays above SEPARATED, every batch with one label exchanged, the lowest residual first.

Behind a first layer with ReLUs no descent is needed: separation/relu_batches.py finds h and d of all images in closed form,
where the batch is small.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from attacks.common import batched, gradient_distance, labels, lbfgs, problem
from attacks.common.batched import Data, each_of
from attacks.common.problem import WEIGHTS
from attacks.features.separation import relu_batches
from privbench import tensors
from privbench.defending import described
from privbench.networks import head_probe
from privbench.networks.base import LinearClassifier
from privbench.seeds import stream
from privbench.tensors import Params
from privbench.types import Artifact, Progress, no_progress

RESTARTS = 32
LONG = 4  # of them descend to the end
SHORT_STEPS, LONG_STEPS = 40, 300
EXCHANGES = 4  # starts of every exchanged label
FLOOR = 1e-7  # of the largest singular value: directions below it are rounding
LEAST_SQUARES = 2  # repetitions, before the descent
SPREAD = 0.2  # how far starts lie from the common point, relative to the batch's own scale
SEPARATED = 1e-4  # of the residual


class Disaggregated(NamedTuple):
    """The features of V batches."""

    h: Tensor  # [V, B, c, s, s], what enters C: with dropout that of the mask
    labels: Tensor  # [V, B]
    residual: Tensor  # [V] the layer-scaled distance of the classifier's gradient from the observed one
    evaluations: int

    @property
    def sound(self) -> Tensor:
        """Which batches are explained, [V] bool."""
        return self.residual < SEPARATED


def possible(artifact: Artifact) -> bool:
    """Whether there is a first linear layer whose gradient is exact, of the images alone, and of a rank that can hold them.

    In the layer of the logits the d_i = p_i - e_y of cross-entropy add up to 0, so that Y of them are dependent.
    """
    classifier = artifact.model.classifier
    exact = described.is_exact(artifact.defense) and not artifact.imitated and artifact.model.last_inputs is not None
    if not exact or not isinstance(classifier, LinearClassifier):
        return False
    rows = len(artifact.weights["classifier"][f"{classifier.features_layer}.bias"])
    return artifact.batch_size <= rows - (classifier.features_layer == classifier.logits_layer)


def disaggregate(artifact: Artifact, seed: int, progress: Progress = no_progress) -> Disaggregated:
    """Labels and features of all batches; only where `possible`."""
    recovered = labels.recover(artifact)
    row_spaces = _RowSpaces(artifact)
    exact = _through_relus(artifact, row_spaces.solvable, seed)
    if len(exact) == artifact.victims:
        h, y, residual = (torch.stack(each) for each in zip(*(exact[v] for v in sorted(exact)), strict=True))
        return Disaggregated(h, y, residual, 0)
    row_spaces.solvable = row_spaces.solvable.index_fill(
        0, torch.tensor([*exact], dtype=torch.int64).to(recovered.device), value=False
    )
    solvable = torch.nonzero(row_spaces.solvable)[:, 0]
    batches = row_spaces.solve(solvable.cpu(), recovered[solvable], seed, RESTARTS, progress) if len(solvable) else None
    if batches is None or len(solvable) < artifact.victims:
        batches = _among(artifact, recovered, solvable, batches)
    for v, closed in exact.items():
        for whole, part in zip(batches[:3], closed, strict=True):
            whole[v] = part
    if artifact.labels is not None:
        return batches
    for v in torch.nonzero(~batches.sound & row_spaces.solvable)[:, 0].tolist():
        weights = None if artifact.image_weights is None else artifact.image_weights[v]
        others = _exchanged(recovered[v], labels.fewest(artifact)[v], weights)
        if not len(others):
            continue
        rows = torch.full((len(others),), v)
        tried = row_spaces.solve(rows, others, seed, EXCHANGES, progress)
        best = int(tried.residual.argmin())
        again = row_spaces.solve(rows[:1], others[best : best + 1], seed, RESTARTS, progress)
        spent = batches.evaluations + tried.evaluations + again.evaluations
        if again.residual[0] < batches.residual[v]:
            for whole, one in zip(batches[:3], again[:3], strict=True):
                whole[v] = one[0]
        batches = batches._replace(evaluations=spent)
    return batches


def _through_relus(artifact: Artifact, solvable: Tensor, seed: int) -> dict[int, tuple[Tensor, Tensor, Tensor]]:
    """Victim -> (h [B, c, s, s], labels [B], residual []) of batches that a head with ReLUs shows in closed form.

    A label is that whose d_i, by h_i and the broadcast classifier, has the direction found; the residual is that of a descent.
    """
    model, weights = artifact.model, artifact.weights["classifier"]
    if artifact.batch_size < 2 or artifact.image_weights is not None or not head_probe.is_relu(model, weights):
        return {}
    classifier, layer = model.classifier, model.classifier.features_layer
    assert isinstance(classifier, LinearClassifier), "the caller has asked whether separation is possible"
    params = {n: t.double() for n, t in weights.items()}
    ended = {}
    for v in torch.nonzero(solvable)[:, 0].tolist():
        observed = {n: t[v].double() for n, t in artifact.gradients["classifier"].items()}
        separated = relu_batches.separated(
            observed[f"{layer}.weight"], observed[f"{layer}.bias"], artifact.batch_size, seed, v
        )
        if separated is None:
            continue
        every = torch.arange(model.classes, device=separated.inputs.device)
        h, y = separated.inputs.repeat_interleave(model.classes, 0), every.repeat(artifact.batch_size)

        def loss(bias: Tensor, h: Tensor = h, y: Tensor = y) -> Tensor:
            logits, _ = classifier.linear_layers(params | {f"{layer}.bias": bias}, h)
            return F.cross_entropy(logits, y, reduction="sum")

        d = grad(loss)(params[f"{layer}.bias"].expand(len(h), -1)).unflatten(0, (-1, model.classes))
        alike = F.cosine_similarity(d, separated.deltas[:, None], dim=2)
        labels_ = alike.argmax(1)
        if artifact.labels is not None and not torch.equal(labels_.sort().values, artifact.labels[v].sort().values):
            continue
        named = {f"classifier/{n}": t for n, t in observed.items()}
        products = gradient_distance.classifier_products(model, params, separated.inputs, labels_, named)
        residual = gradient_distance.layer_scaled_distance(products).detach()
        if residual < SEPARATED:
            ended[v] = (separated.inputs.unflatten(1, model.feature_shape), labels_, residual)
    return ended


def _among(artifact: Artifact, recovered: Tensor, rows: Tensor, solved: Disaggregated | None) -> Disaggregated:
    """The `solved` batches, those in `rows`, among all V: NaN for the features and the residual of the others."""
    shape = (artifact.victims, artifact.batch_size, *artifact.model.feature_shape)
    h = torch.full(shape, torch.nan, dtype=torch.float64, device=recovered.device)
    labels_, residual, spent = recovered.clone(), h[:, 0, 0, 0, 0].clone(), 0
    if solved is not None:
        h[rows], labels_[rows], residual[rows], spent = solved
    return Disaggregated(h, labels_, residual, spent)


def _exchanged(recovered: Tensor, fewest: Tensor, weights: Tensor | None = None) -> Tensor:
    """Every batch of labels [n, B] that differs from `recovered` [B] in one, and has of each class at least `fewest` [Y].

    Where images count for different `weights` [B], it also matters whose label it is: every image's is changed, and those of two
    images are exchanged.
    """
    counts = torch.bincount(recovered, minlength=len(fewest))
    if weights is not None:
        return _exchanged_among(recovered, counts > fewest, weights)
    batches = []
    for out in torch.nonzero(counts > fewest)[:, 0].tolist():
        for into in range(len(counts)):
            if into != out:
                other = counts.clone()
                other[out] -= 1
                other[into] += 1
                batches.append(torch.repeat_interleave(torch.arange(len(other), device=recovered.device), other))
    return torch.stack(batches) if batches else recovered.new_zeros(0, len(recovered))


def _exchanged_among(recovered: Tensor, spare: Tensor, weights: Tensor) -> Tensor:
    """`_exchanged` of images of different weights, each once; `spare` [Y] says of which classes one may be taken away."""
    batches = {}
    several = [torch.nonzero(weights == w)[:, 0] for w in weights.unique()]

    def add(other: Tensor) -> None:
        for rows in several:
            other[rows] = other[rows].sort().values
        batches[tuple(other.tolist())] = other

    for i in range(len(recovered)):
        for into in range(len(spare)):
            if spare[recovered[i]] and into != recovered[i]:
                add(recovered.index_fill(0, torch.tensor([i], device=recovered.device), into))
        for j in range(i):
            if recovered[i] != recovered[j] and weights[i] != weights[j]:
                other = recovered.clone()
                other[i], other[j] = recovered[j], recovered[i]
                add(other)
    return torch.stack([*batches.values()]) if batches else recovered.new_zeros(0, len(recovered))


class _RowSpaces:
    """All victims' gradients seen from their own row spaces.

    `data` holds, by victim,
    rows      R: the row space scaled by the singular values [V, r, 1 + n], r = B
    layer     [b | W] in that basis [V, m, r]
    origin    the coordinates nearest to 0 whose row begins with 1 [V, r]
    free      directions that leave the first coordinate alone [V, r, r - 1]
    unit      the size of coordinates: [V] before a start, [V, B, 1] image by image after it
    and the observed gradient, the first layer's as [V, m, r]. `solvable` [V] says whose gradient is finite, and not zero.
    """

    def __init__(self, artifact: Artifact) -> None:
        classifier = artifact.model.classifier
        assert isinstance(classifier, LinearClassifier), "the caller has asked whether separation is possible"
        self.artifact, self.classifier, self.largest = artifact, classifier, 1 / (1 - artifact.model.dropout)
        self.weight, self.bias = f"{classifier.features_layer}.weight", f"{classifier.features_layer}.bias"
        self.observed_weight = f"classifier/{self.weight}"
        self.params: Params = {n: t.double() for n, t in artifact.weights["classifier"].items()}
        gradient = {n: t.double() for n, t in artifact.gradients["classifier"].items()}
        whole = torch.cat([gradient[self.bias][..., None], gradient[self.weight]], -1)
        self.solvable = tensors.finite_rows(*gradient.values()) & (whole != 0).flatten(1).any(1)
        whole = whole.where(self.solvable[:, None, None], 0.0)
        _, size, right = torch.linalg.svd(whole, full_matrices=False)
        b = artifact.batch_size
        scale, right = size[:, :b] + FLOOR * size[:, :1], right[:, :b]
        rows = scale[..., None] * right
        first = rows[..., 0]
        layer = torch.cat([self.params[self.bias][:, None], self.params[self.weight]], 1)
        observed = {f"classifier/{n}": t for n, t in gradient.items() if n not in (self.weight, self.bias)}
        self.names = (self.observed_weight, *observed)
        self.data: Data = observed | {
            self.observed_weight: whole @ right.mT / scale[:, None],
            "rows": rows,
            "layer": layer @ rows.mT,
            "origin": first / first.square().sum(1, keepdim=True),
            "free": torch.linalg.qr(first[..., None], mode="complete").Q[..., 1:],
        }
        if artifact.image_weights is not None:
            self.data[WEIGHTS] = artifact.image_weights
            self.names = (*self.names, WEIGHTS)

    def solve(self, victims: Tensor, recovered: Tensor, seed: int, restarts: int, progress: Progress) -> Disaggregated:
        """The best of `restarts` descents for each of the victims [n] with labels [n, B]."""
        data = batched.pick(self.data, victims) | {"labels": recovered}
        data["unit"] = each_of(self.unit)(data)
        many = {name: problem.repeat(t, restarts) for name, t in data.items()}
        b = recovered.shape[1]
        shape = (restarts, b, b - 1)
        draws = [
            torch.randn(shape, generator=stream(seed, "attacker", "separation", v), dtype=torch.float64)
            for v in victims.tolist()
        ]
        c = each_of(self.start)(SPREAD * torch.cat(draws).to(recovered.device), many)
        many["unit"] = c.norm(dim=2, keepdim=True)
        start = ((c - many["origin"][:, None]) @ many["free"]) / many["unit"]
        short = lbfgs.minimise(self.objective, start, many, steps=SHORT_STEPS, progress=progress, what="separation")
        best = short.loss.unflatten(0, (-1, restarts)).nan_to_num(nan=torch.inf).argsort(1)[:, :LONG]
        rows = (best + restarts * torch.arange(len(best), device=best.device)[:, None]).flatten()
        best_data = batched.pick(many, rows)
        end = lbfgs.minimise(
            self.objective, short.x[rows], best_data, steps=LONG_STEPS, progress=progress, what="separation"
        )
        y, loss, _, chosen = batched.best_restart(end, min(LONG, restarts))
        data["unit"] = best_data["unit"].unflatten(0, (len(recovered), -1))[torch.arange(len(recovered)), chosen]
        h = each_of(self.features)(y, data).unflatten(2, self.artifact.model.feature_shape)
        return Disaggregated(h, recovered.clone(), loss, short.evaluations + end.evaluations)

    def coordinates(self, y: Tensor, data: Data) -> Tensor:
        """c [B, r] of the free numbers y [B, r - 1]."""
        return data["origin"] + data["unit"] * y @ data["free"].T

    def features(self, y: Tensor, data: Data) -> Tensor:
        """h [B, n]."""
        return self.coordinates(y, data) @ data["rows"][:, 1:]

    def objective(self, y: Tensor, data: Data) -> Tensor:
        """The distance of the classifier's gradient, and of the features from [0, 1]."""
        params = self.params | {self.weight: data["layer"], self.bias: torch.zeros_like(self.params[self.bias])}
        observed = {name: data[name] for name in self.names}
        c, h = self.coordinates(y, data), self.features(y, data)
        products = gradient_distance.classifier_products(self.artifact.model, params, c, data["labels"], observed)
        distance = gradient_distance.layer_scaled_distance(products)
        if not self.artifact.model.has_sigmoid_features:
            return distance
        return distance + (h - h.clamp(0, self.largest)).square().mean()

    def deltas(self, c: Tensor, data: Data) -> Tensor:
        """B w_i d_i, d_i = dL_i/dz of the first layer, [B, m] at the coordinates c [B, r]."""
        params = self.params | {self.weight: data["layer"]}

        def loss(bias: Tensor) -> Tensor:
            logits, _ = self.classifier.linear_layers(params | {self.bias: bias}, c)
            if WEIGHTS not in data:
                return F.cross_entropy(logits, data["labels"], reduction="sum")
            return len(c) * self.artifact.model.loss(logits, data["labels"], data[WEIGHTS])

        return grad(loss)(c.new_zeros(len(c), len(self.params[self.bias])))

    def unit(self, data: Data) -> Tensor:
        """The size of coordinates: as G' = 1/B D'C has entries around 1, C has entries around B / |d|."""
        d = self.deltas(data["origin"].expand(len(data["labels"]), -1), data)
        return len(d) / d.square().sum(1).mean().sqrt()

    def start(self, noise: Tensor, data: Data) -> Tensor:
        """c [B, r]: least squares C = B pinv(D') G' with D at strewn points, each row scaled to begin with 1; repeated."""
        c = data["origin"] + data["unit"] * noise @ data["free"].T
        for _ in range(LEAST_SQUARES):
            d = self.deltas(c, data)
            solved = len(d) * torch.linalg.pinv(d.T, rtol=1e-6) @ data[self.observed_weight]
            first = solved @ data["rows"][:, :1]  # |d| of the image relative to that of the point
            new = solved / first
            c = torch.where(new.isfinite(), new, c)
        return c
