"""`journals check`, `prune`, `suspend`, `reset-head`, `trim` and `roll`."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.cli.journals_prune import outdated
from penstock.journal.client import Client, JournalError, NotOfferedError
from penstock.journal.durations import to_proto
from penstock.journal.fragment import Fragment
from penstock.journal.protocol import JournalSpec, Status

from .journaling import SPECS, Shell


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    shell = Shell(tmp_path, monkeypatch)
    yield shell
    shell.broker.stop()


def fragment_files(root: Path) -> list[Path]:
    return sorted(path for path in (root / "shop/items").iterdir() if path.is_file())


def damaged(number: int, content: bytes) -> Callable[[Path], None]:
    """A change of the store after which a fragment has other content."""

    def damage(root: Path) -> None:
        fragment_files(root)[number].write_bytes(content)

    return damage


def test_a_journal_without_fault_passes(shell: Shell) -> None:
    shell.append("shop/items", b"one", b"two", roll=True)
    shell.append("shop/items", b"three")
    assert shell.ok("check") == "No fault in 2 journals (sums not compared: --sums does).\n"
    assert shell.ok("check", "--sums") == "No fault in 2 journals (every fragment read).\n"
    assert shell.lines("check", "--sums")[0] == {"journal": "shop/items", "fragments": 3, "findings": []}


def test_a_trimmed_front_is_no_hole(shell: Shell) -> None:
    shell.append("shop/items", b"one", b"two", roll=True)
    shell.ok("trim", "shop/items", "3", "--yes")
    shell.ok("check", "--sums")


def test_a_lost_fragment_is_a_hole(shell: Shell) -> None:
    shell.append("shop/items", b"one", b"two", b"three", roll=True)
    shell.restarted(lambda root: fragment_files(root)[1].unlink())
    result = shell.run("check")
    assert result.exit_code == 5
    assert result.stdout.splitlines()[1].split()[:4] == ["shop/items", "hole", "3", "6"]
    assert "shop/items, byte 3: hole: no fragment holds these bytes" in result.stderr


def test_fragments_that_overlap_are_told(shell: Shell) -> None:
    shell.append("shop/items", b"one", b"two", roll=True)

    def overlap(root: Path) -> None:
        name = f"{1:016x}-{5:016x}-{hashlib.sha1(b'netw').hexdigest()}.raw"
        (root / "shop/items" / name).write_bytes(b"netw")

    shell.restarted(overlap)
    result = shell.run("check", "--sums", "--json")
    assert result.exit_code == 5
    record = json.loads(result.stdout.splitlines()[0])
    found = [(finding["fault"], finding["begin"], finding["end"]) for finding in record["findings"]]
    assert found == [("overlap", 1, 3), ("overlap", 3, 5)]  # and the content of all three agrees


def test_damaged_content_is_found_by_its_sum(shell: Shell) -> None:
    shell.append("shop/items", b"one", b"two", roll=True)
    shell.restarted(damaged(1, b"TWO"))
    shell.ok("check")
    text = shell.fails(5, "check", "--sums")
    assert "shop/items, byte 3: sum: the SHA1 should be" in text


def test_content_that_is_cut_short_is_found(shell: Shell) -> None:
    shell.append("shop/items", b"one", b"two", roll=True)
    shell.restarted(damaged(0, b"o"))
    text = shell.fails(5, "check", "--sums")
    assert "shop/items, byte" in text
    assert "missing" in text


# Pruning.


def aged(shell: Shell, *ages: float) -> None:
    """Journals with a retention of an hour; fragments of shop/items with these ages, in hours."""
    specs = SPECS.replace("refresh_interval: 5m", "refresh_interval: 5m, retention: 1h").replace(
        "children:", "revision: -1\nchildren:"
    )
    shell.ok("apply", input=specs)
    shell.append("shop/items", *(b"x" * (n + 1) for n in range(len(ages))), roll=True)

    def age(root: Path) -> None:
        for path, hours in zip(fragment_files(root), ages, strict=True):
            then = time.time() - hours * 3600
            os.utime(path, (then, then))

    shell.restarted(age)


def test_prune_deletes_what_is_older_than_the_retention(shell: Shell) -> None:
    aged(shell, 3, 2, 0.5)
    prune = ("prune", "-l", "prefix=shop/")
    assert "shop/items: 2 fragments would be deleted, 3 bytes" in shell.ok(*prune, "--dry-run")
    assert len(fragment_files(shell.data / "fragments")) == 3
    assert "shop/items: 2 fragments deleted, 3 bytes" in shell.ok(*prune, "--yes")
    (left,) = fragment_files(shell.data / "fragments")
    assert left.read_bytes() == b"xxx"


def test_prune_asks_first(shell: Shell) -> None:
    aged(shell, 3, 2, 0.5)
    prune = ("prune", "-l", "prefix=shop/")
    assert "Nothing was changed" in shell.fails(1, *prune, input="n\n")
    assert "nobody to ask" in shell.fails(2, *prune, input="")
    assert len(fragment_files(shell.data / "fragments")) == 3
    result = shell.run(*prune, "--json", input="y\n")
    assert len(json.loads(result.stdout.splitlines()[0])["fragments"]) == 2
    assert len(fragment_files(shell.data / "fragments")) == 1


def test_prune_goes_through_a_broker_of_ours_and_readers_jump_over_what_is_gone(shell: Shell) -> None:
    aged(shell, 3, 2, 0.5)
    shell.ok("prune", "-l", "prefix=shop/", "--yes", "--broker", shell.broker.address)
    assert len(fragment_files(shell.data / "fragments")) == 1
    assert "xxx" in shell.ok("read", "-l", "name=shop/items")


def test_prune_with_another_broker_needs_to_know_where_files_are(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_offered(*_: object) -> None:
        raise NotOfferedError("no such call")

    aged(shell, 3, 2, 0.5)
    monkeypatch.setattr(Client, "trim", not_offered)
    prune = ("prune", "-l", "prefix=shop/", "--yes", "--broker", shell.broker.address)
    assert "--file-root" in shell.fails(2, *prune)
    shell.ok(*prune, "--file-root", str(shell.data / "fragments"))
    assert len(fragment_files(shell.data / "fragments")) == 1


HOUR = 3600 * 10**9


@pytest.mark.parametrize(
    ("ages", "retention", "flags", "pruned"),
    [
        ([5, 4, 3], 2 * HOUR, 0, 2),  # never the newest
        ([5, 2, 1], 2 * HOUR, 0, 2),  # as old as the retention is old enough
        ([1, 5, 1], 2 * HOUR, 0, 0),  # no hole behind a younger one
        ([5, None, 4], 2 * HOUR, 0, 1),  # nor behind one that is in no store
        ([5, 4], 0, 0, 0),  # no retention
        ([5, 4], 2 * HOUR, JournalSpec.O_RDONLY, 0),  # somebody else's store
        ([5], HOUR, 0, 0),
        ([], HOUR, 0, 0),
    ],
)
def test_what_is_pruned(ages: list[int | None], retention: int, flags: int, pruned: int) -> None:
    now = 1_800_000_000
    spec = JournalSpec(name="a/journal", flags=flags)
    spec.fragment.retention.CopyFrom(to_proto(retention))
    fragments = [
        Fragment("a/journal", n, n + 1, mod_time=now - age * 3600, backing_store="file:///")
        if age is not None
        else Fragment("a/journal", n, n + 1)
        for n, age in enumerate(ages)
    ]
    assert outdated(spec, fragments, now) == fragments[:pruned]


# Suspending, resetting, trimming, rolling.


def test_suspend_tells_the_level_and_an_append_resumes(shell: Shell) -> None:
    shell.append("shop/orders", b"x")
    assert shell.lines("suspend", "-l", "name=shop/items") == [{"journal": "shop/items", "level": "FULL"}]
    assert "not suspended" in shell.ok("suspend", "-l", "name=shop/orders")
    shown = shell.ok("suspend", "-l", "prefix=shop/", "--force")
    assert shown == "shop/items: suspended (FULL)\nshop/orders: suspended (PARTIAL)\n"
    assert shell.ok("read", "-l", "prefix=shop/") == "x"
    shell.ok("check", "--sums")
    shell.ok(
        "append", "-l", "prefix=shop/", "-m", "direct", "-f", "lines", input="shop/items\ny\nshop/orders\nz\n"
    )
    assert shell.ok("read", "-l", "prefix=shop/") == "y\nxz\n"
    assert all(record.get("suspend", {"level": "NONE"})["level"] == "NONE" for record in shell.lines("list"))


def test_a_journal_that_nobody_serves_holds_up_no_command_on_others(shell: Shell) -> None:
    """One journal that was put aside ended `prune` and `fragments` for all that were selected with it."""
    aged(shell, 3, 2, 0.5)
    shell.ok("suspend", "-l", "name=shop/orders")
    assert [record["level"] for record in shell.lines("suspend", "-l", "name=shop/orders")] == ["FULL"]
    assert len(shell.lines("fragments", "-l", "prefix=shop/")) == 3
    assert shell.ok("prune", "-l", "prefix=shop/", "--yes") == "shop/items: 2 fragments deleted, 3 bytes\n"
    shell.ok("reset-head", "-l", "prefix=shop/", "--yes")


@pytest.mark.parametrize(
    "arguments",
    [
        ("roll", "x"),
        ("trim", "", "0", "--yes"),
        ("trim", "shop/items", str(1 << 63), "--yes"),
        ("roll", "\udcff/orders"),
        ("store-health", "store"),
        ("fragments", "-l", "name=shop/items", "--from", "9" * 20),
        ("read", "-l", "name=shop/items", "--from", "9" * 20),
    ],
    ids=str,
)
def test_arguments_that_cannot_be_are_mistakes_of_the_request(
    shell: Shell, arguments: tuple[str, ...]
) -> None:
    told = shell.fails(2, *arguments)
    assert "unexpected" not in told


def test_reset_head_asks_and_sets_the_head_to_the_end(shell: Shell) -> None:
    shell.append("shop/items", b"abc", roll=True)
    assert "Nothing was changed" in shell.fails(1, "reset-head", "-l", "name=shop/items", input="n\n")
    (done,) = shell.lines("reset-head", "-l", "name=shop/items", "--yes")
    assert done == {"journal": "shop/items", "offset": 3, "outcome": "reset"}


def test_who_suspended_and_reset_is_on_record(shell: Shell) -> None:
    assert shell.lines("history") == []
    shell.append("shop/orders", b"abc")
    shell.ok("suspend", "-l", "name=shop/orders")
    shell.ok("suspend", "-l", "name=shop/items")
    shell.ok("reset-head", "-l", "name=shop/orders", "--yes")
    told = [(one["action"], one["journal"], one["outcome"]) for one in shell.lines("history")]
    assert told == [
        ("suspend", "shop/orders", "not suspended: content not in a store yet, or in use"),
        ("suspend", "shop/items", "suspended (FULL)"),
        ("reset-head", "shop/orders", "the write head is 3"),
    ]
    assert all("@" in one["who"] for one in shell.lines("history"))
    shown = shell.ok("history", "shop/orders", "-n", "1")
    assert "the write head is 3" in shown
    assert "suspend" not in shown


def test_reset_head_that_comes_too_late_is_no_failure(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody appends between its look at the head and its own append."""
    shell.append("shop/items", b"abc")
    look = Client.metadata

    def look_then_lose(client: Client, journal: str, offset: int = -1, **options: object) -> object:
        answer = look(client, journal, offset)
        client.append(journal, b"def")
        return answer

    monkeypatch.setattr(Client, "metadata", look_then_lose)
    (done,) = shell.lines("reset-head", "-l", "name=shop/items", "--yes")
    assert (done["outcome"], done["offset"]) == ("raced", 3)


def test_trim_deletes_whole_fragments_below_an_offset(shell: Shell) -> None:
    shell.append("shop/items", b"one", b"two", roll=True)
    assert "Nothing was changed" in shell.fails(1, "trim", "shop/items", "5", input="n\n")
    (done,) = shell.lines("trim", "shop/items", "5", "--yes")
    assert done == {"journal": "shop/items", "begin": 3, "fragments": 1, "bytes": 3}
    assert shell.ok("read", "-l", "name=shop/items") == "two"
    assert "JOURNAL_NOT_FOUND" in shell.fails(1, "trim", "shop/none", "5", "--yes")


def test_roll_closes_the_fragment(shell: Shell) -> None:
    shell.append("shop/items", b"one")
    assert shell.lines("roll", "shop/items") == [{"journal": "shop/items", "offset": 3}]
    with Client(shell.broker.address) as client:
        client.append("shop/items", b"two")
        assert [found.spec.begin for found in client.fragments("shop/items")] == [0, 3]
        with pytest.raises(JournalError) as error:
            client.roll("shop/none")
    assert error.value.status == Status.JOURNAL_NOT_FOUND
