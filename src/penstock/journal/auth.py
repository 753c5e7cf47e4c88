"""Who may do what: bearer tokens, signed and verified with shared keys (reference, 10).

A token is a JWT, HS256 or HS384, whose claims are a mask of capabilities (`cap`), the journals they are for (`sel`)
and an expiry (`exp`). The broker asks an `Authorizer` for the `Claims` of every call, on gRPC and HTTP alike;
clients get the tokens of their calls from `TokenSource`, or have been given one (`FixedToken`).

Keys and tokens never show: not in an error, not in a `repr`. Where no keys are set nothing of this needs PyJWT.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from penstock.base.errors import PenstockError, UsageError
from penstock.journal import bearertoken
from penstock.journal.claims import EVERYTHING, LEEWAY, Capability, Claims
from penstock.journal.protocol import Label, LabelSelector, LabelSet
from penstock.journal.tokens import split_meta

ALLOW_MISSING: Final = "AA=="
"""The entry among the keys that is none: it lets calls without an authorization through."""
MISSING_LIFETIME: Final = 3600.0

_HOUR = 3600.0
_MINUTE = 60.0
_SEPARATORS = re.compile(r"[\s,]+")
_MAX_CACHED = 1024


class UnauthenticatedError(PenstockError):
    """A call has no authorization that covers it. gRPC's code is UNAUTHENTICATED, HTTP's 401."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Shared secrets: the first signs, all verify."""

    secrets: tuple[bytes, ...] = field(repr=False)
    allow_missing: bool = False
    """Whether calls without an authorization may do everything."""


def parse_keys(text: str) -> Keys:
    """Keys as they are configured: base64, separated by whitespace or commas. Errors count, never show, entries."""
    entries = [entry for entry in _SEPARATORS.split(text) if entry]
    secrets: list[bytes] = []
    for number, entry in enumerate(entries, start=1):
        if entry == ALLOW_MISSING:
            continue
        try:
            secret = base64.b64decode(entry, validate=True)
        except (binascii.Error, ValueError):
            secret = b""
        if not secret:
            raise UsageError(
                f"authorization key {number} of {len(entries)} is not base64 (standard alphabet, with padding)",
                hint="make one with: head -c 32 /dev/urandom | base64",
            )
        secrets.append(secret)
    if not secrets:
        raise UsageError(
            f"expected at least one authorization key ({ALLOW_MISSING} is none: it admits calls without a token)",
            hint="make one with: head -c 32 /dev/urandom | base64",
        )
    return Keys(tuple(secrets), allow_missing=ALLOW_MISSING in entries)


def keys_from(option: str) -> Keys:
    """The keys an option names: `@FILE`, the path of a file that exists, or the keys themselves."""
    path = _file_of(option)
    if path is None:
        return parse_keys(option)
    try:
        mode = path.stat().st_mode
        text = path.read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"cannot read authorization keys from {path}: {reason}") from None
    if mode & 0o077:
        raise UsageError(
            f"the authorization keys in {path} can be read or changed by others (mode {mode & 0o777:o})",
            hint=f"chmod 600 {path}",
        )
    return parse_keys(text)


def _file_of(option: str) -> Path | None:
    if option.startswith("@"):
        return Path(option[1:])
    try:
        return Path(option) if option and Path(option).is_file() else None
    except (OSError, ValueError):  # too long for a path, say: then it is keys
        return None


def sign(keys: Keys, claims: Claims, *, now: float, lifetime: float) -> str:
    """A token for `claims` that is good from `now` for `lifetime` seconds, whatever `claims.expires` says."""
    issued, expires = int(now), int(now + lifetime)
    return bearertoken.encode(
        keys.secrets[0], claims.capability, claims.selector, issued=issued, expires=expires
    )


class Authorizer(Protocol):
    """Turns the authorization of a call into claims."""

    def authorize(self, authorization: str | None, required: Capability) -> Claims:
        """The claims of a call that needs `required`. `authorization` is the header's value, None if there is none.

        Raises UnauthenticatedError.
        """


class OpenAuthorizer:
    """No keys are set: every caller may do everything."""

    def authorize(self, authorization: str | None, required: Capability) -> Claims:
        return EVERYTHING


class KeyedAuthorizer:
    """Callers show a token that one of `keys` has signed.

    Clients use a token many times, and verifying one costs far more than a look-up. What a token says is
    therefore remembered, by the token's digest; its times are looked at in every call.
    """

    def __init__(self, keys: Keys, now: Callable[[], float] = time.time) -> None:
        bearertoken.load()
        self._keys = keys
        self._now = now
        self._verified: dict[bytes, _Verified] = {}

    def authorize(self, authorization: str | None, required: Capability) -> Claims:
        if authorization is None and self._keys.allow_missing:
            return Claims(required, LabelSelector(), self._now() + MISSING_LIFETIME)
        token = self._verify(_bearer_of(authorization))
        token.check_times(self._now())
        missing = required & ~token.claims.capability
        if missing:
            raise UnauthenticatedError(f"authorization is missing required {_names(missing)} capability")
        return token.claims

    def _verify(self, token: str) -> _Verified:
        digest = hashlib.sha256(token.encode("ascii")).digest()
        known = self._verified.get(digest)
        if known is not None:
            return known
        try:
            verified = _Verified.of(bearertoken.decode(self._keys.secrets, token))
        except bearertoken.BadTokenError as error:
            raise _invalid(error.message) from None
        if len(self._verified) >= _MAX_CACHED:
            self._verified.clear()
        self._verified[digest] = verified
        return verified


