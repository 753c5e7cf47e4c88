"""The typed values: what is encoded comes back, with its type, from the text alone; also through a real log."""

from __future__ import annotations

import datetime as dt
import json
import math
import sys
from collections import OrderedDict
from decimal import Decimal
from enum import IntEnum
from pathlib import Path
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.log.value_strategies import decimals, documents, identical, integers, same
from tests.log.value_strategies import values as any_value

from penstock.journal.client import Client
from penstock.log import values
from penstock.log.commitlog import CommitLog
from penstock.log.message import Message, MessageOffset
from penstock.log.schema import Field, Kind, Schema
from penstock.log.values import Binary, ObjectId, Regex, Timestamp, Value, ValuesError

EAST = dt.timezone(dt.timedelta(hours=1))
MOMENT = dt.datetime(2026, 11, 16, 2, 14, 14, 123456)

FORMS: list[tuple[Value, str]] = [
    (None, "null"),
    (True, "true"),
    (9007199254740993, "9007199254740993"),
    (-(2**63), "-9223372036854775808"),
    (2**70, "1180591620717411303424"),
    (1.0, "1.0"),
    (0.1, "0.1"),
    (-0.0, "-0.0"),
    (5e-324, "5e-324"),
    (math.nan, '{"$numberDouble":"NaN"}'),
    (math.inf, '{"$numberDouble":"Infinity"}'),
    (-math.inf, '{"$numberDouble":"-Infinity"}'),
    (Decimal("0.1000000000000000055511151231257827"), "0.1000000000000000055511151231257827"),
    (Decimal("1E+400"), "1E+400"),
    (Decimal("NaN"), '{"$numberDecimal":"NaN"}'),
    (Decimal("-Infinity"), '{"$numberDecimal":"-Infinity"}'),
    ("é\x00\n\U0001f600<&>", '"é\\u0000\\n\U0001f600<&>"'),
    (b"", '{"$binary":{"base64":"","subType":"00"}}'),
    (b"\x00\xff", '{"$binary":{"base64":"AP8=","subType":"00"}}'),
    (Binary(b"\x00\xff", 4), '{"$binary":{"base64":"AP8=","subType":"04"}}'),
    (dt.date(2026, 11, 16), '{"$localDate":"2026-11-16"}'),
    (dt.date(1, 1, 1), '{"$localDate":"0001-01-01"}'),
    (dt.time(2, 14), '{"$localTime":"02:14:00"}'),
    (dt.time(2, 14, 14, 120000), '{"$localTime":"02:14:14.120000"}'),
    (dt.time(2, 14, 14, tzinfo=EAST), '{"$time":"02:14:14+01:00"}'),
    (MOMENT, '{"$localTimestamp":"2026-11-16T02:14:14.123456"}'),
    (MOMENT.replace(tzinfo=dt.UTC), '{"$date":"2026-11-16T02:14:14.123456Z"}'),
    (MOMENT.replace(tzinfo=EAST), '{"$date":"2026-11-16T02:14:14.123456+01:00"}'),
    (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), '{"$date":"2026-01-01T00:00:00Z"}'),
    (
        UUID("1fc2f65b-ef76-4981-8290-2f6ea12912d6"),
        '{"$uuid":"1fc2f65b-ef76-4981-8290-2f6ea12912d6"}',
    ),
    (ObjectId("507F1F77BCF86CD799439011"), '{"$oid":"507f1f77bcf86cd799439011"}'),
    (Timestamp(1412180887, 1), '{"$timestamp":{"t":1412180887,"i":1}}'),
    (Regex("^a", "i"), '{"$regex":"^a","$options":"i"}'),
    ([1, [None], {}], "[1,[null],{}]"),
    ({"": {"": 1}, "a": 2}, '{"":{"":1},"a":2}'),
    ({"$oid": "507f1f77bcf86cd799439011"}, '{"$literal":{"$oid":"507f1f77bcf86cd799439011"}}'),
    ({"$oid": "not hex"}, '{"$oid":"not hex"}'),
    ({"$set": {"a": 1}}, '{"$set":{"a":1}}'),
    ({"$literal": {"a": 1}}, '{"$literal":{"$literal":{"a":1}}}'),
]


@pytest.mark.parametrize("value, text", FORMS, ids=[text for _, text in FORMS])
def test_every_value_has_one_text_and_comes_back_from_it(value: Value, text: str) -> None:
    assert values.encode(value) == text.encode()
    assert identical(value, values.decode(text))
    assert identical(value, values.decode(text.encode()))


