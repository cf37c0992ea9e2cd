"""What an attacker has of uploads besides the attacked ones, observed only for attacks whose `needs` name it.

`known` (images of the attacked clients whose content is known) and `rounds` (what the server kept of earlier rounds), both of
images that are never victims (privbench/observation/other_images.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from privbench import registry
from privbench.execution import at_round
from privbench.observation import chosen_victims, other_images
from privbench.observation.chosen_victims import ChosenImages
from privbench.records.store import Store
from privbench.spec import CellSpec, TrainSpec
from privbench.training import federation
from privbench.training.state import Snapshot
from privbench.types import Artifact, Federation, Progress


def of_cell(
    store: Store,
    cell: CellSpec,
    spec: TrainSpec,
    data_root: Path | None,
    device_name: str,
    seen: Artifact,
    shot: Snapshot,
    progress: Progress,
) -> dict[str, Any]:
    """The fields of Knowledge that the needs of a cell's attack name of these; of sums over clients there is none."""
    needs = registry.resolve("attack", str(cell.attack)).needs
    if not needs & {"known", "rounds"} or seen.member_weights is not None:
        return {}
    fed, _ = federation.of(spec, data_root)
    further = dict[str, Any]()
    if "known" in needs:
        chosen = known_images(cell, spec, fed, shot.round)
        uploads, _ = at_round.observe(cell, spec, fed, shot, chosen, labels_known=True)
        further["known"] = other_images.as_known(chosen, uploads, cell.known_quality_db, spec.seed)
    if "rounds" in needs:
        chosen = kept_images(cell, spec, fed, shot.round)
        rounds = other_images.observed_rounds(cell.observed_rounds, shot.round)
        further["rounds"] = tuple(
            at_round.observe(
                cell,
                spec,
                fed,
                shot if r == shot.round else at_round.snapshot(store, spec, r, fed, device_name, progress),
                other_images.in_round(chosen, r, spec.seed),
            )[0]
            for r in rounds
        )
    return further


def known_images(cell: CellSpec, spec: TrainSpec, fed: Federation, round_: int) -> ChosenImages:
    """The images that the attacker of a cell knows; UserError where there are too few."""
    return _chosen(cell, spec, fed, round_, cell.known_images or 0, other_images.KNOWN)


def kept_images(cell: CellSpec, spec: TrainSpec, fed: Federation, round_: int) -> ChosenImages:
    """The images whose uploads the server of a cell keeps from round to round; UserError where there are too few."""
    return _chosen(cell, spec, fed, round_, cell.uploads_per_round or 0, other_images.KEPT)


def about(cell: CellSpec, round_: int) -> dict[str, Any]:
    """What a record says of it."""
    needs = registry.resolve("attack", str(cell.attack)).needs
    said = dict[str, Any]()
    if "known" in needs:
        said["known"] = {"images": cell.known_images, "quality_db": cell.known_quality_db}
    if "rounds" in needs:
        rounds = other_images.observed_rounds(cell.observed_rounds, round_)
        said["rounds"] = {"observed": list(rounds), "uploads": cell.uploads_per_round}
    return said


def _chosen(cell: CellSpec, spec: TrainSpec, fed: Federation, round_: int, each: int, named: str) -> ChosenImages:
    method = federation.method_of(spec)
    of = chosen_victims.senders(method, round_, len(fed.clients))
    victims = chosen_victims.choose_victims(
        fed, cell.victims, cell.batch_size, spec.seed, spec.image_size, method.client_tasks, of=of
    )
    return other_images.choose(fed, victims, each, spec.seed, named, image_size=spec.image_size)
