"""What every plug-in must keep, counted, so that none is forgotten."""

import dataclasses
import math
import re
import shutil
from functools import cache, partial

import pytest
import torch

from attacks.features.learned_prior import denoiser
from attacks.floors import Grey
from attacks.shadow import decoder_share
from attacks.shadow.selection import Choice
from attacks.shadow.surrogate_attack import SurrogateAttack
from privbench import presets, registry
from privbench.data import partition
from privbench.defense import Defense
from privbench.execution import applicability, attack_cell, cell_jobs, one_attack
from privbench.execution.inferring import candidate_images, inference_cell
from privbench.methods.base import ClassByCount
from privbench.observation import artifact_files, chosen_victims, knowledge, observe
from privbench.observation.artifact_files import load
from privbench.records import schema
from privbench.records.entries import KnowledgeUsed
from privbench.records.store import Store
from privbench.scoring.statement_scores import QUESTIONS
from privbench.system import files
from privbench.training import checkpoint, harness
from privbench.training.state import Replica
from privbench.types import CLASS_EVIDENCE, Candidates, ExpectedUpload, Knowledge, LocalSteps, Networks, Statements
from tests.builders.federations import digits_federation
from tests.builders.other_uploads import other_uploads

pytestmark = pytest.mark.usefixtures("small_shadows", "brief_denoiser")

CPU = torch.device("cpu")
METHODS = tuple(name for name in registry.METHODS if registry.resolve("method", name).shared_parts)  # can be attacked
LIMITS = {name: applicability.of(registry.resolve("attack", name)) for name in registry.ATTACKS}
# On how many of the methods below, but for those ALIKE, each inference can be made.
INFERRED = {
    "label-distribution": 6, "generator-labels": 4, "loss-threshold": 1, "membership-inference": 6, "property-inference": 6
}  # fmt: skip
ALIKE = ("fedprox", "feddf", "lg-fedavg", "reptile")  # their artifacts hold what those of fedavg and fedsplit do


@pytest.fixture
def brief_denoiser(monkeypatch):
    """A denoiser of ten steps, a fortieth: here nobody asks how well it denoises."""
    monkeypatch.setattr(denoiser, "STEPS", 10)
    monkeypatch.setattr(denoiser, "EVERY", 5)


@pytest.fixture(scope="module")
def observed(tmp_path_factory):
    """An artifact with its truth for every method that can be attacked, read back from disk."""
    artifacts_of = {}
    for method in (name for name in METHODS if name not in ALIKE):
        folder = tmp_path_factory.mktemp(method)
        each = presets.train_spec("smoke", "digits", method, clients=2, changes={"rounds": 1})
        federation = digits_federation((20, 20))
        setup = harness.prepare(each, federation, CPU)
        state = harness.initial(setup)
        checkpoint.save_snapshot(folder, each, state)
        start = checkpoint.load_snapshot(folder, each.id, 0)
        harness.train_round([setup], [state], "alone")
        checkpoint.save_snapshot(folder, each, state)
        seen, truth = observe.observe(
            checkpoint.load_snapshot(folder, each.id, 1), federation, setup.model, setup.method, setup.defense, method_name=method,
            dataset="digits", victims=2, batch_size=1, labels_known=False, seed=0,
        )  # fmt: skip
        artifact_files.save(seen, folder / "artifact")
        artifact_files.save_truth(truth, folder / "truth.safetensors", folder / "artifact")
        shot = checkpoint.load_snapshot(folder, each.id, 1)
        for kind, sent, local in variants(shot, setup):
            other, _ = observe.observe(
                sent, federation, setup.model, setup.method, setup.defense, method_name=method,
                dataset="digits", victims=2, batch_size=1, labels_known=False, seed=0, local=local,
            )  # fmt: skip
            artifact_files.save(other, folder / kind)
        whole = Knowledge(
            auxiliary=observe.auxiliary(federation), initial=knowledge.of_client(shot, 0),
            colluder=knowledge.colluder(shot, seen, federation), oracle=knowledge.oracle(shot, seen),
            broadcast=Networks(shot.server.params, shot.server.buffers),
            candidates=candidate_images.choose(federation, chosen_victims.choose_victims(federation, 2, 1, 0), 0, 32).candidates,
            domains=torch.arange(20) % 2,
            specification=knowledge.specification(each, setup.defense.describe(), flips=False),
            **other_uploads(setup, method, start, shot),
        )  # fmt: skip
        artifacts_of[method] = (folder, whole)
    return artifacts_of


