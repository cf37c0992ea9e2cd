"""An active server: of an honest and a crafted classifier it sends the one that brings back more of the images.

What it crafts (attacks/crafted.py) depends on the uploads that it expects:
    one image, E broadcast     a gentle classifier: h in closed form, and E's gradient, go to `staged`
    a batch                    a steep one, which sorts the images into rows of its first layer's gradient
                               (attacks/imprinted_rows.py): features of single images, inverted as in attacks/staged.py
    under noise                a loud one of either kind, under which the noise cannot be heard: everything goes on as without
                               noise. An image of the class that has won leaves no gradient, and ends at the mean of the two.
    E private                  features alone, which are attacked by the stand-ins of `aligned-surrogate` through the classifier
                               that an honest server would have sent, without which (an artifact file alone) there are the
                               class means. Of one image without noise an honest classifier gives the same features, and is
                               sent. Of a batch every image with a row of its own is a victim of its own, as in
                               attacks/each_image.py; the others end at the class means.

Where E is broadcast the choice is rehearsed before anything is sent (attacks/rehearsal.py): crafted with one half of the
auxiliary images and tried on some of the other, against what a passive attacker (attacks/broadcast.py) makes of the honest
classifier's gradients. An honest classifier it is where that scores higher, e.g. where a defence clips, and what comes back
is then attacked as by that attacker, bit by bit. Whether it was honest is told from what it would have sent, had it been.

Fowl et al.: Robbing the Fed, ICLR 2022, arXiv 2110.13057 (bins of a ReLU layer, told apart by differences of rows; a
sigmoid's slope makes bins of its own). Deviations: the layer stands at its place in the architecture, behind the extractor,
as a client would look at shapes, so that features are imprinted and not images. Where E is private, w is the direction along which
the honest first layer looks most, and levels are spread over all that w h can be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from attacks import broadcast as passive
from attacks import broken, case, crafted, descend, each_image, features, imprinted_rows, labels, rehearsal, staged
from attacks.aligned_surrogate import AlignedSurrogate
from attacks.crafted import Winners
from attacks.floors import ClassMean
from attacks.separate import Separated
from privbench.errors import UserError
from privbench.nets import LinearClassifier, Model
from privbench.settings import Count, CountOrZero
from privbench.types import Artifact, Batch, Knowledge, Look, Networks, Reconstruction, Report, no_report

HONEST = Networks({}, {})  # nothing in place of the broadcast
LOST = 1e-6  # |dL/db| of a loud classifier's first layer relative to S, below which the image's class has won


@dataclass(frozen=True)
class Imprint(AlignedSurrogate):
    """One crafted classifier, or the honest one, and what it tells of the images."""

    feature_steps: Count = 300  # of the inversion of a batch's features
    rehearsal_images: CountOrZero = 12  # 0: what is crafted is sent without a rehearsal

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "auxiliary"})
    knowledge: ClassVar[str] = "active server + auxiliary"
    rung: ClassVar[str] = "L7"
    active: ClassVar[bool] = True
    revision: ClassVar[int] = 2  # 1: noise, auxiliary images, E's gradient; 2: gentle, loud or honest, as rehearsed

    def craft(self, model: Model, broadcast: Networks, knowledge: Knowledge, seed: int) -> Networks:
        """The classifier to send in place of the broadcast one, or HONEST; UserError unless its first layer is linear."""
        if not isinstance(model.classifier, LinearClassifier):
            raise UserError(f"imprint needs a classifier that begins with a linear layer, but it is {model.backbone}'s")
        assert knowledge.auxiliary is not None, "the needs name auxiliary images"
        assert knowledge.look is not None, "active attacks are told of the uploads to come"
        look, auxiliary = knowledge.look, knowledge.auxiliary
        noise = rehearsal.noise_std(look.defense, seed)
        if "extractor" not in broadcast.params:
            alone = look.batch_size == 1 and not noise
            return HONEST if alone else self._crafted(model, broadcast, auxiliary, look, noise, seed)
        if not self._serves(model, broadcast, auxiliary, look, noise, seed):
            return HONEST
        return self._crafted(model, broadcast, auxiliary, look, noise, seed)

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, report: Report = no_report
    ) -> Reconstruction:
        """All victims; UserError where the classifier is neither crafted nor, as far as is known, sent by this attack."""
        if _sent_honestly(artifact, knowledge):
            if "extractor" not in artifact.weights:
                return super().reconstruct(artifact, knowledge, seed, report)
            found = passive.attack(artifact, knowledge, seed, report)
            return found._replace(notes=(*found.notes, _note(artifact, seed)))
        if not crafted.is_crafted(artifact.weights["classifier"]):
            raise UserError(
                "imprint reads what its own crafted classifier brought back, but these clients got an honest one; name it "
                "with --attack in a run of your own"
            )
        return broken.set_aside(artifact, lambda sound: self._read(sound, knowledge, seed, report))

    def _crafted(
        self, model: Model, broadcast: Networks, auxiliary: Batch, look: Look, noise: float, seed: int
    ) -> Networks:
        """What to send in place of an honest classifier."""
        honest, several = broadcast.params["classifier"], look.batch_size > 1
        rows = len(honest["fc1.bias"])
        if "extractor" in broadcast.params:
            params, buffers = broadcast.params["extractor"], broadcast.buffers.get("extractor", {})
            with torch.no_grad():
                h, _ = model.net("extractor").apply(params, buffers, auxiliary.images, train=False)
            h, y = h.flatten(1).double(), auxiliary.labels
            w = crafted.principal_direction(h) if several else crafted.discriminant(h, y, model.classes)
            t = h @ w
            layer = (
                crafted.steep(crafted.quantiles(t, rows)) if several else crafted.gentle(*crafted.widened(t), rows, w)
            )
            winners = crafted.told_apart(t, y, model.classes)[1]
        else:
            w = crafted.principal_direction(honest["fc1.weight"].double(), centred=False)
            low, high = crafted.whole_range(w)
            layer = (
                crafted.steep(torch.linspace(low, high, rows).to(w)) if several else crafted.gentle(low, high, rows, w)
            )
            rarest = torch.bincount(auxiliary.labels, minlength=model.classes).argsort(stable=True)
            winners = Winners(int(rarest[0]), int(rarest[1]), (low + high) / 2)
        sent = crafted.classifier(honest, w, layer, winners, crafted.loudness(noise))
        return Networks({"classifier": sent}, {})

    def _serves(self, model: Model, broadcast: Networks, auxiliary: Batch, look: Look, noise: float, seed: int) -> bool:
        """Whether a crafted classifier brings back more of the attacker's own images than an honest one."""
        others, mine = rehearsal.halves(auxiliary, seed)
        if not self.rehearsal_images or len(others.labels) < look.batch_size:
            return True
        clients, known = rehearsal.batches(others, self.rehearsal_images, look.batch_size), Knowledge(mine)
        sent = self._crafted(model, broadcast, mine, look, noise, seed)

        def worth(networks: Networks, attack: Callable[[Artifact], Reconstruction]) -> float:
            return rehearsal.psnr_db(attack, rehearsal.observed(model, networks, clients, look, seed), clients.images)

        acting = worth(
            Networks(broadcast.params | sent.params, broadcast.buffers),
            lambda seen: self._read(seen, known, seed, no_report),
        )
        return acting > worth(broadcast, lambda seen: passive.attack(seen, known, seed))

    def _read(self, artifact: Artifact, knowledge: Knowledge, seed: int, report: Report) -> Reconstruction:
        """What a crafted classifier brought back of all victims."""
        if artifact.batch_size > 1:
            case.check_batch_size(artifact)
            clear = (
                replace(artifact, defense={"name": "none"})
                if crafted.is_loud(artifact.weights["classifier"])
                else artifact
            )
            return (self._batches if "extractor" in artifact.weights else self._private_batches)(
                clear, knowledge, seed, report
            )
        if not crafted.is_loud(artifact.weights["classifier"]):
            return self._single(artifact, knowledge, seed, report)
        left = artifact.gradients["classifier"]["fc1.bias"].norm(dim=1)
        heard = torch.nonzero(left > LOST * artifact.weights["classifier"]["fc3.bias"].abs().max())[:, 0]
        found = _means_of_winners(artifact, knowledge)
        if not len(heard):
            return found
        return broken.put(found, heard, self._single(_cleared(artifact.some(heard)), knowledge, seed, report))

    def _single(self, artifact: Artifact, knowledge: Knowledge, seed: int, report: Report) -> Reconstruction:
        """Gradients of one image each, without noise."""
        if "extractor" in artifact.weights:
            return staged.once(artifact, knowledge, seed, report)
        return self._through_honest(artifact, knowledge, seed, report)

    def _through_honest(self, artifact: Artifact, knowledge: Knowledge, seed: int, report: Report) -> Reconstruction:
        """Gradients of one image each of private extractors, by the stand-ins of `aligned-surrogate`."""
        if knowledge.broadcast is None:
            return ClassMean().reconstruct(artifact, knowledge, seed, report)
        honest = {"classifier": knowledge.broadcast.params["classifier"]}
        return super().reconstruct(replace(artifact, weights=artifact.weights | honest), knowledge, seed, report)

    def _batches(self, artifact: Artifact, knowledge: Knowledge, seed: int, report: Report) -> Reconstruction:
        """The features of single images, inverted."""
        found, own = imprinted_rows.features_of(artifact), case.make(artifact, seed)
        own = own._replace(labels=_completed(imprinted_rows.labels_of(artifact, found), own.labels))
        start = case.plain_start(artifact, seed)
        end = staged.Staged(feature_steps=self.feature_steps).invert(own, found.h, None, start, report)
        return descend.reconstruction(end, 1, own.labels)

    def _private_batches(self, artifact: Artifact, knowledge: Knowledge, seed: int, report: Report) -> Reconstruction:
        """Every image with a row of its own as a victim of its own; class means for the others."""
        found = imprinted_rows.features_of(artifact)
        y = imprinted_rows.labels_of(artifact, found)
        told = y != imprinted_rows.NONE
        y = _completed(y, labels.recover(artifact))
        each = each_image.singles(artifact, Separated(found.h, y, y[:, 0].double(), 0))
        whole = ClassMean().reconstruct(each, knowledge, seed)
        rows = torch.nonzero(told.flatten())[:, 0]
        if len(rows):
            whole = broken.put(whole, rows, self._through_honest(each.some(rows), knowledge, seed, report))
        return each_image.folded(whole, artifact.batch_size)


