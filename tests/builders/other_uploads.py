"""Uploads beside those of the victims: of images that an attacker knows, and of images that the server kept."""

from typing import Any

from privbench.observation import chosen_victims, observe, other_images
from privbench.observation.chosen_victims import ChosenImages
from privbench.training.state import Setup, Snapshot
from privbench.types import Artifact


def other_uploads(setup: Setup, method: str, start: Snapshot, shot: Snapshot) -> dict[str, Any]:
    """Two known images of each client, and what the server kept of two others in round 0 and in the attacked one."""
    if "classifier" not in setup.method.shared_parts:
        return {}
    victims = chosen_victims.choose_victims(setup.federation, 2, 1, 0, shape=setup.method.client_tasks)

    def uploads(snapshot: Snapshot, chosen: ChosenImages, *, labels_known: bool) -> Artifact:
        return observe.observe(
            snapshot, setup.federation, setup.model, setup.method, setup.defense, method_name=method, dataset="digits",
            victims=2, batch_size=1, labels_known=labels_known, seed=0, chosen=chosen,
        )[0]  # fmt: skip

    known, kept = (
        other_images.choose(setup.federation, victims, 2, 0, named, image_size=32)
        for named in (other_images.KNOWN, other_images.KEPT)
    )
    return {
        "known": other_images.as_known(known, uploads(shot, known, labels_known=True), None, 0),
        "rounds": tuple(
            uploads(each, other_images.in_round(kept, each.round, 0), labels_known=False) for each in (start, shot)
        ),
    }
