"""An artifact file with its truth is scored, set beside its floors, and checked as a record is."""

from dataclasses import replace

import pytest
import torch

from attacks.floors import ClassMean, Grey
from privbench import presets, registry
from privbench.cli.artifact_file import attack_file
from privbench.data.readers.resize import pixels
from privbench.errors import UserError
from privbench.observation import artifact_files as artifacts
from privbench.observation import knowledge
from privbench.scoring import image_scores
from privbench.training import federation
from privbench.types import Knowledge, Truth
from tests.builders import small_artifacts


@pytest.fixture(scope="module")
def digits():
    """(federation, auxiliary images) of the default layout, from which a file's floors are made."""
    fed, _ = federation.of(presets.train_spec("quick", "digits", "fedavg"), None)
    return fed, knowledge.auxiliary(fed, knowledge.SAME, None, (1, 32, 32), 0)[0]


@pytest.fixture
def output_of(tmp_path, capsys):
    """Attacks images with their labels, written as files, and returns what is printed."""

    def call(images, labels, attack, *, scored=True, dataset="digits", **settings):
        seen = replace(small_artifacts.artifact(images, labels), method="fedavg", dataset=dataset)
        artifacts.save(seen, tmp_path / "seen")
        truth = tmp_path / "truth.safetensors" if scored else None
        if truth is not None:
            artifacts.save_truth(Truth(images[:, None], labels[:, None]), truth, tmp_path / "seen")
        path = tmp_path / "seen"
        attack_file(path, truth, [attack], settings, "digits", "same", "cpu", None, tmp_path)
        return capsys.readouterr().out

    return call


def victims_of(fed, count=4):
    """Training images, as victims are."""
    client = fed.clients[0].train
    return pixels(client.images[:count], 32), client.labels[:count]


def test_the_floor_and_the_paired_gain_stand_beside_the_score(output_of, digits):
    fed, same = digits
    images, labels = victims_of(fed)
    text = output_of(images, labels, "grey")
    seen = small_artifacts.artifact(images, labels)
    floor = image_scores.psnr_of(
        ClassMean().reconstruct(seen, Knowledge(auxiliary=same), 0), Truth(images[:, None], labels[:, None])
    )
    grey = image_scores.psnr_db(torch.full_like(images, 0.5), images)
    assert f"floor {float(floor.mean()):.2f} dB (class-mean)" in text
    assert f"PSNR {float(grey.mean()):.2f} [" in text
    assert f"gain {float((grey - floor).mean()):+.2f} [" in text
    assert "failures 0" in text
    names = [line.split(":")[0].strip() for line in text.splitlines() if line.startswith("  ")]
    assert names == ["few"]  # a floor below another is no failed attack


def test_an_attack_below_the_floor_is_reported(output_of, digits):
    text = output_of(*victims_of(digits[0]), "dlg", steps=1)
    assert "  below-floor: " in text


def test_victims_among_the_auxiliary_images_and_twice_are_reported(output_of, digits):
    fed, same = digits
    images, labels = victims_of(fed, 3)
    twice = torch.cat([images, images[:1], same.images[:1]]), torch.cat([labels, labels[:1], same.labels[:1]])
    text = output_of(*twice, "grey")
    assert "  auxiliary-overlap: 1 of 5 victims" in text
    assert "  duplicate-victims: 2 of 5 victims" in text
    unscored = output_of(*twice, "grey", scored=False)
    assert "PSNR" not in unscored
    assert "duplicate" not in unscored


@pytest.mark.parametrize("dataset", ["nowhere", "cifar10"])
def test_without_the_images_of_its_data_set_the_floor_is_grey_and_says_so(dataset, output_of, digits, monkeypatch):
    monkeypatch.delenv("PRIVBENCH_DATA", raising=False)
    text = output_of(*victims_of(digits[0]), "grey", dataset=dataset)
    assert text.startswith("note: the floor is that of a grey image alone")
    assert "dB (grey), gain +0.00 [+0.00, +0.00]* dB" in text


def test_an_attack_that_crashes_on_a_file_leaves_its_traceback_and_the_others_are_made(
    output_of, digits, tmp_path, monkeypatch
):
    monkeypatch.setattr(Grey, "reconstruct", lambda *_: 1 // 0)
    with pytest.raises(UserError, match=r"grey: internal error: ZeroDivisionError: .*; see .*seen-grey-error\.txt$"):
        output_of(*victims_of(digits[0], 1), "grey", scored=False)
    assert "1 // 0" in (tmp_path / "seen-grey-error.txt").read_text()
    monkeypatch.setattr("privbench.registry.ATTACKS", {n: registry.ATTACKS[n] for n in ("grey", "class-mean")})
    text = output_of(*victims_of(digits[0], 1), "ladder", scored=False)
    assert "grey: not run: internal error: ZeroDivisionError" in text
    assert "class-mean: 1 victims" in text
