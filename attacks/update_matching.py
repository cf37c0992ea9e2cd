"""Whole local updates: the attacker simulates the client's K steps and matches their result.

    min over x of  mean over parameters l of ||theta_l(x; K) - theta_l - U_l||^2 / ||U_l||^2 + lambda TV(x)
where theta(x; K) are the networks after K steps on x by the client's optimiser from the broadcast networks, and U is the
observed change. The derivative goes through all steps. Labels and start: the update divided by -lr K is nearly a gradient,
from which `staged` makes labels and a first image, and layerwise inversion, where it applies, two more
(attacks/features/update_descent.py).

Under noise of known variance v in U (attacks/common/updates.py) and with E known, what is descended on is twice the negative
logarithm of the posterior, as in attacks/features/map_estimate.py, with the same prior of photographs:
    min over z of  sum over parameters l of ||theta_l(x; K) - theta_l - U_l||^2 / v + ||z||^2,   2x - 1 = Sigma^(1/2) z

A client with more data than one step takes (`--batch-size 32 --local-batch 16`) sends the update of all of it, and all of it is
reconstructed. Which images a step took is secret; the attacker's own steps take the mean over all of them, which is what a
mini-batch's gradient is in expectation, and what its steps add up to where they are small.

Dimitrov et al.: Data Leakage in Federated Averaging, TMLR 2022, arXiv 2206.12395 (simulated epochs; here every step takes the
whole batch, as privbench/observation/local_update.py has it); so does the `breaching` package. Private extractors: a random
surrogate takes the steps.

One step of Adam hides its gradient poorly, and is taken back to it (attacks/common/updates.py). Of several steps none is.
Under Adam, and without noise that is known, an image that the steps do not explain is given up for grey.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from attacks.common import data_fit, problem, updates
from attacks.common.data_fit import INTERVALS, NOISE
from attacks.common.updates import noise_variance
from attacks.features import map_estimate, update_descent
from attacks.features.update_descent import UpdateDescent
from attacks.staged import Staged
from privbench.hyperparameters import Count, CountOrZero, Weight
from privbench.observation.local_update import optimiser_of
from privbench.spec import Adam
from privbench.types import Artifact, Knowledge, Outcome, Presets, Progress, Reconstruction, no_progress

# Objective below which an image explains an update by Adam; 4 of 12 images above it came closer than grey.
EXPLAINED = 1e-3


@dataclass(frozen=True)
class UpdateMatching:
    """The client's local steps, simulated, until their change of the networks matches (Dimitrov et al., TMLR 2022)."""

    steps: Count = 200
    weight: Weight = 3e-4  # lambda
    feature_steps: CountOrZero = 100  # of the first image
    start_steps: CountOrZero = 100
    peel_iterations: CountOrZero = 8  # of layerwise inversion, at most, per level; 0 leaves these starts out

    needs: ClassVar[frozenset[str]] = frozenset({"update:classifier"})
    uses: ClassVar[frozenset[str]] = frozenset({"update:extractor"})
    knowledge: ClassVar[str] = "update + natural images"
    rung: ClassVar[str] = "L2"
    knows: ClassVar[frozenset[str]] = NOISE | {"clip"} | INTERVALS
    # 3: as `staged`, where it begins; 4: as `revision` 3
    noised_features_revision: ClassVar[int] = 4
    presets: ClassVar[Presets] = {
        "smoke": {"steps": 5, "feature_steps": 5, "start_steps": 5, "peel_iterations": 1},
        "quick": {"steps": 60},
        "quick-slow": {"steps": 20, "start_steps": 50},
    }
    # 1: under noise `staged`, where it begins, is another; 2: the noise's likelihood; 3: it begins without SGD's weight decay,
    # and labels of batches moved by Adam are other ones; 4: from layerwise images as well
    revision: ClassVar[int] = 4
    dropout_revision: ClassVar[int] = 5  # 5: one step drops the features that its update shows to be dropped
    # 5: one step samples by the bottleneck's own draw; a clip of its gradient is none of the change
    defended_updates_revision: ClassVar[int] = 5

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """L-BFGS from the images that the update gives when it is taken for a gradient, and from grey: the lowest end counts.

        Under Adam an end that does not explain the update (EXPLAINED) is given up for grey; loss and trace say how far it came.
        """
        assert artifact.local is not None, "the needs name an update"
        by_adam, spent = isinstance(optimiser_of(artifact.local), Adam), 0
        sent, (artifact, trust) = artifact, updates.without_adam(artifact)
        local = artifact.local
        assert local is not None, "it is still an update"
        gradients = updates.with_labels(updates.with_steady_rows(updates.as_gradient(artifact, local), trust), sent)
        staged = Staged(peel_iterations=0, feature_steps=self.feature_steps, steps=self.start_steps, starts=1)
        first = staged.reconstruct(gradients, knowledge, seed, progress)
        posed = problem.make(gradients, seed)._replace(labels=first.labels)
        seen = updates.observed(artifact), updates.statistics(artifact) if posed.train else {}
        descent = UpdateDescent(posed, local, *seen, data_fit.of(artifact), self.steps, progress)
        if (variance := noise_variance(artifact)) and posed.extractor_known:
            prior = map_estimate.of_photographs(artifact, next(iter(posed.observed.values())))
            matched = descent.most_probable(first.images, prior, variance)
        else:
            starts = [first.images, problem.plain_start(artifact, seed)]
            if not by_adam:
                layered, spent = update_descent.layerwise_images(gradients, posed, self.peel_iterations, progress)
                starts += layered
            matched = descent.matched(starts, trust, self.weight)
            hopeless = ~(matched.loss < EXPLAINED) & by_adam
            images = torch.where(hopeless[:, None, None, None, None], problem.grey_start(artifact), matched.images)
            matched = matched._replace(images=images, outcome=hopeless.long() * Outcome.GAVE_UP)
        evaluations = matched.gradient_evaluations + first.gradient_evaluations + spent
        return matched._replace(gradient_evaluations=evaluations)
