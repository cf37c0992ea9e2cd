"""NFL-CGAN: FedCG's stages and losses with dropout before the classifier and a schedule of its own.

The NFL-CGAN paper prints the same structure as FedCG (privbench/methods/fedcg.py, whose losses and readings hold here too):
    L_task = CE(C_i(dropout(E_i(x))), y) + alpha ||E_i(x) - G_g(z,y)||^2,  L_disc and L_gen (FedCG Eq. 4),  L_KL (FedCG Eq. 5-6)

Its settings: dropout 0.2 before the classifier, 10 local epochs, batch 8 (the schedule of the paper preset), backbones LeNet-5
and ResNet-18. Readings of silent points:
- alpha rises from 0 to 1 as FedCG's gamma does, over `ramp_rounds` rounds; the paper gives no formula.
- Dropout is drawn anew in every step that trains C: on real features in L_cls, on imitated ones in L_KL. An attacked gradient is
  taken in train mode like every gradient of training, with a mask that the server does not know.
- The mode-seeking weight `diversity` is FedCG's 0.2.
"""

from dataclasses import dataclass

from privbench.methods.fedcg import FedCG


@dataclass(frozen=True)
class NFLCGAN(FedCG):
    """Shares C and G; E and D never leave the client."""

    dropout: float = 0.2
