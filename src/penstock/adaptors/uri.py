"""Uris of things that lie on this machine: a scheme, `://`, and a path as it is, with nothing escaped."""

from __future__ import annotations

from pathlib import Path


def absolute(uri: str, scheme: str) -> str:
    """The uri with its path made absolute, by the directory the pipeline file is loaded in.

    Spark's workers run in directories of their own, so a relative path must not get to them.
    """
    return f"{scheme}://{path_of(uri, scheme)}"


def path_of(uri: str, scheme: str) -> Path:
    """The path of a uri. Raises ValueError, which `settings.load` turns into an error about the setting."""
    given, separator, path = uri.partition("://")
    if given != scheme or not separator or not path:
        raise ValueError(f"setting 'uri': expected {scheme}://PATH, got '{uri}'")
    return Path(path).absolute()
