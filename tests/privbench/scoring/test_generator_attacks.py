"""GAN-Leaks: distances against plain loops, and what descending on z reaches where the answer is known."""

import torch

from privbench.scoring import generator_attacks as attacks
from privbench.seeds import stream
from privbench.types import Batch

RNG = stream(0, "images")


def test_the_black_box_searches_the_samples_of_the_class():
    images, labels = torch.rand(7, 1, 4, 4, generator=RNG), torch.tensor([0, 1, 2, 0, 1, 2, 3])
    samples = attacks.Samples(torch.randn(9, 3), torch.rand(9, 1, 4, 4, generator=RNG), torch.arange(9) % 3)
    made = attacks.black_box(Batch(images, labels), samples)
    for i in range(6):
        each = {j: float((images[i] - samples.images[j]).square().mean()) for j in range(9) if j % 3 == labels[i]}
        assert int(made.sample[i]) == min(each, key=each.get)
        torch.testing.assert_close(float(made.distances[i]), min(each.values()))
    assert made.distances[6] == torch.inf


def test_samples_that_are_no_numbers_are_never_nearest():
    samples = attacks.Samples(
        torch.randn(2, 3), torch.stack([torch.full((1, 4, 4), torch.nan), torch.zeros(1, 4, 4)]), torch.zeros(2).long()
    )
    made = attacks.black_box(Batch(torch.full((1, 1, 4, 4), 0.5), torch.zeros(1).long()), samples)
    assert (float(made.distances[0]), int(made.sample[0])) == (0.25, 1)


def test_the_white_box_descends_to_the_nearest_image_of_the_range():
    """A linear generator: the least distance is that of the projection onto its range."""
    basis = torch.linalg.qr(torch.randn(16, 3, generator=RNG)).Q

    def generate(z, labels):
        return (z @ basis.T).view(-1, 1, 4, 4) + labels.view(-1, 1, 1, 1)

    labels = torch.tensor([0, 1] * 60)
    images = generate(torch.randn(120, 3, generator=RNG), labels) + 0.2 * torch.randn(120, 1, 4, 4, generator=RNG)
    centred = (images - labels.view(-1, 1, 1, 1)).flatten(1)
    wanted = (centred - centred @ basis @ basis.T).square().mean(1)
    start = centred @ basis + 0.5
    reached = attacks.white_box(generate, Batch(images, labels), start)
    torch.testing.assert_close(reached, wanted, rtol=0.02, atol=1e-4)
    # Never worse than the start, whatever the steps do.
    assert bool((reached <= (generate(start, labels) - images).square().flatten(1).mean(1)).all())
    alone = torch.cat(
        [attacks.white_box(generate, Batch(images[i : i + 1], labels[i : i + 1]), start[i : i + 1]) for i in range(3)]
    )
    torch.testing.assert_close(reached[:3], alone)


def test_samples_are_made_piece_by_piece_as_at_once():
    z, labels = torch.randn(250, 2, generator=RNG), torch.arange(250) % 3
    made = attacks.sampled(lambda z, y: (z.sum(1) + y).view(-1, 1, 1, 1), z, labels)
    torch.testing.assert_close(made.images.flatten(), z.sum(1) + labels)
