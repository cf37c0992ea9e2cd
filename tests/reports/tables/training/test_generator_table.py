"""The table of generators: numbers that follow by hand from a record's counts and curves."""

import re

import pytest

from privbench.records.entries import Curve, Generators, GeneratorScores, Manifolds, Membership, RealImages
from privbench.scoring import membership
from reports.records import generators
from reports.running import study_reports
from reports.studies import definition
from reports.tables.training import generator_table
from tests.builders.records import record, training, with_training

PERFECT = Curve(false_positive_rate=[0.0, 0.0, 1.0], true_positive_rate=[0.0, 1.0, 1.0])
CHANCE = Curve(false_positive_rate=[0.0, 1.0], true_positive_rate=[0.0, 1.0])
# Three quarters of the members exceed all non-members, the others none.
MOST = Curve(false_positive_rate=[0.0, 0.0, 1.0, 1.0], true_positive_rate=[0.0, 0.75, 0.75, 1.0])


def attack(name, calibrated, roc, images=200):
    return Membership(attack=name, calibrated=calibrated, members=images, non_members=images, roc=roc)


def scored(holder="client", precise=150, attacks=((("black-box", False), CHANCE), (("black-box", True), PERFECT))):
    made = [attack(*form, roc) for form, roc in attacks]
    return [
        GeneratorScores(
            holder=holder, client=k, membership=made, manifolds=Manifolds(images=200, precise=precise, recalled=40 + 20 * k)
        )
        for k in range(2)
    ]  # fmt: skip


def made(each, method="dp-gan", seeds=(0, 1), **spec):
    """A record of two clients whose generators have these scores under every seed."""
    r = record(method, attack=None, dataset="digits", seeds=seeds, spec=spec)
    real = [RealImages(accuracy=90.0, manifolds=Manifolds(images=200, precise=190, recalled=180)) for _ in range(2)]
    both = [[40.0, 60.0] for _ in seeds]
    r = with_training(r, [training(seed, [40.0, 60.0]) for seed in seeds], both)
    scores = Generators(round=2, samples=1000, real=real, each=each)
    return r.model_copy(update={"seeds": [s.model_copy(update={"generators": scores}) for s in r.seeds]})


def rows(table):
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def mean_of(text):
    return float(text.split()[0])


def test_means_are_over_clients_and_seeds_and_each_has_an_interval():
    overview, attacks, clients = generator_table.report([made(scored())]).tables
    real, row = rows(overview)
    assert real[""] == generator_table.REAL
    assert [mean_of(real[name]) for name in list(real)[1:4]] == [90.0, 0.95, 0.9]
    assert [real[name] for name in list(real)[4:]] == ["-"] * 3
    assert [mean_of(row[name]) for name in list(row)[1:4]] == [50.0, 0.75, 0.25]
    # The calibrated form stands for the attack; the white-box one was not made.
    assert mean_of(row["AUC, black-box"]) == 1.0
    assert row["AUC, white-box"] == "-"
    plain, calibrated = rows(attacks)
    assert (plain["attack"], mean_of(plain["AUC"])) == ("black-box", 0.5)
    assert [mean_of(plain[name]) for name in list(plain)[3:5]] == [0.0, 0.0]
    assert plain["clients recognised"] == "0 of 4"
    assert (calibrated["attack"], mean_of(calibrated["AUC"])) == ("black-box, calibrated", 1.0)
    assert [mean_of(calibrated[name]) for name in list(calibrated)[3:5]] == [100.0, 100.0]
    assert calibrated["clients recognised"] == "4 of 4"
    each = rows(clients)
    assert [(row["client"], mean_of(row["accuracy, %"]), mean_of(row["recall"])) for row in each] == [
        ("1", 40.0, 0.2), ("2", 60.0, 0.3),
    ]  # fmt: skip
    for table in (overview, attacks, clients):
        for row in table.rows:
            for cell in row:
                for low, high in re.findall(r"\[(\S+), (\S+)\]", cell):
                    assert 0 <= float(low) <= mean_of(cell) <= float(high) <= 100
    # A rate of 0 among 200 members leaves room for some.
    assert re.search(r"\[0.0, [1-9]", plain["TPR at 1% FPR, %"])


def test_what_n_can_prove_is_that_of_the_fewest_images():
    each = scored(attacks=((("white-box", False), MOST),))
    each[1] = each[1].model_copy(update={"membership": [attack("white-box", False, MOST, images=40)]})
    (row,) = rows(generator_table.report([made(each)]).tables[1])
    least = [100 * membership.least_provable(40, 40, rate) for rate in (0.01, 0.1)]
    assert row["provable from, %"] == "; ".join(f"{value:.1f}" for value in least)
    assert mean_of(row["TPR at 1% FPR, %"]) == 75.0
    assert mean_of(row["AUC"]) == 0.75


def test_the_server_s_generator_has_a_row_and_is_not_calibrated():
    each = [*scored(), *scored("server", precise=100, attacks=((("black-box", False), MOST),))]
    overview, attacks, _ = generator_table.report([made(each, method="dp-gan")]).tables
    _, client, server = rows(overview)
    assert (client[""], server[""]) == ("DP-GAN", "DP-GAN, server's")
    # Where the server has a generator, the classifiers learn from it.
    assert client["accuracy on real test images, %"] == "-"
    assert mean_of(server["accuracy on real test images, %"]) == 50.0
    assert (mean_of(server["precision"]), mean_of(server["AUC, black-box"])) == (0.5, 0.75)
    assert [row["attack"] for row in rows(attacks)] == ["black-box", "black-box, calibrated", "black-box"]


def test_epsilon_stands_beside():
    private = made(scored(), defense="dp-adam:noise=1")
    claim = {
        "epsilon": 3.2, "delta": 1e-5, "unit": "example", "noise": 1.0, "covers": ["discriminator"], "leaves_out": [],
        "accountant": "PLD",
    }  # fmt: skip
    seeds = [s.model_validate(s.model_dump() | {"privacy": [claim, claim]}) for s in private.seeds]
    private = private.model_copy(update={"seeds": seeds})
    overview = generator_table.report([made(scored()), private]).tables[0]
    assert [row["epsilon, worst client"] for row in rows(overview)] == ["-", "none", "3.2 (delta 1e-05, per image)"]


def test_the_numbers_have_every_client_seed_and_attack():
    report = generator_table.report([made(scored(attacks=((("black-box", False), MOST), (("black-box", True), MOST))))])
    assert len(report.numbers) == 2 * 2 * 2
    first = report.numbers[0]
    assert (first["seed"], first["client"], first["attack"], first["calibrated"]) == (0, 1, "black-box", False)
    assert first["tpr_at_0.01_provable"] == pytest.approx(membership.least_provable(200, 200, 0.01))
    assert first["auc_low"] < first["auc"] < first["auc_high"]
    assert (first["precision_of_real"], first["accuracy_from_real"]) == (0.95, 90.0)


def test_records_without_generators_have_no_row():
    assert generators.with_scores([record("fedavg", attack=None)]) == []
    study = definition.read("dp-gan")
    shown = study_reports._first(study, [made(scored()), record("fedavg", attack=None, dataset="digits")], [], [])
    assert shown is not None
    assert shown[0] == "generator"
    assert [row[0] for row in shown[1].tables[0].rows] == [generator_table.REAL, "DP-GAN"]
