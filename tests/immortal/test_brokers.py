"""Two instances whose logs a cluster of brokers replicates, while brokers are killed below them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.immortal.processes import Instance, running, until
from tests.immortal.test_crashes import KEPT, TINY, check_logs, progress
from tests.journal.cluster.processes import cluster

from penstock.immortal.journals import journal_name

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200), pytest.mark.xdist_group("cluster")]


@pytest.mark.parametrize("seed", range(2))
def test_brokers_are_killed_below_two_instances(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    over = tmp_path / "over"
    options = (*TINY, *KEPT, "--replication", "3")
    with cluster(tmp_path / "cluster") as brokers:
        place = ",".join(f"http://{one.address}" for one in brokers.brokers.values())
        asking = {"peer": "echo", "batch": 5, "until": str(over)}
        asker = Instance(place, tmp_path, "asker", "asker", asking, *options)
        echo = Instance(place, tmp_path, "echo", "echo", {"peer": "asker"}, *options)
        with running(asker, echo):
            until(lambda: asker.report().get("echoed"), "first answers")
            for _ in range(8):
                log = journal_name(draw.choice(("asker", "echo")), "log")
                victim = brokers[brokers.members(log)[draw.randrange(3)]]
                victim.kill()
                progress(asker)
                victim.start()
                progress(asker)
            over.touch()
            until(lambda: asker.report()["done"], "the end")
            assert asker.report()["errors"] == echo.report()["errors"] == []
            assert not asker.has_ended
            assert not echo.has_ended
        check_logs(place, asker, echo, asker.report()["sent"])
