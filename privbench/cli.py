"""The `privbench` command. Imports torch only when a command starts to work, so that --help answers at once."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.exceptions import TyperException

from privbench import plugins
from privbench.errors import Interrupted, UserError

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
    "* `privbench table` - the five columns on the embedded data\n"
    "* `privbench study accuracy --datasets photos` - every method's accuracy, metrics and curves\n"
    "* `privbench attack --method fedcg --dataset photos` - one method, the paper's attack and the strong one\n"
    "* `privbench attack --method fedavg --defense gaussian:0.001 --dataset cifar10 --data-dir DIR`\n"
    "* `privbench attack --method fedcg --attack ladder --round 0,1,2,5,best` - every attack, against the training round\n"
    "* `privbench study ladder --datasets photos` - the same for five methods, with a page that sums it up\n"
    "* `privbench list attacks` - what there is, and what each attack needs to know",
)
data_app = typer.Typer(no_args_is_help=True, help="Check or download the data sets that are not embedded.")
app.add_typer(data_app, name="data")

Method = Annotated[str, typer.Option(help="Federated method, see `privbench list methods`, or package.module:Class.")]
DatasetName = Annotated[
    str, typer.Option(help="Data set, see `privbench list datasets`, folder:PATH, or package.module:function.")
]
DefenseText = Annotated[str, typer.Option("--defense", help="none, gaussian:VARIANCE, or package.module:Class:VALUE.")]
Where = Annotated[str, typer.Option(help="Where the defence acts: the round's 'update', or every local 'step'.")]
Preset = Annotated[str, typer.Option(help="smoke (seconds), quick (minutes, not the published schedule) or paper.")]
Backbone = Annotated[str, typer.Option(help="Networks: lenet5 or resnet18.")]
ImageSize = Annotated[int, typer.Option(help="Side of the images: 32, or 224 (resnet18).")]
Seeds = Annotated[int | None, typer.Option(min=1, help="How many seeds, 0 .. N-1; default from the preset.")]
Victims = Annotated[int | None, typer.Option(min=1, help="Attacked uploads per seed; default from the preset.")]
Clients = Annotated[int | None, typer.Option(min=1, help="How many clients; default as published.")]
PerClient = Annotated[
    int | None,
    typer.Option(min=1, help="Training images per client (under dirichlet on average); default from the preset."),
]
Layout = Annotated[
    str | None,
    typer.Option(
        "--partition", help="iid, domain (one per client) or dirichlet; default as published for the data set."
    ),
]
Omega = Annotated[
    float | None,
    typer.Option(help="Of the Dirichlet label partition: 0.1 is very uneven, 10 nearly even; default 1. Implies it."),
]
MinPerClient = Annotated[
    int | None,
    typer.Option(min=1, help="Training images that every client gets at least, under dirichlet; default 16."),
]
Domains = Annotated[
    str | None, typer.Option(help="Comma-separated domains, e.g. mnist_m,svhn,usps (digit5, office10, ...).")
]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="A setting of the method, e.g. --set diversity=0; repeatable.")
]
Rounds = Annotated[int | None, typer.Option(min=0, help="Train this many rounds instead of the preset's.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
DataDir = Annotated[
    Path | None,
    typer.Option(envvar="PRIVBENCH_DATA", help="Folder of the data sets that are not embedded; default ./data."),
]
Out = Annotated[Path, typer.Option(help="Folder of all results; finished work in it is reused.")]
DEFAULT_OUT = Path("runs")


def main() -> None:
    """Entry point: a user's mistake is one line and status 2, a stop (Ctrl-C, SIGTERM, SIGHUP) one line and status 130."""
    for name in (
        "SIGTERM",
        "SIGHUP",
    ):  # batch systems send the one, a closed terminal the other, unless nohup has it ignored
        if (number := getattr(signal, name, None)) and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    try:
        status = app(standalone_mode=False)  # the exit code of a command that ended early, else None
    except UserError as error:
        _stop(str(error), 2)
    except (Interrupted, KeyboardInterrupt):
        _stop("interrupted; everything finished is on disk, and the same command continues from there", 130)
    except typer.Abort:
        _stop("aborted", 130)
    except TyperException as error:
        _stop(error.format_message(), 2)
    else:
        sys.exit(status)


