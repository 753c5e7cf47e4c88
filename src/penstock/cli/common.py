"""What the commands share: options, the way to the data directory, output for people and for programs."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from penstock.base.errors import PenstockError
from penstock.base.secrets import mask
from penstock.base.texts import visible as visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from penstock.pipeline.definition import Pipeline

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
        if hint and hint.startswith("see whether"):
            hint += _from_environment(text)
    else:
        code, text = 1, f"unexpected {type(error).__name__}: {error}"
        hint = "run it again with `penstock --debug ...` to see where it happened"
    # Click knows about terminals, but not about NO_COLOR.
    color = False if os.environ.get("NO_COLOR") else None
    if debug:
        click.echo(mask("".join(traceback.format_exception(error))), err=True, nl=False)
    click.echo(click.style("Error: ", fg="red", bold=True) + visible(mask(text)), err=True, color=color)
    if hint:
        click.echo(click.style("Hint: ", fg="cyan") + visible(mask(hint)), err=True, color=color)
    return code


def _from_environment(text: str) -> str:
    """What a hint adds where the address that does not answer was typed some time ago, into a variable."""
    for name, otherwise in (
        ("PENSTOCK_BROKER", "unset that to use the data directory's own"),
        ("PENSTOCK_ETCD", "another may be named by --etcd"),
    ):
        addresses = (one.strip().rpartition("//")[2] for one in os.environ.get(name, "").split(","))
        if any(address and address in text for address in addresses):
            return f"; the address is that of {name}: {otherwise}"
    return ""


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


_SETTINGS, _SECRETS = "penstock.settings_file", "penstock.secrets_file"


def _remember(ctx: click.Context, parameter: click.Parameter, value: Path | None) -> None:
    ctx.meta[f"penstock.{parameter.name}"] = value


def load_from(ctx: click.Context, place: str, defaults: Mapping[str, str] | None = None) -> Pipeline:
    """Load the pipeline at `FILE` or `FILE:NAME`, with what the files of settings and secrets say.

    `defaults` are for variables that nobody sets.
    """
    from penstock.pipeline.definition import load_pipeline

    settings, secrets = given_values(ctx)
    if defaults:
        settings = {**defaults, **(settings or {})}
    file, name = split_place(place)
    return load_pipeline(file, name, settings=settings, secrets=secrets)


def given_values(ctx: click.Context) -> tuple[Mapping[str, str] | None, Mapping[str, str] | None]:
    """What the files of settings and secrets say that were named."""
    from penstock.base.settingsfile import load_secrets_file, load_settings_file

    settings = load_settings_file(ctx.meta[_SETTINGS]) if ctx.meta.get(_SETTINGS) else None
    secrets = load_secrets_file(ctx.meta[_SECRETS]) if ctx.meta.get(_SECRETS) else None
    return settings, secrets


def split_place(place: str) -> tuple[Path, str | None]:
    """`FILE` or `FILE:NAME`; a file whose own name has a colon is that file."""
    file, colon, name = place.rpartition(":")
    if not colon or Path(place).exists():
        return Path(place), None
    return Path(file), name


GIVEN_PIPELINE = "penstock.cli.pipeline"
"""Where a command finds PIPELINE as it was given."""


def _load(ctx: click.Context, _: click.Parameter, value: str) -> Pipeline:
    ctx.meta[GIVEN_PIPELINE] = value
    return load_from(ctx, value)


def _file_option(name: str, help: str) -> Callable[[F], F]:
    """A file that must be known before the pipeline is loaded, which is why it is eager."""
    return click.option(
        f"--{name}",
        f"{name}_file",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar=f"PENSTOCK_{name.upper()}",
        is_eager=True,
        expose_value=False,
        callback=_remember,
        help=help,
    )


def value_files(command: F) -> F:
    """Adds the options for files with values of a pipeline file's variables."""
    command = _file_option("secrets", "A file of secrets for ${secret:NAME}; mode 600.")(command)
    return _file_option("settings", "A file of values for ${NAME}; the environment comes first.")(command)


def pipeline_argument(command: F) -> F:
    """Adds PIPELINE, loaded, and the options for files with values of its variables."""
    return click.argument("pipeline", metavar="PIPELINE", callback=_load)(value_files(command))


def wants_json(ctx: click.Context) -> bool:
    return ctx.ensure_object(Session).json


def emit(value: object) -> None:
    """Print a value as one line of JSON."""
    import msgspec

    click.echo(msgspec.json.encode(value, enc_hook=str).decode())


def warn(text: str | None) -> None:
    """Tell a person what is not as it should be, if something is not."""
    if text is not None:
        click.echo(f"Warning: {visible(mask(text))}.", err=True)


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
