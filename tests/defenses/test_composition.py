"""Several defences as one: the order in which they act, what they guarantee together, how they are written, and what is refused."""

import math
from dataclasses import replace

import pytest
import torch

from attacks.common import gradient_distance, problem
from attacks.crafted import dry_run
from attacks.posterior import Posterior
from attacks.staged import Staged
from defenses.clip import Clip
from defenses.dp_fedavg import DPFedAvg
from defenses.dp_sgd import DPSGD
from defenses.gaussian import Gaussian
from defenses.prune import Prune
from defenses.quantize import Quantize
from defenses.secure_aggregation import SecureAggregation
from defenses.sign import Sign
from privbench import names, presets, written_defense
from privbench.defending import described
from privbench.defending.composition import Composition
from privbench.defense import Facts, StageFacts
from privbench.errors import UserError
from privbench.execution import audit, reproduce
from privbench.observation import defended_upload, knowledge, observe
from privbench.seeds import stream
from privbench.training import checkpoint, defended, harness
from privbench.types import Batch, ExpectedUpload, Networks
from reports.records import labels
from tests.builders import small_artifacts
from tests.builders.federations import digits_federation

CPU = torch.device("cpu")
SIZES = (20, 31, 26)
FACTS = Facts(
    100,
    5,
    (StageFacts("task", ("extractor", "classifier"), "images", 100, 10),),
    ("extractor", "classifier"),
    ("counts",),
)
SENT = {"extractor": {"weight": torch.linspace(-2, 3, 7)}, "classifier": {"bias": torch.tensor([0.3, -4.0])}}


def made(text, where="update"):
    return written_defense.create(text, where)


def prepared(defense, method="fedavg", sizes=SIZES, where="update", **changes):
    spec = presets.train_spec(
        "smoke", "digits", method, clients=len(sizes), defense=defense, where=where,
        changes={"rounds": 1, "local_epochs": 1} | changes,
    )  # fmt: skip
    return harness.prepare(spec, digits_federation(sizes), CPU)


def after_a_round(setup, execution="alone"):
    state = harness.initial(setup)
    harness.train_round([setup], [state], execution)
    return state


def equal(one, other):
    return all(torch.equal(t, other[part][name]) for part, net in one.items() for name, t in net.items())


def test_several_defences_are_one_object_with_all_places_in_the_order_written():
    both = made("dp-sgd:noise=1+quantize:4+secure-aggregation")
    assert both == Composition((DPSGD(noise=1.0), Quantize(4), SecureAggregation()))
    assert both.places == {"example", "network", "message", "aggregate"}
    assert made("clip:1") == Clip(1.0)
    assert made("gaussian:1e+5") == Gaussian(1e5)
    assert made("clip:1e+5+gaussian:1e-3+sign").members == (Clip(1e5), Gaussian(1e-3), Sign())


def test_a_place_applies_its_members_in_the_order_written():
    for one, other in ((Clip(1.0), Quantize(3)), (Quantize(3), Clip(1.0)), (Gaussian(0.1), Clip(1.0))):
        rngs = [stream(0, "x") for _ in range(2)]
        together = Composition((one, other)).message(SENT, rngs[0])
        assert equal(together, other.message(one.message(SENT, rngs[1]), rngs[1]))
    assert not equal(
        *(Composition(pair).message(SENT, stream(0, "x")) for pair in ((Clip(1.0), Sign()), (Sign(), Clip(1.0))))
    )


def test_images_steps_and_messages_are_defended_one_after_the_other():
    each = [{"c": {"w": torch.tensor([3.0, 4.0])}}, {"c": {"w": torch.tensor([0.3, 0.0])}}]
    both = Composition((DPSGD(noise=0.0, clip=1.0), Gaussian(0.0, "step"), Prune(0.5)))
    exact = {"c": {"w": torch.tensor([1.65, 2.0])}}
    seen = defended_upload.gradient(both, lambda: exact, lambda: each, ("c",), stream(0))
    # The mean of (0.6, 0.8) and (0.3, 0), of which the first entry is the larger.
    torch.testing.assert_close(seen["c"]["w"], torch.tensor([0.45, 0.0]))


