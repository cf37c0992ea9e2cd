"""Scores of vectors: hand values, the order of a batch, and a victim that failed."""

import pytest
import torch

from privbench.scoring import feature_scores
from privbench.scoring.feature_scores import FeatureScale
from privbench.types import Reconstruction, Truth

SCALE = FeatureScale(torch.tensor([0.5, 0.0]), torch.tensor([0.5, 2.0]))


def vectors(rows):
    """[V, B, D, 1, 1]."""
    return torch.tensor(rows)[..., None, None]


def scores_of(made, true, scale=SCALE):
    images = vectors(made)
    empty = torch.zeros(len(images))
    labels = torch.zeros(images.shape[:2], dtype=torch.int64)
    reconstruction = Reconstruction(images, labels, empty, empty[:, None], empty.long(), 0)
    return feature_scores.score(reconstruction, Truth(vectors(true), labels), scale)


def test_an_error_is_in_standard_deviations_and_r2_is_relative_to_the_mean():
    scores = scores_of([[[1.5, 2.0]], [[0.5, 0.0]], [[1.0, 4.0]]], [[[1.0, 4.0]]] * 3)
    # Deviations of the truth from the mean: 1 and 2 standard deviations; errors 1 and 1, then 1 and 2, then none.
    assert scores.error.tolist() == pytest.approx([1.0, 1.5, 0.0])
    assert scores.r2.tolist() == pytest.approx([1 - 2 / 5, 0.0, 1.0])
    assert not scores.failed.any()


def test_the_order_of_a_batch_is_free_and_a_victim_that_failed_scores_as_the_means():
    scores = scores_of([[[1.0, 4.0], [2.0, 8.0]], [[float("nan"), 0.0], [1.0, 4.0]]], [[[2.0, 8.0], [1.0, 4.0]]] * 2)
    assert scores.failed.tolist() == [False, True]
    assert scores.error[0] == 0
    assert scores.r2.tolist() == pytest.approx([1.0, 0.0])


def test_a_scale_is_that_of_rows_and_one_row_has_none():
    scale = feature_scores.scale_of(vectors([[1.0, 2.0], [3.0, 2.0]]))
    assert scale.mean.tolist() == [2.0, 2.0]
    assert scale.std.tolist() == pytest.approx([2**0.5, 0.0])
    assert scale.varying.tolist() == [True, False]
    assert feature_scores.scale_of(vectors([[1.0, 2.0]])) is None
    assert feature_scores.scale_of(vectors([[1.0, 2.0], [1.0, 2.0]])) is None


def test_a_constant_feature_counts_nowhere_however_far_it_is():
    # 0.3 in single precision is one number, whose standard deviation in double precision need not be 0.
    rows = vectors([[1.0, 0.3], [3.0, 0.3], [2.0, 0.3]])
    scale = feature_scores.scale_of(rows)
    assert scale.varying.tolist() == [True, False]
    made, true = [[[1.0, 9.0], [3.0, -9.0]]], [[[3.0, 0.3], [1.0, 0.3]]]
    scores = scores_of(made, true, scale)
    # The order too is decided by the first feature alone.
    assert scores.error.tolist() == [0.0]
    assert scores.r2.tolist() == [1.0]
    # But who returns no number there has failed.
    assert scores_of([[[1.0, float("nan")], [3.0, 0.3]]], true, scale).failed.tolist() == [True]
