"""PRECODE: the bottleneck against torch.nn, its noise and its divergence in training and in evaluation, and on disk."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import distributions, nn

from privbench import presets, registry
from privbench.errors import UserError
from privbench.methods.base import ClassifierDraws, MiniBatch, Nets, RoundClock, SamplingContext, classifier_draws
from privbench.networks.model import Model
from privbench.observation import artifact_files, observe
from privbench.observation.format import files, limits, networks
from privbench.observation.format.schema import NetworksEntry
from privbench.seeds import stream
from privbench.training import evaluation, harness
from privbench.training.state import Snapshot
from tests.builders.federations import digits_federation
from tests.builders.small_artifacts import MODEL, artifact, smooth_images

SIZE, BETA = 16, 0.01
MODEL_ = replace(MODEL, bottleneck=SIZE, kl_weight=BETA)
CLOCK = RoundClock(1, 1)


def drawn_networks(model=MODEL_):
    return {part: model.net(part).init(stream(1, "test", part))[0] for part in ("extractor", "classifier")}


def in_torch(params):
    """(encoder, decoder, C) as torch.nn has them."""

    def linear(name):
        weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.weight.data, layer.bias.data = weight, bias
        return layer

    behind = nn.Sequential(linear("fc1"), nn.Sigmoid(), linear("fc2"), nn.Sigmoid(), linear("fc3"))
    return linear("bottleneck.encoder"), linear("bottleneck.decoder"), behind


def mini_batch(count=3):
    rng = torch.Generator().manual_seed(4)
    noise = {"kept": torch.empty(count, 0, dtype=torch.bool), "kept eps": torch.randn(count, SIZE, generator=rng)}
    return MiniBatch(smooth_images(count), torch.tensor([3, 1, 7][:count]), noise)


def test_a_stages_loss_is_cross_entropy_of_the_sample_plus_beta_kl_image_by_image():
    params, batch = drawn_networks(), mini_batch()
    method = registry.create(registry.resolve("method", "fedavg"), {})
    nets = Nets(MODEL_, params, {"extractor": {}, "classifier": {}}, ("extractor", "classifier"))
    loss = nets.penalised(method.observed().loss(nets, batch, CLOCK))
    encoder, decoder, behind = in_torch(params["classifier"])
    expected = 0.0
    for x, y, eps in zip(batch.images, batch.labels, batch.noise["kept eps"], strict=True):
        h, _ = MODEL_.net("extractor").apply(params["extractor"], {}, x[None], train=True)
        mean, log_variance = encoder(h.flatten(1)).chunk(2, 1)
        z = distributions.Normal(mean, log_variance.exp().sqrt())
        kl = distributions.kl_divergence(z, distributions.Normal(0.0, 1.0)).sum()
        expected += (F.cross_entropy(behind(decoder(z.loc + z.scale * eps)), y[None]) + BETA * kl) / 3
    torch.testing.assert_close(loss, expected)
    assert abs(float(loss) - float(replace_weight(params, batch, 0.0))) > 1e-3


def replace_weight(params, batch, weight):
    model = replace(MODEL_, kl_weight=weight)
    nets = Nets(model, params, {"extractor": {}, "classifier": {}}, ("extractor", "classifier"))
    return nets.penalised(registry.create(registry.resolve("method", "fedavg"), {}).observed().loss(nets, batch, CLOCK))


def test_the_divergence_is_a_mean_over_a_losss_passes():
    params, batch = drawn_networks(), mini_batch()
    nets = Nets(MODEL_, params, {"extractor": {}, "classifier": {}}, ("classifier",))
    h = [torch.rand(3, 16, 5, 5, generator=torch.Generator().manual_seed(s)) for s in (0, 1)]
    for each in h:
        nets.classifier(each, batch.drawn())
    expected = sum(MODEL_.classifier.divergence(params["classifier"], each).mean() for each in h) / 2
    torch.testing.assert_close(nets.penalised(torch.tensor(0.0)), BETA * expected)


def test_evaluation_takes_the_mean_and_training_without_noise_is_refused():
    params = drawn_networks()
    h = torch.rand(2, 16, 5, 5, generator=torch.Generator().manual_seed(0))
    encoder, decoder, behind = in_torch(params["classifier"])
    evaluated = Nets(MODEL_, params, {"classifier": {}}).classifier(h)
    torch.testing.assert_close(evaluated, behind(decoder(encoder(h.flatten(1)).chunk(2, 1)[0])))
    trained = Nets(MODEL_, params, {"classifier": {}}, ("classifier",))
    with pytest.raises(UserError, match="a bottleneck needs a loss that draws its noise"):
        trained.classifier(h, ClassifierDraws())


def test_the_noise_is_a_draw_of_its_own_stream_and_nothing_without_a_bottleneck():
    draw = classifier_draws()["kept eps"]
    noise = draw.sample((40, 50), SamplingContext(MODEL_, None), stream(0, "eps"))
    assert noise.shape == (40, 50, SIZE)
    # 32,000 draws: four standard errors.
    assert abs(float(noise.mean())) < 4 / 32_000**0.5
    assert float(noise.var()) == pytest.approx(1, abs=4 * (2 / 32_000) ** 0.5)
    assert draw.sample((4, 5), SamplingContext(MODEL, None), stream(0, "eps")).shape == (4, 5, 0)


def prepared(method="fedavg", **fields):
    fields.setdefault("backbone", "lenet5")
    each = presets.train_spec("smoke", "digits", method, clients=2, defense="precode:size=16,beta=0.01", **fields)
    return harness.prepare(each, digits_federation((20, 20)), torch.device("cpu"))


def observed(setup, seed, batch=1):
    state = harness.initial(setup)
    shot = Snapshot(0, state.server, state.clients, [({}, {})] * 2)
    return observe.observe(
        shot, setup.federation, setup.model, setup.method, setup.defense, method_name="fedavg", dataset="digits",
        victims=2, batch_size=batch, labels_known=False, seed=seed,
    )[0]  # fmt: skip


@pytest.mark.parametrize("method", ["nfl-cgan", "fedgen"])
def test_a_method_trains_a_round_and_shares_the_bottleneck_with_the_classifier(method):
    setup = prepared(method)
    state = harness.initial(setup)
    before = {n: t.clone() for n, t in state.server.params["classifier"].items()}
    harness.train_round([setup], [state], "alone")
    for name in ("bottleneck.encoder.weight", "bottleneck.decoder.bias"):
        after = state.server.params["classifier"][name]
        assert after.isfinite().all()
        assert not torch.equal(after, before[name])
    assert "bottleneck.encoder.weight" in state.uploads[0][0]["classifier"]
    # Nothing is random in evaluation.
    first, second = (evaluation.predictions(setup, state) for _ in range(2))
    assert all(torch.equal(a.logits, b.logits) for a, b in zip(first, second, strict=True))


def test_a_discriminator_that_is_made_like_a_classifier_has_no_bottleneck():
    assert "bottleneck.encoder.weight" not in replace(MODEL_, gan="dense").net("discriminator").init(stream(0, "D"))[0]


def test_what_is_observed_is_random_by_the_runs_seed_and_survives_a_file(tmp_path):
    setup = prepared()
    first, again, other = observed(setup, 0), observed(setup, 0), observed(setup, 1)
    decoder = [one.gradients["classifier"]["bottleneck.decoder.weight"] for one in (first, again, other)]
    assert torch.equal(decoder[0], decoder[1])
    assert not torch.allclose(decoder[0], decoder[2])
    assert first.defense == {"name": "precode", "bottleneck": 16, "beta": 0.01}
    artifact_files.save(first, tmp_path / "seen")
    loaded = artifact_files.load(tmp_path / "seen")
    assert loaded.model == setup.model == replace(setup.model, bottleneck=16, kl_weight=0.01)
    sent, read = (one.gradients["classifier"]["bottleneck.encoder.bias"] for one in (first, loaded))
    assert torch.equal(sent, read)


def test_an_observation_without_a_bottleneck_is_written_as_ever(tmp_path):
    artifact_files.save(artifact(smooth_images(1), torch.tensor([1])), tmp_path / "seen")
    entry = files.read(tmp_path / "seen").index.setup.networks.model_dump(mode="json", exclude_unset=True)
    assert set(entry) == {"backbone", "channels", "classes", "image_size", "gan", "dropout", "norm"}


@pytest.mark.parametrize("field", [{"bottleneck": limits.BOTTLENECK + 1}, {"bottleneck": -1}, {"kl_weight": -0.1},
                                   {"kl_weight": float("nan")}, {"bottleneck": 1.5}])  # fmt: skip
def test_a_bottleneck_out_of_bounds_is_refused(field):
    networks_ = {"backbone": "lenet5", "channels": 1, "classes": 10, "image_size": 32, "gan": "conv", "dropout": 0.0}
    with pytest.raises(ValueError, match=next(iter(field))):
        NetworksEntry.model_validate(networks_ | field, strict=True)


def test_a_bottleneck_larger_than_any_of_ours_is_refused_before_it_is_allocated():
    with pytest.raises(ValueError, match="its classifier would have more than"):
        networks.shapes(Model("resnet18", 3, 10, 224, bottleneck=4_096), "classifier")
