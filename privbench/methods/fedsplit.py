"""FedSplit: the extractor stays private, the classifier is averaged (FedCG, section 4; the same as LG-FedAvg).

Liang et al.: Think Locally, Act Globally: Federated Learning with Local and Global Representations, arXiv 2001.01523.
"""

from dataclasses import dataclass
from typing import ClassVar

from privbench.methods.base import Method, Phase, cross_entropy_stage


@dataclass(frozen=True)
class FedSplit(Method):
    """Shares C; the server averages it, sum_i w_i C_i (FedCG, section 4; LG-FedAvg: Liang et al., arXiv 2001.01523)."""

    paper: ClassVar[str] = "Liang et al., 2020, arXiv 2001.01523"
    parts: ClassVar[tuple[str, ...]] = ("extractor", "classifier")
    shared_parts: ClassVar[tuple[str, ...]] = ("classifier",)

    def client(self) -> tuple[Phase, ...]:
        """L_cls over E_i and C_i."""
        return (cross_entropy_stage(),)
