"""Two copies of one pipeline, each with a data directory of its own, that write to one target."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from penstock import adaptors as a
from penstock.adaptors.base import RivalError
from penstock.base.errors import AwayError, CorruptError, UsageError
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.log.offsets import OffsetLog
from penstock.pipeline.definition import SinkNode
from penstock.pipeline.namespace import Namespace
from penstock.pipeline.surroundings import Surroundings, runner_for
from penstock.spark.batch import BatchRunner
from penstock.spark.reach import Reach
from penstock.spark.single import advanced

from .byhand import NOW, ByHand


def batches(here: ByHand, target: Path) -> BatchRunner:
    node = SinkNode("s", a.sqlite(uri=f"sqlite://{target}"), Namespace(".*"))
    around = Surroundings(
        "p",
        here.log.reader,
        here.log.log_id,
        here.path / "scratch",
        {"dataDir": "", "pipeline": "p"},
        Reach(""),
    )
    return runner_for(
        node, lambda: OffsetLog(here.client, "p", "s", NOW), lambda generation, refusals: None, around
    )


def deliver(sink: BatchRunner, end: int) -> None:
    """As a batch whose messages all go to the target."""
    commit = advanced(sink.offsets.state.commit, end, delivered=end - sink.offsets.state.commit.watermark)
    sink._move([], commit)
    sink._committed(commit, {})


@contextmanager
def owned(data: Path) -> Iterator[ByHand]:
    with EmbeddedBroker(data / "data") as broker, Client(broker.address) as client:
        yield ByHand(client, data)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[ByHand, ByHand]]:
    """Copies of a pipeline that had five messages; since then each has read five of its own."""
    with owned(tmp_path / "one") as here:
        here.append("aaaaa")
        first = batches(here, tmp_path / "t.db")
        first.open(5)
        deliver(first, 5)
        first.close()
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    with ExitStack() as stack:
        one, other = (stack.enter_context(owned(tmp_path / name)) for name in ("one", "other"))
        yield one, other


class TestCopies:
    @pytest.mark.parametrize("end", [7, 8, 9], ids=["less", "as many", "more"])
    def test_what_the_other_one_delivered_is_not_taken_for_ours(
        self, two: tuple[ByHand, ByHand], tmp_path: Path, end: int
    ) -> None:
        one, other = (batches(here, tmp_path / "t.db") for here in two)
        one.open(5)
        other.open(5)
        for here in two:
            here.append("bbbbb")
        deliver(other, end)
        with pytest.raises(RivalError, match="not where this run left it, at 5"):
            deliver(one, 8)
        with pytest.raises(UsageError, match="another copy of this pipeline writes there") as refused:
            one.open(10)
        assert "goes on with message 5" in str(refused.value.hint)
        assert one.offsets.state.commit.watermark == 5
        one.close()

        again = batches(two[0], tmp_path / "t.db")
        again.open(10)
        assert again._target.watermark == 5, "all that it has not delivered is delivered"
        deliver(again, 10)
        with pytest.raises(RivalError):
            deliver(other, 10)
        with pytest.raises(UsageError, match="generation 1"):
            other.open(10)
        assert other.offsets.state.commit.watermark == end
        again.close()
        other.close()

    def test_a_batch_in_doubt_that_has_landed_is_ours(
        self, two: tuple[ByHand, ByHand], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = batches(two[0], tmp_path / "t.db")
        one.open(5)
        two[0].append("bbbbb")
        publisher = one._target.publisher
        really = publisher.publish

        def lost(*arguments: object) -> None:
            really(*arguments)  # type: ignore[arg-type]
            raise AwayError("no answer")

        monkeypatch.setattr(publisher, "publish", lost)
        with pytest.raises(AwayError):
            deliver(one, 8)
        one.open(10)
        assert (one._target.watermark, one.offsets.state.commit.generation) == (8, 0)
        one.close()

    def test_a_target_that_was_away_at_the_start_is_held_against_the_log_of_then(
        self, two: tuple[ByHand, ByHand], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The log grows while the sink waits, and is soon longer than what the target has from a newer copy."""
        one, other = (batches(here, tmp_path / "t.db") for here in two)
        other.open(5)
        two[1].append("bbbbb")
        deliver(other, 8)
        other.close()
        really, away = one._sink.publisher, one._sink.publisher()
        monkeypatch.setattr(away, "open", lambda start: (_ for _ in ()).throw(AwayError("no answer")))
        monkeypatch.setattr(one._sink, "publisher", lambda: away)
        with pytest.raises(AwayError):
            one.open(5)
        two[0].append("ccccc")
        monkeypatch.setattr(one._sink, "publisher", really)
        with pytest.raises(CorruptError, match="has the messages below 8, but the log ends at 5"):
            one.open(10)
        one.close()

    def test_what_an_operator_delivered_meanwhile_is_no_rival(
        self, two: tuple[ByHand, ByHand], tmp_path: Path
    ) -> None:
        """He may also have been killed before the offset log knew of it."""
        one, by_hand = (batches(two[0], tmp_path / "t.db") for _ in range(2))
        one.claim_again()
        one.open(5)
        two[0].append("bbbbb")
        one.close()
        by_hand.claim_again()
        by_hand.open(10)
        deliver(by_hand, 6)
        by_hand._move([], advanced(by_hand.offsets.state.commit, 7, delivered=1))
        by_hand.close()
        one.claim_again()
        one.open(10)
        assert (one._target.watermark, one.offsets.state.commit.watermark) == (7, 6)
        one.close()
