"""What a method sends and how long it takes, by phase as measured, and what that projects to beside SecureGAN's published totals.

A phase is all rounds of a training in which as many clients take part. The projection is arithmetic: message, ciphertext and number
of clients are those of a measured run, epochs are those that the paper prints, and what else it needs is an assumption that the
report states.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

from privbench.records.entries import SeedTraining
from privbench.records.schema import Record
from privbench.training.history import Round
from reports.records import grouping
from reports.records.labels import label
from reports.records.number_text import NONE
from reports.records.remarks import NOT_BESIDE, training_header
from reports.tables.report import Report, Table

NUMBER_BYTES = 4  # of a number in the clear
GB = 1e9


class PublishedTraffic(NamedTuple):
    """What SecureGAN prints of its traffic and of BatchCrypt's (Zhang et al., USENIX ATC 2020) over so many epochs, in GB."""

    epochs: int
    secure: float
    encrypted: float
    source: str = "SecureGAN, its comparison with BatchCrypt"


PUBLISHED = (PublishedTraffic(250, 73.0, 211.0), PublishedTraffic(100, 90.0, 1090.0))


class RoundsOfPhase(NamedTuple):
    """The rounds of one training in which so many clients take part."""

    clients: int
    rounds: tuple[Round, ...]

    @property
    def up(self) -> float:
        """Bytes that one of them sends in a round."""
        return fmean(sum(r.bytes_up) / self.clients for r in self.rounds)

    @property
    def down(self) -> float:
        """Bytes that one of them receives in a round."""
        return fmean(sum(r.bytes_down) / self.clients for r in self.rounds)

    @property
    def seconds(self) -> float:
        """Of a round."""
        return fmean(r.seconds for r in self.rounds)

    @property
    def adding_up(self) -> float | None:
        """Seconds of a round that hiding, adding up and opening messages take; None where nothing is."""
        each = [r.aggregation_seconds for r in self.rounds]
        return None if None in each else fmean(value or 0.0 for value in each)


class Setting(NamedTuple):
    """What a projection takes from a measured run."""

    clients: int  # K
    message: float  # bytes of the generator in the clear
    expansion: float  # bytes of its ciphertext / those

    def secure(self, epochs: int, senders: int) -> float:
        """Bytes of SecureGAN: K generators down and K ciphertexts up once, then `senders` generators down and up in every epoch."""
        once = self.clients * self.message * (1 + self.expansion)
        return once + (epochs - 1) * senders * 2 * self.message

    def encrypted(self, epochs: int) -> float:
        """Bytes of a method whose K clients send a ciphertext and receive the encrypted sum in every epoch."""
        return epochs * self.clients * 2 * self.message * self.expansion

    def implied_clients(self, published: PublishedTraffic) -> float:
        """K at which `secure` with one sender is as many times less than `encrypted` as published."""
        ratio, later = published.encrypted / published.secure, 2 * (published.epochs - 1)
        return later * ratio / (2 * published.epochs * self.expansion - ratio * (1 + self.expansion))

    def implied_parameters(self, published: PublishedTraffic) -> float:
        """Numbers in a message with which `encrypted` sends as much as published."""
        each = 2 * published.epochs * self.clients * self.expansion * NUMBER_BYTES
        return published.encrypted * GB / each


def implied_expansion(published: PublishedTraffic) -> float:
    """The expansion at which `secure`, with all clients in every epoch, is as many times less than `encrypted` as published.

    2 E x / (x + 1 + 2 (E - 1)) = r. Whatever the number of clients and the size of a message.
    """
    ratio, twice = published.encrypted / published.secure, 2 * published.epochs
    return ratio * (twice - 1) / (twice - ratio)


def phases(training: SeedTraining) -> list[RoundsOfPhase]:
    """The phases of one training, in the order of their first rounds."""
    by_clients: dict[int, list[Round]] = {}
    for entry in training.rounds:
        count = len(entry.bytes_up) if entry.participants is None else len(entry.participants)
        by_clients.setdefault(count, []).append(entry)
    return [RoundsOfPhase(count, tuple(rounds)) for count, rounds in by_clients.items()]


def setting_of(record: Record) -> Setting | None:
    """What a run gives a projection whose clients' messages are hidden in one phase and are in the clear in a later one."""
    each = phases(record.training[0]) if record.training else []
    hidden = [phase for phase in each if phase.adding_up is not None]
    if len(each) < 2 or not hidden:
        return None
    return Setting(hidden[0].clients, hidden[0].down, hidden[0].up / hidden[0].down)


def report(records: Sequence[Record]) -> Report:
    """Measured phases of every run; then the projections, of which the runs whose sums were hidden are the source."""
    measured, numbers = [], []
    projected: list[tuple[str, Setting]] = []
    for key in grouping.settings(records):
        chosen = {name: r for name, r in grouping.chosen(records, key).items() if r.training and r.training[0].rounds}
        rows = {name: [phases(t) for t in r.training] for name, r in chosen.items()}
        body = [line for name, of_seeds in rows.items() for line in _measured(name, of_seeds)]
        measured.append(Table(f"Measured: {grouping.title(key)}", MEASURED, body))
        numbers += [n for name, of_seeds in rows.items() for n in _numbers(grouping.title(key), name, of_seeds)]
        projected += [(label(r.cell), s) for r in chosen.values() if (s := setting_of(r)) is not None]
    tables = [*measured, *(_projection(projected) if projected else [])]
    # Printed totals are beside a projection alone, never beside a measured row.
    beside = "Published totals stand beside a projection" if projected else NOT_BESIDE
    notes = [*training_header(records, beside), *_notes(bool(projected))]
    return Report("Communication and time by phase", notes, tables, numbers)


