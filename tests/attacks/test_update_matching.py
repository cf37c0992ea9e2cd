"""Whole local updates: observed as the engine takes them, simulated to the same numbers, and matched."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from attacks import label_distribution
from attacks.common import closed_form, data_fit, labels, problem
from attacks.common.updates import (
    as_gradient,
    labelled_gradients,
    local_change,
    nearly_gradients,
    noise_variance,
    shown_draws,
    statistics,
    with_steady_rows,
    without_adam,
)
from attacks.crafted import dry_run
from attacks.features import update_descent
from attacks.floors import ClassMean, Grey
from attacks.update_matching import EXPLAINED, UpdateMatching
from defenses.gaussian import Gaussian
from defenses.none import NoDefense
from privbench import presets, written_defense
from privbench.auditing import evidence
from privbench.errors import UserError
from privbench.execution import one_attack
from privbench.observation import artifact_files as artifacts
from privbench.observation import defended_upload, local_update, observe, wire
from privbench.records.store import Store
from privbench.scoring.image_scores import psnr_db, score
from privbench.training import checkpoint, harness
from privbench.training.state import Snapshot
from privbench.types import Batch, Knowledge, LocalSteps, Networks, Reconstruction, no_progress
from tests.builders.federations import digits_federation
from tests.builders.small_artifacts import artifact, central_network, digits, logits, networks, smooth_images, update

CPU = torch.device("cpu")
SGD = LocalSteps(3, {"kind": "sgd", "lr": 0.2, "weight_decay": 1e-3})
ADAM = LocalSteps(3, {"lr": 0.003, "beta1": 0.9, "beta2": 0.999, "weight_decay": 1e-4})
UNCORRECTED = LocalSteps(3, ADAM.optimiser | {"bias_correction": False})
OPTIMISERS = {
    "sgd": (SGD, torch.optim.SGD, {"lr": 0.2, "weight_decay": 1e-3}),
    "adam": (ADAM, torch.optim.Adam, {"lr": 0.003, "weight_decay": 1e-4}),
}


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    """(setup, snapshot of round 0, what observe() takes besides)."""
    folder = tmp_path_factory.mktemp("fedavg")
    each = presets.train_spec("smoke", "digits", "fedavg", clients=2, changes={"rounds": 1})
    setup = harness.prepare(each, digits_federation((20, 20)), CPU)
    checkpoint.save_snapshot(folder, each, harness.initial(setup))
    return setup, checkpoint.load_snapshot(folder, each.id, 0)


def seen_by(untrained, local, batch_size=2, victims=2):
    setup, shot = untrained
    return observe.observe(
        shot, setup.federation, setup.model, setup.method, setup.defense, method_name="fedavg", dataset="digits",
        victims=victims, batch_size=batch_size, labels_known=False, seed=0, local=local,
    )  # fmt: skip


class PlainLoop:
    """The local steps by torch.optim in one precision, one victim: where they end, and how they got there."""

    def __init__(self, posed, images, labels, name, dtype):
        local, optimiser, settings = OPTIMISERS[name]
        self.start = {f"{p}/{n}": t.to(dtype) for p, net in posed.weights.items() for n, t in net.items()}
        self.leaves = {n: t.clone().requires_grad_() for n, t in self.start.items()}
        # By step: the gradients (weight decay included), and by how much a change of them moves the parameters.
        self.gradients, self.slopes = [], []
        descent = optimiser(list(self.leaves.values()), **settings)
        for step in range(1, local.steps + 1):
            descent.zero_grad()
            parts = {p: {n: self.leaves[f"{p}/{n}"] for n in net} for p, net in posed.weights.items()}
            F.cross_entropy(logits(parts, images.to(dtype), posed.model)[0], labels).backward()
            decay = settings["weight_decay"]
            self.gradients.append({n: (t.grad + decay * t).detach().double() for n, t in self.leaves.items()})
            descent.step()
            self.slopes.append({n: self._slope(descent, t, settings, step) for n, t in self.leaves.items()})

    @staticmethod
    def _slope(descent, leaf, settings, step):
        if not isinstance(descent, torch.optim.Adam):
            return settings["lr"] * torch.ones_like(leaf)
        root = (descent.state[leaf]["exp_avg_sq"] / (1 - 0.999**step)).sqrt() + 1e-8
        return settings["lr"] / root.double()

    def change(self, name):
        return (self.leaves[name] - self.start[name]).detach()


@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_observed_and_the_simulated_update_equal_a_plain_loop(name, untrained):
    """The simulated one in double precision; the observed one is taken in single, and is as near as its gradients are.

    Adam divides a gradient by its own size. Where that is near the gradient's rounding error, single precision tells nothing
    of the step, not even its sign. So every element has a tolerance of its own: its slope, the derivative of the step by the
    gradient (lr for SGD, lr / root for Adam), times the error of the layer's gradients. That error is measured here, as the gap
    between the loop in single and in double precision. The engine adds in another order, and Adam's mean and its root both
    err: four times the gap allows for that. The parameters themselves are rounded once a step.
    """
    local, *_ = OPTIMISERS[name]
    seen, truth = seen_by(untrained, local)
    posed = problem.make(as_gradient(seen, local), 0)
    for v in range(2):
        plain, single = (
            PlainLoop(posed, truth.images[v], truth.labels[v], name, dtype) for dtype in (torch.float64, torch.float32)
        )
        made = local_change(posed, truth.images[v].double(), truth.labels[v], local)
        for key, start in plain.start.items():
            part, n = key.split("/")
            expected = plain.change(key)
            torch.testing.assert_close(made[key], expected, rtol=1e-6, atol=1e-12)
            gaps = [(a[key] - b[key]).abs().max() for a, b in zip(plain.gradients, single.gradients, strict=True)]
            error = 4 * max(gaps) * sum(slope[key] for slope in plain.slopes)
            error += local.steps * torch.finfo(torch.float32).eps * (start.abs() + expected.abs())
            observed = seen.updates[part][n][v].double()
            assert ((observed - expected).abs() <= error).all(), (key, ((observed - expected).abs() / error).max())
            # The tolerance is a tolerance: on the layer as a whole it is far below the update.
            assert error.median() < 0.01 * expected.abs().median(), key


def test_a_client_with_more_data_than_a_step_takes_draws_mini_batches_from_shuffles(untrained):
    local = SGD._replace(steps=4, batch=2)
    order = local_update.rows_of_steps(local, 4, torch.Generator().manual_seed(0))
    assert order.shape == (4, 2)
    assert all(sorted(order[i : i + 2].flatten().tolist()) == [0, 1, 2, 3] for i in (0, 2))
    seen, truth = seen_by(untrained, local, batch_size=4, victims=1)
    posed = problem.make(as_gradient(seen, local), 0)
    taken = local_update.rows_of_steps(local, 4, local_update.defence_stream(0, "victims", 0))
    leaves = {p: {n: t.clone().requires_grad_() for n, t in posed.weights[p].items()} for p in posed.weights}
    descent = torch.optim.SGD([t for net in leaves.values() for t in net.values()], lr=0.2, weight_decay=1e-3)
    for rows in taken:
        descent.zero_grad()
        F.cross_entropy(logits(leaves, truth.images[0, rows].double())[0], truth.labels[0, rows]).backward()
        descent.step()
    for part, net in leaves.items():
        for n, t in net.items():
            plain = (t - posed.weights[part][n]).detach()
            # The engine's weights are single-precision numbers of at most 1, so each of four steps rounds by 6e-8.
            torch.testing.assert_close(seen.updates[part][n][0].double(), plain, rtol=1e-4, atol=4 * 6e-8)


def test_mini_batches_are_matched_by_steps_on_all_images(untrained):
    local = LocalSteps(4, {"kind": "sgd", "lr": 0.01, "weight_decay": 0.0}, 2)
    seen, truth = seen_by(untrained, local, batch_size=4, victims=2)
    reconstruction = UpdateMatching(steps=20, start_steps=20, feature_steps=20).reconstruct(seen, Knowledge(), 0)
    grey = Grey().reconstruct(seen, Knowledge(), 0)
    assert (score(reconstruction, truth).psnr_db > score(grey, truth).psnr_db + 1).all()
    assert torch.equal(reconstruction.labels, truth.labels.sort(1).values)


def test_images_per_step_are_part_of_a_cells_name_and_of_its_steps(tmp_path):
    train = presets.train_spec("quick", "digits", "fedavg")
    whole, part = (
        presets.cell_spec("quick", train, "update-matching", observe="update", batch_size=32, local_batch=batch)
        for batch in (None, 16)
    )
    assert "local_batch" not in whole.model_dump()
    assert whole.id != part.id
    epochs = train.schedule.local_epochs
    assert local_update.local_steps(part)[::2] == (2 * epochs, 16)
    assert local_update.local_steps(whole)[::2] == (epochs, None)
    assert Store(tmp_path).artifact(whole, train, 0) != Store(tmp_path).artifact(part, train, 0)


def test_clients_that_count_steps_send_an_update_of_so_many():
    train = presets.train_spec("paper", "fmnist", "fedmd-cg", changes={"client_steps": 7})
    cell = presets.cell_spec("paper", train, "update-matching", observe="update", batch_size=32, local_batch=16)
    assert local_update.local_steps(cell)[::2] == (7, 16)
    counted = presets.cell_spec("paper", train, "update-matching", observe="update", local_steps=3)
    assert local_update.local_steps(counted).steps == 3


def test_under_a_defence_of_single_images_clients_step_as_it_has_them_step():
    train = presets.train_spec("smoke", "digits", "fedavg", defense="dp-sgd:noise=1,lr=0.3")
    own, another = (
        presets.cell_spec("smoke", train, "update-matching", observe="update", local_lr=lr) for lr in (None, 0.1)
    )
    by_defence = {"kind": "sgd", "lr": 0.3, "weight_decay": train.schedule.task.weight_decay}
    assert local_update.local_steps(own).optimiser == by_defence
    assert local_update.local_steps(another).optimiser["lr"] == 0.1
    defense = written_defense.create(train.defense, train.where)
    assert local_update.local_training(train.schedule, [20], defense=defense).optimiser == by_defence
    assert local_update.local_training(train.schedule, [20]).optimiser == train.schedule.task.model_dump()


def test_one_step_of_sgd_is_a_gradient(untrained):
    local = LocalSteps(1, {"kind": "sgd", "lr": 0.5, "weight_decay": 0.0})
    update, gradient = seen_by(untrained, local)[0], seen_by(untrained, None)[0]
    taken = as_gradient(update, local)
    for part, net in gradient.gradients.items():
        for n, t in net.items():
            torch.testing.assert_close(taken.gradients[part][n], t, rtol=1e-3, atol=1e-6)


def test_the_weight_decay_of_sgd_is_no_part_of_the_gradient(untrained):
    """The update is a difference of weights of at most 1 in single precision, which dividing by the rate magnifies."""
    gradient, local = seen_by(untrained, None)[0], LocalSteps(1, {"kind": "sgd", "lr": 0.5, "weight_decay": 0.1})
    update = seen_by(untrained, local)[0]
    taken, clipped = as_gradient(update, local), replace(update, defense={"name": "clip", "clip": 1.0})
    for part, net in gradient.gradients.items():
        for n, t in net.items():
            error = 4 * torch.finfo(torch.float32).eps / 0.5
            torch.testing.assert_close(taken.gradients[part][n], t, rtol=1e-5, atol=error)
            # Of what was clipped nobody knows by how much.
            torch.testing.assert_close(as_gradient(clipped, local).gradients[part][n], -update.updates[part][n] / 0.5)
    two = seen_by(untrained, local._replace(steps=2))[0]
    far = [as_gradient(two, one).gradients["classifier"]["fc1.weight"] - gradient.gradients["classifier"]["fc1.weight"]
           for one in (local._replace(steps=2), LocalSteps(2, {"kind": "sgd", "lr": 0.5, "weight_decay": 0.0}))]  # fmt: skip
    assert far[0].norm() < 0.5 * far[1].norm()


def test_adam_without_bias_correction_is_simulated_as_clients_step(untrained):
    """Against the suite's own steps; where an entry's gradient is near its rounding error the step says nothing of it."""
    seen, truth = seen_by(untrained, UNCORRECTED)
    posed = problem.make(as_gradient(seen, UNCORRECTED), 0)
    for v in range(2):
        made = local_change(posed, truth.images[v].double(), truth.labels[v], UNCORRECTED)
        for key, change in made.items():
            part, n = key.split("/")
            observed = seen.updates[part][n][v].double()
            # With the correction the first step alone is a third as long.
            assert (change - observed).norm() < 0.05 * observed.norm(), key
    assert min(explained_by_truth(seen, truth)) > 99.5


@pytest.mark.parametrize("defense", ["none", "secure-aggregation"])
def test_steps_on_one_image_are_taken_on_running_statistics_as_its_gradient_is(defense):
    """Of a network with batch norm: it has no batch to be normalised by. Simulated at the true images they are the client's own."""
    each = presets.train_spec("smoke", "digits", "fedavg", clients=2, backbone="convnet", defense=defense)
    setup, local = harness.prepare(each, digits_federation((20, 20)), CPU), LocalSteps(2, SGD.optimiser)
    state = harness.initial(setup)
    shot = Snapshot(0, state.server, state.clients, state.uploads)
    seen, truth = seen_by((setup, shot), local, batch_size=1, victims=1)
    posed = problem.make(as_gradient(seen, local), 0)
    weights = None if seen.image_weights is None else seen.image_weights[0]
    made = local_change(posed, truth.images[0].double(), truth.labels[0], local, weights)
    for key, change in made.items():
        part, n = key.split("/")
        observed = seen.updates[part][n][0].double()
        # Single precision rounds weights of size 1 once a step, fixed point the sum. A unit whose input is within rounding of 0
        # may be on in one precision and off in the other, which moves a filter by its whole share: hence norms.
        error = 0.1 * float(observed.norm()) + 4 * torch.finfo(torch.float32).eps * observed.numel() ** 0.5
        assert float((change - observed).norm()) < error < 0.5 * float(observed.norm()), key