def test_what_a_method_offers_is_known_before_it_is_trained(observed):
    for name, (folder, _) in observed.items():
        method = registry.create(registry.resolve("method", name), {})
        assert observe.offers(method) == load(folder / "artifact").offers(), name


def variants(shot, setup):
    """(file, what the clients receive, their local steps): whole local updates, and what each active attack brings back."""
    if "classifier" not in setup.method.shared_parts:
        return
    yield "update", shot, LocalSteps(2, {"kind": "sgd", "lr": 0.1, "weight_decay": 0.0})
    for name in filter(registry.is_active, registry.ATTACKS):
        attack, server = registry.create(registry.resolve("attack", name), short(name)), shot.server
        if not attack.needs <= observe.offers(setup.method) | set(knowledge.FIELDS):
            continue
        whole = Knowledge(auxiliary=observe.auxiliary(setup.federation), expected=ExpectedUpload(1, setup.defense))
        crafted = attack.craft(setup.model, Networks(server.params, server.buffers), whole, 0)
        sent = Replica(server.params | crafted.params, server.buffers | crafted.buffers)
        yield name, shot._replace(server=sent), None


def file_for(name):
    """Which of a method's artifacts an attack is made for."""
    if any(need.startswith("update:") for need in registry.resolve("attack", name).needs):
        return "update"
    return name if registry.is_active(name) else "artifact"


def fitting():
    """(attack, method) pairs whose needs and limits are met without a defence."""

    def offers(name):
        method = registry.resolve("method", name)
        gradients = {f"gradient:{p}" for p in ("extractor", "classifier") if p in method.shared_parts}
        uploads = {"upload:generator"} if "generator" in method.shared_parts else set()
        gradients |= {need.replace("gradient", "update") for need in gradients} | ({"gradient"} if gradients else set())
        uploads |= {"classes"} if "classifier" in method.shared_parts else set()
        return (
            gradients
            | uploads
            | {f"broadcast:{p}" for p in (*method.shared_parts, *method.serves)}
            | set(knowledge.FIELDS)
        )

    def applies(attack, method):
        private = "extractor" not in registry.resolve("method", method).shared_parts
        images = registry.create(registry.resolve("method", method), {}).networks("lenet5").get("gan") == "image"
        if LIMITS[attack].image_generator and not images:
            return False
        if LIMITS[attack].several_images:
            return False
        return not LIMITS[attack].noise and (private or not LIMITS[attack].private_extractor)

    return [
        (a, m)
        for a in registry.ATTACKS
        for m in METHODS
        if registry.resolve("attack", a).needs <= offers(m) and applies(a, m)
    ]


# Attacks that apply where clients keep their extractors alone, but for the one of an active server.
PRIVATE = tuple(a for a, limits in LIMITS.items() if limits.private_extractor and not registry.is_active(a))
DISTINCT = [(a, m) for a, m in fitting() if m not in ALIKE]


SHORT = {
    "steps": 4,
    "levels": 1,
    "exact_steps": 8,
    "peel_iterations": 1,
    "direction_steps": 2,
    "feature_steps": 4,
    "rehearsal_images": 0,
    "members": 1,
    "train_steps": 2,
    "shadow_steps": 2,
    "align_steps": 2,
    "decoder_steps": 2,
    "start_steps": 4,
    "pilot_steps": 2,
    "generator_steps": 2,
    "turns": 2,
    "epochs": 2,
    "fit_steps": 2,
    "refine_steps": 2,
    "find_steps": 2,
    "again_steps": 2,
    "joint_steps": 2,
    "pairs": 1,
    "shadows": 1,
}
# One step of Gauss-Newton takes half a second.
SHORTER = {"layerwise": {"steps": 1}}


def short(name):
    """Settings that make an attack quick."""
    fields = {f.name for f in dataclasses.fields(registry.resolve("attack", name))}
    return {field: value for field, value in SHORT.items() if field in fields} | SHORTER.get(name, {})


def attacked(name, folder, whole):
    seen = load(folder / file_for(name))
    return one_attack.attack_artifact(name, short(name), seen, whole, 0, CPU, lambda *_: None)


