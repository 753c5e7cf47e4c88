"""What statements in a binlog do to tables: those that are logged as text, since they change no single rows.

    MADE       the table is there from now on, empty, or was there already (IF NOT EXISTS)
    CHANGED    its columns or keys may be others
    EMPTIED    its rows are gone
    GONE       it is gone, with its rows
    REPLACED   it has other rows now, which no row event tells: renamed to this name, partitions dropped or exchanged
    ROWS       rows were changed by a statement, which tells neither which nor how: not `binlog_format=ROW`

Statements are taken apart into words, names and signs; only the front of a statement and words outside of brackets are
looked at. What is not recognised does nothing to a table, or is `UNCLEAR` if it begins like something that does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from penstock.adaptors.mysql.binlog import Query

_TOKEN = re.compile(
    r"(?P<token>`(?:[^`]|``)*`|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\")"
    r"|/\*M?!\d*|\*/|/\*.*?\*/|--(?=\s|\Z)[^\n]*|#[^\n]*"
    r"|(?P<word>[\w$]+|[^\s])",
    re.DOTALL,
)
"""What is quoted; comments, of which those that servers run lose only their signs; words and signs.

In one go: what looks like a comment may be in quotes, and the other way round.
"""
_BEFORE_TABLE = frozenset(
    {"ONLINE", "OFFLINE", "IGNORE", "OR", "REPLACE", "TEMPORARY", "UNIQUE", "FULLTEXT", "SPATIAL"}
)
_ROW_WORDS = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "CALL", "WITH", "IMPORT"})


class Does(Enum):
    MADE = "made"
    CHANGED = "changed"
    EMPTIED = "emptied"
    GONE = "gone"
    REPLACED = "replaced"
    ROWS = "rows"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Effect:
    """What is done to a table; an empty name means all tables of the database."""

    does: Does
    database: str = ""
    table: str = ""

    @property
    def ns(self) -> str:
        return f"{self.database}.{self.table}"


def effects(query: Query) -> list[Effect]:
    """What a statement does to tables, in its order."""
    found = _TOKEN.finditer(query.statement[:1_000_000])
    words = _Words([token[0] for token in found if token.lastgroup], query.database)
    first = words.word()
    try:
        if first in _ROW_WORDS:
            return [Effect(Does.ROWS)]
        known = _STATEMENTS.get(first)
        return [] if known is None else known(words)
    except IndexError:
        return [Effect(Does.UNCLEAR)]


class _Words:
    """Reads words one after the other."""

    def __init__(self, tokens: Sequence[str], database: str) -> None:
        self._tokens, self._database, self._at = tokens, database, 0

    def word(self) -> str:
        """The next one, in capitals; empty at the end."""
        self._at += 1
        return self._tokens[self._at - 1].upper() if self._at <= len(self._tokens) else ""

    def peek(self) -> str:
        return self._tokens[self._at].upper() if self._at < len(self._tokens) else ""

    def skip(self, *words: str) -> bool:
        """Pass these words if they are next, all of them."""
        found = [token.upper() for token in self._tokens[self._at : self._at + len(words)]]
        if found != list(words):
            return False
        self._at += len(words)
        return True

    def name(self) -> tuple[str, str]:
        """A table: its database and its name."""
        parts = [self._identifier()]
        if self.peek() == ".":
            self._at += 1
            parts.append(self._identifier())
        return (self._database, parts[0]) if len(parts) == 1 else (parts[0], parts[1])

    def _identifier(self) -> str:
        token = self._tokens[self._at]
        self._at += 1
        if token[0] in '`"' and len(token) > 2:
            return token[1:-1].replace(token[0] * 2, token[0])
        if not re.fullmatch(r"[\w$]+", token):
            raise IndexError(token)
        return token

    def identifier(self) -> str:
        return self._identifier()

    def outside(self) -> Iterator[str]:
        """The words that are left and stand in no brackets; after each the reader is behind it."""
        depth = 0
        while self._at < len(self._tokens):
            token = self.word()
            depth += (token == "(") - (token == ")")
            if depth == 0 and token != ")":
                yield token


def _create(words: _Words) -> list[Effect]:
    passed = []
    while words.peek() in _BEFORE_TABLE:
        passed.append(words.word())
    if words.skip("TABLE"):
        if "TEMPORARY" in passed:
            return []
        words.skip("IF", "NOT", "EXISTS")
        name = words.name()
        gone = [Effect(Does.GONE, *name)] if "REPLACE" in passed else []
        return [*gone, Effect(Does.MADE, *name)]
    return _index(words) if words.skip("INDEX") else []


def _index(words: _Words) -> list[Effect]:
    for word in words.outside():
        if word == "ON":
            return [Effect(Does.CHANGED, *words.name())]
    return [Effect(Does.UNCLEAR)]


def _alter(words: _Words) -> list[Effect]:
    while words.peek() in _BEFORE_TABLE:
        words.word()
    if not words.skip("TABLE"):
        return []
    words.skip("IF", "EXISTS")
    name = words.name()
    found = [Effect(Does.CHANGED, *name)]
    before = ""
    for word in words.outside():
        if word == "RENAME" and words.peek() not in ("COLUMN", "INDEX", "KEY"):
            _ = words.skip("TO") or words.skip("AS") or words.skip("=")
            found += [Effect(Does.GONE, *name), Effect(Does.REPLACED, *words.name())]
        elif (word == "PARTITION" and before in ("DROP", "TRUNCATE", "EXCHANGE", "CONVERT", "IMPORT")) or (
            word == "TABLESPACE" and before in ("IMPORT", "DISCARD")
        ):
            found.append(Effect(Does.REPLACED, *name))
        elif word == "TABLE" and before in ("WITH", "TO", "CONVERT"):
            found += [Effect(Does.REPLACED, *name), Effect(Does.REPLACED, *words.name())]
        before = word
    return found


def _drop(words: _Words) -> list[Effect]:
    temporary = words.skip("TEMPORARY")
    if words.skip("DATABASE") or words.skip("SCHEMA"):
        words.skip("IF", "EXISTS")
        return [Effect(Does.GONE, words.identifier())]
    if words.skip("INDEX"):
        return _index(words)
    if temporary or not (words.skip("TABLE") or words.skip("TABLES")):
        return []
    words.skip("IF", "EXISTS")
    found = [Effect(Does.GONE, *words.name())]
    while words.skip(","):
        found.append(Effect(Does.GONE, *words.name()))
    return found


def _rename(words: _Words) -> list[Effect]:
    if not (words.skip("TABLE") or words.skip("TABLES")):
        return []
    words.skip("IF", "EXISTS")
    found: list[Effect] = []
    while True:
        found.append(Effect(Does.GONE, *words.name()))
        for word in ("WAIT", "NOWAIT"):
            words.skip(word)
        if not words.skip("TO"):
            return [Effect(Does.UNCLEAR)]
        found.append(Effect(Does.REPLACED, *words.name()))
        if not words.skip(","):
            return found


def _truncate(words: _Words) -> list[Effect]:
    words.skip("TABLE")
    return [Effect(Does.EMPTIED, *words.name())]


_STATEMENTS = {
    "CREATE": _create,
    "ALTER": _alter,
    "DROP": _drop,
    "RENAME": _rename,
    "TRUNCATE": _truncate,
}
