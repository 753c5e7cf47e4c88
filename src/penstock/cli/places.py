"""How a command on pipelines reaches their journals: to look, or to edit; and which pipeline it means.

The place is a data directory or a broker (`penstock.cli.connection`). A data directory that is not there is not made.
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from penstock.base.errors import UsageError, did_you_mean
from penstock.cli.common import load_from

if TYPE_CHECKING:
    from penstock.cli.connection import Connection
    from penstock.pipeline.definition import Pipeline
    from penstock.pipeline.editing import Editor
    from penstock.pipeline.operations import Directory


@contextmanager
def looking(connection: Connection) -> Iterator[Directory]:
    """Open the place to look into it, whether a pipeline runs there or not."""
    from penstock.pipeline import operations

    if connection.address is None:
        require_directory(connection)
        with operations.open_directory(connection.data_dir) as directory:
            yield directory
        return
    with connection.client() as client:
        yield operations.Directory(client)


@contextmanager
def editing(connection: Connection) -> Iterator[Editor]:
    """Open the place to change something in it; refused while a pipeline runs there."""
    from penstock.pipeline import editing, operations

    if connection.address is None:
        require_directory(connection)
        with editing.open_editor(connection.data_dir, who()) as editor:
            yield editor
        return
    with connection.client() as client:
        yield editing.Editor(operations.Directory(client), who())


def require_directory(connection: Connection) -> None:
    """Refuse a data directory that is not there."""
    if not connection.data_dir.is_dir():
        raise UsageError(
            f"no data directory at {connection.data_dir}: run a pipeline first",
            hint="or name another one with --data-dir or PENSTOCK_DATA_DIR, or a broker with --broker",
        )


def who() -> str:
    """Who types this, for the record of edits."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "somebody"
    return f"{name}@{socket.gethostname()}"


def chosen_pipeline(directory: Directory, name: str | None) -> str:
    """The pipeline that is meant: the one named, or the only one there is."""
    there = sorted(directory.pipelines())
    if not there:
        raise UsageError("the data directory holds no pipeline yet: run one first")
    if name is None and len(there) > 1:
        raise UsageError(
            f"the data directory holds {len(there)} pipelines: {', '.join(there)}",
            hint=f"say which one: --pipeline {there[0]}",
        )
    if name is not None and name not in there:
        raise UsageError(f"there is no pipeline '{name}'{did_you_mean(name, there)}")
    return name or there[0]


def with_optional_file(ctx: click.Context, words: tuple[str, ...], what: str) -> tuple[Pipeline | None, str]:
    """`[PIPELINE] X`: the pipeline of the file, if one is named, and X."""
    if len(words) == 1:
        return None, words[0]
    if len(words) == 2:
        return load_from(ctx, words[0]), words[1]
    raise UsageError(f"expected {what}, or a pipeline file and {what}; got {len(words)} words")