@pytest.mark.usefixtures("double_precision")
def test_training_applies_both_and_the_stacked_engine_equals_each_alone():
    noisy, composed = (prepared(d) for d in ("dp-sgd:noise=1", "dp-sgd:noise=1+clip:0.01+secure-aggregation"))
    plain, state, stacked = after_a_round(noisy), after_a_round(composed), after_a_round(composed, "stacked")
    start = harness.initial(composed).server.params
    uploads = []
    for k, client in enumerate(plain.clients):
        # Local training is that of the first alone; the message is clipped, the sum taken by numbers of images.
        assert equal(client.params, state.clients[k].params)
        change = {p: {n: t - start[p][n] for n, t in net.items()} for p, net in client.params.items()}
        uploads.append(Clip(0.01).message(change, stream(0)))
    bound = SecureAggregation().fixed_point.error(SIZES)
    for part, net in state.server.params.items():
        for name, t in net.items():
            mean = sum(n * u[part][name] for n, u in zip(SIZES, uploads, strict=True)) / sum(SIZES)
            assert float((t - start[part][name] - mean).abs().max()) <= bound + 1e-12
            assert float((t - stacked.server.params[part][name]).abs().max()) <= 2 * bound + 1e-8


def test_noise_in_every_step_follows_clipped_images_in_training_too():
    quiet = after_a_round(prepared("dp-sgd:noise=0+gaussian:0", where="step"))
    alone = after_a_round(prepared("dp-sgd:noise=0"))
    noisy = after_a_round(prepared("dp-sgd:noise=0+gaussian:0.1", where="step"))
    assert equal(quiet.server.params, alone.server.params)
    assert not equal(noisy.server.params, alone.server.params)


@pytest.mark.parametrize(
    ("text", "private"),
    [
        ("dp-sgd:epsilon=8+secure-aggregation", DPSGD(epsilon=8.0)),
        ("dp-sgd:epsilon=8+gaussian:0.1+quantize:4", DPSGD(epsilon=8.0)),
        ("clip:2+dp-fedavg:epsilon=8+prune:0.5", DPFedAvg(epsilon=8.0)),
        ("gaussian:variance=1,clip=1+clip:0.5", Gaussian(1.0, clip=1.0)),
    ],
)
def test_the_guarantee_is_that_of_the_one_member_that_has_one(text, private):
    planned, alone = made(text).planned([FACTS]), private.planned([FACTS])
    assert planned.guarantee(FACTS) == alone.guarantee(FACTS)
    assert math.isfinite(planned.guarantee(FACTS).epsilon)
    assert planned.mechanism == alone
    assert planned.is_private


@pytest.mark.parametrize("text", ["gaussian:1+clip:1", "clip:1+gaussian:1", "soteria:0.4+gaussian:1", "clip:1+sign"])
def test_nothing_is_guaranteed_where_no_member_guarantees_anything(text):
    assert made(text).planned([FACTS]).guarantee(FACTS) is None
    assert not made(text).is_private


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("clip:1+clip:2", r"^the defence clip\+clip has clip twice; write one with the settings that are meant"),
        ("none+clip:1", "names none, which is the absence of a defence; leave it out"),
        ("clip:1+none", "names none"),
        ("dp-sgd:noise=1+dp-adam:noise=1", "two that act on single images, dp-sgd and dp-adam; leave one out"),
        ("soteria:0.4+precode", "two that act on the networks, soteria and precode"),
        ("dp-sgd:noise=1+soteria:0.4", "two that act on the networks"),
        ("dp-sgd:noise=1+dp-fedavg:noise=1", "two guarantees, of dp-sgd and dp-fedavg, which nothing here adds up; leave one"),
        ("gaussian:variance=1,clip=1+dp-fedavg:epsilon=8", "two guarantees, of gaussian and dp-fedavg"),
        ("secure-aggregation+clip:1", r"not written in the order in which it acts: clip\+secure-aggregation"),
        ("quantize:4+dp-sgd:noise=1", r"in the order in which it acts: dp-sgd\+quantize"),
        ("clip:1+gausian:1", "did you mean 'gaussian'"),
        ("clip:1++sign", "the defence 'clip' takes a number"),
        ("clip:1+gaussian", "the defence 'gaussian' needs a value for variance"),
        ("clip:1+quantize:1", "needs 2 to 16 bits"),
    ],
)  # fmt: skip
def test_what_is_no_defence_together_is_refused_in_one_line(text, message):
    with pytest.raises(UserError, match=message) as caught:
        made(text)
    assert "\n" not in str(caught.value)


