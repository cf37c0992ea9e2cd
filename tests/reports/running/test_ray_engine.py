"""Jobs on a cluster of Ray give the records of local processes, bit for bit, whatever dies on the way."""

import logging
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from privbench import trust
from privbench.errors import Interrupted, UserError
from privbench.execution import cell_jobs, reproduce, worker_pool
from privbench.execution.sweep import engines, parcels, ray_engine, ray_task
from privbench.execution.sweep.ray_engine import RayEngine
from privbench.records import schema
from privbench.records.store import Store
from privbench.requests.options import TrainingOptions
from privbench.system import cpu
from privbench.training import checkpoint
from privbench.training.engine.alone import one_thread
from reports.running import study_plan, study_run

MEMORY = 100 * 2**20  # bytes of the object store of each node


def planned(seeds):
    """FedAvg on several seeds, by two attacks: a job a seed, two cells."""
    training = TrainingOptions(preset="smoke", seeds=seeds)
    return study_plan.plan(
        "attack-table", training, [("digits", None)], methods=["fedavg"],
        attacks=["class-mean", "dlg"], rounds=["best"], defenses=["none"],
    )[1]  # fmt: skip


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """(the cells of two seeds, the folder of jobs that did not travel), in this process, on one thread as a task is."""

    def in_place(jobs, workers, progress, outcome):
        for job in jobs:
            with one_thread():
                job.run()
            outcome(job.title, None)
        return []

    root, cells = tmp_path_factory.mktemp("local"), planned(2)
    assert run(cells, root, in_place)[0] == []
    return cells, root


@pytest.fixture(autouse=True)
def no_worker():
    """A task makes its process a worker; that of the tests is none again afterwards."""
    threads, share = torch.get_num_threads(), cpu._share
    yield
    cpu._share = share
    torch.set_num_threads(threads)


class Letters:
    """What a task says, in place of the actor that keeps it."""

    def __init__(self):
        self.came = []
        self.put = SimpleNamespace(remote=self.came.append)


def carried(letters=None):
    """An engine that sends each job as a cluster does, to this process."""

    def run(jobs, workers, progress, outcome):
        reasons = []
        for job in jobs:
            brought = ray_task.work(ray_task.order(job, parcels.pack(job)), letters or Letters())
            reasons.append(ray_task.take(job, brought))
            outcome(job.title, reasons[-1])
        return [reason for reason in reasons if reason is not None]

    return run


def run(cells, root, engine):
    ended = {}
    failures = cell_jobs.run_cells(
        cells, root, None, "cpu", lambda *_: None, lambda title, reason: ended.update({title: reason}), engine=engine
    )
    return failures, ended


def unlike(cells, first, second):
    """What differs between the records of two folders, but for time and place."""
    each = ((cell, [schema.read(Store(root).record(cell)) for root in (first, second)]) for cell in cells)
    return [line for _, records in each for line in reproduce.differences(*records, first, second)]


def test_a_job_that_travels_gives_the_same_records(local, tmp_path):
    cells, root = local
    letters = Letters()
    failures, ended = run(cells, tmp_path, carried(letters))
    assert failures == []
    assert list(ended.values()) == [None, None]
    assert unlike(cells, root, tmp_path) == []
    assert [type(message) for message in letters.came].count(ray_task.Began) == 2
    assert {message[0] for message in letters.came} == set(ended)
    for cell in cells:
        for spec in cell.train_specs():
            assert {path.name for path in Store(tmp_path).train(spec).glob("[!.]*")} == {
                path.name for path in Store(root).train(spec).glob("[!.]*")
            }


def test_a_task_goes_on_from_what_the_driver_has(local, tmp_path):
    """Training is there, its predictions are gone, one result is damaged: only these are made, and replace what was damaged."""
    cells, root = local
    store = Store(tmp_path)
    parts = cell_jobs.trials_of(cells, tmp_path, None, "cpu")
    for part in parts:
        parcels.unpack(parcels.pack(replace(part, root=root)), tmp_path)
    spec = parts[0].specs[0]
    kept = (store.train(spec) / checkpoint.FINISHED).read_bytes()
    lost = store.train(spec) / checkpoint.PREDICTIONS
    lost.unlink()
    torn, whole = (store.result(cell, spec.seed) for cell in cells)
    before = whole.read_bytes()
    torn.write_bytes(torn.read_bytes()[:-9])
    assert run(cells, tmp_path, carried())[0] == []
    assert lost.exists()
    assert unlike(cells, root, tmp_path) == []
    assert (store.train(spec) / checkpoint.FINISHED).read_bytes() == kept
    assert whole.read_bytes() == before


