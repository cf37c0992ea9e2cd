"""Files: whole or not at all, and damaged ones are named."""

import errno
import os

import pytest
import torch

from privbench import storage
from privbench.errors import UserError

TENSORS = {"a/b": torch.arange(6.0).view(2, 3), "c": torch.tensor([1, 2])}


@pytest.fixture
def path(tmp_path):
    storage.save_tensors(tmp_path / "x.safetensors", "artifact", TENSORS, {"round": 3})
    return tmp_path / "x.safetensors"


def test_what_was_written_is_read(path):
    tensors, info = storage.load_tensors(path, "artifact")
    assert info == {"round": 3}
    assert all(torch.equal(tensors[k], TENSORS[k]) for k in TENSORS)


@pytest.mark.parametrize("keep", [0, 4, 100, -8])
def test_a_truncated_file_is_named(path, keep):
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"x\.safetensors is damaged"):
        storage.load_tensors(path, "artifact")


def test_an_altered_byte_is_found(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match="do not match their checksum"):
        storage.load_tensors(path, "artifact")


def test_another_kind_and_a_foreign_file_are_refused(path):
    from safetensors.torch import save_file

    with pytest.raises(UserError, match="is not a privbench checkpoint but artifact"):
        storage.load_tensors(path, "checkpoint")
    save_file({"w": torch.zeros(1)}, path)
    with pytest.raises(UserError, match="is not a privbench artifact but a foreign file"):
        storage.load_tensors(path, "artifact")


@pytest.mark.parametrize("step", [-1, 1])
def test_an_older_or_newer_format_is_refused(path, monkeypatch, step):
    written = storage.VERSION
    monkeypatch.setattr(storage, "VERSION", written + step)
    with pytest.raises(UserError, match=f"format version {written}; this privbench reads version {written + step}"):
        storage.load_tensors(path, "artifact")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match="there is no truth at"):
        storage.load_tensors(tmp_path / "nothing", "truth")


def test_a_full_disk_leaves_the_old_file_and_nothing_else(path, monkeypatch):
    before = path.read_bytes()

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="the disk is full"):
        storage.save_tensors(path, "artifact", TENSORS, {})
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["x.safetensors"]


def test_an_unwritable_place_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        storage.write_json(tmp_path / "file" / "x.json", {})


def test_damaged_json_is_named(tmp_path):
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(UserError, match=r"x\.json is damaged"):
        storage.read_json(tmp_path / "x.json")
