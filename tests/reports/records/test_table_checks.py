"""Doubts between cells: each planted disorder raises exactly its flag, an orderly set none."""

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
from reports.records.labels import attacker_text, knowledge_text, range_text
from reports.records.table_checks import below_floor, gain_below_floor
from tests.builders.records import changed, record, with_knowledge, with_psnr, with_victims

SEEDS = tuple(range(statistics.LEAST_SEEDS))


def own(attack, psnr, tag="gradient", needs=("gradient:classifier",), rung="L2", method="fedsplit", **changes):
    found = record(method, attack=attack, psnr=psnr, seeds=SEEDS, **changes)
    return with_knowledge(found, tag=tag, tag_in_general=tag, needs=list(needs), rung=rung)


def surrogate(psnr, **changes):
    return own("surrogate", psnr, "gradient + auxiliary", ("gradient:classifier", "auxiliary"), "L4", **changes)


def oracle(psnr, **changes):
    return own("oracle", psnr, "oracle", ("gradient:classifier", "oracle"), "L8", **changes)


def real(attack, psnr, method="fedsplit", **changes):
    """With needs, uses, tag and rung of the attack's plug-in on what the method sends, as a record holds them."""
    plugin, offered = (
        registry.resolve("attack", attack),
        observe.offers(registry.create(registry.resolve("method", method), {})),
    )
    found = own(attack, psnr, knowledge.tag(plugin, offered), plugin.needs, plugin.rung, method, **changes)
    uses = sorted(knowledge.uses(plugin) & offered)
    found = with_knowledge(found, uses=uses, tag_in_general=knowledge.tag(plugin))
    return changed(found, active=registry.is_active(attack))


def before_uses(attack, psnr, method):
    """The same in the form that records had when the tag alone told of what was used."""
    found = real(attack, psnr, method)
    return with_knowledge(found, uses=[], tag=found.knowledge.tag_in_general)


def names(records):
    """The messages of checks that some records raise, but for the missing control, which most of these tests have no need of."""
    return [name for name in every_name(records) if name != "no-control"]


def every_name(records):
    """All messages but that there are few victims, which is so of all these records."""
    told = [flag.name for told in table_checks.by_record(records).values() for flag in told]
    return [name for name in told if name != "few"]


def test_an_orderly_ladder_raises_nothing():
    assert names([own("staged", 16.0), surrogate(18.0), oracle(22.0)]) == []


def test_more_knowledge_that_scores_lower_is_not_monotone():
    records = [own("staged", 18.0), surrogate(16.0)]
    assert names(records) == ["not-monotone"]
    (flag,) = [flag for flag in table_checks.by_record(records)[records[1].id] if flag.name != "few"]
    assert "knows more than staged (gradient)" in flag.sentence


def test_a_weaker_attack_with_the_same_knowledge_is_no_disorder():
    assert names([own("staged", 18.0), own("dlg", 15.5, rung="L1")]) == []


def test_a_difference_below_a_tenth_of_a_decibel_is_no_disorder():
    records = [own("staged", 18.0), surrogate(18.0)]
    below = {v.name: v.psnr_db - 0.05 for v in records[0].victims}
    records[1] = with_psnr(records[1], lambda v: below[v.name])
    assert names(records) == []


def test_the_oracle_stands_above_every_other_attacker():
    assert names([surrogate(22.0), oracle(18.0)]) == ["not-monotone"]


def test_knowledge_of_another_kind_is_not_compared():
    seed = own("known-seed", 18.0, "gradient + initial", ("gradient:classifier", "initial"), "L3")
    assert names([seed, surrogate(16.0)]) == []


def test_other_auxiliary_images_are_other_knowledge():
    few = surrogate(20.0, spec={"auxiliary": "same:0.01"})
    more = real("decoder", 16.0)
    assert names([few, more]) == []
    weak = changed(real("initial-surrogate", 16.0), auxiliary="same:0.01")
    assert names([few, weak]) == ["not-monotone"]
    assert "not-monotone" not in names([few, real("initial-surrogate", 16.0)])


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
    found = table_checks.by_record([high, low])
    (flag,) = [flag for flag in found[low.id] if flag.name == "not-monotone"]
    assert flag.sentence.startswith(how)
    assert not any(flag.name == "not-monotone" for flag in found[high.id])
    upright = [real(above, 20.0, method=method), real(below, 16.0, method=method)]
    assert "not-monotone" not in names(upright)


