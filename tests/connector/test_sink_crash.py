"""The crash table of the protocol (reference 8.6), row by row, with a sink and a worker that are real processes.

Each row is tried by a fault point inside the step, and by a SIGKILL from outside when what makes the row was seen: a
frame on its way (`proxying.py`), a call of the storage (`holding.py`), bytes in the file. After every row the committed
output is exactly that of the committed transactions, and the same bytes go through once more.

    row   who dies, and when                               test
    1     sink: data, no PHASE1                            test_row_1_the_sink_has_data_and_no_phase1
    2     sink: PHASE1, its vote not on disk               test_row_2_a_vote_that_is_not_on_disk
    3     sink: a vote to commit that nobody heard         test_row_3_a_vote_to_commit_that_nobody_heard
    4     sink: a vote to abort that nobody heard          test_row_4_a_vote_to_abort_that_nobody_heard
    5     sink: a vote to abort that was heard             test_row_5_a_vote_to_abort_that_was_heard
    6     sink: a vote that was heard, then a commit       test_rows_6_and_7_a_vote_to_commit_that_was_heard
    7     sink: a vote that was heard, then an abort       test_rows_6_and_7_a_vote_to_commit_that_was_heard
    8     sink: PHASE2 commit, not on disk                 test_row_8_a_commit_that_is_not_on_disk
    9     sink: PHASE2 commit, on disk                     test_row_9_a_commit_that_is_on_disk
    10    sink: PHASE2 abort, not on disk                  test_row_10_an_abort_that_is_not_on_disk
    11    worker: before PHASE1                            test_rows_11_to_14_the_worker_dies
    12    worker: after PHASE1, before the decision        test_rows_11_to_14_the_worker_dies
    13    worker: after the decision, before PHASE2        test_rows_11_to_14_the_worker_dies
    14    worker: after PHASE2                             test_rows_11_to_14_the_worker_dies
    15    nobody: the connection breaks                    test_row_15_only_the_connection_breaks
    16    sink: bytes whose loss the worker has not seen   test_row_16_a_worker_that_never_noticed_is_voted_down
    17    sink: told that a worker has left                test_row_17_a_name_that_left_and_came_back_begins_at_0

`test_every_row_has_a_test_by_fault_point_and_by_kill` holds the table against the tests.
"""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

import pytest
from tests.connector import working
from tests.connector.proxying import Proxy
from tests.connector.sinking import (
    FIRST,
    PATIENCE,
    SECOND,
    SinkProcess,
    Worker,
    committed_first,
    cut_off,
    eventually,
    goes_on,
    steps_of,
)

from penstock.base import faults
from penstock.connector.sink import transactions
from penstock.connector.sinklink import SinkLink
from penstock.connector.twopc import Who

# How a row comes about: `fault STEP:TURN`, by itself; `held CALL` of its storage, `frame NAME TURN`, or `seen` in some
# other way, killed from outside. The steps of a connection that reply: greeting 3 times (OK, NOTIFY_ACK, list), a vote,
# a list after the decision. The first transaction has used: reply 5, phase1 1, phase2 1, decide 1, decided 1, data 1.


@contextmanager
def dying(sink: SinkProcess, worker: Worker, how: str) -> Iterator[tuple[str, int]]:
    """A sink with one committed transaction, and the address at which to connect to it: within this it dies."""
    by, _, where = how.partition(" ")
    committed_first(sink, worker, where if by == "fault" else "")
    if by == "fault":
        yield sink.address
        sink.died()
    elif by == "held":
        with sink.held_and_killed(where):
            yield sink.address
    else:
        name, _, turn = where.partition(" ")
        with Proxy(sink.address, name, sink.kill, turn=int(turn or 1)) as proxy:
            yield proxy.address
            assert proxy.met.wait(PATIENCE), proxy.seen
    sink.start()


@pytest.mark.parametrize("how", ["fault sink data:3", "seen"])
def test_row_1_the_sink_has_data_and_no_phase1(sink: SinkProcess, worker: Worker, how: str) -> None:
    committed_first(sink, worker, how.removeprefix("fault ") if how != "seen" else "")
    link = worker.connect()
    link.write(SECOND[:3])
    if how == "seen":
        assert eventually(lambda: sink.held("w") == FIRST + SECOND[:3])
        sink.kill()
    else:
        link.write(SECOND[3:])
        sink.died()
    cut_off(lambda: link.vote("t"))
    sink.start()
    assert worker.listed() == ()
    goes_on(sink, worker, FIRST)


@pytest.mark.parametrize("how", ["fault sink phase1:2", "held before prepare", "held after prepare"])
def test_row_2_a_vote_that_is_not_on_disk(sink: SinkProcess, worker: Worker, how: str) -> None:
    with dying(sink, worker, how) as address:
        link = worker.connect(address)
        cut_off(lambda: worker.send(link, SECOND))
    assert worker.listed() == ()
    goes_on(sink, worker, FIRST)


