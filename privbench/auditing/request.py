"""What a caller may say of an audit, as values of Python's or as files and words, and what it comes to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from privbench import data, registry
from privbench.auditing import inputs, observed, tensor_files
from privbench.auditing.captures import FromCapture, captured
from privbench.auditing.inputs import Received
from privbench.auditing.kinds import batch_size, dense, images, tensors
from privbench.data.dataset import sound
from privbench.errors import UserError
from privbench.networks.module_parts import InputForm
from privbench.observation import observe
from privbench.observation.format import limits
from privbench.observation.wire import Format
from privbench.spec import SGD
from privbench.tensors import Params
from privbench.trust import FOLDER
from privbench.types import CLASSIFICATION, Batch, LocalSteps

CROSS_ENTROPY = "cross-entropy"
SPREAD = 4.0  # standard deviations on both sides of the mean that vectors are taken to lie in
STEPS_NEEDED = (
    "an update is attacked by the local steps behind it: say --local-lr, the rate of SGD, and --local-steps; other optimisers by "
    "`local` in Python"
)
Tensors = Mapping[str, Tensor] | Path | str
Loss = Callable[[Tensor, Tensor], Tensor]
Numbers = float | Sequence[float] | Tensor | None


@dataclass(frozen=True)
class AuditRequest:
    """What is audited, as options of `privbench audit` say it.

    `loss` and `local` are of Python alone; `head` and `extractor` are `--split` there.

    received     what the server got: a folder that privbench.capture wrote, or a value of inputs.Received; or, in its place,
    round        of the captured ones; default: the first with messages
    client       of a captured round, whose messages; default: all clients'
    gradients    of the mean loss over `batch_size` images, parameter -> [M, ...] (of one message also [...]), or a file
    before       the state dict that went down, or a file; None: the module's own
    after        the state dicts that came up after the local steps, parameter -> [M, ...], or files
    local        the local steps behind them; from `local_steps` of SGD at the rate `local_lr` where it is None; default of each: as
                 captured, of files one step
    batch_size   images behind a message; default: as captured, else 1
    labels       of the images, where they are known: [M, B]
    truth        (images, labels or None) in the declared range, or a file with `images` and `labels`: for scores alone
    input_shape  [C, H, W] of an image, or [D] of a vector
    mean, std    of the normalisation (u - mean) / std, one number or one a channel
    range        of an image before it; default 0 to 1, of vectors mean +- 4 std
    mode         of the module, when the clients took gradients; default: as captured, else "train"
    head         the submodules of the classifier; default: the longest chain of linear layers at the end
    extractor    submodules before them, where the caller names some: checked, as all that is no head is the extractor
    shared       the parts that clients send
    loss         "cross-entropy", or (outputs, labels) -> the mean over the batch; NLL of log-probabilities is cross-entropy
    attack       names, or "ladder": every attack that can be made
    settings     of the attacks, by name
    auxiliary    the attacker's images: a data set's name, a folder, a file, or (images, labels)
    defense      as the attacker knows it, e.g. "gaussian:0.001"
    wire         the number format in which messages were computed or sent: "float32", "bf16", "fp16"; default that of their tensors
    """

    received: Received | Path | str | None = None
    round: int | None = None
    client: Sequence[int] | None = None
    gradients: Tensors | None = None
    before: Tensors | None = None
    after: Tensors | Sequence[Path | str] | None = None
    batch_size: int | None = None
    local: LocalSteps | None = None
    local_steps: int | None = None
    local_lr: float | None = None
    labels: Tensor | Sequence[int] | None = None
    truth: tuple[Tensor, Tensor | None] | Path | str | None = None
    input_shape: Sequence[int] | None = None
    mean: Numbers = None
    std: Numbers = None
    range: tuple[Numbers, Numbers] | None = None
    mode: Literal["train", "eval"] | None = None
    head: Sequence[str] = ()
    extractor: Sequence[str] = ()
    shared: Sequence[str] = CLASSIFICATION
    loss: str | Loss = CROSS_ENTROPY
    attack: Sequence[str] = (registry.LADDER,)
    settings: Mapping[str, Any] = field(default_factory=dict)
    auxiliary: str | Path | tuple[Tensor, Tensor] | None = None
    defense: str = "none"
    wire: Format | None = None
    device: str = "cpu"
    data_dir: Path | None = None
    out: Path = Path("audit")

    def form(self, loaded: FromCapture) -> InputForm:
        """How images enter the module; UserError where it is not said, or makes no sense."""
        given = self.input_shape
        if not isinstance(given, Sequence | None) or isinstance(given, str) or not all(map(_is_whole, given or ())):
            raise UserError(
                f"input_shape takes [C, H, W] of images or [D] of vectors, but {self.input_shape!r} was given"
            )
        shape = tuple(int(n) for n in self.input_shape or self._shape_of_truth(loaded))
        if len(shape) not in (1, 3) or min(shape) < 1:
            raise UserError(f"--input-shape takes C,H,W of images or D of vectors, but {list(shape)} was given")
        is_vector = len(shape) == 1 or shape[1:] == (1, 1)
        whole = (shape[0], 1, 1) if is_vector else (shape[0], shape[1], shape[2])
        if math.prod(whole) > limits.CHANNELS * limits.SIDE**2:
            raise UserError(f"inputs of {list(shape)} are too large")
        mean, std = _numbers("mean", self.mean, 0.0, shape[0]), _numbers("std", self.std, 1.0, shape[0])
        if not bool((std > 0).all()):
            raise UserError("--std should be above 0")
        if self.range is not None:
            if not isinstance(self.range, Sequence) or len(self.range) != 2:
                raise UserError(f"range takes two numbers, e.g. (0, 255), but {self.range!r} was given")
            low, high = (_numbers("range", each, 0.0, shape[0]) for each in self.range)
        elif is_vector:
            low, high = mean - SPREAD * std, mean + SPREAD * std
        else:
            low, high = torch.zeros(1), torch.ones(1)
        if not bool((high > low).all()):
            raise UserError("--range takes a lower and a higher end")
        return InputForm(whole, low, high, mean, std, is_vector)

    def _shape_of_truth(self, loaded: FromCapture) -> Sequence[int]:
        """The last axes of the true images."""
        if self.truth is None and loaded.truth is not None:
            return loaded.truth[0].shape[2:]
        if isinstance(self.truth, tuple):
            shape = tuple(self.truth[0].shape)
        elif self.truth is not None:
            shape = _announced(Path(self.truth)).shapes["images"]
        else:
            raise UserError("say with --input-shape which images the module takes, e.g. 3,32,32, or 30 of vectors")
        return shape[-3:] if len(shape) > 2 else shape[-1:]

    def load(self, module: nn.Module) -> FromCapture:
        """What the server received, and what a capture says besides; UserError where two things are named, or none."""
        batch_size(self.batch_size)
        for name in ("gradients", "before", "after"):
            tensors(name, getattr(self, name))
        images("truth", self.truth, must_have_labels=False)
        images("auxiliary", self.auxiliary, must_have_labels=True)
        ways = {"received": "a captured folder", "gradients": "--gradients", "after": "--after"}
        named = [way for name, way in ways.items() if getattr(self, name) is not None]
        if len(named) != 1:
            raise UserError(
                "an audit takes one of a captured folder, --gradients FILE, and --before FILE with --after FILE, but "
                f"{' and '.join(named) or 'none'} {'were' if named else 'was'} given"
            )
        if self.received is not None and (also := [n for n in ("before", "labels") if getattr(self, n) is not None]):
            raise UserError(f"--{also[0]} goes with files of tensors; what was captured says it itself")
        for name in ("round", "client"):
            if getattr(self, name) is not None and not isinstance(self.received, Path | str):
                raise UserError(f"--{name} goes with a captured folder")
        if isinstance(self.received, Received):
            return FromCapture(self.received)
        if self.received is not None:
            self._check_steps()
            return captured(
                Path(self.received), module, self.round, self.batch_size, self.local, self.local_steps, self.local_lr,
                clients=self.client,
            )  # fmt: skip
        return FromCapture(self._of_tensors(module))

    def _of_tensors(self, module: nn.Module) -> Received:
        weights, buffers = self._went_down(module)
        labels = _as_labels(self.labels)
        if self.gradients is not None:
            if any(each is not None for each in (self.local, self.local_steps, self.local_lr)):
                raise UserError("local steps go with an update, --after; gradients are taken before any step")
            messages = self._messages(self.gradients, module)
            return Received(
                "gradient", messages, 1 if self.batch_size is None else self.batch_size, weights, buffers, labels=labels
            )
        if self.before is None:
            raise UserError("--after needs --before, the state dict that went down")
        assert self.after is not None, "one of the three is named"
        return Received(
            "update",
            self._change(weights, module),
            1 if self.batch_size is None else self.batch_size,
            weights,
            buffers,
            self._local_steps(),
            labels,
        )

    def _messages(self, tensors: Tensors, module: nn.Module) -> Params:
        if isinstance(tensors, Mapping):
            return inputs.stacked(tensors, module)
        return inputs.gradients(Path(tensors), module)

    def _went_down(self, module: nn.Module) -> tuple[Params, Params]:
        if self.before is None:
            return {}, {}
        if isinstance(self.before, Mapping):
            return inputs.state_of(self.before, module, "before")
        return inputs.state(Path(self.before), module)

    def _change(self, before: Params, module: nn.Module) -> Params:
        after = self.after
        if isinstance(after, Mapping):
            names = inputs.Names.of(module).parameters
            if missing := [n for n in names if n not in after]:
                raise UserError(f"the state after lacks '{missing[0]}' of the module, and {len(missing) - 1} more")
            messages = inputs.stacked({n: after[n] for n in names}, module)
            return {n: t - before[n] for n, t in messages.items()}
        paths = [after] if isinstance(after, str | Path) else list(after or ())
        return inputs.updates(before, [Path(path) for path in paths], module)

    def _local_steps(self) -> LocalSteps:
        if self.local is not None:
            return self.local
        self._check_steps()
        if self.local_lr is None:
            raise UserError(STEPS_NEEDED)
        return LocalSteps(self.local_steps or 1, SGD(kind="sgd", lr=self.local_lr).model_dump())

    def _check_steps(self) -> None:
        """UserError where a declared number of steps or rate is none."""
        is_rate = self.local_lr is None or (self.local_lr > 0 and math.isfinite(self.local_lr))
        if not is_rate or not (self.local_steps is None or 1 <= self.local_steps <= limits.STEPS):
            raise UserError(STEPS_NEEDED)

    def declared_loss(self) -> Loss | None:
        """The clients' loss; None for cross-entropy."""
        if callable(self.loss):
            return self.loss
        if self.loss != CROSS_ENTROPY:
            raise UserError(f"loss is {CROSS_ENTROPY}, or a callable in Python, but '{self.loss}' was given")
        return None

    def true_images(self, numbers: int, form: InputForm, loaded: FromCapture) -> tuple[Tensor, Tensor | None] | None:
        """(images in the declared range, labels), `numbers` in all; None where no truth is given, nor kept in a capture."""
        if self.truth is None and loaded.truth is None:
            return None
        if self.truth is None and loaded.truth is not None:
            entered, targets = loaded.truth
            if entered.numel() != numbers:
                raise UserError(
                    f"the captured truth has inputs of {list(entered.shape[2:])}, not of {list(form.shape)}"
                )
            if not observed.fits(tuple(entered.shape), form):
                raise UserError(
                    f"the captured truth has inputs of {list(entered.shape[2:])}, not of {list(form.shape)}: name their shape by "
                    "--input-shape"
                )
            return form.to_data(form.images(entered.float().reshape(-1, *form.shape))), targets
        assert self.truth is not None, "else it was kept"
        if isinstance(self.truth, tuple):
            images, labels = self.truth
            return _in_range(images.cpu(), form), None if labels is None else labels.cpu()
        images, labels = labelled(Path(self.truth), numbers)
        return _in_range(images, form), labels

    def auxiliary_images(self, form: InputForm, classes: int) -> Batch | None:
        """The attacker's images in [0, 1], with labels below `classes`; None where there are none."""
        auxiliary = self.auxiliary
        if auxiliary is None:
            return None
        if isinstance(auxiliary, tuple):
            batch = Batch(_unit(_in_range(auxiliary[0].cpu(), form), form), auxiliary[1].long().cpu())
        elif Path(auxiliary).suffix in tensor_files.KINDS:
            images, labels = labelled(Path(auxiliary), limits.PIXELS)
            if labels is None:
                raise UserError(f"{auxiliary} holds no labels; an attacker's images have them")
            batch = Batch(_unit(_in_range(images, form), form), labels)
        else:
            batch = self._data_set(str(auxiliary), form)
        if tuple(batch.images.shape[1:]) != form.shape or len(batch.images) != len(batch.labels):
            raise UserError(
                f"auxiliary images should be [N, {', '.join(map(str, form.shape))}] with N labels, but they are "
                f"{list(batch.images.shape)} with {len(batch.labels)}"
            )
        if not bool(((batch.labels >= 0) & (batch.labels < classes)).all()):
            raise UserError(
                f"auxiliary labels are numbers from 0 to {classes - 1}, as the module has {classes} outputs"
            )
        return batch

    def _data_set(self, name: str, form: InputForm) -> Batch:
        channels, height, width = form.shape
        if height != width or form.is_vector:
            raise UserError(f"images of data sets are square, but the module takes {list(form.shape)}; give a file")
        is_folder = name not in registry.DATASETS and Path(name).is_dir()
        name = registry.typed("dataset", f"{FOLDER}{name}" if is_folder else name)
        loaded = sound(data.load(name, self.data_dir, side=height), height)
        batch = observe.pooled([domain.train for domain in loaded.domains.values() if len(domain.train.labels)], height)
        if batch.images.shape[1] != channels:
            raise UserError(f"{name} has images of {batch.images.shape[1]} channel(s), but the module takes {channels}")
        return batch