def _sent_honestly(artifact: Artifact, knowledge: Knowledge) -> bool:
    """Whether the clients got what an honest server would have sent: in a run of its own that was the attack's choice."""
    if knowledge.broadcast is None:
        return False
    honest, got = knowledge.broadcast.params["classifier"], artifact.weights["classifier"]
    return all(torch.equal(t, got[name]) for name, t in honest.items())


def _note(artifact: Artifact, seed: int) -> str:
    """What a reader must know of an honest server's numbers."""
    return (
        f"{artifact.dataset}, {artifact.method}, round {artifact.round}, seed {seed}: imprint sent the honest classifier, which "
        "brought back more in its rehearsal than a crafted one"
    )


def _cleared(artifact: Artifact) -> Artifact:
    """One-image gradients of a loud classifier as they would be without noise.

    C's gradient is computed of the features in closed form and the label, which is told by how large that of the first layer is:
    the last layer's is no louder than the noise.
    """
    h = features.closed_form(artifact)
    assert h is not None, "of one image through a linear layer, features have a closed form"
    every = torch.arange(artifact.weights["classifier"]["fc1.bias"].numel(), device=h.device)
    told = [imprinted_rows.likeliest_label(artifact, v, one, every)[0] for v, one in enumerate(h)]
    y = torch.tensor(told, device=h.device)[:, None] if artifact.labels is None else artifact.labels
    each = each_image.singles(artifact, Separated(h[:, None], y, h[:, 0, 0, 0], 0))
    return replace(each, gradients=artifact.gradients | each.gradients, defense={"name": "none"})


