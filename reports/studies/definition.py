"""A study is a list of cells and the reports drawn of them: one file `reports/studies/<name>.toml` per published table or figure.

A study names columns (a method with its settings, its defence and the attacks on it) and data sets with their layouts; presets
say how often and how long (privbench.presets). A study without attacks trains alone. Misspelt keys are refused.
"""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator

from privbench import registry, spec
from privbench.data.paper_setup import Name as ProtocolName
from privbench.errors import UserError
from privbench.system.file_headers import short
from reports.studies import study_files, sweeps

Settings = dict[str, Any]
Values = Annotated[list[Any], Field(min_length=1)]
SCHEDULE = "schedule."  # before a field of the schedule that a column searches


class Column(spec.Strict):
    """One method as a study compares it; several cells where `each` or `search` name values."""

    method: str
    settings: Settings = Field(default_factory=dict)
    defense: str = "none"
    initialisation: spec.Initialisation | None = None  # of the networks that clients keep; None: as asked for
    each: dict[str, Values] = Field(
        default_factory=dict
    )  # a variant for every value of every setting named, one setting at a time
    # One run per value (of every variant), but in smoke the first alone; reports keep the best by validation accuracy. A name is a
    # setting of the method, or "schedule." and a field as presets.changed takes it, which like the study's `schedule` is of
    # the presets standard and paper alone: search."schedule.task.lr" = [0.01, 0.05, 0.08].
    search: dict[str, Values] = Field(default_factory=dict)
    attacks: tuple[str, ...] | None = None  # in place of the study's
    rounds: tuple[str, ...] | None = Field(None, min_length=1)  # attacked ones, in place of the study's
    # Per seed, exactly so many where the user names no number, but in smoke.
    victims: int | None = Field(None, ge=1)
    audit: int = Field(0, ge=0)  # canaries that measure its epsilon, but in smoke: privbench/execution/audit.py
    generated: int = Field(
        0, ge=0
    )  # samples that score its generators of images: privbench/execution/generator_scores.py
    not_on: tuple[str, ...] = ()  # data sets for which the source has no such cell
    # Images of each client in the presets standard and paper, by data set, where not as the other columns: of a method that needs
    # images of no client on data that the protocol deals out whole.
    per_client: dict[str, int] = Field(default_factory=dict)


class Data(spec.Strict):
    """One published data set and layout."""

    name: str
    clients: int | None = Field(None, ge=1)
    omega: tuple[float, ...] | None = Field(
        None, min_length=1
    )  # Dirichlet layouts of this data set, in place of the study's
    # Of the presets standard and paper alone: per_client, and fields of the schedule as the study's `schedule` has them.
    paper: Settings = Field(default_factory=dict)


class Variant(spec.Strict):
    """One choice of what a source leaves open of its attack."""

    settings: Settings = Field(default_factory=dict)  # of the attack; attacks that lack one have no such cell
    batch_size: int = Field(1, ge=1)
    labels_known: bool = False
    wire: str = "float32"
    observe: str = "gradient"
    local_steps: int | None = Field(None, ge=1)
    local_lr: float | None = Field(None, gt=0)
    # Of attacks that know what the server kept; others have one cell for all values.
    uploads_per_round: int | None = Field(None, ge=1)


class MeasuredQuantity(spec.Strict):
    """How the source measures something otherwise than the suite, or that it does not say how: a note beside its values."""

    metrics: tuple[str, ...]  # what their names begin with, e.g. "rta" for "rta_mean"
    how: str
    methods: tuple[str, ...] = ()  # whose values; by default all


class Study(spec.Strict):
    """The content of a file."""

    name: str
    title: str
    source: str  # the published tables and figures that these are the cells of
    about: str
    reports: tuple[str, ...]
    metrics: tuple[str, ...] = Field(("accuracy",), min_length=1)  # columns of the accuracy table
    # "SOURCE TABLE", e.g. "FedMD-CG 4", "NFL-CGAN fig7": what is printed of these very cells.
    tables: tuple[str, ...] = ()
    measured: tuple[MeasuredQuantity, ...] = ()
    backbone: str = "lenet5"
    clients: int | None = Field(None, ge=1)  # of data sets whose entry names none, and of the embedded ones
    omega: tuple[float, ...] = ()  # Dirichlet layouts in place of each data set's own
    attacks: tuple[str, ...] = ()  # "ladder" and "ladder:all" as in privbench/execution/ladder.py
    rounds: tuple[str, ...] = Field(
        ("best",), min_length=1
    )  # attacked rounds; numbers from a schedule's last on are left out
    seeds: int | None = Field(None, ge=1)  # at least so many where the user names no number, but in smoke; as the next
    victims: int | None = Field(None, ge=1)  # per seed
    # Of every method in the presets standard and paper, where the source trains all alike; names as presets.changed takes them. A
    # table is a whole optimiser: task = { kind = "sgd", lr = 0.05 }; a quoted name with a dot one setting of it: "task.lr" = 0.05.
    schedule: Settings = Field(default_factory=dict)
    quick: Settings = Field(default_factory=dict)  # the same of the quick preset
    # The paper whose sizes and split all its methods have; of the presets standard and paper, as the next.
    protocol: ProtocolName = "fedcg"
    equal_work: bool = False  # all methods go through as many images a round (presets.schedule_of)
    embedded: tuple[str, ...]  # data sets that come before the published ones in smoke and quick
    data: tuple[Data, ...] = ()
    column: tuple[Column, ...] = Field(min_length=1)
    variant: tuple[Variant, ...] = Field((Variant(),), min_length=1)  # every attack is made once per variant
    # Values of fields, each combination once: reports/studies/sweeps.py. Its table and curve are drawn without being named.
    sweep: dict[str, list[Any]] = Field(default_factory=dict)

    @field_validator("sweep")
    @classmethod
    def _hashable(cls, sweep: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """A value that is a list of numbers as a tuple, as cells have it."""
        return {name: [tuple(v) if isinstance(v, list) else v for v in values] for name, values in sweep.items()}

    @property
    def is_ladder(self) -> bool:
        """Whether it names the ladder, whose attacks are left out where they cannot be made."""
        named = (self.attacks, *(column.attacks or () for column in self.column))
        return any(registry.LADDERS & set(attacks) for attacks in named)


def read(name: str) -> Study:
    """One study by its name, or a file of the user's own by its path; an unknown name raises UserError with the nearest one."""
    if name.endswith(study_files.ENDING):
        return parsed(Path(name).stem, study_files.of_user(Path(name)))
    if name not in (known := study_files.names()):
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
        hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known)}"
        raise UserError(f"unknown study '{name}'; {hint}")
    return parsed(name, study_files.text(name).encode())


def parsed(name: str, content: bytes) -> Study:
    """The study in a file; UserError where it is no TOML, misspells a key or has a value that is none for it."""
    try:
        value = tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"study '{name}' is no TOML: {short(error)}") from error
    study = spec.checked(Study, value | {"name": name})
    sweeps.check(study.sweep)
    return study
