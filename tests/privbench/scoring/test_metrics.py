"""Metrics of classification: against hand values, plain loops, and where they are not defined."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privbench.records import summary
from privbench.scoring import metrics
from privbench.training.state import Prediction

# Six images of classes 0, 0, 0, 1, 1, 2; predicted 0, 0, 1, 1, 0, 2.
LABELS = np.array([0, 0, 0, 1, 1, 2])
SCORES = np.array(
    [[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.3, 0.6, 0.1], [0.1, 0.8, 0.1], [0.5, 0.4, 0.1], [0.2, 0.1, 0.7]]
)


def test_a_small_case_by_hand():
    measured = metrics.classification(SCORES, LABELS)
    assert measured.confusion.tolist() == [[2, 1, 0], [1, 1, 0], [0, 0, 1]]  # true class, predicted class
    assert measured.accuracy == pytest.approx(100 * 4 / 6)
    assert measured.precision == pytest.approx(100 * (2 / 3 + 1 / 2 + 1) / 3)
    assert measured.recall == pytest.approx(100 * (2 / 3 + 1 / 2 + 1) / 3)
    assert measured.f1 == pytest.approx(100 * (2 / 3 + 1 / 2 + 1) / 3)
    assert measured.false_positive_rate == pytest.approx(100 * (1 / 3 + 1 / 4 + 0) / 3)


def test_a_roc_curve_by_hand():
    """Of class 0: scores 0.7+ 0.6+ 0.5- 0.3+ 0.2- 0.1-; eight of nine pairs stand in order."""
    curve = metrics.one_vs_rest(SCORES, LABELS)[0]
    assert curve.auc == pytest.approx(8 / 9)
    assert curve.false_positive_rate.tolist() == pytest.approx([0, 0, 0, 1 / 3, 1 / 3, 1])
    assert curve.true_positive_rate.tolist() == pytest.approx([0, 1 / 3, 2 / 3, 2 / 3, 1, 1])


def loops(scores, labels):
    """The same numbers by counting."""
    n, classes = scores.shape
    predicted = [max(range(classes), key=lambda c: scores[i, c]) for i in range(n)]
    confusion = [[0] * classes for _ in range(classes)]
    for true, guess in zip(labels, predicted, strict=True):
        confusion[true][guess] += 1
    precisions, recalls, f1s, rates, areas = [], [], [], [], []
    for c in range(classes):
        tp = sum(t == c == p for t, p in zip(labels, predicted, strict=True))
        fp = sum(t != c == p for t, p in zip(labels, predicted, strict=True))
        fn = sum(t == c != p for t, p in zip(labels, predicted, strict=True))
        tn = n - tp - fp - fn
        if tp + fn:
            precisions.append(tp / (tp + fp) if tp + fp else 0)
            recalls.append(tp / (tp + fn))
            f1s.append(2 * tp / (2 * tp + fp + fn))
            if fp + tn:
                rates.append(fp / (fp + tn))
        of_class, rest = scores[labels == c, c], scores[labels != c, c]
        pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a in of_class for b in rest]  # Mann-Whitney
        areas.append(sum(pairs) / len(pairs) if pairs else None)
    mean = [100 * sum(v) / len(v) if v else None for v in (precisions, recalls, f1s, rates)]
    accuracy = 100 * sum(t == p for t, p in zip(labels, predicted, strict=True)) / n
    return confusion, accuracy, *mean, areas


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 30), classes=st.integers(2, 6), levels=st.integers(2, 50))
def test_metrics_equal_a_plain_count(seed, n, classes, levels):
    """Coarse levels make ties, few images leave classes out, or leave one alone."""
    rng = np.random.default_rng(seed)
    scores, labels = rng.integers(levels, size=(n, classes)) / levels, rng.integers(classes, size=n)
    measured, curves = metrics.classification(scores, labels), metrics.one_vs_rest(scores, labels)
    confusion, accuracy, precision, recall, f1, rate, areas = loops(scores, labels)
    assert measured.confusion.tolist() == confusion
    assert (measured.accuracy, measured.precision, measured.recall, measured.f1) == pytest.approx(
        (accuracy, precision, recall, f1)
    )
    assert measured.false_positive_rate == (None if rate is None else pytest.approx(rate))
    assert [None if c is None else c.auc for c in curves] == [None if a is None else pytest.approx(a) for a in areas]
    defined = [a for a in areas if a is not None]
    assert metrics.macro_auc(curves) == (pytest.approx(sum(defined) / len(defined)) if defined else None)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(2, 60))
def test_a_thinned_curve_passes_through_the_rates_of_every_threshold(seed, n):
    rng = np.random.default_rng(seed)
    scores, labels = rng.integers(9, size=(n, 2)) / 9, rng.integers(2, size=n)
    curve = metrics.one_vs_rest(scores, labels)[1]
    if curve is None:
        return
    corners = list(zip(curve.false_positive_rate, curve.true_positive_rate, strict=True))
    assert (corners[0], corners[-1]) == ((0, 0), (1, 1))
    for threshold in np.unique(scores[:, 1]):
        above = scores[:, 1] >= threshold
        x, y = (above & (labels == 0)).sum() / (labels == 0).sum(), (above & (labels == 1)).sum() / (labels == 1).sum()
        on_a_segment = [
            ax - 1e-9 <= x <= bx + 1e-9
            and ay - 1e-9 <= y <= by + 1e-9
            and abs((bx - ax) * (y - ay) - (by - ay) * (x - ax)) < 1e-9
            for (ax, ay), (bx, by) in pairwise(corners)
        ]
        assert any(on_a_segment)


def test_a_class_without_an_image_takes_no_part_and_one_without_a_rest_has_no_curve():
    measured = metrics.classification(SCORES[:3], LABELS[:3])  # all of class 0, one called 1
    assert (measured.precision, measured.recall) == pytest.approx((100, 100 * 2 / 3))
    assert measured.false_positive_rate is None
    assert metrics.one_vs_rest(SCORES[:3], LABELS[:3]) == [None, None, None]
    assert metrics.macro_auc([None, None]) is None
    with pytest.raises(ValueError, match="at least one image"):
        metrics.classification(SCORES[:0], LABELS[:0])


def test_curves_are_averaged_vertically():
    steep, diagonal = ([0, 0, 1], [0, 1, 1]), ([0, 1], [0, 1])
    mean = metrics.mean_roc([steep, diagonal], np.linspace(0, 1, 5))
    assert mean.tolist() == [0.5, 0.625, 0.75, 0.875, 1]


def test_relative_test_accuracy_and_gain_by_hand():
    assert metrics.relative_test_accuracy([60.0, 30.0, 10.0], [50.0, 40.0, 0.0]) == [1.2, 0.75, None]
    assert metrics.gain_over_local([60.0, 30.0], [50.0, 40.0]) == [10.0, -10.0]
    with pytest.raises(ValueError, match="zip"):
        metrics.gain_over_local([60.0], [50.0, 40.0])


def test_what_a_client_s_logits_say_is_stored_in_units_of_the_record():
    logits = torch.tensor(SCORES, dtype=torch.float64).log().float()
    stored = summary.client_metrics(Prediction(logits, torch.tensor(LABELS)), 4, 0.25)
    by_hand = metrics.classification(SCORES, LABELS)
    assert (stored.round, stored.samples, stored.consistency) == (4, 6, 0.25)
    assert (stored.accuracy, stored.f1) == (by_hand.accuracy, by_hand.f1)
    assert stored.confusion == by_hand.confusion.tolist()
    assert stored.auc_by_class[0] == pytest.approx(8 / 9)
    assert stored.auc == pytest.approx(sum(stored.auc_by_class) / 3)
    assert stored.roc[0].false_positive_rate == [0.0, 0.0, 0.0, 0.33333, 0.33333, 1.0]
    for curve, area in zip(stored.roc, stored.auc_by_class, strict=True):
        assert np.trapezoid(curve.true_positive_rate, curve.false_positive_rate) == pytest.approx(area, abs=1e-4)


def test_networks_that_diverged_have_an_accuracy_but_no_curve():
    logits = torch.tensor(SCORES, dtype=torch.float32)
    logits[2] = math.nan
    stored = summary.client_metrics(Prediction(logits, torch.tensor(LABELS)), 1, math.nan)
    assert stored.accuracy == pytest.approx(
        100 * 5 / 6
    )  # the largest of a row of nan is its first: class 0, by luck right
    assert (stored.auc, stored.roc, stored.consistency) == (None, [None] * 3, None)