@pytest.fixture(scope="module")
def reconstructed(observed):
    """What an attack makes of a method's artifact: made once for all tests that look at it."""
    return cache(lambda name, method: attacked(name, *observed[method]))


@pytest.fixture(scope="module")
def inferred(observed):
    """What an inference states of a method's artifact: made once for all tests that look at it."""
    return cache(lambda name, method: stated(name, load(observed[method][0] / "artifact"), observed[method][1]))


def test_there_are_as_many_plug_ins_as_the_documentation_says():
    catalogues = (registry.METHODS, registry.ATTACKS, registry.INFERENCES, registry.DEFENSES, registry.DATASETS)
    assert tuple(map(len, catalogues)) == (14, 35, len(INFERRED), 12, 15)
    fedper = ("grey", "dataset-mean", "dlg", "extractor-matching")  # it sends the extractor's gradient alone
    whole_gradient = ("learned-inverse", "extractor-matching", "layerwise")  # of FedAvg, FedProx, FedDF and Reptile
    assert len(PRIVATE) == 11
    generators = ("grey", "dataset-mean", "generated-images")  # SecureGAN sends generators of images alone
    assert len(fitting()) == 6 * 24 + 2 * 3 + 4 * (24 - len(PRIVATE) + len(whole_gradient)) + len(fedper) + len(
        generators
    )
    assert [a for a, m in fitting() if m == "secure-gan"] == list(generators)
    assert [a for a, m in fitting() if m == "fedper"] == list(fedper)
    # One needs noise, two a sum over clients, two several images.
    elsewhere = {"posterior", "model-inconsistency", "client-rows", "fishing", "seer"}
    assert {a for a, _ in DISTINCT} == set(registry.ATTACKS) - elsewhere
    assert [m for a, m in fitting() if a == "feature-statistics"] == ["fedcg", "nfl-cgan", "fedmd-cg"]


@pytest.mark.parametrize("kind", registry.KINDS)
def test_every_plug_in_resolves_and_is_documented(kind):
    for name in registry.KINDS[kind]:
        assert registry.resolve(kind, name).__doc__, name


@pytest.mark.parametrize("name", registry.METHODS)
def test_a_method_shares_parts_that_it_has_and_trains_only_those(name):
    method = registry.create(registry.resolve("method", name), {})
    assert set(method.shared_parts) <= set(method.parts)
    assert set(method.keeps) <= set(method.shared_parts)
    assert not set(method.serves) & set(method.parts)
    assert dataclasses.is_dataclass(method)
    private = set(method.parts) - set(method.shared_parts)
    for phases, allowed in (
        (method.client(), method.parts), (method.server(), (*method.shared_parts, *method.serves)), (method.measuring(), private),
    ):  # fmt: skip
        for phase in phases:
            for stage in phase.stages:
                assert set(stage.trains) <= set(allowed), stage.name
                assert method.uploads_counts or not any(isinstance(d, ClassByCount) for d in stage.draws.values())
    stages = [
        stage.name for phase in (*method.client(), *method.server(), *method.measuring()) for stage in phase.stages
    ]
    assert all(stage.reads == "labels" for phase in method.measuring() for stage in phase.stages)
    assert len(stages) == len(set(stages))  # losses and optimiser states are kept by their names


@pytest.mark.parametrize("name", registry.ATTACKS)
def test_an_attack_declares_what_it_needs(name):
    assert_declared(registry.resolve("attack", name))


def assert_declared(attack):
    known = {f"{k}:{p}" for k in ("gradient", "update", "upload") for p in ("extractor", "classifier", "generator")}
    known |= {
        "gradient",
        "labels",
        "classes",
        "aggregate",
        "broadcast:classifier",
        "broadcast:extractor",
        "broadcast:generator",
    }
    assert attack.needs <= known | set(Knowledge.__dataclass_fields__)
    assert knowledge.uses(attack) <= known - attack.needs
    assert attack.knowledge
    assert knowledge.WHERE_SHARED not in attack.knowledge  # knowledge.tag says so, by `uses`
    assert attack.rung in {f"L{n}" for n in range(9)}
    assert dataclasses.is_dataclass(attack)
    with pytest.raises(dataclasses.FrozenInstanceError):
        attack().anything = 1


