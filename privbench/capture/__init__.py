"""What really leaves a client, recorded from one's own training loop (docs/capture.md).

Needs torch (with its filelock), safetensors and NumPy alone. May import system/, tensors and errors.

`privbench.capture(model, folder)` is short for `privbench.capture.Capture(model, folder)`:
this module can be called, since both that and `privbench.capture.flower` are names that users expect.
"""

import sys
from pathlib import Path
from types import ModuleType

from torch.nn import Module

from privbench.capture.messages import BroadcastModel, CapturedRound, LocalWork, Message, TruthOfMessage
from privbench.capture.reading import Captured, read
from privbench.capture.recorder import Capture
from privbench.capture.truth import read_truth

__all__ = [
    "BroadcastModel", "Capture", "Captured", "CapturedRound", "LocalWork", "Message", "TruthOfMessage", "read", "read_truth",
]  # fmt: skip


class _CallableModule(ModuleType):
    def __call__(self, model: Module, folder: str | Path, *, truth: bool = False, append: bool = False) -> Capture:
        """As `Capture`."""
        return Capture(model, folder, truth=truth, append=append)


sys.modules[__name__].__class__ = _CallableModule
