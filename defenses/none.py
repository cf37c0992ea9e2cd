"""No defence: what the method itself sends."""

from dataclasses import dataclass
from typing import Any

from privbench.defense import Defense


@dataclass(frozen=True)
class NoDefense(Defense):
    """Sends what the method sends, unchanged; no guarantee."""

    def describe(self) -> dict[str, Any]:
        """Name only."""
        return {"name": "none"}
