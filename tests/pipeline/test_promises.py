"""The promises of the seed, each under its number in the list of the reference (transporter.md, section 9).

Those about runs are read off one pipeline's life (`story.py`); the others are proven on the code that keeps them, on
a real broker. Power loss, `kill -9` at every step and servers elsewhere have tests of their own (`tests/crash`,
`tests/log`, `tests/journal`).
"""

from __future__ import annotations

import json
import sqlite3
import struct
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import Pipeline
from penstock import adaptors as a
from penstock import functions as f
from penstock.adaptors.base import Batch
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.log import record as rec
from penstock.log.compaction import compact
from penstock.log.journals import extent
from penstock.log.message import Message, MessageOffset, Mode, Op
from penstock.log.offsets import Commit, OffsetLog, encode_commit
from penstock.log.record import Record
from penstock.pipeline.housekeeping import Housekeeping
from penstock.pipeline.namespace import Namespace
from penstock.pipeline.runner import run
from penstock.pipeline.settings import PipelineSettings
from penstock.spark.columns import SCHEMA

from .byhand import NOW, ByHand, Forgetful, ForgetfulPublisher, numbered

if TYPE_CHECKING:
    from .story import Story

SEED_KEYS = "AABBAABBCACBAACBA"
"""The keys of offsets 0 to 16 in the seed's picture of a compaction; 17 to 27 begin again from the front."""


