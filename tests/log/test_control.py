"""The control journal, on a real broker."""

from __future__ import annotations

import threading

import pytest

from penstock.base.errors import CorruptError
from penstock.journal.client import Client
from penstock.log import control
from penstock.log.control import Control, ControlEntry, ControlState, Detail, RunMark
from penstock.log.journals import control_journal, extent

NOW = 1_700_000_000_000_000
SECOND = 1_000_000


def entry(
    action: str, sink: str | None = None, *, after: int = 0, **detail: str | int | None
) -> ControlEntry:
    return ControlEntry(NOW + after * SECOND, "ann", action, sink, {**detail})


def a_run(name: str = "r1", after: int = 0) -> ControlEntry:
    return entry("run-begin", after=after, run=name, pid=42, host="box", http="http://box:1")


def test_asking_makes_nothing(client: Client) -> None:
    there = Control(client, "shop")
    assert there.state() == ControlState()
    assert there.entries() == []
    assert there.changed_since(0) == (0, [])
    assert client.list() == []


def test_entries_come_back_in_their_order(client: Client) -> None:
    there = Control(client, "shop")
    written = [entry("pause", "search"), entry("mark", "search", offset=12), entry("resume", "search")]
    for one in written:
        there.append(one)
    assert there.entries() == Control(client, "shop").entries() == written
    middle = len(client.read_bytes(there.journal, 0, 0).splitlines(keepends=True)[0])
    assert there.entries(middle) == written[1:]


@pytest.mark.parametrize(
    ("actions", "paused"),
    [
        ([("pause", "a")], {"a"}),
        ([("pause", "a"), ("pause", "b"), ("resume", "a")], {"b"}),
        ([("resume", "a")], set()),
        ([("pause", "a"), ("mark", "a"), ("pause", "a")], {"a"}),
    ],
)
def test_who_is_paused(client: Client, actions: list[tuple[str, str]], paused: set[str]) -> None:
    there = Control(client, "shop")
    for action, sink in actions:
        there.append(entry(action, sink))
    assert there.state().paused == paused


def test_a_run_is_alive_until_it_ends_or_falls_silent(client: Client) -> None:
    there = Control(client, "shop")
    there.append(a_run())
    there.append(entry("run-beat", after=5, run="r1"))
    run = there.state().run
    assert run == RunMark("r1", 42, "box", "http://box:1", NOW, NOW + 5 * SECOND)
    assert run.alive(NOW + 24 * SECOND)
    assert not run.alive(NOW + 25 * SECOND)
    there.append(entry("run-end", after=6, run="r1", exit_code=3))
    ended = there.state().run
    assert ended is not None
    assert (ended.ended, ended.exit_code, ended.alive(NOW + 6 * SECOND)) == (True, 3, False)


def test_a_run_that_was_replaced_says_nothing_about_the_new_one(client: Client) -> None:
    there = Control(client, "shop")
    there.append(a_run("old"))
    there.append(a_run("new", after=10))
    there.append(entry("run-beat", after=50, run="old"))
    there.append(entry("run-end", after=51, run="old", exit_code=1))
    run = there.state().run
    assert run is not None
    assert (run.run, run.beat, run.ended) == ("new", NOW + 10 * SECOND, False)


def test_a_beat_tells_which_sinks_stand_still(client: Client) -> None:
    control = Control(client, "p")
    sinks: Detail = {
        "standing": {"sales": {"state": "stopped", "error": "it says no"}, "all": {"state": "paused"}}
    }
    told: list[tuple[int, str, Detail]] = [(1, "run-begin", {}), (2, "run-beat", sinks), (3, "run-beat", {})]
    for time, action, detail in told:
        control.append(ControlEntry(time, "penstock run", action, None, {"run": "r", "pid": 7, **detail}))
        run = control.state().run
        assert run is not None
        standing = {sink: (one.state, one.error) for sink, one in run.standing.items()}
        assert standing == (
            {"sales": ("stopped", "it says no"), "all": ("paused", None)} if time == 2 else {}
        )


