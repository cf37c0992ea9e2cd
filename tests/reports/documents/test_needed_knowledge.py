"""Tables of what a server must know, over several committed tables, and of how long training took."""

import pytest

from reports.documents import training_time
from reports.documents.needed_knowledge import best_attacks, differences, knowledge_tables, left_out
from reports.documents.needed_knowledge.differences import Attacker
from reports.records import comparison, measured
from tests.builders.records import changed, record, with_knowledge, with_models, with_psnr

FLOOR_DB = 13.0


def attacked(name, tag, psnr, needs, seeds=5):
    made = record("fedcg", attack=name, seeds=range(seeds))
    made = with_psnr(made, lambda v: psnr + 0.1 * v.seed)
    made = made.model_copy(
        update={"seeds": [s.model_copy(update={"victims": [_floored(v) for v in s.victims]}) for s in made.seeds]}
    )
    made = with_knowledge(made, tag=tag, needs=needs)
    return made.model_copy(update={"id": made.cell.id})


def _floored(victim):
    return victim.model_copy(update={"floors": {"grey": FLOOR_DB}})


def rows(tables):
    lines = knowledge_tables.table(tables, "FedCG", "best").splitlines()
    return {cells[0]: cells[1:] for cells in ([c.strip() for c in line.split("|")[1:-1]] for line in lines)}


def test_a_row_is_the_best_attack_that_knows_it_and_a_table_without_one_says_so():
    gradient = attacked("dlg", "gradient", 5.0, ["gradient:classifier"])
    images = attacked("calibrated", "gradient + auxiliary", 20.0, ["gradient:classifier", "auxiliary"])
    whole = rows({"one": [gradient, images], "other": [gradient]})
    assert whole["the server knows"] == ["one", "other"]
    assert whole["nothing: the best floor"] == ["13.0", "13.0"]
    assert whole["gradient"][0].startswith("5.2 (-7.8 [")
    assert whole["gradient"][0].endswith("<sub>dlg</sub>")
    assert whole["gradient + auxiliary"][0].startswith("**20.2 (+7.2 [")
    # No attack with that knowledge was made there.
    assert whole["gradient + auxiliary"][1] == "-"


def test_whoever_knows_more_can_make_the_attack_that_knows_less():
    gradient = attacked("staged", "gradient", 25.0, ["gradient:classifier"])
    images = attacked("calibrated", "gradient + auxiliary", 20.0, ["gradient:classifier", "auxiliary"])
    whole = rows({"one": [gradient, images]})
    assert whole["gradient + auxiliary"] == whole["gradient"]


def test_tables_say_from_how_many_uploads_of_a_client_their_attacks_learn():
    alone = attacked("dlg", "gradient", 5.0, ["gradient:classifier"])
    four, sixteen = (with_knowledge(alone, pools=count) for count in (4, 16))
    several = knowledge_tables.pooled_uploads({"one": [alone, four], "two": [four], "three": [sixteen]}, "best")
    assert " 4: one; two. 16: three. Columns of unequal numbers differ" in several
    assert knowledge_tables.pooled_uploads({"one": [four]}, "best").endswith(" 4: one.")
    assert knowledge_tables.pooled_uploads({"one": [alone]}, "best") == ""
    assert knowledge_tables.pooled_uploads({"one": [four]}, "0") == ""


def test_few_seeds_are_not_bold():
    few = attacked("calibrated", "gradient + auxiliary", 20.0, ["gradient:classifier", "auxiliary"], seeds=2)
    assert not rows({"one": [few]})["gradient + auxiliary"][0].startswith("**")


def test_an_attack_is_the_best_of_a_cell_where_a_set_of_knowledge_has_none_that_is_better():
    better = attacked("staged", "gradient", 25.0, ["gradient:classifier"])
    worse = attacked("calibrated", "gradient + auxiliary", 20.0, ["gradient:classifier", "auxiliary"])
    least = attacked("dlg", "gradient", 5.0, ["gradient:classifier"])
    early = [changed(r, round="0") for r in (worse, least)]
    rows = best_attacks.table([[better, worse, least], early]).splitlines()[2:]
    # Untrained: attacked, the best, with a significant gain; the same trained.
    assert rows == [
        "| `dlg` | 1 | 1 | 0 | 1 | 0 | 0 |",
        "| `staged` | 0 | 0 | 0 | 1 | 1 | 1 |",
        "| `calibrated` | 1 | 1 | 1 | 1 | 0 | 0 |",
    ]