def one_image_step(local, method="fedavg", **spec):
    """(artifact, truth, problem) of one-image updates of an untrained network."""
    each = presets.train_spec("smoke", "digits", method, clients=2, **spec)
    setup = harness.prepare(each, digits_federation((20, 20)), CPU)
    state = harness.initial(setup)
    shot = Snapshot(0, state.server, state.clients, state.uploads)
    seen, truth = seen_by((setup, shot), local, batch_size=1)
    return seen, truth, problem.make(nearly_gradients(seen), 0)


def explained_by_truth(seen, truth):
    """How much of the updates the true images explain, in percent, as an audit says it."""
    none = torch.zeros(seen.victims)
    true = Reconstruction(truth.images, truth.labels, none, none[:, None], none.long(), 0)
    return evidence.explained(seen, true).tolist()


@pytest.mark.parametrize("optimiser", [{"kind": "sgd", "lr": 0.1, "weight_decay": 5e-4}, {"lr": 0.01}])
def test_steps_of_fedprox_are_simulated_with_its_proximal_term(optimiser, tmp_path):
    """By attackers, by a server that plays a client, and after a file between: at the true image they are the client's own."""
    seen, truth, posed = one_image_step(LocalSteps(5, optimiser), "fedprox", method_settings={"mu": 1.0})
    assert seen.local == LocalSteps(5, optimiser, None, 1.0)
    artifacts.save(replace(seen, uploads={}, upload_buffers={}), tmp_path / "seen")
    assert artifacts.load(tmp_path / "seen").local.proximal == 1.0
    x, y = truth.images[0], truth.labels[0]
    sent = Networks(seen.weights, seen.buffers)

    def gap(local):
        """Of the attacker's steps and of the dry run's, relative to the update."""
        by_attacker = local_change(posed, x.double(), y, local)
        played = dry_run.local_change(seen.model, sent, Batch(x, y), local, NoDefense(), torch.Generator())
        ends = [
            (by_attacker[f"{p}/{n}"], played[p][n], t[0]) for p, net in seen.updates.items() for n, t in net.items()
        ]
        size = sum(t.double().square().sum() for _, _, t in ends)
        return [float(sum((end[i].double() - end[2]).square().sum() for end in ends) / size) ** 0.5 for i in (0, 1)]

    assert max(gap(seen.local)) < 0.02
    assert min(gap(seen.local._replace(proximal=0.0))) > 0.1
    without = replace(seen, local=seen.local._replace(proximal=0.0))
    assert min(explained_by_truth(seen, truth)) > 99.5
    assert max(explained_by_truth(without, truth)) < 99


