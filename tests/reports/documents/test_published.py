"""What pages read of the committed records: seeds that were run apart stand together, and only attacks of all of them."""

import pytest

from privbench.records import record_lines
from reports.documents import published
from tests.builders.records import record


def named(made):
    """Under the name of its cell, as a run's record is."""
    return made.model_copy(update={"id": made.cell.id})


@pytest.fixture
def tables(tmp_path):
    """Two tables of one study: a method of whose seeds each has one, and another that has both in the first."""
    (tmp_path / published.FOLDER / "records").mkdir(parents=True)
    of_earlier_revision = record("fedcg", attack="staged", seeds=(0,)).model_copy(update={"id": "0" * 12})
    first = [
        named(record("fedcg", attack="dlg", seeds=(0,))),
        of_earlier_revision,
        named(record("fedsplit", attack="dlg", seeds=(0, 1))),
        named(record("fedcg", attack="staged", round_="0", seeds=(0,))),
    ]
    since = [
        named(record("fedcg", attack=None, seeds=(1,))),
        named(record("fedcg", attack="staged", seeds=(1,))),
        named(record("fedcg", attack="dlg", seeds=(1,))),
    ]
    for name, records in {"first": first, "since": since}.items():
        record_lines.write(records, published.path_of(tmp_path, name))
    return tmp_path


def test_seeds_that_were_run_apart_are_one_record_and_attacks_of_fewer_are_left_out(tables):
    shown = published.of_most_seeds(tables, ("first", "since"))
    assert [(r.cell.train.method, r.attack, r.cell.round, r.cell.seeds) for r in shown] == [
        ("fedsplit", "dlg", "best", (0, 1)),
        ("fedcg", "dlg", "best", (0, 1)),
        # The only attack of that method in that round.
        ("fedcg", "staged", "0", (0,)),
    ]
    block = published.of_seeds(("first", "since"), lambda records, text: text + str(len(records)), "records: ")
    assert block(tables) == "records: 3"
    assert len(published.of_most_seeds(tables, ["first"])) == 4