def test_an_attack_by_itself_stands_with_its_default_settings_alone():
    usual = attacked("calibrated", "gradient + auxiliary", 20.0, ["gradient:classifier", "auxiliary"])
    other = changed(
        with_psnr(usual, lambda v: 30.0), attack_settings={"prior": "denoiser"}
    )  # a better one, in settings of its own
    chained = attacked("chained", "gradient + auxiliary", 25.0, ["gradient:classifier", "auxiliary"])
    tables = {"FedCG": {"one": [other, usual], "two": [chained]}}
    lines = knowledge_tables.of_attacks(tables, ["calibrated", "chained"], "best").splitlines()
    assert lines[0] == "| attack | method | one | two |"
    assert lines[2].startswith("| `calibrated` | FedCG | **20.2 (+7.2 [")
    assert lines[2].endswith("** | - |")
    assert lines[3].startswith("| `chained` | FedCG | - | **25.2 (+12.2 [")


def test_few_seeds_are_named_and_enough_are_not():
    of_two, of_five = (attacked("dlg", "gradient", 5.0, ["gradient:classifier"], seeds=n) for n in (2, 5))
    one = attacked("staged", "gradient", 5.0, ["gradient:classifier"], seeds=1)
    assert knowledge_tables.few_seeds([of_five]) == ""
    assert knowledge_tables.few_seeds([of_five, one, of_two]) == ", 1 seed, 2 seeds"


def test_a_table_of_another_method_is_refused():
    with pytest.raises(ValueError, match="no record of FedCG"):
        rows({"one": [record("fedavg")]})


def test_a_paused_round_does_not_lengthen_the_usual_one():
    made = changed(record("fedavg", attack=None, seeds=range(1)))
    training = made.training[0]
    rounds = [r.model_copy(update={"seconds": s}) for r, s in zip(training.rounds, (10.0, 5000.0, 20.0), strict=True)]
    seeds = [made.seeds[0].model_copy(update={"training": training.model_copy(update={"rounds": rounds})})]
    (row,) = training_time.table([made.model_copy(update={"seeds": seeds})]).splitlines()[2:]
    assert [cell.strip() for cell in row.split("|")[1:-1]] == ["FedAvg", "0", "3", "10", "20", "5,000", "1"]


def test_seeds_stand_side_by_side_each_over_its_own_victims():
    def of(seed, psnr, **more):
        made = attacked("calibrated", "gradient + auxiliary", psnr, ["gradient:classifier"], seeds=1)
        seeds = [s.model_copy(update={"seed": seed}) for s in made.seeds]
        made = made.model_copy(update={"seeds": seeds, "cell": made.cell.with_seeds([seed])})
        made = with_models(made, lambda s: 71.0 if s == 100 else 70.0)
        return changed(made, **more) if more else made

    records = [of(101, 30.0), of(100, 20.0), of(100, 10.0, round="0"), of(102, 35.0, round="0")]
    lines = knowledge_tables.by_seed(records, ["FedCG"], ["calibrated", "oracle"], "best").splitlines()
    assert lines[0] == "| method | what | seed 100 | seed 101 | seed 102 |"
    assert lines[2] == "| FedCG | accuracy, %: each client's own round | 42.0 | 42.0 | 42.0 |"
    assert lines[4] == "| FedCG | accuracy, %: broadcast model, one round | 71.0 | 70.0 | 70.0 |"
    assert lines[5].startswith("| FedCG | dB: `calibrated` | 20.0 (+7.0 [")
    assert "| 30.0 (+17.0 [" in lines[5]
    assert lines[5].endswith("*) | - |")
    # An attack that nobody ran on the method has no row.
    assert len(lines) == 6
    # A record of several seeds says of each what its own would.
    cell = records[0].cell.with_seeds([100, 101])
    both = records[1].model_copy(update={"cell": cell, "seeds": [records[1].seeds[0], records[0].seeds[0]]})
    again = knowledge_tables.by_seed([both, *records[2:]], ["FedCG"], ["calibrated", "oracle"], "best").splitlines()
    assert again == lines


