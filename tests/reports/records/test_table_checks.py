"""Checks across cells: each planted disorder raises exactly its message, an orderly set none."""

from statistics import fmean

import pytest
from scipy.stats import ttest_1samp

from privbench import registry
from privbench.observation import knowledge, observe
from privbench.records import checks
from privbench.records.checks import CheckMessage
from privbench.scoring import statistics
from privbench.scoring.statistics import Interval
from reports.records import comparison, knowledge_sets, measured, remarks, table_checks
from reports.records.labels import attacker_text, knowledge_text
from reports.records.number_text import range_text
from reports.records.table_checks import below_floor
from tests.builders.records import (
    changed,
    record,
    training,
    with_knowledge,
    with_psnr,
    with_training,
    with_victims,
)

SEEDS = tuple(range(statistics.LEAST_SEEDS))


def attack_record(
    attack, psnr, tag="gradient", needs=("gradient:classifier",), rung="L2", method="fedsplit", **changes
):
    plain = record(method, attack=attack, psnr=psnr, seeds=SEEDS, **changes)
    return with_knowledge(plain, tag=tag, tag_in_general=tag, needs=list(needs), rung=rung)


def surrogate(psnr, **changes):
    return attack_record(
        "surrogate", psnr, "gradient + auxiliary", ("gradient:classifier", "auxiliary"), "L4", **changes
    )


def oracle(psnr, **changes):
    return attack_record("oracle", psnr, "oracle", ("gradient:classifier", "oracle"), "L8", **changes)


def real(attack, psnr, method="fedsplit", **changes):
    """With needs, uses, tag and rung of the attack's plug-in on what the method sends, as a record holds them."""
    plugin, offered = (
        registry.resolve("attack", attack),
        observe.offers(registry.create(registry.resolve("method", method), {})),
    )
    plain = attack_record(attack, psnr, knowledge.tag(plugin, offered), plugin.needs, plugin.rung, method, **changes)
    uses = sorted(knowledge.uses(plugin) & offered)
    plain = with_knowledge(plain, uses=uses, tag_in_general=knowledge.tag(plugin))
    return changed(plain, active=registry.is_active(attack))


def before_uses(attack, psnr, method):
    """The same in the form that records had when the tag alone told of what was used."""
    today = real(attack, psnr, method)
    return with_knowledge(today, uses=[], tag=today.knowledge.tag_in_general)


def names(records):
    """The messages of checks that some records raise, but for the missing control, which most of these tests have no need of."""
    return [name for name in every_name(records) if name != "no-control"]


def every_name(records):
    """All messages but that there are few victims, which is so of all these records."""
    raised = [message.name for messages in table_checks.by_record(records).values() for message in messages]
    return [name for name in raised if name != "few"]


def test_an_orderly_ladder_raises_nothing():
    assert names([attack_record("staged", 16.0), surrogate(18.0), oracle(22.0)]) == []


def test_more_knowledge_that_scores_lower_is_not_monotone():
    records = [attack_record("staged", 18.0), surrogate(16.0)]
    assert names(records) == ["not-monotone"]
    (message,) = [message for message in table_checks.by_record(records)[records[1].id] if message.name != "few"]
    assert "knows more than staged (gradient)" in message.sentence


def test_a_weaker_attack_with_the_same_knowledge_is_no_disorder():
    assert names([attack_record("staged", 18.0), attack_record("dlg", 15.5, rung="L1")]) == []


def test_a_difference_below_a_tenth_of_a_decibel_is_no_disorder():
    records = [attack_record("staged", 18.0), surrogate(18.0)]
    below = {v.name: v.psnr_db - 0.05 for v in records[0].victims}
    records[1] = with_psnr(records[1], lambda v: below[v.name])
    assert names(records) == []


def test_the_oracle_stands_above_every_other_attacker():
    assert names([surrogate(22.0), oracle(18.0)]) == ["not-monotone"]


def test_knowledge_of_another_kind_is_not_compared():
    seed = attack_record("known-seed", 18.0, "gradient + initial", ("gradient:classifier", "initial"), "L3")
    assert names([seed, surrogate(16.0)]) == []


