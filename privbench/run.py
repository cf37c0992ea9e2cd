"""run(cell): train -> defend -> observe -> attack -> score -> record; each step is reused when it is already on disk."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch

from privbench import (
    active,
    artifact,
    checkpoint,
    data,
    evaluation,
    harness,
    local_update,
    machine,
    observe,
    partition,
    plugins,
    pool,
    results,
    score,
    storage,
    victims,
)
from privbench import knowledge as known
from privbench.data.dataset import Dataset, sound
from privbench.errors import AttackRefused, Interrupted, UserError
from privbench.nets import train_mode
from privbench.spec import CellSpec, TrainSpec
from privbench.store import Store
from privbench.types import Artifact, Federation, Knowledge, Networks, Reconstruction, Report, Truth, no_report

NO_GUARANTEE = "no (epsilon, delta) guarantee"


def device(name: str) -> torch.device:
    """The place to compute: "auto" is the GPU when there is one; one that is not there raises UserError."""
    if name not in ("auto", "cpu", "cuda"):
        raise UserError(f"unknown device '{name}'; known: auto, cpu, cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda was asked for, but torch sees no GPU here; use --device cpu or auto")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


@cache
def federation(
    dataset: str,
    domains: tuple[str, ...] | None,
    root: Path | None,
    clients: int,
    per_client: int,
    how: str,
    seed: int,
    image_size: int = 32,
    omega: float | None = None,
    minimum: int | None = None,
) -> tuple[Federation, str]:
    """A data set laid out over clients, and the note on what differs from the published one."""
    loaded = dataset_of(dataset, root, domains, image_size)
    laid_out = partition.federate(
        loaded, clients=clients, per_client=per_client, how=how, seed=seed, omega=omega, minimum=minimum
    )
    return laid_out, loaded.note


@lru_cache(maxsize=1)
def dataset_of(dataset: str, root: Path | None, domains: tuple[str, ...] | None, image_size: int) -> Dataset:
    """A data set, read once for all seeds of a process and looked over."""
    return sound(data.load(dataset, root, domains, image_size), image_size)


def federation_of(spec: TrainSpec, root: Path | None) -> tuple[Federation, str]:
    """The federation of a training run; UserError when the user's folder is no longer what the run was specified on."""
    if spec.content is not None and data.content(spec.dataset) != spec.content:
        raise UserError(f"the files of {spec.dataset} have changed since this run began; run the command again")
    return federation(
        spec.dataset,
        spec.domains,
        root,
        spec.clients,
        spec.per_client,
        spec.partition,
        spec.seed,
        spec.image_size,
        spec.omega,
        spec.min_per_client,
    )


def write_clients(store: Store, spec: TrainSpec, fed: Federation) -> None:
    """Writes clients.json, from which the label histogram is drawn without training or reading the data again."""
    if not store.clients(spec).exists():
        public = 0 if fed.public is None else len(fed.public.labels)
        value = {"classes": list(fed.classes), "clients": partition.census(fed), "public": public}
        storage.write_json(store.clients(spec), value)


