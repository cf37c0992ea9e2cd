"""Attackers who know more: initial networks, auxiliary images, a colluder, the oracle.

What they choose is validated in a shadow federation and cached, and never told by the truth.
"""

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from attacks.aligned_surrogate import AlignedSurrogate
from attacks.analytic_features import AnalyticFeatures, relative_change
from attacks.collusion import Collusion
from attacks.common import closed_form, training_cache
from attacks.decoder import Decoder
from attacks.features import inversion
from attacks.floors import ClassMean, Grey, NearestAuxiliary
from attacks.initial_surrogate import InitialSurrogate
from attacks.oracle import Oracle
from attacks.shadow import (
    alignment,
    decoder_share,
    known_extractor,
    learned_decoder,
    recipes,
    selection,
    shadow_federation,
    surrogate_training,
)
from attacks.shadow.surrogate_attack import SurrogateAttack
from attacks.surrogate import Surrogate
from privbench.errors import AttackRefused
from privbench.execution import one_attack
from privbench.observation import wire
from privbench.scoring.image_scores import psnr_db
from privbench.seeds import stream
from privbench.spec import Adam
from privbench.training.engine import descent
from privbench.types import Batch, Colluder, Knowledge, LocalTraining, Networks, no_progress
from tests.builders.small_artifacts import MODEL, artifact, images_like_the_victims, logits, networks, smooth_images
from tests.test_contracts import trust_surrogates

pytestmark = pytest.mark.usefixtures("small_shadows")

Y = torch.tensor([3, 0, 9])
SHORT = {"steps": 15, "exact_steps": 25, "members": 1, "train_steps": 4, "shadow_rounds": 1, "shadow_steps": 4}
SURROGATES = {
    "surrogate": Surrogate(**SHORT),
    "aligned-surrogate": AlignedSurrogate(**SHORT, align_steps=4),
    "initial-surrogate": InitialSurrogate(**SHORT, align_steps=4),
    "decoder": Decoder(**SHORT, align_steps=4, decoder_steps=4),
    "collusion": Collusion(**SHORT, align_steps=4),
}


def known(cache=None):
    initial = Networks(networks(), {"extractor": {}, "classifier": {}})
    return Knowledge(
        images_like_the_victims(), initial=initial, colluder=colluding(1), oracle={0: initial}, cache=cache
    )


def colluding(seed, images=None, client=0):
    """A colluder of one client, with networks of a seed and some images: by default two, one of each of two classes."""
    batch = images or Batch(smooth_images(5)[3:], torch.tensor([3, 0]))
    return {client: Colluder(networks(seed), {"extractor": {}, "classifier": {}}, batch)}


def shown(count=3, **options):
    return artifact(smooth_images(count), Y[:count], ("classifier",), **options)


def mean_psnr(reconstruction, count=3):
    return float(psnr_db(reconstruction.images[:, 0], smooth_images(count)).mean())


def test_features_inverted_through_the_known_initial_extractor_give_the_image():
    reconstruction = AnalyticFeatures(steps=120).reconstruct(shown(), known(), 0)
    assert mean_psnr(reconstruction) > mean_psnr(Grey().reconstruct(shown(), known(), 0)) + 5
    assert (reconstruction.trace[:, -1] < 0.1 * reconstruction.trace[:, 0]).all()


def test_the_initial_extractor_of_a_trained_federation_fades_into_grey():
    seen = shown()
    moved = {n: t + t.std() for n, t in seen.weights["classifier"].items()}
    late = dataclasses.replace(seen, weights={"classifier": moved})
    assert relative_change(moved, networks()["classifier"]) > 0.5
    reconstruction, grey = (
        AnalyticFeatures(steps=60).reconstruct(late, known(), 0),
        Grey().reconstruct(late, known(), 0),
    )
    assert mean_psnr(reconstruction) > mean_psnr(grey) - 1


def test_the_oracle_is_above_every_rung_below():
    seen, whole = shown(), known()
    oracle = mean_psnr(Oracle(steps=120).reconstruct(seen, whole, 0))
    floor = mean_psnr(ClassMean().reconstruct(seen, whole, 0))
    assert oracle > floor + 5
    for name, attack in SURROGATES.items():
        assert oracle > mean_psnr(attack.reconstruct(seen, whole, 0)), name


