"""How the data source reaches its broker when the credentials are in files: a `Reach` that names them.

A token in an option would stand in Spark's plans, event log and web page, so there is no such option: there are files,
and the environment variables of `reach.py`. A token file is read again whenever it changes, since tokens expire and a
stream outlives them.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.base.errors import UsageError
from penstock.spark.reach import Reach

if TYPE_CHECKING:
    from penstock.journal.client import Client
    from penstock.journal.protocol import LabelSelector


@dataclass(frozen=True, slots=True)
class Access(Reach):
    """A broker's address, and the files with what it asks for."""

    token_file: Path | None = None
    keys_file: Path | None = None

    def client(self) -> Client:
        """The client of this process; one connection serves all tasks in it."""
        if self.token_file is None and self.keys_file is None:
            return Reach.client(self)
        return _client(self, os.getpid())


@functools.lru_cache(maxsize=4)
def _client(access: Access, pid: int) -> Client:
    """`pid` keeps a forked worker from using its parent's connection."""
    from penstock.journal import auth
    from penstock.journal.client import Client
    from penstock.journal.tls import ClientTls

    files = (access.ca_file, access.cert_file, access.key_file)
    tls = ClientTls(*files) if any(files) else None
    if access.keys_file is not None:
        keys = auth.keys_from(f"@{access.keys_file}")
        return Client(access.address, tls=tls, tokens=auth.TokenSource(keys))
    assert access.token_file is not None
    return Client(access.address, tls=tls, tokens=TokenFile(access.token_file))


class TokenFile:
    """The token in a file, as the file says it at the moment."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: tuple[int, str] | None = None

    def for_list(self, selector: LabelSelector) -> str:
        return self._token()

    def for_apply(self) -> str:
        return self._token()

    def for_read(self, journal: str) -> str:
        return self._token()

    def for_heads(self, selector: LabelSelector) -> str:
        return self._token()

    def for_append(self, journal: str) -> str:
        return self._token()

    def for_health(self) -> str:
        return self._token()

    def for_maintenance(self, journal: str) -> str:
        return self._token()

    def _token(self) -> str:
        try:
            changed = self._path.stat().st_mtime_ns
            if self._read is None or self._read[0] != changed:
                self._read = changed, self._path.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise UsageError(f"cannot read the token from {self._path}: {reason}") from None
        return self._read[1]
