"""Which loss the observed gradient is taken of: what the client trains on, or, of imitated features, an upper bound."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from attacks.common import closed_form
from attacks.features import disaggregation
from privbench import presets, registry
from privbench.errors import AttackRefused, UserError
from privbench.execution import applicability, attack_cell, one_attack
from privbench.methods.base import Method
from privbench.methods.nfl_cgan import NFLCGAN
from privbench.observation import artifact_files, observe
from privbench.seeds import stream
from privbench.training import checkpoint, harness
from privbench.types import CLASSIFICATION, Knowledge, LocalSteps
from tests.builders.federations import digits_federation, learn_round

CPU = torch.device("cpu")
ROUNDS = 4
VICTIMS = 3
SGD = LocalSteps(3, {"kind": "sgd", "lr": 0.5, "weight_decay": 0.0})
SHORT = {"dlg": {"steps": 4}, "staged": {"steps": 4, "feature_steps": 4}, "feature-statistics": {"steps": 4}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(snapshot of round 2, set-up, federation) of a method with some settings, trained once."""
    runs = {}

    def of(method, **settings):
        key = (method, tuple(sorted(settings.items())))
        if key not in runs:
            folder = tmp_path_factory.mktemp(method)
            each = presets.train_spec(
                "smoke", "digits", method, clients=2, method_settings=settings, changes={"rounds": ROUNDS}
            )
            federation = digits_federation((20, 20))
            setup = harness.prepare(each, federation, CPU)
            state = harness.initial(setup)
            for _ in range(2):
                learn_round([setup], [state])
            checkpoint.save_snapshot(folder, each, state)
            runs[key] = checkpoint.load_snapshot(folder, each.id, 2), setup, federation
        return runs[key]

    return of


def seen(run, method=None, batch_size=1, **options):
    shot, setup, federation = run
    return observe.observe(
        shot, federation, setup.model, method or setup.method, setup.defense, method_name=setup.spec.method, dataset="digits",
        victims=VICTIMS, batch_size=batch_size, labels_known=True, seed=0, rounds=ROUNDS, **options,
    )  # fmt: skip


def logits(model, params, h):
    return model.classifier.linear_layers(params, h)[0]


def features_of(run, client, x):
    shot, setup, _ = run
    extractor = (shot.clients[client].params | shot.server.params)["extractor"]
    return setup.model.net("extractor").apply(extractor, {}, x, train=True)[0]


def imitated(run, z, y):
    shot, setup, _ = run
    net = setup.model.net("generator")
    return net.apply(shot.server.params["generator"], shot.server.buffers["generator"], z, y, train=False)[0]


def by_hand(run, loss):
    """The gradient over C of loss(classifier, client, victim) of every victim, by plain autograd."""
    shot, _, _ = run
    each = []
    for v in range(VICTIMS):
        leaves = {n: t.clone().requires_grad_() for n, t in shot.server.params["classifier"].items()}
        grads = torch.autograd.grad(loss(leaves, v % 2, v), list(leaves.values()))
        each.append(dict(zip(leaves, grads, strict=True)))
    return {n: torch.stack([one[n] for one in each]) for n in each[0]}


def assert_same(gradient, expected):
    for name, t in expected.items():
        torch.testing.assert_close(gradient["classifier"][name], t, rtol=1e-4, atol=1e-6 * float(t.abs().max()))


@pytest.mark.parametrize("weight", [1.0, 0.5])
@pytest.mark.parametrize("batch_size", [1, 2])
def test_fedgens_whole_gradient_is_that_of_images_and_imitated_features(weight, batch_size, trained):
    run = trained("fedgen", observe_loss="task", weight=weight)
    model = run[1].model
    shown, truth = seen(run, batch_size=batch_size)

    def loss(classifier, client, v):
        z = torch.randn(batch_size, model.noise_dim, generator=stream(0, "victims", v, "z"))
        y = torch.randint(10, (batch_size,), generator=stream(0, "victims", v, "y"))
        classification = F.cross_entropy(
            logits(model, classifier, features_of(run, client, truth.images[v])), truth.labels[v]
        )
        return classification + weight * F.cross_entropy(logits(model, classifier, imitated(run, z, y)), y)

    assert_same(shown.gradients, by_hand(run, loss))
    assert shown.imitated == batch_size


@pytest.mark.parametrize("method", ["fedgen", "fedmd-cg"])
def test_by_default_the_gradient_is_that_of_the_images_alone(method, trained):
    run = trained(method)
    shown, truth = seen(run)

    def loss(classifier, client, v):
        h = features_of(run, client, truth.images[v])
        return F.cross_entropy(logits(run[1].model, classifier, h), truth.labels[v])

    assert_same(shown.gradients, by_hand(run, loss))
    assert shown.imitated == 0


