"""Conditions of an attack beyond its `needs`: its class declares them as `limits`, so that it is refused before training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch

from privbench import registry, written_defense
from privbench.defending import described
from privbench.errors import UserError
from privbench.methods.base import RoundClock
from privbench.networks import layer_chain
from privbench.networks.base import LinearClassifier
from privbench.networks.model import BACKBONES, Model
from privbench.observation import chosen_victims
from privbench.spec import CellSpec
from privbench.tensors import Params
from privbench.types import CLASSIFICATION, Artifact


class Limits(NamedTuple):
    """Conditions of one attack; by default none."""

    private_extractor: bool = False  # the clients must keep their extractors
    noise: bool = False  # uploads must carry noise of known variance
    linear_classifier: bool = False  # the classifier must begin with a linear layer, as LeNet-5's does
    plain_extractor: bool = (
        False  # extractors must have no running statistics, as those that the attack trains have none
    )
    most_parameters: int | None = None  # of extractor and classifier together
    most_images: int | None = None  # images per gradient
    several_images: bool = False  # gradients must be of several images
    undefended_batches: bool = False  # gradients of several images must be exact
    # The classifier must be LeNet-5's: it is crafted as three linear layers with sigmoids between them.
    sigmoid_classifier: bool = False
    plain_private_extractor: bool = False  # as `plain_extractor`, only of extractors that clients keep
    # Of extractors that clients keep, features must lie in a known range, unless a single linear layer takes them.
    placed_features: bool = False
    plain_classifier: bool = False  # the classifier must begin as its backbone's does, not with a bottleneck
    # Where clients keep their extractors, gradients must be of no imitated features besides the images'.
    unmixed: bool = False
    one_client: bool = False  # an upload must be one client's, and no sum
    image_generator: bool = False  # generators must make images, and not features
    # The extractor must be a chain of layers that have an inverse (privbench/networks/layer_chain.py).
    layer_chain: bool = False
    known_defenses: bool = False  # a defence must do nothing but what the attack `knows`


NONE = Limits()
ROUNDED = frozenset({"rounded"})  # what a number format below single precision does


def of(attack: object) -> Limits:
    """The limits that a class declares."""
    limits: Limits = getattr(attack, "limits", NONE)
    return limits


def exceeded(name: str, limits: Limits, cell: CellSpec) -> str:
    """Which limit a cell exceeds, with the way out, in a line; nothing where it keeps to all."""
    train = cell.train
    method = registry.create(registry.resolve("method", train.method), train.method_settings)
    private = "extractor" not in method.shared_parts
    defense = written_defense.create(train.defense, train.where)
    summed = chosen_victims.summed(defense, method, cell.able_rounds, train.clients)
    gan = method.networks(train.backbone).get("gan", Model.gan)
    model = registry.model(train.backbone, 3, 10, train.image_size, gan=gan)
    model = defense.network(model) if "network" in defense.places else model
    if fault := _at_odds(name, limits, train.method, model, private=private, noisy=defense.noisy):
        return fault
    if fault := (_of_sums(name, limits, private=private) if summed else "") or _no_common_start(name, cell):
        return fault
    if limits.linear_classifier:
        classifier = model.classifier
        if not isinstance(classifier, LinearClassifier):
            return (
                f"{name} needs a classifier that begins with a linear layer, but {train.backbone}'s begins with convolutions; "
                f"leave out --backbone, or try --attack {registry.STRONG}"
            )
    shape = model.channels, model.image_size, model.image_size
    # What keeps epsilon adds noise, whose size is not known before training is planned.
    does = frozenset({"noise"}) if defense.is_private else described.kinds(defense.describe())
    does |= frozenset() if cell.wire == "float32" else ROUNDED
    if fault := _not_crafted(name, limits, model) or _not_inverted(name, limits, model, does, shape):
        return fault
    images = cell.batch_size * (train.clients if summed else 1)
    if limits.most_images is not None and images > limits.most_images:
        given = f"sums of {images} images of {train.clients} clients were" if summed else f"--batch-size {images} was"
        return (
            f"{name} inverts gradients of at most {limits.most_images} image(s), but {given} asked for; try --attack "
            f"{registry.STRONG}"
        )
    if fault := _too_few(name, limits, images):
        return fault
    if limits.undefended_batches and images > 1 and defense.places - {"aggregate"}:
        return (
            f"{name} takes gradients of several images apart only where no defence changes them, but --defense {train.defense} "
            f"was asked for; leave out --batch-size, or try --attack {registry.STRONG}"
        )
    if limits.unmixed and private and _is_mixed(cell):
        return (
            f"{name} needs the gradients of the images alone, but with observe_loss=task those of {train.method} at round "
            f"{cell.round} are of imitated features besides; leave observe_loss at classification, the upper bound, or try "
            f"--attack {registry.OF_GRADIENTS}"
        )
    return ""


def _no_common_start(name: str, cell: CellSpec) -> str:
    """Why nobody knows what an attack has to know of the start of training, in a line; else nothing."""
    if cell.train.initialisation == "shared" or "initial" not in registry.needs(name, cell.attack_settings):
        return ""
    return (
        f"{name} needs the networks that all clients started with, but with --initialisation per-client each drew its own; "
        "leave that option out"
    )


def _is_mixed(cell: CellSpec) -> bool:
    """Whether the gradients of a cell are of imitated features besides, in whichever round "best" or "last" will be."""
    train, rounds = cell.train, cell.train.schedule.rounds
    if cell.observe != "gradient":
        return False
    method = registry.create(registry.resolve("method", train.method), train.method_settings)
    return all(method.imitated(RoundClock(r + 1, rounds)) for r in cell.able_rounds)


def exceeded_by(name: str, limits: Limits, seen: Artifact) -> str:
    """The same of an artifact that is at hand: whose extractor is broadcast, and whether uploads carry noise."""
    noisy, private = described.noise_variance(seen.defense) > 0, "extractor" not in seen.weights
    if fault := _at_odds(name, limits, seen.method, seen.model, private=private, noisy=noisy):
        return fault
    classifier = seen.model.classifier
    if (
        limits.linear_classifier
        and seen.model.backbone not in BACKBONES
        and not isinstance(classifier, LinearClassifier)
    ):
        return (
            f"{name} needs a classifier that begins with a linear layer, but that of {seen.model.backbone} does not; name one "
            f"where the split is declared, or try --attack {registry.STRONG}"
        )
    if fault := _too_few(name, limits, seen.batch_size) or _not_crafted(name, limits, seen.model):
        return fault
    does = described.kinds(seen.defense) | (ROUNDED if "wire" in seen.defense else frozenset())
    if fault := _not_inverted(name, limits, seen.model, does, seen.image_shape):
        return fault
    if (
        seen.target is not None
        and not {"aggregate"} & registry.resolve("attack", name).needs
        and name not in registry.FLOORS
    ):
        return (
            f"{name} attacks sums over clients that received the same networks, but here one client's message was made to stand "
            f"alone in them; try --attack {registry.ISOLATING}"
        )
    if seen.divided is not None and not _takes_divided(name):
        return (
            f"{name} attacks sums over clients that received the same networks, but here each client received others; try "
            f"--attack {registry.DIVIDING}"
        )
    return _of_sums(name, limits, private=private) if seen.member_weights is not None else ""


def _takes_divided(name: str) -> bool:
    """Whether an attack is made on sums over clients with networks of their own, or needs no network."""
    return name in registry.FLOORS or hasattr(registry.resolve("attack", name), "craft_each")


def _too_few(name: str, limits: Limits, images: int) -> str:
    """Why there is nothing to single out of a gradient, in a line; else nothing."""
    if images > 1 or not limits.several_images:
        return ""
    return (
        f"{name} singles one image out of several, but these gradients are of one image each; add --batch-size 8, or try "
        f"--attack {registry.STRONG}"
    )


def _not_crafted(name: str, limits: Limits, model: Model) -> str:
    """Why an attack cannot craft the classifier of a model that begins with a linear layer, in a line; else nothing."""
    if (
        not limits.sigmoid_classifier
        or model.backbone == "lenet5"
        or not isinstance(model.classifier, LinearClassifier)
    ):
        return ""
    return (
        f"{name} crafts the three layers and sigmoids of lenet5's classifier, but this one is of {model.backbone}; "
        f"try --attack {registry.STRONG}"
    )


def _not_inverted(name: str, limits: Limits, model: Model, does: frozenset[str], shape: Sequence[int]) -> str:
    """What keeps an attack from solving the extractor's equations, in a line; else nothing. `does`: what the defence does."""
    way_out = f"try --attack {registry.STRONG}"
    if limits.known_defenses:
        unknown = does - getattr(registry.resolve("attack", name), "knows", frozenset())
        if unknown:
            return f"{name} solves equations of which the defence leaves too little ({', '.join(sorted(unknown))}); {way_out}"
    if not limits.layer_chain:
        return ""
    net = model.net("extractor")
    try:
        layer_chain.chain_of(net, *net.init(torch.Generator()), shape, train=model.train_mode(1))
    except UserError as error:
        return f"{name} is {error}; {way_out}"
    return ""


