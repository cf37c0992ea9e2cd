"""Membership from the loss alone, by the broadcast networks and by those that each client sent."""

import dataclasses

import pytest
import torch
from torch.nn.functional import cross_entropy

import privbench
from attacks.loss_threshold import LossThreshold, probabilities
from privbench.errors import UserError
from privbench.execution import at_round
from privbench.records.store import Store
from privbench.scoring.statement_scores import of_membership
from privbench.training import federation, harness
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
    assert stated.tolist() == pytest.approx([1 / (1 + 2.718281828**-1), 0.5, 1 / (1 + 2.718281828), 0.5])
    assert probabilities(torch.full((3,), torch.nan, dtype=torch.float64)).tolist() == [0.5] * 3


OPTIONS = {
    "attack": "loss-threshold", "method": "fedavg", "dataset": "digits", "preset": "smoke", "backbone": "mlp", "seeds": 1,
    "first_seed": 3, "victims": 4, "clients": 2,
}  # fmt: skip


def test_what_clients_sent_is_what_the_run_averaged(tmp_path):
    """The same networks as of the run trained again, of a round that was kept and of one that was not."""
    results = privbench.attack(attack_set="networks=sent", rounds=3, round="1,2,3", out=tmp_path, **OPTIONS)
    assert {r.knowledge.tag for r in results.inferred} == {"each client's networks + networks + candidates"}
    store, cell = Store(tmp_path), results.inferred[0].cell
    spec = cell.train.model_copy(update={"seed": 3})
    fed, _ = federation.of(spec, None)
    setup = harness.prepare(spec, fed, torch.device("cpu"))
    state = harness.initial(setup)
    for record in sorted(results.inferred, key=lambda r: r.seeds[0].round):
        harness.train_round([setup], [state], "alone")
        seen, _, _ = at_round.observed(store, record.cell, spec, None, "cpu", lambda *_: None)
        assert seen.round == state.round
        sent = at_round.sent_networks(store, spec, seen, fed, "cpu", lambda *_: None)
        assert [*sent] == [0, 1]
        for k, networks in sent.items():
            for part in ("extractor", "classifier"):
                for name, value in state.uploads[k][0][part].items():
                    assert torch.equal(networks.params[part][name], value)


def test_before_the_first_round_nothing_was_sent(tmp_path):
    with pytest.raises(UserError, match="before the first round"):
        privbench.attack(attack_set="networks=sent", round="0", out=tmp_path, **OPTIONS)


def test_where_the_extractor_is_private_the_other_inference_on_membership_is_named(tmp_path):
    options = OPTIONS | {"method": "fedsplit"}
    with pytest.raises(UserError, match=r"broadcast:extractor.*; try --attack membership-inference$"):
        privbench.attack(out=tmp_path, **options)
