"""Records what one's own training loop sends and receives, round by round.

    with privbench.capture(model, "run/") as seen:
        for images, labels in batches:
            loss(model(images), labels).backward()
            seen.gradient(batch_size=len(images))
            optimizer.step()
            optimizer.zero_grad()

Each call stands where the message leaves: behind clipping, noise or compression of one's own, before the optimiser's step.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from privbench.capture.messages import BroadcastModel, CapturedRound, Kind, LocalWork, Message, TruthOfMessage, copied
from privbench.capture.named import StateNames, check_tensors
from privbench.capture.writing import CaptureWriter
from privbench.errors import UserError
from privbench.system.file_headers import short
from privbench.tensors import Params

Numbers = Tensor | Sequence[Any]  # or an array of NumPy's
LATE = "call seen.gradient() after backward() and before the optimiser's step"


class _Forward(NamedTuple):
    """What held before the first forward pass in training mode since the parameters last changed."""

    versions: tuple[int, ...]
    buffers: Params


class _BeforeForward:
    """The hook of the model's forward passes; a copy of the model, or one that is saved whole, takes no capture along."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture

    def __call__(self, module: nn.Module, _: object) -> None:
        self._capture._before_forward(module)

    def __reduce__(self) -> tuple[Any, ...]:
        # The capture holds messages and training examples. `{}.get(module, inputs)` returns the inputs: a hook that changes
        # nothing, and whoever loads the model needs no privbench.
        return getattr, ({}, "get")


