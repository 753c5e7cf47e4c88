"""The two connections of a binding: from either loopback address, and none without the other."""

from __future__ import annotations

import asyncio
import socket

import pytest
from tests.servers.ports import free_port

from penstock.immortal.sockets import Binding, BindingGoneError
from penstock.immortal.wire import Message, MessageType, encode_message


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
    except OSError:
        return False
    return True


HOSTS = ["127.0.0.1", pytest.param("::1", marks=pytest.mark.skipif(not _has_ipv6(), reason="no IPv6 here"))]


async def _connected(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with asyncio.timeout(60):
        while True:
            try:
                return await asyncio.open_connection(host, port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("host", HOSTS)
def test_a_binding_connects_by_either_address_and_may_speak_at_once(host: str) -> None:
    async def test() -> None:
        receive, send = free_port(), free_port()
        accepting = asyncio.ensure_future(Binding.accepted(receive, send, lambda: None))
        _, out = await _connected(host, receive)
        out.write(encode_message(MessageType.ATTACH_TO, b"early"))
        await out.drain()
        reader, second = await _connected(host, send)
        binding = await asyncio.wait_for(accepting, 60)
        async for event in binding.events():
            assert event == Message(MessageType.ATTACH_TO, b"early")
            break
        await binding.control(1, MessageType.TAKE_CHECKPOINT)
        assert len(await asyncio.wait_for(reader.readexactly(26), 60)) == 26
        for writer in (out, second):
            writer.close()
        binding.close()

    asyncio.run(test())


@pytest.mark.parametrize("host", HOSTS)
def test_a_binding_of_the_old_way_is_connected_to_where_it_listens(host: str) -> None:
    async def test() -> None:
        receive, send = free_port(), free_port()
        came: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            came.set_result(await reader.readexactly(26))
            writer.close()

        accepting = asyncio.ensure_future(Binding.accepted(receive, send, lambda: None, legacy=True))
        _, out = await _connected(host, receive)
        async with await asyncio.start_server(take, host, send):
            binding = await asyncio.wait_for(accepting, 60)
            await binding.control(1, MessageType.TAKE_CHECKPOINT)
            assert (await asyncio.wait_for(came, 60))[-2:] == b"\x02\x02"
        out.close()
        binding.close()

    asyncio.run(test())


def test_a_binding_that_says_much_before_its_second_connection_waits_with_it_and_loses_nothing() -> None:
    async def test() -> None:
        receive, send = free_port(), free_port()
        accepting = asyncio.ensure_future(Binding.accepted(receive, send, lambda: None))
        _, out = await _connected("127.0.0.1", receive)
        message, count = encode_message(MessageType.ATTACH_TO, b"x" * 100_000), 640
        out.writelines([message] * count)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(out.drain(), 2)
        _, second = await _connected("127.0.0.1", send)
        binding = await asyncio.wait_for(accepting, 20)
        events = binding.events()
        for _ in range(count):
            event = await asyncio.wait_for(anext(events), 20)
            assert isinstance(event, Message)
            assert len(event.data) == 100_000
        for writer in (out, second):
            writer.close()
        binding.close()

    asyncio.run(test())


@pytest.mark.parametrize("said", [b"", encode_message(MessageType.ATTACH_TO, b"early")])
def test_a_binding_that_dies_between_its_connections_is_not_waited_for(said: bytes) -> None:
    async def test() -> None:
        receive = free_port()
        accepting = asyncio.ensure_future(Binding.accepted(receive, free_port(), lambda: None))
        _, out = await _connected("127.0.0.1", receive)
        out.write(said)
        out.close()
        with pytest.raises(BindingGoneError, match="closed its connection"):
            await asyncio.wait_for(accepting, 20)

    asyncio.run(test())


def test_a_port_that_is_taken_is_named() -> None:
    async def test() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen(1)
            port = taken.getsockname()[1]
            with pytest.raises(Exception, match=f"port {port} of 127.0.0.1 cannot be listened on"):
                await Binding.accepted(port, free_port(), lambda: None)

    asyncio.run(test())
