"""The settings of `breaching` and `staged` for benchmarks/against_breaching.py: those that won, and all that were searched."""

from __future__ import annotations

from typing import Any, NamedTuple

_TV = "regularization.total_variation."
_DOUBLE: dict[str, Any] = {"impl.dtype": "float64", "optim.callback": 10**9}
# Root of squared differences of pixels and of colour differences, L-BFGS from grey, the cosine scaled far above the
# tolerances of torch.optim.LBFGS: its bias gradients alone make the cosine 1 - 1e-8.
_BEST = _DOUBLE | {
    "objective.type": "cosine-similarity", "objective.scale": 1e8, "init": "zeros",
    "optim.optimizer": "L-BFGS", "optim.signed": None, "optim.step_size": 1.0, "optim.step_size_decay": None,
    "optim.max_iterations": 15, "optim.boxed": True,
    _TV + "scale": 0.1, _TV + "inner_exp": 2, _TV + "outer_exp": 0.5, _TV + "double_opponents": True,
}  # fmt: skip


class Setting(NamedTuple):
    """One of breaching's attack configurations with changes."""

    name: str
    template: str
    changes: dict[str, Any]


SETTINGS = (
    Setting("DLG as shipped", "deepleakage", {"optim.callback": 10**9}),
    Setting("inverting gradients, 600 steps", "invertinggradients", _DOUBLE | {"optim.max_iterations": 600}),
    Setting("best, total variation 0.3", "invertinggradients", _BEST | {_TV + "scale": 0.3}),
    Setting("best, total variation 0.1", "invertinggradients", _BEST),
    Setting("best, total variation 0.03", "invertinggradients", _BEST | {_TV + "scale": 0.03}),
    Setting("best, 0.01, 40 steps", "invertinggradients", _BEST | {_TV + "scale": 0.01, "optim.max_iterations": 40}),
)  # a step of L-BFGS is up to 20 evaluations

_DESCENT = {"peel_iterations": 0}
_LAYERWISE = {"feature_steps": 0, "steps": 0}
RUNGS: tuple[tuple[str, dict[str, int]], ...] = (
    ("features alone, 5 steps", _DESCENT | {"feature_steps": 5, "steps": 0}),
    ("features alone, 10 steps", _DESCENT | {"feature_steps": 10, "steps": 0}),
    ("features alone, 25 steps", _DESCENT | {"feature_steps": 25, "steps": 0}),
    ("layerwise inversion, what victims share", _LAYERWISE | {"peel_levels": 1}),
    ("layerwise inversion, 1 iteration a level", _LAYERWISE | {"peel_iterations": 1}),
    ("as shipped", {}),
)


def search_grid() -> list[Setting]:
    """The settings of breaching that were tried, `SETTINGS` included."""
    double: dict[str, Any] = {_TV + "double_opponents": True, _TV + "inner_exp": 2, _TV + "outer_exp": 0.5}
    adam: dict[str, Any] = _DOUBLE | {"optim.max_iterations": 300}
    grid: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({_TV + "scale": t}, adam) for t in (20.0, 0.2, 1e-4, 1e-6, 1e-7, 1e-8, 1e-9, 0.0)
    ]
    grid += [({_TV + "scale": t} | double, adam) for t in (1e-6, 1e-7, 3e-8, 1e-8, 3e-9)]
    chosen = adam | double | {_TV + "scale": 3e-9}
    changes: tuple[dict[str, Any], ...] = (
        {"init": "zeros"}, {"optim.step_size": 0.03}, {"optim.step_size": 0.3}, {"optim.step_size_decay": "cosine-decay"},
        {"optim.boxed": False}, {"optim.max_iterations": 1000}, {"regularization.features.scale": 1e-3},
        {"optim.signed": "soft", "objective.scale": 1e10, _TV + "scale": 30.0},
        {"optim.signed": None, "objective.scale": 1e6, _TV + "scale": 0.01},
        {"objective.type": "euclidean", _TV + "scale": 1e-7}, {"objective.type": "euclidean", _TV + "scale": 3e-8},
        {"objective.type": "l1", _TV + "scale": 1e-4}, {"objective.type": "angular", _TV + "scale": 1e-5},
    )  # fmt: skip
    grid += [(change, chosen) for change in changes]
    changes = (
        *({_TV + "scale": t} for t in (1.0, 0.3, 0.1, 0.03, 0.01)), {_TV + "scale": 0.01, "optim.max_iterations": 40},
        {_TV + "outer_exp": 1}, {_TV + "double_opponents": False}, {_TV + "eps": 1e-4}, {"init": "randn"},
        {"init": "patterned-4"}, {"optim.boxed": False}, {"optim.step_size": 0.5}, {"normalize_gradients": True},
        {"objective.scale": 1e6, _TV + "scale": 1e-3}, {"objective.scale": 1e10, _TV + "scale": 10.0},
        {"objective.type": "euclidean", _TV + "scale": 1.0}, {"objective.type": "euclidean", _TV + "scale": 0.3},
        {"objective.type": "fast-cosine-similarity"}, {"regularization.features.scale": 100.0}, {"impl.dtype": "float"},
    )  # fmt: skip
    grid += [(change, _BEST) for change in changes]
    named = [Setting(str(change), "invertinggradients", base | change) for change, base in grid]
    return [*SETTINGS, *named, Setting("wei", "wei", _DOUBLE), Setting("modern", "modern", adam)]
