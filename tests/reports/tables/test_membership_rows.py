"""Intervals of membership over seeds that ask about other images, and over seeds that ask about the same."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import norm

from privbench.records.entries import Statement
from privbench.scoring import membership
from privbench.scoring.membership import recognition
from reports.tables.inferences import membership_rows

CLIENTS, ASKED, SHIFT = 4, 60, 0.2
TRUE = float(norm.cdf(SHIFT / np.sqrt(2)))


def asked(pool, seeds=5, rng=None, shift=SHIFT):
    """Statements of some seeds; each client is asked of images of one pool, whose scores are the same whoever is asked."""
    rng = rng or np.random.default_rng(0)
    scores = rng.normal(0, 1, pool)
    each = []
    for seed in range(seeds):
        for client in range(CLIENTS):
            chosen = rng.permutation(pool)[:ASKED]
            members = rng.normal(shift, 1, ASKED)
            stated = 1 / (1 + np.exp(-np.concatenate([members, scores[chosen]])))
            area = membership.auc(recognition(members, scores[chosen]))
            each.append(
                Statement(
                    seed=seed, client=client, uploads=1, stated=stated.tolist(), true=[1.0] * ASKED + [0.0] * ASKED,
                    score=area, floors={"chance": 0.5, "blind": 0.5}, others=[f"{row:07d}" for row in chosen],
                )
            )  # fmt: skip
    return SimpleNamespace(statements=each)


def interval_of(record):
    return membership_rows.mean(record, membership_rows.auc)


def test_how_many_images_seeds_share_is_counted_over_pairs_of_clients():
    apart, alike = asked(100_000), asked(ASKED)
    assert membership_rows.shared_by_seeds(apart.statements) < 0.01
    assert membership_rows.shared_by_seeds(alike.statements) == 1
    assert membership_rows.shared_by_seeds(asked(300).statements) == pytest.approx(0.2, abs=0.02)
    assert membership_rows.shared_by_seeds(asked(300, seeds=1).statements) is None
    unknown = [alike.statements[0].model_copy(update={"others": None}), *alike.statements[1:]]
    assert membership_rows.shared_by_seeds(unknown) is None


@pytest.mark.parametrize("pool", [100_000, 310, ASKED], ids=["none", "a fifth", "all"])
def test_an_interval_covers_the_true_area_however_many_images_are_shared(pool):
    rng, hits, above = np.random.default_rng(0), 0, 0
    for _ in range(150):
        area = interval_of(asked(pool, rng=rng))
        hits += area.low <= TRUE <= area.high
        above += area.low > 0.5
    # Of 150 at 95%: 133 or fewer with a probability of 0.1%.
    assert hits > 133
    # An area of 0.556 is seen more often than not, but for a single set of images.
    assert above > 75 or pool == ASKED


def test_where_it_is_not_known_what_seeds_share_it_counts_as_everything():
    whole = interval_of(asked(ASKED))
    hidden = asked(ASKED)
    hidden.statements[0] = hidden.statements[0].model_copy(update={"others": None})
    assert interval_of(hidden) == whole
    one = interval_of(asked(100_000, seeds=1))
    assert one.seeds == 1
    # Its own clients and their images, and no more.
    assert 0.02 < one.high - one.low < 0.4