def _means_of_winners(artifact: Artifact, knowledge: Knowledge) -> Reconstruction:
    """For images of which a loud classifier leaves no gradient, as they are of either class that wins: the mean of these two."""
    assert knowledge.auxiliary is not None, "the needs name auxiliary images"
    images, y = knowledge.auxiliary
    below, above = crafted.winners_of(artifact.weights["classifier"])
    either = (y == below) | (y == above)
    mean = images[either if bool(either.any()) else slice(None)].mean(0)
    zero = torch.zeros(artifact.victims, dtype=torch.float64, device=images.device)
    x = mean.expand(artifact.victims, 1, *mean.shape).double()
    first = torch.zeros_like(artifact.client)
    return Reconstruction(x, torch.full_like(first, below)[:, None], zero, zero[:, None], first, 0)


def _completed(told: Tensor, recovered: Tensor) -> Tensor:
    """Labels [V, B]: those `told`, and in place of NONE what is left of the batch's `recovered` ones."""
    whole = told.clone()
    for v, (own, every) in enumerate(zip(told.tolist(), recovered.tolist(), strict=True)):
        left = list(every)
        for label in own:
            if label in left:
                left.remove(label)
        whole[v, told[v] == imprinted_rows.NONE] = told.new_tensor(left[: own.count(imprinted_rows.NONE)])
    return whole
