"""`tcp`: lines over a plain connection, for programs that speak no protocol at all.

Each batch is a connection: lines of JSON, then the end of our half. The batch counts as delivered when the other side,
having read up to that end, closes its half as well; if it breaks off or never closes, the batch is sent again. So a
program gets every message at least once, in the order of the log, and `nc -lk` is enough of a program.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from penstock.adaptors.base import (
    Adaptor,
    Guarantee,
    Order,
    Publisher,
    Sink,
    SinkPosition,
    Staged,
    Stager,
)
from penstock.adaptors.formats.linewriter import lines_of
from penstock.adaptors.parts import PartStager, read_parts
from penstock.base.errors import AwayError
from penstock.base.settings import setting
from penstock.base.units import Unit


@dataclass(frozen=True)
class Tcp(Adaptor):
    """A program that listens."""

    name: ClassVar[str] = "tcp"
    description: ClassVar[str] = (
        "lines of JSON over a plain TCP connection, one for each batch; at least once"
    )
    writes: ClassVar[bool] = True

    uri: str = setting("where the program listens", example="tcp://localhost:9000")
    envelope: bool = setting("write op, ts and ns around the data of each line", default=False)
    timeout: float = setting("seconds to wait for the other side", default=60.0, unit=Unit.SECONDS)

    def __post_init__(self) -> None:
        self.address  # noqa: B018 - checked when the pipeline is read
        if not self.timeout > 0:
            raise ValueError("setting 'timeout': expected more than 0")

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.uri)
        if parts.scheme != "tcp" or not parts.hostname or not parts.port:
            raise ValueError(f"setting 'uri': expected tcp://HOST:PORT, got '{self.uri}'")
        return parts.hostname, parts.port

    def sink(self) -> Sink:
        return TcpSink(self)


class TcpSink(Sink):
    order = Order.TOTAL
    guarantee = Guarantee.AT_LEAST_ONCE

    def __init__(self, settings: Tcp) -> None:
        self._settings = settings

    def stager(self) -> Stager:
        return PartStager()

    def publisher(self) -> Publisher:
        return TcpPublisher(self._settings)

    def staging(self, scratch: Path) -> Path:
        return scratch


class TcpPublisher(Publisher):
    """Sends a batch, and waits for the other side to have read it."""

    def __init__(self, settings: Tcp) -> None:
        self._settings = settings

    def open(self, start: SinkPosition) -> SinkPosition | None:
        return None

    def publish(self, parts: Sequence[Staged], position: SinkPosition) -> None:
        if not parts:
            return
        try:
            with socket.create_connection(self._settings.address, self._settings.timeout) as connection:
                for batch in read_parts(parts):
                    lines, _, _ = lines_of(batch, envelope=self._settings.envelope)
                    connection.sendall(lines)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass
        except OSError as error:
            raise AwayError(
                f"{self._settings.uri} did not take the batch: {error.strerror or error}"
            ) from None

    def close(self) -> None:
        return
