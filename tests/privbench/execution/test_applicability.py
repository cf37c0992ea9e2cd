"""Limits of attacks that depend on the networks, said before training."""

import pytest

from privbench import presets, registry
from privbench.execution import applicability


def refused(attack, method, backbone, **chosen):
    train = presets.train_spec("smoke", "digits", method, backbone=backbone, **chosen)
    limits = applicability.of(registry.resolve("attack", attack))
    return applicability.exceeded(attack, limits, presets.cell_spec("smoke", train, attack))


@pytest.mark.parametrize(
    ("attack", "method", "backbone", "reason"),
    [
        ("learned-inverse", "fedavg", "mlp", ""),
        ("learned-inverse", "fedavg", "vit", ""),
        ("learned-inverse", "fedavg", "convnet", "of at most 1,000,000 numbers, but convnet has 2,904,970 parameters; leave out"),
        ("learned-inverse", "fedavg", "resnet18-torchvision", "resnet18-torchvision has 11,181,642 parameters; leave out"),
        ("imprint", "fedavg", "vit", ""),
        ("model-inconsistency", "fedavg", "vit", "but this one is of vit; try"),
        ("imprint", "fedavg", "resnet18-torchvision", "but resnet18-torchvision's begins with convolutions; leave out"),
        ("surrogate", "fedsplit", "vit", ""),
        ("surrogate", "fedsplit", "convnet", "without the statistics of batch norm that convnet's has; leave out"),
    ],
)  # fmt: skip
def test_an_attack_says_in_one_line_which_networks_it_does_not_take(attack, method, backbone, reason):
    said = refused(attack, method, backbone)
    assert "\n" not in said
    assert (reason in said) if reason else not said


def test_a_convnet_that_normalises_by_groups_has_an_extractor_that_can_be_imitated():
    assert not refused("surrogate", "fedsplit", "convnet", defense="dp-sgd:1,clip=1")


@pytest.mark.parametrize("defense", ["none", "clip:1"])
@pytest.mark.parametrize("wire", ["bf16", "fp16"])
def test_equations_that_hold_exactly_are_not_asked_of_rounded_entries(defense, wire):
    """Said before training, behind a defence that the attack knows as well."""
    train = presets.train_spec("smoke", "digits", "fedavg", defense=defense)
    limits = applicability.of(registry.resolve("attack", "layerwise"))
    cell = presets.cell_spec("smoke", train, "layerwise", wire=wire)
    assert "the defence leaves too little (rounded)" in applicability.exceeded("layerwise", limits, cell)
    assert not applicability.exceeded("layerwise", limits, presets.cell_spec("smoke", train, "layerwise"))
