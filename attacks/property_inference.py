"""Of which domain a client's images are, from the classifier's gradients or updates that it sends: property inference.

Ateniese et al., IJSN 2015, arXiv 1306.4447: a classifier of classifiers tells a property of their training data. Ganju et al.,
CCS 2018: of networks whose hidden units may be in any order. Melis, Song, De Cristofaro, Shmatikov, IEEE S&P 2019, arXiv
1805.04049: in federated learning the uploads show it. The attacker computes those of images with the property and without, at the
networks that were broadcast, and learns to tell them apart. Here the property is the domain, one of several.
1. Shadow clients of each domain send what the attacked clients send (attacks/shadow/by_domain/shadow_clients.py).
2. Linear discriminant analysis with shrinkage (Ledoit and Wolf 2004; scikit-learn's) of their uploads gives P[domain | upload], of
   numbers in which the order of hidden units does not matter (attacks/shadow/by_domain/gradient_shape.py).
3. What is stated of a client is the geometric mean over its uploads.
Deviations: a linear classifier in place of a random forest (Melis) and a set network (Ganju). Uploads are of batches as the
artifact holds them. Domains are equally likely: that each client has another one is not used. Shadow clients train with the
broadcast generator where their method does. Uploaded generators and label counts are not read: what was tried of generators is in
docs/appendix/attacks.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from attacks.common.data_fit import CLIP, NOISE
from attacks.shadow.by_domain import gradient_shape, shadow_clients
from privbench.errors import UserError
from privbench.execution.applicability import Limits
from privbench.hyperparameters import Count
from privbench.types import Artifact, Knowledge, Presets, Progress, Statements, no_progress

TINY = 1e-9  # standard deviation below which a number says nothing
LEAST = -50.0  # of a log probability


@dataclass(frozen=True)
class PropertyInference:
    """Shadow clients of each domain tell which one a client's images are of (after Melis et al., S&P 2019)."""

    shadows: Count = 8  # shadow clients of every domain

    needs: ClassVar[frozenset[str]] = frozenset(
        {"classes", "broadcast:classifier", "auxiliary", "domains", "specification"}
    )
    uses: ClassVar[frozenset[str]] = frozenset(
        {"gradient:classifier", "update:classifier", "broadcast:extractor", "broadcast:generator"}
    )
    knowledge: ClassVar[str] = "gradient + auxiliary by domain + training specification"
    rung: ClassVar[str] = "L5"
    question: ClassVar[str] = "domain"
    limits: ClassVar[Limits] = Limits(one_client=True)
    knows: ClassVar[frozenset[str]] = NOISE | CLIP
    epsilon_revision: ClassVar[int] = 1  # 1: as `membership-inference` 2
    presets: ClassVar[Presets] = {"smoke": {"shadows": 1}, "quick": {"shadows": 4}}

    def infer(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Statements:
        """The probability of each domain, [K', D]; UserError where the uploads hold nothing of the classifier."""
        assert knowledge.domains is not None
        real, count = _numbers(artifact), int(knowledge.domains.max()) + 1
        sent = [shadow_clients.uploads(artifact, knowledge, n, seed, progress) for n in range(self.shadows)]
        shadows, domains = torch.cat([_numbers(s.artifact) for s in sent]), torch.cat([s.domains for s in sent]).cpu()
        each, clients = log_probabilities(shadows, domains, real, count), artifact.client.cpu()
        # Uploads that say nothing do not outvote the others.
        told = [each[(clients == k) & real.isfinite().all(1)] for k in clients.unique()]
        return Statements(torch.stack([(one.sum(0) / max(len(one), 1)).softmax(0) for one in told]))


def log_probabilities(shadows: Tensor, domains: Tensor, real: Tensor, count: int) -> Tensor:
    """log P[domain | upload] [V, D] of numbers [V, n], from those of shadows [M, n] of `domains` [M].

    An upload whose numbers are not finite says nothing; none does where a domain has no sound shadow.
    """
    sound, said = shadows.isfinite().all(1), real.isfinite().all(1)
    answers = torch.zeros(len(real), count, dtype=torch.float64)
    if len(domains[sound].unique()) < count or not bool(said.any()):
        return answers
    middle, spread = shadows[sound].mean(0), shadows[sound].std(0)
    telling = spread > TINY
    if not bool(telling.any()):
        return answers
    fitted, asked = (((t - middle) / spread)[:, telling].numpy() for t in (shadows[sound], real[said]))
    fit = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto", priors=[1 / count] * count)
    answers[said] = torch.from_numpy(fit.fit(fitted, domains[sound].numpy()).predict_log_proba(asked))
    # A probability that is rounded to 0 would outvote all other uploads.
    return answers.clamp_min(LEAST)


def _numbers(artifact: Artifact) -> Tensor:
    sent = (artifact.updates or artifact.gradients).get("classifier")
    if sent is None:
        raise UserError("the uploads hold no gradient and no update of the classifier, which would show the domain")
    return gradient_shape.of(sent)
