"""The losses of the other federated methods against independent loops over samples, written from the equations."""

import dataclasses
import math
from dataclasses import replace
from itertools import combinations

import pytest
import torch
from torch import nn

from benchmarks import plain
from privbench import presets, registry, written_defense
from privbench.defense import Defense
from privbench.errors import UserError
from privbench.methods import aggregators
from privbench.methods.base import ClassByCount, DropoutMask, MiniBatch, Nets, Phase, RoundClock, SamplingContext
from privbench.methods.feddf import FedDF
from privbench.methods.fedgen import FedGen
from privbench.methods.fedmd_cg import FedMDCG, diversity_loss
from privbench.methods.fedprox import FedProx
from privbench.methods.nfl_cgan import NFLCGAN
from privbench.networks.model import Model
from privbench.seeds import stream
from privbench.training import harness
from tests.builders.federations import digits_federation, learn_round

CLASSES, B = 5, 6
CONV, DENSE = Model("lenet5", 1, CLASSES), Model("lenet5", 1, CLASSES, gan="dense")
DROPPING = replace(CONV, dropout=0.2)
CLOCK = RoundClock(4, 100)
WEIGHTS = torch.tensor([0.25, 0.75])
COUNTS = torch.tensor([[4.0, 0, 1, 3, 2], [1.0, 5, 0, 3, 2]])


class DenseGenerator(nn.Module):
    """[z; onehot(y)] through three linear layers with batch norm, as torch.nn has them."""

    def __init__(self, params, buffers):
        super().__init__()
        self.fcs = nn.ModuleList(nn.Linear(a, b) for a, b in ((128 + CLASSES, 512), (512, 512), (512, 400)))
        self.norms = nn.ModuleList(nn.BatchNorm1d(512) for _ in range(2))
        for i, fc in enumerate(self.fcs):
            fc.weight.data, fc.bias.data = params[f"fc{i}.weight"], params[f"fc{i}.bias"]
        for i, norm in enumerate(self.norms):
            norm.weight.data, norm.bias.data = params[f"norm{i}.weight"], params[f"norm{i}.bias"]
            norm.running_mean, norm.running_var = buffers[f"norm{i}.mean"].clone(), buffers[f"norm{i}.var"].clone()

    def forward(self, z, y):
        x = torch.cat([z, nn.functional.one_hot(y, CLASSES)], 1)
        for fc, norm in zip(self.fcs, self.norms, strict=False):
            x = nn.functional.leaky_relu(norm(fc(x)), 0.2)
        return torch.sigmoid(self.fcs[2](x)).unflatten(1, (16, 5, 5))


def parts(seed, model=CONV):
    """Networks that differ visibly: fresh generators all say 0.5, fresh classifiers the same."""
    params, buffers = {}, {}
    for part in ("extractor", "classifier", "generator", "discriminator"):
        params[part], buffers[part] = model.net(part).init(stream(seed, part))
    last = "up3.weight" if model is CONV else "fc2.weight"
    params["generator"][last] *= 500 if model is CONV else 20
    for layer in ("fc1", "fc2", "fc3"):
        params["classifier"][f"{layer}.weight"] *= 8
    return params, buffers


def in_torch(networks, model=CONV):
    """(extractor, classifier, generator) in torch.nn, in eval mode."""
    params, buffers = networks
    extractor = plain.load(plain.Extractor(1), "extractor", params["extractor"], {})
    classifier = plain.load(plain.Classifier(CLASSES), "classifier", params["classifier"], {})
    if model is DENSE:
        generator = DenseGenerator(params["generator"], buffers["generator"])
    else:
        generator = plain.load(plain.Generator(CLASSES), "generator", params["generator"], buffers["generator"])
    return extractor.eval(), classifier.eval(), generator.eval()


def mini_batch(model=CONV):
    rng = torch.Generator().manual_seed(1)
    noise = {
        "z": torch.randn(B, model.noise_dim, generator=rng),
        "y": torch.tensor([0, 3, 4, 3, 2, 1]),
        "kept": torch.rand(B, 16, 5, 5, generator=rng) < 0.8,
        "kept_imitated": torch.rand(B, 16, 5, 5, generator=rng) < 0.8,
        "kept_resampled": torch.rand(B, 16, 5, 5, generator=rng) < 0.8,
        "z_hat": torch.randn(B, model.noise_dim, generator=rng),
    }
    return MiniBatch(torch.rand(B, 1, 32, 32, generator=rng), torch.tensor([2, 3, 1, 3, 0, 0]), noise)


