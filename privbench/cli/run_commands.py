"""The commands that train and attack: what they do is imported when one starts to work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privbench import registry
from privbench.cli.flattening import flattened, refuse_others
from privbench.errors import UserError
from privbench.requests.option_types import (
    DEFAULT_OUT,
    DataDir,
    DatasetNames,
    Defenses,
    Out,
    ShardOption,
    Trust,
    Victims,
)
from privbench.requests.options import AttackOptions, PlaceOptions, RunOptions, TrainingOptions
from privbench.requests.words import data_sets, default_data_sets, settings, several
from privbench.system import console

if TYPE_CHECKING:
    from privbench.spec import CellSpec
    from reports.studies.definition import Study


# What `attack --artifact` reads: parameters of the command.
OF_ARTIFACTS = frozenset(
    {"truth", "attack", "also", "attack_set", "auxiliary", "dataset", "device", "data_dir", "out", "trust", "engine"}
)


@flattened
def attack(
    ctx: typer.Context,
    run: RunOptions = RunOptions(),
    attacks: AttackOptions = AttackOptions(),
    artifact: Annotated[
        Path | None,
        typer.Option(
            help="Attack this artifact instead of training: a folder with an index.json. Auxiliary images are those of its own "
            "data set, unless --dataset names another."
        ),
    ] = None,
    truth: Annotated[Path | None, typer.Option(help="With --artifact: score against this truth file.")] = None,
    training: TrainingOptions = TrainingOptions(),
    place: PlaceOptions = PlaceOptions(),
) -> None:
    """Train (or reuse), observe, attack, score: prints a row per attack and writes a grid.

    Example: privbench attack --method fedcg --dataset cifar10 --data-dir DIR --round 0
    """
    dataset, out = registry.typed("dataset", run.dataset), place.out
    named = attacks.named()
    if artifact is not None:
        refuse_others(ctx, "--artifact", OF_ARTIFACTS)
        if place.engine != "local":
            raise UserError("--artifact is attacked on this machine; leave --engine out")
        from privbench.cli import artifact_file
        from privbench.requests import specifications

        artifact_file.attack_file(
            artifact,
            truth,
            named or [registry.STRONG],
            settings(attacks.attack_set),
            dataset if _is_typed(ctx, "dataset") else None,
            specifications.auxiliary(attacks.auxiliary),
            place.device,
            place.data_dir,
            out,
        )
        return
    if truth is not None:
        raise UserError("--truth goes with --artifact FOLDER")
    registry.typed("method", run.method)
    console.announce(
        f"attack: {run.method} on {registry.short(dataset)}, {training.preset} preset; results go to {out}"
    )
    from privbench.cli import attack_runs
    from privbench.requests import specifications

    cells = specifications.attack_cells(run, attacks, training)
    attack_runs.show_attacked(
        attack_runs.run_ladder(cells, place) if attacks.is_ladder() else attack_runs.run_attacks(cells, place)
    )


@flattened
def train(
    run: RunOptions = RunOptions(),
    training: TrainingOptions = TrainingOptions(),
    place: PlaceOptions = PlaceOptions(),
) -> None:
    """Train one method to the end and print its accuracy; interrupted runs continue.

    Example: privbench train --method local --dataset digits --seeds 3
    """
    registry.typed("method", run.method)
    dataset = registry.short(registry.typed("dataset", run.dataset))
    console.announce(f"train: {run.method} on {dataset}, {training.preset} preset; results go to {place.out}")
    from privbench.cli import training_runs
    from privbench.requests import specifications

    specs = specifications.train_specs(run, training)
    training_runs.show_trained(specs, training_runs.trained(specs, place), place)


@flattened
def search(
    over: Annotated[
        str,
        typer.Option(
            help="A setting of the method or of the schedule, and its values, e.g. mu=0.001,0.01,0.1,1 or task.lr=0.01,0.05,0.08."
        ),
    ],
    run: RunOptions = RunOptions(method="fedprox"),
    training: TrainingOptions = TrainingOptions(),
    place: PlaceOptions = PlaceOptions(),
) -> None:
    """Train one method with each value of a setting and name the best, by validation accuracy; of several defences each one's.

    Example: privbench search --method fedprox --over mu=0.001,0.01,0.1,1 --dataset digits
    """
    registry.typed("method", run.method)
    name, equals, values = over.partition("=")
    if not equals or not values:
        raise UserError(f"--over takes a setting and its values, e.g. mu=0.001,0.01,0.1,1, but '{over}' was given")
    console.announce(f"search: {run.method}, {over}, {training.preset} preset; results go to {place.out}")
    from privbench.cli import training_runs
    from privbench.requests import specifications

    trials = {
        f"{name}={value}": specifications.train_specs(run, training, f"{name}={value}") for value in values.split(",")
    }
    training_runs.search_and_show(trials, place.out, place.data_dir, place.device, place.engine)


@flattened
def table(
    datasets: Annotated[
        str | None,
        typer.Option(
            help="Data sets, separated by spaces; NAME:DOMAIN+DOMAIN chooses domains. Default: the embedded "
            "ones, for a first look `photos` alone."
        ),
    ] = None,
    dataset: DatasetNames = None,
    defense: Defenses = None,
    full: Annotated[
        bool, typer.Option("--full", help="In quick, the table to publish: 64 victims a seed, five seeds.")
    ] = False,
    victims: Victims = None,
    shard: ShardOption = None,
    training: TrainingOptions = TrainingOptions(),
    place: PlaceOptions = PlaceOptions(),
) -> None:
    """Run or reuse every cell of the study `attack-table`, by default on the embedded data.

    In quick it is a first look, with few victims and one seed, unless --full asks for the table to publish.

    Example: privbench table --preset paper --datasets "cifar10 office10" --data-dir DIR --device cuda
    """
    chosen = data_sets(datasets, dataset) or data_sets(default_data_sets(training.preset, full), None)
    console.announce(f"table: {_named(chosen or [])}, {training.preset} preset; results go to {place.out}")
    from privbench.requests import specifications
    from reports.running import study_plan

    defenses = specifications.defenses(defense or [], training.where)
    definition, cells = study_plan.plan_table(training, chosen, full=full, victims=victims, defenses=defenses)
    _run(definition, cells, place, shard)


@flattened
def study(
    name: Annotated[str, typer.Argument(help="Which study, see `privbench list studies`.")],
    datasets: Annotated[
        str | None,
        typer.Option(
            help="Data sets, separated by spaces; NAME:DOMAIN+DOMAIN chooses domains. Default: the published "
            "ones, and in smoke and quick an embedded one before them."
        ),
    ] = None,
    dataset: DatasetNames = None,
    methods: Annotated[
        str | None, typer.Option(help="Only these of the study's methods, separated by spaces or commas.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option("--method", metavar="NAME", help="One of the study's methods; repeatable.")
    ] = None,
    defense: Defenses = None,
    round_: Annotated[
        list[str] | None,
        typer.Option("--round", help="Attacked rounds with commas, e.g. 0,1,best, or repeatable; default the study's."),
    ] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option(help="Attacks in place of the study's, repeatable, e.g. ladder:all or package.module:Class."),
    ] = None,
    victims: Victims = None,
    shard: ShardOption = None,
    status: Annotated[bool, typer.Option("--status", help="Print the state of every cell; run nothing.")] = False,
    training: TrainingOptions = TrainingOptions(),
    place: PlaceOptions = PlaceOptions(),
) -> None:
    """Run or resume the cells of a published table or figure; writes its reports (md, csv, tex, png, pdf).

    Example: privbench study accuracy --datasets photos
    """
    chosen_methods = several((methods or "").replace(" ", ","), method)
    if chosen_methods is None and methods is not None:
        raise UserError("--methods names no method")
    attacked = several(",".join(round_ or []).replace(" ", ","), None)
    if attacked is None and round_ is not None:
        raise UserError("--round names no round")
    chosen = data_sets(datasets, dataset)
    on = f" on {_named(chosen)}" if chosen else ""
    console.announce(f"study {name}{on}, {training.preset} preset; results go to {place.out}")
    from privbench.requests import specifications
    from reports.running import study_plan, study_view

    definition, cells = study_plan.plan(
        name, training, chosen, methods=chosen_methods, rounds=attacked and list(dict.fromkeys(attacked)), victims=victims,
        attacks=attack and AttackOptions(attack=attack).named(),
        defenses=specifications.defenses(defense or [], training.where),
    )  # fmt: skip
    if status:
        if shard is not None:
            raise UserError("--status shows the whole study; leave --shard out")
        study_view.show_status(definition, cells, place.out, place.data_dir)
    else:
        _run(definition, cells, place, shard)


def _run(chosen: Study, cells: Sequence[CellSpec], place: PlaceOptions, shard: str | None) -> None:
    """A study with its reports, or one shard of it."""
    from privbench.execution.sweep import shards
    from reports.running import study_run, study_view

    if shard is None:
        study_view.show_study(study_run.run_study(chosen, cells, place))
    else:
        console.results().say(study_run.run_shard(chosen, cells, place, shards.read(shard)))


def merge(
    into: Annotated[
        Path,
        typer.Argument(help="The folder of results to merge into, made where it is not there; or a new *.jsonl.xz."),
    ],
    places: Annotated[
        list[Path],
        typer.Argument(help="Folders of results, e.g. of the shards of a study; for a file also files of records."),
    ],
    trust: Trust = None,
) -> None:
    """Put results of several folders together; what is complete then is recorded, and nothing is overwritten.

    Into a file NAME.jsonl.xz go the records alone, of folders or of such files. Those of one cell that was made with other seeds
    elsewhere become the record of all seeds, so that seeds may be run on several days and machines.

    Example: privbench merge runs shard-1 shard-2, then the study's command with --out runs draws its reports

    Example: privbench merge all.jsonl.xz monday tuesday, then privbench report all.jsonl.xz
    """
    from privbench.cli import folder_reports

    folder_reports.merge(into, places)


@flattened
def repeat(
    runs: Annotated[Path, typer.Argument(help="A folder of results, or a file of records (*.jsonl.xz).")],
    first_seed: Annotated[
        int | None, typer.Option(min=0, help="The first of the new seeds; default: the one after each cell's last.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many; default: as many as each cell has.")] = None,
    method: Annotated[
        list[str] | None, typer.Option("--method", metavar="NAME", help="Only cells of this method; repeatable.")
    ] = None,
    dataset: Annotated[
        list[str] | None, typer.Option("--dataset", metavar="NAME", help="Only cells on this data set; repeatable.")
    ] = None,
    defense: Annotated[
        list[str] | None, typer.Option("--defense", metavar="NAME", help="Only cells under this defence; repeatable.")
    ] = None,
    attack: Annotated[
        list[str] | None, typer.Option("--attack", metavar="NAME", help="Only cells of this attack; repeatable.")
    ] = None,
    round_: Annotated[
        list[str] | None,
        typer.Option(
            "--round", metavar="ROUND", help="Only cells of this round, as cells name it: 0, best; repeatable."
        ),
    ] = None,
    place: PlaceOptions = PlaceOptions(),
) -> None:
    """Run the cells of some records on other seeds: a table made again independently, or continued where its seeds are few.

    Seeds that are recorded under --out already are not run again. `privbench merge` makes one table of old and new seeds.

    Example: privbench repeat table.jsonl.xz --seeds 4 --out more
    """
    console.announce(f"repeat: {runs} into {place.out}")
    from privbench.cli import reproduction
    from reports.running.repetition import Only

    reproduction.repeat(runs, first_seed, seeds, Only(method, dataset, defense, attack, round_), place)


def reproduce(
    run: Annotated[str, typer.Argument(help="The id of a finished cell, or its beginning.")],
    attack_only: Annotated[
        bool, typer.Option("--attack-only", help="Take the trained networks from --out instead of training again.")
    ] = False,
    into: Annotated[
        Path | None, typer.Option(help="Empty folder for the second run, which is kept; default: a temporary one.")
    ] = None,
    data_dir: DataDir = None,
    out: Out = DEFAULT_OUT,
    trust: Trust = None,
) -> None:
    """Run a cell again from its record alone, in a fresh folder, and compare bit by bit; status 1 when anything differs.

    Example: privbench reproduce 3f9a
    """
    console.announce(f"reproduce: {run} under {out}")
    from privbench.cli import reproduction

    if not reproduction.reproduce_and_show(run, out, into, data_dir, attack_only):
        raise typer.Exit(1)


def _is_typed(ctx: typer.Context, option: str) -> bool:
    """Whether an option stands on the command line, where else it has its default."""
    source = ctx.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def _named(chosen: Sequence[tuple[str, tuple[str, ...] | None]]) -> str:
    return ", ".join(registry.short(name) for name, _ in chosen)