def test_one_client_under_secure_aggregation_is_refused_with_others_too():
    with pytest.raises(UserError, match="secure aggregation of one client hides nothing"):
        prepared("clip:1+secure-aggregation", sizes=(20,))


def test_a_composition_has_one_written_form_and_a_single_defence_keeps_its_own():
    assert written_defense.canonical("dp-adam:clip=2,epsilon=8+secure-aggregation:backend=masks") == (
        "dp-adam:epsilon=8,clip=2+secure-aggregation:masks"
    )
    assert written_defense.canonical("gaussian:1e-3") == "gaussian:1e-3"
    assert names.defense("clip:1+quantize:4") == "clip:1+quantize:4"
    assert names.defenses("gaussian:1e+5+clip:1") == ["gaussian:1e+5", "clip:1"]
    for text in ("+sign", "clip:1+sign+sign:", "clip:1+Sign", "clip:1 + sign", "a:b+a:b" * 500 + "!"):
        with pytest.raises(ValueError, match="should be"):
            names.defense(text)
    specs = [presets.train_spec("smoke", "digits", "fedavg", defense=d) for d in ("clip:1", "clip:1+sign")]
    assert specs[0].id != specs[1].id


def test_a_table_names_all_of_them():
    train = presets.train_spec("smoke", "digits", "fedavg", defense="dp-sgd:epsilon=8+secure-aggregation:masks")
    assert labels.label(presets.cell_spec("smoke", train, "staged")) == (
        "FedAvg + DP-SGD (epsilon 8) + Secure-aggregation masks"
    )


# What an attack has to have a form for.
KINDS = {
    "dp-sgd:noise=1+secure-aggregation": {"clip images", "noise"},
    "gaussian:0.1+secure-aggregation": {"noise"},
    "precode+secure-aggregation": {"bottleneck"},
    "clip:1+gaussian:0.1": {"clip", "noise"},
    # Steps and messages have noise of other variances in whole updates.
    "dp-sgd:noise=1+gaussian:0.1": {"dp-sgd+gaussian"},
    # A sum of clipped messages is no clipped sum; what was rounded had noise; noise that is clipped is no noise of that variance.
    "clip:1+secure-aggregation": {"clip+secure-aggregation"},
    "dp-fedavg:noise=1+secure-aggregation": {"dp-fedavg+secure-aggregation"},
    "sign+secure-aggregation": {"sign+secure-aggregation"},
    "clip:1+quantize:4": {"clip+quantize"},
    "gaussian:0.1+clip:1": {"gaussian+clip"},
    "dp-sgd:noise=1+quantize:4": {"dp-sgd+quantize"},
    "soteria:0.4+gaussian:0.1": {"soteria+gaussian"},
    "soteria:0.4+clip:1": {"soteria+clip"},
}


@pytest.mark.parametrize("text", KINDS)
def test_an_attacker_knows_a_composition_only_where_it_is_what_one_defence_could_do(text):
    description = defended_upload.described(made(text), None, 1, "float32")
    assert described.kinds(description) == KINDS[text]
    seen = replace(small_artifacts.artifact(*small_artifacts.digits(1)), defense=description)
    unknown = knowledge.not_modelled(Staged, seen)
    assert unknown == ([*KINDS[text]] if any("+" in kind for kind in KINDS[text]) else [])
    assert knowledge.not_modelled(Posterior, seen) == sorted(KINDS[text] - {"clip", "clip images", "noise"})


def test_steps_that_are_noised_twice_have_the_noise_of_both():
    description = defended_upload.described(made("dp-sgd:noise=1,clip=2+gaussian:0.5", "step"), None, 4, "float32")
    assert described.kinds(description) == {"clip images", "noise"}
    assert description["variance"] == (2 / 4) ** 2 + 0.5


