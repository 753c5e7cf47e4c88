"""Character sets: how bytes in the binlog become the text that a query would have given.

The binlog has texts in the character set of their column, queries have them in utf8mb4. The sets of Unicode are read
by Python's codecs. Of all others the server is asked what a character stands for, so that both agree to the letter
(MySQL's latin1 is nobody else's, and neither is its sjis): once of each of the 256 in sets of one byte, and of those in
larger ones as they come.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from penstock.adaptors.mysql.binlog import BinlogError
from penstock.adaptors.mysql.connection import Session
from penstock.base.errors import UsageError

_CODECS: Mapping[str, str] = {
    "utf8mb4": "utf-8", "utf8mb3": "utf-8", "utf8": "utf-8", "ucs2": "utf-16-be", "utf16": "utf-16-be",
    "utf16le": "utf-16-le", "utf32": "utf-32-be",
}  # fmt: skip

_TWO = re.compile(rb"[\x81-\xfe].|.", re.DOTALL)
_SJIS = re.compile(rb"[\x81-\x9f\xe0-\xfc].|.", re.DOTALL)
_EUC = re.compile(rb"\x8f..|[\x8e\xa1-\xfe].|.", re.DOTALL)
_CHARACTERS: Mapping[str, re.Pattern[bytes]] = {
    "big5": _TWO, "gb2312": _TWO, "gbk": _TWO, "euckr": _TWO, "sjis": _SJIS, "cp932": _SJIS, "ujis": _EUC,
    "eucjpms": _EUC, "gb18030": re.compile(rb"[\x81-\xfe][0-9]..|[\x81-\xfe].|.", re.DOTALL),
}  # fmt: skip
"""Sets of several bytes: what one character is."""

_AT_ONCE = 500
"""Characters that a server is asked for at once."""


class Charsets:
    """The character sets of one server."""

    def __init__(self, session: Session) -> None:
        self.maria = session.maria
        self._session = session
        self._collations = {
            int(number): str(name)
            for number, name in session.query(
                "SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATIONS WHERE ID IS NOT NULL"
            )
            if name is not None
        }
        if session.maria:
            self._collations.update(_applicable(session))
        self._widths = {
            str(name): int(width)
            for name, width in session.query(
                "SELECT CHARACTER_SET_NAME, MAXLEN FROM information_schema.CHARACTER_SETS"
            )
        }
        self._decoders: dict[str, Callable[[bytes], str]] = {}

    def of_collation(self, number: int) -> str:
        found = self._collations.get(number)
        if found is None:
            raise UsageError(f"the binlog has a collation {number} that the server does not list")
        return found

    def width(self, charset: str) -> int:
        """The most bytes that a character takes."""
        return self._widths.get(charset, 1)

    def decoder(self, charset: str) -> Callable[[bytes], str]:
        found = self._decoders.get(charset)
        if found is None:
            found = self._decoders[charset] = self._decoder(charset)
        return found

    def statement(self, text: bytes, collation: int | None) -> str:
        """A statement that was sent in the character set of a collation; what does not read is replaced."""
        if not text.isascii() and collation in self._collations:
            try:
                return self.decoder(self._collations[collation])(text)
            except (BinlogError, UsageError):
                pass
        return text.decode("utf-8", "replace")

    def _decoder(self, charset: str) -> Callable[[bytes], str]:
        codec = _CODECS.get(charset)
        if charset in _CHARACTERS:
            return self._asking(charset, _CHARACTERS[charset])
        if codec is None and self.width(charset) > 1:
            raise UsageError(
                f"texts of the character set '{charset}' cannot be read from the binlog",
                hint="ALTER TABLE … CONVERT TO CHARACTER SET utf8mb4",
            )
        if codec is None:
            return _by_table(self._table(charset))

        def decode(data: bytes) -> str:
            try:
                return data.decode(codec)
            except UnicodeDecodeError as error:
                raise BinlogError(f"a text that is not {charset}: {error}") from None

        return decode

    def _asking(self, charset: str, character: re.Pattern[bytes]) -> Callable[[bytes], str]:
        known: dict[bytes, str] = {}

        def decode(data: bytes) -> str:
            found: list[bytes] = character.findall(data)
            new = sorted(set(found) - known.keys())
            for start in range(0, len(new), _AT_ONCE):
                asked = new[start : start + _AT_ONCE]
                known.update(zip(asked, self._told(charset, asked), strict=True))
            return "".join(map(known.__getitem__, found))

        return decode

    def _table(self, charset: str) -> str:
        """The 256 characters of a set of one byte."""
        return "".join(self._told(charset, [bytes([byte]) for byte in range(256)]))

    def _told(self, charset: str, characters: Sequence[bytes]) -> list[str]:
        """Characters as the server turns them into Unicode."""
        name = "".join(one for one in charset if one.isalnum())
        parts = ", ".join(
            f"HEX(CONVERT(CONVERT(x'{one.hex()}' USING {name}) USING utf8mb4))" for one in characters
        )
        (row,) = self._session.query(f"SELECT {parts}")
        return [_one(found) for found in row]


def _one(found: object) -> str:
    text = bytes.fromhex(str(found)).decode("utf-8", "replace") if found is not None else "?"
    return text if len(text) == 1 else "?"


def _by_table(table: str) -> Callable[[bytes], str]:
    return lambda data: data.decode("latin-1").translate(table)


def _applicable(session: Session) -> dict[int, str]:
    """MariaDB 10.10 and later list new collations once, with a number for each character set."""
    listed = "information_schema.COLLATION_CHARACTER_SET_APPLICABILITY"
    columns = {str(row[0]).upper() for row in session.query(f"SHOW COLUMNS FROM {listed}")}
    if "ID" not in columns:
        return {}
    rows = session.query(f"SELECT ID, CHARACTER_SET_NAME FROM {listed} WHERE ID IS NOT NULL")
    return {int(number): str(name) for number, name in rows}
