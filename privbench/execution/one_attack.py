"""One attack on one artifact: refused where it cannot be made, given what its `needs` name, and its answer checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Literal, get_args, get_origin

import torch

from privbench import hyperparameters, registry
from privbench.errors import AttackRefused, UserError
from privbench.execution import applicability
from privbench.observation import active_server
from privbench.observation import knowledge as known
from privbench.scoring.statement_scores import QUESTIONS
from privbench.types import Artifact, Knowledge, Outcome, Progress, Reconstruction, Statements, no_progress

# Of the answers of a statement in single precision.
SUM_ERROR = 1e-4


def attack_artifact(
    name: str,
    settings: dict[str, Any],
    seen: Artifact,
    whole: Knowledge,
    seed: int,
    place: torch.device,
    progress: Progress,
) -> Reconstruction:
    """Runs one attack with what its `needs` name of the `whole` knowledge, and nothing more; `seed` is the attacker's own.

    AttackRefused where it cannot be made; UserError where it returns something else than a reconstruction of these victims.
    """
    attack = registry.create(registry.resolve("attack", name), settings)
    if registry.is_inference(name):
        raise AttackRefused(
            f"{name} states something of a client and reconstructs no image; attack a run of your own with it"
        )
    reconstruction = _run(name, attack, attack.reconstruct, seen, whole, seed, place, progress)
    if fault := _fault(reconstruction, seen):
        raise UserError(f"{name} should return a Reconstruction of {seen.victims} victims, but {fault}")
    return reconstruction._replace(
        **{n: t.cpu() for n, t in reconstruction._asdict().items() if isinstance(t, torch.Tensor)}
    )


def infer_from_artifact(
    name: str,
    settings: dict[str, Any],
    seen: Artifact,
    whole: Knowledge,
    seed: int,
    place: torch.device,
    progress: Progress,
) -> Statements:
    """The same of an inference: what it states of the attacked clients, on the CPU and in double precision.

    AttackRefused where it cannot be made; UserError where it states something else than a distribution for each of them, or, of a
    question on candidates, a probability of each.
    """
    attack = registry.create(registry.resolve("attack", name), settings)
    stated = _run(name, attack, attack.infer, seen, whole, seed, place, progress)
    clients = len(seen.client.unique())
    if not isinstance(stated, Statements) or stated.answers.ndim != 2 or len(stated.answers) != clients:
        raise UserError(f"{name} should return Statements on {clients} clients, a row each")
    answers = stated.answers.double().cpu()
    of_candidates = QUESTIONS[attack.question].of_candidates
    if of_candidates and (asked := whole.candidates) is not None and answers.shape != asked.labels.shape:
        raise UserError(f"{name} should state a probability of each of {asked.labels.shape[1]} candidates")
    total = answers.amax(1) if of_candidates else (answers.sum(1) - 1).abs() + 1
    if not bool(answers.isfinite().all()) or float(answers.min()) < 0 or float(total.max()) > 1 + SUM_ERROR:
        what = "probabilities" if of_candidates else "a distribution"
        raise UserError(f"{name} should state {what} in every row, from 0 to 1{'' if of_candidates else ' with sum 1'}")
    return stated._replace(answers=answers)


def _run(
    name: str,
    attack: Any,
    act: Callable[..., Any],
    seen: Artifact,
    whole: Knowledge,
    seed: int,
    place: torch.device,
    progress: Progress,
) -> Any:
    """What a method of an attack returns where its needs are met; AttackRefused where they are not, or it refuses itself."""
    check_needs(name, attack, seen)
    try:
        attackers = known.only(attack.needs, whole, name).to(place)
        listening = _listener.set(progress)
        try:
            return act(seen.to(place), attackers, seed, _report_progress)
        finally:
            _listener.reset(listening)
    except UserError as error:
        raise AttackRefused(str(error)) from error


_listener: ContextVar[Progress] = ContextVar("listener", default=no_progress)


def _report_progress(done: int, total: int, what: str) -> None:
    """The progress report that attacks are given: a report itself may hold the job, and so the run's name and seed."""
    _listener.get()(done, total, what)