def test_what_no_attack_has_a_form_for_is_described_member_by_member_and_read_back():
    description = made("clip:2+quantize:4").describe()
    assert description == {
        "name": "clip+quantize", "1.name": "clip", "1.clip": 2.0, "1.clips": "message", "1.where": "update",
        "2.name": "quantize", "2.bits": 4, "2.where": "update",
    }  # fmt: skip
    assert described.single(description) == [Clip(2.0).describe(), Quantize(4).describe()]
    assert described.single(Clip(2.0).describe()) == [Clip(2.0).describe()]


def seen_of(defense, folder, sizes=SIZES, victims=4, batch=1):
    setup = prepared(defense, sizes=sizes)
    state = harness.initial(setup)
    checkpoint.save_snapshot(folder, setup.spec, state)
    shot = checkpoint.load_snapshot(folder, setup.spec.id, 0)
    return observe.observe(
        shot, setup.federation, setup.model, setup.method, setup.defense, method_name="fedavg", dataset="digits",
        victims=victims, batch_size=batch, labels_known=True, seed=0,
    )  # fmt: skip


def test_the_noise_of_a_sum_has_the_variance_that_the_attacker_is_given(tmp_path):
    noisy, _ = seen_of("dp-sgd:noise=0.5,clip=2+secure-aggregation", tmp_path / "a", batch=2)
    quiet, _ = seen_of("dp-sgd:noise=0,clip=2+secure-aggregation", tmp_path / "b", batch=2)
    difference = torch.cat(
        [
            (t - quiet.gradients[part][name]).flatten()
            for part, net in noisy.gradients.items()
            for name, t in net.items()
        ]
    )
    shares = [n / sum(SIZES) for n in SIZES]
    variance = (0.5 * 2 / 2) ** 2 * sum(w**2 for w in shares)
    assert noisy.defense["variance"] == pytest.approx(variance)
    # 4 standard errors of a variance of so many draws.
    assert float(difference.var()) == pytest.approx(variance, rel=4 * math.sqrt(2 / len(difference)))


@pytest.mark.parametrize("sizes", [SIZES, (20, 20, 20)])
def test_the_true_images_explain_a_sum_of_gradients_that_were_clipped_one_by_one(sizes, tmp_path):
    seen, truth = seen_of("dp-sgd:noise=0,clip=0.5+secure-aggregation", tmp_path, sizes, victims=1, batch=2)
    posed = problem.make(seen, 0)
    data = {n: t[0] for n, t in problem.data(posed).items()}

    def gap(images, data=data):
        products = gradient_distance.fitted_products(posed, images.double(), data)
        return float(gradient_distance.relative_distance(products))

    true = gap(truth.images[0])
    assert true < 1e-8
    assert gap(truth.images[0].flip(0)) > 1e4 * true
    posed = posed._replace(fit=posed.fit._replace(clip=None))
    assert gap(truth.images[0]) > 1e4 * true


def test_an_audit_is_of_the_member_that_guarantees_something():
    texts = ("dp-fedavg:epsilon=1", "clip:5+dp-fedavg:epsilon=1+quantize:8+secure-aggregation")
    alone, composed = (audit.audited(prepared(text, "fedsplit", (20, 20)), 1, 100, 100) for text in texts)
    assert composed == alone
    assert composed.claimed == pytest.approx(1.0, abs=0.01)


def test_what_is_claimed_of_a_run_is_claimed_for_its_composition():
    texts = ("dp-sgd:epsilon=8", "dp-sgd:epsilon=8+secure-aggregation")
    # Mini-batches of all images: epsilon is exact then, and costs nothing.
    alone, composed = (defended.guarantees(prepared(text, batch=100), 1) for text in texts)
    assert composed == alone
    assert all(each.unit == "example" and each.epsilon <= 8 for each in composed)