def test_other_auxiliary_images_are_other_knowledge():
    few = surrogate(20.0, spec={"auxiliary": "same:0.01"})
    more = real("decoder", 16.0)
    assert names([few, more]) == []
    weak = changed(real("initial-surrogate", 16.0), auxiliary="same:0.01")
    assert names([few, weak]) == ["not-monotone"]
    assert "not-monotone" not in names([few, real("initial-surrogate", 16.0)])


def test_one_folder_with_other_auxiliary_images_in_it_is_other_knowledge():
    one, two = (changed(surrogate(20.0), auxiliary="folder:/p", auxiliary_content=each * 16) for each in "ab")
    assert [knowledge_text(r) for r in (one, two)] == [
        "gradient + auxiliary (folder:/p, files aaaaaa)", "gradient + auxiliary (folder:/p, files bbbbbb)",
    ]  # fmt: skip
    assert knowledge_sets.lies_within(one, one)
    assert not knowledge_sets.lies_within(one, two)
    assert len(knowledge_sets.rows([one, two])) == 2
    weak = changed(real("initial-surrogate", 16.0), auxiliary="folder:/p", auxiliary_content="b" * 16)
    assert "not-monotone" not in names([one, weak])
    assert "not-monotone" in names([two, weak])


@pytest.mark.parametrize(
    ("method", "above", "below", "how"),
    [
        # The needs of decoder and surrogate are the same, but for the generator where there is one.
        ("fedcg", "decoder", "surrogate", "knows more than surrogate"),
        ("fedcg", "decoder", "feature-statistics", "knows more than feature-statistics (gradient + generator)"),
        ("fedcg", "collusion", "feature-statistics", "knows more than feature-statistics"),
        ("fedcg", "feature-statistics", "dlg", "knows more than dlg (gradient)"),
        ("fedsplit", "feature-hijacking", "imprint", "knows more than imprint"),
        ("fedcg", "feature-hijacking", "decoder", "knows more than decoder"),
        ("fedsplit", "collusion", "decoder", "knows more than decoder"),
        ("fedsplit", "imprint", "surrogate", "knows more than surrogate"),
        ("fedsplit", "surrogate", "staged", "knows more than staged"),
        ("fedsplit", "oracle", "collusion", "knows more than collusion"),
    ],
)
def test_every_rung_of_the_real_attacks_is_compared_with_those_below_it(method, above, below, how):
    low, high = real(above, 16.0, method=method), real(below, 20.0, method=method)
    messages = table_checks.by_record([high, low])
    (message,) = [message for message in messages[low.id] if message.name == "not-monotone"]
    assert message.sentence.startswith(how)
    assert not any(message.name == "not-monotone" for message in messages[high.id])
    upright = [real(above, 20.0, method=method), real(below, 16.0, method=method)]
    assert "not-monotone" not in names(upright)


@pytest.mark.parametrize(("method", "used"), [("fedavg", ""), ("fedsplit", ""), ("fedcg", " + generator")])
@pytest.mark.parametrize("form", [real, before_uses])
def test_a_tag_says_whether_the_generator_was_there_to_be_used(method, used, form):
    attacked = form("aligned-surrogate", 16.0, method)
    assert knowledge_text(attacked) == f"gradient + auxiliary{used}"
    assert attacker_text(attacked) == "gradient + auxiliary + generator where shared"
    assert knowledge_sets.knowledge_of(attacked) == {"gradient", "auxiliary", *(["generator"] if used else [])}


@pytest.mark.parametrize(
    ("method", "one", "other"),
    [
        ("fedcg", "staged", "feature-statistics"),  # leaves the generator alone, and may be the weaker for it
        ("fedsplit", "collusion", "imprint"),  # looks on, where the other acts
        ("fedsplit", "oracle", "imprint"),
        ("fedsplit", "initial-surrogate", "collusion"),
        ("fedsplit", "surrogate", "decoder"),
        ("fedsplit", "surrogate", "learned-inverse"),  # of one tag and rung
        ("fedsplit", "decoder", "surrogate"),  # of one set of knowledge, whatever the rung
        ("fedcg", "surrogate", "feature-statistics"),  # the one has images, the other uses the generator
        ("fedcg", "feature-statistics", "staged"),  # the other knows what images are like
        ("fedsplit", "staged", "unsplit"),  # which alone makes no attacker stronger
    ],
)
def test_attackers_of_whom_none_is_above_the_other_are_no_disorder(method, one, other):
    assert "not-monotone" not in names([real(one, 16.0, method=method), real(other, 20.0, method=method)])