def test_what_a_setting_gains_is_paired_with_the_defaults_of_the_same_attack():
    def attacked(attack, method, psnr, **settings):
        made = record(method, attack=attack, seeds=range(100, 105), spec={"attack_settings": settings})
        return with_psnr(made, lambda victim: psnr + 0.1 * (victim.seed % 3) + victim.client)

    records = [
        attacked("chained", "fedsplit", 35.0, prior="denoiser"),
        attacked("chained", "fedsplit", 30.0),
        attacked("chained", "fedcg", 31.0),
        attacked("chained", "fedcg", 30.0, steps=400),
        attacked("oracle", "fedcg", 33.0),
    ]
    lines = [line for line in knowledge_tables.by_setting(records).splitlines() if line.startswith("| `")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [(*row[:3], row[5]) for row in rows] == [
        ("`chained`", "FedSplit", "defaults", "-"),
        # The same for every victim, so that its interval has no width.
        ("`chained`", "FedSplit", "prior denoiser", "**+5.00 [+5.00, +5.00]**"),
        ("`chained`", "FedCG", "defaults", "-"),
        ("`chained`", "FedCG", "steps 400", "**-1.00 [-1.00, -1.00]**"),
        ("`oracle`", "FedCG", "defaults", "-"),
    ]
    with pytest.raises(ValueError, match="`chained` on fedsplit has no record of 'defaults'"):
        knowledge_tables.by_setting(records[:1])
    beside_steps = knowledge_tables.by_setting(records[2:4], "steps 400").splitlines()
    assert "over steps 400, dB" in beside_steps[0]
    assert "+1.00 [+1.00, +1.00]" in beside_steps[3]


def test_points_of_a_curve_stand_side_by_side():
    def of(attack, psnr, count=None, method="fedcg"):
        known = {} if count is None else {"known_images": count, "known_quality_db": 30.0}
        made = record(method, attack=attack, seeds=range(100, 105), spec=known)
        made = with_psnr(made, lambda victim: psnr + 0.1 * victim.seed % 1)
        return made.model_copy(
            update={"seeds": [s.model_copy(update={"victims": [_floored(v) for v in s.victims]}) for s in made.seeds]}
        )

    def count(r):
        return ["0", "4"] if r.attack == "oracle" else [str(r.cell.known_images)]

    rows = {"method": lambda r: r.cell.train.method, "attack": lambda r: r.attack}
    records = [
        of("calibrated", 13.0, 0),
        of("calibrated", 20.0, 4),
        of("oracle", 30.0),
        of("calibrated", 25.0, 4, "fedsplit"),
    ]
    lines = knowledge_tables.across(records, rows, count).splitlines()
    assert lines[0] == "| method | attack | 0 | 4 |"
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    scores = [[cell.strip("*").partition(" ")[0] for cell in row] for row in cells]
    assert scores == [
        ["fedcg", "calibrated", "13.2", "20.2"],
        # It stands in both columns.
        ["fedcg", "oracle", "30.2", "30.2"],
        ["fedsplit", "calibrated", "-", "25.2"],
    ]
    assert "(+7.2 [" in cells[0][3]
    assert cells[0][3].startswith("**")
    with pytest.raises(ValueError, match="two records of fedcg, calibrated at 4"):
        knowledge_tables.across([*records, records[1]], rows, count)


IMAGES = "gradient + auxiliary"


def of_method(method, name, psnr, needs=("gradient:classifier", "auxiliary"), tag=IMAGES):
    """A record whose victims score `psnr` plus a tenth of their seed."""
    made = attacked(name, tag, psnr, list(needs))
    made = with_knowledge(made, tag=tag, tag_in_general=tag)
    return changed(made, method=method)


def difference_rows(tables, pairs):
    text = differences.table(tables, pairs, "best")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return {cells[0]: cells[1:] for cells in ([c.strip() for c in line.split("|")[1:-1]] for line in lines)}


def test_the_difference_of_two_attackers_is_that_of_the_strongest_attack_of_each_on_the_same_victims():
    weak, strong = of_method("fedsplit", "surrogate", 18.0), of_method("fedsplit", "joint", 23.0)
    other = with_psnr(of_method("fedcg", "surrogate", 20.0), lambda v: 20.0 + 0.2 * v.seed)
    pairs = {"with images": (Attacker("FedSplit", IMAGES), Attacker("FedCG", IMAGES))}
    shown = difference_rows({"one": [weak, strong, other], "two": [weak, other]}, pairs)
    # Seeds 0 to 4: 23.0 + 0.1 s less 20.0 + 0.2 s, in the mean 3.0 - 0.1 * 2; and 18.0 in place of 23.0.
    assert shown["difference, dB"] == ["one", "two"]
    assert shown["with images"][0].startswith("**+2.80 [")
    assert shown["with images"][1].startswith("**-2.20 [")


def test_a_difference_that_seeds_do_not_agree_on_is_not_claimed():
    one = with_psnr(of_method("fedsplit", "joint", 20.0), lambda v: 20.0 + 5.0 * (v.seed - 2))
    other = with_psnr(of_method("fedcg", "joint", 20.0), lambda v: 19.9)
    pairs = {"with images": (Attacker("FedSplit", IMAGES), Attacker("FedCG", IMAGES))}
    (cell,) = difference_rows({"one": [one, other]}, pairs)["with images"]
    assert cell.startswith("+0.10 [")


def test_a_difference_from_a_mixture_of_equals_must_hold_from_each_of_them_alone():
    """Chosen on other seeds, of two that are as strong the one counts that is worse on each seed."""
    up = {0: 1.0, 1: -1.0, 2: 1.0, 3: -1.0, 4: 0.2}
    one = with_psnr(of_method("fedcg", "decoder", 20.0), lambda v: 20.0 + up[v.seed])
    other = with_psnr(of_method("fedcg", "surrogate", 20.0), lambda v: 20.0 - up[v.seed])
    rival = with_psnr(of_method("fedsplit", "joint", 20.6), lambda v: 20.6 + 0.05 * v.seed)
    pairs = {"with images": (Attacker("FedSplit", IMAGES), Attacker("FedCG", IMAGES))}
    (mixed,) = difference_rows({"one": [one, other, rival]}, pairs)["with images"]
    (against_one,) = difference_rows({"one": [one, rival]}, pairs)["with images"]
    assert mixed.startswith("+1.")
    assert against_one.startswith("+0.")
    # It is far above the mixture on every seed, and not above either on all.
    mixture = measured.strongest([one, other])
    assert {r.attack for r in mixture.attacks} == {"decoder", "surrogate"}
    (compared,) = comparison.paired([("", measured.of(rival), mixture)])
    assert compared.holm < 0.05
    assert (compared.holds_alone, compared.verdict) == (False, "no difference shown")
    (of_methods,) = comparison.between_methods([one, other, rival])
    assert (of_methods.name, of_methods.differ) == ("FedSplit - FedCG", False)
    far = with_psnr(rival, lambda v: 23.0 + 0.05 * v.seed)
    assert difference_rows({"one": [one, other, far]}, pairs)["with images"][0].startswith("**+")


def test_differences_of_several_tables_are_adjusted_together(monkeypatch):
    asked = []

    def once(pairs):
        asked.append([name for name, *_ in pairs])
        return []

    monkeypatch.setattr(differences.comparison, "paired", once)
    records = [of_method("fedsplit", "joint", 20.0), of_method("fedcg", "joint", 19.0)]
    pairs = {"with images": (Attacker("FedSplit", IMAGES), Attacker("FedCG", IMAGES))}
    assert difference_rows({"one": records, "two": records}, pairs)["with images"] == ["-", "-"]
    assert asked == [["with images, one", "with images, two"]]


def test_an_attacker_without_a_record_is_refused_or_known_to_be_missing():
    pairs = {"with images": (Attacker("FedSplit", IMAGES), Attacker("FedCG", IMAGES))}
    alone = [of_method("fedsplit", "joint", 20.0)]
    tables = {"one": alone, "two": [*alone, of_method("fedcg", "joint", 19.0)]}
    with pytest.raises(ValueError, match=r"one, with images: .*FedCG.* is missing"):
        differences.table(tables, pairs, "best")
    text = differences.table(tables, pairs, "best", [("with images", "one")])
    assert "| with images | - | **+1.00 [" in text
    with pytest.raises(ValueError, match="two, with images: nothing is missing"):
        differences.table(tables, pairs, "best", [("with images", "one"), ("with images", "two")])


def test_what_the_ladder_leaves_out_stands_beside_the_strongest_that_knows_no_more():
    gradient = of_method("fedcg", "dlg", 5.0, needs=["gradient:classifier"], tag="gradient")
    floor = of_method("fedcg", "grey", 12.0, needs=[], tag="nothing")
    ladder = [floor, gradient, of_method("fedcg", "surrogate", 18.0), of_method("fedcg", "joint", 21.0)]
    blind = of_method("fedcg", "grnn", 4.0, needs=["gradient:classifier"], tag="gradient")
    informed = of_method("fedcg", "learned-inverse", 22.0)
    lines = left_out.table([informed, blind], ladder).splitlines()[2:4]
    shown = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert [row[1] for row in shown] == ["`grnn`", "`learned-inverse`"]
    assert [row[6] for row in shown] == ["`dlg`", "`joint`"]
    # Each victim has the same tenth of its seed in both, so that differences have no spread.
    assert [row[7] for row in shown] == ["**-1.00 [-1.00, -1.00]**", "**+1.00 [+1.00, +1.00]**"]
    floors = ["**-8.00 [-8.00, -8.00]** <sub>grey</sub>", "**+10.00 [+10.00, +10.00]** <sub>grey</sub>"]
    assert [row[5] for row in shown] == floors
    assert shown[0][4].startswith("-8.80 [")
    assert shown[1][4].startswith("**+9.20 [")


def test_an_attack_that_nobody_in_the_ladder_is_below_is_refused():
    blind = of_method("fedcg", "grnn", 4.0, needs=["gradient:classifier"], tag="gradient")
    floor = of_method("fedcg", "grey", 12.0, needs=[], tag="nothing")
    with pytest.raises(ValueError, match="no attack of the ladder knows as little as grnn on FedCG, round best"):
        left_out.table([blind], [floor, of_method("fedcg", "joint", 21.0)])
    with pytest.raises(ValueError, match="no floor of the ladder knows as little"):
        left_out.table([blind], [blind])
