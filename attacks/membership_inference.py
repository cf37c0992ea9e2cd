"""Which images a client trained on, from the networks that the server holds (LiRA, Carlini et al., IEEE S&P 2022).

Shokri et al., IEEE S&P 2017, arXiv 1610.05820; Carlini et al., IEEE S&P 2022, arXiv 2112.03570.
1. Shadow federations train as the attacked one does, each on half of the candidates (attacks/shadow/trained_federations.py).
2. Of every network, the attacked ones and the shadows', statistics say how well it knows a candidate
   (attacks/shadow/membership_statistics.py).
3. The Gaussian likelihood ratio of these is the answer (attacks/shadow/likelihood_ratio.py): P[member] = LR / (1 + LR), since half
   of a client's candidates are members.
Deviations: federations in place of models, with a shift that images share in part. Where clients upload generators, or with
networks=sent, a candidate is compared with shadow clients that trained on it, and with those of federations in which nobody did.
Elsewhere the server holds nothing of a single client but gradients of other images: what is inferred is whether any client trained
on the candidate. Of a private extractor the attacker has a surrogate alone. Gradients and updates of victims are not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from attacks.shadow import likelihood_ratio, membership_statistics, trained_federations
from privbench.execution.applicability import Limits
from privbench.hyperparameters import Count
from privbench.types import Artifact, Batch, Knowledge, Presets, Progress, Statements, no_progress


@dataclass(frozen=True)
class MembershipInference:
    """Shadow federations and a likelihood ratio tell which images a client trained on (after Carlini et al., S&P 2022)."""

    pairs: Count = 4  # of shadow federations: one trains on the candidates that the other leaves out
    steps: Count = 200  # of a surrogate's training
    # Whose networks tell: the server's, which are made of all clients', or those that each client sent after its local training.
    networks: Literal["broadcast", "sent"] = "broadcast"

    needs = trained_federations.needing(frozenset({"broadcast:classifier", "auxiliary", "candidates", "specification"}))
    uses: ClassVar[frozenset[str]] = frozenset({"broadcast:extractor", "upload:generator"})
    knowledge = trained_federations.knowing("networks + auxiliary + candidates + training specification")
    rung: ClassVar[str] = "L5"
    revision: ClassVar[int] = 1  # 1: shadows flip images where the attacked clients do, and nowhere else
    epsilon_revision: ClassVar[int] = 2  # 2: shadows train with the noise that the attacked clients were told
    test_unlike_revision: ClassVar[int] = 2  # 2: candidates that are no client's are training images as well
    question: ClassVar[str] = "membership"
    pools_clients: ClassVar[bool] = True  # shadows train on the candidates of all clients
    limits: ClassVar[Limits] = Limits(one_client=True, plain_private_extractor=True)
    presets: ClassVar[Presets] = {"smoke": {"pairs": 1, "steps": 5}, "quick": {"pairs": 2}}

    def infer(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Statements:
        """The probability of each candidate that the client trained on it, [K', N]."""
        assert knowledge.candidates is not None
        assert knowledge.auxiliary is not None
        model, auxiliary = artifact.model, knowledge.auxiliary
        asked = trained_federations.pictures(knowledge)
        shadows = trained_federations.shadows(artifact, knowledge, asked, self.pairs, seed, progress)
        said = []
        for number, shadow in enumerate(shadows):
            said.append(
                membership_statistics.of(model, shadow.seen, asked.batch, auxiliary, self.steps, seed)[asked.of]
            )
            progress(number + 1, len(shadows), "statistics of shadows")
        inside, outside = torch.stack([s.inside for s in shadows]), torch.stack([s.outside for s in shadows])
        fit = likelihood_ratio.fitted(torch.stack(said), inside, outside)
        answers = []
        rows = torch.arange(len(asked.of)).view_as(knowledge.candidates.labels.cpu())
        attacked = trained_federations.real(artifact, knowledge.sent)
        for seen, own, *batch in zip(attacked, rows, *knowledge.candidates, strict=True):
            each = membership_statistics.of(model, seen, Batch(*batch), auxiliary, self.steps, seed)
            fit_of = likelihood_ratio.Fitted(fit.outside[own], fit.shift[own], fit.covariance)
            answers.append(likelihood_ratio.probabilities(likelihood_ratio.log_ratios(each, fit_of)))
        return Statements(torch.stack(answers))
