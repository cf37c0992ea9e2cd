"""Means of a record's entries over clients, seeds and victims; computed where they are asked for and stored nowhere.

Intervals are the reports' (privbench/scoring/statistics.py). docs/appendix/metrics.md defines every number of training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from privbench.records.entries import SeedTraining, Victim

TAIL = 0.05  # of victims, the most exposed
# Outcomes of which an answer shows nothing of the upload. What diverged is scored as grey.
UNATTACKED = ("gave up", "not applicable")
EXPOSED_DB = 20.0  # a reconstruction at which what is on a small picture can be seen


class Accuracy(NamedTuple):
    """Test accuracy in percent: of clients' measured models, each at its best validation round (FedMD-CG's L.acc), or others."""

    per_seed: list[float]  # mean over clients
    mean: float
    std: float | None  # over seeds; None for one seed
    per_client: list[list[float]]  # seed, client


def accuracy_of(seeds: Sequence[Sequence[float]]) -> Accuracy:
    """Of each seed's accuracies, one a client."""
    per_seed = [fmean(each) for each in seeds]
    std = stdev(per_seed) if len(per_seed) > 1 else None
    return Accuracy(per_seed, fmean(per_seed), std, [list(each) for each in seeds])


class Spread(NamedTuple):
    """A metric averaged over clients, then over seeds; None where it is undefined for one of them."""

    per_seed: list[float | None]
    mean: float | None
    std: float | None  # over seeds; None for one seed


class Averages(NamedTuple):
    """The metrics of all clients and seeds in one number each."""

    precision: Spread  # percent, as the next three
    recall: Spread
    f1: Spread
    false_positive_rate: Spread
    auc: Spread  # 0 to 1
    consistency: Spread  # nats; undefined for methods whose clients have no generator
    global_accuracy: Spread  # percent: FedMD-CG's G.acc


class Scores(NamedTuple):
    """Means over victims; None where one of them has no such number, as a mean over the others would flatter."""

    psnr_db: float
    psnr_raw_db: float | None
    ssim: float
    lpips: float | None
    feature_error: float | None
    identification: float
    identification_chance: float  # of one and the same image returned for every victim of a seed
    # Of the floor that identifies most: who knows a label and returns the class mean may identify more than by chance. None where
    # a record does not say.
    identification_floor: float | None
    label_accuracy: float
    # Mean PSNR of the TAIL of victims that are reconstructed best, who are the most exposed; at least one.
    worst_db: float
    exposed: float  # share of victims reconstructed at more than EXPOSED_DB
    n: int
    failures: int  # gave up or diverged
    not_applicable: int

    @property
    def applied(self) -> bool:
        """Whether there was a victim to which the attack applies."""
        return self.not_applicable < self.n


class Floor(NamedTuple):
    """The best of the no-information floors."""

    name: str
    psnr_db: float


def scores_of(victims: Sequence[Victim]) -> Scores:
    """Means over some victims, at least one."""
    return Scores(
        psnr_db=fmean([v.psnr_db for v in victims]),
        psnr_raw_db=mean([v.psnr_raw_db for v in victims]),
        ssim=fmean([v.ssim for v in victims]),
        lpips=mean([v.lpips for v in victims]),
        feature_error=mean([v.feature_error for v in victims]),
        identification=fmean([v.identification for v in victims]),
        identification_chance=len({v.seed for v in victims}) / len(victims),
        identification_floor=max((fmean(each) for each in floors_identified(victims).values()), default=None),
        label_accuracy=fmean([v.label_accuracy for v in victims]),
        worst_db=fmean(sorted((v.psnr_db for v in victims), reverse=True)[: math.ceil(TAIL * len(victims))]),
        exposed=fmean([v.psnr_db > EXPOSED_DB for v in victims]),
        n=len(victims),
        failures=sum(v.failed for v in victims),
        not_applicable=sum(v.outcome == "not applicable" for v in victims),
    )


def floors_identified(victims: Sequence[Victim]) -> dict[str, list[float]]:
    """Floor -> the share of each victim's originals that it identifies; nothing where a victim's record does not say."""
    each = [v.floors_identified or {} for v in victims]
    return {name: [of[name] for of in each] for name in each[0] if all(name in of for of in each)}


def floors_of(victims: Sequence[Victim]) -> dict[str, float]:
    """The mean of each floor that every victim has."""
    names = [name for name in victims[0].floors if all(name in v.floors for v in victims)]
    return {name: fmean([v.floors[name] for v in victims]) for name in names}


def best_floor(victims: Sequence[Victim]) -> Floor:
    """The floor with the highest mean."""
    floors = floors_of(victims)
    name = max(floors, key=lambda name: floors[name])
    return Floor(name, floors[name])


def gains(victims: Sequence[Victim], floor: str) -> list[float]:
    """What each victim's PSNR is over that floor, dB.

    Where an attack gave up or did not apply, it returns a mean of images that it knows, or grey. If such answers are better than
    the floor in the mean, they are a better floor and no gain: each counts as 0. Worse ones count as they are.
    """
    over = [v.psnr_db - v.floors[floor] for v in victims]
    answers = [gain for gain, v in zip(over, victims, strict=True) if v.outcome in UNATTACKED]
    if not answers or fmean(answers) <= 0:
        return over
    return [0.0 if v.outcome in UNATTACKED else gain for gain, v in zip(over, victims, strict=True)]


def averages(trainings: Sequence[SeedTraining]) -> Averages:
    """Each metric's mean over the clients of each seed, with mean and standard deviation over seeds."""
    names = [name for name in Averages._fields if name != "global_accuracy"]
    spreads = {name: spread([mean([getattr(c, name) for c in t.clients]) for t in trainings]) for name in names}
    return Averages(**spreads, global_accuracy=spread([t.global_accuracy for t in trainings]))


def spread(per_seed: Sequence[float | None]) -> Spread:
    """Mean and standard deviation (n - 1) over seeds."""
    whole = [value for value in per_seed if value is not None]
    std = stdev(whole) if len(whole) == len(per_seed) > 1 else None
    return Spread(per_seed=list(per_seed), mean=mean(per_seed), std=std)


def mean(values: Sequence[float | None]) -> float | None:
    """The mean, or None where a part is missing: a mean over the rest would flatter."""
    whole = [value for value in values if value is not None]
    return fmean(whole) if whole and len(whole) == len(values) else None