def test_an_attack_is_compared_by_itself_and_not_as_the_best_of_its_row():
    best, weak = (
        surrogate(20.0),
        attack_record("learned", 15.5, "gradient + auxiliary", ("gradient:classifier", "auxiliary"), "L4"),
    )
    messages = table_checks.by_record([best, weak, attack_record("staged", 18.0)])
    assert [r.attack for r in (best, weak) if any(f.name == "not-monotone" for f in messages[r.id])] == ["learned"]


def test_an_attack_that_does_not_apply_is_no_disorder():
    low = real("imprint", 14.5)
    absent = with_victims(low, [v.model_copy(update={"outcome": "not applicable"}) for v in low.victims])
    assert "not-monotone" in names([attack_record("staged", 18.0), low])
    assert "not-monotone" not in names([attack_record("staged", 18.0), absent])


def test_a_users_attack_without_a_rung_is_not_placed_by_one():
    assert names([attack_record("mine:One", 16.0, "mine", rung=None), attack_record("staged", 20.0)]) == []


def test_a_floor_that_scores_more_is_reported_once():
    low = real("surrogate", 9.0)  # the label and auxiliary images are all that the class mean needs
    assert names([real("class-mean", 14.0), low]) == ["below-floor"]


def test_an_oracle_at_the_floor_fails():
    assert "oracle-fails" in names([oracle(14.0)])
    assert names([oracle(20.0)]) == []


@pytest.mark.parametrize(
    ("round_", "psnr", "fails"), [("best", 21.0, True), ("best", 23.0, False), ("0", 23.0, True), ("0", 25.0, False)]
)
def test_undefended_fedavg_must_give_its_images_away(round_, psnr, fails):
    records = [
        attack_record("staged", psnr, method="fedavg", round_=round_),
        attack_record("dlg", 17.0, method="fedavg", round_=round_, rung="L1"),
    ]
    assert names(records) == (["fedavg-fails"] if fails else [])
    assert names([attack_record("staged", 21.0, method="fedavg", round_=round_, defense="gaussian:0.1")]) == []


@pytest.mark.parametrize(
    "elsewhere",
    [{"dataset": "digits"}, {"batch_size": 4}, {"backbone": "resnet18", "image_size": 32}, {"observe": "update"}],
)
def test_where_no_threshold_is_known_undefended_fedavg_must_gain_significantly(elsewhere):
    changes = {"method": "fedavg", "round_": "0", "spec": elsewhere}
    assert names([attack_record("staged", 16.5, **changes)]) == []  # far below 24 dB, and significantly above the floor
    assert "fedavg-fails" in names([attack_record("staged", 14.0, **changes)])
    floor = attack_record("class-mean", 14.0, "label + auxiliary mean", ("auxiliary",), "L0", **changes)
    assert names([floor]) == []  # no attack was run that could fail


def test_a_ladder_without_a_control_says_so_at_its_strongest_attack():
    weak, strong = attack_record("dlg", 14.0, rung="L1"), surrogate(18.0)
    messages = table_checks.by_record([weak, strong])
    assert "no-control" not in [message.name for message in messages[weak.id]]
    assert [message.name for message in messages[strong.id]] == ["few", "no-control"]
    assert every_name([weak, strong, oracle(22.0)]) == []
    assert every_name([weak, strong, attack_record("staged", 30.0, method="fedavg")]) == []


def test_only_an_attack_on_the_same_round_batch_and_observation_is_a_control():
    for change in (
        {"round_": "0"},
        {"spec": {"batch_size": 4}},
        {"spec": {"observe": "update"}},
        {"defense": "gaussian:0.1"},
    ):
        other = attack_record("staged", 30.0, method="fedavg", **change)
        assert "no-control" in every_name([surrogate(18.0), other.model_copy(update={"id": "other"})]), change
    floor = attack_record("class-mean", 14.0, "label + auxiliary mean", ("auxiliary",), "L0", method="fedavg")
    assert "no-control" in every_name([surrogate(18.0), floor])
    assert every_name([floor]) == []  # nothing was attacked