@dataclass(frozen=True, slots=True)
class _Verified:
    """What a token says, once its signature was found good."""

    claims: Claims
    expires: float
    not_before: float
    """The later of the times it was issued at and is good from."""

    @classmethod
    def of(cls, payload: bearertoken.Payload) -> _Verified:
        if payload.exp is None:
            raise bearertoken.BadTokenError("it has no expiry")
        expires = _seconds(payload.exp)
        not_before = max(_seconds(payload.iat or 0), _seconds(payload.nbf or 0))
        return cls(Claims(Capability(payload.cap), payload.selector, expires), expires, not_before)

    def check_times(self, now: float) -> None:
        if now >= self.expires + LEEWAY:
            raise _invalid(f"it expired {now - self.expires:.0f} s ago")
        if now < self.not_before - LEEWAY:
            raise _invalid(f"it is good only in {self.not_before - now:.0f} s", hint="compare the clocks")


def _bearer_of(authorization: str | None) -> str:
    scheme, _, token = (authorization or "").strip().partition(" ")
    token = token.strip()
    if not scheme or (not token and scheme.lower() == "bearer"):
        raise UnauthenticatedError("missing or empty Authorization token")
    if scheme.lower() != "bearer" or not token.isascii():
        raise UnauthenticatedError("invalid or unsupported Authorization (expected `Bearer` and a token)")
    return token


def _invalid(why: str, *, hint: str | None = None) -> UnauthenticatedError:
    return UnauthenticatedError(f"invalid Authorization token: {why}", hint=hint)


def _seconds(claim: int | float) -> float:
    try:
        return float(claim)
    except OverflowError:
        raise bearertoken.BadTokenError("its claims are malformed (a time is out of range)") from None


def _names(capability: Capability) -> str:
    return capability.name or f"{int(capability):#x}"


# What clients send.


def bearer(token: str) -> str:
    """The value of the `authorization` header or metadata."""
    return f"Bearer {token}"


class Tokens(Protocol):
    """The token for each kind of call a client makes."""

    def for_list(self, selector: LabelSelector) -> str: ...

    def for_apply(self) -> str: ...

    def for_read(self, journal: str) -> str: ...

    def for_heads(self, selector: LabelSelector) -> str: ...

    def for_append(self, journal: str) -> str: ...

    def for_health(self) -> str: ...

    def for_maintenance(self, journal: str) -> str: ...


@dataclass(frozen=True, slots=True)
class FixedToken:
    """One token for everything, as it was given."""

    token: str = field(repr=False)

    def for_list(self, selector: LabelSelector) -> str:
        return self.token

    def for_apply(self) -> str:
        return self.token

    def for_read(self, journal: str) -> str:
        return self.token

    def for_heads(self, selector: LabelSelector) -> str:
        return self.token

    def for_append(self, journal: str) -> str:
        return self.token

    def for_health(self) -> str:
        return self.token

    def for_maintenance(self, journal: str) -> str:
        return self.token


class TokenSource:
    """Signs, for each call, what that call needs and no more.

    Read also covers listing fragments and `penstock.Local`'s Locate, Append its appends. A token is used again
    for the same purpose until half its lifetime is over. Threads may share a source.
    """

    def __init__(self, keys: Keys, now: Callable[[], float] = time.time) -> None:
        bearertoken.load()
        self._keys = keys
        self._now = now
        self._signed: dict[tuple[Capability, bytes], tuple[str, float]] = {}

    def __repr__(self) -> str:
        return f"TokenSource({self._keys!r})"

    def for_list(self, selector: LabelSelector) -> str:
        return self._token(Capability.LIST, selector, _HOUR)

    def for_apply(self) -> str:
        return self._token(Capability.APPLY, LabelSelector(), _MINUTE)

    def for_read(self, journal: str) -> str:
        return self._token(Capability.READ, _named(journal), _HOUR)

    def for_heads(self, selector: LabelSelector) -> str:
        return self._token(Capability.LIST | Capability.READ, selector, _HOUR)

    def for_append(self, journal: str) -> str:
        return self._token(Capability.APPEND, _named(journal), _HOUR)

    def for_health(self) -> str:
        return self._token(Capability.READ, LabelSelector(), _HOUR)

    def for_maintenance(self, journal: str) -> str:
        """For `penstock.Maintenance`, which asks for APPLY of the journal concerned."""
        return self._token(Capability.APPLY, _named(journal), _MINUTE)

    def _token(self, capability: Capability, selector: LabelSelector, lifetime: float) -> str:
        purpose = (capability, selector.SerializeToString(deterministic=True))
        now = self._now()
        token, renew = self._signed.get(purpose, ("", 0.0))
        if now < renew:
            return token
        token = sign(self._keys, Claims(capability, selector), now=now, lifetime=lifetime)
        if len(self._signed) >= _MAX_CACHED:
            self._signed.clear()
        self._signed[purpose] = (token, now + lifetime / 2)
        return token


def _named(journal: str) -> LabelSelector:
    name, _ = split_meta(journal)
    return LabelSelector(include=LabelSet(labels=[Label(name="name", value=name)]))
