"""Bearer tokens: what is signed, what is accepted, and what is refused (reference, 10 and 27)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.base.errors import UsageError
from penstock.journal import auth
from penstock.journal.auth import (
    FixedToken,
    KeyedAuthorizer,
    Keys,
    OpenAuthorizer,
    TokenSource,
    UnauthenticatedError,
    bearer,
    keys_from,
    parse_keys,
    sign,
)
from penstock.journal.claims import EVERYTHING, Capability, Claims
from penstock.journal.labels import format_selector, parse_selector
from penstock.journal.protocol import JournalSpec, LabelSelector

NOW = 1_700_000_000.0
KEYS = parse_keys("c2VjcmV0")
VECTOR = (
    "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJjYXAiOjE2LCJzZWwiOnsiaW5jbHVkZSI6eyJsYWJlbHMiOlt7Im5hbWUiOiJuYW1lIiwi"
    "dmFsdWUiOiJhL2pvdXJuYWwifV19LCJleGNsdWRlIjp7ImxhYmVscyI6bnVsbH19LCJleHAiOjQxMDI0NDQ4MDAsImlhdCI6MTcwMDAwMDAw"
    "MH0.ZXB-Q-sFERwRuc10Q9nfcNA-sdH5CGU4RFy7DEafBR8"
)


def _segment(value: object) -> bytes:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=")


def _forge(
    payload: object, *, header: object = None, secret: bytes = b"secret", digest: Any = hashlib.sha256
) -> str:
    """A token made by hand, so that nothing of ours or PyJWT's keeps it from being wrong."""
    content = _segment({"alg": "HS256"} if header is None else header) + b"." + _segment(payload)
    return (content + b"." + _segment(hmac.new(secret, content, digest).digest())).decode()


def _payload(**changes: object) -> dict[str, object]:
    sel = {"include": {"labels": None}, "exclude": {"labels": None}}
    payload = {"cap": 16, "sel": sel, "exp": NOW + 60, "iat": NOW} | changes
    return {name: value for name, value in payload.items() if value is not ...}


def _authorize(
    token: str, required: Capability = Capability.APPEND, *, keys: Keys = KEYS, now: float = NOW
) -> Claims:
    return KeyedAuthorizer(keys, lambda: now).authorize(bearer(token), required)


def _claims(capability: Capability, selector: str = "") -> Claims:
    return Claims(capability, parse_selector(selector))


def test_signing_gives_the_vector_byte_for_byte() -> None:
    claims = _claims(Capability.APPEND, "name=a/journal")
    assert sign(KEYS, claims, now=NOW, lifetime=4102444800 - NOW) == VECTOR


def test_the_vector_is_accepted_for_its_journal_until_its_expiry() -> None:
    claims = _authorize(VECTOR)
    assert claims.capability == Capability.APPEND
    assert claims.expires == 4102444800
    assert claims.allows(JournalSpec(name="a/journal"))
    assert not claims.allows(JournalSpec(name="a/journal/too"))


@pytest.mark.parametrize(
    "selector",
    ["", "name=a/b", "name:prefix=a/", "!foo", "foo in (a,b),name=x/y/z,bar!=1", "größe=ä/ö", "foo"],
)
def test_a_selector_comes_back_as_it_was_signed(selector: str) -> None:
    token = sign(KEYS, _claims(Capability.LIST | Capability.READ, selector), now=NOW, lifetime=60)
    claims = _authorize(token, Capability.READ)
    assert format_selector(claims.selector) == format_selector(parse_selector(selector))
    assert claims.capability == Capability.LIST | Capability.READ


def test_a_selector_omits_empty_fields_and_shows_empty_lists_as_null() -> None:
    token = sign(KEYS, _claims(Capability.LIST, "foo,name:prefix=a/"), now=NOW, lifetime=60)
    payload = base64.urlsafe_b64decode(token.split(".")[1] + "==")
    assert payload == (
        b'{"cap":2,"sel":{"include":{"labels":[{"name":"foo"},{"name":"name","value":"a/","prefix":true}]},'
        b'"exclude":{"labels":null}},"exp":1700000060,"iat":1700000000}'
    )


def test_labels_of_a_selector_are_sorted() -> None:
    labels = [{"name": "zz", "value": "1"}, {"name": "aa", "value": "2"}, {"name": "aa", "value": "1"}]
    claims = _authorize(_forge(_payload(sel={"include": {"labels": labels}})))
    assert [(label.name, label.value) for label in claims.selector.include.labels] == [
        ("aa", "1"),
        ("aa", "2"),
        ("zz", "1"),
    ]