def ce(logits, y):
    return math.log(sum(math.exp(v) for v in logits.tolist())) - logits[y].item()


def kl(p, q):
    """KL( softmax(p) || softmax(q) ) of two vectors of logits."""
    p, q = ([math.exp(v) / sum(math.exp(w) for w in t.tolist()) for v in t.tolist()] for t in (p, q))
    return sum(a * (math.log(a) - math.log(b)) for a, b in zip(p, q, strict=True))


def one(network, *inputs):
    """The network's answer to one sample."""
    return network(*(t[None] for t in inputs))[0]


def test_fedprox_adds_half_mu_times_the_squared_distance_to_the_broadcast():
    (params, buffers), other, batch = parts(0), parts(7), mini_batch()
    nets = Nets(CONV, params, buffers, ("extractor", "classifier"), received=Nets(CONV, *other))
    extractor, classifier, _ = in_torch((params, buffers))
    l_cls = sum(ce(one(classifier, one(extractor, x)), y) for x, y in zip(batch.images, batch.labels, strict=True)) / B
    gap = sum(
        (a - b) ** 2
        for part in ("extractor", "classifier")
        for name, t in params[part].items()
        for a, b in zip(t.flatten().tolist(), other[0][part][name].flatten().tolist(), strict=True)
    )
    loss = FedProx(mu=0.1).task_loss(nets, batch, CLOCK).item()
    assert loss == pytest.approx(l_cls + 0.05 * gap, rel=1e-5)
    assert FedProx(mu=0.0).task_loss(nets, batch, CLOCK).item() == pytest.approx(l_cls, rel=1e-5)


def test_feddf_distils_the_weighted_ensemble_on_the_images():
    student, clients, batch = parts(0), (parts(3), parts(7)), mini_batch()
    nets = Nets(
        CONV, *student, ("extractor", "classifier"), clients=tuple(Nets(CONV, *c) for c in clients), weights=WEIGHTS
    )
    student_e, student_c, _ = in_torch(student)
    teachers = [in_torch(c)[:2] for c in clients]
    loop = 0.0
    for x in batch.images:
        logits = sum(w * one(c, one(e, x)) for w, (e, c) in zip(WEIGHTS, teachers, strict=True))
        loop += kl(logits, one(student_c, one(student_e, x))) / B
    assert FedDF().distillation_loss(nets, batch, CLOCK).item() == pytest.approx(loop, rel=1e-4)


@pytest.mark.parametrize("model", [CONV, DENSE], ids=["conv", "dense"])
def test_fedgens_client_learns_from_imitated_features_from_round_two_on(model):
    client, broadcast, batch = parts(0, model), parts(7, model), mini_batch(model)
    nets = Nets(model, *client, ("extractor", "classifier"), received=Nets(model, *broadcast))
    (extractor, classifier, _), (_, _, generator) = in_torch(client, model), in_torch(broadcast, model)
    l_cls = l_gen = 0.0
    for i in range(B):
        l_cls += ce(one(classifier, one(extractor, batch.images[i])), batch.labels[i]) / B
        z, y = batch.noise["z"][i], batch.noise["y"][i]
        l_gen += ce(one(classifier, one(generator, z, y)), y) / B
    assert FedGen(weight=0.5).task_loss(nets, batch, CLOCK).item() == pytest.approx(l_cls + 0.5 * l_gen, rel=1e-4)
    assert FedGen().task_loss(nets, batch, RoundClock(1, 100)).item() == pytest.approx(l_cls, rel=1e-4)


@pytest.mark.parametrize("model", [CONV, DENSE], ids=["conv", "dense"])
def test_fedgens_generator_is_trained_on_the_weighted_ensemble_and_diversity(model):
    server, clients, batch = parts(0, model), (parts(3, model), parts(7, model)), mini_batch(model)
    nets = Nets(model, *server, ("generator",), clients=tuple(Nets(model, *c) for c in clients), weights=WEIGHTS)
    loss = FedGen(diversity=0.3).generator_loss(nets, batch, CLOCK).item()
    generator = in_torch(server, model)[2].train()
    z, y = batch.noise["z"], batch.noise["y"]
    h = generator(z, y)
    loop = 0.0
    for i in range(B):
        loop += ce(sum(w * one(in_torch(c, model)[1], h[i]) for w, c in zip(WEIGHTS, clients, strict=True)), y[i]) / B
    z_gap = sum((z[i] - z[i + 3]).abs().mean().item() for i in range(3)) / 3
    f_gap = sum((h[i] - h[i + 3]).abs().mean().item() for i in range(3)) / 3
    assert loss == pytest.approx(loop + 0.3 * z_gap / (f_gap + 1e-5), rel=1e-4)


