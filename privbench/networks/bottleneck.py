"""A variational bottleneck in front of a classifier (PRECODE: Scheliga, Maeder, Seeland, WACV 2022, arXiv 2108.04725).

    [mu, log sigma^2] = V h + v    z = mu + sigma eps, eps ~ N(0, I)    C'(h) = C(W z + w)
V maps the n features to 2 k numbers and W maps k back to n. Both are linear, as in the authors' code, which is where k = 256 and
beta = 0.001 are from. While the classifier is trained, its loss gains beta KL(N(mu, sigma^2) || N(0, I)), the mean over images of
    KL = 1/2 sum_k (mu^2 + sigma^2 - 1 - log sigma^2)
In evaluation z is mu.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from privbench.networks.base import Classifier, LinearClassifier
from privbench.networks.layers import named_linear, uniform_init
from privbench.tensors import Params

ENCODER, DECODER = "bottleneck.encoder", "bottleneck.decoder"


@dataclass(frozen=True)
class Bottleneck:
    """C': the bottleneck and the classifier behind it, one part with the parameters of both."""

    behind: Classifier
    feature_shape: tuple[int, int, int]
    size: int  # k

    @property
    def features_layer(self) -> str | None:
        """The encoder, whatever the classifier behind it begins with."""
        return ENCODER

    @property
    def logits_layer(self) -> str:
        """Of the classifier behind."""
        return self.behind.logits_layer

    def init(self, rng: torch.Generator) -> tuple[Params, Params]:
        """That of the classifier behind, then torch's default for the two linear layers."""
        params, buffers = self.behind.init(rng)
        features = math.prod(self.feature_shape)
        for name, fan_in, fan_out in ((ENCODER, features, 2 * self.size), (DECODER, self.size, features)):
            params[f"{name}.weight"] = uniform_init((fan_out, fan_in), fan_in, rng)
            params[f"{name}.bias"] = uniform_init((fan_out,), fan_in, rng)
        return params, buffers

    def encoded(self, params: Params, features: Tensor) -> tuple[Tensor, Tensor]:
        """(mu, log sigma^2) of features [B, c, s, s]: both [B, k]; the bias may come one per image."""
        mean, log_variance = named_linear(params, ENCODER, features.flatten(1)).chunk(2, 1)
        return mean, log_variance

    def sampled(self, params: Params, features: Tensor, noise: Tensor | None) -> Tensor:
        """z [B, k] by eps = `noise` [B, k]; mu without."""
        mean, log_variance = self.encoded(params, features)
        return mean if noise is None else mean + (0.5 * log_variance).exp() * noise

    def divergence(self, params: Params, features: Tensor) -> Tensor:
        """KL(N(mu, sigma^2) || N(0, I)) of each image, in nats: [B]."""
        mean, log_variance = self.encoded(params, features)
        return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)

    def apply(
        self, params: Params, buffers: Params, features: Tensor, noise: Tensor | None = None, *, train: bool
    ) -> tuple[Tensor, Params]:
        """Logits [B, Y] of features [B, c, s, s] by eps = `noise` [B, k], by the mean without; and the buffers after the call."""
        decoded = named_linear(params, DECODER, self.sampled(params, features, noise))
        return self.behind.apply(params, buffers, decoded.unflatten(1, self.feature_shape), train=train)


@dataclass(frozen=True)
class LinearBottleneck(Bottleneck):
    """The same before a classifier of linear layers."""

    behind: LinearClassifier

    def linear_layers(
        self, params: Params, features: Tensor, noise: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """(logits [B, Y], inputs [B, n] by layer: the bottleneck's two, and those of the classifier behind)."""
        inputs = {ENCODER: features.flatten(1), DECODER: self.sampled(params, features, noise)}
        decoded = named_linear(params, DECODER, inputs[DECODER]).unflatten(1, self.feature_shape)
        logits, behind = self.behind.linear_layers(params, decoded)
        return logits, inputs | behind
