"""What a server must know to see the images of one method: sets of knowledge against data sets, of several committed tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from privbench import registry
from privbench.records.schema import AttackRecord, Record
from privbench.scoring.statistics import LEAST_SEEDS
from privbench.spec import CellSpec
from reports.documents import model_accuracy, published
from reports.documents.findings import by_method
from reports.documents.needed_knowledge import paired_rows
from reports.records import comparison, grouping, knowledge_sets, measured, remarks
from reports.records.labels import label, unique
from reports.records.measured import Measured
from reports.records.number_text import NONE, range_text, span
from reports.tables import render
from reports.tables.summary.columns import in_rungs

FLOOR = "nothing: the best floor"
DEFAULTS = "defaults"

# What the rows of `across` begin with.
PLACE: Mapping[str, Callable[[AttackRecord], str]] = {
    "data set": lambda r: registry.short(r.cell.train.dataset),
    "method": lambda r: label(r.cell),
}


def _at_one_round(record: Record, model: str) -> str:
    each = model_accuracy.accuracies(record, model)
    return f"{fmean(each):.1f}" if each else NONE


ACCURACIES: Mapping[str, Callable[[Record], str]] = {
    "each client's own round": lambda record: f"{record.accuracy.mean:.1f}",
    "personal model, one round": lambda record: _at_one_round(record, "personal"),
    "broadcast model, one round": lambda record: _at_one_round(record, "broadcast"),
}


def psnr_and_gain(row: Measured) -> str:
    """Both in dB, with the 95% interval of the gain over the floor; bold where it is significant."""
    score = f"{row.psnr_db.mean:.1f} ({range_text(row.gain_db, sign=True, digits=1)})"
    return render.bold(score) if row.is_significant else score


def table(tables: Mapping[str, Sequence[AttackRecord]], method: str, round_: str) -> str:
    """A row a set of knowledge, a column a table: PSNR of the best attack within it, and its gain over the floor, both in dB.

    tables   title -> records, among which are those of `method` at round `round_`; ValueError where there are none
    """
    columns = {title: _of(records, method, round_) for title, records in tables.items()}
    best = {
        title: {r.knowledge: r.best for r in knowledge_sets.rows(in_rungs(c), tag_of)} for title, c in columns.items()
    }
    floors = [next(iter(rows.values())).floor for rows in best.values()]
    every = in_rungs([r for c in columns.values() for r in c if r.attack not in registry.FLOORS])
    rows = [
        [FLOOR, *(f"{floor.psnr_db:.1f}" for floor in floors)],
        *(
            [tag, *(_cell(best[title].get(tag)) for title in columns)]
            for tag in unique(map(tag_of, every))
            if any(tag in of for of in best.values())
        ),
    ]
    return render.markdown(["the server knows", *columns], rows)


def pooled_uploads(tables: Mapping[str, Sequence[AttackRecord]], round_: str) -> str:
    """From how many uploads of a client attacks learn that pool them, a sentence a number; nothing where none pools.

    tables   title -> records of one method, as of `table`
    """
    titles: dict[str, list[str]] = {}
    for title, records in tables.items():
        counts = sorted({r.knowledge.pools for r in records if r.knowledge.pools and r.cell.round == round_})
        if counts:
            titles.setdefault(span(counts), []).append(title)
    if not titles:
        return ""
    each = ". ".join(f"{count}: {'; '.join(named)}" for count, named in titles.items())
    unequal = " Columns of unequal numbers differ by that as well." if len(titles) > 1 else ""
    return f"\n\nUploads of a client that attacks learn from where they pool. {each}.{unequal}"


def of_attacks(tables: Mapping[str, Mapping[str, Sequence[AttackRecord]]], attacks: Sequence[str], round_: str) -> str:
    """A row an attack and method, a column a table, with PSNR and gain as above; of some attacks by themselves.

    tables   method -> title -> records of it; the same titles for every method
    """
    titles = list(next(iter(tables.values())))
    rows = []
    for name in attacks:
        for method, of_method in tables.items():
            each = [_measured(_of(records, method, round_), name) for records in of_method.values()]
            rows.append([f"`{name}`", method, *(NONE if row is None else psnr_and_gain(row) for row in each)])
    return render.markdown(["attack", "method", *titles], rows)


def by_seed(records: Sequence[Record], methods: Sequence[str], attacks: Sequence[str], round_: str) -> str:
    """A row a method and attack, a column a seed: PSNR and gain as above, over that seed's victims.

    Accuracy in percent stands above them: that of tables, then of two models at one round for all clients. A dash: not run.
    An attack that was run on no seed of a method has no row of it.
    """
    alone = [one for r in records if label(r.cell) in methods for one in published.seed_by_seed(r)]
    seeds = sorted({r.cell.seeds[0] for r in alone})
    rows = []
    for method in methods:
        of = {seed: [r for r in alone if (label(r.cell), r.cell.seeds[0]) == (method, seed)] for seed in seeds}
        for words, value in ACCURACIES.items():
            rows.append([method, f"accuracy, %: {words}", *(value(each[0]) if each else NONE for each in of.values())])
        for name in attacks:
            found = [
                _measured([r for r in each if isinstance(r, AttackRecord) and r.cell.round == round_], name)
                for each in of.values()
            ]
            if any(found):
                rows.append([method, f"dB: `{name}`", *(NONE if row is None else psnr_and_gain(row) for row in found)])
    return render.markdown(["method", "what", *(f"seed {seed}" for seed in seeds)], rows)


def by_setting(records: Sequence[AttackRecord], base: str = DEFAULTS) -> str:
    """A row an attack, method and settings of the attack: PSNR, gain over the floor, and what is gained over the settings `base`.

    Paired by victim; bold where reports/records/comparison.py claims a difference, adjusted over all rows. ValueError: an attack
    without a record of `base`.
    """
    rows = paired_rows.rows(records, settings, base)
    gained = paired_rows.gained(rows)
    columns = ("attack", "method", "settings", "PSNR, dB", "over the floor, dB", f"over {base}, dB")
    table = render.markdown(columns, [paired_rows.cells(row, gained) for row in rows])
    return f"{table}\n\n{comparison.RULE}{comparison.BY_INTERVAL}"


def settings(cell: CellSpec) -> str:
    """What of an attack's settings is not the default."""
    return grouping.override_text(remarks.attack_overrides(cell)) or DEFAULTS


