"""What can go wrong with etcd, by what a caller can do about it.

    EtcdAwayError      nothing was done: no endpoint answers; try again later
    ForeignError       ... but one of another etcd than before does
    EtcdInDoubtError   a change was sent and no answer came: it may have been made, or may yet be
    CompactedError     a revision was asked for that etcd no longer has
    LeaseGoneError     the lease has expired or was revoked
    EtcdRefusedError   etcd answered, and the answer is no; asking again will not help

All are `EtcdError`. No text shows a password or a token.
"""

from __future__ import annotations

import grpc
import grpc.aio

from penstock.base.errors import PenstockError
from penstock.base.secrets import mask


class EtcdError(PenstockError):
    """Something is wrong with etcd, or with what was asked of it."""


class EtcdAwayError(EtcdError):
    """No endpoint answers, or none that has a leader. Nothing was done."""


class EtcdSilentError(EtcdAwayError):
    """The time was up, which says less than what went wrong before that."""


class ForeignError(EtcdAwayError):
    """An endpoint answers, but belongs to another etcd than the one that answered first."""

    def __init__(self, endpoint: str, cluster_id: int, before: int) -> None:
        super().__init__(
            f"etcd at {endpoint} is cluster {cluster_id:x}, and not {before:x} as before",
            hint="see the addresses of etcd; if it was replaced on purpose, restart the brokers",
        )


class EtcdInDoubtError(EtcdError):
    """A change was sent, and no answer came: look before it is made again."""


class CompactedError(EtcdError):
    """The revision asked for is no longer in etcd's history."""


class LeaseGoneError(EtcdError):
    """The lease is no more, and with it its keys."""


class EtcdRefusedError(EtcdError):
    """etcd does not do this: no permission, a wrong password, too large a transaction, no space."""


class TooLargeError(EtcdRefusedError):
    """An answer has more bytes than we take at once."""


class TokenError(EtcdRefusedError):
    """etcd does not know our token, or not any more; it did nothing."""


_NOT_SENT = ("failed to connect to all addresses", "etcdserver: no leader")
"""How the details begin when it is certain that etcd has done nothing: gRPC's word, and that of a member alone."""

_REFUSED = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
}

_HINTS = {
    "database space exceeded": "compact and defragment etcd, or raise its quota; then disarm its alarm",
    "authentication failed": "see the user and password for etcd",
    "permission denied": "give etcd's user a role that reads and writes the cluster's prefix",
    "user name is empty": "etcd has authentication enabled: name its user and password",
    "too many operations": "raise etcd's --max-txn-ops, or change fewer journals at once",
    "CERTIFICATE_VERIFY_FAILED": "etcd's certificate is not trusted here: name its CA",
    "WRONG_VERSION_NUMBER": "etcd speaks without TLS: try http://",
}


def translated(error: grpc.aio.AioRpcError, endpoint: str, *, changes: bool) -> EtcdError:
    """gRPC's error as ours. `changes` is whether the call could have changed something."""
    code, details = error.code(), mask(error.details() or "")
    hint = next((hint for sign, hint in _HINTS.items() if sign in details), None)
    if code in _REFUSED:
        return _refused(code, f"etcd at {endpoint} refused: {details or code.name}", details, hint)
    silent = code is grpc.StatusCode.DEADLINE_EXCEEDED
    if silent:
        what = f"etcd at {endpoint} did not answer in time"
    else:
        what = f"etcd at {endpoint} does not answer ({details or code.name})"
    if changes and not details.startswith(_NOT_SENT):
        return EtcdInDoubtError(f"{what}; the change may have been made all the same", hint=hint)
    kind = EtcdSilentError if silent else EtcdAwayError
    return kind(what, hint=hint or "see whether etcd is running and has a leader")


def _refused(code: grpc.StatusCode, what: str, details: str, hint: str | None) -> EtcdError:
    if code is grpc.StatusCode.UNAUTHENTICATED or "revision of auth store is old" in details:
        return TokenError(what, hint=hint)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
        return TooLargeError(what, hint=hint)
    if code is grpc.StatusCode.OUT_OF_RANGE and "compacted" in details:
        return CompactedError(what, hint=hint)
    if code is grpc.StatusCode.NOT_FOUND and "lease not found" in details:
        return LeaseGoneError(what, hint=hint)
    return EtcdRefusedError(what, hint=hint)
