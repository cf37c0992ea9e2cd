"""What a classifier's gradients tell of the domain of a client's images."""

import dataclasses
from functools import cache

import pytest
import torch

from attacks.property_inference import PropertyInference, log_probabilities
from attacks.shadow.by_domain import gradient_shape, shadow_clients
from privbench import presets, written_defense
from privbench.defending import described
from privbench.errors import UserError
from privbench.observation import knowledge, observe
from privbench.observation.chosen_victims import choose_victims
from privbench.seeds import stream
from privbench.training import checkpoint, harness
from privbench.types import Images, Knowledge, LocalSteps
from tests.builders.federations import digits_federation

ROUNDS, VICTIMS, BATCH = 2, 12, 4


def blank(images):
    return torch.full_like(images, 128)


def of_two_domains(change=blank, images=60):
    """Three clients: digits as they are, changed ones, and again changed ones. Of blank images there is nothing to learn."""
    whole = digits_federation((images,) * 3)

    def changed(client):
        train, validation = (Images(change(part.images), part.labels) for part in (client.train, client.validation))
        return client._replace(domain="changed", train=train, validation=validation)

    first, *others = whole.clients
    return whole._replace(clients=(first._replace(domain="plain"), *map(changed, others)))


def attacked(folder, method, federation, defense="none", **observed):
    """(what the server holds, what the attacker knows): candidate 0 is plain, 1 changed."""
    spec = presets.train_spec(
        "smoke", "digits", method, clients=3, defense=defense, changes={"rounds": ROUNDS, "local_epochs": 4}
    )
    setup = harness.prepare(spec, federation, torch.device("cpu"))
    state = harness.initial(setup)
    for _ in range(ROUNDS):
        harness.train_round([setup], [state], "alone")
    checkpoint.begin(folder, spec)
    checkpoint.save_snapshot(folder, spec, state)
    seen, _ = observe.observe(
        checkpoint.load_snapshot(folder, spec.id, ROUNDS), federation, setup.model, setup.method, setup.defense,
        method_name=method, dataset="digits", victims=VICTIMS, batch_size=BATCH, labels_known=False, seed=0, rounds=ROUNDS,
        chosen=choose_victims(federation, VICTIMS, BATCH, 0), **observed,
    )  # fmt: skip
    named = [torch.full_like(c.validation.labels, int(c.domain == "changed")) for c in federation.clients]
    known = Knowledge(
        auxiliary=observe.auxiliary(federation),
        domains=torch.cat(named),
        specification=knowledge.specification(spec, seen.defense, flips=False),
    )
    return seen, known


def stated(case, seed=3, shadows=2):
    return PropertyInference(shadows=shadows).infer(*case, seed).answers


@pytest.fixture(scope="module")
def of_method(tmp_path_factory):
    """What is seen and known of two domains under a method: trained once for all tests that look at it."""
    return cache(lambda method: attacked(tmp_path_factory.mktemp(method), method, of_two_domains()))


@pytest.mark.parametrize("method", ["fedavg", "fedcg"])
def test_clients_of_clearly_different_domains_are_named_rightly(method, of_method):
    case = of_method(method)
    answers = stated(case)
    assert answers.argmax(1).tolist() == [0, 1, 1]
    assert torch.equal(answers, stated(case))
    assert answers.sum(1).tolist() == pytest.approx([1.0] * 3)


def test_domains_may_be_counted_in_any_order(of_method):
    seen, known = of_method("fedavg")
    turned = dataclasses.replace(known, domains=1 - known.domains)
    assert stated((seen, turned)).argmax(1).tolist() == [1, 0, 0]


def test_whole_updates_tell_the_domain_too(tmp_path):
    local = LocalSteps(2, {"kind": "sgd", "lr": 0.1, "weight_decay": 0.0})
    seen, known = attacked(tmp_path, "fedavg", of_two_domains(), local=local)
    assert "classifier" in seen.updates
    assert stated((seen, known)).argmax(1).tolist() == [0, 1, 1]


