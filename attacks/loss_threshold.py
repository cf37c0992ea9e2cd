"""Which images a client trained on, from their loss alone (Yeom et al., IEEE CSF 2018).

Yeom, Giacomelli, Fredrikson, Jha: Privacy Risk in Machine Learning: Analyzing the Connection to Overfitting, arXiv 1709.01604: an
image is a member where its loss is below a threshold, their Adversary 2. Here the order of the losses answers, written as the logit
of the true class's probability p_y,
    s = log(p_y / (1 - p_y)),    P[member] = 1 / (1 + exp((m - s) / d)),
with m the median of s over the client's candidates, since half of them are members, and d their standard deviation, which keeps
sure networks from rounding all probabilities to 1.

The attack trains nothing: it costs one pass over the candidates, whatever the schedule of the attacked run. So it is the one for
fully trained networks, where shadow federations take as long as the run. (With networks=sent the suite repeats training from the
last round that the run kept whole, once.) It does not know which images are hard by themselves, as the likelihood ratio does
(attacks/membership_inference.py). It needs the networks as a whole, and so a broadcast extractor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from attacks.shadow import membership_statistics, trained_federations
from privbench.execution.applicability import Limits
from privbench.types import Artifact, Batch, Knowledge, Progress, Statements, no_progress

TINY = 1e-300  # in place of no standard deviation


@dataclass(frozen=True)
class LossThreshold:
    """Images of low loss are named as a client's (Yeom et al., CSF 2018)."""

    # Whose networks tell: the server's, which are made of all clients', or those that each client sent after its local training.
    networks: Literal["broadcast", "sent"] = "broadcast"

    needs = trained_federations.needing(frozenset({"broadcast:extractor", "broadcast:classifier", "candidates"}))
    knowledge = trained_federations.knowing("networks + candidates")
    rung: ClassVar[str] = "L2"
    question: ClassVar[str] = "membership"
    limits: ClassVar[Limits] = Limits(one_client=True)

    def infer(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Statements:
        """The probability of each candidate that the client trained on it, [K', N]."""
        assert knowledge.candidates is not None
        attacked = trained_federations.real(artifact, knowledge.sent)
        answers = []
        for seen, *batch in zip(attacked, *knowledge.candidates, strict=True):
            answers.append(probabilities(membership_statistics.confidences(artifact.model, seen, Batch(*batch))))
        return Statements(torch.stack(answers))


def probabilities(confidences: Tensor) -> Tensor:
    """P[member] of the candidates of one client, of which half are members: [N]; 1/2 where a confidence is not finite."""
    sound = confidences.isfinite()
    if int(sound.sum()) < 2:
        return torch.full_like(confidences, 0.5)
    finite = confidences[sound]
    apart = (confidences - finite.quantile(0.5)) / finite.std().clamp_min(TINY)
    return apart.where(sound, 0.0).sigmoid()
