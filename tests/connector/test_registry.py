"""Who holds which stream: the rules one by one, and a model of several workers over one journal."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connector import frames as fr
from penstock.connector import records
from penstock.connector.frames import NOTHING_SEEN
from penstock.connector.records import CorruptJournalError, Point, Walk
from penstock.connector.registry import Decision, Held, Owner, Registry, decision, owner_of
from penstock.journal import labels


def test_a_new_stream_has_seen_nothing_and_an_old_one_resumes_where_the_log_ends() -> None:
    registry = Registry({8: Point(400, name="old")})
    assert registry.notify(1, 7)
    assert registry.accepted(1, 7, "new") == NOTHING_SEEN
    assert registry.held[7].first
    assert registry.notify(1, 8)
    assert registry.accepted(1, 8, "old") == 400
    assert not registry.held[8].first


def test_a_stream_that_anybody_holds_is_refused_until_it_is_let_go() -> None:
    registry = Registry()
    assert registry.notify(1, 7)
    assert not registry.notify(1, 7)
    assert not registry.notify(2, 7)
    registry.accepted(1, 7, "s")
    registry.ending(1, 7)
    assert not registry.notify(2, 7)
    registry.has_ended(7)
    registry.closed(1, 7)
    assert registry.notify(2, 7)
    assert registry.points[7].ended


def test_a_session_that_dies_between_notify_and_its_answer_leaves_nothing_active() -> None:
    registry = Registry()
    assert registry.notify(1, 7)
    assert registry.relinquish(1) == [7]
    assert registry.accepted(1, 7, "s") is None
    assert registry.held == {}
    assert registry.notify(2, 7)
    assert registry.accepted(2, 7, "s") == NOTHING_SEEN


def test_the_answer_to_a_dead_session_does_not_go_to_the_next_one() -> None:
    registry = Registry()
    registry.notify(1, 7)
    registry.relinquish(1)
    registry.notify(2, 7)
    assert registry.accepted(1, 7, "s") is None
    assert registry.of(2) == {7: Held.PENDING}


def test_letting_go_twice_does_no_harm_and_touches_nobody_else() -> None:
    registry = Registry()
    registry.notify(1, 7)
    registry.relinquish(1)
    registry.notify(2, 7)
    assert registry.relinquish(1) == []
    registry.closed(1, 7)
    assert registry.of(2) == {7: Held.PENDING}


def test_a_message_behind_an_eos_opens_the_stream_again() -> None:
    registry = Registry({7: Point(4, ended=True, name="s")})
    registry.durable({7: 5})
    assert registry.points[7] == Point(5, False, "s")


ME, OTHER = Owner("a", "127.0.0.1:1", "x"), Owner("b/c", "[::1]:2", "y")


def test_owners_are_asked_before_they_are_replaced() -> None:
    assert decision(None, ME, None) is Decision.CLAIM
    assert decision(ME, ME, None) is Decision.CLAIM
    assert decision(OTHER, ME, None) is Decision.ASK
    assert decision(OTHER, ME, True) is Decision.REDIRECT
    assert decision(OTHER, ME, False) is Decision.CLAIM


def test_a_worker_that_started_again_is_another_worker_and_asks_nobody_for_what_it_had() -> None:
    assert decision(Owner(ME.name, "127.0.0.1:77", "before"), ME, None) is Decision.ASK
    assert decision(Owner(ME.name, ME.address, "before"), ME, None) is Decision.CLAIM


def test_owners_stand_in_registers() -> None:
    assert Owner.parse(OTHER.token()) == OTHER
    registers = labels.label_set({"epoch": "7", "owner": f"{OTHER.token()}/7"})
    assert owner_of(registers) == OTHER
    assert owner_of(labels.label_set({})) is None
    assert owner_of(labels.label_set({"owner": "deadbeef/3"})) is None


def test_points_are_found_by_walking_the_log_from_any_frame_on() -> None:
    log = fr.encode(fr.Notify(7, "seven", 0)) + fr.encode(fr.Message(7, 3)) + records.claim("w")
    log += fr.encode(fr.Message(8, 9)) + fr.encode(fr.EosMessage(7))
    walk = Walk("j", 0)
    walk.feed(log)
    assert walk.finish() == {7: Point(3, True, "seven"), 8: Point(9)}
    later = Walk("j", len(log))
    later.feed(records.points(walk.points) + fr.encode(fr.Message(7, 4)))
    assert later.complete
    assert later.finish() == {7: Point(4, False, "seven"), 8: Point(9)}


def test_a_walk_from_the_middle_does_not_know_all_streams() -> None:
    walk = Walk("j", 100)
    walk.feed(fr.encode(fr.Message(7, 4)))
    assert not walk.complete


def walked(walk: Walk, content: bytes) -> records.Points:
    walk.feed(content)
    return walk.finish()


@pytest.mark.parametrize("raw", ["00000000", "ffffffff05", "000000020cff", "0000000905"])
def test_what_is_no_frame_in_a_journal_is_named_with_its_place(raw: str) -> None:
    walk = Walk("j", 1000)
    good = fr.encode(fr.Message(7, 4))
    with pytest.raises(CorruptJournalError, match=f"j, byte {1000 + len(good)}"):
        walked(walk, good + bytes.fromhex(raw))


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 5)), max_size=30), st.integers(1, 50))
def test_walking_in_any_pieces_gives_the_same(moves: list[tuple[int, int]], size: int) -> None:
    log, number, lasts = b"", 0, {}
    for stream, step in moves:
        number += step
        log += fr.encode(fr.Message(stream, number, body=bytes(step)))
        lasts[stream] = number
    walk = Walk("j", 0)
    for at in range(0, len(log), size):
        walk.feed(log[at : at + size])
    assert {stream: point.last for stream, point in walk.finish().items()} == lasts


# A model: workers, sessions and connectors over one fenced journal, with crashes anywhere.


@dataclass
class Journal:
    """All or nothing, and fenced: the epoch of an append must be the last claim's."""

    epoch: int = 0
    owner: Owner | None = None
    log: bytes = b""

    def append(self, epoch: int, content: bytes) -> bool:
        if epoch != self.epoch:
            return False
        self.log += content
        return True


