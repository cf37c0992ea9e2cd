"""Options that several commands share, each declared once: frozen dataclasses whose fields are options of the command line.

    @app.command()
    @flattened
    def train(run: RunOptions = RunOptions(), training: TrainingOptions = TrainingOptions(), ...) -> None: ...

`flattened` gives the command one option per field in place of such a parameter, with the instance's values as defaults, and passes
the dataclass filled in. Imports no torch, so that --help answers immediately.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperOption

from privbench import names, registry, trust, written_defense
from privbench.errors import UserError

DEFAULT_OUT = Path("runs")
Datasets = list[tuple[str, tuple[str, ...] | None]]
Partition = Annotated[
    str | None,
    typer.Option(
        "--partition", help="iid, domain (one per client) or dirichlet; default as published for the data set."
    ),
]
Preset = Annotated[str, typer.Option(help="smoke (seconds), quick (minutes, not the published schedule) or paper.")]
Protocol = Annotated[
    str | None,
    typer.Option(
        help="The paper whose sizes, split, flips and schedule are taken: fedcg, nfl-cgan or fedmd-cg; default fedcg, and in the "
        "paper preset the method's own."
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
        help="none, gaussian:VARIANCE, NAME:KEY=VALUE,KEY=VALUE, or package.module:Class:...; repeatable: a column each, "
        "and a curve over the values of one defence.",
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
        help="Folder of the data sets that are not embedded, which must exist; by default they are downloaded once, to the user's "
        "cache folder.",
    ),
]
Out = Annotated[Path, typer.Option(help="Folder of all results; finished work in it is reused.")]


def trusted(texts: list[str] | None) -> list[str] | None:
    """Allows this process to use what --trust names (privbench/trust.py); UserError for a name of another form."""
    for text in texts or []:
        if text.startswith(registry.FOLDER):
            trust.add(registry.dataset(text))
        elif re.fullmatch(names.CODE, code := written_defense.parts(text).name):
            trust.add(code)
        else:
            raise UserError(f"--trust takes package.module:Class or folder:PATH, but '{text}' was given")
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


@dataclass(frozen=True)
class PlaceOptions:
    """Where work is done and where it lies."""

    device: Device = "auto"
    data_dir: DataDir = None
    out: Out = DEFAULT_OUT
    trust: Trust = None


@dataclass(frozen=True)
class RunOptions:
    """What is trained on what."""

    method: Annotated[
        str, typer.Option(help="Federated method, see `privbench list methods`, or package.module:Class.")
    ] = "fedavg"
    dataset: DatasetName = "photos"
    defense: Defenses = None
    backbone: Annotated[str, typer.Option(help="Networks: lenet5 or resnet18.")] = "lenet5"
    image_size: Annotated[int, typer.Option(help="Side of the images: 32, or 224 (resnet18).")] = 32
    clients: Clients = None
    per_client: PerClient = None
    domains: Domains = None
    domain: Domain = None
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the method, e.g. --set diversity=0; repeatable.")
    ] = None

    def defenses(self) -> list[str]:
        """The defences that are asked for, each once, as they were written; "none" where none is."""
        return list(dict.fromkeys(self.defense or ["none"]))

    def chosen_domains(self) -> tuple[str, ...] | None:
        """The domains that are asked for, in order; None for all."""
        return several(self.domains, self.domain)


@dataclass(frozen=True)
class TrainingOptions:
    """How a run is trained and measured, whatever is trained on whatever."""

    preset: Preset = "quick"
    protocol: Protocol = None
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds; default from the preset.")] = None
    first_seed: Annotated[
        int | None, typer.Option(min=0, help="The first seed; default 100. Seeds below 100 are for tuning.")
    ] = None
    partition: Partition = None
    omega: Annotated[
        float | None,
        typer.Option(
            help="Parameter of the Dirichlet label partition: 0.1 is very uneven, 10 nearly even; default 1. Implies dirichlet."
        ),
    ] = None
    min_per_client: MinPerClient = None
    flip: Annotated[
        bool | None,
        typer.Option(
            "--flip/--no-flip",
            help="Flip images of FMNIST, CIFAR-10, Office and DomainNet at random; default as the protocol says.",
        ),
    ] = None
    where: Annotated[str, typer.Option(help="Where the defence acts: the round's 'update', or every local 'step'.")] = (
        "update"
    )
    measured: Annotated[
        str,
        typer.Option(
            help="Whose accuracy counts: 'personal' (after local training), 'uploaded' (the same as it was sent), or "
            "'broadcast' (with what the server sends next)."
        ),
    ] = "personal"
    rounds: Annotated[int | None, typer.Option(min=0, help="Train this many rounds instead of the preset's.")] = None
    local_epochs: Annotated[int | None, typer.Option(min=1, help="Epochs of a client's task phase a round.")] = None
    generator_epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs of a client's generator phase a round.")
    ] = None
    server_steps: Annotated[int | None, typer.Option(min=0, help="Mini-batches of a server phase a round.")] = None
    batch: Annotated[int | None, typer.Option(min=1, help="Images per mini-batch.")] = None
    lr: Annotated[float | None, typer.Option(help="Learning rate of the clients' task, i.e. task.lr.")] = None
    schedule: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUE",
            help="Any field of the schedule, e.g. patience=50, client_steps=20, task.kind=sgd, generator.beta1=0.9; repeatable.",
        ),
    ] = None
    equal_work: Annotated[
        bool,
        typer.Option(
            "--equal-work",
            help="In the paper preset: NFL-CGAN and FedMD-CG process as many images a round as the protocol's other methods.",
        ),
    ] = False

    def changes(self) -> dict[str, Any]:
        """What is asked of the schedule, by names of `privbench.presets.changed`; UserError for a field that is given twice."""
        named = {
            "rounds": self.rounds,
            "local_epochs": self.local_epochs,
            "generator_epochs": self.generator_epochs,
            "server_steps": self.server_steps,
            "batch": self.batch,
            "task.lr": self.lr,
        }
        found: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
        for name, value in settings(self.schedule).items():
            if name in found:
                raise UserError(f"{name} is given twice: by its own option and by --schedule")
            found[name] = value
        return found


@dataclass(frozen=True)
class AttackOptions:
    """What is attacked, when, by what, and what the server sees."""

    attack: Annotated[
        list[str] | None,
        typer.Option(
            help="Attack, repeatable, or 'ladder': every attack whose needs can be met; "
            "default: the paper's own for the method, and 'staged'."
        ),
    ] = None
    also: Annotated[
        list[str] | None,
        typer.Option(help="With --attack ladder: an attack that joins it, e.g. package.module:Class; repeatable."),
    ] = None
    attack_set: Annotated[
        list[str] | None, typer.Option(help="A setting of the attack, e.g. --attack-set steps=100; repeatable.")
    ] = None
    round_: Annotated[
        list[str] | None,
        typer.Option(
            "--round",
            help="The attacked round: 0 (untrained), N, last or best (the default); several, with commas or repeatable, "
            "draw a curve.",
        ),
    ] = None
    victims: Victims = None
    batch_size: Annotated[int, typer.Option(min=1, help="Images per attacked gradient.")] = 1
    labels_known: Annotated[bool, typer.Option("--labels-known", help="Give the attacker the labels.")] = False
    observe: Annotated[
        str, typer.Option(help="What the server sees of a victim batch: its 'gradient', or the whole local 'update'.")
    ] = "gradient"
    local_steps: Annotated[
        int | None,
        typer.Option(
            min=1, help="Steps of a whole local update; default the schedule's client steps, or else its local epochs."
        ),
    ] = None
    local_lr: Annotated[
        float | None, typer.Option(help="Local steps by plain SGD at this rate; default the schedule's optimiser.")
    ] = None
    local_batch: Annotated[
        int | None, typer.Option(min=1, help="Images per local step of an update; default the whole victim batch.")
    ] = None
    wire: Annotated[str, typer.Option(help="The number format of what clients send: float32, bf16 or fp16.")] = (
        "float32"
    )
    auxiliary: Annotated[
        str,
        typer.Option(
            help="Images of an attacker who has some: 'same' (the data set's validation images) or a data set, "
            "with a share if not all: same:0.01, digits:0.1."
        ),
    ] = "same"

    def is_ladder(self) -> bool:
        """Whether every attack is asked for; UserError for `also` without it."""
        if self.also and registry.LADDER not in (self.attack or []):
            raise UserError("--also goes with --attack ladder; name attacks with --attack")
        return registry.LADDER in (self.attack or [])

    def named(self) -> list[str]:
        """The attacks that are asked for by name, each once."""
        self.is_ladder()
        return list(
            dict.fromkeys(name for name in (*(self.attack or []), *(self.also or [])) if name != registry.LADDER)
        )

    def rounds(self) -> list[str]:
        """The attacked rounds as they were written, each once; "best" where none is."""
        return list(dict.fromkeys(each.strip() for each in ",".join(self.round_ or ["best"]).split(",")))


class Once(TyperCommand):
    """A command whose options that take one value may be given once, where otherwise the last would silently count."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuses a second value."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        single = [each for each in order if isinstance(each, TyperOption) and not (each.multiple or each.is_flag)]
        for option in single:
            if single.count(option) > 1:
                raise UserError(f"{option.opts[0]} is given {single.count(option)} times, but takes one value")
        return list(super().parse_args(ctx, args))


