"""Scores of generators of images: whom an overfitted one gives away, whom it does not, and what a record holds of them."""

from types import SimpleNamespace

import pytest
import torch

from privbench import presets
from privbench.data import digits
from privbench.errors import UserError
from privbench.execution import cell_jobs, generator_scores, preconditions, reproduce
from privbench.networks.model import Model
from privbench.records import schema
from privbench.records.store import Store
from privbench.scoring import generator_attacks, membership, real_features
from privbench.scoring.statistics import interval
from privbench.seeds import stream
from privbench.system import files
from privbench.training import harness, history
from privbench.training.state import Snapshot
from privbench.types import Client, Federation, Images

IMAGES, LABELS = digits.shuffled()
MODEL = Model("lenet5", 1, 10, gan="image")


def federation(training, clients=3, test=90):
    """Clients of one domain with so many training images, ten validation images and an even share of the test images."""
    rows = torch.arange(len(LABELS))
    each = []
    for k in range(clients):
        places = (
            rows[k * training : (k + 1) * training],
            rows[1000 + 10 * k : 1010 + 10 * k],
            rows[1200 + test // clients * k : 1200 + test // clients * (k + 1)],
        )
        each.append(Client("all", *(Images(IMAGES[place], LABELS[place]) for place in places)))
    return Federation(tuple(each), None, tuple("0123456789"), flip=False)


def setup_of(fed, **changes):
    spec = presets.train_spec("smoke", "digits", "dp-gan", clients=len(fed.clients), changes=changes)
    return harness.prepare(spec, fed, torch.device("cpu"))


def memorising(images, steps=120):
    """A generator's networks that draw one of two images of each class, by the sign of z's first number: overfitted on purpose."""
    net, rng = MODEL.net("generator"), stream(0, "memory")
    params, buffers = net.init(rng)
    leaves = [t.requires_grad_() for t in params.values()]
    optimiser = torch.optim.Adam(leaves, 3e-3)
    for _ in range(steps):
        z, labels = torch.randn(40, 100, generator=rng), torch.arange(40) % 10
        made, buffers = net.apply(params, buffers, z, labels, train=True)
        optimiser.zero_grad()
        (made - images[2 * labels + (z[:, 0] > 0)]).square().mean().backward()
        optimiser.step()
    return {name: t.detach() for name, t in params.items()}, buffers


@pytest.fixture(scope="module")
def overfitted():
    """A setup of two clients of twenty images, and the server's generator, which memorised the first client's."""
    pairs = torch.stack([torch.nonzero(label == LABELS)[:4, 0] for label in range(10)])
    test = Images(IMAGES[1200:1700], LABELS[1200:1700])
    clients = tuple(
        Client("all", Images(IMAGES[rows.flatten()], LABELS[rows.flatten()]), Images(IMAGES[:0], LABELS[:0]), test)
        for rows in (pairs[:, :2], pairs[:, 2:])
    )
    setup = setup_of(Federation(clients, None, tuple("0123456789"), flip=False))
    params, buffers = memorising(IMAGES[pairs[:, :2].flatten()] / 255)
    generate = generator_scores._apply(MODEL, params, buffers)
    return setup, [generator_scores.Generator("server", k, generate) for k in range(2)]


def areas(setup, generators, index):
    """The area of both attacks, not calibrated, on one of some generators by its client's images, each with its interval."""
    z = torch.randn(400, 100, generator=stream(1, "z"))
    drawn = [generator_attacks.sampled(g.generate, z, torch.arange(400) % 10) for g in generators]
    made = {}
    for each in generator_scores._membership(setup, generators, drawn, index):
        if each.calibrated:
            continue
        order = membership.of_curve(
            each.roc.false_positive_rate, each.roc.true_positive_rate, each.members, each.non_members
        )
        place = SimpleNamespace(seed=0, client=index)
        area, resamples = membership.auc(order), membership.auc_resamples(order, "test")
        made[each.attack] = interval([area], [place], shared_variance=membership.error_variance(area, resamples))
    return made


def test_an_overfitted_generator_gives_its_training_images_away(overfitted):
    for area in areas(*overfitted, index=0).values():
        assert area.mean > 0.9
        assert area.low > 0.75


def test_a_generator_says_nothing_of_images_that_it_has_not_seen(overfitted):
    for area in areas(*overfitted, index=1).values():
        assert area.low < 0.5 < area.high


@pytest.mark.thorough
def test_a_gan_of_few_images_and_many_epochs_gives_them_away():
    """Forty images, 120 epochs, no defence: a generator gives away its own client's images, and not the other client's.

    Of so few images an interval is wide, and how much a GAN memorises depends on the last digits: after 60 epochs some intervals of
    its own images ended at 0.5, after 120 at 0.63 and more, in AVX-512 on four threads and on one.
    """
    fed = federation(40, clients=2, test=400)
    schedule = {"rounds": 1, "generator_epochs": 120, "local_epochs": 1, "batch": 16, "generator.lr": 1e-3}
    setup = setup_of(fed, **schedule)
    state = harness.initial(setup)
    harness.train_round([setup], [state], "alone")
    first, second = generator_scores.of_snapshot(MODEL, Snapshot(1, state.server, state.clients, state.uploads))
    of_others = [first._replace(client=1), second._replace(client=0)]
    for index in range(2):
        assert all(area.low > 0.5 for area in areas(setup, [first, second], index).values())
        assert all(area.low < 0.5 < area.high for area in areas(setup, of_others, index).values())


@pytest.fixture
def small(monkeypatch):
    """Few steps, as the tests of records do not ask how good the numbers are."""
    monkeypatch.setattr(real_features, "STEPS", 2)
    monkeypatch.setattr(generator_attacks, "STEPS", 2)


def trained(fed, **changes):
    setup = setup_of(fed, rounds=1, **changes)
    state = harness.initial(setup)
    return setup, Snapshot(0, state.server, state.clients, state.uploads)


def test_every_client_is_scored_against_its_own_images(small):
    setup, shot = trained(federation(24))
    made = generator_scores.scored(setup, shot, 40)
    assert [(each.holder, each.client) for each in made.each] == [("client", k) for k in range(3)]
    assert [(m.attack, m.calibrated) for m in made.each[0].membership] == [
        ("black-box", False), ("black-box", True), ("white-box", False), ("white-box", True),
    ]  # fmt: skip
    assert len(made.real) == 3
    # As many generated images as there are of either kind of real ones: 24 of training, 90 of test.
    assert {each.manifolds.images for each in (*made.each, *made.real)} == {24}
    # All clients begin with the same networks: what is calibrated by the other clients' says nothing.
    for each in made.each:
        for m in each.membership:
            if m.calibrated:
                assert (m.roc.false_positive_rate, m.roc.true_positive_rate) == ([0.0, 1.0], [0.0, 1.0])


def test_members_and_non_members_are_of_the_same_classes():
    setup = setup_of(federation(60))
    for client in range(3):
        queries = generator_scores.matched(setup, client)
        assert torch.equal(queries.members.labels, queries.non_members.labels)
        training = {bytes(image.numpy()) for image in setup.federation.clients[client].train.images}
        members = {bytes((image * 255).round().to(torch.uint8).numpy()) for image in queries.members.images}
        others = {bytes((image * 255).round().to(torch.uint8).numpy()) for image in queries.non_members.images}
        assert members <= training
        assert not others & training
        both = [torch.bincount(images.labels, minlength=10) for images in (
            setup.federation.clients[client].train, generator_scores.test_images(setup.federation, client),
        )]  # fmt: skip
        assert len(queries.members.labels) == int(torch.minimum(*both).sum())
        assert torch.equal(queries.first(5).together.labels, queries.members.labels[:5].repeat(2))


def test_the_server_s_generator_is_scored_against_every_client(small):
    setup, shot = trained(federation(24))
    for part in ("params", "buffers"):
        whole = getattr(shot.clients[0], part)["generator"]
        setattr(shot.server, part, {**getattr(shot.server, part), "generator": whole})
    made = generator_scores.scored(setup, shot, 40)
    assert [(each.holder, each.client) for each in made.each[3:]] == [("server", k) for k in range(3)]
    # It has seen the images of all clients, so that there is nothing to calibrate by.
    assert {m.calibrated for each in made.each[3:] for m in each.membership} == {False}


def test_real_images_are_the_upper_reference():
    """Their accuracy is that of the method `local` with the run's schedule, at each client's best validation round."""
    fed = federation(60)
    spec = presets.train_spec("smoke", "digits", "local", clients=3, changes={"rounds": 2, "local_epochs": 2})
    local = harness.prepare(spec, fed, torch.device("cpu"))
    state = harness.initial(local)
    for _ in range(2):
        harness.train_round([local], [state], "alone")
    made = generator_scores.real_accuracies(setup_of(fed, rounds=2, local_epochs=2, patience=20))
    assert made == history.selected_accuracy(state.history)
    assert max(made) > 0


def test_what_cannot_be_scored_is_refused_before_training(tmp_path):
    train = presets.train_spec("smoke", "digits", "fedavg", clients=2)
    cell = presets.cell_spec("smoke", train, None, generated=10)
    reasons = preconditions.impossible(Store(tmp_path), [cell], None, workers=1)
    assert "fedavg trains no generator of images" in reasons[cell.id]
    few = federation(24)
    few = few._replace(
        clients=tuple(c._replace(train=Images(c.train.images[:3], c.train.labels[:3])) for c in few.clients)
    )
    with pytest.raises(UserError, match="fewer than 4 training or test images"):
        generator_scores.check(presets.train_spec("smoke", "digits", "dp-gan"), few)


def quiet(*_):
    pass


def test_a_record_holds_the_scores_and_is_reproduced(small, tmp_path):
    train = presets.train_spec("smoke", "digits", "dp-gan", clients=2, per_client=16, changes={"rounds": 1})
    cell = presets.cell_spec("smoke", train, None, generated=30)
    assert cell.id != presets.cell_spec("smoke", train, None).id
    assert cell_jobs.run_cells([cell], tmp_path / "a", None, "cpu", quiet, quiet) == []
    record = schema.read(Store(tmp_path / "a").record(cell))
    assert record.seeds[0].generators.samples == 30
    assert record.seeds[0].generators.round == 1
    for name, attack_only in (("b", False), ("c", True)):
        again = reproduce.again(record, tmp_path / "a", tmp_path / name, None, quiet, quiet, attack_only=attack_only)
        assert reproduce.differences(record, again, tmp_path / "a", tmp_path / name) == []


def test_scores_are_made_again_and_not_taken_over(small, tmp_path):
    train = presets.train_spec("smoke", "digits", "dp-gan", clients=2, per_client=16, changes={"rounds": 0})
    cell = presets.cell_spec("smoke", train, None, generated=30)
    assert cell_jobs.run_cells([cell], tmp_path / "a", None, "cpu", quiet, quiet) == []
    record = schema.read(Store(tmp_path / "a").record(cell))
    seed = record.seeds[0]
    altered = seed.generators.model_copy(update={"samples": 31})
    record = record.model_copy(update={"seeds": [seed.model_copy(update={"generators": altered})]})
    path = Store(tmp_path / "a").generators(cell.train_specs()[0], 30)
    written = files.read_digested(path)
    files.write_digested(path, written | {"generators": altered.model_dump()})
    again = reproduce.again(record, tmp_path / "a", tmp_path / "b", None, quiet, quiet, attack_only=True)
    assert reproduce.differences(record, again, tmp_path / "a", tmp_path / "b") == [
        "seeds[0].generators.samples: 31 then, 30 now"
    ]