@pytest.mark.parametrize(
    "sel", [..., None, {}, {"include": None}, {"include": {}}, {"include": {"labels": []}}], ids=str
)
def test_an_absent_selector_is_an_empty_one(sel: object) -> None:
    assert format_selector(_authorize(_forge(_payload(sel=sel))).selector) == ""


@pytest.mark.parametrize(
    "changes",
    [
        {"cap": -1},
        {"cap": 1 << 32},
        {"cap": "16"},
        {"cap": 16.5},
        {"cap": True},
        {"sel": "name=a/journal"},
        {"sel": {"inclde": {"labels": []}}},
        {"sel": {"include": {"labels": {}}}},
        {"sel": {"include": {"labels": [{"name": "a b"}]}}},
        {"sel": {"include": {"labels": [{"name": "x"}]}}},
        {"sel": {"include": {"labels": [{"name": "foo", "values": "1"}]}}},
        {"sel": {"include": {"labels": [{"name": "foo", "value": 1}]}}},
        {"sel": {"include": {"labels": [{"name": "foo", "value": "1"}] * 2}}},
        {"sel": {"exclude": {"labels": [{"name": "foo"}, {"name": "foo", "value": "1"}]}}},
        {"exp": ...},
        {"exp": None},
        {"exp": "4102444800"},
        {"exp": 10**400},
        {"exp": float("inf")},
        {"exp": True},
    ],
    ids=str,
)
def test_malformed_claims_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(UnauthenticatedError, match="invalid Authorization token"):
        _authorize(_forge(_payload(**changes)))


@pytest.mark.parametrize("payload", [b"", b"\xff\xfe", b"[]", b"null", b"7", b"{", b"[" * 100_000])
def test_claims_that_are_no_object_are_refused(payload: bytes) -> None:
    with pytest.raises(UnauthenticatedError, match="claims are malformed"):
        _authorize(_forge(payload))


@pytest.mark.parametrize(
    "changes, now, good",
    [
        ({"exp": NOW + 60}, NOW + 64.9, True),
        ({"exp": NOW + 60}, NOW + 65, False),
        ({"iat": NOW}, NOW - 4.9, True),
        ({"iat": NOW}, NOW - 5.1, False),
        ({"iat": ...}, NOW - 1000, True),
        ({"nbf": NOW}, NOW - 4.9, True),
        ({"nbf": NOW, "iat": ...}, NOW - 5.1, False),
        ({"exp": NOW + 0.5}, NOW, True),
    ],
)
def test_clocks_may_differ_by_five_seconds(changes: dict[str, object], now: float, good: bool) -> None:
    token = _forge(_payload(**changes))
    if good:
        assert _authorize(token, now=now)
    else:
        with pytest.raises(UnauthenticatedError, match=r"expired|only in"):
            _authorize(token, now=now)


def test_hs384_is_accepted() -> None:
    assert _authorize(_forge(_payload(), header={"alg": "HS384"}, digest=hashlib.sha384))


@pytest.mark.parametrize(
    "header",
    [
        {"alg": "none"},
        {"alg": "None"},
        {"alg": ""},
        {"alg": None},
        {"alg": ["HS256"]},
        {"alg": "HS512"},
        {"alg": "RS256"},
        {},
        [],
        {"alg": "HS256", "crit": ["exp"]},
        {"alg": "HS256", "b64": False, "crit": ["b64"]},
        b"not json",
    ],
    ids=str,
)
def test_no_other_algorithm_is_accepted(header: object) -> None:
    for digest in (hashlib.sha256, hashlib.sha512):
        token = _forge(_payload(), header=header, digest=digest)
        for attempt in (token, token.rpartition(".")[0] + "."):
            with pytest.raises(UnauthenticatedError):
                _authorize(attempt)


@pytest.mark.parametrize("position", range(0, len(VECTOR), 7))
def test_a_changed_character_anywhere_is_refused(position: int) -> None:
    other = "A" if VECTOR[position] != "A" else "B"
    with pytest.raises(UnauthenticatedError):
        _authorize(VECTOR[:position] + other + VECTOR[position + 1 :])


@pytest.mark.parametrize("authorization", [None, "", "  ", "Bearer", "Bearer ", "bearer  "])
def test_no_token_is_named_as_missing(authorization: str | None) -> None:
    with pytest.raises(UnauthenticatedError) as refusal:
        KeyedAuthorizer(KEYS, lambda: NOW).authorize(authorization, Capability.READ)
    assert str(refusal.value) == "missing or empty Authorization token"


