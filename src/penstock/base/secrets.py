"""Secrets: values that no text of Penstock may show.

What is registered here is replaced by `***` wherever text goes out: plans, errors, progress, logs. A value is also
recognised in the spellings that texts give it on the way: percent-encoded in a URI, escaped in JSON or in Python's
`repr`, in base64, and line by line if it has several lines. Passwords inside URIs are recognised by their place and
need no registration.

The registry belongs to the process and only grows: what was secret once stays so. It hides values, not their absence;
a secret must therefore be long enough not to be a part of ordinary words (`SHORTEST`).
"""

from __future__ import annotations

import base64
import json
import logging
import re
import threading
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

MASK = "***"

SHORTEST = 4
"""A shorter value would hide letters of innocent words, and could be guessed from what is left."""

_SHORTEST_LINE = 8
"""Of a secret of several lines, shorter lines (braces, `-----`) tell nothing."""

_WORD = re.compile(r"""[^\s"']+""")
_USER = re.compile(r"://[^:/?#@]*:")
"""Up to its password. What stands behind it goes as far as the word's last `@`."""
_PARAMETER = re.compile(
    r"""([?&;\s](?:password|passwd|pwd|secret|token|api_?key|access_?key)=)[^&;\s"']+""", re.IGNORECASE
)

_lock = threading.Lock()
_known: set[str] = set()
_pattern: re.Pattern[str] | None = None


def register(value: str) -> None:
    """Hide `value` from now on. One that is shorter than `SHORTEST` is not hidden; refuse it where it is read."""
    spellings = {spelling for spelling in _spellings(value) if len(spelling) >= SHORTEST}
    with _lock:
        _add(spellings)


def _add(spellings: set[str]) -> None:
    global _pattern
    if spellings <= _known:
        return
    _known.update(spellings)
    # The longest first: a secret may hold another one.
    _pattern = re.compile("|".join(map(re.escape, sorted(_known, key=len, reverse=True))))


def known() -> frozenset[str]:
    """All that is hidden, in all its spellings: for another process that is to hide the same."""
    with _lock:
        return frozenset(_known)


def learn(spellings: Iterable[str]) -> None:
    """Hide what another process hides, as it was told by `known`."""
    with _lock:
        _add(set(spellings))


def mask(text: str) -> str:
    """The text without any secret: neither a registered one, nor a password in a URI or beside its name."""
    pattern = _pattern
    if pattern is not None:
        text = pattern.sub(MASK, text)
    if "://" in text and "@" in text:
        text = _WORD.sub(_without_password, text)
    return _PARAMETER.sub(rf"\1{MASK}", text) if "=" in text else text


def _without_password(found: re.Match[str]) -> str:
    """A word is looked through once, however it is written: texts may be as long as a message, and anybody's."""
    word = found[0]
    last = word.rfind("@")
    user = _USER.search(word, 0, last) if last > 0 else None
    return word if user is None else f"{word[: user.end()]}{MASK}{word[last:]}"


def forget_all() -> None:
    """For tests: know nothing again."""
    global _pattern
    with _lock:
        _known.clear()
        _pattern = None


def _spellings(value: str) -> Iterator[str]:
    for part in (value, value.strip(), *_lines(value)):
        yield part
        yield quote(part, safe="")
        yield quote(part)
        yield quote_plus(part)
        yield json.dumps(part)[1:-1]
        yield json.dumps(part, ensure_ascii=False)[1:-1]
        yield repr(part)[1:-1]
        yield base64.b64encode(part.encode()).decode().rstrip("=")


def _lines(value: str) -> Iterator[str]:
    lines = value.splitlines()
    if len(lines) > 1:
        yield from (line.strip() for line in lines if len(line.strip()) >= _SHORTEST_LINE)


class MaskingFilter(logging.Filter):
    """Masks every record that passes: its message, its traceback and its stack."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = mask(record.getMessage()), ()
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            record.exc_text = _FORMATTER.formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = mask(record.exc_text)
        if record.stack_info:
            record.stack_info = mask(record.stack_info)
        return True


_FORMATTER = logging.Formatter()


def mask_logs(logger: logging.Logger | None = None) -> None:
    """Make all handlers of `logger`, the root if not given, mask what they write. May be called again."""
    for handler in (logger or logging.getLogger()).handlers:
        if not any(isinstance(known, MaskingFilter) for known in handler.filters):
            handler.addFilter(MaskingFilter())
