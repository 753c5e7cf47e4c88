"""Settings: what a person wrote in a pipeline file, checked before anything runs.

An adaptor or a function is a frozen dataclass whose fields are its settings, each made by `setting(...)`
with a line of help and, for required ones, an example. `load` turns keyword arguments into an instance:
unknown keys are refused with a suggestion, `${NAME}` and `${NAME:-default}` in strings are replaced from
the environment, and values are converted to the field's type or refused with its name.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import msgspec

from penstock.base.errors import UsageError, did_you_mean

T = TypeVar("T")
JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]

_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")
_REQUIRED = object()


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One setting as `about` prints it and `init` writes it."""

    name: str
    type: str
    help: str
    required: bool
    default: object
    example: object
    secret: bool


def setting(help: str, *, default: object = _REQUIRED, example: object = None, secret: bool = False) -> Any:
    """A dataclass field that documents itself. `secret` values are masked wherever settings are shown.

    Typed as `dataclasses.field` is: the annotation of the field decides.
    """
    metadata = {"help": help, "example": example, "secret": secret}
    if default is _REQUIRED:
        return dataclasses.field(metadata=metadata)
    if isinstance(default, (list, dict)):
        kept = default
        return dataclasses.field(default_factory=lambda: type(kept)(kept), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def settings_of(kind: type) -> list[Setting]:
    """The settings that a settings class takes, in the order of its fields."""
    found = []
    for field in dataclasses.fields(kind):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        default = None if required else field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        found.append(
            Setting(
                name=field.name,
                type=str(field.type),
                help=str(field.metadata.get("help", "")),
                required=required,
                default=default,
                example=field.metadata.get("example"),
                secret=bool(field.metadata.get("secret", False)),
            )
        )
    return found


def load(what: str, kind: type[T], given: Mapping[str, object]) -> T:
    """Build `kind` from keyword settings; `what` names it in errors, as in `adaptor 'file'`."""
    known = {field.name for field in settings_of(kind)}
    for name in given:
        if name not in known:
            raise UsageError(f"{what}: unknown setting '{name}'{did_you_mean(name, known)}")
    for field in settings_of(kind):
        if field.required and field.name not in given:
            raise UsageError(
                f"{what}: setting '{field.name}' is missing ({field.help})",
                hint=f"for example: {field.name}={field.example!r}",
            )
    filled = {name: substitute(value, f"{what}, setting '{name}'") for name, value in given.items()}
    try:
        return msgspec.convert(filled, kind, strict=True)
    except msgspec.ValidationError as error:
        raise UsageError(f"{what}: {_in_words(str(error))}") from None
    except ValueError as error:
        raise UsageError(f"{what}: {error}") from None


def substitute(value: object, where: str) -> object:
    """Replace `${NAME}` and `${NAME:-default}` in every string inside `value`."""
    if isinstance(value, str):
        return _VARIABLE.sub(lambda found: _variable(found, where), value)
    if isinstance(value, (list, tuple)):
        return [substitute(item, where) for item in value]
    if isinstance(value, dict):
        return {key: substitute(item, where) for key, item in cast("dict[str, object]", value).items()}
    return value


def _variable(found: re.Match[str], where: str) -> str:
    name, default = found["name"], found["default"]
    if name in os.environ:
        return os.environ[name]
    if default is not None:
        return default
    raise UsageError(
        f"{where}: the environment variable {name} is not set",
        hint=f"export {name}=..., or write ${{{name}:-default}}",
    )


def _in_words(error: str) -> str:
    """`Expected `int`, got `str` - at `$.spaces`` becomes `setting 'spaces': expected int, got str`."""
    complaint, _, path = error.partition(" - at ")
    name = path.strip("`").removeprefix("$.")
    complaint = complaint.replace("`", "")
    complaint = complaint[:1].lower() + complaint[1:]
    return f"setting '{name}': {complaint}" if name else complaint