@pytest.mark.parametrize(
    "authorization",
    [VECTOR, f"Basic {VECTOR}", "Bearer x", "Bearer a.b", "Bearer ..", "Bearer ä.ö.ü", f"Bearer {VECTOR} x"],
)
def test_what_is_no_bearer_token_is_refused_without_showing_it(authorization: str) -> None:
    with pytest.raises(UnauthenticatedError) as refusal:
        KeyedAuthorizer(KEYS, lambda: NOW).authorize(authorization, Capability.READ)
    assert VECTOR not in str(refusal.value)


def test_the_scheme_is_read_in_any_case() -> None:
    assert KeyedAuthorizer(KEYS, lambda: NOW).authorize(f"bEARER {VECTOR}", Capability.APPEND)


def test_the_missing_capability_is_named() -> None:
    with pytest.raises(UnauthenticatedError) as refusal:
        _authorize(sign(KEYS, _claims(Capability.READ), now=NOW, lifetime=60))
    assert str(refusal.value) == "authorization is missing required APPEND capability"


def test_all_required_capabilities_are_needed() -> None:
    token = sign(KEYS, _claims(Capability.READ | Capability.LIST), now=NOW, lifetime=60)
    assert _authorize(token, Capability.READ | Capability.LIST)
    with pytest.raises(UnauthenticatedError, match=r"required APPEND capability"):
        _authorize(token, Capability.READ | Capability.APPEND)


def test_bits_of_applications_are_kept() -> None:
    claims = _authorize(_forge(_payload(cap=0xFFFFFFFF)))
    assert claims.capability == Capability.ALL
    assert int(_authorize(_forge(_payload(cap=16 | 1 << 20))).capability) == 16 | 1 << 20


def test_the_first_key_signs_and_all_verify() -> None:
    both = parse_keys("bmV3 ,\n c2VjcmV0")
    token = sign(both, _claims(Capability.APPEND), now=NOW, lifetime=60)
    assert _authorize(token, keys=parse_keys("bmV3"))
    assert _authorize(VECTOR, keys=both)
    with pytest.raises(UnauthenticatedError, match="none of the broker's keys"):
        _authorize(token, keys=KEYS)


def test_AA_lets_calls_without_an_authorization_do_what_they_ask_for_an_hour() -> None:
    authorizer = KeyedAuthorizer(parse_keys("AA==,c2VjcmV0"), lambda: NOW)
    claims = authorizer.authorize(None, Capability.APPLY)
    assert claims == Claims(Capability.APPLY, LabelSelector(), NOW + 3600)
    for wrong in ("", "Bearer ", "Bearer x.y.z"):
        with pytest.raises(UnauthenticatedError):
            authorizer.authorize(wrong, Capability.APPLY)


def test_AA_is_not_a_key() -> None:
    forged = _forge(_payload(), secret=b"\0")
    with pytest.raises(UnauthenticatedError):
        _authorize(forged, keys=parse_keys("AA== c2VjcmV0"))


def test_without_keys_everything_is_allowed() -> None:
    assert OpenAuthorizer().authorize(None, Capability.APPLY) is EVERYTHING
    assert OpenAuthorizer().authorize("Bearer nonsense", Capability.REPLICATE) is EVERYTHING


@pytest.mark.parametrize("text", ["", " ,\n", "AA==", "AA== , AA=="])
def test_at_least_one_real_key_is_needed(text: str) -> None:
    with pytest.raises(UsageError, match="at least one authorization key"):
        parse_keys(text)


