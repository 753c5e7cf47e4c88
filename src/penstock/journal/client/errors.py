"""What a client's call can end with, each with what to do next.

`JournalError` is the broker's own word, a status: whatever was asked for did not happen. `BrokerGoneError` and
`TimedOutError` say nothing about what happened: an append that ends so may have landed, or may yet.
"""

from __future__ import annotations

import grpc

from penstock.base.errors import PenstockError
from penstock.journal.protocol import LabelSet, Status


class BrokerGoneError(PenstockError):
    """No broker answers at this address, or it went away in the middle of a call.

    `harmless` is True when it is certain that an append was not committed, since no broker had all of it.
    """

    def __init__(self, message: str, *, hint: str | None = None, harmless: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.harmless = harmless


class TimedOutError(PenstockError):
    """The broker did not answer in time."""


class BytesGoneError(PenstockError):
    """Bytes that were asked for are no longer in the journal."""


class HoleError(BytesGoneError):
    """A read met a hole at `offset`: the journal goes on, but nothing is there, for now or for good."""

    def __init__(self, journal: str, offset: int, write_head: int) -> None:
        super().__init__(
            f"journal {journal}: nothing is at offset {offset}, though it goes up to {write_head}",
            hint="a fragment is missing from its store, or not yet listed: `penstock journals check` tells",
        )
        self.offset = offset


class ProtocolError(PenstockError):
    """An answer that no broker may give; what it says is not used."""


class NotOfferedError(PenstockError):
    """The broker does not know the call: it is not one of ours, or an older one."""


class UnauthenticatedError(PenstockError):
    """The broker wants an authorization, or another one than it got."""

    exit_code = 2


class OffsetJumpError(PenstockError):
    """A read went on at a later offset than the one it had reached: the bytes between are not in the journal."""

    def __init__(self, journal: str, begin: int, end: int) -> None:
        super().__init__(
            f"journal {journal}: bytes {begin} to {end} are gone",
            hint=f"they were trimmed, or their fragments are lost; read on from {end} if that is all right",
        )
        self.journal = journal
        self.begin = begin
        self.end = end


class JournalError(PenstockError):
    """The broker's answer was not OK."""

    def __init__(self, journal: str, status: int, detail: str = "") -> None:
        self.journal = journal
        self.status = status
        self.status_name = Status.Name(status) if status in Status.values() else f"STATUS_{status}"
        text = f"journal {journal}: {self.status_name}{f' ({detail})' if detail else ''}"
        super().__init__(text, hint=_HINTS.get(status))


class RegisterMismatchError(JournalError):
    """The registers are not what the append was checked against; carries what they are."""

    def __init__(self, journal: str, registers: LabelSet) -> None:
        super().__init__(journal, Status.REGISTER_MISMATCH)
        self.registers = registers


class StoreUnhealthyError(JournalError):
    """The store that the journal's fragments go to does not work; carries the broker's account of it."""

    def __init__(self, journal: str, detail: str) -> None:
        super().__init__(journal, Status.FRAGMENT_STORE_UNHEALTHY, detail)
        self.detail = detail


class AppenderFullError(PenstockError):
    """The record was not taken: too much is waiting, and the producer does not wait for `ready`."""


class AppenderFailedError(PenstockError):
    """The appender has given up.

    Records are counted from 0 as they were added: those from `first` on, `count` of them, are not acknowledged,
    and of these the first `in_doubt` may be in the journal nevertheless.
    """

    def __init__(self, journal: str, cause: str, first: int, count: int, in_doubt: int) -> None:
        doubt = f", the first {in_doubt} of which may have landed" if in_doubt else ""
        super().__init__(
            f"journal {journal}: {cause}; {count} records from number {first} on are not acknowledged{doubt}",
            hint="`unacknowledged` gives them back; append them again when the cause is mended",
        )
        self.first = first
        self.count = count
        self.in_doubt = in_doubt


_HINTS: dict[int, str] = {
    Status.JOURNAL_NOT_FOUND: "see `penstock journals list`; the token may also not allow this journal",
    Status.NO_JOURNAL_PRIMARY_BROKER: "the journal has no primary at the moment; try again",
    Status.NOT_JOURNAL_PRIMARY_BROKER: "ask the journal's primary, or let the broker pass the call on",
    Status.INSUFFICIENT_JOURNAL_BROKERS: "too few brokers run for the journal's `replication`: start more, or lower it",
    Status.NOT_JOURNAL_BROKER: "ask a broker of the journal's route, or let the broker pass the call on",
    Status.ETCD_TRANSACTION_FAILED: "a journal was changed in the meantime; list it again and repeat the change",
    Status.NOT_ALLOWED: "the journal's flags do not allow it; see `penstock journals list`",
    Status.WRONG_APPEND_OFFSET: "the write head is another one; read it and decide anew",
    Status.INDEX_HAS_GREATER_OFFSET: "the store has later fragments than the broker; see `penstock journals "
    "reset-head`",
    Status.REGISTER_MISMATCH: "the journal has another owner or state than this append expects",
    Status.SUSPENDED: "append to the journal to resume it",
    Status.FRAGMENT_STORE_UNHEALTHY: "make the journal's first store writable for the broker",
}


_NOT_SENT = ("failed to connect to all addresses", "DNS resolution failed")
"""How the details begin when there was no connection."""


def translated(error: grpc.RpcError, address: str) -> PenstockError:
    """gRPC's error as ours."""
    assert isinstance(error, (grpc.Call, grpc.aio.AioRpcError))
    code, details = error.code(), error.details() or ""
    # A broker that stops cancels what it was asked; what we cancel ourselves gets here from `Client.wait` alone, which
    # knows. The last is what grpcio says of a connection that went while something was being written to it.
    is_stopping = code is grpc.StatusCode.CANCELLED
    if code is grpc.StatusCode.UNAVAILABLE or is_stopping or details == "Internal error from Core":
        return BrokerGoneError(
            f"the broker at {address} does not answer ({details or code.name})",
            hint=_hint(details),
            harmless=details.startswith(_NOT_SENT),
        )
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return TimedOutError(f"the broker at {address} did not answer in time")
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return UnauthenticatedError(
            f"the broker at {address} refused the authorization: {details}",
            hint="give a token, or a key that the broker knows, with the capability for this call",
        )
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return NotOfferedError(
            f"the broker at {address} does not offer this call ({details})",
            hint="it is not one of Penstock's, or of an older version",
        )
    return PenstockError(f"the broker refused: {details or code.name}")


def may_ask_another(failure: PenstockError, *, changes: bool) -> bool:
    """Whether a call that failed can be made at another broker: this one is gone, and nothing is done twice."""
    return isinstance(failure, BrokerGoneError) and (failure.harmless or not changes)


_CONNECTION_HINTS = {
    "http1.x server": "this is a port for HTTP; gRPC's is usually the one before it",
    "WRONG_VERSION_NUMBER": "it speaks without TLS: try http://",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not trusted here: name its CA with --ca-file",
    "Socket closed": "see whether it is running; if it speaks TLS, try https://",
}


def _hint(details: str) -> str:
    """What may be wrong, by what gRPC says of a connection that could not be made."""
    return next(
        (hint for sign, hint in _CONNECTION_HINTS.items() if sign in details), "see whether it is running"
    )
