"""Scores of generators of images as reports state them: means over clients and seeds, each with its 95% interval.

The interval is that over seeds (privbench/scoring/statistics.py). Seeds may be asked about the same held-out images, so that the
variance of a client's resamples is added as one that they share. Of precision these are generated images, which no two generators
share: their number divides the variance, which keeps 0 of n from being sure. Precision and recall are taken against the test
images as they are: other test images would give other manifolds, which the interval does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from statistics import fmean
from typing import NamedTuple

from privbench.records.entries import ClientMetrics, Generators, GeneratorScores, Membership, RealImages, SeedResult
from privbench.records.schema import Record
from privbench.scoring import membership
from privbench.scoring.membership import Rates, Recognition
from privbench.scoring.statistics import Interval, interval
from reports.records.labels import unique

LOW, HIGH = 0.01, 0.1  # false-positive rates
SERVER = ", server's"  # behind the name of a row


class Scored(NamedTuple):
    """One generator against one client's images."""

    seed: int
    client: int
    scores: GeneratorScores
    real: RealImages
    # Trained on its images; None of a client's generator where the server has one, from which the classifiers then learn.
    classifier: ClientMetrics | None
    test_images: int

    @property
    def name(self) -> str:
        """What its resamples are drawn by."""
        return f"{self.seed}/{self.client}"


Statistic = Callable[[Scored], tuple[float, Rates] | None]  # a number in [0, 1] with what it is on resamples


def with_scores(records: Sequence[Record]) -> list[Record]:
    """The records whose generators were scored."""
    return [r for r in records if any(seed.generators is not None for seed in r.seeds)]


def holders(record: Record) -> list[str]:
    """Whose generators were scored: "client", and "server" where it has one."""
    return unique(each.holder for generators in _of(record) for each in generators.each)


def of_holder(record: Record, holder: str) -> list[Scored]:
    """The clients' generators, or the server's, against the images of every client of every seed."""
    learnt_from = holders(record)[-1]
    return [
        _scored(seed, seed.generators, each, measured=holder == learnt_from)
        for seed in record.seeds
        if seed.generators is not None
        for each in seed.generators.each
        if each.holder == holder
    ]


def _scored(seed: SeedResult, scores: Generators, each: GeneratorScores, *, measured: bool) -> Scored:
    classifier = seed.training.clients[each.client]
    real = scores.real[each.client]
    return Scored(seed.seed, each.client, each, real, classifier if measured else None, classifier.samples)


def _of(record: Record) -> list[Generators]:
    return [seed.generators for seed in record.seeds if seed.generators is not None]


def mean(scored: Sequence[Scored], statistic: Statistic, scale: float = 1.0) -> Interval | None:
    """Of a statistic over some clients and seeds, times `scale`; None where one of them has no such number."""
    each = [statistic(one) for one in scored]
    present = [one for one in each if one is not None]
    if not present or len(present) < len(each):
        return None
    variance = fmean(membership.error_variance(*each) for each in present)
    # Generated images are no other generator's.
    variance /= len(present) if statistic is precision else 1
    share = interval([value for value, _ in present], scored, shared_variance=variance).within(0, 1)
    return Interval(scale * share.mean, scale * share.low, scale * share.high, share.seeds)


def accuracy(one: Scored) -> tuple[float, Rates] | None:
    """Of the classifier that was trained on generated images."""
    return None if one.classifier is None else _accuracy(one.classifier.accuracy, one)


def real_accuracy(one: Scored) -> tuple[float, Rates] | None:
    """Of the same one trained on the client's real images."""
    return None if one.real.accuracy is None else _accuracy(one.real.accuracy, one)


def _accuracy(percent: float, one: Scored) -> tuple[float, Rates]:
    return _share(round(percent / 100 * one.test_images), one.test_images, one.name)


def precision(one: Scored) -> tuple[float, Rates]:
    """Of generated images."""
    return _share(one.scores.manifolds.precise, one.scores.manifolds.images, one.name)