ALSO_READ: list[tuple[str, Value]] = [
    ('{"$date":1500000000000}', dt.datetime(2017, 7, 14, 2, 40, tzinfo=dt.UTC)),
    ('{"$date":-1}', dt.datetime(1969, 12, 31, 23, 59, 59, 999000, dt.UTC)),
    ('{"$date":{"$numberLong":"1500000000000"}}', dt.datetime(2017, 7, 14, 2, 40, tzinfo=dt.UTC)),
    ('{"$date":"2017-07-14T02:40:00.5+0100"}', dt.datetime(2017, 7, 14, 2, 40, 0, 500000, EAST)),
    ('{"$date":"2017-07-14 02:40:00.120000000z"}', dt.datetime(2017, 7, 14, 2, 40, 0, 120000, dt.UTC)),
    ('{"$type":"00","$binary":"AP8="}', b"\x00\xff"),
    ('{"$binary":"AP8=","$type":"0"}', b"\x00\xff"),
    ('{"$type":"5","$binary":"AP8="}', Binary(b"\x00\xff", 5)),
    ('{"$type":"80","$binary":"AP8="}', Binary(b"\x00\xff", 0x80)),
    ('{"$numberLong":"9007199254740993"}', 9007199254740993),
    ('{"$numberInt":"-7"}', -7),
    ('{"$numberDouble":"-0.0"}', -0.0),
    ('{"$numberDecimal":"1.50"}', Decimal("1.50")),
    ('{"$regularExpression":{"pattern":"^a","options":"i"}}', Regex("^a", "i")),
    ('{"\\u0024oid":"507f1f77bcf86cd799439011"}', ObjectId("507f1f77bcf86cd799439011")),
    (' { "$oid" : "507f1f77bcf86cd799439011" } ', ObjectId("507f1f77bcf86cd799439011")),
    ("1E5", 100000.0),
    ("1.50", 1.5),
    ("123456789.123456789", Decimal("123456789.123456789")),
    ("1e-400", Decimal("1E-400")),
    ("12345678901234567.0", Decimal("12345678901234567.0")),
]


@pytest.mark.parametrize("text, value", ALSO_READ)
def test_other_spellings_of_a_value_are_read(text: str, value: Value) -> None:
    assert identical(value, values.decode(text))
    assert same(value, values.decode(values.encode(value)))


NO_FORMS = [
    '{"$date":"2017-07-14T02:40:00.123456789Z"}',
    '{"$date":"2017-07-14T02:40:00"}',
    '{"$date":"10000-01-01T00:00:00Z"}',
    '{"$date":"2017-02-30T00:00:00Z"}',
    '{"$date":99999999999999999}',
    '{"$date":1.5}',
    '{"$date":true}',
    '{"$date":null}',
    '{"$date":{"$numberLong":"x"}}',
    '{"$localDate":"2017-7-14"}',
    '{"$localDate":"20170714"}',
    '{"$localDate":"٢٠١٧-07-14"}',
    '{"$localTime":"02:40"}',
    '{"$localTime":"02:40:00Z"}',
    '{"$localTimestamp":"2017-07-14T02:40:00Z"}',
    '{"$time":"02:40:00"}',
    '{"$oid":"507f1f77bcf86cd79943901"}',
    '{"$oid":"507f1f77bcf86cd799439011","x":1}',
    '{"x":1,"$oid":"507f1f77bcf86cd799439011"}',
    '{"$binary":{"base64":"AP8","subType":"00"}}',
    '{"$binary":{"base64":"AP8=","subType":"100"}}',
    '{"$binary":{"base64":"AP8="}}',
    '{"$binary":"AP8="}',
    '{"$numberDouble":"1_0"}',
    '{"$numberDouble":"1e999"}',
    '{"$numberDouble":"nan"}',
    '{"$numberLong":" 5"}',
    '{"$numberDecimal":"x"}',
    '{"$uuid":"{1fc2f65b-ef76-4981-8290-2f6ea12912d6}"}',
    '{"$timestamp":{"t":-1,"i":0}}',
    '{"$timestamp":{"t":1,"i":true}}',
    '{"$timestamp":{"t":1,"i":1,"x":1}}',
    '{"$regex":"a"}',
    '{"$regex":"a","$options":1}',
    '{"$minKey":1}',
    '{"$literal":[1]}',
    '{"":{"$":1}}',
    "{}",
]


@pytest.mark.parametrize("text", NO_FORMS)
def test_what_only_looks_extended_or_would_lose_digits_stays_the_map_it_is(text: str) -> None:
    found = values.decode(text)
    assert found == json.loads(text)
    assert values.decode(values.encode(found)) == found


