"""What no handler can make sense of, or gives back: it is in the log, so it must not end the binding, or each replay
would end at the same place."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.immortal.world import World

from penstock.base.errors import UsageError
from penstock.immortal import Immortal, field, impulse, rpc, wire
from penstock.immortal.binding.services import ASK, DELIVER, Delivered, Delivery
from penstock.immortal.binding.snapshot import SinkState
from penstock.immortal.wire import Call, MessageType, Reply, ReplyKind, RpcType, encode_message, incoming

TOO_LARGE = 1 << 80
NO_TEXT = "\ud800"
MUCH = bytes(1 << 16)


class Odd(msgspec.Struct):
    """A value that refuses to be made in its own way."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise KeyError(self.n)


class Stop(BaseException):
    """As libraries have them, to get past `except Exception`."""


class WordlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Clumsy(Immortal):
    """Its handlers do what they should not."""

    seen: list[str] = field(list)

    @impulse
    def note(self, what: str) -> int:
        self.seen.append(what)
        return len(self.seen)

    @impulse
    def delivered(self, message: Delivered) -> None:
        self.seen.append(message.ns)

    @rpc
    def take(self, odd: Odd) -> None:
        self.seen.append(str(odd.n))

    @rpc
    def anything(self, value: Any) -> None:
        self.seen.append(repr(value))

    @impulse
    def too_large(self) -> int:
        return TOO_LARGE

    @impulse
    async def too_large_later(self) -> int:
        return TOO_LARGE

    @impulse
    async def no_text(self) -> str:
        return NO_TEXT

    @impulse
    def sends_too_much(self) -> None:
        Clumsy.at("b").anything.send(MUCH)

    @impulse
    async def asks_too_much(self) -> None:
        await Clumsy.at("b").anything(MUCH)

    @rpc
    def much(self) -> bytes:
        return MUCH

    @impulse
    async def is_answered_too_much(self) -> None:
        await Clumsy.at("a").much()

    @impulse
    def exits(self) -> None:
        sys.exit(3)

    @impulse
    async def exits_later(self) -> None:
        await Clumsy.at("a").anything(1)
        raise SystemExit

    @impulse
    def is_cancelled(self) -> None:
        raise asyncio.CancelledError

    @impulse
    def stops(self) -> None:
        raise Stop

    @impulse
    async def stops_later(self) -> None:
        await Clumsy.at("a").anything(1)
        raise Stop

    @impulse
    async def is_closed(self) -> None:
        raise GeneratorExit

    @impulse
    def raises_no_text(self) -> None:
        raise ValueError(NO_TEXT)

    @impulse
    def wordless(self) -> None:
        raise WordlessError

    @rpc
    def give(self) -> Odd:
        odd = Odd(1)
        odd.n = -1
        return odd

    @impulse
    async def fetch(self, peer: str) -> int:
        return (await Clumsy.at(peer).give()).n


def goes_on(world: World) -> None:
    """It works, now and after a crash, from the log and from a checkpoint."""
    for crash in (lambda: None, lambda: world.crash("a"), lambda: world.checkpoint("a")):
        crash()
        world.ask("a", "note", "on", request="on")
        assert world.nodes["a"].outcomes.pop("on").kind == ""
    world.crash("a")


@pytest.fixture(autouse=True)
def _unlogged(caplog: pytest.LogCaptureFixture) -> None:
    """What is told here of errors cannot be sent from one process of the tests to another."""
    caplog.set_level(logging.CRITICAL, logger="penstock.immortal")


@pytest.fixture
def world() -> World:
    made = World()
    made.start(Clumsy, "a")
    made.start(Clumsy, "b")
    return made


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("too_large", "OverflowError"),
        ("too_large_later", "OverflowError"),
        ("no_text", "UnicodeEncodeError"),
        ("raises_no_text", "ValueError"),
        ("wordless", "WordlessError"),
    ],
)
@pytest.mark.parametrize("key", ["", "once"])
def test_what_cannot_be_told_is_told_as_an_error(world: World, method: str, kind: str, key: str) -> None:
    world.ask("a", method, key=key)
    assert world.nodes["a"].outcomes["r"].kind == kind
    goes_on(world)


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("sends_too_much", "ImmortalError"),
        ("asks_too_much", "ImmortalError"),
        ("is_answered_too_much", "RemoteError"),
        ("exits", "SystemExit"),
        ("exits_later", "SystemExit"),
        ("is_cancelled", "CancelledError"),
        ("stops", "Stop"),
        ("stops_later", "Stop"),
        ("is_closed", "GeneratorExit"),
    ],
)
def test_what_would_end_the_process_at_every_start_is_the_failure_of_its_handler(
    world: World, method: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "MAX_MESSAGE", len(MUCH))
    world.ask("a", method)
    world.settle()
    assert world.nodes["a"].outcomes["r"].kind == kind
    goes_on(world)


