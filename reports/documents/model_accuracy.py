"""Test accuracy of the three models that a client has after a round: a table, differences, orderings, what is near a printed value.

    personal    after local training, before the defence acts
    uploaded    what the client sent
    broadcast   what the server sends back
Each at the round with its best validation accuracy, mean over clients, the first of equals. A table's accuracy is another: of the
personal model, each client at its own best round (privbench/training/history.py). The two differ most where clients validate on
few images.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from statistics import fmean, stdev

from privbench.errors import UserError
from privbench.records import environments
from privbench.records.schema import Record
from privbench.scoring import statistics
from privbench.scoring.statistics import LEAST_SEEDS
from privbench.training.history import selected_accuracy
from reports.documents.published import seed_by_seed
from reports.records import comparison, published
from reports.records.labels import label, place, unique
from reports.records.number_text import NONE, span, spread_text, whole_numbers
from reports.records.remarks import machines
from reports.tables import render

# Record's name of a model -> in words.
MODELS = {
    "personal": "personal, after local training",
    "uploaded": "uploaded, as it was sent",
    "broadcast": "broadcast, with what came back",
}
OWN_BEST = "each client's personal model at its own best round"
# Of one method less another in accuracy, seed by seed; empty where a round does not say.
Difference = tuple[float, ...]
# Their address, from docs/results.md.
RECORDS = "results/records/quick-photos.jsonl.xz"


def by_label(records: Sequence[Record]) -> dict[str, Record]:
    """Method and defence -> the first of its records, in the published order."""
    ordered = sorted(records, key=lambda r: place(r.cell))
    return {name: next(r for r in ordered if label(r.cell) == name) for name in unique(label(r.cell) for r in ordered)}


def accuracies(record: Record, model: str, within: int | None = None) -> list[float]:
    """Test accuracy in percent of one of MODELS, mean over clients, of each seed; none where a round does not say.

    With `within` as if training had ended after so many rounds.
    """
    if not all(t.rounds and all(entry.models for entry in t.rounds) for t in record.training):
        return []
    best = [max(t.rounds[:within], key=lambda entry: fmean(entry.models[model].validation)) for t in record.training]
    return [fmean(entry.models[model].test) for entry in best]


def table(records: Sequence[Record]) -> str:
    """A row a model, a column a method: mean over clients and seeds, ± standard deviation over seeds."""
    columns = by_label(records)
    rows = [[words, *(_spread(accuracies(r, model)) for r in columns.values())] for model, words in MODELS.items()]
    rows.insert(0, [OWN_BEST, *(_spread(r.accuracy.per_seed) for r in columns.values())])
    rows.append(["best round of the personal model / rounds", *(_rounds_text(r) for r in columns.values())])
    return render.markdown(["model", *columns], rows)


def with_all_seeds(records: Sequence[Record]) -> list[Record]:
    """One record a method, in the published order, with all seeds that any of its records has; of a seed the first record's.

    Records of attacks stand for their training.
    """
    ordered = [one for r in sorted(records, key=lambda r: place(r.cell)) for one in seed_by_seed(r)]
    joined = []
    for name in unique(label(r.cell) for r in ordered):
        of_seed = {r.cell.seeds[0]: r for r in reversed(ordered) if label(r.cell) == name}
        seeds = sorted(of_seed)
        parts = [of_seed[seed] for seed in seeds]
        first, results = parts[0], [result for part in parts for result in part.seeds]
        notes = [note for note in first.notes if not environments.is_note(note)] + environments.notes_of_pooled(parts)
        joined.append(first.model_copy(update={"cell": first.cell.with_seeds(seeds), "seeds": results, "notes": notes}))
    return joined


def over_seeds(records: Sequence[Record], tables: Sequence[str]) -> str:
    """A row a method: its printed accuracy, each model's mean ± standard deviation over seeds, and which these are."""
    rows = []
    for record in records:
        printed = published.of(record.cell, "accuracy", tables)
        rows.append([
            label(record.cell), NONE if printed is None else spread_text(printed.value, printed.std, 1).replace("+-", "±"),
            _spread(record.accuracy.per_seed), *(_spread(accuracies(record, model)) for model in MODELS),
            whole_numbers(record.cell.seeds),
        ])  # fmt: skip
    head = ["method", "printed", OWN_BEST, *(words.partition(",")[0] for words in MODELS.values()), "seeds"]
    return f"{render.markdown(head, rows)}\n\n{machines(records)}."


def _spread(each: Sequence[float]) -> str:
    if not each:
        return NONE
    return spread_text(fmean(each), stdev(each) if len(each) > 1 else None, 1).replace("+-", "±")


def _rounds_text(record: Record) -> str:
    best, run = (sorted({of(t) for t in record.training}) for of in (lambda t: t.best_round, lambda t: len(t.rounds)))
    return f"{span(best)} / {span(run)}"


