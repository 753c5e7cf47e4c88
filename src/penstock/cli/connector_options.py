"""Options that several commands of `penstock connector` have."""

from __future__ import annotations

from pathlib import Path

import click

from penstock.base.errors import UsageError

FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
cookie_option = click.option(
    "--cookie-file", type=FILE, help="The secret that connectors and workers share. Default: none."
)


def cookie_of(file: Path | None) -> bytes:
    """The secret in a file, without the newline behind it."""
    if file is None:
        return b""
    secret = file.read_bytes().strip()
    if not secret:
        raise UsageError(f"{file} is empty", hint="put a secret into it, or leave --cookie-file out")
    return secret
