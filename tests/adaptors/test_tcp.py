"""Lines over a plain connection: delivered when the other side has read to the end, sent again if not."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.adaptors.test_file_sink import rows_of

from penstock import adaptors as a
from penstock.adaptors.base import Guarantee, SinkPosition, Stage, Staged
from penstock.base.errors import AwayError, UsageError


class Listener:
    """Reads connections to their ends; breaks off the first `breaks` of them."""

    def __init__(self, breaks: int = 0) -> None:
        self.batches: list[bytes] = []
        self.breaks = breaks
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    @property
    def uri(self) -> str:
        return f"tcp://127.0.0.1:{self.socket.getsockname()[1]}"

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            with connection:
                if self.breaks:
                    self.breaks -= 1
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    connection.recv(1)
                    continue
                with connection.makefile("rb") as file:
                    self.batches.append(file.read())

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self.thread.join()


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.close()


def part(tmp_path: Path, *texts: str) -> Staged:
    stager = a.tcp(uri="tcp://localhost:1").sink().stager()
    return stager.stage(Stage(tmp_path, f"part{len(list(tmp_path.iterdir()))}", 0), iter([rows_of(texts)]))


def test_a_batch_is_a_connection_of_lines(listener: Listener, tmp_path: Path) -> None:
    sink = a.tcp(uri=listener.uri, envelope=True).sink()
    assert sink.guarantee is Guarantee.AT_LEAST_ONCE
    publisher = sink.publisher()
    assert publisher.open(SinkPosition("l", 0, 0)) is None
    publisher.publish([part(tmp_path, '{"a":1}'), part(tmp_path, '{"b":2}')], SinkPosition("l", 0, 2))
    publisher.publish([], SinkPosition("l", 0, 3))
    (batch,) = listener.batches
    assert [json.loads(line)["data"] for line in batch.splitlines()] == [{"a": 1}, {"b": 2}]


def test_a_batch_that_was_broken_off_is_away_and_comes_again(listener: Listener, tmp_path: Path) -> None:
    listener.breaks = 1
    publisher = a.tcp(uri=listener.uri).sink().publisher()
    staged = part(tmp_path, '{"a":1}')
    with pytest.raises(AwayError, match="did not take the batch"):
        publisher.publish([staged], SinkPosition("l", 0, 1))
    publisher.publish([staged], SinkPosition("l", 0, 1))
    assert listener.batches == [b'{"a":1}\n']


@pytest.mark.parametrize("uri", ["localhost:1", "tcp://localhost", "http://localhost:1"])
def test_what_is_no_address(uri: str) -> None:
    with pytest.raises(UsageError, match=r"expected tcp://HOST:PORT"):
        a.tcp(uri=uri)