def _of_sums(name: str, limits: Limits, *, private: bool) -> str:
    """Why an attack cannot be made on sums over clients, in a line; nothing where it takes them for batches.

    What is keyed by one client: its private extractor, its colluder, its networks, what its uploads have in common.
    """
    plugin = registry.resolve("attack", name)
    pools = private and bool(getattr(plugin, "pools", False))
    if not (limits.one_client or limits.private_extractor or pools or {"colluder", "oracle", "sent"} & plugin.needs):
        return ""
    return (
        f"{name} attacks what one client sends, but under secure aggregation a server gets sums over all; try --attack "
        f"{registry.STRONG}"
    )


def _too_much(limits: Limits, model: Model) -> str:
    """Which limit the networks exceed, in words; nothing where they keep to all."""
    if limits.plain_extractor and isinstance(model.classifier, LinearClassifier) and _shapes(model, "extractor")[1]:
        return f"trains extractors of its own, without the statistics of batch norm that {model.backbone}'s has"
    if limits.most_parameters is None:
        return ""
    count = sum(t.numel() for part in CLASSIFICATION for t in _shapes(model, part)[0].values())
    if count > limits.most_parameters:
        return f"reads gradients of at most {limits.most_parameters:,} numbers, but {model.backbone} has {count:,} parameters"
    return ""


