"""One file of each kind that privbench reads, made in seconds, with what reads it: what tests/fuzz.py mutates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from privbench import capture, presets, registry
from privbench.errors import UserError
from privbench.execution import cell_jobs, one_attack
from privbench.observation import artifact_files, chosen_victims, observe
from privbench.records import schema, summary
from privbench.records.store import Store
from privbench.spec import CellSpec, TrainSpec
from privbench.training import checkpoint, evaluation, harness, history
from privbench.training import federation as federations
from privbench.training.state import Isolated, Setup, State
from privbench.types import Artifact, Knowledge, LocalSteps, Truth, no_progress
from reports.studies import definition, study_cells, study_files
from tests.builders.federations import digits_federation

CPU = torch.device("cpu")
METHODS = tuple(name for name in registry.METHODS if registry.resolve("method", name).shared_parts)
# Beside one artifact of every method: whole updates, several images, known labels, noise, half precision.
VARIANTS: dict[str, dict[str, Any]] = {
    "update": {"local": LocalSteps(2, {"kind": "sgd", "lr": 0.1, "weight_decay": 0.0})},
    "labels": {"batch_size": 2, "labels_known": True},
    "noise": {"form": "bf16"},
}


STUDIES = ("accuracy", "fedcg-table1", "imprint-on-the-wire")


LARGEST_BATCH = 8  # that is attacked with DLG, in a twentieth of a second


class Sample(NamedTuple):
    """Files in a folder, what reads them, and what must be possible with whatever is read."""

    name: str
    folder: Path
    read: Callable[[Path], Any]  # of a folder with the same files
    use: Callable[[Any], Any]
    files: tuple[str, ...] = ()  # that are mutated; none named: all


def samples(root: Path, methods: tuple[str, ...] = METHODS) -> list[Sample]:
    """Every kind, made under `root`."""
    store = Store(root / "runs")
    return [
        *_artifacts(root / "artifacts", methods), *_of_a_run(store), *_studies(root / "studies"), _capture(root / "capture")
    ]  # fmt: skip


def _artifacts(root: Path, methods: tuple[str, ...]) -> Iterator[Sample]:
    federation = digits_federation((20, 20))
    for method in methods:
        defense = "gaussian:0.001" if method == "fedprox" else "none"
        train = presets.train_spec("smoke", "digits", method, clients=2, defense=defense)
        setup = harness.prepare(train, federation, CPU)
        # Networks that are sent as weights are those that a round has trained.
        round_ = 0 if chosen_victims.visible(setup.method) else 1
        checkpoint.save_snapshot(root / method, train, harness.state_at(setup, root / method, round_))
        shot = checkpoint.load_snapshot(root / method, train.id, round_)
        kinds: dict[str, dict[str, Any]] = {"gradient": {}} | (VARIANTS if method == "fedavg" else {})
        for kind, choices in kinds.items():
            usual = {"victims": 2, "batch_size": 1, "labels_known": False}
            seen, truth = observe.observe(
                shot, federation, setup.model, setup.method, setup.defense, method_name=method, dataset="digits",
                seed=0, **(usual | choices),
            )  # fmt: skip
            folder = root / f"{method}-{kind}"
            whose = artifact_files.origin_of(train, folder)
            artifact_files.save_with_truth(seen, truth, folder, whose)
            yield Sample(f"artifact of {method}, {kind}", folder, _reads_artifact(whose), _attacked)
    yield _isolated(root / "isolated")


def _isolated(folder: Path) -> Sample:
    """Sums over clients that were sent two networks, with a target."""
    train = presets.train_spec("smoke", "digits", "fedavg", clients=2, defense="secure-aggregation")
    setup = harness.prepare(train, digits_federation((20, 20)), CPU)
    checkpoint.save_snapshot(folder, train, harness.initial(setup))
    shot = checkpoint.load_snapshot(folder, train.id, 0)
    seen, truth = observe.observe(
        shot._replace(isolated=Isolated(1, shot.server)), setup.federation, setup.model, setup.method, setup.defense,
        method_name="fedavg", dataset="digits", victims=2, batch_size=1, labels_known=True, seed=0,
    )  # fmt: skip
    whose = artifact_files.origin_of(train, folder)
    artifact_files.save_with_truth(seen, truth, folder, whose)
    return Sample("artifact of an isolated client", folder, _reads_artifact(whose), _attacked)


def _reads_artifact(whose: Any) -> Callable[[Path], Any]:
    return lambda folder: artifact_files.load_with_truth(folder, whose)


def _attacked(content: tuple[Artifact, Truth]) -> None:
    """The cheapest attack on what was read: nothing is known of its images, and of a batch of another size it asks for as many."""
    seen, truth = content
    reconstruction = one_attack.attack_artifact("grey", {}, seen, Knowledge(), 0, CPU, no_progress)
    assert reconstruction.images.shape == truth.images.shape
    if "gradient" in seen.offers() and seen.target is None and seen.batch_size <= LARGEST_BATCH:
        needs = registry.resolve("attack", "dlg").needs
        if needs <= seen.offers():
            one_attack.attack_artifact(
                "dlg", {"steps": 1}, replace(seen, training=None), Knowledge(), 0, CPU, no_progress
            )


def _of_a_run(store: Store) -> Iterator[Sample]:
    train = presets.train_spec("smoke", "digits", "fedavg", clients=2, per_client=20, changes={"rounds": 2})
    cell = presets.cell_spec("smoke", train, "grey", victims=2, round_="last", seeds=1)
    assert cell_jobs.run_cells([cell], store.root, None, "cpu", lambda *_: None, lambda *_: None) == []
    (spec,) = cell.train_specs()
    folder, federation = store.train(spec), federations.of(spec, None)[0]
    setup = harness.prepare(spec, federation, CPU)
    yield Sample("record", store.cell(cell), _reads_record, _reported, (schema.FILE_NAME,))
    for name, file in {"history": checkpoint.FINISHED, "predictions": checkpoint.PREDICTIONS}.items():
        yield Sample(name, folder, _reads_training(spec), lambda _: None, (file,))
    for name, path in {"run": folder, "cell": store.cell(cell)}.items():
        file = (path / "spec.json").relative_to(store.root).as_posix()
        yield Sample(f"specification of a {name}", store.root, _reads_specifications, lambda _: None, (file,))
    result = store.result(cell, spec.seed).relative_to(store.root).as_posix()
    yield Sample("result", store.root, _reads_result(cell), lambda _: None, (result,))
    snapshot = (checkpoint.snapshot_path(folder, 2).name,)
    yield Sample("snapshot", folder, _reads_snapshot(spec, setup), _observed(setup), snapshot)
    state = harness.state_at(setup, store.root / "elsewhere", 1)
    state.predictions = evaluation.predictions(setup, state)
    checkpoint.begin(store.root / "interrupted", spec)
    checkpoint.save(store.root / "interrupted", spec, state)
    read, use = _reads_checkpoint(setup), _goes_on(setup)
    yield Sample("checkpoint", store.root / "interrupted", read, use, (checkpoint.CHECKPOINT,))


def _reads_record(folder: Path) -> Any:
    return schema.read(folder / schema.FILE_NAME)


def _reported(record: schema.Record) -> None:
    """What every table asks of a record."""
    assert isinstance(record, schema.AttackRecord)
    _ = (
        record.accuracy,
        record.averages,
        record.scores,
        record.floors,
        record.gain_db,
        record.messages,
        record.accuracy_at_round,
    )


def _reads_training(train: TrainSpec) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        summary._training.cache_clear()
        return summary.training(folder, train.id)

    return read


def _reads_specifications(root: Path) -> Any:
    """As `list runs` reads them; a folder that has another name by its specification is left out with a line there."""
    store = Store(root)
    if store.earlier():
        raise UserError("of another revision")
    if (specifications := (store.cells(), store.trained())) and not all(specifications):
        raise UserError("no specification")
    return specifications


def _reads_result(cell: CellSpec) -> Callable[[Path], Any]:
    def read(root: Path) -> Any:
        summary._training.cache_clear()
        store = Store(root)
        # Beside it lies the record that it gave; a new one takes its place.
        store.record(cell).unlink(missing_ok=True)
        return summary.finish_cell(store, cell) and schema.read_of(cell, store.record(cell))

    return read


def _reads_snapshot(train: TrainSpec, setup: Setup) -> Callable[[Path], Any]:
    return lambda folder: harness.snapshot_of(setup, folder, checkpoint.load_snapshot(folder, train.id, 2))


def _observed(setup: Setup) -> Callable[[Any], Any]:
    return lambda shot: observe.observe(
        shot, setup.federation, setup.model, setup.method, setup.defense, method_name="fedavg", dataset="digits",
        victims=1, batch_size=1, labels_known=False, seed=0,
    )  # fmt: skip


def _reads_checkpoint(setup: Setup) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        state = harness.state_of(setup, folder, checkpoint.load(folder, setup.spec, CPU))
        if state.round == 0:
            raise UserError("trained from the beginning")
        return state

    return read


def _goes_on(setup: Setup) -> Callable[[Any], Any]:
    def use(state: State) -> None:
        harness.finished(state, setup.spec.schedule)
        history.best_rounds(state.history)
        harness.train_round([setup], [state], "alone")

    return use


def _studies(root: Path) -> Iterator[Sample]:
    for name in STUDIES:
        folder = root / name
        folder.mkdir(parents=True)
        (folder / "study.toml").write_text(study_files.text(name), encoding="utf-8")
        yield Sample(f"study {name}", folder, _reads_study, _planned)


def _reads_study(folder: Path) -> definition.Study:
    return definition.parsed("fuzzed", (folder / "study.toml").read_bytes())


def _planned(study: definition.Study) -> None:
    study_cells.of(study, "smoke", [("digits", None)])


def _capture(folder: Path) -> Sample:
    """Of a user's own loop: a gradient with truth, and updates with all that may be said of them."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    steps = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.rand(2, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1])
    with capture.Capture(model, folder, truth=True) as seen:
        model(x).sum().backward()
        seen.gradient(labels=y, truth=(x, y))
        seen.broadcast()
        seen.broadcast(clients=[3])
        seen.update(client=[1, 2], examples=9, local=capture.LocalWork.of(steps, steps=2))
        seen.update(difference={"0.weight": torch.ones(4, 3)}, client=3)
    return Sample("capture", folder, _reads_capture, lambda _: None)


def _reads_capture(folder: Path) -> Any:
    """Truth that somebody removed is not there, which nothing says."""
    captured = capture.read(folder)
    truths = [capture.read_truth(captured, each.number) for each in captured.rounds]
    if not any(truths):
        raise UserError("without its truth")
    return [*captured], truths
