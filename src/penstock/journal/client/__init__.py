"""The journal client: `AsyncClient` for asyncio, `Client` for threads, scripts and Spark's worker processes.

    append          one transaction, durable on return            `AsyncClient.append`, `Client.append`
    read            follows, retries, fetches fragments itself    `AsyncClient.read` (a `Reader`), `Client.read`
    Appender        many small records, few appends, callbacks    `Appender`, for threads `SyncAppender`
    claim           one owner of a journal at a time              `penstock.journal.client.fencing`

Both faces build their requests and judge the answers by the same code (`requests`, `answers`).
"""

from penstock.journal.client.aio import AsyncClient
from penstock.journal.client.answers import Appended, Span
from penstock.journal.client.appender import Appender, Pending
from penstock.journal.client.errors import (
    AppenderFailedError,
    AppenderFullError,
    BrokerGoneError,
    BytesGoneError,
    HoleError,
    JournalError,
    NotOfferedError,
    OffsetJumpError,
    ProtocolError,
    RegisterMismatchError,
    StoreUnhealthyError,
    TimedOutError,
    UnauthenticatedError,
)
from penstock.journal.client.fencing import (
    FencedError,
    InDoubtError,
    Ownership,
    RegistersLostError,
    claim,
)
from penstock.journal.client.halt import Halt
from penstock.journal.client.reader import Reader
from penstock.journal.client.requests import APPEND_CHUNK
from penstock.journal.client.sync import DEFAULT_TIMEOUT, Client, Spans
from penstock.journal.client.threads import SyncAppender

__all__ = [
    "APPEND_CHUNK",
    "DEFAULT_TIMEOUT",
    "Appended",
    "Appender",
    "AppenderFailedError",
    "AppenderFullError",
    "AsyncClient",
    "BrokerGoneError",
    "BytesGoneError",
    "Client",
    "FencedError",
    "Halt",
    "HoleError",
    "InDoubtError",
    "JournalError",
    "NotOfferedError",
    "OffsetJumpError",
    "Ownership",
    "Pending",
    "ProtocolError",
    "Reader",
    "RegisterMismatchError",
    "RegistersLostError",
    "Span",
    "Spans",
    "StoreUnhealthyError",
    "SyncAppender",
    "TimedOutError",
    "UnauthenticatedError",
    "claim",
]
