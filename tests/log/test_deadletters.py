"""Dead letters, on a real broker."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from penstock.base.errors import UsageError
from penstock.journal.client import BrokerGoneError, Client
from penstock.log import commitlog, deadletters
from penstock.log.commitlog import CommitLog
from penstock.log.compaction import compact
from penstock.log.deadletters import DeadLetter, DeadLetters, Death, Misfit, counts, load, messages
from penstock.log.journals import dead_journal, extent
from penstock.log.message import MAX_MESSAGE_BYTES, Message, MessageOffset, Mode, Op
from penstock.log.ownership import FencedError

from .test_log_faults import Flaky

NOW = 1_700_000_000_000_000


@pytest.fixture
def log(client: Client, tmp_path: Path) -> CommitLog:
    log = CommitLog(client, "shop", tmp_path / "index", 1 << 20, NOW)
    log.append(
        [
            Message("orders", b'{"n":%d}' % n, Op.UPDATE, NOW + n, Mode.SYNC, b'{"id":%d}' % n)
            for n in range(8)
        ],
        {"orders": {"lsn": 7}},
        [],
        NOW,
    )
    return log


def deaths(*offsets: int) -> list[Death]:
    return [Death(offset, "orders", "slim", f"no field in {offset}") for offset in offsets]


def add(dead: DeadLetters, log: CommitLog, *offsets: int, sink: str = "search", generation: int = 0) -> int:
    return dead.add(sink, generation, deaths(*offsets), log.reader, NOW + 99)


def test_no_letters_and_asking_makes_nothing(client: Client) -> None:
    assert load(client, "shop") == []
    assert counts(client, "shop") == {}
    assert client.list() == []


def test_a_letter_keeps_the_message_and_why_it_died(client: Client, log: CommitLog) -> None:
    dead = DeadLetters(client, "shop", NOW)
    assert add(dead, log, 5, 7) == 2
    first, last = load(client, "shop")
    assert first == DeadLetter(
        number=0, sink="search", offset=5, generation=0, ns="orders", op="update", mode="sync", ts=NOW + 5,
        key='{"id":5}', data='{"n":5}', node="slim", error="no field in 5", time=NOW + 99, state="dead",
    )  # fmt: skip
    assert (last.number, last.offset) == (1, 7)
    message = messages(client, "shop", [1])[1]
    assert message == next(log.reader.show(7, 7))._replace(extra=None)


def test_a_message_dies_once_in_a_generation_of_its_sink(client: Client, log: CommitLog) -> None:
    dead = DeadLetters(client, "shop", NOW)
    assert add(dead, log, 1, 2) == 2
    assert add(dead, log, 2, 3) == 1
    again = DeadLetters(client, "shop", NOW)
    assert add(again, log, 1, 2, 3) == 0
    assert add(again, log, 1, sink="audit") == 1
    assert add(again, log, 1, generation=1) == 1
    assert [(letter.number, letter.sink, letter.generation, letter.offset) for letter in load(client, "shop")] == [
        (0, "search", 0, 1), (1, "search", 0, 2), (2, "search", 0, 3), (3, "audit", 0, 1), (4, "search", 1, 1),
    ]  # fmt: skip
    assert counts(client, "shop") == {"search": 4, "audit": 1}


def test_what_became_of_a_letter_is_kept_and_a_new_death_is_a_new_letter(
    client: Client, log: CommitLog
) -> None:
    dead = DeadLetters(client, "shop", NOW)
    add(dead, log, 1, 2, 3)
    dead.settle([0], "replayed", NOW)
    dead.settle([2], "dropped", NOW)
    assert [letter.state for letter in load(client, "shop")] == ["replayed", "dead", "dropped"]
    assert counts(client, "shop") == {"search": 1}
    assert add(dead, log, 1, 2) == 1
    assert [(letter.number, letter.offset, letter.state) for letter in load(client, "shop")] == [
        (1, 2, "dead"), (2, 3, "dropped"), (3, 1, "dead"),
    ]  # fmt: skip
    assert DeadLetters(client, "shop", NOW)._states == dead._states == {1: "dead", 2: "dropped", 3: "dead"}


def test_a_letter_that_is_refused_once_more_keeps_its_number_and_tells_the_new_reason(
    client: Client, log: CommitLog
) -> None:
    dead = DeadLetters(client, "shop", NOW)
    add(dead, log, 1, 2)
    before = load(client, "shop")
    dead.retell(0, "check", "still poison", NOW + 5)
    again = load(client, "shop")
    assert (again[0].number, again[0].node, again[0].error, again[0].time) == (
        0,
        "check",
        "still poison",
        NOW + 5,
    )
    assert (again[0].data, again[0].offset, again[1]) == (before[0].data, before[0].offset, before[1])
    assert counts(client, "shop") == {"search": 2}


@pytest.mark.parametrize("numbers", [[7], [0, 7]])
def test_an_unknown_letter_is_refused_and_nothing_settled(
    client: Client, log: CommitLog, numbers: list[int]
) -> None:
    dead = DeadLetters(client, "shop", NOW)
    add(dead, log, 1)
    with pytest.raises(UsageError, match="no dead letter 7 of 'shop'"):
        dead.settle(numbers, "dropped", NOW)
    with pytest.raises(UsageError, match="no dead letter 7 of 'shop'"):
        messages(client, "shop", numbers)
    assert counts(client, "shop") == {"search": 1}


def test_letters_outlive_the_log_they_came_from(client: Client, log: CommitLog) -> None:
    dead = DeadLetters(client, "shop", NOW)
    add(dead, log, 3)
    client.roll(log.journal)
    log.append([Message("orders", b"{}")], {}, [], NOW)
    compact(log, MessageOffset(9), now=NOW)
    assert log.reader.messages([3]) == {}
    assert messages(client, "shop", [0])[0].data == b'{"n":3}'
    assert add(dead, log, 7, 2) == 2  # 7 is in the companion, 2 is nowhere
    assert [(letter.offset, letter.data, letter.op) for letter in load(client, "shop")] == [
        (3, '{"n":3}', "update"), (2, "", "unknown"), (7, '{"n":7}', "update"),
    ]  # fmt: skip


def test_sinks_add_letters_at_the_same_time(client: Client, log: CommitLog) -> None:
    dead = DeadLetters(client, "shop", NOW)
    threads = [
        threading.Thread(target=lambda sink=f"s{i}": [add(dead, log, n, n + 1, sink=sink) for n in range(6)])
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    letters = load(client, "shop")
    assert [letter.number for letter in letters] == list(range(28))
    assert counts(client, "shop") == {f"s{i}": 7 for i in range(4)}


@pytest.mark.parametrize("lands", [True, False])
def test_letters_in_doubt_are_looked_up_before_they_are_added_again(
    client: Client, log: CommitLog, monkeypatch: pytest.MonkeyPatch, lands: bool
) -> None:
    dead = DeadLetters(client, "shop", NOW)
    flaky = Flaky(client, monkeypatch)
    flaky.lands, flaky.error = lands, BrokerGoneError("gone")
    with pytest.raises(BrokerGoneError):
        add(dead, log, 1, 2)
    assert add(dead, log, 1, 2) == (0 if lands else 2)
    assert [letter.offset for letter in load(client, "shop")] == [1, 2]


def test_an_old_owner_adds_nothing(client: Client, log: CommitLog) -> None:
    old = DeadLetters(client, "shop", NOW)
    DeadLetters(client, "shop", NOW)
    with pytest.raises(FencedError):
        add(old, log, 1)


def test_settled_letters_go_when_there_are_many_and_numbers_go_on(
    client: Client, log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadletters, "_ROOM", 500)
    dead = DeadLetters(client, "shop", NOW)
    add(dead, log, 1, 2, 3)
    size = extent(client, dead_journal("shop")).size
    dead.settle([0, 1], "replayed", NOW)
    assert len(load(client, "shop")) == 3
    dead.settle([2], "dropped", NOW)
    assert load(client, "shop") == []
    assert extent(client, dead_journal("shop")).size < size / 2
    add(dead, log, 4)
    add(DeadLetters(client, "shop", NOW), log, 5)
    assert [letter.number for letter in load(client, "shop")] == [3, 4]


def test_text_that_is_not_utf_8_is_shown_as_far_as_it_goes_and_replayed_as_it_was(
    client: Client, log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that an earlier version has written may hold some."""
    monkeypatch.setattr(commitlog, "_refuse_binary", lambda messages: None)
    log.append([Message("orders", b'{"n":"\\xff\\xe9"}')], {}, [], NOW)
    log.append([Message("orders", b'{"n":"\xff"}')], {}, [], NOW)
    dead = DeadLetters(client, "shop", NOW)
    add(dead, log, 9)
    assert load(client, "shop")[0].data == '{"n":"\ufffd"}'
    assert messages(client, "shop", [0])[0].data == b'{"n":"\xff"}'


