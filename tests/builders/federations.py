"""Small federations of real digits for the harness's tests."""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from privbench.training import harness
from privbench.training.local_training import Execution
from privbench.training.state import Setup, State
from privbench.types import Client, Federation, Images


@cache
def _digits() -> tuple[Tensor, Tensor]:
    """All images, 32x32, and labels, read from their file once."""
    raw = load_digits()
    images = torch.tensor(raw.images / 16 * 255)[:, None].float()
    return torch.nn.functional.interpolate(images, size=32).to(torch.uint8), torch.tensor(raw.target)


def digits_federation(sizes: Sequence[int] = (20, 20), flip: bool = False, channels: int = 1) -> Federation:
    """Clients with the given numbers of training images, ten validation and ten test images each, and 40 public ones."""
    images, labels = _digits()
    images = images[: sum(sizes) + 20 * len(sizes) + 40].repeat(1, channels, 1, 1)
    clients, start = [], 0
    for size in sizes:
        cuts = [start, start + size, start + size + 10, start + size + 20]
        parts = [Images(images[a:b], labels[a:b]) for a, b in pairwise(cuts)]
        clients.append(Client("all", *parts))
        start = cuts[-1]
    public = Images(images[start : start + 40], labels[start : start + 40])
    return Federation(tuple(clients), public, tuple("0123456789"), flip)


def learn_round(setups: Sequence[Setup], states: Sequence[State], execution: Execution = "alone") -> None:
    """A round without its evaluation, which changes no network and takes longer than to train on so few images."""
    harness.learn(setups, states, execution)
    harness.measure(setups, states, execution)
    for state in states:
        state.round += 1
