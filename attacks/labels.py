"""Labels in closed form from the gradient of the last layer's bias, dL/db_c = mean over images of (p_c - 1[c = y]).

One image: only its own class has a negative entry (iDLG, Zhao et al. 2020, arXiv 2001.02610). Several images: the sum of
the entries times B is (expected count by the model) - (true count) per class; with p taken as uniform over the classes, the
counts follow by rounding under the constraint that they add up to B (in the manner of iLRG, Ma et al., ICLR 2023). That is
exact when every p_c is near 1/Y, as at the untrained model, and an estimate elsewhere.
"""

import torch
from torch import Tensor

from privbench.types import Artifact


def recover(artifact: Artifact) -> Tensor:
    """Known or recovered labels [V, B] int64, in ascending order within a batch when recovered."""
    if artifact.labels is not None:
        return artifact.labels
    bias = artifact.gradients["classifier"][f"{artifact.model.classifier.logits_layer}.bias"]
    if artifact.batch_size == 1:
        return bias.argmin(1, keepdim=True)  # under noise: the most negative entry
    return torch.stack([_counts_to_labels(one, artifact.batch_size) for one in bias])


def _counts_to_labels(bias: Tensor, batch: int) -> Tensor:
    """Largest-remainder rounding of B (1/Y - dL/db_c) to counts that add up to B."""
    expected = (batch / len(bias) - batch * bias).clamp_min(0)
    expected = expected * batch / expected.sum().clamp_min(1e-12)
    counts = expected.floor().long()
    rest = torch.argsort(expected - counts, descending=True)[: batch - int(counts.sum())]
    counts[rest] += 1
    return torch.repeat_interleave(torch.arange(len(bias), device=bias.device), counts)
