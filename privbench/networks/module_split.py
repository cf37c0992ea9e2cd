"""Where a torch module of a user's own is cut in two: one call is traced, and every cut is tried on images of noise.

Unless a head is declared, it is the longest chain of linear layers at the end, each of which is called once, on one row [n] an
image: of an MLP all of it, of a convolutional network all behind the last convolution, of a ResNet or a ViT the last layer. Where
no such layer ends the module, the whole module is the classifier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from privbench.errors import UserError
from privbench.networks.module_net import ModuleNet
from privbench.networks.module_parts import (
    ClassifierPart,
    ExtractorPart,
    From,
    InputForm,
    LinearPart,
    UpTo,
    copied,
    features_at,
    structure,
)
from privbench.system.file_headers import short

CLOSE = 1e-4  # relative to the largest output, in single precision
NO_LAYER = ""  # where no layer makes the logits


class Call(NamedTuple):
    """What entered and left a linear layer."""

    name: str
    inputs: Tensor
    outputs: Tensor


class Trace(NamedTuple):
    """One call of a module."""

    outputs: Tensor  # [B, Y]
    linear: list[Call]  # trainable layers with a bias that were called once, on [B, n], in order
    order: list[str]  # of every submodule's first call


def traced(module: nn.Module, x: Tensor, name: str) -> Trace:
    """One call in evaluation mode; UserError where it is not possible."""
    copy = copied(module).eval()
    calls: dict[str, list[Call]] = {}
    order: list[str] = []

    def before(label: str) -> Callable[..., None]:
        return lambda *_: None if label in order else order.append(label)

    def after(label: str) -> Callable[..., None]:
        def record(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if inputs and isinstance(inputs[0], Tensor) and isinstance(output, Tensor):
                calls.setdefault(label, []).append(Call(label, inputs[0].detach(), output.detach()))

        return record

    for label, each in copy.named_modules():
        if label:
            each.register_forward_pre_hook(before(label))
        if type(each) is nn.Linear:
            each.register_forward_hook(after(label))
    try:
        with torch.no_grad():
            outputs = copy(x)
    except Exception as error:
        raise UserError(f"{name} cannot be called on images of shape {list(x.shape)}: {short(error)}") from error
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != len(x):
        shape = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise UserError(f"{name} should return [{len(x)}, classes] for {len(x)} images, but it returned {shape}")
    linear = [each[0] for each in calls.values() if len(each) == 1 and _is_row(copy, each[0])]
    return Trace(outputs, linear, order)


def _is_row(module: nn.Module, call: Call) -> bool:
    layer = module.get_submodule(call.name)
    trained = all(isinstance(p, nn.Parameter) and p.requires_grad for p in (layer.weight, layer.bias))
    return call.inputs.ndim == 2 and trained


class Cut(NamedTuple):
    """The two parts of a module."""

    extractor: ExtractorPart
    classifier: ClassifierPart
    shape: tuple[int, int, int]  # of the features
    is_direct: bool  # whether they are the image itself


@dataclass(frozen=True)
class Cuts:
    """Ways to cut one module in two; each is tried on the probe."""

    module: nn.Module
    form: InputForm
    probe: Tensor
    trace: Trace
    train: bool

    @property
    def logits_layer(self) -> str:
        """The layer whose outputs are the module's, or their log-softmax, whose cross-entropy is the same."""
        outputs = self.trace.outputs
        for call in self.trace.linear:
            if call.outputs.shape == outputs.shape and (
                _is_close(call.outputs, outputs) or _is_close(call.outputs.log_softmax(1), outputs)
            ):
                return call.name
        return NO_LAYER

    def longest(self) -> Cut:
        """The longest chain of linear layers that can be a head; else the whole module."""
        layers = [call.name for call in self.trace.linear]
        for count in range(len(layers), 0, -1):
            try:
                return self._linear(layers[-count:])
            except Exception:  # noqa: BLE001 (whatever a module raises that needs more than these layers)
                continue
        return self._whole()

    def declared(self, head: Sequence[str]) -> Cut:
        """A head of named submodules; UserError where the rest of the module does not lead into them alone."""
        submodules = dict(self.module.named_modules())
        if unknown := [name for name in head if name not in submodules or not name]:
            raise UserError(
                f"the module has no submodule '{unknown[0]}'; known: {', '.join(n for n in submodules if n)}"
            )
        called = [name for name in self.trace.order if name in head]
        if not called:
            raise UserError(f"the module calls none of {', '.join(head)}, so that no head begins there")
        inside = [n for n, _ in self.module.named_parameters() if any(n.startswith(f"{h}.") for h in head)]
        layers = [call.name for call in self.trace.linear if any(f"{call.name}.".startswith(f"{h}.") for h in head)]
        try:
            if sorted(inside) == sorted(f"{layer}.{n}" for layer in layers for n in ("weight", "bias")):
                return self._linear(layers)
            return self._general(called[0], inside)
        except Exception as error:
            raise UserError(
                f"the module cannot be cut before {called[0]}, because its outputs depend on more than what enters there and the "
                f"parameters of {', '.join(head)}: {short(error)}"
            ) from error

    def _linear(self, layers: Sequence[str]) -> Cut:
        skeleton = structure(self.module, layers)
        head_names = [f"{layer}.{n}" for layer in layers for n in ("weight", "bias")]
        head = From(skeleton, self.form, layers[0], ())
        part = LinearPart(head, head_names, layers, train=self.train)
        # The layer of the logits may be another than the last one called.
        part.logits_layer = self.logits_layer if self.logits_layer in layers else NO_LAYER
        return self._checked(skeleton, layers[0], head_names, part)

    def _general(self, first: str, head_names: Sequence[str]) -> Cut:
        skeleton = structure(self.module)
        head = {name.rpartition(".")[0] for name in head_names}
        buffers = [n for n, _ in skeleton.named_buffers() if n.rpartition(".")[0] in head]
        with torch.no_grad():
            entered = features_at(copied(skeleton).eval(), first, self.form.entered(self.probe)).shape[1:]
        logits = self.logits_layer if any(n.startswith(f"{self.logits_layer}.") for n in head_names) else NO_LAYER
        wrapper = From(skeleton, self.form, first, tuple(entered))
        part = ClassifierPart(wrapper, head_names, buffers, logits, train=self.train)
        return self._checked(skeleton, first, head_names, part)

    def _whole(self) -> Cut:
        skeleton = structure(self.module)
        params, buffers = ([n for n, _ in each] for each in (skeleton.named_parameters(), skeleton.named_buffers()))
        shape = tuple(self.form.entered(self.probe).shape[1:])
        part = ClassifierPart(
            From(skeleton, self.form, None, shape), params, buffers, self.logits_layer, train=self.train
        )
        return self._checked(skeleton, None, params, part)

    def _checked(
        self, skeleton: nn.Module, first: str | None, head_names: Sequence[str], classifier: ClassifierPart
    ) -> Cut:
        """The two parts, whose outputs one after another are the whole module's; UserError where they are not."""
        head = classifier.names
        params, buffers = ([n for n, _ in each] for each in (skeleton.named_parameters(), skeleton.named_buffers()))
        if lost := [name for name in head_names if name not in head]:
            raise UserError(f"{lost[0]} is shared with another layer")
        whole, entered = ModuleNet(structure(self.module)), self.form.entered(self.probe)
        with torch.no_grad():
            expected, _ = whole.apply(*whole.values(), entered, train=self.train)
            natural = entered if first is None else features_at(copied(skeleton).eval(), first, entered)
        shape = _three(tuple(natural.shape[1:]))
        extractor = ExtractorPart(
            UpTo(skeleton, self.form, first, shape),
            [n for n in params if n not in head],
            [n for n in buffers if n not in head],
        )
        with torch.no_grad():
            features, _ = extractor.apply(*extractor.values(), self.probe, train=self.train)
            outputs, _ = classifier.apply(*classifier.values(), features, train=self.train)
        if not _is_close(outputs, expected):
            raise UserError("the outputs of the two parts are not the module's")
        bare = not extractor.names
        is_direct = (
            bare and features.numel() == entered.numel() and torch.equal(features.flatten(1), entered.flatten(1))
        )
        return Cut(extractor, classifier, shape, is_direct)


def _three(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """A shape of features as [c, s, s']: with axes of length 1 behind, or the last ones in one."""
    first, second, *rest = (*shape, 1, 1)
    return first, second, int(torch.Size(rest).numel())


def _is_close(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= CLOSE * other.abs().max().clamp_min(1e-12))
