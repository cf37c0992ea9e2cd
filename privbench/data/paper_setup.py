"""What each paper fixes of an experiment beyond its method: sizes, split, flips, and the images that accuracy is measured on.

    fedcg      FedCG section 5 and its reference code: a client's share of the test set is halved into validation and test; by
               domain Office and DomainNet train on half of each class. FMNIST, CIFAR-10, Office and DomainNet are flipped.
    nfl-cgan   FMNIST and CIFAR-10: training and test set split randomly in four, a fifth of each training part validates, the
               whole test part tests. By domain: 60% of each domain train, 20% validate, 20% test.
    fedmd-cg   Dirichlet label partition of the whole training set; L.acc on an even random split of the whole test set, G.acc on
               the whole test set.

NFL-CGAN and FedMD-CG do not say that they flip images: they do not here. FedMD-CG names neither a validation set nor the round
that it reports. Here the best round by validation counts, as with the other papers: one in twenty training images is held out for
it before the others are distributed to the clients, so that no test image selects anything. NFL-CGAN does not say how many
images of a domain it takes: here all.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

PaperSplit = tuple[str, int, int]  # how, clients, images of the training set per client
Name = Literal["fedcg", "nfl-cgan", "fedmd-cg"]
WHOLE = 10**9  # per client: every image of its domain


@dataclass(frozen=True)
class PaperProtocol:
    """One paper's way of laying out and measuring."""

    splits: Mapping[str, PaperSplit]  # by data set, where they differ from privbench.data.partition.DEFAULTS
    flip: bool  # whether images of data sets that FedCG flips are flipped
    validation: float | None = None  # share of a client's training images that validates; None: half of its test share
    domain_shares: tuple[float, float] | None = None  # (training, validation) of a whole domain; None: as published
    rounds: Mapping[str, int] = field(default_factory=dict)  # by data set, where they are not those of the schedule
    differs: str = ""  # from the paper, in words: for a note beside the published value


PROTOCOLS: dict[str, PaperProtocol] = {
    "fedcg": PaperProtocol({}, flip=True),
    "nfl-cgan": PaperProtocol(
        {
            "fmnist": ("iid", 4, 15_000),
            "cifar10": ("iid", 4, 12_500),
            "digit5": ("domain", 4, WHOLE),
            "office10": ("domain", 4, WHOLE),
        },
        flip=False,
        validation=0.2,
        domain_shares=(0.6, 0.2),
    ),
    "fedmd-cg": PaperProtocol(
        {"fmnist": ("dirichlet", 10, 6000), "cifar10": ("dirichlet", 10, 5000)},
        flip=False,
        validation=0.05,
        rounds={"cifar10": 250},
        differs="the paper names no validation set: here one in twenty training images validates, and the best round by it counts",
    ),
}
# Whose protocol the presets standard and paper take for a method, where it is not FedCG's.
OF_METHOD = {"nfl-cgan": "nfl-cgan", "fedmd-cg": "fedmd-cg"}