@pytest.mark.parametrize(("method", "used"), [("fedavg", ""), ("fedsplit", ""), ("fedcg", " + generator")])
@pytest.mark.parametrize("form", [real, before_uses])
def test_a_tag_says_whether_the_generator_was_there_to_be_used(method, used, form):
    found = form("aligned-surrogate", 16.0, method)
    assert knowledge_text(found) == f"gradient + auxiliary{used}"
    assert attacker_text(found) == "gradient + auxiliary + generator where shared"
    assert knowledge_sets.knowledge_of(found) == {"gradient", "auxiliary", *(["generator"] if used else [])}


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
        own("learned", 15.5, "gradient + auxiliary", ("gradient:classifier", "auxiliary"), "L4"),
    )
    found = table_checks.by_record([best, weak, own("staged", 18.0)])
    assert [r.attack for r in (best, weak) if any(f.name == "not-monotone" for f in found[r.id])] == ["learned"]


def test_an_attack_that_does_not_apply_is_no_disorder():
    low = real("imprint", 14.5)
    absent = with_victims(low, [v.model_copy(update={"outcome": "not applicable"}) for v in low.victims])
    assert "not-monotone" in names([own("staged", 18.0), low])
    assert "not-monotone" not in names([own("staged", 18.0), absent])


def test_a_users_attack_without_a_rung_is_not_placed_by_one():
    assert names([own("mine:One", 16.0, "mine", rung=None), own("staged", 20.0)]) == []


def test_a_floor_that_scores_more_is_told_once():
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
        own("staged", psnr, method="fedavg", round_=round_),
        own("dlg", 17.0, method="fedavg", round_=round_, rung="L1"),
    ]
    assert names(records) == (["fedavg-fails"] if fails else [])
    assert names([own("staged", 21.0, method="fedavg", round_=round_, defense="gaussian:0.1")]) == []


@pytest.mark.parametrize(
    "elsewhere",
    [{"dataset": "digits"}, {"batch_size": 4}, {"backbone": "resnet18", "image_size": 32}, {"observe": "update"}],
)
def test_where_no_threshold_is_known_undefended_fedavg_must_surely_gain(elsewhere):
    changes = {"method": "fedavg", "round_": "0", "spec": elsewhere}
    assert names([own("staged", 16.5, **changes)]) == []  # far below 24 dB, and surely above the floor
    assert "fedavg-fails" in names([own("staged", 14.0, **changes)])
    floor = own("class-mean", 14.0, "label + auxiliary mean", ("auxiliary",), "L0", **changes)
    assert names([floor]) == []  # no attack was run that could fail


def test_a_ladder_without_a_control_says_so_at_its_strongest_attack():
    weak, strong = own("dlg", 14.0, rung="L1"), surrogate(18.0)
    found = table_checks.by_record([weak, strong])
    assert "no-control" not in [flag.name for flag in found[weak.id]]
    assert [flag.name for flag in found[strong.id]] == ["few", "no-control"]
    assert every_name([weak, strong, oracle(22.0)]) == []
    assert every_name([weak, strong, own("staged", 30.0, method="fedavg")]) == []


def test_only_an_attack_on_the_same_round_batch_and_observation_is_a_control():
    for change in (
        {"round_": "0"},
        {"spec": {"batch_size": 4}},
        {"spec": {"observe": "update"}},
        {"defense": "gaussian:0.1"},
    ):
        other = own("staged", 30.0, method="fedavg", **change)
        assert "no-control" in every_name([surrogate(18.0), other.model_copy(update={"id": "other"})]), change
    floor = own("class-mean", 14.0, "label + auxiliary mean", ("auxiliary",), "L0", method="fedavg")
    assert "no-control" in every_name([surrogate(18.0), floor])
    assert every_name([floor]) == []  # nothing was attacked


def test_an_attack_below_the_floor_is_told_and_a_floor_is_not():
    assert names([own("staged", 9.0)]) == ["below-floor"]
    assert names([own("grey", 9.0, "nothing", (), "L0")]) == []


def test_an_attack_that_hands_in_the_floor_is_not_below_it_and_its_gain_of_zero_has_no_sign():
    rounding = Interval(mean=-1e-7, low=-2e-7, high=-1e-8)
    assert gain_below_floor("surrogate", rounding, 0.25, 20, 0.25) == []
    assert range_text(rounding, sign=True) == "+0.00 [+0.00, +0.00]"
    assert range_text(Interval(mean=-0.006, low=-0.4, high=0.004)) == "-0.01 [-0.40, 0.00]"


def test_an_attack_below_the_floor_that_identifies_its_victims_is_no_protection():
    poor = own("dlg", 9.0)
    (flag,) = below_floor(poor)  # a quarter of the victims, which is chance
    assert "says nothing about privacy" in flag.sentence
    told = [v.model_copy(update={"identification": float(v.client > 0)}) for v in poor.victims]
    (flag,) = below_floor(with_victims(poor, told))
    assert "no protection" in flag.sentence


