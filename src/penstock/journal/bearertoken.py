"""The bearer token itself: a JWT, HS256 or HS384, whose payload says what its holder may do (reference, 10).

Payload and selector are read strictly: what cannot be understood, a token's holder may not do. Signatures are compared
in constant time. PyJWT is loaded when the first token is signed or verified.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, cast

import msgspec

from penstock.base.errors import PenstockError, UsageError
from penstock.journal.claims import Capability
from penstock.journal.protocol import Label, LabelSelector, LabelSet
from penstock.journal.tokens import ValidationError
from penstock.journal.validation import validate_selector

if TYPE_CHECKING:
    from jwt import PyJWS

ALGORITHMS: Final = ("HS256", "HS384")


class BadTokenError(PenstockError):
    """A token that cannot be accepted; the message says why, and shows nothing of it."""


# Claims stand in this order; a label without a value has no `value`, and no labels are `null`.


class _Label(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    name: str = ""
    value: str = ""
    prefix: bool = False


class _Labels(msgspec.Struct, forbid_unknown_fields=True):
    labels: list[_Label] | None = None


# A selector with a field that we do not know may mean less than what we would make of it: it is refused.
class _Selector(msgspec.Struct, forbid_unknown_fields=True):
    include: _Labels | None = None
    exclude: _Labels | None = None


class Payload(msgspec.Struct, omit_defaults=True, frozen=True):
    """The claims as they are signed; times are unix seconds."""

    cap: int = 0
    sel: _Selector | None = None
    exp: int | float | None = None
    iat: int | float | None = None
    nbf: int | float | None = None

    @property
    def selector(self) -> LabelSelector:
        """`sel` as a message, its labels sorted; absent parts are empty."""
        selector = LabelSelector()
        if self.sel is not None:
            _fill(selector.include, self.sel.include)
            _fill(selector.exclude, self.sel.exclude)
        try:
            validate_selector(selector)
        except ValidationError as error:
            raise BadTokenError(f"its selector is malformed ({error})") from None
        return selector


def _fill(labels: LabelSet, given: _Labels | None) -> None:
    found = (given.labels if given else None) or []
    for label in sorted(found, key=lambda label: (label.name, label.value)):
        labels.labels.append(Label(name=label.name, value=label.value, prefix=label.prefix))


def encode(
    secret: bytes, capability: Capability, selector: LabelSelector, *, issued: int, expires: int
) -> str:
    """The token, signed with HS256."""
    sel = _Selector(_labels_of(selector.include), _labels_of(selector.exclude))
    payload = Payload(cap=int(capability), sel=sel, exp=expires, iat=issued)
    return load().encode(msgspec.json.encode(payload), secret, algorithm="HS256")


def _labels_of(labels: LabelSet) -> _Labels:
    return _Labels([_Label(label.name, label.value, label.prefix) for label in labels.labels] or None)


def decode(secrets: tuple[bytes, ...], token: str) -> Payload:
    """The payload of a token that one of `secrets` has signed. Its times are not looked at."""
    content = _verified(secrets, token)
    try:
        payload = msgspec.json.decode(content, type=Payload)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadTokenError(f"its claims are malformed ({error})") from None
    if not 0 <= payload.cap <= Capability.ALL:
        raise BadTokenError("its claims are malformed (expected `cap` to be an unsigned number of 32 bits)")
    return payload


def _verified(secrets: tuple[bytes, ...], token: str) -> bytes:
    import jwt

    for secret in secrets:
        try:
            return cast("bytes", load().decode(token, secret, algorithms=list(ALGORITHMS)))
        except jwt.InvalidSignatureError:
            continue
        except (jwt.PyJWTError, ValueError, TypeError):
            raise BadTokenError("it is not a JWT signed with HS256 or HS384") from None
    raise BadTokenError("its signature is of none of the broker's keys")


@cache
def load() -> PyJWS:
    """What signs and verifies with our two algorithms and no other; a UsageError if PyJWT is not installed."""
    try:
        import jwt
        from jwt.algorithms import HMACAlgorithm
    except ImportError:
        raise UsageError("authorization keys need PyJWT", hint="pip install 'penstock[broker]'") from None

    class Hmac(HMACAlgorithm):
        # PyJWT looks for keys of other algorithms, and warns of short ones, at every call. No other algorithm
        # is accepted here, and the original takes keys of any length.
        def prepare_key(self, key: str | bytes) -> bytes:
            return key.encode() if isinstance(key, str) else key

        def check_key_length(self, key: bytes) -> None:
            return None

    jws = jwt.PyJWS(algorithms=list(ALGORITHMS))
    for name, digest in zip(ALGORITHMS, (HMACAlgorithm.SHA256, HMACAlgorithm.SHA384), strict=True):
        jws.unregister_algorithm(name)
        jws.register_algorithm(name, Hmac(digest))
    return jws
