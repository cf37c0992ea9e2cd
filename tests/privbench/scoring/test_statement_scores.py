"""Scores of statements."""

import pytest
import torch

from privbench.scoring.statement_scores import of_label_distributions, total_variation


def test_total_variation_of_distributions_by_hand():
    p = torch.tensor([0.5, 0.5, 0.0])
    assert float(total_variation(p, p)) == 0
    assert float(total_variation(p, torch.tensor([0.0, 0.0, 1.0]))) == 1
    assert float(total_variation(p, torch.tensor([0.25, 0.5, 0.25]))) == 0.25


def test_a_statement_is_scored_beside_what_anybody_could_state():
    """The second of three clients: 3 of its 4 images are of class 0, and 3 of all 12."""
    stated = torch.tensor([[0.5, 0.5]]).double()
    [one] = of_label_distributions(stated, [1], torch.tensor([[0, 4], [3, 1], [0, 4]]))
    assert one.true == [0.75, 0.25]
    assert one.score == one.floors["uniform"] == pytest.approx(0.25)
    assert one.floors["average"] == pytest.approx(0.5)