def test_an_answer_that_cannot_be_read_is_an_error_of_the_call(world: World) -> None:
    world.ask("a", "fetch", "b")
    world.settle()
    assert world.nodes["a"].outcomes["r"].kind == "RemoteError"
    goes_on(world)


def _nested() -> bytes:
    return b"\x91" * 100_000 + b"\xc0"


@pytest.mark.parametrize(
    "call",
    [
        lambda: Call(Clumsy.take.id, RpcType.FORK, msgspec.msgpack.encode([{"n": -1}])),
        lambda: Call(Clumsy.anything.id, RpcType.FORK, _nested()),
        lambda: Call(Clumsy.take.id, RpcType.FORK, b"\xc1"),
        lambda: Call(ASK, RpcType.IMPULSE, b"\xc1"),
        lambda: Call(ASK, RpcType.IMPULSE, _nested()),
    ],
)
def test_a_call_with_arguments_that_cannot_be_read_is_a_failure(
    world: World, call: Callable[[], Call]
) -> None:
    failures = world.nodes["a"].machine.runtime.failures
    world.log("a", incoming(call()))
    assert world.nodes["a"].machine.runtime.failures == failures + 1
    goes_on(world)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x02\x07",  # of a type that there is not
        b"\x00\x02\x00\x7f",  # the name of its sender breaks off
        b"\x00\x02\x00\x02\xff\x00",  # and is no text here
        b"\x04\x00",  # neither a call nor an answer
        b"\x01\x00\x02\x08x",  # an answer that is longer than it is
    ],
)
def test_a_call_of_a_peer_that_cannot_be_read_is_a_failure_and_what_comes_with_it_happens(
    world: World, data: bytes
) -> None:
    good = incoming(Call(Clumsy.take.id, RpcType.FORK, msgspec.msgpack.encode([{"n": 5}])))
    machine = world.nodes["a"].machine
    world.log("a", good, encode_message(MessageType.RPC, data), good)
    assert (machine.runtime.failures, machine.instance.__dict__["_values"]["seen"]) == (1, ["5", "5"])
    goes_on(world)


@pytest.mark.parametrize(
    "sent",
    [
        incoming(Reply(ReplyKind.VOID, "b", 77)),
        incoming(Reply(ReplyKind.VALUE, "", 1, b"\x05")),
        incoming(
            Call(Clumsy.take.id, RpcType.ASYNC, b"\x90", "", 9)
        ),  # of nobody, which is how oneself is named
        incoming(Call(Clumsy.take.id, RpcType.ASYNC, b"\x90", "a", 9)),
    ],
)
def test_an_answer_to_a_call_that_was_never_made_means_nothing(world: World, sent: bytes) -> None:
    world.log("a", sent)
    world.settle()
    assert world.nodes["a"].machine.runtime.failures > 0
    goes_on(world)


def test_an_answer_that_comes_twice_is_taken_once(world: World) -> None:
    world.ask("a", "fetch", "b")
    world.settle()
    world.log("a", incoming(Reply(ReplyKind.VALUE, "b", 1, b"\x05")))
    assert world.nodes["a"].machine.runtime.failures == 2, "the first one could not be read"
    goes_on(world)


def _message(offset: int, ns: str) -> bytes:
    return msgspec.msgpack.encode(Delivered(offset, 0, "insert", ns, None, None, "{}"))


def test_a_delivery_that_cannot_be_read_is_refused_and_nothing_of_it_happens(world: World) -> None:
    after = SinkState("log", 1, 2)
    machine = world.nodes["a"].machine
    with pytest.raises(UsageError, match="message 1 of a delivery"):
        machine.services.deliver(world.now, "r", "sink", after, "delivered", [_message(0, "x"), b"\xc1"])
    assert not machine.out
    event = Delivery(world.now, "r", "sink", after, "delivered", [_message(0, "x"), b"\xc1"])
    world.log("a", incoming(Call(DELIVER, RpcType.IMPULSE, msgspec.msgpack.encode(event))))
    assert world.nodes["a"].outcomes["r"].kind == "UsageError"
    assert machine.instance.__dict__["_values"]["seen"] == []
    assert machine.runtime.sinks == {}
    machine.services.deliver(world.now, "r", "sink", after, "delivered", [_message(0, "x"), _message(1, "y")])
    world.collect(world.nodes["a"])
    assert machine.instance.__dict__["_values"]["seen"] == ["x", "y"]
    goes_on(world)
