"""Generators of images: what a classifier learns from them, how near they are to real images, and who was in their training.

A pure function of records. docs/appendix/metrics.md defines every number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from privbench.records.schema import Record
from privbench.scoring.statistics import CONFIDENCE, Interval
from reports.records import generators, grouping, guarantees, remarks
from reports.records.generators import HIGH, LOW, AttackForm, Scored
from reports.records.number_text import NONE, range_text
from reports.tables.inferences import membership_rows
from reports.tables.report import Report, Table

REAL = "real images, for reference"
HEADINGS = (
    "", "accuracy on real test images, %", "precision", "recall", "AUC, black-box", "AUC, white-box", guarantees.EPSILON,
)  # fmt: skip
OF_ATTACKS = (
    "", "attack", "AUC", f"TPR at {LOW:.0%} FPR, %", f"TPR at {HIGH:.0%} FPR, %", "provable from, %", "clients recognised",
)  # fmt: skip
OF_CLIENTS = (
    "",
    "client",
    "accuracy, %",
    "the same from real images, %",
    "precision",
    "recall",
    "AUC, black-box",
    "AUC, white-box",
)
Rows = list[tuple[str, Record, list[Scored]]]


def report(records: Sequence[Record]) -> Report:
    """Three tables per setting: the scores, every attack, and every client; each number of a client in the numbers."""
    scored = generators.with_scores(records)
    tables, numbers = [], []
    for key in grouping.settings(scored):
        rows = _rows(scored, key)
        title = grouping.title(key)
        tables += [
            Table(title, HEADINGS, _overview(rows)),
            Table("Membership inference", OF_ATTACKS, _attacks(rows), is_part=True),
            Table("By client", OF_CLIENTS, _clients(rows), is_part=True, is_detail=True),
        ]
        numbers += [number for name, r, each in rows for number in _numbers(title, name, r, each, scored)]
    notes = [*remarks.training_header(scored), *_how(scored), *guarantees.how(scored), *guarantees.coverage(scored)]
    searched = [line for key in grouping.settings(scored) for line in grouping.searched(scored, key)]
    return Report("Generated images", [*notes, *searched], tables, numbers)


def _rows(records: Sequence[Record], key: grouping.Setting) -> Rows:
    """(name, record, what was scored) of every row, the server's generator behind the clients'."""
    return [
        (name + (generators.SERVER if holder == "server" else ""), r, generators.of_holder(r, holder))
        for name, r in grouping.chosen(records, key).items()
        for holder in generators.holders(r)
    ]


def _overview(rows: Rows) -> list[list[str]]:
    # Clients, images and classifier are the same in every row of a setting, but for its schedule: the first stands for all.
    first = rows[0][2]
    body = [
        [
            REAL,
            _percent(generators.mean(first, generators.real_accuracy, 100)),
            _text(generators.mean(first, generators.real_precision)),
            _text(generators.mean(first, generators.real_recall)),
            *[NONE] * 3,
        ]
    ]
    for name, r, each in rows:
        body.append([name, *_scores(each), *_areas(each), guarantees.whole_text(r)])
    return body


def _scores(each: Sequence[Scored]) -> list[str]:
    return [
        _percent(generators.mean(each, generators.accuracy, 100)),
        _text(generators.mean(each, generators.precision)),
        _text(generators.mean(each, generators.recall)),
    ]


def _areas(each: Sequence[Scored]) -> list[str]:
    """Of the black-box and the white-box attack, calibrated where there is something to calibrate by."""
    forms = [generators.strongest_form(each, name) for name in ("black-box", "white-box")]
    return [NONE if form is None else _text(generators.mean(each, generators.auc(form))) for form in forms]


def _attacks(rows: Rows) -> list[list[str]]:
    return [[name, *_attack(each, attack)] for name, _, each in rows for attack in generators.attacks(each)]


def _attack(each: Sequence[Scored], attack: AttackForm) -> list[str]:
    rates = [generators.mean(each, generators.true_positive_rate(attack, rate), 100) for rate in (LOW, HIGH)]
    provable = [generators.provable(each, attack, rate) for rate in (LOW, HIGH)]
    return [
        str(attack),
        _text(generators.mean(each, generators.auc(attack))),
        *map(_percent, rates),
        "; ".join(NONE if value is None else f"{100 * value:.1f}" for value in provable),
        f"{generators.recognised(each, attack, LOW)} of {len(each)}",
    ]


def _clients(rows: Rows) -> list[list[str]]:
    body = []
    for name, _, every in rows:
        for client in sorted({one.client for one in every}):
            each = [one for one in every if one.client == client]
            accuracy, *manifolds = _scores(each)
            real = _percent(generators.mean(each, generators.real_accuracy, 100))
            body.append([name, str(client + 1), accuracy, real, *manifolds, *_areas(each)])
    return body


def _text(value: Interval | None) -> str:
    return NONE if value is None else range_text(value.within(0, 1), digits=3)


def _percent(value: Interval | None) -> str:
    return NONE if value is None else range_text(value.within(0, 100), digits=1)


def _how(records: Sequence[Record]) -> list[str]:
    """What the numbers are of."""
    each = [seed.generators for r in records for seed in r.seeds if seed.generators is not None]
    samples = sorted({scores.samples for scores in each})
    counts = sorted({m.members for scores in each for one in scores.each for m in one.membership})
    return [
        "Accuracy: a classifier trained on generated images alone and tested on real ones, each client's at its best validation "
        "round; in the first row the same classifier and schedule, trained on the client's real images. All else is of the "
        "generators after the round that is best in the mean over clients.",
        "Precision and recall: Kynkäänniemi et al. 2019, against test images, in the features of a classifier trained on the "
        "validation images. Real training images in place of generated ones give the first row, not 1.",
        "Membership inference: GAN-Leaks, by the distance of an image to the nearest of "
        f"{' or '.join(f'{n:,}' for n in samples)} generated images, equally many of every class (black-box), or to the nearest "
        "that descending on z reaches (white-box); calibrated by the generators of other clients. Chance gives an AUC of 0.5 "
        f"and a TPR of {membership_rows.rates_by_chance(counts[0])}. The first table has the calibrated form.",
        f"Each client's attack recognises {_span(counts)} training images among as many test images. 'Provable from': the lowest "
        f"TPR at {LOW:.0%} and at {HIGH:.0%} FPR that so few images distinguish from chance with {CONFIDENCE:.0%} confidence. "
        f"'Clients recognised': those whose TPR at {LOW:.0%} FPR does, corrected for their number.",
        "[95% interval of Student's t over seeds, with the error of the held-out images, which seeds may share].",
        *remarks.of_few_seeds(records),
    ]


def _span(counts: Sequence[int]) -> str:
    return "no" if not counts else str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"


def _numbers(
    title: str, name: str, r: Record, every: Sequence[Scored], among: Sequence[Record]
) -> list[dict[str, Any]]:
    """One row per seed, client and attack, the mean of none."""
    rows = []
    for one in every:
        manifolds, real = one.scores.manifolds, one.real
        about = {
            "id": r.id, "setting": title, "row": name, "seed": one.seed, "client": one.client + 1,
            "accuracy": one.classifier and one.classifier.accuracy,
            "accuracy_from_real": real.accuracy, "test_images": one.test_images,
            "precision": manifolds.precision, "recall": manifolds.recall, "compared_images": manifolds.images,
            "precision_of_real": real.manifolds.precision, "recall_of_real": real.manifolds.recall,
        }  # fmt: skip
        rows += [about | _of_attack(one, attack) | guarantees.columns(r, among) for attack in generators.attacks([one])]
    return rows


def _of_attack(one: Scored, attack: AttackForm) -> dict[str, Any]:
    result = generators.recognition(one, attack)[0]
    area, rates = generators.mean([one], generators.auc(attack)), dict[str, Any]()
    assert area is not None, "an attack that was made has a curve"
    for rate in (LOW, HIGH):
        recognised = generators.mean([one], generators.true_positive_rate(attack, rate))
        assert recognised is not None, "the same"
        rates |= {
            f"tpr_at_{rate:g}": recognised.mean,
            f"tpr_at_{rate:g}_low": recognised.low,
            f"tpr_at_{rate:g}_high": recognised.high,
            f"tpr_at_{rate:g}_p_value": generators.p_value(one, attack, rate),
            f"tpr_at_{rate:g}_provable": generators.provable([one], attack, rate),
        }
    return {
        "attack": attack.name,
        "calibrated": attack.calibrated,
        "members": result.members,
        "non_members": result.non_members,
        "auc": area.mean,
        "auc_low": area.low,
        "auc_high": area.high,
        **rates,
    }
