"""The label distribution of a client from the running mean in the generator that it uploads (this suite).

A conditional generator begins with a linear map of noise and label, and a batch norm: a = A z + mu_y, z standard normal. The batch
norm keeps a running mean of `a` over the mini-batches of local training, whose labels are the client's own:
    m ~ (1 - r) sum_y p_y mu_y + r m' + A z',    z' ~ N(0, 1 / (B n)),    n = (2 - d) / d
with d the momentum, so that n mini-batches of B images count, and r what remains of the broadcast's running mean m'. A and mu are
read off the uploaded networks, so that the label distribution p is what weighted least squares give among distributions over the
classes and m'. No gradient, no image and no classifier is needed.

The m' at hand is that of the broadcast which was made of these uploads. Weights change within those n mini-batches: a variance of
DRIFT of that of `a`, of each channel by itself, stands for that. Where a defence acts on every image, the generator's labels are
drawn uniformly, and nothing is to be seen. DRIFT, and that r is solved for too, were chosen on `digits` and `photos`, seed 7
(docs/appendix/attacks.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from attacks.features import generator_statistics
from attacks.shadow import trained_federations
from attacks.shadow.trained_federations import OWN
from privbench.errors import UserError
from privbench.execution.applicability import Limits
from privbench.networks.base import Generator
from privbench.networks.normalisation import BN_MOMENTUM
from privbench.tensors import Params
from privbench.types import Artifact, Knowledge, Progress, Statements, no_progress

MEAN = "norm0.mean"
DRIFT = 1e-4
USUAL_BATCH = 16  # images per mini-batch, where the observation does not say
NNLS_STEPS = 10_000  # far more than so few unknowns take
EXACT = 1e4  # the weight of "probabilities add up to 1", relative to all other equations together


@dataclass(frozen=True)
class GeneratorLabels:
    """Reads a client's label distribution off the batch norm of the generator that it uploads (this suite)."""

    needs: ClassVar[frozenset[str]] = frozenset({"upload:generator"})
    uses: ClassVar[frozenset[str]] = frozenset({"broadcast:generator"})
    knowledge: ClassVar[str] = "generator"
    rung: ClassVar[str] = "L2"
    question: ClassVar[str] = "label distribution"
    limits: ClassVar[Limits] = Limits(one_client=True)

    def infer(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Statements:
        """The label distribution of each attacked client, [K', Y].

        UserError where the generator has no running statistics.
        """
        net, broadcast = artifact.model.net(OWN), artifact.buffers.get(OWN, {}).get(MEAN)
        if not isinstance(net, Generator) or MEAN not in artifact.upload_buffers.get(OWN, {}):
            raise UserError(
                "the generator has no running statistics before its first batch norm, which would show labels"
            )
        batch = USUAL_BATCH if artifact.training is None else artifact.training.batch
        stated = []
        for client in trained_federations.real(artifact):
            mean = client.buffers[OWN][MEAN]
            seen = Running(mean, torch.zeros_like(mean) if broadcast is None else broadcast, batch)
            stated.append(distribution(net, client.params[OWN], seen, artifact.model.noise_dim, artifact.model.classes))
        return Statements(torch.stack(stated).to(artifact.client.device))


class Running(NamedTuple):
    """A running mean, and what it is of."""

    mean: Tensor  # m: [c]
    broadcast: Tensor  # m': [c], zero where nothing is known of it
    batch: int  # B


def distribution(net: Generator, params: Params, seen: Running, noise: int, classes: int) -> Tensor:
    """The label distribution [Y] float64 behind a running mean; uniform where nothing was trained, or what was is no network."""
    uniform = torch.full((classes,), 1 / classes, dtype=torch.float64)
    by_class, mixing = generator_statistics.linear_map(net, params, noise, classes)
    covariance = mixing.T @ mixing
    sound = all(bool(t.isfinite().all()) for t in (seen.mean, by_class, covariance))
    if not sound or not bool(seen.mean.any()) or not bool(covariance.any()):
        return uniform
    drift = DRIFT * covariance.diagonal()
    errors = covariance / (seen.batch * (2 - BN_MOMENTUM) / BN_MOMENTUM)
    whiten = torch.linalg.cholesky(errors + drift.clamp_min(float(drift.max()) * DRIFT).diag())
    mean, broadcast = (t.cpu().double()[None] for t in (seen.mean, seen.broadcast.nan_to_num()))
    columns = [by_class, broadcast] if bool(broadcast.any()) else [by_class]
    equations, values = (
        torch.linalg.solve_triangular(whiten, t.T, upper=False).numpy() for t in (torch.cat(columns), mean)
    )
    exact = EXACT * float(np.linalg.norm(equations))
    shares, _ = nnls(
        np.vstack([equations, np.full((1, equations.shape[1]), exact)]), np.append(values, exact), maxiter=NNLS_STEPS
    )
    own = torch.from_numpy(shares[:classes])
    return own / own.sum() if float(own.sum()) > 0 else uniform