@pytest.mark.parametrize("attack", [AnalyticFeatures(steps=20), Oracle(steps=20), Surrogate(**SHORT)])
def test_victims_attacked_together_end_as_each_alone(attack, monkeypatch):
    """Through the same surrogates: which are trusted is decided on all victims (`pools`)."""
    trust_surrogates(monkeypatch)
    together, alone = attack.reconstruct(shown(), known(), 0), attack.reconstruct(shown(1), known(), 0)
    torch.testing.assert_close(together.images[0], alone.images[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(together.loss[0], alone.loss[0])


@pytest.mark.parametrize("name", SURROGATES)
def test_what_was_trained_is_read_back_with_the_same_result(name, tmp_path, monkeypatch):
    attack, seen = dataclasses.replace(SURROGATES[name], steps=3, exact_steps=3), shown()
    foreign = {
        "initial": Networks(networks(1), {"extractor": {}, "classifier": {}})
    }  # the victims' own needs no shadow validation
    plain, whole = (dataclasses.replace(known(folder), **foreign) for folder in (None, tmp_path))
    plain, first = attack.reconstruct(seen, plain, 0), attack.reconstruct(seen, whole, 0)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert any(file.startswith("validation") for file in files)

    def refuse(*_args, **_kwargs):
        raise AssertionError("trained again")

    monkeypatch.setattr(surrogate_training, "train", refuse)
    monkeypatch.setattr(surrogate_training, "train_client", refuse)
    second = attack.reconstruct(seen, whole, 0)
    assert torch.equal(plain.images, first.images)
    assert torch.equal(first.images, second.images)
    assert files == sorted(path.name for path in tmp_path.iterdir())


def test_another_choice_of_images_or_another_seed_is_trained_apart(tmp_path):
    made = []

    def make(value):
        return lambda: made.append(value) or {"t": torch.tensor([value])}

    def ask(settings, tensor, value):
        return float(
            training_cache.cached(tmp_path, "thing", settings, [tensor], make(value), torch.device("cpu"))["t"]
        )

    first, other = torch.zeros(2), torch.ones(2)
    assert [ask({"seed": 0}, first, 1.0), ask({"seed": 1}, first, 2.0), ask({"seed": 0}, other, 3.0)] == [1, 2, 3]
    assert ask({"seed": 0}, first, 9.0) == 1
    assert made == [1.0, 2.0, 3.0]


def test_a_damaged_file_of_the_cache_is_named_and_made_anew(tmp_path, caplog):
    made = []

    def ask():
        def make():
            made.append(1)
            return {"t": torch.ones(64)}

        return training_cache.cached(tmp_path, "thing", {}, [], make, torch.device("cpu"))["t"]

    ask()
    (path,) = tmp_path.glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-8])
    assert torch.equal(ask(), torch.ones(64))
    assert len(made) == 2
    (line,) = caplog.messages
    assert f"{path} is damaged" in line
    assert "made anew" in line
    ask()
    assert len(made) == 2


def test_the_shadow_validation_takes_the_class_mean_unless_something_is_better_on_average():
    columns = len(selection.TAUS) + 1
    level = torch.full((2, columns, 6), 12.0)
    assert math.isinf(selection.best(level.clone())[1])
    worse, better = level.clone(), level.clone()
    worse[1, 2] += torch.tensor([5.0, -4.0, 2.0, -4.0, 0.0, 0.0])
    better[1, 2] += torch.tensor([5.0, -4.0, 2.0, -2.0, 0.0, 0.0])
    assert math.isinf(selection.best(worse)[1])
    assert selection.best(better) == (1, selection.TAUS[2])


