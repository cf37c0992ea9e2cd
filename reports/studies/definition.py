"""A study is a list of cells and the reports drawn of them: one file `reports/studies/<name>.toml` per published table or figure.

A study names columns (a method with its settings, its defence and the attacks on it) and data sets with their layouts; presets
say how often and how long (privbench.presets). A study without attacks trains alone. Misspelt keys are refused.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic import Field

from privbench import presets, registry, spec
from privbench.data.paper_setup import Name as ProtocolName
from privbench.errors import UserError
from privbench.system.file_headers import short
from reports.studies import study_files

Settings = dict[str, Any]
SCHEDULE = "schedule."  # before a field of the schedule that a column searches


class Column(spec.Strict):
    """One method as a study compares it; several cells where `each` or `search` name values."""

    method: str
    settings: Settings = Field(default_factory=dict)
    defense: str = "none"
    each: dict[str, list[Any]] = Field(
        default_factory=dict
    )  # a variant for every value of every setting named, one setting at a time
    # One run per value (of every variant), but in smoke the first alone; reports keep the best by validation accuracy. A name is a
    # setting of the method, or "schedule." and a field as presets.changed takes it, which like the study's `schedule` is of
    # the paper preset alone: search."schedule.task.lr" = [0.01, 0.05, 0.08].
    search: dict[str, list[Any]] = Field(default_factory=dict)
    attacks: tuple[str, ...] | None = None  # in place of the study's
    not_on: tuple[str, ...] = ()  # data sets for which the source has no such cell
    # Images of each client in the paper preset, by data set, where not as the other columns: of a method that needs images of no
    # client on data that the protocol deals out whole.
    per_client: dict[str, int] = Field(default_factory=dict)


class Data(spec.Strict):
    """One published data set and layout."""

    name: str
    clients: int | None = None
    omega: tuple[float, ...] | None = None  # Dirichlet layouts of this data set, in place of the study's
    # Of the paper preset alone: per_client, and fields of the schedule as the study's `schedule` has them.
    paper: Settings = Field(default_factory=dict)


class Variant(spec.Strict):
    """One choice of what a source leaves open of its attack."""

    settings: Settings = Field(default_factory=dict)  # of the attack; attacks that lack one have no such cell
    batch_size: int = 1
    labels_known: bool = False
    wire: str = "float32"
    observe: str = "gradient"
    local_steps: int | None = None
    local_lr: float | None = None


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
    metrics: tuple[str, ...] = ("accuracy",)  # columns of the accuracy table
    tables: tuple[
        str, ...
    ] = ()  # "SOURCE TABLE", e.g. "FedMD-CG 4", "NFL-CGAN fig7": what is printed of these very cells
    measured: tuple[MeasuredQuantity, ...] = ()
    backbone: str = "lenet5"
    clients: int | None = None  # of data sets whose entry names none, and of the embedded ones
    omega: tuple[float, ...] = ()  # Dirichlet layouts in place of each data set's own
    attacks: tuple[str, ...] = ()  # "ladder": all there are
    rounds: tuple[str, ...] = ("best",)  # attacked rounds; numbers from a schedule's last on are left out
    seeds: int | None = None  # at least so many where the user names no number, but in smoke; as the next
    victims: int | None = None  # per seed
    # Of every method in the paper preset, where the source trains all alike; names as presets.changed takes them. A table is
    # a whole optimiser: task = { kind = "sgd", lr = 0.05 }; a quoted name with a dot one setting of it: "task.lr" = 0.05.
    schedule: Settings = Field(default_factory=dict)
    protocol: ProtocolName = (
        "fedcg"  # the paper whose sizes and split all its methods have; of the paper preset, as the next
    )
    equal_work: bool = False  # all methods go through as many images a round (presets.schedule_of)
    embedded: tuple[str, ...]  # data sets that come before the published ones in smoke and quick
    data: tuple[Data, ...] = ()
    column: tuple[Column, ...] = Field(min_length=1)
    variant: tuple[Variant, ...] = (Variant(),)  # every attack is made once per variant

    @property
    def is_ladder(self) -> bool:
        """Whether it names the ladder, whose attacks are left out where they cannot be made."""
        return any(registry.LADDER in attacks for attacks in (self.attacks, *(c.attacks or () for c in self.column)))


class Choices(NamedTuple):
    """What a user asks for in place of the study's own; None for each that stays."""

    how: str | None = None
    omega: float | None = None
    min_per_client: int | None = None
    where: str = "update"
    protocol: str | None = None
    flip: bool | None = None
    measured: str = "personal"
    equal_work: bool = False
    changes: Mapping[str, Any] = MappingProxyType({})  # of the schedule, in every preset
    defenses: tuple[str, ...] = ()  # in place of those that the study has


