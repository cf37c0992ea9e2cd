"""What tests of refusals share."""

from collections.abc import Callable

import pytest

from privbench.errors import UserError


def refused(act: Callable[[], object], *words: object) -> str:
    """The one line of a refusal, which holds the words."""
    with pytest.raises(UserError) as raised:
        act()
    line = str(raised.value)
    assert "\n" not in line
    for word in words:
        assert str(word) in line, line
    return line