@pytest.mark.parametrize("seed", range(12))
def test_of_recipes_asked_in_turn_the_same_is_taken_as_of_all_that_apply(seed, monkeypatch):
    rng = torch.Generator().manual_seed(seed)
    names = ["a", "b", "c"]
    psnr = {name: torch.randn(len(selection.TAUS) + 1, 3, generator=rng) for name in names}
    applicable = {name: bool(torch.rand((), generator=rng) < 0.6) for name in names}
    asked = []

    def applies(recipe, *_):
        asked.append(recipe.name)
        return applicable[recipe.name]

    monkeypatch.setattr(
        selection, "validated", lambda recipe, *_: {"psnr_db": psnr[recipe.name], "shift": torch.tensor(0.0)}
    )
    monkeypatch.setattr(selection, "applies", applies)
    made = [SimpleNamespace(name=name) for name in reversed(names)]
    choice = selection.best_of(made, 1, shadow_federation.real(shown(), known(), 0, "test"), 1, 0, known(), no_progress)
    sound = [name for name in names if applicable[name]]
    row, tau = selection.best([psnr[name] for name in sound]) if sound else (0, math.inf)
    assert choice == (selection.NOTHING if math.isinf(tau) else (sound[row], tau))
    # Extractors are trained for those that promise more, and for none that promises nothing.
    gains = {name: float((of[:-1].mean(1) - of[-1].mean()).max()) for name, of in psnr.items()}
    assert set(asked) == {name for name in names if gains[name] > 0 and gains[name] >= gains.get(choice.recipe, 0)}


def choice_of_initial():
    """What `initial-surrogate` takes in a fifth round."""
    real = shadow_federation.real(shown(), known(), 0, "test")
    attack = SURROGATES["initial-surrogate"].attack(shown(), known())
    return attack.choice(real, 5, 0, known(), no_progress)


@pytest.mark.parametrize(
    ("from_initial", "below", "initial_error", "taken"),
    [(0, 5, 0.3, "from initial"), (5, 0, 0.3, "aligned"), (0, 5, math.inf, "aligned"), (0, 0, 0.3, "aligned")],
    ids=["it is the victims' own", "the other is", "its shadow validation trusts nothing", "both are alike"],
)
def test_surrogates_from_the_initial_networks_are_taken_where_they_explain_the_real_features_better(
    from_initial, below, initial_error, taken, monkeypatch
):
    """Planted: extractors of seeds `from_initial` and `below`, of which 0 is the victims' own; the shadow validations are given."""
    lower = selection.Choice("aligned", 0.1)

    def surrogates(view, seed):
        return shadow_federation.of_clients(view, {0: [networks(seed)["extractor"]]})

    monkeypatch.setattr(alignment, "from_plain", lambda _, view, *__: surrogates(view, below))
    monkeypatch.setattr(alignment, "from_start", lambda _, view, *__: surrogates(view, from_initial))

    def best_of(recipes, steps, real, round_, seed, knowledge, progress):
        if [recipe.name for recipe in recipes] == ["from initial"]:
            assert knowledge.initial is not None
            return selection.Choice("from initial", initial_error)
        assert [recipe.name for recipe in recipes] == ["surrogate", "aligned"]
        assert knowledge.initial is None
        return lower

    monkeypatch.setattr(selection, "best_of", best_of)
    chosen = choice_of_initial()
    assert chosen == (lower if taken == "aligned" else selection.Choice("from initial", initial_error))


@pytest.mark.parametrize("initial_error", [0.3, math.inf])
def test_where_the_attacker_without_the_initial_networks_trusts_nothing_the_shadow_of_them_decides(
    initial_error, monkeypatch
):
    choices = {"from initial": selection.Choice("from initial", initial_error)}
    nothing = selection.Choice("none", math.inf)
    monkeypatch.setattr(selection, "best_of", lambda recipes, *_: choices.get(recipes[0].name, nothing))
    chosen = choice_of_initial()
    assert chosen == (nothing if math.isinf(initial_error) else choices["from initial"])


def test_without_a_better_start_the_initial_networks_change_no_bit(monkeypatch):
    foreign = Networks(networks(1), {"extractor": {}, "classifier": {}})
    seen, whole = shown(), dataclasses.replace(known(), initial=foreign)
    monkeypatch.setattr(selection, "best_of", lambda recipes, *_: selection.Choice(recipes[0].name, 0.1))
    monkeypatch.setattr(SurrogateAttack, "explains_more", lambda *_: False)
    reconstruction = SURROGATES["initial-surrogate"].reconstruct(seen, whole, 0)
    below = SURROGATES["aligned-surrogate"].reconstruct(seen, dataclasses.replace(whole, initial=None), 0)
    assert all(torch.equal(a, b) for a, b in zip(reconstruction[:5], below[:5], strict=True))
    assert not torch.equal(reconstruction.images, ClassMean().reconstruct(seen, whole, 0).images)


