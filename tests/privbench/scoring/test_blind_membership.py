"""The blind baseline: what tells members from others without any network, and that nothing does where both are alike."""

import pytest
import torch
from sklearn.svm import SVC

from privbench import presets
from privbench.execution.inferring import candidate_images
from privbench.observation import chosen_victims
from privbench.scoring import blind_membership, membership
from privbench.seeds import stream
from privbench.training import federation
from privbench.types import Batch


def candidates(pairs, shift=0.0, classes=10):
    """Random images of `pairs` members and as many others of the same classes, the others brighter by `shift`."""
    rng = stream(0, "blind", pairs)
    labels = torch.randint(classes, (pairs,), generator=rng).repeat(2)
    members = torch.arange(2 * pairs) < pairs
    brightness = 0.2 * torch.rand(2 * pairs, 1, 1, 1, generator=rng) + shift * ~members[:, None, None, None]
    images = brightness + 0.3 * torch.rand(2 * pairs, 1, 8, 8, generator=rng)
    order = torch.randperm(2 * pairs, generator=rng)
    return Batch(images[order], labels[order]), members[order]


def test_images_of_another_brightness_are_recognised_and_alike_ones_are_not():
    assert blind_membership.area(*candidates(60, 0.2)) > 0.9
    pairs = 100
    # Four standard deviations of an area by chance (Hanley and McNeil 1982).
    deviation = ((2 * pairs + 1) / (12 * pairs**2)) ** 0.5
    assert abs(blind_membership.area(*candidates(pairs)) - 0.5) < 4 * deviation


def test_every_score_is_of_a_machine_that_was_not_told_of_that_fold():
    asked, members = candidates(13, 0.1, classes=3)
    fold = blind_membership.folds(asked.labels, members)
    pixels, scores = asked.images.flatten(1).double().numpy(), torch.empty(26, dtype=torch.float64)
    for each in fold.unique():
        told, left = (fold != each).numpy(), (fold == each).numpy()
        machine = SVC(C=blind_membership.COST).fit(pixels[told], members.numpy()[told])
        scores[left] = torch.from_numpy(machine.decision_function(pixels[left]))
    order = membership.recognition(scores[members].numpy(), scores[~members].numpy())
    assert blind_membership.area(asked, members) == pytest.approx(membership.auc(order))


def test_a_fold_has_as_many_members_of_a_class_as_others():
    asked, members = candidates(37, classes=4)
    fold = blind_membership.folds(asked.labels, members)
    assert fold.unique().tolist() == list(range(blind_membership.FOLDS))
    for each in range(blind_membership.FOLDS):
        counts = [
            torch.bincount(asked.labels[(fold == each) & (members == kind)], minlength=4) for kind in (True, False)
        ]
        assert torch.equal(*counts)
        assert abs(int(counts[0].sum()) - 37 / blind_membership.FOLDS) < 1


def test_too_few_candidates_tell_nothing():
    asked, members = candidates(1)
    assert blind_membership.area(asked, members) == 0.5


def test_crops_of_other_strips_of_a_photograph_are_recognised_without_a_network():
    """Membership of `photos` was once asked of training and test crops; today's candidates are all training crops."""
    spec = presets.train_spec("quick", "photos", "fedavg", seed=7)
    fed, _ = federation.of(spec, None)
    victims = chosen_victims.choose_victims(fed, 8, 1, 7, spec.image_size, None)
    areas = []
    for test_alike in (True, False):
        asked = candidate_images.choose(fed._replace(test_alike=test_alike), victims, 7, spec.image_size)
        areas.append(blind_membership.area(Batch(*(t[0] for t in asked.candidates)), asked.members[0]))
    pairs = asked.members.shape[1] // 2
    assert areas[0] > 0.65
    assert abs(areas[1] - 0.5) < 4 * ((2 * pairs + 1) / (12 * pairs**2)) ** 0.5