def declared(seen, attack):
    """The artifact without the parts that an attack names neither in `needs` nor in `uses`.

    Whose gradient is named, its broadcast networks are too: there the gradient was taken. Labels are given by the cell, not by an
    attack's choice, and tables have a column for them.
    """
    named = attack.needs | knowledge.uses(attack)
    named |= CLASS_EVIDENCE if "classes" in named else set()

    def named_parts(group, parts):
        return {p: net for p, net in parts.items() if {group, f"{group}:{p}"} & named}

    gradients, updates = named_parts("gradient", seen.gradients), named_parts("update", seen.updates)
    broadcast = {p for p in seen.weights if p in {**gradients, **updates} or f"broadcast:{p}" in named}
    return dataclasses.replace(
        seen, gradients=gradients, updates=updates,
        weights={p: net for p, net in seen.weights.items() if p in broadcast},
        buffers={p: net for p, net in seen.buffers.items() if p in broadcast},
        uploads=named_parts("upload", seen.uploads), upload_buffers=named_parts("upload", seen.upload_buffers),
        label_counts=seen.label_counts if "label_counts" in named else None,
    )  # fmt: skip


def looks_at_more(name, folder, whole, given_all):
    """Whether an attack ends otherwise where it is given what it declares and nothing more; None where that is all there is.

    `given_all` is asked what it makes of the whole artifact.
    """
    attack, seen = registry.resolve("attack", name), load(folder / file_for(name))
    reduced = declared(seen, attack)
    if reduced.offers() == seen.offers():
        return None
    before = given_all()[:4]
    after = one_attack.attack_artifact(name, short(name), reduced, whole, 0, CPU, lambda *_: None)[:4]
    return not all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(before, after, strict=True))


def test_an_attack_looks_at_nothing_that_it_does_not_declare(observed, reconstructed):
    """On FedMD-CG, of whose artifact, with generators and label counts, something is held back from every attack; and on FedAvg."""
    for method, held_back in (("fedavg", 4), ("fedmd-cg", 26)):
        changed = {
            a: looks_at_more(a, *observed[method], partial(reconstructed, a, method))
            for a, m in DISTINCT
            if m == method
        }
        assert [name for name, more in changed.items() if more] == []
        assert len([name for name, more in changed.items() if more is not None]) == held_back, changed


def stated(name, seen, whole, seed=0):
    return one_attack.infer_from_artifact(name, short(name), seen, whole, seed, CPU, lambda *_: None).answers


@pytest.mark.parametrize("name", registry.INFERENCES)
def test_an_inference_looks_at_what_it_declares_and_draws_by_its_own_seed_alone(observed, inferred, name):
    """On every method whose artifacts meet its needs: the same statement of what is declared, whatever torch drew before."""
    plugin, made = registry.resolve("attack", name), 0
    for method, (folder, whole) in observed.items():
        seen = load(folder / "artifact")
        if not plugin.needs <= seen.offers() | set(knowledge.FIELDS):
            continue
        answers = inferred(name, method)
        torch.manual_seed(made)
        assert answers.shape[0] == len(seen.client.unique())
        assert torch.equal(answers, stated(name, declared(seen, plugin), whole))
        made += 1
    assert made == INFERRED[name]


@pytest.mark.parametrize("name", registry.INFERENCES)
def test_an_inference_declares_what_it_needs(name):
    assert_declared(registry.resolve("attack", name))
    assert registry.resolve("attack", name).question in QUESTIONS


# As much as rounding may change a probability that was stated of a client alone.
ROUNDING = 1e-6


@pytest.mark.parametrize("name", registry.INFERENCES)
def test_an_inference_says_whether_its_answer_on_one_client_depends_on_the_others(observed, inferred, name):
    """The first client alone, and beside another one; a record says of how many clients an answer was made."""
    plugin = registry.resolve("attack", name)
    pools, made = getattr(plugin, "pools_clients", False), 0
    assert pools == (name in ("label-distribution", "membership-inference"))
    for method in ("fedavg", "fedsplit", "fedcg"):
        folder, whole = observed[method]
        seen = load(folder / "artifact")
        if not plugin.needs <= seen.offers() | set(knowledge.FIELDS):
            continue
        first = seen.client == seen.client.min()
        assert len(seen.client.unique()) == 2
        candidates = Candidates(*(t[:1] for t in whole.candidates))
        alone = stated(name, seen.select(first.nonzero()[:, 0]), dataclasses.replace(whole, candidates=candidates))
        among = inferred(name, method)[:1]
        assert torch.allclose(alone, among, rtol=0, atol=ROUNDING) != pools, method
        said = KnowledgeUsed(**attack_cell._knowledge(name, seen, None), labels="none").model_dump()
        assert said.get("pools_clients") == (2 if pools else None)
        made += 1
    assert made == (1 if name in ("generator-labels", "loss-threshold") else 3)