@dataclass(frozen=True)
class Trial:
    """All work that hangs on one training specification: its seeds' training, and the attacks of its cells.

    On a CPU a trial has one seed and many trials run side by side; on a GPU its seeds train in one stacked run.
    """

    title: str
    specs: tuple[TrainSpec, ...]
    cells: tuple[CellSpec, ...]
    root: Path  # of the results
    data_root: Path | None
    device: str

    @property
    def log(self) -> Path:
        """In the folder of its (first) training run."""
        return Store(self.root).train(self.specs[0]) / "error.txt"

    def run(self, report: Report = no_report) -> None:
        """Trains what is not trained, then attacks what is not attacked.

        A cell that fails leaves its reason on disk, and the others are still made. Then the failure is raised: an error that no
        user caused before a refusal, several of them as one ExceptionGroup.
        """
        store = Store(self.root)
        train(store, self.specs, self.data_root, self.device, report)
        refused: list[UserError] = []
        broken: list[Exception] = []
        for cell in self.cells:
            try:
                for spec in self.specs:
                    if cell.attack is None:
                        measure_seed(store, cell, spec, self.data_root, self.device)
                    else:
                        attack_seed(store, cell, spec, self.data_root, self.device, report)
            except Interrupted:
                raise
            except Exception as error:  # noqa: BLE001 (whatever it is, the other cells go on)
                reason, is_refusal = pool.in_words(error, self.log), isinstance(error, AttackRefused)
                storage.write_json(store.failure(cell), {"reason": reason, "refused": is_refusal})
                if isinstance(error, UserError):
                    refused.append(error)
                else:
                    error.add_note(f"cell {cell.id}: {cell.attack or 'accuracy'} at round {cell.round}")
                    broken.append(error)
        if len(broken) > 1:
            raise ExceptionGroup(f"{len(broken)} of {len(self.cells)} cells, first {broken[0]!r}", broken)
        if broken or refused:
            raise [*broken, *refused][0]


def train(
    store: Store, specs: Sequence[TrainSpec], data_root: Path | None, device_name: str, report: Report = no_report
) -> None:
    """Trains to the end what is not finished, resuming where it stopped."""
    todo = [spec for spec in specs if checkpoint.history(store.train(spec)) is None]
    place = device(device_name)
    groups = [todo] if place.type == "cuda" and todo else [[spec] for spec in todo]
    for group in groups:
        feds = [federation_of(spec, data_root)[0] for spec in group]
        folders = [store.train(spec) for spec in group]
        with ExitStack() as locks:
            for spec, fed, folder in zip(group, feds, folders, strict=True):
                locks.enter_context(store.lock(folder))
                write_clients(store, spec, fed)
            harness.train(group, feds, folders, place, "stacked" if place.type == "cuda" else "alone", report)


def resolve_round(text: str, rounds: Sequence[dict[str, Any]]) -> int:
    """The round that "0", "N", "last" or "best" names in a finished run."""
    if text == "last":
        return len(rounds)
    if text == "best":
        return harness.best_round(rounds)
    if not text.isdigit():
        raise UserError(f"--round takes 0, a number, 'last' or 'best', but '{text}' was given")
    if int(text) > len(rounds):
        raise UserError(f"--round {text} was asked for, but the run ended after {len(rounds)} rounds")
    return int(text)


def snapshot(
    store: Store, spec: TrainSpec, round_: int, fed: Federation, device_name: str, report: Report
) -> checkpoint.Snapshot:
    """The networks after one round. A round that was not kept is trained again, with the same numbers."""
    folder = store.train(spec)
    if not checkpoint.snapshot_path(folder, round_).exists():
        setup = harness.prepare(spec, fed, device(device_name))
        state = harness.initial(setup)
        while state.round < round_:
            report(state.round, round_, f"{spec.method}: repeating round {state.round + 1}, which was not kept")
            harness.train_round([setup], [state], "alone")
        checkpoint.save_snapshot(folder, spec, state)
    return checkpoint.load_snapshot(folder, round_)


