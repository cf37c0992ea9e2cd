"""torchvision's downloads, imported only when one is needed."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Callable
from typing import Any

import torch

from privbench.errors import UserError

TIMEOUT_SECONDS = 10.0  # of each connection and each read, not of the whole download


# Signatures of the compiled operators that torchvision's import refers to without looking whether they are there.
OPERATORS = {name: f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms")}
_signatures: list[torch.library.Library] = []  # a collected handle would unregister its operator


def torchvision_datasets() -> Any:
    """torchvision.datasets, also beside a CPU build of torch, where torchvision's compiled operators do not load.

    Its extension is built for CUDA and is skipped silently when it does not load; the import then stops at the first
    operator that is not registered. Data sets need no operator, so the bare signatures are enough for it to succeed.
    """
    for name, signature in OPERATORS.items():
        try:
            return importlib.import_module("torchvision.datasets")
        except RuntimeError as error:
            if f"torchvision::{name} does not exist" not in str(error):
                raise
            library = torch.library.Library("torchvision", "FRAGMENT")
            library.define(signature)
            _signatures.append(library)
    return importlib.import_module("torchvision.datasets")


def attempt(name: str, download: Callable[[Any], object]) -> None:
    """Runs a torchvision download; whatever goes wrong becomes one line."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT_SECONDS)
    try:
        download(torchvision_datasets())
    except Exception as error:  # a network has many ways to fail, and none of them is worth a traceback
        line = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"{name} could not be downloaded: {line}") from error
    finally:
        socket.setdefaulttimeout(before)
