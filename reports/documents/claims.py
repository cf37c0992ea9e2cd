"""What people say of a defence, beside every attack that was measured on it: by whom, how much, and what is guaranteed.

The verdict follows from the rows: one attacker who gains significantly over the floor refutes a claim of protection for what it
knows. Of many attackers some would by chance, so that the test over seeds must agree, adjusted over all of a claim
(reports/records/comparison.py). No number of failed attacks proves one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from privbench import registry
from privbench.records.means import Accuracy
from privbench.records.schema import AttackRecord
from reports.documents.findings import WHEN, by_method
from reports.records import comparison, guarantees, measured
from reports.records.labels import knowledge_text, label, place, round_place, unique
from reports.records.measured import strongest
from reports.records.number_text import NONE, range_text, spread_text
from reports.records.remarks import machines
from reports.tables import render

COLUMNS = (
    "defence", "attacked", "attack", "it knows", "PSNR, dB", "over the floor, dB", "epsilon", "accuracy, %",
    "accuracy of the attacked networks, %",
)  # fmt: skip
SUMMARY = (
    "defence", "accuracy, %", "accuracy of the attacked networks, %", "epsilon", "audited, at least",
    "after training, dB", "over the floor, dB", "before training, dB", "over the floor, dB",
)  # fmt: skip


def of_claim(records: Sequence[AttackRecord], columns: Sequence[str]) -> str:
    """A verdict and a table: a row for each attack on each of some columns, at each round.

    ValueError: a column without a record.
    """
    return f"{verdict(records, columns)}\n\n{every_attack(records, columns)}\n\n{machines(records)}."


def verdict(records: Sequence[AttackRecord], columns: Sequence[str]) -> str:
    """What follows for a claim from every attack on some columns: who gains significantly over the floor, if anybody.

    References, which have the victim's own networks, refute nothing; where one of them gains, a sentence says so. A last one names
    columns whose networks were trained to nothing: attacks that fail on them show no protection of a model.
    """
    attacks = [(name, words, r) for name, words, of_column in _attacked(records, columns) for r in of_column]
    of_attackers = [each for each in attacks if each[2].knowledge.rung != measured.ORACLE]
    attackers, unsure = _gaining(of_attackers)
    references, _ = _gaining([each for each in attacks if each[2].knowledge.rung == measured.ORACLE])
    if attackers:
        said = (
            f"**It does not hold** for {'; '.join(attackers)}: a significant gain over the floor, adjusted over all attacks of the "
            "claim."
        )
    elif any(measured.of(r).gain_db.is_few for *_, r in of_attackers):
        said = "**Not answered yet:** seeds are too few for a significant gain. The rows are observations."
    else:
        said = "**Not refuted here:** no attack gains significantly over the floor. This bounds these attackers and no others."
    if unsure:
        said += f" The interval alone leaves out 0, and not the adjusted test, for {'; '.join(unsure)}."
    if references:
        said += f" A reference, which is no attacker, gains significantly: {'; '.join(references)}."
    if useless := unique(name for name, words, r in attacks if words == WHEN["best"] and _guesses(r)):
        said += (
            f" The attacked networks of {'; '.join(useless)} have less than twice the accuracy of guessing, after training too: "
            "their rows show no protection of a trained model."
        )
    return said


def _gaining(attacks: Sequence[tuple[str, str, AttackRecord]]) -> tuple[list[str], list[str]]:
    """(who gains significantly over the floor, who does by the interval alone) in words, each tested among all of them."""
    names = [f"{name}, {words}, by `{r.attack}` ({knowledge_text(r)})" for name, words, r in attacks]
    rows = [measured.of(r) for *_, r in attacks]
    tests = comparison.against_floor(rows, names)
    gaining = [(name, test) for name, row, test in zip(names, rows, tests, strict=True) if row.is_significant]
    return [name for name, test in gaining if test.differ], [name for name, test in gaining if not test.differ]


def verdicts(records: Sequence[AttackRecord], claims: Mapping[str, Sequence[str]]) -> str:
    """A line for each claim, in its own words: the verdict, and how many attacks it rests on."""
    lines = [
        f'- "{words}": {verdict(records, columns)} Rows: {sum(len(each) for *_, each in _attacked(records, columns))}.'
        for words, columns in claims.items()
    ]
    return "\n".join([*lines, "", f"{machines(records)}."])


def every_attack(records: Sequence[AttackRecord], columns: Sequence[str] = ()) -> str:
    """A row for each attack on each of some columns (none: of all), at each round."""
    rows = []
    for name, words, attacks in _attacked(records, columns):
        for record in attacks:
            row = measured.of(record)
            gain = range_text(row.gain_db, sign=True)
            rows.append(
                [
                    name, words, f"`{record.attack}`", knowledge_text(record), range_text(row.psnr_db),
                    render.bold(gain) if row.is_significant else gain, guarantees.whole_text(record),
                    _text(record.accuracy), _text(record.accuracy_at_round),
                ]
            )  # fmt: skip
    return render.markdown(COLUMNS, rows)


def every_defence(records: Sequence[AttackRecord]) -> str:
    """A row for each method and defence: accuracy, epsilon, and the strongest attack after and before training.

    Beside the accuracy of the personal model, which a guarantee per client does not cover, stands that of the networks attacked
    after training. Below, what epsilon covers and what it leaves out.
    """
    rows = []
    for name in unique(label(r.cell) for r in sorted(records, key=lambda r: place(r.cell))):
        of_column = {words: attacks for _, words, attacks in _attacked(records, [name])}
        one = next(iter(of_column.values()))[0]
        trained = of_column.get(WHEN["best"])
        attacked = _text(trained[0].accuracy_at_round) if trained else NONE
        rows.append([name, _text(one.accuracy), attacked, guarantees.text(one), guarantees.audited_text(one)])
        for words in WHEN.values():
            rows[-1] += _strongest(of_column.get(words, []))
    return "\n".join([render.markdown(SUMMARY, rows), "", *(f"- {line}" for line in guarantees.coverage(records))])


def _strongest(attacks: Sequence[AttackRecord]) -> list[str]:
    """Two cells: the PSNR of the strongest attack with its name, and its gain over the floor."""
    if not attacks:
        return [NONE, NONE]
    row = strongest(attacks)
    gain = range_text(row.gain_db, sign=True)
    return [f"{range_text(row.psnr_db, digits=1)}, `{row.name}`", render.bold(gain) if row.is_significant else gain]


def _attacked(records: Sequence[AttackRecord], columns: Sequence[str]) -> list[tuple[str, str, list[AttackRecord]]]:
    """(method and defence, when, its attacks that are no floors), by round and column; ValueError: a column has none."""
    places = []
    others = sorted({r.cell.round for r in records} - set(WHEN), key=round_place)
    for round_, words in (
        WHEN | {one: "the last round" if one == "last" else f"round {one}" for one in others}
    ).items():
        of_round = by_method(records, round_)
        for name in columns or of_round:
            attacks = [r for r in of_round.get(name, []) if r.attack not in registry.FLOORS]
            if attacks:
                places.append((name, words, attacks))
    absent = [name for name in columns if not any(name == one for one, _, _ in places)]
    if absent:
        raise ValueError(f"no attack on {', '.join(absent)} is among the records")
    return places


def _guesses(record: AttackRecord) -> bool:
    """Whether the attacked networks are hardly better than naming one class always."""
    return record.accuracy_at_round.mean < 2 * 100 / record.classes


def _text(accuracy: Accuracy) -> str:
    return spread_text(accuracy.mean, accuracy.std, 1).replace("+-", "±")
