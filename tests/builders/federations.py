"""Small federations of real digits for the harness's tests."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from sklearn.datasets import load_digits

from privbench.types import Client, Federation, Images


def digits_federation(sizes: Sequence[int] = (20, 20), flip: bool = False, channels: int = 1) -> Federation:
    """Clients with the given numbers of training images, ten validation and ten test images each, and 40 public ones."""
    raw = load_digits()
    images = torch.tensor(raw.images / 16 * 255)[:, None].float()
    images = torch.nn.functional.interpolate(images, size=32).to(torch.uint8).repeat(1, channels, 1, 1)
    labels = torch.tensor(raw.target)
    clients, start = [], 0
    for size in sizes:
        cuts = [start, start + size, start + size + 10, start + size + 20]
        parts = [Images(images[a:b], labels[a:b]) for a, b in pairwise(cuts)]
        clients.append(Client("all", *parts))
        start = cuts[-1]
    public = Images(images[start : start + 40], labels[start : start + 40])
    return Federation(tuple(clients), public, tuple("0123456789"), flip)