@pytest.mark.parametrize("decay", [0.0, 5e-4])
@pytest.mark.parametrize(
    "spec", [{"method_settings": {"dropout": 0.5}}, {"defense": "precode:64"}], ids=["dropout", "bottleneck"]
)
def test_one_step_shows_what_its_client_drew_and_is_simulated_with_it(spec, decay):
    local = LocalSteps(1, {"kind": "sgd", "lr": 0.1, "weight_decay": decay})
    seen, truth, posed = one_image_step(local, **spec)
    for v in range(2):
        drawn = {name: t[v] for name, t in shown_draws(posed, local).items()}
        assert len(drawn) == 1
        x, y = truth.images[v].double(), truth.labels[v]
        gaps = []
        for given in (drawn, {}):
            made = local_change(posed, x, y, local, None, given)
            ends = [(made[f"{p}/{n}"], t[v].double()) for p, net in seen.updates.items() for n, t in net.items()]
            gaps.append(
                sum((a - b).square().sum() for a, b in ends).sqrt() / sum(b.square().sum() for _, b in ends).sqrt()
            )
        # A change of 0.1 of a gradient is stored to single precision of weights that are some hundred times larger.
        assert gaps[0] < 1e-3 < 0.01 < gaps[1]
    assert shown_draws(posed, local._replace(steps=2)) == {}


