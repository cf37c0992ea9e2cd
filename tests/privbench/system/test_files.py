"""Files: whole or not at all, and damaged ones are named."""

import errno
import json
import os

import pytest
import torch

from privbench.errors import UserError
from privbench.system import file_headers, files

TENSORS = {"a/b": torch.arange(6.0).view(2, 3), "c": torch.tensor([1, 2])}


@pytest.fixture
def path(tmp_path):
    files.save_tensors(tmp_path / "x.safetensors", "artifact", TENSORS, {"round": 3})
    return tmp_path / "x.safetensors"


def test_what_was_written_is_read(path):
    tensors, info = files.load_tensors(path, "artifact")
    assert info == {"round": 3}
    assert all(torch.equal(tensors[k], TENSORS[k]) for k in TENSORS)


@pytest.mark.parametrize("keep", [0, 4, 100, -8])
def test_a_truncated_file_is_named(path, keep):
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"x\.safetensors is damaged"):
        files.load_tensors(path, "artifact")


def test_an_altered_byte_is_found(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match="do not match their checksum"):
        files.load_tensors(path, "artifact")


def test_another_kind_and_a_foreign_file_are_refused(path):
    from safetensors.torch import save_file

    with pytest.raises(UserError, match="is not a privbench checkpoint but artifact"):
        files.load_tensors(path, "checkpoint")
    save_file({"w": torch.zeros(1)}, path)
    with pytest.raises(UserError, match="is not a privbench artifact but a foreign file"):
        files.load_tensors(path, "artifact")


@pytest.mark.parametrize("step", [-1, 1])
def test_an_older_or_newer_format_is_refused(path, monkeypatch, step):
    written = files.VERSION
    monkeypatch.setattr(files, "VERSION", written + step)
    with pytest.raises(UserError, match=f"format version {written}; this privbench reads version {written + step}"):
        files.load_tensors(path, "artifact")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match="there is no truth at"):
        files.load_tensors(tmp_path / "nothing", "truth")


def test_a_full_disk_leaves_the_old_file_and_nothing_else(path, monkeypatch):
    before = path.read_bytes()

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="the disk is full"):
        files.save_tensors(path, "artifact", TENSORS, {})
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["x.safetensors"]


def test_an_unwritable_place_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        files.write_json(tmp_path / "file" / "x.json", {})


def test_damaged_json_is_named(tmp_path):
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(UserError, match=r"x\.json is damaged"):
        files.read_json(tmp_path / "x.json")


def rewrite_header(path, change):
    """Changes the JSON header of a tensor file, or its text, and leaves the tensors."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    text = change(json.loads(raw[8 : 8 + length]))
    text = (text if isinstance(text, str) else json.dumps(text)).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])


def tensor(**changes):
    return lambda header: header | {"c": header["c"] | changes}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (tensor(shape=[10**12]), "does not take 16 bytes"),
        (tensor(shape=[-2]), "has no shape but"),
        (tensor(shape=[True, 2]), "has no shape but"),
        (tensor(shape=2), "has no shape but"),
        (tensor(shape=[1] * 8 + [2]), "has no shape but"),
        (tensor(dtype="F7"), "is of F7"),
        (tensor(dtype=None), "is of None"),
        (tensor(data_offsets=[24, 40]), "overlap or leave gaps"),
        (tensor(data_offsets=[16, 0]), "does not take -16 bytes"),
        (tensor(data_offsets=[0]), "has no place but"),
        (tensor(more=1), "is not described by dtype, shape and data_offsets"),
        (lambda header: header | {"c": 5}, "is not described by"),
        (lambda header: {n: entry for n, entry in header.items() if n != "a/b"}, "announces 16 bytes"),
        (lambda header: header | {"__metadata__": {"privbench": 3}}, "no table of words"),
        (lambda header: [header], "no object"),
        (lambda header: json.dumps(header)[:-1] + ', "c": {}}', "names 'c' twice"),
        (lambda header: "[" * 200_000 + "]" * 200_000, "nests deeper than 4 levels"),
        (lambda header: '{"a": ' * 200_000 + "1" + "}" * 200_000, "nests deeper than 4 levels"),
    ],
)
def test_a_header_whose_sizes_types_or_nesting_are_wrong_is_refused_before_a_tensor_is_read(
    change, message, path, monkeypatch
):
    rewrite_header(path, change)
    monkeypatch.setattr(files, "read_tensors", lambda _: pytest.fail("a tensor was read"))
    with pytest.raises(UserError, match="is damaged or is no artifact") as refused:
        files.load_tensors(path, "artifact")
    assert message in str(refused.value)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("info", ["[" * 200_000 + "]" * 200_000, '{"a": 1, "a": 1}', "[]", "3", "", '"\\ud800"'])
def test_what_a_header_says_beside_its_tensors_is_strict_json(info, path):
    rewrite_header(path, lambda header: header | {"__metadata__": header["__metadata__"] | {"info": info}})
    with pytest.raises(UserError, match="its header does not parse"):
        files.load_tensors(path, "artifact")


@pytest.mark.parametrize("length", [0, 1, 2**26 + 1, 2**63, 2**64 - 1])
def test_a_header_that_claims_another_length_is_refused(length, path):
    path.write_bytes(length.to_bytes(8, "little") + path.read_bytes()[8:])
    with pytest.raises(UserError, match="is damaged or is no artifact"):
        files.load_tensors(path, "artifact")


def test_a_header_larger_than_any_of_ours_is_refused_unread(path, monkeypatch):
    monkeypatch.setattr(file_headers, "HEADER_BYTES", 100)
    with pytest.raises(UserError, match="bytes, more than 100"):
        files.load_tensors(path, "artifact")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 200_000 + "]" * 200_000, "nests deeper than 64 levels"),
        ("[" * 65 + "]" * 65, "nests deeper than 64 levels"),
        ('{"a": 1, "b": 2, "a": 3}', "names 'a' twice"),
        ('"\\udfff"', "surrogates"),
        ("1" * 5_000, "a whole number in it has thousands of digits"),
    ],
)
def test_json_that_no_file_of_ours_holds_is_refused_in_one_line(text, message, tmp_path):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UserError, match=r"x\.json is damaged") as refused:
        files.read_json(tmp_path / "x.json")
    assert message in str(refused.value)
    assert len(str(refused.value)) < 500


def test_json_with_emoji_and_as_many_levels_as_there_may_be_is_read(tmp_path):
    (tmp_path / "x.json").write_text('{"\\ud83d\\ude00": ' + "[" * 63 + "]" * 63 + "}")
    assert [*files.read_json(tmp_path / "x.json")] == ["\U0001f600"]


def test_json_larger_than_any_of_ours_and_a_folder_are_named(tmp_path, monkeypatch):
    (tmp_path / "x.json").write_text("[1, 2]")
    monkeypatch.setattr(files, "JSON_BYTES", 5)
    with pytest.raises(UserError, match="it has more than 5 bytes"):
        files.read_json(tmp_path / "x.json")
    with pytest.raises(UserError, match="cannot read"):
        files.read_json(tmp_path / "nothing.json")
