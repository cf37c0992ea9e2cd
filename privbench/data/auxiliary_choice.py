"""Which auxiliary images an attacker has, as options and specifications write it: "same", "same:0.1", "digits", "folder:PATH:0.01".

"same" is the attacked data set. Which of a data set's images these are says privbench/observation/knowledge.py.
"""

from __future__ import annotations

import math

from privbench import registry
from privbench.errors import UserError

SAME = "same"


def parsed(text: str) -> tuple[str, float]:
    """(data set, share) of a choice; UserError for an unknown name or share."""
    name, _, last = text.rpartition(":")
    try:
        share = float(last)
    except ValueError:
        name, share = text, 1.0
    if not name or not (math.isfinite(share) and 0 < share <= 1):
        raise UserError(f"--auxiliary takes a data set and a share above 0 and up to 1, e.g. digits:0.1, not '{text}'")
    return name if name == SAME else registry.dataset(name), share


def canonical(text: str) -> str:
    """The one way in which a specification writes a choice: no share where it is all of them."""
    name, share = parsed(text)
    return name if share == 1 else f"{name}:{share:g}"
