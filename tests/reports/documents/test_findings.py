"""Findings: their words and tables follow from the records."""

import re

import pytest

from privbench.records import record_lines
from reports.documents import findings, published
from reports.documents.blocks import FEDAVG, PHOTOS, PRIVATE, STRONG_NOISE, WEAK_NOISE
from tests.builders.paper_cells import paper_cells
from tests.builders.records import changed, record, with_knowledge, with_psnr, with_victims


def test_the_short_table_has_five_columns_and_fits_a_screen(repository):
    table = findings.five_columns(published.attacked(repository, PHOTOS)).splitlines()
    assert {line.count("|") for line in table} == {6}
    assert max(map(len, table)) <= 100
    assert [line.split("|")[1].strip() for line in table[2:]] == [FEDAVG, WEAK_NOISE, STRONG_NOISE, *PRIVATE]


def five(psnr):
    floors = [with_psnr(record(attack="class-mean", seeds=range(5)), lambda v: v.floors["class-mean"])]
    return [*floors, with_psnr(record(attack="dlg", seeds=range(5)), lambda v: psnr + 0.1 * v.seed + 0.01 * v.client)]


def test_measured_values_stand_beside_the_printed_ones_and_the_oracle_is_no_attacker():
    def attacked(attack, psnr):
        (cell,) = [
            c for c in paper_cells("attack-table")
            if (c.train.dataset, c.train.clients, c.round) == ("cifar10", 4, "best")
            and (c.train.method, c.attack) == ("fedcg", "feature-statistics")
        ]  # fmt: skip
        made = with_psnr(record("fedcg", attack=attack, seeds=[100]), lambda _: psnr)
        cell = cell.model_copy(update={"seeds": (100,), "attack": attack})
        known = made.knowledge.model_copy(update={"rung": "L8"} if attack == "oracle" else {})
        return made.model_copy(update={"cell": cell, "id": cell.id, "knowledge": known})

    levels = {"class-mean": 12.0, "feature-statistics": 5.0, "calibrated": 20.0, "oracle": 25.0}
    table = findings.beside_printed([attacked(*each) for each in levels.items()]).splitlines()
    row = [cell.strip() for cell in table[2].split("|")[1:-1]]
    assert row[0] == "FedCG"
    assert (row[2], row[4]) == ("47.5", "9.0")
    assert row[3] == "5.0"
    assert row[6].startswith("20.0 [")
    assert row[6].endswith("`calibrated`")
    assert row[7:] == ["gradient", "-"]


def test_two_attackers_who_share_a_place_are_both_named_with_what_they_know():
    # Without seed 0 or 1 the first has a mean of 21, without another seed one of 22.
    psnr = {"calibrated": lambda v: 24.0 if v.seed < 2 else 20.0, "chained": lambda v: 21.5}
    tags = {"calibrated": "gradient + known images", "chained": "gradient + earlier rounds"}
    records = [record("fedcg", attack="feature-statistics", seeds=range(5))]
    for name, of in psnr.items():
        made = with_knowledge(with_psnr(record("fedcg", attack=name, seeds=range(5)), of), tag=tags[name])
        records.append(made.model_copy(update={"id": made.cell.id}))
    table = findings.beside_printed(records).splitlines()
    row = [cell.strip() for cell in table[2].split("|")[1:-1]]
    named = re.search(r"`(.*)`$", row[6])[1].split("/")
    assert len(named) == 2
    assert row[7] == " or ".join(tags[name] for name in named)


def test_an_active_server_that_sent_nothing_crafted_has_no_score():
    absent, sent = (
        changed(record("fedavg", attack=name, seeds=range(5)), active=True) for name in ("imprint", "feature-hijacking")
    )
    absent = with_victims(absent, [v.model_copy(update={"outcome": "not applicable"}) for v in absent.victims])

    def cell(*active):
        table = findings.beside_printed([record("fedavg", attack="dlg", seeds=range(5)), *active]).splitlines()
        return table[2].split("|")[-2].strip()

    assert cell() == "-"
    assert cell(absent) == "sends the honest networks: `imprint`"
    assert cell(absent, sent).endswith("`feature-hijacking`")


def at_rounds(method, early, late, best):
    """An attack at rounds 20 and `best` on the same victims, PSNR by functions of them."""

    def of(round_, number, psnr):
        made = with_psnr(record(method, seeds=range(5), round_=round_), psnr)
        return made.model_copy(update={"seeds": [s.model_copy(update={"round": number}) for s in made.seeds]})

    return [of("20", 20, early), of("best", best, late)]