def test_an_attack_that_looks_at_an_undeclared_part_is_caught(observed, monkeypatch):
    attack = registry.resolve("attack", "grey")
    original = attack.reconstruct

    def looking(self, seen, known, seed, progress):
        reconstruction = original(self, seen, known, seed, progress)
        return reconstruction._replace(images=reconstruction.images + len(seen.uploads))

    given_all = partial(attacked, "grey", *observed["fedcg"])
    assert looks_at_more("grey", *observed["fedcg"], given_all) is False
    monkeypatch.setattr(attack, "reconstruct", looking)
    assert looks_at_more("grey", *observed["fedcg"], given_all) is True


def test_every_defence_says_in_its_sentence_whether_it_guarantees_anything_and_keeps_to_it():
    private = {"dp-sgd", "dp-adam", "dp-fedavg"}
    for name in registry.DEFENSES:
        plugin = registry.resolve("defense", name)
        sentence = plugin.__doc__.partition("\n")[0]
        assert ("for a guarantee per" in sentence or "for the same guarantee per" in sentence) == (name in private), (
            name
        )
        assert ("no guarantee" in sentence) == (name not in private), name
        assert (plugin.guarantee is Defense.guarantee) == (name not in {*private, "gaussian"}), name


def test_a_record_says_what_of_the_defence_its_attack_has_no_form_for(observed):
    seen = load(observed["fedavg"][0] / "artifact")
    noised = dataclasses.replace(seen, defense={"name": "gaussian", "variance": 0.1, "where": "update"})
    written = {
        name: [
            KnowledgeUsed(**attack_cell._knowledge(name, each, None), labels="none").model_dump().get("not_modelled")
            for each in (seen, noised)
        ]
        for name in ("grey", "dlg", "staged")
    }
    # Not written where there is nothing to say, so that older records stay as they are.
    assert written == {"grey": [None, None], "dlg": [None, ["noise"]], "staged": [None, None]}


def test_the_tag_of_an_attack_says_what_it_used(observed):
    tags = {
        (name, method): attack_cell._knowledge(name, load(observed[method][0] / "artifact"), {})["tag"]
        for name in ("surrogate", "aligned-surrogate", "decoder", "collusion", "staged")
        for method in ("fedavg", "fedsplit", "fedcg")
    }
    plain = "gradient + auxiliary"
    assert {tags["aligned-surrogate", m] for m in ("fedavg", "fedsplit")} == {plain}
    assert tags["aligned-surrogate", "fedcg"] == tags["decoder", "fedcg"] == f"{plain} + generator"
    assert tags["collusion", "fedcg"] == f"{plain} + colluding client with its images + generator"
    assert {tags["surrogate", m] for m in ("fedavg", "fedsplit", "fedcg")} == {plain}
    assert {tags["staged", m] for m in ("fedavg", "fedsplit", "fedcg")} == {"gradient + natural images"}
    decoder = attack_cell._knowledge("decoder", load(observed["fedcg"][0] / "artifact"), {})
    assert decoder["uses"] == ["upload:generator"]
    assert decoder["tag_in_general"] == f"{plain} + generator where shared"


# Of what attacks private extractors, `make test` has a small form: on FedCG, FedMD-CG and FedSplit, whose artifacts hold the same.
LIKE_FEDCG = [(a, m) for a, m in DISTINCT if m in ("nfl-cgan", "fedgen") and a in (*PRIVATE, "feature-hijacking")]


@pytest.mark.parametrize(
    ("name", "method"),
    [pytest.param(*pair, marks=pytest.mark.thorough) if pair in LIKE_FEDCG else pair for pair in DISTINCT],
)
def test_a_reconstruction_has_the_shape_of_the_victims(name, method, reconstructed):
    reconstruction = reconstructed(name, method)
    assert reconstruction.images.shape == (2, 1, 1, 32, 32)
    assert reconstruction.labels.shape == (2, 1)
    assert reconstruction.loss.shape == reconstruction.restart.shape == (2,)
    assert reconstruction.trace.shape[0] == 2


