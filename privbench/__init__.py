"""privbench: train a federated method to the end, attack exactly what its server sees, and score the result.

`privbench.attack`, `table`, `study`, `train` and `load` do what the commands do (privbench/api.py). Below cli/ and api.py
nothing imports attacks/, defenses/ or reports/: plug-ins are resolved by name (privbench/registry.py).
"""

import logging
from importlib import import_module
from typing import Any

from privbench.system import printable
from privbench.version import __version__

# Messages name files and texts of other people's; here, so that it holds wherever they are printed, also without the command line.
logging.getLogger("privbench").addFilter(printable.legible)

__all__ = ["Results", "__version__", "attack", "load", "study", "table", "train"]


def __getattr__(name: str) -> Any:
    """The functions of privbench/api.py, imported when first asked for: the command line's --help must not wait for torch."""
    if name.startswith("_") or name not in __all__:
        raise AttributeError(f"module 'privbench' has no attribute '{name}'")
    return getattr(import_module("privbench.api"), name)
