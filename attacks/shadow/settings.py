"""The settings that attacks through surrogate extractors have in common, and their short form for the smoke preset."""

from dataclasses import dataclass
from typing import Literal

from privbench.hyperparameters import Count, CountOrZero, Positive, Weight

# What every such attack is cut down to in the smoke preset.
SHORT = {"steps": 5, "exact_steps": 5, "members": 1, "train_steps": 3, "shadow_rounds": 1, "shadow_steps": 3}


@dataclass(frozen=True)
class SurrogateSettings:
    """How surrogates are trained, validated in a shadow federation, and inverted."""

    steps: Count = 80  # of the inversion
    exact_steps: Count = 400  # of the inversion of an extractor that turns out to be the victims' own
    members: Count = 2  # surrogates
    train_steps: Count = 400  # of each surrogate
    shadow_rounds: CountOrZero = 10  # at most, and no more than the attacked federation has behind it
    # A round and client, at most, and no more than the attacked clients take (attacks/shadow/shadow_federation.py).
    shadow_steps: Count = 2500


@dataclass(frozen=True)
class AlignedSettings(SurrogateSettings):
    """The same with how surrogates are aligned to a client's generator and victims (attacks/shadow/alignment.py)."""

    align_steps: Count = 300
    align_weight: Weight = 3.0  # of the alignment terms, with 1 for the cross-entropy
    # To a generator's features (attacks/shadow/sliced_transport.py).
    alignment: Literal["moments", "sliced"] = "moments"


@dataclass(frozen=True)
class JointSettings(AlignedSettings):
    """The same with how surrogates and images are refined together (attacks/shadow/fitting/joint_refinement.py)."""

    joint_steps: Count = 120
    scale: Positive = 0.5  # of the prior of the weights, relative to their size at the start
    starts: Count = 1  # aligned surrogates of each client