def test_fedgen_in_fedmd_cgs_comparison_has_its_generator_with_128_noises():
    each = presets.train_spec("smoke", "digits", "fedgen", clients=2, method_settings={"gan": "dense"})
    model = harness.prepare(each, digits_federation(), torch.device("cpu")).model
    assert model.noise_dim == 128
    params, _ = model.net("generator").init(stream(0, "test"))
    assert [tuple(params[f"fc{i}.weight"].shape) for i in range(3)] == [(512, 138), (512, 512), (400, 512)]


def test_nfl_cgan_drops_features_before_the_classifier_and_nowhere_else():
    client, broadcast, batch = parts(0), parts(7), mini_batch()
    nets = Nets(DROPPING, *client, ("extractor", "classifier"), received=Nets(DROPPING, *broadcast))
    (extractor, classifier, _), (_, _, generator) = in_torch(client), in_torch(broadcast)
    alpha = 2 / (1 + math.exp(-10 * 3 / 50)) - 1
    loop = l_cls = 0.0
    for i in range(B):
        h = one(extractor, batch.images[i])
        l_cls += ce(one(classifier, h * batch.noise["kept"][i] / 0.8), batch.labels[i]) / B
        fake = one(generator, batch.noise["z"][i], batch.labels[i])
        loop += alpha * (h - fake).square().sum().item() / 400 / B
    assert NFLCGAN().task_loss(nets, batch, CLOCK).item() == pytest.approx(l_cls + loop, rel=1e-5)
    assert l_cls != pytest.approx(loop, rel=1e-3)
    without = [Nets(each, *client).classifier(nets.extractor(batch.images)) for each in (CONV, DROPPING)]
    assert torch.equal(*without)  # in eval mode nothing is dropped


def test_the_student_of_nfl_cgan_is_distilled_with_dropout_and_its_teachers_without():
    server, clients, batch = parts(0), (parts(3), parts(7)), mini_batch()
    networks = tuple(Nets(DROPPING, *c) for c in clients)
    nets = Nets(DROPPING, *server, aggregators.STUDENT, clients=networks, weights=WEIGHTS)
    ((stage,),) = [phase.stages for phase in NFLCGAN().server()]
    loss = stage.loss(nets, batch, CLOCK).item()
    _, student, generator = in_torch(server)
    z, y = batch.noise["z"], batch.noise["y"]
    h = generator.train()(z, y) * batch.noise["kept"] / 0.8
    loop = 0.0
    for i in range(B):
        teachers = [one(c, one(g, z[i], y[i])) for _, c, g in map(in_torch, clients)]
        ensemble = sum(w * t for w, t in zip(WEIGHTS, teachers, strict=True))
        loop += kl(ensemble, one(student, h[i])) / B
    assert loss == pytest.approx(loop, rel=1e-3)
    assert set(stage.draws) == {"z", "y", "kept", "kept eps"}


def dropped_loop(client, batch, mask="kept"):
    """L_cls with dropout 0.2 before the classifier, sample by sample."""
    extractor, classifier, _ = in_torch(client)
    rows = zip(batch.images, batch.labels, batch.noise[mask], strict=True)
    return sum(ce(one(classifier, one(extractor, x) * keep / 0.8), y) for x, y, keep in rows) / B


@pytest.mark.parametrize("name", ["local", "fedavg", "feddf", "fedper", "fedsplit", "fedprox"])
def test_a_baseline_with_dropout_drops_features_in_training(name):
    client, batch = parts(0), mini_batch()
    method = registry.create(registry.resolve("method", name), {"dropout": 0.2})
    assert method.networks("lenet5")["dropout"] == 0.2
    ((stage,),) = [phase.stages for phase in method.client()]
    assert "kept" in stage.draws
    nets = Nets(DROPPING, *client, stage.trains, received=Nets(DROPPING, *client))
    assert stage.loss(nets, batch, CLOCK).item() == pytest.approx(dropped_loop(client, batch), rel=1e-5)
    whole = Nets(CONV, *client, stage.trains, received=Nets(CONV, *client))
    assert stage.loss(whole, batch, CLOCK).item() != pytest.approx(dropped_loop(client, batch), rel=1e-4)


