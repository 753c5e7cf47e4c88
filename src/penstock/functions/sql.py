"""`sql`: Spark SQL over the messages of a batch.

    f.sql("SELECT * FROM messages WHERE try_variant_get(data, '$.total', 'double') > 10")

The view `messages` has the columns `offset, ts, mode, op, ns, key, old_key, data` (a VARIANT) and `origin`; the rules
are those of a function of a DataFrame, which this one is by another name: the result keeps the message's columns, and
each row is decided by itself. Here the text is only held, and looked at as far as that can be done without Spark; the
engine runs it (`penstock.spark`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from penstock.base.settings import setting

VIEW = "messages"

_COMMENTS = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_QUOTED = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_QUERY = re.compile(r"[\s(]*(?:select|with|from|values|table)\b", re.IGNORECASE)
_NAMES_VIEW = re.compile(rf"(?<![\w.])`?{VIEW}`?(?![\w])", re.IGNORECASE)


@dataclass(frozen=True)
class SqlFunction:
    """A query over the view `messages`. Not applied by the chain: the engine makes a plan of it."""

    name: ClassVar[str] = "sql"
    description: ClassVar[str] = "Spark SQL over the view `messages`"

    text: str = setting(
        "one query over the view `messages` that keeps its columns",
        example="SELECT * FROM messages WHERE op <> 'delete'",
    )

    def __post_init__(self) -> None:
        bare = _QUOTED.sub("''", _COMMENTS.sub(" ", self.text)).strip()
        query = bare.rstrip("; \t\r\n")
        if not query:
            raise ValueError("setting 'text': expected a query, got nothing")
        if ";" in query:
            raise ValueError("setting 'text': expected one query, got several; put them into several steps")
        if not _QUERY.match(query):
            raise ValueError(
                f"setting 'text': expected a query (SELECT …, WITH …), it begins with '{query.split()[0]}'"
            )
        if not _NAMES_VIEW.search(query):
            raise ValueError(f"setting 'text': the query does not read the view '{VIEW}'")
        if self.text.rstrip().endswith(";"):
            object.__setattr__(self, "text", self.text.rstrip("; \t\r\n"))
