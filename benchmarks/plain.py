"""The usual way of doing the same work: torch.nn layers, torch.optim, one client or victim after another.

These are the baselines of `make bench`, and what the tests compare the networks, the losses and whole rounds with. The
mini-batches and the noise come from the same streams as in privbench, so the numbers agree to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privbench.methods.base import RoundClock
from privbench.methods.fedcg import FedCG, mode_seeking
from privbench.tensors import Params, Parts, average
from privbench.training.engine.plan import Plan
from privbench.training.phase_plans import client_plan, server_plan
from privbench.training.state import Setup, State
from privbench.types import Artifact


class Extractor(nn.Sequential):
    """LeNet-5's extractor as its paper prints it, images in [0, 1]."""

    def __init__(self, channels: int) -> None:
        conv1, conv2 = nn.Conv2d(channels, 6, 5), nn.Conv2d(6, 16, 5)
        super().__init__(conv1, nn.AvgPool2d(2), nn.Sigmoid(), conv2, nn.AvgPool2d(2), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, 32, 32] -> [B, 16, 5, 5]."""
        return super().forward(2 * x - 1)


class Classifier(nn.Sequential):
    """LeNet-5's classifier."""

    def __init__(self, classes: int) -> None:
        hidden = (nn.Linear(400, 120), nn.Sigmoid(), nn.Linear(120, 84), nn.Sigmoid())
        super().__init__(nn.Flatten(), *hidden, nn.Linear(84, classes))


class Generator(nn.Module):
    """FedCG's generator."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(classes, classes)
        widths = (100 + classes, 512, 256, 128, 16)
        self.ups = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, bias=False) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(nn.BatchNorm2d(w) for w in widths[1:4])

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        """[B, 100], [B] -> [B, 16, 5, 5]."""
        x = torch.cat([z, self.embed(y)], 1)[:, :, None, None]
        for up, norm in zip(self.ups, self.norms, strict=False):
            x = F.leaky_relu(norm(up(x)), 0.2)
        return torch.sigmoid(self.ups[3](x))


class Discriminator(nn.Module):
    """FedCG's discriminator; returns the logit."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(classes, classes)
        widths = (16 + classes, 128, 256, 512, 1)
        convs = [nn.Conv2d(a, b, 2, bias=False) for a, b in pairwise(widths)]
        self.downs = nn.ModuleList(nn.utils.spectral_norm(conv) for conv in convs)
        self.norms = nn.ModuleList(nn.BatchNorm2d(w) for w in widths[1:4])

    def freeze(self) -> None:
        """Gives the frozen spectral norms the v of today's weights, where torch keeps the one that they were last trained with."""
        for down in self.downs:
            # The spectral norm keeps its state where nn.Module's types do not show it.
            v, weight, u = (getattr(down, f"weight_{name}") for name in ("v", "orig", "u"))
            v.copy_(F.normalize(weight.detach().flatten(1).T @ u, dim=0))

    def forward(self, h: Tensor, y: Tensor) -> Tensor:
        """[B, 16, 5, 5], [B] -> [B]."""
        x = torch.cat([h, self.embed(y)[:, :, None, None].expand(-1, -1, *h.shape[2:])], 1)
        for down, norm in zip(self.downs, self.norms, strict=False):
            x = F.leaky_relu(norm(down(x)), 0.2)
        return self.downs[3](x).flatten()


def net(part: str, channels: int, classes: int) -> nn.Module:
    """A fresh network of one part."""
    return Extractor(channels) if part == "extractor" else {
        "classifier": Classifier, "generator": Generator, "discriminator": Discriminator
    }[part](classes)  # fmt: skip


_NAMES = {"extractor": {"conv1": "0", "conv2": "3"}, "classifier": {"fc1": "1", "fc2": "3", "fc3": "5"}}


def name_in_torch(part: str, name: str) -> str:
    """The state_dict key of one of privbench's parameters or buffers."""
    layer, kind = name.split(".")
    if part in _NAMES:
        return f"{_NAMES[part][layer]}.{kind}"
    if layer == "embed":
        return name
    family, index = {"u": "ups", "d": "downs", "n": "norms"}[layer[0]], layer[-1]
    kind = {"mean": "running_mean", "var": "running_var", "u": "weight_u"}.get(kind, kind)
    return f"{family}.{index}.{'weight_orig' if family == 'downs' and kind == 'weight' else kind}"


