"""The settings of a whole pipeline: `Pipeline("shop", segment_bytes="256MB", strict=True)`.

Sizes and durations are written as text (`penstock.base.units`) or as numbers of bytes and seconds; what is kept
here are the numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict, cast

from penstock.base.settings import setting
from penstock.base.units import Unit, size_text
from penstock.journal.tokens import ValidationError
from penstock.journal.validation_specs import FRAGMENT_LENGTH, MAX_REPLICATION, validate_store
from penstock.log.message import MAX_MESSAGE_BYTES

MIB = 1 << 20
GIB = 1 << 30
LARGEST_MESSAGE = MAX_MESSAGE_BYTES

_LARGEST_SIZE = (1 << 63) - 1
"""Spark counts no further."""

_LARGEST_COUNT = (1 << 31) - 1
"""Of what Spark has in lists."""

LONGEST = 100 * 365 * 86_400.0
"""Seconds. Beyond some more no clock of the system can say when such a time is over."""

Size = int | str
"""Bytes, or text such as "64MB"."""

Duration = float | str
"""Seconds, or text such as "1h"."""


class PipelineArguments(TypedDict, total=False):
    """The settings of a pipeline as keyword arguments; see `PipelineSettings`."""

    segment_bytes: Size
    batch_bytes: Size
    batch_messages: int
    partitions: int | None
    log_limit: Size
    compaction_interval: Duration
    retain_bytes: Size | None
    retain_age: Duration | None
    offset_interval: Duration
    stop_timeout: Duration
    strict: bool
    max_message_bytes: Size
    store: str | None
    replication: int | None


def _size(help: str, default: int | None) -> int:
    return cast(int, setting(help, default=default, unit=Unit.BYTES))


def _duration(help: str, default: float | None) -> float:
    return cast(float, setting(help, default=default, unit=Unit.SECONDS))


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """What holds for the whole pipeline."""

    segment_bytes: int = _size("size at which a segment of the log is closed", GIB)
    batch_bytes: int = _size("most bytes of the log in one batch of a sink", 128 * MIB)
    batch_messages: int = cast(int, setting("most messages in one batch of a sink", default=500_000))
    partitions: int | None = cast(
        "int | None", setting("partitions of a large batch; one a core if not given", default=None)
    )
    log_limit: int = _size("size of the log at which the source pauses until there is room", 50 * 10**9)
    compaction_interval: float = _duration("time between two compactions of the log", 3600.0)
    retain_bytes: int | None = _size("keep at least this much of what all sinks have", None)
    retain_age: float | None = _duration("keep for this long what all sinks have", None)
    offset_interval: float = _duration("time after which a sink's offset is written at the latest", 1.0)
    stop_timeout: float = _duration("time that sinks have to commit when the run is asked to stop", 30.0)
    strict: bool = cast(
        bool,
        setting(
            "a failing sink stops the pipeline, and reading goes on only when every sink has all",
            default=False,
        ),
    )
    max_message_bytes: int = _size(
        "largest message that is taken; a larger one is an error by name", 16 * MIB
    )

    store: str | None = cast(
        "str | None",
        setting("where a broker keeps the journals; its own file:/// if not given", default=None),
    )
    replication: int | None = cast(
        "int | None", setting("brokers that each keep a copy of the journals; 1 if not given", default=None)
    )

    def __post_init__(self) -> None:
        _within("segment_bytes", self.segment_bytes, *FRAGMENT_LENGTH, size_text)
        for name in ("batch_bytes", "log_limit", "retain_bytes"):
            _within(name, getattr(self, name), 1, _LARGEST_SIZE, size_text)
        for name in ("batch_messages", "partitions"):
            _within(name, getattr(self, name), 1, _LARGEST_COUNT)
        _within("replication", self.replication, 1, MAX_REPLICATION)
        for name in ("compaction_interval", "offset_interval", "retain_age", "stop_timeout"):
            least = 0.0 if name == "stop_timeout" else 0.001
            _within(name, getattr(self, name), least, LONGEST, _days)
        if self.store is not None:
            _check_store(self.store)
        if not 1 <= self.max_message_bytes <= LARGEST_MESSAGE:
            largest, given = size_text(LARGEST_MESSAGE), size_text(self.max_message_bytes)
            raise ValueError(f"setting 'max_message_bytes': expected 1 byte to {largest}, got {given}")
        if self.log_limit < self.segment_bytes:
            limit, segment = size_text(self.log_limit), size_text(self.segment_bytes)
            raise ValueError(
                f"setting 'log_limit': {limit} is less than one segment (segment_bytes={segment}); only closed "
                "segments can be freed, so the source would pause for ever"
            )


def _within(
    name: str, value: float | None, least: float, most: float, written: Callable[..., str] = str
) -> None:
    if value is None or least <= value <= most:
        return
    if value > most:
        raise ValueError(f"setting '{name}': expected at most {written(most)}, got {written(value)}")
    wanted = f"{written(least)} or more" if least > 1 else "a number above 0"
    raise ValueError(f"setting '{name}': expected {wanted}, got {value}")


def _days(seconds: float) -> str:
    return f"{seconds / 86_400:g} days"


def _check_store(url: str) -> None:
    try:
        validate_store(url)
    except ValidationError as error:
        raise ValueError(f"setting 'store': {error}") from None
