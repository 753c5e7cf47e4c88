"""What MongoDB's events, types and order mean, by its documentation: also what the server for tests cannot do."""

from __future__ import annotations

import datetime as dt
import math
import pickle
from typing import Any

import bson
import pytest
from bson.datetime_ms import DatetimeMS
from pymongo.errors import OperationFailure, ServerSelectionTimeoutError

from penstock import adaptors as a
from penstock.adaptors.mongodb.client import Name, StreamLostError, error_of
from penstock.adaptors.mongodb.copy import Range
from penstock.adaptors.mongodb.events import Act, change_of
from penstock.adaptors.mongodb.gather import Gathering
from penstock.adaptors.mongodb.order import behind, bracket_of, up_to
from penstock.adaptors.mongodb.place import Mark, Place, resumed
from penstock.adaptors.mongodb.stream import oldest
from penstock.adaptors.mongodb.values import Reader, Writer
from penstock.base.errors import AwayError, UsageError
from penstock.log.message import MessageOffset, Mode, Op, Resume
from penstock.log.values import ValuesError, decode_document

SETTINGS = a.mongodb(uri="mongodb://user:not-to-be-shown@127.0.0.1:9/shop", tail=True)


def _event(kind: str, number: int, **more: Any) -> dict[str, Any]:
    return {
        "_id": {"_data": f"82{number:08X}"}, "operationType": kind, "clusterTime": bson.Timestamp(100, number),
        "ns": {"db": "shop", "coll": "orders"}, **more,
    }  # fmt: skip


def _gather(places: dict[str, Place], *events: dict[str, Any]) -> Gathering:
    gathering = Gathering(None, SETTINGS, lambda ns: True, places, {}, Writer(False))  # type: ignore[arg-type]
    for event in events:
        gathering.add(change_of(event, None))
    return gathering


def _followed(number: int = 0) -> dict[str, Place]:
    return {"orders": Place("orders", Mode.SYNC, Mark((100, number), f"82{number:08X}"))}


def test_changes_become_whole_documents_in_their_order() -> None:
    key = {"documentKey": {"_id": 1}}
    batch = _gather(
        _followed(),
        _event("insert", 1, fullDocument={"_id": 1, "v": 1}, **key),
        _event("update", 2, fullDocument={"_id": 1, "v": 2}, **key),
        _event("replace", 3, fullDocument={"_id": 1, "w": 3}, **key),
        _event("update", 4, fullDocument=None, **key),
        _event("delete", 5, **key),
    ).batch(more=False)
    assert [(one.op, one.data) for one in batch.messages] == [
        (Op.INSERT, b'{"_id":1,"v":1}'),
        (Op.UPDATE, b'{"_id":1,"v":2}'),
        (Op.UPDATE, b'{"_id":1,"w":3}'),
        (Op.DELETE, b'{"_id":1}'),
    ]
    assert batch.positions == {"orders": {"time": [100, 5], "token": "8200000005"}}


def test_what_a_namespace_has_already_is_passed_over() -> None:
    events = [_event("insert", n, documentKey={"_id": n}, fullDocument={"_id": n}) for n in range(1, 6)]
    batch = _gather(_followed(3), *events).batch(more=False)
    assert [one.key for one in batch.messages] == [b'{"_id":4}', b'{"_id":5}']


def test_a_drop_empties_the_namespace_and_a_rename_has_the_new_name_copied() -> None:
    """The original saw no commands: what was dropped stayed in every target."""
    places = _followed()
    dropped = _gather(places, _event("drop", 1)).batch(more=False)
    assert [(one.ns, one.op, one.data) for one in dropped.messages] == [
        ("orders", Op.COMMAND, b'{"command":"truncate"}')
    ]
    renamed = _gather(places, _event("rename", 2, to={"db": "shop", "coll": "archive"})).batch(more=False)
    assert [(one.ns, one.op, one.mode) for one in renamed.messages] == [
        ("archive", Op.COMMAND, Mode.COPY),
        ("orders", Op.COMMAND, Mode.SYNC),
    ]
    assert places["archive"].mode is Mode.COPY
    assert places["archive"].mark == Mark((100, 2), "8200000002")
    later = _gather(
        places, _event("insert", 3, ns={"db": "shop", "coll": "archive"}, fullDocument={"_id": 1})
    )
    assert later.batch(more=False).messages == [], "behind its copy it comes again"


