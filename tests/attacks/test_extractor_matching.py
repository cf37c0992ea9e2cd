"""Extractor matching: the gradient it descends on, and that it finds an image behind a private classifier."""

import torch
import torch.nn.functional as F

from attacks.common import gradient_distance, problem
from attacks.dlg import DLG
from attacks.extractor_matching import ExtractorMatching
from privbench.scoring import image_scores
from privbench.types import Knowledge, Truth
from tests.builders.small_artifacts import artifact, logits, networks, smooth_images

EXTRACTOR = ("extractor",)


def test_the_gradient_at_the_features_gives_the_extractors_gradient():
    leaves = {p: {n: t.double().requires_grad_() for n, t in net.items()} for p, net in networks().items()}
    x, y = smooth_images(2).double(), torch.tensor([3, 8])
    out, h = logits(leaves, x)
    loss = F.cross_entropy(out, y)
    u, *wanted = torch.autograd.grad(loss, [h, *leaves["extractor"].values()])
    pulled_back = gradient_distance.pulled_back(problem.make(artifact(x.float(), y, EXTRACTOR, batch_size=2), 0), x, u)
    assert len(pulled_back) == 4
    for name, t in zip(leaves["extractor"], wanted, strict=True):
        assert torch.allclose(pulled_back[f"extractor/{name}"], t, rtol=1e-6, atol=1e-12)


def test_it_explains_the_gradient_and_goes_past_dlg():
    images, labels = smooth_images(3), torch.tensor([1, 5, 9])
    seen, truth = artifact(images, labels, EXTRACTOR), Truth(images[:, None], labels[:, None])
    reconstruction = ExtractorMatching(steps=150).reconstruct(seen, Knowledge(), 0)
    assert (reconstruction.loss < 0.01 * reconstruction.trace[:, 0]).all()
    other = DLG(steps=150).reconstruct(seen, Knowledge(), 0)
    assert (image_scores.score(reconstruction, truth).psnr_db > image_scores.score(other, truth).psnr_db + 3).all()
    assert (reconstruction.labels == -1).all()


def test_dlg_takes_a_surrogate_for_the_private_classifier():
    images, labels = smooth_images(2), torch.tensor([1, 5])
    seen = artifact(images, labels, EXTRACTOR)
    reconstruction = DLG(steps=20).reconstruct(seen, Knowledge(), 0)
    assert (reconstruction.loss < reconstruction.trace[:, 0]).all()
    assert reconstruction.labels.min() >= 0
    others = DLG(steps=20).reconstruct(seen, Knowledge(), 1)
    assert not torch.equal(reconstruction.images, others.images)
