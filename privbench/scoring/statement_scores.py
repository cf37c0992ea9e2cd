"""Scores of what an inference states of clients, and the floors: what anybody could state who received nothing.

label distribution   the total variation distance 1/2 sum_y |q_y - p_y| of the stated distribution q from that of the client's
                     training images, 0 to 1, lower is better; floors: the uniform distribution, and that of all clients' images
                     together
membership           the area under the ROC curve of the probabilities of a client's candidates, half of which are members, 0 to 1,
                     higher is better; floors: 1/2, that of chance, and "blind", that of a classifier of pixels without any network
                     (privbench/scoring/blind_membership.py). Tables add the true-positive rate at 1% false positives
                     (privbench/scoring/membership.py)
domain               whether the likeliest of the candidate domains is the client's, 1 or 0, the share 1 / n where n of them are
                     the likeliest; higher is better; floors: chance, 1 of the number of candidates, and the domain that most
                     clients hold
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from privbench.scoring import blind_membership, image_scores, membership
from privbench.types import Batch, Candidates


class Question(NamedTuple):
    """What inferences state, and how that is scored."""

    title: str
    score: str
    # Whether the better of two scores is the lower.
    is_error: bool
    # Whether a statement holds a probability of each of a client's candidates, and no distribution over answers.
    of_candidates: bool = False


BLIND = "blind"  # the floor of membership that needs no network
# Of a digest: among some thousand images two have the same with a probability of a few percent.
DIGITS = 7
QUESTIONS: Mapping[str, Question] = {
    "label distribution": Question("label distribution", "total variation distance", is_error=True),
    "membership": Question("membership", "area under the ROC curve", is_error=False, of_candidates=True),
    "domain": Question("domain", "share of clients whose domain is named", is_error=False),
}


class ScoredStatement(NamedTuple):
    """One client's: distributions over the answers or probabilities of candidates, the score, and that of each floor."""

    stated: list[float]
    true: list[float]
    score: float
    floors: dict[str, float]
    others: list[str] | None = None  # digests of the candidates that are no members


def total_variation(one: Tensor, other: Tensor) -> Tensor:
    """1/2 sum |p - q| of distributions [..., A], in [0, 1]: [...]."""
    return (one - other).abs().sum(-1) / 2


def of_label_distributions(answers: Tensor, clients: Sequence[int], label_counts: Tensor) -> list[ScoredStatement]:
    """Scores of `answers` [K', Y] on some clients, of all whose training images per class are `label_counts` [K, Y]."""
    counts = label_counts.double()
    true = counts / counts.sum(1, keepdim=True)
    guesses = {
        "uniform": torch.full_like(true[0], 1 / true.shape[1]),
        "average": counts.sum(0) / counts.sum(),
    }
    return [
        ScoredStatement(
            stated.tolist(),
            true[k].tolist(),
            float(total_variation(stated, true[k])),
            {name: float(total_variation(guess, true[k])) for name, guess in guesses.items()},
        )
        for stated, k in zip(answers, clients, strict=True)
    ]


def of_domains(answers: Tensor, clients: Sequence[int], held: Sequence[int], count: int) -> list[ScoredStatement]:
    """Scores of `answers` [K', D] on some clients, of all whose domains are `held` [K], each one of `count` = D."""
    domains = torch.nn.functional.one_hot(torch.tensor(held), count).double()
    guesses = {"chance": torch.ones(count, dtype=torch.float64), "most frequent": domains.sum(0)}
    return [
        ScoredStatement(
            stated.tolist(),
            domains[k].tolist(),
            _named(stated, held[k]),
            {name: _named(guess, held[k]) for name, guess in guesses.items()},
        )
        for stated, k in zip(answers, clients, strict=True)
    ]


def _named(stated: Tensor, true: int) -> float:
    """Whether the likeliest of some answers [D] is the true one; of several that are the likeliest, one is named at random."""
    likeliest = stated == stated.max()
    return float(likeliest[true]) / int(likeliest.sum())


def of_membership(answers: Tensor, asked: Candidates, members: Tensor) -> list[ScoredStatement]:
    """Scores of `answers` [K', N], the probability of each candidate, of which `members` [K', N] bool are a client's."""
    return [
        ScoredStatement(
            stated.tolist(),
            inside.double().tolist(),
            membership.auc(membership.recognition(stated[inside].numpy(), stated[~inside].numpy())),
            {"chance": 0.5, BLIND: blind_membership.area(Batch(*batch), inside)},
            [name[:DIGITS] for name in image_scores.digests(batch[0][~inside])],
        )
        for stated, inside, *batch in zip(answers, members, *asked, strict=True)
    ]
