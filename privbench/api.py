"""The commands as functions: what `privbench attack`, `table`, `study` and `train` do, with results in place of printed tables.

    import privbench

    results = privbench.attack(method="fedcg", dataset="photos", preset="smoke")
    results.frame()       # a pandas table: a row per attacked cell, as table.csv has it
    results.victims()     # a row per attacked upload

What says what is trained and attacked is a keyword here, by the name that `--help` shows with underscores for hyphens; `table` and
`study` take `datasets`, a study `methods`, and neither has `shard` or `status`. What is repeatable there takes a list or one value,
and so does `observed_rounds`. Settings (`set`, `attack_set`, `schedule`) take a mapping as well.
Finished work in `out` is reused. Names in these calls are the caller's own and may be `package.module:Class`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_type_hints

import pandas as pd
from torch import nn

from privbench.auditing import audit as audits
from privbench.auditing.request import AuditRequest
from privbench.auditing.result import AuditResult
from privbench.cli import attack_runs, folder_reports, training_runs, view_commands
from privbench.errors import UserError
from privbench.records import record_lines, schema
from privbench.records.schema import AttackRecord, InferenceRecord, Record
from privbench.records.store import Store
from privbench.requests import given, option_types, specifications, words
from privbench.requests.options import AttackOptions, PlaceOptions, RunOptions, TrainingOptions
from reports.folders import contents
from reports.running import study_plan, study_run
from reports.tables import attack_table, inference_table, report_files

SETTINGS = ("set_", "attack_set", "schedule")


@dataclass(frozen=True, repr=False)
class Results(Sequence[Record]):
    """Records, one per cell, in the order asked for, and why others are missing."""

    records: tuple[Record, ...]
    missing: tuple[str, ...] = ()  # one sentence per cell that could not be finished
    folder: Path | None = None  # where tables and figures lie
    references: tuple[AttackRecord, ...] = ()

    def __getitem__(self, index: Any) -> Any:
        """One record; of a slice, its records as a tuple."""
        return self.records[index]

    def __len__(self) -> int:
        """How many records there are."""
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        """Records in order."""
        return iter(self.records)

    def __repr__(self) -> str:
        """How many records there are, how many are missing, and where tables and figures lie."""
        return f"Results({len(self.records)} records, {len(self.missing)} missing, folder={str(self.folder)!r})"

    @property
    def attacked(self) -> list[AttackRecord]:
        """The records of attacks; the others are of inferences, or hold accuracy alone."""
        return [r for r in self.records if isinstance(r, AttackRecord)]

    @property
    def inferred(self) -> list[InferenceRecord]:
        """The records of inferences: what is stated of each client, with scores and floors."""
        return [r for r in self.records if isinstance(r, InferenceRecord)]

    def frame(self) -> pd.DataFrame:
        """A row per attack's record: scores with intervals, floors, accuracy, cost and checks, as table.csv has them."""
        return attack_table.frame(self.attacked, self.references)

    def victims(self) -> pd.DataFrame:
        """A row per attacked upload: its seed, client (from 1), outcome and scores; `floor_NAME_db` are its floors."""
        rows = []
        for r in self.attacked:
            about = {"id": r.id, "method": r.cell.train.method, "defense": r.cell.train.defense, "attack": r.attack}
            for victim in r.victims:
                scores = victim.model_dump(exclude={"floors"}) | {"client": victim.client + 1}
                floors = {f"floor_{name}_db": value for name, value in victim.floors.items()}
                rows.append(about | {"dataset": r.cell.train.dataset, "round": r.cell.round} | scores | floors)
        return pd.DataFrame(rows)

    def rounds(self) -> pd.DataFrame:
        """A row per seed, round and client (from 1) of training: test accuracy in percent, and each term's loss.

        Losses of rounds in which not all clients took part are left out.
        """
        rows: dict[tuple[str, int, int], dict[str, Any]] = {}
        for r in self.records:
            for training in r.training:
                train = r.cell.train.model_copy(update={"seed": training.seed})
                about = {"run": train.id, "dataset": train.dataset, "method": train.method, "defense": train.defense}
                for each in training.rounds:
                    for client, accuracy in enumerate(each.test_accuracy):
                        at = {"seed": training.seed, "round": each.round, "client": client + 1}
                        # A loss of the server has one value, not one a client.
                        of_clients = {n: v for n, v in each.loss.items() if len(v) == len(each.test_accuracy)}
                        losses = {f"loss_{name}": values[client] for name, values in of_clients.items()}
                        rows[train.id, each.round, client] = about | at | {"test_accuracy": accuracy} | losses
        return pd.DataFrame(rows.values())

    def _repr_markdown_(self) -> str:
        """The published form of the attack table and of the tables of inferences, as a notebook shows them."""
        if self.attacked:
            shown = inference_table.beneath(attack_table.in_short(self.attacked, self.references), self.inferred)
        elif self.inferred:
            shown = inference_table.report(self.inferred)
        else:
            return ""
        return report_files.markdown(shown)