# Every attack and inference where it applies. So short a shadow validation mistrusts its surrogates and returns class means;
# "through surrogates" it is told to trust them.
WATCHED = {
    "fedavg": [
        *(a for a, m in fitting() if m == "fedavg" and a != "update-matching"),
        "label-distribution",
        "loss-threshold",
        "membership-inference",
    ],
    "fedavg + gaussian": ["staged", "learned-inverse", "posterior"],
    # The others that apply: "through surrogates" here, and in WATCHED_AT_LENGTH.
    "fedcg": [
        "analytic-features",
        "initial-surrogate",
        "oracle",
        "imprint",
        "feature-statistics",
        "generator-labels",
    ],
    "domains of fedavg": ["property-inference"],
    "domains of fedcg": ["property-inference"],
    "fedcg through surrogates": [
        "surrogate",
        "aligned-surrogate",
        "joint",
        "initial-surrogate",
        "decoder",
        "collusion",
        "feature-hijacking",
    ],
    "fedsplit": ["calibrated", "chained"],
    "fedcg in round 0": ["initial-surrogate", "collusion"],  # through the victims' own extractor
    "batches of fedavg": ["fishing", "seer"],
    "batches of fedcg": ["surrogate", "decoder", "oracle"],  # all: WATCHED_AT_LENGTH
    "batches of fedsplit + gaussian": ["oracle"],
    "fedsplit + gaussian": ["oracle-decoder"],
    "fedavg + sums": ["staged", "model-inconsistency", "client-rows"],
    "fedper": ["dlg", "extractor-matching"],
    "whole updates of fedavg": ["dataset-mean", "update-matching"],
    "whole updates of fedsplit": ["joint"],
    "secure-gan": ["generated-images"],
}

# In a small form each of these is watched above, in another set-up.
WATCHED_AT_LENGTH = {
    "fedcg": (*PRIVATE, "feature-hijacking", "membership-inference"),
    "batches of fedcg": (*PRIVATE, "imprint"),
    "fedsplit from a surrogate": ("calibrated",),
}


# Settings with which an attack does all that it does by default, or aligns otherwise than its relatives, which are watched too.
WATCHED_SETTINGS = {
    "posterior": {"prior": "denoiser", "samples": 1, "further_steps": 2},
    "calibrated": {"prior": "denoiser", "start": "initial"},
    "chained": {"prior": "denoiser"},
    "joint": {"uploads": "kept"},
    "loss-threshold": {"networks": "sent"},
    "aligned-surrogate": {"alignment": "sliced"},
}
# The same in one set-up alone: other choices of what an attack reads or starts from.
WATCHED_SETTINGS_IN = {
    "fedcg": {"membership-inference": {"networks": "sent"}},
    "fedsplit from a surrogate": {"calibrated": {"start": "surrogate"}},
    "whole updates of fedsplit": {"joint": {"uploads": "whole"}},
}


def watched(names, setup):
    """The cells of some attacks on one of the set-ups of `WATCHED`."""
    method = re.sub(
        "^domains of |^whole updates of |^batches of | \\+ gaussian$| \\+ sums$| through surrogates$| from a surrogate$"
        "| in round 0$",
        "",
        setup,
    )
    defense = "gaussian:0.001" if "gaussian" in setup else "secure-aggregation" if "sums" in setup else "none"
    observed = {"observe": "update", "local_steps": 2} if "updates" in setup else {}
    observed |= {"batch_size": 2} if "batches" in setup else {}
    dataset, domains = ("digits4", ("plain", "inverted")) if "domains" in setup else ("digits", None)
    train = presets.train_spec(
        "smoke", dataset, method, defense=defense, domains=domains, clients=2, changes={"rounds": 1}
    )
    settings = WATCHED_SETTINGS | WATCHED_SETTINGS_IN.get(setup, {})
    brief = {name: short(name) | settings.get(name, {}) for name in names}
    return [
        presets.cell_spec(
            "smoke",
            train,
            name,
            victims=2,
            round_="0" if "round 0" in setup else "last",
            attack_settings=brief[name],
            **observed,
        )
        for name in names
    ]


