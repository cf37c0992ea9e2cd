"""What changed between two folders of results: the attacks victim by victim, accuracy seed by seed, and what only one has.

Victims are paired by seed and image, and the interval of their differences is that of all tables (privbench/scoring/statistics.py).
Differences are those of the second folder less the first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import Any

from privbench.records.schema import AttackRecord, Record
from privbench.scoring.statistics import LEAST_SEEDS
from reports.folders import cell_table, pairing
from reports.folders.contents import Contents
from reports.folders.pairing import Pair
from reports.folders.provenance import title
from reports.records import comparison, grouping, measured, quotable, remarks
from reports.records.comparison import Comparison
from reports.records.labels import cell_place, round_place, unique
from reports.records.number_text import NONE, range_text, spread_text
from reports.records.quotable import SMOKE_NOTE, is_quotable
from reports.tables.report import Report, Table

IDENTICAL = "identical"
MOST_LISTED = 50  # cells of one list
ATTACK_COLUMNS = ("cell", "n", "A, PSNR dB", "B, PSNR dB", "B - A, dB", "p (Holm)", "verdict")
ACCURACY_COLUMNS = ("training", "seeds", "A, %", "B, %", "B - A, points", "seed by seed, points", "verdict")
HOW = f"Paired by victim: the same image under the same seed. The interval is Student's t over seeds. {comparison.RULE}"
HOW_SAME = "Every number of the two records is the same bit for bit, but for times and machines."
SAME_COLUMNS = ("cell", "n", "PSNR dB")
HOW_ACCURACY = (
    "Mean over clients, paired by seed; the interval is Student's t over seeds. Attacks on one training share its row. "
    f"Below {LEAST_SEEDS} seeds there is no verdict."
)


def report(a: Contents, b: Contents, but_for: Collection[str] = ()) -> Report:
    """The report of two folders; `but_for` names fields in which two cells may differ and still be compared."""
    paired = pairing.paired(a.records, b.records, but_for)
    pairs = sorted(paired.pairs, key=lambda pair: (grouping.setting(pair.after.cell)[0], *_place(pair.after)))
    differences = {id(pair): pair.differences() for pair in pairs}
    names = {id(pair): name for pair, name in zip(pairs, _names(pairs), strict=True)}
    attacks, numbers = _attacks(pairs, differences, names)
    accuracies, of_training = _accuracies(pairs)
    smoke = not all(map(_is_shown, pairs))
    same = sum(not lines for lines in differences.values())
    counted = [
        f"Cells in both: {len(pairs)}, of them {IDENTICAL}: {same}",
        f"only in A: {len(paired.only_before)}",
        f"only in B: {len(paired.only_after)}",
    ]
    unclear = {"A": paired.ambiguous_before, "B": paired.ambiguous_after}
    if any(unclear.values()):
        counted.append(f"not compared: {len(unclear['A'])} of A, {len(unclear['B'])} of B")
    unread = [f"{len(place.left_out)} of {name}" for name, place in (("A", a), ("B", b)) if place.left_out]
    counted += [f"could not be read: {', '.join(unread)}"] if unread else []
    notes = [
        f"A: {a.name}. B: {b.name}. {', '.join(counted)}.",
        *([f"Cells are compared whatever their {', '.join(but_for)}."] if but_for else []),
        *_revisions(pairs),
        *([SMOKE_NOTE[0].upper() + SMOKE_NOTE[1:]] if smoke else []),
        *remarks.of_few_seeds([pair.after for pair in pairs]),
    ]
    tables = [*attacks, *accuracies, *_other_numbers(pairs, differences, names)]
    for words, records in (
        ("Only in A", paired.only_before),
        ("Only in B", paired.only_after),
        *(
            (f"Not compared: cells of {name} that several of the other folder fit, or that share one", records)
            for name, records in unclear.items()
        ),
    ):
        tables += _listed(words, records)
    left_out = [f"{name}: {line}" for name, place in (("A", a), ("B", b)) for line in place.left_out]
    tables += [Table("Could not be read", (), (), left_out)] if left_out else []
    return Report("What changed from A to B", notes, tables, [*numbers, *of_training], messages=notes)


def _attacks(
    pairs: Sequence[Pair], differences: Mapping[int, Sequence[str]], names: Mapping[int, str]
) -> tuple[list[Table], list[dict[str, Any]]]:
    """A row for each pair of attacked cells, identical ones in a table of their own, and the same as numbers."""
    attacked = [(pair, *records) for pair in pairs if (records := _of_attacks(pair))]
    # Smoke runs are not tested, so that they take no part in the adjustment of the others.
    tested = [each for each in attacked if _is_shown(each[0])]
    named = [(str(i), measured.of(after), measured.of(before)) for i, (_, before, after) in enumerate(tested)]
    tests = {id(tested[int(test.name)][0]): test for test in comparison.paired(named)}
    rows, same, numbers = [], [], []
    for pair, before, after in attacked:
        test, is_same = tests.get(id(pair)), not differences[id(pair)]
        row = {
            "cell": names[id(pair)],
            "n": str(len(measured.differences(measured.of(after), measured.of(before))[0])),
            "A, PSNR dB": range_text(measured.of(before).psnr_db),
            "B, PSNR dB": range_text(measured.of(after).psnr_db),
            "B - A, dB": range_text(test.difference_db, sign=True) if test else NONE,
            "p (Holm)": comparison.p_text(test.holm) if test else NONE,
            "verdict": _verdict(test, is_same, is_shown=_is_shown(pair)),
        }
        preset = after.cell.preset if is_quotable(before.cell.preset) else before.cell.preset
        shown = quotable.cells(preset, row, NONE)
        if is_same:
            same.append([shown["cell"], shown["n"], shown["B, PSNR dB"]])
        else:
            rows.append([*shown.values()])
        numbers.append(quotable.numbers(preset, _attack_numbers(before, after, test, identical=is_same)))
    tables = [Table("Attacks", ATTACK_COLUMNS, rows, text=[HOW])] if rows else []
    tables += [Table(f"Attacks, {IDENTICAL}", SAME_COLUMNS, same, text=[HOW_SAME], is_detail=True)] if same else []
    return tables, numbers


def _of_attacks(pair: Pair) -> tuple[AttackRecord, AttackRecord] | None:
    if isinstance(pair.before, AttackRecord) and isinstance(pair.after, AttackRecord):
        return pair.before, pair.after
    return None


def _verdict(test: Comparison | None, identical: bool, *, is_shown: bool) -> str:
    if identical:
        return IDENTICAL
    if test is None:
        return "no common victim" if is_shown else NONE
    return test.verdict


def _attack_numbers(
    before: AttackRecord, after: AttackRecord, test: Comparison | None, *, identical: bool
) -> dict[str, Any]:
    interval = None if test is None else test.difference_db
    return {
        "what": "attack",
        "a": before.id,
        "b": after.id,
        "cell": title(after),
        "identical": identical,
        "n": 0 if test is None else test.n,
        "a_psnr_db": before.scores.psnr_db,
        "b_psnr_db": after.scores.psnr_db,
        "difference_db": None if interval is None else interval.mean,
        "difference_db_low": None if interval is None else interval.low,
        "difference_db_high": None if interval is None else interval.high,
        "p": None if test is None else test.p,
        "p_holm": None if test is None else test.holm,
    }


def _accuracies(pairs: Sequence[Pair]) -> tuple[list[Table], list[dict[str, Any]]]:
    """A row for each pair of trainings with a common seed, and the same as numbers; attacks on one training count once."""
    first: dict[tuple[str, ...], Pair] = {}
    for pair in pairs:
        runs = (*(run.id for r in pair for run in r.cell.train_specs()),)
        first.setdefault(runs, pair)
    rows, numbers = [], []
    for pair in first.values():
        values = [dict(zip([s.seed for s in r.seeds], r.accuracy.per_seed, strict=True)) for r in pair]
        seeds = [seed for seed in values[0] if seed in values[1]]
        if not seeds:
            continue
        a, b = ([of[seed] for seed in seeds] for of in values)
        gaps = [y - x for x, y in zip(a, b, strict=True)]
        interval = comparison.paired_means(b, a) if len(seeds) > 1 else None
        numbers.append(
            {
                "what": "accuracy", "a": pair.before.id, "b": pair.after.id, "cell": _training_title(pair),
                "identical": not any(gaps), "n": len(seeds), "a_accuracy_percent": fmean(a), "b_accuracy_percent": fmean(b),
                "difference_points": fmean(gaps),
                "difference_points_low": None if interval is None else interval[1],
                "difference_points_high": None if interval is None else interval[2],
            }
        )  # fmt: skip
        text = f"{fmean(gaps):+.2f}" + ("" if interval is None else f" [{interval[1]:+.2f}, {interval[2]:+.2f}]")
        rows.append(
            [
                _training_title(pair), str(len(seeds)), *(spread_text(fmean(each), None, 2) for each in (a, b)), text,
                ", ".join(f"{seed}: {gap:+.2f}" for seed, gap in zip(seeds, gaps, strict=True)),
                _accuracy_verdict(gaps, interval),
            ]
        )  # fmt: skip
    if not rows:
        return [], []
    is_same = all(row[-1] == IDENTICAL for row in rows)
    return [Table("Accuracy", ACCURACY_COLUMNS, rows, text=[HOW_ACCURACY], is_detail=is_same)], numbers


def _accuracy_verdict(gaps: Sequence[float], interval: tuple[float, float, float] | None) -> str:
    if not any(gaps):
        return IDENTICAL
    if interval is None or len(gaps) < LEAST_SEEDS:
        return "too few seeds"
    return "higher" if interval[1] > 0 else "lower" if interval[2] < 0 else "no difference shown"


def _other_numbers(
    pairs: Sequence[Pair], differences: Mapping[int, Sequence[str]], names: Mapping[int, str]
) -> list[Table]:
    """How many numbers of each pair differ, and the first of them."""
    rows = [
        [
            names[id(pair)],
            str(len(lines)),
            lines[0] if _is_shown(pair) else lines[0].partition(":")[0],
        ]
        for pair in pairs
        if (lines := differences[id(pair)])
    ]
    columns = ("cell", "numbers that differ", "the first")
    return [Table("All numbers", columns, rows, words=True, is_detail=True, on_paper=())] if rows else []


def _is_shown(pair: Pair) -> bool:
    return all(is_quotable(r.cell.preset) for r in pair)


def _revisions(pairs: Sequence[Pair]) -> list[str]:
    count = sum(pair.other_revision for pair in pairs)
    return [f"{count} of them come from code of different revisions."] if count else []


def _listed(title_of_list: str, records: Sequence[Record]) -> list[Table]:
    """Some cells by name."""
    if not records:
        return []
    lines = [f"{r.id}: {title(r)}" for r in records[:MOST_LISTED]]
    more = len(records) - len(lines)
    return [Table(title_of_list, (), (), [*lines, *([f"and {more} more"] if more else [])])]


def _names(pairs: Sequence[Pair]) -> list[str]:
    """What each pair is, with the settings that distinguish it; both names where a field that does not count makes them differ."""
    if not pairs:
        return []
    settings, _ = cell_table.distinct([cell_table.setting(pair.after.cell) for pair in pairs])
    titles = [" / ".join(unique([title(pair.before), title(pair.after)])) for pair in pairs]
    return [name if setting == NONE else f"{name}, {setting}" for name, setting in zip(titles, settings, strict=True)]


def _place(r: Record) -> tuple[bool, tuple[Any, ...], tuple[bool, int]]:
    """Cells in the order of tables: without an attack first, then method by method, attack by attack, round by round."""
    return isinstance(r, AttackRecord), cell_place(r.cell), round_place(r.cell.round)


def _training_title(pair: Pair) -> str:
    """Data set, method and defence; both where a field that does not count makes them differ."""
    return " / ".join(unique(map(_of_training, pair)))


def _of_training(r: Record) -> str:
    return title(r).partition(", round ")[0].removesuffix(f", {r.cell.attack}")
