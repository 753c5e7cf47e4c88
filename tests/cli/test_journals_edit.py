"""`journals apply` and `journals edit`: specs as text, and what happens when somebody else was faster."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .journaling import SPECS, Shell


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.delenv("GAZ_EDITOR", raising=False)
    shell = Shell(tmp_path, monkeypatch)
    yield shell
    shell.broker.stop()


def names(shell: Shell) -> list[str]:
    return [record["name"] for record in shell.lines("list")]


def test_apply_creates_changes_and_deletes_in_one_go(shell: Shell) -> None:
    text = shell.ok("list", "-o", "yaml")
    text = (
        text.replace("- name: shop/items\n", "- name: shop/items\n  delete: true\n") + "- name: shop/zebra\n"
    )
    (shell.path / "specs.yaml").write_text(text)
    assert shell.ok("apply", "--specs", "specs.yaml") == "Journals: 2 created or changed, 1 deleted.\n"
    assert names(shell) == ["shop/orders", "shop/zebra"]


def test_a_journal_that_is_there_is_not_made_again(shell: Shell) -> None:
    text = shell.fails(1, "apply", input=SPECS)
    assert "shop/items is at revision" in text
    assert "the change is for a journal that does not exist yet" in text
    assert "Nothing was changed" in text


def test_a_revision_that_has_passed_changes_nothing(shell: Shell) -> None:
    before = shell.ok("list", "-o", "yaml")
    shell.ok("apply", input=before)
    text = shell.fails(1, "apply", input=before.replace("replication: 1", "replication: 2"))
    assert "the change is for revision" in text
    assert {record["replication"] for record in shell.lines("list")} == {1}


def test_transactions_can_be_limited(shell: Shell) -> None:
    specs = SPECS.replace("shop/", "many/").replace("children:", "revision: -1\nchildren:")
    assert "2 created" in shell.ok("apply", "--max-txn-size", "1", input=specs)
    assert len(names(shell)) == 4


def test_dry_run_needs_no_broker_and_changes_nothing(shell: Shell) -> None:
    specs = SPECS.replace("shop/", "dry/")
    shown = shell.ok("apply", "--dry-run", "--broker", "unix:/nowhere", input=specs)
    assert shown.count("upsert {") == 2
    assert 'name: "dry/items"' in shown
    dry = shell.run("apply", "--dry-run", "--json", input=specs)
    assert [json.loads(line)["name"] for line in dry.stdout.splitlines()] == ["dry/items", "dry/orders"]
    assert names(shell) == ["shop/items", "shop/orders"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "holds no journals"),
        ("name: a/journal\nreplicas: 1\n", "line 2: unknown key 'replicas'; did you mean 'replication'?"),
        ("name: a/journal\n", "line 1: journal a/journal: Replication: expected 1 to 5 (0)"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_text_that_is_wrong_ends_with_2(shell: Shell, text: str | bytes, complaint: str) -> None:
    assert complaint in shell.fails(2, "apply", input=text)


class Editor:
    """A program that does to the file what `steps` say, one step a call, and keeps what it was shown."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.script = path / "editor.py"
        self.script.write_text(
            "import pathlib, sys, json\n"
            f"home = pathlib.Path({str(path)!r})\n"
            "steps = json.loads((home / 'steps.json').read_text())\n"
            "count = len(list(home.glob('shown-*')))\n"
            "file = pathlib.Path(sys.argv[-1])\n"
            "text = file.read_text()\n"
            "(home / f'shown-{count}').write_text(text)\n"
            "if count < len(steps):\n"
            "    step = steps[count]\n"
            "    if step is None: sys.exit(3)\n"
            "    file.write_text(text.replace(*step))\n"
        )

    def will(self, *steps: tuple[str, str] | None) -> str:
        (self.path / "steps.json").write_text(json.dumps(steps))
        return f"{shlex.quote(sys.executable)} {shlex.quote(str(self.script))}"

    def shown(self, call: int) -> str:
        return (self.path / f"shown-{call}").read_text()


@pytest.fixture
def editor(tmp_path: Path) -> Editor:
    return Editor(tmp_path)


def test_edit_applies_what_the_editor_leaves(
    shell: Shell, editor: Editor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDITOR", "false")
    monkeypatch.setenv("GAZ_EDITOR", editor.will(("value: red", "value: blue")))
    # Only what was changed is applied.
    assert shell.ok("edit", "-l", "prefix=shop/") == "Journals: 1 created or changed.\n"
    assert [record["name"] for record in shell.lines("list", "-l", "color=blue")] == ["shop/orders"]


def test_edit_opens_again_with_the_error_where_the_editor_shows_it(
    shell: Shell, editor: Editor, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = (("replication: 1", "replication: many"), ("replication: many", "replication: 2"))
    monkeypatch.setenv("EDITOR", editor.will(*steps))
    shell.ok("edit", "-l", "prefix=shop/")
    assert {record["replication"] for record in shell.lines("list")} == {2}
    again = editor.shown(1).splitlines()
    assert again[0].startswith("#! line ")
    line = int(again[0].split()[2].rstrip(":"))
    assert again[line - 1] == "replication: many"


def test_edit_gives_up_when_nothing_is_corrected_and_keeps_the_text(
    shell: Shell, editor: Editor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDITOR", editor.will(("replication: 1", "replication: many")))
    monkeypatch.setenv("TMPDIR", str(shell.path))
    monkeypatch.setattr("tempfile.tempdir", None)
    text = shell.fails(2, "edit", "-l", "prefix=shop/")
    assert "expected a whole number for replication" in text
    kept = Path(text.rpartition("--specs ")[2].strip().rstrip("`"))
    assert "replication: many" in kept.read_text()
    assert "#!" not in kept.read_text()


def test_edit_without_a_change_changes_nothing(
    shell: Shell, editor: Editor, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = shell.lines("list")
    monkeypatch.setenv("EDITOR", editor.will())
    assert "nothing to change" in shell.run("edit", "-l", "prefix=shop/").stderr
    monkeypatch.setenv("EDITOR", editor.will(None, None))
    assert "ended with 3" in shell.fails(1, "edit", "-l", "prefix=shop/")
    monkeypatch.setenv("EDITOR", "no-such-editor")
    assert "set EDITOR to one that does" in shell.fails(2, "edit", "-l", "prefix=shop/")
    assert shell.lines("list") == before
