"""Surrogate extractors trained through the frozen shared classifier, then inverted at the victim's closed-form features.

Training is attacks/shadow/surrogate_training.py without alignment, inversion attacks/features/inversion.py; a rehearsal in a
shadow federation sets the weight of the features (attacks/shadow/selection.py). The FedCG authors' notebooks attack through such
surrogates, and choose by the true image.
"""

from dataclasses import dataclass

from attacks.shadow.selection import StandIn


@dataclass(frozen=True)
class Surrogate(StandIn):
    """Cross-entropy through C on auxiliary images, and nothing else."""
