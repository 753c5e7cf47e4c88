"""A connector with the habits of the original's Python SDK, as the protocol's reference tells them; codecs of its own.

It connects with a single `recv` for the length of OK and a single one for the rest, asks for all its streams at once
whatever credits it has, sends while it has credits, asks again for a refused stream when an ACK comes, takes an ACK
that goes back for an order to rewind, and dies of tags that it does not know, of an ACK behind the end of a stream, of
an ERROR and of a RESTART. A connection that closes without a word is made again, and all streams are asked for.
"""

from __future__ import annotations

import hashlib
import select
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass, field

NOTHING = 2**64 - 1
OK, ERROR, NOTIFY_ACK, ACK, RESTART = 1, 2, 4, 6, 7


class SdkError(Exception):
    """`connect` raised: the worker refused, or its OK came in pieces."""


class SdkDiedError(Exception):
    """Its event loop ended with an error, and `join` never returns."""


class SdkRestartedError(Exception):
    """It was told to start again: the process exits with 77."""


def short(value: bytes) -> bytes:
    return struct.pack(">H", len(value)) + value


def frame(tag: int, body: bytes) -> bytes:
    return struct.pack(">IB", len(body) + 1, tag) + body


@dataclass
class SdkSource:
    """Records of one length; an id is the byte at which a record begins, or the one behind it."""

    name: str
    count: int
    starts: bool = False
    length: int = 10
    at: int = 0
    point: int = 0
    rewinds: int = 0
    final: int | None = None
    closed: bool = False
    acked: list[int] = field(default_factory=list)

    @property
    def id(self) -> int:
        return int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:8], "big")

    def record(self) -> tuple[int, bytes] | None:
        if self.at >= self.count * self.length:
            return None
        begin, self.at = self.at, self.at + self.length
        return begin if self.starts else self.at, b"%0*d" % (self.length, begin)

    def reset(self, point: int) -> None:
        """Begin at this byte; what starts there may be sent once more."""
        self.point = point
        self.at = 0 if point == NOTHING else point

    def ids(self) -> list[int]:
        first = 0 if self.starts else self.length
        return list(range(first, first + self.count * self.length, self.length))


class SdkClient:
    """`run` returns when all streams are closed."""

    def __init__(
        self, address: str, sources: list[SdkSource], cookie: bytes, instance: str = "i", pause: float = 0.0
    ) -> None:
        host, port = address.split(":")
        self.address = (host, int(port))
        self.sources = {source.id: source for source in sources}
        self.hello = b"".join(map(short, (b"0.0.1", cookie, b"sdk", instance.encode())))
        self.pause = pause
        self.credits = self.most_credits = 0
        self.connects = self.refusals = 0
        self.active: deque[SdkSource] = deque()
        self.refused: list[SdkSource] = []
        self.out = b""
        self.sock: socket.socket | None = None

    def connect(self) -> None:
        self.sock = socket.create_connection(self.address)
        self.sock.sendall(frame(0, self.hello))
        head = self.sock.recv(4)
        if len(head) < 4:
            raise SdkError("the length of OK came in pieces, or not at all")
        size = int.from_bytes(head, "big")
        payload = self.sock.recv(size)
        if len(payload) < size:
            raise SdkError("OK came in pieces")
        if payload[0] == ERROR:
            raise SdkError(payload[3:].decode())
        if payload[0] != OK:
            raise SdkError(f"tag {payload[0]} instead of OK")
        self.connects += 1
        self.credits, self.out = int.from_bytes(payload[1:5], "big"), b""
        self.most_credits = max(self.most_credits, self.credits)
        self.active.clear()
        self.refused.clear()
        for source in self.sources.values():
            self.notify(source)

    def notify(self, source: SdkSource) -> None:
        self.credits -= 1
        source.closed, source.final = False, None
        body = struct.pack(">Q", source.id) + short(source.name.encode()) + struct.pack(">Q", source.point)
        self.out += frame(3, body)

    def run(self) -> None:
        self.connect()
        while not all(source.closed for source in self.sources.values()):
            try:
                self.turn()
            except ConnectionError:
                self.again()
        assert self.sock is not None
        self.sock.close()

    def again(self) -> None:
        """Closed without a word."""
        time.sleep(0.1)
        while True:
            try:
                self.connect()
            except ConnectionError:
                time.sleep(1.0)
            else:
                return

    def turn(self) -> None:
        assert self.sock is not None
        self.produce()
        wants = [self.sock] if self.out and self.credits >= 0 else []
        readable, writable, _ = select.select([self.sock], wants, [], 0.05)
        if writable:
            self.out = self.out[self.sock.send(self.out) :]
        if readable:
            self.taken(self.read(self.read(4)))

    def produce(self) -> None:
        while self.credits > 0 and self.active:
            source = self.active.popleft()
            record = source.record()
            if record is None:
                source.final = source.ids()[-1]
                self.out += frame(8, struct.pack(">Q", source.id))
                continue
            number, body = record
            self.credits -= 1
            self.out += frame(5, struct.pack(">QQqH", source.id, number, 0, 0) + body)
            self.active.append(source)
            if self.pause:
                time.sleep(self.pause)
                return

    def read(self, size: int | bytes) -> bytes:
        assert self.sock is not None
        wanted, data = size if isinstance(size, int) else int.from_bytes(size, "big"), b""
        while len(data) < wanted:
            some = self.sock.recv(wanted - len(data))
            if not some:
                raise ConnectionResetError
            data += some
        return data

    def taken(self, payload: bytes) -> None:
        tag, body = payload[0], payload[1:]
        if tag == OK:
            self.credits += int.from_bytes(body[:4], "big")
        elif tag == ERROR:
            raise SdkDiedError(body[2:].decode())
        elif tag == NOTIFY_ACK:
            success, stream, point = struct.unpack_from(">BQQ", body)
            self.answered(self.sources[stream], bool(success), point)
        elif tag == ACK:
            self.acked(body)
        elif tag == RESTART:
            raise SdkRestartedError(body[4:].decode())
        else:
            raise SdkDiedError(f"KeyError: {tag}")
        self.most_credits = max(self.most_credits, self.credits)

    def answered(self, source: SdkSource, success: bool, point: int) -> None:
        if not success:
            self.refusals += 1
            self.refused.append(source)
            return
        source.acked.clear()
        source.reset(point)
        self.active.append(source)

    def acked(self, body: bytes) -> None:
        credit, count = struct.unpack_from(">II", body)
        self.credits += credit
        for stream, point in struct.iter_unpack(">QQ", body[8 : 8 + 16 * count]):
            source = self.sources.get(stream)
            if source is not None and not source.closed:
                self.acked_to(source, point)
        again, self.refused = self.refused, []
        for source in again:
            self.notify(source)

    def acked_to(self, source: SdkSource, point: int) -> None:
        if source.final is not None:
            if point > source.final:
                raise SdkDiedError(f"an ACK of {point}, behind the end at {source.final}")
            source.closed = point == source.final
        elif source.acked and point < source.acked[-1]:
            source.rewinds += 1
            source.reset(point)
        source.acked.append(point)
