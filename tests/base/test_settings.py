"""Settings: every way in which what a person wrote can be wrong, and the words that come back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import pytest

from penstock.base.errors import UsageError
from penstock.base.secrets import mask
from penstock.base.settings import Setting, load, setting, settings_of
from penstock.base.units import Unit


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
    size: int | None = setting("how large", default=None, unit=Unit.BYTES)
    age: float | None = setting("how old", default=None, unit=Unit.SECONDS)

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
            "unknown setting 'zzz'; known: age, batch, fields, limit, mode, names, password, ratio, servers, size, "
            "tail, uri",
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


@pytest.mark.parametrize(
    ("given", "variable", "value"),
    [
        ({"batch": "${N}"}, "7", 7),
        ({"ratio": "${N}"}, "0.25", 0.25),
        ({"tail": "${N}"}, "true", True),
        ({"limit": "${N}"}, "3", 3),
        ({"uri": "${N}"}, "7", "7"),
        ({"mode": "${N}"}, "b", "b"),
        ({"size": "${N}"}, "64kB", 64_000),
        ({"age": "${N}"}, "2m", 120.0),
    ],
)
def test_the_text_of_a_variable_may_stand_for_a_number_or_a_switch(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, object], variable: str, value: object
) -> None:
    monkeypatch.setenv("N", variable)
    [name] = given
    assert getattr(loaded(**given), name) == value


def test_text_that_does_not_read_as_the_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("N", "many")
    with pytest.raises(UsageError, match="setting 'batch': expected int, got str"):
        loaded(batch="${N}")


def test_a_number_with_a_unit_may_be_text() -> None:
    example = loaded(size="1.5GiB", age="1h30m")
    assert (example.size, example.age) == (3 << 29, 5400.0)
    assert (loaded(size=10, age=2).size, loaded(size=10, age=2).age) == (10, 2)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"size": "big"}, "setting 'size': expected a size such as 64MB, 1GB or 512MiB, got 'big'"),
        ({"age": "30"}, "setting 'age': expected a duration such as 500ms, 30s, 1h30m or 7d, got '30'"),
        ({"size": 1.5}, "setting 'size': expected int | null, got float"),
    ],
)
def test_what_is_no_size_or_duration_is_named(given: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError) as error:
        loaded(**given)
    assert error.value.message == f"adaptor 'example': {words}"


def test_a_setting_that_is_marked_secret_is_masked_wherever_text_goes_out() -> None:
    loaded(password="hunter22")
    assert mask("the password hunter22") == "the password ***"


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
