"""TLS for the servers of tests: certificates made on the spot, and a door in front of servers that have none.

An `Authority` signs one certificate, for `localhost` and for no address; another one, that nobody has heard of, is
there to be wrong. Where a server was built without TLS, a `door` speaks it to clients, from the first byte or when
PostgreSQL's clients ask for it, and passes everything on.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from penstock.adaptors.eventloop import EventLoop

PATIENCE = 10.0
_SSL_REQUEST = (8).to_bytes(4, "big") + (80877103).to_bytes(4, "big")
_PIECE = 64 * 1024


@dataclass(frozen=True)
class ServerFiles:
    """What a server shows: its certificate and key, each in a file, and both in one."""

    certificate: Path
    key: Path
    both: Path


@dataclass(frozen=True)
class Authority:
    """Whom to trust, what the servers show, and an authority that has signed nothing of it."""

    ca: Path
    other: Path
    server: ServerFiles
    client: ServerFiles


def authority(place: Path) -> Authority:
    """Made in the directory `place`, readable by all: servers run as other users."""
    ours = trustme.CA(organization_name="tests")
    files = Authority(place / "ca.pem", place / "other.pem", _files(place, "server"), _files(place, "client"))
    ours.cert_pem.write_to_path(str(files.ca))
    trustme.CA(organization_name="others").cert_pem.write_to_path(str(files.other))
    for made, to in ((ours.issue_cert("localhost"), files.server), (ours.issue_cert("sender"), files.client)):
        key = load_pem_private_key(made.private_key_pem.bytes(), None)
        text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())  # which Java reads, too
        to.key.write_bytes(text)
        to.certificate.write_bytes(made.cert_chain_pems[0].bytes())
        to.both.write_bytes(text + made.cert_chain_pems[0].bytes())
    for file in place.iterdir():
        file.chmod(0o644)
    return files


def _files(place: Path, name: str) -> ServerFiles:
    return ServerFiles(place / f"{name}.pem", place / f"{name}.key", place / f"{name}-both.pem")


@contextmanager
def door(to: int, files: ServerFiles, *, postgres: bool = False) -> Iterator[int]:
    """A port of `localhost` that speaks TLS and leads to a port of 127.0.0.1."""
    loop = EventLoop("tls door")
    try:
        made = _Door(to, files, postgres=postgres)
        yield loop.run(made.open(), PATIENCE)
    finally:
        loop.close()


class _Door:
    def __init__(self, to: int, files: ServerFiles, *, postgres: bool) -> None:
        self._to, self._postgres = to, postgres
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(files.certificate, files.key)

    async def open(self) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        secure = None if self._postgres else self._context
        await asyncio.start_server(self._let_in, sock=listener, ssl=secure)
        return int(listener.getsockname()[1])

    async def _let_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The loop's end cancels what is under way.
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            if self._postgres:
                if await reader.readexactly(len(_SSL_REQUEST)) != _SSL_REQUEST:
                    writer.close()  # it did not ask for TLS
                    return
                writer.write(b"S")
                await writer.drain()
                await writer.start_tls(self._context)
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._to)
            async with asyncio.TaskGroup() as group:
                group.create_task(_pass_on(reader, inner_writer))
                group.create_task(_pass_on(inner_reader, writer))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()
    writer.close()
