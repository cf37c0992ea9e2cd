"""What an audit takes of a folder that `privbench.capture` wrote: the messages of one round that came about alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from privbench.auditing.inputs import Names, Received
from privbench.capture.messages import BroadcastModel, CapturedRound, LocalWork, Message
from privbench.capture.reading import Captured, read
from privbench.capture.truth import read_truth
from privbench.errors import UserError
from privbench.observation.format import limits
from privbench.spec import SGD, Adam, checked
from privbench.tensors import Params
from privbench.types import LocalSteps

ADAM_EPS = 1e-8  # of simulated steps
WITHOUT = ("momentum", "dampening", "nesterov", "maximize", "amsgrad", "decoupled_weight_decay")  # in simulated steps
PLAIN_SGD = "--local-steps with --local-lr simulate plain SGD in its place, which understates what leaks"
WEAKER = "Where the client stepped otherwise, attacks find less than there is."


class FromCapture(NamedTuple):
    """One round of a capture."""

    received: Received
    training: bool | None = None  # whether the module was in training mode; None: unknown
    # (what entered the module [M, B, ...], targets [M, B]), where it was kept; for scores alone.
    truth: tuple[Tensor, Tensor] | None = None
    notes: tuple[str, ...] = ()


def captured(
    folder: Path,
    module: nn.Module,
    number: int | None = None,
    batch_size: int | None = None,
    local: LocalSteps | None = None,
    steps: int | None = None,
    rate: float | None = None,
    *,
    clients: Sequence[int] | None = None,
) -> FromCapture:
    """A round of a capture, by default its first, and of its messages those of some `clients`, by default of all.

    Attacked are the first of these and all others of its kind, with as many images and steps behind them.

    `batch_size` counts in place of what the capture says, or does not say, of it. So do, of the steps behind an update, `local`, or
    their number `steps` and the `rate` of SGD; of these two, the one that is not given is as captured.

    UserError: no sound capture or one of another module, a round or a client that is not there, messages that nothing is known of,
    steps that are declared of gradients.
    """
    capture, names = read(folder), Names.of(module)
    _check_module(capture, names)
    # Each has a message, as reading makes sure.
    if not capture.rounds:
        raise UserError(f"{folder} holds no message yet")
    round_ = capture.round(capture.rounds[0].number if number is None else number)
    named = _of_clients(round_, clients)
    first = round_.messages[named[0]]
    chosen = [n for n in named if _alike(round_.messages[n], first)]
    messages = [round_.messages[n] for n in chosen]
    if first.broadcast is None:
        raise UserError(f"round {round_.number} of {folder} does not say which weights its messages answer")
    examples = first.examples if batch_size is None else batch_size
    if examples is None:
        raise UserError(
            f"round {round_.number} of {folder} does not say of how many images its messages are; add --batch-size"
        )
    broadcast = round_.broadcasts[first.broadcast]
    _check_broadcast(broadcast, names, f"round {round_.number} of {folder}")
    labels = [message.labels for message in messages if message.labels is not None]
    is_declared = local is not None or steps is not None or rate is not None
    if first.kind == "gradient" and is_declared:
        raise UserError(
            f"local steps go with updates, but round {round_.number} of {folder} has gradients, taken before any step"
        )
    behind = None if first.kind == "gradient" else local or _declared(first.local, steps, rate, examples)
    received = Received(
        kind="gradient" if first.kind == "gradient" else "update",
        messages=_tensors(messages, broadcast, names),
        batch_size=examples,
        weights={n: broadcast.parameters[n] for n in names.parameters if n in broadcast.parameters},
        buffers={n: t for n, t in {**broadcast.parameters, **broadcast.buffers}.items() if n in names.buffers},
        local=behind,
        statistics=_statistics(messages, broadcast),
        labels=torch.stack(labels) if len(labels) == len(messages) else None,
        round=round_.number,
    )
    truth = read_truth(capture, round_.number)
    complete = [truth[n] for n in chosen if n in truth and len(truth[n].inputs) == examples]
    forms = {(t.inputs.shape, t.targets.shape, t.targets.dtype) for t in complete}
    whole = len(complete) == len(chosen) and len(forms) == 1
    notes = _notes(round_.number, first, capture, behind if is_declared else None)
    if others := [round_.messages[n] for n in named if n not in chosen]:
        notes.append(_left_out(messages, others))
    if truth and not whole:
        notes.append(
            f"The truth that was kept is not that of {examples} image(s) of one form behind each message, so nothing is scored "
            "by it."
        )
    if any(_changed(message, broadcast) for message in messages):
        read_by = "`update-matching` alone reads" if received.statistics else "No attack reads"
        notes.append(
            f"{read_by} the buffers that clients sent, such as running statistics, which tell of their images too."
        )
    return FromCapture(
        received,
        first.training,
        (torch.stack([t.inputs for t in complete]), torch.stack([t.targets for t in complete])) if whole else None,
        tuple(notes),
    )


def _declared(work: LocalWork | None, steps: int | None, rate: float | None, examples: int) -> LocalSteps:
    """The steps behind an update, where their number or the rate of SGD may be declared."""
    if rate is not None:
        count = steps or (None if work is None else work.steps) or 1
        return _checked(LocalSteps(count, SGD(kind="sgd", lr=rate).model_dump(), _mini_batch(work, examples)))
    return local_steps(work if steps is None or work is None else replace(work, steps=steps), examples)


def _checked(local: LocalSteps) -> LocalSteps:
    """The same; UserError where there are more than an attack simulates."""
    if local.steps > limits.STEPS:
        raise UserError(f"{local.steps} local steps are more than {limits.STEPS}")
    return local


def _mini_batch(work: LocalWork | None, examples: int) -> int | None:
    """Images per step; None where each takes all of them, or nothing is known of it."""
    size = None if work is None else work.batch_size
    return None if size is None or size >= examples else size


def local_steps(work: LocalWork | None, examples: int) -> LocalSteps:
    """The local steps behind an update, as attacks simulate them; UserError where they are not known or not simulated."""
    if work is None or work.steps is None or work.optimizer is None:
        raise UserError(
            "the capture does not say by which steps its updates came about; add --local-steps and --local-lr"
        )
    settings = work.settings
    if used := [name for name in WITHOUT if settings.get(name)]:
        raise UserError(f"local steps of {work.optimizer} with {used[0]} are not simulated; {PLAIN_SGD}")
    if several := [name for name in ("lr", "weight_decay", "betas", "eps") if _differs(name, settings.get(name))]:
        raise UserError(
            f"{work.optimizer} had several values of {several[0]}, each for a group of parameters, which is not simulated; "
            f"{PLAIN_SGD}"
        )
    if work.optimizer == "Adam" and settings.get("eps", ADAM_EPS) != ADAM_EPS:
        raise UserError(
            f"local steps of Adam with eps {settings['eps']} are not simulated, only with {ADAM_EPS:g}; {PLAIN_SGD}"
        )
    rate, decay = settings.get("lr"), settings.get("weight_decay") or 0.0
    if not isinstance(rate, int | float) or not isinstance(decay, int | float):
        raise UserError(f"the capture does not say the rate of {work.optimizer}; add --local-steps and --local-lr")
    setting: SGD | Adam
    if work.optimizer == "SGD":
        setting = checked(SGD, {"kind": "sgd", "lr": rate, "weight_decay": decay}, "SGD's ")
    elif work.optimizer == "Adam":
        betas = settings.get("betas")
        beta1, beta2 = betas if isinstance(betas, tuple) and len(betas) == 2 else (0.9, 0.999)
        setting = checked(
            Adam, {"lr": rate, "beta1": float(beta1 or 0), "beta2": float(beta2 or 0), "weight_decay": decay}, "Adam's "
        )
    else:
        raise UserError(f"local steps of {work.optimizer} are not simulated, only of SGD and Adam; {PLAIN_SGD}")
    return _checked(LocalSteps(work.steps, setting.model_dump(), _mini_batch(work, examples)))


def _differs(name: str, value: object) -> bool:
    """Whether a setting holds the values of several groups (LocalWork.of)."""
    return isinstance(value, tuple) and not (name == "betas" and len(value) == 2)


def _alike(message: Message, first: Message) -> bool:
    """Whether two messages came about in the same way, so that they are one table."""
    same = ("kind", "of", "examples", "broadcast", "training", "local")
    labels = [None if each.labels is None else (each.labels.shape, each.labels.dtype) for each in (message, first)]
    return (
        message.parameters.keys() == first.parameters.keys()
        and (labels[0] == labels[1] or None in labels)
        and all(getattr(message, name) == getattr(first, name) for name in same)
    )


def _changed(message: Message, broadcast: BroadcastModel) -> bool:
    """Whether a client sent buffers of numbers that are not those that it received: constants tell nothing."""
    sent = {name: t for name, t in message.buffers.items() if t.is_floating_point()}
    if message.kind == "update":
        return any(bool(t.any()) for t in sent.values())
    received = broadcast.buffers
    return any(name not in received or not torch.equal(t, received[name]) for name, t in sent.items())


def _tensors(messages: list[Message], broadcast: BroadcastModel, names: Names) -> Params:
    """Parameter -> [M, ...]: gradients, or weights after minus before."""
    sent = [n for n in messages[0].parameters if n in names.parameters]
    if foreign := [
        n for n in messages[0].parameters if n not in names.parameters.keys() | names.buffers | names.ignored
    ]:
        raise UserError(f"the capture holds '{foreign[0]}', which is no tensor of the module")
    stacked: Params = {}
    for name in sent:
        each = [message.parameters[name] for message in messages]
        if any(tuple(t.shape) != names.parameters[name] for t in each):
            raise UserError(f"'{name}' of the capture does not have the module's shape {list(names.parameters[name])}")
        if messages[0].kind == "weights":
            before = broadcast.parameters.get(name)
            if before is None:
                raise UserError(
                    f"'{name}' of the weights before has nothing, but shape {list(names.parameters[name])} in the module"
                )
            each = [_difference(t, before) for t in each]
        stacked[name] = torch.stack(each)
    return stacked


def _statistics(messages: list[Message], broadcast: BroadcastModel) -> Params:
    """Buffer of real numbers -> [M, ...]: after minus before, of updates; those that all of the messages hold as they went down."""
    if messages[0].kind == "gradient":
        return {}
    stacked: Params = {}
    for name, first in messages[0].buffers.items():
        before = broadcast.buffers.get(name)
        each = [message.buffers.get(name) for message in messages]
        held = [t for t in each if t is not None and t.shape == first.shape]
        if before is None or before.shape != first.shape or not first.is_floating_point() or len(held) < len(each):
            continue
        is_update = messages[0].kind == "update"
        stacked[name] = torch.stack([t if is_update else _difference(t, before) for t in held])
    return stacked


def _difference(after: Tensor, before: Tensor) -> Tensor:
    """In double precision where both are; a small step of it is lost in single."""
    kind = torch.float64 if after.dtype == before.dtype == torch.float64 else torch.float32
    return after.to(kind) - before.to(kind)


def _check_module(capture: Captured, names: Names) -> None:
    """UserError where the captured module was another one."""
    shapes = {n: d.shape for n, d in {**capture.model.parameters, **capture.model.buffers}.items()}
    for name, shape in names.parameters.items():
        if shapes.get(name) != shape:
            recorded = f"shape {list(shapes[name])}" if name in shapes else "nothing"
            raise UserError(
                f"{capture.folder} is of another module: '{name}' has shape {list(shape)} in this one, and {recorded} there"
            )


def _check_broadcast(broadcast: BroadcastModel, names: Names, where: str) -> None:
    """UserError where a tensor that went down does not have the module's shape."""
    expected = names.parameters | names.buffers
    for name, t in {**broadcast.parameters, **broadcast.buffers}.items():
        if name in expected and tuple(t.shape) != expected[name]:
            raise UserError(
                f"'{name}' of the weights before in {where} has shape {list(t.shape)}, but {list(expected[name])} in the module"
            )


