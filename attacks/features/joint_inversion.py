"""Images and a surrogate extractor descend until they explain features: the descents of attacks/unsplit.py.

    min over x, E~ of F = mean over i of [ ||E~(x_i) - h_i||^2 / spread of h_i + lambda TV(x_i) ]
by Adam in turns, as in UnSplit's Algorithm 1, or on both together. i are the images that share a surrogate. A known extractor
stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.common import adam, batched, closed_form, gradient_distance, priors, problem
from attacks.common.batched import Data, Descent, EndToEnd
from attacks.common.closed_form import Features
from attacks.common.problem import InversionProblem
from attacks.features import disaggregation
from privbench import tensors
from privbench.errors import UserError
from privbench.seeds import stream
from privbench.types import Artifact, Progress

Objective = Callable[[Tensor, Tensor, Tensor], Tensor]  # F of images, surrogate and features


@dataclass(frozen=True)
class JointInversion:
    """How images and surrogate descend."""

    turns: int
    steps: int  # of each turn, on each of the two; together: turns x steps on both
    weight: float  # lambda
    lr: float
    extractor_lr: float
    together: bool
    restarts: int  # draws of a surrogate

    def descend(
        self,
        posed: InversionProblem,
        features: Features,
        tables: list[Tensor],
        x: Tensor,
        seed: int,
        progress: Progress,
    ) -> tuple[Descent, Tensor]:
        """All V victims' ends and restarts, from x [V, B, C, H, W]; victims in one row of the `tables` share a surrogate."""
        ends, restarts = [], []
        for number, rows in enumerate(tables):

            def part(done: int, total: int, detail: str, number: int = number) -> None:
                progress(number * total + done, len(tables) * total, detail)

            of_rows = Features(features.h[rows], None if features.known is None else features.known[rows])
            end, restart = self._of_table(posed, of_rows, x[rows], seed, part)
            ends.append((rows.flatten(), end))
            restarts.append(restart)
        order = torch.cat([rows for rows, _ in ends]).argsort()
        return batched.joined(ends), torch.cat(restarts)[order]

    def _of_table(
        self, posed: InversionProblem, features: Features, x: Tensor, seed: int, progress: Progress
    ) -> tuple[Descent, Tensor]:
        """The N n victims' ends and restarts, of N surrogates for n each: features [N, n, B, c, s, s], x [N, n, B, C, H, W]."""
        # Features beside which of them are known, [N, n, 2, B, c, s, s], go through the descents as one tensor.
        masks = torch.ones_like(features.h) if features.known is None else features.known.to(features.h)
        h, network = torch.stack([features.h, masks], 2), posed.weights["extractor"]
        victims, sizes = h.shape[1], EndToEnd(*(t.shape for t in network.values()))

        def objective(x: Tensor, w: Tensor, h: Tensor) -> Tensor:
            surrogate = dict(zip(network, sizes.split(w), strict=True))
            through = posed._replace(weights=posed.weights | {"extractor": surrogate})
            rows = zip(problem.features(through, x.flatten(0, 1)), *(t.flatten(0, 1) for t in h.unbind(1)), strict=True)
            gaps = [gradient_distance.feature_distance(f, t, mask) for f, t, mask in rows]
            return torch.stack(gaps).mean() + self.weight * priors.total_variation(x)

        w = torch.stack([surrogate_draw(posed, seed, restart) for restart in range(self.restarts)]).repeat(len(h), 1)
        x, h = problem.repeat(x, self.restarts), problem.repeat(h, self.restarts)
        if self.together and not posed.extractor_known:
            end = self._together(objective, x, w, h, progress)
        else:
            end = self._in_turns(objective, x, w, h, posed.extractor_known, progress)
        images, *rest = batched.best_restart(end, self.restarts)
        loss, trace, restart = (problem.repeat(t, victims) for t in rest)
        return Descent(images.flatten(0, 1), loss, trace, end.evaluations * victims), restart

    def _in_turns(
        self, objective: Objective, x: Tensor, w: Tensor, h: Tensor, extractor_known: bool, progress: Progress
    ) -> Descent:
        """The images [N, n, B, C, H, W] of both in turns, or of the images alone where the extractor is known."""
        traces, evaluations = [], 0
        for turn in range(self.turns):
            progress(turn, self.turns, "UnSplit")
            end = adam.minimise(
                lambda x, data: objective(x, data["w"], data["h"]), x, {"w": w, "h": h},
                steps=self.steps, lr=self.lr, box=(0.0, 1.0),
            )  # fmt: skip
            x, evaluations = end.x, evaluations + end.evaluations
            traces.append(end.trace)
            if not extractor_known:
                end = adam.minimise(
                    lambda w, data: objective(data["x"], w, data["h"]), w, {"x": x, "h": h},
                    steps=self.steps, lr=self.extractor_lr,
                )  # fmt: skip
                w, evaluations = end.x, evaluations + end.evaluations
                traces.append(end.trace)
        return Descent(x, end.loss, torch.cat(traces, 1), evaluations)

    def _together(self, objective: Objective, x: Tensor, w: Tensor, h: Tensor, progress: Progress) -> Descent:
        """The images [N, n, B, C, H, W] of one descent on both, each at its own rate."""
        both, scale = EndToEnd(x.shape[1:], w.shape[1:]), self.lr / self.extractor_lr
        low = both.joined(torch.zeros_like(x[:1]), torch.full_like(w[:1], -torch.inf))[0]
        high = both.joined(torch.ones_like(x[:1]), torch.full_like(w[:1], torch.inf))[0]

        def of_both(joined: Tensor, data: Data) -> Tensor:
            pixels, weights = both.split(joined)
            return objective(pixels, weights / scale, data["h"])

        end = adam.minimise(
            of_both, both.joined(x, scale * w), {"h": h}, steps=self.turns * self.steps, lr=self.lr, box=(low, high),
            progress=progress, what="UnSplit",
        )  # fmt: skip
        return end._replace(x=both.split(end.x)[0])


