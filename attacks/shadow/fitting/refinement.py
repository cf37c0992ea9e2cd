"""A calibrated extractor refined by the client's other uploads, whose images nobody knows.

Known images leave an extractor open where they are few. The client's other uploads went through the same extractor: what no
probable image explains, the extractor must. The objective stands in extractor_descent.py, with the calibrated extractor as theta_0
and the images' prior that of inversion.py.

What a refinement is worth is measured as for the fit itself, on known images that are left out (held_out.py). Of these the features
stay, among those of unknown images, as those of the victims do.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attacks.features.inversion import ClassPrior
from attacks.shadow.fitting import calibration, extractor_descent
from attacks.shadow.fitting.calibration import TAU_OF_UNKNOWN, Candidate
from attacks.shadow.fitting.extractor_descent import Calibration, Pairs, Unknown, Uploads
from attacks.shadow.shadow_federation import ServerView
from privbench.tensors import Params
from privbench.types import Progress, no_progress


def kinds(
    how: Calibration,
    steps: int,
    prior: ClassPrior,
    starts: Sequence[Params],
    each: Sequence[Pairs],
    labels: Sequence[Tensor],
    view: ServerView,
    progress: Progress = no_progress,
) -> list[list[Candidate]]:
    """Every attacked client's fit, and that fit refined in `steps` (0: the fit alone)."""
    fits = calibration.calibrated(how, starts, each, progress)
    if not steps or not len(each[0].images):
        return [fits]
    uploads = [calibration.uploads_of(view, torch.nonzero(view.client == k)[:, 0]) for k in view.clients]
    return [fits, refined(how._replace(steps=steps), prior, fits, each, labels, uploads, progress)]


def refined(
    how: Calibration,
    prior: ClassPrior,
    fits: Sequence[Candidate],
    each: Sequence[Pairs],
    labels: Sequence[Tensor],
    uploads: Sequence[Uploads],
    progress: Progress = no_progress,
) -> list[Candidate]:
    """Every client's fit and those without some of its images, refined by its `uploads`; `labels` [n] are those of its images."""
    outs = calibration.folds(len(each[0].images))
    starts, known, unknown = [], [], []
    for fit, pairs, y, sent in zip(fits, each, labels, uploads, strict=True):
        starts += [fit.params, *fit.without.fits]
        known += [pairs, *(calibration.without(pairs, out) for out in outs)]
        unknown += [sent, *(with_left_out(sent, pairs, y, out, exact=how.exact) for out in outs)]
    ends = extractor_descent.most_probable(
        how, starts, known, Unknown(prior, unknown), progress, "refinement of extractors"
    )
    size = 1 + len(outs)
    return [
        Candidate(ends[size * k], calibration.judged(how, pairs, ends[size * k + 1 : size * (k + 1)]))
        for k, pairs in enumerate(each)
    ]


def with_left_out(sent: Uploads, pairs: Pairs, labels: Tensor, out: Tensor, *, exact: bool) -> Uploads:
    """What a client sent with the features of some known images [n] bool, as if nobody knew them."""
    left_out = Pairs(*(t[out.to(t.device)] for t in pairs))
    looser = left_out.precision * calibration.weights(left_out, TAU_OF_UNKNOWN, exact=exact)[:, None, None, None]
    more = left_out._replace(images=torch.zeros_like(left_out.images), precision=looser)
    joined = [torch.cat([a, b.to(a)]) for a, b in zip(sent.pairs, more, strict=True)]
    return Uploads(Pairs(*joined), torch.cat([sent.labels, labels[out].to(sent.labels)]))
