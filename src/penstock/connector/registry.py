"""Who holds which stream: the local registry of one worker for one instance, and what it makes of the global one.

The *global* registry is the journal itself. Its registers say which worker owns the instance, and a claim fences the
owner before (`penstock.journal.client.fencing`); its content says how far each stream is. `decision` is what a worker
does about it. The *local* registry says which session holds which stream; a stream is held from the moment it is asked
for until its session lets it go, and every way in which a session can end lets go of all that it held.

Pure: the shell asks, and does what the answers say.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final
from urllib.parse import quote, unquote

from penstock.connector.frames import NOTHING_SEEN
from penstock.connector.records import Point, Points
from penstock.journal.client.fencing import OWNER
from penstock.journal.labels import values_of
from penstock.journal.protocol import LabelSet

SessionId = int


class Held(Enum):
    """What a session does with a stream that it holds."""

    PENDING = "pending"
    ACTIVE = "active"
    CLOSING = "closing"


@dataclass(slots=True)
class Holding:
    """A stream in the hands of a session."""

    session: SessionId
    state: Held = Held.PENDING
    first: bool = False
    """Whether the log does not have its name yet."""


class Registry:
    """The local registry. `points` is what the log holds; it moves as appends become durable."""

    def __init__(self, points: Points | None = None) -> None:
        self.points: Points = {} if points is None else points
        self.held: dict[int, Holding] = {}

    def notify(self, session: SessionId, stream: int) -> bool:
        """A session asks for a stream. False: another, or itself, holds it. Else it is pending."""
        if stream in self.held:
            return False
        self.held[stream] = Holding(session)
        return True

    def accepted(self, session: SessionId, stream: int, name: str) -> int | None:
        """The answer may go out: the point of reference. None if the session has let go of it meanwhile."""
        holding = self.held.get(stream)
        if holding is None or holding.session != session or holding.state is not Held.PENDING:
            return None
        holding.state = Held.ACTIVE
        known = self.points.get(stream)
        holding.first = known is None or known.name != name
        if holding.first:
            self.points[stream] = (known or Point())._replace(name=name)
        return NOTHING_SEEN if known is None else known.last

    def durable(self, lasts: dict[int, int]) -> None:
        """The log has these ids now."""
        for stream, last in lasts.items():
            self.points[stream] = self.points.get(stream, Point())._replace(last=last, ended=False)

    def ending(self, session: SessionId, stream: int) -> None:
        """The session said EOS; the stream is still its own until that is durable."""
        if self._is_of(session, stream):
            self.held[stream].state = Held.CLOSING

    def has_ended(self, stream: int) -> None:
        """The log has the EOS."""
        self.points[stream] = self.points.get(stream, Point())._replace(ended=True)

    def closed(self, session: SessionId, stream: int) -> None:
        """All that a closing stream sent is durable: it is free. A session that is gone has let go of it before."""
        if self._is_of(session, stream):
            del self.held[stream]

    def relinquish(self, session: SessionId, stream: int | None = None) -> list[int]:
        """The session lets go of a stream, or of all of them; those that it held. Asking twice does no harm."""
        streams = [
            each
            for each, holding in self.held.items()
            if holding.session == session and stream in (None, each)
        ]
        for each in streams:
            del self.held[each]
        return streams

    def of(self, session: SessionId) -> dict[int, Held]:
        """The streams that a session holds."""
        return {stream: holding.state for stream, holding in self.held.items() if holding.session == session}

    def _is_of(self, session: SessionId, stream: int) -> bool:
        holding = self.held.get(stream)
        return holding is not None and holding.session == session


@dataclass(frozen=True, slots=True, order=True)
class Owner:
    """A worker, as the registers of a journal and of the directory of workers name it."""

    name: str
    address: str
    nonce: str

    def token(self) -> str:
        """As one value of a register."""
        return "/".join(quote(part, safe="") for part in (self.name, self.address, self.nonce))

    @classmethod
    def parse(cls, token: str) -> Owner | None:
        parts = token.split("/")
        return cls(*map(unquote, parts)) if len(parts) == 3 else None


def owner_of(registers: LabelSet) -> Owner | None:
    """Who owns a journal by its registers; None if nobody ever did, or nobody that a worker could ask."""
    values = values_of(registers, OWNER)
    return Owner.parse(values[0].rpartition("/")[0]) if values else None


class Decision(Enum):
    """What a worker does about an instance that a connector asks for."""

    CLAIM = "claim"
    ASK = "ask the owner whether it is alive"
    REDIRECT = "send the connector to the owner"


ALIVE: Final = True
DEAD: Final = False


def decision(owner: Owner | None, me: Owner, alive: bool | None) -> Decision:
    """`alive` is what the owner answered; None before it was asked.

    An owner that does not answer is taken for dead, and the claim fences it: if it lives after all it can append
    nothing more, so nothing is accepted twice. One of our own claims, from before a failure, is claimed anew, and so is
    one of a worker that had our address before us.
    """
    if owner is None or owner.address == me.address or alive is DEAD:
        return Decision.CLAIM
    return Decision.ASK if alive is None else Decision.REDIRECT
