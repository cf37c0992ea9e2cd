"""What a record holds of each client, seed and victim, as it was measured. Means over them: privbench/records/means.py."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from privbench.scoring import epsilon_bounds
from privbench.scoring.statistics import CAP_DB
from privbench.training.history import MOST, ROUNDING, Amount, Count, Number, Percent, Rate, Round, StrictModel

Outcome = Literal["reconstructed", "gave up", "not applicable", "diverged"]
FAILURES = ("gave up", "diverged")
# Probability of a false alarm of the single releases of all audits of a claim.
FALSE_ALARM_RATE = 0.001
# A mean over images; clipped to [0, 1], no error is larger than 1.
Psnr = Annotated[float, Field(ge=-ROUNDING, le=CAP_DB + ROUNDING)]
# Of a victim: seed, client, digests of its originals.
Name = tuple[int, int, tuple[str, ...]]


class Curve(StrictModel):
    """The ROC curve of one class against the rest, from (0, 0) to (1, 1), its collinear points left out.

    Rates in [0, 1], rounded to five decimals.
    """

    false_positive_rate: list[Rate]
    true_positive_rate: list[Rate]


class ClientMetrics(StrictModel):
    """One client's measured model on its own test images, at its best validation round, the first of equals.

    Macro averages are over the classes that are among the test images.
    """

    round: Count  # that round; 0 when nothing was trained
    samples: Count  # test images
    accuracy: Percent  # percent, as the next four
    precision: Percent
    recall: Percent
    f1: Percent
    false_positive_rate: Percent | None  # None when all test images are of one class
    auc: Rate | None  # one-vs-rest, macro; None when it is so of every class
    # None where a class or its rest is not among the test images, or a score is not finite.
    auc_by_class: list[Rate | None]
    roc: list[Curve | None]  # one per class
    confusion: list[list[Count]]  # true class, predicted class
    consistency: Amount | None  # cross-entropy of C_i on G_i(z, y), nats; None without a generator


class SeedTraining(StrictModel):
    """What one seed's training gave."""

    seed: int
    best_round: Count  # with the best validation accuracy, mean over clients; 0 when nothing was trained
    global_accuracy: Percent | None  # percent, at that round; None when nothing was trained
    clients: list[ClientMetrics]
    rounds: list[Round]


class Victim(StrictModel):
    """One attacked upload."""

    seed: int
    client: Count
    # Digests of its originals: equal pictures have equal ones (privbench.scoring.image_scores.digests).
    images: Annotated[list[str], Field(min_length=1)]
    in_auxiliary: bool  # whether an original is among the attacker's, or the floors', auxiliary images
    psnr_db: Psnr
    psnr_raw_db: Annotated[float, Field(ge=-MOST, le=CAP_DB + ROUNDING)] | None
    ssim: Annotated[float, Field(ge=-1 - ROUNDING, le=1 + ROUNDING)]
    lpips: Amount | None  # None where its weights are not installed
    feature_error: Amount | None  # ||E(x~) - E(x)|| / ||E(x)|| through its own true extractor; None when not finite
    identification: Rate  # share of its reconstructions nearest to an original of its own
    label_accuracy: Rate
    gradient_norm: Amount | None  # of everything observed of it; None when not finite
    loss: float | None  # the attacker's own final objective; None when it was not finite
    loss_fell: bool | None  # whether that objective ended lower than it began; None for attacks that do not descend
    outcome: Outcome  # how the attack ended (privbench/records/victims.py)
    floors: dict[str, Psnr]
    # Of each floor, as `identification`; None in records from before 29 November 2026.
    floors_identified: dict[str, Rate] | None = Field(None, exclude_if=lambda value: value is None)

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
    share: Rate
    images: Count
    labels: str  # how its classes were matched to the victims'
    left_out_as_training_images: Count


class KnownUsed(StrictModel):
    """The images of attacked clients that an attacker knew, none of them a victim."""

    images: Count  # of each client
    quality_db: Number | None  # PSNR at which they were known; None: exactly


class RoundsUsed(StrictModel):
    """What the server had kept of the rounds that it observed."""

    observed: list[Count]  # the attacked round last
    uploads: Count  # of each attacked client in each round, none of them a victim's


class KnowledgeUsed(StrictModel):
    """What the attacker knew."""

    tag: str  # in words, on what this method sends
    tag_in_general: str  # the same whatever a method sends
    rung: str | None  # of the ladder; None for a user's own attack that names none
    needs: list[str]
    uses: list[str]  # what it read beside its needs
    # How many uploads of a client each image was reconstructed from; None where it was one alone.
    pools: Count | None = None
    # From how many clients' uploads or candidates each client's answer was stated (privbench.observation.knowledge.pooled_clients);
    # not written elsewhere, nor in records from before 25 November 2026.
    pools_clients: Count | None = Field(None, exclude_if=lambda value: value is None)
    active_rounds: Count | None = None  # for how many rounds before the attacked one the server sent crafted networks
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

    epsilon: Amount | None  # None: not finite
    delta: Rate
    unit: Literal["example", "client"]  # what is added or removed between neighbouring data sets
    noise: Amount | None  # standard deviation of the noise in units of the clip
    covers: list[str]  # the networks whose training is clipped and noised
    leaves_out: list[str]  # what leaves the client besides
    accountant: str