@pytest.mark.parametrize(
    "optimiser",
    [
        {"kind": "sgd", "lr": 0.01, "weight_decay": 5e-4},
        {"lr": 3e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 1e-4},
    ],
    ids=["sgd", "adam"],
)
def test_features_that_dropout_took_are_told_behind_a_weight_decay(optimiser):
    """Whose remainder in single precision is no zero. The drawn mask is what training draws at the client's seed."""
    local = LocalSteps(1, optimiser)
    seen, truth, _ = one_image_step(local, method_settings={"dropout": 0.5})
    plain = replace(seen.model, dropout=0.0)
    kept = closed_form.of_single(nearly_gradients(seen)).known
    bare = closed_form.closed_form(replace(nearly_gradients(seen), model=plain))
    entered = [logits(dict(seen.weights), truth.images[v], seen.model)[1] for v in range(2)]
    for v, h in enumerate(entered):
        # What entered is 2 h where it was kept, and 0 elsewhere.
        assert torch.equal(kept[v], bare[v] > 0.5 * h[0].double())
        assert 0.3 < float(kept[v].double().mean()) < 0.7


@pytest.mark.parametrize(("where", "clip"), [("update", 0.3), ("step", 0.03)])
def test_a_clip_of_one_step_s_gradient_is_as_much_less_of_the_change_as_the_rate_says(where, clip, untrained):
    local = LocalSteps(1, {"kind": "sgd", "lr": 0.1, "weight_decay": 0.0})
    defense = {"name": "gaussian", "variance": 1e-6, "where": where, "clip": 0.3, "clips": "message"}
    seen = replace(seen_by(untrained, local)[0], defense=defense)
    assert data_fit.of(seen).clip == pytest.approx(clip)
    assert as_gradient(seen, local).defense["clip"] == pytest.approx(clip / 0.1)
    # Of two steps, each of which was clipped, no one scale is left.
    two = replace(seen, local=local._replace(steps=2))
    assert (data_fit.of(two).clip is None) == (where == "step")


