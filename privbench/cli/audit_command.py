"""`privbench audit`: a model of the user's own, from code that the user names, against files that hold tensors alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from privbench import registry, written_defense
from privbench.cli.flattening import flattened
from privbench.errors import UserError
from privbench.requests.option_types import DataDir, Device
from privbench.requests.words import settings, several
from privbench.system import console

if TYPE_CHECKING:
    from privbench.observation.wire import Format

PARTS = ("extractor", "classifier")
File = Path | None


@dataclass(frozen=True)
class SentOptions:
    """What came of the clients."""

    gradients: Annotated[
        File, typer.Option(help="Gradients by parameter, .safetensors or .npz; of M messages each tensor is [M, ...].")
    ] = None
    before: Annotated[File, typer.Option(help="The state dict that went down; default: the model's own.")] = None
    after: Annotated[
        list[Path] | None,
        typer.Option(
            help="State dicts that came up after local steps, one file or one a message; repeatable, with --before."
        ),
    ] = None
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Images behind each message; default as captured, else 1.")
    ] = None
    round_: Annotated[int | None, typer.Option("--round", help="Of a captured folder; default its first.")] = None
    client: Annotated[
        list[int] | None, typer.Option(help="Of a captured folder: whose messages; default all's; repeatable.")
    ] = None
    local_steps: Annotated[
        int | None, typer.Option(min=1, help="Behind an update: a client's steps; default as captured, else 1.")
    ] = None
    local_lr: Annotated[
        float | None, typer.Option(help="Behind an update: the rate of its SGD; default as captured.")
    ] = None
    labels: Annotated[str | None, typer.Option(help="The images' labels, where they are known, e.g. 3,7,1.")] = None
    shared: Annotated[str, typer.Option(help="The parts that clients send.")] = "extractor,classifier"
    defense: Annotated[str, typer.Option(metavar="NAME[:SETTINGS]", help="As the attacker knows it.")] = "none"
    wire: Annotated[
        str | None,
        typer.Option(
            help="Number format in which messages were computed or sent: float32, bf16 or fp16; default that of their tensors."
        ),
    ] = None


@dataclass(frozen=True)
class InputOptions:
    """How images enter the module."""

    input_shape: Annotated[
        str | None, typer.Option(help="C,H,W of an image, or D of a vector; default that of the truth.")
    ] = None
    mean: Annotated[str | None, typer.Option(help="Subtracted before the module: one number, or one a channel.")] = None
    std: Annotated[str | None, typer.Option(help="Divided by.")] = None
    range_: Annotated[str | None, typer.Option("--range", help="Of an image before that, e.g. 0,255; default 0,1.")] = (
        None
    )
    mode: Annotated[
        str | None,
        typer.Option(help="Of the module when gradients were taken: train or eval; default as captured, else train."),
    ] = None
    split: Annotated[
        str | None,
        typer.Option(
            metavar="classifier=NAME,...",
            help="The modules of the head, e.g. 'extractor=conv1,conv2;classifier=fc1,fc2'; default: the linear layers at the end.",
        ),
    ] = None


@dataclass(frozen=True)
class AttackerOptions:
    """Who attacks, with what, and what its images are compared with."""

    truth: Annotated[
        File, typer.Option(help="A file with the true images and labels: for scores alone, no attack sees it.")
    ] = None
    attack: Annotated[
        list[str] | None,
        typer.Option(help="An attack, or ladder (the default): every one that can be made; repeatable."),
    ] = None
    attack_set: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A setting of the attacks that have it; repeatable.")
    ] = None
    auxiliary: Annotated[
        str | None, typer.Option(help="The attacker's images: a data set, a folder of a folder a class, or a file.")
    ] = None


@flattened
def audit(
    model: Annotated[
        str, typer.Option(help="package.module:build, a function without arguments that returns the module.")
    ],
    run: Annotated[
        Path | None, typer.Argument(help="A folder that privbench.capture wrote, in place of files.")
    ] = None,
    sent: SentOptions = SentOptions(),
    entering: InputOptions = InputOptions(),
    attacker: AttackerOptions = AttackerOptions(),
    device: Device = "auto",
    data_dir: DataDir = None,
    out: Annotated[Path, typer.Option(help="Folder of the result.")] = Path("audit"),
) -> None:
    """Attack a model of your own: what came of its clients, every attack that fits, tables and images; status 1 if none fits.

    Example: privbench audit --model mine:build --gradients seen.safetensors --input-shape 3,32,32
    """
    written_defense.typed(sent.defense)
    for name in attacker.attack or []:
        if name not in registry.LADDERS:
            registry.typed("attack", name)
    there = (out / "audit.csv").exists()
    console.announce(
        f"audit: {model}; the result goes to {out}{', in place of the audit that is there' if there else ''}"
    )
    build = registry.function("model", model)
    from privbench.auditing import audit as audits
    from privbench.auditing import result as results
    from privbench.auditing.request import AuditRequest
    from reports.tables import terminal

    split, module = split_of(entering.split), built(model, build)
    audits.check_module(module)
    if run is None and sent.before is None:
        check_same(model, module, built(model, build))
    result = audits.audit(
        module,
        AuditRequest(
            received=run, round=sent.round_, client=sent.client or None, gradients=sent.gradients, before=sent.before,
            after=sent.after or None,
            batch_size=sent.batch_size, local_steps=sent.local_steps, local_lr=sent.local_lr,
            labels=whole_numbers("labels", sent.labels), truth=attacker.truth,
            input_shape=whole_numbers("input-shape", entering.input_shape), mean=numbers("mean", entering.mean),
            std=numbers("std", entering.std), range=ends(entering.range_),
            mode=cast('Literal["train", "eval"] | None', entering.mode),
            head=split.get("classifier", ()), extractor=split.get("extractor", ()),
            shared=several(sent.shared, None) or (), attack=tuple(attacker.attack or [registry.LADDER]),
            settings=settings(attacker.attack_set), auxiliary=attacker.auxiliary, defense=sent.defense,
            wire=cast("Format | None", sent.wire), device=device, data_dir=data_dir, out=out,
        ),
    )  # fmt: skip
    terminal.show(result.report(), out / f"{results.STEM}.md", console.results())
    if result.is_floors_alone:
        # Nothing was attacked: a script should not take that for an answer.
        raise typer.Exit(1)


def built(name: str, build: Any) -> Any:
    """What the function returns; UserError where it fails."""
    try:
        return build()
    except Exception as error:
        raise UserError(f"model '{name}' cannot be built: {registry.where_it_failed(error)}") from error


def check_same(name: str, module: Any, again: Any) -> None:
    """UserError where two calls of the function give modules of different weights: none need be those that went down."""
    import torch

    first, second = module.state_dict(), again.state_dict()
    if first.keys() != second.keys() or any(not torch.equal(t, second[n]) for n, t in first.items()):
        raise UserError(f"model '{name}' has other weights at every call; name those that went down by --before FILE")


def numbers(option: str, text: str | None) -> list[float] | None:
    """Numbers separated by commas."""
    if text is None:
        return None
    try:
        return [float(each) for each in text.split(",")]
    except ValueError as error:
        raise UserError(f"--{option} takes numbers separated by commas, but '{text}' was given") from error


def whole_numbers(option: str, text: str | None) -> list[int] | None:
    """The same of whole numbers."""
    each = numbers(option, text)
    if each is None:
        return None
    if any(not n.is_integer() for n in each):
        raise UserError(f"--{option} takes whole numbers separated by commas, but '{text}' was given")
    return [int(n) for n in each]


def ends(text: str | None) -> tuple[float, float] | None:
    """The two ends of a range."""
    each = numbers("range", text)
    if each is None:
        return None
    if len(each) != 2:
        raise UserError(f"--range takes two numbers, e.g. 0,255, but '{text}' was given")
    return each[0], each[1]


def split_of(split: str | None) -> dict[str, tuple[str, ...]]:
    """The modules of each part that a written split names."""
    if split is None:
        return {}
    parts = dict(part.strip().partition("=")[::2] for part in split.split(";") if part.strip())
    each = {part: several(names, None) or () for part, names in parts.items()}
    if not each or not set(each) <= set(PARTS) or not all(each.values()):
        raise UserError(f"--split is written extractor=MODULE,...;classifier=MODULE,..., but '{split}' was given")
    return each
