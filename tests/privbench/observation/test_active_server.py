"""Active servers: clients train on what was crafted, for as many rounds as the attack says, and never later than others."""

import copy
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from privbench import presets, registry
from privbench.errors import AttackRefused
from privbench.execution import at_round, cell_jobs
from privbench.observation import active_server, knowledge
from privbench.records.store import Store
from privbench.training import harness
from privbench.training.state import Snapshot
from privbench.types import ExpectedUpload, Knowledge, Networks
from tests.builders.federations import digits_federation, learn_round

CPU = torch.device("cpu")
METHOD = {"gan": "dense", "ramp_rounds": 1}


@dataclass(frozen=True)
class Halves:
    """Sends the classifier and the generator with all parameters halved, and batch-norm statistics moved by one."""

    active_rounds: int = 2
    part: str = "classifier"

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "upload:generator", "auxiliary"})
    knowledge: ClassVar[str] = "test"
    rung: ClassVar[str] = "L7"
    active: ClassVar[bool] = True

    def craft(self, model, broadcast, knowledge, seed):
        """Half of what was to be sent."""
        sent = {part: {n: t / 2 for n, t in broadcast.params[part].items()} for part in ("classifier", "generator")}
        moved = {n: t + 1 for n, t in broadcast.buffers["generator"].items()}
        return Networks({self.part: sent["classifier"], "generator": sent["generator"]}, {"generator": moved})

    def reconstruct(self, artifact, knowledge, seed, progress):
        """Never asked here."""
        raise AssertionError("these observations are not attacked")


NAME = f"{__name__}:Halves"


def cell_of(method="fedcg", attack=NAME, settings=None, **changes):
    method_settings = METHOD if method == "fedcg" else {}
    defense = changes.pop("defense", "none")
    train = presets.train_spec(
        "smoke", "digits", method, defense=defense, method_settings=method_settings, changes={"rounds": 4, **changes}
    )
    return presets.cell_spec("smoke", train, registry.typed("attack", attack), attack_settings=settings)


def setup_of(cell):
    return harness.prepare(cell.train, digits_federation((20, 24)), CPU)


def equal(one, other):
    return all(torch.equal(t, other[part][n]) for part, net in one.items() for n, t in net.items())


def by_hand(cell, honest, crafted):
    """The state after some honest rounds and then some on half of what would have been sent after the honest ones."""
    setup = setup_of(cell)
    state = harness.initial(setup)
    for _ in range(honest):
        learn_round([setup], [state])
    honest_networks = Networks(state.server.params, state.server.buffers)
    sent = Halves().craft(None, honest_networks, None, 0)
    for _ in range(crafted):
        state.server.params = state.server.params | copy.deepcopy(sent.params)
        state.server.buffers = state.server.buffers | copy.deepcopy(sent.buffers)
        learn_round([setup], [state])
    return state, sent


@pytest.mark.parametrize(("round_", "honest"), [(3, 1), (1, 0)])
def test_clients_train_on_what_was_crafted_and_look_no_later(round_, honest, tmp_path):
    cell = cell_of()
    shot = active_server.trained(cell, setup_of(cell), round_, tmp_path, tmp_path / "run", None)
    state, sent = by_hand(cell, honest, round_ - honest)
    assert shot.round == round_
    assert equal(shot.server.params, sent.params)
    assert equal(shot.server.buffers, sent.buffers | {"classifier": {}})
    for client, reference, upload, reference_upload in zip(
        shot.clients, state.clients, shot.uploads, state.uploads, strict=True
    ):
        assert equal(client.params, reference.params)
        assert equal(upload[0], reference_upload[0])
    assert active_server.crafted_rounds(tmp_path) == {"active_rounds": round_ - honest}
    again = active_server.trained(cell, setup_of(cell), round_, tmp_path, tmp_path / "run", None)  # read back
    assert all(equal(a.params, b.params) for a, b in zip(shot.clients, again.clients, strict=True))
    assert active_server.sent(cell, setup_of(cell), shot, None) is shot
    (tmp_path / active_server.HISTORY).unlink()
    active_server.trained(cell, setup_of(cell), round_, tmp_path, tmp_path / "run", None)
    assert active_server.crafted_rounds(tmp_path) == {"active_rounds": round_ - honest}


