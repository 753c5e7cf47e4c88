"""The traps of the original, each under its number in the list of the reference (transporter.md, section 10).

What a trap did to a whole run is read off one pipeline's life (`story.py`); what it rests on is tried by hand.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.adaptors.packed import messages_of

from penstock import Pipeline
from penstock import adaptors as a
from penstock import functions as f
from penstock.adaptors.base import Batch
from penstock.adaptors.file.sink import FileSink
from penstock.adaptors.file.source import BadLineError
from penstock.base.errors import UsageError
from penstock.cli.common import DEFAULT_DATA_DIR
from penstock.journal.embedded import EmbeddedBroker
from penstock.log import offsets, values
from penstock.log.compaction import compact
from penstock.log.message import Message, MessageOffset, Mode, Op
from penstock.log.offsets import Commit, OffsetLog
from penstock.log.values import Binary
from penstock.pipeline import offsetfile
from penstock.pipeline.definition import load_pipeline
from penstock.pipeline.editing import Editor
from penstock.pipeline.operations import Directory
from penstock.pipeline.runner import run

from .byhand import NOW, ByHand, numbered

if TYPE_CHECKING:
    from .story import Story


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("Pipeline('p', xlog_dir='state')", "unknown setting 'xlog_dir'"),
        ("Pipeline('p', segment_byte=1)", "did you mean 'segment_bytes'?"),
        ("f.omit(field=['a'])", "did you mean 'fields'?"),
        ("a.file(url='file://x')", "did you mean 'uri'?"),
    ],
)
def test_trap_01_a_typo_in_a_setting_is_refused_with_a_suggestion(
    tmp_path: Path, line: str, words: str
) -> None:
    file = tmp_path / "shop.py"
    file.write_text(f"from penstock import Pipeline, adaptors as a, functions as f\n{line}\n")
    with pytest.raises(UsageError, match="line 2") as refused:
        load_pipeline(file)
    assert words in refused.value.message


@pytest.mark.spark
def test_trap_02_two_lagging_sinks_each_get_their_own(story: Story) -> None:
    """Both lagged at the restart, by three and by two, and a third one by everything."""
    one = story.chapters["one"]
    assert (story.before, story.when_read) == ({"c0": 12, "c1": 13}, [{"c0": 15, "c1": 15, "c2": 15}])
    assert {sink.sink: sink.messages_in for sink in one.summary.sinks} == {"c0": 6, "c1": 5, "c2": 19}
    assert {sink: len(lines) for sink, lines in one.lines.items()} == {"c0": 19, "c1": 19, "c2": 11}
    assert all(len(set(lines)) == len(lines) for lines in one.lines.values()), "nothing came twice"


@pytest.mark.spark
def test_trap_03_a_last_entry_that_is_dropped_behind_others_is_no_dead_end(story: Story) -> None:
    """18, the last message, was dropped for c2, behind others that it delivered; the next start finds nothing to do."""
    assert story.chapters["one"].offset("c2") == 18
    idle = story.chapters["idle"]
    assert (idle.summary.exit_code, [sink.messages_in for sink in idle.summary.sinks]) == (0, [0, 0, 0])
    assert "starting spark" not in idle.phases


def test_trap_03_also_one_by_one(here: ByHand) -> None:
    here.append("AAAA")
    done = here.deliver(f.skip(field="n", operator="<", match=2))
    assert (done.watermark, here.held().commit.watermark, here.lines()) == (4, 4, numbered([0, 1]))


def test_trap_04_compaction_of_an_empty_or_idle_log_loses_nothing_to_come(here: ByHand) -> None:
    for _ in range(3):
        assert compact(here.log, here.log.point.offset, now=NOW).removed == 0
        here.close_segment()
    here.append("AAAAA")
    assert compact(here.log, here.log.point.offset, now=NOW).removed == 0
    here.append("A")
    here.opened()
    assert [offset for offset, _ in here.readable()] == list(range(6))
    assert here.deliver().delivered == 6


def test_trap_05_a_sink_that_never_acknowledged_holds_compaction_back(here: ByHand) -> None:
    here.append("AAA")
    here.close_segment()
    here.append("A")
    OffsetLog(here.client, "p", "all", NOW).commit(Commit(watermark=4), {"A": 3}, NOW)
    earliest = min(here.held(sink).commit.watermark for sink in ("all", "never"))
    assert compact(here.log, MessageOffset(earliest), now=NOW).removed == 0
    assert here.deliver(sink="never").delivered == 4
    assert here.lines("never") == numbered(range(4))


def test_trap_06_a_copy_is_not_complete_because_another_namespace_wrote_the_last_entry(here: ByHand) -> None:
    here.log.append([Message("small", b"{}")], {"small": {"at": 1}}, ["small"], NOW)
    here.log.append([Message("big", b'{"id":1}')], {"big": {"id": 1}}, [], NOW)
    here.log.append([Message("small", b"{}", Op.UPDATE, mode=Mode.SYNC)], {"small": {"at": 2}}, [], NOW)
    resume = here.opened().resume()
    assert (resume["small"].mode, resume["big"].mode) == (Mode.SYNC, Mode.COPY)
    assert resume["big"].position == {"id": 1}


def test_trap_07_a_sink_whose_offset_was_compacted_away_still_starts(here: ByHand) -> None:
    """Message 4, its last one, is gone, and so is 3; 5 was kept, as the newest of B."""
    here.append("AAABBB")
    here.close_segment()
    here.append("AB")
    OffsetLog(here.client, "p", "s", NOW).commit(Commit(watermark=5, detached=True), {"B": 4}, NOW)
    compact(here.log, MessageOffset(8), now=NOW)
    assert [offset for offset, _ in here.readable()] == [2, 5, 6, 7]
    assert here.deliver().delivered == 3
    assert here.lines() == numbered([5, 6, 7])


@pytest.mark.spark
def test_trap_08_a_bulk_that_fails_in_part_is_no_success(story: Story, here: ByHand) -> None:
    """One poisonous document of seven: none counts as delivered. And where single ones are refused, these are named."""
    c0 = story.chapters["two"].sink("c0")
    assert (c0.delivered, c0.rows, c0.pending) == (0, 0, 7)
    here.log.append(
        [Message("A", text, ts=NOW) for text in (b'{"a":1}', b'{"a":\n', b'{"a":3}')], {}, [], NOW
    )
    done = here.deliver()
    assert (done.delivered, here.held().commit.watermark, here.lines()) == (1, 1, ['{"a":1}'])
    assert done.refused is not None
    assert (done.refused.offset, done.refused.error.partition(":")[0]) == (1, "data is not JSON")


def test_trap_09_large_numbers_small_binary_kinds_and_empty_keys_survive_the_log(here: ByHand) -> None:
    document: values.Document = {
        "": {"": 1},
        "above": 2**53 + 1,
        "far above": 2**64 + 1,
        **{f"kind {kind}": Binary(b"\x00\xff", kind) for kind in range(1, 17)},
        "bytes": b"\x00\xff",
    }
    here.log.append([Message("A", values.encode_document(document), ts=NOW)], {}, [], NOW)
    (record,) = here.opened().reader.show(0, 0)
    assert values.decode_document(record.data) == document
    here.deliver()
    assert here.lines() == [values.encode_document(document).decode()]


@pytest.mark.parametrize("tail", [False, True])
def test_trap_10_a_poison_json_line_ends_the_reading_and_does_not_spin(tmp_path: Path, tail: bool) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"a":1}\n{"a":,}\n{"a":3}\n')
    source = a.file(uri=f"file://{path}", tail=tail).source()
    found: list[Batch] = []
    with pytest.raises(BadLineError, match=r"line 2, at byte 8: not JSON"):
        found.extend(source.read(lambda ns: True, {}, threading.Event()))
    before = [message.data for batch in found for message in messages_of(batch)]
    assert before == [b'{"a":1}'], "what came before it counts"


@pytest.mark.spark
def test_trap_11_the_exit_code_tells_of_failures_after_the_source_has_finished(story: Story) -> None:
    """A small input, a source that ends at once, a transformation that refuses everything: 3, and the reason."""
    two = story.chapters["two"]
    wrong = two.sink("broken")
    assert (two.summary.exit_code, wrong.delivered, wrong.pending) == (3, 0, 26)
    assert "'wrong' refused: KeyError: 'nothing works here'" in (two.summary.message or "")
    assert two.lines["broken"] == []
    assert two.summary.adds_up


def test_trap_12_replaying_an_insert_or_a_delete_stops_nothing(
    here: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repetition after a crash is recognised by its offsets; what an operator sends again is taken again."""
    ops = (Op.INSERT, Op.UPDATE, Op.DELETE)
    here.log.append([Message("A", b'{"n":%d}' % n, op, NOW) for n, op in enumerate(ops)], {}, [], NOW)

    commit = OffsetLog.commit
    for n in range(3):

        def killed(self: OffsetLog, wanted: Commit, *rest: object, n: int = n) -> None:
            if wanted.watermark == n + 1:
                raise KeyboardInterrupt
            commit(self, wanted, *rest)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(OffsetLog, "commit", killed)
            with pytest.raises(KeyboardInterrupt):
                here.deliver()
        assert here.lines() == numbered(range(n + 1)), "this one is in the target"
        assert here.held().commit.watermark == n, "and will come again"
    assert here.deliver().watermark == 3
    assert here.lines() == numbered(range(3))
    offsets.edit(here.client, "p", "s", NOW, lambda held: (Commit(), {}))
    assert here.deliver().delivered == 3
    assert here.lines() == numbered([0, 1, 2, 0, 1, 2])


