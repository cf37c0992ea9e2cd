"""What a server received, from files: read as it was written, and refused in one line where it does not fit the module."""

import io
import pickle
import struct
import zipfile
import zlib

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from privbench.auditing import inputs, observed, request, tensor_files
from privbench.auditing.inputs import Received
from privbench.errors import UserError
from privbench.networks.module_model import model_of
from privbench.system import files
from tests.builders import user_modules
from tests.builders.user_modules import form_of, gradient_of

VECTOR = (30, 1, 1)


@pytest.fixture(scope="module")
def module():
    return user_modules.mlp()


@pytest.fixture(scope="module")
def gradients(module):
    """Two messages of one vector each."""
    each = [gradient_of(module, torch.rand(1, 30), torch.tensor([y])) for y in (0, 1)]
    return {name: torch.stack([one[name] for one in each]) for name in each[0]}


def written(path, tensors):
    if path.suffix == ".npz":
        np.savez(path, **{name: t.numpy() for name, t in tensors.items()})
    else:
        save_file({name: t.contiguous() for name, t in tensors.items()}, path)
    return path


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_messages_come_stacked_or_alone_in_both_kinds_of_files(suffix, module, gradients, tmp_path):
    stacked = inputs.gradients(written(tmp_path / f"two{suffix}", gradients), module)
    alone = inputs.gradients(written(tmp_path / f"one{suffix}", {n: t[1] for n, t in gradients.items()}), module)
    for name, t in gradients.items():
        assert torch.equal(stacked[name], t)
        assert torch.equal(alone[name], t[1:])


def test_a_link_that_its_user_names_is_followed(module, gradients, tmp_path):
    """As data folders on clusters are full of them."""
    (tmp_path / "data").mkdir()
    written(tmp_path / "sent.safetensors", gradients)
    link = tmp_path / "data" / "linked.safetensors"
    link.symlink_to(tmp_path / "sent.safetensors")
    read = inputs.gradients(link, module)
    assert all(torch.equal(t, gradients[n]) for n, t in read.items())
    assert read.keys() == gradients.keys()


def test_an_update_is_the_state_after_less_that_before(module, tmp_path):
    before = written(tmp_path / "before.safetensors", module.state_dict())
    with pytest.raises(UserError, match="--after names no file"):
        inputs.updates({}, [], module)
    moved = [{n: t + k for n, t in module.state_dict().items()} for k in (1.0, 2.0)]
    each = [written(tmp_path / f"after{k}.npz", state) for k, state in enumerate(moved)]
    together = written(
        tmp_path / "after.safetensors", {n: torch.stack([state[n] for state in moved]) for n in moved[0]}
    )
    params, buffers = inputs.state(before, module)
    assert buffers == {}
    for paths in (each, [together]):
        change = inputs.updates(params, paths, module)
        assert {n: t.shape for n, t in change.items()} == {n: (2, *t.shape) for n, t in params.items()}
        assert all(
            torch.allclose(t[k], torch.full_like(t[k], k + 1.0), atol=1e-6) for t in change.values() for k in (0, 1)
        )


def test_running_statistics_and_counts_of_batches_may_be_in_a_state(tmp_path):
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    module[2].bias.requires_grad_(False)
    params, buffers = inputs.state(written(tmp_path / "state.npz", module.state_dict()), module)
    assert [*params] == ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight"]
    assert {*buffers} >= {"1.running_mean", "1.running_var", "2.bias"}


def member(name, content):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, content)
    return file.getvalue()


def objects():
    file = io.BytesIO()
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    return file.getvalue()


def zeros():
    """A file that fills memory: compressed zeros."""
    file = io.BytesIO()
    np.savez_compressed(file, **{"0.weight": np.zeros((400, 16, 30))})
    return file.getvalue()


