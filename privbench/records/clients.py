"""clients.json of a training run: who holds how many images of which class, so that it can be drawn without the data."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

from privbench.data import partition
from privbench.errors import UserError
from privbench.records.store import Store
from privbench.spec import TrainSpec
from privbench.system import files
from privbench.training import training_files
from privbench.types import Federation

Number = Annotated[int, Field(ge=0, le=2**53)]


class Clients(NamedTuple):
    """Who holds how many images of which class in a training run."""

    classes: list[str]
    clients: list[dict[str, Any]]  # privbench.data.partition.census
    public: int  # images of no client


class _Census(BaseModel):
    """What the file holds of one client."""

    model_config = ConfigDict(extra="forbid", strict=True)

    domain: str
    train: list[Number]
    validation: list[Number]
    test: list[Number]


class _Content(BaseModel):
    """What the file holds beside the run that it belongs to."""

    model_config = ConfigDict(extra="ignore", strict=True)

    classes: Annotated[list[str], Field(min_length=1)]
    clients: Annotated[list[_Census], Field(min_length=1)]
    public: Number

    @model_validator(mode="after")
    def _consistent(self) -> _Content:
        for each in self.clients:
            if {len(each.train), len(each.validation), len(each.test)} != {len(self.classes)}:
                raise ValueError(f"a client should have a number for each of {len(self.classes)} classes")
        return self


def write_clients(store: Store, spec: TrainSpec, fed: Federation) -> None:
    """Writes clients.json, from which the label histogram is drawn without training or reading the data again."""
    if files.to_write(store.clients(spec)):
        public = 0 if fed.public is None else len(fed.public.labels)
        content = Clients(list(fed.classes), partition.census(fed), public)
        files.write_digested(store.clients(spec), {"spec": spec.id, **content._asdict()})


def read_clients(store: Store, spec: TrainSpec) -> Clients:
    """What `write_clients` wrote; UserError when the file is missing, damaged, altered or another run's."""
    path = store.clients(spec)
    if not path.exists():
        raise UserError(f"run {spec.id} has no clients.json: an earlier version trained it; leave --run out")
    value = files.read_digested(path)
    files.check_identity(path, value, spec=spec.id)
    with training_files.reading(path):
        content = _Content.model_validate(value).model_dump()
        return Clients(**{name: content[name] for name in Clients._fields})