def _of_clients(round_: CapturedRound, clients: Sequence[int] | None) -> list[int]:
    """Which messages of a round are of some clients; UserError for one that sent none."""
    every = [set(message.clients) for message in round_.messages]
    known = sorted({client for each in every for client in each})
    if clients is None:
        return list(range(len(every)))
    if missing := [client for client in clients if client not in known]:
        raise UserError(
            f"round {round_.number} has no message of client {missing[0]}; known: {', '.join(map(str, known)) or 'none'}"
        )
    return [n for n, each in enumerate(every) if each & set(clients)]


def _left_out(attacked: Sequence[Message], others: Sequence[Message]) -> str:
    """That some messages are not attacked, and whose they are."""
    whose, of_others = ({client for message in each for client in message.clients} for each in (attacked, others))

    def words(clients: set[int]) -> str:
        return f" (of client {', '.join(map(str, sorted(clients)))})" if clients else ""

    choose = "; choose with --client" if of_others - whose else ""
    return (
        f"{len(attacked)} message(s){words(whose)} are attacked; {len(others)}{words(of_others)} are of another kind, or of other "
        f"numbers of images or steps, and were left out{choose}."
    )


def _notes(number: int, first: Message, capture: Captured, local: LocalSteps | None) -> list[str]:
    notes = []
    if local is not None and first.local is not None:
        used = [name for name in (*WITHOUT, "weight_decay") if first.local.settings.get(name)]
        kept = {"weight_decay"} if local.optimiser.get("weight_decay") else set[str]()
        if left_out := [name for name in used if name not in kept]:
            notes.append(
                f"The client stepped by {first.local.optimizer} with {', '.join(left_out)}; simulated are steps without it. "
                f"{WEAKER}"
            )
        name = "SGD" if local.optimiser.get("kind") == "sgd" else "Adam"
        declared = {"optimizer": name, "steps": local.steps, "lr": local.optimiser.get("lr")}
        said = {**first.local.settings, "optimizer": first.local.optimizer, "steps": first.local.steps}
        if unlike := [n for n in declared if said.get(n) is not None and said[n] != declared[n]]:
            notes.append(
                f"The capture says {', '.join(f'{n} {said[n]}' for n in unlike)} of the local steps; simulated are those declared, "
                f"{', '.join(f'{n} {declared[n]}' for n in unlike)}. {WEAKER}"
            )
    if len(capture.rounds) > 1:
        notes.append(f"Round {number} of {len(capture.rounds)} captured ones; choose another with --round.")
    if first.aggregate:
        notes.append(
            f"Each message is an aggregate of {first.of} clients; it is attacked as if one client had sent it."
        )
    return notes
