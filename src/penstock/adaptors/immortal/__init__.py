"""`immortal`: an immortal fed by a pipeline, each message a call; and what an immortal emits as a source.

Both talk to the HTTP endpoint of the instance (`penstock immortal run … --http HOST:PORT`). What they promise is
told in `penstock.adaptors.immortal.sink` and `penstock.adaptors.immortal.source`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.adaptors.base import Adaptor, Sink, Source
from penstock.base.errors import AwayError, UsageError
from penstock.base.settings import setting
from penstock.base.units import Unit
from penstock.immortal.binding.outside import Outside


@dataclass(frozen=True, repr=False)
class Immortal(Adaptor):
    """An instance of an immortal."""

    name: ClassVar[str] = "immortal"
    description: ClassVar[str] = (
        "An immortal: a service that survives any crash. Sink: each message is a call of one of its methods, exactly "
        "once. Source: reads what its handlers emit, exactly once."
    )
    reads: ClassVar[bool] = True
    writes: ClassVar[bool] = True

    uri: str = setting(
        "HOST:PORT of the instance's HTTP endpoint; several, separated by commas, for its replicas",
        example="127.0.0.1:8400",
    )
    token: str = setting("sent as bearer token", default="", secret=True)
    timeout: float = setting("seconds to wait for an answer", default=30.0, unit=Unit.SECONDS)
    method: str = setting("sink: the @impulse method that takes a `Delivered`", default="on_message")
    tail: bool = setting("source: wait for what is emitted later", default=True)

    def __post_init__(self) -> None:
        for address in self.addresses:
            Outside(address)

    @property
    def addresses(self) -> list[str]:
        found = [address.strip() for address in self.uri.split(",") if address.strip()]
        if not found:
            raise UsageError("'uri' names no HOST:PORT")
        return found

    def connect(self) -> Outside:
        """The first replica that answers: only a primary listens."""
        error: AwayError | None = None
        for address in self.addresses:
            outside = Outside(address, token=self.token, timeout=self.timeout)
            try:
                outside.ask("GET", "/ready")
            except AwayError as away:
                outside.close()
                error = away
            else:
                return outside
        assert error is not None
        raise error

    def source(self) -> Source:
        from penstock.adaptors.immortal.source import ImmortalSource

        return ImmortalSource(self)

    def sink(self) -> Sink:
        from penstock.adaptors.immortal.sink import ImmortalSink

        return ImmortalSink(self)
