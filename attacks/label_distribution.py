"""The label distribution of a client from the gradients or updates of its classifier (after Wainakh et al., PoPETs 2022).

Wainakh, Ventola, Müßig, Keim, Garcia Cordero, Zimmer, Grube, Kersting, Mühlhäuser: User-Level Label Leakage from Gradients in
Federated Learning, PoPETs 2022, arXiv 2105.09369. The gradient of the last layer shows how often each class occurs in a batch.
Here attacks/common/labels.py counts the labels of every upload, and the counts of a client's uploads are added up: n_ky.

A few labels are a poor estimate of a distribution, so that (ours) they are put together with what all clients have in common, by
empirical Bayes. With q_k ~ Dirichlet(a m), m the labels of all uploads with one more of each class, the posterior mean is
    q_ky = (n_ky + a m_y) / (n_k + a)
and `a` is of GRID the one under which the counts of all clients are likeliest (the Dirichlet-multinomial distribution).
Label counts that a client sends are knowledge and no inference: they are not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.common import failed_uploads, labels, updates
from attacks.common.data_fit import CLIP, NOISE
from privbench.errors import UserError
from privbench.execution.applicability import Limits
from privbench.types import Artifact, Knowledge, Progress, Statements, no_progress

# Of the concentration `a`: from clients that have nothing in common to clients that are alike.
GRID = torch.logspace(-2, 4, 61, dtype=torch.float64)


@dataclass(frozen=True)
class LabelDistribution:
    """Counts the labels behind each upload of a client, by the last layer's gradient (after Wainakh et al., PoPETs 2022)."""

    needs: ClassVar[frozenset[str]] = frozenset({"classes"})
    uses: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "update:classifier"})
    knowledge: ClassVar[str] = "gradient"
    rung: ClassVar[str] = "L2"
    question: ClassVar[str] = "label distribution"
    pools_clients: ClassVar[bool] = True  # the prior is fitted to the counts of all clients
    limits: ClassVar[Limits] = Limits(one_client=True)
    knows: ClassVar[frozenset[str]] = NOISE | CLIP
    update_batches_revision: ClassVar[int] = 2  # 1: other labels of batches moved by Adam; 2: lost ones say nothing

    def infer(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Statements:
        """The posterior mean of each attacked client's label distribution, [K', Y].

        UserError where the last layer's gradient does not show the labels.
        """
        counts = counted(artifact)
        return Statements(shrunk(counts))


def counted(artifact: Artifact) -> Tensor:
    """How many images of each class are behind the uploads of each attacked client, as far as these show it: [K', Y]."""
    are_declared = artifact.labels is not None
    if artifact.updates and not are_declared:
        artifact = updates.labelled_gradients(artifact)
    recovered = labels.recover(artifact)
    if bool((recovered < 0).any()):
        raise UserError("the uploads hold no gradient of the classifier, which would show the labels")
    each = labels.probabilities(artifact).sum(1).double()
    if not are_declared:
        # An upload that is not finite, or zero throughout, says nothing of its labels.
        each = each.where(failed_uploads.is_sound(artifact)[:, None], 0.0)
    clients = artifact.client.unique()
    return torch.stack([each[artifact.client == client].sum(0) for client in clients])


def shrunk(counts: Tensor) -> Tensor:
    """The posterior mean of each client's distribution [K', Y] from counts [K', Y], under the likeliest prior."""
    common = (counts.sum(0) + 1) / (counts.sum() + counts.shape[1])
    each = [float(_evidence(counts, a * common)) for a in GRID.to(counts)]
    strength = GRID.to(counts)[max(range(len(each)), key=each.__getitem__)] * common
    return (counts + strength) / (counts.sum(1, keepdim=True) + strength.sum())


def _evidence(counts: Tensor, strength: Tensor) -> Tensor:
    """log P[counts] of the Dirichlet-multinomial distribution with parameters `strength` [Y], but for a constant; over clients."""
    whole = strength.sum().lgamma() - (counts.sum(1) + strength.sum()).lgamma()
    return (whole + ((counts + strength).lgamma() - strength.lgamma()).sum(1)).sum()
