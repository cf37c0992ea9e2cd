"""Plug-ins by name: `"fedcg" -> "privbench.methods.fedcg:FedCG"`, or a `package.module:Class` that the user named.

Nothing is imported before it is asked for, and nothing registers itself by being imported. A name that is not built in is imported
only where the user of this process named it (privbench/trust.py).
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privbench import names, trust
from privbench.errors import UserError
from privbench.system.printable import one_line
from privbench.trust import FOLDER

if TYPE_CHECKING:
    from privbench.networks.model import Model

# What every method is a subclass of; by its name, as methods are imported only when they are used.
METHOD = "privbench.methods.base.Method"
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
    "dp-gan": "privbench.methods.dp_gan:DPGAN",
    "secure-gan": "privbench.methods.secure_gan:SecureGAN",
    "reptile": "privbench.methods.reptile:Reptile",
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
    "fishing": "attacks.fishing:Fishing",
    "client-rows": "attacks.client_rows:ClientRows",
    "seer": "attacks.seer:Seer",
    "model-inconsistency": "attacks.model_inconsistency:ModelInconsistency",
    "feature-hijacking": "attacks.feature_hijacking:FeatureHijacking",
    "feature-statistics": "attacks.feature_statistics:FeatureStatistics",
    "generated-images": "attacks.generated_images:GeneratedImages",
    "layerwise": "attacks.layerwise:Layerwise",
    "staged": "attacks.staged:Staged",
    "posterior": "attacks.posterior:Posterior",
    "analytic-features": "attacks.analytic_features:AnalyticFeatures",
    "surrogate": "attacks.surrogate:Surrogate",
    "aligned-surrogate": "attacks.aligned_surrogate:AlignedSurrogate",
    "joint": "attacks.joint:Joint",
    "initial-surrogate": "attacks.initial_surrogate:InitialSurrogate",
    "decoder": "attacks.decoder:Decoder",
    "calibrated": "attacks.calibrated:Calibrated",
    "chained": "attacks.chained:Chained",
    "collusion": "attacks.collusion:Collusion",
    "oracle": "attacks.oracle:Oracle",
    "oracle-decoder": "attacks.oracle_decoder:OracleDecoder",
}
# Attacks that state something of a client in place of reconstructing its images (types.Inference).
INFERENCES = {
    "label-distribution": "attacks.label_distribution:LabelDistribution",
    "generator-labels": "attacks.generator_labels:GeneratorLabels",
    "loss-threshold": "attacks.loss_threshold:LossThreshold",
    "membership-inference": "attacks.membership_inference:MembershipInference",
    "property-inference": "attacks.property_inference:PropertyInference",
}
DEFENSES = {
    "none": "defenses.none:NoDefense",
    "gaussian": "defenses.gaussian:Gaussian",
    "dp-sgd": "defenses.dp_sgd:DPSGD",
    "dp-adam": "defenses.dp_adam:DPAdam",
    "dp-fedavg": "defenses.dp_fedavg:DPFedAvg",
    "clip": "defenses.clip:Clip",
    "prune": "defenses.prune:Prune",
    "quantize": "defenses.quantize:Quantize",
    "sign": "defenses.sign:Sign",
    "secure-aggregation": "defenses.secure_aggregation:SecureAggregation",
    "soteria": "defenses.soteria:Soteria",
    "precode": "defenses.precode:Precode",
}
WITHOUT_NOISE = frozenset({"none", "clip", "prune", "quantize", "sign", "secure-aggregation", "soteria", "precode"})
DATASETS = {
    "digits": "privbench.data.digits:load",
    "photos": "privbench.data.photos:load",
    "digits4": "privbench.data.digits4:load",
    "glyphs": "privbench.data.glyphs:load",
    "cifar10": "privbench.data.cifar10:load",
    "fmnist": "privbench.data.fmnist:load",
    "mnist": "privbench.data.mnist:load",
    "emnist": "privbench.data.emnist:load",
    "emnist-letters": "privbench.data.emnist_letters:load",
    "emnist-balanced": "privbench.data.emnist_balanced:load",
    "digit5": "privbench.data.digit5:load",
    "office10": "privbench.data.office10:load",
    "domainnet": "privbench.data.domainnet:load",
    "omniglot": "privbench.data.omniglot:load",
    "miniimagenet": "privbench.data.miniimagenet:load",
}
KINDS = {"method": METHODS, "attack": ATTACKS | INFERENCES, "defense": DEFENSES, "dataset": DATASETS}
FLOORS = ("grey", "dataset-mean", "class-mean", "nearest-auxiliary")
# In place of an attack's name: those that have been best of what knows as much, or all of them (privbench/execution/ladder.py).
LADDER, WHOLE_LADDER = "ladder", "ladder:all"
LADDERS = frozenset({LADDER, WHOLE_LADDER})
# Never the best above the floor of what knows as much, on the gradient of one image (docs/appendix/ladder_members.md).
NEVER_BEST = frozenset(
    {
        "idlg", "inverting-gradients", "matching", "grnn", "unsplit", "learned-inverse", "layerwise",
        # A reference; the other one was always higher.
        "oracle-decoder",
    }
)  # fmt: skip
# Never the best on trained networks without a defence. On untrained ones the first is.
NEVER_BEST_TRAINED = frozenset({"initial-surrogate", "aligned-surrogate"})
# Never above the floor on untrained networks without a defence. On trained ones it is.
NEVER_ABOVE_UNTRAINED = frozenset({"decoder"})
# What is attacked by default, and what a refusal names as the way out.
STRONG = "staged"
OF_GRADIENTS = "dlg"
OF_GENERATORS = "feature-statistics"
OF_EXTRACTORS = "extractor-matching"
OF_UPDATES = "update-matching"
ISOLATING = "model-inconsistency"
DIVIDING = "client-rows"
# The method that learns from tasks, which a refusal of data that are split by class names.
OF_TASKS = "reptile"
# The defence that a refusal names as the way out: it fits every method that sends something.
OF_MESSAGES = "dp-fedavg"


@cache
def installed(kind: str) -> dict[str, str]:
    """The plug-ins of other packages: name -> `module:object`, from their entry points in the group "privbench.attacks" and so on.

    A name that is built in, or cannot be a name, is left out. That a package is installed is no reason to run its code: such a name
    is used where the user names it, as every name that is not built in (privbench/trust.py).
    """
    every = metadata.entry_points(group=f"privbench.{kind}s")
    return {e.name: e.value for e in every if e.name not in KINDS[kind] and names.is_plain(e.name)}


def target(kind: str, name: str) -> str:
    """The `module:object` path of a plug-in; a misspelt name raises UserError with the nearest known one."""
    table = KINDS[kind]
    if name in table:
        return table[name]
    if name in installed(kind):
        return installed(kind)[name]
    if re.fullmatch(names.CODE, name) and not (kind == "attack" and name.startswith(f"{LADDER}:")):
        return name
    if ":" in name and not name.startswith(f"{LADDER}:"):
        raise UserError(f"{kind} {name!r} should be written package.module:object")
    allowed = [*table, *installed(kind), *(sorted(LADDERS) if kind == "attack" else ())]
    near = difflib.get_close_matches(name, allowed, n=1, cutoff=0.5)
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


def is_code(name: str) -> bool:
    """Whether a name is `package.module:object`, code of the user's own."""
    return re.fullmatch(names.CODE, name) is not None