def test_a_collection_that_is_made_later_is_followed_from_its_first_document() -> None:
    """The original listed collections once."""
    places = _followed()
    new = {"db": "shop", "coll": "new"}
    batch = _gather(
        places, _event("create", 1, ns=new), _event("insert", 2, ns=new, fullDocument={"_id": 1})
    ).batch(more=False)
    assert [(one.ns, one.op) for one in batch.messages] == [("new", Op.INSERT)]


def test_inserts_that_the_copy_may_hold_come_as_updates() -> None:
    places = {"orders": Place("orders", Mode.SYNC, Mark((100, 1)), until=(100, 3))}
    events = [_event("insert", n, fullDocument={"_id": n}) for n in range(1, 6)]
    batch = _gather(places, *events).batch(more=False)
    assert [one.op for one in batch.messages] == [Op.UPDATE, Op.UPDATE, Op.UPDATE, Op.INSERT, Op.INSERT]
    assert places["orders"].until is None


def test_changes_of_one_transaction_are_known_as_such() -> None:
    """The original did not see transactions at all."""
    mark = {"lsid": {"id": b"x"}, "txnNumber": bson.Int64(7)}
    gathering = _gather(_followed(), _event("insert", 1, fullDocument={"_id": 1}, **mark))
    assert gathering.is_of(change_of(_event("insert", 2, fullDocument={"_id": 2}, **mark), None).transaction)
    assert not gathering.is_of(change_of(_event("insert", 3, fullDocument={"_id": 3}), None).transaction)


def test_an_invalidate_and_what_is_not_known_change_nothing() -> None:
    assert change_of(_event("invalidate", 1, ns=None), None).act is Act.END
    assert change_of(_event("createIndexes", 1), None).act is Act.NOTHING


def test_a_stream_begins_at_the_oldest_of_its_marks() -> None:
    assert oldest([Mark((5, 0), "8209"), Mark((9, 0), "8203")]).token == "8203"
    assert oldest([Mark((5, 0), "8209"), Mark((7, 0))]) == Mark((5, 0))


@pytest.mark.parametrize("code", [286, 280, 260])
def test_a_token_that_is_too_old_says_backfill(code: int) -> None:
    error = error_of(SETTINGS, OperationFailure("resume of change stream was not possible", code))
    assert isinstance(error, StreamLostError)
    assert "backfill" in str(error.hint)


def test_errors_are_told_apart_and_show_no_password() -> None:
    denied = error_of(SETTINGS, OperationFailure("not authorized for not-to-be-shown", 13))
    away = error_of(SETTINGS, ServerSelectionTimeoutError("mongodb://user:not-to-be-shown@127.0.0.1:9"))
    elected = error_of(SETTINGS, OperationFailure("not primary", 10107))
    no_set = error_of(SETTINGS, OperationFailure("only supported on replica sets", 40573))
    assert isinstance(denied, UsageError)
    assert isinstance(away, AwayError)
    assert isinstance(elected, AwayError)
    assert isinstance(no_set, UsageError)
    assert "not-to-be-shown" not in away.message


