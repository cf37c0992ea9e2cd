"""Membership from the loss alone, by the broadcast networks and by those that each client sent."""

import dataclasses
import math
from typing import NamedTuple

import pytest
import torch
from torch.nn.functional import cross_entropy

import privbench
from attacks.loss_threshold import LossThreshold, probabilities
from privbench.errors import UserError
from privbench.execution import at_round
from privbench.methods.fedavg import FedAvg
from privbench.records.schema import InferenceRecord
from privbench.records.store import Store
from privbench.scoring.statement_scores import of_membership
from privbench.spec import TrainSpec
from privbench.training import checkpoint, federation, harness
from privbench.types import Federation
from tests.builders.memorised import attacked


@pytest.fixture(scope="module")
def overfitted():
    return attacked("fedavg", rounds=2, epochs=30, backbone="mlp")


def answers_on(case, networks="broadcast"):
    whole = dataclasses.replace(case.whole, sent=case.sent) if networks == "sent" else case.whole
    return LossThreshold(networks=networks).infer(case.seen, whole, 0).answers


def area(case, networks="broadcast"):
    scored = of_membership(answers_on(case, networks), case.whole.candidates, case.members)
    return sum(each.score for each in scored) / len(scored)


def test_members_of_an_overfitted_network_are_recognised(overfitted):
    assert area(overfitted) > 0.6
    assert area(overfitted, "sent") > area(overfitted) + 0.05


def test_the_order_is_that_of_the_losses(overfitted):
    """And half of a client's candidates are named as members."""
    for networks in ("broadcast", "sent"):
        for k, (stated, images, labels) in enumerate(
            zip(answers_on(overfitted, networks), *overfitted.whole.candidates, strict=True)
        ):
            sent = overfitted.sent[k].params if networks == "sent" else overfitted.seen.weights
            model = overfitted.seen.model
            h, _ = model.net("extractor").apply(sent["extractor"], {}, images, train=False)
            logits, _ = model.net("classifier").apply(sent["classifier"], {}, h, train=False)
            loss = cross_entropy(logits.double(), labels, reduction="none")
            ranked = loss.argsort()
            # Losses of images that a network is sure of are rounded to the same number.
            distinct = loss[ranked].diff() > 1e-12
            assert bool((stated[ranked].diff()[distinct] < 0).all())
            assert int((stated > 0.5).sum()) == len(labels) // 2


def test_a_confidence_that_is_no_number_tells_nothing():
    stated = probabilities(torch.tensor([1.0, torch.nan, -1.0, torch.inf], dtype=torch.float64))
    # One standard deviation of the two numbers 1 and -1 is the square root of 2.
    sure = 1 / (1 + math.exp(-1 / math.sqrt(2)))
    assert stated.tolist() == pytest.approx([sure, 0.5, 1 - sure, 0.5])
    assert probabilities(torch.full((3,), torch.nan, dtype=torch.float64)).tolist() == [0.5] * 3
    assert probabilities(torch.full((3,), 2.0, dtype=torch.float64)).tolist() == [0.5] * 3


def test_a_network_that_is_sure_keeps_the_order():
    """Logits of 37 and more all round to a probability of 1."""
    confidences = torch.tensor([0.0, 50.0, 100.0, 100.001, 150.0, 2000.0], dtype=torch.float64)
    assert bool((probabilities(confidences).diff() > 0).all())


OPTIONS = {
    "attack": "loss-threshold", "method": "fedavg", "dataset": "digits", "preset": "smoke", "backbone": "mlp", "seeds": 1,
    "first_seed": 3, "victims": 4, "clients": 2,
}  # fmt: skip


class Run(NamedTuple):
    """A run whose sent networks were asked about, and what it was made of."""

    store: Store
    records: tuple[InferenceRecord, ...]
    spec: TrainSpec
    fed: Federation

    def seen(self, number=0):
        """The artifact of one record."""
        return at_round.observed(self.store, self.records[number].cell, self.spec, None, "cpu", lambda *_: None)[0]

    def sent(self, number=0):
        """What each client sent at its round."""
        return at_round.sent_networks(self.store, self.spec, self.seen(number), self.fed, "cpu", lambda *_: None)