@pytest.mark.parametrize(
    ("how", "decision"), [("fault sink reply:9", False), ("frame Reply", False), ("frame Reply", True)]
)
def test_row_3_a_vote_to_commit_that_nobody_heard(
    sink: SinkProcess, worker: Worker, how: str, decision: bool
) -> None:
    """Row 3, and row 6 seen from a coordinator that had other reasons to commit: the record decides."""
    with dying(sink, worker, how) as address:
        link = worker.connect(address)
        cut_off(lambda: worker.send(link, SECOND))
    (listed,) = worker.listed()
    if decision:
        worker.record(listed, len(FIRST + SECOND))
    goes_on(sink, worker, FIRST + SECOND if decision else FIRST)


@pytest.mark.parametrize("how", ["fault sink reply:9", "frame Reply"])
def test_row_4_a_vote_to_abort_that_nobody_heard(sink: SinkProcess, worker: Worker, how: str) -> None:
    with dying(sink, worker, how) as address:
        link = worker.connect(address)
        cut_off(lambda: worker.send_bad(link, SECOND))
    assert len(worker.listed()) == 1
    goes_on(sink, worker, FIRST)


def heard(sink: SinkProcess, worker: Worker, how: str, *, good: bool) -> str:
    """A vote that was heard, and then the sink dies; the transaction."""
    committed_first(sink, worker, how.removeprefix("fault ") if how.startswith("fault") else "")
    with worker.connect() as link:
        transaction, vote = (worker.send if good else worker.send_bad)(link, SECOND)
        assert vote is good
        if how == "seen":
            sink.kill()
        else:
            sink.died()
    sink.start()
    assert worker.listed() == (transaction,)
    return transaction


@pytest.mark.parametrize("how", ["fault sink replied:9", "seen"])
def test_row_5_a_vote_to_abort_that_was_heard(sink: SinkProcess, worker: Worker, how: str) -> None:
    heard(sink, worker, how, good=False)
    goes_on(sink, worker, FIRST)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("how", ["fault sink replied:9", "seen"])
def test_rows_6_and_7_a_vote_to_commit_that_was_heard(
    sink: SinkProcess, worker: Worker, how: str, commit: bool
) -> None:
    transaction = heard(sink, worker, how, good=True)
    if commit:
        worker.record(transaction, len(FIRST + SECOND))
    goes_on(sink, worker, FIRST + SECOND if commit else FIRST)


@pytest.mark.parametrize(
    "how", ["fault sink phase2:2", "fault sink decide:2", "held before commit", "held after commit"]
)
def test_row_8_a_commit_that_is_not_on_disk(sink: SinkProcess, worker: Worker, how: str) -> None:
    """Before it is carried out, and after that but before it is on record."""
    with dying(sink, worker, how) as address:
        link = worker.connect(address)
        transaction, _ = worker.send(link, SECOND)
        worker.record(transaction, len(FIRST + SECOND))
        cut_off(lambda: link.tell([(transaction, True)]))
    assert worker.listed() == (transaction,)
    goes_on(sink, worker, FIRST + SECOND)


@pytest.mark.parametrize("how", ["fault sink decided:2", "frame ReplyUncommitted 2"])
def test_row_9_a_commit_that_is_on_disk(sink: SinkProcess, worker: Worker, how: str) -> None:
    with dying(sink, worker, how) as address:
        link = worker.connect(address)
        transaction, _ = worker.send(link, SECOND)
        worker.record(transaction, len(FIRST + SECOND))
        cut_off(lambda: link.tell([(transaction, True)]))
    assert worker.listed() == ()
    goes_on(sink, worker, FIRST + SECOND)


@pytest.mark.parametrize(
    ("how", "good"),
    [
        ("fault sink phase2:2", True),
        ("fault sink decide:2", False),
        ("held before discard", False),
        ("held after discard", True),
    ],
)
def test_row_10_an_abort_that_is_not_on_disk(sink: SinkProcess, worker: Worker, how: str, good: bool) -> None:
    """Before the bytes are cut off and after that, of a transaction that was voted for or against."""
    with dying(sink, worker, how) as address:
        link = worker.connect(address)
        transaction, vote = (worker.send if good else worker.send_bad)(link, SECOND)
        assert vote is good
        cut_off(lambda: link.tell([(transaction, False)]))
    assert worker.listed() == (transaction,)
    goes_on(sink, worker, FIRST)


DEATHS = {
    "fault": {11: "vote", 12: "decide", 13: "phase2", 14: "told"},
    "frame": {11: "Phase1", 12: "Reply", 13: "Phase2", 14: "ReplyUncommitted"},
}
"""Where the worker dies, by row: the step that it enters, or the frame that does not get through."""


