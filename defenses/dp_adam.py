"""DP-Adam: the gradient of DP-SGD enters the moments of Adam (SecureGAN; equations.md, section 5).

    g~ = (1/L) ( sum_i g_i / max(1, ||g_i||_2 / C) + N(0, sigma^2 C^2 I) );   Adam's moments on g~
The moments are made of what is private already, so that the guarantee is that of DP-SGD with the same noise. The paper prints no
bias correction; `bias_correction` adds the usual one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from defenses.dp_sgd import DPSGD


@dataclass(frozen=True)
class DPAdam(DPSGD):
    """DP-SGD's gradient with Adam's step, for the same guarantee per image (SecureGAN)."""

    name: ClassVar[str] = "dp-adam"

    # Of 0.003, 0.01 and 0.03 the best at epsilon 8 on `digits` (FedAvg, quick preset, seed 0): 8, 12 and 77%.
    lr: float = 0.03
    bias_correction: bool = True  # the printed form has none

    def optimiser(self, setting: Mapping[str, Any]) -> Mapping[str, Any]:
        """Adam with the schedule's weight decay, and its coefficients where it has them."""
        coefficients = {name: setting[name] for name in ("weight_decay", "beta1", "beta2") if name in setting}
        return {"lr": self.lr, **coefficients} | ({} if self.bias_correction else {"bias_correction": False})
