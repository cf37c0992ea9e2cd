"""What `breaching` attacks is privbench's own problem; none of these tests needs the package."""

import sys

import torch
import torch.nn.functional as F

from benchmarks import against_breaching as against


def test_the_network_handed_over_has_the_observed_gradient():
    seen, truth = against.undefended("photos", 2)
    net = against.network(seen).double()
    for v in range(2):
        loss = F.cross_entropy(net(2 * truth.images[v].double() - 1), truth.labels[v])
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        observed = against.gradients_in_order(seen, v, net)
        assert len(gradients) == len(observed) == 10
        for g, o in zip(gradients, observed, strict=True):
            assert (g - o).norm() < 1e-5 * g.norm()


def test_tuning_images_are_no_victims():
    victims, tuning = (against.undefended("photos", 16, tuning=t)[1].images.flatten(1) for t in (False, True))
    assert torch.cdist(victims.double(), tuning.double()).min() > 0.1


def test_without_the_package_one_line_says_how_to_get_it(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "breaching", None)
    against.main(["--out", str(tmp_path / "never.json")])
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("not measured: ")
    assert against.INSTALL in line
    assert not list(tmp_path.iterdir())