class Capture:
    """What a client sends and receives, written to a folder (docs/capture.md). Used in a `with` statement.

    A round begins with `broadcast`, and every message until the next broadcast belongs to it. Without a broadcast, each gradient is
    a round of its own, in which the model as it stands was received. A round is written when the next one begins, or at the end.
    """

    def __init__(self, model: nn.Module, folder: str | Path, *, truth: bool = False, append: bool = False) -> None:
        """Nothing is written yet.

        Args:
            model: The module that trains, not a wrapper for several devices: its names are those of the tensors.
            folder: Where to write; made when it is not there.
            truth: Whether to keep the training data given as `truth`, in files of their own that no attack reads.
            append: Whether a capture of the same model in the folder is continued.

        Raises:
            UserError: The model is a wrapper for several devices or a compiled one, its state cannot be written, or the folder
                holds a capture and is not to be continued.
        """
        _check_unwrapped(model)
        self.model = model
        self.truth = truth
        self._names = StateNames.of(model)
        self._writer = CaptureWriter(Path(folder), self._names.layout, append=append)
        self._number = -1 if self._writer.last is None else self._writer.last
        self._broadcasts: list[BroadcastModel] = []
        self._messages: list[Message] = []
        self._truths: dict[int, TruthOfMessage] = {}
        self._forward: _Forward | None = None
        # The parameters' norms when the last backward pass began, and the parameters that it has reached.
        self._at_backward: tuple[float, ...] | None = None
        self._reached = set[int]()
        # In which modes backward passes were taken since the last message, and the last of them.
        self._modes, self._mode = set[bool | None](), _mode(model)
        self._steps = 0
        self._hooks: tuple[Any, ...] = ()
        self._open = False

    def __enter__(self) -> Self:
        """Begins to follow the model's forward passes, which change running statistics, and the steps of its optimisers."""
        self._hooks = (
            self.model.register_forward_pre_hook(_BeforeForward(self)),
            register_optimizer_step_post_hook(self._after_step),
            *(
                p.register_post_accumulate_grad_hook(self._on_gradient)
                for p in self.model.parameters()
                if p.requires_grad
            ),
        )
        self._open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Writes the last round, also where the loop ended with an error: that one is raised, and what is lost noted."""
        self._open = False
        for hook in self._hooks:
            hook.remove()
        try:
            try:
                self._finish_round()
            finally:
                self._writer.close()
        except Exception as unwritten:
            if error is None:
                raise
            error.add_note(f"the capture is not whole: {unwritten}")

    def broadcast(
        self,
        state: Mapping[str, Tensor] | None = None,
        *,
        clients: Sequence[int] | None = None,
        round: int | None = None,  # noqa: A002
    ) -> None:
        """Begins a round with what the server sends.

        Args:
            state: Parameters and buffers by name; the model's state as it stands when it is not given.
            clients: Those that receive this in place of what the others do: a further broadcast of the round that is open.
            round: The round's number, above the last one; the next one when it is not given. The first is 0.

        Raises:
            UserError: A number that is none, or not above the last one; clients that are no numbers; something that is no tensor.
        """
        self._check_open()
        parameters, buffers = self._names.split(self.model.state_dict() if state is None else state)
        to = None if clients is None else _ascending(clients)
        sent = BroadcastModel(_copied(parameters), _copied(buffers), to)
        if to is None or not self._broadcasts:
            self._begin_round(None if round is None else _whole(round, "round"))
        self._broadcasts.append(sent)

    def gradient(
        self,
        batch_size: int | None = None,
        *,
        client: int | Sequence[int] = 0,
        gradients: Mapping[str, Tensor] | None = None,
        buffers: bool = False,
        labels: Numbers | None = None,
        truth: tuple[Numbers, Numbers] | None = None,
    ) -> None:
        """Records the gradient of a mini-batch, after `backward` and before the optimiser's step.

        Args:
            batch_size: Training examples behind it; of the labels or the truth when it is not given.
            client: Whose data it holds; several for a sum or mean over clients.
            gradients: What is sent, by parameter, where that is not the `grad` of the model's parameters.
            buffers: Whether the model's buffers, such as running statistics, are sent too.
            labels: Targets that the server knows. Do not pass what stays with the client.
            truth: (inputs, targets) of the mini-batch; written only in a capture with truth=True.

        Raises:
            UserError: There is no gradient, the parameters are not those at which it was taken, or the message does not fit the
                model or the format, such as a truth of other length; nothing of it is recorded then.
        """
        self._check_open()
        given = gradients is not None
        if gradients is None:
            gradients = {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}
        if not gradients:
            raise UserError(f"no parameter has a gradient; {LATE}")
        check_tensors(gradients)
        mode = None if given else self._mode if self._modes else _mode(self.model)
        if self._broadcasts:
            self._check_at_broadcast(client)
            begun = None
        else:
            begun = self._received()
            self._begin_round(None)
            self._broadcasts.append(begun)
        sent = self._names.split(self.model.state_dict())[1] if buffers else {}
        try:
            self._add("gradient", gradients, sent, client, batch_size, mode, labels=labels, truth=truth)
        except Exception:
            if begun is not None:
                self._broadcasts.clear()
                self._number -= 1
            raise
        self._forward = self._at_backward = None
        if begun is not None:
            self._finish_round()

    def update(
        self,
        after: Mapping[str, Tensor] | None = None,
        *,
        difference: Mapping[str, Tensor] | None = None,
        client: int | Sequence[int] = 0,
        examples: int | None = None,
        local: LocalWork | None = None,
        labels: Numbers | None = None,
        truth: tuple[Numbers, Numbers] | None = None,
    ) -> None:
        """Records what a client sends after local steps from the round's broadcast.

        Args:
            after: The weights that are sent, a state by name; the model's state as it stands when nothing is given.
            difference: In place of them, where weights after minus before are sent.
            client: Whose data it holds; several for a sum or mean over clients.
            examples: Training examples of the client.
            local: Steps, batch size and optimiser, where the server knows them: `LocalWork.of(optimizer, steps=10)`.
            labels: Targets that the server knows. Do not pass what stays with the client.
            truth: (inputs, targets) of all training examples of the client; written only in a capture with truth=True.

        Raises:
            UserError: There was no broadcast, both weights and a difference are given, or the message does not fit the model or the
                format, such as a truth of other length; nothing of it is recorded then.
        """
        self._check_open()
        if not self._broadcasts:
            raise UserError(
                "call seen.broadcast() before the local steps: an update is attacked together with the weights before it"
            )
        if after is not None and difference is not None:
            raise UserError("a message holds weights or their difference; give one of the two")
        kind: Kind = "weights" if difference is None else "update"
        state = after if difference is None else difference
        parameters, buffers = self._names.split(self.model.state_dict() if state is None else state)
        # A model that is tested before it is sent stands in evaluation mode, in which it was not trained.
        modes = self._modes or {_mode(self.model)}
        # What another module sent says nothing of this one's mode.
        mode = next(iter(modes)) if state is None and len(modes) == 1 else None
        self._add(kind, parameters, buffers, client, examples, mode, local=local, labels=labels, truth=truth)

    def _add(  # noqa: PLR0913 (the parts of one message)
        self, kind: Kind, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], client: int | Sequence[int],
        examples: int | None, training: bool | None, *, local: LocalWork | None = None, labels: Numbers | None = None,
        truth: tuple[Numbers, Numbers] | None = None,
    ) -> None:  # fmt: skip
        clients = _ascending(client)
        self._names.check_fits(parameters)
        known = None if labels is None else _tensor(labels, "labels")
        kept = None if truth is None else _truth(truth)
        targets = known if known is not None else kept.targets if kept is not None else None
        if examples is None and targets is not None and targets.ndim:
            examples = len(targets)
        message = Message(
            kind=kind,
            clients=clients,
            of=len(clients),
            examples=None if examples is None else _whole(examples, "the number of examples"),
            broadcast=self._broadcast_to(clients),
            training=training,
            local=None if local is None else _local(local),
            parameters=_copied(parameters),
            buffers=_copied(buffers),
            labels=known,
        )
        if kept is not None and {len(kept.inputs), len(kept.targets)} != {message.examples}:
            raise UserError(
                f"a truth of {len(kept.inputs)} inputs and {len(kept.targets)} targets is not that of {message.examples} examples"
            )
        self._writer.check(self._alone(message))
        if self.truth and kept is not None:
            self._truths[len(self._messages)] = kept
        self._messages.append(message)
        self._modes.clear()

    def _check_open(self) -> None:
        """UserError outside the `with` block: nothing follows the model's passes there."""
        if not self._open:
            raise UserError("this capture is not open; record inside its `with` block")

    def _alone(self, message: Message) -> CapturedRound:
        """The round of one message, with the broadcast that it answers alone: of many clients' each is looked at once."""
        number = message.broadcast
        if number is None:
            return CapturedRound(self._number, tuple(self._broadcasts), (message,))
        return CapturedRound(self._number, (self._broadcasts[number],), (replace(message, broadcast=0),))

    def _begin_round(self, number: int | None) -> None:
        if number is not None and number <= self._number:
            raise UserError(f"round {number} does not come after round {self._number}")
        self._finish_round()
        self._modes.clear()
        self._number = self._number + 1 if number is None else number

    def _finish_round(self) -> None:
        """Writes the open round where anything was sent in it."""
        round_ = CapturedRound(self._number, tuple(self._broadcasts), tuple(self._messages))
        truths = dict(self._truths)
        self._broadcasts.clear()
        self._messages.clear()
        self._truths.clear()
        if round_.messages:
            self._writer.add(round_, truths)

    def _broadcast_to(self, clients: tuple[int, ...]) -> int | None:
        """Which of the round's broadcasts the clients received; None where they received several, or none is known."""
        named = {c: n for n, each in enumerate(self._broadcasts) for c in each.clients or ()}
        common = next((n for n, each in enumerate(self._broadcasts) if each.clients is None), None)
        received = {named.get(client, common) for client in clients}
        return received.pop() if len(received) == 1 else None

    def _before_forward(self, module: nn.Module) -> None:
        """Notes the buffers that a forward pass in training mode is about to change."""
        # A compiled graph has no such moment; `_received` then asks for a broadcast where buffers matter.
        if (
            torch.compiler.is_compiling()
            or module is not self.model
            or not module.training
            or not torch.is_grad_enabled()
        ):
            return
        versions = self._versions()
        if self._forward is None or self._forward.versions != versions:
            self._forward = _Forward(versions, copied(self._names.split(module.state_dict())[1]))

    def _on_gradient(self, parameter: Tensor) -> None:
        """Norms show what no version does: steps by hand on `p.data`, and steps behind a forward pass that no hook saw."""
        # A parameter's second gradient is of another backward pass.
        if self._at_backward is None or id(parameter) in self._reached:
            self._at_backward, self._reached = self._norms(), set()
            self._mode = _mode(self.model)
            self._modes.add(self._mode)
        self._reached.add(id(parameter))

    def _norms(self) -> tuple[float, ...]:
        return tuple(float(n) for n in torch._foreach_norm([p.detach() for p in self.model.parameters()]))

    def _after_step(self, optimizer: Optimizer, *_: object) -> None:
        ours = {id(p) for p in self.model.parameters()}
        self._steps += any(id(p) in ours for group in optimizer.param_groups for p in group["params"])

    def _versions(self) -> tuple[int, ...]:
        """Numbers of which one grows when a parameter is changed in place, or by an optimiser: fused ones leave no other trace."""
        return (self._steps, *(p._version for p in self.model.parameters()))

    def _received(self) -> BroadcastModel:
        """The model as it stood before the forward pass of the gradient; UserError where its parameters have changed since."""
        parameters, buffers = self._names.split(self.model.state_dict())
        if self._forward is not None:
            if self._forward.versions != self._versions():
                raise UserError(f"the parameters changed since the forward pass; {LATE}")
            buffers = self._forward.buffers
        elif buffers and self.model.training:
            raise UserError(
                "no forward pass of the model was seen, and its buffers may have changed since the one of this gradient; "
                "call seen.broadcast() before it"
            )
        if self._at_backward is not None and not all(map(_is_same, self._at_backward, self._norms())):
            raise UserError(f"the parameters changed since backward(); {LATE}")
        return BroadcastModel(copied(parameters), copied(buffers))

    def _check_at_broadcast(self, client: int | Sequence[int]) -> None:
        """The gradient of a round is taken at what its clients received."""
        number = self._broadcast_to(_ascending(client))
        if number is None:
            return
        received, now = self._broadcasts[number].parameters, dict(self.model.named_parameters())
        if not all(_are_same(t, now[name].detach().cpu()) for name, t in received.items() if name in now):
            raise UserError(
                "the model's parameters are not those of the round's broadcast; call seen.broadcast() at the start of each "
                f"round, and {LATE}"
            )