def test_fedgen_and_feddf_drop_what_their_trained_classifiers_see_and_nothing_else():
    client, broadcast, batch = parts(0), parts(7), mini_batch()
    nets = Nets(DROPPING, *client, ("extractor", "classifier"), received=Nets(DROPPING, *broadcast))
    (_, classifier, _), (_, _, generator) = in_torch(client), in_torch(broadcast)
    loop = dropped_loop(client, batch)
    for z, y, keep in zip(*(batch.noise[name] for name in ("z", "y", "kept_imitated")), strict=True):
        loop += ce(one(classifier, one(generator, z, y) * keep / 0.8), y) / B
    assert FedGen(dropout=0.2).task_loss(nets, batch, CLOCK).item() == pytest.approx(loop, rel=1e-4)
    clients = tuple(Nets(DROPPING, *each) for each in (parts(3), parts(7)))
    student = Nets(DROPPING, *client, ("extractor", "classifier"), clients=clients, weights=WEIGHTS)
    (student_e, student_c, _), teachers = in_torch(client), [in_torch(c)[:2] for c in (parts(3), parts(7))]
    loop = 0.0
    for x, keep in zip(batch.images, batch.noise["kept"], strict=True):
        logits = sum(w * one(c, one(e, x)) for w, (e, c) in zip(WEIGHTS, teachers, strict=True))
        loop += kl(logits, one(student_c, one(student_e, x) * keep / 0.8)) / B
    assert FedDF(dropout=0.2).distillation_loss(student, batch, CLOCK).item() == pytest.approx(loop, rel=1e-3)


@pytest.mark.parametrize(("backbone", "settings", "rate"), [
    ("lenet5", {}, 0.2), ("resnet18", {}, 0.0), ("resnet18", {"dropout": 0.3}, 0.3), ("lenet5", {"dropout": 0.0}, 0.0),
])  # fmt: skip
def test_nfl_cgans_dropout_belongs_to_its_cnn(backbone, settings, rate):
    each = presets.train_spec("smoke", "digits", "nfl-cgan", clients=2, backbone=backbone, method_settings=settings)
    assert harness.prepare(each, digits_federation(), torch.device("cpu")).model.dropout == rate


@pytest.mark.parametrize("name", [name for name in registry.METHODS if name != "lg-fedavg"])
def test_every_method_trains_a_round_with_dropout_and_to_other_networks(name):
    def trained(rate):
        each = presets.train_spec("smoke", "digits", name, clients=2, method_settings={"dropout": rate})
        setup = harness.prepare(each, digits_federation((20, 20)), torch.device("cpu"))
        state = harness.initial(setup)
        learn_round([setup], [state])
        return state.clients[0].params["classifier"]["fc1.weight"]

    with_dropout, without = trained(0.2), trained(0.0)
    assert with_dropout.isfinite().all()
    assert not torch.equal(with_dropout, without)


@dataclasses.dataclass(frozen=True)
class Undrawn(FedProx):
    """A method of a user's own that does not draw which features are kept."""

    def client(self):
        stage = super().client()[0].stages[0]
        return (Phase((replace(stage, draws={}),), "local_epochs"),)


def test_a_method_that_does_not_draw_what_is_kept_refuses_dropout_and_trains_without():
    name = registry.typed("method", f"{__name__}:Undrawn")
    each = presets.train_spec("smoke", "digits", name, clients=2)
    setup = harness.prepare(each, digits_federation((20, 20)), torch.device("cpu"))
    learn_round([setup], [harness.initial(setup)])
    each = each.model_copy(update={"method_settings": {"dropout": 0.2}})
    setup = harness.prepare(each, digits_federation((20, 20)), torch.device("cpu"))
    with pytest.raises(UserError, match=r"dropout=0\.2 needs a loss that draws which features are kept"):
        learn_round([setup], [harness.initial(setup)])


def fedmd_task_terms(client, broadcast, batch, ramp):
    (extractor, classifier, _), (_, _, generator) = in_torch(client, DENSE), in_torch(broadcast, DENSE)
    terms = dict.fromkeys(("cls", "cls_global", "mse_global", "kl_global"), 0.0)
    for i in range(B):
        z, y, y_hat = batch.noise["z"][i], batch.labels[i], batch.noise["y"][i]
        h, fake = one(extractor, batch.images[i]), one(generator, z, y)
        terms["cls"] += ce(one(classifier, h), y) / B
        resampled = one(generator, batch.noise["z_hat"][i], y_hat)
        terms["cls_global"] += ramp * 0.5 * ce(one(classifier, resampled), y_hat) / B
        terms["mse_global"] += ramp * 2.0 * (h - fake).square().mean().item() / B
        terms["kl_global"] += ramp * 3.0 * kl(one(classifier, h), one(classifier, fake)) / B
    return terms


