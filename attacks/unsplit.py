"""UnSplit: the client's extractor is unknown, so a stand-in and the image descend in turns until they explain the features.

    h in closed form (attacks/features.py; batches: attacks/separate.py), then in turns
    x  <- descent on ||E~(x) - h||^2 / spread + lambda TV(x)         E~ <- descent on ||E~(x) - h||^2 / spread
from E~ drawn at random and a grey x; Adam on both.

Erdogan, Kupcu, Cicek: UnSplit: Data-Oblivious Model Inversion, Model Stealing, and Label Inference Attacks Against Split Learning,
WPES 2022, arXiv 2108.09033, Algorithm 1. Of FedSplit and FedCG the server sees gradients instead of features, but those give the
features exactly. Deviations: the steps of both turns and the grey start; every victim has a stand-in of its own, also those of one
client, so that no victim's end depends on which others there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks import case, descend, features, match, prior, separate
from attacks.case import Case
from privbench.errors import UserError
from privbench.settings import Count, Positive, Weight
from privbench.types import Artifact, Knowledge, Params, Reconstruction, Report, no_report


@dataclass(frozen=True)
class UnSplit:
    """Image and stand-in in turns."""

    turns: Count = 20
    steps: Count = 20  # of each turn, on each of the two
    weight: Weight = 0.1  # lambda where the extractor is shared
    stand_in_weight: Weight = 10.0  # and where it is a stand-in
    lr: Positive = 0.02
    extractor_lr: Positive = 3e-3

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier"})
    uses: ClassVar[frozenset[str]] = frozenset({"gradient:extractor"})
    knowledge: ClassVar[str] = "gradient"
    rung: ClassVar[str] = "L2"

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, report: Report = no_report
    ) -> Reconstruction:
        """All victims at once; a shared extractor is known, and stays as it is."""
        own, h, spent = self._features(artifact, case.make(artifact, seed), seed, report)
        x, e = case.plain_start(artifact, seed), _Flat(own.weights["extractor"])
        weight = self.weight if own.extractor_known else self.stand_in_weight
        w, evaluations, traces = e.start.expand(artifact.victims, -1), spent, []
        for turn in range(self.turns):
            report(turn, self.turns, "UnSplit")

            def gap(x: Tensor, w: Tensor, h: Tensor) -> Tensor:
                found = case.features(own._replace(weights=own.weights | {"extractor": e.named(w)}), x)
                return torch.stack([match.feature_distance(f, t) for f, t in zip(found, h, strict=True)]).mean()

            def of_image(x: Tensor, data: dict[str, Tensor]) -> Tensor:
                return gap(x, data["w"], data["h"]) + weight * prior.total_variation(x)

            def of_extractor(w: Tensor, data: dict[str, Tensor]) -> Tensor:
                return gap(data["x"], w, data["h"]) + weight * prior.total_variation(data["x"])

            end = descend.adam(of_image, x, {"w": w, "h": h}, steps=self.steps, lr=self.lr, box=(0.0, 1.0))
            x, evaluations = end.x, evaluations + end.evaluations
            traces.append(end.trace)
            if not own.extractor_known:
                end = descend.adam(of_extractor, w, {"x": x, "h": h}, steps=self.steps, lr=self.extractor_lr)
                w, evaluations = end.x, evaluations + end.evaluations
                traces.append(end.trace)
        trace = torch.cat(traces, 1)
        return Reconstruction(x, own.labels, trace[:, -1], trace, torch.zeros_like(own.labels[:, 0]), evaluations)

    @staticmethod
    def _features(artifact: Artifact, own: Case, seed: int, report: Report) -> tuple[Case, Tensor, int]:
        """The case with the labels that belong to h [V, B, c, s, s], and what they cost; UserError where there is no h."""
        h = features.closed_form(artifact)
        if h is not None:
            return own, h[:, None], 0
        if not separate.possible(artifact):
            raise UserError(
                "unsplit needs features, which come from one image per gradient, or an exact gradient, and a classifier that "
                "begins with a linear layer; try --attack staged"
            )
        found = separate.separate(artifact, seed, report)
        return own._replace(labels=found.labels), found.h, found.evaluations


class _Flat:
    """One network's parameters laid end to end."""

    def __init__(self, params: Params) -> None:
        self.shapes = {n: t.shape for n, t in params.items()}
        self.start = torch.cat([t.flatten() for t in params.values()])

    def named(self, flat: Tensor) -> Params:
        """[P] -> parameters."""
        pieces = flat.split([shape.numel() for shape in self.shapes.values()], -1)
        return {n: t.unflatten(-1, shape) for (n, shape), t in zip(self.shapes.items(), pieces, strict=True)}
