"""DP-GAN: its losses against torch's, what it sees of a client, and that a classifier learns from what it makes."""

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

from privbench import presets
from privbench.methods.base import MiniBatch, Nets, RoundClock
from privbench.methods.dp_gan import DPGAN
from privbench.networks import image_gan
from privbench.networks.model import Model
from privbench.seeds import stream
from privbench.training import evaluation, harness
from privbench.types import Images
from tests.builders.federations import digits_federation

MODEL = Model("lenet5", 1, 10, gan="image")
CLOCK = RoundClock(1, 2)


def nets_of(trains, model=MODEL):
    each = {part: model.net(part).init(stream(3, part)) for part in DPGAN.parts}
    return Nets(model, {p: s[0] for p, s in each.items()}, {p: s[1] for p, s in each.items()}, trains)


def batch():
    rng = stream(0, "batch")
    return MiniBatch(
        torch.rand(6, 1, 32, 32, generator=rng), torch.randint(10, (6,), generator=rng),
        {"z": torch.randn(6, image_gan.NOISE_DIM, generator=rng), "kept": torch.empty(6, 0, dtype=torch.bool)},
    )  # fmt: skip


def test_the_losses_are_binary_cross_entropies_of_the_discriminator():
    method, data = DPGAN(), batch()
    nets = nets_of(("discriminator",))
    fake = nets_of(()).generator(data.noise["z"], data.labels)
    plain = nets_of(("discriminator",))
    real, generated = plain.discriminator(data.images, data.labels), plain.discriminator(fake, data.labels)
    wanted = F.binary_cross_entropy_with_logits(real, torch.ones(6)) + F.binary_cross_entropy_with_logits(
        generated, torch.zeros(6)
    )
    torch.testing.assert_close(method.discriminator_loss(nets, data, CLOCK), wanted)
    trained = nets_of(("generator",))
    generated = trained.generator(data.noise["z"], data.labels)
    wanted = F.binary_cross_entropy_with_logits(nets_of(()).discriminator(generated, data.labels), torch.ones(6))
    torch.testing.assert_close(method.generator_loss(nets_of(("generator",)), data, CLOCK), wanted)


def test_the_discriminator_alone_reads_images():
    reads = {stage.name: stage.reads for phase in DPGAN().client() for stage in phase.stages}
    assert reads == {"discriminator": "images", "generator": "labels", "task": "labels"}
    data = batch()
    for name in ("generator_loss", "task_loss"):
        trains = ("generator",) if name == "generator_loss" else ("extractor", "classifier")
        losses = [
            getattr(DPGAN(), name)(nets_of(trains), data._replace(images=images), CLOCK)
            for images in (data.images, 1 - data.images)
        ]
        assert torch.equal(*losses)


def test_the_networks_have_torch_s_layers():
    (params, buffers), z, y = MODEL.net("generator").init(stream(0)), torch.randn(4, 100), torch.tensor([0, 3, 3, 9])
    images, after = MODEL.net("generator").apply(params, buffers, z, y, train=True)
    x = F.linear(torch.cat([z, F.one_hot(y, 10).float()], 1), params["fc.weight"]).view(4, 128, 4, 4)
    for i, width in enumerate((128, 64, 32)):
        norm = torch.nn.BatchNorm2d(width)
        x = F.conv_transpose2d(F.relu(norm(x)), params[f"up{i}.weight"], params.get(f"up{i}.bias"), 2, 1)
        torch.testing.assert_close(after[f"norm{i}.mean"], norm.running_mean)
    torch.testing.assert_close(images, x.sigmoid())
    assert images.shape == (4, 1, 32, 32)


def test_the_discriminator_says_the_same_in_its_step_and_in_the_generator_s():
    """With batch norm it would not: its verdict on an image would depend on the batch and on the mode."""
    network, data = MODEL.net("discriminator"), batch()
    params, buffers = network.init(stream(3))
    in_step, _ = network.apply(params, buffers, data.images, data.labels, train=True)
    alone = [
        network.apply(params, buffers, data.images[i : i + 1], data.labels[i : i + 1], train=False)[0] for i in range(6)
    ]
    torch.testing.assert_close(in_step, torch.cat(alone))


def test_group_norm_is_torch_s():
    x, rng = torch.randn(3, 64, 5, 5, generator=stream(0)), stream(1)
    scale, shift = torch.randn(64, generator=rng), torch.randn(64, generator=rng)
    from privbench.networks.normalisation import group_norm

    torch.testing.assert_close(group_norm(x, 32, scale, shift), F.group_norm(x, 32, scale, shift))


@pytest.mark.parametrize("defense", ["none", "dp-adam:noise=1"])
def test_a_round_trains_every_network_and_measures_the_classifier(defense):
    spec = presets.train_spec("smoke", "digits", "dp-gan", clients=2, defense=defense)
    setup = harness.prepare(spec, digits_federation((20, 20)), torch.device("cpu"))
    state = harness.initial(setup)
    before = {p: {n: t.clone() for n, t in params.items()} for p, params in state.clients[0].params.items()}
    harness.train_round([setup], [state], "alone")
    for part, params in before.items():
        changed = [not torch.equal(t, state.clients[0].params[part][n]) for n, t in params.items()]
        assert any(changed), part
    assert len(state.history[0]["test_accuracy"]) == 2
    assert setup.model.norm == ("batch" if defense == "none" else "group")


@pytest.mark.thorough
def test_a_classifier_learns_from_generated_images_alone():
    spec = presets.train_spec("quick", "digits", "dp-gan", clients=1, per_client=300, seed=1)
    federation = digits_federation((300,))
    setup = harness.prepare(spec, federation, torch.device("cpu"))
    state = harness.initial(setup)
    for _ in range(spec.schedule.rounds):
        harness.train_round([setup], [state], "alone")
    # Of 40 images that nobody trained on; chance is 10%, whose 99.9% quantile is 27.5%.
    labels = torch.tensor(load_digits().target[320:360])
    unseen = Images(federation.public.images, labels)
    assert evaluation.accuracy(setup.model, state.clients[0], unseen, setup.device) > 40
