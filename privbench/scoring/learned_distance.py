"""LPIPS, the learned perceptual distance between images (Zhang et al., CVPR 2018, arXiv 1801.03924), where its weights are.

The package `lpips` brings the weights of its linear layers, and torch's hub cache must already hold those of AlexNet
(ImageNet): a score never downloads anything. Without them there is no LPIPS, and the record says why. Images enter at their own
size, in [-1, 1], grey ones as three equal channels; the paper's images are 64x64 and larger, so at 32x32 compare values with each
other only.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

BACKBONE_FILE = "alexnet-owt-7be5be79.pth"  # as torchvision names AlexNet's weights in the hub cache
Distance = Callable[[Tensor, Tensor], Tensor]


@cache
def missing() -> str:
    """Why LPIPS cannot be computed here, in a few words; empty when it can. Found out once per process."""
    if importlib.util.find_spec("lpips") is None:
        return "the package lpips is not installed"
    if not (Path(torch.hub.get_dir()) / "checkpoints" / BACKBONE_FILE).is_file():
        return f"the weights {BACKBONE_FILE} are not in torch's hub cache"
    try:
        _network()
    except (ImportError, RuntimeError, OSError) as error:  # such as a torchvision that was built for another torch
        return f"the package lpips does not load ({str(error).splitlines()[0]})"
    return ""


@cache
def _network() -> Distance:
    # It greets on the standard output, and torchvision warns of news of its own.
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from lpips import LPIPS

        network: Distance = LPIPS(net="alex").eval()
    return network


def lpips(images: Tensor, truth: Tensor, network: Distance | None = None) -> Tensor | None:
    """LPIPS (AlexNet, version 0.1) of each victim, mean over its batch: [V, B, C, H, W] both -> [V], or None without weights.

    0 for equal images; clipped to [0, 1] first.
    """
    if network is None:
        if missing():
            return None
        network = _network()
    values = []
    with torch.no_grad():
        for image, true in zip(images, truth, strict=True):
            restored, goal = (2 * x.clamp(0, 1).float().expand(-1, 3, -1, -1) - 1 for x in (image, true))
            values.append(network(restored, goal).double().mean())
    return torch.stack(values)