def dies(sink: SinkProcess, row: int, how: str, begin: int) -> None:
    """A worker that is to deliver ten messages, and dies over it."""
    at = DEATHS[how][row]
    environment = {faults.TRACE: str(sink.root / f"worker-{row}")}
    environment |= {faults.KILL: f"{at}:1"} if how == "fault" else {}
    running: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
    # Four lists: one each when it settles, stages and tells, and the one that says that it was carried out.
    turn = 4 if at == "ReplyUncommitted" else 1
    with Proxy(sink.address, at, lambda: running.get().kill(), turn=turn) as proxy:
        address = sink.address if how == "fault" else proxy.address
        worker = working.started(address, sink.root / "record", begin, begin + 10, environment)
        running.put(worker)
        assert worker.wait(PATIENCE) == -signal.SIGKILL


@pytest.mark.parametrize("how", ["fault", "frame"])
def test_rows_11_to_14_the_worker_dies(sink: SinkProcess, how: str) -> None:
    """The next one of its name knows what is on record."""
    sink.start()
    for row in DEATHS[how]:
        begin = sink.committed(working.WORKER).count(b"\n")
        dies(sink, row, how, begin)
        in_flight = [one for view in transactions(sink.root / "txns") for one in view.in_flight]
        assert len(in_flight) == (1 if row in (12, 13) else 0)
        decided = row in (13, 14)
        working.deliver("{}:{}".format(*sink.address), sink.root / "record", begin + 10 * decided, begin + 20)
        assert sink.committed(working.WORKER) == sink.held(working.WORKER) == working.lines(0, begin + 20)


def test_row_15_only_the_connection_breaks(sink: SinkProcess, worker: Worker) -> None:
    """At each frame: as if one of the two had died there."""
    committed_first(sink, worker)
    expected = FIRST
    for at, turn, decided in (
        ("Message", 1, False),
        ("Phase1", 1, False),
        ("Reply", 1, False),
        ("Phase2", 1, True),
        ("ReplyUncommitted", 2, True),
    ):
        with Proxy(sink.address, at, lambda: None, turn=turn) as proxy:
            link = worker.connect(proxy.address)

            def whole(link: SinkLink = link) -> None:
                transaction, _ = worker.send(link, SECOND)
                worker.record(transaction, worker.end + len(SECOND))
                link.tell([(transaction, True)])

            cut_off(whole)
        expected += SECOND if decided else b""
        assert len(worker.listed()) == (1 if at in ("Reply", "Phase2") else 0), at
        goes_on(sink, worker, expected)
        expected += b"last\n"


@pytest.mark.parametrize("how", ["fault sink data:2", "seen"])
def test_row_16_a_worker_that_never_noticed_is_voted_down(
    sink: SinkProcess, worker: Worker, how: str
) -> None:
    """Bytes are lost between two connections: the sink notices the gap, and votes to abort once."""
    committed_first(sink, worker, how.removeprefix("fault ") if how.startswith("fault") else "")
    with worker.connect() as link:
        link.write(SECOND)
        if how == "seen":
            assert eventually(lambda: sink.held("w") == FIRST + SECOND)
            sink.kill()
        else:
            sink.died()
    sink.start()
    with SinkLink(sink.address, Who("w"), len(FIRST + SECOND), PATIENCE) as link:
        link.write(b"more\n")
        transaction = worker.transaction()
        assert not link.vote(transaction, (len(FIRST), len(FIRST + SECOND) + 5))
    assert worker.listed() == (transaction,)
    goes_on(sink, worker, FIRST)


@pytest.mark.parametrize("how", ["fault sink left:1", "held before retire", "held after retire"])
def test_row_17_a_name_that_left_and_came_back_begins_at_0(
    sink: SinkProcess, worker: Worker, how: str
) -> None:
    other = Worker(sink, "other")
    with dying(sink, worker, how) as address:
        link = other.connect(address)
        cut_off(lambda: link.leave(["w"]))
    with other.connect() as link:
        link.leave(["w"])
        link.leave(["w"])
    (aside,) = sink.root.glob("out.w.left-*[0-9]")
    assert aside.read_bytes() == FIRST
    goes_on(sink, Worker(sink), b"")


def test_every_row_has_a_test_by_fault_point_and_by_kill() -> None:
    table = re.findall(r"^    (\d+) +\S.*  (test_\w+)$", __doc__ or "", re.MULTILINE)
    assert [int(row) for row, _ in table] == list(range(1, 18))
    for row, name in table:
        marks = globals()[name].pytestmark if row != "15" else ()  # where nobody dies
        ways = {_way(value) for mark in marks if "how" in mark.args[0] for value in mark.args[1]}
        assert row == "15" or ("fault" in ways and ways & {"seen", "held", "frame"}), name


def _way(value: str | tuple[str, bool]) -> str:
    how = value if isinstance(value, str) else value[0]
    return how.split()[0]


def test_the_steps_are_where_the_table_has_them(sink: SinkProcess, worker: Worker) -> None:
    committed_first(sink, worker)
    expected = {
        "sink reply": 5, "sink replied": 5, "sink data": 1, "sink phase1": 1, "sink phase2": 1, "sink decide": 1,
        "sink decided": 1,
    }  # fmt: skip
    eventually(lambda: steps_of(sink.trace) == expected)  # a reply may be here before it is noted as sent
    sink.kill()
    assert steps_of(sink.trace) == expected
