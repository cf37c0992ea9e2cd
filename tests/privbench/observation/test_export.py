"""An artifact for others' code: the same tensors without the run, read with nothing but json and safetensors or NumPy."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from privbench.errors import UserError
from privbench.observation import artifact_files
from privbench.observation.export import export
from privbench.observation.format import files, schema
from privbench.types import Truth
from tests.builders import small_artifacts

ORIGIN = schema.Origin(
    run="0123456789ab", seed=48_611, dataset="folder:/secret/place", artifact="0123456789ab-r0-v2-b1"
)
IMAGES, LABELS = small_artifacts.smooth_images(2)[:, None], torch.tensor([[3], [1]])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(an observation, its truth) among results."""
    root = tmp_path_factory.mktemp("made")
    seen = small_artifacts.artifact(IMAGES[:, 0], LABELS[:, 0])
    artifact_files.save_with_truth(seen, Truth(IMAGES, LABELS), root, ORIGIN)
    return root / artifact_files.OBSERVATION, root / artifact_files.TRUTH


def test_an_export_is_the_same_observation_without_its_run_and_its_truth_fits_it(made, tmp_path):
    source, truth = made
    written = export(source, tmp_path / "seen", truth=truth)
    assert {p.name for p in written} == {"index.json", "round-0000.safetensors", "seen-truth.safetensors"}
    assert artifact_files.origin(tmp_path / "seen") is None
    assert files.read(tmp_path / "seen").id == files.read(source).id
    images = artifact_files.load_truth(tmp_path / "seen-truth.safetensors", tmp_path / "seen").images
    assert torch.equal(images, IMAGES)
    for path in written:
        assert not any(word in path.read_bytes() for word in (b"0123456789ab", b"48611", b"secret"))


def test_numpy_reads_an_export_as_npz_and_privbench_says_that_it_does_not(made, tmp_path, command):
    source, truth = made
    words = ("export", source, "--into", tmp_path / "seen", "--form", "npz", "--truth", truth)
    ran = command(*words)
    assert ran.status == 0
    assert ran.out.count("wrote ") == 3
    index = json.loads((tmp_path / "seen" / "index.json").read_text())
    (entry,) = index["rounds"]
    arrays = np.load(tmp_path / "seen" / entry["file"])
    whole = files.read_round(stored := files.read(source), stored.index.rounds[0])
    assert set(arrays.files) == set(whole) == set(entry["tensors"])
    assert all(np.array_equal(arrays[name], t.numpy()) for name, t in whole.items())
    assert np.array_equal(np.load(tmp_path / "seen-truth.npz")["labels"], LABELS.numpy())
    with pytest.raises(UserError, match="is not the index of a privbench observation but observation in npz"):
        artifact_files.load(tmp_path / "seen")
    assert "is not empty" in command(*words).err
    assert "lies in the observation that is exported" in command("export", source, "--into", source / "seen").err
    assert not (source / "seen").exists()
    assert "--form takes 'safetensors' or 'npz'" in command(*words[:5], "csv").err


def test_the_truth_of_another_observation_is_not_exported(made, tmp_path):
    source, truth = made
    artifact_files.save(replace(artifact_files.load(source), round=1), tmp_path / "other")
    with pytest.raises(UserError, match="is the truth of another observation"):
        export(tmp_path / "other", tmp_path / "seen", truth=truth)
    assert not (tmp_path / "seen").exists()


def test_the_example_of_the_page_reads_an_observation_as_it_stands(made, repository, tmp_path):
    text = (repository / "docs" / "observation_format.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert "privbench" not in block
    (tmp_path / "read.py").write_text(block)
    ran = subprocess.run([sys.executable, tmp_path / "read.py", made[0]], capture_output=True, text=True, check=True)
    lines = ran.stdout.splitlines()
    assert lines[:2] == ["test on digits against {'name': 'none'}", "round 0 gradient of clients [[0], [0]]"]
    assert "gradient/parameters/classifier/fc3.weight (2, 10, 84)" in lines
    assert len(lines) == 2 + 10


def test_the_page_names_every_field(made, repository):
    text = (repository / "docs" / "observation_format.md").read_text()
    models = (
        schema.Index,
        schema.SetupEntry,
        schema.NetworksEntry,
        schema.RoundEntry,
        schema.Messages,
        schema.Origin,
        schema.LocalStepsEntry,
    )
    missing = {name for model in models for name in model.model_fields if f"`{name}`" not in text}
    assert missing == set()


def test_an_exported_observation_is_attacked_like_any_other(made, tmp_path, command):
    source, truth = made
    export(source, tmp_path / "seen", truth=truth)
    words = (
        "attack",
        "--artifact",
        tmp_path / "seen",
        "--attack",
        "grey",
        "--dataset",
        "digits",
        "--out",
        tmp_path / "out",
    )
    ran = command(*words, "--truth", tmp_path / "seen-truth.safetensors")
    assert ran.status == 0, ran.err
    assert "grey: 2 victims" in ran.out
    shutil.rmtree(tmp_path / "seen")
    assert "there is no observation at" in command(*words).err
