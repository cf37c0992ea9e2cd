"""What networks with a secret decoder (training.py) brought back: one image of a batch, where it stands alone.

With S_m and t_m of the projected gradient, h = sum_m t_m S_m / sum_m t_m^2. Where one image stands alone, all S_m are t_m h, and
where several do, they differ by the images' shares in each direction. How far S is from t h' for a batch that may be read is
calibrated on batches of images that were held out, whose features the server knows: as far as leaves RIGHT of them within NEAR of
an image's features. Where no distance does, nothing is read. r is fitted to the extractor that was sent.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.common import closed_form, failed_uploads, training_cache
from attacks.common.no_information import class_mean, gave_up
from attacks.crafted import dry_run
from attacks.crafted.secret import reconstructor, training
from privbench.networks.model import Model
from privbench.seeds import stream
from privbench.tensors import Params
from privbench.types import Artifact, Batch, ExpectedUpload, Knowledge, Networks, Progress, Reconstruction, no_progress

BATCHES = 400  # to calibrate by
DISTANCES = (0.4, 0.3, 0.2, 0.1, 0.05, 0.02)
RIGHT, NEAR = 0.8, 0.5
FEWEST = 0.01  # of the batches, that are read
IMAGES = 128  # of a step of r
SMALLEST = 1e-30
REVISION = 0  # of what is kept on disk


class Projected(NamedTuple):
    """What the secret directions leave of V gradients."""

    h: Tensor  # [V, n]
    apart: Tensor  # [V] how far the directions are from agreeing on h, relative to how features of images differ


def projected(s: Tensor, t: Tensor, usual: Tensor) -> Projected:
    """S [V, M, n] and t [V, M] -> h, where features are `usual` apart from their mean."""
    energy = t.square().sum(1).clamp_min(SMALLEST)
    h = (t[:, :, None] * s).sum(1) / energy[:, None]
    gap = (s - t[:, :, None] * h[:, None]).square().sum((1, 2)).sqrt()
    return Projected(h, gap / energy.sqrt() / usual)


def of_artifact(artifact: Artifact, seed: int, usual: Tensor) -> Projected:
    """The same of an artifact's gradients."""
    layer = artifact.model.classifier.features_layer
    weight, bias = (artifact.gradients["classifier"][f"{layer}.{name}"].double() for name in ("weight", "bias"))
    u = training.secret(seed, bias.shape[1]).to(bias)
    # The seed of the attack that crafted is that of the attack that reads (privbench/seeds.py, `of_attacker`).
    return projected(torch.einsum("mj,vjn->vmn", u, weight), bias @ u.T, usual)


def spread(h: Tensor) -> Tensor:
    """How far features [N, n] are from their mean, root mean square: []."""
    return h.double().var(0, correction=0).sum().sqrt().clamp_min(1e-12)


def furthest_apart(
    model: Model, classifier: Params, known: Batch, batch_size: int, usual: Tensor, seed: int
) -> float | None:
    """How far directions may be from agreeing in a batch that is read; None where none should be.

    known   features [N, n] of images that trained nothing, and their labels
    """
    rng = stream(seed, "attacker", "seer", "calibration")
    h, y = known
    rows = torch.randint(len(y), (BATCHES, batch_size), generator=rng).to(y.device)
    u = training.secret(seed, len(classifier[f"{model.classifier.features_layer}.bias"])).to(h)
    a = (training.responses(model, classifier, h, y)[0].detach() @ u.T).double()
    of_batches, h = h.double()[rows], h.double()
    seen = projected(torch.einsum("vbm,vbn->vmn", a[rows], of_batches), a[rows].sum(1), usual)
    error = (of_batches - seen.h[:, None]).norm(dim=2).amin(1) / usual
    for distance in DISTANCES:
        read = seen.apart < distance
        if float(read.double().mean()) >= FEWEST and float((error[read] < NEAR).double().mean()) >= RIGHT:
            return distance
    return None