def _check_unwrapped(model: nn.Module) -> None:
    """UserError for a wrapper, which puts its own word before the names of all tensors: no audit of the module knows these."""
    devices = isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel)
    inner = "module" if devices else "_orig_mod"
    if devices or isinstance(getattr(model, inner, None), nn.Module):
        raise UserError(
            f"a capture takes the module inside this {type(model).__name__}, whose tensors have other names: model.{inner}"
        )


def _mode(model: nn.Module) -> bool | None:
    """Whether a model is in training mode; None where some of its layers are, and others are not.

    What counts is the mode of the layers of torch.nn that have one: batch norm may be frozen by `eval` while the rest is trained.
    """
    modes = {each.training for each in model.modules() if isinstance(each, (_NormBase, _DropoutNd))}
    return model.training if not modes else modes.pop() if len(modes) == 1 else None


def _is_same(a: float, b: float) -> bool:
    """Whether two numbers are equal, NaN and NaN too: weights that are NaN did not change."""
    return a == b or (math.isnan(a) and math.isnan(b))


def _are_same(a: Tensor, b: Tensor) -> bool:
    """The same of all numbers of two tensors."""
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


def _whole(value: Any, what: str) -> int:
    """A whole number of Python's, NumPy's or torch's; UserError for anything else."""
    try:
        if isinstance(value, bool):
            raise TypeError("a truth value counts nothing")
        return operator.index(value)
    except TypeError as error:
        raise UserError(f"{what} should be a whole number, but {short(repr(value))} was given") from error


