"""What an attack is given does not lead to the run's secrets: the defence's noise, the dropout masks, the initial networks.

A watching attack keeps all that it is handed, and the test walks through it: fields, containers, what functions close over, and
whole storages behind views. Every whole number in it, also within words, is tried as the run's seed. What lies outside is outside
the threat model too: a plug-in that guesses seeds, opens files, or looks through the interpreter's own frames and modules.
"""

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import FunctionType, MethodType
from typing import ClassVar

import pytest
import torch
from PIL import Image
from torch import Tensor

from attacks.floors import Grey
from privbench import presets, registry, seeds
from privbench.execution import cell_jobs, one_attack
from privbench.methods.base import SamplingContext
from privbench.observation.artifact_files import OBSERVATION, TRUTH, load, origin
from privbench.observation.knowledge import FIELDS
from privbench.records.store import Store
from privbench.seeds import stream
from privbench.training import federation, harness
from privbench.types import Networks

SEED = 48_611  # of the run; too large to stand among counts and sizes by chance
# sha256 of "privbench attacker/0123456789ab/round 2", its first 8 bytes in little-endian order, without the highest bit
KNOWN = int.from_bytes(bytes.fromhex("970e3effd0fe258b"), "little") & (2**63 - 1)
WATCHED = []  # all that the watching attacks were handed


@dataclass(frozen=True)
class Watch:
    """Keeps what it is handed and answers grey."""

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "auxiliary"})
    knowledge: ClassVar[str] = "gradient + auxiliary"
    rung: ClassVar[str] = "L4"

    def reconstruct(self, artifact, knowledge, seed, progress):
        """Grey images."""
        WATCHED.append((artifact, knowledge, seed, progress))
        return Grey().reconstruct(artifact, knowledge, seed, progress)


@dataclass(frozen=True)
class WatchOfEverything(Watch):
    """The same with everything that may be asked for but the initial networks, which are one of the secrets."""

    needs: ClassVar[frozenset[str]] = frozenset(
        {"gradient:classifier", "auxiliary", "colluder", "oracle", "sent", "known", "rounds", "specification"}
    )


@dataclass(frozen=True)
class ActiveWatch(Watch):
    """The same of an active server."""

    active: ClassVar[bool] = True

    def craft(self, model, broadcast, knowledge, seed):
        """Sends what it got."""
        WATCHED.append((model, broadcast, knowledge, seed))
        return Networks({}, {})


@dataclass(frozen=True)
class EarlyActiveWatch(ActiveWatch):
    """The same, crafting a round before the attacked one."""

    active_rounds: int = 1


KINDS = (Watch, WatchOfEverything, ActiveWatch, EarlyActiveWatch)


def cell_of(attack, seed=SEED):
    train = presets.train_spec(
        "smoke", "digits", "nfl-cgan", defense="gaussian:0.001", clients=2, changes={"rounds": 2}, seed=seed
    )
    name = registry.typed("attack", f"{__name__}:{attack.__name__}")
    spec = presets.cell_spec("smoke", train, name, victims=2, round_="last")
    return spec.model_copy(update={"train": train, "seeds": (seed,)})


def walked(thing, seen):
    """All that can be reached from a thing, itself included, without imports, files or frames."""
    if id(thing) in seen:
        return
    seen[id(thing)] = thing  # kept alive, so that no number is used twice
    yield thing
    if isinstance(thing, Tensor):
        yield from walked(thing._base, seen)
        yield torch.empty(0, dtype=torch.uint8).set_(thing.untyped_storage())
        inner = vars(thing)
    elif isinstance(thing, functools.partial):
        inner = (thing.func, thing.args, thing.keywords)
    elif isinstance(thing, MethodType):
        inner = (thing.__self__, thing.__func__)
    elif isinstance(thing, FunctionType):
        inner = ([each.cell_contents for each in thing.__closure__ or ()], thing.__defaults__, thing.__kwdefaults__)
    elif isinstance(thing, Mapping):
        inner = [*thing, *thing.values()]
    elif isinstance(thing, list | tuple | set | frozenset):
        inner = thing
    elif is_dataclass(thing):
        inner = [getattr(thing, f.name) for f in fields(thing)]
    else:
        inner = getattr(thing, "__dict__", {}) if not isinstance(thing, type) else ()
    for each in inner.values() if isinstance(inner, dict) else inner:
        yield from walked(each, seen)


