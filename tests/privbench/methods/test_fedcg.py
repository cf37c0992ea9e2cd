"""FedCG's losses against an independent loop over samples, written from the equations with torch.nn layers."""

import math

import pytest
import torch
from torch import nn

from benchmarks import plain
from privbench.methods import aggregators
from privbench.methods.base import MiniBatch, Nets, RoundClock
from privbench.methods.fedcg import FedCG
from privbench.networks.model import Model
from privbench.seeds import stream
from privbench.tensors import average

CLASSES, B = 5, 6
MODEL = Model("lenet5", 1, CLASSES)
CLOCK = RoundClock(4, 100)


def parts(seed):
    params, buffers = {}, {}
    for part in ("extractor", "classifier", "generator", "discriminator"):
        params[part], buffers[part] = MODEL.net(part).init(stream(seed, part))
    # Fresh generators all say 0.5; these must differ, or one could stand for another unnoticed.
    params["generator"]["up3.weight"] *= 500
    return params, buffers


def torch_extractor(p):
    return plain.load(plain.Extractor(1), "extractor", p, {})


def torch_classifier(p):
    return plain.load(plain.Classifier(CLASSES), "classifier", p, {})


def torch_generator(p):
    return plain.load(plain.Generator(CLASSES), "generator", p, {})


def torch_discriminator(p, buffers):
    net = plain.load(plain.Discriminator(CLASSES), "discriminator", p, buffers)
    for i, down in enumerate(net.downs):  # torch keeps v, which a frozen network would otherwise not have met yet
        down.weight_v.data = nn.functional.normalize(p[f"down{i}.weight"].flatten(1).T @ down.weight_u, dim=0)
    return net


@pytest.fixture
def case():
    rng = torch.Generator().manual_seed(1)
    batch = MiniBatch(
        torch.rand(B, 1, 32, 32, generator=rng),
        torch.randint(CLASSES, (B,), generator=rng),
        {"z": torch.randn(B, 100, generator=rng), "y": torch.randint(CLASSES, (B,), generator=rng)},
    )
    return parts(0), parts(7), batch


def test_task_loss_is_equation_1_to_3(case):
    (params, buffers), (g_params, g_buffers), batch = case
    nets = Nets(MODEL, params, buffers, ("extractor", "classifier"), received=Nets(MODEL, g_params, g_buffers))
    extractor, classifier = torch_extractor(params["extractor"]), torch_classifier(params["classifier"])
    generator = torch_generator(g_params["generator"]).eval()
    l_cls = l_mse = 0.0
    for i in range(B):
        h = extractor(batch.images[i : i + 1])
        l_cls += -classifier(h).log_softmax(1)[0, batch.labels[i]].item() / B
        fake = generator(batch.noise["z"][i : i + 1], batch.labels[i : i + 1])
        l_mse += (h - fake).square().sum().item() / (16 * 5 * 5) / B
    gamma = 2 / (1 + math.exp(-10 * 3 / 50)) - 1
    assert FedCG().task_loss(nets, batch, CLOCK).item() == pytest.approx(l_cls + gamma * l_mse, rel=1e-5)


def test_the_first_round_has_no_use_for_the_global_generator(case):
    """gamma is 0, so Eq. 3 is Eq. 1, and nothing received is evaluated."""
    (params, buffers), _, batch = case
    nets = Nets(MODEL, params, buffers, ("extractor", "classifier"))
    logits = nets.classifier(nets.extractor(batch.images))
    assert (
        FedCG().task_loss(nets, batch, RoundClock(1, 100)).item()
        == nn.functional.cross_entropy(logits, batch.labels).item()
    )


def test_gamma_rises_from_zero_to_almost_one():
    method = FedCG()
    values = [method.gamma(RoundClock(r, 100)) for r in (1, 26, 51, 100)]
    assert values == pytest.approx(
        [0.0, 2 / (1 + math.exp(-5)) - 1, 2 / (1 + math.exp(-10)) - 1, 2 / (1 + math.exp(-10)) - 1]
    )


