"""Streams between coordinators: one TCP connection a sender and receiver, opened by the sender (reference 10).

    sender      one line of JSON (`Hello`): who it is, to whom, with the receiver's password
    receiver    one line of JSON (`Welcome`), then ReplayFrom and the first Commit
    sender      calls, alone or in batches (types 0, 5, 13), in order, for as long as both live
    receiver    Commit, whenever more of them is durable

A replica that watches the primary opens the same way and gets a line a heartbeat (`watching`).

With a certificate the receiver takes TLS connections alone. Nobody need sign it: who connects knows its fingerprint
from where it knows the password from, the receiver's own journal.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ssl
from typing import TYPE_CHECKING, TypeVar

import msgspec

from penstock.base.errors import PenstockError

if TYPE_CHECKING:
    from penstock.immortal.about import Serving
    from penstock.journal.tls import ServerTls

LINE = 8 << 10
"""The longest first line that is taken."""
OPENING = 10.0
READ = 256 << 10
NOT_PRIMARY = "this coordinator is not primary"
"""Why there is no stream, to who knows the password of this start."""

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


def fingerprint(tls: ServerTls | None) -> str:
    """What others know a certificate by; empty without one."""
    if tls is None:
        return ""
    text = tls.cert_file.read_text()
    leaf = text[text.index(ssl.PEM_HEADER) : text.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)]
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(leaf)).hexdigest()


async def connected(to: Serving, limit: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to whoever serves there, and to nobody else if it has a certificate."""
    if not to.certificate:
        return await asyncio.open_connection(to.host, to.port, limit=limit)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # it is compared with what the journal says
    reader, writer = await asyncio.open_connection(to.host, to.port, limit=limit, ssl=context)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True) or b""
    if not matches(hashlib.sha256(shown).hexdigest(), to.certificate):
        writer.transport.abort()
        raise NoStreamError(f"the certificate at {to.host}:{to.port} is not the one that its journal names")
    return reader, writer


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
