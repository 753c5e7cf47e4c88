"""The command line: `penstock COMMAND ...`.

One module a group of commands. Each imports what it needs when it runs, so that help, the version and every
command that needs no Spark answer at once.

An error of Penstock ends here as its message, its hint and its exit code; one that nobody foresaw as a short
text, with the traceback only if asked for.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from typing import NoReturn

import click

from penstock import __version__
from penstock.base import logs
from penstock.cli import (
    brokers,
    clusters,
    connectors,
    dead,
    immortal,
    journals,
    look,
    offset,
    operate,
    passing,
    pipelines,
    run,
    trying,
    webconsole,
    xlog,
)
from penstock.cli.common import Session, json_option, show_error

INTERRUPTED = 130

_SECTIONS = {
    "A pipeline": (
        pipelines.init,
        pipelines.about,
        pipelines.plan,
        trying.test,
        trying.try_function,
        run.run,
    ),
    "Look": (look.status, look.top, passing.tap, passing.trace, pipelines.graph, webconsole.console),
    "Operate": (
        xlog.xlog,
        offset.offset,
        operate.step,
        operate.pause,
        operate.resume,
        operate.backfill,
        operate.release,
        dead.dead,
    ),
    "Journals": (brokers.broker, clusters.cluster, journals.journals),
    "Connectors": (connectors.connector,),
    "Immortals": (immortal.immortal,),
}

_EPILOG = """\b
Exit codes:
    0  done
    1  the work failed
    2  the request was wrong: arguments, settings, pipeline file
    3  a sink stopped at a message and wants an operator
    4  the data directory belongs to another process: a pipeline runs, say
    5  data on disk is damaged, of a newer format, or was taken away
  130  interrupted

\b
Environment:
  PENSTOCK_DATA_DIR    the data directory, as --data-dir
  PENSTOCK_BROKER      the broker's address, as --broker
  PENSTOCK_ETCD        etcd's address, as --etcd
  PENSTOCK_AUTH_KEYS   keys, as --auth-keys
  PENSTOCK_AUTH_TOKEN  a token, as --auth-token
  PENSTOCK_SETTINGS    a file of values for a pipeline file, as --settings
  PENSTOCK_SECRETS     a file of secrets for it, as --secrets
  PENSTOCK_CONSOLE_TOKEN  what an operator logs in to the console with, as --token
  PENSTOCK_DEBUG       1 shows tracebacks, as --debug
  NO_COLOR             no colours
"""


class Commands(click.Group):
    """The top of the command line: commands by section, and the one place where errors become text."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            code = show_error(error, debug=ctx.ensure_object(Session).debug)
            raise click.exceptions.Exit(code) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(len(name) for name in self.list_commands(ctx))
        for title, commands in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [
                        ((command.name or "").ljust(width), command.get_short_help_str(80))
                        for command in commands
                    ]
                )


@click.group(
    cls=Commands,
    epilog=_EPILOG,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="penstock", message="%(prog)s %(version)s")
@json_option
@click.option("--debug", is_flag=True, envvar="PENSTOCK_DEBUG", help="Show tracebacks of errors.")
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """Move data between systems through Apache Spark, and lose nothing on the way.

    \b
    Start here:
      penstock about                       what can be read and written
      penstock init sqlite file shop.py    write a pipeline file to edit
      penstock plan shop.py                see what it would do
      penstock run shop.py --once          do it
    """
    ctx.ensure_object(Session).debug = debug


for _commands in _SECTIONS.values():
    for _command in _commands:
        cli.add_command(_command)


def _open_standard_streams() -> None:
    """Where a command was started without one of them, as some start their services, give it one that leads nowhere.

    Otherwise the next file that is opened gets its number, and whatever is printed.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, os.fdopen(number, mode))


def main() -> NoReturn:
    """Run the command that was typed, and end the process with its exit code.

    As it ends Python looks through all objects for what is garbage, several times: a quarter of a second after a run.
    Frozen ones are left out, and the system takes them back.
    """
    atexit.register(gc.freeze)
    _open_standard_streams()
    logs.guard_default()
    try:
        code = cli.main(prog_name="penstock", standalone_mode=False)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    sys.exit(code if isinstance(code, int) else 0)
