"""Decoded images are kept outside the user's folder, and never instead of what lies there now."""

import os

import numpy as np
import pytest
import torch
from PIL import Image

from privbench.data.readers import decoded, tree
from privbench.system import places


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    """(files of one class folder, the names of the files that are decoded)."""
    monkeypatch.setenv("PRIVBENCH_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "mine/dogs"
    folder.mkdir(parents=True)
    for k in range(4):
        _save(folder / f"{k}.png", k)
    read, decoded_paths = tree.read, []
    monkeypatch.setattr(tree, "read", lambda paths, **how: decoded_paths.extend(paths) or read(paths, **how))
    return sorted(folder.iterdir()), decoded_paths


def _save(path, seed):
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (40, 30, 3), np.uint8)).save(path)


def test_a_folder_is_decoded_once_and_nothing_is_written_into_it(pictures):
    paths, decoded_paths = pictures
    first = decoded.read(paths)
    assert torch.equal(decoded.read(paths), first)
    assert torch.equal(tree.read(paths, colour=False), first)
    assert decoded_paths == [*paths, *paths]  # by the first read, and by the last line
    assert sorted(paths[0].parent.iterdir()) == paths
    assert len(list(places.images().iterdir())) == 1


@pytest.mark.parametrize("change", ["content", "time", "name", "gone"])
def test_a_folder_that_changed_is_decoded_anew_and_the_old_images_are_dropped(pictures, change):
    paths, decoded_paths = pictures
    before = decoded.read(paths)
    if change == "content":
        _save(paths[0], 9)
    elif change == "time":
        os.utime(paths[0], ns=(1, 1))
    elif change == "name":
        paths = [paths[0].rename(paths[0].with_name("00.png")), *paths[1:]]
    else:
        paths = paths[1:]
    decoded_paths.clear()
    after = decoded.read(paths)
    assert decoded_paths == paths
    assert torch.equal(after[-3:], before[-3:])
    assert torch.equal(after, before) == (change in ("time", "name"))
    assert len(list(places.images().iterdir())) == 1


def test_a_damaged_or_unwritable_cache_costs_time_alone(pictures, monkeypatch, tmp_path):
    paths, decoded_paths = pictures
    first = decoded.read(paths)
    (cached,) = places.images().iterdir()
    cached.write_bytes(cached.read_bytes()[:100])
    assert torch.equal(decoded.read(paths), first)
    assert decoded_paths == [*paths, *paths]
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PRIVBENCH_CACHE", str(tmp_path / "file"))
    assert torch.equal(decoded.read(paths), first)


def test_what_a_killed_process_left_half_written_goes_when_images_are_kept(pictures):
    left = places.images() / ".old.safetensors.00000000-1-1.tmp"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    os.utime(left, (1, 1))
    decoded.read(pictures[0])
    assert not left.exists()
    assert len(list(places.images().iterdir())) == 1
