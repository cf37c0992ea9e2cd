"""Networks of the user's own in the training harness: a class or function of theirs makes a torch module, which is cut at its head.

`build(channels, classes, image_size)` returns a module that takes images [B, C, s, s] in [0, 1], which it normalises itself, and
returns logits [B, Y]. The classifier is its longest chain of linear layers at the end, or the submodules that an attribute `head`
of the module names (privbench/networks/module_model.py); the extractor is the rest.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from privbench.errors import UserError
from privbench.networks import module_model
from privbench.networks.base import Classifier, Net
from privbench.networks.layers import UNBOUNDED
from privbench.networks.model import LastInputs, Model
from privbench.networks.module_model import ModuleModel
from privbench.networks.module_net import ModuleNet
from privbench.networks.module_parts import WHOLE, ClassifierPart, ExtractorPart, InputForm
from privbench.system.file_headers import short

PROBES = 4  # images of noise on which a module is tried
Build = Callable[[int, int, int], nn.Module]  # (channels, classes, image_size) -> module


class _Networks(NamedTuple):
    """What was made of one module."""

    extractor: ExtractorPart
    classifier: ClassifierPart
    model: ModuleModel
    batch_norm: str  # the name of a layer that normalises over images; empty where there is none


@dataclass(frozen=True, kw_only=True)
class UserModel(Model):
    """The networks of one run, extractor and classifier by `build`; `backbone` is its name, `package.module:Name`."""

    # Follows from the name.
    build: Build = field(compare=False, repr=False)

    def check(self) -> None:
        """UserError for a module that cannot be called on such images, or cut in two; for batch norm where each image is alone."""
        networks = self._parts
        if self.norm == "group" and networks.batch_norm:
            raise UserError(
                f"a defence that acts on every image needs networks that treat each alone, but {self.backbone} has batch norm "
                f"('{networks.batch_norm}'); use torch.nn.GroupNorm there"
            )

    @property
    def _parts(self) -> _Networks:
        return _networks(
            self.backbone, self.build, self.channels, self.classes, self.image_size, torch.get_default_dtype()
        )

    @property
    def feature_shape(self) -> tuple[int, int, int]:
        """Of the input of the head, with axes of length 1 for those that it lacks."""
        return self._parts.model.feature_shape

    @property
    def feature_range(self) -> tuple[float, float]:
        """Nothing is known of it."""
        return UNBOUNDED

    @property
    def last_inputs(self) -> LastInputs | None:
        """As tried on images of noise."""
        return self._parts.model.last_inputs

    @property
    def extractor(self) -> Net:
        """E: the module up to its head."""
        return self._parts.extractor

    @property
    def plain_classifier(self) -> Classifier:
        """C: the head."""
        return self._parts.classifier


@lru_cache(maxsize=64)
def _networks(name: str, build: Build, channels: int, classes: int, image_size: int, dtype: torch.dtype) -> _Networks:
    """The two parts of a module as `build` makes it under a default `dtype`; UserError for what is none."""
    make = partial(_module, name, build, channels, classes, image_size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = make()
        shape = channels, image_size, image_size
        _check_module(name, module, shape)
        zero, one = torch.zeros(1), torch.ones(1)
        form = InputForm(shape, zero, one, zero, one)
        head = getattr(module, "head", ())
        names = head if isinstance(head, (tuple, list)) and all(isinstance(each, str) for each in head) else ()
        try:
            model = module_model.model_of(module, form, train=True, head=names)
        except UserError as error:
            raise UserError(f"backbone '{name}': {error}") from error
    if model.classes != classes:
        raise UserError(f"backbone '{name}' should return {classes} logits, but it returned {model.classes}")
    extractor = model.extractor_part.initialised_by(partial(_fresh, model.extractor_part, make))
    classifier = model.classifier_part.initialised_by(partial(_fresh, model.classifier_part, make))
    for part, net in (("extractor", extractor), ("classifier", classifier)):
        if not net.parameter_names:
            raise UserError(
                f"the {part} of backbone '{name}' has no parameters; name the submodules of the classifier in an attribute of the "
                "module, e.g. head = ('fc',)"
            )
    norms = [n for n, each in module.named_modules() if isinstance(each, _BatchNorm)]
    return _Networks(extractor, classifier, model, norms[0] if norms else "")


def _module(name: str, build: Build, channels: int, classes: int, image_size: int) -> nn.Module:
    try:
        return build(channels, classes, image_size)
    except Exception as error:
        raise UserError(
            f"backbone '{name}' could not be made of ({channels}, {classes}, {image_size}), the channels, the classes and the side "
            f"of the images: {short(error)}"
        ) from error


def _check_module(name: str, module: object, shape: tuple[int, int, int]) -> None:
    """UserError for what is no module, cannot be called on images of a shape, or draws by torch's global generator."""
    if not isinstance(module, nn.Module):
        raise UserError(f"backbone '{name}' should make a torch.nn.Module, but it made {type(module).__name__}")
    net, way_out = ModuleNet(module), "leave that out, and drop features by --set dropout=P"
    if net.draws:
        raise UserError(f"backbone '{name}': '{net.draws[0]}' drops at random while it is trained; {way_out}")
    probe = torch.rand(PROBES, *shape)
    try:
        # Nothing but torch's global generator differs.
        first, second = (net.apply(*net.values(), probe, train=True)[0] for _ in range(2))
    except Exception as error:
        raise UserError(
            f"backbone '{name}' cannot be called on images of shape {[PROBES, *shape]}: {short(error)}"
        ) from error
    if not torch.equal(first, second):
        raise UserError(f"backbone '{name}' draws at random while it is trained; {way_out}")


def _fresh(part: ExtractorPart | ClassifierPart, make: Callable[[], nn.Module]) -> nn.Module:
    """The structure of a part with the values of a new module."""
    wrapper = copy.deepcopy(part._module)
    wrapper.get_submodule(WHOLE).load_state_dict(make().state_dict())
    return wrapper
