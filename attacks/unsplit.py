"""UnSplit: the client's extractor is unknown, so a surrogate and the images descend until they explain the features.

    h in closed form (attacks/common/closed_form.py; batches: attacks/features/disaggregation.py), then from E~ drawn at random
    and (nearly) grey x min over x, E~ of F = mean over i of [ ||E~(x_i) - h_i||^2 / spread of h_i + lambda TV(x_i) ]
by Adam in turns, as in Algorithm 1, or on both together (`descent`). i are the images that share a surrogate: one victim's, or
those of all victims of a client, whose extractor is one and the same (`stand_in_of`). Of several draws the lowest F is kept.

Erdogan, Kupcu, Cicek: UnSplit: Data-Oblivious Model Inversion, Model Stealing, and Label Inference Attacks Against Split Learning,
WPES 2022, arXiv 2108.09033, Algorithm 1. Of FedSplit and FedCG the server sees gradients instead of features, but those give the
features exactly. Deviations: the steps; the same start for all images, where the authors' code passes one surrogate from image to
image; no ||x||^2, which that code has with weight 1, and which takes images to be dark; restarts. The defaults beat no floor for
sure where E is private; docs/appendix/attacks.md says what does, and where.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from attacks.common import closed_form, descend, gradient_distance, priors, problem
from attacks.common.closed_form import Features
from attacks.common.problem import InversionProblem
from attacks.features import disaggregation
from privbench import tensors
from privbench.applicability import Limits
from privbench.errors import UserError
from privbench.hyperparameters import Count, Positive, Weight
from privbench.seeds import stream
from privbench.tensors import Params
from privbench.types import Artifact, Knowledge, Presets, Progress, Reconstruction, no_progress

Objective = Callable[[Tensor, Tensor, Tensor], Tensor]  # F of images, surrogate and features


@dataclass(frozen=True)
class UnSplit:
    """Image and surrogate extractor descend until they explain the exact features (Erdogan et al., WPES 2022)."""

    turns: Count = 20
    steps: Count = 20  # of each turn, on each of the two; together: turns x steps on both
    weight: Weight = 0.1  # lambda where the extractor is shared
    stand_in_weight: Weight = 10.0  # and where it is a surrogate
    lr: Positive = 0.02
    extractor_lr: Positive = 3e-3
    descent: Literal["turns", "together"] = "turns"
    stand_in_of: Literal["victim", "client"] = "victim"
    restarts: Count = 1  # draws of a surrogate

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier"})
    uses: ClassVar[frozenset[str]] = frozenset({"gradient:extractor"})
    limits: ClassVar[Limits] = Limits(linear_classifier=True, undefended_batches=True, unmixed=True)
    knowledge: ClassVar[str] = "gradient"
    rung: ClassVar[str] = "L2"
    presets: ClassVar[Presets] = {"smoke": {"turns": 2, "steps": 5}, "quick": {"turns": 10}}

    @property
    def pools(self) -> bool:
        """Whether the victims of a client share a surrogate."""
        return self.stand_in_of == "client"

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """All victims; a shared extractor is known, and stays as it is.

        Victims of a common surrogate have its loss, trace and restart in common.
        """
        own, (h, known), spent = self._features(artifact, problem.make(artifact, seed), seed, progress)
        sharing, start = self._sharing(artifact, h, own.extractor_known), problem.plain_start(artifact, seed)
        parts = []
        for number, rows in enumerate(sharing):

            def part(done: int, total: int, detail: str, number: int = number) -> None:
                progress(number * total + done, len(sharing) * total, detail)

            told = Features(h[rows], None if known is None else known[rows])
            parts.append((rows.flatten(), *self._descend(own, told, start[rows], seed, part)))
        end = descend.joined([(rows, found) for rows, found, _ in parts])
        restart = torch.cat([t for _, _, t in parts])[torch.cat([rows for rows, _, _ in parts]).argsort()]
        return Reconstruction(end.x, own.labels, end.loss, end.trace, restart, spent + end.evaluations)

    def _sharing(self, artifact: Artifact, h: Tensor, known: bool) -> list[Tensor]:
        """Which victims share a surrogate: tables [N, n] of N surrogates for n victims each, one for every n.

        A victim whose features are not finite would spoil those of its client, and is attacked alone.
        """
        everyone = torch.arange(artifact.victims, device=h.device)
        if known or self.stand_in_of == "victim":
            return [everyone[:, None]]
        sound = tensors.finite_rows(h)
        found = [everyone[sound & (artifact.client == k)] for k in artifact.client.unique()] + [
            everyone[v : v + 1] for v in torch.nonzero(~sound)[:, 0].tolist()
        ]
        sizes = sorted({len(rows) for rows in found} - {0})
        return [torch.stack([rows for rows in found if len(rows) == size]) for size in sizes]

    def _descend(
        self, own: InversionProblem, told: Features, x: Tensor, seed: int, progress: Progress
    ) -> tuple[descend.Descent, Tensor]:
        """The N n victims' ends and restarts, of N surrogates for n each: features [N, n, B, c, s, s], x [N, n, B, C, H, W]."""
        # Features beside which of them are known, [N, n, 2, B, c, s, s], go through the descents as one tensor.
        h = torch.stack([told.h, torch.ones_like(told.h) if told.known is None else told.known.to(told.h)], 2)
        restarts = 1 if own.extractor_known else self.restarts
        weight = self.weight if own.extractor_known else self.stand_in_weight
        e, victims = _Flat(own.weights["extractor"]), h.shape[1]

        def objective(x: Tensor, w: Tensor, h: Tensor) -> Tensor:
            through = own._replace(weights=own.weights | {"extractor": e.named(w)})
            found = problem.features(through, x.flatten(0, 1))
            rows = zip(found, *(t.flatten(0, 1) for t in h.unbind(1)), strict=True)
            gaps = [gradient_distance.feature_distance(f, t, known) for f, t, known in rows]
            return torch.stack(gaps).mean() + weight * priors.total_variation(x)

        draws = torch.stack([e.start, *(self._draw(own, e, seed, r) for r in range(1, restarts))])
        w, x, h = draws.repeat(len(h), 1), problem.repeat(x, restarts), problem.repeat(h, restarts)
        if self.descent == "together" and not own.extractor_known:
            end = self._together(objective, x, w, h, progress)
        else:
            end = self._in_turns(objective, x, w, h, own.extractor_known, progress)
        images, *rest = descend.best_restart(end, restarts)
        loss, trace, restart = (problem.repeat(t, victims) for t in rest)
        return descend.Descent(images.flatten(0, 1), loss, trace, end.evaluations * victims), restart

    def _in_turns(
        self, objective: Objective, x: Tensor, w: Tensor, h: Tensor, known: bool, progress: Progress
    ) -> descend.Descent:
        """The images [N, n, B, C, H, W] of both in turns, or of the images alone where the extractor is known."""
        traces, evaluations = [], 0
        for turn in range(self.turns):
            progress(turn, self.turns, "UnSplit")
            end = descend.adam(
                lambda x, data: objective(x, data["w"], data["h"]), x, {"w": w, "h": h},
                steps=self.steps, lr=self.lr, box=(0.0, 1.0),
            )  # fmt: skip
            x, evaluations = end.x, evaluations + end.evaluations
            traces.append(end.trace)
            if not known:
                end = descend.adam(
                    lambda w, data: objective(data["x"], w, data["h"]), w, {"x": x, "h": h},
                    steps=self.steps, lr=self.extractor_lr,
                )  # fmt: skip
                w, evaluations = end.x, evaluations + end.evaluations
                traces.append(end.trace)
        return descend.Descent(x, end.loss, torch.cat(traces, 1), evaluations)

    def _together(self, objective: Objective, x: Tensor, w: Tensor, h: Tensor, progress: Progress) -> descend.Descent:
        """The images [N, n, B, C, H, W] of one descent on both, laid end to end [N, D + P], each at its own rate."""
        pixels, scale = x[0].numel(), self.lr / self.extractor_lr
        start = torch.cat([x.flatten(1), scale * w], 1)
        low, high = torch.zeros_like(start[0]), torch.ones_like(start[0])
        low[pixels:], high[pixels:] = -torch.inf, torch.inf

        def of_both(both: Tensor, data: descend.Data) -> Tensor:
            return objective(both[:pixels].unflatten(0, x.shape[1:]), both[pixels:] / scale, data["h"])

        end = descend.adam(
            of_both, start, {"h": h}, steps=self.turns * self.steps, lr=self.lr, box=(low, high),
            progress=progress, what="UnSplit",
        )  # fmt: skip
        return end._replace(x=end.x[:, :pixels].unflatten(1, x.shape[1:]))

    @staticmethod
    def _draw(own: InversionProblem, e: _Flat, seed: int, restart: int) -> Tensor:
        """Another surrogate [P]; the first is that of the problem."""
        params, _ = own.model.net("extractor").init(stream(seed, "attacker", "stand-in", restart))
        return torch.cat([t.flatten() for t in params.values()]).to(e.start)

    @staticmethod
    def _features(
        artifact: Artifact, own: InversionProblem, seed: int, progress: Progress
    ) -> tuple[InversionProblem, Features, int]:
        """The problem with the labels of the features [V, B, c, s, s], these, and their cost; UserError where there are none."""
        single = closed_form.of_single(artifact)
        if single is not None:
            return own, single.batched(), 0
        closed_form.check_not_mixed(artifact)
        if not disaggregation.possible(artifact):
            raise UserError(
                "unsplit needs features, which come from one image per gradient, or an exact gradient, and a classifier that "
                "begins with a linear layer; try --attack staged"
            )
        found = disaggregation.disaggregate(artifact, seed, progress)
        told = closed_form.undropped(artifact.model, found.h, closed_form.BLURRED)
        return own._replace(labels=found.labels), told, found.evaluations


class _Flat:
    """One network's parameters laid end to end."""

    def __init__(self, params: Params) -> None:
        self.shapes = {n: t.shape for n, t in params.items()}
        self.start = torch.cat([t.flatten() for t in params.values()])

    def named(self, flat: Tensor) -> Params:
        """[P] -> parameters."""
        pieces = flat.split([shape.numel() for shape in self.shapes.values()], -1)
        return {n: t.unflatten(-1, shape) for (n, shape), t in zip(self.shapes.items(), pieces, strict=True)}
