"""What a record holds of each client, seed and victim, as it was measured. Means over them: privbench/records/means.py."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from privbench.training.history import Round, StrictModel

Outcome = Literal["reconstructed", "gave up", "not applicable", "diverged"]
FAILURES = ("gave up", "diverged")
# Probability of a false alarm of an audit's single releases.
FALSE_ALARM_RATE = 0.001
# Of a victim: seed, client, digests of its originals.
Name = tuple[int, int, tuple[str, ...]]


class Curve(StrictModel):
    """The ROC curve of one class against the rest, from (0, 0) to (1, 1), its collinear points left out.

    Rates in [0, 1], rounded to five decimals.
    """

    false_positive_rate: list[float]
    true_positive_rate: list[float]


class ClientMetrics(StrictModel):
    """One client's measured model on its own test images, at its best validation round, the first of equals.

    Macro averages are over the classes that are among the test images.
    """

    round: int  # that round; 0 when nothing was trained
    samples: int  # test images
    accuracy: float  # percent, as the next four
    precision: float
    recall: float
    f1: float
    false_positive_rate: float | None  # None when all test images are of one class
    auc: float | None  # one-vs-rest, macro; None when it is so of every class
    # None where a class or its rest is not among the test images, or a score is not finite.
    auc_by_class: list[float | None]
    roc: list[Curve | None]  # one per class
    confusion: list[list[int]]  # true class, predicted class
    consistency: float | None  # cross-entropy of C_i on G_i(z, y), nats; None without a generator


class SeedTraining(StrictModel):
    """What one seed's training gave."""

    seed: int
    best_round: int  # with the best validation accuracy, mean over clients; 0 when nothing was trained
    global_accuracy: float | None  # percent, at that round; None when nothing was trained
    clients: list[ClientMetrics]
    rounds: list[Round]


class Victim(StrictModel):
    """One attacked upload."""

    seed: int
    client: int
    # Digests of its originals: equal pictures have equal ones (privbench.scoring.image_scores.digests).
    images: list[str]
    in_auxiliary: bool  # whether an original is among the attacker's, or the floors', auxiliary images
    psnr_db: float
    psnr_raw_db: float | None
    ssim: float
    lpips: float | None  # None where its weights are not installed
    feature_error: float | None  # ||E(x~) - E(x)|| / ||E(x)|| through its own true extractor; None when not finite
    identification: float  # share of its reconstructions nearest to an original of its own
    label_accuracy: float
    gradient_norm: float | None  # of everything observed of it; None when not finite
    loss: float | None  # the attacker's own final objective; None when it was not finite
    loss_fell: bool | None  # whether that objective ended lower than it began; None for attacks that do not descend
    outcome: Outcome  # how the attack ended (privbench/records/victims.py)
    floors: dict[str, float]

    @property
    def name(self) -> Name:
        """What distinguishes the victims of a setting: seed, client and originals."""
        return (self.seed, self.client, tuple(self.images))

    @property
    def failed(self) -> bool:
        """Whether nothing was reconstructed, though the attack applied."""
        return self.outcome in FAILURES


class AuxiliaryUsed(StrictModel):
    """The images that an attacker had beyond what was observed."""

    dataset: str
    share: float
    images: int
    labels: str  # how its classes were matched to the victims'
    left_out_as_training_images: int


class KnownUsed(StrictModel):
    """The images of attacked clients that an attacker knew, none of them a victim."""

    images: int  # of each client
    quality_db: float | None  # PSNR at which they were known; None: exactly


class RoundsUsed(StrictModel):
    """What the server had kept of the rounds that it observed."""

    observed: list[int]  # the attacked round last
    uploads: int  # of each attacked client in each round, none of them a victim's


class KnowledgeUsed(StrictModel):
    """What the attacker knew."""

    tag: str  # in words, on what this method sends
    tag_in_general: str  # the same whatever a method sends
    rung: str | None  # of the ladder; None for a user's own attack that names none
    needs: list[str]
    uses: list[str]  # what it read beside its needs
    # How many uploads of a client each image was reconstructed from; None where it was one alone.
    pools: int | None = None
    # From how many clients' uploads or candidates each client's answer was stated (privbench.observation.knowledge.pooled_clients);
    # not written elsewhere, nor in records from before 25 November 2026.
    pools_clients: int | None = Field(None, exclude_if=lambda value: value is None)
    active_rounds: int | None = None  # for how many rounds before the attacked one the server sent crafted networks
    auxiliary: AuxiliaryUsed | None
    # Not written where there is nothing to say, so that older records stay as they are.
    known: KnownUsed | None = Field(None, exclude_if=lambda value: value is None)
    rounds: RoundsUsed | None = Field(None, exclude_if=lambda value: value is None)
    # "none" where the attack gave none; until 23 November 2026 such records said "recovered".
    labels: Literal["known", "recovered", "none"]
    restart_chosen_by: str
    # What the defence does that the attack has no form for (privbench.observation.knowledge.not_modelled); not written elsewhere.
    not_modelled: list[str] = Field(default_factory=list, exclude_if=lambda value: not value)


