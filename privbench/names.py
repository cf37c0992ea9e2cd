"""How names may be spelt in specifications, which may come from a file of somebody else's.

Each function returns its text, or raises ValueError with the rule that it breaks. Whether there is a thing of that name is said by
privbench/registry.py, and whether it may be used by privbench/trust.py. No name holds a line break or another character that is not
printed, and none but that of a folder of images holds a slash.
"""

from __future__ import annotations

import re

from privbench.trust import FOLDER

# A built-in name, or the path of an object: package.module:object. A module's file may have a hyphen in its name.
CODE = r"[\w-]+(?:\.[\w-]+)*:[^\W\d]\w*"
_PLUGIN = re.compile(rf"[a-z0-9]+(?:-[a-z0-9]+)*|{CODE}")
_VALUE = r"[\w.+-]+"
_KEYED = rf"[^\W\d]\w*={_VALUE}"
_DEFENSE = re.compile(rf"(?:[a-z0-9]+(?:-[a-z0-9]+)*|{CODE})(?::(?:{_VALUE}|{_KEYED})(?:,{_KEYED})*)?")
# Before a digit a plus belongs to a number, as in 1e+5.
_PLUS = re.compile(r"\+(?=[^\W\d])")
_ROUND = re.compile(r"best|last|[0-9]{1,9}")
_WORD = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_SETTING = re.compile(r"[^\W\d]\w*")
LONGEST = 4096  # characters of a path, and of any text


def is_plain(text: str) -> bool:
    """Whether a text can be the name of a plug-in that is no path to code, e.g. "fedavg" or "feature-statistics"."""
    return _WORD.fullmatch(text) is not None


def plugin(text: str) -> str:
    """The name of a method or an attack."""
    return _matching(_PLUGIN, text, "a name such as fedavg, or package.module:Class")


def dataset(text: str) -> str:
    """The name of a data set, also `folder:PATH`, whose path may hold any printed character."""
    if text.startswith(FOLDER):
        if text == FOLDER:
            raise ValueError("should be folder: and a path")
        return printed(text)
    return _matching(_PLUGIN, text, "a name such as digits, folder:PATH or package.module:function")


def auxiliary(text: str) -> str:
    """A data set's name, "same" for the attacked one, with a share or without."""
    name, _, share = text.rpartition(":")
    return text if re.fullmatch(r"[0-9.e+-]+", share) and name and dataset(name) else dataset(text)


def defense(text: str) -> str:
    """A defence with its value, or with settings KEY=VALUE,KEY=VALUE; several with a plus between them."""
    # One by one: an expression over all of them would try every way to read each.
    for one in defenses(text[: LONGEST + 1]):
        _matching(_DEFENSE, one, "a defence such as none, gaussian:0.1, clip:1+sign or package.module:Class:VALUE")
    return printed(text)


def defenses(text: str) -> list[str]:
    """The members of a written defence, in their order: one, or several with a plus before the name of each next."""
    return _PLUS.split(text)


def round_(text: str) -> str:
    """An attacked round."""
    return _matching(_ROUND, text, "a round: best, last, or a number")


def word(text: str) -> str:
    """Lower-case letters and digits, with single hyphens between them."""
    return _matching(_WORD, text, "lower-case letters, digits and hyphens")


def setting(text: str) -> str:
    """The name of a setting, as Python spells it."""
    return _matching(_SETTING, text, "a setting's name, of letters, digits and underscores")


def folder(text: str) -> str:
    """The name of one folder, as a domain of a folder of images has it: no path."""
    if text in ("", ".", "..") or "/" in text:
        raise ValueError("should be the name of one folder, without a slash")
    return printed(text)


def printed(text: str) -> str:
    """Any text on one line."""
    if not text.isprintable() or len(text) > LONGEST:
        raise ValueError(f"should be at most {LONGEST} characters on one line, all of them printed ones")
    return text


def _matching(pattern: re.Pattern[str], text: str, rule: str) -> str:
    if len(text) > LONGEST or not pattern.fullmatch(text):
        raise ValueError(f"should be {rule}")
    return text
