"""`penstock broker token`: what it signs a broker accepts, and no more than that."""

from __future__ import annotations

import json
import time

import pytest
from click.testing import CliRunner

from penstock.cli import cli
from penstock.journal.auth import KeyedAuthorizer, UnauthenticatedError, parse_keys
from penstock.journal.claims import Capability
from penstock.journal.protocol import JournalSpec

KEY = "c2VjcmV0c2VjcmV0"


def signed(*arguments: str) -> str:
    result = CliRunner().invoke(
        cli, ["broker", "token", "--auth-keys", KEY, *arguments], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.output.strip()


def test_a_token_allows_what_it_was_signed_for_and_no_more() -> None:
    token = signed("--can", "append", "--can", "read", "-l", "name:prefix=shop/", "--lifetime", "2h")
    authorizer = KeyedAuthorizer(parse_keys(KEY))
    claims = authorizer.authorize(f"Bearer {token}", Capability.APPEND | Capability.READ)
    assert claims.allows(JournalSpec(name="shop/orders"))
    assert not claims.allows(JournalSpec(name="other/orders"))
    assert claims.expires is not None
    assert 7190 < claims.expires - time.time() <= 7200
    with pytest.raises(UnauthenticatedError, match="APPLY"):
        authorizer.authorize(f"Bearer {token}", Capability.APPLY)


def test_json_tells_when_it_expires() -> None:
    told = json.loads(signed("--can", "all", "--json"))
    assert told["token"].count(".") == 2
    assert abs(told["expires"] - time.time() - 3600) < 5


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--can", "fly"], "fly"),
        ([], "--can"),
        (["--can", "read", "-l", "prefix=shop/"], "name:prefix=shop/"),
        (["--can", "read", "--lifetime", "0"], "cannot live"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(arguments: list[str], complaint: str) -> None:
    result = CliRunner().invoke(cli, ["broker", "token", "--auth-keys", KEY, *arguments])
    assert result.exit_code == 2
    assert complaint in result.output
    assert KEY not in result.output
