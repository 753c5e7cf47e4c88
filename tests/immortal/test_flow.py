"""Who sends more than is taken: what waits for whom, and what never does."""

from __future__ import annotations

import pytest
from tests.immortal.test_startups import broker, instance, scenario

from penstock.immortal import coordinator
from penstock.immortal.coordinator import Options
from penstock.immortal.place import Place
from penstock.immortal.wire import Call, RpcType, outgoing

__all__ = ["broker"]


def test_a_binding_that_reads_nothing_until_all_it_sends_is_taken_goes_on(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the Node binding does when it has much to send."""
    monkeypatch.setattr(coordinator, "QUEUE_BYTES", 1 << 20)
    monkeypatch.setattr(coordinator, "COMMIT_BUFFER", 1 << 20)

    async def test(place: Place, options: Options) -> None:
        async with instance(place, options) as one:
            await one.seen("control 11", "record 0")
            for _ in range(32):  # each by itself, and `Lb` reads again when they are gone
                one.lb.writer.write(outgoing("", Call(9, RpcType.FORK, bytes(1 << 20))))
            one.lb.writer.write(outgoing("", Call(1, RpcType.FORK, b'{"n": 7}')))
            await one.until(lambda: one.app.state["sum"] == 7)

    scenario(broker, test, "breathless")
