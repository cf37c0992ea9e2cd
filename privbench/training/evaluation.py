"""What trained networks say of images, and how often that is right, in eval mode: of one model, and of a run after a round.

Metrics of it: privbench/scoring/metrics.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from privbench.data.readers.resize import PIXELS, pixels
from privbench.methods.base import Nets
from privbench.networks.model import Model
from privbench.seeds import stream
from privbench.spec import Measured
from privbench.tensors import Parts, average
from privbench.training import task_evaluation
from privbench.training.engine.alone import one_thread
from privbench.training.state import Prediction, Replica, Setup, State, networks_of
from privbench.training.task_evaluation import Purpose
from privbench.types import CLASSIFICATION, Images

DRAWS = 256  # (z, y) of the consistency loss


def predict(model: Model, replica: Replica, images: Images, device: torch.device) -> Prediction:
    """C(E(x)) of N images, a piece at a time; on one thread, as in training, so that logits do not depend on their number."""
    nets = Nets(model, replica.params, replica.buffers)
    pieces = images.images.split(max(PIXELS // model.image_size**2, 1))
    with torch.no_grad(), one_thread():
        logits = [nets.classifier(nets.extractor(pixels(x.to(device), model.image_size))).cpu() for x in pieces]
    return Prediction(torch.cat(logits), images.labels)


def right(prediction: Prediction) -> float:
    """Percent of images whose largest logit is that of their label; nan for an empty set."""
    if len(prediction.labels) == 0:
        return math.nan
    return 100 * int((prediction.logits.argmax(1) == prediction.labels).sum()) / len(prediction.labels)


def accuracy(model: Model, replica: Replica, images: Images, device: torch.device) -> float:
    """Percent of images that C(E(x)) classifies rightly; nan for an empty set."""
    return right(predict(model, replica, images, device))


def average_model(clients: Sequence[Replica], weights: Tensor) -> Replica:
    """sum_i w_i (E_i, C_i), private parts included: the network of FedMD-CG's G.acc; weights [K]."""
    return Replica(
        {part: average([client.params[part] for client in clients], weights) for part in CLASSIFICATION},
        {part: average([client.buffers[part] for client in clients], weights) for part in CLASSIFICATION},
    )


def pooled_accuracy(model: Model, replica: Replica, sets: Sequence[Images], device: torch.device) -> float:
    """Percent of the images of all sets together that C(E(x)) classifies rightly."""
    each = [predict(model, replica, images, device) for images in sets]
    return right(Prediction(torch.cat([one.logits for one in each]), torch.cat([one.labels for one in each])))


def consistency(model: Model, replica: Replica, labels: Tensor, rng: torch.Generator) -> float:
    """CE( C(G(z, y)), y ) in nats, FedMD-CG's "G+D loss", over draws z ~ N(0, I) and y from `labels` [N], a client's own.

    The paper does not say of which y: these are those of its training loss (Eq. 9). The draws depend on `rng` alone, so that
    the curve over rounds shows the networks and not the draws.
    """
    z = torch.randn(DRAWS, model.noise_dim, generator=rng).to(labels.device)
    y = labels[torch.randint(len(labels), (DRAWS,), generator=rng).to(labels.device)]
    nets = Nets(model, replica.params, replica.buffers)
    with torch.no_grad(), one_thread():
        generated = nets.generator(z, y)
        features = nets.extractor(generated) if model.gan == "image" else generated
        return float(cross_entropy(nets.classifier(features), y))


def models(setup: Setup, state: State) -> dict[Measured, list[Replica]]:
    """Every model that the clients have after a round: model -> [K]. Where two of them are the same, so are their objects.

    A defence of messages touches what is sent and, averaged over the clients, what comes back. One in local training is in all
    three.
    """
    shared = setup.method.shared_parts
    if setup.method.test_tasks is not None:
        # What a client has of a meta-learner is the broadcast, fine-tuned on its task.
        learners = [Replica(*networks_of(state.server, shared))] * len(state.clients)
        return {"personal": learners, "uploaded": learners, "broadcast": learners}
    personal = list(state.clients)
    uploaded = [_with(client, *sent) for client, sent in zip(personal, state.uploads, strict=True)]
    server = networks_of(state.server, shared)
    return {
        "personal": personal,
        "uploaded": uploaded if shared and "message" in setup.defense.places else personal,
        "broadcast": [_with(client, *server) for client in personal] if shared else personal,
    }


def _with(client: Replica, params: Parts, buffers: Parts) -> Replica:
    return Replica(client.params | params, client.buffers | buffers)


def predictions(setup: Setup, state: State, model: Measured | None = None) -> list[Prediction]:
    """What each client's model says of its test images, by default the measured one: [K]."""
    return of_each(setup, models(setup, state)[model or setup.spec.measured], "test")


def of_each(setup: Setup, clients: Sequence[Replica], purpose: Purpose) -> list[Prediction]:
    """What each client's E and C say of its validation or test images, a meta-learner of the queries of its tasks: [K]."""
    if setup.method.test_tasks is not None:
        return task_evaluation.predictions(setup, clients[0], purpose)
    sets = [getattr(client, purpose) for client in setup.federation.clients]
    return [predict(setup.model, client, part, setup.device) for client, part in zip(clients, sets, strict=True)]


def of_round(setup: Setup, state: State, measured_predictions: Sequence[Prediction]) -> dict[str, Any]:
    """What the history says of the networks after a round: accuracies in percent, consistency in nats.

    `validation_accuracy` and `test_accuracy` are those of the measured model, whose predictions of the test images are given;
    `global_accuracy` is that of the weighted average of the clients' measured models on all their test images.
    """
    model = setup.model
    each = models(setup, state)
    measured = each[setup.spec.measured]
    accuracies: dict[Measured, dict[str, list[float]]] = {}
    for name, clients in each.items():
        same = next((other for other in accuracies if each[other] is clients), None)
        if same is not None:
            accuracies[name] = accuracies[same]
            continue
        accuracies[name] = {
            "validation": [right(p) for p in of_each(setup, clients, "validation")],
            "test": [
                right(p) for p in (measured_predictions if clients is measured else predictions(setup, state, name))
            ],
        }
    has_generator = "generator" in setup.method.parts
    return {
        "validation_accuracy": accuracies[setup.spec.measured]["validation"],
        "test_accuracy": accuracies[setup.spec.measured]["test"],
        "models": accuracies,
        "global_accuracy": _global_accuracy(setup, measured, measured_predictions),
        "consistency": [
            consistency(model, client, setup.labels[k], stream(setup.spec.seed, "client", k, "consistency"))
            for k, client in enumerate(state.clients)
            if has_generator
        ],
    } | _of_tasks(setup, state, measured_predictions)


def _global_accuracy(setup: Setup, measured: Sequence[Replica], predictions: Sequence[Prediction]) -> float:
    """Of the weighted average of all models on all test images; of a meta-learner, on the test tasks of all clients."""
    if setup.method.test_tasks is not None:
        return right(Prediction(torch.cat([p.logits for p in predictions]), torch.cat([p.labels for p in predictions])))
    whole = average_model(measured, setup.weights)
    return pooled_accuracy(setup.model, whole, [client.test for client in setup.federation.clients], setup.device)


def _of_tasks(setup: Setup, state: State, predictions: Sequence[Prediction]) -> dict[str, Any]:
    """What the history of a meta-learner says of its test tasks; nothing of other methods."""
    if setup.method.test_tasks is None:
        return {}
    first = state.history[0]["tasks"] if state.history else None
    return {"tasks": task_evaluation.summary(setup, predictions, first)}
