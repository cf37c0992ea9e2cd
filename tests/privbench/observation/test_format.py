"""An observation on disk: what is written is read, what strangers may write is refused in one line before anything is allocated."""

import hashlib
import json
import math
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from privbench import presets, written_defense
from privbench.errors import UserError
from privbench.networks.model import Model
from privbench.observation import artifact_files
from privbench.observation.format import files, limits, networks, schema
from privbench.system import index_files
from privbench.types import CLASSIFICATION, LocalSteps, LocalTraining, Truth
from tests.builders import small_artifacts

ROUND = "round-0000.safetensors"
ORIGIN = schema.Origin(run="0123456789ab", seed=7, dataset="digits", artifact="0123456789ab-r0-v2-b1")


@pytest.fixture(scope="module")
def seen():
    """Gradients of two images at untrained networks."""
    return replace(
        small_artifacts.artifact(small_artifacts.smooth_images(2), torch.tensor([3, 1]), known=True),
        training=LocalTraining({"lr": 0.1, "kind": "sgd", "weight_decay": 0.0}, 16, 40),
    )


@pytest.fixture
def folder(seen, tmp_path):
    artifact_files.save(seen, tmp_path / "seen", ORIGIN)
    return tmp_path / "seen"


def rewritten(folder, change, *, tensors=None):
    """Changes the content of an index, or the tensors of its round, and makes every digest and size fit again."""
    path = folder / files.INDEX
    value = json.loads(path.read_text())
    if tensors is not None:
        stored = load_file(folder / ROUND)
        tensors(stored)
        save_file(stored, folder / ROUND)
        entry = value["rounds"][0]
        entry["bytes"] = (folder / ROUND).stat().st_size
        entry["sha256"] = hashlib.sha256((folder / ROUND).read_bytes()).hexdigest()
        entry["tensors"] = {
            n: {"dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape)} for n, t in stored.items()
        }
    change(value)
    path.write_text(json.dumps(resealed(value)))


def resealed(value):
    """The same content with digests that fit."""
    content = {name: entry for name, entry in value.items() if name != "sha256"}
    content["id"] = index_files.digest({name: content.get(name) for name in ("setup", "rounds")})
    return content | {"sha256": index_files.digest(content)}


def put(value, path, new):
    """Sets what lies at a path such as "rounds.0.round"."""
    *outer, last = (int(p) if p.isdigit() else p for p in path.split("."))
    for each in outer:
        value = value[each]
    value[last] = new


def refusal(folder):
    with pytest.raises(UserError) as refused:
        artifact_files.load(folder)
    line = str(refused.value)
    assert "\n" not in line
    assert len(line) < 1_000
    return line


def test_what_is_written_is_read_and_resealing_alone_changes_nothing(seen, folder):
    rewritten(folder, lambda value: None, tensors=lambda stored: None)
    again = artifact_files.load(folder)
    assert (again.model, again.batch_size, again.training) == (seen.model, 1, seen.training)
    assert torch.equal(again.labels, seen.labels)
    assert all(torch.equal(again.gradients[p][n], t) for p, net in seen.gradients.items() for n, t in net.items())
    assert artifact_files.origin(folder) == ORIGIN


# Every example of an index that gave a traceback, a hang or gigabytes, and what the line says of it.
NETWORKS, SETUP, TABLE = "setup.networks", "setup", "rounds.0.messages.0"
WRONG = [
    (f"{NETWORKS}.classes", -5, "setup.networks.classes: Input should be greater than or equal to 1"),
    (f"{NETWORKS}.classes", 10**8, "less than or equal to 10000"),
    (f"{NETWORKS}.classes", 9_999, "the networks know 9999 classes, the set-up 10"),
    (f"{NETWORKS}.classes", True, "valid integer"),
    (f"{NETWORKS}.classes", 10.0, "valid integer"),
    (f"{NETWORKS}.channels", 0, "greater than or equal to 1"),
    (f"{NETWORKS}.channels", None, "valid integer"),
    (f"{NETWORKS}.channels", 10**7, "less than or equal to 64"),
    (f"{NETWORKS}.channels", 3, "the networks do not take images of 1x32x32"),
    (f"{NETWORKS}.image_size", 10**9, "less than or equal to 1024"),
    (f"{NETWORKS}.backbone", "os:system", "backbone 'os:system' is code of its own, which runs only where you name it"),
    (f"{NETWORKS}.backbone", "../os", "should be one of lenet5, resnet18"),
    (f"{NETWORKS}.backbone", "m" * 301 + ":n", "should be one of lenet5, resnet18"),
    (f"{NETWORKS}.backbone", "resnet18", "classifier.fc.bias should have shape (10,), but the file has nothing"),
    (f"{NETWORKS}.gan", "wide", "'conv', 'dense' or 'image'"),
    (f"{NETWORKS}.dropout", 1.0, "less than 1"),
    (f"{NETWORKS}.dropout", -0.1, "greater than or equal to 0"),
    (f"{SETUP}.image_shape", [1, 32], "at least 3 items"),
    (f"{SETUP}.image_shape", [1, 10**6, 10**6], "larger than"),
    (f"{SETUP}.shared_parts", ["extractor", "extractor"], "there twice"),
    (f"{SETUP}.shared_parts", ["extractor"], "no shared part"),
    (f"{SETUP}.shared_parts", "extractor", "valid list"),
    (f"{SETUP}.method", "a\nb", "match pattern"),
    (f"{SETUP}.method", "m" * 100_000, "at most 300 characters"),
    (f"{SETUP}.defense", {}, "setup.defense.name: Field required"),
    (f"{SETUP}.defense", {"name": "gaussian", "variance": -1.0}, "greater than or equal to 0"),
    (f"{SETUP}.defense", {"name": "x", **{f"s{i}": 0 for i in range(65)}}, "65 settings, more than 64"),
    (f"{SETUP}.defense", {"name": "x", "deep": [[1]]}, "valid"),
    (f"{SETUP}.defense", {"name": "quantize", "bits": 10**9}, "the defence quantize should have 2 to 32 bits"),
    (f"{SETUP}.defense", {"name": "x", "bits": 1e308}, "the defence x should have 2 to 32 bits"),
    (f"{SETUP}.defense", {"name": "quantize", "bits": 1}, "2 to 32 bits"),
    (
        f"{SETUP}.defense",
        {"name": "prune+quantize", "1.name": "prune", "1.keep": 0.5, "2.name": "quantize", "2.bits": 10**9},
        "the defence quantize should have 2 to 32 bits",
    ),
    (
        f"{SETUP}.defense",
        {"name": "prune+clip", "1.name": "prune", "1.keep": 0.5, "2.name": "clip", "2.clip": 0},
        "the defence clip should have a clip above 0",
    ),
    (
        f"{SETUP}.defense",
        {"name": "gaussian+prune", "1.name": "gaussian", "1.variance": -1.0, "2.name": "prune", "2.keep": 0.5},
        "the defence gaussian should have a variance of 0 or more",
    ),
    (f"{SETUP}.defense", {"name": "quantize"}, "2 to 32 bits"),
    (f"{SETUP}.defense", {"name": "quantize", "1.name": "clip"}, "2 to 32 bits"),
    (f"{SETUP}.defense", {"name": "clip"}, "the defence clip should have a clip above 0"),
    (f"{SETUP}.defense", {"name": "clip", "clip": -1.0}, "a clip above 0"),
    (f"{SETUP}.defense", {"name": "x", "clip": True, "clips": "example"}, "a clip above 0"),
    (f"{SETUP}.defense", {"name": "x", "clip": "1"}, "a clip above 0"),
    (f"{SETUP}.defense", {"name": "gaussian", "variance": None}, "variance of a defence should not be null"),
    (f"{SETUP}.defense", {"name": "none", "wire": None}, "wire of a defence should not be null"),
    (f"{SETUP}.training.steps", -1, "greater than or equal to 0"),
    (f"{SETUP}.training.optimiser.lr", "0.1", "valid number"),
    (f"{SETUP}.training.optimiser.lr", 0, "greater than 0"),
    (f"{TABLE}.batch_size", 10**9, "less than or equal to 4096"),
    (f"{TABLE}.batch_size", 0, "greater than or equal to 1"),
    (f"{TABLE}.batch_size", None, "known batch size"),
    (f"{TABLE}.batch_size", 2, "labels should have shape (2, 2), but the file has (2, 1)"),
    (f"{TABLE}.members", 0, "valid list"),
    (f"{TABLE}.members", [0, 0], "valid list"),
    (f"{TABLE}.members", [[-1], [0]], "greater than or equal to 0"),
    (f"{TABLE}.members", [[10**9], [0]], "less than 100000"),
    (f"{TABLE}.members", [[0]], "should begin with 1 messages"),
    (f"{TABLE}.members", [[1, 1], [0]], "should ascend"),
    (f"{TABLE}.members", [[0, 1], [0]], "sums over clients"),
    (f"{TABLE}.imitated", -1, "greater than or equal to 0"),
    (f"{TABLE}.kind", "update", "does not say how its messages came about"),
    (f"{TABLE}.kind", "weights", "weights have no batch of images"),
    (f"{TABLE}.name", "broadcast", "no table of messages is called 'broadcast'"),
    (f"{TABLE}.name", "other", "no tensors of the messages 'other'"),
    ("rounds.0.round", -1, "greater than or equal to 0"),
    ("rounds.0.round", 1, "the file of round 1 is round-0001"),
    ("rounds.0.file", "../../x", "match pattern"),
    ("rounds.0.file", "round-0001.safetensors", "the file of round 0 is round-0000"),
    ("rounds.0.bytes", 10**15, "less than or equal to"),
    ("rounds.0.bytes", 10, "its tensors take"),
    ("rounds.0.sha256", "0" * 64, "does not match the index"),
    ("rounds.0.tensors.broadcast/parameters/extractor/conv1\\bias.shape", [7], "should have shape (6,)"),
    ("rounds.0.tensors.broadcast/parameters/extractor/conv1\\bias.shape", [2**40, 2**40], "its tensors take"),
    ("rounds.0.tensors.broadcast/parameters/extractor/conv1\\bias.dtype", "complex64", "'bool', 'uint8'"),
    ("rounds.0.tensors.broadcast/parameters/extractor/conv1\\bias.dtype", "int64", "is of int64"),
    ("rounds.0.tensors.strange", {"dtype": "float32", "shape": []}, "nothing is known of the tensor 'strange'"),
    ("rounds", [], "at least 1 item"),
    ("origin.seed", -1, "greater than or equal to 0"),
    ("extra", 1, "Extra inputs are not permitted"),
]  # fmt: skip


@pytest.mark.parametrize(("where", "new", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_field_is_refused_with_its_name_before_the_round_is_opened(where, new, message, folder, monkeypatch):
    def change(value):
        names = where.split(".")
        target, last = value, names[-1]
        for name in names[:-1]:
            name = name.replace("\\", ".")
            target = target[int(name) if name.isdigit() else name]
        target[last] = new

    rewritten(folder, change)
    if message not in ("does not match the index",):
        monkeypatch.setattr(files, "read_round", lambda *_: pytest.fail("the round was opened"))
    assert message in refusal(folder)


def test_a_defence_of_every_kind_fits_the_format():
    """What single defences say of themselves, several of them together, and one that does not act."""
    for text in (
        "clip:1",
        "quantize:16",
        "gaussian:variance=0.1,clip=2",
        "dp-sgd:noise=1",
        "clip:2+quantize:4",
        "prune:0.1",
        "sign",
    ):
        description = written_defense.create(text, "update").describe()
        assert schema.DefenseEntry.model_validate(description).model_dump(exclude_unset=True) == description
    schema.DefenseEntry.model_validate({"name": "mine:Own", "clip": None, "bits": 0})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 200_000 + "]" * 200_000, "nests deeper than 16"),
        ('{"a": ' * 200_000 + "1" + "}" * 200_000, "nests deeper than 16"),
        ('{"privbench": ' + "[" * 20 + "]" * 20 + "}", "nests deeper than 16"),
        ('{"version": 1, "version": 1}', "names 'version' twice"),
        ('{"version": NaN}', "NaN is no finite number"),
        ('{"version": 1e999}', "1e999 is no finite number"),
        ('{"version": "\\ud800"}', "surrogates not allowed"),
        ("[]", "is not the index of a privbench observation"),
        ('{"privbench": "observation", "version": true}', "format version True; this privbench reads 1"),
        ('{"privbench": "observation", "version": 2}', "format version 2; this privbench reads 1"),
        ('{"privbench": "observation", "version": 1}', "does not match its checksum"),
        (" " * (limits.INDEX_BYTES + 1), f"more than {limits.INDEX_BYTES} bytes"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_an_index_that_is_no_such_json_is_refused(text, message, folder):
    (folder / files.INDEX).write_text(text)
    assert message in refusal(folder)


def set_to(name, make):
    def change(stored):
        stored[name] = make(stored[name])

    return change


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("broadcast/parameters/classifier/fc3.weight", lambda t: t[:9].clone(), "should have shape (10, 84)"),
        ("gradient/parameters/classifier/fc3.weight", lambda t: t[:1].clone(), "should begin with 2 messages"),
        ("gradient/parameters/classifier/fc3.weight", lambda t: t[..., None].clone(), "should have shape (2, 10, 84)"),
        ("gradient/parameters/classifier/fc3.weight", lambda t: t.double(), "holds float64"),
        ("gradient/parameters/classifier/fc3.weight", lambda t: t.long(), "is of int64"),
        ("gradient/labels", lambda t: t + 10, "labels are numbers from 0 to 9"),
        ("gradient/labels", lambda t: t - 4, "labels are numbers from 0 to 9"),
        ("gradient/labels", lambda t: t[:, 0].clone(), "labels should have shape (2, 1)"),
        ("gradient/labels", lambda t: t.float(), "should be whole numbers"),
    ],
)  # fmt: skip
def test_tensors_of_another_shape_kind_or_range_are_refused(name, make, message, folder):
    rewritten(folder, lambda value: None, tensors=set_to(name, make))
    assert message in refusal(folder)


def test_numbers_that_are_not_finite_are_what_a_client_sent(folder):
    name = "gradient/parameters/classifier/fc3.weight"
    rewritten(folder, lambda value: None, tensors=set_to(name, lambda t: t * torch.nan))
    assert artifact_files.load(folder).gradients["classifier"]["fc3.weight"].isnan().all()


def test_label_counts_are_counts_of_every_client_and_class(seen, tmp_path):
    counts = torch.tensor([[1, 0, 0, 4, 0, 0, 0, 0, 0, 2]])
    artifact_files.save(replace(seen, label_counts=counts), tmp_path / "a")
    assert torch.equal(artifact_files.load(tmp_path / "a").label_counts, counts)
    with pytest.raises(UserError, match="clients x 10"):
        artifact_files.save(replace(seen, label_counts=counts[:, :9]), tmp_path / "b")
    with pytest.raises(UserError, match="clients x 10"):
        artifact_files.save(replace(seen, label_counts=counts, client=torch.tensor([0, 1])), tmp_path / "b")
    artifact_files.save(replace(seen, label_counts=-counts), tmp_path / "b")
    assert "numbers below 0" in refusal(tmp_path / "b")


def test_a_half_written_observation_is_none(seen, folder, monkeypatch):
    """The old index goes first and the new one comes last, so that no index ever stands beside another's round."""
    before = (folder / files.INDEX).read_bytes()
    monkeypatch.setattr(files, "write_index", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        artifact_files.save(replace(seen, batch_size=1), folder, ORIGIN)
    assert (folder / ROUND).exists()
    assert "has no index.json" in refusal(folder)
    monkeypatch.undo()
    artifact_files.save(seen, folder, ORIGIN)
    assert (folder / files.INDEX).read_bytes() == before


def test_a_round_that_is_missing_cut_or_another_s_is_refused(seen, folder, tmp_path):
    whole = (folder / ROUND).read_bytes()
    doubled = {p: {n: 2 * t for n, t in net.items()} for p, net in seen.gradients.items()}
    artifact_files.save(replace(seen, gradients=doubled), tmp_path / "b")
    shutil.copy(tmp_path / "b" / ROUND, folder / ROUND)
    assert "of another observation" in refusal(folder)
    (folder / ROUND).write_bytes(whole[:-8])
    assert f"{len(whole) - 8} bytes in place of {len(whole)}" in refusal(folder)
    (folder / ROUND).unlink()
    assert "which" in refusal(folder)


def test_an_observation_of_another_run_seed_or_choice_of_victims_is_refused_in_its_place(seen, tmp_path):
    train = presets.train_spec("smoke", "digits", "fedavg", clients=2, seed=100)
    other = train.model_copy(update={"seed": 101})
    place = tmp_path / f"{train.id}-r0-v2-b1"
    truth = Truth(small_artifacts.smooth_images(2)[:, None], torch.tensor([[3], [1]]))
    artifact_files.save_with_truth(seen, truth, place, artifact_files.origin_of(train, place))
    again, images = artifact_files.load_with_truth(place, artifact_files.origin_of(train, place))
    assert torch.equal(again.client, seen.client)
    assert torch.equal(images.images, truth.images)
    for spec_, name in ((other, place.name), (train, f"{train.id}-r1-v2-b1"), (train, f"{train.id}-r0-v2-b1-labels")):
        there = tmp_path / "copies" / name
        shutil.copytree(place, there)
        with pytest.raises(UserError, match=r"holds the observation of .*seed 100\), not of .*; remove .* and run"):
            artifact_files.load_with_truth(there, artifact_files.origin_of(spec_, there))
        shutil.rmtree(there)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t._replace(labels=t.labels + 10), "labels are numbers from 0 to 9"),
        (lambda t: t._replace(images=t.images + 1), "images are numbers from 0 to 1"),
        (lambda t: t._replace(images=t.images * torch.nan), "images are numbers from 0 to 1"),
        (lambda t: t._replace(images=t.images.double()), "does not hold 2 x 1 images and labels"),
        (lambda t: t._replace(images=t.images[:1], labels=t.labels[:1]), "does not hold 2 x 1 images and labels"),
    ],
)
def test_a_truth_that_is_none_is_refused(change, message, folder, tmp_path):
    truth = Truth(small_artifacts.smooth_images(2)[:, None], torch.tensor([[3], [1]]))
    artifact_files.save_truth(change(truth), tmp_path / "t.safetensors", folder)
    with pytest.raises(UserError, match=message):
        artifact_files.load_truth(tmp_path / "t.safetensors", folder)


