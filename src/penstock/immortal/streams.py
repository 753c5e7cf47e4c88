"""Streams between coordinators: one TCP connection a sender and receiver, opened by the sender (reference 10).

    sender      one line of JSON (`Hello`): who it is, to whom, with the receiver's password
    receiver    one line of JSON (`Welcome`), then ReplayFrom and the first Commit
    sender      calls, alone or in batches (types 0, 5, 13), in order, for as long as both live
    receiver    Commit, whenever more of them is durable

A replica that watches the primary opens the same way and gets a line a heartbeat (`watching`).
"""

from __future__ import annotations

import asyncio
import hmac
from typing import TypeVar

import msgspec

from penstock.base.errors import PenstockError

LINE = 8 << 10
"""The longest first line that is taken."""
OPENING = 10.0
READ = 256 << 10

T = TypeVar("T")


class Hello(msgspec.Struct, frozen=True):
    """The first word of who connects."""

    to: str
    password: str
    source: str = ""
    incarnation: str = ""
    epoch: int = 0
    watcher: str = ""
    """Who watches, instead of sending."""


class Welcome(msgspec.Struct, frozen=True):
    """The answer; `error` says why there is no stream."""

    incarnation: str = ""
    error: str = ""


class NoStreamError(PenstockError):
    """The other side does not take the stream now."""


def matches(given: str, password: str) -> bool:
    return hmac.compare_digest(given.encode(), password.encode())


def line(value: Hello | Welcome) -> bytes:
    return msgspec.json.encode(value) + b"\n"


async def read_line(reader: asyncio.StreamReader, kind: type[T]) -> T:
    """One line of JSON, in time and not too long."""
    try:
        async with asyncio.timeout(OPENING):
            text = await reader.readline()
        if not text.endswith(b"\n"):
            raise NoStreamError("the connection ended before the first line did")
        if len(text) > LINE:
            raise NoStreamError(f"a first line of {len(text)} bytes")
        return msgspec.json.decode(text, type=kind)
    except TimeoutError:
        raise NoStreamError("no first line in time") from None
    except ValueError as error:  # longer than the limit, or no JSON of this kind
        raise NoStreamError(f"a first line that does not read: {error}") from None
