"""Every vector of the reference: bytes that other implementations wrote and read."""

from __future__ import annotations

import pytest

from penstock.immortal.wire import (
    Call,
    Commit,
    MessageType,
    ReplayFrom,
    Reply,
    ReplyKind,
    RpcType,
    TrimTo,
    batch,
    check_bytes,
    checkpoint_message,
    checkpoint_record,
    control_record,
    counted_batch,
    decode_incoming,
    decode_int,
    decode_long,
    decode_outgoing,
    encode_int,
    encode_long,
    encode_message,
    encode_record,
    incoming,
    initial_message,
    outgoing,
    split_messages,
)

COMMITTER = 0x0A0B0C0D

INTS = [
    (0, "00"), (1, "02"), (-1, "01"), (2, "04"), (-2, "03"), (63, "7e"), (-64, "7f"), (64, "80 01"), (-65, "81 01"),
    (300, "d8 04"), (-300, "d7 04"), (8191, "fe 7f"), (8192, "80 80 01"), (-8193, "81 80 01"), (1048575, "fe ff 7f"),
    (1048576, "80 80 80 01"), (2**31 - 1, "fe ff ff ff 0f"), (-(2**31), "ff ff ff ff 0f"),
]  # fmt: skip
LONGS = [
    (0, "00"), (1, "02"), (-1, "01"), (300, "d8 04"), (-300, "d7 04"), (16384, "80 80 02"), (2**31, "80 80 80 80 10"),
    (-(2**31) - 1, "81 80 80 80 10"), (2**32, "80 80 80 80 20"), (2**53 - 1, "fe ff ff ff ff ff ff 1f"),
    (2**62, "80 80 80 80 80 80 80 80 80 01"), (2**63 - 1, "fe ff ff ff ff ff ff ff ff 01"),
    (-(2**63), "ff ff ff ff ff ff ff ff ff 01"),
]  # fmt: skip
FORK = Call(1, RpcType.FORK, b"AB")
OTHER_FORK = Call(1, RpcType.FORK, b"CD")
IMPULSE = Call(2, RpcType.IMPULSE, b"Z")
ASYNC = Call(3, RpcType.ASYNC, b"AB", "client", 1)
VALUE = Reply(ReplyKind.VALUE, "server", 1, b"OK")

OUT = [
    ("", FORK, "0e 00 00 00 02 01 41 42"),
    ("server", FORK, "1a 00 0c 73 65 72 76 65 72 00 02 01 41 42"),
    ("", IMPULSE, "0c 00 00 00 04 02 5a"),
    ("server", ASYNC, "2a 00 0c 73 65 72 76 65 72 00 06 00 0c 63 6c 69 65 6e 74 02 41 42"),
    ("client", VALUE, "28 00 0c 63 6c 69 65 6e 74 01 0c 73 65 72 76 65 72 02 04 4f 4b"),
]
IN = [
    (FORK, "0c 00 00 02 01 41 42"),
    (IMPULSE, "0a 00 00 04 02 5a"),
    (ASYNC, "1c 00 00 06 00 0c 63 6c 69 65 6e 74 02 41 42"),
    (VALUE, "1a 00 01 0c 73 65 72 76 65 72 02 04 4f 4b"),
    (Reply(ReplyKind.VOID, "server", 1), "14 00 02 0c 73 65 72 76 65 72 02"),
    (Reply(ReplyKind.EXCEPTION, "server", 1, b"Err"), "1c 00 03 0c 73 65 72 76 65 72 02 06 45 72 72"),
]
CONTROLS = [
    (MessageType.TAKE_CHECKPOINT, "fb 74 7b 89 5a 90 33 f8", "02 02"),
    (MessageType.UPGRADE_TAKE_CHECKPOINT, "ac 43 5b a1 51 a0 de d6", "02 0a"),
    (MessageType.TAKE_BECOMING_PRIMARY_CHECKPOINT, "c7 f1 79 c2 cb 84 2d da", "02 0b"),
    (MessageType.UPGRADE_SERVICE, "7e cb 93 64 6e 0f 48 bf", "02 0c"),
    (MessageType.BECOMING_PRIMARY, "0a 5b f7 e3 9c e3 22 12", "02 0f"),
]
HASHES = [
    (b"", 0xEF46DB3751D8E999),
    (b"a", 0xD24EC4F1A98C6E5B),
    (b"abc", 0x44BC2CF5AD770999),
    (bytes(range(31)), 0xC346D2B59B4D8EE1),
    (bytes(range(32)), 0xCBF59C5116FF32B4),
    (bytes(range(100)), 0x6AC1E58032166597),
]


def unhex(text: str) -> bytes:
    return bytes.fromhex(text)


@pytest.mark.parametrize(("number", "text"), INTS)
def test_ints(number: int, text: str) -> None:
    assert encode_int(number) == unhex(text)
    assert decode_int(unhex(text) + b"\xff", 0) == (number, len(unhex(text)))


