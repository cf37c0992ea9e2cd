"""Feature-space hijacking through the distance term of FedCG's Eq. 2: an active server pulls private extractors to its own.

    1. The server trains a pilot extractor, and crafts the classifier C~ and the generator G~ that pull clients to it
       (attacks/crafted/pilot.py).
    2. For `active_rounds` rounds the clients start from C~ and minimise CE(C_i(E_i(x)), y) + gamma || E_i(x) - G~(z,y) ||^2
       (privbench/observation/active_server.py).
    3. h in closed form, inverted through the pilot or through imitators of the clients (attacks/shadow/surrogate_attack.py); the
       class mean, where the real clients were hijacked much worse than the shadow's.

Pasquini, Ateniese, Bernaschi: Unleashing the Tiger, CCS 2021, arXiv 2012.02670, hijack split learning so: there the server
returns a gradient for every private feature and matches distributions with a discriminator. Eq. 2 is a weaker lever: a client
feels the class means of the pilot's features alone (attacks/crafted/pilot.py), so that no discriminator is trained. What an
extractor keeps of x besides is not fixed, which is why imitators may serve better than the pilot. A client could notice: the same
C~ comes every round, and z changes next to nothing in what G~ makes.
"""

from dataclasses import asdict, dataclass
from typing import ClassVar

from attacks.common.data_fit import CLIP, NOISE
from attacks.crafted.pilot import Hijacking
from attacks.shadow import shadow_federation
from attacks.shadow.settings import SHORT, SurrogateSettings
from attacks.shadow.surrogate_attack import SurrogateAttack
from privbench.errors import UserError
from privbench.execution.applicability import Limits
from privbench.hyperparameters import Count
from privbench.networks.base import LinearClassifier
from privbench.networks.model import Model
from privbench.tensors import relative_change
from privbench.types import Artifact, Knowledge, Networks, Presets, Progress, Reconstruction, no_progress

SAME = 0.1  # relative distance of a classifier from the pilot's, below which it is the one that was sent


@dataclass(frozen=True)
class FeatureHijacking(SurrogateSettings):
    """Private extractors pulled to the server's pilot, which is then inverted (after Pasquini et al., CCS 2021)."""

    active_rounds: Count = 10  # or as many as there are
    pilot_steps: Count = 600  # of E_1 and C~; E~ takes twice as many
    generator_steps: Count = 300

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "upload:generator", "auxiliary"})
    limits: ClassVar[Limits] = Limits(
        private_extractor=True, linear_classifier=True, sigmoid_classifier=True, plain_classifier=True, unmixed=True
    )
    knowledge: ClassVar[str] = "active server + auxiliary + generator"
    rung: ClassVar[str] = "L7"
    knows: ClassVar[frozenset[str]] = NOISE | CLIP
    pools: ClassVar[bool] = True
    # 2: features in closed form are those of all columns of the gradient
    noised_features_revision: ClassVar[int] = 2
    private_dropout_revision: ClassVar[int] = 3  # 3: as `surrogate` 3
    presets: ClassVar[Presets] = {"smoke": SHORT | {"pilot_steps": 3, "generator_steps": 3}}
    active: ClassVar[bool] = True
    revision: ClassVar[int] = 1  # 1: as `surrogate`

    @property
    def hijacking(self) -> Hijacking:
        """The pilot and the recipes."""
        settings = {name: value for name, value in asdict(self).items() if name != "exact_steps"}
        return Hijacking(self, self.active_rounds, self.pilot_steps, settings)

    def craft(self, model: Model, broadcast: Networks, knowledge: Knowledge, seed: int) -> Networks:
        """The quiet C~, and G~; UserError unless the classifier begins with a linear layer, as h has no closed form then."""
        if not isinstance(model.classifier, LinearClassifier):
            raise UserError(
                f"feature-hijacking needs a classifier that begins with a linear layer, but it is {model.backbone}'s"
            )
        assert knowledge.auxiliary is not None, "the needs name auxiliary images"
        return self.hijacking.crafted(model, broadcast, knowledge.auxiliary, self.generator_steps, seed, knowledge)

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """All victims through the pilot; UserError where the clients did not get its classifier."""
        assert knowledge.auxiliary is not None, "the needs name auxiliary images"
        shadow_federation.check_features(artifact, type(self).__name__)
        _, classifier = self.hijacking.pilot(artifact.model, knowledge.auxiliary, seed, knowledge)
        if relative_change(artifact.weights["classifier"], classifier) > SAME:
            raise UserError(
                "feature-hijacking inverts clients that trained on its own crafted networks, but these got others; name it "
                "with --attack in a run of your own"
            )
        attack = SurrogateAttack("FeatureHijacking", self, self.hijacking.recipes())
        return attack.reconstruct(artifact, knowledge, seed, progress)