def surrogate_draw(posed: InversionProblem, seed: int, restart: int) -> Tensor:
    """The extractor of the problem [P], or of later restarts another surrogate."""
    network = posed.weights["extractor"]
    if restart:
        network, _ = posed.model.net("extractor").init(stream(seed, "attacker", "stand-in", restart))
    like = next(iter(posed.weights["extractor"].values()))
    return torch.cat([t.flatten() for t in network.values()]).to(like)


def features_of(
    artifact: Artifact, posed: InversionProblem, seed: int, progress: Progress
) -> tuple[InversionProblem, Features, int]:
    """The problem with the labels of the features [V, B, c, s, s], these, and their cost; UserError where there are none."""
    single = closed_form.of_single(artifact)
    if single is not None:
        return posed, single.batched(), 0
    closed_form.check_not_mixed(artifact)
    if not disaggregation.possible(artifact):
        raise UserError(
            "unsplit needs features, which come from one image per gradient, or an exact gradient, and a classifier that "
            "begins with a linear layer; try --attack staged"
        )
    batches = disaggregation.disaggregate(artifact, seed, progress)
    features = closed_form.undropped(artifact.model, batches.h, closed_form.BLURRED)
    return posed._replace(labels=batches.labels), features, batches.evaluations


def alone(h: Tensor) -> list[Tensor]:
    """A surrogate for each victim: one table [V, 1]."""
    return [torch.arange(len(h), device=h.device)[:, None]]


def by_client(artifact: Artifact, h: Tensor) -> list[Tensor]:
    """A surrogate for the victims of each client: tables [N, n] of N surrogates for n victims each, one for every n.

    A victim whose features are not finite would spoil those of its client, and is attacked alone.
    """
    everyone, sound = torch.arange(artifact.victims, device=h.device), tensors.finite_rows(h)
    groups = [everyone[sound & (artifact.client == k)] for k in artifact.client.unique()]
    groups += [everyone[v : v + 1] for v in torch.nonzero(~sound)[:, 0].tolist()]
    sizes = sorted({len(rows) for rows in groups} - {0})
    return [torch.stack([rows for rows in groups if len(rows) == size]) for size in sizes]
