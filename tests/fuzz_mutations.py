"""What may be wrong with a file: mutations of its bytes, of its JSON or TOML, of its header, of its tensors, and of its place."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes

DEEP, HUGE = "\x00deep", "\x00huge"  # in place of JSON that no Python value is written as
TWICE = "\x00twice"  # at the end of a name: it is there a second time
STRANGE: list[Any] = [
    None, True, False, -1, 0, 1, 2, -5, 10**7, 10**8, 10**9, 10**12, 2**31, 2**53 + 1, 2**63, -(2**63), 10**30, 0.5, -0.0, 1.0,
    1e300, float("nan"), float("inf"), "", "x", "x" * 5_000, "../../../x", "/", "a\nb", "\u202e", "\ud800", "os:system", "folder:/",
    "\x00", "[/y]", [], {}, [[]], [[[[[[]]]]]], [0] * 1_000, {"name": 1}, "NaN", "1", DEEP, HUGE,
]  # fmt: skip
STRANGE_TOML = (
    "-1", "0", "true", "nan", "inf", "1e400", '""', '"x"', "[]", "{}", "[[1]]", "10" * 40, f'"{"x" * 999}"', '"os:system"',
    '"../x"', "[" * 5_000 + "]" * 5_000, "1979-05-27", '"\\ud800"',
)  # fmt: skip
DTYPES = (torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool, torch.int32)


def mutate(rng: random.Random, paths: Sequence[Path], others: Sequence[Path]) -> tuple[str, bool]:
    """Mutates one of some files: (the kind of mutation, whether checksums were computed again where there are any)."""
    path = rng.choice(paths)
    kinds: list[tuple[str, Callable[..., bool]]] = [("bytes", _bytes)]
    if path.suffix == ".json":
        kinds += [("place", _place)] + [("JSON", _json)] * 4
    elif path.suffix == ".toml":
        kinds += [("TOML", _toml)] * 4
    else:
        kinds += [("place", _place)] + [("header", _header)] * 2 + [("tensors", _tensors)] * 3 + [("info", _info)] * 2
    kind, change = rng.choice(kinds)
    sealed = change(rng, path, others)
    # Where there is no checksum, none is wrong: what is there is what somebody wrote.
    return kind, sealed or path.name in ("spec.json", "study.toml")


def _write(path: Path, data: bytes) -> None:
    """Anew: the file may be another name of one that stays."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def _bytes(rng: random.Random, path: Path, _: Sequence[Path]) -> bool:
    data = bytearray(path.read_bytes())
    size = len(data)
    at = rng.randrange(size)
    # Headers are small; half of the changes are among the first bytes.
    at = at if rng.random() < 0.5 else min(rng.randrange(4_096), size - 1)
    inserted = bytes(rng.randrange(256) for _ in range(rng.choice((1, 2, 8, 64))))
    other = rng.randrange(size)
    choice = rng.randrange(8)
    if choice == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif choice == 1:
        data[at : at + len(inserted)] = inserted
    elif choice == 2:
        del data[at:]
    elif choice == 3:
        data[at:at] = inserted
    elif choice == 4:
        del data[at : at + len(inserted)]
    elif choice == 5:
        data += inserted
    elif choice == 6:
        data[at : at + 64], data[other : other + 64] = data[other : other + 64], data[at : at + 64]
    else:
        data[at : at + 8] = rng.choice((b"\0" * 8, b"\xff" * 8, (2**62).to_bytes(8, "little")))
    _write(path, bytes(data))
    return False


def _place(rng: random.Random, path: Path, others: Sequence[Path]) -> bool:
    """Another file in the place of this one, a folder, or nothing."""
    choice = rng.randrange(4)
    if choice == 0:
        path.unlink()
    elif choice == 1:
        path.unlink()
        path.mkdir()
    else:
        candidates = sorted(p for p in rng.choice(others).rglob(f"*{path.suffix}") if p.is_file())
        _write(path, rng.choice(candidates).read_bytes() if candidates else b"")
    return False


def _json(rng: random.Random, path: Path, _: Sequence[Path]) -> bool:
    value = json.loads(path.read_bytes())
    for _turn in range(rng.choice((1, 1, 1, 2, 3))):
        value = mutated(rng, value)
    sealed = rng.random() < 0.75
    if sealed:
        value = _resealed(value)
    _write(path, text_of(value).encode("utf-8", "surrogatepass"))
    if sealed:
        _rebound(path, value)
    # Histories of before they had a digest are read without one.
    return sealed or (path.name == "finished.json" and isinstance(value, dict) and "digest" not in value)