def _stop(line: str, status: int) -> NoReturn:
    print(f"privbench: {line}", file=sys.stderr)
    sys.exit(status)


@app.command()
def attack(
    method: Method = "fedavg",
    dataset: DatasetName = "photos",
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
    defense: DefenseText = "none",
    where: Where = "update",
    round_: Annotated[
        str,
        typer.Option(
            "--round", help="When the server looks: 0 (untrained), N, last or best; several, with commas, draw a curve."
        ),
    ] = "best",
    preset: Preset = "quick",
    backbone: Backbone = "lenet5",
    image_size: ImageSize = 32,
    seeds: Seeds = None,
    victims: Victims = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images per attacked gradient.")] = 1,
    labels_known: Annotated[bool, typer.Option("--labels-known", help="Give the attacker the labels.")] = False,
    observe: Annotated[
        str, typer.Option(help="What the server sees of a victim batch: its 'gradient', or the whole local 'update'.")
    ] = "gradient",
    local_steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of a whole local update; default the schedule's local epochs.")
    ] = None,
    local_lr: Annotated[
        float | None, typer.Option(help="Local steps by plain SGD at this rate; default the schedule's optimiser.")
    ] = None,
    auxiliary: Annotated[
        str,
        typer.Option(
            help="Images of an attacker who has some: 'same' (the data set's validation images) or a data set, "
            "with a share if not all: same:0.01, digits:0.1."
        ),
    ] = "same",
    clients: Clients = None,
    per_client: PerClient = None,
    domains: Domains = None,
    partition: Layout = None,
    omega: Omega = None,
    min_per_client: MinPerClient = None,
    set_: Set = None,
    attack_set: Annotated[
        list[str] | None, typer.Option(help="A setting of the attack, e.g. --attack-set steps=100; repeatable.")
    ] = None,
    rounds: Rounds = None,
    artifact: Annotated[
        Path | None,
        typer.Option(help="Attack this artifact file instead of training; --dataset names auxiliary images."),
    ] = None,
    truth: Annotated[Path | None, typer.Option(help="With --artifact: score against this truth file.")] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    out: Out = DEFAULT_OUT,
) -> None:
    """Train (or reuse), observe, attack, score: prints a row per attack and writes a grid.

    Example: privbench attack --method fedcg --dataset cifar10 --data-dir DIR --round 0
    """
    dataset = plugins.dataset(dataset)
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
            _settings(attack_set),
            dataset,
            auxiliary,
            device,
            data_dir,
            out,
        )
        return
    if truth is not None:
        raise UserError("--truth goes with --artifact FILE")
    _sent(method)
    from privbench import knowledge, spec

    auxiliary = knowledge.canonical(auxiliary)
    commands = plugins.commands()

    train = _train_spec(
        preset, dataset, method, backbone, image_size, defense, where, domains, clients, per_client, set_, rounds,
        (partition, omega, min_per_client),
    )  # fmt: skip
    usual = ["update-matching"] if observe == "update" else _default_attacks(method)
    names = [*plugins.ATTACKS, *named] if climbed else named or usual
    given = _settings(attack_set)
    settings = plugins.settings_of_each(names, given) if climbed else dict.fromkeys(names, given)
    for name, own in settings.items():
        plugins.create(plugins.resolve("attack", name), own)  # refuses a wrong setting before anything is computed
    cells = [
        spec.cell_spec(
            preset,
            train,
            name,
            seeds=seeds,
            round_=when.strip(),
            victims=victims,
            batch_size=batch_size,
            labels_known=labels_known,
            auxiliary=auxiliary,
            observe=observe,
            local_steps=local_steps,
            local_lr=local_lr,
            attack_settings=settings[name],
        )
        for when in dict.fromkeys(round_.split(","))
        for name in dict.fromkeys(names)
    ]
    show = commands.climb_and_show if climbed else commands.run_and_show
    show(cells, out, data_dir, device, out / f"{'ladder' if climbed else 'attack'}-{cells[0].id}")


