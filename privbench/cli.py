"""The `privbench` command. Imports torch only when a command starts to work, so that --help answers at once."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from typer.exceptions import TyperException

from privbench import interrupts, plugins
from privbench.errors import Interrupted, UserError
from privbench.options import (
    DEFAULT_OUT,
    Clients,
    DataDir,
    DatasetName,
    Domains,
    MinPerClient,
    Out,
    Partition,
    PerClient,
    PlaceOptions,
    Preset,
    Protocol,
    RunOptions,
    TrainingOptions,
    Victims,
    flattened,
    settings,
)

if TYPE_CHECKING:
    from privbench.spec import TrainSpec

app = typer.Typer(
    name="privbench",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train a federated method to the end, attack exactly what its server sees, and score the result.\n\n"
    "**Examples**\n\n"
    "* `privbench table` - a first look at the five columns; with --full the table to publish\n"
    "* `privbench study accuracy --datasets photos` - every method's accuracy, metrics and curves\n"
    "* `privbench attack --method fedcg --dataset photos` - one method, the paper's attack and the strong one\n"
    "* `privbench attack --method fedavg --defense gaussian:0.001 --dataset cifar10 --data-dir DIR`\n"
    "* `privbench attack --method fedcg --attack ladder --round 0,1,2,5,best` - every attack, against the training round\n"
    "* `privbench study ladder --datasets photos` - the same for five methods, with a page that sums it up\n"
    "* `privbench list attacks` - what there is, and what each attack needs to know",
)
data_app = typer.Typer(no_args_is_help=True, help="Check or download the data sets that are not embedded.")
app.add_typer(data_app, name="data")

FIRST_VICTIMS = 8  # of `privbench table` at a first look


def main() -> None:
    """Entry point: a user's mistake is one line and status 2, a stop (Ctrl-C, SIGTERM, SIGHUP) one line and status 130."""
    interrupts.listen()
    try:
        # The exit code of a command that ended early, else None.
        status = app(standalone_mode=False)
        # typer turns a stop into an exit code.
        interrupts.check()
    except (Interrupted, KeyboardInterrupt):
        interrupts.end()
    except Exception as error:
        # Whatever a stop was turned into on its way here, it was a stop.
        if interrupts.asked():
            interrupts.end()
        if isinstance(error, UserError):
            _stop(str(error), 2)
        if isinstance(error, typer.Abort):
            _stop("aborted", interrupts.STATUS)
        if isinstance(error, TyperException):
            _stop(error.format_message(), 2)
        raise
    else:
        sys.exit(status)


def _stop(line: str, status: int) -> NoReturn:
    print(f"privbench: {line}", file=sys.stderr)
    sys.exit(status)


