"""Settings: what a person wrote in a pipeline file, checked before anything runs.

An adaptor or a function is a frozen dataclass whose fields are its settings, each made by `setting(...)`
with a line of help and, for required ones, an example. `load` turns keyword arguments into an instance:
unknown keys are refused with a suggestion, variables in strings are replaced (`penstock.base.variables`), and values
are converted to the field's type or refused with its name.

A text that holds a variable may stand for a number or true/false; a number with a unit may be text: `"64MB"`, `"30s"`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar, get_type_hints

import msgspec

from penstock.base import secrets
from penstock.base.errors import UsageError, did_you_mean
from penstock.base.units import Unit
from penstock.base.variables import substitute

T = TypeVar("T")
JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]

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
    unit: Unit | None = None
    """What its number counts, if text such as "64MB" or "30s" is taken for it."""
    needed: bool = False
    """Whether `init` writes its example, though it has a default: the role that it is of cannot do without."""


def setting(
    help: str,
    *,
    default: object = _REQUIRED,
    example: object = None,
    secret: bool = False,
    unit: Unit | None = None,
    needed: bool = False,
) -> Any:
    """A dataclass field that documents itself. `secret` values are masked wherever text goes out.

    Typed as `dataclasses.field` is: the annotation of the field decides. A number with a `unit` may be given as
    text, `"64MB"` or `"30s"`.
    """
    metadata = {"help": help, "example": example, "secret": secret, "unit": unit, "needed": needed}
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
                unit=field.metadata.get("unit"),
                needed=bool(field.metadata.get("needed", False)),
            )
        )
    return found


def load(what: str, kind: type[T], given: Mapping[str, object]) -> T:
    """Build `kind` from keyword settings; `what` names it in errors, as in `adaptor 'file'`."""
    aliases: Mapping[str, str] = getattr(kind, "aliases", {})
    given = {aliases.get(name, name): value for name, value in given.items()}
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
    try:
        filled = {
            field.name: _filled(what, kind, field, given)
            for field in settings_of(kind)
            if field.name in given
        }
        return msgspec.convert(filled, kind, strict=True)
    except msgspec.ValidationError as error:
        raise UsageError(f"{what}: {_in_words(str(error))}") from None
    except ValueError as error:
        raise UsageError(f"{what}: {error}") from None


def _filled(what: str, kind: type, field: Setting, given: Mapping[str, object]) -> object:
    """What was given for a setting, its variables replaced and its text read as the number that it stands for."""
    written = given[field.name]
    value = substitute(written, f"{what}, setting '{field.name}'")
    if not isinstance(value, str):
        return value
    if field.secret:
        secrets.register(value)
    if field.unit is not None:
        return _counted(field, field.unit, value)
    return value if value == written else _read_as(get_type_hints(kind)[field.name], value)


def _counted(field: Setting, unit: Unit, text: str) -> int | float:
    try:
        return unit.parse(text)
    except ValueError as error:
        raise ValueError(f"setting '{field.name}': {error}") from None


def _read_as(hint: Any, text: str) -> object:
    """The text of a variable as a setting of this type; itself if it is none, for the caller to complain."""
    for strict in (True, False):
        try:
            return msgspec.convert(text, hint, strict=strict)
        except msgspec.ValidationError:
            continue
    return text


def _in_words(error: str) -> str:
    """`Expected `int`, got `str` - at `$.spaces`` becomes `setting 'spaces': expected int, got str`."""
    complaint, _, path = error.partition(" - at ")
    name = path.strip("`").removeprefix("$.")
    complaint = complaint.replace("`", "")
    complaint = complaint[:1].lower() + complaint[1:]
    return f"setting '{name}': {complaint}" if name else complaint
