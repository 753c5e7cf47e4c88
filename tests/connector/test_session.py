"""The state machines: the tables walked whole, credits, and what frames that are illegal leave as it was."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connector import frames as fr
from penstock.connector import session as ss
from penstock.connector.frames import Tag
from penstock.connector.session import Connection, Event, IllegalFrameError, Role, Side, Stream, Verdict

C, W = Side.CONNECTOR, Side.WORKER
OVER = {Connection.ERROR, Connection.DISCONNECTED}

LEGAL = {
    Connection.CONNECTED: {C: "HELLO ERROR", W: "ERROR MIGRATE"},
    Connection.HANDSHAKE: {C: "ERROR", W: "OK ERROR MIGRATE"},
    Connection.STREAMING: {
        C: "NOTIFY MESSAGE EOS_MESSAGE ERROR",
        W: "NOTIFY_ACK ACK RESTART ERROR MIGRATE",
    },
    Connection.MIGRATING: {
        C: "NOTIFY MESSAGE EOS_MESSAGE MIGRATION_ACK ERROR",
        W: "NOTIFY_ACK ACK RESTART ERROR MIGRATE",
    },
}
"""As the protocol and its addendum say; what is not here is illegal."""


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize(("state", "side", "tag"), list(itertools.product(Connection, Side, Tag)))
def test_every_frame_in_every_state_is_decided(state: Connection, side: Side, tag: Tag, role: Role) -> None:
    if state in OVER:
        assert ss.move(state, side, tag, role) is None
        return
    legal = tag.name in LEGAL[state][side].split()
    if role is Role.SINK:
        legal = legal or (state, side, tag) in {
            (Connection.HANDSHAKE, C, Tag.NOTIFY),
            (Connection.HANDSHAKE, C, Tag.MESSAGE),
            (Connection.STREAMING, W, Tag.MESSAGE),
        }
    if legal:
        assert isinstance(ss.move(state, side, tag, role), Connection)
    else:
        with pytest.raises(
            IllegalFrameError,
            match=r"Invalid message|Bad protocol FSM state|Unable to decode message: EOS_MESSAGE",
        ):
            ss.move(state, side, tag, role)


def test_errors_end_every_state_and_name_the_fault() -> None:
    for state in set(Connection) - OVER:
        assert ss.move(state, C, Tag.ERROR) is Connection.ERROR
        assert ss.move(state, W, Tag.ERROR) is Connection.ERROR
    for tag in (Tag.OK, Tag.NOTIFY_ACK, Tag.ACK, Tag.RESTART):
        with pytest.raises(IllegalFrameError, match=f"Invalid message: {tag.name.lower()}"):
            ss.move(Connection.STREAMING, C, tag)
    with pytest.raises(IllegalFrameError, match="Bad protocol FSM state"):
        ss.move(Connection.STREAMING, C, Tag.HELLO)


STREAM_LEGAL = {
    Stream.START: {Event.NOTIFY, Event.ACK, Event.RESTART},
    Stream.NOTIFY_SENT: {Event.ACCEPTED, Event.REFUSED, Event.ACK, Event.RESTART},
    Stream.OPEN: {Event.MESSAGE, Event.EOS, Event.ACK, Event.RESTART},
    Stream.CLOSING: {Event.ACK, Event.FINAL_ACK, Event.RESTART},
    Stream.CLOSED: {Event.NOTIFY, Event.ACK, Event.RESTART},
    Stream.TERMINATED: set[Event](),
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(Stream, Event)))
def test_every_event_in_every_state_of_a_stream_is_decided(state: Stream, event: Event) -> None:
    assert ((state, event) in ss.STREAM) == (event in STREAM_LEGAL[state])


def streaming(credits: int = 10) -> ss.Session:
    session = ss.Session()
    session.frame(C, fr.Hello("0.0.1", b"", "p", "i"))
    session.frame(W, fr.Ok(credits))
    return session


def opened(point: int = fr.NOTHING_SEEN, credits: int = 10) -> ss.Session:
    session = streaming(credits)
    session.frame(C, fr.Notify(7, "s", 0))
    session.frame(W, fr.NotifyAck(True, 7, point))
    return session


def test_a_stream_from_notify_to_its_last_ack() -> None:
    session = opened()
    assert session.stream(7) is Stream.OPEN
    session.frame(C, fr.Message(7, 4))
    session.frame(C, fr.EosMessage(7))
    assert session.stream(7) is Stream.CLOSING
    session.frame(W, fr.Ack(1, ((7, 3),)))
    assert session.stream(7) is Stream.CLOSING
    session.frame(W, fr.Ack(1, ((7, 4),)))
    assert session.stream(7) is Stream.CLOSED
    assert session.frame(C, fr.Notify(7, "s", 4)) is Verdict.TAKEN
    assert session.stream(7) is Stream.NOTIFY_SENT


def test_a_closed_stream_goes_through_notify_ack_again() -> None:
    session = opened()
    session.frame(C, fr.EosMessage(7))
    session.frame(W, fr.Ack(0, ((7, fr.NOTHING_SEEN),)))
    session.frame(C, fr.Notify(7, "s", 0))
    with pytest.raises(IllegalFrameError, match="Bad/unregistered stream_id 7 with message_id 1"):
        session.frame(C, fr.Message(7, 1))


@pytest.mark.parametrize("steps", [(), ("accepted",), ("accepted", "eos")])
def test_a_stream_that_is_pending_open_or_closing_here_is_refused_at_once(steps: tuple[str, ...]) -> None:
    session = streaming()
    session.frame(C, fr.Notify(7, "s", 0))
    if "accepted" in steps:
        session.frame(W, fr.NotifyAck(True, 7, 5))
    if "eos" in steps:
        session.frame(C, fr.EosMessage(7))
    before = session.stream(7)
    assert session.frame(C, fr.Notify(7, "s", 0)) is Verdict.REFUSE
    assert session.stream(7) is before


def test_messages_on_a_stream_that_is_not_open_are_illegal() -> None:
    session = streaming()
    with pytest.raises(IllegalFrameError, match="Bad/unregistered stream_id 7 with message_id 1"):
        session.frame(C, fr.Message(7, 1))
    with pytest.raises(IllegalFrameError, match="Unable to decode message"):
        session.frame(C, fr.EosMessage(7))


def test_the_id_that_stands_for_nothing_is_no_id() -> None:
    with pytest.raises(IllegalFrameError, match="stands for no message"):
        opened().frame(C, fr.Message(7, fr.NOTHING_SEEN))


def test_notify_and_message_cost_a_credit_and_nothing_else_does() -> None:
    session = opened(credits=2)
    assert session.credits.held == 1
    session.frame(C, fr.Message(7, 1))
    assert session.credits.held == 0
    with pytest.raises(ss.CreditError, match="credit limit exceeded"):
        session.frame(C, fr.Message(7, 2))
    assert session.last[7] == 1
    session.frame(C, fr.EosMessage(7))
    session.frame(W, fr.Ack(3, ((7, 1),)))
    assert session.credits.held == 3


def test_credits_are_not_counted_at_sinks_nor_where_told_not_to() -> None:
    session = ss.Session(strict_credits=False)
    session.frame(C, fr.Hello("0.0.1", b"", "p", "i"))
    session.frame(W, fr.Ok(0))
    assert session.frame(C, fr.Notify(7, "s", 0)) is Verdict.TAKEN


def test_a_sink_may_be_told_all_at_once() -> None:
    session = ss.Session(Role.SINK)
    session.frame(C, fr.Hello("v0.0.1", b"", "app", "worker"))
    session.frame(C, fr.Notify(1, "s", 0))
    session.frame(C, fr.Message(0, 0))
    session.frame(W, fr.Ok(2))
    session.frame(W, fr.NotifyAck(True, 1, 0))
    session.frame(W, fr.Message(0, 0))
    session.frame(C, fr.Message(1, 0, body=b"x"))
    assert session.stream(1) is Stream.OPEN


def test_after_the_end_frames_are_ignored() -> None:
    session = opened()
    session.frame(W, fr.Restart("h:1"))
    assert session.stream(7) is Stream.TERMINATED
    assert session.frame(C, fr.Message(7, 1)) is Verdict.IGNORED
    assert session.connection is Connection.DISCONNECTED


def test_migrating_takes_what_is_on_its_way_and_refuses_new_streams() -> None:
    session = opened()
    session.frame(W, fr.Migrate("h", 1))
    session.frame(C, fr.Message(7, 1))
    assert session.frame(C, fr.Notify(8, "t", 0)) is Verdict.REFUSE
    session.frame(W, fr.NotifyAck(False, 8, 0))
    session.frame(W, fr.Migrate("h", 2))
    session.frame(C, fr.EosMessage(7))
    session.frame(W, fr.Ack(1, ((7, 1),)))
    session.frame(C, fr.MigrationAck())
    assert session.connection is Connection.DISCONNECTED


FRAMES = st.sampled_from(
    [
        (C, fr.Hello("0.0.1", b"", "p", "i")),
        (W, fr.Ok(3)),
        (C, fr.Notify(1, "a", 0)),
        (C, fr.Notify(2, "b", 0)),
        (W, fr.NotifyAck(True, 1, fr.NOTHING_SEEN)),
        (W, fr.NotifyAck(False, 2, 0)),
        (C, fr.Message(1, 5)),
        (C, fr.Message(1, 6)),
        (C, fr.Message(2, 6)),
        (W, fr.Ack(1, ((1, 5),))),
        (W, fr.Ack(2)),
        (W, fr.Ack(0, ((1, 6), (9, 9)))),
        (C, fr.EosMessage(1)),
        (W, fr.Restart()),
        (W, fr.Migrate("h", 1)),
        (C, fr.MigrationAck()),
        (C, fr.Error("x")),
        (W, fr.Error("y")),
    ]
)


@given(st.lists(FRAMES, max_size=40))
def test_an_illegal_frame_changes_nothing_but_credits(frames: list[tuple[Side, fr.Frame]]) -> None:
    session = ss.Session()
    for side, frame in frames:
        before = (session.connection, dict(session.streams), dict(session.last))
        held = session.credits.held
        try:
            session.frame(side, frame)
        except IllegalFrameError:
            assert (session.connection, session.streams, session.last) == before
            assert 0 <= held - session.credits.held <= ss.COST.get(fr.tag_of(frame), 0)
        assert session.credits.held >= 0
