"""A machine on real sockets, with a scripted coordinator; and its HTTP endpoint."""

from __future__ import annotations

import asyncio
import http.client
import threading
import time
from collections.abc import Callable

import msgspec
import pytest
from click.testing import CliRunner
from tests.immortal.scripted import PATIENCE, Scripted, pair

from penstock.base.errors import UsageError
from penstock.cli import cli
from penstock.immortal import Immortal, RemoteError, field, impulse, wire
from penstock.immortal.binding.errors import ImmortalError
from penstock.immortal.binding.ingress import Ingress
from penstock.immortal.binding.machine import Machine
from penstock.immortal.binding.outside import Outside
from penstock.immortal.binding.shell import CoordinatorGoneError, Shell, refuse_too_much
from penstock.immortal.wire import MessageType


class Counter(Immortal):
    total: int = 0
    texts: list[str] = field(list)
    ready: int = 0

    async def on_primary(self) -> None:
        self.woke.send()

    @impulse
    def woke(self) -> None:
        self.ready += 1

    @impulse
    def add(self, number: int) -> int:
        if number < 0:
            raise ValueError("below zero")
        self.total += number
        self.texts.append("x" * 1000)
        return self.total


def shell(**more: Callable[[Shell], asyncio.Task[None]]) -> Shell:
    return Shell(Machine(Counter, "counter", now=time.time, marks=False), **more)


def counter(it: Shell) -> Counter:
    assert isinstance(it.machine.instance, Counter)
    return it.machine.instance


async def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def test_an_impulse_of_another_thread_is_not_lost_while_others_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        it = shell()
        async with pair(it) as (ic, _):
            await ic.first_start()
            await ic.log_what_comes()
            await until(lambda: counter(it).ready == 1)
            encoding, written = threading.Event(), threading.Event()
            outgoing = wire.outgoing

            def slow(destination: str, rpc: wire.Call | wire.Reply) -> bytes:
                if threading.current_thread() is not threading.main_thread():
                    encoding.set()
                    assert written.wait(PATIENCE)
                return outgoing(destination, rpc)

            monkeypatch.setattr(wire, "outgoing", slow)
            sending = threading.Thread(target=lambda: counter(it).add.send(7))
            sending.start()
            await until(encoding.is_set)
            counter(it).add.send(1)
            await ic.log_what_comes()
            await until(lambda: counter(it).total == 1)
            written.set()
            await ic.log_what_comes()
            await until(lambda: counter(it).total == 8)
            sending.join()

    asyncio.run(run())


def test_first_start_work_checkpoint_and_recovery() -> None:
    async def run() -> None:
        first = shell()
        async with pair(first) as (ic, serving):
            await ic.first_start()
            await ic.log_what_comes()
            await until(lambda: counter(first).ready == 1)
            for n in range(5):
                ic.record(call(n), call(n))
            ic.control(MessageType.TAKE_CHECKPOINT)
            blob = await ic.take_checkpoint()
            kept = len(ic.log)
            ic.record(call(100))
            await until(lambda: counter(first).total == 120)
            log = list(ic.log)
            ic.close()
            with pytest.raises(CoordinatorGoneError):
                await serving
        second = shell()
        async with pair(second) as (ic, _):
            await ic.recover(blob, log, kept, cut=7)
            await until(lambda: counter(second).total == 120)
            assert not second.machine.is_primary
            ic.control(MessageType.TAKE_BECOMING_PRIMARY_CHECKPOINT)
            await ic.take_checkpoint()
            await ic.log_what_comes()
            await until(lambda: counter(second).ready == 2)
            assert len(counter(second).texts) == 11

    asyncio.run(run())


class Restless(Counter):
    """Its hook never ends, as one that reads from somewhere."""

    async def on_primary(self) -> None:
        self.woke.send()
        await asyncio.to_thread(self.woke.send)
        await asyncio.Event().wait()


def test_what_a_hook_sends_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.immortal.binding.shell.MARK_EVERY", 3600.0)

    async def run() -> None:
        it = Shell(Machine(Restless, "counter", now=time.time, marks=False))
        async with pair(it) as (ic, _):
            await ic.first_start()
            for _ in range(2):
                await asyncio.wait_for(ic.log_what_comes(), PATIENCE)
            await until(lambda: counter(it).ready == 2)

    asyncio.run(run())


def call(number: int) -> bytes:
    method = Counter.add
    return wire.incoming(wire.Call(method.id, wire.RpcType.IMPULSE, method.signature.encode((number,), {})))


def test_what_comes_out_of_order_ends_the_pair() -> None:
    async def run() -> None:
        async with pair(shell()) as (ic, serving):
            ic.control(MessageType.BECOMING_PRIMARY)
            with pytest.raises(Exception, match="type 15 came while starting"):
                await asyncio.wait_for(serving, PATIENCE)

    asyncio.run(run())


