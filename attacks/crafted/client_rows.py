"""A classifier for each client of a secure sum, of whose first layer every client has rows of its own.

All rows but its own are off for a client: nothing behind them has a weight for them, so that no gradient passes through them. So of
the sum
    dL/dW_j = sum_k w_k dL_k/dW_j = w_k dL_k/dW_j    for the rows j of client k
and what a client alone would put into its rows comes back of every client at once. Its own rows sort its images as
attacks/crafted/classifiers.py lays them: gentle ones for one image, which is in all of them, steep ones for several. Layers behind
the first, and E, hold sums over all clients, of which nothing is read but the labels.

Zhao, Sharma, Elkordy, Ezzeldin, Avestimehr, Bagchi: LOKI: Large-scale Data Reconstruction Attack against Federated Learning through
Model Manipulation, S&P 2024, arXiv 2303.12233. There the kernels of a convolution before an added layer give each client weights of
its own, and the layer grows with the number of clients. Here the layer is the architecture's, and its rows are divided: with more
clients each has fewer. Clients that compare what they received would notice.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attacks.common import batched, closed_form, labels, no_information, problem
from attacks.crafted import classifiers, gradient_bins
from attacks.crafted.gradient_bins import BinnedImages
from attacks.features.anchored_matching import AnchoredMatching
from privbench.errors import UserError
from privbench.tensors import Params
from privbench.types import Artifact, Batch, ExpectedUpload, Knowledge, Networks, Progress, Reconstruction

FEWEST = 4  # rows of a client


def block(rows: int, client: int, clients: int) -> slice:
    """Which rows a client has."""
    return slice(client * rows // clients, (client + 1) * rows // clients)


def check_enough(like: Params, clients: int) -> None:
    """UserError where the first layer has too few rows for so many clients."""
    if (rows := len(like["fc1.bias"])) < FEWEST * clients:
        raise UserError(f"client-rows divides {rows} rows, too few for {clients} clients; try --attack imprint")


def crafted(like: Params, features: Batch, expected: ExpectedUpload) -> tuple[Networks, ...]:
    """The heads of LeNet-5 to send to each client in place of `like`, for images like those of some features [N, n] with labels."""
    h, y = features
    several, clients = expected.images_per_client > 1, len(expected.shares)
    w = classifiers.principal_direction(h) if several else classifiers.discriminant(h, y, len(like["fc3.bias"]))
    t, sent = h @ w, []
    for k in range(clients):
        own = block(len(like["fc1.bias"]), k, clients)
        live = own.stop - own.start
        rows = classifiers.gentle(*classifiers.widened(t), live, w)
        if several:
            rows = classifiers.steep(classifiers.quantiles(t, live))
        one = classifiers.classifier(_of_rows(like, live), w, rows, classifiers.Winners(0, 0, 0.0), 0.0)
        whole = {n: torch.zeros_like(like[n]) for n in ("fc1.weight", "fc1.bias", "fc2.weight")}
        whole["fc1.weight"][own], whole["fc1.bias"][own] = one["fc1.weight"], one["fc1.bias"]
        whole["fc2.weight"][:, own] = one["fc2.weight"]
        sent.append(Networks({"classifier": one | whole}, {}))
    return tuple(sent)


def _of_rows(like: Params, count: int) -> Params:
    """A head whose first layer has so many rows."""
    return like | {
        "fc1.weight": like["fc1.weight"][:count],
        "fc1.bias": like["fc1.bias"][:count],
        "fc2.weight": like["fc2.weight"][:, :count],
    }


def of_client(artifact: Artifact, client: int) -> Artifact:
    """What a client's rows say, as an artifact of its messages; other layers are not its own."""
    assert artifact.divided is not None, "only sums over clients with networks of their own have rows of each"
    assert artifact.member_weights is not None, "they are sums"
    own, gradient = artifact.divided[client].params["classifier"], artifact.gradients["classifier"]
    rows, share = block(len(own["fc1.bias"]), client, artifact.senders), artifact.member_weights[:, client]
    alone = {}
    for name in ("fc1.weight", "fc1.bias"):
        t = torch.zeros_like(gradient[name], dtype=torch.float64)
        t[:, rows] = gradient[name][:, rows].double() / share.view(-1, *(1,) * (t.ndim - 1))
        alone[name] = t.to(gradient[name])
    return replace(
        artifact,
        gradients={"classifier": gradient | alone},
        weights=artifact.weights | {"classifier": own},
        batch_size=artifact.images_per_client,
        member_weights=None,
        divided=None,
        labels=None,
    )


def features_of(artifact: Artifact) -> tuple[Tensor, Tensor]:
    """(features [V, K B, c, s, s], labels [V, K B] of those that a row holds alone, else NONE), client after client."""
    each: list[tuple[BinnedImages, Tensor]] = []
    for k in range(artifact.senders):
        one = of_client(artifact, k)
        binned = gradient_bins.features_of(one)
        each.append((binned, gradient_bins.labels_of(one, binned)))
    return torch.cat([binned.h for binned, _ in each], 1), torch.cat([y for _, y in each], 1)


def read(
    artifact: Artifact, knowledge: Knowledge, descents: AnchoredMatching, seed: int, progress: Progress
) -> Reconstruction:
    """All images of all clients: those that a row holds alone, inverted, in place of class means."""
    h, identified = features_of(artifact)
    alone = identified != gradient_bins.NONE
    labelled = replace(artifact, labels=gradient_bins.completed(identified, labels.recover(artifact)))
    whole = no_information.gave_up(no_information.class_mean(labelled, knowledge))
    note = f"client-rows read {int(alone.sum())} of {alone.numel()} images; all others are class means"
    if not bool(alone.any()):
        return whole._replace(notes=(note,))
    posed, start = problem.make(labelled, seed), problem.plain_start(artifact, seed)
    features = closed_form.undropped(artifact.model, h, closed_form.BLURRED)
    one = batched.reconstruction(descents.invert(posed, features, None, start, progress), 1, posed.labels)
    assert whole.outcome is not None, "it was given up"
    images = torch.where(alone[:, :, None, None, None], one.images, whole.images.to(one.images))
    return one._replace(images=images, outcome=torch.where(alone.any(1), 0, whole.outcome), notes=(note,))
