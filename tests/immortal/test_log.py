"""The log's layout, and what is counted: pure."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.immortal.logformat import (
    Claimed,
    CorruptLogError,
    LogDecoder,
    LogRecord,
    Marked,
    Source,
    encode_log_record,
    encode_mark,
)
from penstock.immortal.outputs import ENVELOPE, Output, walk
from penstock.immortal.routing import route
from penstock.immortal.state import State
from penstock.immortal.wire import (
    Call,
    CorruptWireError,
    MessageType,
    ReplayFrom,
    Reply,
    ReplyKind,
    RpcType,
    batch,
    decode_incoming,
    encode_message,
    incoming,
    outgoing,
    rpcs_of,
    split_messages,
)

COMMITTER = 0x0A0B0C0D
FORK = Call(1, RpcType.FORK, b"AB")
VECTOR = bytes.fromhex(
    "0d0c0b0ae0ffffffcdc2cbb53b6cb0820700000000000000"
    "0c000002014142"
    "020c636c69656e7405000000000000000400000000000000"
    "02000300000000000000"
)


def test_a_record_lies_in_the_log_as_the_reference_has_it() -> None:
    pieces = encode_log_record(COMMITTER, 7, incoming(FORK), {"client": Source(5, 4)}, {"": 3})
    assert b"".join(pieces) == VECTOR
    [record] = LogDecoder("log", 100).feed(VECTOR)
    sources, end = {"client": Source(5, 4)}, 100 + len(VECTOR)
    assert record == LogRecord(100, end, COMMITTER, 7, incoming(FORK), sources, {"": 3})


@given(st.lists(st.integers(1, 40), max_size=20))
def test_a_log_is_read_however_it_is_cut(sizes: list[int]) -> None:
    mark = Claimed("me", 1, 2, 3)
    second = b"".join(encode_log_record(COMMITTER, 8, b"\x02\x00", {"é": Source(1, 1, "abc", 9)}, {}))
    stream = VECTOR + encode_mark(COMMITTER, mark) + second
    decoder, found, at = LogDecoder("log", 0), [], 0
    for size in [*sizes, len(stream)]:
        found += decoder.feed(stream[at : at + size])
        at += size
    assert isinstance(found[1], Marked)
    assert found[1].mark == mark
    assert isinstance(found[2], LogRecord)
    assert found[2].sources == {"é": Source(1, 1, "abc", 9)}
    assert found[2].end == len(stream)


@pytest.mark.parametrize("at", [0, 4, 9, 17, 25, len(VECTOR) - 1])
def test_a_changed_byte_is_found_or_is_a_count(at: int) -> None:
    damaged = bytearray(VECTOR)
    damaged[at] ^= 0x41
    decoder = LogDecoder("log", 0, committer=COMMITTER, sequence=7)
    if at == len(VECTOR) - 1:
        assert decoder.feed(damaged)  # the trailer is outside of the check, as the reference has it
        return
    with pytest.raises(CorruptLogError, match="log log, byte 0"):
        decoder.feed(bytes(damaged) + bytes(200))


def test_a_gap_and_a_zero_tail_are_refused() -> None:
    with pytest.raises(CorruptLogError, match="record 7 where 6 was to come"):
        LogDecoder("log", 0, sequence=6).feed(VECTOR)
    with pytest.raises(CorruptLogError, match="a record of -1 bytes"):
        LogDecoder("log", 0).feed(VECTOR + bytes(64))


def test_calls_are_sorted_by_destination() -> None:
    impulse = Call(2, RpcType.IMPULSE, b"Z")
    answer = Reply(ReplyKind.VOID, "me", 300)
    long = Call(-70, RpcType.FORK, b"x" * 9000)
    sent = [outgoing("a", FORK), outgoing("", impulse), outgoing("b" * 100, long), outgoing("a", answer)]
    [message] = split_messages(batch(sent))
    routed = route(message.type, message.data)
    assert routed[b"a"].data == incoming(FORK) + incoming(answer)
    assert (routed[b"a"].count, routed[b"a"].replayable) == (2, 2)
    assert (routed[b""].count, routed[b""].replayable) == (1, 0)
    assert routed[b"b" * 100].data == incoming(long)
    [message] = split_messages(sent[0])
    assert route(message.type, message.data)[b"a"].data == incoming(FORK)


RPCS = st.one_of(
    st.builds(Call, st.integers(-200, 200), st.sampled_from([RpcType.FORK, RpcType.IMPULSE]), st.binary(max_size=80)),
    st.builds(Call, st.just(1), st.just(RpcType.FORK), st.sampled_from([b"", b"x" * 70, b"y" * 9000])),
    st.builds(Call, st.just(3), st.just(RpcType.ASYNC), st.binary(max_size=9), st.just("me"), st.integers(1, 999)),
    st.builds(Reply, st.just(ReplyKind.VALUE), st.just("me"), st.integers(1, 99), st.binary(max_size=9)),
)  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b", "b" * 70]), RPCS), min_size=1, max_size=30))
def test_each_destination_gets_what_was_sent_to_it_in_order(sent: list[tuple[str, Call | Reply]]) -> None:
    [message] = split_messages(batch([outgoing(to, rpc) for to, rpc in sent]))
    routed = route(message.type, message.data)
    assert set(routed) == {to.encode() for to, _ in sent}
    for to, mine in routed.items():
        theirs = [rpc for name, rpc in sent if name.encode() == to]
        impulses = sum(isinstance(rpc, Call) and rpc.kind == RpcType.IMPULSE for rpc in theirs)
        assert mine.data == b"".join(map(incoming, theirs))
        assert (mine.count, mine.impulses) == (len(theirs), impulses)


@given(st.binary(max_size=60), st.sampled_from([0, 5]))
def test_nonsense_from_a_binding_is_refused_or_read(data: bytes, kind: int) -> None:
    with contextlib.suppress(CorruptWireError):
        route(kind, data)


def fork(number: int) -> bytes:
    return incoming(Call(1, RpcType.FORK, bytes([number])))


def impulse(number: int) -> bytes:
    return incoming(Call(1, RpcType.IMPULSE, bytes([number])))


def take(output: Output, *messages: bytes) -> None:
    for message in messages:
        output.take(message, 1, sum(counts for _, _, counts in walk(message)))


def sent(output: Output) -> list[int]:
    """The arguments of everything that is sent now."""
    numbers = []
    while (unsent := output.unsent()) is not None:
        for message in split_messages(unsent[0]):
            numbers += [data[-1] for data in rpcs_of(message.type, message.data)]
    return numbers


def test_after_a_crash_the_receivers_two_numbers_translate() -> None:
    """The example of the reference: F1 I2 F3 F4 were sent, the receiver has (3, 2)."""
    again = Output("b")
    take(again, fork(1), fork(3), fork(4))
    again.open(ReplayFrom(4, 3))
    assert sent(again) == [4]
    take(again, impulse(5))
    assert sent(again) == [5]
    assert again.committed(5, 3)
    assert (again.acked_replayable, again.size) == (3, 0)


def test_a_reconnection_sends_from_where_the_receiver_is_impulses_included() -> None:
    output = Output("b")
    take(output, fork(1), impulse(2), fork(3), fork(4))
    output.open(ReplayFrom(1, 1))
    assert sent(output) == [1, 2, 3, 4]
    output.open(ReplayFrom(2, 2))
    assert sent(output) == [2, 3, 4]
    assert output.committed(3, 2)
    output.open(ReplayFrom(4, 3))
    assert sent(output) == [4]


def test_who_wants_more_than_was_replayed_gets_nothing_before_it_is() -> None:
    output = Output("b")
    take(output, fork(1))
    output.open(ReplayFrom(3, 3))
    assert sent(output) == []
    take(output, fork(2), fork(3))
    assert sent(output) == [3]


def test_who_wants_more_than_was_replayed_and_opens_again_gets_nothing_twice() -> None:
    """The peer restarts while our binding is still busy with its replay."""
    output = Output("b")
    take(output, fork(1))
    output.open(ReplayFrom(5, 4))
    output.open(ReplayFrom(5, 4))
    take(output, fork(2), fork(3), fork(4), impulse(5))
    assert sent(output) == [4, 5]
    output.open(ReplayFrom(6, 5))
    assert sent(output) == [5]
    assert output.committed(6, 4)
    assert output.size == 0


def test_what_the_log_says_was_received_is_counted_and_dropped() -> None:
    output = Output("b")
    output.durable_replayable(2)
    take(output, fork(1), fork(2), fork(3))
    assert (output.replayable, output.kept_count) == (3, 1)
    output.durable_replayable(3)
    assert output.size == 0


def test_a_receiver_that_was_made_anew_gets_what_its_predecessor_had_not() -> None:
    output = Output("b")
    take(output, fork(1), fork(2), fork(3))
    output.open(ReplayFrom(1, 1))
    sent(output)
    output.committed(2, 2)
    output.forgotten("new")
    output.open(ReplayFrom(1, 1))
    assert sent(output) == [3]
    output.committed(1, 1)
    assert output.acked_replayable == 3


def test_a_receiver_that_was_made_anew_gets_no_impulse_twice() -> None:
    output = Output("b")
    take(output, impulse(1), fork(2), impulse(3))
    output.open(ReplayFrom(1, 1))
    sent(output)
    output.committed(3, 1)
    output.forgotten("new")
    output.open(ReplayFrom(1, 1))
    take(output, impulse(4), impulse(5))
    assert sent(output) == [4, 5]
    output.open(ReplayFrom(2, 1))
    assert sent(output) == [5]
    assert output.committed(2, 0)
    assert output.size == 0


def test_a_predecessor_that_was_heard_meanwhile_costs_impulses_only() -> None:
    output = Output("b")
    take(output, fork(1), impulse(2), fork(3))
    output.open(ReplayFrom(1, 1))
    sent(output)
    output.open(ReplayFrom(4, 2))  # two impulses of another life lie between
    assert sent(output) == [3]
    assert output.committed(4, 2)
    assert output.acked_replayable == 2


@given(st.lists(st.booleans(), max_size=30), st.integers(0, 30), st.integers(0, 30))
def test_a_crash_anywhere_loses_no_fork_and_doubles_none(
    kinds: list[bool], durable: int, replayed: int
) -> None:
    """Some prefix is durable at the receiver; the sender is restored from some checkpoint and replays."""
    messages = [impulse(n) if is_impulse else fork(n) for n, is_impulse in enumerate(kinds)]
    durable = min(durable, len(messages))
    has = messages[:durable]
    replayable = [message for message in messages if walk(message).__next__()[2]]
    wanted = ReplayFrom(durable + 1, sum(m in replayable for m in has) + 1)
    kept_from = min(replayed, wanted.replayable - 1)
    again = Output("b", replayable=kept_from)
    take(again, *replayable[kept_from:])
    again.open(wanted)
    rest = sent(again)
    assert rest == [m[-1] for m in replayable[wanted.replayable - 1 :]]


def test_the_state_of_a_checkpoint_is_that_of_the_last_delivered_record() -> None:
    state = State("me", 5, "life")
    state.begin()
    [message] = split_messages(outgoing("me", FORK))
    state.sent(message.type, message.data)
    record = state.record()
    assert record is not None
    assert record.sources == {"": Source(1, 1)}
    head, kept = state.head()
    assert (head.sequence, head.sources[""][:2]) == (0, (0, 0))
    assert b"".join(kept) == incoming(FORK)
    state.durable(record)
    state.delivered(record.sequence, record.sources)
    head, kept = state.head()
    assert (head.sequence, head.sources[""][:2], kept) == (1, (1, 1), [])
    assert State.restored("me", head, [b""]).sequence == 1


def test_calls_to_oneself_under_either_name_stay_in_order() -> None:
    """A replay may batch them otherwise, and they are told from those before the crash by counting."""
    state = State("me", 5, "life")
    state.begin()
    calls = [Call(1, RpcType.FORK, bytes([n])) for n in range(3)]
    [message] = split_messages(batch([outgoing(name, calls[n]) for n, name in enumerate(("me", "", "me"))]))
    state.sent(message.type, message.data)
    record = state.record()
    assert record is not None
    [message] = split_messages(record.body)
    assert [decode_incoming(data) for data in rpcs_of(message.type, message.data)] == calls


@pytest.mark.parametrize("method", [b"\x80" * 5 + b"\0", b"\xff" * 4 + b"\x7f"])
def test_a_method_that_is_no_number_is_refused_before_it_is_kept(method: bytes) -> None:
    """It was taken, and no checkpoint that held it could be read."""
    with pytest.raises(CorruptWireError):
        State("me", 5, "life").sent(MessageType.RPC, b"\x02b\0" + method + b"\1")


def test_what_a_checkpoint_kept_for_one_destination_is_sent_in_messages_that_are_taken() -> None:
    """More than one message can hold may wait for who is not there."""
    large = incoming(Call(1, RpcType.FORK, bytes(ENVELOPE)))
    small = [fork(number) for number in range(256)]
    messages = [*small, large, *small, large, large, *small]
    output = Output("x", replayable=len(messages) + 5)
    output.restore(b"".join(messages), len(messages))
    assert (output.size, output.kept_count) == (sum(map(len, messages)), len(messages))
    output.open(ReplayFrom(6 + 10, 6 + 10))
    got: list[bytes] = []
    while (unsent := output.unsent()) is not None:
        message, count, _ = unsent
        assert len(message) < 2 * ENVELOPE
        [(kind, data)] = split_messages(message)
        found = [*rpcs_of(kind, data)]
        assert len(found) == count
        got += found
    assert [encode_message(MessageType.RPC, data) for data in got] == messages[10:]
    assert output.committed(len(messages) + 5, len(messages) + 5)
    assert (output.size, output.kept()) == (0, [])


def test_a_record_may_hold_calls_of_more_senders_than_there_are_ports() -> None:
    state = State("me", COMMITTER, "made")
    for number in range(70_000):
        name = f"sender-{number}"
        state.introduce(name, "x", 1)
        state.accept(name, fork(1), 1, 1)
    record = state.record()
    assert record is not None
    [read] = LogDecoder("log", 0).feed(b"".join(record.encoded(COMMITTER)))
    assert isinstance(read, LogRecord)
    assert read.sources == record.sources


def test_a_large_intake_is_cut_into_records_that_carry_their_own_counts() -> None:
    state = State("me", 5, "life")
    state.introduce("a", "x", 1)
    for _ in range(3):
        state.accept("a", bytes(5 << 20), 1, 1)
    numbers = []
    while (record := state.record()) is not None:
        numbers.append((record.sequence, record.sources["a"].number))
    assert numbers == [(0, 1), (1, 2), (2, 3)]


def test_a_replaced_sender_is_refused_and_a_new_one_counts_from_nothing() -> None:
    state = State("me", 5, "life")
    assert state.introduce("a", "x", 3) is not None
    state.accept("a", b"", 4, 4)
    assert state.introduce("a", "x", 2) is None
    known = state.introduce("a", "x", 4)
    assert known is not None
    assert known.number == 4
    assert state.introduce("a", "y", 1) == Source(0, 0, "y", 1)
