"""What gradients and updates tell of a client's label distribution."""

import dataclasses

import pytest
import torch
from scipy.stats import dirichlet_multinomial

from attacks import label_distribution
from attacks.label_distribution import LabelDistribution, counted, shrunk
from privbench.scoring.statement_scores import total_variation
from privbench.types import Knowledge, LocalSteps
from tests.builders.small_artifacts import artifact, digits, update

# Two clients that have no class in common.
COUNTS = torch.tensor([[5, 3, 0, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 1, 0, 2, 4]])
LABELS = torch.cat([torch.arange(10).repeat_interleave(each) for each in COUNTS])
OWNER = torch.tensor([0, 1]).repeat_interleave(8)


def images_of(labels):
    """A test digit of each label."""
    every = digits(300)
    return torch.stack([every.images[(every.labels == label).nonzero()[0, 0]] for label in labels.tolist()])


@pytest.mark.parametrize("parts", [("extractor", "classifier"), ("classifier",)])
def test_labels_of_single_images_are_counted_exactly(parts):
    seen = dataclasses.replace(artifact(images_of(LABELS), LABELS, parts), client=OWNER)
    assert torch.equal(counted(seen), COUNTS.double())
    stated = LabelDistribution().infer(seen, Knowledge(), 0)
    assert torch.equal(stated.answers, shrunk(COUNTS.double()))
    assert float(total_variation(stated.answers, COUNTS.double() / 8).max()) < 0.2


@pytest.mark.parametrize("lost", [torch.nan, torch.inf, 0.0])
def test_an_upload_that_failed_says_nothing_of_its_labels(lost):
    seen = dataclasses.replace(artifact(images_of(LABELS), LABELS), client=OWNER)
    rows = torch.tensor([1, 9])
    for net in seen.gradients.values():
        for t in net.values():
            t[rows] = lost
    wanted = COUNTS.clone()
    for row in rows.tolist():
        wanted[OWNER[row], LABELS[row]] -= 1
    assert torch.equal(counted(seen), wanted.double())


def test_labels_of_whole_updates_are_counted_exactly():
    seen = update(images_of(LABELS), LABELS, LocalSteps(2, {"kind": "sgd", "lr": 0.01, "weight_decay": 0.0}))
    assert torch.equal(counted(dataclasses.replace(seen, client=OWNER)), COUNTS.double())


@pytest.mark.parametrize("lost", [torch.nan, 0.0])
def test_a_lost_update_of_a_batch_that_adam_moved_says_nothing_of_its_labels(lost):
    adam = LocalSteps(2, {"lr": 0.003, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0})
    seen = dataclasses.replace(update(images_of(LABELS), LABELS, adam, batch_size=4), client=OWNER[::4])
    whole = counted(seen)
    for net in seen.updates.values():
        for t in net.values():
            t[1] = lost
    left = counted(seen)
    assert left.sum(1).tolist() == [4, 8]
    assert (left[0] <= whole[0]).all()
    assert torch.equal(left[1], whole[1])


def test_labels_that_are_known_are_read():
    seen = dataclasses.replace(artifact(images_of(LABELS), LABELS, known=True), client=OWNER)
    assert torch.equal(counted(dataclasses.replace(seen, gradients={})), COUNTS.double())


def test_label_counts_that_a_client_sends_are_not_read():
    seen = dataclasses.replace(artifact(images_of(LABELS), LABELS), client=OWNER)
    lying = dataclasses.replace(seen, label_counts=torch.ones(2, 10, dtype=torch.int64))
    assert torch.equal(counted(seen), counted(lying))


def test_clients_that_are_alike_get_what_all_have_in_common():
    """With counts in proportion, the likeliest prior is the narrowest; with few counts it decides."""
    stated = shrunk(torch.tensor([[4.0, 2, 2], [40, 20, 20], [4, 2, 2]]).double())
    assert float(total_variation(stated, torch.tensor([0.5, 0.25, 0.25])).max()) < 0.01


def test_many_counts_of_unlike_clients_stand_for_themselves():
    counts = torch.tensor([[1000.0, 0, 0], [0, 1000, 0], [0, 0, 1000]]).double()
    assert float(total_variation(shrunk(counts), counts / 1000).max()) < 0.001


def test_the_evidence_is_that_of_the_dirichlet_multinomial_distribution():
    counts = torch.tensor([[3.0, 1, 0], [0, 2, 5]]).double()
    strengths = torch.tensor([[0.5, 1, 2], [3.0, 0.25, 1]]).double()
    ours = [float(label_distribution._evidence(counts, each)) for each in strengths]
    theirs = [
        sum(dirichlet_multinomial.logpmf(row.int().numpy(), each.numpy(), int(row.sum())) for row in counts)
        for each in strengths
    ]
    assert ours[0] - ours[1] == pytest.approx(theirs[0] - theirs[1], rel=1e-9)
