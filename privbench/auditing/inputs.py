"""What a server received of a module's clients: M messages by parameter, the networks that went down, and what is declared of them.

Files hold tensors by the module's own names, in a state dict's form. Where there are several messages, each tensor has them as its
first axis, [M, ...].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from privbench.auditing import kinds, tensor_files
from privbench.auditing.tensor_files import Shapes
from privbench.errors import UserError
from privbench.networks.module_net import COUNT
from privbench.observation.format import limits
from privbench.tensors import Params
from privbench.types import LocalSteps


@dataclass(frozen=True)
class Received:
    """What came up, and what went down before it.

    messages    parameter -> [M, ...]: gradients of the mean loss over B images, or weights after the local steps minus before
    weights     parameter -> [...]: the networks that went down; those that are missing are the module's
    buffers     buffer -> [...]: theirs; those that are missing are the module's
    batch_size  B images behind each message
    local       the local steps behind an update; None for gradients
    labels      [M, B] int64, where they are known
    round       how many rounds were complete
    statistics  buffer -> [M, ...]: running statistics after the local steps minus before, where clients sent them
    """

    kind: Literal["gradient", "update"]
    messages: Params
    batch_size: int = 1
    weights: Params = field(default_factory=dict)
    buffers: Params = field(default_factory=dict)
    local: LocalSteps | None = None
    labels: Tensor | None = None
    round: int = 0
    statistics: Params = field(default_factory=dict)

    @property
    def count(self) -> int:
        """M."""
        return len(next(iter(self.messages.values())))


@dataclass(frozen=True)
class Names:
    """The parameters and buffers of a module with their shapes; frozen parameters count as buffers, as they are never sent."""

    parameters: dict[str, tuple[int, ...]]
    buffers: dict[str, tuple[int, ...]]
    ignored: frozenset[str]  # further names of tied parameters, and counts of batches: nothing here reads them

    @staticmethod
    def of(module: nn.Module) -> Names:
        """Those of a module."""
        named = dict(module.named_parameters())
        trained = {n: tuple(p.shape) for n, p in named.items() if p.requires_grad}
        frozen = {n: tuple(p.shape) for n, p in named.items() if not p.requires_grad}
        buffers = {n: tuple(b.shape) for n, b in module.named_buffers()}
        # A tied parameter has several names in a state dict, and one among the parameters.
        frozen_buffers = frozenset(module.state_dict().keys() - trained.keys() - frozen.keys() - buffers.keys())
        counts = frozenset(n for n in buffers if n.rpartition(".")[2] == COUNT)
        return Names(trained, buffers | frozen, frozen_buffers | counts)


def gradients(path: Path, module: nn.Module) -> Params:
    """Gradients from a file, parameter -> [M, ...]; UserError names a tensor that does not fit the module.

    Parameters that are frozen, or of no shared part, may be missing (privbench/auditing/observed.py).
    """
    names, file = Names.of(module), tensor_files.announced(path)
    sent = file.only(file.shapes.keys() - names.buffers.keys() - names.ignored)
    stacked = _is_stacked(sent, names.parameters)
    read = tensor_files.read(sent)
    for n, t in read.items():
        kinds.floating(f"'{n}' of {path}", t)
    return {n: read[n] if stacked else read[n][None] for n in sent.shapes}


def stacked(tensors: Mapping[str, Tensor | None], module: nn.Module) -> Params:
    """The same of tensors in memory; a gradient that is None was not taken."""
    names = Names.of(module)
    ignored = names.buffers.keys() | names.ignored
    sent = {n: t.detach().cpu() for n, t in tensors.items() if t is not None and n not in ignored}
    for n, t in sent.items():
        kinds.floating(f"'{n}' of the messages", t)
    one = not _is_stacked(Shapes(Path("messages"), {n: tuple(t.shape) for n, t in sent.items()}), names.parameters)
    return {n: t[None] if one else t for n, t in sent.items()}


def state(path: Path, module: nn.Module) -> tuple[Params, Params]:
    """(parameters, buffers) of one state dict in a file; UserError where it is not the module's."""
    names, file = Names.of(module), tensor_files.announced(path)
    if _is_stacked(file, names.parameters | names.buffers, names.ignored):
        raise UserError(f"{path} holds several state dicts, but one went down")
    _check_all(file, names)
    read = tensor_files.read(file.only(names.parameters.keys() | names.buffers.keys()))
    return {n: read[n] for n in names.parameters}, {n: read[n] for n in names.buffers if n in read}


def state_of(tensors: Mapping[str, Tensor], module: nn.Module, when: str) -> tuple[Params, Params]:
    """The same of a state dict in memory, that of `when`."""
    names, state = Names.of(module), {n: t.detach().cpu() for n, t in tensors.items()}
    if missing := [n for n in names.parameters if n not in state]:
        raise UserError(f"the state {when} lacks '{missing[0]}' of the module, and {len(missing) - 1} more")
    for n, shape in (names.parameters | names.buffers).items():
        if n in state and tuple(state[n].shape) != shape:
            raise UserError(
                f"'{n}' of the state {when} should have shape {list(shape)}, but it has {list(state[n].shape)}"
            )
    return {n: state[n] for n in names.parameters}, {n: state[n] for n in names.buffers if n in state}


def updates(before: Params, after: Sequence[Path], module: nn.Module) -> Params:
    """Weights after the local steps minus before, parameter -> [M, ...], from one file of [M, ...] or one file a message.

    UserError where there is no file, or where tensors are not the module's.
    """
    if not after:
        raise UserError("--after names no file")
    names = Names.of(module)
    each: dict[str, list[Tensor]] = {n: [] for n in names.parameters}
    for path in after:
        file = tensor_files.announced(path)
        stacked = _is_stacked(file, names.parameters | names.buffers, names.ignored)
        _check_all(file, names)
        read = tensor_files.read(file.only(names.parameters))
        for n, messages in each.items():
            messages.append((read[n] if stacked else read[n][None]) - before[n])
    return {n: torch.cat(messages) for n, messages in each.items()}


def _is_stacked(file: Shapes, shapes: Mapping[str, tuple[int, ...]], ignored: frozenset[str] = frozenset()) -> bool:
    """Whether a file's tensors have the messages as their first axis; UserError where one is no tensor of the module."""
    if not shapes:
        raise UserError("every parameter of the module is frozen (requires_grad False), so that clients send none")
    counts = set()
    for name, shape in file.shapes.items():
        if name in ignored:
            continue
        if name not in shapes:
            raise UserError(f"{file.path} holds '{name}', which is no tensor of the module; it has {_examples(shapes)}")
        if shape == shapes[name]:
            counts.add(0)
        elif shape[1:] == shapes[name] and 0 < shape[0] <= limits.MESSAGES:
            counts.add(shape[0])
        else:
            raise UserError(
                f"{file.path}: '{name}' should have shape {list(shapes[name])}, or that after an axis of messages, but it has "
                f"{list(shape)}"
            )
    if not counts:
        raise UserError(f"{file.path} holds no tensor of the module; it has {_examples(shapes)}")
    if len(counts) > 1:
        raise UserError(f"{file.path} holds different numbers of messages in different tensors: {sorted(counts)}")
    return counts != {0}


def _check_all(file: Shapes, names: Names) -> None:
    if missing := [n for n in names.parameters if n not in file.shapes]:
        raise UserError(f"{file.path} lacks '{missing[0]}' of the module, and {len(missing) - 1} more")


def _examples(shapes: Mapping[str, tuple[int, ...]], most: int = 4) -> str:
    names = list(shapes)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
