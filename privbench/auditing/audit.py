"""An audit: what came of the clients of a user's module, every attack that can be made of it, its scores and its files."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import cache
from typing import get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from privbench import registry, written_defense
from privbench.auditing import declared_setup, evidence, observed
from privbench.auditing.attack_series import SEED, AttackFailure, AttackResult, AttackSeries, is_vector
from privbench.auditing.inputs import Received
from privbench.auditing.request import AuditRequest
from privbench.auditing.result import STEM, AuditResult, AuditRow, are_floors_alone, remove_former
from privbench.errors import UserError
from privbench.networks.module_model import ModuleModel, model_of
from privbench.networks.module_parts import copied
from privbench.observation import defended_upload, knowledge
from privbench.observation.wire import Format
from privbench.records import victims
from privbench.scoring import feature_scores
from privbench.scoring.feature_scores import FeatureScale
from privbench.system import machine
from privbench.system.file_headers import short
from privbench.types import CLASSIFICATION, Artifact, Batch, Truth

MOST_NAMED = 3  # tensors in a note
SMALLEST_SIDE = 7  # of pictures that are scored: the window of structural similarity


def audit(module: nn.Module, request: AuditRequest) -> AuditResult:
    """Attacks what was received of a module's clients, and writes the result into `request.out`.

    UserError: whatever does not fit the module, and an attack that cannot be made and was named by itself.
    """
    check_module(module)
    if foreign := [part for part in request.shared if part not in CLASSIFICATION]:
        raise UserError(f"there is no part '{foreign[0]}'; known: {', '.join(CLASSIFICATION)}")
    if request.mode not in ("train", "eval", None):
        raise UserError(f"--mode takes train or eval, but '{request.mode}' was given")
    if request.wire not in (*get_args(Format), None):
        raise UserError(f"--wire takes {', '.join(get_args(Format))}, but '{request.wire}' was given")
    # Wherever the caller has it; attacks run on the device that was asked for.
    module = copied(module).cpu()
    loaded = request.load(module)
    received, form = loaded.received, request.form(loaded)
    train = loaded.training is not False if request.mode is None else request.mode == "train"
    model = model_of(module, form, train=train, head=request.head, loss=request.declared_loss())
    _check_extractor(request.extractor, module, model)
    if model.client_loss is None and model.classes == 1:
        raise UserError(
            "the module has one output, of which the cross-entropy is 0 for any weights; declare the loss in Python"
        )
    defense = written_defense.create(request.defense, "update")
    described = defended_upload.described(
        defense, received.local, received.batch_size, _number_format(received, request.wire)
    )
    seen = observed.artifact_of(model, received, request.shared, described)
    if model.client_loss is not None and seen.labels is None:
        raise UserError("with a loss of your own the labels have to be declared; they are read off cross-entropy alone")
    _check_loss(model, seen.labels)
    true = request.true_images(seen.victims * seen.batch_size * math.prod(form.shape), form, loaded)
    truth = None if true is None else observed.truth_of(*true, form, seen, own_loss=model.client_loss is not None)
    if truth is not None and not form.is_vector and min(form.shape[1:]) < SMALLEST_SIDE:
        raise UserError(f"images of {form.shape[1]}x{form.shape[2]} are too small to be scored; leave out --truth")
    images = request.auxiliary_images(form, model.classes)
    scale = _scale(model, truth, images) if is_vector(seen) else None
    remove_former(request.out)
    series = AttackSeries(
        STEM, lambda: copy.copy(seen), request.out, machine.device(request.device), SEED, truth,
        None if images is None else cache(lambda: images), images, scale,
    )  # fmt: skip
    rows, missing = _attacked(series, request)
    floors = None
    if truth is not None and scale is not None:
        floors = {name: feature_scores.score(each, truth, scale) for name, each in series.floors.items()}
    is_said = request.mode is not None or loaded.training is not None
    warning, note = declared_setup.check(model, seen, truth)
    if truth is None:
        explained = [row.explained_percent for row in rows if row.name not in registry.FLOORS]
        note = declared_setup.check_unscored(model, seen, [share for share in explained if share is not None])
    warnings = (*_not_made(rows, missing), *([warning] if warning else []))
    notes = (
        *([note] if note else []),
        *loaded.notes,
        *([] if is_said else _mode_assumed(module)),
        *_notes(module, model, received),
        *([] if truth is None or scale is None else _constant(scale)),
    )
    about = _about(model, received, request)
    result = AuditResult(rows, missing, about, warnings, notes, request.out, truth, floors)
    result.write()
    return result


def check_module(module: nn.Module) -> None:
    """UserError for what is no module, a wrapper of one, or one whose weights are not there yet."""
    if not isinstance(module, nn.Module):
        raise UserError(f"an audit takes a torch.nn.Module, but a {type(module).__name__} was given")
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise UserError("an audit takes the module inside a wrapper for several devices: module.module")
    absent = (UninitializedParameter, UninitializedBuffer)
    if any(isinstance(t, absent) or t.is_meta for t in (*module.parameters(), *module.buffers())):
        raise UserError(
            "the module has weights without numbers: call its lazy layers on images once, and use no device 'meta'"
        )


def _number_format(received: Received, declared: Format | None) -> Format:
    """In which messages came: as declared, or the coarsest of their tensors'."""
    if declared is not None:
        return declared
    kinds = {t.dtype for t in received.messages.values()}
    return "bf16" if torch.bfloat16 in kinds else "fp16" if torch.float16 in kinds else "float32"


