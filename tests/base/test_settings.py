"""Settings: every way in which what a person wrote can be wrong, and the words that come back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import pytest

from penstock.base.errors import UsageError
from penstock.base.settings import Setting, load, setting, settings_of, substitute


@dataclass(frozen=True)
class Nested:
    host: str
    port: int = 1


@dataclass(frozen=True)
class Example:
    """Settings of every kind."""

    uri: str = setting("where it is", example="file://out.jsonl")
    password: str = setting("to get in", default="", secret=True)
    batch: int = setting("rows at once", default=100)
    ratio: float = setting("how much", default=0.5)
    tail: bool = setting("follow changes", default=False)
    mode: Literal["a", "b"] = setting("which one", default="a")
    fields: list[str] = setting("which fields", default=[])  # noqa: RUF009 - copied for each
    names: dict[str, str] = setting("old to new", default={})  # noqa: RUF009
    limit: int | None = setting("at most", default=None)
    servers: list[Nested] = setting("where they are", default=[])  # noqa: RUF009

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError("setting 'batch': expected 1 or more")


def loaded(**given: object) -> Example:
    return load("adaptor 'example'", Example, {"uri": "u", **given})


def test_what_is_given_is_taken_and_the_rest_is_default() -> None:
    example = loaded(batch=7, mode="b", limit=3)
    assert (example.uri, example.batch, example.mode, example.limit) == ("u", 7, "b", 3)
    assert (example.password, example.ratio, example.tail, example.fields, example.names) == (
        "",
        0.5,
        False,
        [],
        {},
    )


def test_defaults_are_not_shared() -> None:
    first, second = loaded(), loaded()
    first.fields.append("x")
    first.names["x"] = "y"
    assert (second.fields, second.names) == ([], {})


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"urj": "x"}, "unknown setting 'urj'; did you mean 'uri'?"),
        ({"Batch": 1}, "unknown setting 'Batch'; did you mean 'batch'?"),
        (
            {"zzz": 1},
            "unknown setting 'zzz'; known: batch, fields, limit, mode, names, password, ratio, servers, tail, uri",
        ),
        ({"batch": "7"}, "setting 'batch': expected int, got str"),
        ({"batch": 7.5}, "setting 'batch': expected int, got float"),
        ({"tail": "yes"}, "setting 'tail': expected bool, got str"),
        ({"limit": "x"}, "setting 'limit': expected int | null, got str"),
        ({"mode": "c"}, "setting 'mode': invalid enum value 'c'"),
        ({"fields": "id"}, "setting 'fields': expected array, got str"),
        ({"fields": ["id", 3]}, "setting 'fields[1]': expected str, got int"),
        ({"names": {"a": 1}}, "setting 'names[...]': expected str, got int"),
        ({"servers": [{"host": "h", "port": "x"}]}, "setting 'servers[0].port': expected int, got str"),
        ({"batch": 0}, "setting 'batch': expected 1 or more"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, object], complaint: str) -> None:
    with pytest.raises(UsageError) as error:
        loaded(**given)
    assert error.value.message == f"adaptor 'example': {complaint}"
    assert error.value.exit_code == 2


def test_what_is_missing_is_named_with_its_help_and_an_example() -> None:
    with pytest.raises(UsageError) as error:
        load("adaptor 'example'", Example, {"batch": 1})
    assert error.value.message == "adaptor 'example': setting 'uri' is missing (where it is)"
    assert error.value.hint == "for example: uri='file://out.jsonl'"


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST", "db.example")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.setenv("NESTED", "${HOST}")
    monkeypatch.delenv("UNSET", raising=False)


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
        ("$HOST $ {HOST} ${} ${1} $${}", "$HOST $ {HOST} ${} ${1} $${}"),
    ],
)
def test_variables_are_replaced(text: str, expected: str) -> None:
    assert substitute(text, "here") == expected


@pytest.mark.usefixtures("variables")
def test_variables_are_replaced_at_any_depth() -> None:
    example = loaded(
        fields=["${HOST}", "b"],
        names={"a": "${UNSET:-x}"},
        servers=[{"host": "${HOST}"}],
    )
    assert example.fields == ["db.example", "b"]
    assert example.names == {"a": "x"}
    assert example.servers == [Nested("db.example")]
    assert substitute(("${HOST}", {"k": ["${HOST}", 1, None]}), "here") == [
        "db.example",
        {"k": ["db.example", 1, None]},
    ]


@pytest.mark.usefixtures("variables")
@pytest.mark.parametrize("given", [{"password": "${UNSET}"}, {"fields": ["${UNSET}"]}])
def test_a_variable_that_is_not_set_is_named_with_the_setting(given: dict[str, object]) -> None:
    [name] = given
    with pytest.raises(UsageError) as error:
        loaded(**given)
    where = f"adaptor 'example', setting '{name}'"
    assert error.value.message == f"{where}: the environment variable UNSET is not set"
    assert error.value.hint == "export UNSET=..., or write ${UNSET:-default}"


def test_settings_describe_themselves() -> None:
    known = {described.name: described for described in settings_of(Example)}
    assert list(known)[:2] == ["uri", "password"]
    assert known["uri"] == Setting("uri", "str", "where it is", True, None, "file://out.jsonl", False)
    assert known["password"] == Setting("password", "str", "to get in", False, "", None, True)
    assert known["fields"] == Setting("fields", "list[str]", "which fields", False, [], None, False)
    assert [name for name, described in known.items() if described.secret] == ["password"]


def test_fields_without_a_description_are_settings_too() -> None:
    @dataclass(frozen=True)
    class Bare:
        a: int
        b: list[int] = field(default_factory=lambda: [1])

    assert settings_of(Bare) == [
        Setting("a", "int", "", True, None, None, False),
        Setting("b", "list[int]", "", False, [1], None, False),
    ]