@pytest.mark.parametrize("form", ["bf16", "fp16"])
@pytest.mark.parametrize("defense", [{"name": "clip", "clip": 1.0}, {"name": "rounded"}])
def test_an_update_taken_for_a_gradient_keeps_its_number_format(form, defense, untrained):
    update = replace(seen_by(untrained, SGD)[0], defense=defense | {"wire": form})
    assert as_gradient(update, SGD).defense["wire"] == form
    assert wire.spacing(as_gradient(update, SGD).defense) == wire.spacing(update.defense) > wire.spacing({})


def test_an_update_survives_the_disk_and_offers_itself(untrained, tmp_path):
    seen, _ = seen_by(untrained, ADAM)
    artifacts.save(seen, tmp_path / "artifact")
    back = artifacts.load(tmp_path / "artifact")
    assert back.local == ADAM
    assert back.gradients == {}
    assert torch.equal(back.updates["classifier"]["fc1.weight"], seen.updates["classifier"]["fc1.weight"])
    assert {"update:classifier", "update:extractor"} <= back.offers()
    assert not any(offer.startswith("gradient:") for offer in back.offers())


def test_simulated_steps_beat_the_floor_and_one_gradient(untrained):
    seen, truth = seen_by(untrained, SGD, batch_size=1)
    attack = UpdateMatching(steps=20, start_steps=20, feature_steps=20)
    reconstruction = attack.reconstruct(seen, Knowledge(), 0)
    grey = Grey().reconstruct(seen, Knowledge(), 0)
    assert (score(reconstruction, truth).psnr_db > score(grey, truth).psnr_db + 2).all()
    assert torch.equal(reconstruction.labels, truth.labels)
    assert (reconstruction.trace[:, -1] < reconstruction.trace[:, 0]).all()
    alone, _ = seen_by(untrained, SGD, batch_size=1, victims=1)
    torch.testing.assert_close(
        attack.reconstruct(alone, Knowledge(), 0).images[0], reconstruction.images[0], atol=1e-4, rtol=0
    )


def one_step(x, y, **changes):
    local = LocalSteps(1, {**ADAM.optimiser, **changes})
    return update(x, y, local), local


def test_one_step_of_adam_is_taken_back_to_its_gradient():
    x, y = smooth_images(2), torch.tensor([3, 0])
    back, trust = without_adam(one_step(x, y)[0])
    assert back.local == LocalSteps(1, {"kind": "sgd", "lr": 1.0, "weight_decay": 0.0})
    exact = artifact(x, y).gradients
    for part, net in back.updates.items():
        for n, t in net.items():
            true, trusted = exact[part][n].double(), trust[f"{part}/{n}"] > 0.5
            error = (t + true).abs()[trusted]
            assert (error <= 0.1 * true.abs()[trusted] + 0.01 * true.std()).all(), n
    assert trust["extractor/conv1.weight"].mean() > 0.5
    assert trust["classifier/fc3.weight"].mean() < 0.1  # gradients so large that only their signs are left
    h = closed_form.closed_form(with_steady_rows(as_gradient(back, back.local), trust))
    true = logits(networks(), x)[1].double()
    assert (h - true).square().mean() < 1e-3 * true.var()


