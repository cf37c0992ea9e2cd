"""An active server: it sends crafted networks in place of its broadcast, in the attacked round and perhaps some before it.

An attack with `active = True` has `craft(model, broadcast, knowledge, seed) -> Networks`, which may return nothing and so be
honest; `knowledge.expected` says how large the victim batches are and what defends them. Its field `active_rounds`, where it has
one, says for how many rounds before the attacked one the server has been sending them: with n such rounds and an attack after
round r it is honest for r - n rounds, crafts once from what it would send then, and sends that at the start of each of the
rounds r - n + 1 .. r and once more in the attacked one. The clients train on it as on any broadcast (harness.train_round, on
the method's own clock), and what they return is discarded. So an active server attacks in the same round as an honest one.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from privbench import registry, seeds, written_defense
from privbench.errors import AttackRefused, Damaged, UserError
from privbench.methods.base import Method
from privbench.observation import chosen_victims, local_update, observe
from privbench.observation import knowledge as known
from privbench.spec import CellSpec
from privbench.system import files
from privbench.training import checkpoint, federation, harness, training_files
from privbench.training.state import Isolated, Replica, Setup, Snapshot
from privbench.types import (
    ActiveAttack,
    CheckedAttack,
    DividingAttack,
    ExpectedUpload,
    IsolatingAttack,
    Knowledge,
    Networks,
    Progress,
    no_progress,
)

TOO_EARLY = "works through rounds of training, and round 0 is before any"
LOG = logging.getLogger("privbench")
NEEDS_UPDATES = "needs whole local updates, and single gradients were observed; add --observe update"
HISTORY = "active.json"  # how the clients fared in the crafted rounds, beside the artifact


def rounds(cell: CellSpec) -> int:
    """For how many rounds before the attacked one the server of a cell wants to send crafted networks."""
    if not cell.active:
        return 0
    return int(getattr(_attack(cell), "active_rounds", 0))


def sent(cell: CellSpec, setup: Setup, shot: Snapshot, data_root: Path | None) -> Snapshot:
    """The snapshot with what the attacked clients receive: crafted by an active attack, else the honest broadcast.

    A snapshot of `trained` holds what was crafted already. An attack with `craft_others` sends something else to all clients but
    its target, one with `craft_each` something else to each. AttackRefused: an attack that cannot craft these networks, or crafts a
    part the method does not broadcast.
    """
    if not cell.active or rounds(cell):
        return shot
    attack = _attack(cell)
    if isinstance(attack, CheckedAttack):
        try:
            attack.check(setup.model, len(shot.clients))
        except UserError as error:
            raise AttackRefused(str(error)) from error
    if isinstance(attack, DividingAttack):
        each = crafted_each(cell, setup, attack, shot, data_root)
        return shot._replace(server=each[0], divided=each) if each else shot
    server = crafted(cell, setup, shot.server, shot.round, data_root, None)
    if not isinstance(attack, IsolatingAttack):
        return shot._replace(server=server)
    others = _sent(cell, setup, shot.server, attack.craft_others(setup.model, _broadcast(shot.server)))
    return shot._replace(server=server, isolated=Isolated(attack.target, others))


def trained(
    cell: CellSpec,
    setup: Setup,
    round_: int,
    folder: Path,
    honest: Path,
    data_root: Path | None,
    cache: Path | None = None,
    progress: Progress = no_progress,
) -> Snapshot:
    """The networks after `round_` rounds, the last `rounds(cell)` of them (or as many as there are) on crafted networks.

    `server` is what was crafted. The snapshot is kept in `folder`, as it belongs to this attack alone; the honest rounds before
    begin at the latest whole state that the run in `honest` kept. AttackRefused as `sent`, where the method does not send what
    the attack needs, and before the first round.
    """
    if is_stored(folder, round_):
        try:
            return checkpoint.load_snapshot(folder, setup.spec.id, round_, folder.name)
        except Damaged as error:
            LOG.warning("%s; its rounds are trained again", error)
    name, method = setup.spec.method, setup.method
    if lack := lacking(cell, method):
        raise AttackRefused(f"{cell.attack} {lack}")
    if round_ == 0:
        raise AttackRefused(f"{cell.attack} {TOO_EARLY}; attack a later round")
    first = round_ - min(rounds(cell), round_)
    state = harness.state_at(setup, honest, first, progress)
    server = crafted(cell, setup, state.server, round_, data_root, cache)
    while state.round < round_:
        progress(state.round, round_, f"{name}: round {state.round + 1} under {cell.attack}")
        state.server = Replica(dict(server.params), dict(server.buffers), state.server.moments)
        harness.train_round([setup], [state], "alone")
    state.server = server
    accuracy = {str(entry["round"]): entry["validation_accuracy"] for entry in state.history[first:]}
    summary = {"artifact": folder.name, "active_rounds": round_ - first, "validation_accuracy": accuracy}
    files.write_digested(folder / HISTORY, summary)
    checkpoint.save_snapshot(folder, setup.spec, state, folder.name)
    return checkpoint.load_snapshot(folder, setup.spec.id, round_, folder.name)


def is_stored(folder: Path, round_: int) -> bool:
    """Whether what `trained` writes is there, how the clients fared included."""
    return (folder / HISTORY).exists() and checkpoint.snapshot_path(folder, round_).exists()


def crafted_rounds(folder: Path) -> dict[str, Any]:
    """What a record's `knowledge` says of crafted rounds before the attacked one: how many there were; {} without any."""
    path = folder / HISTORY
    if not path.exists():
        return {}
    summary = files.read_digested(path)
    files.check_identity(path, summary, artifact=folder.name)
    with training_files.reading(path):
        return {"active_rounds": summary["active_rounds"]}