class Audit(StrictModel):
    """What canaries prove of a claimed epsilon (privbench/scoring/epsilon_bounds.py); `lower_bound` with 95% confidence."""

    unit: Literal["example", "client"]  # what a canary is: an image of one client, or a whole client
    claimed: Amount  # epsilon of the audited client, the one with the fewest images
    delta: Annotated[float, Field(ge=0, le=1)]
    canaries: Annotated[int, Field(ge=0, le=100_000)]  # as many as a cell may ask for (privbench.spec.CellSpec.audit)
    guesses: Count
    right: Count
    lower_bound: Number  # epsilon is at least that
    provable: Number  # what as many guesses would prove, were they all right
    single_releases: Count  # each with one canary
    single_right: Count
    single_allowed: Rate  # share of right guesses that the claim allows for a single release
    single_p_value: Rate  # probability under the claim of so many right ones, or of a release that goes so far, or more

    @model_validator(mode="after")
    def _counts(self) -> Self:
        if not self.right <= self.guesses <= self.canaries:
            raise ValueError(
                "an audit has as many canaries as guesses or more, and as many of these as right ones or more"
            )
        return self

    def contradicted(self, audits: int = 1) -> bool:
        """Whether the claim cannot be true: refuted in one run, or in single releases at FALSE_ALARM_RATE.

        `audits`: how many there are of the claim; the rates of false alarms are those of all of them together (Bonferroni).
        """
        of_run = epsilon_bounds.p_value(self.canaries, self.guesses, self.right, self.claimed, self.delta)
        return audits * of_run < 1 - epsilon_bounds.CONFIDENCE or audits * self.single_p_value < FALSE_ALARM_RATE


class Manifolds(StrictModel):
    """Improved precision and recall of some images against real ones (privbench/scoring/manifolds.py), as counts."""

    images: Annotated[int, Field(ge=1)]  # as many real ones
    precise: Count  # of them in the manifold of the real ones
    recalled: Count  # real ones in theirs

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
    members: Count  # training images of the client, of each class as many as
    non_members: Count  # test images, which nobody trained on
    roc: Curve


class GeneratorScores(StrictModel):
    """One generator of images, scored against one client's images."""

    holder: Literal["client", "server"]
    client: Count  # whose images; the holder, where that is a client
    manifolds: Manifolds
    membership: list[Membership]


class RealImages(StrictModel):
    """What real images of a client give in place of generated ones."""

    # Percent, of the same classifier trained on its training images; None where nothing was trained.
    accuracy: Percent | None
    manifolds: Manifolds  # of its training images


class Generators(StrictModel):
    """The generators of images of one seed, after its best round."""

    round: Count
    samples: Count  # generated images that the black-box attack searches
    real: list[RealImages]  # of each client
    each: list[GeneratorScores]


class SeedResult(StrictModel):
    """What one seed gave."""

    seed: int
    accuracy: list[Percent]  # percent, per client, each measured model at its best validation round
    label_counts: list[list[Count]]  # training images: client, class
    training: SeedTraining
    # Of each client, where the defence guarantees something; not written elsewhere.
    privacy: list[Privacy] | None = Field(None, exclude_if=lambda value: value is None)
    # Where the cell asks for one and something is guaranteed.
    audit: Audit | None = Field(None, exclude_if=lambda value: value is None)
    # Where the cell asks for them.
    generators: Generators | None = Field(None, exclude_if=lambda value: value is None)


class BroadcastCheck(StrictModel):
    """What one client's own checks say of networks that an active server sent (privbench/scoring/broadcast_checks.py)."""

    client: Count
    # Of each of broadcast_checks.CHECKS that there is; None where it is not finite.
    sent: dict[str, Number | None]
    honest: dict[str, Number | None]  # of what an honest server would have sent in the same round

    def ratio(self, check: str) -> float | None:
        """How many times the honest number the sent one is; None where that is no number."""
        sent, honest = self.sent.get(check), self.honest.get(check)
        return None if sent is None or not honest else sent / honest


class AttackedSeed(SeedResult):
    """What one seed of an attacked cell gave."""

    round: Count  # that was attacked
    # Percent, per client, of the very networks attacked; schema 2 kept one mean of all.
    accuracy_at_round: list[Percent]
    victims: list[Victim]
    # Of each client, where the server was active; not written elsewhere.
    broadcast: list[BroadcastCheck] | None = Field(None, exclude_if=lambda value: value is None)


class Statement(StrictModel):
    """What an inference states of one client (privbench/scoring/statement_scores.py)."""

    seed: int
    client: Count
    uploads: Count  # of the client that were observed
    stated: list[Rate]  # of each answer, in [0, 1] with sum 1; of a question on candidates the probability of each
    true: list[Rate]  # the same; of a candidate 1 if it is a member, else 0
    score: Rate
    floors: dict[str, Rate]  # scores of what anybody could state
    # Of membership: digests of the candidates that are no members, by which tables know how many other seeds ask about, too.
    # None in older records and of other questions.
    others: list[Annotated[str, Field(max_length=16)]] | None = Field(None, exclude_if=lambda value: value is None)


class InferredSeed(SeedResult):
    """What one seed of a cell gave whose attack is an inference."""

    round: Count  # that was attacked
    accuracy_at_round: list[Percent]  # percent, per client, of the very networks attacked
    statements: list[Statement]


class Cost(StrictModel):
    """Summed over seeds; memory is the largest of any process."""

    train_seconds: Amount
    peak_memory_mib: Amount


class AttackCost(Cost):
    """The same with the attack's part."""

    attack_seconds: Amount
    gradient_evaluations: Count
