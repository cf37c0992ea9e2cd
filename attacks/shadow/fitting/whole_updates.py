"""All images of a client and a stand-in for its private extractor, found together from the change of its classifier.

A client sends the change U of its classifier over K steps of local training on all of its images. The attacker simulates them:
    min over theta, z of  gap(x(z), theta) / tau^2  +  ||(theta - theta_0) / rho||^2  +  ||z||^2
    gap = mean over parameters l of C of ||phi_l(x, theta; K) - phi_l - U_l||^2 / ||U_l||^2
phi(x, theta; K) is the classifier after K steps of the client's optimiser on both networks, from the broadcast C and E_theta, each
step on all images (attacks/update_matching.py). One step drops the features that its update shows to be dropped. theta_0 is a
surrogate that auxiliary images and C gave, aligned to the client's generator where it sends one. rho and the prior of images are
those of attacks/shadow/fitting/extractor_descent.py. Of several surrogates the end of the lowest objective counts: twice the
negative logarithm of the posterior at its mode.

Where the simulated steps do not explain U, the class means are returned: whatever the images are then, U did not say it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attacks.common import batched, lbfgs, problem, updates
from attacks.features import inversion, map_estimate
from attacks.shadow import shadow_federation, surrogate_training
from attacks.shadow.fitting import extractor_descent
from attacks.shadow.fitting.extractor_descent import Calibration
from attacks.shadow.settings import JointSettings
from privbench.seeds import stream
from privbench.tensors import Params
from privbench.types import Artifact, Knowledge, Outcome, Progress, Reconstruction

TAU = 0.03  # of the change of a parameter, relative to its length
EXPLAINED = 0.1  # gap above which the class means are returned


def reconstruct(
    settings: JointSettings, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress
) -> Reconstruction:
    """All victims, each with all images of its client's update."""
    assert artifact.local is not None, "the needs name an update"
    assert knowledge.auxiliary is not None, "the needs name auxiliary images"
    posed, local = problem.make(updates.labelled_gradients(artifact), seed), artifact.local
    observed = updates.observed(artifact)
    trust = {name: torch.ones_like(t[0]) for name, t in observed.items()}
    like, count = next(iter(observed.values())), settings.starts
    prior = inversion.learned(knowledge.auxiliary, artifact.model.classes, like)
    of_client = {
        k: starts(settings, artifact, knowledge, seed, k) for k in shadow_federation.clients_of(artifact.client)
    }
    each = [{n: t.to(like) for n, t in one.items()} for k in artifact.client.tolist() for one in of_client[k]]
    how = Calibration(artifact.model, True, settings.scale, settings.joint_steps)
    weights, theta, rho = extractor_descent.prior_of(how, each, like)
    names, means = list(each[0]), prior.means[posed.labels]
    laid = batched.EndToEnd(theta.shape[1:], means.shape[1:])

    def objective(v: Tensor, one: batched.Data) -> Tensor:
        w, z = laid.split(v)
        params = dict(zip(names, weights.split(one["theta"] + one["rho"] * w), strict=True))
        through = posed._replace(weights=posed.weights | {"extractor": params})
        x = map_estimate.image(prior.gaussian, z, one["means"])
        change = updates.local_change(through, x, one["labels"], local, drawn=one)
        target = {name: one[name] for name in observed}
        gap = updates.relative_gap({n: change[n] for n in observed}, target, trust)
        return gap / TAU**2 + v.square().sum()

    data = observed | updates.shown_draws(posed, local) | {"labels": posed.labels, "means": means}
    data = {n: problem.repeat(t, count) for n, t in data.items()}
    data |= {"theta": theta, "rho": rho}
    start = like.new_zeros(len(theta), sum(shape.numel() for shape in laid.shapes))
    end = lbfgs.minimise(objective, start, data, steps=settings.joint_steps, progress=progress, what="whole updates")
    v, loss, trace, restart = batched.best_restart(end, count)
    z = laid.split(v)[1]
    explained = (loss - v.square().sum(1)) * TAU**2 < EXPLAINED
    z = torch.where(explained[:, None, None], z, 0.0)
    x = torch.stack([map_estimate.image(prior.gaussian, *one) for one in zip(z, means, strict=True)])
    outcome = torch.where(explained, Outcome.RECONSTRUCTED, Outcome.GAVE_UP)
    return Reconstruction(x, posed.labels, loss, trace, restart, end.evaluations * local.steps, outcome=outcome)


def starts(
    settings: JointSettings, artifact: Artifact, knowledge: Knowledge, seed: int, client: int
) -> Sequence[Params]:
    """`starts` surrogates for a client's extractor, from draws of their own."""
    assert knowledge.auxiliary is not None, "the needs name auxiliary images"
    model, align = artifact.model, None
    made = shadow_federation.by_generators(artifact, [client], seed) if "generator" in artifact.uploads else {}
    if client in made:
        align = surrogate_training.to_generator(surrogate_training.class_moments(*made[client], model.classes))
    networks = []
    for number in range(settings.starts):
        called = ("attacker", "whole updates", client if align else 0, number)
        start = {
            n: t.to(knowledge.auxiliary.images)
            for n, t in model.net("extractor").init(stream(seed, *called))[0].items()
        }
        networks.append(
            surrogate_training.train(
                model, start, artifact.weights["classifier"], knowledge.auxiliary, settings.train_steps,
                stream(seed, *called, "batches"), align, settings.align_weight,
            )
        )  # fmt: skip
    return networks
