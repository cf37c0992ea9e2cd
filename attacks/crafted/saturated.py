"""What a saturated classifier (classifiers.py) brings back of single images: gradients far above the noise, or none."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from attacks.common import closed_form, labels, no_information
from attacks.crafted import classifiers, gradient_bins
from attacks.features import per_image
from attacks.features.separation.row_spaces import Disaggregated
from privbench.defending import described
from privbench.types import Artifact, Knowledge, Reconstruction

LOST = 1e-6  # |dL/db| of the first layer relative to S, below which the image's class has won
ABOVE = 3.0  # the same relative to what noise alone puts there
NEGLIGIBLE = 1e-12  # standard deviation of noise relative to S, below which ranks are as without noise
# In place of the name of a defence, of noise below the signal that changes ranks all the same.
DROWNED = "drowned noise"


def above_noise(artifact: Artifact) -> Tensor:
    """The victims [n] int64 whose gradient is above the noise: all but those whose class has won."""
    first, last = artifact.model.classifier.features_layer, artifact.model.classifier.logits_layer
    size = float(artifact.weights["classifier"][f"{last}.bias"].abs().max())
    bias = artifact.gradients["classifier"][f"{first}.bias"]
    noise = math.sqrt(labels.noise_variance(artifact) * bias.shape[1])
    return torch.nonzero(bias.norm(dim=1) > max(LOST * size, ABOVE * noise))[:, 0]


def name_of_noise(artifact: Artifact) -> str:
    """What to call the defence of gradients far above its noise: none where that changes no rank."""
    last = artifact.model.classifier.logits_layer
    size = float(artifact.weights["classifier"][f"{last}.bias"].abs().max())
    return described.NONE if math.sqrt(labels.noise_variance(artifact)) <= NEGLIGIBLE * size else DROWNED


def denoised(artifact: Artifact) -> Artifact:
    """One-image gradients of a saturated classifier as they would be without noise.

    C's gradient is computed of the features in closed form and the label, which the size of the first layer's gradient reveals:
    the last layer's is not above the noise.
    """
    h = closed_form.seen(artifact)
    assert h is not None, "of one image through a linear layer, features have a closed form"
    first = f"{artifact.model.classifier.features_layer}.bias"
    every = torch.arange(artifact.weights["classifier"][first].numel(), device=h.device)
    likeliest = [gradient_bins.likeliest_label(artifact, v, one, every)[0] for v, one in enumerate(h)]
    y = torch.tensor(likeliest, device=h.device)[:, None] if artifact.labels is None else artifact.labels
    each = per_image.singles(artifact, Disaggregated(h[:, None], y, h[:, 0, 0, 0], 0))
    return replace(each, gradients=artifact.gradients | each.gradients, defense={"name": "none"})


def below_noise(artifact: Artifact, knowledge: Knowledge) -> Reconstruction:
    """Images without a gradient, which are of either class that wins: the mean of these two, or of their own where it is known."""
    if artifact.labels is not None:
        return no_information.gave_up(no_information.class_mean(artifact, knowledge))
    assert knowledge.auxiliary is not None, "the needs name auxiliary images"
    images, y = knowledge.auxiliary
    below, above = classifiers.winners_of(artifact.weights["classifier"], artifact.model.classifier.logits_layer)
    either = (y == below) | (y == above)
    mean = images[either if bool(either.any()) else slice(None)].mean(0)
    zero = torch.zeros(artifact.victims, dtype=torch.float64, device=images.device)
    x = mean.expand(artifact.victims, 1, *mean.shape).double()
    first = torch.zeros_like(artifact.client)
    return no_information.gave_up(
        Reconstruction(x, torch.full_like(first, below)[:, None], zero, zero[:, None], first, 0)
    )