F = TypeVar("F", bound=Callable[..., None])


def flattened(command: F) -> F:
    """The command with one parameter per field of every parameter whose default is an instance of a dataclass."""
    parts: dict[str, type] = {}
    flat: list[inspect.Parameter] = []
    hints = get_type_hints(command, include_extras=True)
    for parameter in inspect.signature(command).parameters.values():
        group = parameter.default
        if not is_dataclass(group) or isinstance(group, type):
            flat.append(parameter.replace(annotation=hints[parameter.name]))
            continue
        parts[parameter.name] = type(group)
        own = get_type_hints(type(group), include_extras=True)
        flat += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=getattr(group, field.name),
                annotation=own[field.name],
            )
            for field in fields(group)
        ]

    @wraps(command)
    def call(**values: Any) -> None:
        groups = {
            name: kind(**{field.name: values.pop(field.name) for field in fields(kind)}) for name, kind in parts.items()
        }
        command(**values, **groups)

    call.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return call  # type: ignore[return-value]


def several(together: str | None, each: list[str] | None) -> tuple[str, ...] | None:
    """Names given together, with commas, and one by one; None where there are none."""
    found = [name.strip() for name in (together or "").split(",") if name.strip()] + (each or [])
    return tuple(found) or None


def settings(pairs: list[str] | None) -> dict[str, Any]:
    """name=value of each pair, with numbers and booleans read as such; UserError for one without "="."""
    found: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, text = pair.partition("=")
        if not equals:
            raise UserError(f"a setting is written name=value, but '{pair}' was given")
        found[name] = value(text)
    return found


