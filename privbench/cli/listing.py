"""`privbench list runs` and `privbench show`: what lies under an output folder. Other listings are privbench/cli/catalogue.py."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.table import Table

from privbench import registry
from privbench.cli import training_view
from privbench.errors import UserError
from privbench.records import clients, schema, summary
from privbench.records.schema import AttackRecord
from privbench.records.store import Store, status
from privbench.spec import CellSpec, TrainSpec
from privbench.system import console
from privbench.system.printable import one_line
from privbench.training import checkpoint
from reports.records.quotable import SMOKE_NOTE, is_quotable
from reports.tables import render
from reports.tables.training import generator_table

Spec = TypeVar("Spec", CellSpec, TrainSpec)


def list_runs(out: Path) -> None:
    """Training runs and finished cells under a folder."""
    store = Store(out)
    trained, cells, earlier = store.trained(), store.cells(), store.earlier()
    if not trained and not cells and not earlier:
        raise UserError(f"there are no runs under {out}; start one with `privbench train` or `privbench attack`")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in ("id", "data set", "method", "defence", "seed", "attack", "round", "state"):
        table.add_column(column, overflow="fold", no_wrap=column == "id")
    for folder, spec in trained:
        table.add_row(
            spec.id,
            *map(one_line, (registry.short(spec.dataset), spec.method, spec.defense)),
            str(spec.seed),
            "",
            "",
            status(folder, spec.id),
        )
    for cell in cells:
        done = store.record(cell).exists()
        seeds = ",".join(str(seed) for seed in cell.seeds)
        state = "recorded" if done else "unfinished; the same command continues"
        named = map(one_line, (registry.short(cell.train.dataset), cell.train.method, cell.train.defense))
        table.add_row(cell.id, *named, seeds, *map(one_line, _attack_and_round(cell)), state)
    to = console.results()
    to.print(table)
    if earlier:
        example = earlier[0].relative_to(out)
        to.say(
            f"not listed: {len(earlier)} folder(s) of earlier revisions, which nothing reads any more, e.g. {example}"
        )


def _attack_and_round(cell: CellSpec) -> tuple[str, str]:
    return ("", "") if cell.attack is None else (cell.attack, cell.round)


def show_run(prefix: str, out: Path) -> None:
    """Everything on disk about the one run or cell whose id begins with `prefix`."""
    store = Store(out)
    matches: list[tuple[TrainSpec | CellSpec, Path]] = []
    matches += [(spec, folder) for folder, spec in store.trained() if spec.id.startswith(prefix)]
    matches += [(cell, store.cell(cell)) for cell in store.cells() if cell.id.startswith(prefix)]
    if not matches:
        raise UserError(f"no run or cell under {out} begins with '{prefix}'; see `privbench list runs`")
    if len(matches) > 1:
        raise UserError(f"'{prefix}' could be any of {', '.join(one.id for one, _ in matches)}; give more digits")
    spec, folder = matches[0]
    to = console.results()
    to.say(f"{'train' if isinstance(spec, TrainSpec) else 'cell'} {spec.id} in {folder}")
    if isinstance(spec, TrainSpec):
        to.print_json(json.dumps(spec.model_dump(mode="json")))
        to.say(status(folder, spec.id))
        rounds = checkpoint.history(folder, spec.id)
        if rounds is not None:
            to.print(f"{sum(entry['seconds'] for entry in rounds):.0f} s of training")
            classes = clients.read_clients(store, spec).classes
            training_view.show([summary.training(folder, spec.id)], classes, to)
        return
    if not store.record(spec).exists():
        raise UserError(f"cell {spec.id} is unfinished; the command that started it continues it")
    record = schema.read_of(spec, store.record(spec))
    content: dict[str, Any] = record.model_dump(mode="json", exclude={"seeds"})  # too long, or in the tables
    if isinstance(record, AttackRecord) and not is_quotable(record.cell.preset):
        to.say(SMOKE_NOTE)
    elif isinstance(record, AttackRecord):
        content |= {
            "scores": record.scores._asdict(),
            "floors": record.floors,
            "gain_db": record.gain_db,
        }
        content |= {"checks": [message.model_dump() for message in record.messages]}
    to.print_json(json.dumps(content))
    training_view.show(record.training, record.class_names, to)
    if is_quotable(record.cell.preset):
        for scores in generator_table.report([record]).tables:
            render.show(scores.title, scores.columns, scores.rows, to)


def only(every: Sequence[Spec], prefix: str, what: str) -> Spec:
    """The one whose id begins with `prefix`; UserError when there is none, or more than one."""
    matches = [one for one in every if one.id.startswith(prefix)]
    if len(matches) != 1:
        many = f"could be any of {', '.join(one.id for one in matches)}; give more digits"
        raise UserError(f"'{prefix}' {many if matches else f'is no {what}; see `privbench list runs`'}")
    return matches[0]