def test_a_letter_keeps_the_key_that_the_row_had_before(client: Client, log: CommitLog) -> None:
    moved = Message("orders", b"{}", Op.UPDATE, NOW, Mode.SYNC, b'{"id":9}', b'{"id": 1.0}')
    log.append([moved], {"orders": {"lsn": 8}}, [], NOW)
    add(DeadLetters(client, "shop", NOW), log, 8)
    [letter] = load(client, "shop")
    assert letter.old_key == '{"id": 1.0}'
    again = messages(client, "shop", [0])[0]
    assert (again.key, again.old_key, again.extra) == (moved.key, moved.old_key, {"old": '{"id": 1.0}'})


class TestMisfits:
    """What a source could make no message of."""

    def one(self, place: str = "in.jsonl, line 7, byte 512", content: bytes = b"{oh") -> Misfit:
        return Misfit("in.jsonl", place, "not JSON", content)

    def test_a_misfit_is_kept_with_its_place_under_the_name_of_the_source(self, client: Client) -> None:
        dead = DeadLetters(client, "shop", NOW)
        assert dead.add_misfits("files", [self.one()], NOW + 1) == 1
        assert load(client, "shop") == [
            DeadLetter(
                number=0, sink="files", offset=-1, generation=0, ns="in.jsonl", op="unknown", mode="copy",
                ts=NOW + 1, key=None, data="{oh", node="files", error="not JSON", time=NOW + 1,
                place="in.jsonl, line 7, byte 512",
            )
        ]  # fmt: skip
        assert counts(client, "shop") == {"files": 1}

    def test_the_same_thing_at_the_same_place_is_kept_once_also_by_the_next_owner(
        self, client: Client
    ) -> None:
        for n in range(3):
            dead = DeadLetters(client, "shop", NOW)
            assert dead.add_misfits("files", [self.one(), self.one()], NOW) == (1 if n == 0 else 0)
        dead.settle([0], "dropped", NOW)
        assert DeadLetters(client, "shop", NOW).add_misfits("files", [self.one()], NOW) == 0
        assert [letter.state for letter in load(client, "shop")] == ["dropped"]

    def test_other_things_at_that_place_and_the_same_elsewhere_are_letters_of_their_own(
        self, client: Client, log: CommitLog
    ) -> None:
        dead = DeadLetters(client, "shop", NOW)
        others = [self.one(content=b"[oh"), self.one(place="in.jsonl, line 8, byte 600")]
        assert dead.add_misfits("files", [self.one(), *others], NOW) == 3
        assert dead.add_misfits("more files", [self.one()], NOW) == 1
        assert add(dead, log, 5) == 1
        assert [letter.number for letter in load(client, "shop")] == [0, 1, 2, 3, 4]

    def test_of_a_huge_thing_the_begin_is_kept(self, client: Client) -> None:
        dead = DeadLetters(client, "shop", NOW)
        for _ in range(2):
            dead.add_misfits("files", [self.one(content=b"x" * (40 << 20))], NOW)
        [letter] = load(client, "shop")
        assert len(letter.data) == 1 << 20

    def test_nothing_is_no_letter(self, client: Client) -> None:
        assert DeadLetters(client, "shop", NOW).add_misfits("files", [], NOW) == 0


def test_a_reason_that_quotes_the_largest_message_keeps_no_letter_from_being_kept(
    client: Client, log: CommitLog
) -> None:
    data = b'"%s"' % (b"x" * (MAX_MESSAGE_BYTES - 2))
    at = log.append([Message("orders", data, key=b'"%s"' % (b"k" * 500_000))], {}, [], NOW).offset - 1
    dead = DeadLetters(client, "shop", NOW)
    assert dead.add("search", 0, [Death(at, "orders", "search", f"refused: {data!r}")], log.reader, NOW) == 1
    dead.retell(0, "search", f"again: {data!r}", NOW)
    (letter,) = load(client, "shop")
    assert letter.data == data.decode()
    assert letter.error.startswith("again: b'\"xxx")
    found = Misfit("orders", "line 1", f"not JSON: {data!r}", data)
    assert dead.add_misfits("in", [found], NOW) == 1
