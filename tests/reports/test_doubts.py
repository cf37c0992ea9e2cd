"""Doubts between cells: each planted disorder raises exactly its flag, an orderly set none."""

import pytest

from reports import comparison, doubts, remarks
from reports.doubts import below_floor
from tests.reports.records import record

SOUND = {"victims": 64, "seeds": (0, 1, 2)}


def own(attack, psnr, tag="gradient", needs=("gradient:classifier",), rung="L2", method="fedsplit", **changes):
    found = record(method, attack=attack, psnr=psnr, seeds=(0, 1, 2), **changes)
    knowledge = found.knowledge | {"tag": tag, "needs": list(needs), "rung": rung}
    return found.model_copy(update={"knowledge": knowledge, "flags": []})


def surrogate(psnr, **changes):
    return own("surrogate", psnr, "gradient + auxiliary", ("gradient:classifier", "auxiliary"), "L4", **changes)


def oracle(psnr, **changes):
    return own("oracle", psnr, "oracle", ("gradient:classifier", "oracle"), "L8", **changes)


def names(records):
    return [flag.name for flags in doubts.by_record(records).values() for flag in flags]


def test_an_orderly_ladder_raises_nothing():
    assert names([own("staged", 16.0), surrogate(18.0), oracle(22.0)]) == []


def test_more_knowledge_that_scores_lower_is_not_monotone():
    records = [own("staged", 18.0), surrogate(16.0)]
    assert names(records) == ["not-monotone"]
    (flag,) = doubts.by_record(records)[records[1].id]
    assert "knows more than staged (gradient)" in flag.sentence


def test_a_weaker_attack_with_the_same_knowledge_is_no_disorder():
    assert names([own("staged", 18.0), own("dlg", 15.5, rung="L1")]) == []


def test_a_difference_below_a_tenth_of_a_decibel_is_no_disorder():
    records = [own("staged", 18.0), surrogate(18.0)]
    victims = [v.model_copy(update={"psnr_db": v.psnr_db - 0.05}) for v in records[0].victims]
    records[1] = records[1].model_copy(update={"victims": victims})
    assert names(records) == []


def test_the_oracle_stands_above_every_other_attacker():
    assert names([surrogate(22.0), oracle(18.0)]) == ["not-monotone"]


def test_knowledge_of_another_kind_is_not_compared():
    seed = own("known-seed", 18.0, "gradient + initial", ("gradient:classifier", "initial"), "L3")
    assert names([seed, surrogate(16.0)]) == []


def test_other_auxiliary_images_are_other_knowledge():
    few = surrogate(20.0, spec={"auxiliary": "same:0.01"})
    more = own("decoder", 16.0, "all", ("gradient:classifier", "auxiliary", "upload:generator"), "L5")
    assert names([few, more]) == []
    assert names([few, more.model_copy(update={"spec": more.spec | {"auxiliary": "same:0.01"}})]) == ["not-monotone"]


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


def test_an_attack_below_the_floor_is_told_and_a_floor_is_not():
    assert names([own("staged", 9.0)]) == ["below-floor"]
    assert names([own("grey", 9.0, "nothing", (), "L0")]) == []


def test_an_attack_below_the_floor_that_identifies_its_victims_is_no_protection():
    poor = own("dlg", 9.0)
    (flag,) = below_floor(poor)  # a quarter of the victims, which is chance
    assert "says nothing about privacy" in flag.sentence
    sure = poor.scores.model_copy(update={"identification": 0.75})
    (flag,) = below_floor(poor.model_copy(update={"scores": sure}))
    assert "no protection" in flag.sentence


def test_a_difference_that_rests_on_the_pairing_alone_is_told():
    a = own("staged", 20.0)
    b = own("staged", 20.0, method="fedcg")
    victims = [v.model_copy(update={"psnr_db": w.psnr_db - 0.2}) for v, w in zip(b.victims, a.victims, strict=True)]
    low = a.scores.psnr_db.model_copy(update={"mean": a.scores.psnr_db.mean - 0.2})
    b = b.model_copy(update={"victims": victims, "scores": b.scores.model_copy(update={"psnr_db": low})})
    assert names([a, b]) == ["overlapping-intervals"]
    apart = own("staged", 30.0, method="fedcg")
    assert names([a, apart]) == []


def test_a_record_keeps_its_own_flags_and_the_tables_print_them():
    planted = record(victims=[{"gradient_norm": 0.0}])
    assert [flag.name for flag in planted.flags] == ["zero-gradient", "few"]
    told = remarks.remarks([planted])
    assert any(line.startswith("zero-gradient: ") and "1 of 8 victims" in line for line in told)


def test_methods_are_compared_on_the_same_victims_and_p_values_adjusted():
    a, b, c = (own("staged", psnr, method=m) for m, psnr in (("fedavg", 30.0), ("fedsplit", 20.0), ("fedcg", 20.0)))
    found = comparison.between_methods([a, b, c])
    assert [x.name for x in found] == ["FedAvg - FedSplit", "FedAvg - FedCG", "FedSplit - FedCG"]
    assert all(x.n == 12 for x in found)
    assert found[0].differ
    assert not found[2].differ
    assert found[0].p == pytest.approx(2 / 2**12)  # all twelve differences of one sign
    assert found[0].holm == pytest.approx(3 * found[0].p)
    other = own("staged", 20.0, method="fedcg", dataset="cifar10")
    strangers = [v.model_copy(update={"images": [f"stranger {i}"]}) for i, v in enumerate(other.victims)]
    assert comparison.between_methods([a, other.model_copy(update={"victims": strangers})]) == []


def test_an_attack_is_compared_with_its_floor():
    (found,) = comparison.against_floor([own("staged", 20.0)], ["gradient (staged)"])
    assert found.name == "gradient (staged) - class-mean"
    assert found.difference_db.mean == pytest.approx(own("staged", 20.0).gain_db.mean)
    assert found.differ
