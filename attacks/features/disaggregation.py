"""The features of a batch's single images, separated by what the classifier says of them.

The first linear layer's gradient with its bias is  G = [dL/db | dL/dW] = sum_i w_i d_i [1, h_i]',  of rank at most B (w_i = 1/B,
but in sums over clients that count for different weights): its row
space holds every [1, h_i]. So [1, h_i] = c_i R for a basis R of that space, and B x B numbers c are left of B x 400. The d_i
are no unknowns: the classifier and the labels give them for any h_i. The c are found by gradient matching through the
classifier alone,
    min over c of  mean over parameters l of ||g_l(c) - G_l||^2 / ||G_l||^2  +  mean squared distance of h from [0, 1]
the last term only where features end in a sigmoid,
where c_i R begins with 1, with R scaled by G's singular values; h is what enters C, with dropout within [0, 1 / (1 - p)]. Starts:
C = B pinv(D') G' with D at random points around a common one; a short descent of many, a long one of the best.

In the spirit of the cocktail-party attack (Kariyappa et al., ICML 2023, arXiv 2209.05578), with the known classifier in place of
independent h_i. The residual is the attacker's own certificate: below SEPARATED labels and features explain all of the
classifier's gradient. They are then right, up to directions that G leaves below single precision, in every measurement
(docs/appendix/attacks.md); noise, and images whose d_i are parallel, leave nothing to separate; a gradient that is zero or not
finite is left out, with NaN for its features and residual. Labels: attacks/common/labels.py, and where
their residual stays above SEPARATED, every batch with one label exchanged, of which the one with the lowest residual is solved
from all starts.

Behind a first layer with ReLUs no descent is needed: separation/relu_batches.py finds h and d of all images in closed form,
where the batch is small.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from attacks.common import gradient_distance, labels
from attacks.features.separation import relu_batches
from attacks.features.separation.row_spaces import SEPARATED, Disaggregated, RowSpaces
from privbench.defending import described
from privbench.networks import head_probe
from privbench.networks.base import LinearClassifier
from privbench.types import Artifact, Progress, no_progress

RESTARTS = 32
EXCHANGES = 4  # starts of every exchanged label


def possible(artifact: Artifact) -> bool:
    """Whether there is a first linear layer whose gradient is exact, of the images alone, and of a rank that can hold them.

    In the layer of the logits the d_i = p_i - e_y of cross-entropy add up to 0, so that Y of them are dependent.
    """
    classifier = artifact.model.classifier
    exact = described.is_exact(artifact.defense) and not artifact.imitated and artifact.model.last_inputs is not None
    if not exact or not isinstance(classifier, LinearClassifier):
        return False
    rows = len(artifact.weights["classifier"][f"{classifier.features_layer}.bias"])
    return artifact.batch_size <= rows - (classifier.features_layer == classifier.logits_layer)


def disaggregate(artifact: Artifact, seed: int, progress: Progress = no_progress) -> Disaggregated:
    """Labels and features of all batches; only where `possible`."""
    recovered = labels.recover(artifact)
    row_spaces = RowSpaces(artifact)
    exact = _through_relus(artifact, row_spaces.solvable, seed)
    if len(exact) == artifact.victims:
        h, y, residual = (torch.stack(each) for each in zip(*(exact[v] for v in sorted(exact)), strict=True))
        return Disaggregated(h, y, residual, 0)
    row_spaces.solvable = row_spaces.solvable.index_fill(
        0, torch.tensor([*exact], dtype=torch.int64).to(recovered.device), value=False
    )
    solvable = torch.nonzero(row_spaces.solvable)[:, 0]
    batches = row_spaces.solve(solvable.cpu(), recovered[solvable], seed, RESTARTS, progress) if len(solvable) else None
    if batches is None or len(solvable) < artifact.victims:
        batches = _among(artifact, recovered, solvable, batches)
    for v, closed in exact.items():
        for whole, part in zip(batches[:3], closed, strict=True):
            whole[v] = part
    if artifact.labels is not None:
        return batches
    for v in torch.nonzero(~batches.sound & row_spaces.solvable)[:, 0].tolist():
        weights = None if artifact.image_weights is None else artifact.image_weights[v]
        others = _exchanged(recovered[v], labels.fewest(artifact)[v], weights)
        if not len(others):
            continue
        rows = torch.full((len(others),), v)
        tried = row_spaces.solve(rows, others, seed, EXCHANGES, progress)
        best = int(tried.residual.argmin())
        again = row_spaces.solve(rows[:1], others[best : best + 1], seed, RESTARTS, progress)
        spent = batches.evaluations + tried.evaluations + again.evaluations
        if again.residual[0] < batches.residual[v]:
            for whole, one in zip(batches[:3], again[:3], strict=True):
                whole[v] = one[0]
        batches = batches._replace(evaluations=spent)
    return batches


def _through_relus(artifact: Artifact, solvable: Tensor, seed: int) -> dict[int, tuple[Tensor, Tensor, Tensor]]:
    """Victim -> (h [B, c, s, s], labels [B], residual []) of batches that a head with ReLUs shows in closed form.

    A label is that whose d_i, by h_i and the broadcast classifier, has the direction found; the residual is that of a descent.
    """
    model, weights = artifact.model, artifact.weights["classifier"]
    if artifact.batch_size < 2 or artifact.image_weights is not None or not head_probe.is_relu(model, weights):
        return {}
    classifier, layer = model.classifier, model.classifier.features_layer
    assert isinstance(classifier, LinearClassifier), "the caller has asked whether separation is possible"
    params = {n: t.double() for n, t in weights.items()}
    ended = {}
    for v in torch.nonzero(solvable)[:, 0].tolist():
        observed = {n: t[v].double() for n, t in artifact.gradients["classifier"].items()}
        separated = relu_batches.separated(
            observed[f"{layer}.weight"], observed[f"{layer}.bias"], artifact.batch_size, seed, v
        )
        if separated is None:
            continue
        every = torch.arange(model.classes, device=separated.inputs.device)
        h, y = separated.inputs.repeat_interleave(model.classes, 0), every.repeat(artifact.batch_size)

        def loss(bias: Tensor, h: Tensor = h, y: Tensor = y) -> Tensor:
            logits, _ = classifier.linear_layers(params | {f"{layer}.bias": bias}, h)
            return F.cross_entropy(logits, y, reduction="sum")

        d = grad(loss)(params[f"{layer}.bias"].expand(len(h), -1)).unflatten(0, (-1, model.classes))
        alike = F.cosine_similarity(d, separated.deltas[:, None], dim=2)
        labels_ = alike.argmax(1)
        if artifact.labels is not None and not torch.equal(labels_.sort().values, artifact.labels[v].sort().values):
            continue
        named = {f"classifier/{n}": t for n, t in observed.items()}
        products = gradient_distance.classifier_products(model, params, separated.inputs, labels_, named)
        residual = gradient_distance.layer_scaled_distance(products).detach()
        if residual < SEPARATED:
            ended[v] = (separated.inputs.unflatten(1, model.feature_shape), labels_, residual)
    return ended


def _among(artifact: Artifact, recovered: Tensor, rows: Tensor, solved: Disaggregated | None) -> Disaggregated:
    """The `solved` batches, those in `rows`, among all V: NaN for the features and the residual of the others."""
    shape = (artifact.victims, artifact.batch_size, *artifact.model.feature_shape)
    h = torch.full(shape, torch.nan, dtype=torch.float64, device=recovered.device)
    labels_, residual, spent = recovered.clone(), h[:, 0, 0, 0, 0].clone(), 0
    if solved is not None:
        h[rows], labels_[rows], residual[rows], spent = solved
    return Disaggregated(h, labels_, residual, spent)


def _exchanged(recovered: Tensor, fewest: Tensor, weights: Tensor | None = None) -> Tensor:
    """Every batch of labels [n, B] that differs from `recovered` [B] in one, and has of each class at least `fewest` [Y].

    Where images count for different `weights` [B], it also matters whose label it is: every image's is changed, and those of two
    images are exchanged.
    """
    counts = torch.bincount(recovered, minlength=len(fewest))
    if weights is not None:
        return _exchanged_among(recovered, counts > fewest, weights)
    batches = []
    for out in torch.nonzero(counts > fewest)[:, 0].tolist():
        for into in range(len(counts)):
            if into != out:
                other = counts.clone()
                other[out] -= 1
                other[into] += 1
                batches.append(torch.repeat_interleave(torch.arange(len(other), device=recovered.device), other))
    return torch.stack(batches) if batches else recovered.new_zeros(0, len(recovered))


def _exchanged_among(recovered: Tensor, spare: Tensor, weights: Tensor) -> Tensor:
    """`_exchanged` of images of different weights, each once; `spare` [Y] says of which classes one may be taken away."""
    batches = {}
    several = [torch.nonzero(weights == w)[:, 0] for w in weights.unique()]

    def add(other: Tensor) -> None:
        for rows in several:
            other[rows] = other[rows].sort().values
        batches[tuple(other.tolist())] = other

    for i in range(len(recovered)):
        for into in range(len(spare)):
            if spare[recovered[i]] and into != recovered[i]:
                add(recovered.index_fill(0, torch.tensor([i], device=recovered.device), into))
        for j in range(i):
            if recovered[i] != recovered[j] and weights[i] != weights[j]:
                other = recovered.clone()
                other[i], other[j] = recovered[j], recovered[i]
                add(other)
    return torch.stack([*batches.values()]) if batches else recovered.new_zeros(0, len(recovered))