def test_trap_13_sinks_have_names_and_a_renamed_one_gets_nothing_twice(here: ByHand) -> None:
    file = here.path / "unnamed.py"
    unnamed = 'Pipeline("p").source("in", a.generate(count=1)).save(a.discard())'
    file.write_text(f"from penstock import Pipeline, adaptors as a\n{unnamed}\n")
    with pytest.raises(UsageError, match="line 2") as refused:
        load_pipeline(file)
    assert "name comes first" in (refused.value.hint or "")
    here.append("AAAA")
    here.deliver(sink="old")
    here.append("A")
    renamed = here.deliver(sink="new", to=FileSink(here.target("old")))
    assert renamed.watermark == 5
    assert here.lines("old") == numbered(range(5)), "the target itself knows what it has"


def test_trap_13_a_renamed_sink_takes_its_offset_along_by_export_and_import(here: ByHand) -> None:
    """Also one that was set back before, so that its target has seen several generations."""
    here.append("AAA")
    here.deliver(sink="old")
    for _ in range(2):
        offsets.edit(here.client, "p", "old", NOW, lambda held: (Commit(watermark=2), {"A": 1}))
        here.deliver(sink="old")
    here.append("AA")
    directory = Directory(here.client)
    export = offsetfile.written(offsetfile.exported(directory, "p", NOW)).replace('"old"', '"new"')
    editor = Editor(directory, "somebody", clock=lambda: NOW)
    editor.restore("p", offsetfile.read(export.encode(), "the export"))
    editor.forget("p", "old")
    assert (here.held("new").commit.watermark, here.held("new").namespaces) == (3, {"A": 2})
    assert here.deliver(sink="new", to=FileSink(here.target("old"))).delivered == 2
    assert here.lines("old") == numbered([0, 1, 2, 2, 2, 3, 4])
    assert directory.sinks("p") == ["new"]


