"""An audit of a run's claimed epsilon, made once for all cells of the run and kept beside its training.

Two statements by unlike tests (privbench/scoring/epsilon_bounds.py) of what the canaries' code releases
(privbench/execution/canaries.py). The number of guesses follows from the claim alone, before a coin is seen.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from privbench.execution import canaries
from privbench.methods import participation
from privbench.records.entries import Audit
from privbench.records.store import Store
from privbench.scoring import epsilon_bounds
from privbench.spec import TrainSpec
from privbench.system import files
from privbench.training import defended, harness, training_files
from privbench.training.state import Setup
from privbench.types import Federation

SINGLE_RELEASES = 4000


def of_run(store: Store, spec: TrainSpec, federation: Federation, rounds: int, number: int) -> dict[str, Any] | None:
    """What `number` canaries prove of a run after so many rounds; None where none are asked for or nothing is guaranteed.

    UserError: more canaries than parameters.
    """
    if not number or not rounds:
        return None
    path = store.audit(spec, number)
    if not files.to_write(path):
        stored = files.read_digested(path)
        files.check_identity(path, stored, spec=spec.id, rounds=rounds)
        with training_files.reading(path):
            return Audit(**stored["audit"]).model_dump()
    setup = harness.prepare(spec, federation, torch.device("cpu"))
    result = audited(setup, rounds, number)
    if result is None:
        return None
    files.write_digested(path, {"spec": spec.id, "rounds": rounds, "audit": result.model_dump()})
    return result.model_dump()


def audited(setup: Setup, rounds: int, number: int, single_releases: int = SINGLE_RELEASES) -> Audit | None:
    """The audit of a prepared run's smallest client after so many rounds; None where no finite epsilon is guaranteed.

    Of several defences it is of the one that guarantees something: what it releases, before the others act on that.
    """
    setup = replace(setup, defense=setup.defense.mechanism)
    k, _ = defended.smallest_client(setup.method, setup.labels)
    part = participation.rounds_of(setup.method, k, len(setup.labels), rounds)
    claim = defended.guarantees(setup, rounds)[k]
    single = canaries.guarantee_of_single(setup)
    if claim is None or not part or single is None or not math.isfinite(claim.epsilon):
        return None
    mu = epsilon_bounds.gaussian_mu(claim.epsilon, claim.delta)
    guesses = epsilon_bounds.guesses_for(number, mu, claim.delta)
    right = canaries.one_run(setup, number, part).right(guesses)
    singles = canaries.single_releases(setup, single.noise, single_releases)
    advantage = epsilon_bounds.advantage(epsilon_bounds.gaussian_mu(single.epsilon, single.delta))
    return Audit(
        unit=claim.unit,
        claimed=claim.epsilon,
        delta=claim.delta,
        canaries=number,
        guesses=guesses,
        right=right,
        lower_bound=epsilon_bounds.lower_bound(number, guesses, right, claim.delta),
        provable=epsilon_bounds.lower_bound(number, guesses, guesses, claim.delta),
        single_releases=singles.releases,
        single_right=singles.right,
        single_allowed=0.5 + advantage / 2,
        single_p_value=_of_either(
            epsilon_bounds.single_p_value(singles.releases, singles.right, advantage),
            epsilon_bounds.reach_p_value(singles.releases, singles.largest, single.noise),
        ),
    )


def _of_either(*p_values: float) -> float:
    """Of several tests the smallest, corrected for their number (Bonferroni)."""
    return min(len(p_values) * min(p_values), 1.0)
