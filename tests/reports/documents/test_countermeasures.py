"""What each defence takes from each attack: differences over the same victims, beside the attack without a defence."""

import pytest

from reports.documents import countermeasures
from tests.builders.records import record, with_psnr

SEEDS = (100, 101, 102, 103, 104)


def attacked(psnr, attack="calibrated", defense="none", **spec):
    made = record("fedsplit", defense, attack, seeds=SEEDS, spec=spec)
    return with_psnr(made, lambda victim: psnr + 0.1 * (victim.seed % 3) + victim.client)


def rows_of(text):
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:] if line.startswith("|")
    ]


def test_what_a_defence_takes_is_the_difference_over_the_same_victims():
    start = attacked(25.0, initialisation="per-client")
    text = countermeasures.table([start, attacked(30.0), attacked(30.0, "oracle")])
    rows = rows_of(text)
    assert [row[:3] for row in rows] == [
        ["`calibrated`", "FedSplit", "none"],
        ["`calibrated`", "FedSplit", "a start per client"],
        ["`oracle`", "FedSplit", "none"],
    ]
    # The same for every victim, so that its interval has no width.
    assert rows[1][5] == "**+5.00 [+5.00, +5.00]**"
    assert rows[0][5] == rows[2][5] == "-"
    assert "p < 0.05" in text.splitlines()[-1]


def test_an_attack_in_another_form_is_compared_with_that_form():
    form = {"attack_settings": {"alignment": "sliced"}}
    made = [
        attacked(psnr, "joint", **more)
        for psnr, more in ((30.0, {}), (31.0, form), (28.0, {"initialisation": "per-client", **form}))
    ]
    rows = rows_of(countermeasures.table(made))
    assert [(row[0], row[2], row[5]) for row in rows] == [
        ("`joint`", "none", "-"),
        ("`joint`, alignment sliced", "none", "-"),
        ("`joint`, alignment sliced", "a start per client", "**+3.00 [+3.00, +3.00]**"),
    ]


def test_a_difference_that_is_not_sure_is_not_bold():
    changed = with_psnr(attacked(30.0, defense="clip:1"), lambda victim: 30.0 + (-1) ** victim.seed + victim.client)
    (_, clipped) = rows_of(countermeasures.table([attacked(30.0), changed]))
    assert clipped[2] == "clip 1"
    assert not clipped[5].startswith("**")


def test_every_defence_of_the_study_has_words_of_its_own():
    masks = "secure-aggregation:masks"
    cells = [
        attacked(1.0),
        attacked(1.0, method_settings={"dropout": 0.5}),
        attacked(1.0, defense="clip:1"),
        attacked(1.0, initialisation="per-client"),
        attacked(1.0, "chained", uploads_per_round=12),
        attacked(1.0, "chained", uploads_per_round=3),
        attacked(1.0, defense=f"clip:1+{masks}"),
        attacked(1.0, defense=masks),
        attacked(1.0, defense="gaussian:0.001"),
    ]
    assert [countermeasures.defence(made.cell) for made in cells] == [
        "none", "dropout 0.5", "clip 1", "a start per client", "none", "3 uploads kept a round", "clip 1", "none",
        "noise of variance 0.001",
    ]  # fmt: skip


def test_an_attack_that_has_no_record_without_a_defence_or_two_is_refused():
    with pytest.raises(ValueError, match="`calibrated` on fedsplit has no record of 'none'"):
        countermeasures.table([attacked(30.0, defense="clip:1")])
    with pytest.raises(ValueError, match="or two of one form"):
        countermeasures.table([attacked(30.0), attacked(30.0, labels_known=True)])
