"""What the running mean of an uploaded generator tells of its client's label distribution."""

import dataclasses

import pytest
import torch

from attacks.features.generator_statistics import linear_map
from attacks.generator_labels import MEAN, GeneratorLabels, Running, distribution
from privbench import presets
from privbench.errors import UserError
from privbench.networks.base import Generator
from privbench.networks.model import Model
from privbench.networks.normalisation import BN_MOMENTUM
from privbench.observation import observe
from privbench.scoring.statement_scores import total_variation
from privbench.seeds import stream
from privbench.training import checkpoint, harness
from privbench.types import Images, Knowledge
from tests.builders.federations import digits_federation
from tests.builders.small_artifacts import artifact

KINDS = ("conv", "dense", "image")
SHARES = torch.tensor([0.4, 0.0, 0.25, 0.0, 0.05, 0.1, 0.0, 0.2, 0.0, 0.0], dtype=torch.float64)
UNIFORM = torch.full((10,), 0.1, dtype=torch.float64)


def generator(kind):
    model = Model("lenet5", 1, 10, gan=kind)
    net = model.net("generator")
    assert isinstance(net, Generator)
    return net, *net.init(stream(3, "generator", kind)), model.noise_dim


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_before_the_norm_is_what_its_running_mean_is_of(kind):
    net, params, buffers, noise = generator(kind)
    rng = stream(4, "draws")
    z, labels = torch.randn(6, noise, generator=rng), torch.randint(10, (6,), generator=rng)
    _, after = net.apply(params, buffers, z, labels, train=True)
    by_class, mixing = linear_map(net, params, noise, 10)
    entering = by_class[labels] + z @ mixing
    torch.testing.assert_close(after[MEAN], BN_MOMENTUM * entering.mean(0))


@pytest.mark.parametrize("kind", KINDS)
def test_a_running_mean_of_many_mini_batches_shows_their_labels(kind):
    net, params, _, noise = generator(kind)
    by_class, mixing = linear_map(net, params, noise, 10)
    mean, before = (
        shares @ by_class + torch.randn(noise, generator=stream(5, name), dtype=torch.float64) / 16 @ mixing
        for name, shares in (("own", SHARES), ("broadcast", UNIFORM))
    )
    for remains in (0.0, 0.3):
        running = Running(remains * before + (1 - remains) * mean, before, 16)
        stated = distribution(net, params, running, noise, 10)
        assert float(stated.sum()) == pytest.approx(1)
        assert float(stated.min()) >= 0
        assert float(total_variation(stated, SHARES)) < 0.1
    assert float(total_variation(UNIFORM, SHARES)) > 0.5


@pytest.mark.parametrize("value", [0.0, torch.nan])
def test_a_generator_that_was_not_trained_or_is_no_number_shows_nothing(value):
    net, params, buffers, noise = generator("conv")
    running = Running(torch.full_like(buffers[MEAN], value), buffers[MEAN], 16)
    assert torch.equal(distribution(net, params, running, noise, 10), UNIFORM)
    broken = {name: torch.full_like(t, value) for name, t in params.items()}
    running = Running(torch.ones_like(buffers[MEAN]), buffers[MEAN], 16)
    assert torch.equal(distribution(net, broken, running, noise, 10), UNIFORM)


def uneven(images, clients=2):
    """Clients that have hardly a class in common."""
    whole = digits_federation((600,) * clients)
    each = []
    for k, client in enumerate(whole.clients):
        weights = (SHARES.roll(k) + 1e-3)[client.train.labels]
        rows = torch.multinomial(weights, images, generator=stream(6, "rows", k))
        each.append(client._replace(train=Images(client.train.images[rows], client.train.labels[rows])))
    return whole._replace(clients=tuple(each))


def observed(folder, method="fedcg", defense="none", where="update", images=80):
    """(what the server holds after a round, the true distributions)."""
    changes = {"rounds": 1, "generator_epochs": 6}
    spec = presets.train_spec("smoke", "digits", method, clients=2, defense=defense, where=where, changes=changes)
    federation = uneven(images)
    setup = harness.prepare(spec, federation, torch.device("cpu"))
    state = harness.initial(setup)
    harness.train_round([setup], [state], "alone")
    checkpoint.begin(folder, spec)
    checkpoint.save_snapshot(folder, spec, state)
    seen, _ = observe.observe(
        checkpoint.load_snapshot(folder, spec.id, 1), federation, setup.model, setup.method, setup.defense, method_name=method,
        dataset="digits", victims=2, batch_size=1, labels_known=False, seed=0,
    )  # fmt: skip
    counts = federation.label_counts().double()
    return seen, counts / counts.sum(1, keepdim=True)


@pytest.mark.parametrize("method", ["fedcg", "nfl-cgan"])
def test_the_labels_of_clients_are_read_off_what_they_upload(method, tmp_path):
    seen, true = observed(tmp_path, method)
    stated = GeneratorLabels().infer(seen, Knowledge(), 0).answers
    of_clients = true[seen.client.unique()]
    assert float(total_variation(stated, of_clients).max()) < 0.15
    assert float(total_variation(UNIFORM, of_clients).min()) > 0.4
    # Of the gradients nothing is read.
    blind = dataclasses.replace(seen, gradients={}, labels=None)
    assert torch.equal(GeneratorLabels().infer(blind, Knowledge(), 1).answers, stated)


def test_a_defence_of_every_image_draws_labels_uniformly_and_nothing_is_seen(tmp_path):
    seen, true = observed(tmp_path, defense="dp-sgd:noise=1", where="step", images=32)
    stated = GeneratorLabels().infer(seen, Knowledge(), 0).answers
    own, others = (total_variation(stated, each) for each in (true[seen.client.unique()], true.flip(0)))
    # Clients share no class, so that one whose labels show is 0.7 nearer to itself than to the other.
    assert float(own.min()) > 0.35
    assert float((own - others).abs().max()) < 0.4


def test_a_generator_without_running_statistics_is_refused():
    of_an_image = artifact(torch.rand(1, 1, 32, 32), torch.tensor([0]))
    seen = dataclasses.replace(of_an_image, uploads={"generator": {}}, upload_buffers={"generator": {}})
    with pytest.raises(UserError, match="no running statistics"):
        GeneratorLabels().infer(seen, Knowledge(), 0)
