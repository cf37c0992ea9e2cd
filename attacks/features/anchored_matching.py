"""Images from features, then from gradients, with the features as an anchor: the two descents of `staged`.

    2. Feature inversion: min over x of ||logit E(x) - logit h||^2 / spread + lambda_h TV(x), from a grey start. The logit
       undoes the extractor's last sigmoid, which makes the problem far better conditioned.
    3. Gradient matching: min over x of mean over E's parameters of ||g(x) - G||^2 / ||G||^2 + anchor x (the distance of step
       2) + lambda_g TV(x), from where 2 ended. The classifier's gradient is left out: it says no more than h and the label.
Step 2 carries a trained network over the plateaus at which a random start sticks; step 3 adds what only the extractor's
gradient shows. Without features step 3 alone matches all parameters, without an anchor, from a grey start; for ResNet-18, which
grey enters as zero, where ReLU has no slope, from nearly grey noise. Both go without the features that dropout took away
(attacks/common/closed_form.py).

Where the classifier is all of the network (an MLP), the features are the image, and nothing is left to descend on.

Where E is private, step 2 runs through a randomly initialised surrogate, with a prior so strong that a hopeless inversion ends
plain instead of noisy; there is no step 3 where there are features.

Under Gaussian noise of known variance sigma^2, and E private, what is descended on is ||E~(x) - h||^2 ||d||^2 / sigma^2 for one
image and ||g(x) - G||^2 / sigma^2 for a batch, + squared differences of neighbouring pixels / tau^2 + squared distances from
grey / spread^2.

Of pruned and rounded gradients step 3 matches all parameters, relative to the whole gradient and with hardly a prior: what is sent
of an extractor's small gradient counts little by itself, and inside the intervals of attacks/common/data_fit.py nothing pulls.

Weights were chosen on images disjoint from all victims (docs/appendix/tuning.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from attacks.common import batched, bottleneck, closed_form, failed_uploads, gradient_distance, lbfgs, priors, problem
from attacks.common.batched import Data, Descent
from attacks.common.closed_form import Features
from attacks.common.gradient_distance import Products
from attacks.common.problem import InversionProblem
from attacks.features import disaggregation, inversion
from privbench.types import Artifact, Progress, Reconstruction, no_progress

PIXEL_STEP = 0.1  # tau: a usual difference of neighbouring pixels in a natural image of 32x32
# Of total variation where the defence left entries intervals, which a stronger prior would leave for grey.
INTERVAL_WEIGHT = 1e-8
SURROGATE_ERROR = 0.1  # of a squared feature in (0, 1), as a random surrogate has it
PIXEL_SPREAD = 0.25  # and a usual distance of a pixel from grey


@dataclass(frozen=True)
class AnchoredMatching:
    """Both descents, with their steps and weights."""

    feature_steps: int  # of step 2
    steps: int  # of step 3
    feature_weight: float  # lambda_h
    weight: float  # lambda_g
    anchor: float
    surrogate_weight: float  # lambda_h where E is a surrogate

    def batches(self, artifact: Artifact, posed: InversionProblem, seed: int, progress: Progress) -> Reconstruction:
        """Batches with separated features through steps 2 and 3, the others through matching alone."""
        separated, parts = disaggregation.disaggregate(artifact, seed, progress), []
        for sound in (True, False):
            rows = torch.nonzero(separated.sound == sound)[:, 0]
            if not len(rows):
                continue
            features = closed_form.undropped(artifact.model, separated.h[rows], closed_form.BLURRED) if sound else None
            observed = batched.pick(posed.observed, rows) | problem.factors(artifact.model, features)
            part = posed._replace(observed=observed, labels=separated.labels[rows])
            of_rows = replace(artifact, client=artifact.client[rows])
            parts.append((rows, self.descend(of_rows, part, features, seed, progress)))
        whole = failed_uploads.joined(parts)
        return whole._replace(gradient_evaluations=whole.gradient_evaluations + separated.evaluations)

    def descend(
        self, artifact: Artifact, posed: InversionProblem, features: Features | None, seed: int, progress: Progress
    ) -> Reconstruction:
        """Steps 2 and 3 from features [V, B, c, s, s], or step 3 alone."""
        if (images := _read_off(posed, features)) is not None:
            loss = unexplained(posed, images)
            first = torch.zeros_like(posed.labels[:, 0])
            return Reconstruction(images, posed.labels, loss, loss[:, None], first, len(images))
        start, spent = problem.plain_start(artifact, seed), 0
        if features is not None:
            read = closed_form.with_noise(artifact) if posed.variance else None
            noised = (features, None) if read is None else (read[0].batched(), read[1])
            end = self.invert(posed, *noised, start, progress)
            # Whose gradients would match, were nothing dropped that nobody sees, is another image.
            if not posed.extractor_known or problem.hides_dropout(posed):
                return batched.reconstruction(end, 1, posed.labels)
            start, spent = end.x, end.evaluations
        end = self.match(posed, features, start, progress)
        return batched.reconstruction(end._replace(evaluations=end.evaluations + spent), 1, posed.labels)

    def invert(
        self,
        posed: InversionProblem,
        features: Features,
        noise: Tensor | None,
        start: Tensor,
        progress: Progress = no_progress,
    ) -> Descent:
        """Step 2: images [V, B, C, H, W] of the features [V, B, c, s, s], whose variance under noise is `noise` [V]."""
        undone = partial(inversion.undone, posed.model)

        def objective(x: Tensor, data: Data) -> Tensor:
            h = problem.features(posed, x)
            if noise is not None:
                # Only a surrogate of a private extractor is inverted under noise, and it is wrong by itself.
                return (h - data["h"]).square().sum() / (SURROGATE_ERROR + data["noise"]) + neg_log_prior(x)
            if not posed.extractor_known:
                plain = priors.total_variation(x) + priors.l2(x)
                return feature_gap(h, data["h"], data.get("known")) + self.surrogate_weight * plain
            gap = feature_gap(undone(h), undone(data["h"]), data.get("known"))
            return gap + self.feature_weight * priors.total_variation(x)

        data = _data(features) | ({} if noise is None else {"noise": noise})
        return lbfgs.minimise(
            objective, start, data, steps=self.feature_steps, progress=progress, what="feature inversion"
        )

    def match(self, posed: InversionProblem, features: Features | None, start: Tensor, progress: Progress) -> Descent:
        """Step 3: images [V, B, C, H, W] whose gradients match, anchored by `features` where there are some."""
        undone = partial(inversion.undone, posed.model)

        def objective(x: Tensor, data: Data) -> Tensor:
            products = gradient_distance.fitted_products(posed, x, data)
            if posed.variance:
                return gradient_distance.squared_distance(products) / posed.variance + neg_log_prior(x)
            if posed.fit.pruned or posed.fit.levels is not None:
                return gradient_distance.relative_distance(products) + INTERVAL_WEIGHT * priors.total_variation(x)
            smooth = self.weight * priors.total_variation(x)
            if features is None:
                return gradient_distance.layer_scaled_distance(products) + smooth
            h = problem.features(posed, x)
            gap = feature_gap(undone(h), undone(data["h"]), data.get("known"))
            return gradient_distance.layer_scaled_distance(_of_extractor(products)) + self.anchor * gap + smooth

        data = problem.data(posed) | ({} if features is None else _data(features))
        descend = partial(lbfgs.minimise, steps=self.steps, progress=progress, what="gradient matching")
        return bottleneck.minimise(posed.model, objective, start, data, descend)


def _read_off(posed: InversionProblem, features: Features | None) -> Tensor | None:
    """Images whose exact features are the image itself, [V, B, C, H, W], as of a network that begins with a linear layer."""
    if features is None or features.known is not None or posed.variance or not posed.extractor_known:
        return None
    return posed.model.images_of(features.h)


def unexplained(posed: InversionProblem, x: Tensor) -> Tensor:
    """The layer-scaled distance [V] of the images' gradients from the observed ones: the attacker's own yardstick."""

    def objective(x: Tensor, data: Data) -> Tensor:
        return gradient_distance.layer_scaled_distance(gradient_distance.fitted_products(posed, x, data))

    return lbfgs.minimise(objective, x, problem.data(posed), steps=0).loss


def merged(first: Reconstruction, other: Reconstruction, rows: Tensor, better: Tensor) -> Reconstruction:
    """`first` with the victims in `rows` taken from `other` where that is better."""
    trace, other_trace = batched.of_one_length([first.trace, other.trace])
    images, loss, restart = first.images.clone(), first.loss.clone(), first.restart.clone()
    won = rows[better]
    images[won], loss[won], trace[won], restart[won] = other.images[better], other.loss[better], other_trace[better], 1
    spent = first.gradient_evaluations + other.gradient_evaluations + len(first.images) + len(rows)
    return Reconstruction(images, first.labels, loss, trace, restart, spent)


def feature_gap(features: Tensor, target: Tensor, known: Tensor | None) -> Tensor:
    """Mean over the images of a batch of their feature distances, all [B, c, s, s]."""
    masks = [None] * len(target) if known is None else known
    triples = zip(features, target, masks, strict=True)
    return torch.stack([gradient_distance.feature_distance(h, true, mask) for h, true, mask in triples]).mean()


def neg_log_prior(x: Tensor) -> Tensor:
    """Twice the negative logarithm of the prior: independent Gaussian pixel differences and distances from grey."""
    return priors.total_variation(x) * x[..., 1:].numel() / PIXEL_STEP**2 + priors.l2(x) * x.numel() / PIXEL_SPREAD**2


def _data(features: Features) -> Data:
    """What a descent on features uses."""
    return {"h": features.h} if features.known is None else {"h": features.h, "known": features.known}


def _of_extractor(products: dict[str, Products]) -> dict[str, Products]:
    return {name: p for name, p in products.items() if name.startswith("extractor/")}
