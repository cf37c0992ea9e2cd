"""What an attacker knew, in words."""

import pytest

from privbench.records.entries import RoundsUsed
from reports.records import labels
from tests.builders.records import changed, record, with_knowledge


@pytest.mark.parametrize(
    ("round_", "asked", "observed", "text"),
    [
        ("2", None, [0, 1, 2], "gradient + earlier rounds (12 uploads)"),
        ("2", (0, 1, 5), [0, 1, 2], "gradient + earlier rounds of 0, 1 (12 uploads)"),
        # Another seed's best round may come after 5.
        ("best", (0, 1, 5), [0, 1, 2], "gradient + earlier rounds among 0, 1, 5 (12 uploads)"),
        ("0", None, [0], "gradient + no earlier round (12 uploads)"),
        # All of them came after the attacked round, which "best" had left open.
        ("best", (5,), [2], "gradient + no earlier round (12 uploads)"),
    ],
)
def test_earlier_rounds_that_were_asked_for_are_named_and_so_is_that_there_was_none(round_, asked, observed, text):
    tag = "gradient + earlier rounds"
    rounds = RoundsUsed(observed=observed, uploads=12)
    made = changed(record(round_=round_), observed_rounds=asked)
    assert labels.knowledge_text(with_knowledge(made, tag=tag, rounds=rounds)) == text
    assert labels.attacker_text(with_knowledge(made, tag_in_general=tag, rounds=rounds)) == text