def test_an_attacker_who_trusts_nothing_returns_the_class_mean_and_claims_no_descent():
    seen, whole = (
        shown(),
        dataclasses.replace(known(), auxiliary=images_like_the_victims(3)),
    )  # too few for a shadow validation
    reconstruction = Surrogate(**SHORT).reconstruct(seen, whole, 0)
    floor = ClassMean().reconstruct(seen, whole, 0)
    assert reconstruction.trace.shape == (3, 1)
    assert reconstruction.gradient_evaluations == 0
    torch.testing.assert_close(reconstruction.images.float(), floor.images)


@pytest.mark.parametrize("name", ["collusion", "initial-surrogate"])
def test_an_extractor_that_is_the_victims_own_is_distinguished_from_another_and_inverted_as_the_oracle_s(name):
    seen, whole = shown(), known()
    colluder_knowledge = dataclasses.replace(whole, colluder=colluding(0, whole.auxiliary))
    both = Batch(*(torch.cat([t, t]) for t in whole.auxiliary))  # the colluder's images join the auxiliary ones
    known_to_it = dataclasses.replace(colluder_knowledge, auxiliary=both) if name == "collusion" else colluder_knowledge
    oracle = Oracle(steps=25).reconstruct(seen, known_to_it, 0)
    torch.testing.assert_close(SURROGATES[name].reconstruct(seen, colluder_knowledge, 0).images, oracle.images)
    foreign = Networks(networks(1), {"extractor": {}, "classifier": {}})
    other = dataclasses.replace(whole, colluder=colluding(1), initial=foreign)
    assert not known_extractor.fitting(
        shadow_federation.real(seen, other, 0, "test"),
        {0: foreign.params["extractor"]},
        known_extractor.SCREEN,
        0,
        no_progress,
    )


@pytest.mark.parametrize("variance", [1e-9, 1e-7])
@pytest.mark.parametrize("unclear", [False, True])
def test_under_noise_an_extractor_is_the_victims_own_where_their_clearest_features_show_it(variance, unclear):
    """Of ||d|| near 0.0185 features have a noise of 4e-6, and of 4e-4; those of another network lie farther away."""
    seen = artifact(smooth_images(12), torch.arange(12) % 10, ("classifier",), noise=variance)
    view = shadow_federation.real(seen, known(), 0, "test")
    if unclear:
        # Two thirds of the victims say nothing of their features, and so nothing of their extractor.
        rows = torch.arange(12) >= 4
        noise = view.noise.where(~rows, 1000.0)
        view = view._replace(
            noise=noise, h=view.h.where(~rows[:, None, None, None], torch.randn(view.h.shape).to(view.h))
        )
    for weights, expected in ((networks(), {0}), (networks(1), set())):
        candidate = {0: weights["extractor"]}
        assert known_extractor.fitting(view, candidate, known_extractor.SCREEN, 0, no_progress) == expected


@pytest.mark.parametrize("form", ["bf16", "fp16"])
def test_behind_a_number_format_an_extractor_is_the_victims_own_as_without(form):
    exact = artifact(smooth_images(12), torch.arange(12) % 10, ("classifier",))
    arrived, defense = wire.rounded(exact.gradients, form), wire.described(exact.defense, form)
    view = shadow_federation.real(dataclasses.replace(exact, gradients=arrived, defense=defense), known(), 0, "test")
    # Labels stay certain: what is rounded is no noise of the gradient.
    assert view.noise is not None
    assert view.probability is None
    for weights, expected in ((networks(), {0}), (networks(1), set())):
        candidate = {0: weights["extractor"]}
        assert known_extractor.fitting(view, candidate, known_extractor.SCREEN, 0, no_progress) == expected


