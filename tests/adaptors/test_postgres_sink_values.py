"""The PostgreSQL sink against a real server: fields and values, and tables that it makes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from tests.adaptors.postgres_sink_shop import ORDERS, Shop, order, told
from tests.adaptors.postgres_target import sent

from penstock.adaptors.base import SinkPosition, Stage
from penstock.base.errors import UsageError
from penstock.log.message import Message, Op
from penstock.log.schema import Field, Kind, Schema
from penstock.testing.adaptors.delivery import batch_of

pytestmark = pytest.mark.xdist_group("postgres")


# Fields and values


def test_a_field_that_a_message_does_not_have_leaves_its_column_alone(shop: Shop) -> None:
    shop.tables(ORDERS)
    writer = shop.writer()
    writer.write(order(1, total=1, note="a"), order(2, total=2), order(3, note=None))
    writer.write(order(1, Op.UPDATE, total=5), order(2, Op.UPDATE, note="b"), order(1, Op.UPDATE, note="c"))
    assert shop.rows("id, total::int, note FROM orders ORDER BY id") == [
        (1, 5, "c"),
        (2, 2, "b"),
        (3, None, None),
    ]


def test_an_unknown_field_is_refused_by_name_or_ignored(shop: Shop) -> None:
    shop.tables(ORDERS)
    writer = shop.writer()
    (refused,) = writer.write(order(1, total=1), order(2, totl=2), order(3))
    assert (refused.offset, refused.ns) == (1, "shop.orders")
    assert "has no column 'totl'; did you mean 'total'?" in refused.error
    assert shop.rows("id FROM orders ORDER BY id") == [(1,), (3,)]
    writer.close()
    assert shop.writer(unknown_fields="ignore", own_schema=f"{shop.schema}_2").write(order(2, totl=2)) == []
    assert shop.rows("id, total FROM orders WHERE id = 2") == [(2, None)]


REFUSED = {
    "int_text": ("int", '"abc"', "invalid input syntax for type integer"),
    "int_range": ("int", "2147483648", "out of range for type integer"),
    "int_fraction": ("int", "1.5", "not of the type integer"),
    "int_bool": ("int", "true", "not of the type integer"),
    "int_infinite": ("int", '{"$numberDouble":"Infinity"}', "not of the type integer"),
    "int_digits": ("int", "1e999999999", "not of the type integer"),
    "float_digits": ("float8", "9007199254740993", "more digits than double precision keeps"),
    "nul": ("text", r'"a\u0000b"', "the character NUL"),
    "length": ("varchar(3)", '"abcd"', "value too long"),
    "scale": ("numeric(5,2)", "1.005", "more digits than numeric(5,2) keeps"),
    "precision": ("numeric(5,2)", "1000", "numeric field overflow"),
    "date_time": ("date", '{"$localTimestamp":"2026-11-16T02:14:14"}', "not of the type date"),
    "date_text": ("date", '"2026-11-16 02:14"', "more than date keeps"),
    "day": ("date", '{"$localDate":"2026-02-30"}', "not of the type date"),
    "fine": (
        "timestamptz",
        '{"$date":"2026-11-16T02:14:14.1234567Z"}',
        "not of the type timestamp with time zone",
    ),
    "fine_text": (
        "timestamp",
        '"2026-11-16 02:14:14.1234567"',
        "finer than timestamp without time zone keeps",
    ),
    "year": ("timestamp", '{"$date":"0001-01-01T00:00:00+14:00"}', "out of range"),
    "milli": ("timestamp(3)", '{"$localTimestamp":"2026-11-16T02:14:14.1234"}', "finer than timestamp(3)"),
    "zone": ("timestamp", '"2026-11-16 02:14:14+01"', "has an offset"),
    "subtype": ("bytea", '{"$binary":{"base64":"AP8=","subType":"05"}}', "subtype 5"),
    "uuid": ("uuid", '"1fc2f65b"', "invalid input syntax for type uuid"),
    "bool": ("boolean", "2", "not of the type boolean"),
    "deep": ("jsonb", "[" * 600 + '{"$literal":1}' + "]" * 600, "recursion"),
    "map": ("int[]", '{"a":1}', "not a list"),
    "items": ("int[]", '[1,"x"]', "invalid input syntax for type integer"),
    "enum": ("inet", '"nowhere"', "invalid input syntax for type inet"),
}
"""Values that a column cannot keep as they are: its type, the value, and what is said about it."""


def test_a_value_that_its_column_cannot_keep_is_refused_with_its_offset_and_the_others_are_taken(
    shop: Shop,
) -> None:
    columns = ", ".join(f"{name} {type}" for name, (type, *_) in REFUSED.items())
    shop.tables(f"CREATE TABLE picky (id int PRIMARY KEY, {columns})")
    messages = []
    for number, (name, (_, text, _)) in enumerate(REFUSED.items()):
        messages += [sent("shop.picky", f'{{"id":{number},"{name}":null}}'),
                     sent("shop.picky", f'{{"id":{1000 + number},"{name}":{text}}}')]  # fmt: skip
    refused = {refusal.offset: refusal.error for refusal in shop.writer().write(*messages)}
    assert sorted(refused) == list(range(1, 2 * len(REFUSED), 2))
    for number, (name, (*_, said)) in enumerate(REFUSED.items()):
        assert said in refused[2 * number + 1], f"{name}: {refused[2 * number + 1]}"
        assert f"'{name}'" in refused[2 * number + 1]
    assert shop.rows("count(*), max(id) FROM picky") == [(len(REFUSED), len(REFUSED) - 1)]


def test_such_a_value_is_refused_also_where_all_rows_are_alike(shop: Shop) -> None:
    tables = {f"alike_{name}": wrong for name, wrong in REFUSED.items()}
    shop.tables(
        *(f"CREATE TABLE {name} (id int PRIMARY KEY, v {type})" for name, (type, *_) in tables.items())
    )
    messages = [
        sent(f"shop.{name}", f'{{"id":{id},"v":{value}}}')
        for name, (_, text, _) in tables.items()
        for id, value in enumerate(("null", text, "null"))
    ]
    refused = {refusal.ns: refusal for refusal in shop.writer().write(*messages)}
    assert [refused[f"shop.{name}"].offset for name in tables] == list(range(1, len(messages), 3))
    for name in tables:
        assert shop.rows(f"id FROM {name} ORDER BY id") == [(0,), (2,)], name


TAKEN = {
    "int_float": ("int", "3.0", "3"),
    "float_whole": ("float8", "100000000000000000000000", "1e+23"),
    "text_int": ("text", "12", "12"),
    "text_map": ("text", '{"a":[1,2]}', '{"a":[1,2]}'),
    "text_date": ("text", '{"$localDate":"2026-11-16"}', "2026-11-16"),
    "text_oid": ("text", '{"$oid":"507f1f77bcf86cd799439011"}', "507f1f77bcf86cd799439011"),
    "jsonb_list": ("jsonb", '[{"a":1}]', '[{"a": 1}]'),
    "jsonb_text": ("jsonb", '"a"', '"a"'),
    "jsonb_date": (
        "jsonb",
        '{"x":{"$date":"2026-11-16T00:00:00Z"}}',
        '{"x": {"$date": "2026-11-16T00:00:00Z"}}',
    ),
    "jsonb_own": ("jsonb", '{"$literal":{"a":1.10}}', '{"$literal": {"a": 1.10}}'),
    "maps": ("jsonb[]", '[{"a":1},null]', '{"{\\"a\\": 1}",NULL}'),
    "moment": ("timestamp", '{"$date":"2026-11-16T02:14:14+01:00"}', "2026-11-16 01:14:14"),
    "local": ("timestamptz", '{"$localTimestamp":"2026-11-16T02:14:14"}', "2026-11-16 02:14:14+00"),
    "millis": ("timestamptz", '{"$date":1500000000000}', "2017-07-14 02:40:00+00"),
    "forever": ("timestamptz", '"infinity"', "infinity"),
    "before": ("date", '"0044-03-15 BC"', "0044-03-15 BC"),
    "money": ("numeric(20,4)", "1e3", "1000.0000"),
    "zeros": ("numeric(5,2)", "1.50000", "1.50"),
    "truth": ("boolean", "1", "true"),
}


def test_values_of_another_kind_are_taken_where_nothing_is_lost(shop: Shop) -> None:
    columns = ", ".join(f"{name} {type}" for name, (type, *_) in TAKEN.items())
    shop.tables(f"CREATE TABLE easy (id int PRIMARY KEY, {columns})")
    fields = ",".join(f'"{name}":{text}' for name, (_, text, _) in TAKEN.items())
    assert shop.writer().write(sent("shop.easy", f'{{"id":1,{fields}}}')) == []
    (row,) = shop.rows(", ".join(f"{name}::text" for name in TAKEN) + " FROM easy")
    assert dict(zip(TAKEN, row, strict=True)) == {name: shown for name, (*_, shown) in TAKEN.items()}


def test_of_a_message_of_several_rows_none_is_staged_if_one_is_refused(shop: Shop) -> None:
    shop.tables(ORDERS, "CREATE TABLE other (id int PRIMARY KEY)")
    writer = shop.writer()
    batch = batch_of(
        [sent("shop.other", '{"id":1}'), order(1, total=1), order(2, total=2), order(3, total="x")], 0
    )
    batch = batch.set_column(0, "offset", pa.array([0, 1, 2, 2]))
    staged = writer.sink.stager().stage(Stage(Path("/nowhere"), "part", 0), iter([batch]))
    assert [refusal.offset for refusal in staged.refused] == [2]
    assert (staged.rows, staged.messages) == (2, 2)
    writer.publisher.publish([staged], SinkPosition("log", 0, 3))
    assert shop.rows("id FROM orders") == [(1,)]


def test_a_delete_may_hold_the_whole_row_or_only_its_key_and_names_are_quoted(shop: Shop) -> None:
    """The original bound the key's columns alone while it sent all values, and quoted no identifier."""
    shop.tables(
        'CREATE TABLE "Or""ders%s" ("Id" int, "select" text, "a b" int, PRIMARY KEY ("Id", "select"))'
    )
    writer = shop.writer()
    ns = 'shop.Or"ders%s'
    writer.write(*(sent(ns, f'{{"Id":{i},"select":"x","a b":{i}}}') for i in range(5)))
    writer.write(
        sent(ns, '{"Id":1,"select":"x","a b":1}', Op.DELETE),
        sent(ns, '{"Id":2,"select":"x"}', Op.DELETE),
        sent(ns, "{}", Op.DELETE, key='{"Id":3,"select":"x"}'),
        sent(ns, '{"Id":7,"select":"y","a b":4}', Op.UPDATE, old='{"Id":4,"select":"x"}'),
    )
    assert shop.rows('* FROM "Or""ders%s" ORDER BY 1') == [(0, "x", 0), (7, "y", 4)]
    (refused,) = writer.write(sent(ns, '{"a b":1}', Op.DELETE))
    assert "the field 'Id' is missing" in refused.error


