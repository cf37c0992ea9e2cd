"""Plug-ins by name: `"fedcg" -> "privbench.methods.fedcg:FedCG"`, or a `package.module:Class` that the user named.

Nothing is imported before it is asked for, and nothing registers itself by being imported. A name that is not built in is imported
only where the user of this process named it (privbench/trust.py).
"""

import dataclasses
import difflib
import importlib
import inspect
import re
import sysconfig
import traceback
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any

from privbench import names, trust
from privbench.errors import UserError
from privbench.system.printable import one_line
from privbench.trust import FOLDER

METHODS = {
    "local": "privbench.methods.local:Local",
    "fedavg": "privbench.methods.fedavg:FedAvg",
    "fedprox": "privbench.methods.fedprox:FedProx",
    "feddf": "privbench.methods.feddf:FedDF",
    "fedper": "privbench.methods.fedper:FedPer",
    "fedsplit": "privbench.methods.fedsplit:FedSplit",
    "lg-fedavg": "privbench.methods.fedsplit:FedSplit",
    "fedgen": "privbench.methods.fedgen:FedGen",
    "fedcg": "privbench.methods.fedcg:FedCG",
    "nfl-cgan": "privbench.methods.nfl_cgan:NFLCGAN",
    "fedmd-cg": "privbench.methods.fedmd_cg:FedMDCG",
}
ATTACKS = {
    "grey": "attacks.floors:Grey",
    "dataset-mean": "attacks.floors:DatasetMean",
    "class-mean": "attacks.floors:ClassMean",
    "nearest-auxiliary": "attacks.floors:NearestAuxiliary",
    "dlg": "attacks.dlg:DLG",
    "idlg": "attacks.idlg:IDLG",
    "inverting-gradients": "attacks.inverting_gradients:InvertingGradients",
    "extractor-matching": "attacks.extractor_matching:ExtractorMatching",
    "matching": "attacks.matching:Matching",
    "grnn": "attacks.grnn:GRNN",
    "unsplit": "attacks.unsplit:UnSplit",
    "update-matching": "attacks.update_matching:UpdateMatching",
    "learned-inverse": "attacks.learned_inverse:LearnedInverse",
    "imprint": "attacks.imprint:Imprint",
    "feature-hijacking": "attacks.feature_hijacking:FeatureHijacking",
    "feature-statistics": "attacks.feature_statistics:FeatureStatistics",
    "staged": "attacks.staged:Staged",
    "posterior": "attacks.posterior:Posterior",
    "analytic-features": "attacks.analytic_features:AnalyticFeatures",
    "surrogate": "attacks.surrogate:Surrogate",
    "aligned-surrogate": "attacks.aligned_surrogate:AlignedSurrogate",
    "initial-surrogate": "attacks.initial_surrogate:InitialSurrogate",
    "decoder": "attacks.decoder:Decoder",
    "collusion": "attacks.collusion:Collusion",
    "oracle": "attacks.oracle:Oracle",
    "oracle-decoder": "attacks.oracle_decoder:OracleDecoder",
}
DEFENSES = {
    "none": "defenses.none:NoDefense",
    "gaussian": "defenses.gaussian:Gaussian",
}
DATASETS = {
    "digits": "privbench.data.digits:load",
    "photos": "privbench.data.photos:load",
    "digits4": "privbench.data.digits4:load",
    "cifar10": "privbench.data.cifar10:load",
    "fmnist": "privbench.data.fmnist:load",
    "mnist": "privbench.data.mnist:load",
    "emnist": "privbench.data.emnist:load",
    "emnist-letters": "privbench.data.emnist_letters:load",
    "emnist-balanced": "privbench.data.emnist_balanced:load",
    "digit5": "privbench.data.digit5:load",
    "office10": "privbench.data.office10:load",
    "domainnet": "privbench.data.domainnet:load",
}
KINDS = {"method": METHODS, "attack": ATTACKS, "defense": DEFENSES, "dataset": DATASETS}
FLOORS = ("grey", "dataset-mean", "class-mean", "nearest-auxiliary")
LADDER = "ladder"  # in place of an attack's name: all of them


def target(kind: str, name: str) -> str:
    """The `module:object` path of a plug-in; a misspelt name raises UserError with the nearest known one."""
    table = KINDS[kind]
    if name in table:
        return table[name]
    if re.fullmatch(names.CODE, name):
        return name
    if ":" in name:
        raise UserError(f"{kind} {name!r} should be written package.module:object")
    known = [*table, LADDER] if kind == "attack" else [*table]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(table)}"
    raise UserError(f"unknown {kind} '{name}'; {hint}")


def dataset(text: str) -> str:
    """A data set's name as specifications hold it: known, misspelt (UserError), or `folder:` with the absolute path."""
    if text.startswith(FOLDER):
        path = text.removeprefix(FOLDER)
        if not path:
            raise UserError("--dataset folder:PATH needs a path, e.g. folder:pictures")
        return FOLDER + str(Path(path).expanduser().resolve())
    target("dataset", text)
    return text


def typed(kind: str, text: str) -> str:
    """A name that the user of this process typed, as specifications hold it; from now on it may be used (privbench/trust.py).

    UserError as `target` and `dataset`. Never call this with the content of a file. Defences: `written_defense.typed`.
    """
    name = dataset(text) if kind == "dataset" else text
    if not name.startswith(FOLDER):
        target(kind, name)
    if name not in KINDS[kind]:
        trust.add(name)
    return name


