"""Groups of options that several commands share: frozen dataclasses whose fields are options of the command line.

A command takes one as a parameter (privbench/cli/flattening.py). Imports no torch, so that --help answers immediately.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from privbench import registry
from privbench.errors import UserError
from privbench.requests.option_types import (
    DEFAULT_OUT,
    Clients,
    DataDir,
    DatasetName,
    Defenses,
    Device,
    Domain,
    Domains,
    Engine,
    MinPerClient,
    Out,
    Partition,
    PerClient,
    Preset,
    Protocol,
    Trust,
    Victims,
)
from privbench.requests.words import settings, several


@dataclass(frozen=True)
class PlaceOptions:
    """Where work is done and where it lies."""

    device: Device = "auto"
    data_dir: DataDir = None
    out: Out = DEFAULT_OUT
    trust: Trust = None
    engine: Engine = "local"


@dataclass(frozen=True)
class RunOptions:
    """What is trained on what."""

    method: Annotated[
        str, typer.Option(help="Federated method, see `privbench list methods`, or package.module:Class.")
    ] = "fedavg"
    dataset: DatasetName = "photos"
    defense: Defenses = None
    backbone: Annotated[
        str,
        typer.Option(
            help="Networks: lenet5, resnet18, mlp, convnet, resnet18-torchvision, vit, or package.module:Name."
        ),
    ] = "lenet5"
    image_size: Annotated[
        int, typer.Option(help="Side of the images: 32; with a ResNet-18 also 224, torchvision's also 64.")
    ] = 32
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
    initialisation: Annotated[
        str,
        typer.Option(
            help="The networks that clients keep start 'shared' (all alike), or 'per-client' (each client draws its own)."
        ),
    ] = "shared"
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
            help="In the presets standard and paper: NFL-CGAN and FedMD-CG process as many images a round as the protocol's other "
            "methods.",
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
        changes: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
        for name, value in settings(self.schedule).items():
            if name in changes:
                raise UserError(f"{name} is given twice: by its own option and by --schedule")
            changes[name] = value
        return changes


@dataclass(frozen=True)
class AttackOptions:
    """What is attacked, when, by what, and what the server sees."""

    attack: Annotated[
        list[str] | None,
        typer.Option(
            help="Attack, repeatable; 'ladder': those that have been best of what knows as much; 'ladder:all': every one that "
            f"reconstructs images. Default: the paper's own for the method, and '{registry.STRONG}'."
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
            min=1,
            help="Steps of a whole local update; default the schedule's client steps, or else those of its local epochs over the "
            "victim batch.",
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
    audit: Annotated[
        int,
        typer.Option(
            min=0,
            help="Measure a claimed epsilon with so many canaries, e.g. 1000: a lower bound stands beside it. 0: no audit.",
        ),
    ] = 0
    auxiliary: Annotated[
        str,
        typer.Option(
            help="Images of an attacker who has some: 'same' (the data set's validation images) or a data set, "
            "with a share if not all: same:0.01, digits:0.1."
        ),
    ] = "same"

    known_images: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Images of each attacked client that the attacker knows, never victims, e.g. for calibrated; default 8.",
        ),
    ] = None
    known_quality_db: Annotated[
        float | None, typer.Option(help="PSNR at which they are known, e.g. 30; default exactly.")
    ] = None
    observed_rounds: Annotated[
        str | None,
        typer.Option(
            help="Rounds whose uploads the server kept, e.g. 0,1,5, for chained; default 0,1,2,4,8,..., and in the presets "
            "standard and paper those that a run keeps."
        ),
    ] = None
    uploads_per_round: Annotated[
        int | None,
        typer.Option(
            min=1, help="Uploads of each attacked client that it kept of a round, never victims'; default 12."
        ),
    ] = None

    def kept_rounds(self) -> tuple[int, ...] | None:
        """The rounds whose uploads the server kept, ascending; None where none is named. UserError for what is no round."""
        if self.observed_rounds is None:
            return None
        written = [each.strip() for each in self.observed_rounds.split(",")]
        if not all(each.isascii() and each.isdigit() for each in written):
            raise UserError(
                f"--observed-rounds takes rounds with commas between, e.g. 0,1,5, not '{self.observed_rounds}'"
            )
        return tuple(sorted({int(each) for each in written}))

    def is_ladder(self) -> bool:
        """Whether a ladder is asked for; UserError for `also` without it."""
        is_ladder = bool(registry.LADDERS & set(self.attack or []))
        if self.also and not is_ladder:
            raise UserError("--also goes with --attack ladder; name attacks with --attack")
        return is_ladder

    def named(self) -> list[str]:
        """The attacks that are asked for, each once, "ladder" and "ladder:all" as they are; UserError for a name that is none."""
        if self.attack is not None and not self.attack:
            raise UserError("no attack was named; leave out `attack` for the default ones")
        self.is_ladder()
        named = list(dict.fromkeys((*(self.attack or []), *(self.also or []))))
        for name in named:
            if name not in registry.LADDERS:
                registry.typed("attack", name)
        return named

    def rounds(self) -> list[str]:
        """The attacked rounds as they were written, each once; "best" where none is."""
        return list(dict.fromkeys(each.strip() for each in ",".join(self.round_ or ["best"]).split(",")))
