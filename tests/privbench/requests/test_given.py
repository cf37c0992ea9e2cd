"""Values given in Python mean what they mean on the command line."""

from typing import get_type_hints

import numpy as np
import pytest

from privbench.requests import given
from privbench.requests.options import AttackOptions

HINTS = get_type_hints(AttackOptions, include_extras=True)


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("batch_size", "4", 4),
        ("victims", np.int64(3), 3),
        ("victims", None, None),
        ("known_quality_db", 30, 30.0),
        ("labels_known", "false", False),
        ("round_", 1, ["1"]),
        ("round_", ("0", "best"), ["0", "best"]),
        ("observed_rounds", [0, 1], "0,1"),
        ("observed_rounds", 2, "2"),
        ("observed_rounds", "0,1", "0,1"),
    ],
)
def test_a_value_has_the_form_that_the_command_line_gives_it(name, value, read):
    made = given.value(name, HINTS[name], value)
    assert (type(made), made) == (type(read), read)


def test_several_rounds_given_in_python_are_those_of_the_command_line():
    rounds = given.value("observed_rounds", HINTS["observed_rounds"], (5, 0, 0))
    assert AttackOptions(observed_rounds=rounds).kept_rounds() == (0, 5)
