"""The cells of a study as asked for, and whether an attack table of them is large enough to be published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from privbench.errors import UserError
from privbench.requests import specifications
from privbench.requests.options import TrainingOptions
from privbench.scoring.statistics import LEAST_SEEDS, LEAST_VICTIMS
from privbench.spec import CellSpec
from reports.running import study_reports
from reports.studies import definition, study_cells
from reports.studies.definition import Study

# A seed of the attack table that `--full` asks for.
FULL_VICTIMS = 64
# A seed of the same at a first look.
FIRST_VICTIMS = 8


def plan(
    name: str,
    training: TrainingOptions,
    datasets: study_cells.DataSets | None,
    *,
    methods: Sequence[str] | None = None,
    rounds: Sequence[str] | None = None,
    victims: int | None = None,
    attacks: Sequence[str] | None = None,
    defenses: Sequence[str] = (),
) -> tuple[Study, list[CellSpec]]:
    """(the study, its cells as asked for, `attacks` and `defenses` in place of its own).

    UserError when nothing of it is left, or where a report cannot be written of it.
    """
    chosen = definition.read(name)
    cells = study_cells.of(
        chosen,
        training.preset,
        datasets,
        methods=methods,
        rounds=rounds,
        seeds=training.seeds,
        first_seed=training.first_seed,
        victims=victims,
        attacks=attacks,
        defenses=defenses,
        choices=specifications.choices(training),
    )
    study_reports.check(chosen, cells)
    if not cells:
        raise UserError(f"the study '{name}' has no cell of these methods on these data sets")
    return chosen, cells


def plan_table(
    training: TrainingOptions,
    datasets: study_cells.DataSets | None,
    *,
    full: bool = False,
    victims: int | None = None,
    defenses: Sequence[str] = (),
) -> tuple[Study, list[CellSpec]]:
    """The attack table: in `quick` a first look with few victims and one seed, unless `full` asks for the one to publish."""
    if training.preset == "quick":
        training = replace(training, seeds=training.seeds or (LEAST_SEEDS if full else 1))
        victims = victims or (FULL_VICTIMS if full else FIRST_VICTIMS)
    return plan("attack-table", training, datasets, victims=victims, defenses=defenses)


def few(chosen: Study, cells: Sequence[CellSpec]) -> list[str]:
    """What a reader must know of an attack table with too few victims or seeds to be published; else nothing."""
    line = first_look(cells) if chosen.name == "attack-table" else ""
    return [line] if line else []


def first_look(cells: Sequence[CellSpec]) -> str:
    """One line where the attack table has too few victims or seeds to be published, with what gives enough; else ""."""
    victims, seeds = (min(each) for each in ([c.victims for c in cells], [len(c.seeds) for c in cells]))
    if victims * seeds >= LEAST_VICTIMS and seeds >= LEAST_SEEDS:
        return ""
    return (
        f"A first look: {victims} victims a seed, {seeds} seed{'s' if seeds > 1 else ''}. A table to publish has "
        f"{LEAST_SEEDS} seeds and {LEAST_VICTIMS} victims in all or more: make attack-table FULL=1, or privbench table --full"
    )