def test_a_namespace_without_a_dot_is_a_table_of_the_default_schema(shop: Shop) -> None:
    """The original panicked at updates and deletes of one."""
    shop.tables(ORDERS)
    writer = shop.writer()
    writer.write(sent("orders", '{"id":1}'), sent("orders", '{"id":1,"note":"b"}', Op.UPDATE))
    assert shop.rows("id, note FROM orders") == [(1, "b")]
    writer.write(sent("orders", '{"id":1}', Op.DELETE))
    assert shop.rows("count(*) FROM orders") == [(0,)]


def test_generated_columns_and_identities_are_written_as_far_as_they_can_be(shop: Shop) -> None:
    shop.tables(
        "CREATE TABLE orders (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, total int, "
        "twice int GENERATED ALWAYS AS (total * 2) STORED)"
    )
    writer = shop.writer()
    assert writer.write(order(5, total=1, twice=99), order(6, total=2, twice=4)) == []
    moved = sent("shop.orders", '{"id":9,"total":3,"twice":0}', Op.UPDATE, old='{"id":6}')
    assert writer.write(order(5, Op.UPDATE, total=7), moved) == []
    assert shop.rows("* FROM orders ORDER BY id") == [(5, 7, 14), (9, 3, 6)]


def test_a_table_without_a_key_takes_inserts_and_refuses_what_has_to_find_a_row(shop: Shop) -> None:
    shop.tables("CREATE TABLE orders (id int, total int)")
    writer = shop.writer()
    refused = writer.write(order(1), order(1), order(1, Op.UPDATE), order(1, Op.DELETE))
    assert [(one.offset, "no primary key" in one.error) for one in refused] == [(2, True), (3, True)]
    assert writer.write(sent("shop.orders", "{}"), order(1)) == [], "a row without fields is a row"
    assert shop.rows("count(*), count(id) FROM orders") == [(4, 3)]
    assert any("no primary key" in finding.what for finding in writer.sink.inspect())