@app.command()
def train(
    method: Method = "fedavg",
    dataset: DatasetName = "photos",
    defense: DefenseText = "none",
    where: Where = "update",
    preset: Preset = "quick",
    backbone: Backbone = "lenet5",
    image_size: ImageSize = 32,
    seeds: Seeds = None,
    clients: Clients = None,
    per_client: PerClient = None,
    domains: Domains = None,
    partition: Layout = None,
    omega: Omega = None,
    min_per_client: MinPerClient = None,
    set_: Set = None,
    rounds: Rounds = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    out: Out = DEFAULT_OUT,
) -> None:
    """Train one method to the end and print its accuracy; interrupted runs continue.

    Example: privbench train --method local --dataset digits --seeds 3
    """
    dataset = plugins.dataset(dataset)
    plugins.target("method", method)
    from privbench import spec

    commands = plugins.commands()

    first = _train_spec(
        preset, dataset, method, backbone, image_size, defense, where, domains, clients, per_client, set_, rounds,
        (partition, omega, min_per_client),
    )  # fmt: skip
    every = spec.SEEDS[preset] if seeds is None else tuple(range(seeds))
    commands.train_and_show([first.model_copy(update={"seed": seed}) for seed in every], out, data_dir, device)


@app.command()
def search(
    over: Annotated[str, typer.Option(help="The setting and its values, e.g. mu=0.001,0.01,0.1,1.")],
    method: Method = "fedprox",
    dataset: DatasetName = "photos",
    preset: Preset = "quick",
    backbone: Backbone = "lenet5",
    image_size: ImageSize = 32,
    seeds: Seeds = None,
    clients: Clients = None,
    per_client: PerClient = None,
    domains: Domains = None,
    partition: Layout = None,
    omega: Omega = None,
    min_per_client: MinPerClient = None,
    set_: Set = None,
    rounds: Rounds = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    out: Out = DEFAULT_OUT,
) -> None:
    """Train one method with each value of a setting and name the best, by validation accuracy.

    Example: privbench search --method fedprox --over mu=0.001,0.01,0.1,1 --dataset digits
    """
    dataset = plugins.dataset(dataset)
    plugins.target("method", method)
    from privbench import spec

    commands = plugins.commands()
    name, equals, values = over.partition("=")
    if not equals or not values:
        raise UserError(f"--over takes a setting and its values, e.g. mu=0.001,0.01,0.1,1, but '{over}' was given")
    every = spec.SEEDS[preset] if seeds is None else tuple(range(seeds))
    trials = {}
    for value in values.split(","):
        settings = [*(set_ or []), f"{name}={value}"]
        first = _train_spec(
            preset, dataset, method, backbone, image_size, "none", "update", domains, clients, per_client, settings, rounds,
            (partition, omega, min_per_client),
        )  # fmt: skip
        trials[f"{name}={value}"] = [first.model_copy(update={"seed": seed}) for seed in every]
    commands.search_and_show(trials, out, data_dir, device)


@app.command()
def table(
    preset: Preset = "quick",
    datasets: Annotated[
        str, typer.Option(help="Data sets, separated by spaces; NAME:DOMAIN+DOMAIN chooses domains; also folder:PATH.")
    ] = "digits photos digits4",
    where: Where = "update",
    partition: Layout = None,
    omega: Omega = None,
    min_per_client: MinPerClient = None,
    seeds: Seeds = None,
    victims: Victims = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    out: Out = DEFAULT_OUT,
) -> None:
    """Run or reuse every cell of the study `attack-table`, by default on the embedded data.

    Example: privbench table --preset paper --datasets "cifar10 office10" --data-dir DIR --device cuda
    """
    study(
        "attack-table", preset, datasets, methods=None, round_=None, seeds=seeds, victims=victims, where=where,
        partition=partition, omega=omega, min_per_client=min_per_client, status=False, device=device, data_dir=data_dir, out=out,
    )  # fmt: skip