def read(name: str) -> Study:
    """One study; an unknown name raises UserError with the nearest one."""
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
    return spec.checked(Study, value | {"name": name})


def cells(  # noqa: PLR0913 (what a study's cells depend on)
    study: Study,
    preset: str,
    datasets: Sequence[tuple[str, tuple[str, ...] | None]] | None = None,
    *,
    methods: Sequence[str] | None = None,
    seeds: int | None = None,
    first_seed: int | None = None,
    victims: int | None = None,
    rounds: Sequence[str] | None = None,
    choices: Choices = Choices(),  # noqa: B008 (immutable)
) -> list[spec.CellSpec]:
    """Every cell: data sets x layouts x columns x attacked rounds x attacks, each once.

    `datasets` are (name, domains); by default the published ones, and in smoke and quick the embedded ones before them.
    UserError: a method that the study does not compare; rounds of a study without attacks, or beyond the last.
    """
    columns = _defended(_columns(study, methods), choices.defenses)
    if rounds is not None and not any(_attacks(study, column) for column in columns):
        raise UserError(f"the study '{study.name}' attacks nothing, so that it takes no --round")
    if preset != "smoke":
        seeds = seeds or (study.seeds and max(study.seeds, len(presets.SEEDS[preset])))
        victims = victims or (study.victims and max(study.victims, presets.VICTIMS[preset]))
    found = []
    for data, domains in _data(study, preset, datasets):
        own_layout = choices.omega is not None or choices.how is not None
        usual = study.omega if data.omega is None else data.omega
        omegas: Sequence[float | None] = (choices.omega,) if own_layout else usual or (None,)
        own = data.paper if preset == "paper" else {}
        published = study.schedule if preset == "paper" else {}
        published = published | {name: value for name, value in own.items() if name != "per_client"}
        protocol = choices.protocol or (study.protocol if preset == "paper" else None)
        for omega in omegas:
            for column in columns:
                if data.name in column.not_on:
                    continue
                per_client = column.per_client.get(data.name) if preset == "paper" else None
                per_client = per_client or own.get("per_client")
                for settings, searched in _variants(column, preset):
                    train = presets.train_spec(
                        preset, data.name, column.method, defense=column.defense, where=choices.where, backbone=study.backbone,
                        domains=domains, how=choices.how, omega=omega, min_per_client=choices.min_per_client,
                        clients=data.clients or study.clients, per_client=per_client, method_settings=settings,
                        protocol=protocol,
                        flip=choices.flip, measured=choices.measured, equal_work=choices.equal_work or study.equal_work,
                        changes={**published, **searched, **choices.changes},
                    )  # fmt: skip
                    attacks = _attacks(study, column)
                    if not attacks:
                        found.append(presets.cell_spec(preset, train, None, seeds=seeds, first_seed=first_seed))
                    found += [
                        presets.cell_spec(
                            preset, train, attack, round_=round_, seeds=seeds, first_seed=first_seed, victims=victims,
                            attack_settings=variant.settings, **variant.model_dump(exclude={"settings"}),
                        )
                        for round_ in _rounds(study, rounds, train.schedule.rounds)
                        for attack in attacks
                        for variant in _variants_of(study, attack)
                    ]  # fmt: skip
    return list({cell.id: cell for cell in found}.values())