def _is_unplaced(model: Model) -> bool:
    """Whether features of no known range enter several linear layers."""
    c = model.classifier
    return isinstance(c, LinearClassifier) and c.features_layer != c.logits_layer and not model.has_sigmoid_features


def _shapes(model: Model, part: str) -> tuple[Params, Params]:
    """(parameters, buffers) of a part, without memory."""
    with torch.device("meta"):
        # No generator draws there, and nothing is drawn.
        return model.net(part).init(cast("torch.Generator", None))


def _at_odds(name: str, limits: Limits, method: str, model: Model, *, private: bool, noisy: bool) -> str:
    way_out = f"try --attack {registry.STRONG}"
    if limits.private_extractor and not private:
        return f"{name} attacks private extractors, but {method} broadcasts its extractor; {way_out}"
    if fault := _too_much(limits, model):
        return f"{name} {fault}; leave out --backbone, or {way_out}"
    if (
        private
        and limits.plain_private_extractor
        and isinstance(model.classifier, LinearClassifier)
        and _shapes(model, "extractor")[1]
    ):
        return (
            f"{name} attacks private extractors by some of its own, without the statistics of batch norm that {model.backbone}'s "
            f"has; {way_out}"
        )
    if private and limits.placed_features and _is_unplaced(model):
        return (
            f"{name} spreads levels over the features, but of a private extractor of {model.backbone} nobody knows their range; "
            f"{way_out}"
        )
    if limits.plain_classifier and model.bottleneck:
        return f"{name} crafts the first layer of the classifier, before which there is a bottleneck; {way_out}"
    if limits.image_generator and model.gan != "image":
        return f"{name} reads generators of images, but that of {method} makes features; {way_out}"
    if limits.noise and not noisy:
        return f"{name} weighs the noise that uploads carry, but these carry none; {way_out}"
    return ""