def attack(**chosen: Any) -> Results:
    """`privbench attack`: trains (or reuses) one method, observes, attacks and scores.

    Args:
        **chosen: The command's options, e.g. method="fedcg", dataset="photos", attack=["staged"], round="0,best", out="runs".

    Raises:
        UserError: An unknown option or value, or a cell that is known beforehand to be impossible; none could be finished.
    """
    run, attacks, training, place = _groups(chosen, RunOptions, AttackOptions, TrainingOptions, PlaceOptions)
    cells = specifications.attack_cells(run, attacks, training)
    ended = attack_runs.run_ladder(cells, place) if attacks.is_ladder() else attack_runs.run_attacks(cells, place)
    missing = tuple(gap.reason for gap in ended.gaps)
    return Results(tuple(ended.finished), missing, ended.folder, tuple(ended.references))


def table(
    datasets: Sequence[str] | str = (), *, full: bool = False, victims: int | None = None,
    defense: Sequence[str] | str = (), **chosen: Any,
) -> Results:  # fmt: skip
    """`privbench table`: the five columns; in `quick` a first look, with `full` the table to publish.

    Args:
        datasets: Names, or one name; NAME:DOMAIN+DOMAIN chooses domains. Default: those of the command.
        full: 64 victims a seed, five seeds.
        victims: Attacked uploads per seed.
        defense: A column each, in place of the study's.
        **chosen: How runs are trained and where they lie, as the command's options.

    Raises:
        UserError: As `attack`.
    """
    training, place = _groups(chosen, TrainingOptions, PlaceOptions)
    victims = given.value("victims", option_types.Victims, victims)
    named = words.data_sets(None, given.listed(datasets)) or words.data_sets(
        words.default_data_sets(training.preset, full), None
    )
    defenses = specifications.defenses(given.listed(defense), training.where)
    definition, cells = study_plan.plan_table(training, named, full=full, victims=victims, defenses=defenses)
    return _studied(study_run.run_study(definition, cells, place))


def study(
    name: str, datasets: Sequence[str] | str = (), *, methods: Sequence[str] | str = (), round: Sequence[str] | str = (),  # noqa: A002
    attack: Sequence[str] | str = (), victims: int | None = None, defense: Sequence[str] | str = (), **chosen: Any,
) -> Results:  # fmt: skip
    """`privbench study NAME`: the cells of a published table or figure, and its reports in `folder`.

    Args:
        name: As `privbench list studies` has it.
        datasets: Names, or one name; NAME:DOMAIN+DOMAIN chooses domains. Default: those of the command.
        methods: Only these of the study's methods.
        round: Attacked rounds in place of the study's.
        attack: Attacks in place of the study's.
        victims: Attacked uploads per seed.
        defense: A column each, in place of the study's.
        **chosen: How runs are trained and where they lie, as the command's options.

    Raises:
        UserError: An unknown study, option or value; no cell of it could be run.
    """
    training, place = _groups(chosen, TrainingOptions, PlaceOptions)
    victims = given.value("victims", option_types.Victims, victims)
    defenses = specifications.defenses(given.listed(defense), training.where)
    definition, cells = study_plan.plan(
        name, training, words.data_sets(None, given.listed(datasets)), methods=given.listed(methods) or None,
        rounds=given.listed(round) or None, victims=victims, defenses=defenses,
        attacks=AttackOptions(attack=given.listed(attack)).named() if attack else None,
    )  # fmt: skip
    return _studied(study_run.run_study(definition, cells, place))