def _variants_of(study: Study, attack: str) -> list[Variant]:
    """The variants that an attack has all settings for; UserError for a setting that no attack of the study has."""
    named = {name for column in study.column for name in _attacks(study, column)}
    for variant in study.variant:
        registry.settings_of_each(named, variant.settings)
    own = {field.name for field in fields(registry.resolve("attack", attack))}
    return [variant for variant in study.variant if variant.settings.keys() <= own]


def _attacks(study: Study, column: Column) -> list[str]:
    named = study.attacks if column.attacks is None else column.attacks
    return [attack for name in named for attack in (registry.ATTACKS if name == registry.LADDER else (name,))]


def _rounds(study: Study, asked: Sequence[str] | None, last: int) -> list[str]:
    """The attacked rounds of a training of `last` rounds; UserError for one that was asked for and is none of them."""
    if asked is None:
        return [name for name in study.rounds if not name.isdigit() or int(name) < last]
    for name in asked:
        if name not in ("best", "last") and not (name.isdigit() and int(name) <= last):
            raise UserError(f"--round takes 0 to {last} here, 'last' or 'best', but '{name}' was given")
    return list(asked)


def _columns(study: Study, methods: Sequence[str] | None) -> Sequence[Column]:
    if methods is None:
        return study.column
    wanted = {registry.target("method", name): name for name in methods}  # two names of one method are one
    own = {registry.target("method", column.method) for column in study.column}
    for target, name in wanted.items():
        if target not in own:
            known = ", ".join(dict.fromkeys(column.method for column in study.column))
            raise UserError(f"the study '{study.name}' has no cells of {name}; it compares {known}")
    return [column for column in study.column if registry.target("method", column.method) in wanted]


def _defended(columns: Sequence[Column], defenses: Sequence[str]) -> Sequence[Column]:
    """The columns with `defenses` in place of their own: of every method that has a defended column, else of all methods.

    Columns without a defence stay.
    """
    if not defenses:
        return columns
    named = {column.method for column in columns if column.defense != "none"} or {column.method for column in columns}
    plain = [column for column in columns if column.defense == "none"]
    bases = plain + [column for column in columns if column.method not in {each.method for each in plain}]
    found = []
    for column in bases:
        found += [column] if column.defense == "none" else []
        if column.method in named:
            found += [column.model_copy(update={"defense": each}) for each in defenses]
    return found


def _data(
    study: Study, preset: str, datasets: Sequence[tuple[str, tuple[str, ...] | None]] | None
) -> list[tuple[Data, tuple[str, ...] | None]]:
    if datasets is None:
        stand_ins = [] if preset == "paper" else [Data(name=name) for name in study.embedded]
        return [(data, None) for data in [*stand_ins, *study.data]]
    found: list[tuple[Data, tuple[str, ...] | None]] = []
    for name, domains in datasets:
        published = [data for data in study.data if data.name == name and domains is None]
        found += [(data, domains) for data in published or [Data(name=name)]]
    return found


def _variants(column: Column, preset: str) -> Iterator[tuple[Settings, Settings]]:
    """(settings of the method, changes of the schedule) of each cell of a column.

    Settings at their default are left out, so that equal cells have one name.
    """
    searched = {
        name: values[:1] if preset == "smoke" else values
        for name, values in column.search.items()
        if preset == "paper" or not name.startswith(SCHEDULE)
    }
    variants, runs = (
        [{name: value} for name, values in asked.items() for value in values] or [{}]
        for asked in (column.each, searched)
    )
    every = [variant | run for variant in variants for run in runs]
    plugin = registry.resolve("method", column.method)
    plain = presets.QUICK_METHOD_SETTINGS.get(column.method, {}) if preset != "paper" else {}
    defaults = {field.name: field.default for field in fields(plugin)} | plain
    for one in every:
        changes = {name.removeprefix(SCHEDULE): value for name, value in one.items() if name.startswith(SCHEDULE)}
        settings = column.settings | {name: value for name, value in one.items() if not name.startswith(SCHEDULE)}
        registry.create(plugin, settings)  # refuses an unknown setting before anything is computed
        kept = {
            name: value
            for name, value in settings.items()
            if defaults[name] != value or name in (*plain, *column.search)
        }
        yield kept, changes