def test_fedmd_cgs_whole_gradient_has_its_terms_at_the_weights_of_the_round(trained):
    run = trained("fedmd-cg", observe_loss="task", lambda1=2.0, lambda3=0.5)
    model, counts = run[1].model, run[2].label_counts()
    shown, truth = seen(run)

    def loss(classifier, client, v):
        z, resampled = (
            torch.randn(1, model.noise_dim, generator=stream(0, "victims", v, name)) for name in ("z", "z_hat")
        )
        y = torch.multinomial(counts.sum(0).double(), 1, replacement=True, generator=stream(0, "victims", v, "y"))
        out = logits(model, classifier, features_of(run, client, truth.images[v]))
        p = out.softmax(1)
        q = logits(model, classifier, imitated(run, z, truth.labels[v])).softmax(1)
        ce = F.cross_entropy(logits(model, classifier, imitated(run, resampled, y)), y)
        ramp = 2 / ROUNDS
        return F.cross_entropy(out, truth.labels[v]) + ramp * (2.0 * ce + 0.5 * (p * (p / q).log()).sum())

    assert_same(shown.gradients, by_hand(run, loss))
    assert shown.imitated == 2


@pytest.mark.parametrize(("settings", "imitated"), [
    ({"without": "kl_global"}, 1), ({"without": "cls_global,kl_global"}, 0), ({"lambda1": 0.0}, 1), ({}, 2),
])  # fmt: skip
def test_terms_that_are_off_imitate_nothing(settings, imitated):
    method = registry.create(registry.resolve("method", "fedmd-cg"), settings | {"observe_loss": "task"})
    assert method.imitated(observe.RoundClock(2, 10)) == imitated
    assert method.imitated(observe.RoundClock(1, 10)) == 0
    assert (
        registry.create(registry.resolve("method", "fedgen"), {"observe_loss": "task"}).imitated(
            observe.RoundClock(1, 10)
        )
        == 0
    )


SENDING = [name for name in registry.METHODS if {*CLASSIFICATION} & {*registry.resolve("method", name).shared_parts}]


@pytest.mark.parametrize("method", [name for name in SENDING if name not in ("fedgen", "fedmd-cg")])
def test_of_every_other_method_what_the_client_trains_on_has_no_other_gradient_over_what_it_shares(method, trained):
    """FedProx's pull is 0 at the broadcast, and FedCG's imitated features have no gradient over C: Eq. 7 is of L_cls."""
    run = trained(method, dropout=0.0)
    shown, truth = seen(run)
    shot, setup, _ = run
    observed = setup.method.observed()
    assert {*CLASSIFICATION} & {*observed.trains}
    for v in range(VICTIMS):
        params = shot.clients[v % 2].params | shot.server.params
        parts = {p: {n: t.clone().requires_grad_() for n, t in params[p].items()} for p in CLASSIFICATION}
        h, _ = setup.model.net("extractor").apply(parts["extractor"], {}, truth.images[v], train=True)
        F.cross_entropy(logits(setup.model, parts["classifier"], h), truth.labels[v]).backward()
        for part, net in shown.gradients.items():
            for name, t in net.items():
                scale = float(parts[part][name].grad.abs().max())
                torch.testing.assert_close(t[v], parts[part][name].grad, rtol=1e-4, atol=1e-6 * scale)


def test_a_whole_update_of_fedprox_is_pulled_to_the_broadcast(trained):
    run = trained("fedprox", mu=1.0)
    shot, setup, _ = run
    shown, truth = seen(run, local=SGD)
    for v in range(VICTIMS):
        before = {p: shot.server.params[p] for p in CLASSIFICATION}
        parts = {p: {n: t.clone().requires_grad_() for n, t in net.items()} for p, net in before.items()}
        leaves = [(p, n) for p in parts for n in parts[p]]
        for _ in range(SGD.steps):
            h, _ = setup.model.net("extractor").apply(parts["extractor"], {}, truth.images[v], train=True)
            loss = F.cross_entropy(logits(setup.model, parts["classifier"], h), truth.labels[v])
            loss = loss + 0.5 * sum((parts[p][n] - before[p][n]).square().sum() for p, n in leaves)
            grads = torch.autograd.grad(loss, [parts[p][n] for p, n in leaves])
            for (p, n), g in zip(leaves, grads, strict=True):
                parts[p][n] = (parts[p][n] - 0.5 * g).detach().requires_grad_()
        for p, n in leaves:
            change = (parts[p][n] - before[p][n]).detach()
            # Changes are differences of numbers of the order of 1.
            torch.testing.assert_close(shown.updates[p][n][v], change, rtol=1e-3, atol=2e-6)