def observed(
    store: Store, cell: CellSpec, spec: TrainSpec, data_root: Path | None, device_name: str, report: Report
) -> tuple[Artifact, Truth, checkpoint.Snapshot]:
    """The artifact of one seed with its truth (read back from disk), and the networks of the attacked round."""
    fed, _ = federation_of(spec, data_root)
    rounds = checkpoint.history(store.train(spec))
    if rounds is None:
        raise UserError(f"run {spec.id} is not trained to the end; run `privbench train` with the same options first")
    round_ = resolve_round(cell.round, rounds)
    setup = harness.prepare(spec, fed, torch.device("cpu"))
    folder = store.artifact(cell, spec, round_)
    if active.rounds(cell):
        trainer = harness.prepare(spec, fed, device(device_name))
        shot = active.trained(cell, trainer, round_, folder, data_root, report)
    else:
        shot = snapshot(store, spec, round_, fed, device_name, report)
    if not (folder / "truth.safetensors").exists():
        seen, truth = observe.observe(
            active.sent(cell, setup, shot, data_root),
            fed,
            setup.model,
            setup.method,
            setup.defense,
            method_name=spec.method,
            dataset=spec.dataset,
            victims=cell.victims,
            batch_size=cell.batch_size,
            labels_known=cell.labels_known,
            seed=spec.seed,
            local=local_update.local_steps(cell),
        )
        artifact.save(seen, folder / "artifact.safetensors")
        artifact.save_truth(truth, folder / "truth.safetensors")
    return artifact.load(folder / "artifact.safetensors"), artifact.load_truth(folder / "truth.safetensors"), shot


def check_needs(name: str, attack: Any, seen: Artifact) -> None:
    """Refuses an attack whose needs the artifact does not meet, and names the attacks whose needs it does."""
    given = seen.offers() | set(known.FIELDS)
    missing = sorted(attack.needs - given)
    if not missing:
        return
    ways = [
        other
        for other in plugins.ATTACKS
        if plugins.resolve("attack", other).needs <= given and other not in plugins.FLOORS
    ]
    shared = ", ".join(seen.shares) or "nothing"
    way = " or ".join(ways) or "grey"
    if seen.local is not None and all(need.startswith("gradient") for need in missing):
        raise AttackRefused(
            f"{name} needs the {', '.join(missing)}, but this artifact holds whole local updates; try --attack update-matching"
        )
    raise AttackRefused(
        f"{name} needs the {', '.join(missing)}, but {seen.method} shares only [{shared}]; try --attack {way}"
    )


def attack_artifact(
    name: str,
    settings: dict[str, Any],
    seen: Artifact,
    whole: Knowledge,
    seed: int,
    place: torch.device,
    report: Report,
) -> Reconstruction:
    """Runs one attack with what its `needs` name of the `whole` knowledge, and nothing more.

    AttackRefused where it cannot be made.
    """
    attack = plugins.create(plugins.resolve("attack", name), settings)
    check_needs(name, attack, seen)
    try:
        handed = known.only(attack.needs, whole, name).to(place)
        found = attack.reconstruct(seen.to(place), handed, seed, report)
    except UserError as error:
        raise AttackRefused(str(error)) from error
    return found._replace(**{n: t.cpu() for n, t in found._asdict().items() if isinstance(t, torch.Tensor)})


def knowledge_of(
    store: Store, cell: CellSpec, spec: TrainSpec, fed: Federation, seen: Artifact, shot: checkpoint.Snapshot
) -> Knowledge:
    """All that an attacker of this run could know besides the artifact, but for the auxiliary images."""
    start = harness.initial(harness.prepare(spec, fed, torch.device("cpu")))
    first = harness.Replica(
        start.clients[0].params | start.server.params, start.clients[0].buffers | start.server.buffers
    )
    return Knowledge(
        initial=known.initial(first),
        colluder=known.colluder(shot, seen),
        oracle=known.oracle(shot, seen),
        broadcast=None if active.rounds(cell) else Networks(shot.server.params, shot.server.buffers),
        cache=store.artifact(cell, spec, seen.round) / "trained",
    )


def measure_seed(store: Store, cell: CellSpec, spec: TrainSpec, data_root: Path | None, device_name: str) -> None:
    """Writes what one seed of an accuracy cell gives besides its training; does nothing when it is on disk."""
    path = store.result(cell, spec.seed)
    if path.exists():
        return
    if not store.cell_spec(cell).exists():
        storage.write_json(store.cell_spec(cell), cell.model_dump(mode="json"))
    storage.write_json(path, _trial(store, spec, data_root, device(device_name)))