def test_several_rounds_sums_updates_and_other_modules_fit_the_format_and_attacks_of_one_round_say_so(tmp_path):
    """What today's attacks do not take is written and read all the same."""
    rng = torch.Generator().manual_seed(0)
    setup = schema.SetupEntry.model_validate(
        {"method": "mine", "dataset": "photographs", "networks": None, "image_shape": [3, 64, 64], "classes": 2,
         "shared_parts": ["body"], "defense": {"name": "secure-aggregation"}, "training": None}, strict=True
    )  # fmt: skip
    local = {"steps": 5, "optimiser": {"kind": "sgd", "lr": 0.1}, "batch": None}
    table = {"name": "sum", "kind": "update", "members": [[0, 1, 2]], "batch_size": None, "local": local, "imitated": 0}
    rounds = []
    for number in (3, 7):
        tensors = {
            "broadcast/parameters/body/w": torch.randn(4, 3, generator=rng),
            "broadcast/buffers/body/steps": torch.tensor(3),
            "sum/parameters/body/w": torch.randn(1, 4, 3, generator=rng),
        }
        rounds.append(files.NewRound(number, (schema.Messages.model_validate(table, strict=True),), tensors))
    written_id = files.write(tmp_path / "o", setup, rounds, None)
    stored = files.read(tmp_path / "o")
    assert stored.id == written_id
    assert [entry.round for entry in stored.index.rounds] == [3, 7]
    for entry, new in zip(stored.index.rounds, rounds, strict=True):
        tensors = files.read_round(stored, entry)
        assert tensors.keys() == new.tensors.keys()
        assert all(torch.equal(t, new.tensors[n]) for n, t in tensors.items())
    assert "holds 2 rounds; attacks of this privbench take one" in refusal(tmp_path / "o")
    files.write(tmp_path / "o", setup, rounds[:1], None)
    assert "names no networks" in refusal(tmp_path / "o")


