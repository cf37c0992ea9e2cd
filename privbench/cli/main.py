"""The `privbench` command. Imports torch only when a command starts to work, so that --help answers at once."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from typer.exceptions import TyperException

from privbench import registry
from privbench.errors import Interrupted, UserError
from privbench.requests.options import (
    DEFAULT_OUT,
    AttackOptions,
    Clients,
    DataDir,
    DatasetName,
    DatasetNames,
    Defenses,
    Domain,
    Domains,
    MinPerClient,
    Once,
    Out,
    Partition,
    PerClient,
    PlaceOptions,
    Preset,
    Protocol,
    RunOptions,
    TrainingOptions,
    Trust,
    Victims,
    data_sets,
    default_data_sets,
    flattened,
    settings,
    several,
)
from privbench.system import console, interrupts
from privbench.system.printable import lines, one_line

app = typer.Typer(
    name="privbench",
    no_args_is_help=True,
    # Plain: in a narrow terminal, rich's frames leave a column of twenty characters to the help of an option.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train a federated method to the end, attack exactly what its server sees, and score the result.\n\n"
    "\b\n"
    "Examples\n"
    "  privbench table                      a first look; --full: to publish\n"
    "  privbench study accuracy             every method's accuracy and curves\n"
    "  privbench attack --method fedcg      the paper's attack and the strong one\n"
    "  privbench attack --method fedcg --attack ladder --round 0,1,2,5,best\n"
    "                                       every attack, against the round\n"
    "  privbench attack --defense gaussian:0.001 --defense gaussian:0.1\n"
    "                                       a sweep: one table, one curve\n"
    "  privbench study ladder               the ladder of five methods\n"
    "  privbench list attacks               what each attack must know\n",
)
data_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="markdown", help="Check or download the data sets that are not embedded."
)
app.add_typer(data_app, name="data")

GRID_ROWS, GRID_COLUMNS = 8, 8  # of `privbench grid`, unless asked for more


@app.callback()
def options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the whole traceback of an error; may appear anywhere in a command.")
    ] = False,
) -> None:
    """What all commands share."""


def main() -> None:
    """Entry point: a user's mistake is one line and status 2, a stop (Ctrl-C, SIGTERM, SIGHUP) one line and status 130."""
    interrupts.listen()
    console.forgiving()
    words = [word for word in sys.argv[1:] if word != "--debug"]
    debug = len(words) < len(sys.argv) - 1
    try:
        # The exit code of a command that ended early, else None.
        status = app(words, standalone_mode=False)
        # typer turns a stop into an exit code.
        interrupts.check()
    except (Interrupted, KeyboardInterrupt):
        interrupts.end()
    except Exception as error:
        # Whatever a stop was turned into on its way here, it was a stop.
        if interrupts.asked():
            interrupts.end()
        if isinstance(error, UserError):
            if debug:
                print(lines("".join(traceback.format_exception(error))), end="", file=sys.stderr)
            _stop(str(error), 2)
        if isinstance(error, typer.Abort):
            _stop("aborted", interrupts.STATUS)
        if isinstance(error, TyperException):
            _stop(error.format_message(), 2)
        raise
    else:
        sys.exit(status)


def _stop(line: str, status: int) -> NoReturn:
    print(f"privbench: {one_line(line)}", file=sys.stderr)
    sys.exit(status)


def _begin(line: str) -> None:
    """Prints what was understood before torch is imported, which takes seconds."""
    print(one_line(line), file=sys.stderr, flush=True)


@app.command(cls=Once)
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
    for name in attacks.named():
        registry.typed("attack", name)
    if artifact is not None:
        from privbench.cli import commands
        from privbench.requests import specifications

        commands.attack_file(
            artifact,
            truth,
            attacks.named() or ["staged"],
            attacks.is_ladder(),
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
    _begin(f"attack: {run.method} on {registry.short(dataset)}, {training.preset} preset; results go to {out}")
    from privbench.cli import commands
    from privbench.requests import specifications

    cells = specifications.attack_cells(run, attacks, training)
    commands.show_attacked(
        commands.run_ladder(cells, place) if attacks.is_ladder() else commands.run_attacks(cells, place)
    )


@app.command(cls=Once)
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
    _begin(f"train: {run.method} on {dataset}, {training.preset} preset; results go to {place.out}")
    from privbench.cli import commands
    from privbench.requests import specifications

    specs = specifications.train_specs(run, training)
    commands.show_trained(specs, commands.trained(specs, place), place)


@app.command(cls=Once)
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
    _begin(f"search: {run.method}, {over}, {training.preset} preset; results go to {place.out}")
    from privbench.cli import commands
    from privbench.requests import specifications

    trials = {
        f"{name}={value}": specifications.train_specs(run, training, f"{name}={value}") for value in values.split(",")
    }
    commands.search_and_show(trials, place.out, place.data_dir, place.device)


@app.command(cls=Once)
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
    training: TrainingOptions = TrainingOptions(),
    place: PlaceOptions = PlaceOptions(),
) -> None:
    """Run or reuse every cell of the study `attack-table`, by default on the embedded data.

    In quick it is a first look, with few victims and one seed, unless --full asks for the table to publish.

    Example: privbench table --preset paper --datasets "cifar10 office10" --data-dir DIR --device cuda
    """
    chosen = data_sets(datasets, dataset) or data_sets(default_data_sets(training.preset, full), None)
    _begin(f"table: {_named(chosen or [])}, {training.preset} preset; results go to {place.out}")
    from privbench.cli import commands
    from privbench.requests import specifications

    defenses = specifications.defenses(defense or [], training.where)
    own, cells = commands.plan_table(training, chosen, full=full, victims=victims, defenses=defenses)
    commands.show_study(commands.run_study(own, cells, place))


