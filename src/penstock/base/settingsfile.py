"""Files of settings and of secrets: names and values for `${NAME}` and `${secret:NAME}`.

Both are written in one of two ways, which the first line that says something tells apart:

    # lines                            # a YAML mapping
    SHOP_DB=postgres://db/shop         SHOP_DB: postgres://db/shop
    export ES="https://es:9200"        BATCH: 500

In lines a value goes from the first `=` to the end of the line; blanks around it are trimmed, and quotes around all
of it are taken off. Nothing is expanded, no other variable is looked up. A name that comes twice is an error.

A secrets file that anyone but its owner can read is refused, and its values are masked from then on
(`penstock.base.secrets`).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from penstock.base import secrets
from penstock.base.errors import UsageError

MOST_BYTES = 1 << 20

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLACE = re.compile(r"line [0-9]+:")
_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=(.*)")


def load_settings_file(path: Path) -> dict[str, str]:
    """The settings of a file, as text."""
    return _load(path, "settings file", private=False)


def load_secrets_file(path: Path) -> dict[str, str]:
    """The secrets of a file, all of them registered to be masked."""
    found = _load(path, "secrets file", private=True)
    for name, value in found.items():
        if len(value.strip()) < secrets.SHORTEST:
            raise UsageError(
                f"secrets file {path}: {name} has fewer than {secrets.SHORTEST} characters",
                hint="it could not be hidden in ordinary text; what is no secret belongs into the settings file",
            )
        secrets.register(value)
    return found


def _load(path: Path, what: str, *, private: bool) -> dict[str, str]:
    text = _read(path, what, private=private)
    first = next((line.strip() for line in text.splitlines() if line.strip() and line.strip()[0] != "#"), "")
    try:
        return _checked(_of_lines(text) if not first or _LINE.fullmatch(first) else _of_yaml(text))
    except UsageError as error:
        message = error.message
        if private and (line := _PLACE.match(message)):
            # The complaint may quote what stands there.
            message = (
                f"{line[0]} expected NAME=value, or NAME: value with the value in quotes, each name once"
            )
        raise UsageError(f"{what} {path}, {message}", hint=error.hint) from None


def _read(path: Path, what: str, *, private: bool) -> str:
    try:
        with path.open("rb") as file:
            if private:
                _refuse_open_doors(path, os.fstat(file.fileno()))
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise UsageError(f"the {what} {path} is larger than {MOST_BYTES >> 20} MiB")
        return content.decode("utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"there is no {what} {path}") from None
    except OSError as error:
        raise UsageError(f"cannot read the {what} {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"the {what} {path} is not UTF-8 text (byte {error.start})") from None


def _refuse_open_doors(path: Path, found: os.stat_result) -> None:
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        raise UsageError(
            f"the secrets file {path} can be read by others (mode {mode:04o})", hint=f"chmod 600 {path}"
        )


Pairs = Iterable[tuple[int, str, str]]
"""Line, name and value."""


def _of_lines(text: str) -> Pairs:
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        found = _LINE.fullmatch(stripped)
        if found is None:
            raise UsageError(f"line {number}: expected NAME=value", hint="a comment begins with '#'")
        yield number, found[1], _unquoted(found[2].strip())


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value


def _of_yaml(text: str) -> Pairs:
    from penstock.base import yamltext

    document = yamltext.parse(text)
    if document is None:
        return
    if not isinstance(document, yamltext.Mapping):
        raise UsageError(
            f"line {document.line}: expected NAME=value lines, or a YAML mapping of names to values"
        )
    for name, node in document.items.items():
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"line {document.lines[name]}: '{name}' is no name", hint="letters, digits and '_'"
            )
        if not isinstance(node, yamltext.Scalar):
            raise UsageError(f"line {node.line}: expected a single value for {name}")
        yield document.lines[name], name, node.text


def _checked(pairs: Pairs) -> dict[str, str]:
    lines: dict[str, int] = {}
    found: dict[str, str] = {}
    for line, name, value in pairs:
        if name in found:
            raise UsageError(f"line {line}: {name} is given twice; first in line {lines[name]}")
        lines[name], found[name] = line, value
    return found
