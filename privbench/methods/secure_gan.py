"""SecureGAN: generators are added up once, then one client after another tunes the sum; discriminators never leave their clients.

Phase 1, once (round 1): every client trains its DP-GAN (privbench/methods/dp_gan.py) and sends G_i. Under secure aggregation
(`--defense secure-aggregation:ckks` or `:masks`) the server gets the weighted mean G_g alone; without it, it sees every G_i.
Phase 2, in every later round: one client receives G_g, trains it with its own D_i as before, and sends it back; the server takes it
as G_g. The message of one client has nothing to hide in: it is sent in the clear, and DP on D_i is all that protects it.

What the paper leaves open, and what is done here:
- Which client comes next. Clients take turns by their number.
- How long a turn lasts. As long as phase 1 does (`generator_epochs`).
- Whether D_i and the optimisers' moments last. They do: client i goes on with the D_i of its last turn.
- How the generators are weighted. By the number of training images, as everywhere in the suite.
- How the mean of networks that were trained apart is to generate anything. All begin with the same networks, which the server
  sends in round 1; batch-norm statistics are averaged with the weights. The first turns of phase 2 repair what averaging breaks.

The accuracy of a round is that of classifiers C(E(x)) trained on images of G_g alone, one of each client's, and tested on real
images. They are measuring instruments: nobody sends them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from privbench.methods.base import MiniBatch, Nets, Phase, RoundClock
from privbench.methods.dp_gan import DPGAN
from privbench.methods.participation import in_two_phases


@dataclass(frozen=True)
class SecureGAN(DPGAN):
    """Shares G: the mean of all clients' once, then G_g tuned by one client after another; D never leaves (SecureGAN)."""

    paper: ClassVar[str] = "SecureGAN"
    shared_parts: ClassVar[tuple[str, ...]] = ("generator",)

    def client(self) -> tuple[Phase, ...]:
        """The GAN alone."""
        return (self.gan(),)

    def measuring(self) -> tuple[Phase, ...]:
        """The classifier on images of G_g."""
        return (self.task(),)

    def participants(self, round_: int, clients: int) -> tuple[int, ...]:
        """All in round 1, then one after another by number."""
        return in_two_phases(round_, clients)

    def notes(self) -> tuple[str, ...]:
        """What the accuracy is of, and what no sum hides."""
        return (
            "secure-gan: accuracy is that of classifiers trained on images of the server's generator, tested on real ones",
            "secure-gan: from round 2 on one client sends its generator in the clear, whatever the aggregation; differential "
            "privacy of its discriminator alone protects it",
        )

    def task_loss(self, nets: Nets, batch: MiniBatch, clock: RoundClock) -> Tensor:
        """L_cls = CE(C(E(G_g(z, y))), y)."""
        generated = nets.received.generator(batch.noise["z"], batch.labels)
        logits = nets.classifier(nets.extractor(generated), batch.drawn())
        return F.cross_entropy(logits, batch.labels)
