"""Adaptors: the systems that Penstock reads and writes. One module each; these make them.

    shop.source("db", a.sqlite(uri="sqlite://shop.db"), ns="orders|items")

Settings are checked here, when the pipeline file is read; nothing connects. Nothing in this package imports
PySpark or, before a task stages rows, PyArrow.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.adaptors.base import Adaptor
from penstock.adaptors.discard import Discard
from penstock.adaptors.file import File
from penstock.adaptors.generate import Generate
from penstock.adaptors.sqlite import Sqlite
from penstock.base.settings import load

ALL: Mapping[str, type[Adaptor]] = {kind.name: kind for kind in (Discard, File, Generate, Sqlite)}
"""Every built-in adaptor by its name, for `about` and `init`."""


def discard(**settings: object) -> Discard:
    """A sink that counts and keeps nothing: `discard()`."""
    return load("adaptor 'discard'", Discard, settings)


def file(**settings: object) -> File:
    """A file of JSON lines, as source or sink: `file(uri="file://audit.jsonl")`."""
    return load("adaptor 'file'", File, settings)


def generate(**settings: object) -> Generate:
    """A source of numbered test data: `generate(count=1000, namespaces=["a", "b"])`."""
    return load("adaptor 'generate'", Generate, settings)


def sqlite(**settings: object) -> Sqlite:
    """The tables of a SQLite database, as source: `sqlite(uri="sqlite://shop.db")`."""
    return load("adaptor 'sqlite'", Sqlite, settings)


__all__ = ["ALL", "discard", "file", "generate", "sqlite"]
