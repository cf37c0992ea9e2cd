"""What trained networks say of images, and how often that is right, in eval mode. Metrics of it: privbench/training/metrics.py."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from privbench.data.readers.resize import pixels
from privbench.methods.base import Nets
from privbench.networks.model import Model
from privbench.tensors import average
from privbench.training.engine import one_thread
from privbench.training.state import Prediction, Replica
from privbench.types import CLASSIFICATION, Images

PIXELS = 1024 * 32 * 32  # at once
DRAWS = 256  # (z, y) of the consistency loss


def predict(model: Model, replica: Replica, images: Images, device: torch.device) -> Prediction:
    """C(E(x)) of N images, a piece at a time; on one thread, as in training, so that logits do not depend on their number."""
    nets = Nets(model, replica.params, replica.buffers)
    pieces = images.images.split(max(PIXELS // model.image_size**2, 1))
    with torch.no_grad(), one_thread():
        logits = [nets.classifier(nets.extractor(pixels(x.to(device), model.image_size))).cpu() for x in pieces]
    return Prediction(torch.cat(logits), images.labels)


def right(prediction: Prediction) -> float:
    """Percent of images whose largest logit is that of their label; nan for an empty set."""
    if len(prediction.labels) == 0:
        return math.nan
    return 100 * int((prediction.logits.argmax(1) == prediction.labels).sum()) / len(prediction.labels)


def accuracy(model: Model, replica: Replica, images: Images, device: torch.device) -> float:
    """Percent of images that C(E(x)) classifies rightly; nan for an empty set."""
    return right(predict(model, replica, images, device))


def average_model(clients: Sequence[Replica], weights: Tensor) -> Replica:
    """sum_i w_i (E_i, C_i), private parts included: the network of FedMD-CG's G.acc; weights [K]."""
    return Replica(
        {part: average([client.params[part] for client in clients], weights) for part in CLASSIFICATION},
        {part: average([client.buffers[part] for client in clients], weights) for part in CLASSIFICATION},
    )


def pooled_accuracy(model: Model, replica: Replica, sets: Sequence[Images], device: torch.device) -> float:
    """Percent of the images of all sets together that C(E(x)) classifies rightly."""
    each = [predict(model, replica, images, device) for images in sets]
    return right(Prediction(torch.cat([one.logits for one in each]), torch.cat([one.labels for one in each])))


def consistency(model: Model, replica: Replica, labels: Tensor, rng: torch.Generator) -> float:
    """CE( C(G(z, y)), y ) in nats, FedMD-CG's "G+D loss", over draws z ~ N(0, I) and y from `labels` [N], a client's own.

    The paper does not say of which y: these are those of its training loss (Eq. 9). The draws depend on `rng` alone, so that
    the curve over rounds shows the networks and not the draws.
    """
    z = torch.randn(DRAWS, model.noise_dim, generator=rng).to(labels.device)
    y = labels[torch.randint(len(labels), (DRAWS,), generator=rng).to(labels.device)]
    nets = Nets(model, replica.params, replica.buffers)
    with torch.no_grad(), one_thread():
        return float(cross_entropy(nets.classifier(nets.generator(z, y)), y))
