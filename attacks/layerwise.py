"""A network inverted by equations instead of descent, layer by layer: features in closed form, then all layers for the image.

It takes any chain of convolutions, linear layers and average pooling with sigmoids, tanh, leaky ReLUs, ELUs or softplus between
them (privbench/networks/layer_chain.py), and a head that begins with a linear layer. The equations and their solution stand in
attacks/features/equations/chain_inversion.py. Where the algebra ends, the attack is refused: ReLU, max-pooling, residual sums,
the batch's own statistics, several images a gradient, and whatever a defence does but clip, which scales both sides of every
equation alike. `staged` goes on by descent there.
"""

from dataclasses import dataclass
from typing import ClassVar

from attacks.common import batched, closed_form, priors, problem
from attacks.common.data_fit import CLIP
from attacks.features.equations import chain_inversion
from privbench.errors import UserError
from privbench.execution.applicability import Limits
from privbench.hyperparameters import Count
from privbench.types import Artifact, Knowledge, Presets, Progress, Reconstruction, no_progress


@dataclass(frozen=True)
class Layerwise:
    """The equations of all layers solved for the image, with a prior where they leave it open (after R-GAP, ICLR 2021)."""

    steps: Count = 20  # of Gauss-Newton, at most, at each level of errors
    levels: Count = 7  # of chain_inversion.LEVELS

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "gradient:extractor"})
    knowledge: ClassVar[str] = "gradient + natural images"
    rung: ClassVar[str] = "L2"
    knows: ClassVar[frozenset[str]] = CLIP
    limits: ClassVar[Limits] = Limits(linear_classifier=True, most_images=1, layer_chain=True, known_defenses=True)
    presets: ClassVar[Presets] = {"smoke": {"steps": 1, "levels": 1}}
    revision: ClassVar[int] = 1  # 1: dL/dh from the head's gradient

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """All victims, one after another."""
        features = closed_form.of_single(artifact)
        if features is None or features.known is not None:
            raise UserError(
                "not applicable: the features of one image are not in closed form; layerwise needs a gradient of one image, "
                "without dropout, and a head that begins with a linear layer"
            )
        gaussian = priors.natural(*priors.square(artifact.image_shape), priors.PIXEL_STEP, priors.CHROMA, features.h)
        posed = problem.make(artifact, seed)
        end = chain_inversion.invert(posed, features.h, gaussian, self.steps, self.levels, progress)
        return batched.reconstruction(end, 1, posed.labels)