def labelled(path: Path, most: int) -> tuple[Tensor, Tensor | None]:
    """`images` of at most so many numbers, and `labels` where they are there, of a file."""
    file = _announced(path)
    for name in ("images", "labels"):
        shape = file.shapes.get(name, ())
        if math.prod(shape) > most:
            raise UserError(f"{path}: '{name}' has shape {list(shape)}, but at most {most} numbers are asked for")
    read = tensor_files.read(file.only(("images", "labels")))
    return read["images"], read.get("labels")


def _announced(path: Path) -> tensor_files.Shapes:
    """The shapes in a file of `images`; UserError for one without them."""
    file = tensor_files.announced(path)
    if "images" not in file.shapes:
        raise UserError(f"{path} should hold 'images' and 'labels', but holds {', '.join(file.shapes) or 'nothing'}")
    return file


def _is_whole(number: object) -> bool:
    return isinstance(number, Integral) or (isinstance(number, float) and number.is_integer())


def _in_range(images: Tensor, form: InputForm) -> Tensor:
    """Images of bytes as images of the declared range; others as they are."""
    if images.dtype != torch.uint8:
        return images
    low, high = form.low.reshape(-1, 1, 1), form.high.reshape(-1, 1, 1)
    return low + (high - low) * images.float() / 255


def _unit(images: Tensor, form: InputForm) -> Tensor:
    """[N, C, H, W] in [0, 1], of vectors also from [N, D]."""
    pixels = form.from_data(images.float())
    return pixels if form.is_vector else pixels.clamp(0, 1)


def _as_labels(labels: Numbers) -> Tensor | None:
    """As a tensor on the CPU; UserError for what is none."""
    try:
        t = None if labels is None else torch.as_tensor(labels).cpu()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise UserError("labels are whole numbers, one for each image, in a row") from error
    if t is not None:
        dense("a tensor of labels", t)
    return t


def _numbers(name: str, numbers: Numbers, default: float, count: int) -> Tensor:
    try:
        t = torch.as_tensor(default if numbers is None else numbers, dtype=torch.float64).cpu().reshape(-1)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"--{name} takes numbers, but {numbers!r} was given") from error
    if len(t) not in (1, count):
        raise UserError(f"--{name} takes one number or {count}, but {len(t)} were given")
    if not bool(t.isfinite().all()):
        raise UserError(f"--{name} takes finite numbers, but {', '.join(f'{n:g}' for n in t.tolist())} was given")
    return t
