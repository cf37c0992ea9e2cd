"""FedAvg: every client trains the whole network, the server averages it.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized
Data, AISTATS 2017, arXiv 1602.05629.
"""

from dataclasses import dataclass
from typing import ClassVar

from privbench.methods.base import Method, Phase, cross_entropy_stage


@dataclass(frozen=True)
class FedAvg(Method):
    """Shares E and C; the server averages both, sum_i w_i (E_i, C_i) (McMahan et al., AISTATS 2017)."""

    paper: ClassVar[str] = "McMahan et al., AISTATS 2017, arXiv 1602.05629"
    parts: ClassVar[tuple[str, ...]] = ("extractor", "classifier")
    shared_parts: ClassVar[tuple[str, ...]] = ("extractor", "classifier")

    def client(self) -> tuple[Phase, ...]:
        """L_cls over E_i and C_i."""
        return (cross_entropy_stage(),)