def test_crafted_rounds_lead_elsewhere_than_honest_ones(tmp_path):
    cell = cell_of()
    shot = active_server.trained(cell, setup_of(cell), 2, tmp_path, tmp_path / "run", None)
    honest, _ = by_hand(cell, 2, 0)
    assert not equal(shot.clients[0].params, honest.clients[0].params)


def test_an_attack_without_such_rounds_looks_at_the_honest_networks():
    cell = cell_of(attack="imprint")
    assert active_server.rounds(cell) == 0
    assert active_server.rounds(cell_of(settings={"active_rounds": 5})) == 5
    assert active_server.rounds(presets.cell_spec("smoke", cell.train, "staged")) == 0
    setup = setup_of(cell)
    state = harness.initial(setup)
    shot = Snapshot(0, state.server, state.clients, state.uploads)
    sent = active_server.sent(cell.model_copy(update={"batch_size": 2}), setup, shot, None)
    assert torch.linalg.matrix_rank(sent.server.params["classifier"]["fc1.weight"]) == 1
    assert equal({"generator": sent.server.params["generator"]}, shot.server.params)
    assert sent.clients is shot.clients


@pytest.mark.parametrize(
    ("method", "round_", "settings", "message"),
    [
        ("fedcg", 0, {}, "round 0 is before any; attack a later round"),
        ("fedsplit", 1, {}, "needs the upload:generator, which fedsplit does not send"),
        ("fedgen", 1, {}, "needs the upload:generator, which fedgen does not send"),
        ("fedcg", 1, {"part": "extractor"}, "crafts the extractor, which fedcg does not broadcast"),
    ],
)
def test_what_cannot_be_crafted_is_refused_in_one_line(method, round_, settings, message, tmp_path):
    cell = cell_of(method, settings=settings)
    with pytest.raises(AttackRefused, match=message) as caught:
        active_server.trained(cell, setup_of(cell), round_, tmp_path, tmp_path / "run", None)
    assert "\n" not in str(caught.value)


def test_who_crafts_nothing_is_honest():
    cell = cell_of(attack="imprint")  # of one image and a private extractor nothing is crafted
    state = harness.initial(setup_of(cell))
    shot = Snapshot(0, state.server, state.clients, state.uploads)
    sent = active_server.sent(cell, setup_of(cell), shot, None)
    assert equal(sent.server.params, shot.server.params)


def test_an_active_attack_knows_the_expected_uploads_and_no_other_is(monkeypatch):
    cell, handed = cell_of(defense="gaussian:0.5").model_copy(update={"batch_size": 3}), []
    monkeypatch.setattr(
        Halves, "craft", lambda s, model, broadcast, known, seed: handed.append(known) or Networks({}, {})
    )
    setup = setup_of(cell)
    active_server.crafted(cell, setup, harness.initial(setup).server, 0, None, None)
    assert handed[0].expected == ExpectedUpload(3, setup.defense)
    assert handed[0].broadcast is None
    whole = Knowledge(handed[0].auxiliary, expected=handed[0].expected, broadcast=Networks({}, {}))
    passive = knowledge.only(frozenset({"auxiliary"}), whole, "surrogate")
    assert passive.expected is passive.broadcast is None


def test_the_artifact_holds_what_was_crafted_and_lies_apart(tmp_path):
    cell, store, (train,) = cell_of(), Store(tmp_path), cell_of().train_specs()
    cell_jobs.train(store, [train], None, "cpu")
    seen, _, shot = at_round.observed(store, cell, train, None, "cpu", lambda *_: None)
    assert equal(seen.weights, shot.server.params)
    assert equal(seen.buffers, shot.server.buffers)
    other = cell_of(settings={"active_rounds": 1})
    honest = presets.cell_spec("smoke", train, "grey")
    assert len({store.artifact(each, train, seen.round) for each in (cell, other, honest)}) == 3