def held(things):
    """(whole numbers, words, tensors) of all that can be reached."""
    numbers, words, tensors = set(), set(), []
    for thing in walked(things, {}):
        if isinstance(thing, str | Path):
            words.add(str(thing))
            numbers |= {int(digits) for digits in re.findall(r"\d+", str(thing))}
        elif isinstance(thing, bool):
            continue
        elif isinstance(thing, int | float) and math.isfinite(thing):
            numbers.add(int(thing))
        elif isinstance(thing, Tensor):
            tensors.append(thing)
            if not thing.is_floating_point() and thing.dtype != torch.uint8:
                numbers |= set(thing.flatten().tolist())
        elif isinstance(thing, torch.Generator):
            numbers.add(thing.initial_seed())
    return numbers, words, tensors


def secrets(setup, seed):
    """What a run's seed tells: the private extractor at round 0, the first victim's noise of the defence and dropout mask."""
    initial = setup.model.net("extractor").init(stream(seed, "init", "extractor"))[0]
    names = {n: torch.zeros_like(t) for n, t in setup.model.net("classifier").init(torch.Generator())[0].items()}
    noise = setup.defense.message({"classifier": names}, stream(seed, "victims", 0, "defence"))["classifier"]
    masks = {
        name: draw.sample((1,), SamplingContext(setup.model, None), stream(seed, "victims", 0, name))
        for name, draw in setup.method.observed().draws.items()
    }
    return initial | {f"noise/{n}": t for n, t in noise.items()} | {f"mask/{n}": t for n, t in masks.items()}


def alike(one, other):
    return {name for name, t in one.items() if torch.equal(t, other[name])}


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.__name__)
def watched(request, tmp_path_factory):
    """(what an attack was handed, its run's set-up, the folder)."""
    WATCHED.clear()
    root, cell = tmp_path_factory.mktemp("sealed"), cell_of(request.param)
    assert cell_jobs.run_cells([cell], root, None, "cpu", lambda *_: None, lambda *_: None) == []
    (train,) = cell.train_specs()
    setup = harness.prepare(train, federation.of(train, None)[0], torch.device("cpu"))
    assert len(WATCHED) == (1 if request.param in (Watch, WatchOfEverything) else 2)
    return list(WATCHED), setup, root, cell


def test_every_kind_of_knowledge_but_the_initial_networks_is_among_what_is_watched(watched):
    things, _, _, cell = watched
    filled = {name for name in FIELDS if getattr(things[-1][1], name) is not None}
    asked = filled if "Everything" not in cell.attack else set(FIELDS) - {"initial", "candidates", "domains"}
    assert filled == asked
    assert filled >= {"auxiliary"}


def test_no_number_that_an_attack_holds_is_the_seed_behind_noise_masks_or_networks(watched):
    things, setup, _, _ = watched
    truth, (numbers, _, _) = secrets(setup, SEED), held(things)
    assert {name.partition("/")[0] for name in truth} >= {"conv1.weight", "noise", "mask"}
    assert len(numbers) > 10  # rounds, sizes, labels, the attacker's own seed
    constant = alike(secrets(setup, SEED + 1), truth)
    revealing = {number for number in numbers if alike(secrets(setup, number), truth) - constant}
    assert revealing == set()


def test_the_run_s_own_seed_would_tell_all_three(watched):
    _, setup, _, _ = watched
    truth = secrets(setup, SEED)
    constant = alike(secrets(setup, SEED + 1), truth)
    shared = alike(secrets(setup, SEED), truth) - constant
    assert {name.partition("/")[0] for name in shared} >= {"conv1.weight", "noise", "mask"}


