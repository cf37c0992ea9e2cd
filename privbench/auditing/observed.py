"""The artifact that attacks take, from what a server received and the module that it was received of; and its truth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from privbench.auditing.inputs import Received
from privbench.errors import UserError
from privbench.networks.module_model import ModuleModel
from privbench.networks.module_parts import InputForm
from privbench.observation.format import limits
from privbench.tensors import Params, Parts
from privbench.types import CLASSIFICATION, Artifact, Truth


def artifact_of(
    model: ModuleModel,
    received: Received,
    shared: Sequence[str] = CLASSIFICATION,
    defense: Mapping[str, Any] | None = None,
) -> Artifact:
    """What the server holds of M messages, of the `shared` parts alone; `defense` is its description.

    UserError: messages that lack a shared parameter or hold another, labels that do not fit, sizes out of bounds.
    """
    _check_sizes(model, received)
    sent = model.parts({n: _real(t) for n, t in received.messages.items()})
    weights: Parts = {}
    buffers: Parts = {}
    messages: Parts = {}
    moved: Parts = {}
    for part, net in (("extractor", model.extractor_part), ("classifier", model.classifier_part)):
        params, state = net.values()
        names = list(params)
        if part not in shared and params:
            continue
        if missing := [n for n in names if n not in sent[part]]:
            raise UserError(
                f"the messages lack '{missing[0]}' of the {part}, and {len(missing) - 1} more; say with --shared which parts were "
                "sent, or freeze in the module what is not trained"
            )
        _check_shapes(sent[part], params, received.count)
        weights[part] = {n: _real(received.weights.get(n, params[n])) for n in names}
        buffers[part] = {n: received.buffers.get(n, t).to(t) for n, t in state.items()}
        if params:
            messages[part] = {n: sent[part][n] for n in names}
        if statistics := {n: _real(received.statistics[n]) for n in state if n in received.statistics}:
            moved[part] = statistics
    is_update = received.kind == "update"
    if is_update != (received.local is not None):
        raise UserError("updates need their local steps, and gradients have none")
    return Artifact(
        method="this audit",
        dataset="the auditor's images",
        model=model,
        round=received.round,
        shared_parts=tuple(messages),
        gradients={} if is_update else messages,
        weights=weights,
        buffers=buffers,
        uploads={},
        upload_buffers={},
        client=torch.zeros(received.count, dtype=torch.int64),
        batch_size=received.batch_size,
        image_shape=model.form.shape,
        labels=_labels(received, model.classes, own_loss=model.client_loss is not None),
        defense=dict(defense or {"name": "none"}),
        updates=messages if is_update else {},
        local=received.local,
        update_buffers=moved,
    )


def truth_of(
    images: Tensor, labels: Tensor | None, form: InputForm, artifact: Artifact, *, own_loss: bool = False
) -> Truth:
    """The truth from images in the declared range: [M, B, C, H, W] or any shape of as many numbers, in the order of the messages.

    UserError: another number of images, images out of the range, or labels that are none of the module's.
    """
    messages, batch = artifact.victims, artifact.batch_size
    if images.numel() != messages * batch * math.prod(form.shape):
        raise UserError(
            f"the truth of {messages} message(s) of {batch} image(s) should be {[messages, batch, *form.shape]}, but it is "
            f"{list(images.shape)}"
        )
    if not fits(tuple(images.shape), form):
        raise UserError(
            f"true images should end in the axes {list(form.shape)}, but they are {list(images.shape)}; channels come first"
        )
    x = form.from_data(images.float().reshape(messages, batch, *form.shape))
    if not form.is_vector and not bool(((x >= -1e-3) & (x <= 1 + 1e-3)).all()):
        raise UserError(
            f"the true images should lie in the declared range, from {float(form.low.min()):g} to {float(form.high.max()):g}, but "
            f"they lie in {float(images.min()):g} to {float(images.max()):g}; declare another with --range"
        )
    if labels is not None and labels.numel() != messages * batch:
        raise UserError(f"the truth should have {messages} x {batch} labels, but it has {labels.numel()}")
    known = labels is not None and _are_whole(labels)
    if labels is not None and not own_loss:
        # Of a loss of the user's own they may be targets of a regression, or of one output.
        check_labels("the true labels", labels, artifact.model.classes)
    y = labels.long().reshape(messages, batch) if labels is not None and known else torch.full((messages, batch), -1)
    return Truth(x if form.is_vector else x.clamp(0, 1), y)


def fits(shape: tuple[int, ...], form: InputForm) -> bool:
    """Whether numbers lie as images do: channels, height and width last, of one channel also without it, or all in a row."""
    channels, height, width = form.shape
    ends = [(channels, height, width), (channels * height * width,)]
    ends += [(height, width)] if channels == 1 else []
    return any(shape[-len(end) :] == end for end in ends)


def _are_whole(labels: Tensor) -> bool:
    return not labels.is_floating_point() or bool((labels == labels.round()).all())


def check_labels(what: str, labels: Tensor, classes: int) -> None:
    """UserError for labels that are no whole numbers, or none of the module's classes."""
    if not _are_whole(labels):
        raise UserError(
            f"{what} are whole numbers; put the targets of a regression into a `loss` of your own, and give 0 for each label"
        )
    if wrong := labels[(labels < 0) | (labels >= classes)].unique().tolist():
        raise UserError(
            f"{what} are numbers from 0 to {classes - 1}, as the module has {classes} outputs, but {wrong[0]:g} is among them"
        )


def _labels(received: Received, classes: int, *, own_loss: bool) -> Tensor | None:
    if received.labels is None:
        return None
    # The loss of one output may be of two classes.
    check_labels("labels", received.labels, max(classes, 2) if own_loss else classes)
    count, labels = received.count, received.labels.long()
    if labels.numel() != count * received.batch_size:
        raise UserError(
            f"{count} message(s) of {received.batch_size} image(s) have {count * received.batch_size} labels, but "
            f"{labels.numel()} were given"
        )
    return labels.reshape(count, received.batch_size)


def _real(t: Tensor) -> Tensor:
    """In single precision, or in double as it came."""
    return t if t.dtype == torch.float64 else t.float()


def _check_shapes(sent: Params, params: Params, count: int) -> None:
    for name, t in params.items():
        if tuple(sent[name].shape) != (count, *t.shape):
            raise UserError(
                f"'{name}' should have shape {[count, *t.shape]}, but the messages have {list(sent[name].shape)}"
            )


def _check_sizes(model: ModuleModel, received: Received) -> None:
    names = {n for part in (model.extractor_part, model.classifier_part) for n in part.values()[0]}
    if foreign := [n for n in received.messages if n not in names]:
        raise UserError(f"the messages hold '{foreign[0]}', which is no parameter of the module that is trained")
    if not 1 <= received.batch_size <= limits.BATCH_SIZE:
        raise UserError(f"the batch size should be from 1 to {limits.BATCH_SIZE}, but it is {received.batch_size}")
    numbers = received.count * received.batch_size * math.prod(model.form.shape)
    if numbers > limits.PIXELS:
        raise UserError(f"{numbers} pixels are more than {limits.PIXELS}; audit fewer messages at a time")
