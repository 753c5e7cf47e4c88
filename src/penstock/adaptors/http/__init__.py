"""`http`: the pages of a JSON API read by their cursor, and batches of messages posted to a web service.

What the source promises is told in `penstock.adaptors.http.source`, what the sink promises in
`penstock.adaptors.http.sink`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from penstock.adaptors.base import Adaptor, Sink, Source
from penstock.base import secrets
from penstock.base.settings import setting


@dataclass(frozen=True, repr=False)
class Http(Adaptor):
    """A web service."""

    name: ClassVar[str] = "http"
    description: ClassVar[str] = (
        "HTTP. Source: reads a JSON API page by page, and asks it again for more. Sink: posts batches of messages as "
        "JSON, and tries again what the service could not take. "
        "At least once, with an Idempotency-Key."
    )
    reads: ClassVar[bool] = True
    writes: ClassVar[bool] = True
    extra: ClassVar[str] = "http"

    uri: str = setting(
        "what to read, or where to post; for a sink {ns} stands for the namespace",
        example="https://api.example.org/events/{ns}",
    )
    token: str = setting("sent as `Authorization: Bearer`", default="", secret=True)
    headers: Mapping[str, str] = setting("further headers", default={}, secret=True)
    ca: str = setting("TLS: a file with the certificates to trust; if not given, the machine's", default="")
    timeout: float = setting("seconds to wait for an answer", default=30.0)
    ns: str = setting("source: the namespace", default="items")
    tail: bool = setting("source: ask again for more", default=False)
    interval: float = setting("source: seconds between two requests once there is no more", default=10.0)
    items: str = setting(
        "source: where the documents are in an answer, such as 'data.items'; if not given, it is an array of them",
        default="",
    )
    cursor: str = setting(
        "source: where the cursor of the next page is in an answer", default="", example="meta.next"
    )
    parameter: str = setting("source: the parameter of the request that takes the cursor", default="cursor")
    key: Sequence[str] = setting("source: the fields that make up a message's key", default=())
    max_answer: int = setting("source: the most bytes of an answer", default=64 * 1024 * 1024)
    format: Literal["array", "lines"] = setting(
        "sink: what a request holds: a JSON 'array', or a JSON text on each of its 'lines'", default="array"
    )
    envelope: bool = setting(
        "sink: post op, ns, offset, ts, key and data of a message; if not, its data alone", default=True
    )
    max_bytes: int = setting("sink: about the most bytes of a request", default=1024 * 1024)
    max_count: int = setting("sink: the most messages of a request", default=1000)
    attempts: int = setting("sink: how often a request is tried before the service counts as away", default=3)

    def __post_init__(self) -> None:
        parts = urlsplit(self.uri)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("setting 'uri': expected https://HOST/PATH")
        for secret in (self.token, parts.password, *self.headers.values()):
            if secret:
                secrets.register(secret)
        for name in ("timeout", "interval", "max_answer", "max_bytes", "max_count", "attempts"):
            if not getattr(self, name) > 0:
                raise ValueError(f"setting '{name}': expected more than 0")

    @property
    def place(self) -> str:
        """The service without user and password, for texts."""
        parts = urlsplit(self.uri)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def source(self) -> Source:
        from penstock.adaptors.http.source import PollSource

        return PollSource(self)

    def sink(self) -> Sink:
        from penstock.adaptors.http.sink import HttpSink

        return HttpSink(self)
