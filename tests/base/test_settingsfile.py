"""Files of settings and secrets: two ways to write them, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.base import secrets
from penstock.base.errors import UsageError
from penstock.base.settingsfile import load_secrets_file, load_settings_file


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    secrets.forget_all()
    yield
    secrets.forget_all()


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("# nothing\n\n", {}),
        ("A=1\nB = two words \n", {"A": "1", "B": "two words"}),
        ("export A=\"x y\"\nB='z'\n", {"A": "x y", "B": "z"}),
        ("A=b=c # not a comment\nB=\n", {"A": "b=c # not a comment", "B": ""}),
        ("A=${B}\n", {"A": "${B}"}),
        ("\ufeffA=1\r\nB=2\r\n", {"A": "1", "B": "2"}),
        ("A: 1\nB: two words\n", {"A": "1", "B": "two words"}),
        ("# yaml\n---\nA: '007'\nB: 007\nC: yes\nD: |\n  one\n  two\n",
         {"A": "007", "B": "007", "C": "yes", "D": "one\ntwo\n"}),
        ("{A: 1}\n", {"A": "1"}),
    ],
)  # fmt: skip
def test_both_ways_of_writing(tmp_path: Path, text: str, found: dict[str, str]) -> None:
    assert load_settings_file(written(tmp_path / "f", text, 0o644)) == found


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("A=1\nB\n", "line 2: expected NAME=value"),
        ("A=1\nB=2\nA=3\n", "line 3: A is given twice; first in line 1"),
        ("A: 1\nA: 2\n", "line 2: 'A' is given twice; first in line 1"),
        ("A: [1]\n", "line 1: expected a single value for A"),
        ("my-name: 1\n", "line 1: 'my-name' is no name"),
        ("- A\n", "line 1: expected NAME=value lines, or a YAML mapping"),
        ("A: !!python/object:os.system 1\n", "line 1: the tag tag:yaml.org,2002:python/object:os.system"),
        ("just words\n", "line 1: expected NAME=value lines"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    file = written(tmp_path / "f", text)
    with pytest.raises(UsageError) as caught:
        load_settings_file(file)
    assert caught.value.message.startswith(f"settings file {file}, {complaint}")


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no settings file"):
        load_settings_file(tmp_path / "none")
    with pytest.raises(UsageError, match="cannot read the settings file"):
        load_settings_file(tmp_path)
    (tmp_path / "latin").write_bytes(b"A=\xe4\n")
    with pytest.raises(UsageError, match=r"is not UTF-8 text \(byte 2\)"):
        load_settings_file(tmp_path / "latin")
    (tmp_path / "large").write_bytes(b"#" * (1 << 20) + b"x")
    with pytest.raises(UsageError, match="larger than 1 MiB"):
        load_settings_file(tmp_path / "large")


def test_secrets_are_masked_from_then_on(tmp_path: Path) -> None:
    found = load_secrets_file(written(tmp_path / "s", "DB_PASSWORD=hunter22\n"))
    assert found == {"DB_PASSWORD": "hunter22"}
    assert secrets.mask("hunter22") == "***"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o601])
def test_a_secrets_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = written(tmp_path / "s", "A=hunter22\n", mode)
    with pytest.raises(UsageError, match=r"can be read by others \(mode 0") as caught:
        load_secrets_file(file)
    assert caught.value.hint == f"chmod 600 {file}"


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_a_secrets_file_of_its_owner_alone_is_taken(tmp_path: Path, mode: int) -> None:
    assert load_secrets_file(written(tmp_path / "s", "A=hunter22\n", mode)) == {"A": "hunter22"}


def test_a_secret_that_could_not_be_hidden_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="PIN has fewer than 4 characters"):
        load_secrets_file(written(tmp_path / "s", "PIN=123\n"))


@pytest.mark.parametrize("text", ["A: *hunter22\n", "A=x\nhunter22\n", "A: {hunter22: 1, hunter22: 2}\n"])
def test_a_complaint_about_a_secrets_file_does_not_quote_it(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_secrets_file(written(tmp_path / "s", text))
    assert "hunter22" not in caught.value.message + (caught.value.hint or "")
    assert "line " in caught.value.message
