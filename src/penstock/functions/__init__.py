"""Functions: what can be done to a message on its way to a sink. One module each; these make them.

    orders.transform("slim", f.pick(fields=["id", "total"]))

Settings are checked here, when the pipeline file is read. Nothing in this package imports PySpark or, before
the first batch, PyArrow.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.base.settings import load
from penstock.functions.base import Function
from penstock.functions.omit import Omit
from penstock.functions.pick import Pick
from penstock.functions.remap import Remap
from penstock.functions.rename import Rename
from penstock.functions.skip import Skip

ALL: Mapping[str, type[Function]] = {kind.name: kind for kind in (Omit, Pick, Remap, Rename, Skip)}
"""Every built-in function by its name, for `about`."""


def omit(**settings: object) -> Omit:
    """Remove the named fields: `omit(fields=["password"])`."""
    return load("function 'omit'", Omit, settings)


def pick(**settings: object) -> Pick:
    """Keep only the named fields: `pick(fields=["id", "total"])`."""
    return load("function 'pick'", Pick, settings)


def remap(**settings: object) -> Remap:
    """Move messages to another namespace: `remap(ns_map={"orders": "sales"})`."""
    return load("function 'remap'", Remap, settings)


def rename(**settings: object) -> Rename:
    """Give fields other names: `rename(field_map={"_id": "id"})`."""
    return load("function 'rename'", Rename, settings)


def skip(**settings: object) -> Skip:
    """Keep the messages whose field passes a test: `skip(field="total", operator=">", match=10)`."""
    return load("function 'skip'", Skip, settings)


__all__ = ["ALL", "omit", "pick", "remap", "rename", "skip"]