MEASURED = [
    "", "rounds", "clients a round", "sent by each, MB", "received by each, MB", "all of them, MB a round", "s a round",
    "of it adding up, s",
]  # fmt: skip


def _measured(name: str, seeds: Sequence[Sequence[RoundsOfPhase]]) -> list[list[str]]:
    """One row a phase, bytes and seconds averaged over seeds."""
    rows = []
    for n, phase in enumerate(seeds[0]):
        alike = [each[n] for each in seeds if len(each) > n]
        up, down = fmean(p.up for p in alike), fmean(p.down for p in alike)
        adding = [p.adding_up for p in alike if p.adding_up is not None]
        rows.append(
            [
                f"{name}, phase {n + 1}" if len(seeds[0]) > 1 else name,
                _rounds(phase.rounds),
                str(phase.clients),
                *(f"{value / 1e6:.3f}" for value in (up, down, phase.clients * (up + down))),
                f"{fmean(p.seconds for p in alike):.2f}",
                f"{fmean(adding):.2f}" if adding else NONE,
            ]
        )
    return rows


def _rounds(rounds: Sequence[Round]) -> str:
    first, last = rounds[0].round, rounds[-1].round
    return str(first) if first == last else f"{first} to {last}"


def _numbers(setting: str, name: str, seeds: Sequence[Sequence[RoundsOfPhase]]) -> list[dict[str, Any]]:
    return [
        {
            "setting": setting, "row": name, "seed": s, "phase": n + 1, "rounds": len(p.rounds), "clients": p.clients,
            "bytes_up": p.up, "bytes_down": p.down, "seconds": p.seconds, "aggregation_seconds": p.adding_up,
        }
        for s, of_seed in enumerate(seeds)
        for n, p in enumerate(of_seed)
    ]  # fmt: skip


def _projection(settings: Sequence[tuple[str, Setting]]) -> list[Table]:
    """Totals beside the published ones under both readings of phase 2, and what would have to hold for the published ratio."""
    totals, implied = [], []
    for p in PUBLISHED:
        totals.append(
            ["published", str(p.epochs), f"{p.secure:g}", f"{p.encrypted:g}", f"{p.encrypted / p.secure:.1f}"]
        )
        for name, s in settings:
            for words, senders in (("one client an epoch", 1), (f"all {s.clients} clients an epoch", s.clients)):
                secure, encrypted = s.secure(p.epochs, senders), s.encrypted(p.epochs)
                totals.append(
                    [
                        f"{name}, phase 2: {words}", str(p.epochs), f"{secure / GB:.3g}", f"{encrypted / GB:.3g}",
                        f"{encrypted / secure:.1f}",
                    ]
                )  # fmt: skip
            implied.append(
                [
                    name, str(p.epochs), f"{s.message / NUMBER_BYTES:,.0f}", f"{s.implied_parameters(p):,.0f}",
                    f"{s.expansion:.2f}", f"{implied_expansion(p):.2f}", f"{s.implied_clients(p):.2f} of {s.clients}",
                ]
            )  # fmt: skip
    columns = ["", "epochs", "SecureGAN, GB", "all encrypted or masked, GB", "times less"]
    needed = [
        "", "epochs", "numbers in a message here", "numbers that the published total needs", "expansion here",
        "expansion that the published ratio needs, all clients an epoch",
        "clients that it needs, one client an epoch",
    ]  # fmt: skip
    return [
        Table("Projection beside the published totals", columns, totals, [f"Published: {PUBLISHED[0].source}."]),
        Table("What the published numbers would need", needed, implied, [BELOW_ONE]),
    ]


BELOW_ONE = "Less than one client means that no number of clients gives the published ratio under that reading."
ASSUMPTIONS = (
    "Assumption 1, clients: as many as the measured run has. The printed settings that this suite holds name none.",
    "Assumption 2, epochs: every printed epoch is one round of messages.",
    "Assumption 3, message: the generator of this suite with its batch-norm statistics, 4 bytes a number.",
    "Assumption 4, ciphertext: the expansion measured here, bytes that a client serialised over bytes of the same "
    "message in the clear.",
    "Assumption 5, phase 1: once; every client receives the first generator in the clear and sends its own encrypted.",
    "Assumption 6, phase 2: in every later epoch a generator goes down and comes up in the clear, of one client or, as the other "
    "reading, of all.",
    "Assumption 7, what SecureGAN is compared with: in every epoch every client sends the same message encrypted and receives the "
    "encrypted sum, in the ciphertexts measured here. BatchCrypt packs quantised numbers into Paillier ciphertexts instead, which "
    "is not measured.",
    "Assumption 8: keys, key agreement and the transport's own headers are not counted; 1 GB is 10^9 bytes.",
    "Not known of the published totals: the number of clients, the networks and their sizes, which data set is which row, what an "
    "epoch sends, whether downloads are counted, and BatchCrypt's keys and quantisation.",
)


def _notes(projected: bool) -> list[str]:
    measured = [
        "Bytes are those that clients serialised. Seconds are those of all of a round's training on one machine, without "
        "evaluation; adding up includes hiding and opening. Means over rounds, clients and seeds.",
    ]
    return [*measured, *(ASSUMPTIONS if projected else ())]
