"""The pipeline file that `init` writes, made from what adaptors say about their own settings: Python, or YAML if the
name of the file ends so."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.adaptors.base import Adaptor
from penstock.base.settings import settings_of
from penstock.cli.catalogue import example, quoted
from penstock.pipeline.loading import YAML_SUFFIXES

_FILE = '''\
"""A pipeline from {source} to {sink}.

    penstock plan {file}          what it would do
    penstock run {file} --once    do it

Text in settings may hold ${{NAME}} or ${{NAME:-default}}, a variable of the environment or of a settings file;
${{file:PATH}}, the content of a file; or ${{secret:NAME}}, a value of a secrets file.
"""

from penstock import Pipeline, adaptors as a, functions as f

pipeline = Pipeline({name})

# Where the messages come from. `ns` is a regular expression, searched for in the name of each namespace
# (a table, a collection, a file); ".*" means all of them, "^orders$" exactly one.
messages = pipeline.source(
    "source",
    {source_call},
    ns=".*",
)

# What happens on the way; see `penstock about` for the functions. A Spark DataFrame can be changed as well:
#     messages = messages.transform("large", lambda df: df.where("try_variant_get(data, '$.total', 'double') > 10"))
# messages = messages.transform("slim", f.pick(fields=["id"]))

# Where they go. Call save() again, on this node or an earlier one, for more sinks. A sink finds its position
# by its name after a restart: a renamed sink starts from the beginning. on_error says what becomes of a message
# that is refused: "stop", "dead-letter", or retry(5, backoff="2s"), which is imported from penstock.
messages.save(
    "sink",
    {sink_call},
    ns=".*",
    # on_error="stop",
    # max_lag="10GB",
)
'''

_YAML = """\
# A pipeline from {source} to {sink}.
#
#     penstock plan {file}          what it would do
#     penstock run {file} --once    do it
#
# Text in settings may hold ${{NAME}} or ${{NAME:-default}}, a variable of the environment or of a settings file;
# ${{file:PATH}}, the content of a file; or ${{secret:NAME}}, a value of a secrets file.

pipeline: {name}

# Where the messages come from. `ns` is a regular expression, searched for in the name of each namespace
# (a table, a collection, a file); ".*" means all of them, "^orders$" exactly one.
source:
  name: source
  adaptor: {source}
{source_settings}
  ns: ".*"

  # Where they go: any number of these. A sink finds its position by its name after a restart: a renamed sink starts
  # from the beginning. on_error says what becomes of a message that is refused: stop, dead-letter, or
  # {{retry: 5, backoff: 2s}}.
  then:
    - save: sink
      adaptor: {sink}
{sink_settings}
      ns: ".*"
      # on_error: stop
      # max_lag: 10GB

    # What happens on the way; see `penstock about` for the functions.
    # - transform: slim
    #   function: pick
    #   settings: {{fields: [id]}}
    #   then:
    #     - save: ids
    #       adaptor: discard
"""


def pipeline_text(source: type[Adaptor], sink: type[Adaptor], file: Path) -> str:
    """The text of a pipeline file that loads as it is."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", file.stem).lstrip("_.-")[:64] or "pipeline"
    copies = source is sink
    if file.suffix in YAML_SUFFIXES:
        return _YAML.format(
            source=source.name,
            sink=sink.name,
            file=file,
            name=quoted(name),
            source_settings=_mapping(source, "source", "  "),
            sink_settings=_mapping(sink, "sink", "      ", copies=copies),
        )
    return _FILE.format(
        source=source.name,
        sink=sink.name,
        file=file,
        name=quoted(name),
        source_call=_call(source, "source"),
        sink_call=_call(sink, "sink", copies=copies),
    )


class _Line(NamedTuple):
    """A setting to be written."""

    mark: str
    """Empty if it must be given; otherwise the sign of a comment."""
    name: str
    value: object
    help: str


def _lines(adaptor: type[Adaptor], role: str, copies: bool) -> Iterator[_Line]:
    """The settings of this role: required ones filled in, others as comments.

    A sink that `copies` from the same system gets another target than its source: the examples are equal.
    """
    for setting in settings_of(adaptor):
        help_text = " ".join(setting.help.split())
        of_role, colon, rest = help_text.partition(": ")
        if colon and of_role in ("source", "sink"):
            if of_role != role:
                continue
            help_text = rest
        given = setting.required or setting.needed
        value = example(setting) if given else setting.default
        if copies and setting.name == "uri":
            value = re.sub(r"(\.\w+)?$", r"-copy\1", str(value), count=1)
        yield _Line("" if given else "# ", setting.name, value, help_text)


def _call(adaptor: type[Adaptor], role: str, *, copies: bool = False) -> str:
    """`a.file(...)` with a line for each setting."""
    lines = [
        f"        {line.mark}{line.name}={quoted(line.value)},  # {line.help}"
        for line in _lines(adaptor, role, copies)
    ]
    return "\n".join([f"a.{adaptor.name}(", *lines, "    )"]) if lines else f"a.{adaptor.name}()"


def _mapping(adaptor: type[Adaptor], role: str, indent: str, *, copies: bool = False) -> str:
    """`settings:` with a line for each."""
    lines = [
        f"{indent}  {line.mark}{line.name}: {json.dumps(line.value, ensure_ascii=False)}  # {line.help}"
        for line in _lines(adaptor, role, copies)
    ]
    return "\n".join([f"{indent}settings:", *lines]) if lines else f"{indent}settings: {{}}"
