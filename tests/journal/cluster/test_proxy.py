"""The proxy by which tests break networks does what it says."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.servers.proxy import Proxy, proxied


@contextmanager
def echo() -> Iterator[int]:
    """A server that says everything back."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(one: socket.socket) -> None:
        with one:
            try:
                while chunk := one.recv(1 << 16):
                    one.sendall(chunk)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                one = listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=answer, args=(one,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield int(listener.getsockname()[1])
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)


@pytest.fixture
def link() -> Iterator[Proxy]:
    with echo() as port, proxied(port) as proxy:
        yield proxy


def connected(link: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", link.port), timeout=5)


def said_back(one: socket.socket, what: bytes) -> bytes:
    one.sendall(what)
    return received(one, len(what))


def received(one: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size and (chunk := one.recv(1 << 16)):
        got += chunk
    return got


def test_a_link_passes_everything_on(link: Proxy) -> None:
    what = bytes(range(256)) * 4000
    with connected(link) as one:
        sender = threading.Thread(target=one.sendall, args=(what,))
        sender.start()
        assert received(one, len(what)) == what
        sender.join()
        one.shutdown(socket.SHUT_WR)
        assert one.recv(1) == b""


def test_a_cut_link_resets_what_there_is_and_what_comes_until_it_heals(link: Proxy) -> None:
    with connected(link) as one:
        assert said_back(one, b"hello") == b"hello"
        link.cut()
        with pytest.raises(ConnectionError):
            one.recv(1)
    with pytest.raises(ConnectionError), connected(link) as two:
        two.recv(1)
    link.heal()
    with connected(link) as three:
        assert said_back(three, b"hello") == b"hello"


def test_a_stalled_link_keeps_its_connections_and_flows_on_when_it_heals(link: Proxy) -> None:
    with connected(link) as one:
        assert said_back(one, b"hello") == b"hello"
        link.stall()
        one.sendall(b"later")
        one.settimeout(0.2)
        with pytest.raises(TimeoutError):
            one.recv(1)
        link.heal()
        one.settimeout(5)
        assert received(one, 5) == b"later"


def test_a_delayed_link_is_slow_each_way_but_no_narrower(link: Proxy) -> None:
    link.delay = 0.2
    with connected(link) as one:
        one.sendall(b"x")
        received(one, 1)
        began = time.monotonic()
        for _ in range(20):
            one.sendall(b"x")
            time.sleep(0.002)
        assert len(received(one, 20)) == 20
        assert 0.4 <= time.monotonic() - began < 20 * 0.4 / 2, (
            "one after the other would take 20 times as long"
        )
