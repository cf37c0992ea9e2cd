"""Layers written as pure functions: convolutions as matrix products, with derivatives of their own where those are quicker."""

import inspect
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from privbench.system import machine
from privbench.tensors import Params

# The ranges of features: of sigmoids, of ReLU, and of anything else.
UNIT, POSITIVE, UNBOUNDED = (0.0, 1.0), (0.0, math.inf), (-math.inf, math.inf)
# A linear layer by oneDNN; None where this torch has none.
LINEAR = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
# Where it is quicker than torch's own product, else None.
WIDE = torch.backends.cpu.get_cpu_capability() == "AVX512" and "Intel" not in machine.processor()
ONEDNN = LINEAR if WIDE else None
LARGE = 2**19  # multiplications from which on a product is quicker by oneDNN than by MKL


def conv_then_average_pool(images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolution (stride 1, no padding) followed by 2x2 average pooling, as ONE convolution of stride 2.

    Pooling is linear, so the mean of four shifted kernels does both: exact, and a third faster on a CPU.
    images [B, C, H, W], weight [c, C, k, k] -> [B, c, (H-k+1)/2, (W-k+1)/2]; H-k+1 must be even.
    """
    return F.conv2d(images, pooled_kernel(weight), bias, stride=2)


def pooled_kernel(weight: Tensor) -> Tensor:
    """The kernel [c, C, k+1, k+1] of stride 2 that is a convolution by [c, C, k, k] with 2x2 average pooling behind it."""
    shifted = (
        F.pad(weight, (0, 1, 0, 1))
        + F.pad(weight, (1, 0, 0, 1))
        + F.pad(weight, (0, 1, 1, 0))
        + F.pad(weight, (1, 0, 1, 0))
    )
    return shifted / 4


def times(x: Tensor, matrix: Tensor) -> Tensor:
    """x W: [M, K] and [K, N] -> [M, N].

    In single precision by oneDNN where the product is large and the processor has AVX-512 and is not Intel's: MKL, which torch's
    own product calls, leaves half of AMD's vectors idle. Elsewhere MKL is quicker (docs/appendix/performance_log.md).
    """
    product: Tensor = Product.apply(x, matrix) if ONEDNN else x @ matrix
    return product


class Function(torch.autograd.Function):
    """A function with a derivative of its own.

    torch binds the arguments of each call to the signature of `forward`. Read once per class, not once per call, it saves
    a twentieth of FedCG's training (docs/appendix/performance_log.md).
    """

    def __init_subclass__(cls) -> None:
        """inspect.signature returns a `__signature__` that is there."""
        super().__init_subclass__()
        cls.forward.__signature__ = inspect.signature(cls.forward)  # type: ignore[attr-defined]


class Product(Function):
    """x W with derivatives of any order, alone and under vmap."""

    @staticmethod
    def forward(x: Tensor, matrix: Tensor) -> Tensor:
        """[M, K], [K, N] -> [M, N]."""
        if len(x) * matrix.numel() >= LARGE and ONEDNN and x.dtype == torch.float32 and x.device.type == "cpu":
            result: Tensor = ONEDNN(x, matrix.mT, None, "none", [], "")
            return result
        return x @ matrix

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        """Both factors are kept."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """g W' and x' g."""
        x, matrix = ctx.saved_tensors
        over_x, over_matrix = ctx.needs_input_grad
        return times(grad, matrix.mT) if over_x else None, times(x.mT, grad) if over_matrix else None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, matrix: Tensor) -> tuple[Tensor, int]:
        """One batched product."""
        x, matrix = (
            t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip((x, matrix), in_dims, strict=True)
        )
        return x @ matrix, 0


def patches2x2(x: Tensor) -> Tensor:
    """The four pixels under a 2x2 kernel at each of its places: [B, i, s, s] -> [B, s-1, s-1, 4 i]."""
    patches: Tensor = Patches.apply(x.permute(0, 2, 3, 1))
    return patches


def as_matrix(weight: Tensor) -> Tensor:
    """[o, i, k, k] -> [o, k k i], in the order of patches; no copy where the weight lies channels last."""
    return weight.permute(0, 2, 3, 1).flatten(1)


def conv_transpose2x2(x: Tensor, weight: Tensor) -> Tensor:
    """torch.nn.functional.conv_transpose2d with a 2x2 kernel, stride 1, no padding, as one matrix product.

    x [B, i, s, s], weight [i, o, 2, 2] -> [B, o, s+1, s+1], channels last in memory. Quicker than torch's on a CPU
    (docs/appendix/performance_log.md), without a copy where both lie channels last.
    """
    batch, channels, side, _ = x.shape
    product = times(x.permute(0, 2, 3, 1).reshape(batch * side * side, channels), as_matrix(weight))
    if side == 1:  # one position: nothing overlaps
        return product.view(batch, 2, 2, -1).permute(0, 3, 1, 2)
    added: Tensor = Overlap.apply(product.view(batch, side, side, -1))
    return added.permute(0, 3, 1, 2)


class Patches(Function):
    """What a 2x2 kernel sees at each of its places: [B, s, s, i] -> [B, s-1, s-1, 4 i]; the transpose of Overlap."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        """Four copies of whole rows of channels."""
        return torch.cat([x[:, :-1, :-1], x[:, :-1, 1:], x[:, 1:, :-1], x[:, 1:, 1:]], -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        """Linear: nothing is kept."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Every pixel is given the gradients of all its places."""
        added: Tensor = Overlap.apply(grad)
        return added


class Overlap(Function):
    """Adds up 2x2 pieces where they overlap: [B, s, s, 4 o] -> [B, s+1, s+1, o]; in the order of torch's fold."""

    generate_vmap_rule = True

    @staticmethod
    def forward(pieces: Tensor) -> Tensor:
        """Two to three times as quick as fold, which walks channel by channel."""
        batch, side, _, channels = pieces.shape
        top_left, top_right, bottom_left, bottom_right = pieces.chunk(4, -1)
        whole = pieces.new_zeros(batch, side + 1, side + 1, channels // 4)
        whole[:, :-1, :-1] = top_left
        whole[:, :-1, 1:].add_(top_right)
        whole[:, 1:, :-1].add_(bottom_left)
        whole[:, 1:, 1:].add_(bottom_right)
        return whole

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        """Linear: nothing is kept."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Every piece is given the gradient of the places that it was added to."""
        patches: Tensor = Patches.apply(grad)
        return patches


def padded_conv(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """torch.nn.functional.conv2d of square images with an odd kernel, padding k // 2 and no bias.

    x [B, i, s, s], weight [o, i, k, k] -> [B, o, ceil(s / stride), ceil(s / stride)]. Where the kernel stands on one place only
    and sees the whole image, the other weights meet padding alone: one matrix product, a sixth of the time on a CPU.
    """
    side, kernel = x.shape[-1], weight.shape[-1]
    padding = kernel // 2
    if side + 2 * padding - kernel < stride and side + padding <= kernel:
        seen = weight[:, :, padding : padding + side, padding : padding + side]
        return (x.flatten(1) @ seen.flatten(1).T)[:, :, None, None]
    return F.conv2d(x, weight, stride=stride, padding=padding)


def named_linear(params: Params, name: str, x: Tensor) -> Tensor:
    """The linear layer `name` of a network: x [B, n] -> [B, m]; its bias may come one per image, [B, m]."""
    weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
    return F.linear(x, weight, bias) if bias.ndim == 1 else F.linear(x, weight) + bias


def within(x: Tensor, limits: tuple[float, float]) -> Tensor:
    """x through the activation whose values are those between `limits`: a sigmoid, ReLU, or nothing."""
    if limits == UNIT:
        return torch.sigmoid(x)
    return F.relu(x) if limits == POSITIVE else x


# Where networks have shapes alone (torch.device("meta")), `rng` is None: to draw and to scale there would import torch's compiler.


def uniform_init(shape: tuple[int, ...], fan_in: int, rng: torch.Generator | None) -> Tensor:
    """torch's default for linear and convolution layers: uniform in +-1/sqrt(fan_in)."""
    if rng is None:
        return torch.empty(shape)
    bound = 1 / math.sqrt(fan_in)
    return (2 * torch.rand(shape, generator=rng) - 1) * bound


def normal_init(
    shape: tuple[int, ...], rng: torch.Generator | None, deviation: float = 1.0, mean: float = 0.0
) -> Tensor:
    """Normal of that deviation around a mean."""
    return torch.empty(shape) if rng is None else mean + deviation * torch.randn(shape, generator=rng)


def direction_init(width: int, rng: torch.Generator | None) -> Tensor:
    """A direction of length 1, uniform on the sphere: [width]."""
    return torch.empty(width) if rng is None else F.normalize(torch.randn(width, generator=rng), dim=0)