def test_two_rounds_are_compared_victim_by_victim_where_the_best_comes_late():
    late = at_rounds("fedcg", lambda v: 14.0 + v.seed + v.client, lambda v: 15.5 + v.seed + v.client, 34)
    table = findings.between_rounds(
        [*late, *at_rounds("fedavg", lambda v: 20.0, lambda v: 21.0, 25)], 20, 25
    ).splitlines()
    titles, rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in (table[0], table[2]))
    assert titles[2:] == ["round 20, dB", "round 34, dB", "difference, dB"]
    assert len(table) == 3
    assert rows[0] == "FedCG"
    # The victims' own levels differ by more than a dB, their differences do not.
    assert rows[4] == "-1.50 [-1.50, -1.50]"
    assert [cell.endswith("`dlg`") for cell in rows[2:4]] == [True, True]

    def of_seeds(*each):
        return [record_.model_copy(update={"seeds": record_.seeds[of]}) for record_, of in zip(late, each, strict=True)]

    # A seed that was not attacked at both rounds has no difference.
    fewer = findings.between_rounds(of_seeds(slice(0, 1), slice(0, 5)), 20, 25).splitlines()[2]
    assert fewer.split("|")[-2].strip() == "-1.50 [-1.50, -1.50]*"
    with pytest.raises(ValueError, match="other victims"):
        findings.between_rounds(of_seeds(slice(0, 1), slice(1, 5)), 20, 25)


@pytest.mark.parametrize(
    ("psnr", "verdict"),
    [
        (30.0, "That is a significant gain over the floor: +"),
        (14.0, "No significant gain over the floor: "),
        (5.0, "That is below the floor: -"),
    ],
)
def test_the_words_of_a_finding_follow_from_its_numbers(psnr, verdict):
    text = findings.of_strongest(five(psnr), "FedAvg")
    reached = re.match(r"`dlg` reaches (\d+\.\d\d) dB \[", text)
    assert float(reached[1]) == pytest.approx(psnr + 0.215, abs=0.0051)
    assert f"]. {verdict}" in text
    assert " It fails for" not in text


def test_a_finding_over_few_seeds_has_no_verdict():
    few = [r.model_copy(update={"seeds": r.seeds[:2]}) for r in five(30.0)]
    text = findings.of_strongest(few, "FedAvg")
    assert "Too few seeds to compare with the floor: +" in text
    assert "significant gain" not in text


def test_what_floors_identify_is_read_from_their_records_on_the_same_victims(tmp_path):
    """Of records that do not say it; those of other uploads, and those that say it themselves, stay as they are."""
    attack, floor = record("fedavg", attack="dlg"), record("fedavg", attack="class-mean")
    floor = with_victims(floor, [v.model_copy(update={"identification": v.client / 4}) for v in floor.victims])
    own = {"floors_identified": {"grey": 0.5}}
    said = changed(with_victims(attack, [v.model_copy(update=own) for v in attack.victims]), attack="idlg")
    path = tmp_path / f"some{record_lines.ENDING}"
    other = changed(attack, attack="staged", wire="fp16")
    made = [attack, other, floor, said]
    record_lines.write([r.model_copy(update={"id": r.cell.id}) for r in made], path)
    read = {r.attack: r for r in published.read(path)}
    assert [v.floors_identified for v in read["dlg"].victims] == [{"class-mean": v.client / 4} for v in attack.victims]
    assert {str(v.floors_identified) for v in read["idlg"].victims} == {str(own["floors_identified"])}
    assert {v.floors_identified for v in read["staged"].victims} == {None}


def test_the_setting_says_when_the_code_has_moved_on():
    records = [r.model_copy(update={"id": r.cell.id}) for r in five(14.0)]
    assert "Training revision" in findings.setting(records)
    earlier = changed(record("fedavg", attack="staged"), attack_revision=1)
    earlier = earlier.model_copy(update={"id": earlier.cell.id})
    assert findings.setting([*records, earlier]).endswith(" Of earlier revisions of their own: `staged` 1.")
    records[0] = records[0].model_copy(update={"id": "0" * 12})
    assert "code of another revision" in findings.setting(records)


def test_the_setting_says_from_how_many_uploads_attacks_learn_that_pool():
    alone, pooling = record(seeds=(100,)), with_knowledge(record("fedsplit", seeds=(100,)), pools=4)
    assert (
        findings.setting([alone, pooling])
        .splitlines()[0]
        .endswith(" Attacks that pool learn from 4 uploads of a client.")
    )
    assert "pool" not in findings.setting([alone])


def test_the_setting_says_which_column_has_which_seeds():
    one, five = record(seeds=(100,)), record("fedsplit", seeds=range(100, 105))
    assert "; seeds 100 (FedAvg); 100 to 104 (FedSplit), " in findings.setting([five, one])
    assert "; seeds 100, " in findings.setting([one])
