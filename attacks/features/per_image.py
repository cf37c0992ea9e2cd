"""Every image of a batch attacked as a victim of its own, with features and labels separated by attacks/features/disaggregation.py.

Features h_i and labels y_i determine each image's own gradient of the classifier, of every linear layer z = W a + b
    dL_i/db = d_i,  dL_i/dW = d_i a_i'
at the broadcast C. So an artifact of V batches becomes one of V B single images, each sent by its batch's client, and an attack
that is written for one image per gradient reads the h_i off it in closed form (attacks/common/closed_form.py). What comes back is
folded: images side by side, losses and traces averaged over a batch. No gradient contains their order; scores assign it by
the Hungarian method (privbench/scoring/image_scores.py).

A batch whose residual stays above row_spaces.SEPARATED (images alike), and every batch of a gradient that is not exact
(a defence, a number format) or of more images than the layer has rows for (disaggregation.possible), ends at the class means of
its recovered labels, as the floor `class-mean` does, or grey where the attacker has no auxiliary images. Nothing is descended on
there, and the reconstruction says so: by its trace, and in a note.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.func import grad

from attacks.common import closed_form, failed_uploads, labels, no_information, problem, training_cache
from attacks.features import disaggregation
from attacks.features.separation.row_spaces import Disaggregated
from privbench.defending import described
from privbench.networks.base import LinearClassifier
from privbench.tensors import Params
from privbench.types import Artifact, Knowledge, Progress, Reconstruction, no_progress


def attack(
    artifact: Artifact,
    knowledge: Knowledge,
    seed: int,
    single: Callable[[Artifact], Reconstruction],
    progress: Progress = no_progress,
) -> Reconstruction:
    """What `single`, an attack on one image per gradient, makes of an artifact's images, [V, B, C, H, W].

    Gradients of one image are passed to it as they are, and so are those of classifiers that begin with convolutions, which it
    refuses. UserError: a gradient of more images than the artifact says.
    """
    if artifact.batch_size == 1 or not isinstance(artifact.model.classifier, LinearClassifier):
        return single(artifact)
    closed_form.check_not_mixed(artifact)
    problem.check_batch_size(artifact)
    return failed_uploads.set_aside(artifact, lambda sound: _batches(sound, knowledge, seed, single, progress))


def _batches(
    artifact: Artifact,
    knowledge: Knowledge,
    seed: int,
    single: Callable[[Artifact], Reconstruction],
    progress: Progress,
) -> Reconstruction:
    has_images = knowledge.auxiliary is not None
    floor = no_information.class_mean(artifact, knowledge) if has_images else no_information.grey(artifact)
    whole = no_information.gave_up(floor._replace(labels=labels.recover(artifact)))
    if not disaggregation.possible(artifact):
        return whole._replace(notes=(_note(artifact, artifact.victims),))
    batches = separated(artifact, knowledge, seed, progress)
    whole = whole._replace(gradient_evaluations=batches.evaluations)
    rows = torch.nonzero(batches.sound)[:, 0]
    if len(rows):
        of_rows = Disaggregated(batches.h[rows], batches.labels[rows], batches.residual[rows], 0)
        whole = failed_uploads.put(
            whole, rows, folded(single(singles(artifact.select(rows), of_rows)), artifact.batch_size)
        )
    if len(rows) == artifact.victims:
        return whole
    return whole._replace(notes=(*whole.notes, _note(artifact, artifact.victims - len(rows))))


def separated(artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress) -> Disaggregated:
    """`disaggregation.disaggregate`, once per artifact for all attackers with auxiliary images; only where that is `possible`."""

    def make() -> dict[str, Tensor]:
        batches = disaggregation.disaggregate(artifact, seed, progress)
        return batches._asdict() | {"evaluations": torch.tensor(batches.evaluations)}

    tensors = training_cache.cached(
        knowledge.cache,
        "separated",
        {"seed": seed, "batch_size": artifact.batch_size},
        [
            *artifact.gradients["classifier"].values(),
            *artifact.weights["classifier"].values(),
            *(() if artifact.labels is None else (artifact.labels,)),
            *(() if artifact.image_weights is None else (artifact.image_weights,)),
        ],
        make,
        artifact.client.device,
    )
    return Disaggregated(tensors["h"], tensors["labels"], tensors["residual"], int(tensors["evaluations"]))


def of_kept(artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress) -> Artifact | None:
    """Uploads that an attacker has besides the victims' as uploads of one image each; None where no batch can be taken apart.

    The gradients of the images of a batch that cannot be are NaN, so that they keep their places and show nothing.
    """
    if artifact.batch_size == 1:
        return artifact
    if not disaggregation.possible(artifact):
        return None
    batches = separated(artifact, knowledge, seed, progress)
    if not bool(batches.sound.any()):
        return None
    shown = batches.sound[:, None, None, None, None]
    return singles(artifact, batches._replace(h=batches.h.where(shown, math.nan)))


def singles(artifact: Artifact, batches: Disaggregated) -> Artifact:
    """The artifact of V B clients' uploads that would hold one image each, a batch's in a row, with known labels.

    Of a model with dropout, features that are nearly 0 are 0, as in the gradient of one image.
    """
    y, entered = batches.labels.flatten(), batches.h.flatten(0, 1)
    if artifact.model.dropout:
        size = entered.abs()
        entered = entered.masked_fill(size <= closed_form.BLURRED * size.amax((1, 2, 3), keepdim=True), 0.0)
    each = [gradient_of(artifact, *one) for one in zip(entered, y, strict=True)]
    return replace(
        artifact,
        gradients={"classifier": {name: torch.stack([one[name] for one in each]) for name in each[0]}},
        client=problem.repeat(artifact.client, artifact.batch_size),
        batch_size=1,
        labels=y[:, None],
        member_weights=None,
    )


def gradient_of(artifact: Artifact, h: Tensor, y: Tensor) -> Params:
    """The gradient of CE(C(h), y) over C, in double precision; h [c, s, s], y []."""
    classifier = artifact.model.classifier
    assert isinstance(classifier, LinearClassifier), "the caller has checked the classifier"

    def loss(params: Params) -> Tensor:
        return artifact.model.loss(classifier.linear_layers(params, h[None])[0], y[None])

    gradient: Params = grad(loss)({n: t.to(h) for n, t in artifact.weights["classifier"].items()})
    return gradient


def probabilities(artifact: Artifact, h: Tensor) -> Tensor:
    """What the classifier says of features h [n, c, s, s]: softmax of C(h), [n, Y], in the precision of h."""
    classifier = artifact.model.classifier
    assert isinstance(classifier, LinearClassifier), "the caller has checked the classifier"
    params = {n: t.to(h) for n, t in artifact.weights["classifier"].items()}
    return torch.softmax(classifier.linear_layers(params, h)[0], 1)


def folded(reconstruction: Reconstruction, batch: int) -> Reconstruction:
    """The reconstruction of V B single images as one of V batches; loss and trace are means over a batch.

    A batch was given up where all its images were.
    """

    def rows(t: Tensor) -> Tensor:
        return t.unflatten(0, (-1, batch))

    images, y, loss, trace, restart = (rows(t) for t in reconstruction[:5])
    return reconstruction._replace(
        images=images[:, :, 0], labels=y[:, :, 0], loss=loss.mean(1), trace=trace.mean(1), restart=restart[:, 0],
        outcome=None if reconstruction.outcome is None else rows(reconstruction.outcome).amin(1),
    )  # fmt: skip


def _note(artifact: Artifact, failed: int) -> str:
    """What a reader must know of the batches that were not explained."""
    why = "could not be" if disaggregation.possible(artifact) else f"are of {_unlike(artifact)} and so were not"
    return (
        f"{failed} of {artifact.victims} batches of {artifact.batch_size} images {why} separated into single features; for "
        "these the attack returns the class means, or grey without auxiliary images"
    )


def _unlike(artifact: Artifact) -> str:
    """What keeps the gradients from being separated at all."""
    if described.is_exact(artifact.defense):
        return "gradients of which no layer shows so many features"
    return "rounded gradients" if artifact.defense.get("name", "none") == "none" else "defended gradients"
