"""A network as a chain of layers that can be turned round: affine maps, and activations that have an inverse.

One call is recorded as torch executes it, so that it does not matter how the network is written. Each value that depends on the
image has to come from one other such value: by an affine map (convolution, linear layer, average pooling, a shift, a scale, batch
norm by running statistics) or by an activation of ACTIVATIONS. Anything else ends the chain, and `chain_of` says what.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from privbench.errors import UserError
from privbench.networks.base import Net
from privbench.system.file_headers import short
from privbench.tensors import Params

EDGE = 1e-12  # from the ends of an activation's range, where its inverse is infinite

# Operators of torch.ops.aten, without their overloads.
ORDER = frozenset({
    "view", "_unsafe_view", "reshape", "clone", "alias", "detach", "squeeze", "unsqueeze", "expand", "_to_copy",
})  # fmt: skip
BATCH_NORM = "native_batch_norm"
AFFINE = ORDER | {
    BATCH_NORM, "convolution", "addmm", "mm", "bmm", "t", "transpose", "permute", "avg_pool2d", "_adaptive_avg_pool2d", "mean",
    "sum", "constant_pad_nd", "reflection_pad2d", "replication_pad2d", "add", "sub", "rsub", "mul", "div", "neg", "slice",
    "select", "flip", "upsample_nearest2d", "upsample_bilinear2d",
}  # fmt: skip
LOST = {
    "relu": "relu keeps nothing of what is below 0",
    "max_pool2d_with_indices": "max-pooling keeps one number of each window",
    "hardtanh": "hardtanh keeps nothing of what lies beyond its ends",
}


class Activation(NamedTuple):
    """An increasing function of one number."""

    forward: Callable[[Tensor], Tensor]
    inverse: Callable[[Tensor], Tensor]  # of what lies outside its range: of the range's end
    # (z, width) -> the same with its kink rounded over so wide a stretch of z; None where there is no kink.
    rounded: Callable[[Tensor, Tensor], Tensor] | None = None


class Block(NamedTuple):
    """z = A(a), affine, and then an activation, or none."""

    affine: Callable[[Params, Tensor], Tensor]
    names: tuple[str, ...]  # of the parameters in it
    activation: Activation | None


def _within(a: Tensor, low: float, high: float) -> Tensor:
    return a.clamp(low + EDGE, high - EDGE)


def _sigmoid() -> Activation:
    return Activation(torch.sigmoid, lambda a: torch.logit(_within(a, 0, 1)))


def _tanh() -> Activation:
    return Activation(torch.tanh, lambda a: torch.atanh(_within(a, -1, 1)))


def _leaky_relu(slope: float = 0.01) -> Activation | None:
    if slope <= 0:
        return None

    def rounded(z: Tensor, width: Tensor) -> Tensor:
        return slope * z + (1 - slope) * width * F.softplus(z / width)

    return Activation(lambda z: F.leaky_relu(z, slope), lambda a: torch.where(a < 0, a / slope, a), rounded)


def _elu(alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Activation | None:
    if min(alpha, scale, input_scale) <= 0:
        return None

    def inverse(a: Tensor) -> Tensor:
        below = torch.log1p((a / (scale * alpha)).clamp(EDGE - 1, 0)) / input_scale
        return torch.where(a < 0, below, a / scale)

    def forward(z: Tensor) -> Tensor:
        return scale * torch.where(z > 0, z, alpha * torch.expm1(input_scale * z.clamp_max(0)))

    return Activation(forward, inverse)


def _softplus(beta: float = 1.0, threshold: float = 20.0) -> Activation:
    def inverse(a: Tensor) -> Tensor:
        scaled = (beta * a).clamp_min(EDGE)
        return torch.where(scaled > threshold, scaled, scaled + torch.log(-torch.expm1(-scaled))) / beta

    return Activation(lambda z: F.softplus(z, beta, threshold), inverse)


def _celu(alpha: float = 1.0) -> Activation | None:
    return _elu(alpha, 1.0, 1 / alpha)


ACTIVATIONS: dict[str, Callable[..., Activation | None]] = {
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "leaky_relu": _leaky_relu,
    "elu": _elu,
    "celu": _celu,
    "softplus": _softplus,
}


def chain_of(net: Net, params: Params, buffers: Params, shape: Sequence[int], *, train: bool) -> list[Block]:
    """The blocks of a network for single images [1, *shape]; the first takes the image, the last may have no activation.

    UserError where the network is no such chain. What only reorders the numbers behind the last activation is left out.
    """
    image = next(iter(params.values())).new_full((1, *shape), 0.5)
    names = list(params)

    def whole(values: list[Tensor], x: Tensor) -> Tensor:
        return net.apply(dict(zip(names, values, strict=True)), buffers, x, train=train)[0]

    # It imports much, which few commands need.
    from torch.fx.experimental.proxy_tensor import make_fx

    try:
        with torch.no_grad():
            graph = make_fx(torch.func.functionalize(whole))(list(params.values()), image)
    except Exception as error:
        raise _ended(f"its call cannot be recorded ({short(error)})") from error
    graph.graph.eliminate_dead_code()
    return _Walk(graph, names).blocks()


class _Walk:
    """The recorded operators in order, sorted into blocks."""

    def __init__(self, graph: fx.GraphModule, names: list[str]) -> None:
        self.graph, self.names = graph, names
        inputs = [n for n in graph.graph.nodes if n.op == "placeholder"]
        self.parameters, self.image = dict(zip(inputs[:-1], names, strict=True)), inputs[-1]
        self.of_image: set[fx.Node] = {self.image}
        self.beside: list[fx.Node] = []  # what is made of parameters and constants alone

    def blocks(self) -> list[Block]:
        made: list[Block] = []
        first, under_way = self.image, list[fx.Node]()
        latest = self.image
        for node in (n for n in self.graph.graph.nodes if n.op not in ("placeholder", "output")):
            sources = [n for n in node.all_input_nodes if n in self.of_image]
            if not sources:
                self.beside.append(node)
                continue
            self.of_image.add(node)
            name = _name(node)
            if sources != [latest]:
                raise _ended(
                    f"{name} combines several values of the image, as residual sums and statistics of a batch do"
                )
            if name in ACTIVATIONS:
                activation = ACTIVATIONS[name](*node.args[1:], **node.kwargs)
                if activation is None:
                    raise _ended(f"{name} of these settings has no inverse")
                made.append(self._block(first, under_way, activation))
                first, under_way = node, []
            elif name in AFFINE and _is_affine(name, node, latest):
                under_way.append(node)
            else:
                raise _ended(LOST.get(name, f"{name} is neither affine nor an activation with an inverse"))
            latest = node
        if any(_name(node) not in ORDER for node in under_way) or not made:
            made.append(self._block(first, under_way, None))
        named = [name for block in made for name in block.names]
        if tied := [name for name in named if named.count(name) > 1]:
            raise _ended(f"{tied[0].rpartition('module.')[2]} belongs to several layers, whose gradients are summed")
        return made

    def _block(self, first: fx.Node, nodes: list[fx.Node], activation: Activation | None) -> Block:
        beside, graph, parameters = list(self.beside), self.graph, self.parameters

        def affine(params: Params, a: Tensor) -> Tensor:
            values: dict[fx.Node, Any] = {node: params[name] for node, name in parameters.items() if name in params}
            values[first] = a
            value: Any = a
            for node in (*beside, *nodes):
                value = _run(graph, node, values)
            return value if nodes else a

        return Block(affine, self._used(nodes), activation)

    def _used(self, nodes: list[fx.Node]) -> tuple[str, ...]:
        """The parameters that values are made of."""
        reached, wave = set[fx.Node](), list(nodes)
        while wave:
            for node in wave.pop().all_input_nodes:
                if node not in reached and node not in self.of_image:
                    reached.add(node)
                    wave.append(node)
        return tuple(name for node, name in self.parameters.items() if node in reached)


def _run(graph: fx.GraphModule, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    if node.op == "get_attr":
        values[node] = getattr(graph, str(node.target))
    elif all(n in values for n in node.all_input_nodes):
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: values[n])
        operation: Callable[..., Any] = node.target  # type: ignore[assignment]
        values[node] = operation(*args, **kwargs)
    return values.get(node)


def _name(node: fx.Node) -> str:
    """The operator without its overload; what takes the first of several results is called "alias"."""
    if node.target is operator.getitem:
        return "alias" if node.args[1] == 0 else "getitem"
    return str(node.target).removeprefix("aten.").partition(".")[0]


def _is_affine(name: str, node: fx.Node, image: fx.Node) -> bool:
    """Whether a value enters once, and not as a divisor."""
    if name == BATCH_NORM and node.args[5]:
        raise _ended("batch norm in train mode takes its statistics from the batch")
    where = [n for n, argument in enumerate(node.args) if argument is image]
    return len(where) == 1 and not (name == "div" and where != [0])


def _ended(reason: str) -> UserError:
    return UserError(f"not applicable: the extractor is no chain of layers that have an inverse, as {reason}")
