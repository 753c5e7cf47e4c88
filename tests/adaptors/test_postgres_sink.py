"""The PostgreSQL sink against a real server: the kit's battery, and what is its own."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import psycopg
import pyarrow as pa
import pytest
from tests.adaptors.postgres_target import PostgresTarget, Writer, sent
from tests.servers.postgres import PostgresServer

from penstock import adaptors as a
from penstock.adaptors.base import SinkPosition, Stage
from penstock.adaptors.postgres import sink as postgres_sink
from penstock.adaptors.postgres import sink_session as postgres_sink_session
from penstock.adaptors.postgres.sink_stage import StagedTable
from penstock.base.errors import AwayError, PenstockError, RefusedError, UsageError
from penstock.log.message import Message, Op
from penstock.log.schema import Field, Kind, Schema
from penstock.testing.adaptors import SinkConformance
from penstock.testing.adaptors.delivery import batch_of

pytestmark = pytest.mark.xdist_group("postgres")


class TestPostgresSink(SinkConformance):
    @pytest.fixture
    def subject(self, postgres_server: PostgresServer) -> PostgresTarget:
        return PostgresTarget(postgres_server)


class Shop:
    """A schema of its own, and a sink that writes to it."""

    def __init__(self, target: PostgresTarget) -> None:
        self.target = target
        self.schema = f"shop{target.own_schema}"
        self.writers: list[Writer] = []
        target.execute(f"CREATE SCHEMA {self.schema}")

    def tables(self, *statements: str) -> None:
        for statement in statements:
            self.target.execute(f"SET search_path = {self.schema}; {statement}")

    def writer(self, name: str = "shop.db", **settings: object) -> Writer:
        settings = {"schemas": {"shop": self.schema}, "schema": self.schema, **settings}
        self.writers.append(Writer(self.target, name, **settings))
        return self.writers[-1]

    def rows(self, what: str) -> list[tuple[object, ...]]:
        """The rows of `SELECT what`, in the schema."""
        with psycopg.connect(
            self.target.uri, autocommit=True, options=f"-c search_path={self.schema}"
        ) as connection:
            connection.execute("SET datestyle = ISO; SET timezone = UTC")
            return connection.execute(f"SELECT {what}").fetchall()


@pytest.fixture
def shop(postgres_server: PostgresServer) -> Iterator[Shop]:
    shop = Shop(PostgresTarget(postgres_server))
    yield shop
    for writer in shop.writers:
        writer.close()


ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, total numeric, note text DEFAULT 'none')"
FAMILY = (
    "CREATE TABLE parent (id int PRIMARY KEY)",
    "CREATE TABLE child (id int PRIMARY KEY, parent int NOT NULL REFERENCES parent)",
)


def parent(id: int, op: Op = Op.INSERT) -> Message:
    return sent("shop.parent", f'{{"id":{id}}}', op)


def child(id: int, parent: int, op: Op = Op.INSERT) -> Message:
    return sent("shop.child", f'{{"id":{id},"parent":{parent}}}', op)


def order(id: int, op: Op = Op.INSERT, /, **fields: object) -> Message:
    return sent("shop.orders", msgspec.json.encode({"id": id, **fields}).decode(), op)


# Order and constraints


def test_parents_and_children_come_and_go_in_one_batch_with_constraints_that_cannot_wait(shop: Shop) -> None:
    shop.tables(*FAMILY)
    writer = shop.writer()
    assert writer.write(*(each for i in range(30) for each in (parent(i), child(i, i)))) == []
    assert shop.rows("count(*) FROM child JOIN parent ON parent.id = child.parent") == [(30,)]
    writer.write(*(each for i in range(30) for each in (child(i, i, Op.DELETE), parent(i, Op.DELETE))))
    assert shop.rows("(SELECT count(*) FROM child), (SELECT count(*) FROM parent)") == [(0, 0)]


def test_what_no_order_of_whole_tables_allows_goes_row_by_row(shop: Shop) -> None:
    """The child leaves its parent, which then goes, while another row takes the value that it had: all in one batch."""
    shop.tables(*FAMILY, "ALTER TABLE child ADD name text UNIQUE")
    writer = shop.writer()
    writer.write(parent(1), child(1, 1))
    writer.write(
        parent(2),
        child(1, 2, Op.UPDATE),
        parent(1, Op.DELETE),
        sent("shop.child", '{"id":1,"parent":2,"name":"a"}', Op.UPDATE),
        sent("shop.child", '{"id":1,"parent":2,"name":"b"}', Op.UPDATE),
        sent("shop.child", '{"id":2,"parent":2,"name":"a"}'),
        sent("shop.child", '{"id":1,"parent":2,"name":"b"}', Op.UPDATE),
    )
    assert shop.rows("* FROM child ORDER BY id") == [(1, 2, "b"), (2, 2, "a")]
    assert shop.rows("* FROM parent") == [(2,)]


SWAP = (
    sent("shop.seats", '{"id":1,"seat":"b"}', Op.UPDATE),
    sent("shop.seats", '{"id":2,"seat":"a"}', Op.UPDATE),
)


def test_unique_values_are_swapped_where_the_constraint_can_wait(shop: Shop) -> None:
    shop.tables("CREATE TABLE seats (id int PRIMARY KEY, seat text UNIQUE DEFERRABLE)")
    writer = shop.writer()
    writer.write(sent("shop.seats", '{"id":1,"seat":"a"}'), sent("shop.seats", '{"id":2,"seat":"b"}'))
    writer.write(*SWAP)
    assert shop.rows("* FROM seats ORDER BY id") == [(1, "b"), (2, "a")]


def test_a_swap_that_the_constraint_does_not_let_pass_is_refused_and_nothing_of_it_is_visible(
    shop: Shop,
) -> None:
    shop.tables("CREATE TABLE seats (id int PRIMARY KEY, seat text UNIQUE)")
    writer = shop.writer()
    writer.write(sent("shop.seats", '{"id":1,"seat":"a"}'), sent("shop.seats", '{"id":2,"seat":"b"}'))
    with pytest.raises(RefusedError, match="seats_seat_key"):
        writer.write(sent("shop.seats", '{"id":3,"seat":"c"}'), *SWAP)
    assert shop.rows("* FROM seats ORDER BY id") == [(1, "a"), (2, "b")]
    findings = [finding for finding in writer.sink.inspect() if "seats_seat_key" in finding.what]
    shop.tables(*(finding.fix for finding in findings if finding.fix))
    writer.reopen()
    writer.write(*SWAP)
    assert shop.rows("* FROM seats ORDER BY id") == [(1, "b"), (2, "a")]


def test_a_constraint_names_its_message_when_they_go_one_at_a_time(shop: Shop) -> None:
    shop.tables("CREATE TABLE orders (id int PRIMARY KEY, total numeric CHECK (total >= 0), note text)")
    writer = shop.writer()
    messages = [order(1, total=1), order(2, total=-1), order(3, total=3)]
    with pytest.raises(RefusedError, match="orders_total_check"):
        writer.write(*messages)
    writer.reopen()
    assert shop.rows("count(*) FROM orders") == [(0,)]
    writer.end = 0
    refused = []
    for offset, message in enumerate(messages):
        try:
            writer.write(message)
        except RefusedError:
            refused.append(offset)
            writer.reopen()
    assert refused == [1]
    assert shop.rows("id FROM orders ORDER BY id") == [(1,), (3,)]


@pytest.mark.parametrize("key", ["PRIMARY KEY", "PRIMARY KEY DEFERRABLE", "NOT NULL UNIQUE"])
def test_keys_move_and_rows_keep_what_no_message_sets(shop: Shop, key: str) -> None:
    shop.tables(f"CREATE TABLE orders (id int {key}, total numeric, extra text)")
    writer = shop.writer()
    writer.write(order(1, total=1), order(2, total=2))
    shop.tables("UPDATE orders SET extra = 'row ' || id")
    writer.write(
        sent("shop.orders", '{"id":9,"total":1}', Op.UPDATE, old='{"id":1}'),
        sent("shop.orders", '{"id":1,"total":2}', Op.UPDATE, old='{"id":2}'),
        sent("shop.orders", '{"id":2,"total":5}', Op.UPDATE, old='{"id":9}'),
        sent("shop.orders", '{"id":7,"total":7}', Op.UPDATE, old='{"id":70}'),
        order(8, total=8), order(8, Op.DELETE), order(8, Op.UPDATE, total=80), order(7, Op.UPDATE, total=8),
    )  # fmt: skip
    assert shop.rows("id, total::int, extra FROM orders ORDER BY id") == [
        (1, 2, "row 2"), (2, 5, "row 1"), (7, 8, None), (8, 80, None),
    ]  # fmt: skip


def test_a_table_with_a_trigger_sees_each_change_in_order(shop: Shop) -> None:
    shop.tables(
        ORDERS,
        "CREATE TABLE seen (n serial, what text)",
        "CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "INSERT INTO seen (what) VALUES (TG_OP || ' ' || coalesce(NEW.id, OLD.id)); RETURN NULL; END $$",
        "CREATE TRIGGER see AFTER INSERT OR UPDATE OR DELETE ON orders FOR EACH ROW EXECUTE FUNCTION see()",
        f"ALTER FUNCTION see() SET search_path = {shop.schema}",
    )
    writer = shop.writer()
    writer.write(
        order(1, total=1), order(2, total=2), order(1, Op.UPDATE, total=3), order(1, Op.DELETE), order(3)
    )
    assert [what for (what,) in shop.rows("what FROM seen ORDER BY n")] == [
        "INSERT 1", "INSERT 2", "UPDATE 1", "DELETE 1", "INSERT 3",
    ]  # fmt: skip
    assert any("triggers" in finding.what for finding in writer.sink.inspect())


def test_a_truncate_empties_tables_that_others_refer_to(shop: Shop) -> None:
    shop.tables(*FAMILY)
    writer = shop.writer()
    writer.write(parent(1), child(1, 1))
    empty = b'{"command":"truncate"}'
    writer.write(
        Message("shop.child", empty, Op.COMMAND),
        Message("shop.parent", empty, Op.COMMAND),
        parent(2),
        child(2, 2),
    )
    assert shop.rows("* FROM child") == [(2, 2)]
    writer.write(child(2, 2, Op.DELETE), Message("shop.parent", empty, Op.COMMAND))
    assert shop.rows("(SELECT count(*) FROM child), (SELECT count(*) FROM parent)") == [(0, 0)]


def test_rows_of_a_copy_that_are_there_already_are_written_over(shop: Shop) -> None:
    """The original's plain INSERT stopped the pipeline at the first key that was there."""
    shop.tables(ORDERS, "INSERT INTO orders VALUES (5, 0, 'kept')")
    writer = shop.writer()
    writer.write(*(order(i, total=i) for i in range(10)))
    writer.write(*(order(i, total=i) for i in range(20)), order(3, total=33), parts=3)
    assert shop.rows("count(*), sum(total)::int FROM orders") == [(20, sum(range(20)) + 30)]
    assert shop.rows("note FROM orders WHERE id IN (4, 5) ORDER BY id") == [("none",), ("kept",)]


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
    "milli": ("timestamp(3)", '{"$localTimestamp":"2026-11-16T02:14:14.1234"}', "finer than timestamp(3)"),
    "zone": ("timestamp", '"2026-11-16 02:14:14+01"', "has an offset"),
    "subtype": ("bytea", '{"$binary":{"base64":"AP8=","subType":"05"}}', "subtype 5"),
    "uuid": ("uuid", '"1fc2f65b"', "invalid input syntax for type uuid"),
    "bool": ("boolean", "2", "not of the type boolean"),
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


