"""Scores of what an inference states of clients, and the floors: what anybody could state who received nothing.

label distribution   the total variation distance 1/2 sum_y |q_y - p_y| of the stated distribution q from that of the client's
                     training images, 0 to 1, lower is better; floors: the uniform distribution, and that of all clients' images
                     together
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Question(NamedTuple):
    """What inferences state, and how that is scored."""

    title: str
    score: str
    # Whether the better of two scores is the lower.
    is_error: bool


QUESTIONS: Mapping[str, Question] = {
    "label distribution": Question("label distribution", "total variation distance", is_error=True),
}


class ScoredStatement(NamedTuple):
    """One client's: distributions over the answers, the score, and that of each floor."""

    stated: list[float]
    true: list[float]
    score: float
    floors: dict[str, float]


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
