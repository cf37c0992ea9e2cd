"""iDLG as published: the label in closed form, then Eq. 7 over the image alone, from normal noise.

Zhao, Mopuri, Bilen: iDLG: Improved Deep Leakage from Gradients, 2020, arXiv 2001.02610. The only negative entry of the last
bias's gradient p_c - 1[c = y] is the label's (attacks/common/labels.py); x~ starts from N(0, 1) and descends by 300 steps of
L-BFGS, as in the released code. Deviations: the line search of attacks/common/lbfgs.py in place of a fixed step of 1; double
precision, for in single precision the end of this descent depends on rounding, and so on which victims share a batch; batches,
whose labels are counted.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from attacks.common import batched, lbfgs, problem
from attacks.dlg import equation_7
from privbench.hyperparameters import Count
from privbench.types import Artifact, Knowledge, Presets, Progress, Reconstruction, no_progress


@dataclass(frozen=True)
class IDLG:
    """The label in closed form, then Eq. 7 from normal noise (Zhao et al. 2020, arXiv 2001.02610)."""

    steps: Count = 300
    restarts: Count = 1

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier"})
    uses: ClassVar[frozenset[str]] = frozenset({"gradient:extractor"})
    knowledge: ClassVar[str] = "gradient"
    rung: ClassVar[str] = "L1"
    presets: ClassVar[Presets] = {"smoke": {"steps": 5}, "quick": {"steps": 150}, "quick-slow": {"steps": 100}}

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """L-BFGS from normal noise; of several restarts the one with the lowest Eq. 7."""
        posed = problem.make(artifact, seed)

        def objective(x: Tensor, data: dict[str, Tensor]) -> Tensor:
            return equation_7(posed, x, data["labels"], data)

        start = problem.starts(artifact, "normal", self.restarts, seed)
        data = problem.data(posed, self.restarts)
        end = lbfgs.minimise(objective, start, data, steps=self.steps, progress=progress, what="iDLG")
        return batched.reconstruction(end, self.restarts, posed.labels)
