"""`http`: the pages of a JSON API read by their cursor, documents that others post to an endpoint of this pipeline, and
batches of messages posted to a web service.

What the sources promise is told in `penstock.adaptors.http.source` and `penstock.adaptors.http.listen`, what the sink
promises in `penstock.adaptors.http.sink`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from penstock.adaptors.base import Adaptor, Sink, Source
from penstock.base import secrets
from penstock.base.errors import UsageError
from penstock.base.settings import setting
from penstock.base.units import Unit


@dataclass(frozen=True, repr=False)
class Http(Adaptor):
    """A web service."""

    name: ClassVar[str] = "http"
    description: ClassVar[str] = (
        "HTTP. Source: reads a JSON API page by page, and asks it again for more; or listens for what others post, "
        "and answers once it is in the log. Sink: posts batches of messages as JSON, and tries again what the "
        "service could not take. At least once, with an Idempotency-Key."
    )
    reads: ClassVar[bool] = True
    writes: ClassVar[bool] = True
    extra: ClassVar[str] = "http"

    uri: str = setting(
        "what to read, or where to post; for a sink {ns} stands for the namespace",
        default="",
        example="https://api.example.org/events/{ns}",
        needed=True,
    )
    token: str = setting(
        "sent as `Authorization: Bearer`; with 'listen', what senders have to send so",
        default="",
        secret=True,
    )
    headers: Mapping[str, str] = setting("further headers", default={}, secret=True)
    ca: str = setting(
        "TLS: a file with the certificates to trust; if not given, the machine's; with 'listen', senders need a "
        "certificate that one of them has signed",
        default="",
    )
    certificate: str = setting(
        "TLS: a file with the certificate to show; with 'listen' that of the endpoint, which then speaks https",
        default="",
    )
    private_key: str = setting("TLS: a file with its key", default="")
    timeout: float = setting(
        "seconds to wait for an answer; with 'listen', for a request to come in, and then for the log to have it",
        default=30.0,
        unit=Unit.SECONDS,
    )
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
    listen: str = setting(
        "source: the HOST:PORT to take posts at, in place of 'uri'", default="", example="0.0.0.0:8080"
    )
    path: str = setting(
        "listen: the path to post to; {ns} stands for the namespace, which is that of 'ns' without it",
        default="/{ns}",
    )
    namespaces: Sequence[str] = setting(
        "listen: the namespaces there are; if not given, all that the pipeline takes", default=()
    )
    secret: str = setting("listen: what senders sign bodies with (HMAC-SHA256)", default="", secret=True)
    signature: str = setting("listen: the header with the signature", default="X-Hub-Signature-256")
    delivery_id: str = setting(
        "listen: the header with an id, by which a post that comes again is left out",
        default="Idempotency-Key",
    )
    remember: int = setting("listen: so many of these ids are known for each namespace", default=500)
    bad_lines: Literal["refuse", "dead-letter"] = setting(
        "listen: of a document that cannot be a message, 'refuse' the whole post, or keep it as 'dead-letter'",
        default="refuse",
    )
    max_body: int = setting("listen: the most bytes of a body", default=16 << 20, unit=Unit.BYTES)
    max_waiting: int = setting(
        "listen: the most bytes of bodies that wait for the log", default=64 << 20, unit=Unit.BYTES
    )
    max_connections: int = setting("listen: the most connections at once", default=256)
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
        if bool(self.uri) == bool(self.listen):
            raise ValueError("settings 'uri' and 'listen': expected one of them")
        for secret in (self.token, self.secret, urlsplit(self.uri).password, *self.headers.values()):
            if secret:
                secrets.register(secret)
        for name in ("timeout", "interval", "max_answer", "max_bytes", "max_count", "attempts", "remember",
                     "max_body", "max_connections"):  # fmt: skip
            if not getattr(self, name) > 0:
                raise ValueError(f"setting '{name}': expected more than 0")
        if bool(self.certificate) != bool(self.private_key):
            raise ValueError("settings 'certificate' and 'private_key': expected both or none")
        if self.listen:
            self._check_listen()
        elif urlsplit(self.uri).scheme not in ("http", "https") or not urlsplit(self.uri).hostname:
            raise ValueError("setting 'uri': expected https://HOST/PATH")

    def _check_listen(self) -> None:
        # What is posted comes when it comes: there is no end of it, whatever the command says.
        object.__setattr__(self, "tail", True)
        if not 0 < self.address[1] < 65536:
            raise ValueError(f"setting 'listen': expected HOST:PORT, got '{self.listen}'")
        if not self.path.startswith("/") or self.path.count("{ns}") > 1:
            raise ValueError(f"setting 'path': expected a path such as /hooks/{{ns}}, got '{self.path}'")
        if self.namespaces and "{ns}" not in self.path:
            raise ValueError("setting 'namespaces': expected {ns} in the setting 'path'")
        if self.max_waiting < self.max_body:
            raise ValueError("setting 'max_waiting': expected no less than 'max_body'")
        if self.ca and not self.certificate:
            raise ValueError("setting 'ca': expected 'certificate' and 'private_key' with it")

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of `listen`; port 0 if it names none."""
        host, separator, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port) if separator and port.isdecimal() else 0

    @property
    def place(self) -> str:
        """The service without user and password, for texts."""
        if self.listen:
            return self.listen
        parts = urlsplit(self.uri)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def source(self) -> Source:
        if self.listen:
            from penstock.adaptors.http.listen import ListenSource

            return ListenSource(self)
        from penstock.adaptors.http.source import PollSource

        return PollSource(self)

    def sink(self) -> Sink:
        if self.listen:
            raise UsageError(
                "adaptor 'http' as a sink posts, and needs the setting 'uri'",
                hint="'listen' is for a source",
            )
        from penstock.adaptors.http.sink import HttpSink

        return HttpSink(self)