def _fault(answer: Any, seen: Artifact) -> str:
    """What an attack of a user's own returned in place of a reconstruction, in words; nothing where all is as it should be."""
    if not isinstance(answer, Reconstruction):
        return f"it returned {'nothing' if answer is None else f'a {type(answer).__name__}'}"
    v, b = seen.victims, seen.batch_size
    shapes = {"images": (v, b, *seen.image_shape), "labels": (v, b), "loss": (v,), "restart": (v,)}
    for name in (*shapes, "trace"):
        t = getattr(answer, name)
        if not isinstance(t, torch.Tensor):
            return f"`{name}` is of type {type(t).__name__}"
        fits = tuple(t.shape) == shapes[name] if name in shapes else t.ndim == 2 and len(t) == v and t.shape[1] > 0
        if not fits:
            return f"`{name}` has shape {tuple(t.shape)}, not {shapes.get(name, f'({v}, T)')}"
        if name in ("images", "loss", "trace") and not t.is_floating_point():
            return f"`{name}` is of {t.dtype}, not floating point"
    if answer.outcome is None:
        return ""
    if not isinstance(answer.outcome, torch.Tensor) or tuple(answer.outcome.shape) != (v,):
        return f"`outcome` should be a tensor of shape ({v},) or None"
    codes = set(answer.outcome.tolist())
    return (
        "" if codes <= set(Outcome) else f"`outcome` holds {sorted(codes - set(Outcome))}, which are none of Outcome's"
    )


def check_needs(name: str, attack: Any, seen: Artifact) -> None:
    """Refuses an attack whose needs or limits the artifact does not meet, and names one that can be made."""
    check_offered(name, attack.needs, seen.offers(), seen.method, seen.shared_parts, update=seen.local is not None)
    if fault := applicability.exceeded_by(name, applicability.of(attack), seen):
        raise AttackRefused(fault)


def _setting_that_fits(name: str, offered: frozenset[str], shared_parts: Sequence[str]) -> str | None:
    """A choice of one of the attack's settings, e.g. "uploads=whole", with which it needs nothing but what is offered."""
    plugin: type = registry.resolve("attack", name)
    if not dataclasses.is_dataclass(plugin) or (
        applicability.of(plugin).private_extractor and "extractor" in shared_parts
    ):
        return None
    for field in dataclasses.fields(plugin):
        annotation = hyperparameters.kind(plugin, field)
        for value in get_args(annotation) if get_origin(annotation) is Literal else ():
            # A class may refuse one setting without another.
            with suppress(UserError):
                if registry.create(plugin, {field.name: value}).needs <= offered:
                    return f"{field.name}={value}"
    return None


def check_offered(
    name: str, needs: frozenset[str], offers: frozenset[str], method: str, shared_parts: Sequence[str], *, update: bool
) -> None:
    """The same of what artifacts offer: of single gradients, or with `update` of whole local updates."""
    offered = offers | set(known.FIELDS)
    missing = sorted(needs - offered)
    if not missing:
        return
    if "aggregate" in missing:
        raise AttackRefused(
            f"{name} takes clients' messages out of a sum, but here every message arrives by itself; add --defense "
            f"secure-aggregation, or try --attack {registry.STRONG}"
        )
    if not update and all(need.startswith("update") for need in missing):
        raise AttackRefused(f"{name} {active_server.NEEDS_UPDATES}")
    if update and all(need.startswith("gradient") for need in missing):
        setting = _setting_that_fits(name, offered, shared_parts)
        way_out = f"--attack-set {setting}, or " if setting else ""
        raise AttackRefused(
            f"{name} needs the {', '.join(missing)}, but this artifact holds whole local updates; "
            f"try {way_out}--attack {registry.OF_UPDATES}"
        )
    lacking = (
        f"{name} needs the {', '.join(missing)}, but {method} shares only [{', '.join(shared_parts) or 'nothing'}]"
    )
    if answering := _of_same_question(name, offered):
        raise AttackRefused(f"{lacking}; try --attack {answering}")
    ways = [
        other
        for other in registry.ATTACKS
        if registry.resolve("attack", other).needs <= offered and other not in registry.FLOORS
    ]
    way = next((name for name in (registry.STRONG, *ways) if name in ways), registry.FLOORS[0])
    raise AttackRefused(f"{lacking}; try --attack {way}, or --attack ladder for every one that can be made")


def _of_same_question(name: str, offered: frozenset[str]) -> str | None:
    """An inference that answers the question of another one and needs nothing but what is offered, also of sums."""
    question = getattr(registry.resolve("attack", name), "question", None)
    for other in registry.INFERENCES:
        plugin = registry.resolve("attack", other)
        of_sums = "aggregate" in offered and applicability.of(plugin).one_client
        if plugin.question == question and plugin.needs <= offered and not of_sums:
            return other
    return None
