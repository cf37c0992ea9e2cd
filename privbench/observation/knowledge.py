"""What an attacker may know beyond the artifact, made from the run and given to an attack only where its `needs` name it.

auxiliary   images disjoint from every client's training images, compared by content: the pooled validation images of the
            attacked data set ("same"), or another data set's training images ("digits"), all of them or a share ("digits:0.1")
initial     the networks every client started with, as known to somebody who has the run's seed; nothing where each drew its own
known       images of the attacked clients that are no victims, each with its upload (privbench/observation/other_images.py)
rounds      what the server kept of the rounds that it observed: uploads of images that are no victims
colluder    for each attacked client, the next one, which gives its networks and its training images to the server; images equal
            to one of the attacked client's are left out
oracle      for each attacked client, its own private networks: a reference, not an attacker
sent        for each attacked client, the networks that it sent after its last local training (execution/at_round.py)
candidates  images of which an inference says whether an attacked client trained on them (execution/inferring/candidate_images.py)
domains     which of the candidate domains each auxiliary image is of (privbench/execution/inferring/candidate_domains.py)
specification  of the training run without its seed, and without what names a folder's content

An active attack also receives the broadcast itself, which it crafts from and its artifact does not hold.
A colluder's and the oracle's networks come from the snapshot at which the gradients were taken, initial ones from the beginning of
the run, and those that were sent from the whole state of the attacked round. Nothing here uses the victims.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from privbench import data, registry, written_defense
from privbench.data import auxiliary_choice
from privbench.data.dataset import sound
from privbench.defending import described
from privbench.errors import UserError
from privbench.observation import observe
from privbench.seeds import stream
from privbench.spec import TrainSpec
from privbench.training.state import Replica, Snapshot
from privbench.types import CLASSIFICATION, Artifact, Batch, Colluder, Federation, Images, Knowledge, Networks

SAME = auxiliary_choice.SAME
# Of Knowledge, as `needs` name them.
FIELDS = (
    "auxiliary", "initial", "known", "rounds", "colluder", "oracle", "sent", "candidates", "domains", "specification"
)  # fmt: skip
WHERE_SHARED = " where shared"
HIDE_DROPOUT = frozenset({"prune", "columns"})  # kinds of defences after which a zero tells nothing of dropout
ABSENT = {
    "auxiliary": "auxiliary images; name their data set with --dataset or --auxiliary",
    "initial": "the networks the clients started with, which an artifact file does not hold, and nobody knows where each client "
    "draws its own; attack a run of your own, with --initialisation shared",
    "known": "images of the attacked clients that are known, which an artifact file does not hold; attack a run of your own",
    "rounds": "uploads of the same images in several rounds, which no artifact file or capture names; attack a run of your own",
    "colluder": "the networks and images of a colluding client, but there is no second client here; attack a run with more clients",
    "oracle": "the victims' private networks, which an artifact file does not hold; attack a run of your own",
    "sent": "the networks that each client sent after its local training, which an artifact file does not hold, and of which there "
    "are none before a client's first round; attack a later round of a run of your own",
    "candidates": "images that may be a client's, which an artifact file does not hold; attack a run of your own",
    "domains": "auxiliary images of which the domain is known, which an artifact file does not hold; attack a run of your own",
    "specification": "the specification of the training, which an artifact file does not hold; attack a run of your own",
}


def auxiliary(
    federation: Federation,
    choice: str,
    root: Path | None,
    shape: tuple[int, int, int],
    seed: int,
    content: str | None = None,
) -> tuple[Batch, dict[str, Any]]:
    """The auxiliary images of one choice [N, C, H, W] in [0, 1], and what a record says of them.

    Images equal to a training image of any client, victims among them, are left out and counted. A share is drawn at random,
    once per seed. Classes of another data set count as the victims' where all have the same names, else by position.
    `content` stands for the files of a folder (`CellSpec.auxiliary_content`).
    UserError: images of another shape, more classes than the victims' data set has, nothing left, or a folder that has changed.
    """
    name, share = auxiliary_choice.parsed(choice)
    if content is not None and data.content(name) != content:
        raise UserError(f"the files of {name} have changed since this cell was specified; specify the cell anew")
    if name == SAME:
        pools, classes = [client.validation for client in federation.clients], federation.classes
    else:
        loaded = sound(data.load(name, root, side=shape[-1]), shape[-1])
        pools, classes = [domain.train for domain in loaded.domains.values()], loaded.classes
    pools = [pool for pool in pools if len(pool.labels)]
    if pools and pools[0].images.shape[1] != shape[0]:
        raise UserError(
            f"auxiliary images of {name} have {pools[0].images.shape[1]} channels, but the victims' have {shape[0]}; "
            "choose a data set of the same kind with --auxiliary"
        )
    labels, meaning = _labels(name, classes, federation.classes)
    forbidden = digests(client.train.images for client in federation.clients)
    remaining = []
    for pool in pools:
        disjoint = torch.tensor([digest not in forbidden for digest in _digests(pool.images)], dtype=torch.bool)
        remaining.append(Images(pool.images[disjoint], labels[pool.labels[disjoint]]))
    total = sum(len(pool.labels) for pool in remaining)
    if not total:
        raise UserError(f"no image of {name} is left as an auxiliary image; choose another data set with --auxiliary")
    if share < 1:
        count = max(1, round(share * total))
        chosen = torch.randperm(total, generator=stream(seed, "auxiliary", name))[:count].sort().values
        everything = Images(torch.cat([k.images for k in remaining]), torch.cat([k.labels for k in remaining]))
        remaining = [Images(everything.images[chosen], everything.labels[chosen])]
    batch = observe.pooled(remaining, shape[-1])
    info = {
        "dataset": name,
        "share": share,
        "images": len(batch.labels),
        "labels": meaning,
        "left_out_as_training_images": sum(len(pool.labels) for pool in pools) - total,
    }
    return batch, info


def _labels(name: str, classes: tuple[str, ...], attacked: tuple[str, ...]) -> tuple[Tensor, str]:
    """What each class of the auxiliary data set is called in the attacked one: ([Y'] int64, how they were matched)."""
    if set(classes) <= set(attacked):
        return torch.tensor([attacked.index(each) for each in classes]), "by name"
    if len(classes) > len(attacked):
        raise UserError(
            f"auxiliary data set {name} has {len(classes)} classes, more than the {len(attacked)} of the victims' data set; "
            "choose another with --auxiliary"
        )
    return torch.arange(len(classes)), "by position"


def digests(sets: Iterable[Tensor]) -> set[bytes]:
    """The contents of stored images [N, C, s, s] uint8, to find whether two sets share one."""
    return {digest for images in sets for digest in _digests(images)}


def _digests(images: Tensor) -> list[bytes]:
    flat = images.contiguous().flatten(1).numpy()
    return [hashlib.sha256(row.tobytes()).digest() for row in flat]


def initial(replica: Replica) -> Networks:
    """The classification networks of round 0."""
    return _classification(replica.params, replica.buffers)


def of_client(snapshot: Snapshot, client: int) -> Networks:
    """The networks that client takes its gradient at: the broadcast ones and its own private ones."""
    state, server = snapshot.clients[client], snapshot.server
    return _classification(state.params | server.params, state.buffers | server.buffers)


def specification(spec: TrainSpec, defense: Mapping[str, Any], *, flips: bool) -> dict[str, Any]:
    """A training specification as the server that prescribes it has it: without the seed, and what a folder contains.

    `defense` is its description, with the noise that clients were told where one was solved for an epsilon.
    `flips`: whether clients flip images in training, which is the data set's doing, too (types.Federation.flip).
    """
    noise = next((one["noise"] for one in described.single(defense) if "noise" in one), None)
    planned = written_defense.with_noise(spec.defense, noise)
    return spec.model_dump(mode="json", exclude={"seed", "content"}) | {"flip": flips, "defense": planned}


def oracle(snapshot: Snapshot, seen: Artifact) -> dict[int, Networks] | None:
    """Attacked client -> its own networks; None where uploads are sums over clients."""
    if seen.member_weights is not None:
        return None
    return {k: of_client(snapshot, k) for k in sorted(set(seen.client.tolist()))}


def colluder(snapshot: Snapshot, seen: Artifact, federation: Federation) -> dict[int, Colluder] | None:
    """Attacked client -> the next client, never itself; None where there is no other client, and where uploads are sums of all."""
    clients = len(snapshot.clients)
    if clients < 2 or seen.member_weights is not None:
        return None
    colluders = {}
    for k in sorted(set(seen.client.tolist())):
        other = (k + 1) % clients
        train, forbidden = federation.clients[other].train, digests([federation.clients[k].train.images])
        disjoint = torch.tensor([digest not in forbidden for digest in _digests(train.images)], dtype=torch.bool)
        images = observe.pooled([Images(train.images[disjoint], train.labels[disjoint])], seen.model.image_size)
        colluders[k] = Colluder(*of_client(snapshot, other), images)
    return colluders


def only(needs: frozenset[str], whole: Knowledge, name: str) -> Knowledge:
    """The part of `whole` that an attack's needs name; UserError where that is not there.

    An attack that receives auxiliary images also receives the folder for what it trains on them. An active one receives what it
    would have sent as an honest server, and what is known of the uploads before they arrive.
    """
    needed = {field: getattr(whole, field) for field in FIELDS if field in needs}
    for field, value in needed.items():
        if value is None:
            raise UserError(f"{name} needs {ABSENT[field]}")
    acts = (whole.broadcast is not None or whole.expected is not None) and registry.is_active(name)
    honest, expected = (whole.broadcast, whole.expected) if acts else (None, None)
    return Knowledge(**needed, broadcast=honest, expected=expected, cache=whole.cache if "auxiliary" in needs else None)


def uses(attack: Any) -> frozenset[str]:
    """What an attack reads where the artifact has it, beside its needs."""
    offers: frozenset[str] = getattr(attack, "uses", frozenset())
    return offers


def not_modelled(attack: Any, seen: Artifact) -> list[str]:
    """What the defence of an artifact does (privbench/defending/described.py, `kinds`) that an attack has no form for; sorted.

    An attack says in `knows` what it has a form for, and in `knows_private` what of it where the extractor is private, if that is
    less. No attack clips each image of a batch whose private extractors enter the norm, or knows what was dropped where the
    defence leaves zeros of its own. One that reads no gradient and no update has nothing to know.
    """
    if not any(name.startswith(("gradient", "update")) for name in attack.needs | uses(attack)):
        return []
    knows: frozenset[str] = getattr(attack, "knows", frozenset())
    if "extractor" not in seen.weights:
        knows = getattr(attack, "knows_private", knows)
        knows = knows - {described.CLIPS_IMAGES} if seen.images_per_client > 1 else knows
    # Of a client that was isolated in a sum, its message stands there by itself.
    defense = seen.defense if seen.target is None else described.of_one_message(seen.defense)
    done = described.kinds(defense)
    # Zeros of the defence hide those of dropout, without which a candidate's gradient is another.
    hidden = {"dropout"} if seen.model.dropout and done & HIDE_DROPOUT and "extractor" in seen.weights else set()
    return sorted((done | hidden) - knows)


def pooled(attack: Any, seen: Artifact) -> int | None:
    """How many uploads of one client, at most, an attack reconstructs each image from; None where each is reconstructed alone.

    An attack that pools (`pools`) learns of a client's private extractor from all its attacked uploads, so that results change with
    the number of victims. Where the extractor is broadcast there is nothing to learn.
    """
    if not getattr(attack, "pools", False) or "extractor" in seen.weights:
        return None
    return int(torch.bincount(seen.client.cpu()).max())


def pooled_clients(attack: Any, seen: Artifact) -> int | None:
    """From how many attacked clients an inference states each client's answer; None where from that client alone.

    One that pools (`pools_clients`) states something else of a client where other clients are attacked beside it.
    """
    return len(seen.client.unique()) if getattr(attack, "pools_clients", False) else None


def tag(attack: Any, offered: Collection[str] | None = None) -> str:
    """What an attack knows, in words: on artifacts that offer that much, e.g. "gradient + auxiliary + generator"; else in general.

    In general what it uses is followed by WHERE_SHARED. What `knowledge` names already is not repeated: gradients and updates of
    any part, and a part of which an attack needs one form and uses another.
    """
    named = attack.knowledge.split(" + ")
    names = sorted(use for use in uses(attack) if use.partition(":")[0] not in ("gradient", "update"))
    words = [(use.partition(":")[2] or use).replace("_", " ") for use in names if offered is None or use in offered]
    more = [f" + {word}{WHERE_SHARED if offered is None else ''}" for word in words if word not in named]
    return "".join([attack.knowledge, *more])


def _classification(params: dict[str, Any], buffers: dict[str, Any]) -> Networks:
    return Networks({p: params[p] for p in CLASSIFICATION}, {p: buffers[p] for p in CLASSIFICATION})
