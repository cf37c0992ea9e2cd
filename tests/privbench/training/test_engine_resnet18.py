"""ResNet-18 in training: stacked replicas equal each alone, running statistics included."""

import pytest
import torch

from privbench import presets
from privbench.training import harness
from tests.builders.federations import digits_federation

pytestmark = pytest.mark.usefixtures("narrow_resnet", "double_precision")


def test_stacked_clients_equal_each_alone_with_batch_norm():
    federation = digits_federation((4, 7))  # one step and two steps
    changes = {"batch": 4, "server_steps": 1}
    each = presets.train_spec("smoke", "digits", "fedcg", backbone="resnet18", clients=2, changes=changes)
    ends = []
    for execution in ("alone", "stacked"):
        setup = harness.prepare(each, federation, torch.device("cpu"))
        state = harness.initial(setup)
        begin = state.clients[0].buffers
        harness.train_round([setup], [state], execution)
        ends.append(state)
    alone, stacked = ends
    # Adam divides a gradient by its size, so that rounding is a larger share of a step the smaller the gradient is. One element in
    # hundred thousands differs by 1e-4 of a step.
    rounding = 0.01 * min(o.lr for o in (each.schedule.task, each.schedule.generator, each.schedule.server))
    for one, other in zip((alone.server, *alone.clients), (stacked.server, *stacked.clients), strict=True):
        torch.testing.assert_close(one.params, other.params, rtol=0, atol=rounding)
        torch.testing.assert_close(one.buffers, other.buffers, rtol=0, atol=rounding)
    for part in ("extractor", "classifier"):
        for name, value in alone.clients[0].buffers[part].items():
            assert not torch.equal(value, begin[part][name]), f"{part} {name} did not move"
