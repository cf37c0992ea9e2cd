"""A torch module of a user's own in the place of the suite's networks: an extractor, and a head as the classifier.

Where it is cut says privbench/networks/module_split.py. What is claimed of a module is tried on images of noise before any attack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privbench.errors import UserError
from privbench.networks.base import Classifier, Net
from privbench.networks.layers import UNBOUNDED
from privbench.networks.model import LastInputs, Model
from privbench.networks.module_net import ModuleNet
from privbench.networks.module_parts import ClassifierPart, ExtractorPart, InputForm, by_part, structure
from privbench.networks.module_split import CLOSE, Cuts, Trace, traced
from privbench.tensors import Params, Parts

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs [B, Y], labels [B]) -> the mean over the batch
PROBES = 8  # images of noise on which a module is tried
TRIALS = 3  # batches of outputs on which a loss is tried, an image of each class in each


@dataclass(frozen=True, eq=False, kw_only=True)
class ModuleModel(Model):
    """The networks that a module is made of; `backbone` is the name of its class, for messages."""

    extractor_part: ExtractorPart
    classifier_part: ClassifierPart
    features: tuple[int, int, int]
    form: InputForm
    train: bool  # the mode in which the clients take gradients
    client_loss: Loss | None  # None: cross-entropy
    logits_inputs: LastInputs | None
    is_direct: bool  # whether the features are the image itself

    def __post_init__(self) -> None:
        """The backbone is no name of the suite's."""

    def net(self, part: str) -> Net:
        """Extractor or classifier; UserError for others."""
        if part == "extractor":
            return self.extractor_part
        if part == "classifier":
            return self.classifier_part
        raise UserError(f"a module of a user's own has no {part}; known: extractor, classifier")

    @property
    def classifier(self) -> Classifier:
        """The head."""
        return self.classifier_part

    @property
    def feature_shape(self) -> tuple[int, int, int]:
        """Of the input of the head, with axes of length 1 for those that it lacks."""
        return self.features

    def train_mode(self, batch_size: int) -> bool:
        """As declared, whatever the batch."""
        return self.train

    def loss(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """The clients' own loss, or cross-entropy; UserError for sums of images that count for different weights in the former."""
        if self.client_loss is None:
            return super().loss(logits, labels, weights)
        if weights is not None:
            raise UserError("images of different weights are known for cross-entropy alone")
        loss = self.client_loss(logits, labels)
        if loss.ndim:
            raise UserError(
                f"the declared loss should return one number, as its mean over images, but it has shape {list(loss.shape)}"
            )
        return loss

    @property
    def is_smooth(self) -> bool:
        """Nothing is known of its kinks."""
        return False

    @property
    def has_sigmoid_features(self) -> bool:
        """Nothing is known of its range."""
        return False

    @property
    def feature_range(self) -> tuple[float, float]:
        """Nothing is known of it."""
        return UNBOUNDED

    @property
    def last_inputs(self) -> LastInputs | None:
        """As tried; None also for another loss than cross-entropy."""
        return self.logits_inputs

    def images_of(self, features: Tensor) -> Tensor | None:
        """The inverse of the normalisation, where features are the image."""
        return self.form.images(features) if self.is_direct else None

    def belongs_to_head(self, name: str) -> bool:
        """Whether a parameter or buffer is the classifier's."""
        return name in self.classifier_part.names

    def parts(self, named: Params) -> Parts:
        """Tensors by their names in the module as those of the two parts."""
        return by_part(named, self.belongs_to_head)


def model_of(
    module: nn.Module, form: InputForm, *, train: bool, head: Sequence[str] = (), loss: Loss | None = None
) -> ModuleModel:
    """The networks of a module; `head` names the submodules of the classifier, by default those of the longest linear chain.

    UserError: a module that cannot be called on such images or returns no [B, Y], a head that is none.
    """
    name = type(module).__name__
    if not any(p.requires_grad for p in module.parameters()):
        raise UserError(f"{name} has no parameters that are trained, so that nothing is sent")
    rng = torch.Generator().manual_seed(0)
    probe = torch.rand(PROBES, *form.shape, generator=rng).to(next(module.parameters()))
    trace = traced(module, form.entered(probe), name)
    if loss is not None and _is_cross_entropy(loss, trace.outputs):
        loss = None
    _check_determined(module, form.entered(probe), name, train=train)
    cuts = Cuts(module, form, probe, trace, train=train)
    cut = cuts.declared(head) if head else cuts.longest()
    return ModuleModel(
        backbone=f"the module {name}",
        channels=form.shape[0],
        classes=trace.outputs.shape[1],
        image_size=form.shape[1],
        extractor_part=cut.extractor,
        classifier_part=cut.classifier,
        features=cut.shape,
        form=form,
        train=train,
        client_loss=loss,
        logits_inputs=None if loss is not None else _last_inputs(trace, cut.classifier),
        is_direct=cut.is_direct,
    )


def _is_cross_entropy(loss: Loss, outputs: Tensor) -> bool:
    """Whether a loss is cross-entropy of outputs like these [B, Y], tried on noise: of log-probabilities NLL is, too."""
    rng = torch.Generator().manual_seed(0)
    classes = outputs.shape[1]
    noise = 3 * torch.randn(TRIALS, classes, classes, generator=rng, dtype=torch.float64)
    if torch.allclose(outputs.logsumexp(1), outputs.new_zeros(()), atol=CLOSE):
        noise = noise.log_softmax(2)
    y = torch.arange(classes)
    try:
        return all(torch.allclose(loss(one, y), F.cross_entropy(one, y), rtol=1e-9, atol=1e-12) for one in noise)
    except Exception:  # noqa: BLE001 (whatever a loss of a user's raises; it is asked again, for what it is meant for)
        return False


def _check_determined(module: nn.Module, entered: Tensor, name: str, *, train: bool) -> None:
    """UserError where two calls on the same images differ, as dropout that is no layer of torch.nn makes them."""
    net = ModuleNet(structure(module))
    with torch.no_grad():
        one, other = (net.apply(*net.values(), entered, train=train)[0] for _ in range(2))
    if not isinstance(one, torch.Tensor):
        raise UserError(
            f"{name} returns a {type(one).__name__} in train mode, but an audit takes one tensor of outputs; declare --mode eval"
        )
    if not torch.equal(one, other):
        raise UserError(
            f"{name} draws at random in train mode, and not by a dropout layer of torch.nn, which could be left out; an attack "
            "cannot repeat such draws: use such a layer, or declare --mode eval"
        )


def _last_inputs(trace: Trace, classifier: ClassifierPart) -> LastInputs | None:
    """Of the layer whose outputs are the module's."""
    each = {call.name: call.inputs for call in trace.linear}
    if classifier.logits_layer not in each:
        return None
    entered = each[classifier.logits_layer]
    return LastInputs(float(entered.mean()), negative=bool((entered < 0).any()))