def _toml(rng: random.Random, path: Path, _: Sequence[Path]) -> bool:
    """Lines and values of text, as nobody writes TOML here."""
    lines = path.read_text(encoding="utf-8").splitlines()
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    choice = rng.randrange(5)
    if choice == 0:
        del lines[at]
    elif choice == 1:
        lines.insert(at, lines[other])
    elif choice == 2:
        lines[at], lines[other] = lines[other], lines[at]
    else:
        name, equals, _value = lines[at].partition("=")
        strange = rng.choice(STRANGE_TOML)
        lines[at] = f"{name}= {strange}" if equals else f"{strange} = 1"
    _write(path, "\n".join(lines).encode())
    return True


def _header(rng: random.Random, path: Path, _: Sequence[Path]) -> bool:
    """Of a tensor file: its tensors stay, what announces them changes."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    text = text_of(mutated(rng, json.loads(raw[8 : 8 + length]))).encode("utf-8", "surrogatepass")
    _write(path, len(text).to_bytes(8, "little") + text + raw[8 + length :])
    return _reindexed(rng, path)


def _info(rng: random.Random, path: Path, _: Sequence[Path]) -> bool:
    """What a tensor file says beside its tensors, with a checksum that fits."""
    raw = path.read_bytes()
    metadata = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")]).get("__metadata__")
    if not metadata:
        return _tensors(rng, path, _)
    info = mutated(rng, json.loads(metadata["info"]))
    if not isinstance(info, dict):
        info = {"info": info}
    _save(path, load_file(path), metadata, text_of(info), _plain(info))
    return True


def _tensors(rng: random.Random, path: Path, _: Sequence[Path]) -> bool:
    """Other shapes, types, numbers and names under a checksum that fits; in the index of a round, in half of the cases."""
    raw = path.read_bytes()
    metadata = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")]).get("__metadata__", {})
    tensors = load_file(path)
    for _turn in range(rng.choice((1, 1, 2))):
        if tensors:
            _change_tensor(rng, tensors)
    info = json.loads(metadata["info"]) if metadata else None
    _save(path, tensors, metadata, metadata.get("info", ""), info)
    return _reindexed(rng, path)


def _change_tensor(rng: random.Random, tensors: dict[str, torch.Tensor]) -> None:
    name = rng.choice(sorted(tensors))
    t = tensors[name]
    choice = rng.randrange(10)
    if choice == 0:
        del tensors[name]
    elif choice < 6:
        tensors[name] = _other_tensor(rng, t)
    elif choice == 6:
        tensors[rng.choice(("x", "", "a/b/c/d", name + "2", "../x", "broadcast/parameters/head/w"))] = tensors.pop(name)
    elif choice == 7:
        tensors[rng.choice(("x", "gradient/labels", "label_counts", name + "2"))] = t.clone()
    elif choice == 8:
        other = rng.choice(sorted(tensors))
        tensors[name], tensors[other] = tensors[other], tensors[name]
    elif t.is_floating_point():
        tensors[name] = t * rng.choice((torch.nan, 0.0, 1e20))


def _other_tensor(rng: random.Random, t: torch.Tensor) -> torch.Tensor:
    """Of another type, shape or size, or with one other number."""
    choice = rng.randrange(5)
    if choice == 0:
        return t.to(rng.choice(DTYPES))
    if choice == 1:
        return t[None].contiguous()
    if choice == 2:
        return t.flatten()[: rng.choice((0, 1, 7))].clone()
    if choice == 3 or not t.numel():
        return torch.cat([t.flatten(), t.flatten()])
    flat = t.flatten().clone()
    numbers = (torch.nan, torch.inf, -1.0, 1e38) if t.is_floating_point() else (-1, 0, 9, 255, 2**31)
    flat[rng.randrange(t.numel())] = torch.tensor(rng.choice(numbers)).to(t.dtype)
    return flat.view(t.shape)


def _save(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str], text: str, info: Any) -> None:
    header = metadata | {"info": text, "sha256": content_digest(tensors, info)} if metadata else None
    try:
        _write(path, to_bytes(tensors, metadata=header))
    except (UnicodeEncodeError, ValueError, RuntimeError):
        # Not every text is one to safetensors, and not every name; then the file is empty.
        _write(path, b"")


def content_digest(tensors: dict[str, torch.Tensor], info: Any) -> str:
    """The checksum of a tensor file, written out once more."""
    sha256 = hashlib.sha256(json.dumps(info, sort_keys=True).encode())
    for name, t in sorted(tensors.items()):
        sha256.update(f"{name}{tuple(t.shape)}{t.dtype}".encode("utf-8", "surrogatepass"))
        sha256.update(t.contiguous().flatten().view(torch.uint8).numpy().tobytes() if t.numel() else b"")
    return sha256.hexdigest()


def _reindexed(rng: random.Random, path: Path) -> bool:
    """Makes the index beside a round's file fit it, in half of the cases; whether every checksum fits."""
    index = path.with_name("index.json")
    if not path.name.startswith("round-") or not index.exists():
        return True
    if rng.random() < 0.5:
        return False
    value = json.loads(index.read_text())
    data = path.read_bytes()
    at = [entry["file"] for entry in value["rounds"]].index(path.name)
    entry = value["rounds"][at] | {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    # A round of a capture names layouts instead, which are those of other rounds too.
    if "tensors" in entry:
        # A file that safetensors cannot read has the index of before.
        with suppress(Exception):
            entry["tensors"] = {
                n: {"dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape)}
                for n, t in load_file(path).items()
            }
    value["rounds"][at] = entry
    value = _resealed(value)
    _write(index, json.dumps(value).encode())
    _rebound(index, value)
    return True


def _rebound(index: Path, value: Any) -> None:
    """Makes the truth beside an observation that of the changed one, so that what lies behind this check is reached."""
    truth = index.parent.parent / "observation-truth.safetensors"
    if index.name != "index.json" or not truth.is_file() or not isinstance(value, dict):
        return
    raw = truth.read_bytes()
    metadata = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["__metadata__"]
    info = json.loads(metadata["info"]) | {"observation": value.get("id")}
    try:
        text = json.dumps(info)
        _save(truth, load_file(truth), metadata, text, info)
    except (TypeError, ValueError):
        return


def _resealed(value: Any) -> Any:
    """The same JSON with the digests that our files have."""
    if not isinstance(value, dict):
        return value
    value = dict(value)

    def of(content: Any) -> str:
        text = json.dumps(_plain(content), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    if "id" in value and "rounds" in value:
        value["id"] = of({name: value.get(name) for name in ("setup", "rounds")})
    for name in ("sha256", "digest"):
        if name in value:
            value[name] = of({n: v for n, v in value.items() if n != name})
    return value


def mutated(rng: random.Random, value: Any) -> Any:
    """A copy of some JSON with one change somewhere."""
    value = copy.deepcopy(value)
    inner = _children(value)
    if inner and rng.random() < 0.85:
        at = rng.choice(inner)
        value[at] = mutated(rng, value[at])
        return value
    return _changed(rng, value)


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [name for name in value if not name.endswith(TWICE)]
    return list(range(len(value))) if isinstance(value, list) else []


def _changed(rng: random.Random, value: Any) -> Any:
    if isinstance(value, dict) and value and rng.random() < 0.7:
        return _changed_table(rng, value)
    if isinstance(value, list) and value and rng.random() < 0.7:
        choice, at = rng.randrange(5), rng.randrange(len(value))
        if choice == 0:
            del value[at]
        elif choice == 1:
            value.append(copy.deepcopy(value[at]))
        elif choice == 2:
            value.reverse()
        elif choice == 3:
            value.insert(at, rng.choice(STRANGE))
        else:
            value[at] = rng.choice(STRANGE)
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < 0.5:
        return rng.choice((value + 1, value - 1, -value, float(value), str(value), bool(value), value * 1_000, [value]))
    if isinstance(value, str) and rng.random() < 0.3:
        return rng.choice((value + "x", value[:-1], value.upper(), value * 50, [value]))
    return rng.choice(STRANGE)


def _changed_table(rng: random.Random, value: dict[str, Any]) -> dict[str, Any]:
    name, other = rng.choice(list(value)), rng.choice(list(value))
    choice = rng.randrange(6)
    if choice == 0:
        del value[name]
    elif choice == 1:
        value[rng.choice(("x", "", name + "2", name.upper(), "../x", "a\nb"))] = value.pop(name)
    elif choice == 2:
        value[name], value[other] = value[other], value[name]
    elif choice == 3:
        value[name + TWICE] = rng.choice((value[name], rng.choice(STRANGE)))
    elif choice == 4:
        value["extra"] = rng.choice(STRANGE)
    else:
        value[name] = rng.choice(STRANGE)
    return value


def _plain(value: Any) -> Any:
    """What a reader of `text_of` would have in memory, for the checksum."""
    if isinstance(value, dict):
        return {name.removesuffix(TWICE): _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return float("inf") if value == HUGE else value


def text_of(value: Any) -> str:
    """JSON, also of what no Python value is written as."""
    text = json.dumps(value)
    text = text.replace(json.dumps(DEEP), "[" * 200_000 + "]" * 200_000).replace(json.dumps(HUGE), "1e999")
    return re.sub(r'\\u0000twice"', '"', text)