def typed_backbone(text: str) -> str:
    """A backbone that the user of this process typed; from now on it may be used. Never call this with the content of a file."""
    if is_code(text):
        trust.add(text)
    return text


def check_backbone(name: str, image_size: int) -> None:
    """UserError for a backbone that there is not, or one that does not take images of this size.

    How large the images of one of the user's own are is tried when its networks are made (`model`).
    """
    from privbench.networks.model import check_backbone

    if is_code(name):
        _builder(name)
    else:
        check_backbone(name, image_size)


def model(backbone: str, channels: int, classes: int, image_size: int = 32, **chosen: Any) -> Model:
    """The networks of a run; `chosen` are further fields of Model. UserError: as `check_backbone`, and what Model refuses."""
    from privbench.networks.model import Model
    from privbench.networks.user_model import UserModel

    if is_code(backbone):
        return UserModel(backbone, channels, classes, image_size, **chosen, build=_builder(backbone))
    return Model(backbone, channels, classes, image_size, **chosen)


def _builder(name: str) -> Any:
    """The class or function of a backbone of the user's own, imported now; UserError where it may not be, or is not there."""
    trust.check("backbone", name)
    return _callable("backbone", name)


def short(name: str) -> str:
    """A data set's name in titles and names of files: `folder:` with the last part of the path alone, in one line."""
    return one_line(FOLDER + Path(name.removeprefix(FOLDER)).name if name.startswith(FOLDER) else name)