def test_a_job_that_fails_says_so_with_the_paths_of_the_driver(local, tmp_path, monkeypatch):
    cells, _ = local

    def broken(*_, **__):
        raise ZeroDivisionError("nothing to divide by")

    monkeypatch.setattr(cell_jobs.attack_cell, "attack_seed", broken)
    job = cell_jobs.trials_of(cells, tmp_path, None, "cpu")[0]
    failures, ended = run(cells, tmp_path, carried())
    assert "internal error" in ended[job.title]
    assert str(job.log) in ended[job.title]
    assert "ZeroDivisionError: nothing to divide by" in job.log.read_text()
    assert ended[job.title] in failures
    for cell in cells:
        reason, refused = Store(tmp_path).read_failure(cell)
        assert str(job.log.name) in reason
        assert str(tmp_path) in reason
        assert not refused
    # The training that was finished came back all the same.
    assert checkpoint.is_finished(Store(tmp_path).train(job.specs[0]))


def test_a_result_that_came_meanwhile_stays_and_is_named(local, tmp_path):
    cells, _ = local
    job = cell_jobs.trials_of(cells, tmp_path, None, "cpu")[0]
    brought = ray_task.work(ray_task.order(job, {}), Letters())
    path, other = (Store(tmp_path).result(cell, job.specs[0].seed) for cell in cells)
    name = other.relative_to(tmp_path).as_posix()
    path.parent.mkdir(parents=True)
    path.write_bytes(brought.parcel[name])
    with pytest.raises(UserError, match=rf"{path.name} is other than what .* gives"):
        ray_task.take(job, brought)
    assert path.read_bytes() == brought.parcel[name]


def test_names_that_the_user_trusts_travel(local, tmp_path, monkeypatch):
    # Modules of tests that ran before may have added names of their own.
    monkeypatch.setattr(trust, "_names", set())
    trust.add("package.module:Attack")
    order = ray_task.order(cell_jobs.trials_of(local[0], tmp_path, None, "cpu")[0], {})
    monkeypatch.setattr(trust, "_names", set())
    monkeypatch.setattr(worker_pool, "attempt", lambda *_: None)
    ray_task.work(order, Letters())
    assert trust.added() == ("package.module:Attack",)


def test_a_node_with_another_version_refuses(local, tmp_path):
    job = cell_jobs.trials_of(local[0], tmp_path, None, "cpu")[0]
    with pytest.raises(UserError, match=r"has privbench .*, but the command is of 0\.0\.0"):
        ray_task.work(ray_task.order(job, {})._replace(version="0.0.0"), Letters())


@pytest.mark.parametrize("name", ["../out", "train/../../out", "/out", "train//x"])
def test_a_parcel_writes_nowhere_else(tmp_path, name):
    with pytest.raises(UserError, match="cannot be the name of a file"):
        parcels.unpack({name: b""}, tmp_path / "root")
    assert not (tmp_path / "out").exists()


def test_an_engine_is_read_from_its_name(monkeypatch):
    assert engines.of("local") is worker_pool.run_jobs
    assert ray_engine.read("ray") == RayEngine("auto", 1.0)
    assert ray_engine.read("ray,gpus=0.5") == RayEngine("auto", 0.5)
    assert ray_engine.read("ray:10.0.0.1:6379,gpus=.25") == RayEngine("10.0.0.1:6379", 0.25)
    for wrong in ("", "Ray", "raylet", "ray:", "ray,cpus=2", "dask"):
        with pytest.raises(UserError, match="--engine takes local or ray"):
            engines.of(wrong)
    for wrong in ("0", "2", "0.0", "1.5", "."):
        with pytest.raises(UserError, match="share of one GPU"):
            engines.of(f"ray,gpus={wrong}")
    for wrong in ("ray:ray://head:10001", "ray:head", "ray:6379"):
        with pytest.raises(UserError, match="HOST:PORT"):
            engines.of(wrong)


