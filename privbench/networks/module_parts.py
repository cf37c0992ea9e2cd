"""The extractor and the classifier of a torch module of a user's own, by running the whole module and stopping at the split.

A module's forward is code that cannot be cut. So the extractor is the module up to the first call of the head's first layer, whose
input are the features; there its forward is stopped. The classifier is the module again, on an image of zeros without memory, with
the features put in place of that input: what comes before computes no numbers, and what the outputs take from before the head,
past its input, is refused by torch, because it has none.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privbench.errors import UserError
from privbench.networks.module_net import ModuleNet
from privbench.tensors import Params, Parts

WHOLE = "module"  # the module's name within the two parts


@dataclass(frozen=True)
class InputForm:
    """How an image in [0, 1] enters the module: u = low + (high - low) x, then (u - mean) / std, each a number or one a channel.

    A vector of D numbers is an image of D channels and one pixel, [D, 1, 1], and enters as [B, D].
    """

    shape: tuple[int, int, int]
    low: Tensor
    high: Tensor
    mean: Tensor
    std: Tensor
    is_vector: bool = False

    def entered(self, images: Tensor) -> Tensor:
        """What the module gets of images [B, C, H, W] in [0, 1]."""
        low, high, mean, std = self._channels(images)
        x = (low + (high - low) * images - mean) / std
        return x.flatten(1) if self.is_vector else x

    def images(self, entered: Tensor) -> Tensor:
        """The inverse of `entered`: [..., C, H, W] from anything of as many numbers, [..., n, 1, 1]."""
        low, high, mean, std = self._channels(entered)
        x = entered.flatten(-3).unflatten(-1, self.shape)
        return (x * std + mean - low) / (high - low)

    def from_data(self, data: Tensor) -> Tensor:
        """Images in [0, 1] from data in the declared range, before normalisation: [..., C, H, W], of vectors also [..., D]."""
        low, high, _, _ = self._channels(data)
        whole = data.unsqueeze(-1).unsqueeze(-1) if self.is_vector and data.shape[-1:] == self.shape[:1] else data
        return (whole - low) / (high - low)

    def to_data(self, images: Tensor) -> Tensor:
        """The inverse of `from_data`, [..., C, H, W]."""
        low, high, _, _ = self._channels(images)
        return low + (high - low) * images

    def _channels(self, like: Tensor) -> list[Tensor]:
        return [t.to(like).reshape(-1, 1, 1) for t in (self.low, self.high, self.mean, self.std)]


class _Reached(BaseException):
    """The head's first layer was called; no error, so that no handler of the module's takes it for one."""

    def __init__(self, features: Tensor) -> None:
        self.features = features


class UpTo(nn.Module):
    """Images [B, C, H, W] in [0, 1] -> features, the input of the first layer of the head; without one, the module's own input."""

    def __init__(self, module: nn.Module, form: InputForm, first: str | None, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.module, self.form, self.first, self.shape = module, form, first, shape
        # So that `train` reaches a module that came in eval mode.
        self.training = module.training

    def forward(self, images: Tensor) -> Tensor:
        """Features [B, c, s, s]."""
        x = self.form.entered(images)
        if self.first is None:
            return x.reshape(len(x), *self.shape)
        return features_at(self.module, self.first, x).reshape(len(x), *self.shape)


def features_at(module: nn.Module, first: str, x: Tensor) -> Tensor:
    """What enters the submodule `first` when the module is called on x; UserError where it is not called on one tensor."""

    def stop(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        if len(inputs) != 1 or not isinstance(inputs[0], Tensor):
            raise UserError(f"'{first}' takes {len(inputs)} inputs, but a head takes one tensor of features")
        raise _Reached(inputs[0])

    handle = module.get_submodule(first).register_forward_pre_hook(stop)
    try:
        module(x)
    except _Reached as reached:
        return reached.features
    finally:
        handle.remove()
    raise UserError(f"the module does not call '{first}', so that no head begins there")


class From(nn.Module):
    """Features -> (outputs [B, Y], what enters each layer of a head of linear layers)."""

    def __init__(self, module: nn.Module, form: InputForm, first: str | None, entered: tuple[int, ...]) -> None:
        """`entered` is the shape [...] of the input of `first` for one image."""
        super().__init__()
        self.module, self.form, self.first, self.shape = module, form, first, entered
        self.training = module.training
        self.layers = [name for name, each in module.named_modules() if isinstance(each, RecordingLinear)]
        self.dtype = next(module.parameters()).dtype

    def forward(self, features: Tensor) -> tuple[Tensor, Params]:
        """Features come as the extractor gave them, [B, c, s, s]; those of a head of linear layers also as [B, n]."""
        features = features.flatten(1) if self.layers else features.reshape(len(features), *self.shape)
        if self.first is None:
            return self.module(features), {}
        handle = self.module.get_submodule(self.first).register_forward_pre_hook(lambda *_: (features,))
        try:
            blank = torch.zeros(len(features), *self.form.shape, dtype=self.dtype, device="meta")
            outputs = self.module(blank.flatten(1) if self.form.is_vector else blank)
        finally:
            handle.remove()
        each = {name: self.module.get_submodule(name) for name in self.layers}
        return outputs, {name: layer.pop_inputs() for name, layer in each.items() if isinstance(layer, RecordingLinear)}


class RecordingLinear(nn.Linear):
    """A linear layer that remembers what entered it, and whose bias may come one per image, [B, m]."""

    entered: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """x [B, n] -> [B, m]."""
        self.entered = x
        if self.bias.ndim == 1:
            return F.linear(x, self.weight, self.bias)
        return F.linear(x, self.weight) + self.bias

    def pop_inputs(self) -> Tensor:
        """What entered it, which it forgets."""
        assert self.entered is not None, "the head was run"
        x, self.entered = self.entered, None
        return x


class Part(ModuleNet):
    """One of the two parts, with the parameters and buffers that belong to it by their names in the module."""

    def __init__(self, wrapper: UpTo | From, parameters: Sequence[str], buffers: Sequence[str]) -> None:
        super().__init__(wrapper)
        named = {f"{WHOLE}.{name}" for name in (*parameters, *buffers)}
        self.parameter_names = tuple(name for name in self.parameter_names if name in named)
        # Those of the other part have no numbers, but are assigned in a call, and taken back after it.
        self._foreign = {name: self._outline.get_buffer(name) for name in self.buffer_names if name not in named}

    @property
    def names(self) -> frozenset[str]:
        """Of its parameters and buffers in the module."""
        every = (*self.parameter_names, *(name for name in self.buffer_names if name not in self._foreign))
        return frozenset(_inner(dict.fromkeys(every)))

    def values(self) -> tuple[Params, Params]:
        """(parameters, buffers) of the part as the module has them, copied."""
        params, buffers = super().values()
        return _inner(params), self._of_part(buffers)

    def init(self, rng: torch.Generator | None) -> tuple[Params, Params]:
        """Initial (parameters, buffers) of the part."""
        params, buffers = super().init(rng)
        return _inner(params), self._of_part(buffers)

    def _of_part(self, buffers: Params) -> Params:
        return _inner({name: t for name, t in buffers.items() if name not in self._foreign})

    def run(self, params: Params, buffers: Params, inputs: Tensor, train: bool) -> tuple[Any, Params]:
        """(what the wrapper returns, buffers after the call); UserError where running statistics are missing."""
        if missing := [n for n in self._of_part(dict.fromkeys(self.buffer_names, inputs)) if n not in buffers]:
            raise UserError(f"this attack knows no running statistics of an extractor, but this one has {missing[0]}")
        output, after = super().apply(_outer(params), _outer(buffers) | self._foreign, inputs, train=train)
        return output, self._of_part(after)


class ExtractorPart(Part):
    """E of a module."""

    def apply(self, params: Params, buffers: Params, *inputs: Any, train: bool) -> tuple[Tensor, Params]:
        """Images [B, C, H, W] in [0, 1] -> (features [B, c, s, s], buffers after the call)."""
        return self.run(params, buffers, inputs[0], train)


class ClassifierPart(Part):
    """C of a module, whatever it is made of."""

    features_layer: str | None = None

    def __init__(
        self, wrapper: From, parameters: Sequence[str], buffers: Sequence[str], logits_layer: str, *, train: bool
    ) -> None:
        super().__init__(wrapper, parameters, buffers)
        self.logits_layer, self.train = logits_layer, train

    def apply(self, params: Params, buffers: Params, *inputs: Any, train: bool) -> tuple[Tensor, Params]:
        """Features [B, c, s, s] -> (outputs [B, Y], buffers after the call)."""
        (outputs, _), after = self.run(params, buffers, inputs[0], train)
        return outputs, after


class LinearPart(ClassifierPart):
    """C of linear layers, the first of which takes the features."""

    def __init__(self, wrapper: From, parameters: Sequence[str], layers: Sequence[str], *, train: bool) -> None:
        super().__init__(wrapper, parameters, (), layers[-1], train=train)
        self.features_layer = layers[0]
        self.layers = tuple(layers)

    def linear_layers(self, params: Params, features: Tensor) -> tuple[Tensor, Params]:
        """(outputs [B, Y], what enters each layer [B, n], in the order of the layers); biases may come one per image."""
        (outputs, entered), _ = self.run(params, {}, features, self.train)
        return outputs, {name: entered[name] for name in self.layers}


def structure(module: nn.Module, recording: Sequence[str] = ()) -> nn.Module:
    """A copy for the parts: nothing in place, frozen parameters as buffers, linear layers in `recording` that remember inputs."""
    copy = copied(module)
    for each in copy.modules():
        if getattr(each, "inplace", False) is True:
            each.inplace = False  # type: ignore[assignment]
        for name, parameter in list(each.named_parameters(recurse=False)):
            if not parameter.requires_grad:
                delattr(each, name)
                each.register_buffer(name, parameter.detach())
    for name in recording:
        copy.get_submodule(name).__class__ = RecordingLinear
    return copy


def copied(module: nn.Module) -> nn.Module:
    """A deep copy; UserError where a module cannot be copied."""
    try:
        return copy.deepcopy(module)
    except Exception as error:
        raise UserError(f"{type(module).__name__} cannot be copied: {error}") from error


def _inner(named: dict[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(f"{WHOLE}."): value for name, value in named.items()}


def _outer(named: Params) -> Params:
    return {f"{WHOLE}.{name}": value for name, value in named.items()}


def by_part(named: Params, is_head: Callable[[str], bool]) -> Parts:
    """Tensors by their names in the module as those of "extractor" and "classifier"."""
    parts: Parts = {"extractor": {}, "classifier": {}}
    for name, tensor in named.items():
        parts["classifier" if is_head(name) else "extractor"][name] = tensor
    return parts
