"""`connector`: programs in any language that stream into a pipeline over the connector protocol.

What the source promises is told in `penstock.adaptors.connector.source`; the protocol is in `docs/connector.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from penstock.adaptors.base import Adaptor, Source
from penstock.base.errors import UsageError
from penstock.base.settings import setting


@dataclass(frozen=True, repr=False)
class Connector(Adaptor):
    """Programs that speak the connector protocol."""

    name: ClassVar[str] = "connector"
    description: ClassVar[str] = (
        "the connector protocol. Source: listens for connectors, takes their streams, and acknowledges a message once "
        "it is in the log, where it is once."
    )
    reads: ClassVar[bool] = True

    listen: str = setting(
        "source: the HOST:PORT at which connectors are taken",
        default="",
        example="127.0.0.1:7110",
        needed=True,
    )
    instance: str = setting("source: the instance that connectors name", default="default")
    cookie: str = setting("the secret that both sides share; none if not given", default="", secret=True)
    body: Literal["json", "text"] = setting(
        "source: what a message holds: a JSON object, or text, which becomes the field 'text'", default="json"
    )
    key: Sequence[str] = setting(
        "source: the fields that make up a message's key; if not given, the message's own key, as {'key': ...}",
        default=(),
    )
    tail: bool = setting("source: go on when all streams have ended", default=False)
    credits: int = setting("source: messages that a connector may send ahead", default=4096)

    def source(self) -> Source:
        if not self.listen:
            raise UsageError(
                "adaptor 'connector' as a source needs 'listen'", hint='for example listen="127.0.0.1:7110"'
            )
        from penstock.adaptors.connector.source import ConnectorSource

        return ConnectorSource(self)
