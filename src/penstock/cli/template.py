"""The pipeline file that `init` writes, made from what adaptors say about their own settings."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.adaptors.base import Adaptor
from penstock.base.settings import settings_of
from penstock.cli.catalogue import quoted, sample

_FILE = '''\
"""A pipeline from {source} to {sink}.

    penstock plan {file}          what it would do
    penstock run {file} --once    do it

Text in settings may hold ${{NAME}} or ${{NAME:-default}}: a variable of the environment.
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
# by its name after a restart: a renamed sink starts from the beginning.
messages.save(
    "sink",
    {sink_call},
    ns=".*",
)
'''


def pipeline_text(source: type[Adaptor], sink: type[Adaptor], file: Path) -> str:
    """The text of a pipeline file that loads as it is."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", file.stem).lstrip("_.-")[:64] or "pipeline"
    return _FILE.format(
        source=source.name,
        sink=sink.name,
        file=file,
        name=quoted(name),
        source_call=_call(source, "source"),
        sink_call=_call(sink, "sink", copies=source is sink),
    )


def _call(adaptor: type[Adaptor], role: str, *, copies: bool = False) -> str:
    """`a.file(...)` with a line for each setting of this role: required ones filled in, others as comments.

    A sink that `copies` from the same system gets another target than its source: the examples are equal.
    """
    lines = [f"a.{adaptor.name}("]
    for setting in settings_of(adaptor):
        help_text = " ".join(setting.help.split())
        of_role, colon, rest = help_text.partition(": ")
        if colon and of_role in ("source", "sink"):
            if of_role != role:
                continue
            help_text = rest
        value = sample(setting) if setting.required else quoted(setting.default)
        if copies and setting.name == "uri":
            value = re.sub(r'(\.\w+)?"$', r'-copy\1"', value)
        mark = "" if setting.required else "# "
        lines.append(f"        {mark}{setting.name}={value},  # {help_text}")
    return "\n".join([*lines, "    )"]) if len(lines) > 1 else lines[0] + ")"