@app.command()
@flattened
def attack(
    run: RunOptions = RunOptions(),
    attack: Annotated[
        list[str] | None,
        typer.Option(
            help="Attack, repeatable, or 'ladder': every attack whose needs can be met; "
            "default: the paper's own for the method, and 'staged'."
        ),
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(help="With --attack ladder: an attack that joins it, e.g. package.module:Class; repeatable."),
    ] = None,
    attack_set: Annotated[
        list[str] | None, typer.Option(help="A setting of the attack, e.g. --attack-set steps=100; repeatable.")
    ] = None,
    round_: Annotated[
        str,
        typer.Option(
            "--round", help="When the server looks: 0 (untrained), N, last or best; several, with commas, draw a curve."
        ),
    ] = "best",
    victims: Victims = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images per attacked gradient.")] = 1,
    labels_known: Annotated[bool, typer.Option("--labels-known", help="Give the attacker the labels.")] = False,
    observe: Annotated[
        str, typer.Option(help="What the server sees of a victim batch: its 'gradient', or the whole local 'update'.")
    ] = "gradient",
    local_steps: Annotated[
        int | None,
        typer.Option(
            min=1, help="Steps of a whole local update; default the schedule's client steps, or else its local epochs."
        ),
    ] = None,
    local_lr: Annotated[
        float | None, typer.Option(help="Local steps by plain SGD at this rate; default the schedule's optimiser.")
    ] = None,
    local_batch: Annotated[
        int | None, typer.Option(min=1, help="Images per local step of an update; default the whole victim batch.")
    ] = None,
    wire: Annotated[
        str, typer.Option(help="The number format of what clients send: float32, bf16 or fp16.")
    ] = "float32",
    auxiliary: Annotated[
        str,
        typer.Option(
            help="Images of an attacker who has some: 'same' (the data set's validation images) or a data set, "
            "with a share if not all: same:0.01, digits:0.1."
        ),
    ] = "same",
    artifact: Annotated[
        Path | None,
        typer.Option(help="Attack this artifact file instead of training; --dataset names auxiliary images."),
    ] = None,
    truth: Annotated[Path | None, typer.Option(help="With --artifact: score against this truth file.")] = None,
    training: TrainingOptions = TrainingOptions(),
    place: PlaceOptions = PlaceOptions(),
) -> None:
    """Train (or reuse), observe, attack, score: prints a row per attack and writes a grid.

    Example: privbench attack --method fedcg --dataset cifar10 --data-dir DIR --round 0
    """
    dataset, out = plugins.dataset(run.dataset), place.out
    climbed = plugins.LADDER in (attack or [])
    if also and not climbed:
        raise UserError("--also goes with --attack ladder; name attacks with --attack")
    named = [name for name in (*(attack or []), *(also or [])) if name != plugins.LADDER]
    for name in named:
        plugins.target("attack", name)
    if artifact is not None:
        plugins.commands().attack_file(
            artifact,
            truth,
            named or ["staged"],
            climbed,
            settings(attack_set),
            dataset,
            auxiliary,
            place.device,
            place.data_dir,
            out,
        )
        return
    if truth is not None:
        raise UserError("--truth goes with --artifact FILE")
    _sent(run.method)
    from privbench import knowledge, spec

    auxiliary = knowledge.canonical(auxiliary)
    commands = plugins.commands()

    train = _train_spec(run, training)
    usual = ["update-matching"] if observe == "update" else _default_attacks(run.method)
    names = [*plugins.ATTACKS, *named] if climbed else named or usual
    given = settings(attack_set)
    of_each = plugins.settings_of_each(names, given) if climbed else dict.fromkeys(names, given)
    for name, own in of_each.items():
        plugins.create(plugins.resolve("attack", name), own)  # refuses a wrong setting before anything is computed
    cells = [
        spec.cell_spec(
            training.preset,
            train,
            name,
            seeds=training.seeds,
            first_seed=training.first_seed,
            round_=when.strip(),
            victims=victims,
            batch_size=batch_size,
            labels_known=labels_known,
            auxiliary=auxiliary,
            observe=observe,
            local_steps=local_steps,
            local_lr=local_lr,
            local_batch=local_batch,
            wire=wire,
            attack_settings=of_each[name],
        )
        for when in dict.fromkeys(round_.split(","))
        for name in dict.fromkeys(names)
    ]
    show = commands.climb_and_show if climbed else commands.run_and_show
    show(cells, out, place.data_dir, place.device, out / f"{'ladder' if climbed else 'attack'}-{cells[0].id}")


@app.command()
@flattened
def train(
    run: RunOptions = RunOptions(),
    training: TrainingOptions = TrainingOptions(),
    place: PlaceOptions = PlaceOptions(),
) -> None:
    """Train one method to the end and print its accuracy; interrupted runs continue.

    Example: privbench train --method local --dataset digits --seeds 3
    """
    plugins.target("method", run.method)
    commands = plugins.commands()
    commands.train_and_show(_of_seeds(_train_spec(run, training), training), place.out, place.data_dir, place.device)


@app.command()
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
    """Train one method with each value of a setting and name the best, by validation accuracy.

    Example: privbench search --method fedprox --over mu=0.001,0.01,0.1,1 --dataset digits
    """
    plugins.target("method", run.method)
    name, equals, values = over.partition("=")
    if not equals or not values:
        raise UserError(f"--over takes a setting and its values, e.g. mu=0.001,0.01,0.1,1, but '{over}' was given")
    commands = plugins.commands()
    trials = {
        f"{name}={value}": _of_seeds(_train_spec(run, training, f"{name}={value}"), training)
        for value in values.split(",")
    }
    commands.search_and_show(trials, place.out, place.data_dir, place.device)