def test_a_run_polls_for_what_is_new(client: Client) -> None:
    run, operator = Control(client, "shop"), Control(client, "shop")
    at, found = run.changed_since(0)
    assert found == []
    operator.append(entry("pause", "a"))
    at, found = run.changed_since(at)
    assert found == [entry("pause", "a")]
    assert run.changed_since(at) == (at, [])
    operator.append(entry("resume", "a"))
    assert run.changed_since(at)[1] == [entry("resume", "a")]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_ROOM", 2000)


@pytest.mark.usefixtures("small")
def test_the_journal_stays_small_and_forgets_only_beats(client: Client) -> None:
    there = Control(client, "shop")
    edits = [entry("pause", "a"), entry("mark", "b", offset=3)]
    for one in (a_run(), *edits):
        there.append(one)
    for second in range(200):
        there.append(entry("run-beat", after=second, run="r1"))
    assert extent(client, there.journal).size < 6000
    assert extent(client, there.journal).begin > 10_000
    for reader in (there, Control(client, "shop")):
        state = reader.state()
        assert state.paused == {"a"}
        assert state.run is not None
        assert (state.run.beat, state.run.pid) == (NOW + 199 * SECOND, 42)
        assert [one for one in reader.entries() if one.action != "run-beat"] == [a_run(), *edits]


@pytest.mark.usefixtures("small")
def test_what_an_earlier_version_kept_is_told_to_whoever_stood_before_it(client: Client) -> None:
    """It did not note where each entry was."""
    there = Control(client, "shop")
    there.append(entry("pause", "a"))
    for second in range(40):
        there.append(entry("run-beat", after=second, run="r1"))
    begin, head = extent(client, there.journal)
    lines = client.read_bytes(there.journal, begin, head).splitlines(keepends=True)
    older = [one.replace(b',"places":[0]', b"") for one in lines]
    assert older != lines
    client.roll(there.journal)
    for one in older:
        client.append(there.journal, one)
    client.trim(there.journal, head)
    for second in range(60):
        there.append(entry("run-beat", after=second, run="r1"))
    assert [one.action for one in there.changed_since(1)[1] if one.action != "run-beat"] == ["pause"]


@pytest.mark.usefixtures("small")
def test_who_polled_last_long_ago_gets_what_is_new_to_him_of_what_was_kept(client: Client) -> None:
    """And not what he has heard of: a run would pause and resume its sinks once more, also one that has stopped."""
    run, operator = Control(client, "shop"), Control(client, "shop")
    operator.append(entry("pause", "a"))
    at, _ = run.changed_since(0)
    operator.append(entry("resume", "a"))
    for second in range(100):
        operator.append(entry("run-beat", after=second, run="r1"))
    end, found = run.changed_since(at)
    assert [one.action for one in found if one.action != "run-beat"] == ["resume"]
    assert [one.action for one in run.entries() if one.action != "run-beat"] == ["pause", "resume"]
    assert end == client.head(control_journal("shop"))


@pytest.mark.usefixtures("small")
def test_many_write_at_once_and_nothing_asked_for_gets_lost(client: Client) -> None:
    def ask(name: str) -> None:
        mine = Control(client, "shop")
        for number in range(20):
            mine.append(entry("pause", f"{name}{number}"))
            if number % 2:
                mine.append(entry("resume", f"{name}{number}"))

    threads = [threading.Thread(target=ask, args=(name,)) for name in "xyz"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = {f"{name}{number}" for name in "xyz" for number in range(0, 20, 2)}
    assert Control(client, "shop").state().paused == expected
    assert extent(client, control_journal("shop")).begin > 0


def test_a_line_that_is_no_entry_is_named(client: Client) -> None:
    there = Control(client, "shop")
    there.append(entry("pause", "a"))
    at = client.append(there.journal, b"nonsense\n").begin
    with pytest.raises(CorruptError, match=f"byte {at}: not a control entry"):
        there.state()
