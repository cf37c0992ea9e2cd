"""Claims about defences: the verdict follows from the attacks that were measured."""

import pytest

from reports.documents import claims
from tests.builders.records import record, with_knowledge, with_psnr, with_victims

SEEDS = (100, 101, 102, 103, 104)
NOISY = "FedAvg + Gaussian 0.001"


def attacked(psnr, *, seeds=SEEDS, attack="staged", round_="best"):
    made = record("fedavg", "gaussian:0.001", attack, psnr=psnr, round_=round_, seeds=seeds)
    return with_psnr(made, lambda victim: psnr + 0.1 * (victim.seed % 3))


def test_one_significant_gain_refutes_a_claim_and_names_who_and_when():
    text = claims.of_claim([attacked(5.0, attack="dlg"), attacked(30.0)], [NOISY])
    first, _, table = text.partition("\n\n")
    assert first.startswith(f"**It does not hold** for {NOISY}, after training, by `staged` (")
    assert "dlg" not in first
    assert [line.split(" | ")[2] for line in table.splitlines()[2:4]] == ["`dlg`", "`staged`"]
    assert "**+" in table.splitlines()[3]


def test_of_many_attacks_the_test_over_seeds_must_agree_adjusted_over_all():
    def over_floor(attack, *gains):
        of = dict(zip(SEEDS, gains, strict=True))
        return with_psnr(attacked(20.0, attack=attack), lambda victim: victim.floors["class-mean"] + of[victim.seed])

    gaining = over_floor("staged", 0.5, 2.0, 0.6, 1.9, 1.0)
    assert claims.verdict([gaining], [NOISY]).startswith(
        f"**It does not hold** for {NOISY}, after training, by `staged` ("
    )
    failing = ("dlg", "idlg", "matching", "grnn", "unsplit", "posterior", "layerwise", "surrogate", "decoder")
    among = claims.verdict([gaining, *(over_floor(name, 0.5, -0.5, 0.2, -0.3, 0.1) for name in failing)], [NOISY])
    assert among.startswith("**Not refuted here:**")
    assert "The interval alone leaves out 0, and not the adjusted test, for" in among
    assert among.count("`staged`") == 1


def test_failed_attacks_prove_nothing_and_few_seeds_answer_nothing():
    assert claims.of_claim([attacked(5.0)], [NOISY]).startswith("**Not refuted here:**")
    few = claims.of_claim([attacked(30.0, seeds=SEEDS[:2])], [NOISY])
    assert few.startswith("**Not answered yet:** seeds are too few")
    assert "| none |" in few  # there is no epsilon


def test_a_reference_refutes_nothing_and_is_named_behind_the_verdict():
    oracle = with_knowledge(attacked(30.0, attack="oracle"), rung="L8", tag="ORACLE", tag_in_general="ORACLE")
    alone = claims.verdict([oracle, attacked(5.0)], [NOISY])
    assert alone.startswith("**Not refuted here:**")
    reference = (
        f"A reference, which is no attacker, gains significantly: {NOISY}, after training, by `oracle` (ORACLE)."
    )
    assert alone.endswith(reference)
    both = claims.verdict([oracle, attacked(30.0)], [NOISY])
    assert both.startswith(f"**It does not hold** for {NOISY}, after training, by `staged` (")
    assert both.count("`oracle`") == 1
    assert both.endswith(reference)
    assert "reference" not in claims.verdict([attacked(30.0)], [NOISY])


def test_networks_that_were_trained_to_nothing_are_named():
    """Attacks that fail on them show no protection of a model; a guarantee per client may cost that much."""

    def of(percent, **chosen):
        made = attacked(5.0, **chosen)
        seeds = [s.model_copy(update={"accuracy_at_round": [percent, percent]}) for s in made.seeds]
        return made.model_copy(update={"seeds": seeds})

    sentence = f"The attacked networks of {NOISY} have less than twice the accuracy of guessing"
    assert sentence in claims.verdict([of(19.0)], [NOISY])
    assert sentence not in claims.verdict([of(21.0)], [NOISY])
    # Untrained networks always are.
    assert sentence not in claims.verdict([of(10.0, round_="0"), of(21.0)], [NOISY])
    assert "| 43.0 ± 0.8 | 19.0 ± 0.0 |" in claims.every_attack([of(19.0)])


def test_an_attack_that_failed_for_every_victim_refutes_nothing():
    made = attacked(30.0)
    failed = with_victims(made, [v.model_copy(update={"outcome": "gave up"}) for v in made.victims])
    assert claims.of_claim([failed], [NOISY]).startswith("**Not refuted here:**")


def test_every_round_has_its_rows_and_a_column_without_any_is_an_error():
    both = claims.of_claim([attacked(5.0), attacked(5.0, round_="0")], [NOISY])
    assert [line.split(" | ")[1] for line in both.splitlines()[4:6]] == ["after training", "before training"]
    with pytest.raises(ValueError, match="no attack on FedAvg \\+ DP-SGD"):
        claims.of_claim([attacked(5.0)], [NOISY, "FedAvg + DP-SGD"])


def test_a_defence_has_one_row_with_its_strongest_attack_before_and_after_training():
    records = [
        attacked(5.0, attack="dlg"),
        attacked(30.0),
        attacked(20.0, round_="0"),
        attacked(10.0, attack="dlg", round_="0"),
    ]
    header, _, row = claims.every_defence(records).splitlines()
    assert header.count("over the floor, dB") == 2
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[0] == NOISY
    # Of the personal model; and of the networks that were attacked after training.
    assert cells[1:3] == ["43.0 ± 0.8", "40.0 ± 0.0"]
    assert cells[5].endswith("`staged`")
    assert cells[7].endswith("`staged`")
    assert [cells[5][:2], cells[7][:2]] == ["30", "20"]
    trained_alone = claims.every_defence([attacked(30.0)]).splitlines()[-1]
    assert trained_alone.endswith("| - | - |")


def test_a_list_of_all_attacks_has_the_rows_of_every_column():
    other = record("fedsplit", "none", "staged", psnr=9.0, round_="best", seeds=SEEDS)
    text = claims.every_attack([attacked(5.0), other])
    assert [line.split(" | ")[0].strip("| ") for line in text.splitlines()[2:]] == [NOISY, "FedSplit"]


def test_several_claims_have_a_line_each():
    other = record("fedsplit", "none", "staged", psnr=5.0, round_="best", seeds=SEEDS)
    text = claims.verdicts([attacked(30.0), other], {"Noise protects": [NOISY], "A private E protects": ["FedSplit"]})
    first, second = text.splitlines()[:2]
    assert first.startswith('- "Noise protects": **It does not hold** for')
    assert second.startswith('- "A private E protects": **Not refuted here:**')
    assert all(line.endswith(" Rows: 1.") for line in (first, second))