def test_no_tensor_that_an_attack_holds_is_noise_mask_or_initial_network(watched):
    things, setup, _, _ = watched
    truth, (_, _, tensors) = secrets(setup, SEED), held(things)
    secret = [t.flatten() for t in truth.values() if t.is_floating_point() and t.numel() > 10]
    floats = [t.flatten() for t in tensors if t.is_floating_point() and t.numel() > 10]
    assert len(secret) > 5
    assert len(floats) > 5
    for one in secret:
        for t in floats:
            assert not (len(t) == len(one) and torch.equal(t, one))


def test_no_tensor_that_an_attack_holds_is_part_of_a_larger_one(watched):
    _, _, tensors = held(watched[0])
    assert all(t.untyped_storage().nbytes() == t.nbytes for t in tensors)


def test_nothing_that_an_attack_holds_names_the_run(watched):
    things, setup, root, cell = watched
    _, words, _ = held(things)
    artifact = Store(root).artifact(cell, setup.spec, 2).name
    assert [word for word in words for name in (setup.spec.id, cell.id, artifact) if name in word] == []
    assert not any("truth" in word or "artifacts" in word for word in words)
    places = [Path(word) for word in words if word.startswith(str(root))]
    assert set(places) <= {Store(root).cache}
    assert not any(Store(root).cache.rglob(TRUTH))


def test_an_artifact_s_file_names_its_run_and_the_artifact_itself_does_not(watched):
    _, setup, root, cell = watched
    path = Store(root).artifact(cell, setup.spec, 2) / OBSERVATION
    assert origin(path).run == setup.spec.id
    assert origin(path).dataset == "digits"
    assert setup.spec.id not in held(load(path))[1]


def test_the_path_of_a_folder_of_images_stands_in_the_artifact_s_file_alone(tmp_path):
    pictures, rng = tmp_path / "pictures", torch.Generator().manual_seed(0)
    for name in ("left", "right"):
        (pictures / name).mkdir(parents=True)
        for i in range(60):
            pixels = torch.randint(0, 256, (32, 32, 3), generator=rng, dtype=torch.uint8)
            Image.fromarray(pixels.numpy()).save(pictures / name / f"{i}.png")
    name = registry.typed("dataset", f"folder:{pictures}")
    train = presets.train_spec("smoke", name, "fedavg", clients=2, per_client=16, changes={"rounds": 1})
    cell, root = presets.cell_spec("smoke", train, "grey", victims=2, round_="last"), tmp_path / "runs"
    assert cell_jobs.run_cells([cell], root, None, "cpu", lambda *_: None, lambda *_: None) == []
    path = Store(root).artifact(cell, cell.train_specs()[0], 1) / OBSERVATION
    assert origin(path).dataset == f"folder:{pictures}"
    assert load(path).dataset == "folder:pictures"
    assert not any(str(tmp_path) in word for word in held(load(path))[1])


def test_the_attacker_s_seed_is_the_same_everywhere_and_another_for_every_run_and_round():
    (train,) = cell_of(Watch).train_specs()
    seed = seeds.of_attacker(train.id, 2)
    assert seeds.of_attacker("0123456789ab", 2) == KNOWN
    others = [seeds.of_attacker(train.id, 3), *(seeds.of_attacker(cell_of(Watch, s).train.id, 2) for s in range(50))]
    assert len({seed, *others}) == 52
    assert min(seed, *others) > 2**40  # no seed that a user would type


def test_reports_of_an_attack_reach_the_one_who_asked(tmp_path):
    WATCHED.clear()
    cell, reports = cell_of(Watch), []
    assert cell_jobs.run_cells([cell], tmp_path, None, "cpu", lambda *_: None, lambda *_: None) == []
    ((artifact, knowledge, seed, _),) = WATCHED
    WATCHED.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Watch, "reconstruct",
            lambda self, seen, known, seed, progress: progress(1, 2, "hello") or Grey().reconstruct(seen, known, seed, progress),
        )  # fmt: skip
        place = torch.device("cpu")
        one_attack.attack_artifact(
            cell.attack, {}, artifact, knowledge, seed, place, lambda *report: reports.append(report)
        )
    assert reports == [(1, 2, "hello")]
