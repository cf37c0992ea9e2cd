"""Which domains an inference is asked about, and that the answer is the score's alone."""

import itertools

import pytest
import torch

import privbench
from privbench import presets
from privbench.errors import AttackRefused, UserError
from privbench.execution import one_attack
from privbench.execution.inferring import candidate_domains
from privbench.observation import knowledge
from privbench.scoring.statement_scores import of_domains
from privbench.types import Knowledge
from reports.tables import inference_table
from tests.builders.federations import digits_federation
from tests.builders.small_artifacts import artifact, digits

NAME = "property-inference"


def asked_of(seed=0, domains=("b", "a", "b"), **changes):
    whole = digits_federation((20,) * len(domains))
    clients = [c._replace(domain=d) for c, d in zip(whole.clients, domains, strict=True)]
    fed = whole._replace(clients=tuple(clients))
    spec = presets.train_spec("smoke", "digits", changes.pop("method", "fedavg"), clients=len(domains)).model_copy(
        update={"seed": seed}
    )
    cell = presets.cell_spec("smoke", spec, NAME, **changes)
    return fed, spec, candidate_domains.of_cell(cell, spec, fed, None)


def test_every_auxiliary_image_has_its_domain():
    fed, spec, asked = asked_of()
    assert candidate_domains.names(fed) == ["a", "b"]
    images, _ = knowledge.auxiliary(fed, "same", None, (1, 32, 32), spec.seed)
    assert len(images.labels) == len(asked.domains) == 30
    domains = [int(asked.place[i]) for i in [1] * 10 + [0] * 10 + [1] * 10]
    assert asked.domains.tolist() == [domains[i] for i in asked.order]
    assert sorted(asked.order.tolist()) == list(range(30))
    got = asked.in_order_of_candidates(images)
    for d, k in ((int(asked.place[0]), slice(10, 20)), (int(asked.place[1]), [*range(10), *range(20, 30)])):
        assert torch.equal(got.images[asked.domains == d], images.images[k])
        assert torch.equal(got.labels[asked.domains == d], images.labels[k])


@pytest.mark.parametrize("auxiliary", ["same", "same:0.5"])
def test_the_order_of_the_images_tells_nothing_of_clients(auxiliary):
    for seed in range(4):
        asked = asked_of(seed, ("c", "a", "b"), auxiliary=auxiliary)[2]
        assert asked.domains.unique_consecutive().tolist() == [0, 1, 2]


def test_the_attacker_gets_the_same_whichever_client_holds_which_domain():
    fed, spec, _ = asked_of(domains=("c", "a", "b"))
    cell, given = presets.cell_spec("smoke", spec, NAME), []
    for clients in itertools.permutations(fed.clients):
        held = fed._replace(clients=clients)
        asked = candidate_domains.of_cell(cell, spec, held, None)
        images, _ = knowledge.auxiliary(held, "same", None, (1, 32, 32), spec.seed)
        given.append((asked.domains, *asked.in_order_of_candidates(images)))
    assert len(given) == 6
    assert all(torch.equal(a, b) for one in given for a, b in zip(given[0], one, strict=True))


def test_a_share_of_the_images_has_the_domains_of_that_share():
    fed, spec, asked = asked_of(auxiliary="same:0.5")
    images, _ = knowledge.auxiliary(fed, "same:0.5", None, (1, 32, 32), spec.seed)
    every, _ = knowledge.auxiliary(fed, "same", None, (1, 32, 32), spec.seed)
    whole = asked_of()[2]
    of_all = whole.in_order_of_candidates(every).images
    for image, domain in zip(asked.in_order_of_candidates(images).images, asked.domains, strict=True):
        (place,) = torch.nonzero((of_all == image).flatten(1).all(1))
        assert whole.domains[place] == domain


def test_the_order_of_the_candidates_is_drawn_by_the_seed_and_undone_for_the_score():
    orders = {tuple(asked_of(seed)[2].place.tolist()) for seed in range(8)}
    assert orders == {(0, 1), (1, 0)}
    for seed in range(8):
        _, _, asked = asked_of(seed)
        # An attacker who knows: of the second client's images, the first name's.
        in_pool = torch.empty_like(asked.domains).scatter_(0, asked.order, asked.domains)
        answers = torch.nn.functional.one_hot(in_pool[[0, 10, 20]], 2)
        assert asked.in_order_of_names(answers).argmax(1).tolist() == [1, 0, 1]


def test_what_cannot_be_asked_is_refused():
    with pytest.raises(UserError, match="all clients' are of one; try --dataset digits4"):
        asked_of(domains=("a", "a"))
    with pytest.raises(UserError, match="trains on tasks"):
        asked_of(method="reptile")
    with pytest.raises(UserError, match="take a share"):
        asked_of(auxiliary="photos")
    with pytest.raises(UserError, match="there is none of"):
        asked_of(auxiliary="same:0.03")
    with pytest.raises(AttackRefused, match="attack a run of your own"):
        one_attack.infer_from_artifact(
            NAME, {}, artifact(*digits(2)), Knowledge(auxiliary=digits(4)), 0, torch.device("cpu"), lambda *_: None
        )


def test_the_score_is_whether_the_domain_is_named():
    stated = torch.tensor([[0.5, 0.3, 0.2], [0.4, 0.4, 0.2], [0.1, 0.1, 0.8]]).double()
    scored = of_domains(stated, [0, 1, 3], [0, 1, 1, 0], 3)
    assert [each.score for each in scored] == [1.0, 0.5, 0.0]
    assert [each.floors["chance"] for each in scored] == pytest.approx([1 / 3] * 3)
    # Two of four clients hold either of the first two domains.
    assert [each.floors["most frequent"] for each in scored] == [0.5, 0.5, 0.5]
    assert [each.true for each in scored] == [[1, 0, 0], [0, 1, 0], [1, 0, 0]]
    assert of_domains(stated[:1], [2], [0, 1, 1, 1], 3)[0].floors["most frequent"] == 1


def test_a_record_names_the_domains_and_a_table_has_the_share_of_right_ones(tmp_path):
    results = privbench.attack(
        attack=NAME, method="fedavg", dataset="digits4", preset="smoke", seeds=1, first_seed=3, victims=4, out=tmp_path
    )
    [record] = results.inferred
    assert record.question == "domain"
    assert record.answers == ["blended", "fonts", "inverted", "plain"]
    truth = [record.answers[each.true.index(1.0)] for each in record.statements]
    assert truth == ["plain", "blended", "fonts", "inverted"] == record.client_domains
    assert all(each.floors == {"chance": 0.25, "most frequent": 0.25} for each in record.statements)
    report = inference_table.report([record])
    assert "Score of the domain: share of clients whose domain is named, 0 to 1, higher is better." in report.notes


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({"dataset": "digits"}, "all clients' are of one; try --dataset digits4 --partition domain"),
        ({"dataset": "digits4", "partition": "iid"}, "--partition iid pools the domains; try --partition domain"),
        ({"dataset": "digits4", "omega": 1.0}, "--partition dirichlet pools the domains; try --partition domain"),
        ({"dataset": "digits4", "domains": "fonts"}, "all clients' are of one, fonts; name another one with --domains"),
    ],
)
def test_clients_of_one_domain_are_refused_before_training(layout, message, tmp_path):
    with pytest.raises(UserError, match=message):
        privbench.attack(attack=NAME, method="fedavg", preset="smoke", seeds=1, out=tmp_path, **layout)
