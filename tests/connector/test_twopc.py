"""The coordinator's machine: every state with every call and every frame, and the rules of the decision."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.base.errors import AwayError
from penstock.connector.frames import (
    NOT_NOW,
    Ack,
    EosMessage,
    Error,
    Frame,
    Hello,
    Message,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    encode,
    frame_of,
)
from penstock.connector.framing import Splitter
from penstock.connector.inner import (
    ListUncommitted,
    Phase1,
    Phase2,
    Reply,
    ReplyUncommitted,
    WorkersLeft,
    inner_of,
    wrapped,
)
from penstock.connector.twopc import (
    Coordinator,
    Listed,
    Redirected,
    SinkError,
    Step,
    Vote,
    Who,
    decided,
    outcome,
)

WHO = Who("shop.orders.0", "shop", b"secret")


def frames(data: bytes) -> list[Frame]:
    return [frame_of(payload) for payload in Splitter().feed(data)]


def inner(data: bytes) -> object:
    (frame,) = frames(data)
    assert isinstance(frame, Message)
    assert (frame.stream, frame.id, frame.time, bytes(frame.key)) == (0, 0, 0, b"")
    return inner_of(memoryview(frame.body))


def payload(frame: Frame) -> bytes:
    return encode(frame)[4:]


def greeted(*listed: str, offset: int = 0) -> Coordinator:
    machine = Coordinator(WHO, offset)
    machine.greeting()
    assert machine.receive(payload(Ok(500))) is None
    assert machine.receive(payload(NotifyAck(True, 1, offset))) is None
    told = machine.receive(payload(wrapped(ReplyUncommitted(77778, listed))))
    assert told == Listed(listed, offset)
    return machine


def voting(transaction: str = "t1") -> Coordinator:
    machine = greeted()
    machine.data(b"12345")
    machine.phase1(transaction)
    return machine


def voted(commit: bool = True) -> Coordinator:
    machine = voting()
    assert machine.receive(payload(wrapped(Reply("t1", commit)))) == Vote("t1", commit)
    return machine


def test_three_frames_go_out_without_waiting() -> None:
    hello, notify, listing = frames(Coordinator(WHO, 18).greeting())
    assert hello == Hello("v0.0.1", b"secret", "shop", "shop.orders.0", frozenset({"offsets"}))
    assert notify == Notify(1, "shop-w-shop.orders.0", 18)
    assert isinstance(listing, Message)
    assert inner_of(memoryview(listing.body)) == ListUncommitted(77778)


@pytest.mark.parametrize(("named", "vouched"), [(frozenset[str](), False), (frozenset({"offsets"}), True)])
def test_an_offset_counts_if_the_sink_vouches_for_it(named: frozenset[str], vouched: bool) -> None:
    machine = Coordinator(WHO, 18)
    machine.greeting()
    machine.receive(payload(Ok(500, named)))
    machine.receive(payload(NotifyAck(True, 1, 0)))
    told = machine.receive(payload(wrapped(ReplyUncommitted(77778, ()))))
    assert told == Listed((), 0, vouched)


def test_ids_are_byte_offsets_and_phase1_names_what_was_sent() -> None:
    machine = greeted(offset=100)
    sent = frames(machine.data(b"line one\n") + machine.data(b"two\n"))
    assert [(one.stream, one.id, bytes(one.body)) for one in sent if isinstance(one, Message)] == [
        (1, 100, b"line one\n"),
        (1, 109, b"two\n"),
    ]
    assert inner(machine.phase1("t1")) == Phase1("t1", ((1, 100, 113),))
    machine.receive(payload(wrapped(Reply("t1", True))))
    assert inner(machine.phase2("t1", True)) == Phase2("t1", True)
    assert inner(machine.phase1("t2")) == Phase1("t2", ((1, 113, 113),)), "without data it is sent as well"


def test_after_an_abort_the_same_offsets_are_used_again() -> None:
    machine = voted(commit=False)
    machine.phase2("t1", False)
    assert (machine.step, machine.offset) == (Step.READY, 0)
    assert inner(machine.workers_left(["a", "b"])) == WorkersLeft(77778, ("a", "b"))


def test_any_number_of_listed_transactions_is_decided_before_data_goes() -> None:
    machine = greeted("a", "b", "c")
    for transaction in "abc":
        with pytest.raises(SinkError, match="cannot send data now"):
            machine.data(b"x")
        machine.phase2(transaction, False)
    machine.data(b"x")


def test_a_vote_can_be_asked_for_again_after_a_reconnect() -> None:
    machine = greeted("t1")
    assert inner(machine.phase1("t1", (0, 5))) == Phase1("t1", ((1, 0, 5),))
    assert machine.receive(payload(wrapped(Reply("t1", True)))) == Vote("t1", True)


def test_that_a_decision_was_carried_out_shows_in_the_next_list() -> None:
    machine = voted()
    machine.phase2("t1", True)
    assert inner(machine.list_again()) == ListUncommitted(77779)
    assert machine.receive(payload(wrapped(ReplyUncommitted(77779)))) == Listed((), 0)
    assert machine.step is Step.READY


STATES: dict[Step, Callable[[], Coordinator]] = {
    Step.NEW: lambda: Coordinator(WHO, 0),
    Step.GREETING: lambda: _sent(Coordinator(WHO, 0)),
    Step.LISTED: lambda: greeted("t1"),
    Step.READY: greeted,
    Step.VOTING: voting,
    Step.VOTED: voted,
}


def _sent(machine: Coordinator) -> Coordinator:
    machine.greeting()
    return machine


CALLS: dict[str, Callable[[Coordinator], object]] = {
    "greeting": lambda machine: machine.greeting(),
    "data": lambda machine: machine.data(b"x"),
    "phase1": lambda machine: machine.phase1("new"),
    "phase1 again": lambda machine: machine.phase1("t1", (0, 5)),
    "phase2": lambda machine: machine.phase2("t1", True),
    "list": lambda machine: machine.list_again(),
    "left": lambda machine: machine.workers_left(["x"]),
}
ALLOWED = {
    Step.NEW: {"greeting"},
    Step.GREETING: set[str](),
    Step.LISTED: {"phase1 again", "phase2", "list", "left"},
    Step.READY: {"data", "phase1", "phase1 again", "phase2", "list", "left"},
    Step.VOTING: set[str](),
    Step.VOTED: {"phase2", "left"},
}


@pytest.mark.parametrize("step", STATES, ids=lambda step: step.value)
@pytest.mark.parametrize("call", CALLS)
def test_every_call_in_every_state(step: Step, call: str) -> None:
    machine = STATES[step]()
    if call in ALLOWED[step]:
        CALLS[call](machine)
    else:
        with pytest.raises(SinkError, match="cannot"):
            CALLS[call](machine)
        assert machine.step is step


FRAMES: dict[str, Frame] = {
    "ok": Ok(500),
    "notify ack": NotifyAck(True, 1, 0),
    "list": wrapped(ReplyUncommitted(77778, ())),
    "reply": wrapped(Reply("t1", True)),
    "reply to another": wrapped(Reply("t9", True)),
    "phase1": wrapped(Phase1("t1", ())),
    "data": Message(1, 0, 0, b"", b"x"),
    "hello": Hello("v0.0.1", b"", "", ""),
    "notify": Notify(1, "", 0),
    "ack": Ack(1),
    "eos": EosMessage(1),
    "error": Error("no"),
}
TAKEN = {(Step.GREETING, "ok"), (Step.VOTING, "reply")}


@pytest.mark.parametrize("step", STATES, ids=lambda step: step.value)
@pytest.mark.parametrize("frame", FRAMES)
def test_every_frame_in_every_state(step: Step, frame: str) -> None:
    machine = STATES[step]()
    if (step, frame) in TAKEN:
        machine.receive(payload(FRAMES[frame]))
        return
    with pytest.raises(SinkError):
        machine.receive(payload(FRAMES[frame]))
    assert machine.step is Step.ENDED
    with pytest.raises(SinkError, match="cannot"):
        machine.data(b"x")


@pytest.mark.parametrize("step", STATES, ids=lambda step: step.value)
def test_a_restart_ends_the_connection_wherever_it_comes(step: Step) -> None:
    machine = STATES[step]()
    assert machine.receive(payload(Restart("host:1"))) == Redirected("host:1")
    assert machine.step is Step.ENDED


@pytest.mark.parametrize(
    ("frame", "why"),
    [(Ok(1), "credits"), (NotifyAck(False, 1, 0), "refused the stream"), (NotifyAck(True, 2, 0), "refused")],
)
def test_a_greeting_that_is_no_use(frame: Frame, why: str) -> None:
    machine = _sent(Coordinator(WHO, 0))
    if not isinstance(frame, Ok):
        machine.receive(payload(Ok(2)))
    with pytest.raises(SinkError, match=why):
        machine.receive(payload(frame))


@pytest.mark.parametrize("begin", ["", NOT_NOW])
def test_the_reason_of_a_sink_is_one_line(begin: str) -> None:
    with pytest.raises((SinkError, AwayError)) as caught:
        greeted().receive(payload(Error(f"{begin}full\naudit: all is well \x1b[31m")))
    assert caught.value.message.endswith(r": full\naudit: all is well \x1b[31m")


def test_bytes_that_are_no_frame_end_it() -> None:
    machine = greeted()
    with pytest.raises(SinkError, match="no frame"):
        machine.receive(b"\xff\x00")


@pytest.mark.parametrize(
    ("votes", "commit"),
    [
        ({}, False),
        ({"a": True}, True),
        ({"a": True, "b": True, "c": True}, True),
        ({"a": True, "b": False, "c": True}, False),
        ({"a": True, "b": None}, False),
    ],
)
def test_commit_only_if_all_voted_so(votes: dict[str, bool | None], commit: bool) -> None:
    assert outcome(votes) is commit


def test_what_is_not_on_record_as_committed_is_aborted() -> None:
    assert decided(["a", "b", "c"], {"b"}) == [("a", False), ("b", True), ("c", False)]


def test_the_cookie_does_not_show() -> None:
    assert "secret" not in repr(WHO)
