"""privbench: train a federated method to the end, attack exactly what its server sees, and score the result.

`privbench.attack`, `audit`, `table`, `study`, `train`, `report`, `compare` and `load` do what the commands do (privbench/api.py).
`privbench.capture` records a user's own training loop (privbench/capture/). Below cli/, api.py and auditing/ nothing imports
attacks/, defenses/ or reports/: plug-ins are resolved by name (privbench/registry.py).
"""

import logging
from typing import Any

from privbench.system import printable
from privbench.version import __version__

# Messages name files and texts of other people's; here, so that it holds wherever they are printed, also without the command line.
logging.getLogger("privbench").addFilter(printable.legible)

__all__ = [
    "Results",
    "__version__",
    "attack",
    "audit",
    "capture",
    "compare",
    "load",
    "report",
    "study",
    "table",
    "train",
]


def __getattr__(name: str) -> Any:
    """The functions of privbench/api.py, imported when first asked for: the command line's --help must not wait for torch.

    And privbench/capture/, which must not wait for the rest: other frameworks want other versions of what that needs.
    """
    if name.startswith("_") or name not in __all__:
        raise AttributeError(f"module 'privbench' has no attribute '{name}'")
    if name == "capture":
        import privbench.capture as recording

        return recording
    from privbench import api

    return getattr(api, name)