def test_domains_that_are_alike_are_told_apart_by_chance(tmp_path):
    seen, known = attacked(tmp_path, "fedavg", of_two_domains(torch.clone))
    hits, rounds = 0, 6
    for turn in range(rounds):
        domains = torch.randint(2, known.domains.shape, generator=stream(turn, "domains"))
        hits += int((stated((seen, dataclasses.replace(known, domains=domains)), seed=turn).argmax(1) == 0).sum())
    # Of 18 statements, each as likely to be 0 as 1, where both domains have the same images.
    assert 0 < hits < 3 * rounds


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 0.0])
def test_a_broken_upload_says_nothing_and_leaves_the_others_as_they_are(value, of_method):
    seen, known = of_method("fedavg")
    whole = stated((seen, known))
    first = seen.client == 0
    broken = {
        part: {
            n: torch.where(first.view(-1, *[1] * (t.ndim - 1)), torch.full_like(t, value), t) for n, t in net.items()
        }
        for part, net in seen.gradients.items()
    }
    answers = stated((dataclasses.replace(seen, gradients=broken), known))
    assert answers[0].tolist() == [0.5, 0.5]
    assert torch.equal(answers[1:], whole[1:])


@pytest.mark.parametrize("value", [torch.nan, 0.0])
def test_a_client_s_sound_uploads_say_as_much_beside_broken_ones(value, of_method):
    seen, known = of_method("fedavg")
    sound = stated((seen, known))
    many = seen.select(torch.arange(2 * seen.victims) % seen.victims)
    broken = torch.arange(many.victims) >= seen.victims
    gradients = {
        part: {n: t.where(~broken.view(-1, *[1] * (t.ndim - 1)), torch.full_like(t, value)) for n, t in net.items()}
        for part, net in many.gradients.items()
    }
    torch.testing.assert_close(stated((dataclasses.replace(many, gradients=gradients), known)), sound)


def test_nothing_is_said_without_a_sound_shadow_of_every_domain():
    shadows, domains = torch.randn(8, 3, generator=stream(0, "shadows"), dtype=torch.float64), torch.arange(8) % 2
    shadows[domains == 1] = torch.nan
    assert log_probabilities(shadows, domains, torch.zeros(2, 3), 2).softmax(1).tolist() == [[0.5, 0.5]] * 2
    alike = torch.ones(8, 3, dtype=torch.float64)
    assert log_probabilities(alike, domains, torch.zeros(2, 3), 2).softmax(1).tolist() == [[0.5, 0.5]] * 2


def test_uploads_without_the_classifier_are_refused(of_method):
    seen, known = of_method("fedavg")
    blind = dataclasses.replace(seen, gradients={"extractor": seen.gradients["extractor"]})
    with pytest.raises(UserError, match="no gradient and no update of the classifier"):
        stated((blind, known))


def test_numbers_do_not_depend_on_the_order_of_hidden_units():
    rng = stream(0, "gradient")
    gradient = {
        "fc1.weight": torch.randn(3, 12, 20, generator=rng), "fc1.bias": torch.randn(3, 12, generator=rng),
        "fc2.weight": torch.randn(3, 5, 12, generator=rng), "fc2.bias": torch.randn(3, 5, generator=rng),
    }  # fmt: skip
    order = torch.randperm(12, generator=rng)
    turned = gradient | {
        "fc1.weight": gradient["fc1.weight"][:, order], "fc1.bias": gradient["fc1.bias"][:, order],
        "fc2.weight": gradient["fc2.weight"][:, :, order],
    }  # fmt: skip
    torch.testing.assert_close(gradient_shape.of(turned), gradient_shape.of(gradient), rtol=1e-9, atol=1e-9)
    values = torch.linalg.svdvals(gradient["fc1.weight"].double().flatten(1).view(3, 12, 20))
    numbers = gradient_shape.of({"fc1.weight": gradient["fc1.weight"]})
    norm = gradient["fc1.weight"].double().flatten(1).norm(dim=1, keepdim=True)
    torch.testing.assert_close(numbers[:, 2:], (values[:, : gradient_shape.SINGULAR] / norm).log())