async def echo(ic: Scripted) -> None:
    """Log whatever the binding sends itself, until cancelled."""
    while True:
        await ic.log_what_comes()


def test_calls_over_http_happen_once_for_a_key() -> None:
    ports: list[int] = []

    def serve(it: Shell) -> asyncio.Task[None]:
        return asyncio.create_task(Ingress(it, token="secret").serve("127.0.0.1", 0, ports.append))

    def client() -> None:
        outside = Outside(f"127.0.0.1:{ports[0]}", token="secret")
        try:
            assert outside.call("add", [2], key="a") == 2
            assert outside.call("add", [2], key="a") == 2
            assert outside.call("add", [3]) == 5
            words = ("immortal", "call", outside.address, "add", "1", "--token", "secret", "--key", "b")
            for _ in range(2):
                assert CliRunner().invoke(cli, words).output == "6\n"
            with pytest.raises(RemoteError, match="ValueError: below zero"):
                outside.call("add", [-1])
            with pytest.raises(UsageError, match="did you mean 'add'"):
                outside.call("ad", [1])
            with pytest.raises(UsageError, match="Expected `int`, got `str`"):
                outside.call("add", ["1"])
            state = msgspec.json.decode(outside.ask("GET", "/state"))
            assert (state["total"], len(state["texts"])) == (6, 3)
        finally:
            outside.close()
        stranger = Outside(f"127.0.0.1:{ports[0]}", token="guessed")
        with pytest.raises(UsageError, match="wants a token"):
            stranger.call("add", [1])
        stranger.close()

    async def run() -> None:
        async with pair(shell(on_primary=serve)) as (ic, _):
            await ic.first_start()
            echoing = asyncio.create_task(echo(ic))
            await until(lambda: ports)
            await asyncio.to_thread(client)
            echoing.cancel()

    asyncio.run(run())


def test_a_key_is_any_text_of_one_line_and_an_address_may_be_of_IPv6() -> None:
    ports: list[int] = []

    def serve(it: Shell) -> asyncio.Task[None]:
        return asyncio.create_task(Ingress(it).serve("::1", 0, ports.append))

    def client() -> None:
        outside = Outside(f"[::1]:{ports[0]}")
        assert outside.address == f"[::1]:{ports[0]}"
        try:
            for _ in range(2):
                assert outside.call("add", [2], key="schl\u00fcssel \u9375") == 2
            with pytest.raises(UsageError, match="one line"):
                outside.call("add", [2], key="a\nb")
        finally:
            outside.close()

    async def run() -> None:
        async with pair(shell(on_primary=serve)) as (ic, _):
            await ic.first_start()
            echoing = asyncio.create_task(echo(ic))
            await until(lambda: ports)
            await asyncio.to_thread(client)
            echoing.cancel()

    asyncio.run(run())


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "127.0.0.1:99999", "127.0.0.1:x", "[::1", "https://bank:80"]
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT was expected"):
        Outside(address)


def test_without_a_token_no_web_page_is_answered_and_nonsense_is_the_callers_mistake(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A page of any site can have a browser post here: it called methods, and took away what was emitted."""
    ports: list[int] = []

    def serve(it: Shell) -> asyncio.Task[None]:
        return asyncio.create_task(Ingress(it).serve("127.0.0.1", 0, ports.append))

    def asked(path: str, **headers: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", ports[0], timeout=PATIENCE)
        try:
            connection.request("POST", path, b"[2]", headers)
            return connection.getresponse().status
        finally:
            connection.close()

    def client() -> None:
        assert asked("/call/add", Origin="http://evil.test") == 403
        assert asked("/taken?number=9", Origin="null") == 403
        assert asked("/call/add", Host=f"evil.test:{ports[0]}") == 421
        assert asked("/call/add", Host=f"localhost:{ports[0]}") == 200
        for path in ("/taken", "/taken?number=x", f"/taken?number={1 << 80}"):
            assert asked(path) == 400

    async def run() -> None:
        it = shell(on_primary=serve)
        async with pair(it) as (ic, _):
            await ic.first_start()
            echoing = asyncio.create_task(echo(ic))
            await until(lambda: ports)
            await asyncio.to_thread(client)
            assert counter(it).total == 2
            echoing.cancel()

    asyncio.run(run())
    assert "Traceback" not in capfd.readouterr().err


def test_what_waits_to_be_written_is_bounded_by_its_bytes_not_by_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.immortal.binding.shell.MAX_UNWRITTEN", 1 << 20)
    refuse_too_much([b"small"] * 100_000)
    with pytest.raises(ImmortalError, match="1 MiB wait"):
        refuse_too_much([bytes(600_000), bytes(600_000)])