@pytest.mark.parametrize("bad", ["c2VjcmV", "c2Vj-cmV0_w", "====", "geheim!", "schlüssel"])
def test_a_key_that_is_not_base64_is_counted_but_not_shown(bad: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse_keys(f"c2VjcmV0 {bad}")
    assert "key 2 of 2" in str(refusal.value)
    assert bad not in str(refusal.value)
    assert refusal.value.hint
    assert refusal.value.__context__ is None or bad not in str(refusal.value.__context__)


@pytest.mark.parametrize("prefix", ["@", ""])
def test_keys_are_read_from_a_file_that_is_the_owners_alone(tmp_path: Path, prefix: str) -> None:
    file = tmp_path / "keys"
    file.write_text("c2VjcmV0\nbmV3\n")
    file.chmod(0o640)
    with pytest.raises(UsageError, match="by others") as refusal:
        keys_from(f"{prefix}{file}")
    assert refusal.value.hint == f"chmod 600 {file}"
    file.chmod(0o600)
    assert keys_from(f"{prefix}{file}") == parse_keys("c2VjcmV0 bmV3")


def test_keys_are_taken_literally_if_no_such_file_exists() -> None:
    assert keys_from("c2VjcmV0") == KEYS
    assert keys_from("c2VjcmV0," * 1000) == parse_keys("c2VjcmV0," * 1000)
    with pytest.raises(UsageError, match="cannot read authorization keys"):
        keys_from("@no/such/file")


def test_secrets_do_not_show() -> None:
    for thing in (KEYS, TokenSource(KEYS), FixedToken(VECTOR), KeyedAuthorizer(KEYS)):
        assert "secret" not in repr(thing).replace("secrets", "")
        assert "c2VjcmV0" not in repr(thing)
        assert VECTOR not in repr(thing)


def test_each_call_is_signed_for_what_it_needs_and_no_more() -> None:
    source = TokenSource(KEYS, lambda: NOW)
    for token, capability, selector, lifetime in [
        (source.for_list(parse_selector("prefix=a/,foo=bar")), Capability.LIST, "foo=bar,prefix=a/", 3600),
        (source.for_apply(), Capability.APPLY, "", 60),
        (source.for_read("a/journal;meta/x"), Capability.READ, "name=a/journal", 3600),
        (source.for_heads(parse_selector("foo=bar")), Capability.LIST | Capability.READ, "foo=bar", 3600),
        (source.for_append("a/journal"), Capability.APPEND, "name=a/journal", 3600),
        (source.for_health(), Capability.READ, "", 3600),
        (source.for_maintenance("a/journal"), Capability.APPLY, "name=a/journal", 60),
    ]:
        claims = _authorize(token, capability)
        assert (claims.capability, claims.expires) == (capability, NOW + lifetime)
        assert format_selector(claims.selector) == selector


def test_a_token_is_used_again_until_half_its_lifetime_is_over() -> None:
    clock = [NOW]
    source = TokenSource(KEYS, lambda: clock[0])
    first = source.for_read("a/journal")
    clock[0] += 1799
    assert source.for_read("a/journal") == first
    clock[0] += 2
    second = source.for_read("a/journal")
    assert second != first
    assert _authorize(second, Capability.READ, now=clock[0]).expires == NOW + 1801 + 3600


def test_tokens_of_many_journals_are_not_all_kept() -> None:
    source = TokenSource(KEYS, lambda: NOW)
    for i in range(3 * auth._MAX_CACHED):
        source.for_append(f"a/journal-{i}")
    assert len(source._signed) <= auth._MAX_CACHED


def test_a_fixed_token_is_sent_for_everything() -> None:
    fixed = FixedToken("given")
    assert {
        fixed.for_list(LabelSelector()),
        fixed.for_apply(),
        fixed.for_read("a/b/c"),
        fixed.for_heads(LabelSelector()),
        fixed.for_append("a/b/c"),
        fixed.for_health(),
        fixed.for_maintenance("a/b/c"),
    } == {"given"}


def test_PyJWT_is_needed_for_keys_only() -> None:
    program = """
import sys
sys.modules["jwt"] = None
from penstock.base.errors import UsageError
from penstock.journal.auth import KeyedAuthorizer, OpenAuthorizer, parse_keys
from penstock.journal.claims import Capability
OpenAuthorizer().authorize(None, Capability.READ)
try:
    KeyedAuthorizer(parse_keys("c2VjcmV0"))
except UsageError as error:
    print(error.hint)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "pip install 'penstock[broker]'\n"


def test_a_token_that_was_good_once_still_expires() -> None:
    clock = [NOW]
    authorizer = KeyedAuthorizer(KEYS, lambda: clock[0])
    authorization = bearer(sign(KEYS, _claims(Capability.READ), now=NOW, lifetime=60))
    first = authorizer.authorize(authorization, Capability.READ)
    assert authorizer.authorize(authorization, Capability.READ) == first
    with pytest.raises(UnauthenticatedError, match="missing required APPEND"):
        authorizer.authorize(authorization, Capability.APPEND)
    clock[0] += 66
    with pytest.raises(UnauthenticatedError, match="expired"):
        authorizer.authorize(authorization, Capability.READ)


def test_tokens_are_not_all_remembered_and_bad_ones_not_at_all() -> None:
    authorizer = KeyedAuthorizer(KEYS, lambda: NOW)
    for i in range(2 * auth._MAX_CACHED):
        token = sign(KEYS, _claims(Capability.READ), now=NOW, lifetime=60 + i)
        authorizer.authorize(bearer(token), Capability.READ)
        if i == 0:
            for bad in (token[:-2] + "xx", _forge(_payload(), secret=b"other")):
                with pytest.raises(UnauthenticatedError):
                    authorizer.authorize(bearer(bad), Capability.READ)
            assert len(authorizer._verified) == 1
    assert len(authorizer._verified) <= auth._MAX_CACHED
