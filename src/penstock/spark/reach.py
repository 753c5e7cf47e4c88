"""How a process of Spark reaches the broker: an address, and where its credentials are.

A `Reach` is pickled and sent to workers, so it names files and carries no secret. A token, or keys to make tokens
with, come from the environment of the process that uses it (`PENSTOCK_AUTH_TOKEN`, `PENSTOCK_AUTH_KEYS`), which
Spark hands down to its local workers, and to remote ones as `spark.executorEnv`, redacted wherever it shows it.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.journal.client import Client  # slow to import, and tasks that read local files need none

TOKEN = "PENSTOCK_AUTH_TOKEN"
KEYS = "PENSTOCK_AUTH_KEYS"


@dataclass(frozen=True, slots=True)
class Reach:
    """The broker of a pipeline, as any process of the run finds it."""

    address: str
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    def client(self) -> Client:
        """The client of this process; one connection serves all tasks in it."""
        return _client(self, os.getpid())


@functools.lru_cache(maxsize=4)
def _client(reach: Reach, pid: int) -> Client:
    """`pid` keeps a forked worker from using its parent's connection."""
    from penstock.journal.client import Client

    files = (reach.ca_file, reach.cert_file, reach.key_file)
    if reach.address.startswith("unix:"):
        return Client(reach.address)
    from penstock.journal import auth
    from penstock.journal.tls import ClientTls

    tls = ClientTls(*files) if any(files) else None
    if keys := os.environ.get(KEYS):
        return Client(reach.address, tls=tls, tokens=auth.TokenSource(auth.keys_from(keys)))
    if token := os.environ.get(TOKEN):
        return Client(reach.address, tls=tls, tokens=auth.FixedToken(_content(token)))
    return Client(reach.address, tls=tls)


def _content(token: str) -> str:
    """The token itself, or the content of the file that `@FILE` names."""
    return Path(token[1:]).read_text("ascii").strip() if token.startswith("@") else token