def stem(name: str) -> str:
    """The same in the names of files, where a colon is not allowed everywhere."""
    return short(name).replace(":", "-")


def resolve(kind: str, name: str) -> Any:
    """The class or function of a plug-in, imported now; UserError where it may not be, is not there, or is none (`_lack`)."""
    plugin = getattr(module(kind, name), attribute := target(kind, name).partition(":")[2], None)
    if plugin is None:
        raise UserError(f"{kind} '{name}': module '{target(kind, name).partition(':')[0]}' has no '{attribute}'")
    if (kind != "dataset" or name not in DATASETS) and (lack := _lack(kind, plugin)):
        raise UserError(f"{kind} '{name}' {lack}; docs/extending.md shows one")
    return plugin


def module(kind: str, name: str) -> Any:
    """The module of a plug-in, imported now; UserError where it cannot be, or where only a file names it (privbench/trust.py)."""
    module_name = target(kind, name).partition(":")[0]
    if name not in KINDS[kind]:
        trust.check(kind, name)
    return _imported(kind, name, module_name)


def function(kind: str, text: str) -> Any:
    """The function `package.module:function` that the user of this process typed, imported now; UserError where it is none.

    Never call this with the content of a file.
    """
    if not is_code(text):
        raise UserError(f"a {kind} is written package.module:function, but '{text}' was given")
    trust.add(text)
    return _callable(kind, text)


