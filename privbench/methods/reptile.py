"""Reptile: federated meta-learning. The server keeps a meta-learner, the clients' data are tasks.

Nichol, Achiam, Schulman: On First-Order Meta-Learning Algorithms, 2018, arXiv 1803.02999, Algorithm 2. In every round client k
draws a task of N of its classes with K images each, and takes s steps on them from theta (the schedule's `client_steps`, else its
epochs, of mini-batches of `batch` images, else of all of them). It sends phi_k, which is theta and its update. The server:

    theta <- theta + e (1/n) sum_k (phi_k - theta),     e from `meta_lr` in the first round down to `meta_lr` / R in the last

The authors' code lowers e linearly to 0, and its Adam has beta1 = 0. Within a task the classes are called 0 to N - 1, and anew in
every round. A client's optimiser starts afresh with every task; in the authors' code Adam's squares go on.
What counts is not a client's own network: theta takes `tuning_steps` on the support set of a task of held-out classes and then
classifies its queries. `tasks` for each client validate, and as many test (privbench/training/task_evaluation.py).
`train_shots` gives a client's support set more images of each class than that of a test task, 10 or 15 in the authors' code:
Reptile learns from what one mini-batch of a task has in common with another. 0 takes K.
`turns` gives it SecureGAN's two phases (privbench/methods/secure_gan.py): all clients in round 1, whose sum secure aggregation
hides, then one client after another, whose message nothing is added to.
A defence that acts on every image has mini-batches drawn from all of the client's images of the N classes, as large in expectation
as those of a support set. That N classes of more were drawn amplifies nothing in its guarantee. Which classes can be drawn, and the
rate, follow from how many images a client has of each, which the guarantee takes as known: it is of data with these numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privbench.data.tasks import TaskShape
from privbench.methods.base import Method, Phase, RoundClock, at_least, cross_entropy_stage
from privbench.methods.participation import in_two_phases


@dataclass(frozen=True)
class Reptile(Method):
    """Shares E and C, a meta-learner: clients train it on few-shot tasks, the server moves towards their mean (Nichol 2018)."""

    ways: int = 5
    shots: int = 1
    train_shots: int = 0
    queries: int = 5
    tasks: int = 5
    tuning_steps: int = 20
    meta_lr: float = 1.0
    turns: bool = False  # two phases, as SecureGAN has

    paper: ClassVar[str] = "Nichol, Achiam and Schulman 2018, arXiv 1803.02999"
    parts: ClassVar[tuple[str, ...]] = ("extractor", "classifier")
    shared_parts: ClassVar[tuple[str, ...]] = ("extractor", "classifier")

    def __post_init__(self) -> None:
        """ValueError for fewer than two ways, no shots, queries, tasks or steps, a negative `train_shots` or `meta_lr`."""
        at_least(2, ways=self.ways)
        at_least(1, shots=self.shots, queries=self.queries, tasks=self.tasks, tuning_steps=self.tuning_steps)
        at_least(0, train_shots=self.train_shots, meta_lr=self.meta_lr)

    @property
    def test_tasks(self) -> TaskShape:
        """Tasks of held-out classes."""
        return TaskShape(self.ways, self.shots, self.queries, self.tasks, self.tuning_steps)

    @property
    def client_tasks(self) -> TaskShape:
        """Tasks of a client's classes."""
        return self.test_tasks._replace(shots=self.train_shots or self.shots)

    def counts_for(self, images: int) -> int:
        """All tasks count alike."""
        return 1

    def server_rate(self, clock: RoundClock) -> float:
        """e, lowered linearly."""
        return self.meta_lr * (1 - (clock.round - 1) / clock.rounds)

    def participants(self, round_: int, clients: int) -> tuple[int, ...]:
        """All in every round; in two phases all in round 1, then one after another."""
        return in_two_phases(round_, clients) if self.turns else super().participants(round_, clients)

    def client(self) -> tuple[Phase, ...]:
        """L_cls over E_i and C_i."""
        return (cross_entropy_stage(),)

    def notes(self) -> tuple[str, ...]:
        """What the accuracy is of."""
        tasks = self.test_tasks.in_words()
        accuracy = f"reptile: accuracy is that of {tasks} tasks, after {self.tuning_steps} steps on each support set"
        in_the_clear = "reptile: from round 2 on one client sends its networks in the clear, whatever the aggregation"
        return (accuracy, in_the_clear) if self.turns else (accuracy,)
