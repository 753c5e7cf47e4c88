"""Batching: whatever is sent, answered, lost and sent again, records land in order and none is left out."""

from __future__ import annotations

import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.journal.client import batching
from penstock.journal.client.batching import GIVES_UP, MESSAGE_LIMIT, Batch, Batches, gives_up
from penstock.journal.client.spill import Spill
from penstock.journal.protocol import Status
from penstock.journal.wholes import parts_of

RECORDS = st.lists(st.binary(max_size=12), max_size=6)


def joined(batch: Batch) -> bytes:
    assert batch.content is not None
    return b"".join(parts_of(batch.content))


class Sending(RuleBasedStateMachine):
    """A journal that takes batches, an appender's batches, and a network that loses answers."""

    @initialize(max_batch=st.integers(1, 40), window=st.integers(1, 4), large=st.sampled_from([4, 1 << 17]))
    def begin(self, max_batch: int, window: int, large: int) -> None:
        """Records that are `large` stay where they lie."""
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(batching, "LARGE_RECORD", large)
        self.batches = Batches(max_batch, window)
        self.window = window
        self.added: list[bytes] = []
        self.journal = b""  # once each, as an owner would have it
        self.arrived = 0  # of the batches in flight, how many the journal took
        self.spill = Spill(Path(tempfile.gettempdir()), 1 << 20)

    def teardown(self) -> None:
        if hasattr(self, "spill"):
            self.spill.close()
            self.patch.undo()

    @rule(records=RECORDS)
    def add(self, records: list[bytes]) -> None:
        for record in records:
            self.batches.add(record)
            self.added.append(record)
            if self.batches.is_full:
                self.batches.seal()

    @rule(records=RECORDS)
    def add_many(self, records: list[bytes]) -> None:
        for _ in self.batches.add_many(records):
            self.batches.seal()
        self.added.extend(records)

    @rule(urgent=st.booleans())
    def send(self, urgent: bool) -> None:
        before = len(self.batches.flight)
        batch = self.batches.take(urgent=urgent)
        if batch is None:
            return
        assert before < self.window
        if batch.content is None:
            assert batch.place is not None
            self.batches.moved_in(batch, batch.place.load())

    @precondition(lambda self: self.batches.queue and self.batches.queue[-1].content is not None)
    @rule()
    def spill_the_newest(self) -> None:
        batch = self.batches.queue[-1]
        self.batches.moved_out(batch, self.spill.keep(joined(batch)))

    @precondition(lambda self: self.arrived < len(self.batches.flight))
    @rule()
    def arrive(self) -> None:
        self.journal += joined(self.batches.flight[self.arrived])
        self.arrived += 1

    @precondition(lambda self: self.arrived)
    @rule()
    def answer(self) -> None:
        self.batches.landed()
        self.arrived -= 1

    @rule()
    def lose_the_connection_and_find_out_what_arrived(self) -> None:
        missing = sum(batch.length for batch in list(self.batches.flight)[: self.arrived])
        self.batches.broken(doubtful=True)
        settled = self.batches.settle(missing)
        # Records of no bytes cannot be told from their absence; they are taken to have landed, which is as good.
        assert settled is not None
        assert len(settled) >= self.arrived
        assert self.batches.doubtful == 0
        self.arrived = 0

    @precondition(lambda self: self.arrived == 0)
    @rule()
    def be_refused(self) -> None:
        self.batches.broken(doubtful=False)
        assert self.batches.doubtful == 0

    @invariant()
    def the_journal_is_a_prefix_and_the_rest_is_unacknowledged(self) -> None:
        if not hasattr(self, "batches"):
            return
        assert b"".join(self.added).startswith(self.journal)
        assert list(self.batches.unacknowledged()) == self.added[self.batches.committed :]
        assert self.batches.added == len(self.added)
        assert self.batches.pending_bytes == sum(map(len, self.added[self.batches.committed :]))
        in_memory = (batch for batch in self.batches.all() if batch.content is not None)
        assert self.batches.memory == sum(batch.length for batch in in_memory)


TestSending = Sending.TestCase
TestSending.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def test_the_open_batch_grows_while_another_is_under_way() -> None:
    batches = Batches(100, 4)
    batches.add(b"first")
    assert batches.take() is not None
    batches.add(b"second")
    batches.add(b"third")
    assert batches.take() is None
    assert batches.take(urgent=True) is not None
    batches.landed()
    batches.landed()
    batches.add(b"fourth")
    last = batches.take()
    assert last is not None
    assert last.content == b"fourth"


def test_a_batch_too_large_for_a_message_travels_alone() -> None:
    batches = Batches(10, 4)
    for record in (b"0123456789", bytes(MESSAGE_LIMIT + 1), b"0123456789"):
        batches.add(record)
        batches.seal()
    assert batches.take() is not None
    assert batches.take() is None
    batches.landed()
    large = batches.take()
    assert large is not None
    assert large.length == MESSAGE_LIMIT + 1
    assert batches.take() is None
    batches.landed()
    assert batches.take() is not None


def test_bytes_that_no_number_of_batches_makes_up_are_not_settled() -> None:
    batches = Batches(4, 4)
    for record in (b"abcd", b"efgh"):
        batches.add(record)
        batches.take(urgent=True)
    batches.broken(doubtful=True)
    assert batches.settle(3) is None
    assert batches.settle(9) is None
    settled = batches.settle(4)
    assert settled is not None
    assert [batch.first for batch in settled] == [0]
    assert list(batches.unacknowledged()) == [b"efgh"]


@pytest.mark.parametrize("status", Status.values())
def test_it_gives_up_on_exactly_the_statuses_of_the_reference(status: int) -> None:
    expected = Status.Name(status) in {
        "FRAGMENT_STORE_UNHEALTHY",
        "INDEX_HAS_GREATER_OFFSET",
        "JOURNAL_NOT_FOUND",
        "NOT_ALLOWED",
        "REGISTER_MISMATCH",
        "WRONG_APPEND_OFFSET",
    }
    assert gives_up(status, checked=False) is expected
    assert (status in GIVES_UP) is expected
    assert not gives_up(status, checked=True)


def test_spilled_content_comes_back_and_its_disk_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.journal.client.spill.SEGMENT", 100)
    spill = Spill(tmp_path, 1000)
    places = [spill.keep(bytes([i]) * 60) for i in range(6)]
    assert spill.size == 360
    assert spill.has_room(640)
    assert not spill.has_room(641)
    assert [place.load() for place in places] == [bytes([i]) * 60 for i in range(6)]
    assert len(spill._segments) == 3
    for place in places[:4]:
        place.drop()
    assert len(spill._segments) == 1
    places[4].drop()
    places[5].drop()
    assert spill.size == 0
    assert spill.keep(b"again").load() == b"again"
    assert not list(tmp_path.iterdir()), "spill files have no names"
    spill.close()