def diversity_loop(kind, f, z, y, scale):
    """exp( -(1/B^2) sum |f_j - f_k| d_jk ), pair by pair and dimension by dimension (Eq. 7 and 8)."""
    f, z, size = f.flatten(1).tolist(), z.tolist(), len(z)
    total = 0.0
    for j in range(size):
        for k in range(size):
            noises = [
                row + [float(label == c) for c in range(CLASSES)] * (kind == 1) for row, label in zip(z, y, strict=True)
            ]
            gaps = [abs(a - b) for a, b in zip(f[j], f[k], strict=True)]
            noise_gaps = [(a - b) ** 2 for a, b in zip(noises[j], noises[k], strict=True)]
            if scale == "literal":
                apart, d = math.sqrt(sum(gap**2 for gap in gaps)), math.sqrt(sum(noise_gaps))
            else:
                apart, d = sum(gaps) / len(gaps), sum(noise_gaps) / len(noise_gaps)
            if kind == 2:
                d *= math.exp(0 if y[j] == y[k] else 2)
            total += apart * d
    return math.exp(-total / size**2)


def fedmd_local_terms(client, batch, kind=2, scale="mean"):
    extractor, classifier, generator = in_torch(client, DENSE)
    z, y = batch.noise["z"], batch.labels
    f = generator.train()(z, y)
    terms = dict.fromkeys(("kl_local", "mse_local", "cls_local"), 0.0)
    for i in range(B):
        h = one(extractor, batch.images[i])
        terms["kl_local"] += kl(one(classifier, f[i]), one(classifier, h)) / B
        terms["mse_local"] += 0.5 * (f[i] - h).square().mean().item() / B
        terms["cls_local"] += 2.0 * ce(one(classifier, f[i]), y[i]) / B
    terms["div"] = 30.0 * diversity_loop(kind, f, z, y, scale)
    return terms


@pytest.fixture(scope="module")
def fedmd():
    """(method, the loops' terms per stage, the method's loss per stage) of one FedMD-CG client."""
    client, broadcast, batch = parts(0, DENSE), parts(7, DENSE), mini_batch(DENSE)
    client[0]["generator"] = parts(5, DENSE)[0]["generator"]
    # So near to collapse, and with such noise, that not even the norms' exp(-distance) is 0.
    client[0]["generator"]["fc2.weight"] *= 0.1
    close = batch._replace(noise=batch.noise | {"z": batch.noise["z"] / 64})
    method = FedMDCG(lambda1=0.5, lambda2=2.0, lambda3=3.0, lambda4=0.5, lambda5=2.0, lambda6=30.0, ramp_power=2.0)
    clock = RoundClock(51, 100)
    loops = fedmd_task_terms(client, broadcast, batch, 0.25) | fedmd_local_terms(client, batch)
    for kind in (0, 1, 2):
        loops[f"div {kind} mean"] = fedmd_local_terms(client, batch, kind)["div"]
        loops[f"div {kind} literal"] = fedmd_local_terms(client, close, kind, "literal")["div"]

    def losses(each):
        task = Nets(DENSE, *client, ("extractor", "classifier"), received=Nets(DENSE, *broadcast))
        local = Nets(DENSE, *client, ("generator",), received=Nets(DENSE, *broadcast))
        noise = close if each.diversity_scale == "literal" else batch
        return each.task_loss(task, batch, clock).item(), each.generator_loss(local, noise, clock).item()

    return method, loops, losses


def test_fedmd_cgs_two_client_losses_are_the_sums_of_their_terms(fedmd):
    method, loops, losses = fedmd
    task, local = losses(method)
    assert task == pytest.approx(sum(list(loops.values())[:4]), rel=1e-4)
    assert local == pytest.approx(sum(list(loops.values())[4:8]), rel=1e-4)


@pytest.mark.parametrize(
    "term", ["cls", "cls_global", "mse_global", "kl_global", "kl_local", "mse_local", "cls_local", "div"]
)
def test_a_term_that_is_switched_off_is_missing_and_nothing_else(term, fedmd):
    method, loops, losses = fedmd
    whole, less = losses(method), losses(replace(method, without=term))
    assert sum(whole) - sum(less) == pytest.approx(loops[term], rel=1e-3, abs=1e-5)
    assert loops[term] > 1e-2


