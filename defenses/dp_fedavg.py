"""DP-FedAvg: a client's whole update is clipped and noised (McMahan, Ramage, Talwar, Zhang, ICLR 2018, arXiv 1710.06963).

    update / max(1, ||update||_2 / C) + N(0, sigma^2 C^2 I),   one norm over all parts that the client sends
In the paper a trusted server adds the noise to the sum. Here the server is the attacker, so each client adds its own (the local
model): the guarantee is for the whole client, against the server, and needs more noise for the same epsilon. No round draws its
clients at random, so that no sampling amplifies it.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from defenses.common import clipping, mechanisms
from defenses.common.accounting import Releases
from defenses.common.gaussian_mechanism import GaussianMechanism
from privbench.defense import Facts, Guarantee, Place
from privbench.tensors import Parts


@dataclass(frozen=True)
class DPFedAvg(GaussianMechanism):
    """Clips and noises what a client sends, for a guarantee per client (McMahan et al., ICLR 2018; noise added by the client)."""

    name: ClassVar[str] = "dp-fedavg"

    @property
    def places(self) -> frozenset[Place]:
        """On what is sent."""
        return frozenset({"message"})

    def message(self, tensors: Parts, rng: torch.Generator) -> Parts:
        """The clipped message + N(0, sigma^2 C^2)."""
        return clipping.noised(clipping.clipped(tensors, self.clip), self.sigma * self.clip, rng)

    def releases(self, facts: Facts, noise: float) -> tuple[Releases, ...]:
        """One a round."""
        return mechanisms.by_rounds(facts, noise)

    def guarantee(self, facts: Facts) -> Guarantee | None:
        """For the whole client, over the rounds that there were."""
        return mechanisms.of_client(facts, self.sigma, facts.rounds, self.delta)

    def noise_variance(self, batch_size: int) -> float:
        """(sigma C)^2, whatever the batch."""
        return (self.sigma * self.clip) ** 2

    def describe(self) -> dict[str, Any]:
        """The attacker knows the clip and the noise."""
        return {"name": self.name, "noise": self.sigma, "clip": self.clip, "clips": "message", "where": "update"}
