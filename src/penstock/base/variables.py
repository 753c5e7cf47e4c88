"""Variables in settings, and where their values come from.

    ${NAME}            the environment variable; else the settings file's NAME; else an error
    ${NAME:-default}   the same, with a default for the error
    ${secret:NAME}     NAME of the secrets file, and of nothing else
    ${file:PATH}       the content of a file, without its last newline; relative to the pipeline file
    $${NAME}           the text ${NAME} itself

A name in capitals with anything else around it, `${OUT-x}` or `${ OUT }`, is refused: who writes so means a variable.
What a variable holds is taken as it is, never looked into again. Where the files come from is the `scope` in which
settings are loaded; without one there is the environment alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from penstock.base import secrets
from penstock.base.errors import UsageError, did_you_mean

_VARIABLE = re.compile(
    r"\$(?P<escape>\$)?\{"
    r"(?:(?P<kind>file|secret):(?!-)(?P<of>[^}]*)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?"
    r"|(?P<mistaken>\s*[A-Z][A-Z0-9_]*\s*(?:[-:=?+][^}]*)?))\}"
)
"""Last what a person or a shell would take for a variable: `${OUT-x}`, `${OUT:x}`, `${ OUT }`."""

_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Scope:
    """Where variables are looked up besides the environment."""

    directory: Path = Path()
    """What the path of `${file:PATH}` is relative to."""
    settings: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


_NOTHING = Scope()
_scope: ContextVar[Scope] = ContextVar("penstock_variables", default=_NOTHING)


@contextmanager
def scope(
    directory: Path, settings: Mapping[str, str] | None = None, secrets: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Load settings with these files' values, in this context."""
    token = _scope.set(Scope(directory, settings or {}, secrets or {}))
    try:
        yield
    finally:
        _scope.reset(token)


def substitute(value: object, where: str) -> object:
    """Replace the variables in every string inside `value`."""
    if isinstance(value, str):
        return _VARIABLE.sub(lambda found: _variable(found, where), value)
    if isinstance(value, (list, tuple)):
        return [substitute(item, where) for item in value]
    if isinstance(value, dict):
        return {key: substitute(item, where) for key, item in cast("dict[str, object]", value).items()}
    return value


def _variable(found: re.Match[str], where: str) -> str:
    if found["escape"]:
        return found[0][1:]
    if found["mistaken"]:
        raise UsageError(
            f"{where}: {found[0]} is no variable",
            hint=f"write ${{NAME}} or ${{NAME:-default}}; for the text itself, ${found[0]}",
        )
    if found["kind"] == "file":
        return _content(found["of"], where)
    if found["kind"] == "secret":
        return _secret(found["of"], where)
    name, default = found["name"], found["default"]
    for values in (os.environ, _scope.get().settings):
        if name in values:
            return values[name]
    if default is not None:
        return default
    raise UsageError(
        f"{where}: the environment variable {name} is not set",
        hint=f"export {name}=..., give it in a settings file (--settings FILE), or write ${{{name}:-default}}",
    )


def _secret(name: str, where: str) -> str:
    known = _scope.get().secrets
    if name in known:
        return known[name]
    if ":-" in name:
        raise UsageError(
            f"{where}: a secret has no default", hint=f"write ${{secret:{name.partition(':-')[0]}}}"
        )
    if not known:
        raise UsageError(
            f"{where}: the secret {name} is not known, since there is no secrets file",
            hint=f"put {name}=... into a file of mode 600 and give it with --secrets FILE",
        )
    raise UsageError(
        f"{where}: the secrets file has no {name}{did_you_mean(name, known)}",
        hint=f"add {name}=... to it; secrets are not looked up in the environment",
    )


def _content(path: str, where: str) -> str:
    """The text of a file. If nobody but its owner can read it, it is taken for a secret."""
    file = _scope.get().directory / path
    try:
        with file.open("rb") as opened:
            private = not os.fstat(opened.fileno()).st_mode & 0o077
            content = opened.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise UsageError(f"{where}: the file {file} is larger than {_MOST_BYTES >> 20} MiB")
        text = content.decode()
    except OSError as error:
        raise UsageError(
            f"{where}: cannot read the file {file}: {error.strerror}",
            hint="the path in ${file:PATH} is relative to the pipeline file",
        ) from None
    except UnicodeDecodeError:
        raise UsageError(f"{where}: the file {file} is not UTF-8 text") from None
    text = text.removesuffix("\n").removesuffix("\r")
    if private:
        secrets.register(text)
    return text