def test_append_adds_a_row_for_each_message_and_tells_what_it_was_if_asked_to(shop: Shop) -> None:
    shop.tables("CREATE TABLE orders (id int, total int)")
    plain = shop.writer(mode="append")
    refused = plain.write(order(1, total=1), order(1, Op.UPDATE, total=2), order(1, Op.DELETE))
    assert [one.offset for one in refused] == [2]
    assert "metadata=True" in refused[0].error
    assert shop.rows("* FROM orders ORDER BY total") == [(1, 1), (1, 2)]
    plain.close()
    writer = shop.writer(
        mode="append",
        metadata=True,
        create_tables=True,
        name="shop.audit",
        schemas={"shop": f"{shop.schema}_audit"},
    )
    assert writer.write(order(1, total=1), order(1, Op.UPDATE, total=2), order(1, Op.DELETE, total=2)) == []
    assert writer.write(Message("shop.orders", b'{"command":"truncate"}', Op.COMMAND)) == []
    found = shop.rows(
        f"penstock_offset, penstock_op, id, penstock_ts::text FROM {shop.schema}_audit.orders ORDER BY 1"
    )
    assert found[:2] == [
        (0, "insert", 1, "2025-06-15 15:06:40+00"), (1, "update", 1, "2025-06-15 15:06:40+00"),
    ]  # fmt: skip
    assert [row[1] for row in found] == ["insert", "update", "delete", "command"]


