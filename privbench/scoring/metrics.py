"""How well a classifier does on labelled images, and against another: pure functions of probabilities [N, Y] and labels [N].

scikit-learn does the arithmetic. Three choices where the papers are silent (docs/appendix/metrics.md):
- Macro averages are over the classes that are among the labels: a class without an image has no recall.
- A class that is never predicted has precision 0 and F1 0, not an undefined one.
- A one-vs-rest score needs the class and its rest among the labels; where it is undefined it is None, never a guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from sklearn.metrics import auc, confusion_matrix, precision_recall_fscore_support, roc_curve

DECIMALS = 5  # of a stored rate: finer than any test set here


class Roc(NamedTuple):
    """One class against the rest."""

    false_positive_rate: np.ndarray  # [T] in [0, 1], rising from 0 to 1, collinear points left out
    true_positive_rate: np.ndarray  # [T]
    auc: float  # of the whole curve, in [0, 1]


class Classification(NamedTuple):
    """Macro averages in percent; confusion [Y, Y] counts images by true and predicted class."""

    accuracy: float
    precision: float
    recall: float
    f1: float
    false_positive_rate: float | None
    confusion: np.ndarray


def classification(scores: np.ndarray, labels: np.ndarray) -> Classification:
    """Accuracy, and macro precision, recall, F1 and false-positive rate, of the class with the highest score.

    Scores [N, Y] are probabilities or logits, the first of equals counts; ValueError without images.
    Of class c:  precision TP/(TP+FP), recall TP/(TP+FN), F1 their harmonic mean, false-positive rate FP/(FP+TN).
    """
    if len(labels) == 0:
        raise ValueError("metrics need at least one image")
    predicted, present = scores.argmax(1), np.unique(labels)
    confusion = confusion_matrix(labels, predicted, labels=range(scores.shape[1]))
    precision, recall, f1, _ = precision_recall_fscore_support(
        labels, predicted, labels=present, average="macro", zero_division=0
    )
    negatives = len(labels) - confusion.sum(1)
    wrong = confusion.sum(0) - confusion.diagonal()
    rates = [wrong[c] / negatives[c] for c in present if negatives[c]]
    return Classification(
        100 * float(confusion.trace()) / len(labels),
        100 * float(precision),
        100 * float(recall),
        100 * float(f1),
        100 * float(np.mean(rates)) if rates else None,
        confusion,
    )


def one_vs_rest(probabilities: np.ndarray, labels: np.ndarray) -> list[Roc | None]:
    """The ROC curve of each class by its probability: [Y]; None where a probability is not finite, or class or rest is absent."""
    return [_roc(probabilities[:, c], labels == c) for c in range(probabilities.shape[1])]


def _roc(scores: np.ndarray, positive: np.ndarray) -> Roc | None:
    if positive.all() or not positive.any() or not np.isfinite(scores).all():
        return None
    false_positive_rate, true_positive_rate, _ = roc_curve(positive, scores, drop_intermediate=True)
    return Roc(false_positive_rate, true_positive_rate, float(auc(false_positive_rate, true_positive_rate)))


def macro_auc(curves: Sequence[Roc | None]) -> float | None:
    """The mean area over the classes that have a curve, in [0, 1]; None when none has."""
    areas = [curve.auc for curve in curves if curve is not None]
    return float(np.mean(areas)) if areas else None


def mean_roc(curves: Sequence[tuple[Sequence[float], Sequence[float]]], grid: np.ndarray) -> np.ndarray:
    """Several ROC curves, each (false-positive rates, true-positive rates), as one by vertical averaging.

    Each true-positive rate is interpolated linearly at the false-positive rates `grid` [T] and averaged to [T] (Fawcett, Pattern
    Recognition Letters 2006, section 8.1). Where a curve rises vertically its upper end counts.
    """
    return np.mean([np.interp(grid, fpr, tpr) for fpr, tpr in curves], axis=0)


def relative_test_accuracy(accuracy: Sequence[float], local: Sequence[float]) -> list[float | None]:
    """RTA_i = acc_i(method) / acc_i(local) of each client, NFL-CGAN; above 1 federation helped. None where local's is 0."""
    return [a / b if b else None for a, b in zip(accuracy, local, strict=True)]


def gain_over_local(accuracy: Sequence[float], local: Sequence[float]) -> list[float]:
    """acc_i(method) - acc_i(local) of each client, in percentage points."""
    return [a - b for a, b in zip(accuracy, local, strict=True)]
