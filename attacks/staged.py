"""The strong attack with the gradient alone: closed forms first, then features, then gradients.

    1. h of a one-image batch in closed form (attacks/common/closed_form.py).
    2. Feature inversion: min over x of ||logit E(x) - logit h||^2 / spread + lambda_h TV(x), from a grey start. The logit
       undoes the extractor's last sigmoid, which makes the problem far better conditioned.
    3. Gradient matching: min over x of mean over E's parameters of ||g(x) - G||^2 / ||G||^2 + anchor x (the distance of step
       2) + lambda_g TV(x), from where 2 ended. The classifier's gradient is left out: it says no more than h and the label.
Step 2 carries a trained network over the plateaus at which a random start sticks; step 3 adds what only the extractor's
gradient shows. The features of larger batches are separated by the classifier (attacks/features/disaggregation.py); where that
fails: layer- scaled matching of everything, from a grey start. ResNet-18 has no closed form either, for its classifier begins with
convolutions: the same matching, from nearly grey noise, because plain grey enters it as zero, where ReLU has no slope.

Where C is trained with dropout, steps 2 and 3 go without the features that were dropped (attacks/common/closed_form.py), and
there is no layerwise inversion: its equations need all of them.

On LeNet-5 without noise most victims never need steps 2 and 3: attacks/features/layerwise.py solves the same equations layer by
layer, far closer to their solution than descent comes. There is a descent only where this image does not explain the
gradient, and the image with the lower layer-scaled distance is kept: Reconstruction.restart is 0 for the layerwise one (or
where only one of the two was made) and 1 for the descent; loss and trace are those of the kept way.

Where E is private, step 2 runs through a randomly initialised surrogate, with a prior so strong that a hopeless inversion
ends plain instead of noisy; there is no step 3.

Under Gaussian noise of known variance sigma^2 the steps are others. With E known attacks/features/map_estimate.py finds the most
probable image of a gradient, or images of a batch: `feature_steps` by the gradient's direction, then `steps` by the gradient
itself; `restart` is the start that won. With E private what is descended on is ||E~(x) - h||^2 ||d||^2 / sigma^2 for one image
and ||g(x) - G||^2 / sigma^2 for a batch, + squared differences of neighbouring pixels / tau^2 + squared distances from grey /
spread^2.

Weights were chosen on images disjoint from all victims (docs/appendix/tuning.md); the prior's constants are those of photographs
in no data set here (attacks/common/priors.py).
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from attacks.common import closed_form, descend, gradient_distance, priors, problem
from attacks.common.closed_form import Features
from attacks.common.gradient_distance import Products
from attacks.common.problem import InversionProblem
from attacks.features import disaggregation, inversion, layerwise, map_estimate
from privbench.hyperparameters import Count, CountOrZero, Weight
from privbench.types import Artifact, Knowledge, Presets, Progress, Reconstruction, no_progress

PIXEL_STEP = 0.1  # tau: a usual difference of neighbouring pixels in a natural image of 32x32
PIXEL_SPREAD = 0.25  # and a usual distance of a pixel from grey
PEELED_STEP = 0.1  # the same in 2x - 1, for brightness; only its ratio to the errors of the equations counts
EXPLAINED = 1e-5  # layer-scaled distance: an image below it explains the gradient


@dataclass(frozen=True)
class Staged:
    """Features in closed form, layerwise inversion, then feature and gradient matching where that fails (this suite)."""

    peel_iterations: CountOrZero = (
        8  # at most, per level of attacks/features/layerwise.py; 0 leaves layerwise inversion out
    )
    peel_levels: Count = (
        5  # of layerwise inversion.LEVELS; 1: only what all victims share, enough where the network is nearly linear
    )
    feature_steps: CountOrZero = 200
    steps: CountOrZero = 600
    feature_weight: Weight = 0.1  # lambda_h
    weight: Weight = 3e-4  # lambda_g
    anchor: Weight = 30.0
    stand_in_weight: Weight = 100.0  # lambda_h where E is a surrogate
    starts: Count = 7  # of attacks/features/map_estimate.py, at most

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier"})
    uses: ClassVar[frozenset[str]] = frozenset({"gradient:extractor"})
    knowledge: ClassVar[str] = "gradient + natural images"
    rung: ClassVar[str] = "L2"
    presets: ClassVar[Presets] = {
        "smoke": {"steps": 5, "feature_steps": 5, "peel_iterations": 1},
        "quick-resnet18": {"steps": 150},
    }
    revision: ClassVar[int] = 1  # 1: another prior, and several starts, under noise; all else as before

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """All victims through all stages."""
        own, told = problem.make(artifact, seed), closed_form.of_single(artifact)
        if own.variance and own.extractor_known:
            steps = map_estimate.Steps(self.feature_steps, self.steps)
            return map_estimate.most_probable(
                own, artifact, of_photographs(artifact, own), seed, steps, self.starts, progress
            )
        if told is None and disaggregation.possible(artifact):
            return self._batches(artifact, own, seed, progress)
        peelable = own.extractor_known and not own.variance and artifact.model.backbone == "lenet5"
        if told is None or told.known is not None or not peelable or not self.peel_iterations:
            return self._descend(artifact, own, None if told is None else told.batched(), seed, progress)
        h = told.h
        gaussian = priors.natural(*artifact.image_shape[:2], PEELED_STEP, priors.CHROMA, h)
        end = layerwise.invert(own, h, gaussian, self.peel_iterations, progress, self.peel_levels)
        kept = _finished(end, own.labels, 0)
        gap = _unexplained(own, end.x)
        rows = torch.nonzero(~(gap < EXPLAINED))[:, 0]
        if not len(rows):
            return kept
        some = own._replace(observed=descend.pick(own.observed, rows), labels=own.labels[rows])
        other = self._descend(
            replace(artifact, client=artifact.client[rows]), some, Features(h[rows, None], None), seed, progress
        )
        return _merged(kept, other, rows, _unexplained(some, other.images) < gap[rows])

    def _batches(self, artifact: Artifact, own: InversionProblem, seed: int, progress: Progress) -> Reconstruction:
        """Batches with separated features through steps 2 and 3, the others through matching alone."""
        found, parts = disaggregation.disaggregate(artifact, seed, progress), []
        for sound in (True, False):
            rows = torch.nonzero(found.sound == sound)[:, 0]
            if len(rows):
                some = own._replace(observed=descend.pick(own.observed, rows), labels=found.labels[rows])
                told = closed_form.undropped(artifact.model, found.h[rows], closed_form.BLURRED) if sound else None
                some = some._replace(observed=some.observed | problem.factors(artifact.model, told))
                parts.append(
                    (rows, self._descend(replace(artifact, client=artifact.client[rows]), some, told, seed, progress))
                )
        whole = _joined(parts)
        return whole._replace(gradient_evaluations=whole.gradient_evaluations + found.evaluations)

    def _descend(
        self, artifact: Artifact, own: InversionProblem, told: Features | None, seed: int, progress: Progress
    ) -> Reconstruction:
        """Steps 2 and 3; features [V, B, c, s, s]."""
        start, spent = problem.plain_start(artifact, seed), 0
        if told is not None:
            end = self.invert(own, told, closed_form.noise_variance(artifact), start, progress)
            if not own.extractor_known:
                return _finished(end, own.labels, 0)
            start, spent = end.x, end.evaluations
        return _finished(self._match(own, told, start, progress), own.labels, spent)

    def invert(
        self,
        own: InversionProblem,
        told: Features,
        noise: Tensor | None,
        start: Tensor,
        progress: Progress = no_progress,
    ) -> descend.Descent:
        """Step 2: images [V, B, C, H, W] of the features [V, B, c, s, s], whose variance under noise is `noise` [V]."""

        def objective(x: Tensor, data: dict[str, Tensor]) -> Tensor:
            found = problem.features(own, x)
            if noise is not None:
                return (found - data["h"]).square().sum() / data["noise"] + _surprise(x)
            if not own.extractor_known:
                return _feature_gap(found, data["h"], data.get("known")) + self.stand_in_weight * (
                    priors.total_variation(x) + priors.l2(x)
                )
            gap = _feature_gap(inversion.logit(found), inversion.logit(data["h"]), data.get("known"))
            return gap + self.feature_weight * priors.total_variation(x)

        data = _data(told) | ({} if noise is None else {"noise": noise})
        return descend.lbfgs(
            objective, start, data, steps=self.feature_steps, progress=progress, what="feature inversion"
        )

    def _match(
        self, own: InversionProblem, told: Features | None, start: Tensor, progress: Progress
    ) -> descend.Descent:
        def objective(x: Tensor, data: dict[str, Tensor]) -> Tensor:
            products = gradient_distance.gradient_products(own, x, data["labels"], problem.observed_of(own, data))
            if own.variance:
                return gradient_distance.squared_distance(products) / own.variance + _surprise(x)
            smooth = self.weight * priors.total_variation(x)
            if told is None:
                return gradient_distance.layer_scaled_distance(products) + smooth
            found = inversion.logit(problem.features(own, x))
            anchor = _feature_gap(found, inversion.logit(data["h"]), data.get("known"))
            return gradient_distance.layer_scaled_distance(_of_extractor(products)) + self.anchor * anchor + smooth

        data = problem.data(own) | ({} if told is None else _data(told))
        return descend.lbfgs(objective, start, data, steps=self.steps, progress=progress, what="gradient matching")


def _unexplained(own: InversionProblem, x: Tensor) -> Tensor:
    """The layer-scaled distance [V] of the images' gradients from the observed ones: the attacker's own yardstick."""

    def objective(x: Tensor, data: dict[str, Tensor]) -> Tensor:
        products = gradient_distance.gradient_products(own, x, data["labels"], problem.observed_of(own, data))
        return gradient_distance.layer_scaled_distance(products)

    return descend.lbfgs(objective, x, problem.data(own), steps=0).loss


def _merged(first: Reconstruction, other: Reconstruction, rows: Tensor, better: Tensor) -> Reconstruction:
    """`first` with the victims in `rows` taken from `other` where that is better."""
    trace, theirs = descend.of_one_length([first.trace, other.trace])
    images, loss, restart = first.images.clone(), first.loss.clone(), first.restart.clone()
    won = rows[better]
    images[won], loss[won], trace[won], restart[won] = other.images[better], other.loss[better], theirs[better], 1
    spent = first.gradient_evaluations + other.gradient_evaluations + len(first.images) + len(rows)
    return Reconstruction(images, first.labels, loss, trace, restart, spent)


def _joined(parts: list[tuple[Tensor, Reconstruction]]) -> Reconstruction:
    """Reconstructions of some victims each, in the order of all victims."""
    order = torch.cat([rows for rows, _ in parts]).argsort()
    traces = descend.of_one_length([one.trace for _, one in parts])
    images, labels, loss, restart = (
        torch.cat([getattr(one, name) for _, one in parts])[order] for name in ("images", "labels", "loss", "restart")
    )
    spent = sum(one.gradient_evaluations for _, one in parts)
    return Reconstruction(images, labels, loss, torch.cat(traces)[order], restart, spent)


def _feature_gap(features: Tensor, target: Tensor, known: Tensor | None) -> Tensor:
    """Mean over the images of a batch of their feature distances, all [B, c, s, s]."""
    each = [None] * len(target) if known is None else known
    gaps = [
        gradient_distance.feature_distance(own, true, k) for own, true, k in zip(features, target, each, strict=True)
    ]
    return torch.stack(gaps).mean()


def _data(told: Features) -> dict[str, Tensor]:
    """What a descent on features uses."""
    return {"h": told.h} if told.known is None else {"h": told.h, "known": told.known}


def _surprise(x: Tensor) -> Tensor:
    """Twice the negative logarithm of the prior: independent Gaussian pixel differences and distances from grey."""
    return priors.total_variation(x) * x[..., 1:].numel() / PIXEL_STEP**2 + priors.l2(x) * x.numel() / PIXEL_SPREAD**2


def _of_extractor(products: dict[str, Products]) -> dict[str, Products]:
    return {name: p for name, p in products.items() if name.startswith("extractor/")}


def of_photographs(artifact: Artifact, own: InversionProblem) -> map_estimate.ImagePrior:
    """What an attacker without images believes of every victim's."""
    like = next(iter(own.observed.values()))
    gaussian = priors.photographed(*artifact.image_shape[:2], priors.STRENGTH, priors.CHROMA, like)
    return map_estimate.ImagePrior(
        gaussian, like.new_zeros(artifact.victims, artifact.batch_size, gaussian.variance.numel())
    )


def _finished(end: descend.Descent, known: Tensor, spent: int) -> Reconstruction:
    found = descend.reconstruction(end, 1, known)
    return found._replace(gradient_evaluations=found.gradient_evaluations + spent)