# Tables that are made


def test_tables_are_made_from_the_schema_and_grow_with_it(shop: Shop) -> None:
    writer = shop.writer(create_tables=True, add_columns=True)
    fields = [Field("id", Kind.INT), Field("total", Kind.DECIMAL, native="numeric(5,2)"), Field("at", Kind.TIMESTAMP),
              Field("tags", Kind.LIST, native="text[]"), Field("from", Kind.STRING, native="inet"),
              Field("name", Kind.STRING, native="character varying(3)"), Field("tree", Kind.MAP)]  # fmt: skip
    writer.schemas["shop.orders"] = Schema(tuple(fields), ("id",))
    row = '{"id":1,"total":1234567.891,"at":{"$date":"2026-11-16T02:14:14Z"},"tags":["a"],"from":"::1","name":"long"'
    assert (
        writer.write(
            sent("shop.orders", row + ',"tree":{}}'), sent("shop.orders", row + ',"tree":{},"new":1}')
        )
        == []
    )
    columns = shop.rows(
        "column_name || ' ' || data_type FROM information_schema.columns "
        f"WHERE table_schema = '{shop.schema}' ORDER BY ordinal_position"
    )
    assert [one for (one,) in columns] == [
        "id bigint", "total numeric", "at timestamp with time zone", "tags ARRAY", "from inet", "name text",
        "tree jsonb", "new bigint",
    ]  # fmt: skip
    writer.schemas["shop.orders"] = Schema((*fields, Field("more", Kind.DATE)), ("id",))
    assert (
        writer.write(order(2), sent("shop.orders", '{"id":3,"more":{"$localDate":"2026-11-16"}}'), order(4))
        == []
    )
    assert shop.rows("id, more::text FROM orders ORDER BY id") == [
        (1, None), (2, None), (3, "2026-11-16"), (4, None),
    ]  # fmt: skip


