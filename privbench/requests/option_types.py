"""The options that several commands share, each with its help text: the types of command parameters and of fields.

Imports no torch, so that --help answers immediately.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from privbench import names, registry, trust, written_defense
from privbench.errors import UserError

DEFAULT_OUT = Path("runs")
Partition = Annotated[
    str | None,
    typer.Option(
        "--partition",
        help="iid, domain (one per client), classes (of its own per client) or dirichlet; default as published for the data set.",
    ),
]
Preset = Annotated[
    str,
    typer.Option(
        help="smoke (seconds), quick (minutes, not the published schedule), standard (hours, a third of the published rounds) "
        "or paper."
    ),
]
Protocol = Annotated[
    str | None,
    typer.Option(
        help="The paper whose sizes, split, flips and schedule are taken: fedcg, nfl-cgan or fedmd-cg; default fedcg, and in the "
        "presets standard and paper the method's own."
    ),
]
MinPerClient = Annotated[
    int | None,
    typer.Option(min=1, help="Training images that every client gets at least, under dirichlet; default 16."),
]
DatasetName = Annotated[
    str, typer.Option(help="Data set, see `privbench list datasets`, folder:PATH, or package.module:function.")
]
Clients = Annotated[int | None, typer.Option(min=1, help="How many clients; default as published.")]
PerClient = Annotated[
    int | None,
    typer.Option(min=1, help="Training images per client (under dirichlet on average); default from the preset."),
]
Domains = Annotated[
    str | None, typer.Option(help="Comma-separated domains, e.g. mnist_m,svhn,usps (digit5, office10, ...).")
]
Domain = Annotated[
    list[str] | None,
    typer.Option("--domain", metavar="NAME", help="One domain, also with blanks or commas in its name; repeatable."),
]
DatasetNames = Annotated[
    list[str] | None,
    typer.Option("--dataset", metavar="NAME", help="One data set, also folder:PATH with blanks in it; repeatable."),
]
Defenses = Annotated[
    list[str] | None,
    typer.Option(
        "--defense",
        metavar="NAME[:SETTINGS]",
        help="none, gaussian:VARIANCE, NAME:KEY=VALUE,KEY=VALUE, package.module:Class:..., or several at once: A+B; repeatable: "
        "a column each, and a curve over the values of one defence.",
    ),
]
Victims = Annotated[int | None, typer.Option(min=1, help="Attacked uploads per seed; default from the preset.")]

Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
DataDir = Annotated[
    Path | None,
    typer.Option(
        envvar="PRIVBENCH_DATA",
        exists=True,
        file_okay=False,
        help="Folder of the data sets that are not embedded, which must exist; by default the user's cache folder, into which some "
        "are downloaded once. The others have to be put in place: `privbench data check NAME` says where.",
    ),
]
Out = Annotated[Path, typer.Option(help="Folder of all results; finished work in it is reused.")]


def trusted(texts: list[str] | None) -> list[str] | None:
    """Allows this process to use what --trust names (privbench/trust.py); UserError for a name of another form."""
    for text in texts or []:
        if text.startswith(registry.FOLDER):
            trust.add(registry.dataset(text))
            continue
        for each in written_defense.members(text):
            if not re.fullmatch(names.CODE, each.name):
                raise UserError(f"--trust takes package.module:Class or folder:PATH, but '{text}' was given")
            trust.add(each.name)
    return texts


Trust = Annotated[
    list[str] | None,
    typer.Option(
        "--trust",
        metavar="NAME",
        callback=trusted,
        help="Code or a folder of images that a file under --out may name, e.g. package.module:Class or folder:PATH; repeatable. "
        "Without it a file can name only what is built in.",
    ),
]

ShardOption = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="I/N",
        help="Only part I of N, for N machines; `privbench merge` puts their folders together.",
    ),
]

Engine = Annotated[
    str,
    typer.Option(
        metavar="local|ray[:ADDRESS]",
        help="Where jobs run: processes of this machine, or tasks of the Ray cluster at an address HOST:PORT. With ,gpus=0.5 two "
        "jobs share a GPU.",
    ),
]
