"""Which clients take part in a round, as the method says."""

from __future__ import annotations

from itertools import pairwise

from privbench.errors import UserError
from privbench.methods.base import Method


def of_round(method: Method, round_: int, clients: int) -> tuple[int, ...]:
    """The clients that take part in round r = 1, 2, ...; UserError where the method names none, or one that there is not."""
    each = tuple(method.participants(round_, clients))
    if not each or not 0 <= each[0] <= each[-1] < clients or any(a >= b for a, b in pairwise(each)):
        raise UserError(
            f"{type(method).__name__}.participants should name one client or more from 0 to {clients - 1}, ascending, but of round "
            f"{round_} it names {list(each)}"
        )
    return each


def in_two_phases(round_: int, clients: int) -> tuple[int, ...]:
    """SecureGAN's phases: all clients in round 1, then one after another by number."""
    return tuple(range(clients)) if round_ == 1 else ((round_ - 2) % clients,)


def rounds_of(method: Method, client: int, clients: int, rounds: int) -> int:
    """In how many of the first `rounds` rounds one of K clients takes part."""
    return sum(client in of_round(method, round_, clients) for round_ in range(1, rounds + 1))