def _callable(kind: str, name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    plugin = getattr(_imported(kind, name, module_name), attribute, None)
    if not callable(plugin):
        raise UserError(f"{kind} '{name}': module '{module_name}' has no function '{attribute}'")
    return plugin


def _imported(kind: str, name: str, module_name: str) -> Any:
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
    reason = f"there is no module '{module}' on the Python path"
    if module.endswith(".py"):
        return f"{reason}; a module is named as it is imported, without .py"
    if Path(f"{module}.py").is_file() or Path(module).is_dir():
        return f"{reason}, which does not hold the working directory; put PYTHONPATH=. before the command"
    return reason


def where_it_failed(error: BaseException) -> str:
    """An error in one line: file and line of the code that failed (of a library's, the line that called it), and what it said."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    libraries = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
    frames = frames[1:]  # the first is the import itself
    user_frames = [frame for frame in frames if not frame.filename.startswith(libraries)]
    place = f"{user_frames[-1].filename}, line {user_frames[-1].lineno}: " if user_frames else ""
    if isinstance(error, SyntaxError):
        place = f"{error.filename}, line {error.lineno}: "
    reason = str(error.msg if isinstance(error, SyntaxError) else error).partition("\n")[0]
    return f"{place}{type(error).__name__}: {reason}; --debug shows the whole traceback"


def _lack(kind: str, plugin: Any) -> str:
    """What an object of a user's own lacks to be a data set, a method, an attack or a defence; nothing where it has all."""
    if kind == "dataset":
        annotation = inspect.get_annotations(plugin).get("return") if inspect.isfunction(plugin) else None
        word = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
        return "" if word.rpartition(".")[2] == "Dataset" else "should be a function that says it returns a Dataset"
    if not (isinstance(plugin, type) and dataclasses.is_dataclass(plugin)):
        return "should be a class with @dataclass(frozen=True)"
    if kind == "method" and METHOD not in {f"{each.__module__}.{each.__qualname__}" for each in plugin.__mro__}:
        return f"is no subclass of {METHOD}, which declares networks, losses and what is sent"
    if kind != "attack":
        return ""
    for name, empty in (("needs", None), ("uses", frozenset())):
        value: Any = getattr(plugin, name, empty)
        if not (isinstance(value, Set) and all(isinstance(each, str) for each in value)):
            return f"should say `{name}` as a set of names, e.g. frozenset({{'gradient'}}), but it is {value!r}"
    if not isinstance(getattr(plugin, "knowledge", None), str):
        return "should say in words what it knows, e.g. knowledge = 'gradient'"
    infers = callable(getattr(plugin, "infer", None))
    if infers and not isinstance(getattr(plugin, "question", None), str):
        return "has a method `infer` and should say as `question` what it infers"
    name = "infer" if infers else "reconstruct"
    if not callable(getattr(plugin, name, None)):
        return f"has no method `{name}`"
    called = f"{name}(self, artifact, knowledge, seed, progress)"
    return "" if _takes(getattr(plugin, name), 5) else f"should have the method `{called}`, as it is called"


def _takes(function: Callable[..., Any], arguments: int) -> bool:
    """Whether a function can be called with so many arguments by place."""
    try:
        inspect.signature(function).bind(*range(arguments))
    except TypeError:
        return False
    return True


def own_modules() -> frozenset[str]:
    """The modules of the plug-ins that this process's user named: of code of his own and of other packages."""
    targets = {name for name in trust.added() if not name.startswith(FOLDER)}
    for kind in KINDS:
        targets |= {target for name, target in installed(kind).items() if name in targets}
    return frozenset(each.partition(":")[0] for each in targets if ":" in each)


def name_of(kind: str, plugin: type) -> str:
    """The name under which a class is built in or installed; `package.module:Class` of any other."""
    path = f"{plugin.__module__}:{plugin.__qualname__}"
    return next((name for name, each in (KINDS[kind] | installed(kind)).items() if each == path), path)


def is_inference(attack: str) -> bool:
    """Whether an attack states something of a client in place of reconstructing images; UserError where it cannot be imported."""
    return callable(getattr(resolve("attack", attack), "infer", None))


def is_active(attack: str) -> bool:
    """Whether an attack is an active server's: one that crafts what the attacked clients receive."""
    return bool(getattr(resolve("attack", attack), "active", False))


def may_add_noise(defense: str, settings: Sequence[tuple[str, str]]) -> bool:
    """Whether a defence with settings (field, or nothing for the first; value), as written, may add noise; nothing is imported.

    It may unless its kind never does, or it is Gaussian noise of variance 0.
    """
    if defense == "gaussian":
        return any(key in ("", "variance") and not _is_zero(value) for key, value in settings)
    return defense not in WITHOUT_NOISE


def may_solve_for_noise(defense: str, settings: Sequence[tuple[str, str]]) -> bool:
    """Whether the noise of a defence, as written, may be solved for from an epsilon; nothing is imported."""
    noisy = defense != "gaussian" and may_add_noise(defense, settings)
    return noisy and any(key in ("", "epsilon") for key, _ in settings)


def _is_zero(value: str) -> bool:
    try:
        return float(value) == 0
    except ValueError:
        return False


def create(plugin: Any, settings: Mapping[str, Any]) -> Any:
    """A plug-in with its settings.

    UserError: an unknown setting, a value that the field's type or range (privbench/hyperparameters.py) refuses, and what the
    class itself refuses.
    """
    from privbench.hyperparameters import fault

    fields = {f.name: f for f in dataclasses.fields(plugin)}
    for name, value in settings.items():
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(fields) or 'none'}"
            raise UserError(f"{plugin.__name__} has no setting '{name}'; {hint}")
        refusal = fault(plugin, fields[name], value)
        if refusal is not None:
            raise UserError(f"{plugin.__name__}: {refusal}")
    try:
        return plugin(**settings)
    except (TypeError, ValueError) as error:
        raise UserError(f"{plugin.__name__}: {error}") from error


def setting_names(attack: str) -> list[str]:
    """The settings that an attack has."""
    return [field.name for field in dataclasses.fields(resolve("attack", attack))]


def own_settings(attack: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of some settings that an attack has."""
    names = setting_names(attack)
    return {name: value for name, value in settings.items() if name in names}


def needs(attack: str, settings: Mapping[str, Any]) -> frozenset[str]:
    """What an attack needs with some settings; UserError as `create`."""
    needed: frozenset[str] = create(resolve("attack", attack), settings).needs
    return needed


def settings_of_each(attacks: Iterable[str], settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """attack -> those of some settings that it has; UserError for a setting that none has."""
    attacks = list(attacks)
    allowed = sorted({field for name in attacks for field in setting_names(name)})
    for setting in settings:
        if setting not in allowed:
            near = difflib.get_close_matches(setting, allowed, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(allowed)}"
            raise UserError(f"none of these attacks has a setting '{setting}'; {hint}")
    return {name: own_settings(name, settings) for name in attacks}
