"""FedPer: the base layers are averaged, the classifier stays personal.

Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers, arXiv 1912.00818. The base is the
extractor of FedCG's split; the paper's own splits lie deeper in other networks.
"""

from dataclasses import dataclass
from typing import ClassVar

from privbench.methods.base import Method, Phase, cross_entropy_stage


@dataclass(frozen=True)
class FedPer(Method):
    """Shares E; the server averages it, sum_i w_i E_i (Arivazhagan et al., arXiv 1912.00818)."""

    paper: ClassVar[str] = "Arivazhagan et al., 2019, arXiv 1912.00818"
    parts: ClassVar[tuple[str, ...]] = ("extractor", "classifier")
    shared_parts: ClassVar[tuple[str, ...]] = ("extractor",)

    def client(self) -> tuple[Phase, ...]:
        """L_cls over E_i and C_i."""
        return (cross_entropy_stage(),)
