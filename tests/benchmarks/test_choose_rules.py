"""The rules of attacks on private extractors, as they are chosen on runs that are never published."""

import math

import pytest
import torch

from attacks.shadow import selection
from attacks.shadow.alignment import FROM_INITIAL
from attacks.shadow.recipes import ALIKE
from attacks.shadow.selection import TAUS
from benchmarks import choose_rules


def recipe(shadow_gains, real_gains, *, shift=1.0, shadow_shift=1.0, loss=1.0):
    """Of two victims in shadow and reality, both with a class mean of 10 dB; gains by tau, the rest nothing."""
    fill = [0.0] * (len(TAUS) - len(shadow_gains))
    return {
        "shadow_db": [[10 + g, 10 + g] for g in (*shadow_gains, *fill)] + [[10.0, 10.0]],
        "psnr_db": [[10 + g, 10 + g] for g in (*real_gains, *fill)],
        "loss": [[loss, loss]] * len(TAUS), "shift": shift, "shadow_shift": shadow_shift,
    }  # fmt: skip


def one(**changes):
    recipes = {
        "surrogate": recipe([1.0, 0.5], [-3.0, 1.0]), "aligned": recipe([0.5, 2.0], [0.0, 1.5], loss=2.0),
        FROM_INITIAL: recipe([3.0], [2.5], loss=1.5),
    }  # fmt: skip
    decoder = {
        "share": 0.8, "energy": 1.0, "shift": 1.0, "shadow_shift": 1.0,
        "answer_squared": [2.0, 2.0], "answer_missing": [1.0, 1.0],
    }  # fmt: skip
    return {"class_mean_db": [10.0, 10.0], "recipes": recipes | changes, "decoder": decoder}


def test_a_seed_that_is_published_is_refused(tmp_path):
    with pytest.raises(ValueError, match="seeds from 100 on are published"):
        choose_rules.trial("fedsplit:digits:100:best", tmp_path, None)


def test_the_shadow_recommends_the_recipe_and_tau_that_gained_most_there():
    assert choose_rules.chosen(one(), ("surrogate", "aligned"), 1.5, 0.5) == ("aligned", 1)
    assert choose_rules.gain_db(one(), ("aligned", 1)) == pytest.approx(1.5)
    assert choose_rules.gain_db(one(), None) == 0


def test_a_gate_leaves_out_what_is_too_unlike():
    far = one(aligned=recipe([0.5, 2.0], [0.0, 1.5], shift=1.4))
    assert choose_rules.chosen(far, ("surrogate", "aligned"), 1.5, 0.5) == ("aligned", 1)
    assert choose_rules.chosen(far, ("surrogate", "aligned"), 1.25, 0.5) == ("surrogate", 0)
    assert choose_rules.chosen(far, ("surrogate", "aligned"), 0.0, 0.5) is None
    assert choose_rules.by_gate(1.25, 0.5)(far) == pytest.approx(-3.0)
    assert choose_rules.by_gate(math.inf, 0.0)(far) == pytest.approx(1.5)


def test_a_gain_within_its_standard_error_is_not_sure():
    shaky = recipe([0.0], [1.0])
    shaky["shadow_db"][0] = [8.0, 13.0]  # +0.5 +- 2.5
    assert choose_rules.chosen(one(aligned=shaky), ("aligned",), 1.5, 0.5) == ("aligned", 0)
    assert choose_rules.chosen(one(aligned=shaky), ("aligned",), 1.5, 0.5, sure=True) is None


def test_from_initial_is_taken_as_each_rule_says():
    def of(how, **changes):
        return choose_rules.with_initial(how)(one(**changes))

    assert of("objective") == pytest.approx(2.5)  # its loss of 1.5 is below the 2 of the aligned one
    assert of("objective", **{FROM_INITIAL: recipe([3.0], [2.5], loss=2.5)}) == pytest.approx(1.5)
    assert of("validation") == of("always") == pytest.approx(2.5)
    assert of("never") == pytest.approx(1.5)


def test_the_decoder_s_shares_take_off_what_a_hand_computes():
    # 2 s 1 - 2 s^2: 0.8 gives 0.32, 0.8 / 2 gives 0.48, the best share of 1 / 2 gives 0.5
    gains = [choose_rules.of_decoder(how)(one()) for how in ("validated", "energy", "best")]
    assert gains == pytest.approx([320, 480, 500])


def test_today_s_rules_stand_first_and_are_those_of_the_attacks():
    rules = choose_rules.rules()
    firsts = [next(iter(rules[question])) for question in ("gate", "mean", "initial", "decoder")]
    assert firsts == [f"UNLIKE {selection.UNLIKE:g}, ALIKE {ALIKE:g}", "best mean", "objective", "energy"]
    recipe, tau = selection.best(
        torch.tensor([one()["recipes"][name]["shadow_db"] for name in ("surrogate", "aligned")])
    )
    assert (("surrogate", "aligned")[recipe], TAUS.index(tau)) == choose_rules.chosen(
        one(), ("surrogate", "aligned"), selection.UNLIKE, ALIKE
    )


def test_the_report_holds_every_cell_and_rule():
    trials = [one() | {"cell": f"fedsplit:digits:{seed}:best", "round": 3} for seed in (11, 12)]
    text = choose_rules.report(trials)
    assert text.count("fedsplit:digits:1") == 2 * 3
    assert "| UNLIKE 1.5, ALIKE 0.5 | +1.50 | +1.50 | +0.00 +- 0.00 |" in text
    assert "| always | +2.50 | +2.50 | +0.00 +- 0.00 |" in text


def test_a_small_trial_from_training_to_report(tmp_path, monkeypatch):
    monkeypatch.setattr(choose_rules, "VICTIMS", 4)
    trial = choose_rules.trial("fedsplit:digits:11:last", tmp_path, None, "smoke")
    assert set(trial["recipes"]) == {"surrogate", "aligned", FROM_INITIAL}
    for of_recipe in trial["recipes"].values():
        assert [len(each) for each in of_recipe["psnr_db"]] == [4] * len(TAUS)
        assert len(of_recipe["shadow_db"]) == len(TAUS) + 1
    floor = torch.tensor(trial["class_mean_db"])
    assert (floor > 5).all()
    assert len(trial["decoder"]["answer_squared"]) == 4
    assert "fedsplit:digits:11:last" in choose_rules.report([trial])