def trust_surrogates(patch):
    """The attackers of private extractors invert their first recipe at tau 0.1, and keep half of the decoder's answer."""

    def chosen(self, *_):
        every = (*self.recipes, self.challenger) if self.challenger else self.recipes
        return Choice(min(recipe.name for recipe in every), 0.1)

    patch.setattr(SurrogateAttack, "choice", chosen)
    patch.setattr(decoder_share, "validated", lambda *_: decoder_share.Share(0.5, math.inf))


def reconstructions(cells, root):
    """What lies on disk of each cell once it is run: the tensors by name, and its record."""
    assert cell_jobs.run_cells(cells, root, None, "cpu", lambda *_: None, lambda *_: None) == []
    store = Store(root)
    return [
        (
            files.load_tensors(store.result(cell, cell.seeds[0]), "reconstruction")[0],
            schema.read(store.record(cell)),
        )
        for cell in cells
    ]


def with_another_truth(root, other):
    """A copy of a folder of results in which nothing is attacked yet, and every truth is noise and wrong labels."""
    shutil.copytree(root, other, ignore=shutil.ignore_patterns("cells", "cache"))
    paths = list((other / "artifacts").glob(f"*/{artifact_files.TRUTH}"))
    for path in paths:
        seen = path.with_name(artifact_files.OBSERVATION)
        truth = artifact_files.load_truth(path, seen)
        artifact_files.save_truth(
            truth._replace(images=torch.rand_like(truth.images), labels=9 - truth.labels), path, seen
        )
    return len(paths)


def let_clients_hold_something_else(patch):
    """What an inference is scored by is something else: other labels, another order of domains, the other candidates."""
    held = inference_cell.Held

    def other(fed, asked):
        domains = [client.domain for client in fed.clients]
        clients = tuple(
            client._replace(
                domain=domain, train=client.train._replace(labels=(client.train.labels + 1 + k) % len(fed.classes))
            )
            for k, (client, domain) in enumerate(zip(fed.clients, [*domains[1:], domains[0]], strict=True))
        )
        return held(fed._replace(clients=clients), None if asked is None else asked._replace(members=~asked.members))

    patch.setattr(inference_cell, "Held", other)


def test_every_attack_and_inference_is_watched():
    watched_names = {name for names in WATCHED.values() for name in names}
    assert watched_names == {*registry.ATTACKS, *registry.INFERENCES}
    every = [*WATCHED.items(), *WATCHED_AT_LENGTH.items()]
    chosen = {(setup, name) for setup, of_setup in WATCHED_SETTINGS_IN.items() for name in of_setup}
    assert chosen <= {(setup, name) for setup, names in every for name in names}


@pytest.mark.parametrize(
    ("setup", "names"),
    [*WATCHED.items(), *(pytest.param(*each, marks=pytest.mark.thorough) for each in WATCHED_AT_LENGTH.items())],
    ids=[*WATCHED, *(f"{setup}, all" for setup in WATCHED_AT_LENGTH)],
)
def test_truth_swapped_for_noise_on_disk_gives_bit_identical_reconstructions(setup, names, tmp_path, monkeypatch):
    """And statements, while what clients hold is another thing when these are scored."""
    monkeypatch.setattr("attacks.features.disaggregation.RESTARTS", 4)
    if "through surrogates" in setup:
        trust_surrogates(monkeypatch)
    cells = watched(names, setup)
    before = reconstructions(cells, tmp_path / "before")
    assert with_another_truth(tmp_path / "before", tmp_path / "after") > 0
    let_clients_hold_something_else(monkeypatch)
    after = reconstructions(cells, tmp_path / "after")
    for cell, (one, record), (other, other_record) in zip(cells, before, after, strict=True):
        inferred = cell.attack in registry.INFERENCES
        assert one.keys() == other.keys() == ({"answers"} if inferred else {"images", "labels", "loss", "trace"})
        assert all(torch.equal(one[name], other[name]) for name in one), cell.attack
        if inferred:
            assert [s.stated for s in record.statements] == [s.stated for s in other_record.statements]
            assert [s.true for s in record.statements] != [s.true for s in other_record.statements]
            continue
        assert record.scores.psnr_db != other_record.scores.psnr_db  # the truth did change
        if "through surrogates" in setup or "round 0" in setup:
            assert record.scores.psnr_db != record.floors["class-mean"]
            assert cell.attack == "decoder" or all(v.loss_fell is not None for v in record.victims), cell.attack