@pytest.mark.parametrize("change", ["sgd", "several steps", "noise", "no bias correction"])
def test_only_one_undefended_step_of_adam_is_taken_back(change):
    x, y = smooth_images(1), torch.tensor([3])
    seen = update(x, y, {"sgd": SGD, "several steps": ADAM}.get(change, LocalSteps(1, ADAM.optimiser)))
    if change == "noise":
        seen = replace(seen, defense={"name": "gaussian", "variance": 1e-6, "where": "update"})
    if change == "no bias correction":
        seen = replace(seen, local=LocalSteps(1, {**ADAM.optimiser, "bias_correction": False}))
    back, trust = without_adam(seen)
    assert back is seen
    assert trust == {}


def test_one_step_of_adam_gives_the_image_away_and_several_end_grey_instead_of_in_noise():
    x, y = smooth_images(2), torch.tensor([3, 0])
    attack = UpdateMatching(steps=50, start_steps=2, feature_steps=2)
    reconstruction = attack.reconstruct(one_step(x, y)[0], Knowledge(), 0)
    grey = Grey().reconstruct(one_step(x, y)[0], Knowledge(), 0)
    assert (psnr_db(reconstruction.images, x[:, None]) > psnr_db(grey.images, x[:, None]) + 4).all()
    assert torch.equal(reconstruction.labels[:, 0], y)
    early = replace(attack, steps=2).reconstruct(update(x, y, ADAM), Knowledge(), 0)
    assert (early.images == 0.5).all()
    assert (early.loss > EXPLAINED).all()
    assert (early.trace[:, -1] < early.trace[:, 0]).all()


@pytest.mark.parametrize("steps", [1, 3])
def test_labels_of_pairs_that_adam_moved_are_those_whose_bias_rose(steps):
    """No class has half of the probability that an untrained network gives, so a bias rises where its class occurs alone."""
    x, y = smooth_images(6), torch.tensor([3, 0, 7, 7, 1, 9])
    seen = update(x, y, ADAM._replace(steps=steps), batch_size=2)
    gradients = labelled_gradients(seen)
    assert torch.equal(labels.recover(gradients), y.view(-1, 2).sort(1).values)
    for name, t in nearly_gradients(seen).gradients["classifier"].items():
        assert torch.equal(gradients.gradients["classifier"][name], t)
    counts = label_distribution.counted(seen)
    assert torch.equal(counts[0], torch.bincount(y, minlength=10).double())
    matched = UpdateMatching(steps=1, start_steps=1, feature_steps=1).reconstruct(seen, Knowledge(), 0)
    assert torch.equal(matched.labels, labels.recover(gradients))


def test_labels_that_adam_moved_by_hand():
    """Shares 3/4 and 1/4 of 4; two of three rising classes that must occur; more of them than images; and nothing to read."""
    rises = torch.tensor([[0.3, -0.2, 0.1], [0.9, 0.1, -0.1], [0.5, 0.2, 0.1], [torch.nan, 0.0, 1.0]])
    assert labels.of_adam(rises, 4, exact=False).tolist()[0] == [0, 0, 0, 2]
    assert labels.of_adam(rises, 2, exact=True).tolist()[1] == [0, 1]
    assert labels.of_adam(rises, 2, exact=False).tolist()[1] == [0, 0]
    assert labels.of_adam(rises, 2, exact=True).tolist()[2] == [0, 1]
    assert labels.of_adam(rises, 3, exact=True).tolist()[3] == [0, 1, 2]


@pytest.mark.parametrize("steps", [1, 5])
def test_updates_of_a_trained_network_are_matched_from_a_layerwise_image(steps):
    """Descents from other starts stick on it: their squared errors are at least ten times as large."""
    x, y = (t[:2] for t in digits(12))
    seen = update(x, y, LocalSteps(steps, {"kind": "sgd", "lr": 0.05, "weight_decay": 0.0}), central_network(400, 0)[0])
    attack = UpdateMatching(steps=10, start_steps=10, feature_steps=10)
    with_it, without = (replace(attack, peel_iterations=n).reconstruct(seen, Knowledge(), 0) for n in (8, 0))
    assert (with_it.restart >= 2).all()
    assert (with_it.loss < without.loss).all()
    assert (psnr_db(with_it.images[:, 0], x) > psnr_db(without.images[:, 0], x) + 10).all()
    assert torch.equal(with_it.trace[:, -1], with_it.loss)


def test_there_is_no_layerwise_image_where_its_equations_do_not_hold(noised):
    seen, _ = noised
    pair = update(smooth_images(2), torch.tensor([3, 0]), SGD, batch_size=2)
    private = replace(
        pair, batch_size=1, weights={"classifier": pair.weights["classifier"]}, shared_parts=("classifier",)
    )
    private = replace(private, updates={"classifier": pair.updates["classifier"]})
    clipped = replace(update(smooth_images(1), torch.tensor([3]), SGD), defense={"name": "clip", "clip": 1.0})
    for each in (seen, pair, private, clipped):
        gradients = as_gradient(each, each.local)
        assert update_descent.layerwise_images(gradients, problem.make(gradients, 0), 8, no_progress) == ([], 0)


