"""Local training (LT): every client alone; nothing leaves it. The accuracy every federated method must beat."""

from dataclasses import dataclass
from typing import ClassVar

from privbench.methods.base import Method, Phase, cross_entropy_stage


@dataclass(frozen=True)
class Local(Method):
    """Each client trains alone; nothing leaves it."""

    parts: ClassVar[tuple[str, ...]] = ("extractor", "classifier")
    shared_parts: ClassVar[tuple[str, ...]] = ()

    def client(self) -> tuple[Phase, ...]:
        """L_cls over E_i and C_i."""
        return (cross_entropy_stage(),)