def test_a_shadow_has_the_noise_levels_of_the_victims_and_features_below_it_say_nothing_of_surrogates():
    noise = torch.tensor([0.001, 0.002, 500.0], dtype=torch.float64)
    levels = shadow_federation.noise_levels(noise, 300, 0)
    assert set(levels.tolist()) == set(noise.tolist())
    zeros = torch.zeros(300, 2, 3, 3, dtype=torch.float64)
    squares = shadow_federation.noised(zeros, levels, 0).square().flatten(1).mean(1)
    # A mean of 18 squares has a standard deviation of a third of itself; about 100 images have each level.
    for level in noise:
        assert float((squares[levels == level] / level).mean()) == pytest.approx(1, abs=0.25)
    seen = artifact(smooth_images(3), Y, ("classifier",), noise=10.0)
    view, nets = shadow_federation.real(seen, known(), 0, "test"), [networks()["extractor"]]
    every = dict.fromkeys(range(3), nets)
    assert recipes.moment_shift(view, every, 0, known()) == math.inf
    unseen, seen_by_one = (
        SimpleNamespace(extractors=lambda *_: {}, shift=lambda *_, shift=shift: shift, negligible=0.5)
        for shift in (math.inf, 0.6)
    )
    assert not selection.applies(unseen, view, math.inf, 0, known())
    assert not selection.applies(seen_by_one, view, math.inf, 0, known())
    assert selection.applies(seen_by_one, view, 0.5, 0, known())
    clear = shadow_federation.real(artifact(smooth_images(3), Y, ("classifier",), noise=1e-9), known(), 0, "test")
    assert recipes.moment_shift(clear, every, 0, known()) < math.inf


def test_knowledge_of_the_extractor_never_scores_lower():
    seen, whole = shown(), dataclasses.replace(known(), colluder=colluding(0))
    initial = mean_psnr(AnalyticFeatures(steps=25).reconstruct(seen, whole, 0))
    floor = mean_psnr(SURROGATES["surrogate"].reconstruct(seen, whole, 0))
    for name in ("collusion", "initial-surrogate"):
        assert mean_psnr(SURROGATES[name].reconstruct(seen, whole, 0)) > max(initial, floor) - 0.1, name


def test_an_inversion_that_trusts_nothing_ends_at_the_class_mean():
    whole = images_like_the_victims()
    prior = inversion.learned(whole, 10, torch.zeros(1, dtype=torch.float64))
    h = closed_form.closed_form(shown())
    end = inversion.invert(
        MODEL, [[networks(5)["extractor"]]] * 3, prior, h, Y, torch.full((3,), torch.inf), exact=False, steps=5
    )
    torch.testing.assert_close(end.x[:, 0].flatten(1), (prior.means[Y] + 1) / 2)


@pytest.mark.parametrize("corrected", [True, False])
def test_a_shadow_client_steps_by_adam_as_clients_do(corrected):
    setting = Adam(lr=1e-2, weight_decay=1e-3, bias_correction=corrected)
    rng = stream(0, "adam")
    theirs, ours = (torch.ones(5), torch.ones(5).requires_grad_())
    mean, square, count = torch.zeros(5), torch.zeros(5), torch.tensor(0.0)
    optimiser = surrogate_training.optimiser_for([ours], setting.model_dump())
    for _ in range(4):
        gradient = torch.randn(5, generator=rng)
        count += 1
        descent.descend([theirs], [gradient], [mean], [square], [count], setting)
        ours.grad = gradient.clone()
        optimiser.step()
        torch.testing.assert_close(ours.detach(), theirs)


def test_training_through_the_frozen_classifier_lowers_the_cross_entropy_and_leaves_the_classifier_alone():
    data, parts = images_like_the_victims(), networks()
    before = {n: t.clone() for n, t in parts["classifier"].items()}
    start, _ = MODEL.net("extractor").init(stream(0, "fresh"))
    end = surrogate_training.train(MODEL, start, parts["classifier"], data, 60, stream(0, "batches"))
    loss = [
        float(torch.nn.functional.cross_entropy(logits({**parts, "extractor": e}, data.images)[0], data.labels))
        for e in (start, end)
    ]
    assert loss[1] < loss[0]
    assert all(torch.equal(before[n], t) for n, t in parts["classifier"].items())


def test_alignment_brings_the_features_moments_nearer():
    data, parts = images_like_the_victims(), networks()
    target = surrogate_training.extract(MODEL, networks(4)["extractor"], data.images)
    start, _ = MODEL.net("extractor").init(stream(0, "fresh"))
    for align in (
        surrogate_training.to_features(target),
        surrogate_training.to_generator(surrogate_training.class_moments(target, data.labels, 10)),
    ):
        end = surrogate_training.train(MODEL, start, parts["classifier"], data, 40, stream(0, "batches"), align, 1.0)
        gaps = [float(align(surrogate_training.extract(MODEL, e, data.images), data.labels)) for e in (start, end)]
        assert gaps[1] < gaps[0]
        assert float(align(target, data.labels)) < 1e-9


