"""An attack of a user's own that is none, returns none or writes into its artifact: one line, and nobody else's number changes."""

import dataclasses
import sys
import types

import pytest
import torch

from attacks.floors import Grey
from privbench import registry, trust
from privbench.errors import UserError
from privbench.execution import one_attack
from privbench.types import Knowledge
from tests.builders.small_artifacts import artifact, smooth_images

BASE = {"needs": frozenset(), "knowledge": "nothing", "reconstruct": lambda *_: None}


@pytest.fixture
def as_plugin(monkeypatch):
    """Puts a class under the name mine:Attack."""

    def put(plugin):
        monkeypatch.setitem(sys.modules, "mine", types.SimpleNamespace(Attack=plugin))
        trust.add("mine:Attack")
        return "mine:Attack"

    return put


def frozen(**attributes):
    return dataclasses.dataclass(frozen=True)(type("Attack", (), BASE | attributes))


@pytest.mark.parametrize(
    ("plugin", "fault"),
    [
        (type("Attack", (), BASE), "should be a class with @dataclass(frozen=True)"),
        (frozen()(), "should be a class with @dataclass(frozen=True)"),
        (frozen(needs="gradient"), "should say `needs` as a set of names, e.g. frozenset({'gradient'}), but it is 'gradient'"),
        (frozen(needs=None), "should say `needs` as a set of names"),
        (frozen(uses=["gradient"]), "should say `uses` as a set of names"),
        (frozen(knowledge=None), "should say in words what it knows"),
        (frozen(reconstruct=None), "has no method `reconstruct`"),
        (frozen(reconstruct=lambda self, artifact, knowledge, seed: None), "should have the method `reconstruct(self, artifact, "),
        (frozen(question="what", infer=lambda self, artifact: None), "should have the method `infer(self, artifact, knowledge, "),
    ],
)  # fmt: skip
def test_a_class_that_is_no_attack_gets_one_line(plugin, fault, as_plugin):
    with pytest.raises(UserError) as error:
        registry.resolve("attack", as_plugin(plugin))
    assert str(error.value).startswith(f"attack 'mine:Attack' {fault}")
    assert str(error.value).endswith("; docs/extending.md shows one")


def test_a_method_that_is_no_subclass_gets_one_line(as_plugin):
    with pytest.raises(UserError, match=r"^method 'mine:Attack' is no subclass of privbench\.methods\.base\.Method, "):
        registry.resolve("method", as_plugin(frozen()))


def test_a_method_and_a_defence_that_are_no_dataclass_get_one_line(as_plugin):
    for kind in ("method", "defense"):
        with pytest.raises(UserError, match=rf"{kind} 'mine:Attack' should be a class with @dataclass"):
            registry.resolve(kind, as_plugin(object))


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        (lambda r: None, "it returned nothing"),
        (tuple, "it returned a tuple"),
        (lambda r: r._replace(images=r.images[:1]), "`images` has shape (1, 1, 1, 32, 32), not (2, 1, 1, 32, 32)"),
        (lambda r: r._replace(images=r.images.byte()), "`images` is of torch.uint8, not floating point"),
        (lambda r: r._replace(images=r.images.numpy()), "`images` is of type ndarray"),
        (lambda r: r._replace(labels=r.labels[:, 0]), "`labels` has shape (2,), not (2, 1)"),
        (lambda r: r._replace(loss=r.trace), "`loss` has shape (2, 1), not (2,)"),
        (lambda r: r._replace(trace=r.loss), "`trace` has shape (2,), not (2, T)"),
        (lambda r: r._replace(trace=r.trace[:, :0]), "`trace` has shape (2, 0), not (2, T)"),
    ],
)
def test_what_is_no_reconstruction_gets_one_line(changed, fault, as_plugin):
    seen = artifact(smooth_images(2), torch.tensor([1, 2]))
    name = as_plugin(frozen(reconstruct=lambda _, *given: changed(Grey().reconstruct(*given))))
    with pytest.raises(UserError) as error:
        one_attack.attack_artifact(name, {}, seen, Knowledge(), 0, torch.device("cpu"), lambda *_: None)
    assert str(error.value) == f"mine:Attack should return a Reconstruction of 2 victims, but {fault}"
