"""NFL-CGAN: FedCG's stages and losses with dropout before the classifier of its CNN and a schedule of its own.

The NFL-CGAN paper prints the same structure as FedCG (privbench/methods/fedcg.py, whose losses and readings hold here too):
    L_task = CE(C_i(dropout(E_i(x))), y) + alpha ||E_i(x) - G_g(z,y)||^2,  L_disc and L_gen (FedCG Eq. 4),  L_KL (FedCG Eq. 5-6)

Its settings: 10 local epochs, batch 8 (the schedule of the paper preset), a CNN like LeNet-5 with dropout 0.2 before its classifier
(Table 1), and ResNet-18 without (Table 2). The CNN is the network of every method that the paper compares, so that there the
baselines have `dropout=0.2` too. Readings of silent points:
- alpha rises from 0 to 1 as FedCG's gamma does, over `ramp_rounds` rounds; the paper gives no formula.
- Dropout is drawn anew in every step that trains C: on real features in L_cls, on imitated ones in L_KL. An attacked gradient is
  taken in train mode like every gradient of training, with a mask that the server does not know.
- The mode-seeking weight `diversity` is FedCG's 0.2.
- Batch 8 is the server's as well, whose 2,000 steps are FedCG's. So FedDF sees half of its 32,000 public images in a round.
- Weight decay 1e-4 is the task optimiser's. Generator, discriminator and server have FedCG's optimisers, without decay.
  FedMD-CG's protocol, whose text is as short, decays all three.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from privbench.methods.fedcg import FedCG


@dataclass(frozen=True)
class NFLCGAN(FedCG):
    """As FedCG, with dropout before LeNet-5's classifier and another schedule (Huang et al., Electronics 2024)."""

    paper: ClassVar[str] = "Huang et al., Electronics 2024"
    usual_dropout: ClassVar[Mapping[str, float]] = {"lenet5": 0.2}  # Table 1; Table 2, of ResNet-18, has none
