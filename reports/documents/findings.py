"""Tables and sentences of the published findings, made of committed records: short enough for a page of prose.

A sentence's words follow from its numbers, so that it stays true when the records are measured again.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from scipy import stats

from privbench import registry
from privbench.records.schema import AttackRecord, Record
from privbench.scoring.statistics import Interval
from reports.records.labels import NONE, label, papers_attack, place, range_text, span, spread_text, unique
from reports.records.measured import Measured, strongest
from reports.tables import render

COLUMNS = ("method", "accuracy, %", "paper's attack, dB", "strongest, dB", "over the floor, dB")
# Record's name of a model -> in words.
MODELS = {
    "personal": "personal, after local training",
    "uploaded": "uploaded, as it was sent",
    "broadcast": "broadcast, with what came back",
}


def by_method(records: Sequence[AttackRecord], round_: str) -> dict[str, list[AttackRecord]]:
    """Method and defence -> its records at one round, in the published order."""
    some = sorted((r for r in records if r.cell.round == round_), key=lambda r: place(r.cell))
    return {name: [r for r in some if label(r.cell) == name] for name in unique(label(r.cell) for r in some)}


def _strongest(own: Sequence[AttackRecord]) -> Measured:
    return strongest([r for r in own if r.attack not in registry.FLOORS])


def five_columns(records: Sequence[AttackRecord], round_: str = "best") -> str:
    """A row a method: accuracy, the paper's attack, the strongest attack, and its gain over the best floor."""
    rows = []
    for name, own in by_method(records, round_).items():
        best, plain = _strongest(own), papers_attack(own)
        gain = range_text(best.gain_db, sign=True)
        accuracy = spread_text(own[0].accuracy.mean, own[0].accuracy.std, 1).replace("+-", "±")
        paper = NONE if plain is None else f"{plain.scores.psnr_db:.1f}"
        rows.append(
            [
                name,
                accuracy,
                paper,
                range_text(best.psnr_db, digits=1),
                render.bold(gain) if best.is_sure else gain,
            ]
        )
    return render.markdown(COLUMNS, rows)


def gain(records: Sequence[AttackRecord], name: str, round_: str = "best") -> str:
    """One sentence: how far the strongest attack on a method comes, and whether that is more than the floor."""
    best = _strongest(by_method(records, round_)[name])
    s = best.scores
    return (
        f"{name}: `{best.name}` reaches {range_text(best.psnr_db, digits=1)} dB, "
        f"{range_text(best.gain_db, sign=True)} dB against the best floor ({best.floor.name}): "
        f"{_verdict(best.gain_db, is_sure=best.is_sure)}. {s.n} victims, {len(best.first.seeds)} seeds, {s.failures} failures."
    )


def _verdict(found: Interval, *, is_sure: bool) -> str:
    if is_sure:
        return "a sure gain"
    if found.is_few:
        return "too few seeds for a verdict"
    return "below the floor" if found.high < 0 else "no sure gain"


def accuracy_cost(records: Sequence[AttackRecord], name: str, base: str, round_: str = "best") -> str:
    """One sentence: accuracy of one method against another's, paired by seed, with a 95% interval of Student's t."""
    own, other = (by_method(records, round_)[each][0] for each in (name, base))
    mean, low, high = seed_difference(own, other)
    verdict = "higher" if low > 0 else "lower" if high < 0 else "no difference shown"
    return f"{name} against {base}: {mean:+.1f} points of accuracy [{low:+.1f}, {high:+.1f}], {len(own.seeds)} seeds: {verdict}."


def seed_difference(one: Record, other: Record) -> tuple[float, float, float]:
    """(mean, low, high) of the seeds' paired differences in points; ValueError for other seeds or fewer than two."""
    if one.cell.seeds != other.cell.seeds or len(one.seeds) < 2:
        raise ValueError("paired differences need two seeds or more, and the same ones")
    each = [fmean(a.accuracy) - fmean(b.accuracy) for a, b in zip(one.seeds, other.seeds, strict=True)]
    mean = fmean(each)
    half = float(stats.t.ppf(0.975, len(each) - 1)) * stdev(each) / len(each) ** 0.5
    return mean, mean - half, mean + half


def models(records: Sequence[Record]) -> str:
    """Test accuracy of each of the clients' models at its own best round by validation, mean over clients and seeds, percent."""
    names = unique(label(r.cell) for r in sorted(records, key=lambda r: place(r.cell)))
    firsts = [next(r for r in records if label(r.cell) == name) for name in names]
    rows = [[words, *(_model_text(r, model) for r in firsts)] for model, words in MODELS.items()]
    rows.append(["best round / rounds", *(_rounds_text(r) for r in firsts)])
    return render.markdown(["model", *names], rows)


def _model_text(record: Record, model: str) -> str:
    if not all(entry.models for t in record.training for entry in t.rounds):
        return NONE
    each = []
    for training in record.training:
        best = max(training.rounds, key=lambda entry: fmean(entry.models[model].validation))
        each.append(fmean(best.models[model].test))
    return f"{fmean(each):.1f}"


def _rounds_text(record: Record) -> str:
    best, run = (sorted({of(t) for t in record.training}) for of in (lambda t: t.best_round, lambda t: len(t.rounds)))
    return f"{span(best)} / {span(run)}"
