"""Generated images as a grid: the images are the generator's own, in their places, and fit a page."""

import pytest
import torch
from PIL import Image

from privbench import presets
from privbench.execution import cell_jobs, generator_scores
from privbench.records.store import Store
from privbench.scoring import generator_attacks, real_features
from privbench.training import checkpoint, federation, harness
from reports.figures.drawing import style
from reports.figures.of_networks import samples


def quiet(*_):
    pass


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished cell of three clients and two rounds."""
    root = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(real_features, "STEPS", 1)
        patch.setattr(generator_attacks, "STEPS", 1)
        train = presets.train_spec("smoke", "digits", "dp-gan", clients=3, per_client=16)
        cell = presets.cell_spec("smoke", train, None, generated=20)
        assert cell_jobs.run_cells([cell], root, None, "cpu", quiet, quiet) == []
    return Store(root), cell


def test_every_holder_after_its_rounds_stands_under_real_images(run):
    store, cell = run
    blocks, others = samples.over_rounds(store, cell, None)
    spec = cell.train_specs()[0]
    best = generator_scores.scored_round(checkpoint.history(store.train(spec), spec.id))
    names = [f"client {k + 1}\nround {r}" for k in range(3) for r in range(1, best + 1)]
    assert [block.name for block in blocks] == ["real test images", *names]
    assert others == 0
    setup = harness.prepare(spec, federation.of(spec, None)[0], torch.device("cpu"))
    generator = generator_scores.of_snapshot(setup.model, checkpoint.load_snapshot(store.train(spec), spec.id, best))[2]
    z = torch.randn(20, 100, generator=samples.stream(spec.seed, "samples"))
    wanted = generator.generate(z, torch.arange(10).repeat(2)).detach()
    assert torch.equal(blocks[-1].images.flatten(0, 1), wanted)
    test = generator_scores.test_images(setup.federation, 0)
    for label in range(10):
        real = (blocks[0].images[:, label] * 255).round().to(torch.uint8)
        of_class = test.images[test.labels == label]
        assert all(any(torch.equal(one, other) for other in of_class) for one in real)


def test_a_comparison_has_one_block_a_row(run):
    store, cell = run
    blocks = samples.compared(store, [("one", cell), ("another", cell)], None)
    assert [block.name.split("\n")[0] for block in blocks] == ["real test images", "one", "another"]
    assert torch.equal(blocks[1].images, blocks[2].images)


def test_a_mosaic_has_every_image_in_its_place():
    images = torch.rand(2, 3, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    picture = samples.mosaic(images)
    assert picture.shape == (2 * 5, 3 * 5, 3)
    for line in range(2):
        for column in range(3):
            there = torch.tensor(picture[5 * line : 5 * line + 4, 5 * column : 5 * column + 4]).permute(2, 0, 1)
            assert torch.equal(there, images[line, column])
    assert (picture[4::5] == 1).all()
    assert samples.mosaic(images[:, :, :1]).shape == (10, 15)


@pytest.mark.parametrize(("blocks", "classes"), [(2, 10), (16, 10), (3, 62), (3, 3)])
def test_a_grid_fits_a_page(tmp_path, blocks, classes):
    shown = min(classes, samples.MOST_CLASSES)
    each = [samples.SampleBlock(f"client {i}\nround 10", torch.full((2, shown, 1, 32, 32), 0.5)) for i in range(blocks)]
    paths = samples.write(each, [f"class {i}" for i in range(classes)], "a title", tmp_path / "grid", "2 more clients")
    assert [path.suffix for path in paths] == [".png", ".pdf"]
    with Image.open(paths[0]) as image:
        assert image.width / style.DPI <= style.PAGE_INCHES + 0.01
        assert image.height / style.DPI <= style.PAGE_HEIGHT_INCHES
        assert image.convert("L").getextrema() == (0, 255)
