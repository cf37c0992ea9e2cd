"""Client rows: every client of a secure sum has rows of its own, its images are read from them, and the others are class means."""

from dataclasses import replace

import pytest
import torch

from attacks.client_rows import SENT_HONESTLY, ClientRows
from attacks.common import no_information
from attacks.crafted import client_rows
from attacks.crafted.gradient_bins import NONE
from privbench.errors import AttackRefused, UserError
from privbench.execution import one_attack
from privbench.methods.base import MiniBatch, RoundClock
from privbench.observation import artifact_files, client_message
from privbench.observation.format import files
from privbench.scoring.image_scores import psnr_of
from privbench.system import index_files
from privbench.types import Outcome
from tests.attacks.test_model_inconsistency import SIZES, attacked

CPU = torch.device("cpu")
UNTRIED = {"rehearsal_images": 0}


def divided(folder, **options):
    return attacked(folder, attack="client-rows", **UNTRIED | options)


def alone_of(seen, truth, shot, setup, client, v):
    """The gradient of a client's batch by itself, at what it received."""
    size = seen.images_per_client
    own = slice(client * size, (client + 1) * size)
    batch = MiniBatch(truth.images[v, own], truth.labels[v, own], {})
    return client_message.client_gradient(
        setup.model, shot, client, batch, setup.method, ("extractor", "classifier"), RoundClock(1, 1), train=False
    )["classifier"]


@pytest.mark.parametrize("batch", [1, 3])
def test_every_client_s_rows_of_the_sum_are_its_own(batch, tmp_path):
    seen, truth, shot, setup, _ = divided(tmp_path, batch=batch)
    for k in range(3):
        rows = client_rows.block(120, k, 3)
        read, alone = client_rows.of_client(seen, k).gradients["classifier"], alone_of(seen, truth, shot, setup, k, 0)
        error = setup.defense.fixed_point.error(SIZES) / (SIZES[k] / sum(SIZES))
        for name in ("fc1.weight", "fc1.bias"):
            off = torch.ones(120, dtype=torch.bool)
            off[rows] = False
            assert not bool(alone[name][off].any()), "rows of others are off"
            assert not bool(read[name][0, off].any())
            assert bool(alone[name][rows].any())
            # No number in a row that is off is one that a client would notice.
            assert not bool(seen.divided[k].params["classifier"][name][off].any())
            # What storing the sum and its multiple in single precision rounds.
            gap = (read[name][0] - alone[name]).abs().max()
            assert float(gap) <= error + 3e-7 * float(alone[name].abs().max()), name


def test_features_of_all_clients_come_back_from_one_sum(tmp_path):
    seen, truth, shot, setup, known = divided(tmp_path, victims=2)
    h, y = client_rows.features_of(seen)
    assert torch.equal(y, truth.labels)
    extractor = setup.model.net("extractor")
    for v in range(2):
        true, _ = extractor.apply(shot.server.params["extractor"], {}, truth.images[v], train=True)
        torch.testing.assert_close(h[v], true.double(), atol=1e-4, rtol=0)
    answer = ClientRows(feature_steps=40).reconstruct(seen, known, 0)
    gain = psnr_of(answer, truth) - psnr_of(no_information.class_mean(seen, known), truth)
    assert float(gain.min()) > 0
    assert answer.outcome.tolist() == [Outcome.RECONSTRUCTED] * 2
    assert answer.notes == ("client-rows read 6 of 6 images; all others are class means",)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_clip_of_every_message_hides_no_row(batch, tmp_path):
    """A clip multiplies all rows of a client by one number, by which the sizes of several rows agree with labels.

    Of one image the number and the label are not told apart, which its features do not need.
    """
    seen, truth, _, _, _ = divided(tmp_path / "clipped", defense="clip:0.05+secure-aggregation", batch=batch, victims=2)
    exact, *_ = divided(tmp_path / "exact", batch=batch, victims=2)
    _, y = client_rows.features_of(seen)
    _, plain = client_rows.features_of(exact)
    # One row alone does not say by how much it was clipped.
    assert int((y != NONE).sum()) >= 0.5 * int((plain != NONE).sum()) > 0
    if batch == 1:
        assert bool((y != NONE).all())
        return
    for v, k in ((v, k) for v in range(2) for k in range(3)):
        own = slice(batch * k, batch * (k + 1))
        left = truth.labels[v, own].tolist()
        for label in y[v, own][y[v, own] != NONE].tolist():
            left.remove(label)