def cost(records: Sequence[Record], name: str, base: str) -> str:
    """A line a model: accuracy of one method less another's, in points; UserError where their seeds differ."""
    record, other = (by_label(records)[each] for each in (name, base))
    if record.cell.seeds != other.cell.seeds:
        raise UserError(f"{name} and {base} have other seeds, so that no differences are paired")
    lines = []
    for model in MODELS:
        mean, low, high = comparison.paired_means(accuracies(record, model), accuracies(other, model))
        verdict = _verdict(low, high, len(record.seeds))
        lines.append(f"- The {model} model: {mean:+.2f} points [{low:+.2f}, {high:+.2f}]. {verdict}")
    how = f"{name} minus {base}, seed by seed; 95% interval of Student's t over {len(record.seeds)} seeds."
    return "\n".join([*lines, "", f"{how} [Records]({RECORDS}). {machines(records)}."])


def _verdict(low: float, high: float, seeds: int) -> str:
    if seeds < LEAST_SEEDS:
        return "These are too few seeds for a verdict."
    return "It is higher." if low > 0 else "It is lower." if high < 0 else "No difference is shown."


def orderings(
    records: Sequence[Record], name: str, tables: Sequence[str], at_printed: Sequence[Record] | None = None
) -> str:
    """A row a rival: by how many points one method is above it, as printed and as measured, and whether the ordering holds.

    First of the personal model, each client's at its own best round, as tables have it; then of each model at one round for all.
    Printed is what stands beside the records' own setting, or beside that of `at_printed`, for records of another schedule.

    UserError where the seeds of two records differ.
    """
    columns = by_label(records)
    own = columns[name]
    settings = by_label(records if at_printed is None else at_printed)
    printed = {label: published.of(settings[label].cell, "accuracy", tables) for label in columns}
    gaps, differences = dict[str, float](), dict[str, list[Difference]]()
    for rival, record in columns.items():
        one, other = printed[name], printed[rival]
        if rival == name or one is None or other is None:
            continue
        if record.cell.seeds != own.cell.seeds:
            raise UserError(f"{name} and {rival} have other seeds, so that no differences are paired")
        gaps[rival] = one.value - other.value
        pairs = [(own.accuracy.per_seed, record.accuracy.per_seed)]
        pairs += [(accuracies(own, model), accuracies(record, model)) for model in MODELS]
        differences[rival] = [tuple(a - b for a, b in zip(*pair, strict=True)) if all(pair) else () for pair in pairs]
    shown = _shown({each for of_rival in differences.values() for each in of_rival})
    rows = [
        [rival, f"{gap:+.2f}", *(_ordering(gap, each, is_shown=shown.get(each, True)) for each in differences[rival])]
        for rival, gap in gaps.items()
    ]
    head = [f"{name} against", "printed", OWN_BEST, *(words.partition(",")[0] for words in MODELS.values())]
    how = (
        f"{name} minus the other, in points, seed by seed. The first model is that of accuracy tables, "
        "the others are at one round for all clients."
    )
    if (count := len(own.seeds)) < LEAST_SEEDS:
        more = f"Seeds: {count}. Below {LEAST_SEEDS} seeds no interval is given, and a sign is an observation."
    else:
        more = (
            "In brackets the 95% interval of Student's t over seeds. No ordering is shown where it holds 0, or where p, adjusted "
            f"by Holm over the unlike differences of the table, is {statistics.ALPHA} or more."
        )
    return f"{render.markdown(head, rows)}\n\n{how} {more}"


def _shown(differences: Collection[Difference]) -> dict[Difference, bool]:
    """Of each difference of enough seeds whether it is one, tested by Student's t and adjusted by Holm over all of them.

    Two models that are one and the same give one difference, which counts once.
    """
    tested = [each for each in differences if len(each) >= LEAST_SEEDS]
    adjusted = statistics.holm([statistics.of_means(each).p_value for each in tested])
    return {each: p < statistics.ALPHA for each, p in zip(tested, adjusted, strict=True)}


def _ordering(printed_gap: float, difference: Difference, *, is_shown: bool) -> str:
    """A measured difference, and how its sign stands to the printed one's."""
    if not difference:
        return NONE
    mean, text = fmean(difference), _with_interval(difference)
    if not printed_gap or not mean:
        return f"{text}, no order"
    same = "as printed" if (mean > 0) == (printed_gap > 0) else "reversed"
    return f"{text}, {same if is_shown else 'not shown'}"


