"""ORACLE: inverts the victim's own private extractor, which no server has; the upper bound of every stand-in.

min over z of ||logit E(x) - logit h||^2 / tau^2 + ||z||^2 (attacks/inversion.py), with the class means and variances of auxiliary
images as the prior. Where the gradient was noised, through h itself and with its variance; where E is broadcast, `staged`.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from attacks import descend, inversion, staged, world
from attacks.stand_in import by_client
from privbench.settings import Count, Positive
from privbench.types import Artifact, Knowledge, Reconstruction, Report, no_report


@dataclass(frozen=True)
class Oracle:
    """The victim's true E and h."""

    steps: Count = 400
    tau: Positive = 0.001  # of the logit of h, relative to its spread

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "auxiliary", "oracle"})
    knowledge: ClassVar[str] = "ORACLE (the victim's private extractor)"
    rung: ClassVar[str] = "L8"

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, report: Report = no_report
    ) -> Reconstruction:
        """Each victim through its own client's extractor."""
        if "extractor" in artifact.weights:
            return staged.where_broadcast(artifact, knowledge, seed, report)
        assert knowledge.oracle is not None, "the needs of this attack name the oracle"
        own = world.real(artifact, knowledge, seed, "Oracle")
        belief = inversion.learned(own.auxiliary, own.model.classes, own.h)
        variance = torch.full_like(own.h[:, 0, 0, 0], self.tau**2) if own.noise is None else own.noise
        nets = {client: [knowledge.oracle[client].params["extractor"]] for client in own.client.unique().tolist()}
        end = by_client(own, belief, nets, variance, exact=own.noise is None, steps=self.steps, report=report)
        return descend.reconstruction(end, 1, own.labels[:, None])