def short(name: str) -> str:
    """A data set's name in titles and names of files: `folder:` with the last part of the path alone, in one line."""
    return one_line(FOLDER + Path(name.removeprefix(FOLDER)).name if name.startswith(FOLDER) else name)


def stem(name: str) -> str:
    """The same in the names of files, where a colon is not allowed everywhere."""
    return short(name).replace(":", "-")


def resolve(kind: str, name: str) -> Any:
    """The class or function of a plug-in, imported now; UserError where it may not be, is not there, or is none (`_lack`)."""
    found = getattr(module(kind, name), attribute := target(kind, name).partition(":")[2], None)
    if found is None:
        raise UserError(f"{kind} '{name}': module '{target(kind, name).partition(':')[0]}' has no '{attribute}'")
    if (kind != "dataset" or name not in DATASETS) and (lack := _lack(kind, found)):
        raise UserError(f"{kind} '{name}' {lack}; docs/extending.md shows one")
    return found


def module(kind: str, name: str) -> Any:
    """The module of a plug-in, imported now; UserError where it cannot be, or where only a file names it (privbench/trust.py)."""
    module_name = target(kind, name).partition(":")[0]
    if name not in KINDS[kind]:
        trust.check(kind, name)
    try:
        return importlib.import_module(module_name)
    except Exception as error:  # whatever a module of a user's own raises while it is imported
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            raise UserError(f"{kind} '{name}': {_not_found(str(error.name))}") from error
        raise UserError(
            f"{kind} '{name}': module '{module_name}' cannot be imported: {where_it_failed(error)}"
        ) from error


def _not_found(module: str) -> str:
    """Why there is no such module, and the way out where it lies in the working directory."""
    told = f"there is no module '{module}' on the Python path"
    if Path(f"{module}.py").is_file() or Path(module).is_dir():
        return f"{told}, which does not hold the working directory; put PYTHONPATH=. before the command"
    return told


def where_it_failed(error: BaseException) -> str:
    """An error in one line: file and line of the code that failed (of a library's, the line that called it), and what it said."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    libraries = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
    frames = frames[1:]  # the first is the import itself
    own = [frame for frame in frames if not frame.filename.startswith(libraries)]
    place = f"{own[-1].filename}, line {own[-1].lineno}: " if own else ""
    if isinstance(error, SyntaxError):
        place = f"{error.filename}, line {error.lineno}: "
    said = str(error.msg if isinstance(error, SyntaxError) else error).partition("\n")[0]
    return f"{place}{type(error).__name__}: {said}; --debug shows the whole traceback"


def _lack(kind: str, plugin: Any) -> str:
    """What an object of a user's own lacks to be a data set, a method, an attack or a defence; nothing where it has all."""
    if kind == "dataset":
        said = inspect.get_annotations(plugin).get("return") if inspect.isfunction(plugin) else None
        word = said if isinstance(said, str) else getattr(said, "__name__", "")
        return "" if word.rpartition(".")[2] == "Dataset" else "should be a function that says it returns a Dataset"
    if not (isinstance(plugin, type) and dataclasses.is_dataclass(plugin)):
        return "should be a class with @dataclass(frozen=True)"
    if kind != "attack":
        return ""
    for name, empty in (("needs", None), ("uses", frozenset())):
        value: Any = getattr(plugin, name, empty)
        if not (isinstance(value, Set) and all(isinstance(each, str) for each in value)):
            return f"should say `{name}` as a set of names, e.g. frozenset({{'gradient'}}), but it is {value!r}"
    if not isinstance(getattr(plugin, "knowledge", None), str):
        return "should say in words what it knows, e.g. knowledge = 'gradient'"
    return "" if callable(getattr(plugin, "reconstruct", None)) else "has no method `reconstruct`"


def is_active(attack: str) -> bool:
    """Whether an attack is an active server's: one that crafts what the attacked clients receive."""
    return bool(getattr(resolve("attack", attack), "active", False))


def revision(attack: str) -> int:
    """How often what an attack returns has changed since spec.ATTACK_REVISION was raised; part of its cells' names.

    Its class's `revision`; 0 where the class says nothing. UserError where it cannot be imported. A cell stores it
    (privbench/spec.py).
    """
    return int(getattr(resolve("attack", attack), "revision", 0))


def create(plugin: Any, settings: Mapping[str, Any]) -> Any:
    """A plug-in with its settings.

    UserError: an unknown setting, a value that the field's type or range (privbench/hyperparameters.py) refuses, and what the
    class itself refuses.
    """
    from privbench.hyperparameters import fault

    known = {f.name: f for f in dataclasses.fields(plugin)}
    for name, value in settings.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known) or 'none'}"
            raise UserError(f"{plugin.__name__} has no setting '{name}'; {hint}")
        found = fault(plugin, known[name], value)
        if found is not None:
            raise UserError(f"{plugin.__name__}: {found}")
    try:
        return plugin(**settings)
    except (TypeError, ValueError) as error:
        raise UserError(f"{plugin.__name__}: {error}") from error


def settings_of_each(attacks: Iterable[str], settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """attack -> those of some settings that it has; UserError for a setting that none has."""
    fields = {name: [f.name for f in dataclasses.fields(resolve("attack", name))] for name in attacks}
    known = sorted({field for own in fields.values() for field in own})
    for setting in settings:
        if setting not in known:
            near = difflib.get_close_matches(setting, known, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known)}"
            raise UserError(f"no attack of the ladder has a setting '{setting}'; {hint}")
    return {name: {s: value for s, value in settings.items() if s in own} for name, own in fields.items()}
