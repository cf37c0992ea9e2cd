"""How well a client's training images are told from others without any network: the blind baseline of membership.

Das, Zhang, Tramèr: Blind Baselines Beat Membership Inference Attacks for Foundation Models, arXiv 2406.16201. Where members and
non-members are of unlike kinds, whoever recognises the kind needs no network, and an attack's area under the ROC curve says nothing
of what the network reveals. The baseline is a classifier of pixels that is told, of four fifths of a client's candidates, which are
members. Its area on the last fifth, over all five, is about 1/2 where members and others are alike.

Ours: a support vector machine with a Gaussian kernel, one per client. Members and others of a class are as many in each fifth, as
they are among all candidates: else what the machine learns of a class in four fifths is the reverse of what holds in the last.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from sklearn.svm import SVC
from torch import Tensor

from privbench.scoring import membership
from privbench.types import Batch

FOLDS = 5
COST = 10.0  # of a candidate on the wrong side of the margin


def area(asked: Batch, members: Tensor) -> float:
    """The area under the ROC curve of one client's candidates [N], of which `members` [N] bool are its training images.

    1/2 where there are fewer than two of either kind.
    """
    inside = members.numpy()
    if min(inside.sum(), (~inside).sum()) < 2:
        return 0.5
    pixels: NDArray[np.float64] = asked.images.flatten(1).to(torch.float64).numpy()
    parts = PredefinedSplit(folds(asked.labels, members).numpy())
    scores = cross_val_predict(SVC(C=COST), pixels, inside, cv=parts, method="decision_function")
    return membership.auc(membership.recognition(scores[inside], scores[~inside]))


def folds(labels: Tensor, members: Tensor) -> Tensor:
    """The fold of each candidate, 0 to FOLDS - 1: [N]. Members, and others alike, are dealt out class after class."""
    fold = torch.empty_like(labels)
    for kind in (True, False):
        rows = (members == kind).nonzero()[:, 0]
        in_classes = rows[labels[rows].sort(stable=True).indices]
        fold[in_classes] = torch.arange(len(rows)) % FOLDS
    return fold
