"""One seed of a cell whose attack states something of each client: observe -> infer -> score, to its result on disk.

The attack receives what an attack on images receives (privbench/execution/attack_cell.py). Its statements, and those of the floors,
are scored by what the clients really hold, which nothing before the score has seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from privbench import presets, registry, seeds
from privbench.errors import UserError
from privbench.execution import at_round, attack_cell, one_attack
from privbench.execution.attack_cell import CellSeed
from privbench.execution.inferring import candidate_domains, candidate_images
from privbench.execution.inferring.candidate_images import AskedImages
from privbench.records.store import Store
from privbench.scoring import statement_scores
from privbench.scoring.statement_scores import ScoredStatement
from privbench.spec import CellSpec, TrainSpec
from privbench.system import files
from privbench.training import federation
from privbench.types import Artifact, Federation, Progress, no_progress


class Held(NamedTuple):
    """What the clients really hold; for scoring alone."""

    federation: Federation  # as the attacker names its classes
    asked: AskedImages | None  # the candidates of a question on them, and which are members


# Of (answers [K', A], the attacked clients, what they hold).
Score = Callable[[Tensor, Sequence[int], Held], list[ScoredStatement]]


def infer_seed(
    store: Store,
    cell: CellSpec,
    spec: TrainSpec,
    data_root: Path | None,
    device_name: str,
    progress: Progress = no_progress,
) -> None:
    """Makes the statements on one seed of a cell and writes them with their scores; what is on disk and whole stays."""
    path, name = store.result(cell, spec.seed), str(cell.attack)
    if attack_cell.is_there(path):
        store.begin(cell)
        at_round.restore(store, cell, spec, data_root, device_name, progress)
        return
    if (now := presets.revision_of(cell)) != cell.attack_revision:
        raise UserError(
            f"{name} was specified at revision {cell.attack_revision} and is at revision {now} here; specify the cell anew"
        )
    store.begin(cell)
    one = CellSeed(store, cell, spec, data_root, device_name, progress)
    seen, _, shot = one.observed()
    images = attack_cell.auxiliary_images(one, seen)
    every = attack_cell.knowledge_of(store, cell, spec, one.federation, seen, shot)
    every = replace(every, **at_round.further_knowledge(*one[:5], seen, shot, progress))
    needs, asked, domains, auxiliary = registry.needs(name, cell.attack_settings), None, None, images.chosen
    if "candidates" in needs:
        asked = candidate_images.of_cell(cell, spec, one.federation, seen.round)
        every = replace(every, candidates=asked.candidates)
    if "domains" in needs:
        domains = candidate_domains.of_cell(cell, spec, one.federation, data_root)
        every, auxiliary = replace(every, domains=domains.domains), domains.in_order_of_candidates(auxiliary)
    started = time.perf_counter()
    stated = one_attack.infer_from_artifact(
        name, cell.attack_settings, seen, replace(every, auxiliary=auxiliary),
        seeds.of_attacker(spec.id, seen.round), one.place, progress,
    )  # fmt: skip
    if domains is not None:
        stated = stated._replace(answers=domains.in_order_of_names(stated.answers))
    seconds = time.perf_counter() - started
    # Read anew, as the attack may have written into what it was given.
    seen, _, shot = one.observed()
    question = registry.resolve("attack", name).question
    held = Held(federation.as_known(spec, one.federation), asked)
    info = attack_cell.attacked_trial(one, seen, shot, images.about)
    info |= {
        "knowledge": info["knowledge"]
        | {"labels": "recovered" if seen.labels is None else "known"}
        | at_round.about_further(cell, seen.round),
        "question": question,
        "answers": ANSWERS[question](held.federation),
        "statements": _statements(seen, stated.answers, SCORES[question], held, spec.seed),
    }
    about = f"{registry.short(spec.dataset)}, {spec.method}, round {seen.round}, seed {spec.seed}"
    info["notes"] += [f"{about}: {note}" for note in stated.notes]
    info["cost"] |= {"attack_seconds": seconds, "gradient_evaluations": 0}
    files.save_tensors(path, "reconstruction", {"answers": stated.answers}, info)


def _statements(seen: Artifact, answers: Tensor, score: Score, held: Held, seed: int) -> list[dict[str, Any]]:
    """What a record says of each attacked client (privbench.records.entries.Statement)."""
    clients, uploads = seen.client.unique(return_counts=True)
    each = score(answers, clients.tolist(), held)
    return [
        {"seed": seed, "client": client, "uploads": count} | scored._asdict()
        for client, count, scored in zip(clients.tolist(), uploads.tolist(), each, strict=True)
    ]


def _of_labels(answers: Tensor, clients: Sequence[int], held: Held) -> list[ScoredStatement]:
    return statement_scores.of_label_distributions(answers, clients, held.federation.label_counts())


def _of_membership(answers: Tensor, clients: Sequence[int], held: Held) -> list[ScoredStatement]:
    assert held.asked is not None, "the needs of an inference on membership name candidates"
    return statement_scores.of_membership(answers, held.asked.candidates, held.asked.members)


def _of_domains(answers: Tensor, clients: Sequence[int], held: Held) -> list[ScoredStatement]:
    candidates = candidate_domains.names(held.federation)
    domains = [candidates.index(client.domain) for client in held.federation.clients]
    return statement_scores.of_domains(answers, clients, domains, len(candidates))


SCORES: Mapping[str, Score] = {
    "label distribution": _of_labels,
    "membership": _of_membership,
    "domain": _of_domains,
}
ANSWERS: Mapping[str, Callable[[Federation], list[str]]] = {
    "label distribution": lambda fed: list(fed.classes),
    "membership": lambda _: ["member"],
    "domain": candidate_domains.names,
}
