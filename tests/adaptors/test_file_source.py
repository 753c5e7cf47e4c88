"""The file source: text untouched, exact resume, bad lines named, a changed file refused."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.adaptors.packed import messages_of

from penstock import adaptors as a
from penstock.adaptors.base import Batch
from penstock.adaptors.file import source as file_source
from penstock.adaptors.formats import lines, walks
from penstock.adaptors.formats.reading import BadLineError, FileChangedError
from penstock.base.errors import AwayError, UsageError
from penstock.log.message import MessageOffset, Mode, Op, Position, Resume


def everything(ns: str) -> bool:
    return True


def known(position: Position, mode: Mode = Mode.COPY) -> dict[str, Resume]:
    return {"in": Resume(mode, position, MessageOffset(0))}


def read(path: Path, resume: dict[str, Resume] | None = None, **settings: object) -> Iterator[Batch]:
    source = a.file(uri=f"file://{path}", **settings).source()
    return source.read(everything, resume or {}, threading.Event())


def data(batches: list[Batch]) -> list[bytes]:
    return [message.data for batch in batches for message in messages_of(batch)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "in.jsonl"


def test_lines_become_messages_and_the_copy_is_completed(path: Path) -> None:
    path.write_bytes(b'{"a": 1.00}\n\n{"b":"\xc3\xa9"}\r\n{"c":[]}')
    batches = list(read(path))
    messages = [message for batch in batches for message in messages_of(batch)]
    assert [message.data for message in messages] == [b'{"a": 1.00}', b'{"b":"\xc3\xa9"}', b'{"c":[]}']
    assert {(message.ns, message.op, message.mode, message.key) for message in messages} == {
        ("in", Op.INSERT, Mode.COPY, None)
    }
    assert messages[0].ts > 1_700_000_000_000_000
    assert [list(batch.completed) for batch in batches[-2:]] == [[], ["in"]]
    assert batches[-1].positions["in"]["byte"] == path.stat().st_size


def test_an_empty_file_is_complete_at_once(path: Path) -> None:
    path.write_bytes(b"")
    assert [(messages_of(batch), list(batch.completed)) for batch in read(path)] == [([], ["in"])]


def test_a_namespace_that_is_not_wanted_is_not_read(path: Path) -> None:
    path.write_bytes(b"nonsense")
    source = a.file(uri=f"file://{path}").source()
    assert list(source.read(lambda ns: False, {}, threading.Event())) == []


@pytest.mark.parametrize(
    "name, ns, expected",
    [
        ("in.jsonl", None, "in"),
        ("a.b.json", None, "a.b"),
        ("plain", None, "plain"),
        ("x.json", "shop", "shop"),
    ],
)
def test_the_namespace_is_the_name_without_extension_or_as_set(
    tmp_path: Path, name: str, ns: str | None, expected: str
) -> None:
    (tmp_path / name).write_bytes(b"{}")
    source = a.file(uri=f"file://{tmp_path / name}", ns=ns).source()
    assert source.namespaces() == [expected]
    batches = list(source.read(everything, {}, threading.Event()))
    assert messages_of(batches[0])[0].ns == expected


def test_a_relative_path_is_that_of_the_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    adaptor = a.file(uri="file://in.jsonl")
    monkeypatch.chdir("/")
    assert adaptor.uri == f"file://{tmp_path}/in.jsonl"
    assert adaptor.path == tmp_path / "in.jsonl"


@pytest.mark.parametrize("uri", ["in.jsonl", "file://", "sqlite://x", "file:/x", "://x"])
def test_a_uri_of_another_kind_is_refused(uri: str) -> None:
    with pytest.raises(UsageError, match=r"adaptor 'file': setting 'uri': expected file://PATH"):
        a.file(uri=uri)


@pytest.mark.parametrize(
    "settings, complaint",
    [
        ({"uri": "file://x", "tails": True}, "unknown setting 'tails'; did you mean 'tail'?"),
        ({"uri": "file://x", "bad_lines": "ignore"}, "setting 'bad_lines': invalid enum value 'ignore'"),
        ({"uri": "file://x", "if_exists": "overwrite"}, "setting 'if_exists'"),
        ({"uri": "file://x", "ns": ""}, "setting 'ns': expected a name"),
        ({}, "setting 'uri' is missing"),
    ],
)
def test_bad_settings_are_refused_at_load(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(UsageError) as error:
        a.file(**settings)
    assert complaint in error.value.message


def test_a_backfill_begins_anew_and_cannot_choose(path: Path) -> None:
    path.write_bytes(b'{"a":1}\n')
    assert data(list(read(path, known({})))) == [b'{"a":1}']
    chosen = {"in": Resume(Mode.COPY, {}, MessageOffset(4), None, "a > 3")}
    with pytest.raises(UsageError, match=r"adaptor 'file' cannot choose rows: namespace 'in' .* 'a > 3'"):
        list(read(path, chosen))


def test_a_disk_that_does_not_answer_is_away_and_not_wrong(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(b'{"a":1}\n')

    def gone(*_: object) -> bytes:
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", gone)
        with pytest.raises(AwayError, match=r"cannot read .*in\.jsonl: Stale file handle"):
            list(read(path))
    assert data(list(read(path))) == [b'{"a":1}']


def test_what_cannot_be_read_is_a_usage_error(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path / "missing" / "in"):
        with pytest.raises(UsageError, match="cannot read"):
            a.file(uri=f"file://{path}").source().namespaces()
        with pytest.raises(UsageError, match="cannot read"):
            list(read(path))


CONTENT = b"".join(b'{"n":%d,"pad":"%s"}\n' % (n, b"x" * (n % 7)) + b"\n" * (n % 3 == 0) for n in range(60))
DOCUMENTS = [line for line in CONTENT.split(b"\n") if line]


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "BLOCK", 64)
    monkeypatch.setattr(walks, "MOST_LINES", 3)


@pytest.mark.parametrize("content", [CONTENT, CONTENT.rstrip(b"\n"), b"\xef\xbb\xbf" + CONTENT])
@pytest.mark.usefixtures("small_batches")
def test_a_resumed_run_goes_on_exactly_after_any_batch(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    batches = list(read(path))
    assert data(batches) == DOCUMENTS
    assert len(batches) > 20
    for taken in range(1, len(batches)):
        position = batches[taken - 1].positions["in"]
        rest = list(read(path, known(position)))
        assert data(batches[:taken]) + data(rest) == DOCUMENTS
        assert list(rest[-1].completed) == ["in"]
        assert rest[-1].positions == batches[-1].positions


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.sampled_from([b'{"a":1}', b"", b'  {"b":"\xc3\xa9"} ', b'{"long":"' + b"y" * 90 + b'"}']),
        max_size=12,
    ),
    st.booleans(),
    st.integers(1, 80),
    st.integers(1, 4),
)
def test_block_and_batch_sizes_change_nothing(
    tmp_path: Path, rows: list[bytes], ended: bool, block: int, most: int
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join(rows) + (b"\n" if ended and rows else b""))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walks, "BLOCK", block)
        patch.setattr(walks, "MOST_LINES", most)
        batches = list(read(path))
    assert data(batches) == [row.strip() for row in rows if row.strip()]
    assert all(len(messages_of(batch)) <= most for batch in batches)


@pytest.mark.parametrize("size", range(len(CONTENT[:200]) + 1))
def test_a_file_that_grows_byte_by_byte_is_read_once_in_two_runs(path: Path, size: int) -> None:
    whole = CONTENT[:200]
    path.write_bytes(whole[:size])
    documents: list[bytes] = []
    try:
        position: Position = {}
        for batch in read(path):
            documents += [message.data for message in messages_of(batch)]
            position = dict(batch.positions["in"])
        mode = Mode.COMPLETE
    except BadLineError:
        mode = Mode.COPY
    path.write_bytes(CONTENT)
    rest = list(read(path, known(position, mode) if position else {}))
    assert documents + data(rest) == DOCUMENTS


def test_what_is_appended_after_the_copy_is_read_as_change(path: Path) -> None:
    path.write_bytes(b'{"a":1}')
    position = list(read(path))[-1].positions["in"]
    assert list(read(path, known(position, Mode.COMPLETE))) == []
    path.write_bytes(b'{"a":1}\n{"b":2}\n')
    batches = list(read(path, known(position, Mode.COMPLETE)))
    assert [(message.data, message.mode) for message in messages_of(batches[0])] == [(b'{"b":2}', Mode.SYNC)]
    assert all(not batch.completed for batch in batches)


@pytest.mark.usefixtures("small_batches")
def test_a_bad_line_stops_the_run_by_file_line_and_byte_after_what_is_before_it(path: Path) -> None:
    path.write_bytes(b'{"a":1}\n\n{"b":2}\nnonsense\n{"c":3}\n')
    batches: list[Batch] = []
    with pytest.raises(BadLineError) as error:
        batches.extend(read(path))
    assert data(batches) == [b'{"a":1}', b'{"b":2}']
    assert str(error.value).startswith(f"{path}, line 4, at byte 17: not JSON")
    assert "bad_lines='skip'" in str(error.value.hint)
    position = batches[-1].positions["in"]
    path.write_bytes(b'{"a":1}\n\n{"b":2}\n{"mended":true}\n{"c":3}\n')
    assert data(list(read(path, known(position)))) == [b'{"mended":true}', b'{"c":3}']


def test_the_line_of_an_error_is_right_after_a_resume(path: Path) -> None:
    path.write_bytes(b'{"a":1}\n\n{"b":2}')
    position = list(read(path))[-1].positions["in"]
    path.write_bytes(b'{"a":1}\n\n{"b":2}\n\n[]\n')
    with pytest.raises(BadLineError, match="line 5, at byte 18: not a JSON object"):
        list(read(path, known(position)))


def test_bad_lines_can_be_skipped_counted_and_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_bytes(b'{"a":1}\nnonsense\n{"b":2}\n[]\n{"c":"\xff"}\n{"d":4}\n')
    source = a.file(uri=f"file://{path}", bad_lines="skip").source()
    with caplog.at_level(logging.WARNING):
        batches = list(source.read(everything, {}, threading.Event()))
    assert data(batches) == [b'{"a":1}', b'{"b":2}', b'{"d":4}']
    assert isinstance(source, file_source.FileSource)
    assert source.skipped == 3
    assert len(caplog.records) == 1
    assert "3 bad lines left out, 3 since the start; the first is line 2, at byte 8" in caplog.text


@pytest.mark.parametrize("bad_lines", ["stop", "skip"])
def test_an_unfinished_last_line_is_not_taken(path: Path, bad_lines: str) -> None:
    path.write_bytes(b'{"a":1}\n{"b":')
    batches: list[Batch] = []
    try:
        batches.extend(read(path, bad_lines=bad_lines))
    except BadLineError:
        assert bad_lines == "stop"
    assert data(batches) == [b'{"a":1}']
    position = batches[-1].positions["in"]
    assert position["byte"] == 8
    path.write_bytes(b'{"a":1}\n{"b":2}\n')
    assert data(list(read(path, known(position)))) == [b'{"b":2}']


@pytest.fixture
def small_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "BLOCK", 16)
    for module in (walks, lines):
        monkeypatch.setattr(module, "MAX_MESSAGE_BYTES", 100)


@pytest.mark.usefixtures("small_messages")
@pytest.mark.parametrize("excess, bad", [(-1, False), (0, False), (1, True), (500, True)])
@pytest.mark.parametrize("ending", [b"\n", b'\n{"after":1}\n'])
def test_a_line_above_the_size_limit_is_a_bad_line(path: Path, excess: int, bad: bool, ending: bytes) -> None:
    long = b'{"a":"' + b"x" * (92 + excess) + b'"}'
    assert len(long) == 100 + excess
    path.write_bytes(b'{"before":1}\n' + long + ending)
    if bad:
        with pytest.raises(
            BadLineError, match=r"line 2, at byte 13: longer than a message may be \(100 bytes\)"
        ):
            list(read(path))
    expected = [b'{"before":1}', long, b'{"after":1}']
    documents = data(list(read(path, bad_lines="skip")))
    assert documents == [
        one for one in expected if (one != long or not bad) and (one in ending or one != expected[2])
    ]


@pytest.mark.usefixtures("small_messages")
def test_a_long_line_without_an_end_is_left(path: Path) -> None:
    path.write_bytes(b'{"before":1}\n{"a":"' + b"x" * 500)
    batches = list(read(path, bad_lines="skip"))
    assert data(batches) == [b'{"before":1}']
    assert batches[-1].positions["in"]["byte"] == 13


def test_a_real_line_of_many_blocks_is_read_whole(path: Path) -> None:
    long = b'{"a":"' + b"x" * (3 * walks.BLOCK) + b'"}'
    path.write_bytes(b"{}\n" + long + b"\n{}\n")
    assert data(list(read(path))) == [b"{}", long, b"{}"]


@pytest.mark.parametrize(
    "content, complaint",
    [
        (b'{"a":1}\n', "has 8 bytes, but 16 were read from it"),
        (b'{"a":1}\n{"c":2}\n', "is not the file that was read up to byte 16"),
        (b'{"x":1}\n{"b":2}\n{"c":3}\n', "is not the file that was read up to byte 16"),
    ],
)
def test_a_cut_or_replaced_file_is_refused(path: Path, content: bytes, complaint: str) -> None:
    path.write_bytes(b'{"a":1}\n{"b":2}\n')
    position = list(read(path))[-1].positions["in"]
    path.write_bytes(content)
    with pytest.raises(FileChangedError) as error:
        list(read(path, known(position)))
    assert complaint in error.value.message
    assert "setting 'ns'" in str(error.value.hint)


def test_a_copy_of_the_file_is_the_same_file(path: Path) -> None:
    path.write_bytes(b'{"a":1}\n')
    position = list(read(path))[-1].positions["in"]
    path.unlink()
    path.write_bytes(b'{"a":1}\n{"b":2}\n')
    assert data(list(read(path, known(position)))) == [b'{"b":2}']


class Following:
    """A source that follows `path` in a thread; `get` waits for documents."""

    def __init__(self, path: Path) -> None:
        self.stop = threading.Event()
        self.batches: list[Batch] = []
        self.error: Exception | None = None
        self._arrived = threading.Condition()
        source = a.file(uri=f"file://{path}", tail=True).source()
        self._read = source.read(everything, {}, self.stop)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            for batch in self._read:
                with self._arrived:
                    self.batches.append(batch)
                    self._arrived.notify()
        except FileChangedError as error:
            self.error = error

    def get(self, count: int) -> list[bytes]:
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(data(self.batches)) >= count, timeout=30)
        return data(self.batches)

    def wait_until_complete(self) -> None:
        with self._arrived:
            assert self._arrived.wait_for(lambda: any(one.completed for one in self.batches), timeout=30)

    def end(self, *, stop: bool = True) -> None:
        if stop:
            self.stop.set()
        self._thread.join(timeout=30)
        assert not self._thread.is_alive()


@pytest.fixture
def following(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Following]:
    monkeypatch.setattr(file_source, "POLL", 0.01)
    path.write_bytes(b'{"a":1}\n{"half":')
    found = Following(path)
    yield found
    found.end()


def test_a_followed_file_is_read_as_it_grows_and_waits_for_newlines(path: Path, following: Following) -> None:
    following.wait_until_complete()
    assert following.get(1) == [b'{"a":1}']
    with path.open("ab") as file:
        file.write(b'"done"}')
        file.flush()
        assert following.get(1) == [b'{"a":1}']
        file.write(b'\n{"b":2}\n')
    assert following.get(3) == [b'{"a":1}', b'{"half":"done"}', b'{"b":2}']
    following.end()
    modes = [message.mode for batch in following.batches for message in messages_of(batch)]
    assert modes == [Mode.COPY, Mode.SYNC, Mode.SYNC]
    assert [list(batch.completed) for batch in following.batches].count(["in"]) == 1


@pytest.mark.parametrize("how", ["cut", "overwritten", "replaced", "removed"])
def test_a_followed_file_that_goes_away_is_an_error(path: Path, following: Following, how: str) -> None:
    following.wait_until_complete()
    if how == "cut":
        os.truncate(path, 3)
    elif how == "overwritten":
        path.write_bytes(b'{"z":1}\n{"y":2}\n{"x":3}\n')
    elif how == "replaced":
        (path.parent / "new").write_bytes(b'{"a":1}\n{"half":1}\n')
        os.replace(path.parent / "new", path)
    else:
        path.unlink()
    following.end(stop=False)
    assert following.error is not None
    assert str(path) in str(following.error)


def test_what_was_written_before_a_rotation_is_read_before_the_error(path: Path) -> None:
    path.write_bytes(b'{"a":1}\n')
    batches = read(path, tail=True)
    assert messages_of(next(batches))[0].data == b'{"a":1}'
    assert list(next(batches).completed) == ["in"]
    with path.open("ab") as file:
        file.write(b'{"last":1}\n')
    path.rename(path.parent / "in.1")
    assert messages_of(next(batches))[0].data == b'{"last":1}'
    with pytest.raises(FileChangedError, match="replaced or removed while it was followed; byte 19"):
        next(batches)


def test_stopping_ends_the_read_between_batches(path: Path, small_batches: None) -> None:
    path.write_bytes(CONTENT)
    stop = threading.Event()
    batches = a.file(uri=f"file://{path}").source().read(everything, {}, stop)
    next(batches)
    stop.set()
    assert list(batches) == []
