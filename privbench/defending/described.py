"""What an attacker reads from a defence's description (`Defense.describe`, as an artifact holds it): what was done to a gradient.

Several defences after one another (privbench/defending/composition.py) are described as one where they come to what one could do:
a clipped gradient with noise, a sum of noisy ones. Else each stands under its place, "1.name", "1.bits", "2.name" and so on, so
that no attack takes one of them for the whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NONE = "none"
# What a defence may do to a gradient -> the setting in its description that says so.
KINDS = {
    "noise": "variance",
    "clip": "clip",
    "prune": "keep",
    "quantize": "bits",
    "sign": "signs",
    "columns": "zeros",
    "bottleneck": "bottleneck",
}
CLIPS_IMAGES = (
    "clip images"  # the kind in place of "clip" where each image's gradient is clipped, not the whole message
)
EVERY_KIND = frozenset({*KINDS, CLIPS_IMAGES})
CLIPPED_AND_NOISY = frozenset({"clip", CLIPS_IMAGES, "noise"})
# What may be done to a batch of images: to those of several clients as to those of one.
LINEAR = frozenset({CLIPS_IMAGES, "noise", "bottleneck"})
JOINED = "+"  # between the names of several defences


def is_exact(description: Mapping[str, Any]) -> bool:
    """Whether what a server sees is what clients send, or its sum, but for rounding to single precision; by `describe()`."""
    exact = description.get("name", "none") == "none" or bool(description.get("exact", False))
    return exact and "wire" not in description


def kinds(description: Mapping[str, Any]) -> frozenset[str]:
    """What a defence does to a gradient, by its own `describe()`: of EVERY_KIND, as attacks name them in `knows`.

    A defence that says none of it is a kind by itself, under its own name. So are several that no one defence equals.
    """
    name = str(description.get("name", NONE))
    if is_exact(description):
        return frozenset()
    if _key(1, "name") in description:
        return frozenset({name})
    named = {kind for kind, setting in KINDS.items() if setting in description or name == kind}
    acts = {kind for kind in named if name == kind or description[KINDS[kind]]}
    if "clip" in acts and description.get("clips") == "example":
        acts = acts - {"clip"} | {CLIPS_IMAGES}
    return frozenset(acts if named else {name} - {NONE})


def noise_variance(description: Mapping[str, Any]) -> float:
    """The variance per coordinate of the noise that a defence adds, by its own `describe()`; 0 without any."""
    return float(description.get("variance", 0.0))


def noises_steps(description: Mapping[str, Any]) -> bool:
    """Whether noise is added to the gradient of every step, and not to the whole update; by `describe()`, with `where`."""
    return any(one.get("where") == "step" and ("variance" in one or "noise" in one) for one in single(description))


def together(each: Sequence[Mapping[str, Any]], noisy: Sequence[bool]) -> dict[str, Any]:
    """The description of defences that act one after another, from theirs in that order, and whether each adds noise.

    One variance of several noises is left out: whoever observes adds that of all (privbench/observation/defended_upload.py).
    """
    name = JOINED.join(str(one.get("name", NONE)) for one in each)
    if not _as_one(each, noisy):
        return {"name": name} | {_key(i, key): value for i, one in enumerate(each, 1) for key, value in one.items()}
    exact = {"exact": True} if all(map(is_exact, each)) else {}
    merged = {key: value for one in each for key, value in one.items() if key not in ("name", "variance", "exact")}
    return {"name": name} | merged | exact


def single(description: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The descriptions of the defences in that of a composition, in their order; of any other its own."""
    each: list[dict[str, Any]] = []
    while _key(len(each) + 1, "name") in description:
        start = _key(len(each) + 1, "")
        each.append({key.removeprefix(start): value for key, value in description.items() if key.startswith(start)})
    return each or [dict(description)]


def of_one_message(description: Mapping[str, Any]) -> dict[str, Any]:
    """What was done to one message, by the description of the defence of a sum in which nothing but it stands.

    What only sums is left out. The variance and the number format stay those of the sum.
    """
    each = [one for one in single(description) if not one.get("exact")]
    if _key(1, "name") not in description or not each:
        return dict(description)
    one = each[0] if len(each) == 1 else together(each, [False] * len(each))
    return one | {key: description[key] for key in ("variance", "wire") if key in description}


def _key(place: int, key: str) -> str:
    return f"{place}.{key}"


def _as_one(each: Sequence[Mapping[str, Any]], noisy: Sequence[bool]) -> bool:
    """Whether they come to what one defence could do: at most a clipped gradient and noise, or the sum of such.

    Noise before a clip, or before entries are rounded, is none that a likelihood here has. A sum of messages, each of which was
    clipped, rounded or pruned by itself, is not what became of the sum.
    """
    acting = [
        kinds({**one, "variance": 1.0} if adds else one)
        for one, adds in zip(each, noisy, strict=True)
        if not is_exact(one)
    ]
    settings: dict[str, Any] = {}
    for one in each:
        for key, value in one.items():
            if key not in ("name", "variance", "exact") and settings.setdefault(key, value) != value:
                return False
    if len(acting) > 1 and not (acting[0] <= CLIPPED_AND_NOISY and all(one <= {"noise"} for one in acting[1:])):
        return False
    summed = len(acting) < len(each)
    return not summed or not acting or acting[0] <= LINEAR
