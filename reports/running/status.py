"""How far each cell of a study is, read from what lies on disk, e.g. done, failed, damaged, interrupted, not run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from privbench.errors import UserError
from privbench.records import schema
from privbench.records.schema import Record
from privbench.records.store import Store
from privbench.spec import CellSpec
from privbench.training import checkpoint
from reports.records import grouping, labels
from reports.records.labels import REFUSED, unique

DONE, FAILED, INTERRUPTED, NOT_RUN, NO_DATA = "done", "failed", "interrupted", "not run", "no data"
DAMAGED = "damaged"  # a file of it cannot be read
WORDS = (DONE, FAILED, REFUSED, DAMAGED, INTERRUPTED, NOT_RUN, NO_DATA)


class CellStatus(NamedTuple):
    """One cell's state in a word, why, and its record when it is done."""

    word: str
    why: str
    record: Record | None = None
    is_new: bool = False  # whether the command at work recorded it


def of(store: Store, cell: CellSpec, absent: Mapping[str, str]) -> CellStatus:
    """The state of one cell; `absent` says of each data set that is not there how to get it.

    Of what cannot be read it says which file that is and what to remove.
    """
    try:
        return _readable(store, cell, absent)
    except UserError as error:
        why = str(error)
        return CellStatus(DAMAGED, why if "remove" in why else f"{why}; remove it and run the same command again")


def _readable(store: Store, cell: CellSpec, absent: Mapping[str, str]) -> CellStatus:
    """The same; UserError where a file of the cell cannot be read."""
    if store.record(cell).exists():
        return CellStatus(DONE, "", schema.read_of(cell, store.record(cell)))
    if store.failure(cell).exists():
        reason, refused = store.read_failure(cell)
        return CellStatus(REFUSED if refused else FAILED, reason)
    if cell.train.dataset in absent:
        return CellStatus(NO_DATA, absent[cell.train.dataset])
    begun = [part for part in (_begun(store, cell, seed) for seed in cell.seeds) if part]
    if begun and (store.cell_spec(cell).exists() or cell.attack is None or any("stopped" in part for part in begun)):
        return CellStatus(INTERRUPTED, f"{'; '.join(begun)}; the same command continues")
    return CellStatus(NOT_RUN, "its training is finished" if begun else "")


def _begun(store: Store, cell: CellSpec, seed: int) -> str:
    """What there is of one seed, in words; nothing where nothing is."""
    spec = cell.train.model_copy(update={"seed": seed})
    folder = store.train(spec)
    if store.result(cell, seed).exists():
        return f"seed {seed} done"
    if checkpoint.history(folder, spec.id) is not None:
        return f"seed {seed} trained"
    done = checkpoint.progress(folder, spec.id)
    return "" if done is None else f"seed {seed} stopped after round {done} of {cell.train.schedule.rounds}"


def counts(states: Sequence[CellStatus]) -> str:
    """E.g. "12 of 20 cells done, 1 failed, 7 not run"."""
    numbers = {word: sum(state.word == word for state in states) for word in WORDS}
    others = [f"{number} {word}" for word, number in numbers.items() if number and word != DONE]
    return ", ".join([f"{numbers[DONE]} of {len(states)} cells done", *others])


COLUMNS = ["cell", "attack", "round", "state"]
MOST_NAMED = 4  # attacks of one row


def listing(cells: Sequence[CellSpec], states: Sequence[CellStatus]) -> list[tuple[str, list[list[str]]]]:
    """(heading, rows of COLUMNS) of each setting; attacks of one cell and round that are in one state share a row."""
    by_setting: dict[grouping.Setting, dict[tuple[str, str, str], list[str]]] = {}
    for cell, state in zip(cells, states, strict=True):
        round_ = labels.round_text(cell.round) if cell.attack else ""
        row = (_name(cell), round_, state.word + (f": {state.why}" if state.why else ""))
        by_setting.setdefault(grouping.setting(cell), {}).setdefault(row, []).append(cell.attack or "")
    return [
        (
            grouping.title(key),
            [[name, _attacks(attacks), round_, state] for (name, round_, state), attacks in body.items()],
        )
        for key, body in by_setting.items()
    ]


def _attacks(names: Sequence[str]) -> str:
    """The attacks of some cells, by number where they are many; of each, or of training alone (""), in how many settings."""
    each = Counter(names)
    if len(each) > MOST_NAMED:
        return f"{len(each)} attacks"
    texts = [name if count == 1 else f"{name} in {count} settings" for name, count in each.items()]
    return ", ".join(texts).removeprefix(" in ")


def _name(cell: CellSpec) -> str:
    searched = {name: value for name, value in cell.train.method_settings.items() if name == "mu"}
    return grouping.row(cell) + "".join(f", {name} {value:g}" for name, value in searched.items())


def reasons(cells: Sequence[CellSpec], states: Sequence[CellStatus]) -> list[str]:
    """One line per reason for which cells are not done, with how many and which."""
    open_ = [(cell, state) for cell, state in zip(cells, states, strict=True) if state.word != DONE]
    lines = []
    for word, why in unique((state.word, state.why) for _, state in open_):
        alike = [cell for cell, state in open_ if (state.word, state.why) == (word, why)]
        which = unique(f"{cell.train.dataset} {grouping.row(cell)}" for cell in alike)
        few = ", ".join(which[:3]) + (f" and {len(which) - 3} more" if len(which) > 3 else "")
        lines.append(f"{word} ({len(alike)}): {few}" + (f": {why}" if why else ""))
    return lines
