"""Which tensors of a model are parameters and which are buffers, by the names of its state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from privbench.capture.index import Layout, layout_of
from privbench.errors import UserError
from privbench.tensors import Params


@dataclass(frozen=True)
class StateNames:
    """The names of a model's state in their order, without the model."""

    order: tuple[str, ...]
    buffers: frozenset[str]
    layout: Layout

    @classmethod
    def of(cls, model: nn.Module) -> StateNames:
        """Of a module; UserError where its state cannot be written to a file."""
        state = model.state_dict()
        check_tensors(state)
        buffers = frozenset(name for name, _ in model.named_buffers(remove_duplicate=False))
        try:
            layout = layout_of(
                {name: t for name, t in state.items() if name not in buffers},
                {name: t for name, t in state.items() if name in buffers},
            )
        except ValueError as error:
            raise UserError(f"this model cannot be captured: {error}") from error
        return cls(tuple(state), buffers, layout)

    def split(self, state: Mapping[str, Tensor]) -> tuple[Params, Params]:
        """(parameters, buffers) of some tensors; a name that the model does not have counts as a parameter.

        UserError where something is no tensor.
        """
        check_tensors(state)
        parameters = {name: t for name, t in state.items() if name not in self.buffers}
        return parameters, {name: t for name, t in state.items() if name in self.buffers}

    def check_fits(self, parameters: Mapping[str, Tensor]) -> None:
        """UserError for a tensor whose name or shape is none of the model's: no audit could take it."""
        for name, t in parameters.items():
            declared = self.layout.parameters.get(name)
            if declared is None:
                raise UserError(f"'{name}' is no tensor of the model; record what is sent of the model alone")
            if tuple(t.shape) != tuple(declared.shape):
                raise UserError(f"'{name}' has shape {list(t.shape)}, but {list(declared.shape)} in the model")

    def by_position(self, tensors: Sequence[Tensor]) -> dict[str, Tensor] | None:
        """Names for a list of tensors: as many as the state has, or as many parameters; None where they are neither."""
        parameters = [name for name in self.order if name not in self.buffers]
        for names in (self.order, parameters):
            if len(names) == len(tensors):
                return dict(zip(names, tensors, strict=True))
        return None


def check_tensors(state: Mapping[str, object]) -> None:
    """UserError where these are no tensors by name."""
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise UserError(f"give what is sent as tensors by name; this {type(state).__name__} has no names")
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise UserError(f"'{name}' is no tensor but a {type(value).__name__}; give what is sent as tensors by name")