@app.command(cls=Once)
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
    victims: Victims = None,
    status: Annotated[bool, typer.Option("--status", help="Print the state of every cell; run nothing.")] = False,
    training: TrainingOptions = TrainingOptions(),
    place: PlaceOptions = PlaceOptions(),
) -> None:
    """Run or resume the cells of a published table or figure; writes its reports (md, csv, tex, png, pdf).

    Example: privbench study accuracy --datasets photos
    """
    wanted = several((methods or "").replace(" ", ","), method)
    if wanted is None and methods is not None:
        raise UserError("--methods names no method")
    attacked = several(",".join(round_ or []).replace(" ", ","), None)
    if attacked is None and round_ is not None:
        raise UserError("--round names no round")
    chosen = data_sets(datasets, dataset)
    on = f" on {_named(chosen)}" if chosen else ""
    _begin(f"study {name}{on}, {training.preset} preset; results go to {place.out}")
    from privbench.cli import commands
    from privbench.requests import specifications

    own, cells = commands.plan(
        name, training, chosen, methods=wanted, rounds=attacked and list(dict.fromkeys(attacked)), victims=victims,
        defenses=specifications.defenses(defense or [], training.where),
    )  # fmt: skip
    if status:
        commands.show_status(own, cells, place.out, place.data_dir)
    else:
        commands.show_study(commands.run_study(own, cells, place))


@app.command(cls=Once)
def grid(
    dataset: DatasetName,
    round_: Annotated[str, typer.Option("--round", help="Which round's records: 0, N, last or best.")] = "best",
    seed: Annotated[int | None, typer.Option(min=0, help="The seed whose victims are shown; default 100.")] = None,
    out: Out = DEFAULT_OUT,
    target: Annotated[
        Path | None, typer.Option(help="File to write, .png or .pdf; default: both, under --out.")
    ] = None,
    rows: Annotated[
        int,
        typer.Option(min=2, help="Most rows, with those of the true images; each method keeps its strongest attacks."),
    ] = GRID_ROWS,
    columns: Annotated[int, typer.Option(min=1, max=20, help="Most images in a row.")] = GRID_COLUMNS,
    trust: Trust = None,
) -> None:
    """Draw the reconstruction grid of every finished cell of a data set, by default as large as fits a page.

    Rows are in the order of the tables; a line under the grid names what is not shown.

    Example: privbench grid --dataset photos --round 0 --rows 12
    """
    dataset = registry.typed("dataset", dataset)

    _begin(f"grid: {registry.short(dataset)}, round {round_}, from {out}")
    from privbench import presets
    from privbench.cli import commands

    commands.draw_grid(dataset, round_, presets.FIRST_SEED if seed is None else seed, out, target, rows, columns)


@app.command("partition", cls=Once)
def partition_(
    dataset: DatasetName = "photos",
    partition: Partition = None,
    protocol: Protocol = None,
    omega: Annotated[
        list[float] | None,
        typer.Option(help="Parameter of the Dirichlet label partition; repeatable, one panel each; default 1."),
    ] = None,
    min_per_client: MinPerClient = None,
    preset: Preset = "quick",
    clients: Clients = None,
    per_client: PerClient = None,
    domains: Domains = None,
    domain: Domain = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The seed whose clients are shown; default 100.")] = None,
    run: Annotated[
        str | None,
        typer.Option(help="Show the clients of this training run, from disk; takes no other option but --out."),
    ] = None,
    data_dir: DataDir = None,
    out: Out = DEFAULT_OUT,
    trust: Trust = None,
) -> None:
    """Show which client holds how many images of which class: prints a table, draws the label histogram; trains nothing.

    Example: privbench partition --dataset fmnist --clients 10 --omega 0.1 --omega 1 --omega 10 --data-dir DIR
    """
    dataset = registry.typed("dataset", dataset)
    _begin(f"partition: run {run} under {out}" if run is not None else f"partition: {registry.short(dataset)}")
    from privbench import presets
    from privbench.cli import commands

    if run is not None:
        commands.draw_clients_of_run(run, out)
        return

    seed = presets.FIRST_SEED if seed is None else seed
    specs = [
        presets.train_spec(
            preset, dataset, "fedavg", seed=seed, domains=several(domains, domain), how=partition,
            protocol=protocol, omega=each, min_per_client=min_per_client, clients=clients, per_client=per_client,
        )
        for each in (omega or (None,))
    ]  # fmt: skip
    dealt = "".join(f"-{each:g}" for each in omega or [])
    stem = f"{registry.stem(dataset)}-clients-{specs[0].partition}{dealt}-seed{seed}"
    commands.draw_clients(specs, data_dir, out / stem)