def value(text: str) -> float | int | str | bool:
    """A setting's value as the command line has it."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def data_sets(text: str | None, each: list[str] | None) -> Datasets | None:
    """Data sets with their domains: those named together, plain names, and those named one by one; None where none is."""
    together = [] if text is None else text.replace(",", " ").split()
    if text is not None and not together:
        raise UserError("--datasets names no data set")
    for token in together:
        if token.startswith(registry.FOLDER) and not _is_folder(token) and len(together) > 1:
            raise UserError(
                f"there is no {token}; a path with blanks or commas in it is named by --dataset, one at a time"
            )
    return [_with_domains(token) for token in [*together, *(each or [])]] or None


def default_data_sets(preset: str, full: bool) -> str | None:
    """Those of the attack table: for a first look `photos` alone, else the embedded ones."""
    return "photos" if preset == "quick" and not full else "photos digits digits4"


def _with_domains(token: str) -> tuple[str, tuple[str, ...] | None]:
    """NAME or NAME:DOMAIN+DOMAIN; the NAME of a user's own folder has a colon too, and its path may have more."""
    colons = token.count(":") > token.startswith(registry.FOLDER) and not _is_folder(token)
    name, colon, domains = token.rpartition(":") if colons else (token, "", "")
    return registry.typed("dataset", name), tuple(domains.split("+")) if colon else None


def _is_folder(token: str) -> bool:
    return token.startswith(registry.FOLDER) and Path(token.removeprefix(registry.FOLDER)).expanduser().is_dir()