@pytest.mark.parametrize("crash", ["before publishing", "after publishing", "before the commit"])
def test_promise_01_at_least_once(here: ByHand, monkeypatch: pytest.MonkeyPatch, crash: str) -> None:
    """A target that knows nothing of offsets gets each message, and only the one under way a second time."""
    here.append("AAAA")
    target, published = Forgetful(here.target()), ForgetfulPublisher.publish
    commit = OffsetLog.commit

    def publish(self: ForgetfulPublisher, parts: object, position: object) -> None:
        third = position.watermark == 3  # type: ignore[attr-defined]
        if crash == "before publishing" and third:
            raise KeyboardInterrupt
        published(self, parts, position)  # type: ignore[arg-type]
        if crash == "after publishing" and third:
            raise KeyboardInterrupt

    def committed(self: OffsetLog, wanted: Commit, *rest: object) -> None:
        if crash == "before the commit" and wanted.watermark == 3:
            raise KeyboardInterrupt
        commit(self, wanted, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(ForgetfulPublisher, "publish", publish)
        patch.setattr(OffsetLog, "commit", committed)
        with pytest.raises(KeyboardInterrupt):
            here.deliver(to=target)
    assert here.held().commit.watermark == 2
    here.deliver(to=target)
    doubled = [] if crash == "before publishing" else [2]
    assert here.lines() == numbered([0, 1, *doubled, 2, 3])


def test_promise_02_message_has_op_timestamp_namespace_and_data(here: ByHand) -> None:
    data = b'{"b": 1.10, "a": null}'
    here.log.append([Message("orders", data, Op.UPDATE, NOW, Mode.SYNC)], {}, [], NOW)
    (record,) = here.log.reader.show(0, 0)
    assert (record.op, record.ts, record.ns, record.data) == (Op.UPDATE, NOW, "orders", data)
    assert {"op", "ts", "ns", "data"} < set(SCHEMA.names), "and so Spark has it"


def test_promise_03_namespace_regex_catches_all_by_default_and_is_matched_at_each_hop(here: ByHand) -> None:
    assert Namespace().matches("anything")
    assert Namespace("/users/").matches("old_users")
    assert not Namespace("^users$").matches("old_users")
    here.append("ABAB")
    renamed = f.remap(ns_map={"A": "Z"})
    few = f.skip(field="n", operator="==", match=0)
    here.deliver(renamed, (few, "^Z$"), sink="before", ns="^A$")
    here.deliver(renamed, (few, "^A$"), sink="after", ns="^[AZ]$")
    assert here.lines("before") == numbered([0]), (
        "the sink sees the name as logged, a function the current one"
    )
    assert here.lines("after") == numbered([0, 2]), "no message is of A any more where the second one stands"


@pytest.mark.spark
def test_promise_04_one_reader_several_filtered_writers(story: Story) -> None:
    """And no function in front of one sink shows at another."""
    one = story.chapters["one"]
    assert one.lines["c0"] == [f'{{"n":{n},"x":1.10}}' for n in range(18)] + ['{"n":18,"x":1.10,"slow":1}']
    assert one.lines["c1"] == [f'{{"n":{n}}}' for n in range(18)] + ['{"n":18,"slow":1}']
    shown = [json.loads(line) for line in one.lines["c2"]]
    assert [(line["data"]["n"], line["ns"]) for line in shown] == [
        (0, "Z"), (1, "Z"), (2, "B"), (3, "B"), (4, "Z"), (5, "Z"), (6, "B"), (7, "B"), (9, "Z"), (11, "B"), (15, "B"),
    ]  # fmt: skip


def test_promise_05_functions_may_edit_or_drop(here: ByHand) -> None:
    here.log.append([Message("A", b'{"n":%d, "x":1.10}' % n, ts=NOW) for n in range(4)], {}, [], NOW)
    done = here.deliver(f.skip(field="n", operator=">", match=1), f.rename(field_map={"n": "m"}))
    assert (done.delivered, done.dropped) == (2, 2)
    assert [json.loads(line) for line in here.lines()] == [{"m": 2, "x": 1.1}, {"m": 3, "x": 1.1}]
    assert all('"x":1.10' in line for line in here.lines()), "what is not edited stays as it was written"


def test_promise_06_copy_then_continuous_capture(here: ByHand) -> None:
    database = sqlite3.connect(here.path / "shop.db", isolation_level=None)
    database.executescript(
        "PRAGMA journal_mode = WAL; CREATE TABLE orders (id INTEGER PRIMARY KEY); INSERT INTO orders VALUES (1), (2)"
    )
    source = a.sqlite(uri=f"sqlite://{here.path}/shop.db", tail=True, poll_interval=0.02).source()
    stop, found = threading.Event(), []
    for batch in source.read(Namespace().matches, {}, stop):
        found += [(json.loads(message.data)["id"], message.mode) for message in batch.messages]
        if "orders" in batch.completed:
            database.execute("INSERT INTO orders VALUES (3)")
        if len(found) == 3:
            stop.set()
    database.close()
    assert found == [(1, Mode.COPY), (2, Mode.COPY), (3, Mode.SYNC)]


def test_promise_07_reader_attaches_phase_per_namespace_and_source_position(here: ByHand) -> None:
    first = Batch(
        [Message("XYZ", b"{}"), Message("ABC", b"{}")], {"XYZ": {"ts": 5}, "ABC": {"id": 1}}, ["XYZ"]
    )
    here.log.append(first.messages, first.positions, first.completed, NOW)
    later = [Message("XYZ", b"{}", mode=Mode.SYNC)]
    here.log.append(later, {"XYZ": {"oplog": 123456}}, [], NOW)
    known = here.opened().resume()
    assert (known["XYZ"].mode, known["XYZ"].position) == (Mode.SYNC, {"oplog": 123456})
    assert (known["ABC"].mode, known["ABC"].position) == (Mode.COPY, {"id": 1}), (
        "its copy goes on, XYZ's is done"
    )


@pytest.mark.spark
def test_promise_08_reader_is_given_its_last_sent_message(story: Story) -> None:
    first, second = story.given
    told = {ns: (resume.offset, resume.message and resume.message.data) for ns, resume in first.items()}
    assert told == {ns: (n, b'{"n":%d,"x":1.10}' % n) for ns, n in (("A", 13), ("B", 15), ("C", 14))}
    assert {ns: resume.offset for ns, resume in second.items()} == {"A": 18, "B": 15, "C": 14, "D": 17}
    assert {ns: resume.mode.word for ns, resume in second.items()} == {
        "A": "sync", "B": "sync", "C": "copy", "D": "sync",
    }  # fmt: skip


def test_promise_09_writers_acknowledge_singly_and_in_bulk(here: ByHand) -> None:
    here.append("ABC" * 4)
    log = OffsetLog(here.client, "p", "bulk", NOW)
    log.commit(Commit(watermark=12, delivered=12), {"A": 9, "B": 10, "C": 11}, NOW)
    here.deliver(sink="single")
    assert here.commits("bulk") == [12]
    assert here.commits("single") == list(range(1, 13))
    assert here.held("bulk").namespaces == here.held("single").namespaces == {"A": 9, "B": 10, "C": 11}


@pytest.mark.spark
def test_promise_10_every_writer_has_its_own_offset(story: Story) -> None:
    two = story.chapters["two"]
    assert [(sink, two.offset(sink)) for sink in sorted(two.held)] == [
        ("broken", -1), ("c0", 18), ("c1", 25), ("c2", 18),
    ]  # fmt: skip
    assert two.held["c0"].namespaces == {"A": 18, "B": 15, "C": 14, "D": 17}
    assert two.held["c1"].namespaces == {"A": 25, "B": 15, "C": 14, "D": 17}


@pytest.mark.spark
def test_promise_11_functions_acknowledge_dropped_messages(story: Story) -> None:
    """Also those of namespaces that the sink's filter leaves out."""
    one = story.chapters["one"]
    c2 = one.sink("c2")
    assert (c2.messages_in, c2.delivered, c2.dropped, c2.pending) == (19, 11, 8, 0)
    assert (one.offset("c2"), one.held["c2"].namespaces) == (18, {"A": 18, "B": 15, "C": 14, "D": 17})


@pytest.mark.spark
def test_promise_12_an_error_in_a_bulk_stops_the_writer(story: Story) -> None:
    """The sink stops with its offset before the bulk, nothing of which is in the target."""
    one, two = story.chapters["one"], story.chapters["two"]
    c0 = two.sink("c0")
    assert (c0.delivered, c0.pending, two.offset("c0")) == (0, 7, 18)
    assert "its target refused the batch 19 to 25" in (c0.error or "")
    assert two.lines["c0"] == one.lines["c0"]
    assert two.summary.exit_code == 3


@pytest.mark.spark
def test_promise_13_offsets_are_written_every_interval(story: Story, here: ByHand) -> None:
    """One second by default. What is not written yet is what a crash forgets, and no more."""
    assert PipelineSettings().offset_interval == 1.0
    assert story.kept_meanwhile == 18, (
        "written while the run went on, though its batch had nothing to deliver"
    )
    log = OffsetLog(here.client, "p", "s", NOW)
    log.commit(Commit(watermark=3), {"A": 2}, NOW)
    log.note(Commit(watermark=5), {"A": 4})
    assert here.held().commit.watermark == 3
    assert log.flush(NOW)
    assert (here.held().commit.watermark, here.held().namespaces) == (5, {"A": 4})


@pytest.mark.spark
def test_promise_14_after_a_crash_each_writer_gets_just_what_it_misses(story: Story) -> None:
    """The seed's example: 13 to 15 for c0, 14 and 15 for c1. Nothing that Spark remembers matters."""
    assert story.before == {"c0": 12, "c1": 13}
    assert story.attempts[:14] == [*[1] * 13, 3], "13 steps by hand, then the three that c0 missed"
    one, two = story.chapters["one"], story.chapters["two"]
    assert (one.sink("c0").delivered, one.sink("c1").delivered) == (3 + 3, 2 + 3), "with 16 to 18"
    for sink in ("c0", "c1"):
        assert [json.loads(line)["n"] for line in one.lines[sink]] == list(range(19)), (
            "none missing, none twice"
        )
    assert [json.loads(line)["n"] for line in two.lines["c1"]] == list(range(26)), (
        "scratch and index were lost"
    )


@pytest.mark.spark
def test_promise_15_clean_shutdown_gives_writers_30_seconds(story: Story) -> None:
    """Asked to stop in the middle of c0's last batch, the run ended with it, published and acknowledged."""
    assert PipelineSettings().stop_timeout == 30.0
    one = story.chapters["one"]
    assert (one.summary.exit_code, one.sink("c0").pending, one.offset("c0")) == (0, 0, 18)
    assert one.lines["c0"][-1] == '{"n":18,"x":1.10,"slow":1}'
    assert "stopping" in one.phases


@pytest.mark.spark
def test_promise_16_after_a_failed_bulk_messages_come_one_at_a_time(story: Story) -> None:
    assert story.chapters["two"].held["c0"].commit.careful == 26
    assert story.attempts[-8:-1] == [7, *[1] * 6], "the bulk, then 19 to 24 each by itself"


@pytest.mark.spark
def test_promise_17_an_error_while_resuming_leaves_the_offset_at_the_last_good_message(story: Story) -> None:
    three = story.chapters["three"]
    assert (three.summary.exit_code, three.offset("c0"), three.sink("c0").pending) == (3, 23, 2)
    assert [json.loads(line)["n"] for line in three.lines["c0"]] == list(range(24))
    assert "stopped before message 24 of namespace 'A'" in (three.sink("c0").error or "")
    assert "penstock offset ack c0 24" in (three.summary.message or "")


@pytest.mark.spark
def test_promise_18_operator_can_process_one_at_a_time(story: Story) -> None:
    (done,) = story.stepped
    assert (done.sink, done.offset, done.ns, done.outcome) == ("c0", 25, "A", "delivered")
    assert story.attempts[-1] == 1


@pytest.mark.spark
def test_promise_19_operator_can_view_messages_x_to_y(story: Story) -> None:
    assert [(shown.offset, shown.ns, shown.op, shown.mode, shown.data) for shown in story.shown] == [
        (n, "A", "update", "sync", f'{{"n":{n},"x":1.10}}') for n in (24, 25)
    ]


@pytest.mark.spark
def test_promise_20_operator_can_acknowledge_without_sending(story: Story) -> None:
    assert story.acknowledged == 24
    after = story.chapters["after"]
    assert [json.loads(line)["n"] for line in after.lines["c0"]] == [*range(24), 25]
    assert (after.summary.exit_code, after.offset("c0")) == (0, 25)


@pytest.mark.spark
def test_promise_21_reading_resumes_when_all_offsets_equal_the_last_one(story: Story) -> None:
    """The seed's rule, kept to the letter where the pipeline is strict."""
    assert story.when_read == [{"c0": 15, "c1": 15, "c2": 15}]
    assert story.chapters["one"].summary.read == 3


def test_promise_21_does_not_wait_for_a_sink_that_was_given_up(tmp_path: Path) -> None:
    """A detached sink has no offset that could ever equal the last one; the others go on without it."""
    with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
        ByHand(client, tmp_path).append("AAA")
        OffsetLog(client, "p", "far", NOW).commit(Commit(watermark=1, detached=True), {"A": 0}, NOW)
        OffsetLog(client, "p", "near", NOW).commit(Commit(watermark=3), {"A": 2}, NOW)
    pipeline = Pipeline("p", strict=True)
    source = pipeline.source("in", a.generate(count=0))
    for sink in ("far", "near"):
        source.save(sink, a.discard())
    summary = run(pipeline, data_dir=tmp_path / "data", once=True)
    assert (summary.exit_code, [sink.pending for sink in summary.sinks]) == (0, [2, 0])


def test_promise_22_segment_size_is_configurable_and_1_gb_by_default(here: ByHand) -> None:
    assert PipelineSettings().segment_bytes == 1 << 30
    assert Pipeline("p", segment_bytes="64MiB").settings.segment_bytes == 64 << 20
    log = here.opened(segment_bytes=1 << 20, pipeline="small")
    for _ in range(4):
        log.append([Message("A", b'"%s"' % (b"x" * 400_000), ts=NOW)], {}, [], NOW)
    sizes = [fragment.spec.end - fragment.spec.begin for fragment in here.client.fragments(log.journal)]
    assert len(sizes) == 2
    assert 1 << 20 <= sizes[0] < (1 << 20) + 500_000


def test_promise_23_compaction_up_to_the_earliest_consumer_offset(here: ByHand) -> None:
    """As a run does it, on its own: sinks that were removed count until they are forgotten."""
    for _ in range(4):
        here.append("AB")
        here.close_segment()
    here.append("A")
    OffsetLog(here.client, "p", "removed", NOW).commit(Commit(watermark=5), {"A": 4}, NOW)
    own = {"s": Commit(watermark=9), "far": Commit(watermark=1, detached=True)}
    upkeep = Housekeeping(here.log, "p", PipelineSettings(compaction_interval=0.001), lambda: own)
    upkeep.start()
    deadline = time.monotonic() + 60
    while here.log.reader.first().offset < 4 and time.monotonic() < deadline:
        time.sleep(0.02)
    upkeep.stop(20)
    assert here.log.reader.first().offset == 4, "the segment of 4 and 5 holds one that `removed` has not got"
    assert here.readable() == [(2, "A"), (3, "B"), (4, "A"), (5, "B"), (6, "A"), (7, "B"), (8, "A")]


def test_promise_24_compaction_keeps_one_message_per_key(here: ByHand) -> None:
    """The seed's example: of 0 to 16 just 14 C, 15 B and 16 A stay."""
    here.append(SEED_KEYS)
    here.close_segment()
    here.append(SEED_KEYS[:11])
    compact(here.log, MessageOffset(28), now=NOW)
    assert here.readable()[:3] == [(14, "C"), (15, "B"), (16, "A")]
    assert [record.data for record in here.log.reader.show(14, 16)] == [b'{"n":14}', b'{"n":15}', b'{"n":16}']
    assert [offset for offset, _ in here.readable()[3:]] == list(range(17, 28))


def test_promise_25_only_non_active_segments_are_compacted(here: ByHand) -> None:
    here.append("AAAA")
    before = here.client.read_bytes(here.log.journal, 0, 0)
    assert compact(here.log, MessageOffset(4), now=NOW).removed == 0
    assert here.client.read_bytes(here.log.journal, 0, 0) == before
    here.close_segment()
    begin = here.log.point.byte
    here.append("AA")
    active = here.client.read_bytes(here.log.journal, begin, 0)
    assert compact(here.log, MessageOffset(6), now=NOW).removed == 3
    assert here.client.read_bytes(here.log.journal, begin, 0) == active
    assert here.readable() == [(3, "A"), (4, "A"), (5, "A")]


def test_promise_26_offset_log_is_compacted_continually(here: ByHand) -> None:
    """At least one entry for each key stays, as in the seed's example; and a sink that goes on for ever stays small."""
    log = OffsetLog(here.client, "p", "c0", NOW)
    told = [
        ("A", 1),
        ("A", 8),
        ("B", 1),
        ("C", 3),
        ("A", 13),
        ("B", 12),
        ("C", 9),
        ("A", 26),
        ("B", 23),
        ("C", 27),
    ]
    for ns, offset in told:
        log.commit(Commit(watermark=offset + 1), {ns: offset}, NOW)
    assert log.compact(NOW, least_bytes=0)
    begin, head = extent(here.client, log.journal)
    left = [
        record for _, record in rec.decode_all(here.client.read_bytes(log.journal, begin, head), log.journal)
    ]
    entries = [(record.ns, int.from_bytes(record.data)) for record in left if not record.control]
    assert entries == [("A", 26), ("B", 23), ("C", 27)]
    names = {f"{letter * 2000}": 0 for letter in "defghijklm"}
    compactions = 0
    for n in range(28, 60):
        log.commit(Commit(watermark=n), names, NOW)
        compactions += log.compact(NOW)  # as a run asks once in the interval
    assert compactions >= 1
    assert extent(here.client, log.journal).size < 512 << 10
    assert here.held("c0").commit.watermark == 59
    assert here.held("c0").namespaces == {"A": 26, "B": 23, "C": 27, **names}


def test_promise_27_entry_format(here: ByHand) -> None:
    """Byte for byte, in the journal itself."""
    here.log.append([Message("orders", b'{"_id":"a1","qty":3}', ts=1700000000)], {}, [], NOW)
    here.log.append(
        [Message("orders", b'{"_id":"a1","qty":4}', Op.UPDATE, 1700000060, Mode.SYNC)], {}, [], NOW
    )
    written = (
        "0000000000000000 00000022 000000006553f100 00 00000006 6f7264657273 00000014"
        "7b225f6964223a226131222c22717479223a337d"
        "0000000000000001 00000022 000000006553f13c 05 00000006 6f7264657273 00000014"
        "7b225f6964223a226131222c22717479223a347d"
    )
    content = here.client.read_bytes(here.log.journal, 0, 0)
    assert content.endswith(bytes.fromhex(written.replace(" ", "")))
    offset = "0000000000000000 00000016 000000006553f164 00 00000006 6f7264657273 00000008 0000000000000001"
    assert encode_commit(Commit(2), {"orders": 1}, 0, 1700000100).startswith(
        bytes.fromhex(offset.replace(" ", ""))
    )
    largest = Record(7, 1, Mode.COMPLETE, Op.UNKNOWN, "", b"")
    assert rec.encode(largest) == struct.pack(">QIQBII", 7, 8, 1, 6 << 2 | 2, 0, 0)


def test_promise_28_modes_copy_sync_complete(here: ByHand) -> None:
    """Complete is written when a copy ends, by whoever knows it; nobody has to guess."""
    here.log.append([Message("A", b"{}"), Message("B", b"{}")], {"A": {"at": 1}, "B": {"at": 1}}, ["A"], NOW)
    assert {ns: known.mode for ns, known in here.opened().resume().items()} == {
        "A": Mode.COMPLETE, "B": Mode.COPY,
    }  # fmt: skip
    here.log.append([Message("A", b"{}", mode=Mode.SYNC)], {}, [], NOW)
    written = [(record.ns, record.mode) for _, record in here.log.reader.records(0, here.log.point.byte)]  # type: ignore[arg-type]
    assert Counter(mode for ns, mode in written if ns == "A") == {
        Mode.COPY: 1,
        Mode.COMPLETE: 1,
        Mode.SYNC: 1,
    }
    assert {ns: known.mode for ns, known in here.opened().resume().items()} == {
        "A": Mode.SYNC,
        "B": Mode.COPY,
    }