def load(module: nn.Module, part: str, params: Params, buffers: Params) -> nn.Module:
    """Copies privbench's values into a torch.nn network."""
    state = module.state_dict()
    for name, value in (params | buffers).items():
        state[name_in_torch(part, name)].copy_(value)
    return module


def values(module: nn.Module, part: str, like: Mapping[str, Tensor]) -> Params:
    """Those values of a torch.nn network that privbench calls by the names in `like`."""
    state = module.state_dict()
    return {name: state[name_in_torch(part, name)].clone() for name in like}


class Training:
    """One seed's FedAvg or FedCG, clients one after another, from the state that privbench starts from."""

    def __init__(self, setup: Setup, state: State) -> None:
        self.setup, self.state, self.rounds = setup, state, 0
        schedule, shares = setup.spec.schedule, setup.method.shared_parts
        self.server = {part: self._net(part, state.server.params, state.server.buffers) for part in shares}
        self.clients = [{p: self._net(p, c.params, c.buffers) for p in c.params} for c in state.clients]
        self.task = [_adam([c["extractor"], c["classifier"]], schedule.task) for c in self.clients]
        if "generator" in shares:
            self.imitate = [_adam([c["generator"]], schedule.generator) for c in self.clients]
            self.judge = [_adam([c["discriminator"]], schedule.generator) for c in self.clients]
            self.distil = _adam([self.server["generator"], self.server["classifier"]], schedule.server)

    def _net(self, part: str, params: Parts, buffers: Parts) -> nn.Module:
        model = self.setup.model
        return load(net(part, model.channels, model.classes), part, params[part], buffers[part])

    @property
    def _fedcg(self) -> FedCG:
        """The method of those that train a generator."""
        assert isinstance(self.setup.method, FedCG)
        return self.setup.method

    def round(self) -> None:
        """Broadcast, local training, average, distillation."""
        self.rounds += 1
        phases = self.setup.method.client()
        for k, client in enumerate(self.clients):
            for part, module in self.server.items():
                client[part].load_state_dict(module.state_dict())
            for epoch in range(self.setup.spec.schedule.local_epochs):
                self._classify(k, client_plan(self.setup, k, self.rounds, phases[0], epoch))
            for epoch in range(self.setup.spec.schedule.generator_epochs if len(phases) > 1 else 0):
                self._imitate(k, client_plan(self.setup, k, self.rounds, phases[1], epoch))
        for part, module in self.server.items():
            uploads = [client[part].state_dict() for client in self.clients]
            floats = [{n: t for n, t in upload.items() if t.is_floating_point()} for upload in uploads]
            module.load_state_dict(average(floats, self.setup.weights), strict=False)
        for phase in self.setup.method.server():
            self._distil(server_plan(self.setup, self.rounds, phase))

    def _classify(self, k: int, plan: Plan) -> None:
        client = self.clients[k]
        _train(client, "extractor", "classifier")
        for step in range(plan.steps):
            x, y = plan.images(step), plan.labels[step]
            self.task[k].zero_grad()
            h = client["extractor"](x)
            loss = F.cross_entropy(client["classifier"](h), y)
            if "generator" in self.server:
                clock = RoundClock(self.rounds, self.setup.spec.schedule.rounds)
                with torch.no_grad():
                    target = self.server["generator"].eval()(plan.noise["task"]["z"][step], y)
                loss = loss + self._fedcg.gamma(clock) * F.mse_loss(h, target)
            loss.backward()
            self.task[k].step()

    def _imitate(self, k: int, plan: Plan) -> None:
        client = self.clients[k]
        for step in range(plan.steps):
            x, y = plan.images(step), plan.labels[step]
            _train(client, "discriminator")
            self.judge[k].zero_grad()
            with torch.no_grad():
                real, fake = client["extractor"](x), client["generator"](plan.noise["discriminator"]["z"][step], y)
            judge = client["discriminator"]
            loss = -F.logsigmoid(judge(real, y)).mean() - F.logsigmoid(-judge(fake, y)).mean()
            loss.backward()
            self.judge[k].step()

            _train(client, "generator")
            assert isinstance(judge, Discriminator)
            judge.freeze()
            self.imitate[k].zero_grad()
            z = plan.noise["generator"]["z"][step]
            imitated = client["generator"](z, y)
            loss = -F.logsigmoid(judge(imitated, y)).mean()
            (loss + self._fedcg.diversity * mode_seeking(z, imitated)).backward()
            self.imitate[k].step()

    def _distil(self, plan: Plan) -> None:
        _train(self.server, *self.server)
        for client in self.clients:
            _train(client)
        for step in range(plan.steps):
            z, y = (plan.noise["distillation"][name][step] for name in ("z", "y"))
            self.distil.zero_grad()
            with torch.no_grad():
                logits = [
                    w * c["classifier"](c["generator"](z, y))
                    for w, c in zip(self.setup.weights, self.clients, strict=True)
                ]
                ensemble = torch.stack(logits).sum(0).softmax(1)
            log_probabilities = self.server["classifier"](self.server["generator"](z, y)).log_softmax(1)
            F.kl_div(log_probabilities, ensemble, reduction="batchmean").backward()
            self.distil.step()