def test_discriminator_loss_is_equation_4(case):
    (params, buffers), _, batch = case
    nets = Nets(MODEL, params, buffers, ("discriminator",))
    extractor = torch_extractor(params["extractor"])
    loss = FedCG().discriminator_loss(nets, batch._replace(features=extractor(batch.images)), CLOCK).item()
    generator = torch_generator(params["generator"]).eval()
    discriminator = torch_discriminator(params["discriminator"], buffers["discriminator"]).train()
    real = discriminator(extractor(batch.images), batch.labels).sigmoid()
    fake = discriminator(generator(batch.noise["z"], batch.labels), batch.labels).sigmoid()
    loop = -sum(math.log(p) for p in real.tolist()) / B - sum(math.log(1 - p) for p in fake.tolist()) / B
    assert loss == pytest.approx(loop, rel=1e-4)


def test_generator_loss_is_equation_4_with_the_mode_seeking_term(case):
    (params, buffers), _, batch = case
    nets = Nets(MODEL, params, buffers, ("generator",))
    loss = FedCG(diversity=0.2).generator_loss(nets, batch, CLOCK).item()
    generator = torch_generator(params["generator"]).train()
    discriminator = torch_discriminator(params["discriminator"], buffers["discriminator"]).eval()
    fake = generator(batch.noise["z"], batch.labels)
    judged = discriminator(fake, batch.labels).sigmoid()
    loop = -sum(math.log(p) for p in judged.tolist()) / B
    z_gap = sum((batch.noise["z"][i] - batch.noise["z"][i + 3]).abs().mean().item() for i in range(3)) / 3
    f_gap = sum((fake[i] - fake[i + 3]).abs().mean().item() for i in range(3)) / 3
    assert loss == pytest.approx(loop + 0.2 * z_gap / (f_gap + 1e-5), rel=1e-4)


def test_distillation_loss_is_equation_5_and_6(case):
    (params, buffers), other, batch = case
    clients = tuple(Nets(MODEL, *each) for each in (parts(3), other))
    weights = torch.tensor([0.25, 0.75])
    nets = Nets(MODEL, params, buffers, ("generator", "classifier"), clients=clients, weights=weights)
    loss = aggregators.distillation_loss(nets, batch, CLOCK).item()
    z, y = batch.noise["z"], batch.noise["y"]
    teachers = [
        (torch_classifier(p["classifier"]), torch_generator(p["generator"]).eval()) for p, _ in (parts(3), other)
    ]
    student, generator = torch_classifier(params["classifier"]), torch_generator(params["generator"]).train()
    p_s = student(generator(z, y)).softmax(1)
    p_s, loop = p_s.tolist(), 0.0
    for i in range(B):
        logits = sum(w * c(g(z[i : i + 1], y[i : i + 1]))[0] for w, (c, g) in zip(weights, teachers, strict=True))
        p_c = logits.softmax(0).tolist()
        loop += sum(p_c[j] * (math.log(p_c[j]) - math.log(p_s[i][j])) for j in range(CLASSES)) / B
    assert loss == pytest.approx(loop, rel=1e-3, abs=1e-6)


def test_the_received_generator_is_frozen_in_eval_mode(case):
    (params, buffers), (g_params, g_buffers), batch = case
    received = Nets(MODEL, g_params, g_buffers)
    FedCG().task_loss(Nets(MODEL, params, buffers, ("extractor", "classifier"), received=received), batch, CLOCK)
    assert received.after == {}


def test_average_is_the_weighted_sum():
    a, b = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([5.0, 10.0])}
    torch.testing.assert_close(average([a, b], torch.tensor([0.25, 0.75])), {"w": torch.tensor([4.0, 8.0])})
    # Counts are rounded, indices on which clients agree stay, and both keep their type.
    counted = average([{"n": torch.tensor([7, 1])}, {"n": torch.tensor([7, 4])}], torch.tensor([0.5, 0.5]))
    assert counted["n"].tolist() == [7, 2]
    assert counted["n"].dtype == torch.int64