@app.command()
@flattened
def table(
    datasets: Annotated[
        str | None,
        typer.Option(
            help="Data sets, separated by spaces; NAME:DOMAIN+DOMAIN chooses domains; also folder:PATH. Default: the embedded "
            "ones, of a first look `photos` alone."
        ),
    ] = None,
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
    commands = plugins.commands()
    if training.preset == "quick":
        training = replace(training, seeds=training.seeds or (commands.FULL_SEEDS if full else 1))
        victims = victims or (commands.FULL_VICTIMS if full else FIRST_VICTIMS)
    datasets = datasets or ("photos" if training.preset == "quick" and not full else "photos digits digits4")
    own, cells = commands.plan("attack-table", training, _datasets(datasets), victims=victims)
    commands.run_study(own, cells, place.out, place.data_dir, place.device)


@app.command()
@flattened
def study(
    name: Annotated[str, typer.Argument(help="Which study, see `privbench list studies`.")],
    datasets: Annotated[
        str | None,
        typer.Option(
            help="Data sets, separated by spaces; NAME:DOMAIN+DOMAIN chooses domains; also folder:PATH. Default: the published "
            "ones, and in smoke and quick an embedded one before them."
        ),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Only these of the study's methods, separated by spaces or commas.")
    ] = None,
    round_: Annotated[
        str | None,
        typer.Option("--round", help="Attacked rounds with commas, e.g. 0,1,best; default the study's."),
    ] = None,
    victims: Victims = None,
    status: Annotated[bool, typer.Option("--status", help="List how far every cell is; run nothing.")] = False,
    training: TrainingOptions = TrainingOptions(),
    place: PlaceOptions = PlaceOptions(),
) -> None:
    """Run or resume the cells of a published table or figure; writes its reports (md, csv, tex, png, pdf).

    Example: privbench study accuracy --datasets photos
    """
    wanted = None if methods is None else methods.replace(",", " ").split()
    if wanted == []:
        raise UserError("--methods names no method")
    attacked = None if round_ is None else list(dict.fromkeys(round_.replace(",", " ").split()))
    if attacked == []:
        raise UserError("--round names no round")
    commands = plugins.commands()
    own, cells = commands.plan(name, training, _datasets(datasets), methods=wanted, rounds=attacked, victims=victims)
    if status:
        commands.show_status(own, cells, place.out, place.data_dir)
    else:
        commands.run_study(own, cells, place.out, place.data_dir, place.device)


@app.command()
def grid(
    dataset: DatasetName,
    round_: Annotated[str, typer.Option("--round", help="Which round's records: 0, N, last or best.")] = "best",
    seed: Annotated[int | None, typer.Option(min=0, help="Whose victims to show; default 100.")] = None,
    out: Out = DEFAULT_OUT,
    target: Annotated[
        Path | None, typer.Option(help="File to write, .png or .pdf; default: both, under --out.")
    ] = None,
) -> None:
    """Draw the reconstruction grid of every finished cell of a data set.

    Example: privbench grid --dataset photos --round 0
    """
    dataset = plugins.dataset(dataset)
    from privbench import spec

    commands = plugins.commands()
    commands.draw_grid(dataset, round_, spec.FIRST_SEED if seed is None else seed, out, target)


@app.command("partition")
def partition_(
    dataset: DatasetName = "photos",
    partition: Partition = None,
    protocol: Protocol = None,
    omega: Annotated[
        list[float] | None,
        typer.Option(help="Of the Dirichlet label partition; repeatable, one panel each; default 1."),
    ] = None,
    min_per_client: MinPerClient = None,
    preset: Preset = "quick",
    clients: Clients = None,
    per_client: PerClient = None,
    domains: Domains = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Whose clients to show; default 100.")] = None,
    run: Annotated[
        str | None,
        typer.Option(help="Show the clients of this training run, from disk; takes no other option but --out."),
    ] = None,
    data_dir: DataDir = None,
    out: Out = DEFAULT_OUT,
) -> None:
    """Show which client holds how many images of which class: prints a table, draws the label histogram; trains nothing.

    Example: privbench partition --dataset fmnist --clients 10 --omega 0.1 --omega 1 --omega 10 --data-dir DIR
    """
    dataset = plugins.dataset(dataset)
    commands = plugins.commands()
    if run is not None:
        commands.draw_clients_of_run(run, out)
        return
    from privbench import spec

    seed = spec.FIRST_SEED if seed is None else seed
    specs = [
        spec.train_spec(
            preset, dataset, "fedavg", seed=seed, domains=tuple(domains.split(",")) if domains else None, how=partition,
            protocol=protocol, omega=each, min_per_client=min_per_client, clients=clients, per_client=per_client,
        )
        for each in (omega or (None,))
    ]  # fmt: skip
    dealt = "".join(f"-{each:g}" for each in omega or [])
    stem = f"{plugins.stem(dataset)}-clients-{specs[0].partition}{dealt}-seed{seed}"
    commands.draw_clients(specs, data_dir, out / stem)


@app.command("list")
def list_(
    kind: Annotated[str, typer.Argument(help="methods, attacks, defenses, datasets, studies or runs.")],
    out: Out = DEFAULT_OUT,
) -> None:
    """List what there is.

    Example: privbench list attacks
    """
    kinds = {
        "methods": "method", "attacks": "attack", "defenses": "defense", "datasets": "dataset", "studies": "studies",
        "runs": "runs",
    }  # fmt: skip
    if kind not in kinds:
        raise UserError(f"cannot list '{kind}'; known: {', '.join(kinds)}")
    commands = plugins.commands()

    if kind == "runs":
        commands.list_runs(out)
    elif kind == "studies":
        commands.list_studies()
    else:
        commands.list_plugins(kinds[kind])


@app.command()
def show(
    run: Annotated[str, typer.Argument(help="A run or cell id, or the beginning of one.")],
    out: Out = DEFAULT_OUT,
) -> None:
    """Show one training run or cell: specification, accuracy, scores, knowledge, cost.

    Example: privbench show 3f9a
    """
    commands = plugins.commands()

    commands.show_run(run, out)


@app.command()
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
) -> None:
    """Run a cell again from its record alone, in a fresh folder, and compare bit by bit; status 1 when anything differs.

    Example: privbench reproduce 3f9a
    """
    commands = plugins.commands()

    if not commands.reproduce_and_show(run, out, into, data_dir, attack_only):
        raise typer.Exit(1)


