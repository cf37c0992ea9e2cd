"""The generator and discriminator of FedMD-CG's comparison: fully connected, and a classifier with one output.

    G: [z; onehot(y)] -> Linear(128+Y,512) BN LeakyReLU(.2)  Linear(512,512) BN LeakyReLU(.2)  Linear(512,c*s*s) Sigmoid
    D: the backbone's classifier with output dimension 1; it does not receive the label                -> [B] LOGIT

The paper says "three fully connected layers with BatchNorm" and noise dimension 128. Its widths, the activations and where the
normalisation sits are ours: after the first two layers, as in FedCG's generator, and a sigmoid at the end, because the
extractors' features lie in (0, 1); of a backbone whose features do not, G ends as its extractor does. Initial weights are torch's
defaults.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from privbench.networks.base import Net
from privbench.networks.layers import uniform_init, within
from privbench.networks.normalisation import batch_norm
from privbench.tensors import Params

NOISE_DIM = 128
WIDTH = 512
SLOPE = 0.2


@dataclass(frozen=True)
class Generator:
    """G: noise [B, 128], labels [B] -> features [B, c, s, s] within `limits`."""

    classes: int
    shape: tuple[int, int, int]
    limits: tuple[float, float] = (0.0, 1.0)

    def init(self, rng: torch.Generator) -> tuple[Params, Params]:
        """torch's default initialisation."""
        widths = (NOISE_DIM + self.classes, WIDTH, WIDTH, prod(self.shape))
        params: Params = {}
        buffers: Params = {}
        for i in range(3):
            params[f"fc{i}.weight"] = uniform_init((widths[i + 1], widths[i]), widths[i], rng)
            params[f"fc{i}.bias"] = uniform_init((widths[i + 1],), widths[i], rng)
        for i in range(2):
            params |= {f"norm{i}.weight": torch.ones(WIDTH), f"norm{i}.bias": torch.zeros(WIDTH)}
            buffers |= {f"norm{i}.mean": torch.zeros(WIDTH), f"norm{i}.var": torch.ones(WIDTH)}
        return params, buffers

    def before_norm(self, params: Params, noise: Tensor, labels: Tensor) -> Tensor:
        """The first linear layer, up to its batch norm: [B, 512]."""
        x = torch.cat([noise, torch.eye(self.classes, dtype=noise.dtype, device=noise.device)[labels]], 1)
        return F.linear(x, params["fc0.weight"], params["fc0.bias"])

    def apply(
        self, params: Params, buffers: Params, noise: Tensor, labels: Tensor, *, train: bool
    ) -> tuple[Tensor, Params]:
        """Imitated features and the batch-norm statistics after the call."""
        x, after = self.before_norm(params, noise, labels), Params()
        for i in range(2):
            if i > 0:
                x = F.linear(x, params[f"fc{i}.weight"], params[f"fc{i}.bias"])
            x, after[f"norm{i}.mean"], after[f"norm{i}.var"] = batch_norm(
                x,
                params[f"norm{i}.weight"],
                params[f"norm{i}.bias"],
                buffers[f"norm{i}.mean"],
                buffers[f"norm{i}.var"],
                train=train,
            )
            x = F.leaky_relu(x, SLOPE)
        x = within(F.linear(x, params["fc2.weight"], params["fc2.bias"]), self.limits)
        return x.unflatten(1, self.shape), after


@dataclass(frozen=True)
class Discriminator:
    """D: features [B, c, s, s] -> logit [B] that they are real."""

    classifier: Net  # with one class

    def init(self, rng: torch.Generator) -> tuple[Params, Params]:
        """As the classifier's."""
        return self.classifier.init(rng)

    def apply(
        self, params: Params, buffers: Params, features: Tensor, labels: Tensor, *, train: bool
    ) -> tuple[Tensor, Params]:
        """Logits; the labels are not used."""
        logits, after = self.classifier.apply(params, buffers, features, train=train)
        return logits.flatten(), after

    def apply_in_turn(
        self, params: Params, buffers: Params, batches: Sequence[Tensor], labels: Tensor, *, train: bool
    ) -> tuple[tuple[Tensor, ...], Params]:
        """Logits of H batches of features, as from H calls in turn, and the state after the last."""
        logits, after = [], dict[str, Tensor]()
        for features in batches:
            output, changed = self.apply(params, buffers | after, features, labels, train=train)
            logits.append(output)
            after |= changed
        return tuple(logits), after
