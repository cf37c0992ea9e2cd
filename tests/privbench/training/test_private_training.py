"""Training under a defence of every image: against plain loops, and what is drawn against what the accountant assumes."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from privbench import presets
from privbench.errors import UserError
from privbench.methods.base import MiniBatch, Phase, RoundClock
from privbench.methods.fedavg import FedAvg
from privbench.seeds import stream
from privbench.training import defended, harness, per_example, phase_plans
from privbench.training.engine.descent import ADAM_EPS
from privbench.training.engine.plan import PhaseRun, StageContext
from privbench.training.engine.stage_state import loss_of
from tests.builders.federations import digits_federation, learn_round

pytestmark = pytest.mark.usefixtures("double_precision", "quick_accounts")

CLIENT = 1


def prepared(method, defense, sizes=(20, 20), seed=0, backbone="lenet5", where="update", **changes):
    spec = presets.train_spec(
        "smoke", "digits", method, clients=len(sizes), defense=defense, where=where, seed=seed, backbone=backbone,
        changes=changes or None,
    )  # fmt: skip
    return harness.prepare(spec, digits_federation(sizes), torch.device("cpu"))


def trained(setups, execution, rounds=1):
    states = [harness.initial(setup) for setup in setups]
    for _ in range(rounds):
        learn_round(setups, states, execution)
    return states


def flat(parts):
    return torch.cat([t.flatten() for _, params in sorted(parts.items()) for _, t in sorted(params.items())])


def drift(setup, name):
    """A stage of client 1 at the initial networks: (its loss as a function, what it trains, the replica, what it sees, a plan)."""
    phase = next(p for p in setup.method.client() if any(s.name == name for s in p.stages))
    stage = next(s for s in phase.stages if s.name == name)
    clock = RoundClock(3, 5)
    state = harness.initial(setup)
    client, server = state.clients[CLIENT], state.server
    features = phase_plans.features_of(setup, CLIENT, client) if phase.features else None
    plan = phase_plans.client_plan(setup, CLIENT, 1, phase, 0, features)
    around = StageContext((server.params, server.buffers), (), None)
    loss = loss_of(stage, PhaseRun(setup.model, phase, clock, defended.optimisers(setup, phase, defended=True)))
    return stage, loss, client, around, plan


@pytest.mark.parametrize(
    ("method", "name", "backbone"),
    [
        ("fedavg", "task", "lenet5"),
        ("fedprox", "task", "lenet5"),
        ("fedcg", "task", "lenet5"),
        ("fedcg", "discriminator", "lenet5"),
        ("fedcg", "discriminator", "resnet18"),
        ("fedsplit", "task", "resnet18"),
    ],
)
def test_the_gradient_of_every_image_equals_that_of_a_mini_batch_of_it_alone(method, name, backbone, narrow_resnet):
    setup = prepared(method, "dp-sgd:noise=1", backbone=backbone)
    stage, loss, client, around, plan = drift(setup, name)
    batch = plan.batch(stage, 0, plan.seen(0))
    trains = {part: client.params[part] for part in stage.trains}
    by_image = per_example.gradients(loss, trains, client.params, client.buffers, around, batch)
    for b in range(len(batch.labels)):
        one = MiniBatch(
            batch.images[b : b + 1], batch.labels[b : b + 1], {n: t[b : b + 1] for n, t in batch.noise.items()},
            None if batch.features is None else batch.features[b : b + 1],
        )  # fmt: skip
        leaves = {p: {n: t.detach().requires_grad_() for n, t in params.items()} for p, params in trains.items()}
        value, _ = loss(leaves, client.params, client.buffers, around, one)
        names = [(p, n) for p, params in leaves.items() for n in params]
        grads = torch.autograd.grad(value, [leaves[p][n] for p, n in names])
        assert float(by_image.loss[b]) == pytest.approx(float(value.detach()), rel=1e-10)
        # Rounding is relative to the largest numbers that were added. A group norm of a single value divides it by the root of
        # 1e-5, forwards and backwards, and several follow one another: 2e-16 becomes 1e-10.
        rounding = 1e-8 * max(float(grad.abs().max()) for grad in grads)
        for (p, n), grad in zip(names, grads, strict=True):
            torch.testing.assert_close(by_image.gradients[p][n][b], grad, rtol=0, atol=rounding)


NOISE, BOUND, RATE = 0.7, 0.5, 0.2


def by_hand(setup, state, update):
    """Client 1 after its first epoch, by a plain loop over images; `update(t, g, step, name)` is what a step takes off."""
    rng = stream(0, "client", CLIENT, "round", 1, "defence", "step")
    now = {
        p: {n: t.clone().requires_grad_() for n, t in net.items()} for p, net in state.clients[CLIENT].params.items()
    }
    plan = phase_plans.client_plan(setup, CLIENT, 1, setup.method.client()[0], 0)
    for step in range(plan.steps):
        images, _ = plan.seen(step)
        total = {p: {n: torch.zeros_like(t) for n, t in params.items()} for p, params in now.items()}
        for b in torch.nonzero(plan.included(step)).flatten().tolist():
            h = setup.model.net("extractor").apply(now["extractor"], {}, images[b : b + 1], train=True)[0]
            logits = setup.model.net("classifier").apply(now["classifier"], {}, h, train=True)[0]
            names = [(p, n) for p, params in now.items() for n in params]
            grads = torch.autograd.grad(
                F.cross_entropy(logits, plan.labels[step, b : b + 1]), [now[p][n] for p, n in names]
            )
            norm = math.sqrt(sum(float(g.square().sum()) for g in grads))
            for (p, n), g in zip(names, grads, strict=True):
                total[p][n] += g / max(1.0, norm / BOUND)
        # Noise is drawn in the order in which the engine lays parameters out.
        with torch.no_grad():
            for p in ("extractor", "classifier"):
                for n in sorted(now[p]):
                    noise = NOISE * BOUND * torch.randn(total[p][n].shape, generator=rng)
                    decay = setup.spec.schedule.task.weight_decay * now[p][n]
                    now[p][n] -= update(now[p][n], (total[p][n] + noise) / 16 + decay, step + 1, (p, n))
    return now


def after_an_epoch(method, defense):
    """(set-up, its initial state, client 1's parameters after an epoch)."""
    setup = prepared(
        method, f"{defense},noise={NOISE},clip={BOUND},lr={RATE}".replace(",", ":", 1), sizes=(20, 33), local_epochs=1
    )  # fmt: skip
    before, state = harness.initial(setup), harness.initial(setup)
    harness.learn([setup], [state], "alone")
    return setup, before, state.clients[CLIENT].params


@pytest.mark.parametrize("method", ["fedavg", "fedsplit"])
def test_an_epoch_of_dp_sgd_equals_a_plain_loop_over_images(method):
    setup, before, after = after_an_epoch(method, "dp-sgd")
    expected = by_hand(setup, before, lambda t, g, step, name: RATE * g)
    torch.testing.assert_close(flat(after), flat(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("corrected", [True, False])
def test_an_epoch_of_dp_adam_equals_its_equations_with_bias_correction_and_without_as_printed(corrected):
    setup, before, after = after_an_epoch("fedavg", f"dp-adam,bias_correction={str(corrected).lower()}")
    task, moments = setup.spec.schedule.task, {}
    one, two = task.beta1, task.beta2

    def update(t, g, step, name):
        m, v = moments.get(name, (0.0, 0.0))
        moments[name] = m, v = one * m + (1 - one) * g, two * v + (1 - two) * g.square()
        if corrected:
            m, v = m / (1 - one**step), v / (1 - two**step)
        return RATE * m / (v.sqrt() + ADAM_EPS)

    expected = by_hand(setup, before, update)
    torch.testing.assert_close(flat(after), flat(expected), rtol=0, atol=1e-10)
    assert len(moments) == sum(map(len, expected.values()))


@pytest.mark.parametrize(
    ("method", "defense"),
    [
        ("fedavg", "dp-sgd:noise=1"), ("fedcg", "dp-adam:noise=1"), ("fedsplit", "dp-adam:noise=0.5,bias_correction=false"),
        ("fedprox", "dp-sgd:noise=2"), ("fedgen", "dp-sgd:noise=1"),
        ("fedcg", "dp-fedavg:noise=1"), ("fedper", "gaussian:variance=0.1,clip=1"),
    ],
)  # fmt: skip
def test_stacked_clients_and_seeds_equal_each_alone(method, defense):
    sizes = (5, 9)
    stacked = trained([prepared(method, defense, sizes, seed, batch=8) for seed in (0, 1)], "stacked")
    for seed, state in enumerate(stacked):
        (alone,) = trained([prepared(method, defense, sizes, seed, batch=8)], "alone")
        for one, other in zip((*state.clients, state.server), (*alone.clients, alone.server), strict=True):
            torch.testing.assert_close(flat(one.params), flat(other.params), rtol=0, atol=1e-8)


def test_without_noise_or_clipping_and_with_all_images_it_is_gradient_descent():
    sizes = (20, 20)
    plain = prepared("fedavg", "none", sizes, batch=20, task={"kind": "sgd", "lr": 0.3, "weight_decay": 0.0})
    private = prepared(
        "fedavg", "dp-sgd:noise=0,clip=1e9,lr=0.3", sizes, batch=20,
        task={"kind": "sgd", "lr": 9.0, "weight_decay": 0.0},
    )  # fmt: skip
    (one,), (other,) = trained([plain], "alone"), trained([private], "alone")
    torch.testing.assert_close(flat(one.server.params), flat(other.server.params), rtol=0, atol=1e-10)


def test_mini_batches_are_poisson_samples_at_the_accountant_s_rate():
    samples, batch, steps = 50, 8, 4000
    drawn = per_example.poisson(samples, batch, steps, stream(0, "poisson"))
    counts = torch.zeros(steps, samples)
    for step in range(steps):
        counts[step].index_add_(0, drawn.rows[step][drawn.included[step]], torch.ones(int(drawn.included[step].sum())))
    assert counts.max() == 1
    rate = batch / samples
    # Of every image, 5 standard errors of a frequency; of pairs, 5 of a correlation; of sizes, those of a binomial's variance.
    assert (counts.mean(0) - rate).abs().max() < 5 * math.sqrt(rate * (1 - rate) / steps)
    correlation = torch.corrcoef(counts.T) - torch.eye(samples)
    assert correlation.abs().max() < 5 / math.sqrt(steps)
    assert float(counts.sum(1).var()) == pytest.approx(samples * rate * (1 - rate), rel=5 * math.sqrt(2 / steps))
    assert drawn.expected == pytest.approx(batch)
    facts = defended.facts(
        prepared("fedavg", "none").method, prepared("fedavg", "none", batch=8).spec.schedule, samples, 1, ()
    )
    assert facts.stages[0].batch / facts.examples == pytest.approx(rate)


def test_more_images_asked_for_than_there_are_takes_all_of_them():
    drawn = per_example.poisson(5, 16, 3, stream(0, "poisson"))
    assert drawn.included.all()
    assert drawn.rows.tolist() == [[0, 1, 2, 3, 4]] * 3
    assert drawn.expected == 5


def test_the_noise_of_a_step_is_the_accountant_s_multiple_of_the_clip():
    setup = prepared("fedavg", "dp-sgd:noise=1.3,clip=0.2")
    sizes = {"classifier": {"w": (3, 40_000)}}
    each = {p: {n: torch.zeros(shape) for n, shape in params.items()} for p, params in sizes.items()}
    made = setup.defense.example(each, torch.zeros(3, dtype=torch.bool), 16.0, stream(0, "noise"))["classifier"]["w"]
    (promise, *_) = defended.guarantees(setup, 1)
    # 5 standard errors of a standard deviation.
    assert float(made.std()) * 16 / 0.2 == pytest.approx(promise.noise, rel=5 / math.sqrt(2 * 40_000))


def test_a_private_extractor_is_clipped_and_noised_with_the_classifier():
    setup = prepared("fedsplit", "dp-sgd:noise=1")
    seen = []

    class Watched(type(setup.defense)):
        def example(self, gradients, included, expected, rng):
            seen.append(tuple(gradients))
            return super().example(gradients, included, expected, rng)

    watched = replace(setup, defense=Watched(noise=1.0))
    harness.learn([watched], [harness.initial(watched)], "alone")
    assert {frozenset(parts) for parts in seen} == {frozenset({"extractor", "classifier"})}
    (promise, *_) = defended.guarantees(setup, 1)
    assert promise.covers == ("classifier", "extractor")


def test_a_generator_that_reads_labels_alone_learns_nothing_of_the_client_s():
    setup = prepared("fedcg", "dp-sgd:noise=1")
    turned = replace(setup, labels=tuple((labels + 1) % 10 for labels in setup.labels))
    phase = setup.method.client()[1]
    (one, other) = (
        phase_plans.client_plan(s, CLIENT, 1, phase, 0, phase_plans.features_of(s, CLIENT, harness.initial(s).clients[CLIENT]))
        for s in (setup, turned)
    )  # fmt: skip
    generator = next(stage for stage in phase.stages if stage.name == "generator")
    for step in range(one.steps):
        a, b = one.batch(generator, step, one.seen(step)), other.batch(generator, step, other.seen(step))
        assert torch.equal(a.labels, b.labels)
        assert a.features is None
        assert not len(a.images)
    labels = torch.cat([one.batch(generator, step, one.seen(step)).labels for step in range(one.steps)])
    assert labels.shape == (one.steps * 16,)
    assert len(labels.unique()) > 5


def test_networks_that_clip_every_image_have_no_batch_norm(narrow_resnet):
    private, plain = (prepared("fedavg", d, backbone="resnet18") for d in ("dp-sgd:noise=1", "dp-fedavg:noise=1"))
    assert private.model.norm == "group"
    assert plain.model.norm == "batch"
    assert not any(harness.initial(private).clients[0].buffers.values())
    besides = [defended.guarantees(setup, 1)[0].leaves_out for setup in (private, plain)]
    assert "batch-norm statistics" not in besides[0]
    assert "batch-norm statistics" in besides[1]


def test_what_is_not_covered_is_named():
    (promise, *_) = defended.guarantees(prepared("fedmd-cg", "dp-fedavg:noise=1"), 1)
    assert {"label counts", "batch-norm statistics", "number of training images"} <= {*promise.leaves_out}
    assert promise.unit == "client"
    assert promise.covers == ("classifier", "generator")


def test_epsilon_is_each_client_s_own_grows_with_rounds_and_counts_every_stage():
    setup = prepared("fedcg", "dp-sgd:noise=2", sizes=(20, 60))
    few, many = (defended.guarantees(setup, rounds) for rounds in (1, 3))
    assert all(a.epsilon < b.epsilon for a, b in zip(few, many, strict=True))
    assert few[0].epsilon > few[1].epsilon
    (task_only, *_) = defended.guarantees(prepared("fedsplit", "dp-sgd:noise=2", sizes=(20, 60)), 1)
    assert few[0].epsilon > task_only.epsilon


def test_an_epsilon_that_is_asked_for_is_kept_for_every_client_over_the_planned_rounds():
    setup = prepared("fedcg", "dp-sgd:epsilon=8", sizes=(20, 60))
    promises = defended.guarantees(setup, setup.spec.schedule.rounds)
    assert 7.5 < promises[0].epsilon <= 8
    assert promises[1].epsilon < promises[0].epsilon
    assert setup.defense.describe()["noise"] == promises[0].noise


def test_a_larger_client_with_one_more_step_may_need_more_noise_and_gets_it():
    """17 images in batches of 16 are two steps at a rate of 16/17; 16 images are one step of all of them."""
    fewest, more = (prepared("fedavg", "dp-sgd:epsilon=8", sizes=sizes) for sizes in ((16, 16), (16, 17)))
    assert fewest.spec.schedule.batch == 16
    assert more.defense.noise > fewest.defense.noise
    promises = defended.guarantees(more, more.spec.schedule.rounds)
    assert promises[0].epsilon < promises[1].epsilon <= 8
    assert promises[1].epsilon > 7.9


def test_of_clients_with_as_many_steps_the_smallest_is_planned_for_and_of_those_that_take_part():
    setup = prepared("fedavg", "none", sizes=(20, 60))

    def client(images, rounds=2):
        return defended.facts(setup.method, setup.spec.schedule, images, rounds, sent_buffers=())

    clients = [client(n) for n in (70, 33, 32, 40, 20, 65)]
    assert [each.examples for each in defended.most_exposed(clients)] == [20, 33, 65]
    assert [each.examples for each in defended.most_exposed([client(20, 0), client(60)])] == [60]
    assert [each.examples for each in defended.most_exposed([client(20, 0), client(60, 0)])] == [20, 60]


def test_clipped_noise_in_every_step_counts_every_step():
    once, every = (
        defended.guarantees(prepared("fedavg", "gaussian:variance=4,clip=1", where=where), 2)[0]
        for where in ("update", "step")
    )
    assert once.epsilon < every.epsilon
    assert defended.guarantees(prepared("fedavg", "gaussian:4"), 2) == [None, None]


@pytest.mark.parametrize(
    ("defense", "says"),
    [
        ("dp-sgd", "takes epsilon=... or noise=..., but neither was given, e.g. dp-sgd:epsilon=8"),
        ("dp-sgd:epsilon=8,noise=1", "but both were given"),
        ("dp-sgd:epsilon=0", "epsilon should be from 0.0001 to 10000, but 0 was given"),
        ("dp-adam:epsilon=8,delta=1", "delta should lie between 0 and 1, both left out, but 1 was given"),
        ("dp-fedavg:noise=1,clip=-1", "the defence dp-fedavg needs a clip above 0, but -1 was given"),
        ("dp-sgd:noise=1,lr=0", "the defence dp-sgd needs lr above 0, but 0 was given"),
        ("dp-sgd:noise=-1", "noise of at least 0"),
        ("gaussian:variance=1,clip=0", "the defence gaussian needs a clip above 0"),
        ("clip", "the defence 'clip' needs a value for norm"),
        ("prune:0", "needs keep above 0 and at most 1, but 0 was given"),
        ("quantize:1", "needs 2 to 16 bits, but 1 was given"),
        ("quantize:2.5", "bits takes a whole number"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_gets_one_line(defense, says):
    with pytest.raises(UserError, match=says.replace("(", r"\(")) as caught:
        prepared("fedavg", defense)
    assert "\n" not in str(caught.value)


def test_a_generator_that_is_trained_on_images_is_refused():
    with pytest.raises(
        UserError, match=r"does not fit fedmd-cg: its generator is trained on images, .* try --defense dp-fedavg"
    ):
        prepared("fedmd-cg", "dp-sgd:noise=1")


class TwoStagesOfOneMiniBatch(FedAvg):
    """E and C in stages of their own, on the same images."""

    def client(self):
        (phase,) = super().client()
        (stage,) = phase.stages
        each = [replace(stage, name=part, trains=(part,)) for part in ("extractor", "classifier")]
        return (replace(phase, stages=tuple(each)),)


def test_stages_that_share_mini_batches_of_images_are_refused():
    """They are no independent samples, as which they would be accounted for."""
    defended.check_images("fedavg", FedAvg())
    with pytest.raises(
        UserError, match="does not fit two: several stages of one phase read the same mini-batch of images"
    ):
        defended.check_images("two", TwoStagesOfOneMiniBatch())


def test_a_stage_that_reads_no_images_keeps_the_schedule_s_optimiser():
    setup = prepared("fedcg", "dp-sgd:noise=1,lr=0.3")
    task, gan = (defended.optimisers(setup, phase, defended=True) for phase in setup.method.client())
    assert task["task"].lr == gan["discriminator"].lr == 0.3
    assert gan["generator"] == setup.spec.schedule.generator
    # A user's phase may hold a loss that is made anew on every call, and so equals no other.
    (stage,) = setup.method.client()[0].stages
    own = Phase((replace(stage, loss=partial(stage.loss)),), "local_epochs")
    assert defended.optimisers(setup, own, defended=True)["task"].lr == 0.3
    (server,) = setup.method.server()
    assert set(defended.optimisers(setup, server, defended=False).values()) == {setup.spec.schedule.server}