def across(
    records: Sequence[AttackRecord],
    rows: Mapping[str, Callable[[AttackRecord], str]],
    columns: Callable[[AttackRecord], Sequence[str]],
    score: Callable[[Measured], str] = psnr_and_gain,
) -> str:
    """A row a combination of what `rows` say, a column each of `columns`, in the order of the records: PSNR and gain as above.

    score   what a cell says, where that is more

    A record may stand in several columns. A dash: no such record. ValueError: two records of one place.
    """
    found: dict[tuple[tuple[str, ...], str], Measured] = {}
    for record in records:
        words, row = tuple(of(record) for of in rows.values()), measured.of(record)
        for column in columns(record):
            if (words, column) in found:
                raise ValueError(f"two records of {', '.join(words)} at {column}")
            found[words, column] = row
    named = unique(column for _, column in found)
    body = []
    for words in unique(words for words, _ in found):
        each = [found.get((words, column)) for column in named]
        body.append([*words, *(NONE if row is None else score(row) for row in each)])
    return render.markdown([*rows, *named], body)


def few_seeds(records: Sequence[AttackRecord]) -> str:
    """How many seeds some records have, to follow a title; nothing where they are enough for a verdict."""
    counts = unique(len(r.cell.seeds) for r in records if len(r.cell.seeds) < LEAST_SEEDS)
    return "".join(f", {count} seed{'s' * (count > 1)}" for count in counts)


def _measured(records: Sequence[AttackRecord], attack: str) -> Measured | None:
    """The attack with its default settings."""
    found = [r for r in records if r.attack == attack and not r.cell.attack_settings]
    return measured.of(found[0]) if found else None


def _of(records: Sequence[AttackRecord], method: str, round_: str) -> list[AttackRecord]:
    found = by_method(records, round_).get(method, [])
    if not found:
        raise ValueError(f"no record of {method} at round {round_}")
    return found


def tag_of(record: AttackRecord) -> str:
    """A set of knowledge; how many images or uploads are known is said by the page."""
    return str(record.knowledge.tag)


def _cell(row: Measured | None) -> str:
    if row is None:
        return NONE
    return f"{psnr_and_gain(row)} {render.small(row.name)}"
