"""Claims about defences: the verdict follows from the attacks that were measured."""

import pytest

from reports.documents import claims
from tests.builders.records import record, with_psnr

SEEDS = (100, 101, 102, 103, 104)
NOISY = "FedAvg + Gaussian 0.001"


def attacked(psnr, *, seeds=SEEDS, attack="staged", round_="best"):
    made = record("fedavg", "gaussian:0.001", attack, psnr=psnr, round_=round_, seeds=seeds)
    return with_psnr(made, lambda victim: psnr + 0.1 * (victim.seed % 3))


def test_one_sure_gain_refutes_a_claim_and_names_who_and_when():
    text = claims.of_claim([attacked(5.0, attack="dlg"), attacked(30.0)], [NOISY])
    first, _, table = text.partition("\n\n")
    assert first.startswith(f"**It does not hold** for {NOISY}, after training, by `staged` (")
    assert "dlg" not in first
    assert [line.split(" | ")[2] for line in table.splitlines()[2:4]] == ["`dlg`", "`staged`"]
    assert "**+" in table.splitlines()[3]


def test_failed_attacks_prove_nothing_and_few_seeds_answer_nothing():
    assert claims.of_claim([attacked(5.0)], [NOISY]).startswith("**Not refuted here:**")
    few = claims.of_claim([attacked(30.0, seeds=SEEDS[:2])], [NOISY])
    assert few.startswith("**Not answered yet:** seeds are too few")
    assert "| none |" in few  # there is no epsilon


def test_every_round_has_its_rows_and_a_column_without_any_is_an_error():
    both = claims.of_claim([attacked(5.0), attacked(5.0, round_="0")], [NOISY])
    assert [line.split(" | ")[1] for line in both.splitlines()[4:6]] == ["after training", "before training"]
    with pytest.raises(ValueError, match="no attack on FedAvg \\+ DP-SGD"):
        claims.of_claim([attacked(5.0)], [NOISY, "FedAvg + DP-SGD"])
