"""Client rows: an active server under secure aggregation reads images of all clients from one sum, each in rows of its own.

What each client is sent, and how a sum is read, stands in attacks/crafted/client_rows.py. The features of images that a row holds
alone are inverted through the broadcast extractor; all others end at the class means of what is left of the sum's labels, as the
floor `class-mean` does.

Before anything is sent a dry run on the server's own images decides: all clients get the honest networks where their images come
back no better than class means. It is of single gradients over E and C without noise. `model-inconsistency` reads one client, with
all rows and E's gradient besides; `imprint` sends all clients the same rows.

Zhao et al.: LOKI: Large-scale Data Reconstruction Attack against Federated Learning through Model Manipulation, S&P 2024, arXiv
2303.12233.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from attacks.common import failed_uploads
from attacks.common.no_information import not_applicable
from attacks.crafted import classifiers, client_rows, dry_run, magnified
from attacks.crafted.dry_run import Sent
from attacks.floors import ClassMean
from attacks.staged import Staged
from privbench.errors import UserError
from privbench.execution.applicability import Limits
from privbench.hyperparameters import Count, CountOrZero
from privbench.networks.model import Model
from privbench.types import Artifact, Batch, Knowledge, Networks, Presets, Progress, Reconstruction, no_progress

SENT_HONESTLY = (
    "client-rows sent all clients the honest classifier, as crafted ones would bring back no more, so that it does not apply here; "
    "a passive attack says what an honest server reads"
)


@dataclass(frozen=True)
class ClientRows:
    """Rows of the first layer for each client of a secure sum, so that images of all come back (after LOKI, S&P 2024)."""

    feature_steps: Count = 300  # of the inversion of features
    rehearsal_images: CountOrZero = 24  # of the dry run; 0: what is crafted is sent without one

    needs: ClassVar[frozenset[str]] = frozenset({"aggregate", "gradient:classifier", "gradient:extractor", "auxiliary"})
    limits: ClassVar[Limits] = Limits(linear_classifier=True, sigmoid_classifier=True, plain_classifier=True)
    knowledge: ClassVar[str] = "active server + auxiliary"
    rung: ClassVar[str] = "L7"
    presets: ClassVar[Presets] = {"smoke": {"feature_steps": 5, "rehearsal_images": 0}}
    active: ClassVar[bool] = True
    revision: ClassVar[int] = 4  # 1: rows of clipped messages; 4: of rows that agree alike the first is taken
    dropout_revision: ClassVar[int] = 5  # 2: as `imprint` at its revision 13; 5: as all cells at 4
    labels_known_revision: ClassVar[int] = 6  # 3: as `imprint` at its revision 14; 6: as all cells at 4

    def check(self, model: Model, clients: int) -> None:
        """UserError where the first layer has too few rows for so many clients."""
        client_rows.check_enough(model.net("classifier").init(torch.Generator())[0], clients)

    def craft(self, model: Model, broadcast: Networks, knowledge: Knowledge, seed: int) -> Networks:
        """What the first client receives."""
        return dry_run.to_all(self.craft_each(model, broadcast, knowledge, seed))

    def craft_each(self, model: Model, broadcast: Networks, knowledge: Knowledge, seed: int) -> tuple[Networks, ...]:
        """What each client receives, or nothing."""
        assert knowledge.expected is not None, "active attacks are told of the uploads to come"
        expected = knowledge.expected

        def made(images: Batch) -> tuple[Sent, ...]:
            known = magnified.of_networks(model, broadcast, images, expected.images_per_client)
            return (client_rows.crafted(broadcast.params["classifier"], known, expected),)

        return dry_run.best(
            model, broadcast, knowledge, self.rehearsal_images, seed, made, self._read, lambda _: ClassMean()
        )

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """All images of all clients; UserError where all clients received the same."""
        if classifiers.is_honest(artifact.weights["classifier"], knowledge.broadcast):
            return not_applicable(artifact, knowledge, SENT_HONESTLY)
        if artifact.divided is None:
            raise UserError(
                "client-rows reads sums of clients that it sent rows of their own, but all clients received the same here; name it "
                "with --attack in a run of your own, or try --attack staged"
            )
        return failed_uploads.set_aside(artifact, lambda sound: self._read(sound, knowledge, seed, progress))

    def _read(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        descents = Staged(feature_steps=self.feature_steps).descents
        return client_rows.read(artifact, knowledge, descents, seed, progress)
