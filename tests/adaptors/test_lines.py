"""JSON lines as text: what is a document, what is blank, what is wrong."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.adaptors.formats import lines
from penstock.adaptors.formats.lines import scan

DEEP = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"

BAD = [
    (b"{", "not JSON"),
    (b"}", "not JSON"),
    (b"nonsense", "not JSON"),
    (b'{"a":1}{"b":2}', "not JSON"),
    (b'{"a":1},', "not JSON"),
    (b'{"a":1,}', "not JSON"),
    (b'{"a":NaN}', "not JSON"),
    (b'{"a":01}', "not JSON"),
    (b'{"a":"\t"}', "not JSON"),
    (b'{"a":"x', "not JSON"),
    (b"[1]", "not a JSON object (Expected object, got array)"),
    (b"5", "not a JSON object"),
    (b'"{}"', "not a JSON object"),
    (b"null", "not a JSON object"),
    (b'{"a":"\xff"}', "not UTF-8"),
    (b'{"\xc3":1}', "not UTF-8"),
    (b'{"a":"\xed\xa0\x80"}', "not UTF-8"),
    (b"\x00", "not JSON"),
    (b'\xef\xbb\xbf{"a":1}', "not JSON"),
    (DEEP, "nested too deeply"),
]


@pytest.mark.parametrize("line, reason", BAD, ids=range(len(BAD)))
@pytest.mark.parametrize("others", [b'{"b":2}', b'{ "b" : 2 }\r'])
def test_a_bad_line_is_found_among_good_ones(line: bytes, reason: str, others: bytes) -> None:
    text = b"\n".join([others, b"", others, line, others, line, others]) + b"\n"
    at = len(others) * 2 + 3
    stopped = scan(text, stop_at_bad=True)
    assert stopped.documents.to_pylist() == [others.strip()] * 2
    assert (stopped.lines, stopped.bytes) == (3, at)
    assert [(bad.line, bad.byte) for bad in stopped.bad] == [(3, at)]
    assert stopped.bad[0].reason.startswith(reason)
    skipped = scan(text, stop_at_bad=False)
    assert skipped.documents.to_pylist() == [others.strip()] * 4
    assert (skipped.lines, skipped.bytes) == (7, len(text))
    assert [bad.line for bad in skipped.bad] == [3, 5]


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":{"b":1}\n,"c":1}\n',
        b'{"a":1}{"b":2}\n',
        b'{"a":1}{"b":2}\n{"c":{}\n}\n',
        b'{"a":[{}\n,{}]}\n{"b":1}{"c":1}\n',
        b'{"a":1}\n\n{"b":1}{"c":1}\n',
    ],
)
def test_objects_that_do_not_keep_to_their_line_are_bad(text: bytes) -> None:
    assert scan(text, stop_at_bad=True).bad


@pytest.mark.parametrize(
    "text, documents",
    [
        (b"", []),
        (b"\n", []),
        (b"\n\r\n \t\n", []),
        (b"{}\n", [b"{}"]),
        (b"{}", [b"{}"]),
        (b'{"a": 1.00}\n{"b":"\xc3\xa9"}', [b'{"a": 1.00}', b'{"b":"\xc3\xa9"}']),
        (b'{"a":1}\r\n{"b":2}\r\n', [b'{"a":1}', b'{"b":2}']),
        (b'  {"a" : 1}\t\n', [b'{"a" : 1}']),
        (b'{"":1,"":2}\n', [b'{"":1,"":2}']),
    ],
)
def test_documents_are_lines_without_the_space_around_them(text: bytes, documents: list[bytes]) -> None:
    found = scan(text, stop_at_bad=True)
    assert found.documents.to_pylist() == documents
    assert found.bytes == len(text)
    assert not found.bad


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b" \n"])
def test_no_more_lines_are_looked_at_than_asked_for(end: bytes) -> None:
    text = b'{"a":1}' + end + b'{"b":2}' + end + b"no document" + end
    found = scan(text, stop_at_bad=True, most=2)
    assert found.documents.to_pylist() == [b'{"a":1}', b'{"b":2}']
    assert (found.lines, found.bytes, list(found.bad)) == (2, text.index(b"no"), [])
    assert [bad.line for bad in scan(text, stop_at_bad=True, most=3).bad] == [2]


def test_a_line_above_the_size_limit_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_MESSAGE_BYTES", 10)
    found = scan(b'{"a":1}\n{"a":12345}\n{"a":123}\n', stop_at_bad=False)
    assert found.documents.to_pylist() == [b'{"a":1}', b'{"a":123}']
    assert found.bad[0].reason == "longer than a message may be (10 bytes)"


def is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line.decode(), parse_constant=lambda _: 1 / 0), dict)
    except (ValueError, ZeroDivisionError):
        return False


pieces = st.sampled_from(
    [b"{", b"}", b'{"a":', b"1", b",", b"[", b"]", b'"x"', b"\n", b" ", b"{}", b'{"a":1}', b"\n{"]
)


@settings(deadline=None)
@given(st.lists(pieces, max_size=12).map(b"".join))
def test_each_line_is_judged_by_itself(text: bytes) -> None:
    found = scan(text, stop_at_bad=False)
    whole = [line.strip() for line in text.split(b"\n")]
    assert found.documents.to_pylist() == [line for line in whole if is_object(line)]
    assert len(found.bad) == len([line for line in whole if line and not is_object(line)])


TAILS = st.sampled_from([b"", b"{", b'{"a":', b'{"a":1}', b"\r", b"x\xff", b'{"a":"\xc3'])
ROWS = st.sampled_from([b"{}", b'{"a":1}', b'{"a":"\xc3\xa9"}', b"{}\r", b"", b"{", b'{"a":"\xff"}', b"{}{}"])


@settings(max_examples=200)
@given(st.lists(ROWS, min_size=1, max_size=8), TAILS, st.integers(1, 9))
def test_of_so_many_lines_that_are_whole_nothing_else_counts(
    rows: list[bytes], tail: bytes, most: int
) -> None:
    whole = b"".join(row + b"\n" for row in rows)
    taken = b"".join(row + b"\n" for row in rows[:most])
    for stop_at_bad in (True, False):
        found = scan(whole + tail, stop_at_bad=stop_at_bad, most=most)
        alone = scan(taken, stop_at_bad=stop_at_bad)
        assert found.documents.to_pylist() == alone.documents.to_pylist()
        assert (found.lines, found.bytes, found.bad) == (alone.lines, alone.bytes, alone.bad)
