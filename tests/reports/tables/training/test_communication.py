"""Bytes and seconds by phase, and the projection beside SecureGAN's published totals: by hand, and of measured runs alone."""

import pytest

from reports.tables.training import communication
from reports.tables.training.communication import PUBLISHED, Setting
from tests.builders import records
from tests.builders.records import training, with_training

MESSAGE, EXPANSION, CLIENTS = 1_000, 12.0, 4


def trained(seed, hidden=True, rounds=4):
    """One seed: all clients in the first round, then one after another."""
    usual = training(seed, [70.0] * CLIENTS, rounds)
    first, *later = usual.rounds
    up = [int(MESSAGE * EXPANSION)] * CLIENTS if hidden else [MESSAGE] * CLIENTS
    each = [
        first.model_copy(
            update={"bytes_up": up, "bytes_down": [MESSAGE] * CLIENTS, "aggregation_seconds": 1.5 if hidden else None}
        )
    ]
    for n, entry in enumerate(later):
        turn = [MESSAGE if k == n % CLIENTS else 0 for k in range(CLIENTS)]
        each.append(entry.model_copy(update={"bytes_up": turn, "bytes_down": turn, "participants": [n % CLIENTS]}))
    return usual.model_copy(update={"rounds": each})


def record(hidden=True, seeds=(0, 1)):
    made = records.record("secure-gan", "secure-aggregation:ckks" if hidden else "none", None, seeds=seeds)
    return with_training(made, [trained(seed, hidden) for seed in seeds])


def test_a_phase_is_all_rounds_with_as_many_clients():
    first, second = communication.phases(trained(0))
    assert (first.clients, [r.round for r in first.rounds]) == (CLIENTS, [1])
    assert (second.clients, [r.round for r in second.rounds]) == (1, [2, 3, 4])
    assert (first.up, first.down, first.adding_up) == (12_000, 1_000, 1.5)
    # Of the one client that takes part, not of all.
    assert (second.up, second.down, second.adding_up) == (1_000, 1_000, None)
    assert second.seconds == pytest.approx((3 + 4 + 5) / 3)


def test_every_phase_has_a_row_and_runs_without_phases_have_one():
    made = communication.report([record(), record(hidden=False), records.record("fedavg", attack=None)])
    (rows, *_), names = [t.rows for t in made.tables], [t.title for t in made.tables]
    assert len(rows) == 2 + 2 + 1
    hidden = next(row for row in rows if "ckks, phase 1" in row[0])
    assert hidden[1:] == ["1", "4", "0.012", "0.001", "0.052", "2.00", "1.50"]
    assert [row[1] for row in rows] == ["1", "2 to 4", "1", "2 to 4", "1 to 3"]
    assert len(names) == 3


def test_a_projection_is_of_runs_whose_sums_were_hidden_alone():
    assert communication.setting_of(record()) == Setting(CLIENTS, MESSAGE, EXPANSION)
    assert communication.setting_of(record(hidden=False)) is None
    plain = communication.report([record(hidden=False)])
    assert len(plain.tables) == 1
    assert not any(note.startswith("Assumption") for note in plain.notes)
    assert sum(note.startswith("Assumption") for note in communication.report([record()]).notes) == 8


def test_totals_are_those_of_a_plain_count_of_messages():
    s = Setting(3, 100.0, 10.0)
    for senders in (1, 3):
        total = 0.0
        for epoch in range(1, 8):
            total += 3 * (100 + 1000) if epoch == 1 else senders * 200
        assert s.secure(7, senders) == total
    assert s.encrypted(7) == sum(3 * 2 * 1000 for _ in range(7))


@pytest.mark.parametrize("published", PUBLISHED)
def test_what_the_published_ratio_needs_gives_that_ratio(published):
    ratio = published.encrypted / published.secure
    x = communication.implied_expansion(published)
    for clients in (2, 50):
        s = Setting(clients, 1000.0, x)
        assert s.encrypted(published.epochs) / s.secure(published.epochs, clients) == pytest.approx(ratio)
    one = Setting(1, 1000.0, 40.0)
    fraction = Setting(one.implied_clients(published), 1000.0, 40.0)
    assert fraction.encrypted(published.epochs) / fraction.secure(published.epochs, 1) == pytest.approx(ratio)
    numbers = one.implied_parameters(published)
    assert Setting(1, 4 * numbers, 40.0).encrypted(published.epochs) == pytest.approx(published.encrypted * 1e9)


def test_published_totals_carry_their_source_and_nothing_else_is_printed():
    assert [(p.epochs, p.secure, p.encrypted) for p in PUBLISHED] == [(250, 73, 211), (100, 90, 1090)]
    totals = communication.report([record()]).tables[1]
    published = [row for row in totals.rows if row[0] == "published"]
    assert [row[1:] for row in published] == [["250", "73", "211", "2.9"], ["100", "90", "1090", "12.1"]]
    assert all(p.source for p in PUBLISHED)
    # What was measured decides.
    plain, cheaper = trained(0), trained(0)
    first = cheaper.rounds[0].model_copy(update={"bytes_up": [b // 2 for b in cheaper.rounds[0].bytes_up]})
    cheaper = cheaper.model_copy(update={"rounds": [first, *cheaper.rounds[1:]]})
    rows = [communication.report([with_training(record(seeds=(0,)), [t])]).tables[1].rows[1] for t in (plain, cheaper)]
    assert float(rows[0][3]) == pytest.approx(2 * float(rows[1][3]), rel=1e-2)