def _check_loss(model: ModuleModel, labels: Tensor | None) -> None:
    """UserError where the declared loss cannot be called with the module's outputs and the labels, or returns no tensor."""
    if model.client_loss is None or labels is None:
        return
    outputs = torch.zeros(labels.shape[1], model.classes)
    try:
        loss = model.client_loss(outputs, labels[0])
    # The caller's own code may raise anything.
    except Exception as error:
        raise UserError(
            f"the declared loss cannot be taken of outputs {list(outputs.shape)} and labels {list(labels[0].shape)}: {short(error)}"
        ) from error
    if not isinstance(loss, Tensor):
        raise UserError(f"the declared loss should return a tensor, but it returned a {type(loss).__name__}")


def _check_extractor(named: Sequence[str], module: nn.Module, model: ModuleModel) -> None:
    """UserError for submodules that are not there, or belong to the head."""
    names = [name for name, _ in module.named_modules() if name]
    for name in named:
        if name not in names:
            raise UserError(f"the module has no submodule '{name}'; known: {', '.join(names)}")
        if any(each.startswith(f"{name}.") and model.belongs_to_head(each) for each in module.state_dict()):
            raise UserError(
                f"'{name}' is declared as the extractor's, but the head holds it; name the head's modules, too"
            )


def _attacked(series: AttackSeries, request: AuditRequest) -> tuple[tuple[AuditRow, ...], tuple[AttackFailure, ...]]:
    for name in set(request.attack) - registry.LADDERS:
        registry.typed("attack", name)
    each = registry.settings_of_each(series.members(request.attack, request.settings), request.settings)
    rows, missing = [], []
    for result in series.each(each, is_ladder=bool(registry.LADDERS & set(request.attack))):
        if isinstance(result, AttackFailure):
            missing.append(result)
        else:
            rows.append(_row(series.seen, result))
    if not rows:
        raise UserError("; ".join(f"{each.attack}: {each.reason}" for each in missing) or "no attack was named")
    return tuple(rows), tuple(missing)


def _row(seen: Artifact, result: AttackResult) -> AuditRow:
    attack = registry.create(registry.resolve("attack", result.attack), result.settings)
    return AuditRow(
        result,
        knowledge.tag(attack, seen.offers()),
        str(getattr(attack, "rung", "")),
        evidence.explained(seen, result.reconstruction),
        evidence.explained_by_grey(seen, result.reconstruction),
        victims.outcomes(seen, result.reconstruction, is_floor=result.attack in registry.FLOORS),
    )


