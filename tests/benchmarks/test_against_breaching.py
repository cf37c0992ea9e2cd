"""What `breaching` is handed is privbench's own problem; none of these tests needs the package."""

import sys

import pytest
import torch
import torch.nn.functional as F

from benchmarks import against_breaching as against
from benchmarks.against_breaching import Moment, Victim


def test_the_network_handed_over_has_the_observed_gradient():
    seen, truth = against.undefended("photos", 2)
    net = against.network(seen).double()
    for v in range(2):
        loss = F.cross_entropy(net(2 * truth.images[v].double() - 1), truth.labels[v])
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        observed = against.gradients_in_order(seen, v, net)
        assert len(gradients) == len(observed) == 10
        for g, o in zip(gradients, observed, strict=True):
            assert (g - o).norm() < 1e-5 * g.norm()


def test_tuning_images_are_no_victims():
    victims, tuning = (against.undefended("photos", 16, tuning=t)[1].images.flatten(1) for t in (False, True))
    assert torch.cdist(victims.double(), tuning.double()).min() > 0.1


def test_without_the_package_one_line_says_how_to_get_it(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "breaching", None)
    against.main(["--out", str(tmp_path / "never.json")])
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("not measured: ")
    assert against.INSTALL in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("workers", "target", "expected"),
    [
        # One victim passes 20 dB after 2 s and ends at 3 s.
        ([[[(1, 10), (2, 21), (3, 25)]]], 20, 2.0),
        # Equal time for both: after 2 s each the mean is (21 + 19) / 2, and one worker has spent twice that.
        ([[[(1, 10), (2, 21), (3, 25)], [(1, 9), (2, 19)]]], 20, 4.0),
        # The same victims on two workers.
        ([[[(1, 10), (2, 21), (3, 25)]], [[(1, 9), (2, 19)]]], 20, 2.0),
        # A victim that has ended is charged no more.
        ([[[(1, 10), (4, 26)], [(1, 15)]]], 20, 5.0),
        ([[[(1, 10), (2, 21)]]], 22, None),
    ],
)
def test_time_to_a_target(workers, target, expected):
    made = [[Victim([Moment(s, 2 * s, p) for s, p in moments], 1) for moments in victims] for victims in workers]
    assert against.reached(made, target) == expected
    doubled = None if expected is None else 2 * expected
    assert against.reached(made, target, "cpu_seconds") == doubled


def test_a_race_is_between_the_ways_with_the_lowest_median_that_get_there_every_time():
    def row(side, way, *seconds):
        targets = dict(zip(("15", "30"), seconds, strict=True))
        return against.Row(side, way, [20.0], [1], 9.0, 9.0, targets, targets)

    repetitions = [
        [
            row("breaching", "steady", 4.0, 9.0),
            row("breaching", "lucky", first, None),
            row("privbench", "only", 1.0, late),
        ]
        for first, late in ((1.0, 5.0), (8.0, None), (9.0, 7.0))
    ]
    low, high = against.races(repetitions)
    assert low == ("15", ("steady", [4.0, 4.0, 4.0]), ("only", [1.0, 1.0, 1.0]))
    assert low.breaching.median / low.privbench.median == 4
    assert high == ("30", ("steady", [9.0, 9.0, 9.0]), None)
