"""Artifacts of before there were observations: read once more where they lie among results, refused elsewhere."""

import pytest
import torch

from privbench import presets
from privbench.errors import UserError
from privbench.observation import artifact_files, artifact_upgrade
from privbench.system import files
from tests.builders import small_artifacts

TRAIN = presets.train_spec("smoke", "digits", "fedavg", clients=2, seed=100)
IMAGES, LABELS = small_artifacts.smooth_images(2), torch.tensor([3, 1])


@pytest.fixture
def old(tmp_path):
    """A folder as an earlier version wrote it."""
    folder = tmp_path / f"{TRAIN.id}-r0-v2-b1"
    seen = small_artifacts.artifact(IMAGES, LABELS, known=True)
    tensors = {"client": seen.client, "labels": seen.labels}
    for group in ("gradients", "weights", "buffers"):
        tensors |= files.flatten(getattr(seen, group), group)
    info = {
        "method": "fedavg", "dataset": "digits",
        "model": {"backbone": "lenet5", "channels": 1, "classes": 10, "image_size": 32, "gan": "conv", "dropout": 0.0},
        "round": 0, "shares": ["extractor", "classifier"], "batch_size": 1, "image_shape": [1, 32, 32],
        "defense": {"name": "none"},
        "training": {"optimiser": {"lr": 0.1, "kind": "sgd", "weight_decay": 0.0}, "batch": 16, "steps": 40},
        "identity": {"run": TRAIN.id, "dataset": "digits"},
    }  # fmt: skip
    files.save_tensors(folder / "artifact.safetensors", "artifact", tensors, info)
    images = {"images": IMAGES[:, None], "labels": LABELS[:, None]}
    files.save_tensors(folder / "truth.safetensors", "truth", images, {})
    return folder, seen, (tensors, info)


def test_an_old_artifact_among_results_is_the_same_in_today_s_form_and_its_old_files_stay(old):
    folder, seen, _ = old
    whose = artifact_files.origin_of(TRAIN, folder)
    artifact_upgrade.upgrade(folder, whose)
    upgraded, truth = artifact_files.load_with_truth(folder, whose)
    assert all(torch.equal(upgraded.gradients[p][n], t) for p, net in seen.gradients.items() for n, t in net.items())
    assert all(torch.equal(upgraded.weights[p][n], t) for p, net in seen.weights.items() for n, t in net.items())
    assert (upgraded.model, upgraded.shared_parts, upgraded.training.steps) == (seen.model, seen.shared_parts, 40)
    assert torch.equal(upgraded.labels, seen.labels)
    assert torch.equal(truth.images, IMAGES[:, None])
    before = (folder / artifact_files.TRUTH).stat().st_mtime_ns
    artifact_upgrade.upgrade(folder, whose)
    assert (folder / artifact_files.TRUTH).stat().st_mtime_ns == before
    assert (folder / "artifact.safetensors").exists()
    assert (folder / "truth.safetensors").exists()


def test_an_old_artifact_of_another_run_or_with_a_damaged_header_is_refused(old):
    folder, _, (tensors, info) = old
    other = artifact_files.origin_of(TRAIN.model_copy(update={"seed": 101}), folder)
    with pytest.raises(UserError, match=r"is not of run .*; remove .* and run the same command again"):
        artifact_upgrade.upgrade(folder, other)
    whose = artifact_files.origin_of(TRAIN, folder)
    wrong = {"model": None, "image_shape": [1], "shares": 3, "defense": "none", "round": "0", "batch_size": 10**9}
    for changes in ({name: value} for name, value in wrong.items()):
        files.save_tensors(folder / "artifact.safetensors", "artifact", tensors, info | changes)
        with pytest.raises(UserError, match=r"artifact\.safetensors is damaged|is no sound observation"):
            artifact_upgrade.upgrade(folder, whose)
    assert not artifact_files.complete(folder)


def test_an_old_file_that_is_handed_over_is_refused_with_the_way_out(old):
    folder, _, _ = old
    with pytest.raises(UserError, match=r"is no folder; an observation is a folder with an index\.json"):
        artifact_files.load(folder / "artifact.safetensors")
    artifact_upgrade.upgrade(folder, artifact_files.origin_of(TRAIN, folder))
    with pytest.raises(UserError, match="is of an earlier privbench and does not say whose truth it is"):
        artifact_files.load_truth(folder / "truth.safetensors", folder / artifact_files.OBSERVATION)
