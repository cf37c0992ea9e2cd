"""The domains of which an inference names one for each client, and auxiliary images of each, from which it learns them.

Every client's images are of one domain, and the candidates are the domains of all clients. The attacker has auxiliary images of
each candidate and does not know which client holds which. The attacker counts candidates in an order that is drawn from the run's
seed by a name of its own, so that neither a client's number nor a tie tells anything. Auxiliary images are pooled client after
client: the attacker gets them, with their domains, candidate by candidate as it counts them, so that their order tells nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from privbench.data import auxiliary_choice, partition
from privbench.errors import UserError
from privbench.observation import knowledge
from privbench.seeds import stream
from privbench.spec import CellSpec, TrainSpec
from privbench.training import federation
from privbench.types import Batch, Federation

NAME = "candidate domains"  # of the random stream


class AskedDomains(NamedTuple):
    """What an inference is asked about, and what its answers mean."""

    domains: Tensor  # [N] int64, ascending: the candidate, as the attacker counts them, of each auxiliary image
    order: Tensor  # [N] int64: which of the cell's auxiliary images each of them is
    place: Tensor  # [D] int64: how the attacker counts the candidates of `names`

    def in_order_of_candidates(self, images: Batch) -> Batch:
        """The cell's auxiliary images as the attacker gets them, those of `domains`."""
        return Batch(*(t[self.order] for t in images))

    def in_order_of_names(self, answers: Tensor) -> Tensor:
        """The attacker's answers [K', D] in the order of `names`."""
        return answers[:, self.place]


def names(fed: Federation) -> list[str]:
    """The candidates: the domains that clients hold, in alphabetical order."""
    return sorted({client.domain for client in fed.clients})


def of_cell(cell: CellSpec, spec: TrainSpec, fed: Federation, root: Path | None) -> AskedDomains:
    """The candidates of one seed of a cell, with its auxiliary images.

    UserError: clients of one domain alone, or that train on tasks; auxiliary images of another data set; of a candidate is none.
    """
    if federation.method_of(spec).client_tasks is not None:
        raise UserError(
            f"{cell.attack} asks of which domain a client's images are, but {spec.method} trains on tasks; try --method fedavg"
        )
    candidates = names(fed)
    if len(candidates) < 2:
        raise UserError(f"{cell.attack} asks of which domain a client's images are, but {_of_one(spec, candidates[0])}")
    if auxiliary_choice.parsed(cell.auxiliary)[0] != auxiliary_choice.SAME:
        raise UserError(
            f"{cell.attack} learns the domains of {spec.dataset} from auxiliary images of each, but --auxiliary {cell.auxiliary} "
            "has none of them; leave it out, or take a share, e.g. same:0.5"
        )
    # The labels of these images say the domain, so that the domains are chosen as the images are.
    clients = [
        client._replace(
            validation=client.validation._replace(
                labels=torch.full_like(client.validation.labels, candidates.index(client.domain))
            )
        )
        for client in fed.clients
    ]
    shape = (int(fed.clients[0].train.images.shape[1]), spec.image_size, spec.image_size)
    of_domains = fed._replace(clients=tuple(clients), classes=tuple(candidates))
    named = knowledge.auxiliary(of_domains, cell.auxiliary, root, shape, spec.seed)[0].labels
    for candidate, name in enumerate(candidates):
        if not bool((named == candidate).any()):
            raise UserError(
                f"{cell.attack} learns domains from auxiliary images, but there is none of {name}; raise --auxiliary "
                f"{cell.auxiliary}"
            )
    place = torch.randperm(len(candidates), generator=stream(spec.seed, NAME))
    domains, order = place[named].sort(stable=True)
    return AskedDomains(domains, order, place)


def _of_one(spec: TrainSpec, domain: str) -> str:
    """Why there is one domain alone, and the way out."""
    if domain == partition.POOLED:
        return f"--partition {spec.partition} pools the domains; try --partition domain"
    if spec.domains is not None:
        return f"all clients' are of one, {domain}; name another one with --domains, or leave it out"
    return "all clients' are of one; try --dataset digits4 --partition domain"
