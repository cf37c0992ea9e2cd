"""A race to a given PSNR: what each way of attacking the same victims spent until their mean PSNR passed it, and who was first."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

TARGETS_DB = (15.0, 18.0, 20.0, 22.0, 24.0, 26.0, 28.0, 30.0)


class Moment(NamedTuple):
    """How far one victim had come at one moment of its own run."""

    seconds: float
    cpu_seconds: float
    psnr_db: float


class Victim(NamedTuple):
    """One victim's run; its moments begin with the start and end with the reconstruction that was returned."""

    moments: list[Moment]
    evaluations: int


def reached(workers: Sequence[Sequence[Victim]], target_db: float, clock: str = "seconds") -> float | None:
    """Seconds of the slowest worker until the mean PSNR of all victims passes the target; None if it never does.

    Every victim gets the same time t, or less where its run ends sooner; the smallest t that does is taken.
    """
    moments = [victim.moments for victims in workers for victim in victims]
    for t in sorted({getattr(moment, clock) for run in moments for moment in run}):
        latest = [[moment.psnr_db for moment in run if getattr(moment, clock) <= t] for run in moments]
        if all(latest) and sum(psnr_db[-1] for psnr_db in latest) >= target_db * len(moments):
            return max(sum(min(t, getattr(victim.moments[-1], clock)) for victim in victims) for victims in workers)
    return None


@dataclass
class Row:
    """One way of attacking the victims."""

    side: str
    way: str
    psnr_db: list[float]
    evaluations: list[int]
    seconds: float  # of the slowest worker
    cpu_seconds: float
    to_target: dict[str, float | None]  # seconds until the mean PSNR passes so many dB
    cpu_to_target: dict[str, float | None]

    @property
    def mean_db(self) -> float:
        """Mean PSNR of the reconstructions returned."""
        return sum(self.psnr_db) / len(self.psnr_db)


def summarise(side: str, way: str, workers: Sequence[Sequence[Victim]]) -> Row:
    """A row of the table from the victims of every worker."""
    victims = [victim for share in workers for victim in share]
    wall, cpu = (max(sum(v.moments[-1][clock] for v in share) for share in workers) for clock in (0, 1))
    return Row(
        side, way, [v.moments[-1].psnr_db for v in victims], [v.evaluations for v in victims], wall, cpu,
        {f"{t:g}": reached(workers, t) for t in TARGETS_DB},
        {f"{t:g}": reached(workers, t, "cpu_seconds") for t in TARGETS_DB},
    )  # fmt: skip


class Reach(NamedTuple):
    """The way of one side that passes a target in the fewest CPU seconds, by the median of its repetitions."""

    way: str
    cpu_seconds: list[float]  # of every repetition

    @property
    def median(self) -> float:
        """CPU seconds."""
        return statistics.median(self.cpu_seconds)


class Race(NamedTuple):
    """Who passes a target first; None where no way of that side gets there in every repetition."""

    target: str
    breaching: Reach | None
    privbench: Reach | None


def fastest(repetitions: Sequence[Sequence[Row]], side: str, target: str) -> Reach | None:
    """The best way of one side to a target; every repetition holds the same ways in the same order."""
    reaches = []
    for same in zip(*repetitions, strict=True):
        spent = [row.cpu_to_target[target] for row in same if row.side == side]
        times = [cpu for cpu in spent if cpu is not None]
        if len(times) == len(repetitions):
            reaches.append(Reach(same[0].way, times))
    return min(reaches, key=lambda each: each.median) if reaches else None


def all_targets(repetitions: Sequence[Sequence[Row]]) -> list[Race]:
    """A race for every target.

    CPU seconds of a one-thread process are its seconds on an idle machine, whatever else runs now.
    """
    targets = repetitions[0][0].cpu_to_target
    return [Race(t, *(fastest(repetitions, side, t) for side in ("breaching", "privbench"))) for t in targets]


def table(title: str, left_columns: Sequence[str], right_columns: Sequence[str]) -> Table:
    """An empty table with words to the left and numbers to the right."""
    result = Table(title=title)
    for column in left_columns:
        result.add_column(column, no_wrap=True)
    for column in right_columns:
        result.add_column(column, justify="right")
    return result


def show(rows: Sequence[Row], title: str) -> None:
    """Prints where every way ends, and who passes each target first."""
    console = Console(width=120)
    numbers = ("mean dB", "worst dB", "s / victim", "CPU s / victim", "evaluations")
    ends = table(title, ("", "way"), numbers)
    for row in rows:
        n = len(row.psnr_db)
        seconds = (f"{total / n:.3f}" for total in (row.seconds, row.cpu_seconds))
        evaluations = f"{sum(row.evaluations) / n:.0f}"
        ends.add_row(row.side, row.way, f"{row.mean_db:.2f}", f"{min(row.psnr_db):.1f}", *seconds, evaluations)
    console.print(ends)
    race = table(
        "CPU s until the mean PSNR of all victims passes", ("dB", "breaching", "privbench"), ("CPU s", "CPU s", "x")
    )
    for target, *sides in all_targets([rows]):
        breaching, privbench = sides
        ratio = f"{breaching.median / privbench.median:.1f}" if breaching and privbench else "-"
        names = (each.way if each else "never" for each in sides)
        race.add_row(target, *names, *(f"{each.median:.2f}" if each else "-" for each in sides), ratio)
    console.print(race)