@data_app.command("check")
def data_check(dataset: Annotated[str, typer.Argument(help="Data set.")], data_dir: DataDir = None) -> None:
    """Say which files of a data set are present, missing or damaged.

    Example: privbench data check cifar10 --data-dir DIR
    """
    dataset = plugins.dataset(dataset)
    from privbench import data

    lines = data.check(dataset, data_dir)
    for line in lines:
        typer.echo(line)
    if any(line.startswith(("missing", "damaged")) for line in lines):
        raise typer.Exit(2)


@data_app.command("fetch")
def data_fetch(dataset: Annotated[str, typer.Argument(help="Data set.")], data_dir: DataDir = None) -> None:
    """Download a data set through torchvision into the data folder.

    Example: privbench data fetch cifar10 --data-dir DIR
    """
    dataset = plugins.dataset(dataset)
    from privbench import data

    data.fetch(dataset, data_dir)
    typer.echo(f"{dataset} is complete")


def _train_spec(run: RunOptions, training: TrainingOptions, searched: str | None = None) -> TrainSpec:
    """The specification of a run; `searched` is one more setting, name=value, of the method or else of the schedule."""
    from privbench import spec

    plugins.defense(run.defense, training.where)  # refuses a wrong name or value before anything is computed
    method = plugins.resolve("method", run.method)
    own, changes = settings(run.set_), training.changes()
    for name, value in settings([searched] if searched else []).items():
        of_method = [field.name for field in fields(method)]
        if name not in (*of_method, *spec.SCHEDULE_NAMES):
            known = (*of_method, *spec.SCHEDULE_NAMES)
            raise UserError(f"neither {method.__name__} nor a schedule has a '{name}'; {spec.nearest(name, known)}")
        (own if name in of_method else changes)[name] = value
    plugins.create(method, own)
    return spec.train_spec(
        training.preset,
        plugins.dataset(run.dataset),
        run.method,
        backbone=run.backbone,
        image_size=run.image_size,
        defense=run.defense,
        where=training.where,
        domains=tuple(run.domains.split(",")) if run.domains else None,
        how=training.partition,
        omega=training.omega,
        min_per_client=training.min_per_client,
        clients=run.clients,
        per_client=run.per_client,
        method_settings=own,
        protocol=training.protocol,
        flip=training.flip,
        measured=training.measured,
        equal_work=training.equal_work,
        changes=changes,
    )


def _of_seeds(first: TrainSpec, training: TrainingOptions) -> list[TrainSpec]:
    from privbench import spec

    seeds = spec.seeds_of(training.preset, training.seeds, training.first_seed)
    return [first.model_copy(update={"seed": seed}) for seed in seeds]


def _datasets(text: str | None) -> list[tuple[str, tuple[str, ...] | None]] | None:
    chosen = None if text is None else [_with_domains(token) for token in text.replace(",", " ").split()]
    if chosen == []:
        raise UserError("--datasets names no data set")
    return chosen


def _with_domains(token: str) -> tuple[str, tuple[str, ...] | None]:
    """NAME or NAME:DOMAIN+DOMAIN; the NAME of a user's own folder has a colon too."""
    name, colon, domains = (
        token.rpartition(":") if token.count(":") > token.startswith(plugins.FOLDER) else (token, "", "")
    )
    return plugins.dataset(name), tuple(domains.split("+")) if colon else None


def _default_attacks(method: str) -> list[str]:
    shares = _sent(method)
    if "classifier" not in shares:
        return ["dlg", "extractor-matching"]
    return ["feature-statistics" if "generator" in shares else "dlg", "staged"]


def _sent(method: str) -> tuple[str, ...]:
    shares: tuple[str, ...] = plugins.resolve("method", method).shares
    if not shares:
        raise UserError(f"{method} sends nothing that depends on a training image, so there is nothing to attack")
    return shares
