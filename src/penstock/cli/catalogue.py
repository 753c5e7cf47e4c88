"""What there is to choose from: adaptors and functions as values that `about` shows and prints."""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.base.settings import Setting, settings_of
from penstock.base.units import Unit

if TYPE_CHECKING:  # every command that shows a table imports this module, by way of `render`
    from penstock.adaptors.base import Adaptor
    from penstock.functions.base import Function
    from penstock.functions.sql import SqlFunction


@dataclass(frozen=True, slots=True)
class Entry:
    """An adaptor or a function."""

    kind: str
    """adaptor | function"""
    name: str
    description: str
    uses: tuple[str, ...]
    """source, sink for adaptors; transform for functions"""
    settings: tuple[Setting, ...]
    extra: str = ""
    """What has to be installed for it beside the core: `pip install 'penstock[EXTRA]'`."""
    experimental: str = ""
    """Why nobody should rest on it yet."""

    @property
    def example(self) -> str:
        """How it is called in a pipeline file."""
        prefix = "a" if self.kind == "adaptor" else "f"
        wanted = [setting for setting in self.settings if setting.required]
        wanted = wanted or [setting for setting in self.settings if setting.example is not None][:1]
        given = (f"{setting.name}={sample(setting)}" for setting in wanted)
        return f"{prefix}.{self.name}({', '.join(given)})"


def entries(
    adaptors: Mapping[str, type[Adaptor]], functions: Mapping[str, type[Function] | type[SqlFunction]]
) -> list[Entry]:
    """Everything there is: adaptors, then functions, each by name."""
    found = []
    for name, adaptor in sorted(adaptors.items()):
        uses = ("source",) * adaptor.reads + ("sink",) * adaptor.writes
        found.append(
            Entry(
                "adaptor",
                name,
                adaptor.description,
                uses,
                _settings(adaptor),
                adaptor.extra,
                adaptor.experimental,
            )
        )
    for name, function in sorted(functions.items()):
        found.append(Entry("function", name, function.description, ("transform",), _settings(function)))
    return found


def _settings(kind: type) -> tuple[Setting, ...]:
    """The settings of an adaptor or function, their types in words."""
    hints = typing.get_type_hints(kind)
    return tuple(
        dataclasses.replace(known, type=_with_unit(in_words(hints[known.name]), known.unit))
        for known in settings_of(kind)
    )


def _with_unit(words: str, unit: Unit | None) -> str:
    """A number with a unit is written as text: `size`, `duration or None`."""
    if unit is None:
        return words
    return re.sub(r"\b(int|float)\b", "size" if unit is Unit.BYTES else "duration", words)


def in_words(hint: object) -> str:
    """A type as a person would say it: `list of str`, `'stop' or 'skip'`, `str or None`."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " or ".join(map(repr, inner))
    if origin in (types.UnionType, typing.Union):
        return " or ".join(map(in_words, inner))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"dict of {in_words(inner[0])} to {in_words(inner[1])}"
    if isinstance(origin, type) and issubclass(origin, Collection):
        return f"list of {in_words(inner[0])}"
    if getattr(hint, "_is_protocol", False):  # of something to be called; a person gives a function
        return "function"
    if hint is type(None):
        return "None"
    return hint.__name__ if isinstance(hint, type) else str(hint)


def sample(setting: Setting) -> str:
    """A value for a setting as Python text."""
    return quoted(example(setting))


def example(setting: Setting) -> object:
    """A value for a setting: its example, else its default, else a variable to be set."""
    if setting.example is not None:
        return setting.example
    if not setting.required:
        return setting.default
    return f"${{{re.sub('[^A-Z0-9]', '_', setting.name.upper())}}}"


def quoted(value: object) -> str:
    """A value as Python text, strings in double quotes as pipeline files have them."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(quoted(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quoted(key)}: {quoted(item)}" for key, item in value.items()) + "}"
    return repr(value)
