"""What an observation must hold to be an artifact: one round, one table of victims, and at most one of weights."""

from __future__ import annotations

from pathlib import Path

from privbench.errors import UserError
from privbench.observation.format import schema
from privbench.observation.format.files import Stored
from privbench.observation.format.schema import Messages, RoundEntry

OTHERS = "others"  # the broadcast to all clients but the target


def single(stored: Stored) -> tuple[RoundEntry, Messages, Messages | None]:
    """(the round, the attacked messages, the weights that clients sent) of an observation that is an artifact; else UserError.

    Where weights are attacked themselves, both tables are one.
    """
    index, folder = stored.index, stored.folder
    if len(index.rounds) != 1:
        raise UserError(f"{folder} holds {len(index.rounds)} rounds; attacks of this privbench take one")
    entry, networks = index.rounds[0], index.setup.networks
    if networks is None:
        raise UserError(f"{folder} names no networks; attacks of this privbench take its own alone")
    victims = [table for table in entry.messages if table.kind != "weights" or table.victims is not None]
    weights = [table for table in entry.messages if table.kind == "weights"]
    if len(victims) != 1 or len(weights) > 1:
        raise UserError(
            f"{folder} holds {len(victims)} tables of victims and {len(weights)} of weights; attacks of this privbench take one, "
            "and at most one"
        )
    if victims[0].batch_size is None or (victims[0].kind == "update") != (victims[0].local is not None):
        raise UserError(f"{folder} does not say how its messages came about; attacks of this privbench ask for it")
    if victims[0].kind == "weights":
        _check_senders(folder, victims[0])
    else:
        _check_members(folder, victims[0], weights[0] if weights else None)
    _check_broadcasts(folder, entry, victims[0])
    if wrong := {t.dtype for t in entry.tensors.values()} - {"float32", "int64"}:
        raise UserError(f"{folder} holds {', '.join(sorted(wrong))}; attacks of this privbench take float32")
    if victims[0].kind == "gradient" and any(
        split is not None and split[0] == victims[0].name and split[1] == "buffers"
        for split in map(schema.split, entry.tensors)
    ):
        raise UserError(f"{folder} holds buffers of {victims[0].name}; attacks of this privbench know none")
    return entry, victims[0], weights[0] if weights else None


def _check_members(folder: Path, victims: Messages, weights: Messages | None) -> None:
    """UserError unless every message is one client's, or every one the sum of all clients with the weight of each."""
    members = victims.members
    if victims.weights is not None or any(len(each) > 1 for each in members):
        everyone = list(range(len(members[0])))
        if victims.weights is None or any(each != everyone for each in members) or len(everyone) < 2:
            raise UserError(
                f"{folder} holds sums over clients; attacks of this privbench take sums over all of them, with the weight of each"
            )
        if (victims.batch_size or 0) % len(everyone):
            raise UserError(
                f"{folder} holds sums of {victims.batch_size} images of {len(everyone)} clients; attacks of this privbench take "
                "as many images of each"
            )
        if weights is not None and weights.members != [everyone]:
            raise UserError(f"{folder} holds sums over clients, and not the sum of the weights that they sent")
        return
    if weights is None:
        return
    if weights.members != [[client] for client in range(len(weights.members))]:
        raise UserError(f"{folder} does not hold the weights of every client in turn; attacks of this privbench do")
    if (last := max(client for (client,) in members)) >= len(weights.members):
        raise UserError(f"{folder} holds no weights of client {last}, whose message is there")


def _check_broadcasts(folder: Path, entry: RoundEntry, victims: Messages) -> None:
    """UserError unless all clients received the same, or all but the target of every sum, or each client of sums its own."""
    named = [(each.name, each.clients) for each in entry.broadcasts or ()]
    members = victims.members[0]
    expected = [] if victims.target is None else [(OTHERS, [each for each in members if each != victims.target])]
    if named not in (expected, divided_names(victims)):
        raise UserError(
            f"{folder} holds {len(named) + 1} broadcasts; attacks of this privbench take one to all clients, or one to the target "
            "of a sum and one to all others, or of sums one to each client"
        )


def divided_names(victims: Messages) -> list[tuple[str, list[int]]]:
    """(name, clients) of what each client but the first received, where all of a sum received networks of their own."""
    if victims.weights is None or victims.target is not None:
        return []
    return [(f"client-{k}", [k]) for k in victims.members[0][1:]]


def _check_senders(folder: Path, table: Messages) -> None:
    """UserError unless attacked weights are one client's each, no two of one client, or the one sum of all clients."""
    if table.weights is None:
        if any(len(each) > 1 for each in table.members) or len({each[0] for each in table.members}) < len(
            table.members
        ):
            raise UserError(
                f"{folder} does not say of each message which one client sent it; attacks of this privbench ask for it"
            )
        return
    everyone = list(range(len(table.members[0])))
    if table.members != [everyone] or len(everyone) < 2 or (table.batch_size or 0) % len(everyone):
        raise UserError(
            f"{folder} holds sums of weights; attacks of this privbench take one, over all clients, with as many images of each"
        )