# Tables 4 and 12 to 14: of the local model's three terms and of the local generator's, each pair and all three.
COMBINED = [
    terms
    for side in (("cls_global", "mse_global", "kl_global"), ("mse_local", "cls_local", "div"))
    for terms in (*combinations(side, 2), side)
]


@pytest.mark.parametrize("terms", COMBINED, ids="+".join)
def test_terms_that_are_switched_off_together_are_missing_together(terms, fedmd):
    assert len(COMBINED) == 8
    method, loops, losses = fedmd
    whole, less = losses(method), losses(replace(method, without=", ".join(terms)))
    assert sum(whole) - sum(less) == pytest.approx(sum(loops[term] for term in terms), rel=1e-3)


def test_feature_level_alone_is_the_loss_without_its_comparison_of_logits(fedmd):
    """Tables 3 and 9-11 with AVE_agg: CE on imitated features stays, and goes in the other reading."""
    method, loops, losses = fedmd
    loss = losses(replace(method, aggregator="ave", without="kl_global"))[0]
    assert loss == pytest.approx(loops["cls"] + loops["cls_global"] + loops["mse_global"], rel=1e-4)
    other = losses(replace(method, aggregator="ave", without="cls_global,kl_global"))[0]
    assert other == pytest.approx(loops["cls"] + loops["mse_global"], rel=1e-4)


@pytest.mark.parametrize("scale", ["mean", "literal"])
@pytest.mark.parametrize("kind", [0, 1, 2])
def test_the_local_generator_descends_on_the_diversity_loss_that_is_chosen(kind, scale, fedmd):
    method, loops, losses = fedmd
    chosen = replace(method, diversity=kind, diversity_scale=scale)
    div = losses(chosen)[1] - losses(replace(chosen, without="div"))[1]
    assert div == pytest.approx(loops[f"div {kind} {scale}"], rel=2e-4)
    assert 1e-2 < div < 29
    others = [loops[f"div {other} {scale}"] for other in (0, 1, 2) if other != kind]
    assert all(div != pytest.approx(other, rel=2e-3) for other in others)


@pytest.mark.parametrize(("scale", "size"), [("mean", 0.5), ("literal", 0.02)])
@pytest.mark.parametrize("kind", [0, 1, 2])
def test_the_diversity_losses_are_equations_7_and_8(kind, scale, size):
    rng = torch.Generator().manual_seed(0)
    f, z = size * torch.rand(B, 16, 5, 5, generator=rng), torch.randn(B, 7, generator=rng)
    y = torch.tensor([0, 3, 3, 1, 0, 2])
    loss = diversity_loss(kind, f.requires_grad_(), z, y, CLASSES, scale)
    assert loss.item() == pytest.approx(diversity_loop(kind, f, z, y, scale), rel=1e-5)
    assert 0.01 < loss.item() < 0.9
    assert torch.autograd.grad(loss, f)[0].isfinite().all()


def test_unless_otherwise_specified_the_diversity_loss_is_l_div2_of_means():
    assert (FedMDCG().diversity, FedMDCG().diversity_scale) == (2, "mean")


@pytest.mark.parametrize("seed", [0, 1])
def test_the_printed_diversity_loss_is_zero_at_the_start_and_that_of_means_is_not(seed):
    """The paper's batch of 64 and its fully connected generator as it is initialised, in single precision."""
    model = Model("lenet5", 3, 10, gan="dense")
    params, buffers = model.net("generator").init(stream(seed, "init", "generator"))
    leaves = {name: t.requires_grad_() for name, t in params.items()}
    rng = stream(seed, "test", "diversity")
    z, y = torch.randn(64, 128, generator=rng), torch.randint(10, (64,), generator=rng)
    f, _ = model.net("generator").apply(leaves, buffers, z, y, train=True)

    def slope(kind, scale):
        loss = diversity_loss(kind, f, z, y, 10, scale)
        grads = torch.autograd.grad(loss, list(leaves.values()), retain_graph=True)
        return loss.item(), math.sqrt(sum(g.square().sum().item() for g in grads))

    assert slope(2, "literal") == (0.0, 0.0)
    for kind in (0, 1, 2):
        loss, norm = slope(kind, "mean")
        assert 0.1 < loss < 0.95  # a weight of 1 beside losses of the order of 1
        assert norm > 0.01
        assert max(slope(kind, "literal")) < torch.finfo(torch.float32).eps * norm  # too little to change a step