def test_an_attack_below_the_floor_is_reported_and_a_floor_is_not():
    assert names([attack_record("staged", 9.0)]) == ["below-floor"]
    assert names([attack_record("grey", 9.0, "nothing", (), "L0")]) == []


def test_an_attack_that_returns_the_floor_is_not_below_it_and_its_gain_of_zero_has_no_sign():
    floor = with_psnr(attack_record("surrogate", 14.0), lambda v: max(v.floors.values()) - 1e-7)
    assert below_floor(floor) == []
    rounding = Interval(mean=-1e-7, low=-2e-7, high=-1e-8)
    assert range_text(rounding, sign=True) == "+0.00 [+0.00, +0.00]"
    assert range_text(Interval(mean=-0.006, low=-0.4, high=0.004)) == "-0.01 [-0.40, 0.00]"
    assert range_text(Interval(mean=0.3, low=-0.001, high=0.6), sign=True) == "+0.30 [-0.00, +0.60]"
    assert range_text(Interval(mean=-2.3, low=-5.0, high=0.04), sign=True, digits=1) == "-2.3 [-5.0, +0.0]"


def test_an_end_that_leaves_out_zero_is_printed_so():
    assert range_text(Interval(mean=4.9, low=0.029, high=9.5), sign=True, digits=1) == "+4.9 [+0.03, +9.5]"
    assert range_text(Interval(mean=-4.9, low=-9.5, high=-0.0031), sign=True, digits=1) == "-4.9 [-9.5, -0.003]"
    assert range_text(Interval(mean=1, low=1e-9, high=2)) == "1.00 [0.00, 2.00]"
    assert range_text(Interval(mean=0.001, low=0.0001, high=0.0049), sign=True) == "+0.0010 [+0.0001, +0.0049]"


@pytest.mark.parametrize(
    ("floors", "told"),
    [
        ({"grey": 0.25, "class-mean": 0.25}, True),
        # Who knows the label and returns the class mean identifies as many.
        ({"grey": 0.25, "class-mean": 1.0}, False),
        # A record that does not say.
        (None, False),
    ],
)
def test_an_attack_below_the_floor_that_identifies_more_than_every_floor_is_no_protection(floors, told):
    poor = attack_record("dlg", 9.0)
    of_floors = {"floors_identified": floors}
    poor = with_victims(poor, [v.model_copy(update=of_floors | {"identification": 0.25}) for v in poor.victims])
    (message,) = below_floor(poor)
    assert "says nothing about privacy" in message.sentence
    identified = [v.model_copy(update={"identification": float(v.client > 0)}) for v in poor.victims]
    (message,) = below_floor(with_victims(poor, identified))
    assert ("no protection" in message.sentence) == told


def test_what_floors_identify_stands_beside_what_an_attack_does_and_chance_where_it_is_not_known():
    plain = attack_record("dlg", 9.0)
    floors = {"floors_identified": {"grey": 0.05, "class-mean": 0.4}}
    known = with_victims(plain, [v.model_copy(update=floors) for v in plain.victims])
    assert measured.identified_text(known.scores).endswith("% (floor 40%)")
    assert "% of the victims (chance " in measured.identified_text(plain.scores, "of the victims")


def test_a_difference_that_rests_on_the_pairing_alone_is_reported():
    a = attack_record("staged", 20.0)
    b = attack_record("staged", 20.0, method="fedcg")
    lower = {v.name: v.psnr_db - 0.2 for v in a.victims}
    b = with_psnr(b, lambda v: lower[v.name])
    assert names([a, b]) == ["overlapping-intervals"]
    apart = attack_record("staged", 30.0, method="fedcg")
    assert names([a, apart]) == []