def train(**chosen: Any) -> pd.DataFrame:
    """`privbench train`: trains one method to the end; a row per seed and client with its test accuracy in percent.

    Args:
        **chosen: The command's options, e.g. method="fedavg", dataset="digits", seeds=3.

    Raises:
        UserError: An unknown option or value, or the first failure of a run.
    """
    run, training, place = _groups(chosen, RunOptions, TrainingOptions, PlaceOptions)
    return training_runs.trained(specifications.train_specs(run, training), place)


def report(runs: str | Path, out: str | Path | None = None) -> Path:
    """`privbench report RUNS --html`: writes one page with everything that a folder of results says; returns its path.

    Args:
        runs: A folder of results, or a file of records.
        out: The page to write; by default report.html in the folder.

    Raises:
        UserError: There is no finished cell, or `out` is no .html file.
    """
    return folder_reports.write_page(Path(runs), None if out is None else Path(out))


def compare(
    a: str | Path, b: str | Path, but_for: Sequence[str] | str = (), out: str | Path = view_commands.COMPARISONS
) -> pd.DataFrame:
    """`privbench compare A B`: what changed from A to B; a row per pair of attacks and of trainings, as comparison.csv has it.

    Args:
        a: A folder of results, or a file of records.
        b: Another one.
        but_for: Fields of a specification in which two cells may differ and still be compared.
        out: Folder of the report.

    Raises:
        UserError: One of them has no finished cell, or there is no such field.
    """
    return pd.DataFrame(list(folder_reports.compared(Path(a), Path(b), given.listed(but_for), Path(out)).numbers))


def audit(module: nn.Module, **request: Any) -> AuditResult:
    """`privbench audit`: attacks what came of the clients of a module of the caller's own, and writes the result into `out`.

    Args:
        module: Called on images as the clients call it; its weights are those that went down, unless `before` has others.
        **request: The fields of privbench.auditing.request.AuditRequest, e.g. gradients={name: tensor}, input_shape=(3, 32, 32),
            mean=0.5, std=0.5, batch_size=4, truth=(images, labels), attack=["matching"], settings={"steps": 100}.

    Raises:
        UserError: An unknown field, or whatever does not fit the module.
    """
    names = [f.name for f in fields(AuditRequest)]
    for name in request:
        if name not in names:
            near = get_close_matches(name, names, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(names)}"
            raise UserError(f"there is no option '{name}'; {hint}")
    listed: dict[str, Any] = {
        n: given.listed(request[n]) for n in ("attack", "extractor", "head", "shared") if n in request
    }
    folders = {n: Path(request[n]) for n in ("out", "data_dir") if request.get(n) is not None}
    values: dict[str, Any] = {**request, **listed, **folders}
    return audits.audit(module, AuditRequest(**values))


def load(out: str | Path = option_types.DEFAULT_OUT) -> Results:
    """Every finished record of a folder of results or a file of records (*.jsonl.xz), in the order of their ids.

    Raises:
        UserError: A damaged record, or one of another cell; a file of another kind, or none of that name.
    """
    if Path(out).is_file() or Path(out).name.endswith(record_lines.ENDING):
        return Results(tuple(sorted(contents.read(Path(out)).records, key=lambda record: record.id)))
    store = Store(Path(out))
    return Results(tuple(schema.read(store.record(cell)) for cell in store.recorded()))


def _studied(ended: Any) -> Results:
    missing = tuple(gap.reason for gap in ended.gaps)
    return Results(tuple(ended.records), missing, ended.folder, tuple(ended.references))


def _groups(chosen: Mapping[str, Any], *groups: type[Any]) -> list[Any]:
    """The options of each group; UserError for a name that no group has."""
    fields_by_name = {f.name.rstrip("_"): (group, f) for group in groups for f in fields(group)}
    values: dict[type, dict[str, Any]] = {group: {} for group in groups}
    for name, value in chosen.items():
        if name not in fields_by_name:
            near = get_close_matches(name, fields_by_name, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(sorted(fields_by_name))}"
            raise UserError(f"there is no option '{name}'; {hint}")
        group, of = fields_by_name[name]
        is_mapping = of.name in SETTINGS and isinstance(value, Mapping)
        written = [f"{key}={each}" for key, each in value.items()] if is_mapping else value
        values[group][of.name] = given.value(name, get_type_hints(group, include_extras=True)[of.name], written)
    option_types.trusted(values.get(PlaceOptions, {}).get("trust"))
    return [group(**values[group]) for group in groups]
