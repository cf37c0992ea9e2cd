"""What can be checked before anything is trained: whether a cell's attack, data and victims are possible at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from privbench import registry, written_defense
from privbench.errors import UserError
from privbench.execution import applicability, at_round, generator_scores, one_attack, worker_pool
from privbench.execution.inferring import candidate_domains, candidate_images
from privbench.observation import active_server, chosen_victims, knowledge, observe
from privbench.records.store import Store
from privbench.scoring.statement_scores import QUESTIONS
from privbench.spec import CellSpec, TrainSpec
from privbench.training import defended, federation
from privbench.types import CheckedAttack, Federation


def check_data(specs: Sequence[TrainSpec], data_dir: Path | None, *, workers: int) -> None:
    """UserError unless the data of every specification is present, or can be downloaded, and can be partitioned as it says."""
    try:
        for spec in _one_seed(specs):
            federation.of(spec, data_dir)
    finally:
        _forget(workers)


def impossible(store: Store, cells: Sequence[CellSpec], data_dir: Path | None, *, workers: int) -> dict[str, str]:
    """Cell id -> why it cannot be made, of the unfinished cells of which that is known before anything is trained.

    Data sets are read here, each once; those that are absent are none of this module's (study_run.absent_data).
    """
    reasons: dict[str, str] = {}
    try:
        for cell in sorted((c for c in cells if not store.record(c).exists()), key=lambda c: c.train.dataset):
            try:
                _check(cell, data_dir)
            except Exception as error:  # noqa: BLE001 (a data set of a user's own may raise anything)
                reasons[cell.id] = worker_pool.logged(error, store.log(cell))
    finally:
        _forget(workers)
    return reasons


def _check(cell: CellSpec, data_dir: Path | None) -> None:
    """UserError for a cell that cannot be made; the first fault of several."""
    if cell.attack is not None:
        _check_attack(cell)
    fed, _ = federation.of(cell.train, data_dir)
    if cell.generated:
        generator_scores.check(cell.train, fed)
    if cell.attack is None:
        return
    method = federation.method_of(cell.train)
    defense, rounds, clients = (
        written_defense.create(cell.train.defense, cell.train.where),
        cell.able_rounds,
        len(fed.clients),
    )
    # One round of each choice of clients.
    for of, round_ in {chosen_victims.senders(method, n, clients): n for n in rounds}.items():
        summed = chosen_victims.summed(defense, method, [round_], clients)
        chosen_victims.check_victims(
            fed, cell.victims, cell.batch_size, cell.train.seed, method.client_tasks, summed=summed, of=of
        )
    attack = registry.create(registry.resolve("attack", cell.attack), cell.attack_settings)
    if isinstance(attack, CheckedAttack):
        attack.check(federation.model_of(cell.train, fed), len(fed.clients))
    needs = attack.needs
    for need, choose in (("known", at_round.known_images), ("rounds", at_round.kept_images)):
        if need in needs:
            choose(cell, cell.train, fed, max(rounds))
    _check_asked(cell, needs, fed, max(rounds), data_dir)
    if "auxiliary" in needs and cell.auxiliary != knowledge.SAME:
        attacker_view = federation.as_known(cell.train, fed)
        shape = _image_shape(fed, cell)
        knowledge.auxiliary(attacker_view, cell.auxiliary, data_dir, shape, cell.train.seed, cell.auxiliary_content)


def _check_asked(cell: CellSpec, needs: frozenset[str], fed: Federation, last: int, data_dir: Path | None) -> None:
    """UserError where there is nothing that an inference could be asked about."""
    if "candidates" in needs:
        candidate_images.of_cell(cell, cell.train, fed, last)
    if "domains" in needs:
        candidate_domains.of_cell(cell, cell.train, fed, data_dir)


def _image_shape(fed: Federation, cell: CellSpec) -> tuple[int, int, int]:
    side = cell.train.image_size
    return (int(fed.clients[0].train.images.shape[1]), side, side)


def _check_attack(cell: CellSpec) -> None:
    name, train = str(cell.attack), cell.train
    method = registry.create(registry.resolve("method", train.method), train.method_settings)
    attack = registry.create(registry.resolve("attack", name), cell.attack_settings)
    update = cell.observe == "update"
    if method.shared_parts:
        chosen_victims.check_sent(train.method, method, update=update, round_=cell.round)
    defense = written_defense.create(train.defense, train.where)
    summed = chosen_victims.summed(defense, method, cell.able_rounds, train.clients)
    if "aggregate" in attack.needs and "aggregate" in defense.places and not summed:
        raise UserError(
            f"{name} takes clients' messages out of a sum, but from round 1 on one client of {train.method} sends alone; "
            "try --round 0"
        )
    offers = observe.offers(method, labels_known=cell.labels_known, update=update, summed=summed)
    one_attack.check_offered(name, attack.needs, offers, train.method, method.shared_parts, update=update)
    if active_server.too_early(cell):
        raise UserError(f"{name} {active_server.TOO_EARLY}; attack a later round")
    if "sent" in attack.needs and cell.round == "0":
        raise UserError(f"{name} needs {knowledge.ABSENT['sent']}")
    if "colluder" in attack.needs and train.clients < 2:
        raise UserError(f"{name} needs {knowledge.ABSENT['colluder']}")
    if "aggregate" in defense.places:
        defended.check_sums(train.method, method, train.clients)
    if registry.is_inference(name) and attack.question not in QUESTIONS:
        raise UserError(f"{name} states '{attack.question}', but what is scored is {', '.join(QUESTIONS)}")
    if fault := applicability.exceeded(name, applicability.of(attack), cell):
        raise UserError(fault)


def _one_seed(specs: Sequence[TrainSpec]) -> list[TrainSpec]:
    """One specification for all that differ in the seed alone."""
    return list({spec.model_copy(update={"seed": 0}).id: spec for spec in reversed(specs)}.values())


def _forget(workers: int) -> None:
    """Drops what was read here, where other processes read it again; where this one trains, it is read once."""
    if workers > 1:
        federation.read.cache_clear()
        federation.laid_out.cache_clear()
