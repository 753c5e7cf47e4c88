"""The options of the data source `penstock`, checked before anything runs.

`OPTIONS` is the list of them all; `docs/spark.md` has it as a table, and a test compares the two. Names are matched
without case, as Spark does. An unknown one is refused with a suggestion.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from penstock.base import units
from penstock.base.errors import PenstockError, UsageError, did_you_mean
from penstock.journal import tokens
from penstock.journal.datadir import DataDir
from penstock.spark.access import Access

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

OPTIONS = (
    "journal",
    "pipeline",
    "content",
    "dataDir",
    "broker",
    "tokenFile",
    "authKeysFile",
    "caFile",
    "certFile",
    "keyFile",
    "startOffset",
    "startByte",
    "endOffset",
    "maxBytes",
    "maxMessages",
    "partitions",
    "wait",
    "gather",
    "failOnDataLoss",
    "chunkBytes",
    "maxLineBytes",
    "mode",
    "stagingDir",
    "txnAppId",
    "txnVersion",
)
_BY_LOWER = {name.lower(): name for name in OPTIONS}
_SPARKS_OWN = frozenset(["checkpointlocation", "queryname"])
"""Options of a streaming write that Spark hands on though they are its own."""

_SECRETS = {
    "token": "write the token to a file and name it as tokenFile, or set PENSTOCK_AUTH_TOKEN",
    "authtoken": "write the token to a file and name it as tokenFile, or set PENSTOCK_AUTH_TOKEN",
    "authkeys": "write the keys to a file of mode 600 and name it as authKeysFile, or set PENSTOCK_AUTH_KEYS",
}
_MAX_LINE = 16 << 20


class Content(StrEnum):
    """What the bytes of a journal are taken for."""

    RAW = "raw"
    LINES = "lines"
    JSON = "json"
    RECORDS = "records"
    CONNECTOR = "connector"


class Mode(StrEnum):
    """What becomes of a line that does not fit the schema; Spark's own words for it."""

    PERMISSIVE = "PERMISSIVE"
    DROPMALFORMED = "DROPMALFORMED"
    FAILFAST = "FAILFAST"


class Edge(StrEnum):
    """A place by name."""

    EARLIEST = "earliest"
    LATEST = "latest"


class DataLossError(PenstockError):
    """Bytes that a query still wanted are no longer in the journal."""

    def __init__(self, journal: str, begin: int, end: int) -> None:
        super().__init__(
            f"journal {journal}: bytes {begin} to {end} are gone, and the query has not read them",
            hint="they were trimmed or expired; failOnDataLoss=false goes on behind them, with a warning",
        )


@dataclass(frozen=True, slots=True)
class Transaction:
    """Names a batch write, so that a repeated one changes nothing."""

    app: str
    version: int


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options, checked."""

    access: Access
    data_dir: Path | None
    journal: str
    pipeline: str | None
    content: Content
    start: int | Edge
    start_byte: int | None
    end_offset: int | None
    max_bytes: int
    max_messages: int | None
    partitions: int
    wait: float
    gather: float
    fail_on_data_loss: bool | None
    chunk_bytes: int
    max_line_bytes: int
    mode: Mode
    staging: Path | None
    transaction: Transaction | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        given = _Given(options)
        data_dir = given.take("dataDir", _path)
        journal, pipeline = given.take("journal", str), given.take("pipeline", str)
        if (journal is None) == (pipeline is None):
            raise UsageError(
                "data source penstock: option 'journal' is missing"
                if journal is None
                else "data source penstock: 'journal' and 'pipeline' exclude each other",
                hint="'journal' names any journal, 'pipeline' the commit log of a pipeline",
            )
        content = given.take("content", _choice(Content))
        if content is None:
            content = Content.LINES if pipeline is None else Content.RECORDS
        if pipeline is not None and content in (Content.LINES, Content.JSON):
            raise UsageError(
                f"data source penstock: a commit log has no content '{content}'",
                hint="read its records (content=records), whose column `data` is JSON text",
            )
        records = content is Content.RECORDS
        start = given.take("startOffset", _place)
        return cls(
            access=_access(given, data_dir),
            data_dir=data_dir,
            journal=journal or f"pipelines/{pipeline}/log",
            pipeline=pipeline,
            content=content,
            start=Edge.EARLIEST if start is None else start,
            start_byte=given.take("startByte", _count),
            end_offset=given.take("endOffset", _end),
            max_bytes=given.take("maxBytes", _positive_size, 64 << 20),
            max_messages=given.take("maxMessages", _positive, 500_000 if records else None),
            partitions=given.take("partitions", _positive, os.cpu_count() or 2),
            wait=given.take("wait", _seconds, 1.0),
            gather=given.take("gather", _seconds, 0.0),
            fail_on_data_loss=given.take("failOnDataLoss", _boolean),
            chunk_bytes=given.take("chunkBytes", _positive_size, 1 << 20),
            max_line_bytes=given.take("maxLineBytes", _positive_size, _MAX_LINE),
            mode=given.take("mode", lambda text: _choice(Mode)(text.upper()), Mode.PERMISSIVE),
            staging=given.take("stagingDir", _path),
            transaction=_transaction(given),
        )

    @property
    def serves_itself(self) -> bool:
        """Whether the broker is the data directory's own."""
        return self.data_dir is not None and self.access.address == _socket(self.data_dir)

    def fails_on_data_loss(self, *, stream: bool) -> bool:
        return stream if self.fail_on_data_loss is None else self.fail_on_data_loss


