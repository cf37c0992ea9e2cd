"""`python -m benchmarks.choose_rules OUT CELL...`: when to invert a surrogate, chosen on runs that are never published.

A CELL is METHOD:DATA:SEED:ROUND, e.g. fedsplit:photos:11:best, with a seed below 100: published cells have seeds from 100 on. One
trial trains the run, attacks it with every recipe of `initial-surrogate` at every tau, and writes what came out, truth in view, to
OUT/trials/CELL.json; a trial that is there is not made again. At the end, and without a CELL, all trials are put together:

    gate      UNLIKE of attacks/shadow/selection.py and ALIKE of recipes.py there: how unlike real features may be for the shadow
              validation to count
    mean      the recipe and tau of the best mean in the shadow, against a gain of more than a standard error
    initial   "from initial" by the victims' objective J, by the shadow validation, never, or always
    decoder   the share of the decoder's answer that is kept: as validated, times the ratio of mean squares, or the best in view
              of the truth

Each rule's value is the mean over victims of the PSNR gained over the class mean, or of the squared error for the decoder. A rule
stays unless another is better in the mean over cells by more than the standard error of their paired difference; what was decided
stands in docs/appendix/tuning.md.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attacks.decoder import Decoder
from attacks.initial_surrogate import InitialSurrogate
from attacks.shadow import alignment, decoder_share, learned_decoder, selection, shadow_federation
from attacks.shadow.alignment import FROM_INITIAL
from attacks.shadow.recipes import ALIKE as NEGLIGIBLE
from attacks.shadow.selection import TAUS
from privbench import presets, registry, seeds
from privbench.execution import at_round, attack_cell, cell_jobs
from privbench.observation import knowledge
from privbench.records.store import Store
from privbench.scoring import image_scores
from privbench.system import files
from privbench.training import federation as federations
from privbench.types import Knowledge, no_progress

FIRST_PUBLISHED = 100  # seeds of published cells begin here
VICTIMS = 22
UNLIKE, ALIKE = (0.0, 1.0, 1.25, 1.5, 2.0, 3.0, math.inf), (0.0, 0.5)
BELOW = ("surrogate", "aligned")  # the recipes of an attacker without initial networks

Trial = dict[str, Any]
Choice = tuple[str, int] | None  # a recipe and the number of its tau; None is the class mean
Rule = Callable[[Trial], float]


def trial(cell_name: str, out: Path, data_root: Path | None, preset: str = "quick") -> Trial:
    """Trains and attacks one cell; ValueError for a seed that may be published."""
    method, dataset, seed_text, round_ = cell_name.split(":")
    seed = int(seed_text)
    if seed >= FIRST_PUBLISHED:
        raise ValueError(f"seeds from {FIRST_PUBLISHED} on are published, so no rule may be chosen on seed {seed}")
    train = presets.train_spec(preset, dataset, method, seed=seed)
    cell = presets.cell_spec(preset, train, "initial-surrogate", victims=VICTIMS, round_=round_)
    cell = cell.model_copy(update={"train": train, "seeds": (seed,)})
    store = Store(out)
    cell_jobs.train(store, [train], data_root, "cpu")
    seen, truth, shot = at_round.observed(store, cell, train, data_root, "cpu", no_progress)
    federation, _ = federations.of(train, data_root)
    auxiliary, _ = knowledge.auxiliary(federation, knowledge.SAME, data_root, seen.image_shape, seed)
    whole = replace(attack_cell.knowledge_of(store, cell, train, federation, seen, shot), auxiliary=auxiliary)
    attacker_seed = seeds.of_attacker(train.id, seen.round)
    real = shadow_federation.real(seen, whole, attacker_seed, "choose_rules")

    def psnr_db(images: Tensor) -> list[float]:
        return image_scores.psnr_db(images[:, 0], truth.images[:, 0]).clamp_max(image_scores.CAP_DB).tolist()

    settings: InitialSurrogate = registry.create(InitialSurrogate, cell.attack_settings)
    attack, without = settings.attack(seen, whole), replace(whole, initial=None)
    assert attack.challenger is not None, "this attack has one"
    recipes: dict[str, Any] = {}
    for recipe, known in [*((recipe, without) for recipe in attack.recipes), (attack.challenger, whole)]:
        validated = selection.validated(recipe, settings.steps, real, seen.round, attacker_seed, known, no_progress)
        extractors = recipe.extractors(real, attacker_seed, known)
        ends = [
            selection.invert(real, recipe, extractors, torch.full((len(real.h),), tau), settings.steps, no_progress)
            for tau in TAUS
        ]
        recipes[recipe.name] = {
            "shadow_db": validated["psnr_db"].tolist(),
            "shadow_shift": float(validated["shift"]),
            "shift": recipe.shift(real, extractors, attacker_seed, known),
            "psnr_db": [psnr_db(end.x) for end in ends],
            "loss": [end.loss.tolist() for end in ends],
        }
    return {
        "cell": cell_name,
        "round": seen.round,
        "class_mean_db": psnr_db(selection.class_means(real).x),
        "recipes": recipes,
        "decoder": _decoder(
            Decoder(**_settings(preset, "decoder")), real, truth.images[:, 0], seen.round, attacker_seed, without
        ),
    }


def _settings(preset: str, attack: str) -> dict[str, Any]:
    return presets.settings_of_attack(preset, attack)


def _decoder(
    attack: Decoder, real: shadow_federation.ServerView, images: Tensor, round_: int, seed: int, knowledge: Knowledge
) -> Trial:
    recipe, steps = alignment.aligned(attack), attack.decoder_steps
    in_shadow = decoder_share.in_shadow(recipe, steps, real, round_, seed, knowledge)
    members = recipe.extractors(real, seed, knowledge)
    means = learned_decoder.class_means(real)[real.labels]
    answer = decoder_share.answers(real, members, steps, seed, knowledge)
    missing = (images - means).flatten(1)
    return {
        "share": float(in_shadow["share"]),
        "energy": float(in_shadow["energy"]),
        "shadow_shift": float(in_shadow["shift"]),
        "shift": recipe.shift(real, members, seed, knowledge),
        "answer_squared": answer.flatten(1).square().mean(1).tolist(),
        "answer_missing": (answer.flatten(1) * missing).mean(1).tolist(),
    }


def passes(recipe: Trial, unlike: float, alike: float) -> bool:
    """Whether the gate lets a recipe through."""
    return bool(recipe["shift"] <= max(unlike * recipe["shadow_shift"], alike))


def chosen(one: Trial, names: Sequence[str], unlike: float, alike: float, *, sure: bool = False) -> Choice:
    """What the shadow recommends of some recipes; `sure`: with a gain there of more than its standard error alone."""
    best, choice = 0.0, None
    for name in names:
        recipe = one["recipes"][name]
        if not passes(recipe, unlike, alike):
            continue
        shadow = torch.tensor(recipe["shadow_db"])
        for tau, gains in enumerate(shadow[:-1] - shadow[-1]):
            least = float(gains.std()) / len(gains) ** 0.5 if sure else 0.0
            if float(gains.mean()) > max(best, least):
                best, choice = float(gains.mean()), (name, tau)
    return choice


def gain_db(one: Trial, choice: Choice) -> float:
    """What a choice gains over the class mean, in the mean over victims."""
    if choice is None:
        return 0.0
    name, tau = choice
    return statistics.fmean(one["recipes"][name]["psnr_db"][tau]) - statistics.fmean(one["class_mean_db"])


def by_gate(unlike: float, alike: float) -> Rule:
    """The recipes without initial networks, let through by a gate."""
    return lambda one: gain_db(one, chosen(one, BELOW, unlike, alike))


def with_initial(how: str) -> Rule:
    """The recipes with initial networks: "objective" (as attacks/shadow/surrogate_attack.py), "validation", "never" or "always"."""

    def rule(one: Trial) -> float:
        lower, from_initial = (chosen(one, names, selection.UNLIKE, NEGLIGIBLE) for names in (BELOW, (FROM_INITIAL,)))
        if how == "validation":
            return gain_db(one, chosen(one, (*BELOW, FROM_INITIAL), selection.UNLIKE, NEGLIGIBLE))
        if how == "never" or from_initial is None:
            return gain_db(one, lower)
        if how == "always" or lower is None:
            return gain_db(one, from_initial)
        pairs = zip(
            one["recipes"][FROM_INITIAL]["loss"][lower[1]], one["recipes"][lower[0]]["loss"][lower[1]], strict=True
        )
        return gain_db(
            one, from_initial if statistics.fmean(first < second for first, second in pairs) > 0.5 else lower
        )

    return rule


def of_decoder(how: str) -> Rule:
    """How much of the mean squared error a share of the decoder's answer takes off, times 1,000.

    The share is "validated", that times the ratio of energies ("energy", as attacks/shadow/decoder_share.py), or the "best" with
    the truth.
    """

    def rule(one: Trial) -> float:
        decoder = one["decoder"]
        squared, product = statistics.fmean(decoder["answer_squared"]), statistics.fmean(decoder["answer_missing"])
        if how == "best":
            share = min(max(product / squared, 0.0), 1.0)
        else:
            sound = decoder["shift"] <= max(selection.UNLIKE * decoder["shadow_shift"], NEGLIGIBLE)
            share = decoder["share"] * sound * (min(1.0, decoder["energy"] / squared) if how == "energy" else 1.0)
        return 1000 * (2 * share * product - share**2 * squared)

    return rule


def rules() -> dict[str, dict[str, Rule]]:
    """Question -> candidate -> its rule; today's stands first."""
    today = (selection.UNLIKE, NEGLIGIBLE)
    gates = [today, *((u, a) for u in UNLIKE for a in ALIKE if (u, a) != today)]
    return {
        "gate": {f"UNLIKE {u:g}, ALIKE {a:g}": by_gate(u, a) for u, a in gates},
        "mean": {
            "best mean": by_gate(*today),
            "a standard error": lambda one: gain_db(one, chosen(one, BELOW, *today, sure=True)),
        },
        "initial": {how: with_initial(how) for how in ("objective", "validation", "never", "always")},
        "decoder": {how: of_decoder(how) for how in ("energy", "validated", "best")},
    }