def test_without_ray_one_line_says_how_to_install_it_before_anything_is_trained(command, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    words = [
        "--method",
        "local",
        "--dataset",
        "digits",
        "--preset",
        "smoke",
        "--engine",
        "ray",
        "--out",
        tmp_path / "out",
    ]
    for ran in (command("train", *words), command("study", "accuracy", *words)):
        assert ran.status == 2
        assert "`make ray`" in ran.err
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_cluster_that_is_not_there_is_said_at_once(local, no_network, tmp_path):
    pytest.importorskip("ray", reason="ray is not installed: make ray")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(UserError, match=f"no Ray cluster to work with at 127.0.0.1:{port}"):
        run(local[0], tmp_path, RayEngine(f"127.0.0.1:{port}"))


def test_ray_is_not_imported_unless_it_is_asked_for():
    code = (
        "import sys; from privbench.execution.sweep import engines; engines.of('local'); sys.exit('ray' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.fixture
def no_network():
    """Ray speaks to itself through names of this machine."""


@pytest.fixture
def cluster(no_network, monkeypatch, tmp_path_factory):
    """Two nodes of one core each on this machine: (the cluster, its second node)."""
    pytest.importorskip("ray", reason="ray is not installed: make ray")
    ray = ray_engine.package()
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    # Tasks of other tests, which run at the same time, have their folders elsewhere; sockets need short paths, so Ray's own stay.
    monkeypatch.setenv("RAY_TMPDIR", tempfile.gettempdir())
    folder = str(tmp_path_factory.mktemp("tasks"))
    monkeypatch.setenv("TMPDIR", folder)
    monkeypatch.setattr(tempfile, "tempdir", folder)
    node = {"num_cpus": 1, "object_store_memory": MEMORY}
    made = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    try:
        second = made.add_node(**node)
        yield made, second
    finally:
        ray.shutdown()
        made.shutdown()


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_a_node_that_dies_costs_only_the_job_it_ran(cluster, tmp_path, caplog):
    cells, (nodes, second) = planned(4), cluster
    here, there = tmp_path / "here", tmp_path / "there"
    # A task has one core, and so one thread; sums of several threads end in other digits.
    torch.set_num_threads(1)
    study_run.execute(cells, here, None, "cpu")
    running, ended, killed = set(), {}, []

    def progress(title, *_):
        running.add(title)
        # As many jobs as nodes, so that the second node is at one of them.
        if len(running) == 2 and not killed and not ended:
            killed.append(sorted(running))
            nodes.remove_node(second, allow_graceful=False)

    with caplog.at_level(logging.WARNING, "privbench"):
        failures = cell_jobs.run_cells(
            cells, there, None, "cpu", progress, lambda title, reason: ended.update({title: reason}),
            engine=RayEngine(nodes.address),
        )  # fmt: skip
    assert killed
    assert failures == []
    assert list(ended.values()) == [None] * 4
    again = [line for line in caplog.messages if "it is run again on another" in line]
    assert len(again) == 1
    assert again[0].partition(": ")[0] in killed[0]
    assert unlike(cells, here, there) == []


def temporary():
    """The folders of tasks on this machine."""
    return set(Path(tempfile.gettempdir()).glob(f"{ray_task.PREFIX}*"))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_a_stop_cancels_the_tasks_and_what_is_finished_is_there(cluster, tmp_path):
    cells, (nodes, _) = planned(4), cluster
    used = set()

    def progress(*_):
        used.update(temporary())

    def stop(title, reason):
        assert reason is None
        raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        cell_jobs.run_cells(cells, tmp_path, None, "cpu", progress, stop, engine=RayEngine(nodes.address))
    finished = [checkpoint.is_finished(Store(tmp_path).train(spec)) for spec in cells[0].train_specs()]
    assert sum(finished) == 1
    assert used
    assert temporary() == set()
