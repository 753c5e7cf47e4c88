"""Functions: what can be done to a message on its way to a sink. One module each; these make them.

    orders.transform("slim", f.pick(fields=["id", "total"]))

Settings are checked here, when the pipeline file is read. Nothing in this package imports PySpark or, before
the first batch, PyArrow.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.base.settings import load
from penstock.functions.arrow import ArrowFunction, RecordBatchFunction
from penstock.functions.base import Function
from penstock.functions.js import JsFunction
from penstock.functions.omit import Omit
from penstock.functions.opfilter import OpFilter
from penstock.functions.pick import Pick
from penstock.functions.pretty import Pretty
from penstock.functions.python import MessageFunction, PythonFunction
from penstock.functions.remap import Remap
from penstock.functions.rename import Rename
from penstock.functions.skip import Skip
from penstock.functions.sql import SqlFunction

ALL: Mapping[str, type[Function] | type[SqlFunction]] = {
    kind.name: kind
    for kind in (
        ArrowFunction, JsFunction, Omit, OpFilter, Pick, Pretty, PythonFunction, Remap, Rename, Skip, SqlFunction
    )
}  # fmt: skip
"""Every built-in function by its name, for `about`."""


def arrow(function: RecordBatchFunction) -> ArrowFunction:
    """A Python function of an Arrow batch, which keeps the column `offset`: `arrow(my_function)`."""
    return ArrowFunction(function)


def js(**settings: object) -> JsFunction:
    """A JavaScript function of one message: `js(filename="slim.js")`."""
    return load("function 'js'", JsFunction, settings)


def omit(**settings: object) -> Omit:
    """Remove the named fields: `omit(fields=["password"])`."""
    return load("function 'omit'", Omit, settings)


def opfilter(**settings: object) -> OpFilter:
    """Keep or drop messages by their op: `opfilter(blacklist=["delete"])`."""
    return load("function 'opfilter'", OpFilter, settings)


def pick(**settings: object) -> Pick:
    """Keep only the named fields: `pick(fields=["id", "total"])`."""
    return load("function 'pick'", Pick, settings)


def pretty(**settings: object) -> Pretty:
    """Show each message among the log lines and pass it on: `pretty(spaces=2)`."""
    return load("function 'pretty'", Pretty, settings)


def python(function: MessageFunction) -> PythonFunction:
    """A Python function of one message: `python(my_function)`."""
    return PythonFunction(function)


def remap(**settings: object) -> Remap:
    """Move messages to another namespace: `remap(ns_map={"orders": "sales"})`."""
    return load("function 'remap'", Remap, settings)


def rename(**settings: object) -> Rename:
    """Give fields other names: `rename(field_map={"_id": "id"})`."""
    return load("function 'rename'", Rename, settings)


def skip(**settings: object) -> Skip:
    """Keep the messages whose field passes a test: `skip(field="total", operator=">", match=10)`."""
    return load("function 'skip'", Skip, settings)


def sql(text: str) -> SqlFunction:
    """Spark SQL over the view `messages`: `sql("SELECT * FROM messages WHERE op <> 'delete'")`."""
    return load("function 'sql'", SqlFunction, {"text": text})


__all__ = [
    "ALL", "arrow", "js", "omit", "opfilter", "pick", "pretty", "python", "remap", "rename", "skip", "sql",
]  # fmt: skip