def test_every_step_of_an_update_drops_features_anew(trained):
    run = trained("fedsplit", dropout=0.5)
    one, many = (seen(run, local=SGD._replace(steps=steps))[0] for steps in (1, 3))
    untouched = [(each.updates["classifier"]["fc1.weight"] == 0).all(1).float().mean() for each in (one, many)]
    assert 0.4 < untouched[0] < 0.6  # one mask
    assert untouched[1] < 0.25  # dropped in all three: 1/8


def test_a_mixed_gradient_survives_the_disk(trained, tmp_path):
    shown, _ = seen(trained("fedgen", observe_loss="task"))
    artifact_files.save(shown, tmp_path / "a")
    assert artifact_files.load(tmp_path / "a").imitated == 1


def test_what_needs_the_images_own_gradient_refuses_a_mixed_one_and_names_the_way_out(trained):
    run = trained("fedgen", observe_loss="task")
    shown, _ = seen(run)
    assert closed_form.of_single(shown) is None
    assert not disaggregation.possible(shown)
    shot, _, federation = run
    whole = Knowledge(
        auxiliary=observe.auxiliary(federation),
        initial=attack_cell.known.of_client(shot, 0),
        oracle=attack_cell.known.oracle(shot, shown),
        colluder=attack_cell.known.colluder(shot, shown, federation),
    )
    refused = (
        "oracle",
        "analytic-features",
        "surrogate",
        "aligned-surrogate",
        "joint",
        "initial-surrogate",
        "decoder",
        "collusion",
    )
    for name in (*refused, "unsplit", "imprint"):
        with pytest.raises(AttackRefused, match=r"holds 1 imitated features beside those of its images.*upper bound"):
            one_attack.attack_artifact(name, {}, shown, whole, 0, CPU, lambda *_: None)
    for name in ("dlg", "staged"):
        made = one_attack.attack_artifact(name, SHORT[name], shown, whole, 0, CPU, lambda *_: None)
        assert made.images.isfinite().all()
    wrong = replace(shown, imitated=0)
    with pytest.raises(AttackRefused, match="has rank 2"):
        one_attack.attack_artifact("dlg", SHORT["dlg"], wrong, whole, 0, CPU, lambda *_: None)


def test_imitated_features_hide_nothing_from_whoever_separates_them(trained):
    """FedGen's gradient, of weight 1, is twice that of a batch of two: the image's features come out as they are.

    So the upper bound is what the method does leak, to an attacker who knows both labels.
    """
    run = trained("fedgen", observe_loss="task")
    shown, truth = seen(run)
    drawn = [torch.randint(10, (1,), generator=stream(0, "victims", v, "y")) for v in range(VICTIMS)]
    halved = {"classifier": {n: t / 2 for n, t in shown.gradients["classifier"].items()}}
    labels = torch.cat([truth.labels, torch.stack(drawn)], 1)
    separated = disaggregation.disaggregate(
        replace(shown, gradients=halved, batch_size=2, imitated=0, labels=labels), 0
    )
    true = torch.cat([features_of(run, v % 2, truth.images[v]) for v in range(VICTIMS)]).double()
    gap = (separated.h - true[:, None]).flatten(2).norm(dim=2).amin(1) / true.flatten(1).norm(dim=1)
    assert separated.sound.all()
    assert (gap < 1e-2).all()


def test_a_method_of_a_users_own_is_observed_on_what_it_trains():
    assert Method.observed(NFLCGAN()).name == "task"
    with pytest.raises(UserError, match="observe_loss should be 'classification' or 'task'"):
        registry.create(registry.resolve("method", "fedmd-cg"), {"observe_loss": "x"})


@pytest.mark.parametrize(
    ("method", "settings", "round_", "refused"),
    [
        ("fedgen", {"observe_loss": "task"}, "best", True),
        ("fedgen", {"observe_loss": "task"}, "1", True),
        # Before the first broadcast of its generator nothing is imitated.
        ("fedgen", {"observe_loss": "task"}, "0", False),
        ("fedgen", {"observe_loss": "task", "weight": 0.0}, "last", False),
        ("fedgen", {}, "best", False),
        ("fedmd-cg", {"observe_loss": "task"}, "last", True),
        ("fedmd-cg", {"observe_loss": "task", "without": "cls_global,kl_global"}, "last", False),
    ],
)
def test_what_needs_the_images_own_gradient_is_refused_before_training(method, settings, round_, refused):
    train = presets.train_spec("smoke", "digits", method, method_settings=settings)
    for name in registry.ATTACKS:
        attack = registry.resolve("attack", name)
        if applicability.of(attack).unmixed:
            refusal = applicability.exceeded(
                name, applicability.of(attack), presets.cell_spec("smoke", train, name, round_=round_)
            )
            assert ("imitated features besides" in refusal) == refused, (name, refusal)
    assert not applicability.exceeded(
        "dlg", applicability.of(registry.resolve("attack", "dlg")), presets.cell_spec("smoke", train, "dlg")
    )
