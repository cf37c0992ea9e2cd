"""Text from outside as it may be printed: a sign in place of every character that a terminal obeys instead of showing it."""

import logging

# Signs of Unicode's block of control pictures for control characters, and one for the marks that turn text around.
_SIGNS = {code: chr(0x2400 + code) for code in range(0x20)} | {0x7F: "\u2421"}
_SIGNS |= dict.fromkeys((*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), "\ufffd")
_SIGNS_BUT_LINES = {code: sign for code, sign in _SIGNS.items() if code != ord("\n")}


def one_line(text: str) -> str:
    """Text with a sign in place of every control character, line breaks included."""
    return text.translate(_SIGNS)


def lines(text: str) -> str:
    """The same with its line breaks."""
    return text.translate(_SIGNS_BUT_LINES)


def encoded(text: str) -> bytes:
    """The same as the content of a page (Markdown, LaTeX), which is read on terminals too; what UTF-8 cannot hold is escaped."""
    return lines(text).encode(errors="backslashreplace")


def legible(record: logging.LogRecord) -> bool:
    """A filter of messages that makes each of them one line; none is left out."""
    record.msg, record.args = one_line(record.getMessage()), ()
    return True
