"""Streams between coordinators: who may open one, what becomes of senders and receivers that were made anew."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.immortal.test_startups import Running, broker, instance, scenario
from tests.journal.authority import Authority

from penstock.base.errors import PenstockError
from penstock.immortal import about, journals
from penstock.immortal.coordinator import Coordinator, Options
from penstock.immortal.journals import journal_name
from penstock.immortal.logformat import LogDecoder, LogRecord, Mark, Met
from penstock.immortal.place import Place
from penstock.immortal.streams import Hello, NoStreamError, Welcome, connected, line, read_line
from penstock.immortal.wire import (
    Call,
    MessageType,
    ReplayFrom,
    RpcType,
    batch,
    counted_batch,
    encode_int,
    encode_message,
    incoming,
    outgoing,
    split_messages,
)
from penstock.immortal.wire.rpc import OWN_METHODS
from penstock.journal.tls import ServerTls

__all__ = ["broker"]


async def opened(place: Place, name: str, hello: bytes) -> Welcome:
    serving = (await about.read(place.client, name)).serving
    assert serving is not None
    reader, writer = await asyncio.open_connection(serving.host, serving.port)
    try:
        writer.write(hello)
        return await read_line(reader, Welcome)
    finally:
        writer.close()


def test_strangers_are_refused(broker: str) -> None:
    async def test(place: Place, options: Options) -> None:
        async with instance(place, options) as one:
            await one.until(lambda: "record 0" in one.lb.seen)
            serving = (await about.read(place.client, options.name)).serving
            assert serving is not None
            good = Hello(options.name, serving.password, "other", "x", 1)
            assert (await opened(place, options.name, line(good))).error == ""
            for hello, why in (
                (Hello(options.name, "guess", "other", "x", 1), "password"),
                (Hello("another", serving.password, "other", "x", 1), "not another"),
                (Hello(options.name, serving.password), "nobody"),
            ):
                assert why in (await opened(place, options.name, line(hello))).error
            older = Hello(options.name, serving.password, "other", "x", 0)
            assert "later claimant" in (await opened(place, options.name, line(older))).error
            for nonsense in (b"\x00\xff\n", b"x" * 100_000 + b"\n", b""):
                with pytest.raises(Exception, match="line"):
                    async with asyncio.timeout(60):
                        await opened(place, options.name, nonsense or b"{}\n")
            one.add(1)
            await one.until(lambda: one.app.state["sum"] == 1)

    scenario(broker, test, "guarded")


ONE = incoming(Call(1, RpcType.FORK, b'{"n": 1}'))
TEN = incoming(Call(1, RpcType.FORK, b'{"n": 10}'))


async def sent_away(place: Place, name: str, *messages: bytes) -> None:
    """Who sends this has its stream ended."""
    serving = (await about.read(place.client, name)).serving
    assert serving is not None
    reader, writer = await asyncio.open_connection(serving.host, serving.port)
    writer.write(line(Hello(name, serving.password, "liar", "x", 1)))
    assert not (await read_line(reader, Welcome)).error
    writer.write(b"".join(messages))
    async with asyncio.timeout(60):
        await reader.read()
    writer.close()


@pytest.mark.parametrize(
    "poison",
    [
        encode_int(3) + ONE + ONE,
        encode_int(1) + ONE + ONE,
        encode_int(2) + ONE + ONE[:-1],
        encode_int(2) + ONE + b"\x7e\x00\x00",
        encode_int(2) + ONE + encode_message(MessageType.INITIAL_MESSAGE, b"again"),
        encode_int(2) + ONE + encode_message(MessageType.RPC),
        encode_int(2) + ONE + b"\x03\x00\x00",  # a length below zero
        encode_int(0) + ONE,
        encode_int(-1) + ONE,
    ],
)
@pytest.mark.parametrize("kind", [MessageType.RPC_BATCH, MessageType.COUNT_REPLAYABLE_RPC_BATCH])
def test_a_batch_that_lies_never_reaches_the_log(broker: str, kind: MessageType, poison: bytes) -> None:
    async def test(place: Place, options: Options) -> None:
        async with instance(place, options) as one:
            await one.until(lambda: "record 0" in one.lb.seen)
            if kind == MessageType.COUNT_REPLAYABLE_RPC_BATCH:
                poisoned = poison[:1] + encode_int(0) + poison[1:]
            else:
                poisoned = poison
            await sent_away(place, options.name, TEN, encode_message(kind, poisoned))
            await one.until(lambda: one.app.state["sum"] == 10)
        async with instance(place, options) as one:
            one_more = 100
            await one.until(lambda: one.lb.is_primary)
            one.add(one_more)
            await one.until(lambda: one.app.state["sum"] == 10 + one_more)

    scenario(broker, test, f"lied-to-{kind}-{poison.hex()}")


OWN = [Call(method, RpcType.IMPULSE, b'{"n": 1000}') for method in OWN_METHODS]
LONGER = encode_message(MessageType.RPC, b'\0\xb3\x80\0\2{"n": 1000}')


@pytest.mark.parametrize(
    "forged",
    [
        *map(incoming, OWN),
        LONGER,
        batch([ONE, incoming(OWN[0])]),
        counted_batch([ONE, LONGER, ONE], 2),
        batch([*[incoming(Call(1, RpcType.IMPULSE, b'{"n": 1000}'))] * 100, incoming(OWN[-1])]),
        encode_message(MessageType.PING, b"\0\x33\2" + b" " * 50),
    ],
)
def test_what_an_instance_tells_itself_is_taken_from_nobody_else(broker: str, forged: bytes) -> None:
    """A forged mark in the log would end the binding at every start, a forged timer set its clock."""

    async def test(place: Place, options: Options) -> None:
        async with instance(place, options) as one:
            await one.until(lambda: "record 0" in one.lb.seen)
            await sent_away(place, options.name, TEN, forged)
            for own in OWN:
                one.lb.impulse("", own)
            await one.until(lambda: one.app.state["sum"] >= 10 + 1000 * len(OWN))
            assert one.app.state["sum"] == 10 + 1000 * len(OWN)

    scenario(broker, test, f"forged-{zlib.crc32(forged)}")


def test_a_sender_whose_name_the_log_could_not_hold_is_refused(broker: str) -> None:
    async def test(place: Place, options: Options) -> None:
        async with instance(place, options) as one:
            await one.until(lambda: "record 0" in one.lb.seen)
            serving = (await about.read(place.client, options.name)).serving
            assert serving is not None
            for source, making, epoch in (
                ("a\x1fb\x1fc", "x", 1),
                ("a\nAdding input:b", "x", 1),
                ("other", "x\x1fy", 1),
                ("other", "", 1),
                ("other", "x", 1 << 70),
                ("other", "x", -1),
            ):
                hello = Hello(options.name, serving.password, source, making, epoch)
                text = json.dumps(msgspec.to_builtins(hello)).encode() + b"\n"
                error = (await opened(place, options.name, text)).error
                assert "no name for an instance" in error or "no making has such a name" in error

    scenario(broker, test, "named")


def say(one: Running, to: str, n: int, pad: int = 0) -> None:
    one.lb.send(to, Call(1, RpcType.FORK, json.dumps({"n": n, "pad": "x" * pad}).encode()))
    one.lb.flush()


def test_a_receiver_and_a_sender_that_were_made_anew(broker: str) -> None:
    async def test(place: Place, options: Options) -> None:
        sending, receiving = replace(options, name="made-sender"), replace(options, name="made-receiver")
        async with instance(place, sending) as sender:
            await sender.until(lambda: "record 0" in sender.lb.seen)
            async with instance(place, receiving) as receiver:
                await receiver.until(lambda: "record 0" in receiver.lb.seen)
                say(sender, "made-receiver", 1)
                await receiver.until(lambda: receiver.app.state["sum"] == 1)
            say(sender, "made-receiver", 10)  # while nobody is there
            async with instance(place, replace(receiving, create="Y")) as receiver:
                await receiver.until(lambda: receiver.app.state["sum"] >= 10)
                had = receiver.app.state["sum"]
                assert had in (
                    10,
                    11,
                )  # the first call again, if its acknowledgement was lost with the predecessor
                say(sender, "made-receiver", 100)
                await receiver.until(lambda: receiver.app.state["sum"] == had + 100)
                await sender.end()
                async with instance(place, replace(sending, create="Y")) as anew:
                    await anew.until(lambda: "record 0" in anew.lb.seen)
                    say(anew, "made-receiver", 1000)
                    await receiver.until(lambda: receiver.app.state["sum"] == had + 1100)

    scenario(broker, test, "made")


async def wanted_from(place: Place, name: str, hello: Hello, *calls: bytes) -> str | ReplayFrom:
    """What a receiver wants of a sender, which then sends these; or why it wants nothing."""
    serving = (await about.read(place.client, name)).serving
    assert serving is not None
    reader, writer = await asyncio.open_connection(serving.host, serving.port)
    try:
        writer.write(line(msgspec.structs.replace(hello, password=serving.password)))
        welcome = await read_line(reader, Welcome)
        if welcome.error:
            return welcome.error
        first = next(split_messages(await reader.readexactly(4)))
        writer.writelines(calls)
        for _ in calls:
            await reader.readexactly(4)  # Commit
        return ReplayFrom.decode(first.data)
    finally:
        writer.close()


def test_a_predecessor_of_who_was_made_anew_that_comes_back_does_not_set_the_count_back(broker: str) -> None:
    """It was frozen, say, and does not know yet. Its successor would send twice what was taken, or never again."""

    async def test(place: Place, options: Options) -> None:
        sender = f"{options.name}-sender"
        await journals.ensure(place.client, sender)
        async with instance(place, options) as one:
            await one.until(lambda: "record 0" in one.lb.seen)
            old, new = (
                Hello(options.name, "", sender, made, epoch) for made, epoch in (("old", 3), ("new", 4))
            )
            serving = about.Serving(0, "replica-0.x", 3, "127.0.0.1", 1, "")
            await about.say(place.client, sender, serving)
            assert await wanted_from(place, options.name, old, ONE) == ReplayFrom(1, 1)
            await about.say(place.client, sender, msgspec.structs.replace(serving, epoch=4))
            assert await wanted_from(place, options.name, new, ONE) == ReplayFrom(1, 1)
            assert await wanted_from(place, options.name, old) == "a later claimant of your log was heard"
            assert await wanted_from(place, options.name, new) == ReplayFrom(2, 2)

    scenario(broker, test, "set-back")


def relaying(one: Running, to: str, monkeypatch: pytest.MonkeyPatch) -> Running:
    """Each call that it gets it makes at another instance as well."""
    call = one.app.call

    def relayed(method: int, arguments: bytes) -> None:
        call(method, arguments)
        one.app.send(to, Call(1, RpcType.FORK, arguments))

    monkeypatch.setattr(one.app, "call", relayed)
    return one


def test_a_destination_whose_mark_the_log_did_not_take_is_not_taken_for_met(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(place: Place, options: Options) -> None:
        sending, receiving = replace(options, name="unmet-sender"), replace(options, name="unmet-receiver")
        refused: list[Coordinator] = []
        append = Coordinator.append

        async def append_later(self: Coordinator, mark: Mark) -> int:
            if isinstance(mark, Met) and not refused:
                refused.append(self)
                raise PenstockError("the broker refused: no room")
            return await append(self, mark)

        def has_acknowledged() -> bool:
            return refused[0].state.outputs["unmet-receiver"].acked_replayable == 1

        monkeypatch.setattr(Coordinator, "append", append_later)
        async with instance(place, receiving) as receiver:
            await receiver.until(lambda: "record 0" in receiver.lb.seen)
            async with instance(place, sending) as sender:
                relaying(sender, "unmet-receiver", monkeypatch)
                await sender.until(lambda: "record 0" in sender.lb.seen)
                sender.add(1)
                await receiver.until(lambda: receiver.app.state["sum"] == 1)
                await sender.until(has_acknowledged)
                sender.add(2)
                await receiver.until(lambda: receiver.app.state["sum"] == 3)
            async with instance(place, sending) as sender:
                relaying(sender, "unmet-receiver", monkeypatch)
                await sender.until(lambda: "control 11" in sender.lb.seen)
                for n in (4, 8):
                    sender.add(n)
                await receiver.until(lambda: receiver.app.state["sum"] >= 11)
                assert receiver.app.state["sum"] == 15

    scenario(broker, test, "unmet")


def test_messages_of_32_mib_pass_from_one_to_another(broker: str) -> None:
    async def test(place: Place, options: Options) -> None:
        sending, receiving = replace(options, name="wide-sender"), replace(options, name="wide-receiver")
        async with instance(place, sending) as sender, instance(place, receiving) as receiver:
            await sender.until(lambda: "record 0" in sender.lb.seen)
            await receiver.until(lambda: "record 0" in receiver.lb.seen)
            sender.lb.writer.write(outgoing("wide-receiver", Call(9, RpcType.FORK, bytes(32 << 20))))
            say(sender, "wide-receiver", 1)
            await receiver.until(lambda: receiver.app.state["sum"] == 1)
            assert receiver.app.state["largest"] == 32 << 20

    scenario(broker, test, "wide")


def test_a_coordinator_ends_also_while_a_stream_of_it_is_being_closed(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(place: Place, options: Options) -> None:
        closing = asyncio.Event()

        async def follow(*_: object) -> AsyncIterator[about.About]:
            """Takes its time to end."""
            try:
                await asyncio.Event().wait()
                yield about.About()
            finally:
                closing.set()
                await asyncio.Event().wait()

        monkeypatch.setattr(about, "follow", follow)
        sending, receiving = replace(options, name="ended-sender"), replace(options, name="ended-receiver")
        async with instance(place, sending) as sender:
            await sender.until(lambda: "record 0" in sender.lb.seen)
            async with instance(place, receiving) as receiver:
                await receiver.until(lambda: "record 0" in receiver.lb.seen)
                say(sender, "ended-receiver", 1)
                await receiver.until(lambda: receiver.app.state["sum"] == 1)
            async with asyncio.timeout(60):
                await closing.wait()
                await sender.end()

    scenario(broker, test, "ended")


def test_a_ping_is_a_call_that_tells_when_it_passed(broker: str) -> None:
    async def test(place: Place, options: Options) -> None:
        sending, receiving = replace(options, name="ping-sender"), replace(options, name="ping-receiver")
        async with instance(place, sending) as sender, instance(place, receiving) as receiver:
            await sender.until(lambda: "record 0" in sender.lb.seen)
            await receiver.until(lambda: "record 0" in receiver.lb.seen)
            [call] = split_messages(outgoing("ping-receiver", Call(9, RpcType.FORK, bytes(40))))
            sender.lb.writer.write(encode_message(MessageType.PING, call.data))
            await receiver.until(lambda: receiver.app.state["largest"] == 40)
            log = journal_name("ping-receiver", "log")
            begin = await place.client.begin(log)
            content = await place.client.read_bytes(log, begin)
        records = [item for item in LogDecoder(log, begin).feed(content) if isinstance(item, LogRecord)]
        [ping] = split_messages(records[-1].body)
        assert ping.type == MessageType.PING
        times = [ping.data[at : at + 8] for at in range(len(ping.data) - 40, len(ping.data), 8)]
        assert [any(time) for time in times] == [True, True, False, False, False]

    scenario(broker, test, "ping")


def test_who_is_not_there_holds_nobody_up_before_the_limit_and_gets_everything_in_the_end(
    broker: str,
) -> None:
    async def test(place: Place, options: Options) -> None:
        there, late = replace(options, name="down-there"), replace(options, name="down-late")
        sending = replace(options, name="down-sender", output_limit=1 << 20)
        async with instance(place, sending) as sender, instance(place, there) as receiver:
            await sender.until(lambda: "record 0" in sender.lb.seen)
            await receiver.until(lambda: "record 0" in receiver.lb.seen)
            for _ in range(5):
                say(sender, "down-late", 1, pad=100_000)
            say(sender, "down-there", 1)
            await receiver.until(lambda: receiver.app.state["sum"] == 1)
            for _ in range(40):
                say(sender, "down-late", 1, pad=100_000)
            say(sender, "down-there", 1)  # from here on it has to wait
            async with instance(place, late) as latecomer:
                await latecomer.until(lambda: latecomer.app.state["sum"] == 45)
                await receiver.until(lambda: receiver.app.state["sum"] == 2)

    scenario(broker, test, "down")


def test_streams_with_a_certificate_are_encrypted_and_open_to_who_knows_it(
    broker: str, tmp_path: Path
) -> None:
    shown = Authority(tmp_path, "anybody").pair("receiver")

    async def test(place: Place, options: Options) -> None:
        tls = ServerTls(shown.cert_file, shown.key_file)
        sending = replace(options, name="tls-sender")
        receiving = replace(options, name="tls-receiver", tls=tls, active=True)
        async with instance(place, sending) as sender, instance(place, receiving) as receiver:
            await sender.until(lambda: "record 0" in sender.lb.seen)
            await receiver.until(lambda: "record 0" in receiver.lb.seen)
            async with instance(place, replace(receiving, replica=1)) as second:
                await second.seen("checkpoint", "record 0")
                say(sender, "tls-receiver", 1, pad=300_000)
                await receiver.until(lambda: receiver.app.state["sum"] == 1)
                serving = (await about.read(place.client, "tls-receiver")).serving
                assert serving is not None
                with pytest.raises(NoStreamError, match="not the one that its journal names"):
                    await connected(msgspec.structs.replace(serving, certificate="00"), 1 << 16)
                with pytest.raises((NoStreamError, OSError)):
                    await opened(
                        place, "tls-receiver", line(Hello("tls-receiver", serving.password, "x", "y", 1))
                    )
                await receiver.end()  # a secondary watches it over TLS as well, and others find that one
                await second.until(lambda: "control 15" in second.lb.seen)
                say(sender, "tls-receiver", 2)
                await second.until(lambda: second.app.state["sum"] == 3)

    scenario(broker, test, "tls")