def _trial(store: Store, spec: TrainSpec, data_root: Path | None, place: torch.device) -> dict[str, Any]:
    """What the result of every seed says, attacked or not."""
    fed, note = federation_of(spec, data_root)
    census = partition.census(fed)
    rounds = checkpoint.history(store.train(spec)) or []
    return {
        "seed": spec.seed,
        "classes": len(fed.classes),
        "class_names": list(fed.classes),
        "client_domains": [client["domain"] for client in census],
        "label_counts": [client["train"] for client in census],
        "accuracy": [evaluation.right(p) for p in checkpoint.predictions(store.train(spec))],
        "cost": {
            "train_seconds": sum(entry["seconds"] for entry in rounds),
            "peak_memory_mib": machine.peak_memory_mib(place),
        },
        "environment": machine.environment(place),
        "notes": [note] if note else [],
    }


def attack_seed(
    store: Store, cell: CellSpec, spec: TrainSpec, data_root: Path | None, device_name: str, report: Report = no_report
) -> None:
    """Attacks one seed of a cell and writes reconstruction and scores; does nothing when they are on disk."""
    path = store.result(cell, spec.seed)
    if path.exists() or cell.attack is None:
        return
    if not store.cell_spec(cell).exists():
        storage.write_json(store.cell_spec(cell), cell.model_dump(mode="json"))
    seen, truth, shot = observed(store, cell, spec, data_root, device_name, report)
    fed, _ = federation_of(spec, data_root)
    place = device(device_name)
    # The floors ask what anybody could score, so they always have the images of the attacked distribution.
    same, same_info = known.auxiliary(fed, known.SAME, data_root, seen.image_shape, spec.seed)
    chosen, chosen_info = same, same_info
    if cell.auxiliary != known.SAME:
        chosen, chosen_info = known.auxiliary(fed, cell.auxiliary, data_root, seen.image_shape, spec.seed)
    whole = knowledge_of(store, cell, spec, fed, seen, shot)
    started = time.perf_counter()
    whole = replace(whole, auxiliary=chosen)
    found = attack_artifact(cell.attack, cell.attack_settings, seen, whole, spec.seed, place, report)
    seconds = time.perf_counter() - started
    scores = score.score(found, truth, _true_features(seen, shot))
    whole = Knowledge(auxiliary=same)
    floors = {
        floor: score.psnr_of(attack_artifact(floor, {}, seen, whole, spec.seed, place, no_report), truth).tolist()
        for floor in plugins.FLOORS
        if plugins.resolve("attack", floor).needs <= seen.offers() | {"auxiliary"}
    }
    info = _trial(store, spec, data_root, place)
    info |= {
        "round": seen.round,
        "knowledge": _knowledge(cell.attack, seen, chosen_info)
        | active.told(store.artifact(cell, spec, seen.round)),
        "accuracy_at_round": [
            evaluation.accuracy(seen.model, harness.Replica(*known.of_client(shot, k)), client.test, torch.device("cpu"))
            for k, client in enumerate(fed.clients)
        ],
        "guarantee": guarantee(
            plugins.defense(spec.defense, spec.where), len(checkpoint.history(store.train(spec)) or [])
        ),
        "victims": victims.described(
            seen, truth, found, scores, seed=spec.seed, floors=floors,
            auxiliary={*score.digests(same.images), *score.digests(chosen.images)},
        ),
    }  # fmt: skip
    info["notes"] += found.notes
    info["cost"] |= {"attack_seconds": seconds, "gradient_evaluations": int(found.gradient_evaluations)}
    tensors = {"images": found.images.float(), "labels": found.labels, "loss": found.loss, "trace": found.trace}
    storage.save_tensors(path, "reconstruction", tensors, info)


def _true_features(seen: Artifact, shot: checkpoint.Snapshot) -> score.Features:
    """E(x) through each victim's own extractor, in the mode in which its gradient was taken; for scoring alone."""
    own, net = known.oracle(shot, seen), seen.model.net("extractor")

    def features(victim: int, images: torch.Tensor) -> torch.Tensor:
        networks = own[int(seen.client[victim])]
        params, buffers = networks.params["extractor"], networks.buffers["extractor"]
        return net.apply(params, buffers, images, train=train_mode(seen.batch_size))[0]

    return features