@pytest.mark.parametrize("model", [CONV, DENSE], ids=["fedcg", "fedmd-cg"])
def test_crossed_distillation_weighs_clients_by_their_label_counts(model):
    server, clients, batch = parts(0, model), (parts(3, model), parts(7, model)), mini_batch(model)
    nets = Nets(model, *server, aggregators.STUDENT, clients=tuple(Nets(model, *c) for c in clients), counts=COUNTS)
    _, c_g, g_g = in_torch(server, model)
    z, y = batch.noise["z"], batch.noise["y"]
    h = g_g.train()(z, y)
    loops = dict.fromkeys(aggregators.CROSSED, 0.0)
    for i in range(B):
        for client, counts in zip(clients, COUNTS, strict=True):
            _, c_i, g_i = in_torch(client, model)
            tau = (counts[y[i]] / COUNTS[:, y[i]].sum()).item()
            h_i = one(g_i, z[i], y[i])
            teacher = one(c_i, h_i)
            loops["kl1"] += tau * kl(one(c_g, h[i]), teacher) / B
            loops["kl2"] += tau * kl(one(c_g, h_i), teacher) / B
            loops["kl3"] += tau * kl(one(c_i, h[i]), teacher) / B
    for terms in (("kl1", "kl2", "kl3"), ("kl1",), ("kl2",), ("kl3",)):
        loss = aggregators.crossed_distillation_loss(nets, batch, CLOCK, terms=terms).item()
        assert loss == pytest.approx(sum(loops[t] for t in terms), rel=1e-3)


def test_switched_off_terms_reach_the_server():
    ((stage,),) = [phase.stages for phase in FedMDCG(without="kl1, kl3").server()]
    assert stage.loss.keywords["terms"] == ("kl2",)
    assert FedMDCG(aggregator="ave", without="div").server() == ()


def test_the_dense_discriminator_is_the_classifier_with_one_output():
    params, state = DENSE.net("discriminator").init(stream(0, "d"))
    h, y = torch.rand(B, 16, 5, 5), torch.arange(B) % CLASSES
    scores, _ = DENSE.net("discriminator").apply(params, state, h, y, train=True)
    fcs = [nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 1)]
    for i, fc in enumerate(fcs):
        fc.weight.data, fc.bias.data = params[f"fc{i + 1}.weight"], params[f"fc{i + 1}.bias"]
    net = nn.Sequential(nn.Flatten(), fcs[0], nn.Sigmoid(), fcs[1], nn.Sigmoid(), fcs[2])
    torch.testing.assert_close(scores, net(h)[:, 0])


def test_labels_are_drawn_as_often_as_all_clients_together_have_them():
    counts = torch.tensor([[3.0, 0, 1, 0, 0], [2.0, 0, 0, 4, 0]])
    y = ClassByCount().sample((100, 100), SamplingContext(CONV, counts), torch.Generator())
    shares = torch.bincount(y.flatten(), minlength=CLASSES) / 10_000
    torch.testing.assert_close(shares, torch.tensor([0.5, 0, 0.1, 0.4, 0]), atol=0.02, rtol=0)


