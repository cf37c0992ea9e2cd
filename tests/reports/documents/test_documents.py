"""Generated blocks equal a fresh render, and every published table has its records or says that it has none."""

import json
import lzma
import re
import shutil

import pytest
from PIL import Image

from privbench import presets, registry
from privbench.errors import UserError
from privbench.observation import knowledge
from privbench.records import record_lines
from privbench.training.history import ModelAccuracy
from reports.documents import __main__ as command
from reports.documents import benchmarks, catalogue, findings, images, model_accuracy, pages, published
from reports.documents.blocks import BLOCKS, FEDAVG, LADDER, PHOTOS, PRIVATE, STRONG_NOISE, WEAK_NOISE
from reports.records import benchmark_rows, comparison
from reports.records.benchmark_rows import BenchmarkRow
from reports.records.labels import label
from reports.records.rungs import RUNGS
from reports.studies import study_files
from tests.builders.paper_cells import paper_cells
from tests.builders.records import changed, record, with_knowledge, with_models, with_psnr, with_victims

ONE = {"one": lambda root: f"from {root.name}\n\n- a\n"}


def render(text, root, blocks=ONE):
    return pages.rendered(text, root / "page.md", root, blocks)


def test_every_block_of_every_page_equals_a_fresh_render(repository):
    used = []
    for page in pages.pages(repository):
        text = page.read_text(encoding="utf-8")
        assert pages.rendered(text, page, repository, BLOCKS) == text, f"{page}: `make docs` writes it anew"
        used += pages.names(text, page)
    assert set(used) == set(BLOCKS)


def test_every_published_table_has_its_records_or_says_that_it_has_none(repository, tmp_path):
    assert published.without_records(repository) == []
    folder = tmp_path / published.FOLDER
    folder.mkdir(parents=True)
    (folder / "silent.md").write_text("# A table\n")
    (folder / "open.md").write_text(f"# A table\n\n> {published.NO_RECORDS}: lost.\n")
    assert published.without_records(tmp_path) == ["silent.md"]


def test_published_tables_are_of_seeds_on_which_nothing_was_tuned(repository):
    """But the search for the setting that the papers do not print, which is tuning and says so."""
    seeds = {
        path.name.removesuffix(record_lines.ENDING): {seed for r in published.read(path) for seed in r.cell.seeds}
        for path in sorted((repository / published.FOLDER / "records").glob(f"*{record_lines.ENDING}"))
    }
    assert len(seeds) >= 5
    tuning = {name for name, used in seeds.items() if min(used) < presets.FIRST_SEED}
    assert tuning == {"papers-attack"}
    page = (repository / published.FOLDER / "papers-attack.md").read_text(encoding="utf-8")
    assert "Seed 10, which is for tuning and no published seed." in page


def test_a_block_is_replaced_and_nothing_else(tmp_path):
    before = "a\n<!-- generated: one -->\nold\n<!-- end -->\nb\n- c\n  <!-- generated: one -->\n  <!-- end -->\n"
    new = f"from {tmp_path.name}\n\n- a\n"
    once = render(before, tmp_path)
    assert once == (
        f"a\n<!-- generated: one -->\n{new}<!-- end -->\nb\n- c\n"
        f"  <!-- generated: one -->\n  from {tmp_path.name}\n\n  - a\n  <!-- end -->\n"
    )
    assert render(once, tmp_path) == once
    assert pages.names(once, tmp_path) == ["one", "one"]
    assert render("no block", tmp_path) == "no block"


def test_marks_in_code_are_text(tmp_path):
    text = "```\n<!-- generated: any -->\n```\n"
    assert render(text, tmp_path) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- generated: two -->\n<!-- end -->\n", "no block 'two'; known: one"),
        ("<!-- generated: one -->\n", "block 'one' does not end"),
        ("<!-- end -->\n", "a block ends that did not begin"),
        ("<!-- generated: one -->\n<!-- generated: one -->\n<!-- end -->\n", "begins inside of block 'one'"),
    ],
)
def test_marks_that_do_not_pair_up_are_refused(text, message, tmp_path):
    with pytest.raises(UserError, match=message):
        render(text, tmp_path)


