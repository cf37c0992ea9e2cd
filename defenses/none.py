"""No defence: what the method itself sends."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from privbench.tensors import Params


@dataclass(frozen=True)
class NoDefense:
    """Sends what the method sends, unchanged."""

    where: ClassVar[str] = "never"

    def protect(self, tensors: Params, rng: torch.Generator) -> Params:
        """The tensors, unchanged."""
        return tensors

    def describe(self) -> dict[str, Any]:
        """Name only."""
        return {"name": "none"}