@settings(deadline=None, max_examples=150)
@given(any_value)
@example({"$literal": {"$literal": {"$oid": "507f1f77bcf86cd799439011"}}})
@example({"$date": {"$numberLong": "5"}})
@example({"$date": MOMENT})
@example(dt.time(0, tzinfo=dt.timezone(dt.timedelta(microseconds=-1))))
def test_any_value_comes_back_with_its_type(value: Value) -> None:
    text = values.encode(value)
    json.loads(text)
    found = values.decode(text)
    assert same(value, found)
    assert same(found, values.decode(values.encode(found)))


@settings(deadline=None, max_examples=60)
@given(documents)
@example({"$oid": "507f1f77bcf86cd799439011"})
def test_a_document_is_never_taken_for_a_value(document: dict[str, Value]) -> None:
    text = values.encode_document(document)
    assert list(json.loads(text)) == list(document)
    found = values.decode_document(text)
    assert isinstance(found, dict)
    assert same(document, found)


@settings(deadline=None, max_examples=80)
@given(st.floats(), decimals, integers | decimals, st.lists(decimals, max_size=3))
@example(1.0, Decimal("1.50"), 7, [Decimal("-0"), Decimal("1E+5"), Decimal("0E-10")])
@example(-0.0, Decimal("-0"), Decimal("12"), [])
@example(math.nan, Decimal("NaN"), Decimal("sNaN12"), [])
def test_with_a_schema_numbers_have_their_type_and_all_their_digits(
    real: float, exact: Decimal, mixed: int | Decimal, listed: list[Decimal]
) -> None:
    schema = Schema(
        (
            Field("real", Kind.FLOAT),
            Field("exact", Kind.DECIMAL),
            Field("mixed", Kind.DECIMAL),
            Field("listed", Kind.LIST, items=Kind.DECIMAL),
        )
    )
    text = values.encode_document({"real": real, "exact": exact, "mixed": mixed, "listed": list(listed)})
    found = values.decode_document(text, schema)
    assert identical(real, found["real"])
    assert identical(exact, found["exact"])
    assert identical(Decimal(mixed), found["mixed"])
    assert isinstance(found["listed"], list)
    assert list(map(repr, found["listed"])) == list(map(repr, listed))


def test_a_schema_changes_numbers_and_nothing_else() -> None:
    schema = Schema((Field("real", Kind.FLOAT), Field("exact", Kind.DECIMAL), Field("day", Kind.DATE)))
    text = '{"real":3,"exact":"12.50","day":{"$localDate":"2026-11-16"},"more":1.50,"real2":null}'
    found = values.decode(text, schema)
    assert found == {"real": 3.0, "exact": "12.50", "day": dt.date(2026, 11, 16), "more": 1.5, "real2": None}
    assert isinstance(found, dict)
    assert type(found["real"]) is float
    nulls = values.decode('{"real":null,"exact":null,"day":"soon"}', schema)
    assert nulls == {"real": None, "exact": None, "day": "soon"}
    assert values.decode('{"real":1e999}', schema) == {"real": Decimal("1E+999")}
    assert repr(values.decode('{"real":9007199254740993}', schema)) == "{'real': 9007199254740993}"
    assert repr(values.decode('{"real":123456789012345680000}', schema)) == "{'real': 1.2345678901234568e+20}"


def test_an_integer_of_any_length_keeps_its_digits() -> None:
    limit = sys.get_int_max_str_digits()
    digits = "9" * (limit + 700)
    number = int(10 ** len(digits) - 1)
    text = values.encode({"a": [number], "b": MOMENT})
    assert text.startswith(b'{"a":[' + digits.encode())
    assert values.decode(text) == {"a": [Decimal(digits)], "b": MOMENT}
    assert sys.get_int_max_str_digits() == limit


class Colour(IntEnum):
    RED = 7


class Name(str):
    __slots__ = ()