def test_of_larger_batches_images_that_share_a_row_are_class_means(tmp_path):
    seen, truth, _, _, known = divided(tmp_path, victims=2, batch=6)
    _, identified = client_rows.features_of(seen)
    alone = identified != NONE
    assert 0 < int(alone.sum()) < alone.numel()
    answer = ClientRows(feature_steps=5).reconstruct(seen, known, 0)
    assert torch.equal(answer.labels[alone], identified[alone])
    floor = no_information.class_mean(replace(seen, labels=answer.labels), known)
    assert torch.equal(answer.images[~alone].float(), floor.images[~alone])
    assert bool((answer.images[alone].float() != floor.images[alone]).flatten(1).any(1).all())
    # A row names the client: its images have the labels that were read there.
    for v, k in ((v, k) for v in range(2) for k in range(3)):
        own = slice(6 * k, 6 * (k + 1))
        left = truth.labels[v, own].tolist()
        for label in identified[v, own][alone[v, own]].tolist():
            left.remove(label)


def test_files_hold_what_each_client_received(tmp_path):
    seen, truth, *_ = divided(tmp_path, batch=2)
    artifact_files.save(seen, tmp_path / "observation")
    artifact_files.save_truth(truth, tmp_path / "truth.safetensors", tmp_path / "observation")
    back = artifact_files.load(tmp_path / "observation")
    assert len(back.divided) == 3
    for one, other in zip(back.divided, seen.divided, strict=True):
        assert all(torch.equal(t, other.params[p][n]) for p, net in one.params.items() for n, t in net.items())
    assert not torch.equal(*(back.divided[k].params["classifier"]["fc1.bias"] for k in (0, 2)))
    assert torch.equal(back.weights["classifier"]["fc1.bias"], back.divided[0].params["classifier"]["fc1.bias"])

    content = files.read(tmp_path / "observation").index.model_dump(mode="json", exclude_unset=True)
    content["rounds"][0]["broadcasts"][1]["clients"] = [5]
    identity = index_files.digest({name: content[name] for name in ("setup", "rounds")})
    files.write_content(tmp_path / "observation", {"privbench": "observation", "version": 1, "id": identity, **content})
    with pytest.raises(UserError, match=r"holds 3 broadcasts; .* or of sums one to each client"):
        artifact_files.load(tmp_path / "observation")


def test_attacks_on_what_all_received_refuse_such_a_sum_and_this_one_refuses_an_honest_one(tmp_path):
    seen, *_, known = divided(tmp_path / "active")
    for name in ("staged", "imprint", "fishing"):
        with pytest.raises(AttackRefused, match=f"{name} attacks sums .* try --attack client-rows"):
            one_attack.attack_artifact(name, {}, seen, known, 0, CPU, lambda *_: None)
    honest, *_ = attacked(tmp_path / "honest", attack="staged")
    with pytest.raises(AttackRefused, match="all clients received the same here"):
        one_attack.attack_artifact("client-rows", {}, honest, replace(known, broadcast=None), 0, CPU, lambda *_: None)


def test_the_dry_run_decides_for_all_clients_at_once(tmp_path, monkeypatch):
    seen, *_ = attacked(tmp_path / "tried", attack="client-rows", rehearsal_images=24)
    assert seen.divided is not None
    monkeypatch.setattr(client_rows, "read", lambda seen, *_: no_information.grey(seen))
    honest, _, _, _, known = attacked(tmp_path / "honest", attack="client-rows", rehearsal_images=24)
    assert honest.divided is None
    answer = ClientRows().reconstruct(honest, known, 0)
    assert answer.outcome.tolist() == [Outcome.NOT_APPLICABLE] * 2
    assert answer.notes == (SENT_HONESTLY,)


def test_more_clients_than_there_are_rows_for_are_refused(tmp_path):
    *_, setup, _ = attacked(tmp_path, attack="staged")
    ClientRows().check(setup.model, 30)
    with pytest.raises(UserError, match="divides 120 rows, too few for 31 clients"):
        ClientRows().check(setup.model, 31)
