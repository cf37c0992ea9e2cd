"""The second attack of docs/extending.md, which solves equations, runs as it stands."""

import re

import torch

from privbench import registry
from privbench.execution import one_attack
from privbench.scoring.image_scores import psnr_db
from privbench.types import Knowledge
from tests.builders.small_artifacts import artifact, smooth_images


def test_the_documented_attack_runs(repository, tmp_path, monkeypatch):
    page = (repository / "docs" / "extending.md").read_text()
    (block,) = [b for b in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class Layerwise" in b]
    (tmp_path / "mine_layerwise.py").write_text(block)
    monkeypatch.syspath_prepend(str(tmp_path))
    attack = registry.resolve("attack", registry.typed("attack", "mine_layerwise:Layerwise"))
    shown = artifact(smooth_images(1), torch.tensor([1]))
    one_attack.check_needs("mine_layerwise:Layerwise", attack, shown)
    reconstruction = attack(iterations=4).reconstruct(shown, Knowledge(), 0, lambda *_: None)
    assert psnr_db(reconstruction.images[0], smooth_images(1)) > 30