def test_a_gain_that_rests_on_the_pairing_alone_is_reported_once_per_tag():
    """Every victim gains 0.3 dB over its own class mean, and both means vary by more than that from victim to victim."""

    def over_the_floor(attack, gain, **changes):
        return with_psnr(attack_record(attack, 14.0, **changes), lambda v: v.floors["class-mean"] + gain)

    strong, weak = over_the_floor("staged", 0.3), over_the_floor("dlg", 0.2, rung="L1")
    messages = table_checks.by_record([weak, strong])
    (message,) = [message for message in messages[strong.id] if message.name == "overlapping-intervals"]
    assert message.sentence == "its interval and the floor's overlap, so the gain rests on the paired test alone"
    assert not any(
        message.name == "overlapping-intervals" for message in messages[weak.id]
    )  # not the strongest of its tag
    assert names([over_the_floor("staged", 8.0)]) == []  # intervals apart
    assert names([over_the_floor("staged", -0.3)]) == ["below-floor"]  # no gain
    several = names([strong, over_the_floor("staged", 0.3, method="fedcg")])
    assert several == ["overlapping-intervals"] * 2


def test_a_doubt_that_is_raised_twice_of_one_cell_is_named_once():
    messages = [CheckMessage(name="overlapping-intervals", sentence=s) for s in ("of methods", "of the floor")]
    assert checks.names([*messages, CheckMessage(name="few", sentence="two victims")]) == "overlapping-intervals, few"


def test_a_record_keeps_its_own_messages_and_the_tables_print_them():
    planted = record(victims=[{"gradient_norm": 0.0}])
    assert [message.name for message in planted.messages] == ["zero-gradient", "few"]
    notes = remarks.remarks([planted])
    assert any(line.startswith("zero-gradient: ") and "1 of 8 victims" in line for line in notes)


def test_methods_are_compared_on_the_same_victims_and_p_values_adjusted():
    a, b, c = (
        attack_record("staged", psnr, method=m) for m, psnr in (("fedavg", 30.0), ("fedsplit", 20.0), ("fedcg", 20.0))
    )
    comparisons = comparison.between_methods([a, b, c])
    assert [x.name for x in comparisons] == ["FedAvg - FedSplit", "FedAvg - FedCG", "FedSplit - FedCG"]
    assert all((x.n, x.difference_db.seeds) == (20, 5) for x in comparisons)
    assert comparisons[0].differ
    assert not comparisons[2].differ
    of_seeds = [
        fmean(v.psnr_db for v in x.victims) - fmean(v.psnr_db for v in y.victims)
        for x, y in zip(a.seeds, b.seeds, strict=True)
    ]
    assert comparisons[0].p == pytest.approx(ttest_1samp(of_seeds, 0).pvalue)
    assert [x.holm for x in comparisons] == pytest.approx(statistics.holm([x.p for x in comparisons]))
    other = attack_record("staged", 20.0, method="fedcg", dataset="cifar10")
    strangers = [v.model_copy(update={"images": [f"stranger {i}"]}) for i, v in enumerate(other.victims)]
    assert comparison.between_methods([a, with_victims(other, strangers)]) == []


def trained_at(rate, made):
    """The same record of a training at another learning rate, under its cell's name."""
    schedule = made.cell.train.schedule
    task = schedule.task.model_copy(update={"lr": rate})
    other = changed(made, schedule=schedule.model_copy(update={"task": task}))
    return other.model_copy(update={"id": other.cell.id})


def test_methods_are_compared_where_they_were_trained_alike_and_nowhere_else():
    usual = [attack_record("staged", psnr, method=m) for m, psnr in (("fedavg", 30.0), ("fedsplit", 20.0))]
    other = [trained_at(0.1, r) for r in (attack_record("staged", 50.0, method="fedavg"), usual[1])]
    alone = trained_at(0.2, usual[0])
    of_usual, of_other = comparison.between_methods_of_each([*usual, *other, alone])
    assert of_usual.name == "cifar10, round best, quick preset, 4 clients: FedAvg - FedSplit"
    assert of_other.name == f"{of_usual.name.partition(':')[0]}, trained with task.lr 0.1: FedAvg - FedSplit"
    assert [set(c.ids) for c in (of_usual, of_other)] == [{r.id for r in pair} for pair in (usual, other)]
    assert of_usual.difference_db.mean == pytest.approx(10, abs=1)
    assert of_other.difference_db.mean == pytest.approx(30, abs=1)
    # One training of each method is no comparison, either.
    assert comparison.between_methods_of_each([usual[1], other[0]]) == []