@pytest.mark.spark
def test_trap_14_nothing_is_kept_in_the_systems_temporary_directory_and_nothing_of_others_is_deleted(
    story: Story, tmp_path: Path
) -> None:
    assert list(story.temporary.iterdir()) == [], "a whole life left nothing there"
    assert Path(".penstock") == DEFAULT_DATA_DIR, "beside the pipeline, not in a place that is cleared"
    assert [path.read_text() for path in story.strangers] == ["precious"] * 4
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "notes.txt").write_text("precious")
    with pytest.raises(UsageError, match="is not a data directory and not empty"):
        EmbeddedBroker(foreign)
    assert (foreign / "notes.txt").read_text() == "precious"


def test_trap_14_a_scratch_directory_is_emptied_only_where_it_is_ours(tmp_path: Path) -> None:
    """Here the data directory lies in it, under a name that the run might have chosen."""
    pipeline = Pipeline("p")
    pipeline.source("in", a.generate(count=0)).save("out", a.discard())
    for _ in range(2):
        run(pipeline, data_dir=tmp_path / "penstock-p", once=True, scratch=tmp_path)
    assert (tmp_path / "penstock-p" / "VERSION").exists()


def test_trap_14_a_session_of_ones_own_empties_no_directory_that_was_there_before(tmp_path: Path) -> None:
    (tmp_path / "warehouse").mkdir()
    (tmp_path / "warehouse" / "table").write_text("precious")
    program = "from pathlib import Path; from penstock.spark.session import session; session(app='x', scratch=Path())"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "warehouse would be emptied for Spark, but no session has made it" in done.stderr
    assert (tmp_path / "warehouse" / "table").read_text() == "precious"