def too_early(cell: CellSpec) -> bool:
    """Whether an attack that works through rounds of training is asked to attack before the first."""
    return cell.round == "0" and rounds(cell) > 0


def lacking(cell: CellSpec, method: Method) -> str:
    """What a cell's attack needs and its method does not send, in words, before anything is trained; nothing where all is met."""
    defense = written_defense.create(cell.train.defense, cell.train.where)
    summed = chosen_victims.summed(defense, method, cell.able_rounds, cell.train.clients)
    offered = observe.offers(method, labels_known=cell.labels_known, update=cell.observe == "update", summed=summed)
    needed = registry.needs(cell.attack or "", cell.attack_settings)
    missing = sorted(needed - offered - set(known.FIELDS))
    if missing and cell.observe != "update" and all(need.startswith("update") for need in missing):
        return NEEDS_UPDATES
    return f"needs the {', '.join(missing)}, which {cell.train.method} does not send" if missing else ""


def crafted(
    cell: CellSpec, setup: Setup, server: Replica, round_: int, data_root: Path | None, cache: Path | None
) -> Replica:
    """What the server sends in place of its broadcast, to attack after `round_` rounds; AttackRefused as `sent`.

    Crafted on the CPU, whatever trains, and from the attacker's seed, as its attack is.
    """
    attack = _attack(cell)
    attackers = _attackers(cell, setup, attack, round_, data_root, cache)
    seed = seeds.of_attacker(setup.spec.id, round_)
    try:
        networks = attack.craft(setup.model, _broadcast(server), attackers, seed)
    except UserError as error:
        raise AttackRefused(str(error)) from error
    return _sent(cell, setup, server, networks)


def crafted_each(
    cell: CellSpec, setup: Setup, attack: DividingAttack, shot: Snapshot, data_root: Path | None
) -> list[Replica]:
    """What the server sends to each client in place of its broadcast; nothing where it is honest; AttackRefused as `sent`."""
    attackers = _attackers(cell, setup, attack, shot.round, data_root, None)
    seed = seeds.of_attacker(setup.spec.id, shot.round)
    try:
        networks = attack.craft_each(setup.model, _broadcast(shot.server), attackers, seed)
    except UserError as error:
        raise AttackRefused(str(error)) from error
    return [_sent(cell, setup, shot.server, each) for each in networks]


def _attackers(
    cell: CellSpec, setup: Setup, attack: ActiveAttack, round_: int, data_root: Path | None, cache: Path | None
) -> Knowledge:
    """What an active attack is told before it crafts, of the messages that come after `round_` rounds."""
    model = setup.model
    shape = (model.channels, model.image_size, model.image_size)
    attacker_view = federation.as_known(setup.spec, setup.federation)
    images, _ = known.auxiliary(
        attacker_view, cell.auxiliary, data_root, shape, setup.spec.seed, cell.auxiliary_content
    )
    weights = None
    if chosen_victims.summed(setup.defense, setup.method, [round_], len(setup.labels)):
        of = chosen_victims.senders(setup.method, round_, len(setup.labels))
        weights = tuple(setup.method.counts_for(len(setup.labels[k])) for k in of)
    whole = Knowledge(
        auxiliary=images,
        expected=ExpectedUpload(
            cell.batch_size * len(weights or (1,)),
            setup.defense,
            cell.wire,
            local_update.of_method(local_update.local_steps(cell), setup.method),
            weights,
            labels_known=cell.labels_known,
        ),
        cache=cache,
    )
    return known.only(attack.needs, whole, str(cell.attack)).to(torch.device("cpu"))


def _broadcast(server: Replica) -> Networks:
    """What an honest server would send."""
    return Networks(server.params, server.buffers).to(torch.device("cpu"))


def _sent(cell: CellSpec, setup: Setup, server: Replica, networks: Networks) -> Replica:
    """The broadcast with the crafted networks in place of some; AttackRefused for a part that is not broadcast."""
    if foreign := sorted({*networks.params, *networks.buffers} - set(server.params)):
        raise AttackRefused(
            f"{cell.attack} crafts the {', '.join(foreign)}, which {setup.spec.method} does not broadcast"
        )
    networks = networks.to(setup.device)
    return Replica(server.params | networks.params, server.buffers | networks.buffers)


def _attack(cell: CellSpec) -> ActiveAttack:
    attack: ActiveAttack = registry.create(registry.resolve("attack", str(cell.attack)), cell.attack_settings)
    return attack
