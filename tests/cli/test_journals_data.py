"""`journals append` and `journals read`: bytes in, the same bytes out."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.journal import mapping
from penstock.journal.client import Client

from .journaling import Shell, started


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    shell = Shell(tmp_path, monkeypatch)
    yield shell
    shell.broker.stop()


def content(shell: Shell, journal: str) -> bytes:
    with Client(shell.broker.address) as client:
        return client.read_bytes(journal, 0, 0)


def test_input_without_framing_is_one_append(shell: Shell) -> None:
    assert shell.ok("append", "-l", "name=shop/items", input="two\nlines") == (
        "shop/items: 1 record, 9 bytes, up to offset 9\n"
    )
    assert content(shell, "shop/items") == b"two\nlines"
    (shell.path / "large").write_bytes(b"x" * 5_000_000)
    (landed,) = shell.lines("append", "-l", "name=shop/items", "-i", "large")
    assert landed == {"journal": "shop/items", "records": 1, "bytes": 5_000_000, "begin": 9, "end": 5_000_009}


def test_a_refused_append_says_why_whatever_its_size(shell: Shell) -> None:
    text = shell.ok("list", "-o", "yaml", "-l", "name=shop/items")
    shell.ok("apply", input=text + "flags: O_RDONLY\n")
    for size in (3, 3_000_000):
        refused = shell.fails(1, "append", "-l", "name=shop/items", input=b"x" * size)
        assert refused.startswith("Error: journal shop/items: NOT_ALLOWED")


@pytest.mark.parametrize("framing", ["none", "lines", "fixed"])
def test_empty_input_is_told_not_appended(shell: Shell, framing: str) -> None:
    assert "the input is empty" in shell.fails(2, "append", "-l", "name=shop/items", "-f", framing, input="")


def test_lines_are_records(shell: Shell) -> None:
    lines = "".join(f"line {number}\n" for number in range(5000))
    assert "5000 records" in shell.ok("append", "-l", "name=shop/items", "-f", "lines", input=lines)
    assert content(shell, "shop/items") == lines.encode()


def test_fixed_frames_are_appended_as_they_are(shell: Shell) -> None:
    frames = b"".join(map(mapping.fixed_frame, [b"abc", b"", b"\n\x00"]))
    assert "3 records" in shell.ok("append", "-l", "name=shop/items", "-f", "fixed", input=frames)
    assert content(shell, "shop/items") == frames
    text = shell.fails(5, "append", "-l", "name=shop/items", "-f", "fixed", input=frames + b"garbage!")
    assert f"byte {len(frames)}: expected a frame" in text
    assert "records appended before: shop/items: 3" in text


def test_several_journals_want_a_mapping(shell: Shell) -> None:
    text = shell.fails(2, "append", "-l", "prefix=shop/", "-f", "lines", input="x\n")
    assert "the selector matches 2 journals" in text
    assert "--mapping" in text


def test_direct_records_say_their_journal(shell: Shell) -> None:
    records = "shop/orders\none\nshop/items\ntwo\nshop/orders\nthree\n"
    shell.ok("append", "-l", "prefix=shop/", "-f", "lines", "-m", "direct", input=records)
    assert content(shell, "shop/orders") == b"one\nthree\n"
    assert content(shell, "shop/items") == b"two\n"
    text = shell.fails(
        2, "append", "-l", "prefix=shop/", "-f", "lines", "-m", "direct", input="shop/item\nx\n"
    )
    assert "did you mean 'shop/items'?" in text


@pytest.mark.parametrize("how", ["modulo", "rendezvous"])
def test_keys_choose_the_journal_and_are_not_appended(shell: Shell, how: str) -> None:
    names = ["shop/items", "shop/orders"]
    choose = {"modulo": mapping.modulo, "rendezvous": mapping.rendezvous}[how]
    keys = [
        letter * 3 for letter in (b"alpha", b"beta", b"gamma", b"delta", b"eta", b"theta", b"iota", b"mu")
    ]
    expected = dict.fromkeys(names, b"")
    for key in keys:
        expected[choose(key, names)] += key + b"'s\n"
    assert all(expected.values())
    plain = b"".join(key + b"\n" + key + b"'s\n" for key in keys)
    coded = b"".join(base64.b64encode(key) + b"\n" + key + b"'s\n" for key in keys)
    shell.ok("append", "-l", "prefix=shop/", "-f", "lines", "-m", how, input=plain)
    shell.ok("append", "-l", "prefix=shop/", "-f", "lines", "-m", how, "--base64", input=coded)
    assert {name: content(shell, name) for name in names} == {
        name: records * 2 for name, records in expected.items()
    }


@pytest.mark.parametrize(
    ("arguments", "input", "code", "complaint"),
    [
        (("-f", "lines", "-m", "modulo"), "key without record\n", 5, "a key without a record behind it"),
        (("-f", "lines", "-m", "modulo", "--base64"), "no base64\nrecord\n", 2, "the key of record 0 is not base64"),
        (("-f", "lines", "-m", "direct", "--base64"), "x\n", 2, "--base64 is about keys"),
        (("-m", "modulo",), "x\n", 2, "the mapping modulo needs records with keys"),
    ],
)  # fmt: skip
def test_mappings_that_cannot_be(
    shell: Shell, arguments: tuple[str, ...], input: str, code: int, complaint: str
) -> None:
    assert complaint in shell.fails(code, "append", "-l", "prefix=shop/", *arguments, input=input)


def test_random_records_land_somewhere_once(shell: Shell) -> None:
    lines = "".join(f"{number}\n" for number in range(200))
    shell.ok("append", "-l", "prefix=shop/", "-f", "lines", "-m", "random", input=lines)
    halves = [content(shell, name).split() for name in ("shop/items", "shop/orders")]
    assert sorted(map(int, halves[0] + halves[1])) == list(range(200))
    assert all(halves)


# Reading.


def test_journals_are_read_one_after_the_other_to_their_ends(shell: Shell) -> None:
    shell.append("shop/orders", b"orders\n", roll=True)
    shell.append("shop/items", b"items\n")
    shell.append("shop/orders", b"and more\n")
    assert shell.ok("read", "-l", "prefix=shop/") == "items\norders\nand more\n"


def test_bytes_are_bytes(shell: Shell) -> None:
    raw = bytes(range(256)) * 2000
    shell.append("shop/items", raw)
    assert shell.run("read", "-l", "name=shop/items").stdout_bytes == raw
    shell.ok("read", "-l", "name=shop/items", "-o", "out")
    assert (shell.path / "out").read_bytes() == raw
    chunks = shell.lines("read", "-l", "name=shop/items")
    assert b"".join(base64.b64decode(chunk["content"]) for chunk in chunks) == raw
    assert chunks[1]["offset"] == len(base64.b64decode(chunks[0]["content"]))


def test_offsets_go_out_and_come_back_in(shell: Shell) -> None:
    shell.append("shop/items", b"first\n")
    reading = ("read", "-l", "prefix=shop/", "-o", "out", "--offsets-out", "at.json")
    shell.ok(*reading)
    assert json.loads((shell.path / "at.json").read_text()) == {"shop/items": 6, "shop/orders": 0}
    shell.append("shop/items", b"second\n")
    shell.ok(*reading, "--offsets", "at.json")
    assert (shell.path / "out").read_bytes() == b"first\nsecond\n"
    (shell.path / "at.json").write_text('{"shop/items": "six"}')
    assert "cannot read offsets from at.json" in shell.fails(2, *reading, "--offsets", "at.json")


def test_bytes_that_are_gone_are_told_and_passed_over(shell: Shell) -> None:
    shell.append("shop/items", b"old\n", b"new\n", roll=True)
    shell.ok("trim", "shop/items", "4", "--yes")
    (shell.path / "at.json").write_text('{"shop/items": 1}')
    result = shell.run("read", "-l", "name=shop/items", "--offsets", "at.json")
    assert result.stdout == "new\n"
    assert result.stderr == "shop/items: bytes 1 to 4 are gone\n"
    # Whoever reads from the beginning has not missed anything.
    assert shell.run("read", "-l", "name=shop/items").stderr == ""


def test_tail_begins_at_the_write_head(shell: Shell) -> None:
    shell.append("shop/items", b"before\n")
    assert shell.ok("read", "-l", "name=shop/items", "--tail", "--offsets-out", "at.json") == ""
    assert json.loads((shell.path / "at.json").read_text()) == {"shop/items": 7}


def test_from_leaves_out_what_was_stored_before(shell: Shell) -> None:
    shell.append("shop/items", b"old\n", roll=True)
    shell.append("shop/items", b"new\n")
    assert shell.ok("read", "-l", "name=shop/items", "--from", "2100-01-01") == "new\n"


def test_fragments_can_be_read_from_their_files(shell: Shell) -> None:
    shell.append("shop/items", b"first\n", b"second\n", roll=True)
    shell.append("shop/items", b"third\n")
    reading = ("read", "-l", "name=shop/items", "--file-root", str(shell.data / "fragments"))
    assert shell.ok(*reading) == "first\nsecond\nthird\n"
    (shell.path / "at.json").write_text('{"shop/items": 2}')
    assert shell.ok(*reading, "--offsets", "at.json") == "rst\nsecond\nthird\n"
    text = shell.fails(2, "read", "-l", "name=shop/items", "--file-root", str(shell.path))
    assert "cannot read the fragment" in text


def test_block_follows_all_journals_until_it_is_ended(shell: Shell) -> None:
    shell.append("shop/items", b"first\n")
    arguments = ("journals", "read", "-l", "!none", "--block", "--offsets-out", "at.json")
    with started(*arguments, cwd=shell.path) as reading:
        assert reading.line() == "first\n"
        shell.append("shop/orders", b"second\nthi")
        assert reading.line() == "second\n"
        new = shell.ok("list", "-o", "yaml", "-l", "name=shop/items").replace("shop/items", "shop/new")
        shell.ok("apply", input=new.partition("revision:")[0])
        shell.append("shop/new", b"from a new journal\n")
        assert reading.line() == "from a new journal\n"
        shell.append("shop/orders", b"rd\n")
        assert reading.line() == "third\n"
        assert reading.end() == 130
    assert json.loads((shell.path / "at.json").read_text()) == {
        "shop/items": 6,
        "shop/new": 19,
        "shop/orders": 13,
    }


def test_block_rides_out_a_restart_of_the_broker(shell: Shell) -> None:
    arguments = ("journals", "read", "-l", "name=shop/items", "--block")
    with started(*arguments, cwd=shell.path) as reading:
        shell.append("shop/items", b"before\n")
        assert reading.line() == "before\n"
        shell.restarted(lambda root: None)
        shell.append("shop/items", b"after\n")
        assert reading.line() == "after\n"
        assert reading.end() == 130