@pytest.mark.parametrize("gan", ["conv", "dense"])
@pytest.mark.parametrize(("backbone", "size"), [("lenet5", 32), ("resnet18", 32), ("resnet18", 224)])
def test_declared_shapes_are_those_of_the_networks_and_take_no_memory(backbone, size, gan):
    model = Model(backbone, 3, 10, size, gan)
    parts = [p for p in networks.PARTS if not (size == 224 and p in ("generator", "discriminator") and gan == "dense")]
    for part in parts:
        made = model.net(part).init(torch.Generator())
        shapes = tuple({n: tuple(t.shape) for n, t in each.items()} for each in made)
        assert networks.shapes(model, part) == shapes


def test_networks_beyond_the_limit_are_refused_without_being_made():
    with pytest.raises(ValueError, match="more than"):
        networks.shapes(Model("lenet5", 1, 20_000), "generator")


def test_limits_leave_room_for_the_largest_of_every_preset():
    large = Model("resnet18", 3, 345, 224)
    numbers = sum(math.prod(s) for p in CLASSIFICATION for s in networks.shapes(large, p)[0].values())
    assert 64 * numbers * 4 * 4 < limits.ROUND_BYTES
    assert limits.PIXELS > 64 * 16 * 3 * 224**2 * 4
    assert max(345, 62) * 4 < limits.CLASSES


def test_local_steps_of_updates_are_kept(seen, tmp_path):
    local = LocalSteps(3, {"kind": "sgd", "lr": 0.1, "weight_decay": 0.0})
    update = replace(seen, gradients={}, updates=seen.gradients, local=local)
    artifact_files.save(update, tmp_path / "u")
    assert artifact_files.load(tmp_path / "u").local == local
    rewritten(tmp_path / "u", lambda value: put(value, "rounds.0.messages.0.local.steps", 10**9))
    assert "less than or equal to 100000" in refusal(tmp_path / "u")
