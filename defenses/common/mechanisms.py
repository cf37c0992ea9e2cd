"""What a run releases, and what that guarantees to one image or to one client.

Neighbouring data sets, by unit:
    example   one training image added or removed. Each image's gradient has norm C at most, and a Poisson sample draws images
              independently, so that a step is a sampled Gaussian mechanism of sensitivity C.
    client    the client being there or not. Its message has norm C at most, whatever its data, so that a round is a Gaussian
              mechanism of sensitivity C.
"""

from __future__ import annotations

import math

from defenses.common import accounting
from defenses.common.accounting import Releases
from privbench.defense import Facts, Guarantee
from privbench.errors import UserError


def check_rate(name: str, lr: float) -> None:
    """UserError unless a learning rate is positive and finite."""
    if not (math.isfinite(lr) and lr > 0):
        raise UserError(f"the defence {name} needs lr above 0, but {lr:g} was given")


def by_steps(facts: Facts, noise: float) -> tuple[Releases, ...]:
    """One release a mini-batch, of every stage that reads images; a mini-batch is a Poisson sample."""
    return tuple(
        Releases(noise, min(stage.batch / facts.examples, 1.0), stage.steps * facts.rounds)
        for stage in facts.stages
        if stage.reads == "images"
    )


def by_rounds(facts: Facts, noise: float) -> tuple[Releases, ...]:
    """One release a round, of all that the client sends."""
    return (Releases(noise, 1.0, facts.rounds),)


def of_examples(facts: Facts, noise: float, delta: float) -> Guarantee:
    """What per-example clipping and noise in every step guarantee for one training image."""
    spent = accounting.spent(by_steps(facts, noise), delta)
    # A network that is trained on labels alone gets uniform ones, so that it is made of what is private already.
    covers = {part for stage in facts.stages for part in stage.trains}
    return Guarantee(spent.epsilon, delta, noise, "example", tuple(sorted(covers)), facts.besides, spent.accountant)


def of_client(facts: Facts, noise: float, times: int, delta: float) -> Guarantee:
    """What clipping and noise of everything that a client sends guarantee for the whole client, sent so many times."""
    spent = accounting.spent((Releases(noise, 1.0, times),), delta)
    covers = tuple(sorted(facts.shared_parts))
    return Guarantee(spent.epsilon, delta, noise, "client", covers, facts.besides, spent.accountant)