def test_dropout_keeps_the_share_asked_for():
    mask = DropoutMask().sample((10, 5), SamplingContext(replace(CONV, dropout=0.2), None), torch.Generator())
    assert mask.shape == (10, 5, 16, 5, 5)
    assert mask.float().mean().item() == pytest.approx(0.8, abs=0.02)
    assert DropoutMask().sample((10, 5), SamplingContext(CONV, None), torch.Generator()).numel() == 0


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("fedmd-cg", {"without": "kl_globl"}, "FedMD-CG has no loss term 'kl_globl'; known: cls, cls_global"),
        ("fedmd-cg", {"without": "kl1,kl2,kl3"}, "leaves a stage nothing to descend on; keep one of kl1, kl2, kl3"),
        (
            "fedmd-cg",
            {"without": "div,kl1", "aggregator": "kd"},
            "names kl1, a term of the server's aggregator=kdc, but aggregator=kd was given; name client terms alone",
        ),
        ("fedmd-cg", {"without": "kl1,kl2,kl3", "aggregator": "ave"}, "names kl1, .* but aggregator=ave was given"),
        ("fedmd-cg", {"diversity": 3}, "L_div 0, 1 or 2, but 3 was given"),
        ("fedmd-cg", {"aggregator": "median"}, "unknown aggregator 'median'; known: ave, kd, kdc"),
        ("fedcg", {"aggregator": "avg"}, "unknown aggregator 'avg'"),
        ("nfl-cgan", {"dropout": 1.0}, "dropout should be below 1.0, but 1.0 was given"),
        ("fedavg", {"dropout": -0.1}, "dropout should be at least 0.0, but -0.1 was given"),
        ("fedgen", {"observe_loss": "all"}, "observe_loss should be 'classification' or 'task', but 'all' was given"),
        ("fedmd-cg", {"diversity_scale": "sum"}, "diversity_scale should be 'mean' or 'literal', but 'sum' was given"),
        ("fedprox", {"mu": -1.0}, "mu should be at least 0, but -1.0 was given"),
        ("fedprox", {"mu": math.nan}, "FedProx: mu takes a finite number, but nan was given"),
        ("fedprox", {"mu": 10**400}, "FedProx: mu takes a finite number, but 1000"),
        ("fedprox", {"mu": True}, "FedProx: mu takes a finite number, but True was given"),
        ("fedgen", {"weight": math.inf}, "FedGen: weight takes a finite number, but inf was given"),
        ("fedgen", {"weight": -1}, "weight should be at least 0, but -1 was given"),
        ("fedgen", {"diversity": -0.5}, "diversity should be at least 0, but -0.5 was given"),
        ("fedcg", {"diversity": "abc"}, "FedCG: diversity takes a finite number, but 'abc' was given"),
        ("fedcg", {"diversity": -0.2}, "diversity should be at least 0, but -0.2 was given"),
        ("fedcg", {"ramp_rounds": 0}, "ramp_rounds should be at least 1, but 0 was given"),
        ("fedcg", {"ramp_rounds": 2.5}, "FedCG: ramp_rounds takes a whole number, but 2.5 was given"),
        ("fedcg", {"ramp_rounds": True}, "FedCG: ramp_rounds takes a whole number, but True was given"),
        ("nfl-cgan", {"ramp_rounds": -3}, "ramp_rounds should be at least 1, but -3 was given"),
        ("fedmd-cg", {"ramp_power": -1}, "ramp_power should be at least 0, but -1 was given"),
        ("fedmd-cg", {"lambda1": "abc"}, "FedMDCG: lambda1 takes a finite number, but 'abc' was given"),
        ("fedmd-cg", {"lambda6": -1.0}, "lambda6 should be at least 0, but -1.0 was given"),
        ("fedmd-cg", {"without": 1}, "FedMDCG: without takes a word, but 1 was given"),
    ],
)
def test_a_wrong_setting_gets_one_line(method, settings, message):
    with pytest.raises(UserError, match=message) as caught:
        registry.create(registry.resolve("method", method), settings)
    assert "\n" not in str(caught.value)


def test_a_float_setting_takes_an_integer_and_the_limits_themselves_pass():
    made = registry.create(FedMDCG, {"lambda1": 0, "ramp_power": 0})
    assert made.ramp(RoundClock(1, 10)) == 1
    assert registry.create(registry.resolve("method", "fedcg"), {"ramp_rounds": 1}).gamma(RoundClock(1, 10)) == 0


@dataclasses.dataclass(frozen=True)
class Typed(Defense):
    """A plug-in of a user's own, with every type that is looked at and one that is not."""

    bits: int
    fast: bool = False
    layers: tuple[int, ...] = ()

    def describe(self):
        return {"name": "typed", "bits": self.bits}


def test_whole_numbers_and_flags_are_looked_at_and_other_types_are_left_to_the_class():
    assert registry.create(Typed, {"bits": 8, "fast": True, "layers": (1,)}) == Typed(8, True, (1,))
    with pytest.raises(UserError, match="Typed: fast takes true or false, but 1 was given"):
        registry.create(Typed, {"bits": 8, "fast": 1})
    assert written_defense.create(written_defense.typed(f"{__name__}:Typed:8"), "step") == Typed(8)
    with pytest.raises(UserError, match=r"Typed: bits takes a whole number, but 8\.5 was given"):
        written_defense.create(f"{__name__}:Typed:8.5", "step")


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        (
            "feddf",
            {},
            "feddf trains its server on public images, but digits with 2 clients of 32 images holds none out",
        ),
        ("fedcg", {"gan": "deep"}, "unknown gan 'deep'; known: conv, dense"),
    ],
)
def test_a_setting_that_does_not_fit_the_federation_gets_one_line(method, settings, message):
    each = presets.train_spec("smoke", "digits", method, clients=2, method_settings=settings)
    with pytest.raises(UserError, match=message):
        harness.prepare(each, digits_federation()._replace(public=None), torch.device("cpu"))


def test_lg_fedavg_is_fedsplit():
    assert registry.resolve("method", "lg-fedavg") is registry.resolve("method", "fedsplit")