@dataclass
class Worker:
    me: Owner
    journal: Journal
    epoch: int = -1
    registry: Registry = field(default_factory=Registry)
    alive: bool = True

    def own(self, alive: dict[str, bool]) -> bool:
        if self.epoch == self.journal.epoch:
            return True
        owner = self.journal.owner
        choice = decision(owner, self.me, None)
        if choice is Decision.ASK:
            assert owner is not None
            choice = decision(owner, self.me, alive.get(owner.nonce, False))
        if choice is not Decision.CLAIM:
            return False
        self.journal.epoch += 1
        self.journal.owner, self.epoch = self.me, self.journal.epoch
        walk = Walk("j", 0)
        walk.feed(self.journal.log)
        self.registry = Registry(walk.finish())
        return True


class Model:
    """Two workers, three connectors that each send 1, 2, 3 … on streams that they fight for."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.journal = Journal()
        self.started = 0
        self.workers = [self.worker("a"), self.worker("b")]
        self.sessions: dict[int, tuple[Worker, int, int]] = {}
        self.number = 0

    def worker(self, name: str) -> Worker:
        self.started += 1
        return Worker(Owner(name, f"{name}:1", str(self.started)), self.journal)

    def step(self) -> None:
        match self.rng.randrange(8):
            case 0:
                self.crash()
            case 1 | 2:
                self.connect()
            case 3:
                self.disconnect()
            case 4:
                self.end()
            case _:
                self.send()

    def crash(self) -> None:
        at = self.rng.randrange(2)
        gone = self.workers[at]
        gone.alive = False
        self.workers[at] = self.worker(gone.me.name)
        self.sessions = {key: value for key, value in self.sessions.items() if value[0] is not gone}

    def connect(self) -> None:
        worker, stream = self.rng.choice(self.workers), self.rng.randrange(3)
        live = {each.me.nonce: each.alive for each in self.workers}
        if self.rng.random() < 0.1:
            live = {}  # the network between workers is cut: both may be alive, and the register decides
        if not worker.own(live):
            return
        self.number += 1
        if not worker.registry.notify(self.number, stream):
            return
        if self.rng.random() < 0.2:
            worker.registry.relinquish(self.number)  # died before the answer
            assert worker.registry.accepted(self.number, stream, "s") is None
            return
        point = worker.registry.accepted(self.number, stream, "s")
        assert point is not None
        self.sessions[self.number] = (worker, stream, 0 if point == NOTHING_SEEN else point)

    def send(self) -> None:
        if not self.sessions:
            return
        key = self.rng.choice(list(self.sessions))
        worker, stream, last = self.sessions[key]
        if not worker.journal.append(worker.epoch, fr.encode(fr.Message(stream, last + 1))):
            for each, (owner, _, _) in list(self.sessions.items()):
                if owner is worker:
                    del self.sessions[each]  # fenced: every session gets RESTART
            worker.registry, worker.epoch = Registry(), -1
            return
        worker.registry.durable({stream: last + 1})
        self.sessions[key] = (worker, stream, last + 1)

    def end(self) -> None:
        if not self.sessions:
            return
        key = self.rng.choice(list(self.sessions))
        worker, stream, _ = self.sessions.pop(key)
        worker.registry.ending(key, stream)
        if worker.journal.append(worker.epoch, fr.encode(fr.EosMessage(stream))):
            worker.registry.closed(key, stream)
        else:
            worker.registry.relinquish(key)

    def disconnect(self) -> None:
        if self.sessions:
            key = self.rng.choice(list(self.sessions))
            worker, stream, _ = self.sessions.pop(key)
            assert worker.registry.relinquish(key) == [stream]

    def ids(self) -> dict[int, list[int]]:
        seen: dict[int, list[int]] = {}
        at = 0
        while at < len(self.journal.log):
            size = 4 + int.from_bytes(self.journal.log[at : at + 4], "big")
            frame = fr.frame_of(self.journal.log[at + 4 : at + size])
            if isinstance(frame, fr.Message):
                seen.setdefault(frame.stream, []).append(frame.id)
            at += size
        return seen


@pytest.mark.parametrize("seed", range(40))
def test_no_stream_is_accepted_twice_and_none_stays_stuck(seed: int) -> None:
    model = Model(seed)
    for _ in range(200):
        model.step()
    for ids in model.ids().values():
        assert ids == list(range(1, len(ids) + 1)), "each id once, in order"
    # Whoever is left lets go; then every stream can be had, at a worker that may own the journal.
    model.sessions.clear()
    worker = model.worker("c")
    assert worker.own({})
    for stream in range(3):
        assert worker.registry.notify(1, stream)
        seen = model.ids().get(stream)
        assert worker.registry.accepted(1, stream, "s") == (seen[-1] if seen else NOTHING_SEEN)
