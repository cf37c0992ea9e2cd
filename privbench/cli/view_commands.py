"""The commands that show or write what is there: pictures, listings, files. None of them trains or attacks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from privbench import registry
from privbench.cli.flattening import refuse_others
from privbench.errors import UserError
from privbench.requests.option_types import (
    DEFAULT_OUT,
    Clients,
    DataDir,
    DatasetName,
    Domain,
    Domains,
    MinPerClient,
    Out,
    Partition,
    PerClient,
    Preset,
    Protocol,
    Trust,
)
from privbench.requests.words import several
from privbench.system import console
from privbench.system.printable import one_line

COMPARISONS = Path("comparison")  # folder of `privbench compare`
GRID_ROWS, GRID_COLUMNS = 8, 8  # of `privbench grid`, unless asked for more


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
    """Draw the reconstruction grid of every cell of a data set that has the seed, by default as large as fits a page.

    Rows are in the order of the tables; a line under the grid names what is not shown, a line beside it counts unfinished cells.

    Example: privbench grid --dataset photos --round 0 --rows 12
    """
    dataset = registry.typed("dataset", dataset)

    console.announce(f"grid: {registry.short(dataset)}, round {round_}, from {out}")
    from privbench import presets
    from privbench.cli import drawing

    drawing.draw_grid(dataset, round_, presets.FIRST_SEED if seed is None else seed, out, target, rows, columns)


def partition_(
    ctx: typer.Context,
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
    if run is not None:
        refuse_others(ctx, "--run", ("out", "trust"))
    dataset = registry.typed("dataset", dataset)
    console.announce(
        f"partition: run {run} under {out}" if run is not None else f"partition: {registry.short(dataset)}"
    )
    from privbench import presets
    from privbench.cli import drawing

    if run is not None:
        drawing.draw_clients_of_run(run, out)
        return

    seed = presets.FIRST_SEED if seed is None else seed
    specs = [
        presets.train_spec(
            preset, dataset, "fedavg", seed=seed, domains=several(domains, domain), partition=partition,
            protocol=protocol, omega=each, min_per_client=min_per_client, clients=clients, per_client=per_client,
        )
        for each in (omega or (None,))
    ]  # fmt: skip
    dealt = "".join(f"-{each:g}" for each in omega or [])
    stem = f"{registry.stem(dataset)}-clients-{specs[0].partition}{dealt}-seed{seed}"
    drawing.draw_clients(specs, data_dir, out / stem)


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
        console.announce(f"list: runs and cells under {out}")
        from privbench.cli import listing

        listing.list_runs(out)
    elif kind == "studies":
        catalogue.list_studies()
    else:
        catalogue.list_plugins(kinds[kind], long=long)


def show(
    run: Annotated[str, typer.Argument(help="A run or cell id, or the beginning of one.")],
    out: Out = DEFAULT_OUT,
    trust: Trust = None,
) -> None:
    """Show one training run or cell: specification, accuracy, scores, knowledge, cost.

    Example: privbench show 3f9a
    """
    console.announce(f"show: {run} under {out}")
    from privbench.cli import listing

    listing.show_run(run, out)


def report(
    runs: Annotated[Path, typer.Argument(help="A folder of results, or a file of records (*.jsonl.xz).")],
    html: Annotated[bool, typer.Option("--html", help="Write one HTML page that holds everything.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="The page to write; default: report.html in the folder. Only with --html.")
    ] = None,
    trust: Trust = None,
) -> None:
    """Show what lies in a folder of results: findings, every cell, checks; with --html as one page that can be sent.

    The page needs no network and no other file. It has the reconstructions, the curves, and each number's record.

    Example: privbench report runs --html
    """
    if out is not None and not html:
        raise UserError("--out names the page that --html writes; add --html")
    console.announce(f"report: {runs}")
    from privbench.cli import folder_reports

    if html:
        folder_reports.show_page(runs, out)
    else:
        folder_reports.show(runs)


def compare(
    a: Annotated[Path, typer.Argument(help="A folder of results, or a file of records (*.jsonl.xz).")],
    b: Annotated[Path, typer.Argument(help="Another one, whose change from A is asked for.")],
    but_for: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD",
            help="Also compare cells that differ in this field of their specification, e.g. defense, method, seeds; repeatable.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the report (md, csv, tex, html).")] = COMPARISONS,
    trust: Trust = None,
) -> None:
    """Compare two folders of results, cell by cell: PSNR paired by victim, accuracy paired by seed, what only one of them has.

    A cell is the same whatever revision of privbench made it.

    Example: privbench compare runs-before runs-after
    """
    console.announce(f"compare: {a} with {b}")
    from privbench.cli import folder_reports

    folder_reports.show_compared(a, b, but_for or [], out)


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


def data_check(dataset: Annotated[str, typer.Argument(help="Data set.")], data_dir: DataDir = None) -> None:
    """Say which files of a data set are present, missing or damaged.

    Example: privbench data check cifar10 --data-dir DIR
    """
    dataset = registry.typed("dataset", dataset)
    from privbench import data

    states = data.check(dataset, data_dir)
    for line in states:
        print(one_line(line))
    if any(line.startswith(("missing", "damaged")) for line in states):
        raise typer.Exit(2)


def data_fetch(dataset: Annotated[str, typer.Argument(help="Data set.")]) -> None:
    """Download a data set through torchvision into the default folder, which `privbench data check` names.

    Example: privbench data fetch cifar10
    """
    dataset = registry.typed("dataset", dataset)
    from privbench import data

    data.fetch(dataset)
    print(f"{one_line(dataset)} is complete under {one_line(str(data.default_folder()))}")