def trials_of(cells: Sequence[CellSpec], root: Path, data_root: Path | None, device_name: str) -> list[Trial]:
    """The unfinished work of some cells as independent jobs, the longest (FedCG) first."""
    store = Store(root)
    stacked = device(device_name).type == "cuda"
    groups: dict[str, tuple[tuple[TrainSpec, ...], list[CellSpec]]] = {}
    for cell in cells:
        if store.record(cell).exists():
            continue
        specs = cell.train_specs()
        for group in [tuple(specs)] if stacked else [(spec,) for spec in specs]:
            groups.setdefault("+".join(spec.id for spec in group), (group, []))[1].append(cell)
    trials = [Trial(title(group), group, tuple(own), root, data_root, device_name) for group, own in groups.values()]
    return sorted(trials, key=lambda trial: -len(plugins.resolve("method", trial.specs[0].method).parts))


def run_cells(
    cells: Sequence[CellSpec],
    root: Path,
    data_root: Path | None,
    device_name: str,
    progress: pool.Progress,
    outcome: pool.Outcome,
) -> list[str]:
    """Runs or reuses every cell and writes its record; returns one line per cell that could not be finished."""
    store = Store(root)
    store.check_writable()
    trials = trials_of(cells, root, data_root, device_name)
    workers = 1 if device(device_name).type == "cuda" else pool.cores()
    failures = pool.run_jobs(trials, workers, progress, outcome)
    for cell in cells:
        if not store.record(cell).exists() and all(store.result(cell, s).exists() for s in cell.seeds):
            results.finish_cell(store, cell)
    return failures


def title(specs: Sequence[TrainSpec]) -> str:
    """A job's name in the progress display."""
    first = specs[0]
    defended = "" if first.defense == "none" else f"+{first.defense}"
    seeds = ",".join(str(spec.seed) for spec in specs)
    nets = "" if first.backbone == "lenet5" else f" {first.backbone}/{first.image_size}"
    dealt = f" dirichlet {first.omega:g}" if first.omega is not None else ""
    settings = "".join(f" {name}={value}" for name, value in first.method_settings.items() if name != "ramp_rounds")
    several = "" if first.clients == partition.defaults(first.dataset)[1] else f" {first.clients} clients"
    domains = f" ({'+'.join(first.domains)})" if first.domains else ""
    where = f"{plugins.short(first.dataset)}{domains}{dealt}{several}"
    return f"{where} {first.method}{settings}{defended}{nets} seed {seeds}"


def guarantee(defense: Any, rounds: int) -> str:
    """What a defence promises one client over that many rounds, whatever the attack, in words.

    A defence that proves something has a method `guarantee(rounds) -> str`, e.g. "(4.2, 1e-5)-differential privacy per client".
    """
    promise = getattr(defense, "guarantee", None)
    return NO_GUARANTEE if promise is None else str(promise(rounds))


def _knowledge(name: str, seen: Artifact, auxiliary: dict[str, Any]) -> dict[str, Any]:
    """What the attacker knew, as the record says it; `auxiliary` is None where the attack was given no such images."""
    attack = plugins.resolve("attack", name)
    return {
        "tag": known.tag(attack, seen.offers()),
        "tag_in_general": known.tag(attack),
        "rung": getattr(attack, "rung", None),  # an attack of a user's own need not stand on the ladder
        "needs": sorted(attack.needs),
        "uses": sorted(known.uses(attack) & seen.offers()),
        "active": plugins.is_active(name),
        "auxiliary": auxiliary if "auxiliary" in attack.needs else None,
        "labels": "known" if seen.labels is not None else "recovered",
        "restart_chosen_by": "attacker's own loss",
    }
