"""Commands that need no data at all: `try` a function on a document, `test` a pipeline by its cases."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from penstock.base.errors import UsageError
from penstock.base.texts import indented
from penstock.cli.common import emit, json_option, load_from, split_place, value_files, visible, wants_json

if TYPE_CHECKING:
    from penstock.pipeline.cases import CaseResult
    from penstock.pipeline.definition import Pipeline, TransformNode
    from penstock.pipeline.trial import Tried

FAILED = 1


@click.command(name="try")
@click.argument("function")
@click.option(
    "--set", "given", multiple=True, metavar="NAME=VALUE", help="A setting of a built-in function, as JSON."
)
@click.option("--ns", default="test", show_default=True, help="The namespace of the documents.")
@click.option("--op", default="insert", show_default=True, help="What happened to them.")
@click.option(
    "--file",
    "source",
    type=click.File("rb"),
    default="-",
    help="Where they are; standard input if not given.",
)
@value_files
@json_option
@click.pass_context
def try_function(
    ctx: click.Context, function: str, given: tuple[str, ...], ns: str, op: str, source: BinaryIO
) -> None:
    """Apply FUNCTION to documents and show what comes out.

    FUNCTION is a node of a pipeline file (FILE:NODE, or FILE:PIPELINE:NODE) or a built-in one with its settings. It
    gets every document, whatever its `ns` pattern says. Documents come as one JSON text or as lines. What was dropped
    or refused is told on stderr; the exit code is 1 if anything was refused.

    \b
    Examples:
      penstock try shop.py:slim < doc.json
      penstock try pick --set 'fields=["id"]' < docs.jsonl
      echo '{"id":1,"total":9}' | penstock try skip --set field=total --set operator='>' --set match=10
    """
    from penstock.functions.pretty import listen
    from penstock.pipeline.trial import documents, tried

    pipeline, step = _function(ctx, function, given)
    listen()
    refused = False
    for done in tried(pipeline, step, documents(source.read()), ns, op, _starting):
        refused = refused or done.outcome == "refused"
        if wants_json(ctx):
            emit(done)
        else:
            _tell(done)
    if refused:
        ctx.exit(FAILED)


def _tell(done: Tried) -> None:
    if done.outcome == "refused":
        click.echo(indented(f"document {done.number} refused: {done.error}"), err=True)
    elif done.outcome == "dropped":
        click.echo(f"document {done.number} dropped", err=True)
    for row in done.out:
        now = ((f"ns {row.ns}", row.ns != done.ns), (f"op {row.op}", row.op != done.op))
        moved = [text for text, differs in now if differs]
        if moved:
            click.echo(visible(f"document {done.number}: {', '.join(moved)}"), err=True)
        click.echo(visible(row.data))


def _function(
    ctx: click.Context, function: str, given: Sequence[str]
) -> tuple[Pipeline | None, TransformNode]:
    from penstock.pipeline.trial import builtin, settings

    file, node = split_place(function)
    if node is None and not function.endswith((".py", ".yaml", ".yml")):
        return None, builtin(function, settings(given))
    if node is None:
        raise UsageError(f"say which function of {file}: {file}:NODE")
    if given:
        raise UsageError("--set is for built-in functions", hint=f"the settings of '{node}' are in {file}")
    from penstock.pipeline.recompute import function_node

    pipeline = load_from(ctx, str(file))
    return pipeline, function_node(pipeline, node)


def _starting() -> None:
    click.echo("starting Spark for a function of a DataFrame ...", err=True)


@click.command()
@click.argument("pipeline", metavar="PIPELINE")
@click.option(
    "--cases",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file of cases, if not beside PIPELINE.",
)
@click.option("-k", "wanted", metavar="TEXT", help="Only cases whose name contains this.")
@value_files
@json_option
@click.pass_context
def test(ctx: click.Context, pipeline: str, cases: Path | None, wanted: str | None) -> None:
    """Run the cases of PIPELINE: messages in, expected output.

    They lie beside it: shop.test.yaml or shop_test.yaml beside shop.py. No server is asked and nothing is written;
    Spark is started only if a function of a DataFrame is on the way. The exit code is 1 if a case fails.

    \b
      cases:
        - name: small orders are left out
          input:
            - {ns: orders, data: {id: 1, total: 5}}
            - {ns: orders, op: update, data: {id: 2, total: 50}}
          expect:
            ids: [drop, {data: {id: 2}}]           exactly this document
            audit: [{contains: {id: 1}}, {text: '{"id":2,"total":50}'}]
            broken: {error: "not a number"}        refused, with these words

    \b
    Examples:
      penstock test shop.py
      penstock test shop.py -k orders --json
      penstock test shop.py --cases more.yaml
    """
    from penstock.pipeline.cases import check_case, find_cases, load_cases
    from penstock.pipeline.frames import frame_courses

    found = load_cases(cases or find_cases(split_place(pipeline)[0]))
    chosen = [case for case in found.cases if wanted is None or wanted in case.name]
    if not chosen:
        raise UsageError(f"no case of {found.path} has '{wanted}' in its name")
    loaded = load_from(ctx, pipeline, found.env)
    results = []
    if not wants_json(ctx):
        click.echo(str(found.path))
    with frame_courses(loaded, _starting) as frames:
        for case in chosen:
            result = check_case(case, loaded, frames)
            results.append(result)
            if wants_json(ctx):
                emit(result)
            else:
                _report(result)
    failed = sum(not result.passed for result in results)
    if not wants_json(ctx):
        click.echo(f"{len(results) - failed} passed, {failed} failed")
    if failed:
        ctx.exit(FAILED)


def _report(result: CaseResult) -> None:
    color = False if not sys.stdout.isatty() else None
    mark = click.style("ok    ", fg="green") if result.passed else click.style("FAILED", fg="red")
    click.echo(f"  {mark} {visible(result.name)} (line {result.line})", color=color)
    if result.problem:
        click.echo(f"           {visible(result.problem)}")
    for sink, lines in result.differences.items():
        click.echo(f"         sink {visible(sink)}: '-' was expected, '+' came")
        for line in lines:
            fg = {"-": "red", "+": "green"}.get(line.sign)
            click.echo(click.style(f"           {line.sign} {visible(line.text)}", fg=fg), color=color)
