"""Records of schema 2, brought to schema 3 without training or attacking again.

Schema 2 kept a flat specification, summaries with intervals over victims, and no outcomes. The specification becomes a `CellSpec`,
and summaries are left out, as they follow from seeds and victims. Of what schema 2 did not keep:

attack_revision, local_steps, local_lr   those with which the record's own id comes out; where none does, what the record says
accuracy_at_round                        one number for each seed, the mean over all clients and seeds
outcome                                  "diverged" where the image or the loss was not finite, "gave up" where an attack scored
                                         what a floor scored on that victim, "not applicable" where the gradient was zero
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from itertools import product
from statistics import fmean
from typing import Any

from privbench import registry
from privbench.spec import CellSpec, TrainSpec, checked

REVISIONS = (3, 4)  # of training and of all attacks, when schema 2 was written
ADDED = ("train", "local_steps", "local_lr", "victims")  # to what a flat specification says, in a cell's name
MOST_REVISIONS = 10  # of one attack's class, that are tried
# Two images alike differ in PSNR by the rounding of float32 means over at least 784 numbers, relative errors of 1e-7 to 1e-6: below
# 1e-5 dB. Two attacks that are not alike come this close once in thousands of victims.
SAME_DB = 1e-5
# A mean of n numbers in double precision, in another order, differs by n 2^-53 of its size at most: 1e-11 for 10^5 of them.
SAME_MEAN = 1e-9


def to_schema_3(value: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a schema 3 record of a schema 2 record's; KeyError or TypeError where it is damaged."""
    spec = value["spec"]
    attacked = spec["attack"] is not None
    names = ("id", "cost", "environment", "notes", *(("guarantee",) if attacked else ()))
    content = {
        "schema_version": 3,
        **{name: value[name] for name in names},
        "cell": _cell(value["id"], spec, bool(attacked and value["knowledge"].get("active"))).model_dump(mode="json"),
        "classes": spec["classes"],
        "class_names": list(spec["class_names"]),
        "client_domains": spec.get("client_domains"),
        "seeds": [_seed(value, i) for i in range(len(value["training"]))],
    }
    return content | {"knowledge": _knowledge(value["knowledge"])} if attacked else content


def check_summaries(value: Mapping[str, Any]) -> None:
    """ValueError where a schema 2 record's mean accuracy or PSNR is not that of its own clients or victims, as after an edit."""
    accuracy = value["accuracy"]
    means = [("accuracy", accuracy["mean"], fmean(fmean(clients) for clients in accuracy["per_client"]))]
    if value["spec"]["attack"] is not None:
        means.append(("PSNR", value["scores"]["psnr_db"]["mean"], fmean(v["psnr_db"] for v in value["victims"])))
    for name, written, computed in means:
        if not math.isclose(written, computed, rel_tol=SAME_MEAN):
            raise ValueError(f"the mean {name} is said to be {written}, but its own numbers have {computed}")


def _cell(id_: str, spec: Mapping[str, Any], active: bool) -> CellSpec:
    """The specification whose schema 2 name is `id_`, or the plainest one."""
    candidates = list(_candidates(spec, active))
    return next((cell for cell in candidates if _id(cell, spec) == id_), candidates[0])


def _candidates(spec: Mapping[str, Any], active: bool) -> Iterator[CellSpec]:
    train = {name: spec[name] for name in TrainSpec.model_fields if name in spec} | {"seed": 0}
    fields = {name: spec[name] for name in CellSpec.model_fields if name in spec and name != "train"}
    if spec["attack"] is None:
        fields["victims"] = 0  # which the record of an accuracy cell does not write
    local = spec.get("local") or {"steps": None, "optimiser": {}}
    lr = local["optimiser"].get("lr") if local["optimiser"].get("kind") == "sgd" else None
    revisions = range(MOST_REVISIONS) if spec["attack"] is not None else (0,)
    for steps, rate, revision in product(dict.fromkeys((local["steps"], None)), dict.fromkeys((lr, None)), revisions):
        changes = {"local_steps": steps, "local_lr": rate, "attack_revision": revision, "active": active}
        yield checked(CellSpec, fields | {"train": train} | changes)


def _id(cell: CellSpec, spec: Mapping[str, Any]) -> str:
    """The name that schema 2 gave a cell: of the fields that there were, whichever came since."""
    fields = {name: value for name, value in cell.model_dump(mode="json").items() if name in (*spec, *ADDED)}
    fields["train"] = {name: value for name, value in fields["train"].items() if name in (*spec, "seed")}
    fields["train"]["schedule"] = spec["schedule"]
    training, attacks = REVISIONS
    revision_of_attack = [cell.attack_revision] if cell.attack_revision else []
    revision = training if cell.attack is None else [training, attacks, *revision_of_attack]
    text = json.dumps([revision, CellSpec.__name__, fields], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _knowledge(entry: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in entry.items() if name != "active"}
    return {"tag_in_general": entry["tag"], "rung": None, "uses": [], "auxiliary": None} | fields


def _seed(value: Mapping[str, Any], i: int) -> dict[str, Any]:
    training = value["training"][i]
    fields = {
        "seed": training["seed"],
        "accuracy": value["accuracy"]["per_client"][i],
        "label_counts": value["label_counts"][i],
        "training": training,
    }
    if value["spec"]["attack"] is None:
        return fields
    victims = [_victim(v, value["spec"]["attack"]) for v in value["victims"] if v["seed"] == training["seed"]]
    return fields | {
        "round": value["rounds"][i],
        "accuracy_at_round": [value["accuracy_at_round"]],
        "victims": victims,
    }


def _victim(victim: Mapping[str, Any], attack: str) -> dict[str, Any]:
    fields = {name: value for name, value in victim.items() if name != "failed"}
    outcome = "reconstructed"
    if attack not in registry.FLOORS:
        if victim["gradient_norm"] == 0:
            outcome = "not applicable"
        elif victim["failed"] or victim["loss"] is None:
            outcome = "diverged"
        elif any(abs(victim["psnr_db"] - floor) < SAME_DB for floor in victim["floors"].values()):
            outcome = "gave up"
    return fields | {"outcome": outcome}