@app.command("list", cls=Once)
def list_(
    kind: Annotated[str, typer.Argument(help="methods, attacks, defenses, datasets, studies or runs.")],
    long: Annotated[bool, typer.Option("--long", help="Print everything about each plug-in.")] = False,
    out: Out = DEFAULT_OUT,
    trust: Trust = None,
) -> None:
    """List methods, attacks, defences, data sets, studies or runs.

    Example: privbench list attacks
    """
    kinds = {
        "methods": "method", "attacks": "attack", "defenses": "defense", "datasets": "dataset", "studies": "studies",
        "runs": "runs",
    }  # fmt: skip
    from privbench.cli import catalogue

    if kind not in kinds:
        raise UserError(f"cannot list '{kind}'; known: {', '.join(kinds)}")
    if kind == "runs":
        _begin(f"list: runs and cells under {out}")
        from privbench.cli import commands

        commands.list_runs(out)
    elif kind == "studies":
        catalogue.list_studies()
    else:
        catalogue.list_plugins(kinds[kind], long=long)


@app.command(cls=Once)
def show(
    run: Annotated[str, typer.Argument(help="A run or cell id, or the beginning of one.")],
    out: Out = DEFAULT_OUT,
    trust: Trust = None,
) -> None:
    """Show one training run or cell: specification, accuracy, scores, knowledge, cost.

    Example: privbench show 3f9a
    """
    _begin(f"show: {run} under {out}")
    from privbench.cli import commands

    commands.show_run(run, out)


@app.command(cls=Once)
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
    _begin(f"reproduce: {run} under {out}")
    from privbench.cli import commands

    if not commands.reproduce_and_show(run, out, into, data_dir, attack_only):
        raise typer.Exit(1)


@app.command(cls=Once)
def export(
    artifact: Annotated[
        Path,
        typer.Argument(help="What the server saw: a folder with an index.json, e.g. OUT/artifacts/ID/observation."),
    ],
    into: Annotated[Path, typer.Option(help="New folder to write.")],
    form: Annotated[str, typer.Option(help="Format of the tensors: 'safetensors' or NumPy's 'npz'.")] = "safetensors",
    truth: Annotated[
        Path | None,
        typer.Option(help="Also write the victims' images and labels, beside the folder, from this truth file."),
    ] = None,
) -> None:
    """Write an artifact for your own code, without the name of its run; docs/observation_format.md describes the files.

    Example: privbench export runs/artifacts/ID/observation --into seen --form npz
    """
    if form not in ("safetensors", "npz"):
        raise UserError(f"--form takes 'safetensors' or 'npz', but '{form}' was given")
    from privbench.observation import export as exports

    for path in exports.export(artifact, into, "npz" if form == "npz" else "safetensors", truth):
        print(f"wrote {one_line(str(path))}")


@data_app.command("check", cls=Once)
def data_check(dataset: Annotated[str, typer.Argument(help="Data set.")], data_dir: DataDir = None) -> None:
    """Say which files of a data set are present, missing or damaged.

    Example: privbench data check cifar10 --data-dir DIR
    """
    dataset = registry.typed("dataset", dataset)
    from privbench import data

    told = data.check(dataset, data_dir)
    for line in told:
        print(one_line(line))
    if any(line.startswith(("missing", "damaged")) for line in told):
        raise typer.Exit(2)


@data_app.command("fetch", cls=Once)
def data_fetch(dataset: Annotated[str, typer.Argument(help="Data set.")]) -> None:
    """Download a data set through torchvision into the default folder, which `privbench data check` names.

    Example: privbench data fetch cifar10
    """
    dataset = registry.typed("dataset", dataset)
    from privbench import data

    data.fetch(dataset)
    print(f"{one_line(dataset)} is complete under {one_line(str(data.default_folder()))}")


def _is_typed(ctx: typer.Context, option: str) -> bool:
    """Whether an option stands on the command line, where else it has its default."""
    source = ctx.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def _named(chosen: Sequence[tuple[str, tuple[str, ...] | None]]) -> str:
    return ", ".join(registry.short(name) for name, _ in chosen)