EXACT: list[object] = [
    0, -1, (1 << 31) - 1, bson.Int64(1 << 31), bson.Int64(9007199254740993), bson.Int64(5), 1.0, -0.0, 1e300, 0.1,
    math.inf, -math.inf, bson.Decimal128("1.50"), bson.Decimal128("NaN"), bson.Decimal128("1E+6111"), "",
    "a\x00b", None, True,
    b"", b"\x00\xff", *(bson.Binary(b"xyz", subtype) for subtype in (1, 2, 3, 4, 5, 6, 7, 9, 0x0F, 0x10, 0x80, 0xFE)),
    bson.Binary(bytes(range(16)), 4), bson.ObjectId("0123456789abcdef01234567"), bson.Timestamp(5, 6),
    bson.Regex("^a/", "imsx"), bson.MinKey(), bson.MaxKey(), bson.Code("f()"), bson.Code("f()", {"a": 1}),
    dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, 23, 59, 59, 999000, dt.UTC), DatetimeMS(1 << 60),
    DatetimeMS(-(1 << 60)), [], {}, [1, [2.5, {"": None}]], {"": 1}, {"$oid": "0" * 24}, {"$minKey": 1},
    {"$literal": {"a": 1}},
    {"$numberLong": "5"}, {"$code": "f()", "$scope": {}}, {"$date": 5}, {"$ref": "c", "$id": 1}, {"z": 1, "a": 2},
]  # fmt: skip


@pytest.mark.parametrize("value", EXACT, ids=repr)
def test_every_type_comes_back_as_what_it_was(value: object) -> None:
    """The original lost integers above 2^53, binaries of a subtype below 16, decimals, and crashed at an empty name."""
    text = Writer(typed_numbers=True).document({"_id": 1, "v": value})
    again = Reader("date").document(text)
    assert bson.encode(again) == bson.encode({"_id": 1, "v": value})
    assert list(decode_document(text)) == ["_id", "v"]


def test_not_a_number_comes_back() -> None:
    again = Reader("date").document(Writer(False).document({"v": math.nan}))
    assert math.isnan(again["v"])


def test_finer_times_are_cut_or_kept_as_text_as_the_setting_says() -> None:
    text = b'{"v":{"$date":"2026-11-16T02:14:14.123456Z"}}'
    assert Reader("text").document(text)["v"] == "2026-11-16T02:14:14.123456+00:00"
    stored = bson.decode(bson.encode(Reader("date").document(text)))
    assert stored["v"] == dt.datetime(2026, 11, 16, 2, 14, 14, 123000)


def test_a_number_with_too_many_digits_is_refused() -> None:
    with pytest.raises(ValuesError, match="34"):
        Reader("date").document(b'{"v":1234567890123456789012345678901234567890}')


def test_behind_a_value_are_larger_ones_and_all_types_that_come_later() -> None:
    found = behind(5)
    assert found["$or"][0] == {"_id": {"$gt": 5}}
    assert found["$or"][1]["_id"]["$type"][:2] == ["string", "object"]
    assert behind(bson.MaxKey()) == {"_id": {"$in": []}}
    assert behind(math.nan)["$or"][0] == {"_id": {"$gte": -math.inf}}
    assert up_to(None) == {"$or": [{"_id": {"$type": ["null"]}}, {"_id": {"$type": ["minKey"]}}]}
    assert bracket_of(True) > bracket_of(bson.ObjectId()) > bracket_of(b"") > bracket_of({}) > bracket_of("x")
    assert "javascript" in behind(5, rare=True)["$or"][1]["_id"]["$type"]


def test_a_position_holds_an_id_of_any_type() -> None:
    for id in (
        bson.ObjectId(),
        bson.Int64(5),
        "x",
        {"a": bson.Decimal128("1.5")},
        None,
        bson.Binary(b"x", 128),
    ):
        place = Place("orders", Mode.COPY, Mark((1, 2)), (id,), 7)
        resume = Resume(Mode.COPY, place.position(Writer(True)), MessageOffset(-1))
        assert resumed("orders", resume).after == (id,)
        assert resumed("orders", resume).mark == Mark((1, 2))


def test_a_range_is_pickled_for_a_task() -> None:
    task = Range(SETTINGS, "orders", Name("shop", "orders"), b'{"_id":1}', b"", b"", False)
    assert pickle.loads(pickle.dumps(task)) == task