def test_what_an_attack_notes_stands_in_its_record(tmp_path):
    (cell,) = watched(["oracle"], "batches of fedsplit + gaussian")
    reconstructions([cell], tmp_path)
    (note,) = schema.read(Store(tmp_path).record(cell)).notes
    expected = "digits, fedsplit, round 1, seed 100: 2 of 2 batches of 2 images are of defended gradients and so were not separated"
    assert note.startswith(expected)


def test_an_attack_that_reads_the_truth_off_the_disk_is_caught(tmp_path, monkeypatch):
    def cheating(self, seen, known, seed, progress):
        (path,) = known.cache.parent.glob(f"artifacts/*/{artifact_files.TRUTH}")
        truth = artifact_files.load_truth(path, path.with_name(artifact_files.OBSERVATION))
        return Grey().reconstruct(seen, known, seed, progress)._replace(images=truth.images)

    monkeypatch.setattr(registry.resolve("attack", "learned-inverse"), "reconstruct", cheating)
    cells = watched(["learned-inverse"], "fedavg")
    ((before, _),) = reconstructions(cells, tmp_path / "before")
    with_another_truth(tmp_path / "before", tmp_path / "after")
    ((after, _),) = reconstructions(cells, tmp_path / "after")
    assert not torch.equal(before["images"], after["images"])


def test_an_inference_that_reads_the_truth_off_the_disk_is_caught(tmp_path, monkeypatch):
    plugin = registry.resolve("attack", "membership-inference")
    original = plugin.infer

    def cheating(self, seen, known, *rest):
        (path,) = known.cache.parent.glob(f"artifacts/*/{artifact_files.TRUTH}")
        truth = artifact_files.load_truth(path, path.with_name(artifact_files.OBSERVATION))
        answers = original(self, seen, known, *rest).answers
        return Statements((answers + float(truth.images.mean())) / 2)

    monkeypatch.setattr(plugin, "infer", cheating)
    cells = watched(["membership-inference"], "fedavg")
    ((before, _),) = reconstructions(cells, tmp_path / "before")
    with_another_truth(tmp_path / "before", tmp_path / "after")
    ((after, _),) = reconstructions(cells, tmp_path / "after")
    assert not torch.equal(before["answers"], after["answers"])


def test_an_inference_that_reads_the_order_of_its_images_learns_no_client_from_it(tmp_path, monkeypatch):
    """The k-th domain in their order was client k's."""

    def reading_the_order(self, seen, known, *rest):
        return Statements(torch.eye(4).double()[known.domains.unique_consecutive()])

    plugin, seeds = registry.resolve("attack", "property-inference"), 3
    monkeypatch.setattr(plugin, "infer", reading_the_order)
    train = presets.train_spec("smoke", "digits4", "fedavg", changes={"rounds": 0})
    cell = presets.cell_spec("smoke", train, "property-inference", seeds=seeds, victims=4, round_="0")
    ((_, record),) = reconstructions([cell], tmp_path)
    right = [s.stated.index(1.0) == s.true.index(1.0) for s in record.statements]
    assert len(right) == 4 * seeds
    # By chance a quarter; four standard deviations of it.
    assert sum(right) / len(right) < 0.25 + 4 * (0.25 * 0.75 / len(right)) ** 0.5


def test_an_attack_is_handed_only_what_it_asks_for(observed, monkeypatch):
    folder, whole = observed["fedavg"]
    handed = []
    attack = registry.resolve("attack", "grey")
    original = attack.reconstruct

    def spy(self, seen, knowledge, seed, progress):
        handed.append(knowledge)
        return original(self, seen, knowledge, seed, progress)

    monkeypatch.setattr(attack, "reconstruct", spy)
    attacked("grey", folder, whole)
    assert handed == [Knowledge(auxiliary=None)]


@pytest.mark.parametrize("name", registry.DATASETS)
def test_every_data_set_has_a_default_layout(name):
    how, clients, per_client = partition.defaults(name)
    assert how in ("iid", "domain", "dirichlet", "classes")
    assert name in partition.DEFAULTS
    assert clients >= 4
    assert per_client >= 300