def test_what_is_as_good_as_a_value_is_encoded_as_it() -> None:
    given: object = {Name("a"): (1, Colour.RED), "b": OrderedDict(x=Name("y"))}
    assert values.encode(given) == b'{"a":[1,7],"b":{"x":"y"}}'  # type: ignore[arg-type]
    berlin = dt.datetime(2026, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    assert values.encode(berlin) == b'{"$date":"2026-07-01T12:00:00+02:00"}'
    assert values.decode(values.encode(berlin)) == berlin


class Finer(dt.datetime):
    """As pandas' own, which has nanoseconds beside."""


NO_VALUES: list[tuple[object, str]] = [
    ({"a": [1, {"b": {1, 2}}]}, "at a[1].b: {1, 2} (set) is no value that a message can hold"),
    ({"a": {5: 1}}, "at a: the key 5 (int) is not a string"),
    ({"a": "\ud800"}, "at a: 'utf-8' codec can't encode"),
    ([Finer(2026, 1, 1)], "at [0]: Finer(2026, 1, 1, 0, 0) (Finer) is no value"),
    (1j, "1j (complex) is no value that a message can hold"),
    ({"t": dt.time(1, tzinfo=ZoneInfo("Europe/Berlin"))}, "at t: the offset of the time 01:00:00 depends"),
]


@pytest.mark.parametrize("value, complaint", NO_VALUES, ids=[complaint for _, complaint in NO_VALUES])
def test_what_is_no_value_is_refused_by_its_place(value: object, complaint: str) -> None:
    with pytest.raises(ValuesError) as error:
        values.encode(value)  # type: ignore[arg-type]
    assert error.value.message.startswith(complaint)


def test_a_value_within_itself_is_refused() -> None:
    ring: list[Value] = []
    ring.append(ring)
    with pytest.raises(ValuesError, match="nested too deeply, or holds itself"):
        values.encode(ring)


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ('{"a":NaN}', "not JSON"),
        (b'"\xff"', "not JSON: 'utf-8' codec"),
        ('"\\ud800"', "not JSON"),
        pytest.param("[" * 100_000 + "]" * 100_000, "nested too deeply", id="deeper than any Python goes"),
        ("1e99999999999999999999", "larger or smaller than a Decimal can be"),
        ("[" + "9" * 5000 + ",NaN]", "not JSON"),
    ],
)
def test_what_is_no_text_of_a_value_is_one_error(text: bytes | str, complaint: str) -> None:
    with pytest.raises(ValuesError, match=complaint):
        values.decode(text)


@pytest.mark.parametrize("text", ["[1]", "null", '"x"', "5"])
@pytest.mark.parametrize("schema", [None, Schema(())])
def test_a_document_is_an_object(text: str, schema: Schema | None) -> None:
    with pytest.raises(ValuesError, match="not a document"):
        values.decode_document(text, schema)


def test_every_value_has_a_kind() -> None:
    found = {values.kind_of(value) for value, _ in FORMS}
    assert found == set(Kind) - {Kind.ANY}
    assert values.kind_of(2**63) is Kind.DECIMAL
    assert values.kind_of(2**63 - 1) is Kind.INT
    assert values.kind_of(MOMENT) is Kind.LOCAL_TIMESTAMP
    with pytest.raises(ValuesError, match="no value"):
        values.kind_of(Finer(2026, 1, 1))


@pytest.mark.parametrize(
    "make",
    [
        lambda: ObjectId("x" * 24),
        lambda: Binary(b"", 0),
        lambda: Binary(b"", 256),
        lambda: Timestamp(2**32, 0),
    ],
)
def test_a_value_that_could_not_come_back_cannot_be_made(make: type) -> None:
    with pytest.raises(ValueError):
        make()


def test_trap_9_large_numbers_low_binary_kinds_and_empty_keys_survive_the_log(
    client: Client, tmp_path: Path
) -> None:
    document: dict[str, Value] = {"n": 2**53 + 1, "b": Binary(b"\x01", 5), "": {"": b"\x00"}}
    log = CommitLog(client, "p", tmp_path / "cache", 1 << 24, now=1)
    log.append([Message("a", values.encode_document(document))], {}, (), now=2)
    (record,) = log.reader.show(MessageOffset(0), MessageOffset(0))
    assert values.decode_document(record.data) == document


def test_nothing_is_lost_through_the_log(client: Client, tmp_path: Path) -> None:
    log = CommitLog(client, "p", tmp_path / "cache", 1 << 24, now=1)

    @settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(documents, min_size=1, max_size=4))
    def through(batch: list[dict[str, Value]]) -> None:
        texts = [values.encode_document(document) for document in batch]
        first = log.point.offset
        log.append([Message("a", text, key=text) for text in texts], {"a": {"at": first}}, (), now=2)
        records = list(log.reader.show(first, MessageOffset(first + len(batch) - 1)))
        assert [record.data for record in records] == texts
        assert [record.key for record in records] == texts
        for document, record in zip(batch, records, strict=True):
            assert same(document, values.decode_document(record.data))

    through()
