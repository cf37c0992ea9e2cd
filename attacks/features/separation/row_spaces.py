"""The features of a batch's images sought in the row space of the classifier's gradient, by gradient matching from many starts.

attacks/features/disaggregation.py has the equations; c_i, R, h_i and d_i are named as there.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from attacks.common import batched, gradient_distance, lbfgs, problem
from attacks.common.batched import Data, each_of
from attacks.common.problem import WEIGHTS
from privbench import tensors
from privbench.networks.base import LinearClassifier
from privbench.seeds import stream
from privbench.tensors import Params
from privbench.types import Artifact, Progress

LONG = 4  # of them descend to the end
SHORT_STEPS, LONG_STEPS = 40, 300
FLOOR = 1e-7  # of the largest singular value: directions below it are rounding
LEAST_SQUARES = 2  # repetitions, before the descent
SEPARATED = 1e-4  # of the residual
SPREAD = 0.2  # how far starts lie from the common point, relative to the batch's own scale


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


class RowSpaces:
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
        """c [B, r]: least squares C = B pinv(D') G' with D at random points, each row scaled to begin with 1; repeated."""
        c = data["origin"] + data["unit"] * noise @ data["free"].T
        for _ in range(LEAST_SQUARES):
            d = self.deltas(c, data)
            solved = len(d) * torch.linalg.pinv(d.T, rtol=1e-6) @ data[self.observed_weight]
            first = solved @ data["rows"][:, :1]  # |d| of the image relative to that of the point
            new = solved / first
            c = torch.where(new.isfinite(), new, c)
        return c
