"""Where jobs run, by the name that --engine has for it: processes of this machine, or tasks of a Ray cluster."""

from __future__ import annotations

from privbench.errors import UserError
from privbench.execution import worker_pool
from privbench.execution.cell_jobs import Engine
from privbench.execution.sweep import ray_engine

LOCAL = "local"


def of(text: str) -> Engine:
    """The engine of that name, e.g. "local", "ray" or "ray:10.0.0.1:6379,gpus=0.5".

    UserError for another name, and for Ray where its package is not installed.
    """
    if text == LOCAL:
        return worker_pool.run_jobs
    engine = ray_engine.read(text)
    if engine is None:
        raise UserError(f"--engine takes local or ray[:ADDRESS][,gpus=FRACTION], e.g. ray:auto, but '{text}' was given")
    ray_engine.package()
    return engine