def shorter(records: Sequence[Record], lengths: Sequence[int]) -> str:
    """A row a model and length: its accuracy had training ended after so many rounds, and how many orderings of columns stay.

    A column is the mean over its seeds. A pair keeps its order where the mean differences over common seeds have the same sign.
    """
    columns = by_label(records)
    rows = []
    for words, of in _CHOICES.items():
        whole = {name: of(record, None) for name, record in columns.items()}
        for length in (*lengths, None):
            each = {name: of(record, length) for name, record in columns.items()}
            pairs = list(itertools.combinations(columns, 2))
            kept = sum((_lead(each, a, b) > 0) == (_lead(whole, a, b) > 0) for a, b in pairs)
            row = [words, "all" if length is None else str(length)]
            means = [spread_text(fmean(values.values()), None, 1) for values in each.values()]
            rows.append([*row, *means, f"{kept} of {len(pairs)}"])
    return render.markdown(["model", "rounds", *columns, "pairs of columns in the order of all rounds"], rows)


def shorter_leads(records: Sequence[Record], name: str, length: int) -> str:
    """A row a rival and model: by how many points one method is above it after `length` rounds, and after all."""
    columns = by_label(records)
    rows = []
    for rival in (other for other in columns if other != name):
        for words, of in _CHOICES.items():
            each = [_differences(of(columns[name], rounds), of(columns[rival], rounds)) for rounds in (length, None)]
            rows.append([rival, words, str(len(each[0])), *map(_with_interval, each)])
    head = [f"{name} against", "model", "seeds", f"after {length} rounds", "after all"]
    how = (
        f"{name} minus the other, in points, seed by seed. In brackets the 95% interval of Student's t, from {LEAST_SEEDS} seeds "
        "on, of each number alone."
    )
    return f"{render.markdown(head, rows)}\n\n{how}"


def _own_best(record: Record, within: int | None) -> dict[int, float]:
    """Seed -> test accuracy in percent, mean over clients, each at its own best round of the first `within`."""
    return {t.seed: fmean(selected_accuracy([e.model_dump() for e in t.rounds[:within]])) for t in record.training}


def _of_model(model: str, record: Record, within: int | None) -> dict[int, float]:
    return dict(zip([t.seed for t in record.training], accuracies(record, model, within), strict=True))


# How an accuracy is chosen, in words -> a record and a number of rounds -> seed -> it.
_CHOICES: dict[str, Callable[[Record, int | None], dict[int, float]]] = {
    OWN_BEST: _own_best,
    **{words.partition(",")[0]: partial(_of_model, model) for model, words in MODELS.items()},
}


def _differences(one: Mapping[int, float], other: Mapping[int, float]) -> list[float]:
    """Of the seeds that both have."""
    return [one[seed] - other[seed] for seed in one if seed in other]


def _lead(each: Mapping[str, Mapping[int, float]], one: str, other: str) -> float:
    return fmean(_differences(each[one], each[other]))


def _with_interval(difference: Sequence[float]) -> str:
    mean = fmean(difference)
    if len(difference) < LEAST_SEEDS:
        return f"{mean:+.2f}"
    half = statistics.of_means(difference).half_width
    return f"{mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}]"


def nearest(records: Sequence[Record], tables: Sequence[str]) -> str:
    """A line a method: which of its models comes nearest to the printed accuracy, to a tenth of a point."""
    lines = []
    for name, record in by_label(records).items():
        printed = published.of(record.cell, "accuracy", tables)
        each = {OWN_BEST: record.accuracy.per_seed, **{words: accuracies(record, m) for m, words in MODELS.items()}}
        if printed is None or not all(each.values()):
            continue
        measured = {words: round(fmean(values), 1) for words, values in each.items()}
        least = min(abs(value - printed.value) for value in measured.values())
        near = [words for words, value in measured.items() if abs(value - printed.value) == least]
        of = "; ".join(near) if len(near) < len(measured) else "all models alike"
        lines.append(f"- {name}: {printed.value:.2f}% is printed. Nearest: {of}: {measured[near[0]]:.1f}%.")
    counts = sorted({len(r.seeds) for r in records})
    if counts[0] < LEAST_SEEDS:
        lines += ["", f"Seeds: {span(counts)}. Below {LEAST_SEEDS} seeds this is an observation and no finding."]
    return "\n".join(lines)


def schedule(records: Sequence[Record]) -> str:
    """One sentence: how the runs of a page were trained; UserError where they were not trained alike."""
    schedules = unique(_schedule_text(r) for r in records)
    if len(schedules) > 1:
        raise UserError(f"these runs have several schedules: {' | '.join(schedules)}")
    return schedules[0]


def _schedule_text(record: Record) -> str:
    train = record.cell.train
    plan = train.schedule
    seeds = ", ".join(map(str, record.cell.seeds))
    return (
        f"Protocol `{train.protocol}`, {train.clients} clients, `{train.backbone}`: at most {plan.rounds} rounds of "
        f"{plan.local_epochs} epochs, batch {plan.batch}, learning rate {plan.task.lr:g}; training stops after {plan.patience} "
        f"rounds without a better validation accuracy. Seeds of the first table: {seeds}."
    )
