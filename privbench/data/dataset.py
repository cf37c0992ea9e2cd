"""What a data-set file returns: `load(root) -> Dataset`, with its source, checksums, licence and citation."""

from typing import NamedTuple

from privbench.types import Images


class Domain(NamedTuple):
    """One domain's images. A domain without validation images lends half of each client's test share (see partition)."""

    train: Images
    test: Images
    validation: Images | None = None


class Dataset(NamedTuple):
    """A labelled image data set at 32x32 (or larger, see resize.py), in one domain ("all") or several."""

    name: str
    classes: tuple[str, ...]
    domains: dict[str, Domain]
    flip: bool  # whether the papers flip its training images horizontally
    source: str  # where from, with licence and citation, one paragraph
    note: str = ""  # what differs from the published data set, e.g. a domain that was left out
    public: Images | None = None  # images of no client, when the papers name them apart (Digit5: MNIST)
