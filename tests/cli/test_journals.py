"""`penstock journals`: looking at journals, and how a command finds its broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.journal.client import Client
from penstock.journal.specs import flatten

from .journaling import Shell, started, until


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    shell = Shell(tmp_path, monkeypatch)
    yield shell
    shell.broker.stop()


def test_list_shows_names_and_the_columns_asked_for(shell: Shell) -> None:
    assert shell.ok("list").split() == ["Name", "shop/items", "shop/orders"]
    shown = shell.ok("list", "-p", "-r", "--rf", "--stores", "-L", "color", "-L", "size").splitlines()
    assert shown[0].split() == ["Name", "RF", "Primary", "Replicas", "Stores", "color", "size"]
    assert shown[1].split()[0::2] == ["shop/items", shown[1].split()[2], "file:///", "<none>"]
    assert shown[2].split()[-2:] == ["red", "<none>"]
    assert "/" in shown[1].split()[2]
    assert "\x1b" not in "".join(shown)


def test_a_store_that_does_not_work_is_marked_with_why(shell: Shell) -> None:
    shell.append("shop/items", b"foobar", roll=True)
    assert shell.lines("list", "--stores")[0]["store_health"] == {"file:///": "ok"}
    assert "store_health" not in shell.lines("list")[0]
    fragments = shell.data / "fragments"
    fragments.rename(shell.data / "away")
    fragments.write_bytes(b"no directory")
    with Client(shell.broker.address) as client:
        client.append("shop/items", b"more")
        client.roll("shop/items")
    until(lambda: "<failing>" in shell.ok("list", "--stores"))
    shown = shell.ok("list", "--stores").splitlines()
    assert [line.split()[-2:] for line in shown[1:3]] == [["file:///", "<failing>"]] * 2
    assert shown[3].startswith("The store file:/// does not work: ")
    assert shell.lines("list", "--stores")[0]["store_health"]["file:///"] in shown[3]
    assert "store_health" not in shell.ok("list", "--stores", "-o", "json")


def test_a_suspended_journal_is_marked(shell: Shell) -> None:
    shell.append("shop/items", b"x")
    shell.ok("suspend", "-l", "name=shop/items", "--force")
    items, orders = shell.ok("list", "-p", "-l", "prefix=shop/").splitlines()[1:]
    assert items.endswith(" <S>")
    assert not orders.endswith(" <S>")


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("name=shop/items", ["shop/items"]),
        ("prefix=shop/", ["shop/items", "shop/orders"]),
        ("color", ["shop/orders"]),
        ("!color", ["shop/items"]),
        ("color in (red, blue)", ["shop/orders"]),
        ("color notin (red)", ["shop/items"]),
        ("name=shop/none", []),
    ],
)
def test_list_takes_selectors(shell: Shell, selector: str, names: list[str]) -> None:
    assert [record["name"] for record in shell.lines("list", "-l", selector)] == names


def test_json_is_an_object_a_journal_and_o_json_one_object_as_gazctl_has_it(shell: Shell) -> None:
    items, orders = shell.lines("list")
    assert items["fragment"]["refresh_interval"] == "5m0s"
    assert items["revision"] > 0
    assert items["primary"]
    assert orders["labels"][0] == {"name": "color", "value": "red"}
    one = json.loads(shell.ok("list", "-o", "json"))
    assert [journal["spec"]["name"] for journal in one["journals"]] == ["shop/items", "shop/orders"]
    assert one["journals"][0]["spec"]["fragment"]["compression_codec"] == "NONE"
    assert one["journals"][0]["spec"]["max_append_rate"] == "0"


def test_yaml_is_what_apply_takes(shell: Shell) -> None:
    text = shell.ok("list", "-o", "yaml")
    assert text.startswith("name: shop/\nreplication: 1\n")
    assert [change.name for change in flatten(text)] == ["shop/items", "shop/orders"]
    assert "2 created or changed" in shell.ok("apply", input=text)


def test_watch_prints_again_when_journals_change(shell: Shell) -> None:
    with started("journals", "list", "--watch", "--json", cwd=shell.path) as watching:
        names = [journal["name"] for journal in json.loads(watching.line())["journals"]]
        assert names == ["shop/items", "shop/orders"]
        shell.ok("apply", input="{name: shop/items, delete: true, revision: -1}")
        names = [journal["name"] for journal in json.loads(watching.line())["journals"]]
        assert names == ["shop/orders"]


def test_fragments_are_listed_with_sum_and_url(shell: Shell) -> None:
    shell.append("shop/items", b"foobar", roll=True)
    shell.append("shop/items", b"more")
    stored, local = shell.lines("fragments", "-l", "name=shop/items", "--url-ttl", "1m")
    assert stored["sha1"] == "8843d7f92416211de9ebb963ff4ce28125932878"
    assert (stored["begin"], stored["end"], stored["store"]) == (0, 6, "file:///")
    assert stored["url"].startswith("file:///shop/items/0000000000000000-0000000000000006-8843d7f9")
    assert (local["begin"], local["end"], local["store"], local["url"]) == (6, 10, None, None)
    table = shell.ok("fragments", "-l", "name=shop/items").splitlines()
    assert table[0].split() == ["Journal", "Offset", "Length", "Persisted", "SHA1", "Compression", "URL"]
    assert "8843d7f92416..." in table[1]
    assert table[2].split()[3] == "<none>"
    (first, _) = [
        json.loads(line) for line in shell.ok("fragments", "-l", "name=shop/items", "-o", "json").splitlines()
    ]
    assert first["spec"]["compression_codec"] == 1
    assert "begin" not in first["spec"]


def test_fragments_of_a_time(shell: Shell) -> None:
    shell.append("shop/items", b"foobar", roll=True)
    (found,) = shell.lines("fragments", "-l", "name=shop/items")
    at = found["mod_time"]
    select = ("fragments", "-l", "name=shop/items")
    assert len(shell.lines(*select, "--from", str(at), "--to", str(at))) == 1
    assert shell.lines(*select, "--from", str(at + 1)) == []
    assert shell.lines(*select, "--to", "2001-01-31T12:00:00Z") == []
    assert "'yesterday' is no time" in shell.fails(2, *select, "--to", "yesterday")
    assert "not a duration" in shell.fails(2, *select, "--url-ttl", "5")


def test_store_health(shell: Shell) -> None:
    assert "is healthy" in shell.ok("store-health", "file:///", "--check-delete-prefix", "probe/")
    assert shell.lines("store-health", "file:///")[0]["healthy"] is True
    result = shell.run("store-health", "file:///nowhere/", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout.splitlines()[0])["healthy"] is False
    assert "is not healthy" in result.stderr


# Ways to a broker.


def test_an_address_and_a_data_directory_reach_the_same_journals(shell: Shell) -> None:
    by_address = shell.ok("list", "--broker", shell.broker.address)
    assert by_address == shell.ok("list", "--data-dir", str(shell.data)) == shell.ok("list")


def test_what_is_typed_beats_the_environment(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_BROKER", "unix:/nowhere.sock")
    assert "does not answer" in shell.fails(1, "list")
    assert "shop/items" in shell.ok("list", "--data-dir", str(shell.data))
    assert "shop/items" in shell.ok("list", "--broker", shell.broker.address)
    text = shell.fails(2, "list", "--broker", shell.broker.address, "--data-dir", str(shell.data))
    assert "exclude each other" in text


def test_no_broker_and_no_directory_says_how_to_get_one(shell: Shell) -> None:
    text = shell.fails(2, "list", "--data-dir", "none")
    assert "no data directory at none" in text
    assert "penstock broker serve" in text
    assert not (shell.path / "none").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--broker", "ftp://x:1"), "is no address of a broker"),
        (("--broker", "localhost"), "is no address of a broker"),
        (("--broker", "http://localhost:1", "--auth-keys", "c2VjcmV0", "--auth-token", "t"), "exclude each other"),
        (("--broker", "http://localhost:1", "--auth-keys", "?"), "is not base64"),
        (("--broker", "http://localhost:1", "--auth-token", "@none"), "cannot read the token from none"),
        (("-l", "color ="), "could not parse"),
        (("-l", "prefix=shop"), "expected trailing '/' of label 'prefix' (shop)"),
    ],
)  # fmt: skip
def test_wrong_options_end_with_2(shell: Shell, arguments: tuple[str, ...], complaint: str) -> None:
    assert complaint in shell.fails(2, "list", *arguments)


def test_a_token_is_in_no_error(shell: Shell) -> None:
    text = shell.fails(2, "list", "--broker", "http://localhost:1", "--auth-token", "s3cret token")
    assert "s3cret" not in text


def test_an_unmatched_selector_says_what_a_selector_looks_like(shell: Shell) -> None:
    for command in (
        ("read",),
        ("fragments",),
        ("suspend",),
        ("reset-head",),
        ("prune",),
        ("append",),
        ("check",),
    ):
        text = shell.fails(2, *command, "-l", "shop/items", input="x")
        assert "no journal matches the selector 'shop/items'" in text
        assert "-l name=NAME" in text