def test_the_shadow_s_victims_are_not_among_its_attackers_images():
    view = shadow_federation.real(shown(), known(), 0, "test")
    other, images = shadow_federation.shadow(view, 1, 2, 0, Knowledge())
    auxiliary_images = {image.numpy().tobytes() for image in other.auxiliary.images}
    assert not auxiliary_images & {image.numpy().tobytes() for image in images}
    assert len(other.h) == len(images) == len(other.labels) == shadow_federation.CLIENTS * shadow_federation.VICTIMS


def test_the_central_image_is_one_of_the_class():
    whole = known()
    reconstruction = NearestAuxiliary().reconstruct(shown(), whole, 0)
    for image, y in zip(reconstruction.images[:, 0], Y, strict=True):
        of_class = whole.auxiliary.images[whole.auxiliary.labels == y]
        assert any(torch.equal(image, each) for each in of_class)


@pytest.mark.parametrize(("seed", "fits"), [(5, True), (9, False)], ids=["as in the shadow", "foreign"])
def test_the_decoder_keeps_its_answers_to_features_like_the_shadow_s_and_next_to_nothing_of_others(seed, fits):
    """Planted: D is trained and validated through the network of seed 5; the victims' features are of it or of a foreign one."""
    images, labels = images_like_the_victims(240)
    view = shadow_federation.real(shown(), known(), 0, "test")._replace(auxiliary=Batch(images[40:], labels[40:]))
    params = learned_decoder.train(view, [networks(5)["extractor"]], 60, 0)
    means = learned_decoder.class_means(view)

    def read(extractor_seed, rows):
        h = surrogate_training.extract(MODEL, networks(extractor_seed)["extractor"], images[rows])
        return learned_decoder.decode(params, h, labels[rows], 10, means[labels[rows]]), images[rows] - means[
            labels[rows]
        ]

    answer, missing = read(5, slice(0, 20))
    share = float((answer * missing).sum() / answer.square().sum())
    validated = decoder_share.Share(min(share, 1.0), float(answer.square().mean()))
    answer, missing = read(seed, slice(20, 40))
    carried = decoder_share.carried_over(validated, answer)
    floor, whole, now = (float((missing - a * answer).square().mean()) for a in (0.0, validated.share, carried))
    if fits:
        assert carried > 0.8 * validated.share
        assert now < 0.6 * floor
    else:
        assert whole > 2 * floor  # what the shadow's share alone would cost
        assert carried < 0.1 * validated.share
        assert now < 1.1 * floor


def test_answers_smaller_than_the_shadow_s_get_no_greater_share_and_none_nothing():
    answer = torch.full((2, 1, 2, 2), 0.5)
    assert decoder_share.carried_over(decoder_share.Share(0.8, 0.25), answer) == 0.8
    assert decoder_share.carried_over(decoder_share.Share(0.8, 1.0), answer) == 0.8
    assert decoder_share.carried_over(decoder_share.Share(0.8, 0.125), answer) == pytest.approx(0.4)
    assert decoder_share.carried_over(decoder_share.Share(0.8, 0.125), torch.zeros(2, 3)) == 0


PRIVATE = (*SURROGATES, "analytic-features", "oracle", "oracle-decoder", "feature-hijacking")


@pytest.mark.parametrize("name", PRIVATE)
def test_a_broadcast_extractor_is_refused_in_one_line(name):
    both = artifact(smooth_images(1), Y[:1])
    private = artifact(smooth_images(1), Y[:1], ("classifier",))
    seen = dataclasses.replace(both, uploads=private.uploads, upload_buffers=private.upload_buffers)
    with pytest.raises(AttackRefused) as error:
        one_attack.attack_artifact(name, {}, seen, known(), 0, torch.device("cpu"), no_progress)
    message = f"{name} attacks private extractors, but test broadcasts its extractor; try --attack staged"
    assert str(error.value) == message


def test_without_noise_a_posterior_is_refused_in_one_line():
    seen = artifact(smooth_images(1), Y[:1])
    with pytest.raises(AttackRefused) as error:
        one_attack.attack_artifact("posterior", {}, seen, known(), 0, torch.device("cpu"), no_progress)
    message = "posterior weighs the noise that uploads carry, but these carry none; try --attack staged"
    assert str(error.value) == message