def _ascending(client: Any) -> tuple[int, ...]:
    """The number of one client, or those of several, each once."""
    if hasattr(client, "__index__") and getattr(client, "ndim", 0) == 0:
        return (_whole(client, "client"),)
    if isinstance(client, str) or not isinstance(client, Iterable):
        raise UserError(f"client should be a whole number, or several, but {short(repr(client))} was given")
    return tuple(sorted({_whole(each, "client") for each in client}))


def _local(work: Any) -> LocalWork:
    """The same with numbers of Python's."""
    if not isinstance(work, LocalWork):
        raise UserError(f"local should be a LocalWork, but {short(repr(work))} was given")
    steps, batch_size = (
        None if n is None else _whole(n, f"{what} of local")
        for n, what in ((work.steps, "steps"), (work.batch_size, "batch_size"))
    )
    return replace(work, steps=steps, batch_size=batch_size)


def _truth(truth: Any) -> TruthOfMessage:
    if not isinstance(truth, tuple | list) or len(truth) != 2:
        raise UserError("truth should be (inputs, targets)")
    inputs, targets = (_tensor(each, what) for each, what in zip(truth, ("inputs", "targets"), strict=True))
    if not inputs.ndim or not targets.ndim:
        raise UserError("inputs and targets of a truth should have an axis of examples")
    return TruthOfMessage(inputs, targets)


def _tensor(numbers: Any, what: str) -> Tensor:
    """A copy of numbers as a tensor; UserError where they are none."""
    try:
        return copied({"": torch.as_tensor(numbers)})[""]
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise UserError(f"{what} should be numbers: {short(str(error))}") from error


def _copied(tensors: Mapping[str, Tensor]) -> Params:
    """As `copied`; UserError for tensors that hold no numbers of their own, such as those of the device meta."""
    try:
        return copied(tensors)
    except (TypeError, RuntimeError) as error:
        raise UserError(f"what is sent cannot be copied: {short(str(error))}") from error
