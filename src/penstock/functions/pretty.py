"""`pretty`: show every message among the log lines, and let it pass (Transporter reference, section 5).

Each message's data is logged as JSON, behind a line break, at level INFO under the name of this module. `spaces` is
the indent; 0 puts it on one line. The message goes on with its very text, also one whose data is no JSON, which
is shown as it is.

Spark's workers are processes of their own, in which nothing is set up for logs: whether the lines are wanted, and in
which form, travels with the function. What a worker prints the run passes on to its standard error.

Not as in the original: `spaces` belongs to this one function (there the last `pretty` of a file decided for all of
them), numbers are shown as they are written, and fields in their own order.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from penstock.base.logs import TEXT, JsonFormatter, TextFormatter
from penstock.base.settings import setting
from penstock.functions.kinds import NOT_AN_OBJECT, TextFunction

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pretty(TextFunction):
    """Logs the data of each message."""

    name: ClassVar[str] = "pretty"
    description: ClassVar[str] = "show each message among the log lines (--log-level info) and pass it on"

    spaces: int = setting("how far to indent; 0 for one line", default=2, example=2)

    def __post_init__(self) -> None:
        if not 0 <= self.spaces <= 16:
            raise ValueError(f"setting 'spaces': expected 0 to 16, got {self.spaces}")

    def __getstate__(self) -> dict[str, object]:
        return super().__getstate__() | {_FORM: _form()}

    def __setstate__(self, state: dict[str, object]) -> None:
        form = state.pop(_FORM, None)
        self.__dict__.update(state)
        if form is not None:
            listen(json=form == "json")

    def rewrite(self, text: bytes) -> bytes:
        if _log.isEnabledFor(logging.INFO):
            _log.info("\n%s", self._shown(text))
        return text

    def _shown(self, text: bytes) -> str:
        try:
            return msgspec.json.format(text, indent=self.spaces).decode()
        except NOT_AN_OBJECT:
            return text.decode(errors="replace")


_FORM = "form of the log lines"


def listen(*, json: bool = False) -> None:
    """Have the lines come to standard error, if nobody has said where logs go."""
    if not _log.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonFormatter() if json else TextFormatter(TEXT))
        _log.addHandler(handler)
        _log.setLevel(logging.INFO)


def _form() -> str | None:
    if not _log.isEnabledFor(logging.INFO):
        return None
    return (
        "json"
        if any(isinstance(each.formatter, JsonFormatter) for each in logging.getLogger().handlers)
        else "text"
    )
