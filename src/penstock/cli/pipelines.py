"""Commands about pipelines that are not running: `init`, `about`, `plan`, `graph`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.base.errors import UsageError, did_you_mean
from penstock.cli.common import emit, json_option, pipeline_argument, show, wants_json
from penstock.cli.connection import Connection, broker_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.adaptors.base import Adaptor
    from penstock.pipeline.definition import Pipeline
    from penstock.pipeline.planned import Plan


@click.command()
@click.argument("source")
@click.argument("sink")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), default=Path("pipeline.py"))
@click.option("--force", is_flag=True, help="Overwrite FILE if it is there.")
def init(source: str, sink: str, file: Path, force: bool) -> None:
    """Write a pipeline file to start from.

    SOURCE and SINK are adaptors (see `penstock about`). The file, pipeline.py if not given, holds all their
    settings: the required ones with an example, the others as comments with their defaults. A name that ends
    in .yaml or .yml makes it YAML.

    \b
    Examples:
      penstock init sqlite file
      penstock init sqlite file shop.yaml
      penstock init generate discard load.py
      penstock init sqlite file shop.py --force
    """
    from penstock import adaptors
    from penstock.cli.template import pipeline_text

    reads, writes = _adaptor(source, adaptors.ALL), _adaptor(sink, adaptors.ALL)
    if not reads.reads:
        raise UsageError(f"adaptor '{source}' cannot be a source", hint=_those_that("reads", adaptors.ALL))
    if not writes.writes:
        raise UsageError(f"adaptor '{sink}' cannot be a sink", hint=_those_that("writes", adaptors.ALL))
    text = pipeline_text(reads, writes, file)
    try:
        with file.open("w" if force else "x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise UsageError(
            f"{file} is already there", hint="give another name, or --force to overwrite it"
        ) from None
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}") from None
    click.echo(f"Wrote {file}. Edit it, then: penstock plan {file}")


def _adaptor(name: str, known: Mapping[str, type[Adaptor]]) -> type[Adaptor]:
    if name not in known:
        raise UsageError(
            f"there is no adaptor '{name}'{did_you_mean(name, known)}", hint="see `penstock about`"
        )
    return known[name]


def _those_that(do: str, known: Mapping[str, type[Adaptor]]) -> str:
    return "these can: " + ", ".join(sorted(name for name, kind in known.items() if getattr(kind, do)))


@click.command()
@click.argument("name", required=False, metavar="[ADAPTOR|FUNCTION]")
@json_option
@click.pass_context
def about(ctx: click.Context, name: str | None) -> None:
    """List adaptors and functions, or describe one.

    \b
    Examples:
      penstock about
      penstock about file
      penstock about pick --json
    """
    from penstock import adaptors, functions
    from penstock.cli.catalogue import entries

    everything = entries(adaptors.ALL, functions.ALL)
    chosen = [entry for entry in everything if name is None or entry.name == name]
    if not chosen:
        known = {entry.name for entry in everything}
        raise UsageError(f"there is no adaptor or function '{name}'{did_you_mean(name or '', known)}")
    if wants_json(ctx):
        for entry in chosen:
            emit(entry)
        return
    from penstock.cli import render

    show(render.catalogue(chosen) if name is None else render.details(chosen))


@click.command()
@pipeline_argument
@click.option("--offline", is_flag=True, help="Do not ask the source or the sinks.")
@click.option("--master", metavar="URL", help="Check that this Spark master can run it.")
@broker_options
@json_option
@click.pass_context
def plan(
    ctx: click.Context, pipeline: Pipeline, offline: bool, master: str | None, connection: Connection
) -> None:
    """Check PIPELINE and show what it would do; nothing is moved.

    PIPELINE is a file, or FILE:NAME if the file defines several. The source is asked which namespaces it
    has, with about how many rows and which keys, and source and sinks what they lack: each thing that is
    missing is named with the statement that mends it. If the source does not answer, the rest of the plan is
    still shown, and the exit code is 2. So it is if something is missing without which it cannot run, and, with
    --master, if tasks on other machines could not reach the log.

    \b
    Examples:
      penstock plan shop.py
      penstock plan shop.yaml --settings test.env --secrets secrets.env
      penstock plan shop.py --offline
      penstock plan shop.py --master spark://10.0.0.5:7077 --broker http://10.0.0.4:8080
      penstock plan shop.py:shop --json
    """
    from penstock.pipeline.inspecting import Inspected, inspected
    from penstock.pipeline.plan import make_plan

    found = Inspected(None, ()) if offline else inspected(pipeline)
    problem = found.problem.message if found.problem else None
    planned = make_plan(pipeline, found.namespaces, problem, found.findings, master)
    if wants_json(ctx):
        emit(planned)
    else:
        from penstock.cli import render_plan

        show(render_plan.plan(planned))
    if found.problem:
        raise UsageError(
            f"source '{planned.source.name}' could not be asked: {found.problem.message}",
            hint=found.problem.hint or "--offline plans without asking it",
        )
    _refuse_fatal(planned)
    _check_master(pipeline.name, master, connection, offline)


def _refuse_fatal(planned: Plan) -> None:
    fatal = [finding for finding in planned.findings if finding.fatal]
    if fatal:
        more = f", and {len(fatal) - 1} more" if len(fatal) > 1 else ""
        raise UsageError(f"it cannot run: {fatal[0].node}: {fatal[0].what}{more}", hint=fatal[0].fix)


def _check_master(pipeline: str, master: str | None, connection: Connection, offline: bool) -> None:
    from penstock.pipeline.master import check_master, is_remote

    if not is_remote(master):
        return
    token = bool(connection.auth_token or connection.auth_keys)
    stores = None
    if connection.address is not None and token and not offline:
        stores = stores_of(pipeline, connection)
    check_master(master, broker=connection.address, token=token, stores=stores)


def stores_of(pipeline: str, connection: Connection) -> list[str]:
    """Where the journals of the pipeline keep their fragments; none if it has no journals yet."""
    from penstock.journal import labels

    with connection.client() as client:
        found = client.list(labels.parse_selector(f"prefix=pipelines/{pipeline}/"))
        return sorted({store for journal in found for store in journal.spec.fragment.stores})


@click.command()
@pipeline_argument
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "mermaid", "dot", "json"]),
    default="text",
    show_default=True,
    help="A tree of text, a chart for Mermaid or Graphviz, or JSON.",
)
@json_option
@click.pass_context
def graph(ctx: click.Context, pipeline: Pipeline, form: str) -> None:
    """Show the shape of PIPELINE: its nodes and who feeds whom.

    Nothing is asked and no settings are shown, so the picture can go into any document.

    \b
    Examples:
      penstock graph shop.py
      penstock graph shop.py --format mermaid >> README.md
      penstock graph shop.yaml --format dot | dot -Tsvg -o shop.svg
    """
    from penstock.pipeline.graph import FORMATS, graph_of

    click.echo(FORMATS["json" if wants_json(ctx) else form](graph_of(pipeline)))