def run(folder, **chosen):
    """Such a run of one seed; records by their rounds."""
    results = privbench.attack(attack_set="networks=sent", out=folder, **OPTIONS | chosen)
    records = tuple(sorted(results.inferred, key=lambda r: r.seeds[0].round))
    spec = records[0].cell.train.model_copy(update={"seed": 3})
    return Run(Store(folder), records, spec, federation.of(spec, None)[0])


def test_what_clients_sent_is_what_the_run_averaged(tmp_path):
    """The weighted mean of what was sent is the broadcast; and the run trained again sends the same networks."""
    made = run(tmp_path, rounds=3, round="1,2,3")
    assert {r.knowledge.tag for r in made.records} == {"each client's networks + candidates"}
    setup = harness.prepare(made.spec, made.fed, torch.device("cpu"))
    state = harness.initial(setup)
    shares = torch.tensor([float(len(client.train.labels)) for client in made.fed.clients])
    shares /= shares.sum()
    for number in range(3):
        harness.train_round([setup], [state], "alone")
        seen, sent = made.seen(number), made.sent(number)
        assert seen.round == state.round
        assert [*sent] == [0, 1]
        # It was kept, so that no other cell trains it again.
        assert checkpoint.full_path(made.store.train(made.spec), seen.round).exists()
        for part in ("extractor", "classifier"):
            for name, broadcast in seen.weights[part].items():
                both = torch.stack([sent[k].params[part][name] for k in (0, 1)])
                # Two products and a sum in single precision.
                torch.testing.assert_close(torch.tensordot(shares, both, 1), broadcast, rtol=1e-5, atol=1e-6)
                assert not torch.equal(both[0], both[1])
                assert torch.equal(both, torch.stack([state.uploads[k][0][part][name] for k in (0, 1)]))


def test_what_was_kept_is_read_and_not_trained_again(tmp_path, monkeypatch):
    made = run(tmp_path)
    before = made.sent()

    def training(*_):
        raise AssertionError("trained again")

    monkeypatch.setattr(harness, "train_round", training)
    for k, networks in made.sent().items():
        for part, each in networks.params.items():
            assert all(torch.equal(value, before[k].params[part][name]) for name, value in each.items())


def test_what_was_trained_again_has_the_memory_layout_of_what_was_kept(tmp_path):
    """Training leaves weights of convolutions channels last; in that order sums over the same numbers end in other digits."""
    made = run(tmp_path, rounds=3, round="2", backbone="lenet5")
    kept = made.sent()
    checkpoint.full_path(made.store.train(made.spec), made.seen().round).unlink()
    for k, networks in made.sent().items():
        for part, each in networks.params.items():
            for name, value in each.items():
                assert torch.equal(value, kept[k].params[part][name])
                assert value.stride() == kept[k].params[part][name].stride()


def test_a_client_that_did_not_take_part_yet_sent_nothing(tmp_path, monkeypatch):
    made = run(tmp_path)
    monkeypatch.setattr(FedAvg, "participants", lambda self, round_, clients: (0,))
    assert made.sent() is None


def test_a_defence_of_messages_acts_on_what_was_sent(tmp_path):
    """Under noise what clients sent is not what they trained, and the attacker's networks are the noised ones."""
    made = run(tmp_path, defense="gaussian:0.1")
    state = checkpoint.full(made.store.train(made.spec), made.spec, made.seen().round, torch.device("cpu"))

    def flat(params):
        return torch.cat([t.flatten() for part in ("extractor", "classifier") for t in params[part].values()])

    difference = flat(made.sent()[0].params) - flat(state.clients[0].params)
    # A variance of 0.1 per number of the update; its standard error over so many numbers is a fraction of a percent.
    assert float(difference.square().mean()) == pytest.approx(0.1, rel=0.05)


def test_before_the_first_round_nothing_was_sent(tmp_path):
    with pytest.raises(UserError, match="before a client's first round"):
        privbench.attack(attack_set="networks=sent", round="0", out=tmp_path, **OPTIONS)


def test_where_the_extractor_is_private_the_other_inference_on_membership_is_named(tmp_path):
    options = OPTIONS | {"method": "fedsplit"}
    with pytest.raises(UserError, match=r"broadcast:extractor.*; try --attack membership-inference$"):
        privbench.attack(out=tmp_path, **options)