def overlapping():
    """Forty arrays in one compressed body of 48 KB, each of which says that it is 2 MB: each head skips those behind it."""
    raw = io.BytesIO()
    rows = np.tile(np.concatenate([np.random.default_rng(0).random(128), np.zeros(3_968)]), 61)
    np.save(raw, rows)
    shrink = zlib.compressobj(1, zlib.DEFLATED, -15)
    body = shrink.compress(raw.getvalue()) + shrink.flush()
    facts = (8, 0, 33, zlib.crc32(raw.getvalue()), len(body), len(raw.getvalue()))
    names = [b"0.weight.npy", *(b"other%02d.npy" % k for k in range(39))]
    heads, index = b"", b""
    for k, name in enumerate(names):
        skipped = sum(30 + len(later) for later in names[k + 1 :])
        index += struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, *facts, len(name), 0, 0, 0, 0, 0, len(heads)) + name
        heads += struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, *facts, len(name), skipped) + name
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, len(names), len(names), len(index), len(heads + body), 0)
    return heads + body + index + end


def damaged():
    """A compressed file whose numbers begin with a kind of block that there is not."""
    file = io.BytesIO()
    np.savez_compressed(file, **{"0.weight": np.random.default_rng(0).random((2, 16, 30))})
    content = bytearray(file.getvalue())
    head = zipfile.ZipFile(file).infolist()[0].header_offset
    name, more = (int.from_bytes(content[head + at : head + at + 2], "little") for at in (26, 28))
    content[head + 30 + name + more] = 0b111
    return bytes(content)


def lying():
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"shape": (2**40,), "fortran_order": False, "descr": "<f8"})
    return file.getvalue()


def nested(sign, end="", at_most=60_000):
    """A header that Python's parser gives up on."""
    header = (sign * (at_most // len(sign)) + end).encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header


def by_lzma():
    """A member whose decoder would take whatever memory its head asks for."""
    file, array = io.BytesIO(), io.BytesIO()
    np.save(array, np.zeros((2, 16, 30)))
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("0.weight.npy", array.getvalue())
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("state.pt", pickle.dumps({}), "a pickle .* is never read"),
        ("state.npz", pickle.dumps({}), "is no sound npz file"),
        ("state.npz", member("data.pkl", pickle.dumps({})), "'data.pkl' is no array; a pickle is never read"),
        ("state.npz", member("0.weight.npy", objects()), "holds object, not numbers; a pickle is never read"),
        ("state.npz", member("0.weight.npy", lying()), "does not have the size that it announces"),
        ("state.npz", member("0.weight.npy", nested("[")), "is no sound npz file"),
        ("state.npz", member("0.weight.npy", nested("-", "1")), "is no sound npz file"),
        ("state.npz", member("0.weight.npy", nested("not ", "1")), "is no sound npz file"),
        ("state.npz", member("0.weight.npy", nested("(", at_most=4_000)), "is no sound npz file"),
        ("state.npz", by_lzma(), "'0.weight.npy' is packed in another way than numpy.savez packs"),
        ("state.npz", damaged(), "is no sound npz file .*invalid block type"),
        ("state.npz", zeros(), "bytes of it announce .*; write it again with numpy.savez"),
        ("state.npz", overlapping(), "bytes of it announce .*; write it again with numpy.savez"),
        ("state.safetensors", b"\x80\x04", "is no sound safetensors file"),
        ("state.safetensors", (2**60).to_bytes(8, "little") + b"{}", "its header does not fit into the file"),
    ],
)
def test_a_pickle_or_a_file_that_is_none_is_refused_in_one_line(name, content, said, module, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=said) as refusal:
        inputs.gradients(tmp_path / name, module)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_tensors_that_nobody_asked_for_are_not_read(suffix, tmp_path, monkeypatch):
    path = written(tmp_path / f"truth{suffix}", {n: torch.full((4,), float(n == "other")) for n in ("images", "other")})
    arrays, tensors = [], []
    array, read = tensor_files._array, files.read_tensors
    monkeypatch.setattr(tensor_files, "_array", lambda a, m: arrays.append(m.filename) or array(a, m))
    monkeypatch.setattr(files, "read_tensors", lambda *args: tensors.append(read(*args)) or tensors[-1])
    images, labels = request.labelled(path, 4)
    assert torch.equal(images, torch.zeros(4))
    assert labels is None
    assert arrays == ["images.npy"] if suffix == ".npz" else [*tensors[0][0]] == ["images"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            lambda g: g | {"9.weight": g["0.weight"]},
            "'9.weight', which is no tensor of the module; it has 0.weight, 0.bias",
        ),
        (
            lambda g: g | {"0.bias": torch.zeros(2, 7)},
            r"'0.bias' should have shape \[16\], or that after an axis of messages",
        ),
        (lambda g: g | {"0.bias": torch.zeros(3, 16)}, r"different numbers of messages in different tensors: \[2, 3\]"),
        (lambda g: {}, "holds no tensor of the module"),
    ],
)
def test_tensors_that_do_not_fit_the_module_are_named(changed, said, module, gradients, tmp_path):
    with pytest.raises(UserError, match=said):
        inputs.gradients(written(tmp_path / "g.npz", changed(gradients)), module)


