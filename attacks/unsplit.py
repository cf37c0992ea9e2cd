"""UnSplit: the client's extractor is unknown, so a surrogate and the images descend until they explain the features.

    h in closed form (attacks/common/closed_form.py; batches: attacks/features/disaggregation.py), then from E~ drawn at random
    and (nearly) grey x min over x, E~ of F = mean over i of [ ||E~(x_i) - h_i||^2 / spread of h_i + lambda TV(x_i) ]
by Adam in turns, as in Algorithm 1, or on both together (`descent`). i are the images that share a surrogate: one victim's, or
those of all victims of a client, whose extractor is one and the same (`stand_in_of`). Of several draws the lowest F is kept.

Erdogan, Kupcu, Cicek: UnSplit: Data-Oblivious Model Inversion, Model Stealing, and Label Inference Attacks Against Split Learning,
WPES 2022, arXiv 2108.09033, Algorithm 1. Of FedSplit and FedCG the server sees gradients instead of features, but those give the
features exactly. Deviations: the steps; the same start for all images, where the authors' code passes one surrogate from image to
image; no ||x||^2, which that code has with weight 1, and which takes images to be dark; restarts. The defaults beat no floor
significantly where E is private; docs/appendix/attacks.md says what does, and where.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from attacks.common import problem
from attacks.common.data_fit import CLIP, PRUNE, REPRESENTATION
from attacks.features import joint_inversion
from attacks.features.joint_inversion import JointInversion
from privbench.errors import UserError
from privbench.execution.applicability import Limits
from privbench.hyperparameters import Count, Positive, Weight
from privbench.types import Artifact, Knowledge, Presets, Progress, Reconstruction, no_progress


@dataclass(frozen=True)
class UnSplit:
    """Image and surrogate extractor descend until they explain the exact features (Erdogan et al., WPES 2022)."""

    turns: Count = 20
    steps: Count = 20  # of each turn, on each of the two; together: turns x steps on both
    weight: Weight = 0.1  # lambda where the extractor is shared
    # Names of settings are part of stored specifications, so `stand_in` (surrogate) stays.
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
    knows: ClassVar[frozenset[str]] = CLIP | PRUNE | REPRESENTATION
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
        posed = problem.make(artifact, seed)
        if not posed.weights["extractor"]:
            raise UserError(
                "unsplit descends through an extractor, but these networks begin with the classifier; try --attack staged"
            )
        posed, features, spent = joint_inversion.features_of(artifact, posed, seed, progress)
        shared, start = posed.extractor_known, problem.plain_start(artifact, seed)
        pooled = self.pools and not shared
        tables = joint_inversion.by_client(artifact, features.h) if pooled else joint_inversion.alone(features.h)
        descent = JointInversion(
            self.turns, self.steps, self.weight if shared else self.stand_in_weight, self.lr, self.extractor_lr,
            self.descent == "together", 1 if shared else self.restarts,
        )  # fmt: skip
        end, restart = descent.descend(posed, features, tables, start, seed, progress)
        return Reconstruction(end.x, posed.labels, end.loss, end.trace, restart, spent + end.evaluations)