@pytest.mark.parametrize(
    "trained",
    [{"per_client": 77}, {"content": "0123456789abcdef"}, {"min_per_client": 3}, {"method_settings": {"mu": 0.1}}],
)
def test_checks_hold_no_attack_against_one_on_another_training(trained):
    weak, strong = surrogate(16.0), attack_record("dlg", 20.0, rung="L1")
    assert "not-monotone" in names([weak, strong])
    elsewhere = changed(strong, **trained)
    elsewhere = elsewhere.model_copy(update={"id": elsewhere.cell.id})
    assert "not-monotone" not in names([weak, elsewhere])
    assert "not-monotone" in names([changed(weak, **trained), elsewhere])


def test_a_control_of_another_training_is_no_control():
    attacked, fedavg = surrogate(16.0), attack_record("dlg", 30.0, method="fedavg")
    assert every_name([attacked, fedavg]) == []
    assert every_name([attacked, trained_at(0.1, fedavg)]) == ["no-control"]


def test_of_a_searched_setting_the_best_by_validation_accuracy_is_compared_by_name():
    def prox(mu, psnr, validation):
        made = attack_record("dlg", psnr, method="fedprox", spec={"method_settings": {"mu": mu}})
        trainings = [training(seed, [validation, validation]) for seed in made.cell.seeds]
        made = with_training(made, trainings, [[validation] * 2] * len(SEEDS))
        return made.model_copy(update={"id": made.cell.id})

    worse, better, fedavg = prox(1.0, 40.0, 20.0), prox(0.01, 20.0, 50.0), attack_record("dlg", 30.0, method="fedavg")
    (compared,) = comparison.between_methods_of_each([worse, fedavg, better])
    assert compared.name == "FedAvg - FedProx (mu 0.01)"
    assert compared.ids == (fedavg.id, better.id)
    (alone,) = comparison.between_methods_of_each([fedavg, better])
    assert alone.name == "FedAvg - FedProx"


def test_the_rate_that_fedmd_cg_searches_of_each_method_is_each_methods_own():
    def of_table_2(method, rate):
        made = trained_at(
            rate, attack_record("dlg", 20.0, method=method, spec={"preset": "paper", "protocol": "fedmd-cg"})
        )
        return made.model_copy(update={"id": made.cell.id})

    (compared,) = comparison.between_methods_of_each([of_table_2("fedavg", 0.01), of_table_2("fedsplit", 0.08)])
    assert compared.name == "FedAvg - FedSplit"


def test_below_five_seeds_there_is_no_verdict_however_large_the_difference():
    a, b = (record(m, psnr=psnr, seeds=SEEDS[:4]) for m, psnr in (("fedavg", 90.0), ("fedsplit", 10.0)))
    (compared,) = comparison.between_methods([a, b])
    assert compared.p < 0.001
    assert compared.holm is None
    assert (compared.differ, compared.verdict) == (False, "too few seeds")
    assert not measured.of(a).is_significant
    (alone,) = comparison.between_methods([record(m, seeds=(0,)) for m in ("fedavg", "fedsplit")])
    assert (alone.p, alone.holm, alone.verdict) == (None, None, "too few seeds")
    assert comparison.rows([alone])[0][4:6] == ["-", "-"]


def test_an_attack_is_compared_with_its_floor():
    (compared,) = comparison.against_floor([measured.of(attack_record("staged", 20.0))], ["gradient (staged)"])
    assert compared.name == "gradient (staged) - class-mean"
    assert compared.difference_db.mean == pytest.approx(attack_record("staged", 20.0).gain_db)
    assert compared.differ


def test_a_row_whose_attack_does_not_know_the_defence_says_so():
    unknown, known = attack_record("dlg", 16.0, method="fedsplit"), attack_record("staged", 18.0)
    unknown = with_knowledge(unknown, not_modelled=["noise"])
    raised = table_checks.by_record([unknown, known])
    assert "defence-unknown" in [flag.name for flag in raised[unknown.id]]
    assert "defence-unknown" not in [flag.name for flag in raised[known.id]]
    assert any(line.startswith("defence-unknown: ") and "dlg" in line for line in table_checks.lines([unknown, known]))
