"""What servers without a secret answer to browsers."""

from __future__ import annotations

import pytest

from penstock.base.webpages import is_loopback, refusal


@pytest.mark.parametrize(
    "host, loopback",
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("localhost.evil.test", False),
        ("127.0.0.1.evil.test", False),
        ("", False),
    ],
)
def test_what_is_of_this_machine_alone(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@pytest.mark.parametrize(
    "listens, headers, status",
    [
        ("127.0.0.1", {}, None),
        ("127.0.0.1", {"Host": "localhost:8080"}, None),
        ("localhost", {"Host": "[::1]:8080"}, None),
        ("127.0.0.1", {"Host": "evil.test:8080"}, 421),
        ("127.0.0.1", {"Host": "[oops"}, 421),
        ("0.0.0.0", {"Host": "bank.test:8080"}, None),
        ("0.0.0.0", {"Host": "bank.test:8080", "Origin": "http://evil.test"}, 403),
        ("127.0.0.1", {"Host": "localhost:8080", "Origin": "http://localhost:3000"}, 403),
        ("127.0.0.1", {"Host": "localhost:8080", "Origin": "null"}, 403),
        ("127.0.0.1", {"Host": "localhost:8080", "Origin": "https://ours.test"}, None),
        ("127.0.0.1", {"Host": "evil.test:8080", "Origin": "https://ours.test"}, 421),
    ],
)
def test_pages_of_others_and_names_that_are_not_ours_are_refused(
    listens: str, headers: dict[str, str], status: int | None
) -> None:
    found = refusal(listens, headers, ["https://ours.test"])
    assert (found and found.status) == status


def test_all_pages_may_ask_where_that_is_said() -> None:
    assert refusal("127.0.0.1", {"Origin": "http://any.test"}, ["*"]) is None
