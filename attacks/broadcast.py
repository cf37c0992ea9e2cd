"""What attackers of private extractors do where the extractor is broadcast: there is nothing to stand in for."""

from attacks import staged
from attacks.common import labels, training_cache
from attacks.posterior import Posterior
from privbench.types import Artifact, Knowledge, Progress, Reconstruction, no_progress

ATTACKS = ("staged", "posterior")  # by name, as a class's `hands_in` says it


def attack(artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress) -> Reconstruction:
    """`staged`, or `posterior` under noise for attackers with auxiliary images; once per artifact for all of them."""
    if knowledge.auxiliary is not None and labels.noise_variance(artifact):
        return training_cache.reconstructed(Posterior(), artifact, knowledge, seed, progress)
    return staged.once(artifact, knowledge, seed, progress)