@pytest.mark.parametrize(("number", "text"), LONGS)
def test_longs(number: int, text: str) -> None:
    assert encode_long(number) == unhex(text)
    assert decode_long(unhex(text) + b"\xff", 0) == (number, len(unhex(text)))


@pytest.mark.parametrize(("body", "check"), HASHES, ids=lambda value: str(value)[:12])
def test_check_bytes(body: bytes, check: int) -> None:
    assert check_bytes(body) == check


@pytest.mark.parametrize(("destination", "rpc", "text"), OUT)
def test_outgoing(destination: str, rpc: Call | Reply, text: str) -> None:
    assert outgoing(destination, rpc) == unhex(text)
    [message] = split_messages(unhex(text))
    assert message.type == MessageType.RPC
    assert decode_outgoing(message.data) == (destination, rpc)


@pytest.mark.parametrize(("rpc", "text"), IN)
def test_incoming(rpc: Call | Reply, text: str) -> None:
    assert incoming(rpc) == unhex(text)
    [message] = split_messages(unhex(text))
    assert decode_incoming(message.data) == rpc


@pytest.mark.parametrize(("kind", "check", "body"), CONTROLS)
def test_control_records(kind: MessageType, check: str, body: str) -> None:
    header = f"0d 0c 0b 0a 1a 00 00 00 {check} ff ff ff ff ff ff ff ff {body}"
    assert control_record(COMMITTER, kind) == unhex(header)


def test_batches() -> None:
    two = unhex("20 05 04 0c 00 00 02 01 41 42 0c 00 00 02 01 43 44")
    assert batch([incoming(FORK), incoming(OTHER_FORK)]) == two
    counted = unhex("2e 0d 06 04 0c 00 00 02 01 41 42 0a 00 00 04 02 5a 0c 00 00 02 01 43 44")
    assert counted_batch([incoming(FORK), incoming(IMPULSE), incoming(OTHER_FORK)], 2) == counted
    mixed = unhex("2e 05 04 1a 00 0c 73 65 72 76 65 72 00 02 01 41 42 0c 00 00 00 04 02 5a")
    assert batch([outgoing("server", FORK), outgoing("", IMPULSE)]) == mixed
    head = unhex("0d 0c 0b 0a 30 00 00 00 82 c1 10 13 db 9f de bf 00 00 00 00 00 00 00 00")
    assert encode_record(COMMITTER, 0, counted) == head + counted


@pytest.mark.parametrize(
    ("length", "text"),
    [(0, "04 08 00"), (9, "04 08 12"), (2097371, "0a 08 b6 83 80 02"), (5 << 30, "0c 08 80 80 80 80 28")],
)
def test_checkpoint_messages(length: int, text: str) -> None:
    assert checkpoint_message(length) == unhex(text)


def test_checkpoint_record() -> None:
    head = unhex("0d 0c 0b 0a 1b 00 00 00 00 00 00 00 00 00 00 00 fe ff ff ff ff ff ff ff 04 08 12")
    assert checkpoint_record(COMMITTER, 9) == head


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (unhex("0a") + b"hello", "0e 09 0a 68 65 6c 6c 6f"),
        (b"2.0.1", "0c 09 32 2e 30 2e 31"),
        (unhex("0e 00 00 40 01 05 04 03"), "12 09 0e 00 00 40 01 05 04 03"),
    ],
    ids=["C#", "Node", "C"],
)
def test_initial_messages(data: bytes, text: str) -> None:
    assert initial_message(data) == unhex(text)


def test_first_record_of_a_first_start() -> None:
    expected = unhex(
        "0d 0c 0b 0a 1f 00 00 00 50 ec 1b e3 74 64 ca 83 00 00 00 00 00 00 00 00 0c 09 32 2e 30 2e 31"
    )
    assert encode_record(COMMITTER, 0, initial_message(b"2.0.1")) == expected


def test_attach_and_requests_for_checkpoints() -> None:
    assert encode_message(MessageType.ATTACH_TO, b"server") == unhex("0e 01 73 65 72 76 65 72")
    assert encode_message(MessageType.TAKE_CHECKPOINT) == unhex("02 02")


def test_between_coordinators() -> None:
    assert ReplayFrom(1, 1).encode() == unhex("06 04 02 02")
    assert ReplayFrom(6, 5).encode() == unhex("06 04 0c 0a")
    assert TrimTo(-1).encode() == unhex("04 0e 01")
    assert Commit(5, 4).encode() == unhex("06 03 0a 08")
    assert ReplayFrom.decode(unhex("0c 0a")) == ReplayFrom(6, 5)
    assert Commit.decode(unhex("0a 08")) == Commit(5, 4)
    assert TrimTo.decode(unhex("01")) == TrimTo(-1)