def of_one_client(count=5):
    """The server's view of some victims of one client."""
    y = torch.arange(count)
    return shadow_federation.real(artifact(smooth_images(count), y, ("classifier",)), known(), 0, "test")


def test_no_victims_own_features_align_the_surrogate_that_it_is_inverted_through():
    view, attack = of_one_client(5), SURROGATES["aligned-surrogate"]
    moved = view._replace(h=view.h.index_add(0, torch.tensor([1]), torch.full_like(view.h[:1], 0.3)))
    before, after = (alignment.from_plain(attack, each, 0, Knowledge()) for each in (view, moved))
    fold = alignment.folds(view)
    assert fold.tolist() == [0, 1, 2, 3, 0]
    for v in range(5):
        same = all(torch.equal(t, after[v][0][n]) for n, t in before[v][0].items())
        assert same == (v == 1), v


def test_two_other_victims_at_least_align_a_surrogate():
    for count, aligned in ((2, False), (3, True)):
        view = of_one_client(count)._replace(generated={})
        align = alignment.terms(view, 0, torch.arange(count) != 0, ())
        h = view.h.float() + 0.1
        assert bool(align(h, view.labels) > 0) == aligned


def test_a_decoder_reads_no_features_that_its_surrogates_were_aligned_to(monkeypatch):
    real, attack = of_one_client(5), SURROGATES["decoder"]
    members, used = alignment.from_plain(attack, real, 0, Knowledge()), []
    original = learned_decoder.train
    monkeypatch.setattr(
        learned_decoder, "train", lambda view, nets, *rest: used.append(nets) or original(view, nets, *rest)
    )
    decoder_share.answers(real, members, attack.decoder_steps, 0, Knowledge())
    assert [[id(net) for net in nets] for nets in used] == [[id(members[v][0])] for v in range(4)]


def test_a_colluders_images_are_used_on_its_own_clients_victims_alone(monkeypatch):
    seen = dataclasses.replace(shown(), client=torch.tensor([1, 0, 1]), uploads={}, upload_buffers={})
    dark, bright = (Batch(torch.full((2, 1, 32, 32), level), torch.tensor([1, 2])) for level in (0.1, 0.9))
    both = colluding(0, dark) | colluding(1, bright, client=1)
    whole, given = dataclasses.replace(known(), colluder=both), []
    original = SurrogateAttack.of_single

    def note(attack, victims, handed, *rest):
        given.append((victims.client.tolist(), handed.auxiliary, list(handed.colluder)))
        return original(attack, victims, handed, *rest)

    monkeypatch.setattr(SurrogateAttack, "of_single", note)
    reconstruction = SURROGATES["collusion"].reconstruct(seen, whole, 0)
    assert [(clients, colluders) for clients, _, colluders in given] == [([0], [0]), ([1, 1], [1])]
    for (_, auxiliary, _), colluder_batch in zip(given, (dark, bright), strict=True):
        assert torch.equal(auxiliary.images, torch.cat([known().auxiliary.images, colluder_batch.images]))
        assert torch.equal(auxiliary.labels, torch.cat([known().auxiliary.labels, colluder_batch.labels]))
    alone = SURROGATES["collusion"].reconstruct(seen.select(torch.tensor([1])), whole, 0)
    torch.testing.assert_close(
        reconstruction.images[1], alone.images[0]
    )  # client 0's own extractor, inverted to the end
    assert reconstruction.labels[:, 0].tolist() == Y.tolist()


def test_the_shadow_validation_of_collusion_is_made_once_and_shared(tmp_path):
    seen = dataclasses.replace(shown(), client=torch.tensor([1, 0, 1]), uploads={}, upload_buffers={})
    whole = dataclasses.replace(known(tmp_path), colluder=colluding(1) | colluding(2, client=1))

    def validations():
        return sorted(path.name.split("-")[1] for path in tmp_path.glob("validation-*"))

    SURROGATES["aligned-surrogate"].reconstruct(seen, whole, 0)
    assert validations() == ["aligned", "surrogate"]
    SURROGATES["collusion"].reconstruct(seen, whole, 0)
    assert validations() == ["aligned", "colluder", "surrogate"]


def test_collusion_validates_nothing_where_every_extractor_is_known(tmp_path):
    whole = dataclasses.replace(known(tmp_path), colluder=colluding(0))
    SURROGATES["collusion"].reconstruct(shown(), whole, 0)
    assert list(tmp_path.glob("validation-*")) == []