class Privacy(StrictModel):
    """The (epsilon, delta)-differential privacy of what one client sent in all rounds."""

    epsilon: float | None  # None: not finite
    delta: float
    unit: Literal["example", "client"]  # what is added or removed between neighbouring data sets
    noise: float | None  # standard deviation of the noise in units of the clip
    covers: list[str]  # the networks whose training is clipped and noised
    leaves_out: list[str]  # what leaves the client besides
    accountant: str


class Audit(StrictModel):
    """What canaries prove of a claimed epsilon (privbench/scoring/epsilon_bounds.py); `lower_bound` with 95% confidence."""

    unit: Literal["example", "client"]  # what a canary is: an image of one client, or a whole client
    claimed: float  # epsilon of the audited client, the one with the fewest images
    delta: float
    canaries: int
    guesses: int
    right: int
    lower_bound: float  # epsilon is at least that
    provable: float  # what as many guesses would prove, were they all right
    single_releases: int  # each with one canary
    single_right: int
    single_allowed: float  # share of right guesses that the claim allows for a single release
    single_p_value: (
        float  # probability under the claim of so many right ones, or of a release that goes so far, or more
    )

    @property
    def contradicted(self) -> bool:
        """Whether the claim cannot be true: refuted in one run, or in single releases at FALSE_ALARM_RATE."""
        return self.lower_bound > self.claimed or self.single_p_value < FALSE_ALARM_RATE


class Manifolds(StrictModel):
    """Improved precision and recall of some images against real ones (privbench/scoring/manifolds.py), as counts."""

    images: int  # as many real ones
    precise: int  # of them in the manifold of the real ones
    recalled: int  # real ones in theirs

    @property
    def precision(self) -> float:
        """In [0, 1]."""
        return self.precise / self.images

    @property
    def recall(self) -> float:
        """In [0, 1]."""
        return self.recalled / self.images


class Membership(StrictModel):
    """How an attack on a generator recognises a client's training images (privbench/scoring/generator_attacks.py)."""

    attack: Literal["black-box", "white-box"]
    calibrated: bool  # by generators of other clients
    members: int  # training images of the client, of each class as many as
    non_members: int  # test images, which nobody trained on
    roc: Curve


class GeneratorScores(StrictModel):
    """One generator of images, scored against one client's images."""

    holder: Literal["client", "server"]
    client: int  # whose images; the holder, where that is a client
    manifolds: Manifolds
    membership: list[Membership]


class RealImages(StrictModel):
    """What real images of a client give in place of generated ones."""

    accuracy: (
        float | None
    )  # percent, of the same classifier trained on its training images; None where nothing was trained
    manifolds: Manifolds  # of its training images


class Generators(StrictModel):
    """The generators of images of one seed, after its best round."""

    round: int
    samples: int  # generated images that the black-box attack searches
    real: list[RealImages]  # of each client
    each: list[GeneratorScores]


class SeedResult(StrictModel):
    """What one seed gave."""

    seed: int
    accuracy: list[float]  # percent, per client, each measured model at its best validation round
    label_counts: list[list[int]]  # training images: client, class
    training: SeedTraining
    # Of each client, where the defence guarantees something; not written elsewhere.
    privacy: list[Privacy] | None = Field(None, exclude_if=lambda value: value is None)
    # Where the cell asks for one and something is guaranteed.
    audit: Audit | None = Field(None, exclude_if=lambda value: value is None)
    # Where the cell asks for them.
    generators: Generators | None = Field(None, exclude_if=lambda value: value is None)


class BroadcastCheck(StrictModel):
    """What one client's own checks say of networks that an active server sent (privbench/scoring/broadcast_checks.py)."""

    client: int
    # Of each of broadcast_checks.CHECKS that there is; None where it is not finite.
    sent: dict[str, float | None]
    honest: dict[str, float | None]  # of what an honest server would have sent in the same round

    def ratio(self, check: str) -> float | None:
        """How many times the honest number the sent one is; None where that is no number."""
        sent, honest = self.sent.get(check), self.honest.get(check)
        return None if sent is None or not honest else sent / honest


class AttackedSeed(SeedResult):
    """What one seed of an attacked cell gave."""

    round: int  # that was attacked
    accuracy_at_round: list[float]  # percent, per client, of the very networks attacked; schema 2 kept one mean of all
    victims: list[Victim]
    # Of each client, where the server was active; not written elsewhere.
    broadcast: list[BroadcastCheck] | None = Field(None, exclude_if=lambda value: value is None)


class Statement(StrictModel):
    """What an inference states of one client (privbench/scoring/statement_scores.py)."""

    seed: int
    client: int
    uploads: int  # of the client that were observed
    stated: list[float]  # of each answer, in [0, 1] with sum 1; of a question on candidates the probability of each
    true: list[float]  # the same; of a candidate 1 if it is a member, else 0
    score: float
    floors: dict[str, float]  # scores of what anybody could state


class InferredSeed(SeedResult):
    """What one seed of a cell gave whose attack is an inference."""

    round: int  # that was attacked
    accuracy_at_round: list[float]  # percent, per client, of the very networks attacked
    statements: list[Statement]


class Cost(StrictModel):
    """Summed over seeds; memory is the largest of any process."""

    train_seconds: float
    peak_memory_mib: float


class AttackCost(Cost):
    """The same with the attack's part."""

    attack_seconds: float
    gradient_evaluations: int