def report(trials: Sequence[Trial]) -> str:
    """All trials as Markdown: a table of cells, and one of rules a question."""
    heads = (
        "cell",
        "round",
        "class mean dB",
        "recipe",
        "shift, real / shadow",
        "tau of the shadow, gain there dB",
        "gain dB",
        "best",
    )
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for one in trials:
        for name, recipe in one["recipes"].items():
            shadow = torch.tensor(recipe["shadow_db"]).mean(1)
            real = [statistics.fmean(each) - statistics.fmean(one["class_mean_db"]) for each in recipe["psnr_db"]]
            tau, best = int(shadow[:-1].argmax()), max(range(len(real)), key=real.__getitem__)
            lines.append(
                f"| {one['cell']} | {one['round']} | {statistics.fmean(one['class_mean_db']):.2f} | {name} | "
                f"{recipe['shift']:.2f} / {recipe['shadow_shift']:.2f} | {TAUS[tau]:g}, {float(shadow[tau] - shadow[-1]):+.2f} | "
                f"{real[tau]:+.2f} | {TAUS[best]:g}, {real[best]:+.2f} |"
            )
    for question, candidates in rules().items():
        lines += [
            "",
            f"| {question} | mean over {len(trials)} cells | worst cell | against the first, +- standard error |",
            "|---|---:|---:|---:|",
        ]
        values = {name: [rule(one) for one in trials] for name, rule in candidates.items()}
        first = next(iter(values.values()))
        for name, each in values.items():
            gaps = [a - b for a, b in zip(each, first, strict=True)]
            error = statistics.stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else math.nan
            lines.append(
                f"| {name} | {statistics.fmean(each):+.2f} | {min(each):+.2f} | {statistics.fmean(gaps):+.2f} +- {error:.2f} |"
            )
    return "\n".join(lines)


def main(words: Sequence[str], show: Callable[[str], None] = print) -> None:
    """Makes the trials that are asked for and missing, then reports all that are there."""
    if not words:
        raise SystemExit("an output folder is needed, and cells such as fedsplit:photos:11:best")
    out, data_root = Path(words[0]), os.environ.get("PRIVBENCH_DATA")
    torch.set_num_threads(1)
    for name in words[1:]:
        path = out / "trials" / f"{name.replace(':', '-')}.json"
        if not path.exists():
            files.write_json(path, trial(name, out, Path(data_root) if data_root else None))
            show(f"{name}: done")
    trials = [files.read_json(path) for path in sorted((out / "trials").glob("*.json"))]
    show(report(trials) if trials else "no trials yet")


if __name__ == "__main__":
    main(sys.argv[1:])