def test_a_shadow_client_holds_the_images_of_one_domain_and_takes_the_attacked_broadcast(of_method):
    seen, known = of_method("fedcg")
    sent = shadow_clients.uploads(seen, known, 0, 3, lambda *_: None)
    assert sent.domains.tolist() == [0] * shadow_clients.UPLOADS + [1] * shadow_clients.UPLOADS
    assert sent.artifact.gradients.keys() == seen.gradients.keys()
    for part, net in seen.weights.items():
        assert all(torch.equal(sent.artifact.weights[part][n], t) for n, t in net.items())
    other = shadow_clients.uploads(seen, known, 1, 3, lambda *_: None)
    bias = [s.artifact.gradients["classifier"]["fc3.bias"] for s in (sent, other)]
    assert not torch.equal(*bias)


def told_and_not(folder, defense):
    """The log probability of the clients' own domains, mean over clients, with shadows under the defence and without."""
    seen, known = attacked(folder, "fedavg", of_two_domains(), defense=defense)
    plain = dataclasses.replace(known, specification={**known.specification, "defense": "none"})
    right = torch.tensor([0, 1, 1])
    return [stated((seen, each))[range(3), right].log().mean() for each in (known, plain)]


def test_shadows_under_the_noise_of_the_clients_are_less_sure_where_they_are_wrong(tmp_path):
    told, untold = told_and_not(tmp_path, "gaussian:0.001")
    assert told > untold + 5


@pytest.mark.parametrize(
    ("defense", "solved"),
    [
        ("dp-sgd:epsilon=8", "dp-sgd:noise={},clip=1.0"),
        ("dp-sgd:8,clip=0.5+quantize:8", "dp-sgd:noise={},clip=0.5+quantize:bits=8"),
    ],
    ids=["alone", "of two"],
)
def test_shadows_have_the_noise_that_was_solved_for_the_attacked_clients(defense, solved):
    """And none that is solved for their own numbers of images, of which their uploads would have another scale."""
    spec = presets.train_spec("smoke", "digits", "fedavg", clients=3, defense=defense, changes={"rounds": ROUNDS})
    setup = harness.prepare(spec, digits_federation((60, 60, 60)), torch.device("cpu"))
    told = knowledge.specification(spec, setup.defense.describe(), flips=False)
    shadow = harness.prepare(
        spec.model_copy(update={"defense": told["defense"]}), digits_federation((17,) * 3), torch.device("cpu")
    )
    noise, by_itself = (
        setup.defense.describe(),
        harness.prepare(spec, digits_federation((17,) * 3), torch.device("cpu")).defense,
    )
    assert shadow.defense.describe() == noise != by_itself.describe()
    assert (
        written_defense.create(told["defense"], "update").describe()
        == written_defense.create(
            solved.format(next(one["noise"] for one in described.single(noise) if "noise" in one)), "update"
        ).describe()
    )
    assert written_defense.keeps_epsilon(defense)
    assert not written_defense.keeps_epsilon(told["defense"])


@pytest.mark.parametrize("written", ["none", "gaussian:0.001", "clip:1", "dp-sgd:noise=1,clip=1", "prune:0.1"])
def test_a_defence_without_an_epsilon_is_told_as_it_is_written(written):
    description = written_defense.create(written, "update").describe()
    spec = presets.train_spec("smoke", "digits", "fedavg", defense=written)
    assert knowledge.specification(spec, description, flips=False)["defense"] == written
    assert not written_defense.keeps_epsilon(written)


@pytest.mark.parametrize("defense", ["clip:0.05", "dp-sgd:noise=0"])
def test_clipping_takes_nothing_from_an_attacker_who_does_not_know_it(defense, tmp_path):
    told, untold = told_and_not(tmp_path, defense)
    assert min(told, untold) > torch.tensor(0.9).log()
