"""The sink's machine: every frame in every state, the rules of data and votes, and what a peer may not do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.connector.storing import MemoryStorage, Shelf
from tests.connector.test_twopc import frames, payload

from penstock.connector.frames import (
    Ack,
    EosMessage,
    Error,
    Frame,
    Hello,
    Message,
    Migrate,
    MigrationAck,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    encode,
)
from penstock.connector.inner import (
    Inner,
    ListUncommitted,
    Phase1,
    Phase2,
    Reply,
    ReplyUncommitted,
    WorkersLeft,
    wrapped,
)
from penstock.connector.sink.session import SinkSession, State, Terms
from penstock.connector.sink.workers import Workers, transactions

HELLO = Hello("v0.0.1", b"tacos", "app", "worker1")


class Peer:
    """A worker that talks to a sink without a socket between them."""

    def __init__(self, workers: Workers, hello: Hello = HELLO, *, notify: bool = True) -> None:
        self.workers = workers
        self.session = SinkSession(Terms(b"tacos"), workers.attach, workers.left)
        self.greeting = self.send(hello)
        if notify and self.session.keeper is not None:
            self.greeting += self.send(Notify(1, "s", 0))

    def send(self, frame: Frame | Inner) -> list[object]:
        """What the sink answers; the inner messages of stream 0 as such."""
        from penstock.connector.inner import inner_of

        whole = frame if isinstance(frame, Frame) else wrapped(frame)
        answers = frames(self.session.receive(memoryview(payload(whole))))
        return [
            inner_of(memoryview(one.body)) if isinstance(one, Message) and one.stream == 0 else one
            for one in answers
        ]

    def data(self, number: int, body: bytes) -> list[object]:
        return self.send(Message(1, number, 0, b"", body))

    def phase1(self, transaction: str, start: int, end: int) -> list[object]:
        return self.send(Phase1(transaction, ((1, start, end),)))

    def close(self) -> None:
        if self.session.keeper is not None:
            self.workers.detach(self.session.keeper)
            self.session.keeper = None

    def again(self) -> Peer:
        self.close()
        return Peer(self.workers)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def workers(tmp_path: Path, shelf: Shelf) -> Iterator[Workers]:
    made = shelf.workers(tmp_path / "log")
    yield made
    made.close()


@pytest.fixture
def peer(workers: Workers) -> Iterator[Peer]:
    made = Peer(workers)
    yield made
    made.close()


@pytest.fixture
def stored(shelf: Shelf, peer: Peer) -> MemoryStorage:
    return shelf.of["worker1"]


def vote(transaction: str, commit: bool) -> list[object]:
    return [Reply(transaction, commit)]


def listed(peer: Peer) -> tuple[str, ...]:
    (answer,) = peer.send(ListUncommitted(5))
    assert isinstance(answer, ReplyUncommitted)
    assert answer.rtag == 5
    return answer.transactions


def ended(peer: Peer, answers: list[object]) -> str:
    assert peer.session.ended
    (answer,) = answers
    assert isinstance(answer, Error)
    return answer.reason


# One transaction


def test_a_transaction_from_data_to_commit(peer: Peer, stored: MemoryStorage) -> None:
    assert peer.greeting == [Ok(500), NotifyAck(True, 1, 0)]
    assert peer.data(0, b"line one\n") == []
    assert peer.data(9, b"line two\n") == []
    assert peer.phase1("t1", 0, 18) == vote("t1", True)
    assert listed(peer) == ("t1",)
    assert stored.calls == ["prepare t1"]
    assert peer.send(Phase2("t1", True)) == [], "a decision is never answered"
    assert listed(peer) == ()
    assert (stored.committed, stored.calls[-1]) == (18, "commit t1")
    assert peer.phase1("t2", 18, 18) == vote("t2", True), "a transaction may be empty"


def test_an_abort_takes_the_bytes_away_and_the_same_offsets_come_again(
    peer: Peer, stored: MemoryStorage
) -> None:
    peer.data(0, b"first")
    peer.phase1("t1", 0, 5)
    assert peer.send(Phase2("t1", False)) == []
    assert (stored.content, listed(peer)) == (b"", ())
    peer.data(0, b"second")
    assert peer.phase1("t2", 0, 6) == vote("t2", True)


def test_a_storage_that_refuses_is_a_vote_to_abort_with_its_reason(peer: Peer, tmp_path: Path) -> None:
    peer.data(0, b"bad")
    assert peer.phase1("t1", 0, 3) == vote("t1", False)
    assert listed(peer) == ("t1",), "those voted to abort are listed, too"
    (view,) = transactions(tmp_path / "log")
    assert (view.worker, view.committed) == ("worker1", 0)
    assert [(one.transaction, one.commit, one.reason) for one in view.in_flight] == [
        ("t1", False, "it is bad")
    ]
    peer.send(Phase2("t1", False))
    assert transactions(tmp_path / "log")[0].in_flight == ()


@pytest.mark.parametrize("commit", [True, False])
def test_a_decision_may_come_again_or_for_nobody(peer: Peer, stored: MemoryStorage, commit: bool) -> None:
    peer.data(0, b"abc")
    peer.phase1("t1", 0, 3)
    for transaction in ("t1", "t1", "never seen"):
        assert peer.send(Phase2(transaction, commit)) == []
    assert len(stored.calls) == 2
    assert not peer.session.ended


def test_a_vote_that_is_asked_for_again_is_given_again_also_after_a_reconnect(
    peer: Peer, stored: MemoryStorage
) -> None:
    peer.data(0, b"abc")
    assert peer.phase1("t1", 0, 3) == peer.phase1("t1", 0, 3) == vote("t1", True)
    peer = peer.again()
    assert peer.greeting[-1] == NotifyAck(True, 1, 3)
    assert (listed(peer), peer.phase1("t1", 0, 3)) == (("t1",), vote("t1", True))
    assert stored.calls == ["prepare t1"]
    assert "was voted on for bytes 0 to 3" in ended(peer, peer.phase1("t1", 0, 2))
    peer.close()


def test_a_decision_is_the_first_thing_after_a_reconnect(peer: Peer, stored: MemoryStorage) -> None:
    peer.data(0, b"abc")
    peer.phase1("t1", 0, 3)
    peer.close()
    peer = Peer(peer.workers, notify=False)
    assert peer.send(Phase2("t1", True)) == []
    assert stored.committed == 3
    peer.close()


# Votes


@pytest.mark.parametrize(
    ("where", "why"),
    [
        (((2, 0, 5),), "stream 2 is not the stream of data"),
        (((1, 1, 5),), "the range begins at 1, committed is 0"),
        (((1, 0, 6),), "the range ends at 6, the data at 5"),
        (((1, 0, 4),), "the range ends at 4, the data at 5"),
        ((), "one range was expected, 0 came"),
        (((1, 0, 5),) * 50_000, "one range was expected, 50000 came"),
    ],
)
def test_what_is_voted_to_abort(
    peer: Peer, tmp_path: Path, where: tuple[tuple[int, int, int], ...], why: str
) -> None:
    peer.data(0, b"12345")
    assert peer.send(Phase1("t1", where)) == vote("t1", False)
    assert transactions(tmp_path / "log")[0].in_flight[0].reason == why
    peer.send(Phase2("t1", False))
    peer.data(0, b"12345")
    assert peer.phase1("t2", 0, 5) == vote("t2", True)


def test_a_range_that_ends_before_it_begins(peer: Peer) -> None:
    peer.data(0, b"12345")
    peer.phase1("t1", 0, 5)
    peer.send(Phase2("t1", True))
    assert peer.phase1("t2", 5, 4) == vote("t2", False)


def test_a_commit_of_what_was_voted_to_abort_is_refused_and_changes_nothing(
    peer: Peer, stored: MemoryStorage
) -> None:
    peer.data(0, b"bad")
    peer.phase1("t1", 0, 3)
    assert "voted to abort" in ended(peer, peer.send(Phase2("t1", True)))
    peer = peer.again()
    assert listed(peer) == ("t1",)
    assert stored.committed == 0
    peer.close()


def test_only_one_transaction_at_a_time(peer: Peer) -> None:
    peer.phase1("t1", 0, 0)
    assert "t1 is not decided yet" in ended(peer, peer.phase1("t2", 0, 0))


@pytest.mark.parametrize("name", ["", "é", "a\nb", "x" * 1025])
def test_ids_that_nobody_could_read(peer: Peer, name: str) -> None:
    assert "a transaction's id" in ended(peer, peer.phase1(name, 0, 0))


def test_what_was_prepared_and_is_lost_is_voted_to_abort(peer: Peer, stored: MemoryStorage) -> None:
    peer.data(0, b"12345")
    peer.phase1("t1", 0, 5)
    peer.close()
    stored.content = b"123"
    peer = peer.again()
    assert peer.phase1("t1", 0, 5) == vote("t1", False)
    assert peer.greeting[-1] == NotifyAck(True, 1, 0)
    peer.close()


# Data


def test_a_gap_is_dropped_and_the_next_vote_is_to_abort_also_after_a_reconnect(
    peer: Peer, stored: MemoryStorage, tmp_path: Path
) -> None:
    peer.data(0, b"123")
    for number in (7, 9):
        assert peer.data(number, b"89") == []
    assert stored.content == b"123"
    assert transactions(tmp_path / "log")[0].forced == "the bytes from 3 to 7 are missing"
    peer = peer.again()
    peer.data(0, b"123")
    assert peer.phase1("t1", 0, 3) == vote("t1", False)
    peer.send(Phase2("t1", False))
    peer.data(0, b"123")
    assert peer.phase1("t2", 0, 3) == vote("t2", True), "once is enough"
    peer.close()


def test_a_repetition_of_the_same_bytes_is_ignored(peer: Peer, stored: MemoryStorage) -> None:
    peer.data(0, b"12345")
    for number, body in ((0, b"12345"), (1, b"23"), (4, b"5"), (2, b"")):
        assert peer.data(number, body) == []
    assert stored.content == b"12345"


@pytest.mark.parametrize(("number", "body"), [(0, b"1234x"), (3, b"456"), (0, b"123456")])
def test_a_repetition_with_other_bytes_ends_the_connection(peer: Peer, number: int, body: bytes) -> None:
    peer.data(0, b"12345")
    assert "was seen before" in ended(peer, peer.data(number, body))


def test_what_is_committed_does_not_come_again(peer: Peer) -> None:
    peer.data(0, b"12345")
    peer.phase1("t1", 0, 5)
    peer.send(Phase2("t1", True))
    assert "message id 0 was seen before; 5 is next" in ended(peer, peer.data(0, b"12345"))


def test_data_between_the_phases_is_refused(peer: Peer, stored: MemoryStorage) -> None:
    peer.data(0, b"12345")
    peer.phase1("t1", 0, 5)
    assert "between PHASE1 and PHASE2" in ended(peer, peer.data(5, b"6"))
    assert stored.content == b"12345"


@pytest.mark.parametrize("number", [2**64 - 1, 2**64 - 2])
def test_ids_beyond_all_counting(peer: Peer, number: int) -> None:
    assert "beyond all that can be counted" in ended(peer, peer.data(number, b"x"))


def test_a_sink_that_always_commits_takes_all_again_after_an_abort_and_loses_nothing(
    tmp_path: Path, shelf: Shelf
) -> None:
    """It cannot vote for bytes that are not there: whoever has left some out is sent away, and comes again."""
    workers = shelf.workers(tmp_path / "always")
    peer = Peer(workers)
    peer.data(1, b"while it could abort, this was a reason")
    peer.close()
    workers.close()
    workers = shelf.workers(tmp_path / "always", always=True)
    peer = Peer(workers)
    peer.data(0, b"first")
    assert "the bytes from 5 to 7 are missing" in ended(peer, peer.data(7, b"third"))
    peer = peer.again()
    peer.data(0, b"first")
    assert "the range ends at 6, the data at 5" in ended(peer, peer.phase1("t1", 0, 6))
    peer = peer.again()
    assert (peer.greeting[-1], listed(peer)) == (NotifyAck(True, 1, 0), ())
    peer.data(0, b"first")
    assert peer.phase1("t2", 0, 5) == vote("t2", True)
    peer.send(Phase2("t2", True))
    peer.data(5, b"again")
    assert peer.phase1("t3", 5, 10) == vote("t3", True)
    peer.send(Phase2("t3", False))
    assert peer.data(5, b"again") == []
    assert peer.phase1("t4", 5, 10) == vote("t4", True)
    peer.send(Phase2("t4", True))
    assert "was seen before" in ended(peer, peer.data(0, b"other")), "what is committed is not written over"
    assert shelf.of["worker1"].content == b"firstagain"
    peer.close()
    workers.close()


# Frames in every state


def test_who_may_not_come_in(workers: Workers) -> None:
    for hello, why in (
        (Hello("0.0.1", b"tacos", "a", "w"), "Unknown protocol version: 0.0.1"),
        (Hello("v0.0.1", b"salad", "a", "w"), "Bad cookie"),
        (Hello("v0.0.1", b"", "a", "w"), "Bad cookie"),
        (Hello("v0.0.1", b"tacos", "a", ""), "a worker's name has"),
        (Hello("v0.0.1", b"tacos", "a", "x" * 201), "a worker's name has"),
    ):
        peer = Peer(workers, hello)
        assert why in ended(peer, peer.greeting)
        assert "tacos" not in str(peer.greeting)


ANY: list[tuple[str, Frame]] = [
    ("hello", HELLO),
    ("ok", Ok(1)),
    ("notify ack", NotifyAck(True, 1, 0)),
    ("ack", Ack(1)),
    ("restart", Restart()),
    ("migrate", Migrate("h", 1)),
    ("migration ack", MigrationAck()),
    ("other stream", Message(7, 0, 0, b"", b"x")),
    ("reply", wrapped(Reply("t", True))),
    ("reply uncommitted", wrapped(ReplyUncommitted(1))),
    ("empty control", Message(0, 0)),
    ("unknown control", Message(0, 0, 0, b"", b"\x07")),
]


@pytest.mark.parametrize("frame", [frame for _, frame in ANY], ids=[name for name, _ in ANY])
@pytest.mark.parametrize("notify", [True, False])
def test_what_no_worker_may_send_ends_with_a_reason(workers: Workers, frame: Frame, notify: bool) -> None:
    peer = Peer(workers, notify=notify)
    assert ended(peer, peer.send(frame))
    peer.close()
    peer = Peer(workers)
    assert peer.greeting[0] == Ok(500), "the next one is served"
    peer.close()


@pytest.mark.parametrize(
    "frame", [Notify(1, "", 0), Message(1, 0), wrapped(ListUncommitted(1)), EosMessage(1), Ok(1)]
)
def test_nothing_goes_before_hello(workers: Workers, frame: Frame) -> None:
    session = SinkSession(Terms(b"tacos"), workers.attach, workers.left)
    assert frames(session.receive(memoryview(payload(frame)))) == [Error("Bad protocol FSM state")]
    assert session.state is State.ENDED


def test_data_before_notify_and_streams_that_there_are_not(workers: Workers) -> None:
    peer = Peer(workers, notify=False)
    assert peer.send(Notify(2, "", 0)) == [Error("Unsupported stream id 2")]
    assert not peer.session.ended
    assert ended(peer, peer.data(0, b"x")) == "Bad protocol FSM state"
    peer.close()


def test_the_end_of_a_stream_is_acknowledged_and_it_can_be_opened_again(peer: Peer) -> None:
    assert peer.send(Notify(1, "", 0)) == [NotifyAck(False, 1, 0)], "it is open"
    assert peer.send(EosMessage(1)) == [Ack(0, ((1, 0),))]
    assert peer.send(Notify(1, "", 0)) == [NotifyAck(True, 1, 0)]


def test_an_error_of_the_worker_ends_it_without_a_word(peer: Peer) -> None:
    assert peer.send(Error("I am leaving")) == []
    assert peer.session.ended


def test_garbage_ends_with_a_reason(peer: Peer) -> None:
    answer = peer.session.receive(memoryview(b"\xff"))
    assert answer == encode(Error("Unable to decode message: no frame has the tag 255 (byte 0)"))


# Workers


def test_a_name_belongs_to_one_connection(peer: Peer) -> None:
    second = Peer(peer.workers)
    assert ended(second, second.greeting) == "worker worker1 is already active"
    peer.data(0, b"the first one goes on")
    assert listed(peer) == ()


def test_a_worker_that_left_begins_anew_under_its_name(peer: Peer, shelf: Shelf, tmp_path: Path) -> None:
    peer.data(0, b"12345")
    peer.phase1("t1", 0, 5)
    peer.send(Phase2("t1", True))
    peer.close()
    other = Peer(peer.workers, Hello("v0.0.1", b"tacos", "app", "worker2"))
    for _ in range(2):  # once for each worker that remains
        assert other.send(WorkersLeft(7, ("worker1", "nobody"))) == []
    assert shelf.of["worker1"].retired == ["left-7"]
    assert [view.worker for view in transactions(tmp_path / "log")] == ["worker2"]
    back = Peer(peer.workers)
    assert back.greeting == [Ok(500), NotifyAck(True, 1, 0)]
    assert "has not left" in ended(other, other.send(WorkersLeft(7, ("worker1",))))
    for one in (back, other):
        one.close()


@pytest.mark.parametrize("name", ["../../etc/passwd", "..", ".hidden", "a/b", "ü", "a b%2E", "x" * 60])
def test_no_name_leads_out_of_the_directory(workers: Workers, tmp_path: Path, name: str) -> None:
    peer = Peer(workers, Hello("v0.0.1", b"tacos", "app", name))
    assert peer.greeting[0] == Ok(500)
    peer.close()
    (view,) = transactions(tmp_path / "log")
    assert view.worker == name
    assert [path for path in tmp_path.rglob("*.txnlog") if path.parent != tmp_path / "log"] == []