def recall(one: Scored) -> tuple[float, Rates]:
    """The same."""
    return _share(one.scores.manifolds.recalled, one.scores.manifolds.images, one.name)


def real_precision(one: Scored) -> tuple[float, Rates]:
    """Of the client's training images."""
    return _share(one.real.manifolds.precise, one.real.manifolds.images, one.name)


def real_recall(one: Scored) -> tuple[float, Rates]:
    """The same."""
    return _share(one.real.manifolds.recalled, one.real.manifolds.images, one.name)


def _share(hits: int, count: int, name: str) -> tuple[float, Rates]:
    return hits / count, membership.share_resamples(hits, count, name)


class AttackForm(NamedTuple):
    """One kind of membership inference."""

    name: str
    calibrated: bool

    def __str__(self) -> str:
        return f"{self.name}, calibrated" if self.calibrated else self.name


def attacks(scored: Sequence[Scored]) -> list[AttackForm]:
    """Those that were made on every one of some generators."""
    each = [[AttackForm(m.attack, m.calibrated) for m in one.scores.membership] for one in scored]
    return [form for form in unique(form for forms in each for form in forms) if all(form in forms for forms in each)]


def strongest_form(scored: Sequence[Scored], name: str) -> AttackForm | None:
    """Of one attack the calibrated form, where it was made: chosen by what the attacker knows, not by its success."""
    forms = [attack for attack in attacks(scored) if attack.name == name]
    return max(forms, key=lambda attack: attack.calibrated, default=None)


def recognition(one: Scored, attack: AttackForm) -> tuple[Membership, Recognition]:
    """What that attack gave of a generator, and the order behind its curve."""
    result = next(m for m in one.scores.membership if (m.attack, m.calibrated) == attack)
    return result, _order(_curve(result))


def auc(attack: AttackForm) -> Statistic:
    """The area under the attack's curve."""
    return lambda one: _auc(_curve(recognition(one, attack)[0]), f"{one.name}/{attack}")


def true_positive_rate(attack: AttackForm, rate: float) -> Statistic:
    """The share of members that the attack recognises at a false-positive rate."""
    return lambda one: _rate(_curve(recognition(one, attack)[0]), rate, f"{one.name}/{attack}/{rate}")


class _Curve(NamedTuple):
    """A curve by which resamples are remembered: a report states them in several tables."""

    false_positive_rate: tuple[float, ...]
    true_positive_rate: tuple[float, ...]
    members: int
    non_members: int


def _curve(result: Membership) -> _Curve:
    roc = result.roc
    return _Curve(tuple(roc.false_positive_rate), tuple(roc.true_positive_rate), result.members, result.non_members)


def _order(curve: _Curve) -> Recognition:
    return membership.of_curve(*curve)


@lru_cache(maxsize=4096)
def _auc(curve: _Curve, name: str) -> tuple[float, Rates]:
    order = _order(curve)
    return membership.auc(order), membership.auc_resamples(order, name)


@lru_cache(maxsize=4096)
def _rate(curve: _Curve, rate: float, name: str) -> tuple[float, Rates]:
    order = _order(curve)
    hits = membership.true_positives(order, rate)
    return hits / curve.members, membership.rate_resamples(order, rate, name)


def p_value(one: Scored, attack: AttackForm, rate: float) -> float:
    """Probability by chance of so many recognised members or more."""
    return membership.by_chance(recognition(one, attack)[1], rate)


def recognised(scored: Sequence[Scored], attack: AttackForm, rate: float) -> int:
    """For how many clients that is below 5%, corrected for their number (Holm)."""
    return membership.recognised([recognition(one, attack)[1] for one in scored], rate)


def provable(scored: Sequence[Scored], attack: AttackForm, rate: float) -> float | None:
    """The smallest rate that could be told from chance at the client with the fewest images; None where there is none."""
    return membership.provable([recognition(one, attack)[1] for one in scored], rate)
