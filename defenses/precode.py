"""PRECODE: a variational bottleneck in the network (Scheliga, Maeder, Seeland, WACV 2022, arXiv 2108.04725).

    [mu, log sigma^2] = V h + v    z = mu + sigma eps, eps ~ N(0, I)    loss + beta KL(N(mu, sigma^2) || N(0, I))
The sampled z makes the gradients of the bottleneck and of all layers behind it random (privbench/networks/bottleneck.py). The
client keeps eps to itself. Evaluation takes mu.

The paper puts the bottleneck before the output layer. Here it stands between extractor and classifier. There the methods of this
suite split a network, and everything that a client sends of a private extractor's features then lies behind it; before the output
layer, C's first layer would show h in closed form as if there were no defence. V, v and the decoder are parameters of C and are
shared where C is.

It guarantees nothing. V is linear, as in the authors' code, and its gradient is d h': for one image h follows in closed form
(attacks/common/closed_form.py), whatever eps was. A classifier that begins with convolutions shows no such h without it.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from privbench.defense import Defense, Place
from privbench.errors import UserError
from privbench.networks.model import Model

LARGEST = 4_096  # of the bottleneck


@dataclass(frozen=True)
class Precode(Defense):
    """A variational bottleneck between extractor and classifier (PRECODE, Scheliga et al., WACV 2022); no guarantee."""

    size: int = 256  # k
    beta: float = 1e-3  # of the KL divergence

    def __post_init__(self) -> None:
        """Refuses a size and a weight that are none."""
        if not 1 <= self.size <= LARGEST:
            raise UserError(f"the defence precode needs a size from 1 to {LARGEST}, but {self.size} was given")
        if not (math.isfinite(self.beta) and self.beta >= 0):
            raise UserError(f"the defence precode needs a beta of at least 0, but {self.beta:g} was given")

    @property
    def places(self) -> frozenset[Place]:
        """In the networks."""
        return frozenset({"network"})

    def network(self, model: Model) -> Model:
        """With a bottleneck."""
        return replace(model, bottleneck=self.size, kl_weight=self.beta)

    def describe(self) -> dict[str, Any]:
        """The attacker knows the bottleneck, as part of the networks; its noise is secret."""
        return {"name": "precode", "bottleneck": self.size, "beta": self.beta}
