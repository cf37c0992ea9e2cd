"""The features of one image in closed form: for a linear layer z = W h + b, dL/dW_j = d_j h' and dL/db_j = d_j.

So h = dL/dW_j / dL/db_j for every row j with d_j != 0 (Phong et al. 2017; Geiping et al. 2020, Proposition 3.1). Noise on
the gradient calls for all rows at once: the least-squares h = sum_j d_j dL/dW_j / sum_j d_j^2.
"""

import torch
from torch import Tensor

from attacks import labels
from privbench.nets import LinearClassifier
from privbench.types import Artifact

SMALLEST = {torch.float32: 1e-30, torch.float64: 1e-300}  # in place of a ||d||^2 of zero


def closed_form(artifact: Artifact) -> Tensor | None:
    """h [V, c, s, s] of one-image gradients; None for larger batches, whose gradient only spans the features.

    None also where no linear layer takes the features: ResNet-18's classifier begins with convolutions.
    """
    if artifact.batch_size != 1 or not isinstance(artifact.model.classifier, LinearClassifier):
        return None
    gradient = artifact.gradients["classifier"]
    h = least_squares(gradient["fc1.weight"].double(), gradient["fc1.bias"].double())
    return h.unflatten(1, artifact.model.feature_shape)


def least_squares(rows: Tensor, bias: Tensor) -> Tensor:
    """sum_j d_j dL/dW_j / sum_j d_j^2, [V, n], from dL/dW [V, m, n] and d = dL/db [V, m]."""
    energy = bias.square().sum(1, keepdim=True).clamp_min(SMALLEST[bias.dtype])
    return (bias[:, :, None] * rows).sum(1) / energy


def noise_variance(artifact: Artifact) -> Tensor | None:
    """The variance [V] that the defence's noise gives each closed-form feature, sigma^2 / ||d||^2; None without noise.

    ||d||^2 is estimated from the noisy bias gradient, whose own noise energy is taken off.
    """
    variance = labels.noise_variance(artifact)
    if not variance:
        return None
    bias = artifact.gradients["classifier"]["fc1.bias"].double()
    signal = (bias.square().sum(1) - variance * bias.shape[1]).clamp_min(0.05 * variance * bias.shape[1])
    return variance / signal