def test_a_missing_parameter_is_named_unless_its_part_was_not_sent(module, gradients):
    model = model_of(module, form_of(VECTOR), train=False, head=["2", "4"])
    head = {n: t for n, t in gradients.items() if not n.startswith("0.")}
    with pytest.raises(
        UserError, match=r"the messages lack '0.weight' of the extractor, and 1 more; say with --shared"
    ):
        observed.artifact_of(model, Received("gradient", head))
    seen = observed.artifact_of(model, Received("gradient", head), ["classifier"])
    assert seen.weights.keys() == seen.gradients.keys() == {"classifier"}
    with pytest.raises(UserError, match=r"'0.weight', which is no parameter|lack '2.weight'"):
        observed.artifact_of(model, Received("gradient", {n: t for n, t in gradients.items() if n != "2.weight"}))


@pytest.mark.parametrize(
    ("received", "said"),
    [
        ({"labels": torch.tensor([0, 1, 1])}, r"2 message\(s\) of 1 image\(s\) have 2 labels, but 3 were given"),
        ({"labels": torch.tensor([0, 2])}, "labels are numbers from 0 to 1, as the module has 2 outputs"),
        ({"batch_size": 0}, "the batch size should be from 1 to 4096, but it is 0"),
        ({"kind": "update"}, "updates need their local steps"),
    ],
)
def test_what_is_declared_of_messages_is_checked(received, said, module, gradients):
    model = model_of(module, form_of(VECTOR), train=False)
    with pytest.raises(UserError, match=said):
        observed.artifact_of(model, Received(**({"kind": "gradient", "messages": gradients} | received)))


def test_the_truth_is_taken_to_the_unit_range_and_its_shape_is_checked(module, gradients):
    form = form_of((1, 2, 2))
    seen = observed.artifact_of(model_of(module, form_of(VECTOR), train=False), Received("gradient", gradients))
    truth = observed.truth_of(torch.rand(2, 1, 2, 2), torch.tensor([1, 0]), form, seen)
    assert truth.images.shape == (2, 1, 1, 2, 2)
    assert truth.labels.tolist() == [[1], [0]]
    with pytest.raises(UserError, match=r"should be \[2, 1, 1, 2, 2\], but it is \[3, 1, 2, 2\]"):
        observed.truth_of(torch.rand(3, 1, 2, 2), None, form, seen)
    with pytest.raises(UserError, match="should lie in the declared range, from 0 to 1, but they lie in 0 to 255"):
        observed.truth_of(255 * torch.eye(2).expand(2, 1, 2, 2), None, form, seen)
    for labels, said in (
        (
            torch.tensor([1, 2]),
            "the true labels are numbers from 0 to 1, as the module has 2 outputs, but 2 is among them",
        ),
        (torch.tensor([1.0, 0.5]), "the true labels are whole numbers"),
    ):
        with pytest.raises(UserError, match=said):
            observed.truth_of(torch.rand(2, 1, 2, 2), labels, form, seen)
        # Of a loss of the user's own they may be targets.
        observed.truth_of(torch.rand(2, 1, 2, 2), labels, form, seen, own_loss=True)


@pytest.mark.parametrize("labels", [[10**30, 5], ["a", "b"], [[1, 2], [3]]])
def test_labels_that_are_no_row_of_whole_numbers_are_refused_in_a_line(labels, module, gradients, tmp_path):
    asked = request.AuditRequest(gradients=written(tmp_path / "g.npz", gradients), labels=labels)
    with pytest.raises(UserError, match="labels are whole numbers, one for each image"):
        asked.load(module)