def test_a_difference_that_rests_on_the_pairing_alone_is_told():
    a = own("staged", 20.0)
    b = own("staged", 20.0, method="fedcg")
    lower = {v.name: v.psnr_db - 0.2 for v in a.victims}
    b = with_psnr(b, lambda v: lower[v.name])
    assert names([a, b]) == ["overlapping-intervals"]
    apart = own("staged", 30.0, method="fedcg")
    assert names([a, apart]) == []


def test_a_gain_that_rests_on_the_pairing_alone_is_told_once_per_tag():
    """Every victim gains 0.3 dB over its own class mean, and both means vary by more than that from victim to victim."""

    def over_the_floor(attack, gain, **changes):
        return with_psnr(own(attack, 14.0, **changes), lambda v: v.floors["class-mean"] + gain)

    strong, weak = over_the_floor("staged", 0.3), over_the_floor("dlg", 0.2, rung="L1")
    found = table_checks.by_record([weak, strong])
    (flag,) = [flag for flag in found[strong.id] if flag.name == "overlapping-intervals"]
    assert flag.sentence == "its interval and the floor's overlap, so the gain rests on the paired test alone"
    assert not any(flag.name == "overlapping-intervals" for flag in found[weak.id])  # not the strongest of its tag
    assert names([over_the_floor("staged", 8.0)]) == []  # intervals apart
    assert names([over_the_floor("staged", -0.3)]) == ["below-floor"]  # no gain
    several = names([strong, over_the_floor("staged", 0.3, method="fedcg")])
    assert several == ["overlapping-intervals"] * 2


def test_a_doubt_that_is_raised_twice_of_one_cell_is_named_once():
    told = [CheckMessage(name="overlapping-intervals", sentence=s) for s in ("of methods", "of the floor")]
    assert checks.names([*told, CheckMessage(name="few", sentence="two victims")]) == "overlapping-intervals, few"


def test_a_record_keeps_its_own_flags_and_the_tables_print_them():
    planted = record(victims=[{"gradient_norm": 0.0}])
    assert [flag.name for flag in planted.messages] == ["zero-gradient", "few"]
    told = remarks.remarks([planted])
    assert any(line.startswith("zero-gradient: ") and "1 of 8 victims" in line for line in told)


def test_methods_are_compared_on_the_same_victims_and_p_values_adjusted():
    a, b, c = (own("staged", psnr, method=m) for m, psnr in (("fedavg", 30.0), ("fedsplit", 20.0), ("fedcg", 20.0)))
    found = comparison.between_methods([a, b, c])
    assert [x.name for x in found] == ["FedAvg - FedSplit", "FedAvg - FedCG", "FedSplit - FedCG"]
    assert all((x.n, x.difference_db.seeds) == (20, 5) for x in found)
    assert found[0].differ
    assert not found[2].differ
    of_seeds = [
        fmean(v.psnr_db for v in x.victims) - fmean(v.psnr_db for v in y.victims)
        for x, y in zip(a.seeds, b.seeds, strict=True)
    ]
    assert found[0].p == pytest.approx(ttest_1samp(of_seeds, 0).pvalue)
    assert [x.holm for x in found] == pytest.approx(statistics.holm([x.p for x in found]))
    other = own("staged", 20.0, method="fedcg", dataset="cifar10")
    strangers = [v.model_copy(update={"images": [f"stranger {i}"]}) for i, v in enumerate(other.victims)]
    assert comparison.between_methods([a, with_victims(other, strangers)]) == []


def test_below_five_seeds_there_is_no_verdict_however_large_the_difference():
    a, b = (record(m, psnr=psnr, seeds=SEEDS[:4]) for m, psnr in (("fedavg", 90.0), ("fedsplit", 10.0)))
    (found,) = comparison.between_methods([a, b])
    assert found.holm < 0.001
    assert (found.differ, found.verdict) == (False, "too few seeds")
    assert not measured.of(a).is_sure
    (alone,) = comparison.between_methods([record(m, seeds=(0,)) for m in ("fedavg", "fedsplit")])
    assert (alone.p, alone.holm, alone.verdict) == (None, None, "too few seeds")
    assert comparison.rows([alone])[0][4:6] == ["-", "-"]


def test_an_attack_is_compared_with_its_floor():
    (found,) = comparison.against_floor([measured.of(own("staged", 20.0))], ["gradient (staged)"])
    assert found.name == "gradient (staged) - class-mean"
    assert found.difference_db.mean == pytest.approx(own("staged", 20.0).gain_db)
    assert found.differ