def fitted_reconstructor(
    model: Model, extractor: Params, images: Batch, steps: int, seed: int, knowledge: Knowledge, progress: Progress
) -> Params:
    """r, fitted to an extractor by steps of Adam on images and their changed copies; kept on disk."""
    settings = {"steps": steps, "seed": seed, "revision": REVISION}

    def make() -> Params:
        rng = stream(seed, "attacker", "seer", "reconstructor")
        every = training.copies(images, rng)
        h, x = training.features(model, extractor, every.images), every.images.flatten(1)
        r = reconstructor.initial(h, every.images, rng)
        optimiser = torch.optim.Adam(reconstructor.trained(r), training.LR)
        for step in range(steps):
            progress(step, steps, "seer: reconstructor")
            rows = torch.randint(len(x), (IMAGES,), generator=rng).to(x.device)
            optimiser.zero_grad()
            F.mse_loss(reconstructor.decoded(r, h[rows]), x[rows]).backward()
            optimiser.step()
        return {n: t.detach() for n, t in r.items()}

    depends = [*(extractor[n] for n in sorted(extractor)), *images]
    return training_cache.cached(knowledge.cache, "seer", settings, depends, make, images.images.device)


def read(
    artifact: Artifact, knowledge: Knowledge, decoder_steps: int, seed: int, progress: Progress = no_progress
) -> Reconstruction:
    """All victims, whose gradients are finite: one image of each in place of a class mean, where one stands alone."""
    assert knowledge.auxiliary is not None, "the needs name auxiliary images"
    model, weights = artifact.model, artifact.weights
    fitted, held_out = training.parted(knowledge.auxiliary)
    held_out = held_out if len(held_out.labels) else fitted
    usual = spread(training.features(model, weights["extractor"], knowledge.auxiliary.images))
    test = training.copies(held_out, stream(seed, "attacker", "seer", "held out"))
    known = Batch(training.features(model, weights["extractor"], test.images), test.labels)
    distance = furthest_apart(model, weights["classifier"], known, artifact.batch_size, usual, seed)
    seen = of_artifact(artifact, seed, usual)
    rows = torch.nonzero(seen.apart < (distance or 0.0))[:, 0]
    whole = gave_up(class_mean(artifact, knowledge))
    of = f"{len(rows)} of {artifact.victims} batches of {artifact.batch_size}"
    note = f"seer read one image of each of {of}; all other images are class means"
    if distance is None:
        note = "seer read nothing: behind this attacker's secret directions no image of the server's own batches stands alone"
    if not len(rows):
        return whole._replace(notes=(note,))
    r = fitted_reconstructor(model, weights["extractor"], knowledge.auxiliary, decoder_steps, seed, knowledge, progress)
    h = seen.h[rows].unflatten(1, model.feature_shape)
    h = closed_form.undropped(model, h, closed_form.BLURRED).h.flatten(1).to(known.images)
    with torch.no_grad():
        x = reconstructor.decoded(r, h).unflatten(1, artifact.image_shape)
        logits, _ = model.net("classifier").apply(
            weights["classifier"], {}, h.unflatten(1, model.feature_shape), train=False
        )
    images, y = whole.images[rows].clone(), whole.labels[rows]
    # In place of the class mean whose class the networks hold most likely.
    place = logits.gather(1, y).argmax(1)
    images[torch.arange(len(rows)), place] = x.to(images)
    loss = seen.apart[rows].to(whole.loss)
    one = whole._replace(
        images=images, labels=y, loss=loss, trace=loss[:, None], restart=whole.restart[rows], outcome=None
    )
    return failed_uploads.put(whole, rows, one._replace(notes=(note,)))


def brings_more(
    model: Model,
    broadcast: Networks,
    crafted: Networks,
    images: tuple[Batch, Batch],
    most_images: int,
    expected: ExpectedUpload,
    decoder_steps: int,
    seed: int,
) -> bool:
    """Whether crafted networks bring back more of held-out images than class means of either; so where there are too few.

    images   (those that trained, those held out)
    """
    known, held_out = images
    if not most_images or len(held_out.labels) < expected.batch_size:
        return True
    clients, attackers = dry_run.batches(held_out, most_images, expected.batch_size), Knowledge(known)

    def upload(sent: Networks) -> Artifact:
        return dry_run.observed(
            model, Networks(broadcast.params | sent.params, broadcast.buffers), clients, expected, seed
        )

    own, honest = upload(crafted), upload(Networks({}, {}))
    # Where nothing is read, class means may still score more by labels that show better.
    least = max(
        dry_run.psnr_db(lambda seen: class_mean(seen, attackers), each, clients.images) for each in (own, honest)
    )
    return dry_run.psnr_db(lambda seen: read(seen, attackers, decoder_steps, seed), own, clients.images) > least