def test_training_that_diverges_under_secure_aggregation_ends_as_it_does_without():
    task = {"kind": "sgd", "lr": 1e39, "weight_decay": 0.0}
    plain, summed = (after_a_round(prepared(d, task=task)) for d in ("none", "secure-aggregation"))
    for state in (plain, summed):
        assert not all(bool(t.isfinite().all()) for net in state.server.params.values() for t in net.values())
    assert summed.history[0]["test_accuracy"] == plain.history[0]["test_accuracy"]
    assert [math.isfinite(x) for x in summed.history[0]["loss"]["task"]] == [
        math.isfinite(x) for x in plain.history[0]["loss"]["task"]
    ]


def test_frozen_settings_of_a_composition_are_planned_member_by_member():
    planned = made("dp-sgd:epsilon=8+secure-aggregation").planned([FACTS])
    assert planned.members[0].epsilon is None
    assert planned == replace(planned, members=(planned.members[0], SecureAggregation()))
    assert planned.noisy
    assert planned.noise_variance(2) == planned.members[0].noise_variance(2) > 0


def test_a_record_that_names_somebody_s_class_among_several_is_not_run_unless_it_is_trusted():
    foreign = "somebodys.module:Defence"
    train = presets.train_spec("smoke", "digits", "fedavg", defense=f"clip:1+{foreign}:0.5")
    with pytest.raises(UserError, match=rf"names {foreign}: not built in"):
        reproduce.check_trusted(presets.cell_spec("smoke", train, "staged"))
    with pytest.raises(UserError, match=foreign):
        written_defense.create(train.defense, "update")


@pytest.mark.parametrize("batch", [1, 2])
def test_a_dry_run_of_a_sum_expects_the_noise_that_a_sum_has(batch):
    defense = made("dp-sgd:noise=0.5,clip=2+secure-aggregation")
    expected = ExpectedUpload(batch * len(SIZES), defense, weights=SIZES)
    std = 0.5 * 2 / batch * math.hypot(*(n / sum(SIZES) for n in SIZES))
    # 4 standard errors of a standard deviation of so many draws.
    assert dry_run.gradient_noise_std(expected, 0) == pytest.approx(std, rel=4 / math.sqrt(2 * dry_run.NOISES))


def test_a_dry_run_of_a_sum_is_observed_as_a_sum():
    setup = prepared("dp-sgd:noise=0.1+secure-aggregation")
    server = harness.initial(setup).server
    expected = ExpectedUpload(2 * len(SIZES), setup.defense, weights=SIZES)
    images = observe.auxiliary(setup.federation)
    clients = Batch(*(t[:6].unflatten(0, (1, 6)) for t in images))
    seen = dry_run.observed(setup.model, Networks(server.params, server.buffers), clients, expected, 0)
    assert (seen.senders, seen.images_per_client, seen.batch_size) == (3, 2, 6)
    assert seen.member_weights.tolist() == [[n / sum(SIZES) for n in SIZES]]
    assert described.kinds(seen.defense) == {"clip images", "noise"}
    assert seen.defense["variance"] == pytest.approx((0.1 / 2) ** 2 * sum((n / sum(SIZES)) ** 2 for n in SIZES))


@pytest.mark.parametrize(
    ("written", "of_one"),
    [
        ("clip:1+secure-aggregation", "clip:1"),
        ("clip:1+gaussian:0.001+secure-aggregation", "clip:1+gaussian:0.001"),
        ("dp-fedavg:noise=0.1,clip=2+secure-aggregation", "dp-fedavg:noise=0.1,clip=2"),
        ("prune:0.1+quantize:4+secure-aggregation", "prune:0.1+quantize:4"),
        ("sign", "sign"),
    ],
)
def test_one_message_of_a_sum_is_described_without_it(written, of_one):
    whole, alone = (
        defended_upload.described(written_defense.create(one, "update"), None, 1, "fp16") for one in (written, of_one)
    )
    assert described.of_one_message(whole) == alone
    assert described.kinds(described.of_one_message(whole)) == described.kinds(alone)


@pytest.mark.parametrize("written", ["secure-aggregation", "gaussian:0.001+secure-aggregation"])
def test_a_description_that_is_that_of_one_message_already_stays(written):
    whole = written_defense.create(written, "update").describe()
    assert described.of_one_message(whole) == whole
