"""What the commands share: options, the way to the data directory, output for people and for programs."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from penstock.base.errors import PenstockError, UsageError, did_you_mean

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from penstock.pipeline.definition import Pipeline
    from penstock.pipeline.operations import Directory

F = TypeVar("F", bound=Callable[..., object])

DEFAULT_DATA_DIR = Path(".penstock")
_WIDE = 200
"""Columns where no terminal sets them: wide enough that nothing is cut for the program that reads it."""


@dataclass
class Session:
    """What the global options said."""

    json: bool = False
    debug: bool = False


def show_error(error: Exception, *, debug: bool) -> int:
    """Tell what happened and what to do about it; returns the exit code it stands for."""
    if isinstance(error, PenstockError):
        code, text, hint = error.exit_code, error.message, error.hint
    else:
        code, text = 1, f"unexpected {type(error).__name__}: {error}"
        hint = "run it again with `penstock --debug ...` to see where it happened"
    # Click knows about terminals, but not about NO_COLOR.
    color = False if os.environ.get("NO_COLOR") else None
    if debug:
        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    click.echo(click.style("Error: ", fg="red", bold=True) + visible(text), err=True, color=color)
    if hint:
        click.echo(click.style("Hint: ", fg="cyan") + visible(hint), err=True, color=color)
    return code


def visible(text: str) -> str:
    """The text with control characters spelled out: what comes out of data must not steer a terminal."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()
        for char in text
    )


def _set_json(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(Session).json = True


json_option: Callable[[F], F] = click.option(
    "--json", is_flag=True, expose_value=False, callback=_set_json, help="Print JSON, for programs."
)

data_dir_option: Callable[[F], F] = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="PENSTOCK_DATA_DIR",
    default=DEFAULT_DATA_DIR,
    show_default=True,
    help="Where the log and the offsets are kept.",
)

pipeline_option: Callable[[F], F] = click.option(
    "--pipeline", metavar="NAME", help="Which pipeline, if the data directory holds several."
)


def _load(ctx: click.Context, _: click.Parameter, value: str) -> Pipeline:
    """Load `FILE` or `FILE:NAME`."""
    from penstock.pipeline.definition import load_pipeline

    file, colon, name = value.rpartition(":")
    if not colon or Path(value).exists():
        return load_pipeline(Path(value))
    return load_pipeline(Path(file), name)


pipeline_argument: Callable[[F], F] = click.argument("pipeline", metavar="PIPELINE", callback=_load)


def wants_json(ctx: click.Context) -> bool:
    return ctx.ensure_object(Session).json


def emit(value: object) -> None:
    """Print a value as one line of JSON."""
    import msgspec

    click.echo(msgspec.json.encode(value, enc_hook=str).decode())


def console() -> Console:
    """Where people read: colours only on a terminal, and no text taken for markup."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _WIDE
    return Console(file=sys.stdout, width=width, markup=False, highlight=False, emoji=False)


def show(renderable: RenderableType) -> None:
    """Print for a person; away from a terminal without the blanks that fill a table's last column."""
    out = console()
    if out.is_terminal:
        out.print(renderable)
        return
    with out.capture() as captured:
        out.print(renderable)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def open_data_dir(path: Path) -> AbstractContextManager[Directory]:
    """Open a data directory to look into it. One that is not there is not made."""
    if not path.is_dir():
        raise UsageError(
            f"no data directory at {path}: run a pipeline first",
            hint="or name another one with --data-dir or PENSTOCK_DATA_DIR",
        )
    from penstock.pipeline import operations

    return operations.open_directory(path)


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