TAKEN = {
    "int_float": ("int", "3.0", "3"),
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
    staged = [table for part in parts for table in msgspec.json.decode(part.part, type=list[StagedTable])]
    assert [(table.raw, table.rows) for table in staged] == [(False, 1)] * 4
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
    staged = [table for part in parts for table in msgspec.json.decode(part.part, type=list[StagedTable])]
    assert all(table.raw for table in staged)


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


# The position, and who else is there


def test_a_newer_generation_and_a_position_that_moved_are_refused(shop: Shop) -> None:
    shop.tables(ORDERS)
    writer = shop.writer()
    writer.write(order(1))
    shop.tables(f"UPDATE {shop.target.own_schema}.positions SET watermark = 7")
    with pytest.raises(PenstockError, match="not where this run left it"):
        writer.write(order(2))
    assert shop.rows("id FROM orders") == [(1,)]
    writer.close()
    shop.tables(f"UPDATE {shop.target.own_schema}.positions SET generation = 3")
    with pytest.raises(UsageError, match="generation 3"):
        writer.sink.publisher().open(SinkPosition("log", 2, 0))


def test_the_staging_of_another_sink_is_left_alone_and_so_is_that_of_a_late_task(shop: Shop) -> None:
    shop.tables(ORDERS)
    one, two = shop.writer(), shop.writer(name="shop.other")
    staged = two.stage(order(7), parts=1)
    late = one.stage(order(8), parts=1)
    name = msgspec.json.decode(late[0].part)[0]["stage"]
    with psycopg.connect(shop.target.uri) as busy:
        busy.execute(f"LOCK {shop.target.own_schema}.{name}")
        one.reopen()
        one.write(order(1))
    two.publisher.publish(staged, SinkPosition("log", 0, 1))
    assert shop.rows("id FROM orders ORDER BY id") == [(1,), (7,)]
    one.write(order(2))
    assert shop.target.leftovers() == []


def test_a_second_publisher_waits_for_the_first_and_then_says_that_it_is_there(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = shop.writer()
    monkeypatch.setattr(postgres_sink, "PATIENCE", 0.3)
    with pytest.raises(AwayError, match=r"another session writes as sink 'shop\.db'"):
        writer.sink.publisher().open(SinkPosition("log", 0, 0))


def test_transactions_that_meet_others_are_tried_again(shop: Shop) -> None:
    shop.tables(
        ORDERS,
        "CREATE SEQUENCE tries",
        "CREATE FUNCTION unlucky() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF nextval('{shop.schema}.tries') < 3 THEN RAISE EXCEPTION 'unlucky' USING ERRCODE = '40P01'; END IF; "
        "RETURN NEW; END $$",
        "CREATE TRIGGER unlucky BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION unlucky()",
    )
    writer = shop.writer()
    assert writer.write(order(1)) == []
    assert shop.rows("id FROM orders") == [(1,)]
    shop.tables("DROP TRIGGER unlucky ON orders")


def test_a_lock_that_is_not_had_in_time_is_a_state_and_not_the_end(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.tables(ORDERS)
    monkeypatch.setitem(postgres_sink_session._SETTINGS, "lock_timeout", "100ms")
    writer = shop.writer()
    with psycopg.connect(shop.target.uri) as other:
        other.execute(f"LOCK {shop.schema}.orders")
        with pytest.raises(AwayError, match="lock timeout"):
            writer.write(order(1))
    writer.end = 0
    writer.reopen()
    assert writer.write(order(1)) == []


def test_sessions_are_named_and_depend_on_no_setting_of_the_server(shop: Shop) -> None:
    writer = shop.writer()
    shown = shop.target.query(
        "SELECT application_name FROM pg_stat_activity WHERE application_name LIKE 'penstock%'"
    )
    assert ("penstock shop.db",) in shown
    connection = writer.publisher._connection  # type: ignore[attr-defined]
    for name, value in (("synchronous_commit", "on"), ("TimeZone", "UTC"), ("lock_timeout", "30s")):
        assert connection.execute(f"SHOW {name}").fetchone() == (value,)
    assert connection.execute("SHOW search_path").fetchone()[0].startswith("pg_catalog, ")


# What `plan` says


def test_inspect_names_missing_rights_with_the_statements_that_grant_them(shop: Shop) -> None:
    role = f"poor_{shop.schema}"
    shop.tables(ORDERS, f"CREATE ROLE {role} LOGIN PASSWORD 'poor-password'")
    uri = shop.target.uri.replace("owner:not-to-be-shown", f"{role}:poor-password")
    sink = a.postgres(uri=uri, schema=shop.schema, own_schema=f"{shop.schema}_own").sink()
    sink.use(lambda ns: None, "shop.db")
    findings = sink.inspect()
    assert [finding.fatal for finding in findings] == [True, False, False]
    with pytest.raises(UsageError, match="permission denied"):
        sink.publisher().open(SinkPosition("log", 0, 0))
    for finding in findings:
        assert finding.fix is not None
        shop.target.execute(finding.fix)
    assert sink.inspect() == []
    publisher = sink.publisher()
    publisher.open(SinkPosition("log", 0, 0))
    publisher.close()


def test_inspect_looks_at_the_tables_of_the_namespaces_that_will_come(shop: Shop) -> None:
    role = f"poor_{shop.schema}"
    shop.tables(
        ORDERS,
        f"CREATE VIEW {shop.schema}.looked_at AS SELECT 1 AS id",
        f"CREATE TABLE {shop.schema}.never_written (id int)",
        f"CREATE ROLE {role} LOGIN PASSWORD 'poor-password'",
        f"GRANT USAGE ON SCHEMA {shop.schema} TO {role}",
        f"GRANT SELECT, INSERT, UPDATE ON {shop.schema}.orders TO {role}",
        f"CREATE SCHEMA {shop.schema}_own AUTHORIZATION {role}",
    )
    uri = shop.target.uri.replace("owner:not-to-be-shown", f"{role}:poor-password")
    settings = {"uri": uri, "schema": shop.schema, "own_schema": f"{shop.schema}_own"}
    sink = a.postgres(**settings).sink()
    sink.use(lambda ns: None, "shop.db")
    told = {finding.what: finding for finding in sink.inspect(["orders", "items", "looked_at"])}
    assert list(told) == [
        f"there is no table {shop.schema}.items",
        f"{shop.schema}.looked_at is no table that rows can be put into",
        f"no right DELETE on table {shop.schema}.orders",
    ]
    assert [finding.fatal for finding in told.values()] == [True, True, False]
    grant = told[f"no right DELETE on table {shop.schema}.orders"].fix
    assert grant is not None
    shop.target.execute(grant)
    assert sink.inspect(["orders"]) == []
    making = a.postgres(**settings, create_tables=True, add_columns=True).sink()
    making.use(lambda ns: None, "shop.db")
    fixes = [finding.fix or "" for finding in making.inspect(["orders", "items"])]
    assert [fix.split()[0] for fix in fixes] == ["GRANT", "ALTER"]
    shop.target.execute(*fixes)
    assert making.inspect(["orders", "items"]) == []


def test_settings_are_checked_and_the_password_is_not_shown() -> None:
    with pytest.raises(UsageError, match="mode"):
        a.postgres(uri="postgresql://x/y", mode="replace")
    adaptor = a.postgres(uri="postgresql://me:very-secret-word@db/shop")
    assert "very-secret-word" not in f"{adaptor!r} {adaptor.sink().stager()._options!r}"  # type: ignore[attr-defined]