@pytest.fixture(scope="module")
def noised():
    """(artifact, images): three steps of SGD from a network trained on other images, under noise on the update."""
    x, y, v = smooth_images(3), torch.tensor([3, 0, 9]), 1e-6
    seen = update(x, y, LocalSteps(3, {"kind": "sgd", "lr": 0.05, "weight_decay": 0.0}), central_network(400, 0)[0])
    rng = torch.Generator().manual_seed(1)
    parts = {
        p: {n: t + v**0.5 * torch.randn(t.shape, generator=rng) for n, t in net.items()}
        for p, net in seen.updates.items()
    }
    return replace(seen, updates=parts, defense={"name": "gaussian", "variance": v, "where": "update"}), x


def test_an_update_under_noise_is_matched_by_its_likelihood(noised, monkeypatch):
    """Against the objective without the noise, from the same first images; 3 images, on the networks of one seed."""
    seen, x = noised
    attack = UpdateMatching(steps=40, start_steps=20, feature_steps=20)
    reconstruction = attack.reconstruct(seen, Knowledge(), 0)
    monkeypatch.setattr("attacks.update_matching.noise_variance", lambda _: 0.0)
    unaware = attack.reconstruct(seen, Knowledge(), 0)
    mean = [
        float(psnr_db(each.images[:, 0], x).mean())
        for each in (reconstruction, unaware, Grey().reconstruct(seen, Knowledge(), 0))
    ]
    assert mean[0] > max(mean[1:]) + 1, mean
    assert (reconstruction.loss < reconstruction.trace[:, 0]).all()


@pytest.mark.parametrize(
    ("where", "local", "wanted"),
    [("update", SGD, 0.5), ("update", ADAM, 0.5), ("step", SGD, 0.5 * 0.2**2 * 3), ("step", ADAM, 0.0)],
)
def test_the_noise_of_an_update_adds_up_over_the_steps_it_enters(where, local, wanted):
    seen = replace(
        update(smooth_images(1), torch.tensor([3]), local),
        defense={"name": "gaussian", "variance": 0.5, "where": where},
    )
    assert noise_variance(seen) == pytest.approx(wanted)


@pytest.mark.parametrize("defense", ["precode:32+gaussian:0.001", "gaussian:0.001+prune:0.5", "gaussian:0.001+clip:1"])
@pytest.mark.parametrize(("where", "wanted"), [("step", 1e-3 * 0.2**2 * 3), ("update", 1e-3)])
def test_noise_of_steps_is_known_as_such_behind_other_defences(defense, where, wanted):
    known = defended_upload.described(written_defense.create(defense, where), SGD, 1, "float32")
    assert known["name"].startswith(defense.split(":")[0])
    seen = replace(update(smooth_images(1), torch.tensor([3]), SGD), defense=known)
    assert noise_variance(seen) == pytest.approx(wanted)


def test_the_variance_of_noise_at_every_step_is_that_of_what_the_steps_leave():
    """The defence's own noise on three steps of SGD of zero gradients, 10,000 entries: 5 standard errors of a variance."""
    rng, steps, many = torch.Generator().manual_seed(0), torch.zeros(10_000), 3
    for _ in range(many):
        steps -= 0.2 * Gaussian(0.5, "step").step({"c": {"w": torch.zeros(10_000)}}, rng)["c"]["w"]
    seen = replace(update(smooth_images(1), torch.tensor([3]), SGD), defense=Gaussian(0.5, "step").describe())
    assert float(steps.var()) == pytest.approx(noise_variance(seen), rel=5 * (2 / 10_000) ** 0.5)


def test_an_attack_on_gradients_is_refused_in_one_line(untrained):
    seen, _ = seen_by(untrained, SGD)
    with pytest.raises(
        UserError, match="but this artifact holds whole local updates; try --attack update-matching"
    ) as error:
        one_attack.attack_artifact("dlg", {}, seen, Knowledge(), 0, CPU, lambda *_: None)
    assert "\n" not in str(error.value)


