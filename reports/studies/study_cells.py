"""The cells of a study: data sets x layouts x columns x attacked rounds x attacks, each once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypedDict, Unpack

from privbench import presets, registry, spec
from privbench.errors import UserError
from privbench.execution import ladder
from reports.studies import sweeps
from reports.studies.definition import SCHEDULE, Column, Data, Settings, Study

DataSets = Sequence[tuple[str, tuple[str, ...] | None]]


class CellChoices(TypedDict, total=False):
    """What a user asks for in place of what a study says. What is missing or None stays."""

    methods: Sequence[str] | None  # of the study's
    seeds: int | None
    first_seed: int | None
    victims: int | None
    rounds: Sequence[str] | None
    attacks: Sequence[str] | None
    defenses: Sequence[str]
    choices: Mapping[str, Any]  # as presets.train_spec takes them by name


def of(
    study: Study, preset: str, datasets: DataSets | None = None, **choices: Unpack[CellChoices]
) -> list[spec.CellSpec]:
    """Every cell of a study, each once.

    `datasets` are (name, domains); by default the published ones, and in smoke and quick the embedded ones before them.
    UserError: a method that the study does not compare; rounds or attacks of a study without attacks; rounds beyond the last.
    """
    columns = _defended(_columns(study, choices.get("methods")), choices.get("defenses", ()))
    for option in ("rounds", "attacks"):
        if choices.get(option) is not None and not any(_named(study, column) for column in columns):
            raise UserError(
                f"the study '{study.name}' attacks nothing, so that it takes no --{option.removesuffix('s')}"
            )
    amount = {
        "seeds": choices.get("seeds"),
        "first_seed": choices.get("first_seed"),
        "victims": choices.get("victims"),
    }
    if preset != "smoke":
        amount["seeds"] = amount["seeds"] or (study.seeds and max(study.seeds, len(presets.SEEDS[preset])))
        amount["victims"] = amount["victims"] or (study.victims and max(study.victims, presets.VICTIMS[preset]))
    _check_variants(study)
    specs = [
        cell
        for data, domains in _data(study, preset, datasets)
        for omega in _omegas(study, data, choices.get("choices", {}))
        for column in columns
        if data.name not in column.not_on
        for point in sweeps.points(study.sweep, column.method, column.defense)
        for train in _trainings(study, preset, data, domains, omega, column, choices.get("choices", {}), point)
        for cell in _of_training(
            study, preset, column, train, _of_column(amount, column, preset, choices), choices, point
        )
    ]
    return list({cell.id: cell for cell in specs}.values())


def _of_column(amount: Mapping[str, Any], column: Column, preset: str, choices: CellChoices) -> Mapping[str, Any]:
    """Seeds and victims of a column: with victims of its own where it names them, the user none, and the preset is not smoke."""
    own = column.victims if preset != "smoke" and choices.get("victims") is None else None
    return {**amount, "victims": own} if own else amount


def _omegas(study: Study, data: Data, choices: Mapping[str, Any]) -> Sequence[float | None]:
    """The layouts of a data set: that asked for, else its own, else the study's, else the data set's default."""
    omega, partition = choices.get("omega"), choices.get("partition")
    if omega is not None or partition is not None or study.sweep.keys() & {"omega", "partition"}:
        return (omega,)
    return (study.omega if data.omega is None else data.omega) or (None,)


def _trainings(
    study: Study,
    preset: str,
    data: Data,
    domains: tuple[str, ...] | None,
    omega: float | None,
    column: Column,
    choices: Mapping[str, Any],
    point: sweeps.Point,
) -> Iterator[spec.TrainSpec]:
    """The training runs of a column on one layout of a data set, with the swept values of `point`: one for each of its variants."""
    is_paper = preset in presets.AS_PUBLISHED
    paper = data.paper if is_paper else {}
    published = study.quick if preset == "quick" else study.schedule if is_paper else {}
    published = published | {name: value for name, value in paper.items() if name != "per_client"}
    published = presets.shortened(published) if preset == "standard" else published
    per_client = column.per_client.get(data.name) if is_paper else None
    for settings, searched in _variants(column, preset):
        of_study = {
            "defense": sweeps.defended(column.defense, point),
            "backbone": study.backbone,
            "domains": domains,
            "omega": omega,
            "clients": data.clients or study.clients,
            "per_client": per_client or paper.get("per_client"),
            "method_settings": {**settings, **sweeps.settings(point, sweeps.METHOD)},
            "protocol": choices.get("protocol") or (study.protocol if is_paper else None),
            "initialisation": column.initialisation or choices.get("initialisation"),
            "equal_work": study.equal_work or choices.get("equal_work", False),
            "changes": {
                **published,
                **searched,
                **choices.get("changes", {}),
                **sweeps.settings(point, sweeps.SCHEDULE),
            },
            **sweeps.of_training(point),
        }
        yield presets.train_spec(preset, data.name, column.method, **{**choices, **of_study})


def _of_training(
    study: Study,
    preset: str,
    column: Column,
    train: spec.TrainSpec,
    amount: Mapping[str, Any],
    choices: CellChoices,
    point: sweeps.Point,
) -> Iterator[spec.CellSpec]:
    """The cells that are measured on a training run: one without attacks, else attacked rounds x attacks x variants.

    An attack is in the variants that it has all settings for.
    """
    measured: dict[str, Any] = {"audit": column.audit if preset != "smoke" else 0, "generated": column.generated}
    named, swept = _named(study, column, choices), sweeps.of_cells(point, train.schedule.rounds)
    if not named:
        measured |= {name: value for name, value in swept.items() if name in measured}
        seeds = {name: amount[name] for name in ("seeds", "first_seed")}
        yield presets.cell_spec(preset, train, None, **seeds, **measured)
    for round_ in _rounds(study, column, choices.get("rounds"), train.schedule.rounds):
        for variant in study.variant:
            for attack in ladder.members(
                named,
                ladder.left_out_of_training(
                    train, round_, swept.get("batch_size", variant.batch_size), swept.get("observe", variant.observe)
                ),
            ):
                known = set(registry.setting_names(attack))
                if variant.settings.keys() <= known:
                    settings = {k: v for k, v in sweeps.settings(point, sweeps.ATTACK).items() if k in known}
                    chosen = {**amount, **measured, **variant.model_dump(exclude={"settings"}), **swept}
                    yield presets.cell_spec(
                        preset, train, attack, round_=round_, attack_settings=variant.settings | settings, **chosen
                    )


def _check_variants(study: Study) -> None:
    """UserError for a setting of a variant that no attack of the study has."""
    named = ladder.every(name for column in study.column for name in _named(study, column))
    for variant in study.variant:
        registry.settings_of_each(named, variant.settings)


def _named(study: Study, column: Column, choices: CellChoices | None = None) -> Sequence[str]:
    """The attacks of a column as they were written; nothing where it is only trained."""
    named = study.attacks if column.attacks is None else column.attacks
    return (choices or {}).get("attacks") or named if named else ()


def _rounds(study: Study, column: Column, names: Sequence[str] | None, last: int) -> list[str]:
    """The attacked rounds of a training of `last` rounds; UserError for one that was asked for and is none of them."""
    if names is None:
        named = study.rounds if column.rounds is None else column.rounds
        return [name for name in named if not name.isdigit() or int(name) < last]
    for name in names:
        if name not in ("best", "last") and not (name.isdigit() and int(name) <= last):
            raise UserError(f"--round takes 0 to {last} here, 'last' or 'best', but '{name}' was given")
    return list(names)


def _columns(study: Study, methods: Sequence[str] | None) -> Sequence[Column]:
    if methods is None:
        return study.column
    names = {registry.target("method", name): name for name in methods}  # two names of one method are one
    targets = {registry.target("method", column.method) for column in study.column}
    for target, name in names.items():
        if target not in targets:
            known = ", ".join(dict.fromkeys(column.method for column in study.column))
            raise UserError(f"the study '{study.name}' has no cells of {name}; it compares {known}")
    return [column for column in study.column if registry.target("method", column.method) in names]


def _defended(columns: Sequence[Column], defenses: Sequence[str]) -> Sequence[Column]:
    """The columns with `defenses` in place of their own: of every method that has a defended column, else of all methods.

    Columns without a defence stay.
    """
    if not defenses:
        return columns
    named = {column.method for column in columns if column.defense != "none"} or {column.method for column in columns}
    plain = [column for column in columns if column.defense == "none"]
    bases = plain + [column for column in columns if column.method not in {each.method for each in plain}]
    defended = []
    for column in bases:
        defended += [column] if column.defense == "none" else []
        if column.method in named:
            defended += [column.model_copy(update={"defense": each}) for each in defenses]
    return defended


def _data(study: Study, preset: str, datasets: DataSets | None) -> list[tuple[Data, tuple[str, ...] | None]]:
    if datasets is None:
        embedded = [] if preset in presets.AS_PUBLISHED else [Data(name=name) for name in study.embedded]
        return [(data, None) for data in [*embedded, *study.data]]
    chosen: list[tuple[Data, tuple[str, ...] | None]] = []
    for name, domains in datasets:
        published = [data for data in study.data if data.name == name and domains is None]
        chosen += [(data, domains) for data in published or [Data(name=name)]]
    return chosen


def _variants(column: Column, preset: str) -> Iterator[tuple[Settings, Settings]]:
    """(settings of the method, changes of the schedule) of each cell of a column.

    Settings at their default are left out, so that equal cells have one name.
    """
    searched = {
        name: values[:1] if preset == "smoke" else values
        for name, values in column.search.items()
        if preset in presets.AS_PUBLISHED or not name.startswith(SCHEDULE)
    }
    variants, runs = (
        [{name: value} for name, values in options.items() for value in values] or [{}]
        for options in (column.each, searched)
    )
    every = [variant | run for variant in variants for run in runs]
    plugin = registry.resolve("method", column.method)
    plain = presets.method_settings(preset, column.method)
    defaults = {field.name: field.default for field in fields(plugin)} | plain
    for one in every:
        changes = {name.removeprefix(SCHEDULE): value for name, value in one.items() if name.startswith(SCHEDULE)}
        settings = column.settings | {name: value for name, value in one.items() if not name.startswith(SCHEDULE)}
        registry.create(plugin, settings)  # refuses an unknown setting before anything is computed
        unvaried = {
            name: value
            for name, value in settings.items()
            if defaults[name] != value or name in (*plain, *column.search)
        }
        yield unvaried, changes
