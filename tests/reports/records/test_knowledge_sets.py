"""A row of a ladder stands for knowledge that an attacker had and could use."""

import pytest

from reports.records import knowledge_sets
from reports.tables import ladder_summary
from tests.builders.records import changed, record, with_knowledge, with_victims

PASSIVE, ACTIVE = "gradient + auxiliary", "active server + auxiliary"


def decoder():
    plain = record("fedsplit", attack="decoder")
    return with_knowledge(
        plain, tag=PASSIVE, tag_in_general=PASSIVE, needs=["gradient:classifier", "auxiliary"], rung="L4"
    )


def imprint(method="fedsplit", *, honest):
    """Whose server sent that many victims the honest networks."""
    plain = changed(record(method, attack="imprint"), active=True)
    sent = ["not applicable"] * honest + ["reconstructed"] * (len(plain.victims) - honest)
    victims = [v.model_copy(update={"outcome": to}) for v, to in zip(plain.victims, sent, strict=True)]
    active = with_knowledge(
        plain, tag=ACTIVE, tag_in_general=ACTIVE, needs=["gradient:classifier", "auxiliary"], rung="L7"
    )
    return with_victims(active, victims)


@pytest.mark.parametrize(("honest", "expected"), [(0, [PASSIVE, ACTIVE]), (7, [PASSIVE, ACTIVE]), (8, [PASSIVE])])
def test_a_server_that_sent_everybody_the_honest_networks_has_no_row(honest, expected):
    attacked = imprint(honest=honest)
    assert attacked.scores.applied == (honest < 8)
    assert [row.knowledge for row in knowledge_sets.rows([decoder(), attacked])] == expected


def test_where_it_acts_on_another_method_its_row_shows_what_such_a_server_can_do_at_all():
    column = [decoder(), imprint(honest=8)]
    rows = knowledge_sets.rows(column, among=[*column, imprint("fedavg", honest=0)])
    assert [(row.knowledge, row.best.name) for row in rows] == [(PASSIVE, "decoder"), (ACTIVE, "decoder")]


def test_a_table_leaves_out_the_row_that_no_column_has():
    applies, honest = ([decoder(), imprint(honest=each)] for each in (0, 8))
    shown = [[row[0] for row in ladder_summary.report(records).tables[0].rows] for records in (applies, honest)]
    assert [name for name in shown[0] if name not in shown[1]] == [f"L7 {ACTIVE}"]