def test_what_is_observed_is_part_of_a_cells_name_and_the_default_is_not():
    train = presets.train_spec("quick", "digits", "fedavg")
    plain = presets.cell_spec("quick", train, "staged")
    assert not {"observe", "local_steps", "local_lr"} & set(plain.model_dump())
    update = presets.cell_spec("quick", train, "update-matching", observe="update")
    slow = presets.cell_spec("quick", train, "update-matching", observe="update", local_steps=2, local_lr=0.1)
    assert update.id != slow.id
    assert local_update.local_steps(plain) is None
    assert local_update.local_steps(update).steps == train.schedule.local_epochs
    assert local_update.local_steps(slow) == LocalSteps(2, {"kind": "sgd", "lr": 0.1, "weight_decay": 0.0})
    with pytest.raises(UserError, match="--local-steps, --local-lr and --local-batch go with --observe update"):
        presets.cell_spec("quick", train, "staged", local_steps=2)
    with pytest.raises(UserError, match="--local-batch 9 is more than the images of an update, --batch-size 2"):
        presets.cell_spec("quick", train, "update-matching", observe="update", local_batch=9, batch_size=2)
    with pytest.raises(UserError, match="steps should be at most 1000000000"):
        presets.cell_spec("quick", train, "dlg", attack_settings={"steps": 10**20})


@pytest.mark.parametrize("name", OPTIMISERS)
def test_updates_have_the_floor_of_their_class_as_gradients_have(name, untrained):
    local, _, _ = OPTIMISERS[name]
    local = local._replace(steps=1)
    seen, truth = seen_by(untrained, local)
    assert "classes" in seen.offers()
    assert "gradient:classifier" not in seen.offers()
    images = torch.linspace(0, 1, 10)[:, None, None, None].expand(10, 1, 32, 32)
    reconstruction = ClassMean().reconstruct(seen, Knowledge(auxiliary=Batch(images, torch.arange(10))), 0)
    assert torch.equal(reconstruction.labels.sort(1).values, truth.labels.sort(1).values)
    assert torch.equal(reconstruction.images[:, :, 0, 0, 0], reconstruction.labels / 9)


@pytest.mark.parametrize("defense", ["gaussian:0.001", "secure-aggregation"])
def test_a_server_of_updates_holds_the_running_statistics_that_clients_send(defense, tmp_path):
    """As a plain loop moves them, whatever the defence; of sums the mean; after a file as well. Steps on one image move none."""
    federation = digits_federation((20, 20))
    each = presets.train_spec("smoke", "digits", "fedavg", clients=2, backbone="convnet", defense=defense)
    setup, local = (
        harness.prepare(each, federation, CPU),
        LocalSteps(2, {"kind": "sgd", "lr": 0.1, "weight_decay": 0.0}),
    )
    state = harness.initial(setup)
    shot = Snapshot(0, state.server, state.clients, state.uploads)
    seen, truth = seen_by((setup, shot), local, batch_size=4, victims=1)

    def moved(x, y):
        """Running statistics after two plain steps, less those before."""
        nets, (params, buffers) = {p: setup.model.net(p) for p in ("extractor", "classifier")}, shot.networks(0)
        params = {p: {n: t.clone().requires_grad_() for n, t in params[p].items()} for p in nets}
        after = buffers
        for _ in range(2):
            h, new = nets["extractor"].apply(params["extractor"], after["extractor"], x, train=True)
            out, _ = nets["classifier"].apply(params["classifier"], after["classifier"], h, train=True)
            leaves = [t for net in params.values() for t in net.values()]
            grads = iter(torch.autograd.grad(F.cross_entropy(out, y), leaves))
            params = {
                p: {n: (t - 0.1 * next(grads)).detach().requires_grad_() for n, t in net.items()}
                for p, net in params.items()
            }
            after = {"extractor": new, "classifier": after["classifier"]}
        return {n: (t - buffers["extractor"][n]).detach() for n, t in after["extractor"].items()}

    halves = [moved(x, y) for x, y in zip(truth.images[0].split(4), truth.labels[0].split(4), strict=True)]
    artifacts.save(replace(seen, uploads={}, upload_buffers={}), tmp_path / "seen")
    for same in (seen, artifacts.load(tmp_path / "seen"), seen.select(torch.tensor([0])), seen.to(CPU)):
        assert same.update_buffers.keys() == {"extractor"}
        for n, t in same.update_buffers["extractor"].items():
            mean = sum(half[n] for half in halves) / len(halves)
            # Units near 0 pass on or not in one of two orders of summation, which the second step meets; of one step it is half.
            assert (t[0] - mean).norm() < 0.1 * mean.norm(), n
    assert len(halves) == (2 if defense == "secure-aggregation" else 1)
    posed, observed = problem.make(as_gradient(seen, local), 0), statistics(seen)
    made = local_change(posed, truth.images[0].double(), truth.labels[0], local)
    assert {n for n in made if "/statistics/" in n} == observed.keys()
    assert all((made[n] - t[0]).norm() < 0.1 * t.norm() for n, t in observed.items())
    assert not statistics(replace(seen, local=local._replace(batch=2)))
    for other in (seen_by((setup, shot), local, batch_size=1)[0], seen_by((setup, shot), None, batch_size=4)[0]):
        assert not other.update_buffers
