"""Who is first at a target, and what it took."""

import pytest

from benchmarks import races
from benchmarks.races import Moment, Row, Victim


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
    runs = [[Victim([Moment(s, 2 * s, p) for s, p in moments], 1) for moments in victims] for victims in workers]
    assert races.reached(runs, target) == expected
    doubled = None if expected is None else 2 * expected
    assert races.reached(runs, target, "cpu_seconds") == doubled


def test_a_race_is_between_the_ways_with_the_lowest_median_that_get_there_every_time():
    def row(side, way, *seconds):
        targets = dict(zip(("15", "30"), seconds, strict=True))
        return Row(side, way, [20.0], [1], 9.0, 9.0, targets, targets)

    repetitions = [
        [
            row("breaching", "steady", 4.0, 9.0),
            row("breaching", "lucky", first, None),
            row("privbench", "only", 1.0, late),
        ]
        for first, late in ((1.0, 5.0), (8.0, None), (9.0, 7.0))
    ]
    low, high = races.all_targets(repetitions)
    assert low == ("15", ("steady", [4.0, 4.0, 4.0]), ("only", [1.0, 1.0, 1.0]))
    assert low.breaching.median / low.privbench.median == 4
    assert high == ("30", ("steady", [9.0, 9.0, 9.0]), None)
