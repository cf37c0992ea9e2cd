"""What clients could notice of an active server: the numbers themselves, in records, and in tables."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from privbench import presets
from privbench.data.readers.resize import pixels
from privbench.execution import cell_jobs
from privbench.methods.base import Nets
from privbench.networks.model import Model
from privbench.records import schema
from privbench.records.entries import BroadcastCheck
from privbench.records.store import Store
from privbench.scoring import broadcast_checks
from privbench.scoring.broadcast_checks import CHECKS, of_networks, one_of_many
from privbench.seeds import stream
from privbench.types import Batch, Networks
from reports.records import quotable
from reports.tables import attack_table, broadcast_table, ladder, ladder_summary, report_files
from tests.builders import records
from tests.builders.federations import digits_federation

MODEL = Model("lenet5", 1, 10)


@pytest.fixture(scope="module")
def batch():
    images = digits_federation((20,)).clients[0].train
    return Batch(pixels(images.images[:6], 32), images.labels[:6])


def networks(*parts):
    drawn = {part: MODEL.net(part).init(stream(3, "test", part)) for part in parts}
    return Networks({p: params for p, (params, _) in drawn.items()}, {p: buffers for p, (_, buffers) in drawn.items()})


def test_the_numbers_are_those_of_a_plain_computation(batch):
    both = networks("extractor", "classifier")
    params = {
        part: {n: t.double().requires_grad_(True) for n, t in tensors.items()} for part, tensors in both.params.items()
    }
    nets = Nets(MODEL, params, both.buffers)
    loss = cross_entropy(nets.classifier(nets.extractor(batch.images.double())), batch.labels)
    tensors = [t for part in params.values() for t in part.values()]
    largest = max(float(t.detach().abs().max()) for t in tensors)
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, tensors)])
    got = of_networks(MODEL, both, Networks({}, {}), batch)
    assert tuple(got) == CHECKS[:-1]
    # In double precision a sum of some 60,000 terms is right to far more than ten digits.
    assert got["loss"] == pytest.approx(float(loss.detach()), rel=1e-10)
    assert got["gradient"] == pytest.approx(float(gradient.norm()), rel=1e-10)
    assert got["largest weight"] == largest


def test_only_what_was_received_counts(batch):
    private, received = networks("extractor"), networks("classifier")
    far = Networks({"extractor": {n: 1e6 * t for n, t in private.params["extractor"].items()}}, private.buffers)
    got = of_networks(MODEL, received, far, batch)
    assert got["largest weight"] == max(float(t.abs().max()) for t in received.params["classifier"].values())


def test_one_image_of_many_is_told_by_its_share():
    torch.manual_seed(0)
    alike = torch.ones(5, 3, 4)
    assert float(one_of_many([alike])) == pytest.approx(0.5)  # 1 / sqrt(5 - 1)
    alone = torch.cat([alike[:1], torch.zeros(4, 3, 4)])
    assert math.isinf(one_of_many([alone, alike]))
    assert float(one_of_many([torch.zeros(5, 3, 4), alike])) == pytest.approx(0.5)
    biases = torch.rand(5, 7)
    assert float(one_of_many([alike, 1e9 * biases])) == pytest.approx(0.5)


def test_a_loss_that_is_not_finite_has_no_number(batch):
    both = networks("extractor", "classifier")
    broken = {n: torch.full_like(t, torch.nan) for n, t in both.params["classifier"].items()}
    got = of_networks(MODEL, Networks(both.params | {"classifier": broken}, both.buffers), Networks({}, {}), batch)
    assert got["loss"] is None
    check = BroadcastCheck(client=0, sent=got, honest={"loss": 2.0})
    assert check.ratio("loss") is None
    assert BroadcastCheck(client=0, sent={"loss": 6.0}, honest={"loss": 2.0}).ratio("loss") == 3.0


def quiet(*_):
    """No progress is shown."""


@pytest.fixture(scope="module")
def crafted(tmp_path_factory):
    """A record of each kind: E broadcast, E private, crafted for rounds, one client isolated, and an honest server."""
    root = tmp_path_factory.mktemp("runs")
    cells = {}
    for method, attack, defense, round_ in (
        ("fedavg", "imprint", "none", "best"),
        ("fedsplit", "imprint", "none", "best"),
        ("fedcg", "feature-hijacking", "none", "best"),
        ("fedavg", "model-inconsistency", "secure-aggregation:masks", "best"),
        ("fedavg", "fishing", "none", "best"),
        ("fedavg", "client-rows", "secure-aggregation:masks", "best"),
        ("fedavg", "class-mean", "none", "best"),
    ):
        settings = {"rehearsal_images": 0} if attack == "imprint" else {}
        batch = 4 if attack == "fishing" else 1
        train = presets.train_spec("smoke", "digits", method, defense=defense)
        cells[method, attack] = presets.cell_spec(
            "smoke", train, attack, round_=round_, attack_settings=settings, victims=2, batch_size=batch
        )
    assert cell_jobs.run_cells(list(cells.values()), root, None, "cpu", quiet, quiet) == []
    return {key: schema.read_of(cell, Store(root).record(cell)) for key, cell in cells.items()}


def test_a_record_holds_the_checks_of_every_client_where_the_server_is_active(crafted):
    for (_, attack), record in crafted.items():
        (seed,) = record.seeds
        if attack == "class-mean":
            assert seed.broadcast is None
            assert "broadcast" not in seed.model_dump()
            continue
        assert [check.client for check in seed.broadcast] == [0, 1, 2, 3]
        made = CHECKS if attack == "feature-hijacking" else CHECKS[:-1]
        assert all(tuple(check.honest) == made and None not in check.honest.values() for check in seed.broadcast)


def test_crafted_networks_have_other_numbers_than_honest_ones(crafted):
    (of_classifier,), (of_generator,) = (
        crafted[key].seeds for key in (("fedavg", "imprint"), ("fedcg", "feature-hijacking"))
    )
    assert all(check.ratio("largest weight") > 10 for check in of_classifier.broadcast)
    assert all(check.ratio("generator") != pytest.approx(1.0, rel=0.01) for check in of_generator.broadcast)


def test_a_server_that_sends_what_it_would_have_sent_cannot_be_noticed(crafted):
    # The gradient of one image shows its features whatever the classifier is, so that none is crafted.
    (seed,) = crafted["fedsplit", "imprint"].seeds
    assert all(check.sent == check.honest for check in seed.broadcast)


def test_other_clients_receive_something_else_from_a_server_that_isolates_one(crafted):
    (seed,) = crafted["fedavg", "model-inconsistency"].seeds
    # All share the broadcast networks, so that the largest weight depends on what was sent alone.
    target, *others = (check.sent["largest weight"] for check in seed.broadcast)
    assert len(set(others)) == 1
    assert target != others[0]
    assert len({check.honest["largest weight"] for check in seed.broadcast}) == 1


def test_what_each_client_received_is_checked_where_all_received_others(crafted):
    (seed,) = crafted["fedavg", "client-rows"].seeds
    losses = [check.sent["loss"] for check in seed.broadcast]
    assert len(set(losses)) == len(losses) == 4
    # Crafted rows of a network that is hardly trained outweigh its honest ones.
    assert all(check.sent["largest weight"] > 2 * check.honest["largest weight"] for check in seed.broadcast)


def test_a_magnified_image_is_noticed_by_its_share(crafted):
    (seed,) = crafted["fedavg", "fishing"].seeds
    shares = [(check.sent["one of many"], check.honest["one of many"]) for check in seed.broadcast]
    # None: in double precision nothing is left of the other images.
    assert all(sent is None or sent > 2 * honest for sent, honest in shares)


def checked(record, *sent, names=CHECKS):
    honest = dict.fromkeys(names, 2.0)
    checks = [BroadcastCheck(client=k, sent=dict.fromkeys(names, value), honest=honest) for k, value in enumerate(sent)]
    seeds = [seed.model_copy(update={"broadcast": checks}) for seed in record.seeds]
    return record.model_copy(update={"seeds": seeds})


def test_tables_say_how_many_times_the_honest_number_it_is(monkeypatch):
    active = checked(records.record("fedsplit", attack="imprint", dataset="photos"), 2.0, 6.0, 40.0)
    wild = checked(records.record("fedcg", attack="imprint", dataset="photos"), None, 6.0)
    honest = records.record("fedsplit", attack="dlg", dataset="photos")
    (table,) = broadcast_table.tables([wild, active, honest])
    assert table.rows == [
        ["FedSplit", "best", "imprint", *["3 [1, 20]"] * 5],
        ["FedCG", "best", "imprint", *["not finite"] * 5],
    ]
    for whole in (attack_table.report([active, honest]), ladder.report([active]), ladder_summary.report([active])):
        assert f"## {broadcast_table.TITLE}" in report_files.markdown(whole)
    # The columns stay as few as they are; what else differs makes a table of its own.
    others = [records.changed(active, batch_size=8), checked(records.record("fedsplit", attack="imprint"), 2.0)]
    titles = [each.title for each in broadcast_table.tables([active, *others])]
    assert titles == [table.title, f"{table.title}, 8 images each", table.title.replace("photos", "cifar10")]
    assert broadcast_table.tables([honest]) == []
    monkeypatch.setattr(quotable, "SMOKE", active.cell.preset)
    assert broadcast_table.tables([active]) == []


def honest_in(record, seeds):
    """The same record of a server that sent the honest networks in some seeds."""
    left = [
        seed.model_copy(update={
            "broadcast": [check.model_copy(update={"sent": check.honest}) for check in seed.broadcast],
            "victims": [v.model_copy(update={"outcome": "not applicable"}) for v in seed.victims],
        }) if seed.seed in seeds else seed
        for seed in record.seeds
    ]  # fmt: skip
    return record.model_copy(update={"seeds": left})


def test_a_server_that_sent_the_honest_networks_has_no_multiples():
    active = checked(records.record("fedsplit", attack="imprint", dataset="photos"), 2.0, 6.0, 40.0)
    never, once = (honest_in(active, seeds) for seeds in ([0, 1], [1]))
    alike = checked(records.record("fedcg", attack="imprint", dataset="photos"), 2.0)
    (table,) = broadcast_table.tables([never, once, alike])
    assert [row[2:] for row in table.rows] == [
        ["imprint", broadcast_table.HONEST, *["-"] * 4],
        ["imprint (honest in 1 of 2 seeds)", *["3 [1, 20]"] * 5],
        # Crafted networks that these checks cannot tell from honest ones are no honest ones.
        ["imprint", *["1 [1, 1]"] * 5],
    ]


def test_rounds_stand_in_their_order():
    active = checked(records.record("fedsplit", attack="imprint", dataset="photos"), 2.0)
    rounds = ["20", "best", "5", "0", "last", "1"]
    (table,) = broadcast_table.tables([records.changed(active, round=name) for name in rounds])
    assert [row[1] for row in table.rows] == ["0 (untrained)", "1", "5", "20", "best", "last"]


def test_checks_are_made_on_as_many_images_as_a_usual_mini_batch():
    assert presets.SCHEDULES["paper"].batch == broadcast_checks.IMAGES


def test_a_check_that_there_is_not_has_no_number():
    without = checked(records.record("fedavg", attack="imprint", dataset="photos"), 2.0, 6.0, names=CHECKS[:-1])
    (table,) = broadcast_table.tables([without])
    assert table.rows[0][-2:] == ["2 [1, 3]", "-"]