class _Given:
    """The options as they were written, by name."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        for name in self._values:
            if name in _SECRETS:
                raise UsageError(
                    f"data source penstock: '{name}' is no option, since Spark shows options in its plans",
                    hint=_SECRETS[name],
                )
            if name not in _BY_LOWER and name not in _SPARKS_OWN:
                close = did_you_mean(name, _BY_LOWER)
                for lower, spelled in _BY_LOWER.items():
                    close = close.replace(f"'{lower}'", f"'{spelled}'")
                raise UsageError(f"data source penstock: unknown option '{name}'{close}")

    def take(self, name: str, parse: Callable[[str], T], default: T | None = None) -> T:
        text = self._values.get(name.lower())
        if text is None:
            return default  # type: ignore[return-value]  # the field says whether there may be none
        try:
            return parse(text)
        except ValueError as error:
            raise UsageError(f"data source penstock: option '{name}': {error}") from None


def _access(given: _Given, data_dir: Path | None) -> Access:
    broker = given.take("broker", str)
    if broker is None and data_dir is None:
        raise UsageError(
            "data source penstock: neither 'dataDir' nor 'broker' is given",
            hint="dataDir=PATH for the broker of a data directory, broker=https://HOST:PORT for another",
        )
    token_file, keys_file = given.take("tokenFile", _path), given.take("authKeysFile", _path)
    if token_file is not None and keys_file is not None:
        raise UsageError("data source penstock: 'tokenFile' and 'authKeysFile' exclude each other")
    return Access(
        address=broker if broker is not None else _socket(data_dir or Path()),
        ca_file=given.take("caFile", _path),
        cert_file=given.take("certFile", _path),
        key_file=given.take("keyFile", _path),
        token_file=token_file,
        keys_file=keys_file,
    )


def _transaction(given: _Given) -> Transaction | None:
    app, version = given.take("txnAppId", _register_name), given.take("txnVersion", _count)
    if (app is None) != (version is None):
        raise UsageError("data source penstock: 'txnAppId' and 'txnVersion' go together")
    return None if app is None else Transaction(app, version)


def _socket(data_dir: Path) -> str:
    return f"unix:{DataDir(data_dir).socket}"


def _path(text: str) -> Path:
    return Path(text).expanduser().absolute()


def _count(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else -1
    if number < 0:
        raise ValueError(f"expected a number, not '{text}'")
    return number


def _positive(text: str) -> int:
    number = _count(text)
    if not number:
        raise ValueError("expected at least 1")
    return number


def _positive_size(text: str) -> int:
    size = units.parse_size(text)
    if not size:
        raise ValueError("expected at least 1 byte")
    return size


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = units.parse_duration(text)
    if not 0 <= seconds < 3600:
        raise ValueError(f"expected less than an hour, not '{text}'")
    return seconds


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"expected true or false, not '{text}'")
    return text.lower() == "true"


def _place(text: str) -> int | Edge:
    if text.lower() in list(Edge):
        return Edge(text.lower())
    try:
        return _count(text)
    except ValueError:
        raise ValueError(f"expected earliest, latest or a number, not '{text}'") from None


def _end(text: str) -> int | None:
    """Batch reads end where the journal does, unless told otherwise."""
    return None if text.lower() == Edge.LATEST else _count(text)


def _choice(kind: type[E]) -> Callable[[str], E]:
    def parse(text: str) -> E:
        try:
            return kind(text)
        except ValueError:
            known = [member.value for member in kind]
            raise ValueError(f"there is no '{text}'{did_you_mean(text, known)}") from None

    return parse


def _register_name(text: str) -> str:
    try:
        tokens.check_token(text, 1, 58)
    except tokens.ValidationError as error:
        raise ValueError(error.complaint) from None
    return text