@app.command()
def study(
    name: Annotated[str, typer.Argument(help="Which study, see `privbench list studies`.")],
    preset: Preset = "quick",
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
    seeds: Seeds = None,
    victims: Victims = None,
    where: Where = "update",
    partition: Layout = None,
    omega: Omega = None,
    min_per_client: MinPerClient = None,
    status: Annotated[bool, typer.Option("--status", help="List how far every cell is; run nothing.")] = False,
    device: Device = "auto",
    data_dir: DataDir = None,
    out: Out = DEFAULT_OUT,
) -> None:
    """Run or resume the cells of a published table or figure; writes its reports (md, csv, tex, png, pdf).

    Example: privbench study accuracy --datasets photos
    """
    chosen = None if datasets is None else [_with_domains(token) for token in datasets.replace(",", " ").split()]
    if chosen == []:
        raise UserError("--datasets names no data set")
    wanted = None if methods is None else methods.replace(",", " ").split()
    if wanted == []:
        raise UserError("--methods names no method")
    rounds = None if round_ is None else list(dict.fromkeys(round_.replace(",", " ").split()))
    if rounds == []:
        raise UserError("--round names no round")
    commands = plugins.commands()
    own, cells = commands.plan(
        name, preset, chosen, methods=wanted, rounds=rounds, seeds=seeds, victims=victims, where=where, how=partition,
        omega=omega, min_per_client=min_per_client,
    )  # fmt: skip
    if status:
        commands.show_status(own, cells, out, data_dir)
    else:
        commands.run_study(own, cells, out, data_dir, device)


@app.command()
def grid(
    dataset: DatasetName,
    round_: Annotated[str, typer.Option("--round", help="Which round's records: 0, N, last or best.")] = "best",
    seed: Annotated[int, typer.Option(help="Whose victims to show.")] = 0,
    out: Out = DEFAULT_OUT,
    target: Annotated[
        Path | None, typer.Option(help="File to write, .png or .pdf; default: both, under --out.")
    ] = None,
) -> None:
    """Draw the reconstruction grid of every finished cell of a data set.

    Example: privbench grid --dataset photos --round 0
    """
    dataset = plugins.dataset(dataset)
    commands = plugins.commands()

    commands.draw_grid(dataset, round_, seed, out, target)


@app.command("partition")
def partition_(
    dataset: DatasetName = "photos",
    partition: Layout = None,
    omega: Annotated[
        list[float] | None,
        typer.Option(help="Of the Dirichlet label partition; repeatable, one panel each; default 1."),
    ] = None,
    min_per_client: MinPerClient = None,
    preset: Preset = "quick",
    clients: Clients = None,
    per_client: PerClient = None,
    domains: Domains = None,
    seed: Annotated[int, typer.Option(min=0, help="Whose clients to show.")] = 0,
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

    specs = [
        spec.train_spec(
            preset, dataset, "fedavg", seed=seed, domains=tuple(domains.split(",")) if domains else None, how=partition,
            omega=each, min_per_client=min_per_client, clients=clients, per_client=per_client,
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


def _train_spec(
    preset: str,
    dataset: str,
    method: str,
    backbone: str,
    image_size: int,
    defense: str,
    where: str,
    domains: str | None,
    clients: int | None,
    per_client: int | None,
    settings: list[str] | None,
    rounds: int | None,
    layout: tuple[str | None, float | None, int | None],
) -> TrainSpec:
    from privbench import spec

    plugins.defense(defense, where)  # refuses a wrong name or value before anything is computed
    plugins.create(plugins.resolve("method", method), _settings(settings))
    return spec.train_spec(
        preset,
        dataset,
        method,
        backbone=backbone,
        image_size=image_size,
        defense=defense,
        where=where,
        domains=tuple(domains.split(",")) if domains else None,
        how=layout[0],
        omega=layout[1],
        min_per_client=layout[2],
        clients=clients,
        per_client=per_client,
        method_settings=_settings(settings),
        changes=None if rounds is None else {"rounds": rounds},
    )


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


def _settings(pairs: list[str] | None) -> dict[str, Any]:
    """--set name=value, with numbers and booleans read as such."""
    found: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, text = pair.partition("=")
        if not equals:
            raise UserError(f"a setting is written name=value, but '{pair}' was given")
        found[name] = _value(text)
    return found


def _value(text: str) -> float | int | str | bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