def test_tasks_make_a_table_that_the_source_knows_and_stage_its_columns_at_once(shop: Shop) -> None:
    """However many begin at the same time; its rows come with the batch, as always."""
    writer = shop.writer(create_tables=True, schemas={"shop": f"{shop.schema}_made"})
    writer.schemas["shop.orders"] = Schema((Field("id", Kind.INT), Field("total", Kind.INT)), ("id",))
    with ThreadPoolExecutor(4) as tasks:
        made = [tasks.submit(writer.stage, order(n, total=n), parts=1) for n in range(4)]
        parts = [part for one in made for part in one.result()]
    if shop.directory is not None:
        assert [file.rows for part in parts for file in told(part).files] == [1] * 4
    staged = [table for part in parts for table in told(part).tables]
    assert [(table.raw, table.rows) for table in staged] == ([(False, 1)] * 4 if not shop.directory else [])
    assert shop.rows(f"count(*) FROM {shop.schema}_made.orders") == [(0,)]


def test_a_run_that_is_killed_after_its_tasks_made_a_table_is_followed_by_one_that_fills_it(
    shop: Shop,
) -> None:
    killed = shop.writer(create_tables=True)
    schema = Schema((Field("id", Kind.INT), Field("total", Kind.INT)), ("id",))
    killed.schemas["shop.orders"] = schema
    killed.stage(order(1, total=1), order(2, total=2))
    killed.close()
    writer = shop.writer(create_tables=True)
    writer.schemas["shop.orders"] = schema
    assert writer.write(order(1, total=1), order(2, total=2)) == []
    assert shop.rows("id, total FROM orders ORDER BY id") == [(1, 1), (2, 2)]


def test_of_a_field_that_the_source_does_not_know_all_rows_tell(shop: Shop) -> None:
    writer = shop.writer(create_tables=True)
    writer.schemas["shop.orders"] = Schema((Field("id", Kind.INT),), ("id",))
    parts = writer.stage(order(1, total=1), order(2, total=1.5))
    assert [table.raw for part in parts for table in told(part).tables] == [True, True]


def test_a_table_that_no_schema_describes_gets_types_that_hold_what_came(shop: Shop) -> None:
    writer = shop.writer(create_tables=True)
    rows = ['{"id":"a","n":1,"f":1.5,"x":1}', '{"id":"b","n":1.25,"f":2.5,"x":"text","t":null}']
    writer.write(*(sent("shop.things", row, key=f'{{"id":"{i}"}}') for i, row in enumerate(rows)))
    found = shop.rows(
        "id, n::text, f::text, x::text, pg_typeof(n)::text, pg_typeof(f)::text FROM things ORDER BY id"
    )
    assert found == [
        ("a", "1", "1.5", "1", "numeric", "double precision"),
        ("b", "1.25", "2.5", '"text"', "numeric", "double precision"),
    ]
    writer.write(sent("shop.things", '{"id":"a"}', Op.DELETE))
    assert shop.rows("id FROM things") == [("b",)]


def test_a_missing_table_is_told_with_the_statement_that_makes_it(shop: Shop) -> None:
    writer = shop.writer()
    writer.schemas["shop.orders"] = Schema((Field("id", Kind.INT), Field("x", Kind.UUID)), ("id",))
    with pytest.raises(UsageError, match="does not exist") as caught:
        writer.write(sent("shop.orders", '{"id":1,"x":null}'))
    assert caught.value.hint is not None
    shop.tables(caught.value.hint.partition("make it: ")[2])
    writer.reopen()
    assert writer.write(sent("shop.orders", '{"id":1,"x":null}')) == []
