"""The strong attack with the gradient alone: closed forms first, then features, then gradients.

    1. h of a one-image batch in closed form (attacks/common/closed_form.py); of larger batches separated by the classifier
       (attacks/features/disaggregation.py).
    2. Feature inversion and 3. gradient matching, anchored by the features (attacks/features/anchored_matching.py).
On LeNet-5 without noise most victims never need steps 2 and 3: attacks/features/layerwise.py solves the same equations layer by
layer, far closer to their solution than descent comes. There is a descent only where this image does not explain the gradient,
and the image with the lower layer-scaled distance is returned: Reconstruction.restart is 0 for the layerwise one (or where only
one of the two was made) and 1 for the descent; loss and trace are those of the image that is returned. Where C is trained with
dropout there is no layerwise inversion: its equations need all features.

Under Gaussian noise of known variance, with E known, attacks/features/map_estimate.py finds the most probable image:
`feature_steps` by the gradient's direction, then `steps` by the gradient itself; `restart` is the start that won.

Where the defence only clips, the gradient of one image is taken back to its length (attacks/features/unclipping.py), and all goes
on as without a defence. Of pruned and rounded gradients and of signs step 3 alone is left, on what each entry still says
(attacks/common/data_fit.py); a private extractor is inverted at the features that a pruned gradient shows.

Of messages in bf16 or fp16 the equations of layerwise inversion have errors of that format: ERROR is its relative spacing.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from attacks.common import batched, closed_form, priors, problem
from attacks.common.closed_form import Features
from attacks.common.data_fit import EVERY
from attacks.features import anchored_matching, disaggregation, layerwise, map_estimate, unclipping
from attacks.features.anchored_matching import AnchoredMatching
from attacks.features.equations import layer_equations
from privbench.hyperparameters import Count, CountOrZero, Weight
from privbench.observation import wire
from privbench.types import Artifact, Knowledge, Presets, Progress, Reconstruction, no_progress

EXPLAINED = 1e-5  # layer-scaled distance: an image below it explains the gradient


@dataclass(frozen=True)
class Staged:
    """Features in closed form, layerwise inversion, then feature and gradient matching where that fails (this suite)."""

    # Names of settings are part of stored specifications, so `peel` (layerwise inversion) and `stand_in` (surrogate) stay.
    peel_iterations: CountOrZero = 8  # at most, per level of layerwise inversion; 0 leaves it out
    peel_levels: Count = 5  # of layerwise.LEVELS; 1: only what all victims share, enough for nearly linear networks
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
    knows: ClassVar[frozenset[str]] = EVERY
    # Closed-form features of rounded entries and of signs are taken as they come.
    knows_private: ClassVar[frozenset[str]] = EVERY - {"quantize", "sign"}
    # 3: features in closed form are those of all columns of the gradient
    noised_features_revision: ClassVar[int] = 3
    presets: ClassVar[Presets] = {
        "smoke": {"steps": 5, "feature_steps": 5, "peel_iterations": 1},
        "quick-slow": {"steps": 150},
    }
    # 1: another prior, and several starts, under noise; 2: layerwise inversion takes dL/dh from C's gradient
    revision: ClassVar[int] = 2
    dropout_revision: ClassVar[int] = 4  # 4: no matching where a defence hides which features were dropped
    wire_revision: ClassVar[int] = 3  # 3: the errors of layerwise inversion are those of the number format

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """All victims through all stages."""
        artifact = unclipping.unclipped(artifact)
        posed, features = problem.make(artifact, seed), closed_form.of_single(artifact)
        if posed.extractor_known and posed.fit.by_entry:
            # Pruned rows give few features, rounded ones no exact ones, signs none.
            return self.descents.descend(artifact, posed, None, seed, progress)
        if posed.variance and posed.extractor_known:
            steps = map_estimate.Steps(self.feature_steps, self.steps)
            prior = map_estimate.of_photographs(artifact, next(iter(posed.observed.values())))
            return map_estimate.most_probable(posed, artifact, prior, seed, steps, self.starts, progress)
        if features is None and disaggregation.possible(artifact):
            return self.descents.batches(artifact, posed, seed, progress)
        batch_of_one = None if features is None else features.batched()
        solvable = posed.extractor_known and not posed.variance and artifact.model.backbone == "lenet5"
        if features is None or features.known is not None or not solvable or not self.peel_iterations:
            return self.descents.descend(artifact, posed, batch_of_one, seed, progress)
        gaussian = priors.natural(*priors.square(artifact.image_shape), priors.PIXEL_STEP, priors.CHROMA, features.h)
        iterations, factor = self.peel_iterations, max(1.0, wire.spacing(artifact.defense) / layer_equations.ERROR)
        end = layerwise.invert(posed, features.h, gaussian, iterations, progress, self.peel_levels, factor)
        layered, gap = batched.reconstruction(end, 1, posed.labels), anchored_matching.unexplained(posed, end.x)
        rows = torch.nonzero(~(gap < EXPLAINED))[:, 0]
        if not len(rows):
            return layered
        part = posed._replace(observed=batched.pick(posed.observed, rows), labels=posed.labels[rows])
        of_rows, h = replace(artifact, client=artifact.client[rows]), Features(features.h[rows, None], None)
        descended = self.descents.descend(of_rows, part, h, seed, progress)
        better = anchored_matching.unexplained(part, descended.images) < gap[rows]
        return anchored_matching.merged(layered, descended, rows, better)

    @property
    def descents(self) -> AnchoredMatching:
        """Steps 2 and 3."""
        return AnchoredMatching(
            self.feature_steps, self.steps, self.feature_weight, self.weight, self.anchor, self.stand_in_weight
        )