def test_the_command_writes_what_changed_and_says_so(repository, tmp_path, capsys):
    (tmp_path / "docs").mkdir()
    shutil.copy(repository / "Makefile", tmp_path)
    (tmp_path / "README.md").write_text("<!-- generated: make-targets -->\n<!-- end -->\n")
    assert command.main(["--root", str(tmp_path)]) == 0
    assert "| `make docs` |" in (tmp_path / "README.md").read_text()
    assert command.main(["--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "changed: README.md\nchanged: nothing\n"
    (tmp_path / "docs" / "x.md").write_text("<!-- generated: nothing-such -->\n<!-- end -->\n")
    assert command.main(["--root", str(tmp_path)]) == 2
    assert "no block 'nothing-such'" in capsys.readouterr().err


def test_images_are_drawn_from_committed_records_and_shown_somewhere(repository, tmp_path):
    paths = images.write(repository, tmp_path)
    shown = "".join(page.read_text(encoding="utf-8") for page in pages.pages(repository))
    assert [path.stem for path in paths] == [*images.IMAGES, *benchmarks.FIGURES]
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert f"images/{path.name}" in shown
        assert (repository / images.FOLDER / path.name).exists()


def test_committed_records_are_read_as_they_were_written_and_an_altered_one_is_refused(tmp_path):
    path = tmp_path / "x.jsonl.xz"
    records = [record("fedsplit", round_="0"), record("fedavg", round_="best")]
    records = [r.model_copy(update={"id": r.cell.id}) for r in records]
    record_lines.write(records, path)
    assert list(published.read(path)) == records[::-1]
    again = tmp_path / "y.jsonl.xz"
    record_lines.write(records, again)
    assert again.read_bytes() == path.read_bytes()
    lines = [json.loads(line) for line in lzma.decompress(path.read_bytes()).splitlines()]
    lines[0]["seeds"][0]["victims"][0]["psnr_db"] += 1
    again.write_bytes(lzma.compress("\n".join(map(json.dumps, lines)).encode()))
    with pytest.raises(UserError, match="altered or damaged"):
        published.read(again)
    with pytest.raises(UserError, match="no records at"):
        published.read(tmp_path / "z.jsonl.xz")


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
    order = [
        v.images for v in sorted(record("fedcg", seeds=range(5)).victims, key=lambda v: (v.seed, v.client, v.images))
    ]
    psnr = {
        "calibrated": lambda v: 20.0 + order.index(v.images) % 2,
        "chained": lambda v: 21.0 - order.index(v.images) % 2,
    }
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
    assert cell(absent) == "sends nothing crafted: `imprint`"
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
    shown = [record_.model_copy(update={"seeds": record_.seeds[i:]}) for i, record_ in enumerate(late)]
    with pytest.raises(ValueError, match="other victims"):
        findings.between_rounds(shown, 20, 25)


@pytest.mark.parametrize(
    ("psnr", "verdict"),
    [
        (30.0, "That is a sure gain over the floor: +"),
        (14.0, "No sure gain over the floor: "),
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
    assert "sure gain" not in text


def test_the_setting_says_when_the_code_has_moved_on():
    records = [r.model_copy(update={"id": r.cell.id}) for r in five(14.0)]
    assert "Training revision" in findings.setting(records)
    records[0] = records[0].model_copy(update={"id": "0" * 12})
    assert "code of another revision" in findings.setting(records)


def test_the_setting_says_which_column_has_which_seeds():
    one, five = record(seeds=(100,)), record("fedsplit", seeds=range(100, 105))
    assert "; seeds 100 (FedAvg); 100 to 104 (FedSplit), " in findings.setting([five, one])
    assert "; seeds 100, " in findings.setting([one])


def test_what_a_defence_costs_is_said_of_each_model():
    plain, noisy = (record(seeds=range(5), defense=defense) for defense in ("none", "gaussian:0.1"))
    records = [with_models(plain, lambda seed: 70.0 + seed), with_models(noisy, lambda seed: 60.0 + 1.1 * seed)]
    text = model_accuracy.cost(records, "FedAvg + Gaussian 0.1", "FedAvg")
    # Differences of -10, -9.9, -9.8, -9.7 and -9.6; Student's t of 4 degrees of freedom has its 97.5% quantile at 2.776.
    half = 2.776 * 0.1 * 2.5**0.5 / 5**0.5
    assert f"The broadcast model: -9.80 points [{-9.8 - half:.2f}, {-9.8 + half:.2f}]. It is lower." in text
    assert "The personal model: +0.00 points [+0.00, +0.00]. No difference is shown." in text
    few = [with_models(record(seeds=range(2), defense=r.cell.train.defense), lambda seed: seed) for r in records]
    assert "too few seeds for a verdict" in model_accuracy.cost(few, "FedAvg + Gaussian 0.1", "FedAvg")
    with pytest.raises(UserError, match="other seeds"):
        model_accuracy.cost([records[0], few[1]], "FedAvg + Gaussian 0.1", "FedAvg")


def test_a_difference_in_accuracy_is_paired_by_seed():
    mean, low, high = comparison.paired_means([61, 72, 83], [60, 70, 80])
    assert mean == pytest.approx(2)
    # Student's t of 2 degrees of freedom has its 97.5% quantile at 4.303; the differences are 1, 2 and 3.
    assert high - mean == pytest.approx(4.303 / 3**0.5, abs=1e-3)
    assert mean - low == pytest.approx(high - mean)
    with pytest.raises(ValueError, match="the same ones"):
        comparison.paired_means([61, 72, 83], [60, 70])


def test_the_catalogues_name_everything_that_is_there(repository):
    for kind, block in (("attack", "attacks"), ("method", "methods"), ("defense", "defenses"), ("dataset", "datasets")):
        named = re.findall(r"^\| `([^`]+)`", BLOCKS[block](repository), re.MULTILINE)
        assert sorted(named) == sorted(registry.KINDS[kind])
    assert re.findall(r"^\| `([^`]+)`", BLOCKS["studies"](repository), re.MULTILINE) == study_files.names()
    assert catalogue.facts("method", "fedmd-cg")["shares"] == "classifier, generator, label counts"
    assert all(registry.resolve("method", name).paper for name in registry.METHODS if name != "local")


# What an attack on a rung needs besides what the method sends, as `needs` name it; and what some attacks on it have besides.
OF_RUNG = {
    "L1": (set(), set()),
    "L2": (set(), set()),
    "L3": ({"initial"}, set()),
    "L4": ({"auxiliary"}, set()),
    "L5": ({"auxiliary"}, {"initial", "upload:generator"}),
    "L6": ({"auxiliary"}, {"colluder", "known", "rounds", "initial", "upload:generator"}),
    "L8": ({"auxiliary", "oracle"}, set()),
}


def test_every_attack_knows_what_its_rung_says():
    assert list(RUNGS) == [f"L{number}" for number in range(9)]
    attacks = {name: registry.resolve("attack", name) for name in registry.ATTACKS}
    assert {attack.rung for attack in attacks.values()} == set(RUNGS)
    for name, attack in attacks.items():
        assert (attack.rung == "L0") == (name in registry.FLOORS), name
        assert (attack.rung == "L7") == registry.is_active(name), name
        needs, more = OF_RUNG.get(attack.rung, (None, None))
        if needs is not None:
            assert set(attack.needs) & set(knowledge.FIELDS) - more == needs, name
        if attack.rung == "L6":
            assert len(set(attack.needs) & {"colluder", "known", "rounds"}) == 1, name
        if attack.rung == "L5":
            assert (set(attack.needs) | knowledge.uses(attack)) & more, name


def test_what_each_method_shares_is_what_its_artifacts_offer(repository):
    rows = [line.split(" | ") for line in BLOCKS["what-each-method-shares"](repository).splitlines()[2:]]
    assert sorted(name for row in rows for name in re.findall("`([^`]+)`", row[0])) == sorted(registry.METHODS)
    seen = {name: [cell.strip(" |") for cell in row[1:]] for row in rows for name in re.findall("`([^`]+)`", row[0])}
    assert seen["local"] == ["-", "-", "-"]
    assert seen["fedgen"] == ["classifier", "classifier, generator", "-"]
    assert seen["fedmd-cg"] == ["classifier", "classifier, generator", "generator, label counts"]


def test_what_a_plug_in_is_takes_one_short_line():
    for kind in registry.KINDS:
        for name, entry in catalogue.every(kind).items():
            assert entry["what"].endswith("."), name
            assert len(entry["what"]) <= 130, name


def measured(root, load=0.1):
    """A committed run of `make bench` under `root`: one ratio, two points of growth, one row that was not measured."""
    rows = [
        BenchmarkRow("way", "a round", "plain loop", [4.0, 3.0, 5.0]),
        BenchmarkRow("way", "a round", "privbench", [2.0, 1.0, 1.5], times=4.0 / 1.5),
        *(BenchmarkRow("scaling", "a round by clients", f"{x}", [0.5 * x], "ms", x=x) for x in (1, 2)),
        BenchmarkRow("way", "a round", "GPU", note="no GPU at hand"),
    ]
    on = {
        "machine": "a processor", "cores": 2, "device": "cpu", "python": "3.11.7", "torch": "2.13.0", "date": "2026-11-22",
        "repeats": 3, "load": [load, 1.9],
    }  # fmt: skip
    benchmark_rows.save(rows, on, root / "measured.json")
    return root / "measured.json"


def test_the_table_of_benchmarks_is_that_of_the_committed_file(tmp_path, capsys):
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("")
    page = tmp_path / "docs" / "benchmarks.md"
    page.write_text("<!-- generated: benchmarks -->\n<!-- end -->\n")
    assert command.main(["--root", str(tmp_path)]) == 0
    assert benchmarks.NONE in page.read_text()
    assert command.main(["--root", str(tmp_path), "--benchmarks", str(measured(tmp_path))]) == 0
    text = page.read_text()
    assert benchmarks.NONE not in text
    assert "| a round | privbench | 1.5 s | 1-2 | 2.7x |  |" in text
    assert "| a round | GPU | not measured |  |  | no GPU at hand |" in text
    assert "a processor, 2 cores, device cpu, Python 3.11.7, torch 2.13.0, 2026-11-22; 3 repetitions" in text
    assert "0.1 before the first row, 1.9 after the last" in text
    assert "shared" not in text
    assert (tmp_path / "docs" / re.search(r"\((results/records/\S+)\)", text)[1]).exists()
    assert command.main(["--root", str(tmp_path), "--benchmarks", str(tmp_path / "nothing.json")]) == 2
    assert "no benchmarks at" in capsys.readouterr().err


def test_times_of_a_busy_machine_are_called_too_long(tmp_path):
    benchmarks.commit(measured(tmp_path, load=7.25), tmp_path)
    text = benchmarks.section(tmp_path)
    assert "7.2 before the first row" in text
    assert "**The machine was shared,** so all times are too long." in text


def test_figures_of_benchmarks_are_drawn_where_a_run_is_committed(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "IMAGES", {})
    assert images.write(tmp_path, tmp_path) == []
    benchmarks.commit(measured(tmp_path), tmp_path)
    drawn = images.write(tmp_path, tmp_path / "drawn")
    assert [path.name for path in drawn] == ["speedup.png", "scaling.png"]
    assert all(f"images/{path.name}" in benchmarks.section(tmp_path) for path in drawn)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


def of_fedcg_table(method, seeds, broadcast):
    """A record of FedCG's Table 1 on CIFAR-10 with 4 clients."""
    (cell,) = [
        c for c in paper_cells("fedcg-table1")
        if (c.train.dataset, c.train.method, c.train.clients) == ("cifar10", method, 4)
    ]  # fmt: skip
    cell = cell.model_copy(update={"seeds": tuple(seeds)})
    return with_models(record(method, seeds=seeds).model_copy(update={"cell": cell, "id": cell.id}), broadcast)


def rows_of_orderings(records):
    """Rival of FedCG -> what stands behind its name."""
    return {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]]
        for line in model_accuracy.orderings(records, "FedCG", ["FedCG 1"]).splitlines()
        if line.startswith("| Fed")
    }


def test_an_ordering_stands_beside_the_printed_one_of_each_model():
    # FedCG is printed 0.29 above FedAvg and 2.85 above FedSplit.
    levels = {"fedcg": lambda s: 50.0 + s, "fedavg": lambda s: 51.0 + 0.9 * s, "fedsplit": lambda s: 50.0 + 3 * (s - 2)}
    records = [of_fedcg_table(method, range(5), level) for method, level in levels.items()]
    rows = rows_of_orderings(records)
    half = 2.776 * 0.1 * 2.5**0.5 / 5**0.5
    assert rows["FedAvg"][0] == "+0.29"
    assert rows["FedAvg"][4] == f"-0.80 [{-0.8 - half:+.2f}, {-0.8 + half:+.2f}], reversed"
    assert rows["FedSplit"][0] == "+2.85"
    assert rows["FedSplit"][4].endswith("not shown")
    assert rows["FedSplit"][4].startswith("+2.00 [")
    higher = records[0].model_copy(
        update={"seeds": [s.model_copy(update={"accuracy": [a + 1.5 for a in s.accuracy]}) for s in records[0].seeds]}
    )
    # The accuracy of tables is compared too: each client's at its own best round.
    assert rows_of_orderings([higher, *records[1:]])["FedAvg"][1] == "+1.50 [+1.50, +1.50], as printed"
    one = [of_fedcg_table(method, [100], lambda s: {"fedcg": 52.0}.get(method, 50.0)) for method in levels]  # noqa: B023
    text = model_accuracy.orderings(one, "FedCG", ["FedCG 1"])
    assert text.count("+2.00, as printed") == 2
    assert "Seeds: 1. Below 5 seeds no interval is given" in text
    with pytest.raises(UserError, match="other seeds"):
        model_accuracy.orderings([records[0], one[1]], "FedCG", ["FedCG 1"])


def test_the_model_nearest_to_a_printed_accuracy_is_one_of_four():
    # FedAvg is printed at 47.23%.
    made = of_fedcg_table("fedavg", [100], lambda _: 47.9)
    named = {0.0: "broadcast, with what came back: 47.9%", 47.5: f"{model_accuracy.OWN_BEST}: 47.5%"}
    for own, text in named.items():
        record_ = made.model_copy(update={"seeds": [made.seeds[0].model_copy(update={"accuracy": [own]})]})
        (line, *_) = model_accuracy.nearest([record_], ["FedCG 1"]).splitlines()
        assert line == f"- FedAvg: 47.23% is printed. Nearest: {text}."


def by_round(method, levels):
    """A record whose clients have, after round 1, 2, ..., one accuracy in validation and in test, of each model alike."""
    whole = record(method, seeds=[100])
    (seed,) = whole.seeds
    rounds = [
        seed.training.rounds[0].model_copy(
            update={"models": {name: ModelAccuracy(validation=[a], test=[a - 1]) for name in model_accuracy.MODELS}}
        )
        for a in levels
    ]
    training = seed.training.model_copy(update={"rounds": rounds})
    return whole.model_copy(update={"seeds": [seed.model_copy(update={"training": training})]})


def test_a_shorter_training_is_the_beginning_of_the_whole_one():
    records = [
        by_round("fedavg", [10, 40, 30, 45]),
        by_round("fedcg", [20, 30, 44, 50]),
        by_round("local", [5, 6, 7, 8]),
    ]
    lines = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in model_accuracy.shorter(records, (1, 2, 3)).splitlines()
    ]
    head, rows = lines[0], {row[1]: row for row in lines if row[0] == "personal"}
    assert head[2:5] == ["Local", "FedAvg", "FedCG"]
    assert rows["1"][2:] == ["4.0", "9.0", "19.0", "3 of 3"]
    # The best round by validation counts, and FedAvg is ahead.
    assert rows["2"][2:] == ["5.0", "39.0", "29.0", "2 of 3"]
    assert rows["3"][2:] == ["6.0", "39.0", "43.0", "3 of 3"]
    assert rows["all"][2:] == ["7.0", "44.0", "49.0", "3 of 3"]
    other = records[0].model_copy(update={"cell": records[0].cell.model_copy(update={"seeds": (7,)})})
    with pytest.raises(UserError, match="other seeds"):
        model_accuracy.shorter([other, *records[1:]], (1,))


@pytest.mark.parametrize(("picture", "table"), [("photos-grid", PHOTOS), ("photos-fedcg-ladder", LADDER)])
def test_a_picture_of_reconstructions_is_of_the_attacks_whose_records_are_published(picture, table, repository):
    """Up to half a decibel, which another processor may make of the last digits of a descent."""
    measured = {
        f"{label(r.cell)}, {r.attack}": [v.psnr_db for v in next(s for s in r.seeds if s.seed == 100).victims]
        for r in published.attacked(repository, table)
        if r.cell.round == "best"
    }
    with Image.open(repository / images.FOLDER / f"{picture}.png") as image:
        lines = image.info["Description"].splitlines()
    assert len(lines) >= 5
    for line in lines:
        name, _, numbers = line.removesuffix(" dB").rpartition(": ")
        shown = [float(number) for number in numbers.split(", ")]
        assert shown == pytest.approx(measured[name][: len(shown)], abs=0.5), line
