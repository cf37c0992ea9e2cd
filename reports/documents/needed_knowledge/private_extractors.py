"""Blocks of what a server must know to see images through a private extractor; as in reports/documents/blocks.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from privbench import registry
from privbench.observation import other_images
from privbench.observation.knowledge import SAME
from privbench.presets import UPLOADS_PER_ROUND
from privbench.records.schema import AttackRecord
from reports.documents import findings, published
from reports.documents.needed_knowledge import differences, knowledge_tables
from reports.documents.needed_knowledge.differences import Attacker
from reports.documents.pages import Blocks
from reports.documents.table_names import (
    AUXILIARY_IMAGES,
    CALIBRATED_STARTS,
    CIFAR10_FURTHER,
    CIFAR10_LADDER,
    COUNTERMEASURES,
    DIGITS,
    EARLIER_ROUNDS,
    FIRST_ROUND,
    JOINT,
    KNOWN_IMAGES,
    LADDER,
    LATER_ROUNDS,
    LEARNED_PRIOR,
    OFFICE_FURTHER,
    OFFICE_TRAINED,
    POSTERIOR_MEAN,
    QUICK,
    TRAINED,
)
from reports.records import comparison, measured
from reports.records.labels import label, unique, update_text
from reports.records.number_text import NONE
from reports.studies import definition, sweeps
from reports.tables import render

OFFICE_TITLE = "Office-Caltech10, published schedule"
# Title -> the tables of what a server must know; seeds that were run apart stand in several.
TABLES = {
    "photos": (LADDER,),
    "digits": (DIGITS,),
    "CIFAR-10": (CIFAR10_LADDER,),
    "CIFAR-10, published schedule": (TRAINED, CIFAR10_FURTHER),
    OFFICE_TITLE: (OFFICE_TRAINED, OFFICE_FURTHER),
}
METHODS = ("FedSplit", "FedCG")
ATTACKS = ("surrogate", "joint", "calibrated", "chained", "oracle")
# Those of five seeds, on which differences are tested.
OF_FIVE_SEEDS = ("photos", "digits", "CIFAR-10", OFFICE_TITLE)
AUXILIARY = "gradient + auxiliary"
WITH_GENERATOR = f"{AUXILIARY} + generator where shared"
# FedSplit less FedCG, for the same knowledge.
BETWEEN_METHODS = {
    words: (Attacker("FedSplit", knowledge), Attacker("FedCG", knowledge))
    for words, knowledge in {
        "auxiliary images, and the generator where shared": WITH_GENERATOR,
        "eight known images": f"{AUXILIARY} + known images",
        "initial networks and earlier rounds": f"{AUXILIARY} + initial networks + earlier rounds",
        "the extractor itself": "ORACLE (the victim's private extractor)",
    }.items()
}
# On FedCG, less the same server without the generator.
BY_GENERATOR = {
    words: (Attacker("FedCG", knowledge), Attacker("FedCG", AUXILIARY))
    for words, knowledge in {
        "an honest server, which uses it": WITH_GENERATOR,
        "an active server, which may craft it": "active server + auxiliary + generator",
    }.items()
}
# Seeds of FedCG were attacked there by unlike revisions of `imprint`, and by no other active server.
MISSING = [("an active server, which may craft it", OFFICE_TITLE)]
# Data set -> a table that has the reference, of the same training where records of the settings are.
PRIOR_ON = {"digits": COUNTERMEASURES}
# A start of `calibrated` -> in words.
STARTS = {"random": "random weights", "initial": "the initial extractor", "surrogate": "a surrogate"}
# Data sets of which images were found under noise.
NOISED_ON = ("photos",)


def _known_images(records: Sequence[AttackRecord]) -> str:
    """PSNR against the number of known images, a column a method and quality, a table a data set.

    The reference knows the extractor, whatever is known of images: it stands beneath each column of its method.
    """
    swept = definition.read(KNOWN_IMAGES).sweep

    def number(r: AttackRecord) -> str:
        return f"`{r.attack}`" if r.cell.known_images is None else sweeps.value_text(r.cell.known_images)

    def qualities(r: AttackRecord) -> list[str]:
        known = swept["known_quality_db"] if r.cell.known_quality_db is None else [r.cell.known_quality_db]
        return [f"{label(r.cell)}, {sweeps.value_text(quality)} dB" for quality in known]

    ordered = published.in_order(KNOWN_IMAGES, records)
    tables = []
    for name in unique(registry.short(r.cell.train.dataset) for r in ordered):
        of_data_set = [r for r in ordered if registry.short(r.cell.train.dataset) == name]
        whole = knowledge_tables.across(of_data_set, {"known images": number}, qualities)
        tables.append(f"On `{name}`:\n\n{whole}")
    return "\n\n".join(tables)


def _calibrated_starts(root: Path) -> str:
    """A block of PSNR against where the fit begins, a column a method; a random start is of another table.

    Only copies as good, and as many, as in the study of the starts stand beside each other.
    """

    def start(r: AttackRecord) -> str:
        return str(r.cell.attack_settings.get("start", "random"))

    def place(r: AttackRecord) -> tuple[str, int, int, int]:
        known = r.cell.known_images or 0
        return r.cell.train.dataset, known, list(STARTS).index(start(r)), METHODS.index(label(r.cell))

    own = published.attacked(root, CALIBRATED_STARTS)
    known = {(r.cell.train.dataset, r.cell.known_images, r.cell.known_quality_db) for r in own}
    beside = [
        r
        for r in published.attacked(root, KNOWN_IMAGES)
        if (r.cell.train.dataset, r.cell.known_images, r.cell.known_quality_db) in known
    ]
    rows: dict[str, Callable[[AttackRecord], str]] = {
        "data set": knowledge_tables.PLACE["data set"],
        "known images": lambda r: sweeps.value_text(r.cell.known_images),
        "the fit begins at": lambda r: STARTS[start(r)],
    }
    return knowledge_tables.across(sorted([*own, *beside], key=place), rows, lambda r: [label(r.cell)])


def _auxiliary_images(root: Path) -> str:
    """A block of PSNR against the auxiliary images, a column a method; `chained` with all is of another table."""

    def images(r: AttackRecord) -> str:
        used = r.knowledge.auxiliary
        assert used is not None, "the attacks of this study need auxiliary images"
        return f"{used.images} of `{r.cell.train.dataset if used.dataset == SAME else used.dataset}`"

    own = published.attacked(root, AUXILIARY_IMAGES)
    networks = {r.cell.train.id for r in own}
    beside = [
        r
        for r in published.attacked(root, COUNTERMEASURES)
        if r.attack == "chained" and r.cell.train.id in networks and r.cell.uploads_per_round == UPLOADS_PER_ROUND
    ]
    ordered = sorted(published.in_order(AUXILIARY_IMAGES, [*own, *beside]), key=lambda r: r.attack)
    rows = {"attack": lambda r: f"`{r.attack}`", "auxiliary images": images}
    return knowledge_tables.across(ordered, rows, lambda r: [label(r.cell)])


def _earlier_rounds(records: Sequence[AttackRecord]) -> str:
    """PSNR against the attacked round, a row for the rounds whose uploads were kept."""

    def kept(r: AttackRecord) -> str:
        if r.knowledge.rounds is None:
            return NONE
        latest = max(seed.round for seed in r.seeds)
        return sweeps.value_text(r.cell.observed_rounds or other_images.observed_rounds(None, latest)[:-1])

    rows: dict[str, Callable[[AttackRecord], str]] = {
        **knowledge_tables.PLACE,
        "attack": lambda r: f"`{r.attack}`",
        sweeps.words("observed_rounds"): kept,
    }
    return knowledge_tables.across(
        published.in_order(EARLIER_ROUNDS, records), rows, lambda r: [f"round {r.cell.round}"]
    )


def _needed(method: str, tables: dict[str, tuple[str, ...]]) -> Callable[[Path], str]:
    """A block of what a server must know to see the images of one method after training; `tables` are titles and names."""

    def text(root: Path) -> str:
        read = _read(root, tables, method)
        return f"{knowledge_tables.table(read, method, findings.BEST)}{knowledge_tables.pooled_uploads(read, findings.BEST)}"

    return text


def _private_attacks(root: Path) -> str:
    """A block of the attacks that refine or fit an extractor, with their reference, on all tables of private extractors."""
    tables = {method: _read(root, TABLES, method) for method in METHODS}
    return knowledge_tables.of_attacks(tables, ATTACKS, findings.BEST)


def _differences(
    rows: dict[str, tuple[Attacker, Attacker]], missing: Sequence[tuple[str, str]] = ()
) -> Callable[[Path], str]:
    """A block of differences between attackers, on the data sets of five seeds."""

    def text(root: Path) -> str:
        tables = {title: published.of_most_seeds(root, TABLES[title]) for title in OF_FIVE_SEEDS}
        return differences.table(tables, rows, findings.BEST, missing)

    return text


def _less_reference(name: str, dataset: str, attack: str, reference: str) -> Callable[[Path], str]:
    """A block of one attack in each of its settings less the reference on the same networks, a row a method and setting."""

    def text(root: Path) -> str:
        records = [r for r in published.attacked(root, name, dataset) if r.attack == attack]
        oracles = {r.cell.train.id: measured.of(r) for r in _references(root, reference)}
        forms = sorted(
            (label(r.cell) != METHODS[0], label(r.cell), knowledge_tables.settings(r.cell), r.id) for r in records
        )
        of = {r.id: r for r in records}
        cells = differences.compared({id_: (measured.of(of[id_]), oracles[of[id_].cell.train.id]) for *_, id_ in forms})
        rows = [[f"`{attack}`", method, settings, cells[id_]] for _, method, settings, id_ in forms]
        head = ["attack", "method", "settings", "over the reference, dB"]
        return f"{render.markdown(head, rows)}\n\n{comparison.RULE}"

    return text


def _references(root: Path, name: str) -> list[AttackRecord]:
    """Those of one table at the best round."""
    return [r for r in published.attacked(root, name) if r.attack == "oracle" and r.cell.round == findings.BEST]


def _by_seed(names: Sequence[str], methods: Sequence[str], attacks: Sequence[str]) -> Callable[[Path], str]:
    """A block of the seeds of one data set, those of the tables and those that were made since."""
    return lambda root: knowledge_tables.by_seed(published.read_all(root, names), methods, attacks, findings.BEST)


def _kept_rounds(name: str, ladder: str) -> Callable[[Path], str]:
    """A block of `chained` from uploads of other rounds, beside the same from those that a ladder keeps, and the reference."""

    def text(root: Path) -> str:
        own = published.attacked(root, name)
        networks = {(r.cell.train.id, r.cell.round) for r in own}
        beside = [
            r
            for r in published.attacked(root, ladder)
            if (r.cell.train.id, r.cell.round) in networks and r.attack in ("chained", "oracle")
        ]
        return _earlier_rounds([*own, *beside])

    return text


def _by_setting(
    name: str, dataset: str, *, base: str = knowledge_tables.DEFAULTS, reference: str = ""
) -> Callable[[Path], str]:
    """A block of attacks on single gradients by their settings, on one data set; with the reference of the table `reference`."""

    def text(root: Path) -> str:
        records = [r for r in published.attacked(root, name, dataset) if r.cell.observe == "gradient"]
        columns = {r.cell.train.id for r in records}
        references = [r for r in _references(root, reference) if r.cell.train.id in columns] if reference else []
        return knowledge_tables.by_setting([*records, *references], base)

    return text


def _whole_updates(records: Sequence[AttackRecord]) -> str:
    """PSNR and gain on whole updates, a column each kind of update."""
    rows: dict[str, Callable[[AttackRecord], str]] = {
        **knowledge_tables.PLACE,
        "attack": lambda r: f"`{r.attack}`, {knowledge_tables.settings(r.cell)}",
    }
    updates = [r for r in records if r.cell.observe != "gradient"]
    return knowledge_tables.across(updates, rows, lambda r: [update_text(r.cell)])


def _read(root: Path, tables: dict[str, tuple[str, ...]], method: str) -> dict[str, Sequence[AttackRecord]]:
    """Title -> records of one method, with their number of seeds at the best round in the title where these are few."""
    read: dict[str, Sequence[AttackRecord]] = {}
    for title, names in tables.items():
        records = [r for r in published.of_most_seeds(root, names) if label(r.cell) == method]
        few = knowledge_tables.few_seeds([r for r in records if r.cell.round == findings.BEST])
        read[title + few] = records
    return read


BLOCKS: Blocks = {
    **{f"needed-{method.lower()}": _needed(method, TABLES) for method in METHODS},
    **{
        f"quick-beside-published-{method.lower()}": _needed(
            method, {"quick": (quick,), "published": (TRAINED, CIFAR10_FURTHER)}
        )
        for method, quick in {"FedAvg": QUICK, **dict.fromkeys(METHODS, CIFAR10_LADDER)}.items()
    },
    "private-attacks": _private_attacks,
    OFFICE_FURTHER: _by_seed((OFFICE_TRAINED, OFFICE_FURTHER), METHODS, ATTACKS),
    CIFAR10_FURTHER: _by_seed((TRAINED, CIFAR10_FURTHER), ("FedAvg", *METHODS), ("staged", "imprint", *ATTACKS)),
    KNOWN_IMAGES: published.of_attacks(KNOWN_IMAGES, _known_images),
    AUXILIARY_IMAGES: _auxiliary_images,
    CALIBRATED_STARTS: _calibrated_starts,
    EARLIER_ROUNDS: published.of_attacks(EARLIER_ROUNDS, _earlier_rounds),
    FIRST_ROUND: _kept_rounds(FIRST_ROUND, OFFICE_TRAINED),
    LATER_ROUNDS: _kept_rounds(LATER_ROUNDS, DIGITS),
    "needed-differences": _differences(BETWEEN_METHODS),
    "needed-generator": _differences(BY_GENERATOR, MISSING),
    **{f"{LEARNED_PRIOR}-{name}": _by_setting(LEARNED_PRIOR, name, reference=of) for name, of in PRIOR_ON.items()},
    **{
        f"{LEARNED_PRIOR}-{name}-reference": _less_reference(LEARNED_PRIOR, name, "chained", of)
        for name, of in PRIOR_ON.items()
    },
    **{f"{LEARNED_PRIOR}-{name}-steps": _by_setting(LEARNED_PRIOR, name, base="steps 400") for name in PRIOR_ON},
    **{f"{POSTERIOR_MEAN}-{name}": _by_setting(POSTERIOR_MEAN, name) for name in NOISED_ON},
    **{f"{POSTERIOR_MEAN}-{name}-draw": _by_setting(POSTERIOR_MEAN, name, base="samples 1") for name in NOISED_ON},
    JOINT: _by_setting(JOINT, "digits"),
    f"{JOINT}-updates": published.of_attacks(JOINT, _whole_updates),
    **{
        f"{name}-setting": published.of_attacks(name, findings.setting)
        for name in (
            KNOWN_IMAGES,
            AUXILIARY_IMAGES,
            CALIBRATED_STARTS,
            EARLIER_ROUNDS,
            FIRST_ROUND,
            LATER_ROUNDS,
            LEARNED_PRIOR,
            POSTERIOR_MEAN,
            JOINT,
        )
    },
}