def _adam(modules: list[nn.Module], setting: Any) -> torch.optim.Adam:
    params = [p for module in modules for p in module.parameters()]
    return torch.optim.Adam(
        params, lr=setting.lr, betas=(setting.beta1, setting.beta2), weight_decay=setting.weight_decay
    )


def _train(nets: Mapping[str, nn.Module], *trained: str) -> None:
    for part, module in nets.items():
        module.train(part in trained)


SCALE = 1e8  # of the objective, which L-BFGS is invariant to but for its thresholds


def dlg(seen: Artifact, steps: int) -> Tensor:
    """DLG (FedCG Eq. 7) victim by victim, double backward, torch.optim.LBFGS, double precision: [V, B, C, H, W].

    No early end, so that every victim takes the same number of iterations. torch's L-BFGS drops every pair with s'y below
    1e-10, which Eq. 7 is at the untrained network from the first step on: unscaled, it would never leave its start.
    """
    images = []
    for objective in objectives(seen):
        x = torch.rand(seen.batch_size, *seen.image_shape, dtype=torch.float64).requires_grad_()
        optimiser = torch.optim.LBFGS([x], max_iter=steps, history_size=20, tolerance_grad=0, tolerance_change=0)

        def closure(x: Tensor = x, objective: Callable[[Tensor], Tensor] = objective) -> Tensor:
            x.grad = None
            gap = SCALE * objective(x)
            gap.backward()
            return gap

        optimiser.step(closure)
        images.append(x.detach())
    return torch.stack(images)


def objectives(seen: Artifact) -> list[Callable[[Tensor], Tensor]]:
    """Eq. 7 of every victim, labels taken from the bias gradient: images [B, C, H, W] in double precision -> scalar."""
    model = seen.model
    nets = {p: load(net(p, model.channels, model.classes), p, seen.weights[p], {}).double() for p in seen.gradients}
    names = [(part, name) for part, module in nets.items() for name, _ in module.named_parameters()]
    leaves = [param for module in nets.values() for param in module.parameters()]
    gradients = {(p, name_in_torch(p, n)): g.double() for p, grads in seen.gradients.items() for n, g in grads.items()}

    def of(victim: int) -> Callable[[Tensor], Tensor]:
        label = gradients["classifier", "5.bias"][victim].argmin()[None]
        observed = [gradients[n][victim] for n in names]
        return lambda x: dlg_objective(nets, leaves, x, label, observed)

    return [of(victim) for victim in range(seen.victims)]


def dlg_objective(
    nets: Mapping[str, nn.Module], leaves: list[nn.Parameter], x: Tensor, labels: Tensor, observed: list[Tensor]
) -> Tensor:
    """|| grad L_cls(x) - observed ||^2, with a graph for the second derivative."""
    loss = F.cross_entropy(nets["classifier"](nets["extractor"](x)), labels)
    grads = torch.autograd.grad(loss, leaves, create_graph=True)
    return torch.stack([(a - b).square().sum() for a, b in zip(grads, observed, strict=True)]).sum()
