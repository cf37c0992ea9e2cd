"""A learned inverse: a network that has seen the noised gradients of other images says what the victim's image is.

The attacker takes gradients of auxiliary images at the broadcast networks, adds the defence's noise afresh in every epoch,
and trains
    min over f of  mean || f(s(g + n), y) - x ||^2
Its output is the expected image given what the noise leaves, where a descent on one noisy gradient fits the noise. s(g) holds the
closed-form features h (attacks/common/closed_form.py), the first linear layer's dL/db, and the extractor's gradient
(attacks/features/gradient_signals.py); f sees its first principal components and answers in principal components of the auxiliary
images (attacks/features/signal_decoder.py). y is the label as the server has it:
known, or, in training as in the attack, as probable as the noised gradient makes each class (attacks/common/labels.py).

Wu et al.: Learning to Invert: Simple Adaptive Attacks for Gradient Inversion in Federated Learning, UAI 2023, arXiv
2210.10880 (there the gradient is hashed into bins; here closed forms and principal components make it small). One image per
gradient. Epochs end where a tenth of the auxiliary images, held out, is met best. Nothing here uses the victims before
the network is trained.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from attacks.common import labels, problem, training_cache
from attacks.common.data_fit import NOISE
from attacks.features import gradient_signals, signal_decoder
from privbench.errors import UserError
from privbench.execution.applicability import Limits
from privbench.hyperparameters import Count, Positive
from privbench.networks.base import LinearClassifier
from privbench.types import Artifact, Knowledge, Presets, Progress, Reconstruction, no_progress


@dataclass(frozen=True)
class LearnedInverse:
    """A perceptron from noised gradient to image, trained on auxiliary images (Wu et al., UAI 2023)."""

    epochs: Count = 30
    lr: Positive = 1e-3

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "gradient:extractor", "auxiliary"})
    limits: ClassVar[Limits] = Limits(linear_classifier=True, most_images=1, most_parameters=1_000_000)
    knowledge: ClassVar[str] = "gradient + auxiliary"
    rung: ClassVar[str] = "L4"
    knows: ClassVar[frozenset[str]] = NOISE
    presets: ClassVar[Presets] = {"smoke": {"epochs": 2}}
    revision: ClassVar[int] = 1  # 1: the label is an input
    dropout_revision: ClassVar[int] = 2  # 2: what it trains on loses features as well

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """Trains once, then reads off all victims; UserError for batches and for classifiers that begin with convolutions."""
        if artifact.batch_size != 1 or not isinstance(artifact.model.classifier, LinearClassifier):
            raise UserError(
                "learned-inverse reads one image per gradient off a classifier that begins with a linear layer; "
                "try --attack staged"
            )
        assert knowledge.auxiliary is not None, "the needs name auxiliary images"
        posed, auxiliary = problem.make(artifact, seed, torch.float32), knowledge.auxiliary
        labels_known = artifact.labels is not None
        net = training_cache.cached(
            knowledge.cache,
            "learned-inverse",
            {
                "epochs": self.epochs, "lr": self.lr, "variance": posed.variance, "seed": seed, "told": labels_known,
                "revision": self.revision,
            } | ({"dropout": artifact.model.dropout} if artifact.model.dropout else {}),
            [*posed.weights["extractor"].values(), *posed.weights["classifier"].values(), *auxiliary],
            lambda: signal_decoder.train(posed, auxiliary, labels_known, self.epochs, self.lr, seed, progress),
            auxiliary.images.device,
        )  # fmt: skip
        trace = net.pop("trace")
        with torch.no_grad():
            signals = gradient_signals.observed(posed, labels.probabilities(artifact)[:, 0])
            x = signal_decoder.invert(net, signals).unflatten(1, (1, *artifact.image_shape))
        loss, first = trace[-1].expand(artifact.victims), torch.zeros_like(posed.labels[:, 0])
        return Reconstruction(x, posed.labels, loss, trace.expand(artifact.victims, -1), first, len(auxiliary.labels))
