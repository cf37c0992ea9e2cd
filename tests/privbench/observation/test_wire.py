"""The number format in which clients send."""

import pytest
import torch

from privbench import presets
from privbench.observation import artifact_files, local_update, observe, wire
from privbench.records.store import Store
from privbench.training import checkpoint, harness
from privbench.types import LocalSteps
from tests.builders.federations import digits_federation

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fedavg")
    each = presets.train_spec("smoke", "digits", "fedavg", clients=2, changes={"rounds": 1})
    setup = harness.prepare(each, digits_federation((20, 20)), CPU)
    checkpoint.save_snapshot(folder, each, harness.initial(setup))
    return setup, checkpoint.load_snapshot(folder, each.id, 0)


def seen(untrained, **options):
    setup, shot = untrained
    return observe.observe(
        shot, setup.federation, setup.model, setup.method, setup.defense, method_name="fedavg", dataset="digits",
        victims=2, batch_size=1, labels_known=False, seed=0, **options,
    )[0]  # fmt: skip


@pytest.mark.parametrize("form", ["bf16", "fp16"])
@pytest.mark.parametrize("local", [None, LocalSteps(2, {"kind": "sgd", "lr": 0.1, "weight_decay": 0.0})])
def test_what_arrives_is_the_single_precision_gradient_or_update_rounded_once(form, local, untrained):
    whole, sent = seen(untrained, local=local), seen(untrained, local=local, form=form)
    for kind in ("gradients", "updates"):
        for part, net in getattr(whole, kind).items():
            for name, t in net.items():
                arrived = getattr(sent, kind)[part][name]
                assert arrived.dtype == torch.float32
                assert torch.equal(arrived, t.to(wire.FORMATS[form]).float())
                assert not torch.equal(arrived, t)
    assert sent.defense == {"name": "rounded", "wire": form}
    assert whole.defense == {"name": "none"}
    assert all(torch.equal(t, sent.weights["classifier"][n]) for n, t in whole.weights["classifier"].items())


def test_beyond_the_range_of_half_precision_infinity_arrives_and_in_bfloat16_the_number():
    large = {"classifier": {"w": torch.tensor([1e14, -1e14, 2.0])}}
    assert wire.rounded(large, "fp16")["classifier"]["w"].tolist() == [torch.inf, -torch.inf, 2.0]
    assert wire.rounded(large, "bf16")["classifier"]["w"].isfinite().all()
    assert torch.equal(wire.rounded(large, "float32")["classifier"]["w"], large["classifier"]["w"])


def test_a_defence_keeps_its_name_and_variance():
    noise = {"name": "gaussian", "variance": 0.1, "where": "update"}
    assert wire.described(noise, "float32") == noise
    assert wire.described(noise, "bf16") == noise | {"wire": "bf16"}


def test_the_format_is_part_of_a_cells_name_and_of_its_artifacts_folder_and_the_usual_one_is_not(tmp_path):
    train = presets.train_spec("quick", "digits", "fedavg")
    plain = presets.cell_spec("quick", train, "staged")
    other = presets.cell_spec("quick", train, "staged", wire="fp16")
    assert "wire" not in plain.model_dump()
    assert plain.id != other.id
    store = Store(tmp_path)
    assert store.artifact(plain, train, 0) != store.artifact(other, train, 0)
    assert store.artifact(plain, train, 0).name.endswith("-b1")


def test_an_artifact_says_how_its_clients_train(untrained, tmp_path):
    setup, _ = untrained
    schedule = setup.spec.schedule.model_copy(update={"local_epochs": 3, "batch": 16})
    training = local_update.local_training(schedule, [20, 20, 70])
    assert training.steps == 3 * 2
    assert training.batch == 16
    assert training.optimiser == schedule.task.model_dump()
    fixed = schedule.model_copy(update={"client_steps": 7})
    assert local_update.local_training(fixed, [20, 20, 70]).steps == 7
    artifact_files.save(seen(untrained, training=training), tmp_path / "artifact")
    assert artifact_files.load(tmp_path / "artifact").training == training
    artifact_files.save(seen(untrained), tmp_path / "silent")
    assert artifact_files.load(tmp_path / "silent").training is None
