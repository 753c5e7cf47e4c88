"""What moving an instance of a connector would do, in words."""

from __future__ import annotations

import msgspec
import pytest

from penstock.base.errors import UsageError
from penstock.connector.status import SessionStatus, StreamStatus, WorkerStatus
from penstock.console.actions import Wish
from penstock.console.connectors import plan_move, told

HERE, THERE = "127.0.0.1:7110", "127.0.0.1:7111"


def workers() -> list[WorkerStatus]:
    session = SessionStatus(1, "127.0.0.1:5", "send", "web", "streaming", 10, 3, 0, 30)
    streams = [StreamStatus("web", number, f"s{number}", "active", 1) for number in (1, 2)]
    other = StreamStatus("mail", 1, "m", "active", 2)
    return [
        WorkerStatus("here", HERE, "127.0.0.1:1", sessions=[session], streams=[*streams, other]),
        WorkerStatus("there", THERE, "127.0.0.1:2"),
        WorkerStatus("gone", "127.0.0.1:7112", "127.0.0.1:3", answers=False),
    ]


def test_a_page_gets_every_digit_of_a_stream() -> None:
    streams = [StreamStatus("web", 2**63 + 1, "s", "active", 1)]
    (shown,) = msgspec.json.decode(msgspec.json.encode(told(WorkerStatus("w", HERE, "", streams=streams))))[
        "streams"
    ]
    assert (shown["id"], shown["name"]) == ("9223372036854775809", "s")


def test_it_says_what_goes_from_where_to_where() -> None:
    plan = plan_move(workers(), Wish("migrate", "web", to=THERE), " --broker b", with_cookie=True)
    assert plan.changes[0] == (
        f"Instance web goes from the worker at {HERE} to the one at {THERE}, with its 2 streams."
    )
    assert plan.changes[1].startswith("1 connected program is sent there")
    assert len(plan.changes) == 3
    assert plan.command == f"penstock connector migrate web --to {THERE} --cookie-file FILE --broker b"
    assert plan.reason is None


def test_of_another_prefix_the_command_says_it() -> None:
    wish = Wish("migrate", "web", to=THERE, journals="tenants/a")
    plan = plan_move(workers(), wish, " --broker b", with_cookie=False)
    assert plan.command == f"penstock connector migrate web --to {THERE} --journals tenants/a --broker b"


def test_a_worker_that_nobody_knows_is_warned_of() -> None:
    plan = plan_move(workers(), Wish("migrate", "web", to="127.0.0.1:7112"), "", with_cookie=False)
    assert "no worker that answers is known at 127.0.0.1:7112" in plan.changes[-1]
    assert (plan.command, plan.reason) == ("penstock connector migrate web --to 127.0.0.1:7112", None)


def test_the_source_of_a_pipeline_stays_where_it_is() -> None:
    session = SessionStatus(1, "127.0.0.1:5", "send", "web", "streaming", 10, 3, 0, 30)
    source = WorkerStatus("shop.in", HERE, "127.0.0.1:1", sessions=[session], pipeline="shop")
    plan = plan_move([source], Wish("migrate", "web", to=THERE), "", with_cookie=False)
    assert plan.reason == "It is the source of pipeline shop, whose streams cannot move."


def test_what_cannot_be_moved_is_refused() -> None:
    plan = plan_move(workers(), Wish("migrate", "none", to=THERE), "", with_cookie=False)
    assert plan.reason == "No worker that answers has an instance 'none' now."
    plan = plan_move(workers(), Wish("migrate", "web", to=HERE), "", with_cookie=False)
    assert plan.reason == f"It is at {HERE} already."
    with pytest.raises(UsageError, match="expected HOST:PORT"):
        plan_move(workers(), Wish("migrate", "web", to="nonsense"), "", with_cookie=False)