def test_collusion_inverts_by_the_images_of_the_colluder_as_well(monkeypatch):
    monkeypatch.setattr(selection, "best_of", lambda *_: selection.Choice("surrogate", 0.1))
    bright, dark = (Batch(torch.full((40, 1, 32, 32), level), torch.tensor([3] * 40)) for level in (0.9, 0.1))
    ends = [
        SURROGATES["collusion"].reconstruct(shown(), dataclasses.replace(known(), colluder=colluding(1, images)), 0)
        for images in (bright, dark)
    ]
    assert ends[0].images[0].mean() > ends[1].images[0].mean() + 0.1


def test_shadow_clients_train_as_the_attacked_ones_do_as_far_as_that_is_known():
    view, e0 = of_one_client(), networks(3)["extractor"]

    def moved(training, most=3):
        other, images = shadow_federation.shadow(view._replace(training=training), 1, most, 0, Knowledge(), e0)
        return float((other.h - surrogate_training.extract(MODEL, e0, images)).abs().max())

    still = LocalTraining({"kind": "sgd", "lr": 1e-12, "weight_decay": 0.0}, 16, 3)
    assert moved(still) < 1e-6
    far = moved(still._replace(optimiser={"kind": "sgd", "lr": 0.5, "weight_decay": 0.0}))
    assert far > 1e-4
    assert moved(still._replace(optimiser={"kind": "sgd", "lr": 0.5, "weight_decay": 0.0}, steps=9), most=3) == far
    untold = LocalTraining(
        surrogate_training.USUAL_OPTIMISER.model_dump(), surrogate_training.CLIENT_BATCH, shadow_federation.USUAL_STEPS
    )
    assert shadow_federation.training_of(view, 10_000) == untold
    assert moved(None) == moved(untold)


def test_a_shadow_client_drops_features_as_the_attacked_ones_do():
    """One step on two images equals the plain formula with the same draws; E stays where all features are dropped."""
    start, data = networks(3), Batch(smooth_images(2), Y[:2])
    training = LocalTraining({"kind": "sgd", "lr": 0.5, "weight_decay": 0.0}, 2, 1)

    def ends(dropout):
        return surrogate_training.train_client(
            dataclasses.replace(MODEL, dropout=dropout),
            start["extractor"],
            start["classifier"],
            data,
            1,
            training,
            stream(0, "drop"),
        )

    rng = stream(0, "drop")
    rows = torch.randint(2, (2,), generator=rng)
    leaves = {p: {n: t.clone().requires_grad_() for n, t in net.items()} for p, net in start.items()}
    h, _ = MODEL.net("extractor").apply(leaves["extractor"], {}, data.images[rows], train=True)
    kept = torch.empty(h.shape).bernoulli_(0.75, generator=rng)
    outputs, _ = MODEL.net("classifier").apply(leaves["classifier"], {}, h * kept / 0.75, train=True)
    F.cross_entropy(outputs, data.labels[rows]).backward()
    for part, made in zip(("extractor", "classifier"), ends(0.25), strict=True):
        for n, t in leaves[part].items():
            torch.testing.assert_close(made[n], (t - 0.5 * t.grad).detach())
    (without, _), (with_all_but_all_dropped, _) = ends(0.0), ends(1 - 1e-7)
    assert any(not torch.equal(without[n], t) for n, t in start["extractor"].items())
    assert all(torch.equal(with_all_but_all_dropped[n], t) for n, t in start["extractor"].items())


def test_the_clients_of_a_shadow_have_the_model_s_dropout_and_its_files_a_name_of_their_own(tmp_path):
    view = of_one_client()
    files = {}
    for dropout in (0.0, 0.5):
        shadow_federation.shadow(
            view._replace(model=dataclasses.replace(MODEL, dropout=dropout)), 1, 2, 0, Knowledge(cache=tmp_path)
        )
        files[dropout] = {path.name for path in tmp_path.glob("shadow-*.safetensors")} - files.get(0.0, set())
    assert [len(names) for names in files.values()] == [1, 1]
    trained = [load_file(tmp_path / name) for names in files.values() for name in names]
    assert any(not torch.equal(trained[0][n], t) for n, t in trained[1].items())
