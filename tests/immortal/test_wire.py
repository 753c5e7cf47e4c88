"""The decoders: streams cut anywhere, blobs of any size in pieces, and everything that is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.immortal.wire import (
    Blob,
    Call,
    CheckpointRecord,
    CheckpointStart,
    CorruptWireError,
    Message,
    MessageDecoder,
    MessageType,
    Record,
    RecordDecoder,
    Reply,
    ReplyKind,
    RpcType,
    batch,
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
    is_replayable,
    outgoing,
    pings,
    rpcs_of,
    split_messages,
)
from penstock.immortal.wire.records import record_header
from penstock.immortal.wire.rpc import OWN_METHODS, require_sound

names = st.text(max_size=20)
calls = st.builds(
    Call,
    st.integers(-(2**31), 2**31 - 1),
    st.sampled_from([RpcType.FORK, RpcType.IMPULSE]),
    st.binary(max_size=50),
)
async_calls = st.builds(
    Call,
    st.integers(-5, 500),
    st.just(RpcType.ASYNC),
    st.binary(max_size=50),
    names,
    st.integers(0, 2**62),
)
replies = st.builds(
    Reply,
    st.sampled_from([ReplyKind.VALUE, ReplyKind.EXCEPTION]),
    names,
    st.integers(0, 2**40),
    st.binary(max_size=50),
) | st.builds(Reply, st.just(ReplyKind.VOID), names, st.integers(0, 2**40))
rpcs = calls | async_calls | replies


@given(st.integers(-(2**31), 2**31 - 1))
def test_ints_come_back(number: int) -> None:
    encoded = encode_int(number)
    assert decode_int(encoded, 0) == (number, len(encoded))
    assert encode_long(number) == encoded


@given(st.integers(-(2**63), 2**63 - 1))
def test_longs_come_back(number: int) -> None:
    encoded = encode_long(number)
    assert decode_long(encoded, 0) == (number, len(encoded))


def test_padded_integers_are_read_and_long_ones_refused() -> None:
    assert decode_int(b"\x82\x80\x00", 0) == (1, 3)
    for hopeless in (b"\x80\x80\x80\x80\x80\x00", b"\xff\xff\xff\xff\x7f"):
        with pytest.raises(CorruptWireError, match="integer"):
            decode_int(hopeless, 0)
    with pytest.raises(CorruptWireError, match="more than 10"):
        decode_long(b"\x80" * 10 + b"\x00", 0)
    for number in (2**31, -(2**31) - 1):
        with pytest.raises(ValueError, match="32 bits"):
            encode_int(number)
    with pytest.raises(ValueError, match="64 bits"):
        encode_long(2**63)


@given(names, rpcs)
def test_rpcs_come_back(destination: str, rpc: Call | Reply) -> None:
    [out] = split_messages(outgoing(destination, rpc))
    assert decode_outgoing(out.data) == (destination, rpc)
    [message] = split_messages(incoming(rpc))
    assert decode_incoming(message.data) == rpc
    assert is_replayable(message.data) == (not isinstance(rpc, Call) or rpc.kind != RpcType.IMPULSE)


@given(st.lists(rpcs, min_size=2, max_size=5))
def test_batches_come_back(calls: list[Call | Reply]) -> None:
    messages = [incoming(rpc) for rpc in calls]
    for whole in (batch(messages), counted_batch(messages, 1)):
        [message] = split_messages(whole)
        assert [decode_incoming(data) for data in rpcs_of(message.type, message.data)] == calls


def test_an_answer_is_replayable_whatever_its_responder_is_called() -> None:
    for name in ("", "\x02"):
        [message] = split_messages(incoming(Reply(ReplyKind.VOID, name, 1)))
        assert is_replayable(message.data)


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(data[at : at + size])
        at += size
    return [*pieces, data[at:]]


def joined(events: list[object]) -> list[object]:
    """Pieces of blobs put together, so that cuts do not matter."""
    out: list[object] = []
    blob = b""
    for event in events:
        if isinstance(event, Blob):
            blob += event.piece
            if event.left == 0:
                out.append(blob)
                blob = b""
        else:
            out.append(event)
    assert not blob
    return out


@given(st.lists(st.integers(1, 9), max_size=20))
def test_messages_are_read_however_the_stream_is_cut(sizes: list[int]) -> None:
    fork = outgoing("server", Call(1, RpcType.FORK, b"x" * 70))
    stream = fork + checkpoint_message(5) + b"state" + checkpoint_message(0) + fork
    decoder = MessageDecoder()
    events = [event for piece in cut(stream, sizes) for event in decoder.feed(piece)]
    [message] = split_messages(fork)
    assert joined([*events]) == [message, CheckpointStart(5), b"state", CheckpointStart(0), b"", message]
    assert decoder.is_between


@given(st.lists(st.integers(1, 30), max_size=20))
def test_records_are_read_however_the_stream_is_cut(sizes: list[int]) -> None:
    fork = incoming(Call(1, RpcType.FORK, b"AB"))
    stream = (
        checkpoint_record(7, 5)
        + b"state"
        + encode_record(7, 41, fork * 2)
        + control_record(7, MessageType.BECOMING_PRIMARY)
        + encode_record(7, 42, fork)
    )
    decoder = RecordDecoder()
    events = [event for piece in cut(stream, sizes) for event in decoder.feed(piece)]
    assert joined([*events]) == [
        CheckpointRecord(7, 5),
        b"state",
        Record(7, 41, fork * 2),
        Record(7, -1, b"\x02\x0f"),
        Record(7, 42, fork),
    ]
    assert decoder.is_between


def test_a_blob_is_handed_on_in_pieces_and_kept_by_nobody() -> None:
    decoder = MessageDecoder()
    assert decoder.feed(checkpoint_message(5 << 30) + b"ab") == [
        CheckpointStart(5 << 30),
        Blob(b"ab", (5 << 30) - 2),
    ]
    assert decoder.feed(b"c" * 1000) == [Blob(b"c" * 1000, (5 << 30) - 1002)]
    assert not decoder.is_between


def test_old_bindings_announce_checkpoints_with_eight_bytes() -> None:
    stream = encode_message(MessageType.CHECKPOINT, (3).to_bytes(8, "little")) + b"abc"
    assert MessageDecoder(fixed_lengths=True).feed(stream) == [CheckpointStart(3), Blob(b"abc", 0)]
    with pytest.raises(CorruptWireError):
        MessageDecoder().feed(stream)


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (b"\x00", "message of 0 bytes"),
        (b"\x01", "message of -1 bytes"),
        (encode_int(1001) + b"\x00", "from 1 to 1000"),
        (b"\x80\x80\x80\x80\x80\x80", "more than 5"),
        (encode_message(MessageType.CHECKPOINT, encode_long(-1)), "checkpoint of -1"),
        (encode_message(MessageType.CHECKPOINT, encode_long(1) + b"x"), "announced in 2 bytes"),
    ],
)
def test_streams_of_messages_that_are_refused(stream: bytes, why: str) -> None:
    with pytest.raises(CorruptWireError, match=why):
        MessageDecoder(limit=1000).feed(stream)


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (record_header(1, 0, -24, 0), "record of 0 bytes"),
        (record_header(1, 0, 0, 0), "record of 24 bytes"),
        (record_header(1, 0, 2000, 0), "record of 2024 bytes"),
        (record_header(1, 0, 2, 5) + b"\x02\x02", "check bytes"),
        (encode_record(1, -3, b"\x02\x02"), "record -3"),
        (encode_record(1, -1, b"\x02\x05"), "control"),
        (encode_record(1, -2, b"\x02\x02"), "Checkpoint message"),
        (encode_record(1, 4, b"\x02\x00") + encode_record(1, 6, b"\x02\x00"), "record 6 where 5 was to come"),
    ],
)
def test_streams_of_records_that_are_refused(stream: bytes, why: str) -> None:
    with pytest.raises(CorruptWireError, match=why):
        RecordDecoder(limit=1000).feed(stream)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\x00\x02",
        b"\x00\x02\x03",
        b"\x04\x00\x02",
        b"\x01\x0csrv",
        b"\x01\x02\xff\x02",
        b"\x02\x00\x02\x02x",
        b"\x01\x00\x02\x04x",
    ],
)
def test_rpcs_that_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptWireError):
        decode_incoming(data)


@pytest.mark.parametrize(
    "body",
    [b"\x06\x05\x04\x00", b"\x0a\x05\x02\x02\x00\x00", b"\x08\x0d\x02\x04\x00", b"\x0a\x05\x02\x04\x01\x00"],
)
def test_batches_that_are_refused(body: bytes) -> None:
    with pytest.raises(CorruptWireError):
        assert [list(rpcs_of(message.type, message.data)) for message in split_messages(body)]


@given(st.binary(max_size=200))
def test_garbage_never_does_more_than_be_refused(data: bytes) -> None:
    for decoder in (MessageDecoder(limit=1000), RecordDecoder(limit=1000)):
        try:
            for event in decoder.feed(data):
                if isinstance(event, Message) and event.type in (0, 5, 13):
                    for rpc in rpcs_of(event.type, event.data):
                        decode_incoming(rpc)
        except CorruptWireError:
            pass


def test_coordinators_write_their_times_into_pings() -> None:
    second = 116_444_736_000_000_000 + 10_000_000  # past 1970, counted from 1601
    data = b"what it says" + bytes(40)
    for kind in (MessageType.PING, MessageType.PING_RETURN):
        assert pings.is_ping(kind)
        data = pings.arriving(kind, pings.leaving(kind, data, 1.0), 1.0)
    assert not pings.is_ping(MessageType.RPC)
    times = [int.from_bytes(data[at : at + 8], "little") for at in range(12, 52, 8)]
    assert (data[:12], times) == (b"what it says", [second, second, 0, second, second])
    with pytest.raises(CorruptWireError, match="without its five times"):
        pings.leaving(MessageType.PING, bytes(39), 1.0)


@given(
    count=st.integers(1, 200),
    size=st.sampled_from([1, 5, 63, 64, 65, 200]),
    kind=st.sampled_from([MessageType.RPC_BATCH, MessageType.COUNT_REPLAYABLE_RPC_BATCH]),
    edits=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=2),
    cut=st.integers(0, 3),
    viewed=st.booleans(),
)
def test_a_batch_is_whole_if_all_of_its_rpcs_can_be_taken_out(
    count: int, size: int, kind: MessageType, edits: list[tuple[int, int]], cut: int, viewed: bool
) -> None:
    """Also where many of one length are looked at together."""
    one = encode_message(MessageType.RPC, bytes(size))
    head = encode_int(count) * (2 if kind is MessageType.COUNT_REPLAYABLE_RPC_BATCH else 1)
    data = bytearray(head + one * count)
    for place, value in edits:
        data[place % len(data)] = value
    del data[len(data) - cut :]
    body = memoryview(bytes(data)) if viewed else bytes(data)
    assert _is_refused(lambda: require_sound(kind, body)) == _is_refused(lambda: list(rpcs_of(kind, body)))


@given(
    methods=st.lists(st.integers(-30, 3), min_size=1, max_size=3),
    count=st.integers(1, 70),
    size=st.integers(0, 2),
    padding=st.integers(0, 4),
    kind=st.sampled_from([RpcType.FORK, RpcType.IMPULSE]),
)
def test_an_impulse_that_is_an_instances_own_is_found_in_any_form_and_company(
    methods: list[int], count: int, size: int, padding: int, kind: RpcType
) -> None:
    def call(method: int) -> bytes:
        short = encode_int(method)
        padded = short if not padding else bytes((short[0] | 0x80, *[0x80] * (padding - 1), 0))
        return b"".join((b"\0", padded, bytes((kind,)), b"\0\x29\2"[: size + 1]))

    calls = [call(methods[at % len(methods)]) for at in range(count)]
    is_own = kind == RpcType.IMPULSE and any(
        decoded.method in OWN_METHODS for data in calls if isinstance(decoded := decode_incoming(data), Call)
    )
    [message] = split_messages(batch([encode_message(MessageType.RPC, data) for data in calls]))
    assert _is_refused(lambda: require_sound(*message)) == is_own
    alone = [_is_refused(lambda data=data: require_sound(MessageType.PING, data)) for data in calls]  # type: ignore[misc]
    assert any(alone) == is_own


def _is_refused(look: Callable[[], object]) -> bool:
    try:
        look()
    except CorruptWireError:
        return True
    return False
