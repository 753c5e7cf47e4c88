"""Tokens and paths: the alphabets the protocol's names are made of, and the one error for breaking a rule.

A *token* is made of Unicode letters, Unicode numbers and `-_+/.`; a *path token* may also hold `=` and `%`.
Lengths count bytes of UTF-8. Nothing at or below `#` is in either alphabet, which is what keeps keys made of
several names, joined by `#`, in the order of their names.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.base.errors import PenstockError

TOKEN_SYMBOLS = "-_+/."
PATH_SYMBOLS = TOKEN_SYMBOLS + "=%"

_ASCII = {
    symbols: re.compile(f"[A-Za-z0-9{re.escape(symbols)}]*") for symbols in (TOKEN_SYMBOLS, PATH_SYMBOLS)
}


class ValidationError(PenstockError, ValueError):
    """A message broke a rule: `field` says where (`Changes[0].Delete`), `complaint` which."""

    exit_code = 2

    def __init__(self, complaint: str, *, field: str = "") -> None:
        super().__init__(f"{field}: {complaint}" if field else complaint)
        self.field = field
        self.complaint = complaint

    def inside(self, outer: str) -> ValidationError:
        """The same complaint, told of `outer`'s field."""
        return ValidationError(self.complaint, field=f"{outer}.{self.field}" if self.field else outer)


@contextmanager
def field(name: str) -> Iterator[None]:
    """Complaints raised inside are about this field."""
    try:
        yield
    except ValidationError as error:
        raise error.inside(name) from None


def check_token(value: str, low: int, high: int, symbols: str = TOKEN_SYMBOLS) -> None:
    """Refuse what is not `low` to `high` bytes of letters, numbers and `symbols`."""
    size = len(value.encode("utf-8", "surrogatepass"))
    if not low <= size <= high:
        raise ValidationError(f"invalid length ({size}; expected {low} <= length <= {high})")
    if _ASCII[symbols].fullmatch(value) is None:
        for character in value:
            if character not in symbols and unicodedata.category(character)[0] not in "LN":
                raise ValidationError(f"not a valid token ({value})")


def check_path(value: str, low: int, high: int) -> None:
    """Refuse what is not a path token, clean, relative, and staying below where it starts.

    A leading `..` is clean by Go's rules and therefore legal in the original; with a file store it leaves
    the root, so here it is refused like any other (reference, 24, quirk 2).
    """
    check_token(value, low, high, PATH_SYMBOLS)
    if not value:
        return
    if value in (".", "..") or value.startswith("../"):
        raise ValidationError(f"cannot begin with '.' or '..' as a segment ({value})")
    if clean_path(value) != value:
        raise ValidationError(f"must be a clean path ({value})")
    if value.startswith("/"):
        raise ValidationError(f"cannot begin with '/' ({value})")


def clean_path(path: str) -> str:
    """The shortest equivalent of a slash-separated path, by the rules of Go's `path.Clean`.

    `//` and `.` segments go, an inner `..` goes with the segment before it, a `..` at the start stays unless
    the path is rooted, a trailing slash goes, and nothing left is `.`.
    """
    rooted = path.startswith("/")
    kept: list[str] = []
    for segment in path.split("/"):
        if segment in ("", "."):
            continue
        if segment != "..":
            kept.append(segment)
        elif kept and kept[-1] != "..":
            kept.pop()
        elif not rooted:
            kept.append(segment)
    cleaned = "/".join(kept)
    return f"/{cleaned}" if rooted else cleaned or "."


JOURNAL_LENGTH = (4, 512)
META_LENGTH = (1, 512)


def check_journal(name: str) -> None:
    """Refuse what is not the name of a journal (as a JournalSpec or a Fragment holds it: without `;meta`)."""
    check_path(name, *JOURNAL_LENGTH)


def split_meta(name: str) -> tuple[str, str]:
    """A journal as requests name it, `journal;meta`, as (journal, meta); meta is "" if there is none."""
    journal, _, meta = name.partition(";")
    return journal, meta