def _scale(model: ModuleModel, truth: Truth | None, images: Batch | None) -> FeatureScale | None:
    """The mean and the spread of every feature: as declared, of the attacker's vectors, or of the true ones."""
    form, count = model.form, model.form.shape[0]
    if len(form.mean) == len(form.std) == count > 1:
        width = form.high - form.low
        return FeatureScale(((form.mean - form.low) / width).expand(count), (form.std / width).expand(count))
    if images is not None:
        return feature_scores.scale_of(images.images)
    return None if truth is None else feature_scores.scale_of_truth(truth)


def _taken_as_they_are(module: nn.Module, model: ModuleModel, received: Received) -> list[str]:
    """What of the state that went down nobody said; counters do not count."""
    trained = {n for part in (model.extractor_part, model.classifier_part) for n in part.values()[0]}
    every = [n for n, _ in module.named_parameters()]
    every += [n for n, t in module.named_buffers() if t.is_floating_point()]
    lacking = [n for n in every if n not in received.weights and n not in received.buffers]
    if not lacking:
        return []
    if set(every) == set(lacking):
        return ["Nothing was said of the weights that went down: they are taken as the module has them."]
    frozen = " (frozen ones among them)" if any(n not in trained for n in lacking) else ""
    return [f"Not given of what went down{frozen}, and taken as the module has it: {_some(lacking)}."]


def _mode_assumed(module: nn.Module) -> list[str]:
    """Of a mode that nobody said, where the gradients depend on it; dropout has a note of its own."""
    if not any(isinstance(each, _NormBase) and each.track_running_stats for each in module.modules()):
        return []
    return [
        "Nothing was said of the mode in which clients trained: batch norm is taken in train mode, by statistics of each batch; "
        "if theirs was in eval mode, say --mode eval."
    ]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")


def _about(model: ModuleModel, received: Received, request: AuditRequest) -> str:
    head = model.classifier.features_layer or "all of it"
    sent = f"{received.count} {'updates' if received.kind == 'update' else 'gradients'} of {received.batch_size} image(s) each"
    labels = "known" if received.labels is not None else "not known"
    mode = "train" if model.train else "eval"
    return (
        f"{model.backbone.removeprefix('the module ')} in {mode} mode, head from {head}; {sent}, labels {labels}; "
        f"loss: {'declared' if model.client_loss is not None else 'cross-entropy, mean over images'}; defence: {request.defense}."
    )


def _not_made(rows: Sequence[AuditRow], missing: Sequence[AttackFailure]) -> list[str]:
    """That nothing was attacked, where only floors came of it."""
    if not are_floors_alone(rows, missing):
        return []
    return [
        f"NOTHING WAS ATTACKED: the rows are floors, which anybody returns without an upload. Of {len(missing)} attacks none could "
        f"be made, e.g. {missing[0].attack}: {missing[0].reason}"
    ]


def _constant(scale: FeatureScale) -> list[str]:
    """That features without a spread are not scored."""
    count = int((~scale.varying).sum())
    return [f"Constant features, which no score counts: {count} of {len(scale.std)}."] if count else []


def _notes(module: nn.Module, model: ModuleModel, received: Received) -> tuple[str, ...]:
    notes = [*_taken_as_they_are(module, model, received)]
    still = [n for n, t in received.messages.items() if received.kind == "update" and not bool(t.any())]
    if still and len(still) < len(received.messages):
        notes.append(
            f"{_some(still)} did not change in any message; freeze what clients do not train (requires_grad False) in the module."
        )
    if received.local is not None and received.local.batch is not None and received.local.steps > 1:
        notes.append(
            "Which images a client's mini-batches held is not known: each local step is simulated on all of its images, so that "
            "the true images do not explain all of an update either."
        )
    if model.train and (drops := model.extractor_part.draws):
        names = ", ".join(name.removeprefix("module.") for name in drops)
        notes.append(
            f"{names} drop at random in train mode, which nobody knows: the attacks take them for what lets all pass."
        )
    if any(not p.requires_grad for p in module.parameters()):
        notes.append("Frozen parameters are taken as known, and as not sent.")
    return tuple(notes)
