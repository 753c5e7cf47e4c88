"""Variables in settings: where each kind is looked up, what comes first, and what is said when there is nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.base import secrets
from penstock.base.errors import UsageError
from penstock.base.variables import scope, substitute


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    secrets.forget_all()
    yield
    secrets.forget_all()


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST", "db.example")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.setenv("NESTED", "${HOST}")
    monkeypatch.delenv("UNSET", raising=False)
    monkeypatch.delenv("ONLY_IN_FILE", raising=False)


@pytest.mark.usefixtures("variables")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("${HOST}", "db.example"),
        ("pg://${HOST}:5432/${HOST}", "pg://db.example:5432/db.example"),
        ("${UNSET:-other}", "other"),
        ("${UNSET:-}", ""),
        ("${HOST:-other}", "db.example"),
        ("${EMPTY}", ""),
        ("${EMPTY:-other}", ""),  # set, if to nothing
        ("${NESTED}", "${HOST}"),  # what a variable holds is taken as it is
        ("$${HOST}", "${HOST}"),  # the text itself
        ("$${file:x} $${secret:X}", "${file:x} ${secret:X}"),
        ("${file:-other}", "other"),  # a variable named file
        ("$HOST $ {HOST} ${} ${1} $${}", "$HOST $ {HOST} ${} ${1} $${}"),
        ("`${m.ns} ${a-b} ${f(X)}`", "`${m.ns} ${a-b} ${f(X)}`"),  # of JavaScript
        ("$${OUT-x} $${ OUT }", "${OUT-x} ${ OUT }"),
    ],
)
def test_variables_are_replaced(text: str, expected: str) -> None:
    assert substitute(text, "here") == expected


@pytest.mark.parametrize(
    "text", ["${OUT-x}", "${OUT:x}", "${OUT?}", "${OUT=x}", "${OUT:=x}", "${ OUT }", "${OUT-DIR}"]
)
def test_what_is_meant_for_a_variable_is_refused_and_not_taken_for_text(text: str) -> None:
    with pytest.raises(UsageError) as error:
        substitute(f"file://{text}/x", "here")
    assert error.value.message == f"here: {text} is no variable"
    assert error.value.hint == f"write ${{NAME}} or ${{NAME:-default}}; for the text itself, ${text}"


@pytest.mark.usefixtures("variables")
def test_variables_are_replaced_at_any_depth() -> None:
    given = ("${HOST}", {"k": ["${HOST}", 1, None], "d": "${UNSET:-x}"})
    assert substitute(given, "here") == ["db.example", {"k": ["db.example", 1, None], "d": "x"}]


@pytest.mark.usefixtures("variables")
def test_a_variable_that_is_not_set_is_named_with_the_place_and_what_to_do() -> None:
    with pytest.raises(UsageError) as error:
        substitute(["${UNSET}"], "adaptor 'x', setting 'y'")
    assert error.value.message == "adaptor 'x', setting 'y': the environment variable UNSET is not set"
    hint = "export UNSET=..., give it in a settings file (--settings FILE), or write ${UNSET:-default}"
    assert error.value.hint == hint


@pytest.mark.usefixtures("variables")
def test_the_environment_comes_before_the_settings_file_and_that_before_the_default() -> None:
    with scope(Path(), {"HOST": "from file", "ONLY_IN_FILE": "from file"}):
        assert substitute("${HOST:-default}", "here") == "db.example"
        assert substitute("${ONLY_IN_FILE:-default}", "here") == "from file"
        assert substitute("${UNSET:-default}", "here") == "default"
    with pytest.raises(UsageError):
        substitute("${ONLY_IN_FILE}", "here")


def test_a_secret_comes_from_the_secrets_file_and_from_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "from the environment")
    with scope(Path(), {"KEY": "from the settings"}, {"KEY": "hunter22"}):
        assert substitute("a ${secret:KEY} b", "here") == "a hunter22 b"
    with scope(Path(), {"KEY": "from the settings"}), pytest.raises(UsageError) as error:
        substitute("${secret:KEY}", "here")
    assert error.value.message == "here: the secret KEY is not known, since there is no secrets file"
    assert "--secrets FILE" in (error.value.hint or "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("${secret:KEI}", "the secrets file has no KEI; did you mean 'KEY'?"),
        ("${secret:KEI:-x}", "a secret has no default"),
        ("${secret:}", "the secrets file has no"),
    ],
)
def test_secrets_that_are_not_there(text: str, words: str) -> None:
    with scope(Path(), {}, {"KEY": "hunter22"}), pytest.raises(UsageError) as error:
        substitute(text, "here")
    assert words in error.value.message
    assert error.value.hint
    assert "hunter22" not in error.value.message


def test_a_files_content_is_taken_without_its_last_newline_and_found_beside_the_pipeline_file(
    tmp_path: Path,
) -> None:
    (tmp_path / "one").write_text("content\n")
    (tmp_path / "two").write_text("a\n\n")
    (tmp_path / "windows").write_text("a\r\n", newline="")
    with scope(tmp_path):
        assert substitute("<${file:one}>", "here") == "<content>"
        assert substitute("${file:two}", "here") == "a\n"
        assert substitute("${file:windows}", "here") == "a"
        assert substitute(f"${{file:{tmp_path}/one}}", "here") == "content"
        (tmp_path / "one").write_text("${HOST}")
        assert substitute("${file:one}", "here") == "${HOST}"


def test_the_content_of_a_file_of_its_owner_alone_is_a_secret(tmp_path: Path) -> None:
    for name, mode in (("private", 0o600), ("public", 0o644)):
        (tmp_path / name).write_text(f"{name} content\n")
        (tmp_path / name).chmod(mode)
    with scope(tmp_path):
        substitute("${file:private} ${file:public}", "here")
    assert secrets.mask("private content, public content") == "***, public content"


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff")
    (tmp_path / "large").write_bytes(b"x" * ((1 << 20) + 1))
    for name, words in (
        ("none", "cannot read the file"),
        ("", "cannot read the file"),
        ("binary", "is not UTF-8 text"),
        ("large", "is larger than 1 MiB"),
    ):
        with scope(tmp_path), pytest.raises(UsageError, match=words):
            substitute(f"${{file:{name}}}", "here")


def test_scopes_nest_and_end() -> None:
    with scope(Path(), {"NESTED_SCOPE": "outer"}):
        with scope(Path(), {"NESTED_SCOPE": "inner"}):
            assert substitute("${NESTED_SCOPE}", "here") == "inner"
        assert substitute("${NESTED_SCOPE}", "here") == "outer"
