"""Rows that are only added, on the straight way into their table: from files that tasks left.

That all else the sink promises holds on this way, too, is shown by the other tests of it, which go both.
"""

from __future__ import annotations

import random
import resource
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
import psycopg
import pyarrow as pa
import pytest
from tests.adaptors.postgres_sink_shop import ORDERS, Shop, order, told
from tests.adaptors.postgres_target import DATABASE, Writer, sent
from tests.servers.postgres import PASSWORD, PostgresServer

from penstock.adaptors.base import SinkPosition, Staged
from penstock.adaptors.postgres import sink_sure
from penstock.adaptors.postgres.sink_columns import AlikeReader, Columns
from penstock.adaptors.postgres.sink_file import RowFile
from penstock.adaptors.postgres.sink_table import Name, Table, tables_of
from penstock.base.errors import AwayError, PenstockError, RefusedError, UsageError
from penstock.log.message import Message, Op

pytestmark = pytest.mark.parametrize("shop", ["files"], indirect=True)


def files(parts: list[Staged]) -> list[int]:
    """The rows in each of the files of some parts."""
    return [file.rows for part in parts for file in told(part).files]


def tables(parts: list[Staged]) -> list[int]:
    """The rows in each of their staging tables."""
    return [table.rows for part in parts for table in told(part).tables]


def test_rows_that_are_added_never_are_in_a_staging_table(shop: Shop) -> None:
    shop.tables(ORDERS)
    writer = shop.writer()
    parts = writer.stage(*(order(n, total=n) for n in range(6)))
    assert (files(parts), tables(parts)) == ([3, 3], [])
    assert shop.rows(f"count(*) FROM pg_tables WHERE schemaname = '{shop.target.own_schema}'") == [(1,)]
    writer.write(*(order(n, total=n) for n in range(6)))
    assert shop.rows("id, total FROM orders ORDER BY id") == [(n, n) for n in range(6)]
    assert shop.target.leftovers() == []


def test_rows_that_are_there_already_are_written_over_and_the_next_ones_staged_at_the_server(
    shop: Shop,
) -> None:
    shop.tables(ORDERS, "INSERT INTO orders VALUES (2, 0, 'old')")
    writer = shop.writer()
    before = writer.sink.learnt
    assert writer.write(*(order(n, total=n) for n in range(4))) == []
    assert shop.rows("id, total, note FROM orders ORDER BY id") == [
        (0, 0, "none"), (1, 1, "none"), (2, 2, "old"), (3, 3, "none"),
    ]  # fmt: skip
    assert writer.sink.learnt > before, "tasks are not told"
    assert shop.target.leftovers() == []
    assert tables(writer.stage(order(9, total=9), parts=1)) == [1]
    writer.reopen()
    assert tables(writer.stage(order(9, total=9), parts=1)) == [1], "forgotten with the next publisher"


def test_of_rows_with_one_key_the_last_one_counts_in_whichever_file_it_is(shop: Shop) -> None:
    shop.tables(ORDERS)
    shop.writer().write(order(1, total=1), order(2, total=1), order(1, total=2), order(2, total=3))
    assert shop.rows("id, total FROM orders ORDER BY id") == [(1, 2), (2, 3)]


@pytest.mark.parametrize("plain", [True, False])
def test_added_rows_in_files_keep_their_place_among_changes_that_are_not(shop: Shop, plain: bool) -> None:
    shop.tables(ORDERS, "INSERT INTO orders VALUES (1, 0), (2, 0), (3, 0)")
    if not plain:  # a trigger could tell in which order changes come
        shop.tables(
            "CREATE FUNCTION seen() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END'",
            "CREATE TRIGGER seen BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION seen()",
        )
    writer = shop.writer()
    messages = [
        order(4, total=4), order(5, total=5),  # a file
        order(4, Op.DELETE), order(5, Op.UPDATE, total=6),
        order(4, total=7), order(6, total=6),  # a file again
        order(6, Op.DELETE), order(1, Op.DELETE),
    ]  # fmt: skip
    parts = writer.stage(*messages, parts=4)
    assert files(parts) == ([2, 2] if plain else [])
    writer.write(*messages, parts=4)
    assert shop.rows("id, total FROM orders ORDER BY id") == [(2, 0), (3, 0), (4, 7), (5, 6)]
    assert files(writer.stage(order(7, total=7), parts=1)) == [], (
        "a table that changes is staged at the server"
    )


def test_a_row_that_moves_in_one_table_has_the_files_of_the_others_loaded(shop: Shop) -> None:
    """All tables of a batch go in the order of the log then."""
    shop.tables(ORDERS, ORDERS.replace("orders", "bills"), "INSERT INTO bills VALUES (1, 1)")
    writer = shop.writer()
    moved = sent("shop.bills", '{"id":2,"total":1}', Op.UPDATE, key='{"id":2}', old='{"id":1}')
    messages = [order(1, total=1), order(2, total=2), moved, sent("shop.bills", '{"id":1,"total":9}')]
    assert files(writer.stage(*messages, parts=2)) == [2]
    writer.write(*messages, parts=2)
    assert shop.rows("id, total FROM orders ORDER BY id") == [(1, 1), (2, 2)]
    assert shop.rows("id, total FROM bills ORDER BY id") == [(1, 9), (2, 1)]
    assert shop.target.leftovers() == []


def test_what_is_added_behind_a_truncate_stays_and_what_was_before_it_goes(shop: Shop) -> None:
    shop.tables(ORDERS)
    truncate = Message("shop.orders", b'{"command":"truncate"}', Op.COMMAND)
    shop.writer().write(
        order(1, total=1), order(2, total=2), truncate, order(9, Op.DELETE), order(2, total=3), parts=5
    )
    assert shop.rows("id, total FROM orders") == [(2, 3)]


@pytest.mark.parametrize(
    "constraint", ["CHECK (total < 5)", "UNIQUE (total)", "FOREIGN KEY (id) REFERENCES ids"]
)
def test_a_constraint_that_rows_do_not_meet_refuses_the_batch_whatever_way_they_came(
    shop: Shop, constraint: str, tmp_path: Path
) -> None:
    shop.tables("CREATE TABLE ids (id int PRIMARY KEY)", "INSERT INTO ids VALUES (1), (2)", ORDERS)
    shop.tables(f"ALTER TABLE orders ADD CONSTRAINT mine {constraint}")
    said = []
    for directory in (tmp_path, None):
        shop.directory = directory
        writer = shop.writer(name=f"shop.{directory is None}")
        with pytest.raises(RefusedError) as refused:
            writer.write(order(1, total=1), order(2, total=7), order(7, total=7))
        said.append(str(refused.value))
        assert shop.rows("count(*) FROM orders") == [(0,)]
    assert said[0] == said[1]
    assert "mine" in said[0] or "orders_total_key" in said[0]


def test_several_tables_get_their_rows_parents_before_children(shop: Shop) -> None:
    shop.tables(
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child (id int PRIMARY KEY, parent int NOT NULL REFERENCES parent)",
    )
    writer = shop.writer()
    messages = [sent("shop.child", f'{{"id":{n},"parent":{n % 3}}}') for n in range(9)]
    messages += [sent("shop.parent", f'{{"id":{n}}}') for n in range(3)]
    assert files(writer.stage(*messages, parts=1)) == [9, 3]
    writer.write(*messages, parts=1)
    assert shop.rows("count(*), count(DISTINCT parent) FROM child") == [(9, 3)]


def test_rows_with_other_fields_are_in_a_file_of_their_own_and_columns_left_out_have_their_default(
    shop: Shop,
) -> None:
    shop.tables(ORDERS)
    writer = shop.writer()
    messages = [order(1), order(2), order(3, total=3, note="x"), order(4, note="y", total=4)]
    assert files(writer.stage(*messages, parts=2)) == [2, 1]  # the last one is alike with none: at the server
    writer.write(*messages)
    assert shop.rows("id, total, note FROM orders ORDER BY id") == [
        (1, None, "none"), (2, None, "none"), (3, 3, "x"), (4, 4, "y"),
    ]  # fmt: skip


def test_appended_rows_and_tables_without_a_key_go_straight(shop: Shop) -> None:
    shop.tables(ORDERS.replace(" PRIMARY KEY", ""), "INSERT INTO orders VALUES (1, 1)")
    for mode in ("append", "upsert"):
        writer = shop.writer(name=f"shop.{mode}", mode=mode)
        assert files(writer.stage(order(1, total=1), order(1, total=1), parts=1)) == [2]
        writer.write(order(1, total=1), order(1, total=1))
    assert shop.rows("count(*) FROM orders") == [(5,)]


def test_an_identity_that_is_always_generated_keeps_the_values_of_the_source(shop: Shop) -> None:
    shop.tables("CREATE TABLE orders (id int PRIMARY KEY GENERATED ALWAYS AS IDENTITY, total int, twice int "
                "GENERATED ALWAYS AS (total * 2) STORED)")  # fmt: skip
    writer = shop.writer()
    assert files(writer.stage(order(70, total=1), parts=1)) == [1]
    writer.write(order(70, total=1), order(80, total=2))
    assert shop.rows("id, total, twice FROM orders ORDER BY id") == [(70, 1, 2), (80, 2, 4)]


def test_a_text_is_in_its_column_as_it_was(shop: Shop) -> None:
    shop.tables("CREATE TABLE words (word text)")
    words = ["", " ", "\\N", "\\.", "a\tb", "a\nb", "☃ 𝄞", '"', "\x7f", "null", "x" * 100_000]
    writer = shop.writer()
    messages = [sent("shop.words", msgspec.json.encode({"word": word}).decode()) for word in [*words, None]]
    assert writer.write(*messages, parts=1) == []
    assert {word for (word,) in shop.rows("word FROM words WHERE word IS NOT NULL")} == set(words)
    assert shop.rows("count(*), count(word) FROM words") == [(len(words) + 1, len(words))]


def test_rows_of_a_table_with_policies_are_staged_at_the_server_which_looks_at_each(shop: Shop) -> None:
    """COPY does not go into one for which a policy is in force."""
    role = f"clerk_{shop.schema}"
    shop.tables(ORDERS, "ALTER TABLE orders ENABLE ROW LEVEL SECURITY",
                "CREATE POLICY small ON orders USING (true) WITH CHECK (total < 10)")  # fmt: skip
    shop.target.execute(
        f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'", f"GRANT ALL ON SCHEMA {shop.schema} TO {role}",
        f"GRANT ALL ON ALL TABLES IN SCHEMA {shop.schema} TO {role}", f"GRANT CREATE ON DATABASE {DATABASE} TO {role}",
    )  # fmt: skip
    uri = shop.target.uri.replace("owner:", f"{role}:")
    writer = shop.writer(uri=uri, own_schema=f"{shop.target.own_schema}_clerk")
    assert files(writer.stage(order(1, total=1), parts=1)) == []
    writer.write(order(1, total=1), order(2, total=2))
    assert shop.rows("count(*) FROM orders") == [(2,)]


def test_where_the_database_keeps_other_characters_the_server_looks_at_each_row(
    shop: Shop, postgres_server: PostgresServer
) -> None:
    name = f"latin_{shop.schema}"
    postgres_server.execute(
        f"CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    )
    postgres_server.execute("CREATE TABLE words (id int PRIMARY KEY, word text)", database=name)
    writer = shop.writer(uri=postgres_server.uri(name), schema="public")
    refused = writer.write(
        sent("words", '{"id":1,"word":"é"}'), sent("words", '{"id":2,"word":"☃"}'), parts=1
    )
    assert [refusal.offset for refusal in refused] == [1]
    assert postgres_server.query("SELECT word FROM words", database=name) == [("é",)]


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-2]),
        lambda path: path.write_bytes(path.read_bytes().replace(b"\n", b" ", 1)),
        Path.unlink,
    ],
    ids=["cut", "of fewer lines", "gone"],
)
def test_a_file_that_is_not_what_its_task_wrote_ends_the_batch_with_its_name(
    shop: Shop, damage: Callable[[Path], object]
) -> None:
    shop.tables("CREATE TABLE words (word text)")
    writer = shop.writer()
    messages = [sent("shop.words", f'{{"word":"{word}"}}') for word in ("one", "two")]
    (part,) = writer.stage(*messages, parts=1)
    (file,) = told(part).files
    damage(Path(file.path))
    with pytest.raises(PenstockError, match=file.path):
        writer.publisher.publish([part], SinkPosition("log", 0, 2))
    assert shop.rows("count(*) FROM words") == [(0,)]
    writer.reopen()
    writer.write(*messages)
    assert shop.rows("word FROM words ORDER BY word") == [("one",), ("two",)]


def test_a_disk_without_room_for_the_file_is_waited_for(shop: Shop, tmp_path: Path) -> None:
    rows = Columns(np.arange(3), {"v": pa.array(["1", "2", "3"])}, sure=True)
    table = table_with(shop, "int")
    (tmp_path / "part").symlink_to("/dev/full")
    with pytest.raises(AwayError, match=f"{tmp_path}/part: No space left"):
        RowFile(tmp_path / "part", table, ("v",)).write(rows)
    with pytest.raises(PenstockError, match=f"{tmp_path}/none/part: No such file"):
        RowFile(tmp_path / "none" / "part", table, ("v",)).write(rows)


def test_a_batch_for_more_tables_than_a_process_may_have_files_open(shop: Shop) -> None:
    count = 600
    shop.tables("".join(f"CREATE TABLE t{n} (id int PRIMARY KEY);" for n in range(count)))
    writer = shop.writer()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(500, limits[0]), limits[1]))
    try:
        writer.write(*(sent(f"shop.t{n}", f'{{"id":{n}}}') for n in range(count)), parts=1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert shop.rows("(SELECT id FROM t0), (SELECT id FROM t599)") == [(0, 599)]


@pytest.mark.parametrize("change", ["ALTER id TYPE smallint", "DROP total", "RENAME total TO sum"])
def test_a_table_that_changed_since_gets_its_rows_as_it_now_is(shop: Shop, change: str) -> None:
    shop.tables(ORDERS)
    writer = shop.writer(unknown_fields="ignore")
    staged = writer.stage(order(7, total=1))
    shop.tables(f"ALTER TABLE orders {change}")
    column = "id" if "id" in change else "total"
    with pytest.raises(PenstockError, match=f"column '{column}'") as changed:
        writer.publisher.publish(staged, SinkPosition("log", 0, 1))
    assert not isinstance(changed.value, RefusedError | UsageError), "nobody tries again"
    writer.reopen()
    writer.write(order(7, total=1))
    assert shop.rows("id FROM orders") == [(7,)]


def published_beside(shop: Shop, writer: Writer, staged: list[Staged], change: str) -> PenstockError | None:
    """Publish while another session is about to change a table; it commits when the publisher waits for it."""
    failed: list[PenstockError] = []

    def publish() -> None:
        try:
            writer.publisher.publish(staged, SinkPosition("log", 0, 2))
        except PenstockError as error:
            failed.append(error)

    with (
        psycopg.connect(shop.target.uri) as other,
        psycopg.connect(shop.target.uri, autocommit=True) as looking,
    ):
        other.execute(f"SET search_path = {shop.schema}")
        other.execute(change)
        publishing = threading.Thread(target=publish)
        publishing.start()
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = %s::regclass"
        while publishing.is_alive() and looking.execute(waits, [f"{shop.schema}.events"]).fetchone() == (0,):
            time.sleep(0.01)
        other.commit()
        publishing.join()
    return failed[0] if failed else None


@pytest.mark.parametrize(
    "change", ["ALTER at TYPE timestamp USING at AT TIME ZONE 'UTC'", "ALTER good TYPE text"]
)
def test_a_column_that_changes_while_its_publisher_waits_gets_no_text_of_its_old_type(
    shop: Shop, change: str
) -> None:
    shop.tables("CREATE TABLE events (id int PRIMARY KEY, at timestamptz, good bool)")
    writer = shop.writer()
    message = sent("shop.events", '{"id":1,"at":{"$date":"2024-01-01T10:00:00+05:30"},"good":true}')
    staged = writer.stage(message, parts=1)
    assert files(staged) == [1]
    failed = published_beside(shop, writer, staged, f"ALTER TABLE events {change}")
    assert "when rows were staged for it" in str(failed)
    writer.reopen()
    writer.write(message)
    at = "at AT TIME ZONE 'UTC'" if "good" in change else "at"
    assert shop.rows(f"extract(hour FROM {at})::int, good::text FROM events") == [(4, "true")]


def test_a_trigger_that_comes_while_its_publisher_waits_sees_each_row(shop: Shop) -> None:
    shop.tables(
        "CREATE TABLE events (id int PRIMARY KEY)",
        "CREATE FUNCTION half() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN IF new.id = 2 THEN RETURN NULL; END IF; RETURN new; END'",
    )
    writer = shop.writer()
    staged = writer.stage(*(sent("shop.events", f'{{"id":{n}}}') for n in (1, 2)), parts=1)
    assert files(staged) == [2]
    trigger = "CREATE TRIGGER half BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION half()"
    assert published_beside(shop, writer, staged, trigger) is None
    assert shop.rows("id FROM events") == [(1,)]


def test_a_role_that_may_not_lock_a_table_writes_it_by_way_of_the_server(shop: Shop) -> None:
    role = f"columns_{shop.schema}"
    shop.tables("CREATE TABLE events (id int PRIMARY KEY, good bool)")
    shop.target.execute(
        f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'",
        f"GRANT USAGE ON SCHEMA {shop.schema} TO {role}",
        f"GRANT INSERT (id, good), SELECT (id, good), UPDATE (id, good) ON {shop.schema}.events TO {role}",
        f"GRANT CREATE ON DATABASE {DATABASE} TO {role}",
    )
    uri = shop.target.uri.replace("owner:", f"{role}:")
    writer = shop.writer(uri=uri, own_schema=f"{shop.target.own_schema}_{role}")
    staged = writer.stage(sent("shop.events", '{"id":1,"good":true}'), parts=1)
    assert files(staged) == [1]
    writer.publisher.publish(staged, SinkPosition("log", 0, 1))
    assert shop.rows("id, good FROM events") == [(1, True)]


def test_rows_that_were_published_cannot_be_added_once_more(shop: Shop) -> None:
    shop.tables("CREATE TABLE words (word text)")
    writer = shop.writer()
    staged = writer.stage(sent("shop.words", '{"word":"one"}'), parts=1)
    writer.publisher.publish(staged, SinkPosition("log", 0, 1))
    with pytest.raises(PenstockError, match="cannot be copied"):
        writer.publisher.publish(staged, SinkPosition("log", 0, 2))
    assert shop.rows("word FROM words") == [("one",)]


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"")], ids=["gone", "empty"])
def test_a_file_without_its_numbers_ends_the_batch_with_its_name(
    shop: Shop, damage: Callable[[Path], object]
) -> None:
    shop.tables(ORDERS, "INSERT INTO orders VALUES (1, 0, 'old')")
    writer = shop.writer()
    staged = writer.stage(order(1, total=1), parts=1)
    (file,) = told(staged[0]).files
    damage(Path(f"{file.path}.numbers"))
    with pytest.raises(PenstockError, match=file.path):
        writer.publisher.publish(staged, SinkPosition("log", 0, 1))
    assert shop.rows("total FROM orders") == [(0,)]


def test_policies_and_triggers_that_are_new_since_see_each_row(shop: Shop) -> None:
    shop.tables(ORDERS)
    writer = shop.writer()
    staged = writer.stage(order(1, total=1), order(2, total=2))
    assert files(staged) == [1, 1]
    shop.tables(
        "CREATE FUNCTION half() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN IF new.id = 2 THEN RETURN NULL; END IF; RETURN new; END'",
        "CREATE TRIGGER half BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION half()",
        "ALTER TABLE orders ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE orders FORCE ROW LEVEL SECURITY",
        "CREATE POLICY all_of_them ON orders USING (true)",
    )
    writer.publisher.publish(staged, SinkPosition("log", 0, 2))
    assert shop.rows("id FROM orders") == [(1,)]


def test_a_value_that_only_seemed_sure_is_refused_by_message_at_the_next_try(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.tables("CREATE TABLE days (id int PRIMARY KEY, day date)")
    days = [sent("shop.days", f'{{"id":{n},"day":{{"$localDate":"2023-02-{n}"}}}}') for n in (27, 28, 29)]
    writer = shop.writer()
    with monkeypatch.context() as patched:
        patched.setitem(cast("dict[str, str]", sink_sure._PATTERNS), "date", r"\d{4}-\d\d-\d\d")
        staged = writer.stage(*days, parts=1)
        assert files(staged) == [3]
        with pytest.raises(RefusedError, match="2023-02-29"):
            writer.publisher.publish(staged, SinkPosition("log", 0, 3))
        writer.reopen()
        (refused,) = writer.write(*days, parts=1)
    assert (refused.offset, "column 'day'" in refused.error) == (2, True)
    assert shop.rows("id FROM days ORDER BY id") == [(27,), (28,)]


@pytest.mark.parametrize("where", ["emp", "part of it"])
def test_rows_that_refer_to_others_of_their_table_come_together_though_in_several_parts(
    shop: Shop, where: str
) -> None:
    """As one statement: whether they are there is looked at behind each."""
    if where == "emp":
        shop.tables("CREATE TABLE emp (id int PRIMARY KEY, name text, boss int REFERENCES emp)")
    else:
        shop.tables(
            "CREATE TABLE emp (id int PRIMARY KEY, name text, boss int) PARTITION BY RANGE (id)",
            "CREATE TABLE few PARTITION OF emp FOR VALUES FROM (0) TO (100)",
            "ALTER TABLE few ADD FOREIGN KEY (boss) REFERENCES emp",
        )
    staff = [sent("shop.emp", f'{{"id":{n},"name":"x","boss":8}}') for n in range(8)]
    staff += [sent("shop.emp", '{"id":8,"name":"\\"y\\"","boss":null}')]
    writer = shop.writer()
    assert bool(files(writer.stage(*staff, parts=3))) == (where != "emp")
    assert writer.write(*staff, parts=3) == []
    assert shop.rows("count(*) FROM emp") == [(9,)]


def test_a_trigger_of_a_partition_sees_each_row(shop: Shop) -> None:
    shop.tables(
        "CREATE TABLE orders (id int PRIMARY KEY, total int) PARTITION BY RANGE (id)",
        "CREATE TABLE few PARTITION OF orders FOR VALUES FROM (0) TO (100)",
        "CREATE FUNCTION half() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN IF new.id = 2 THEN RETURN NULL; END IF; RETURN new; END'",
        "CREATE TRIGGER half BEFORE INSERT ON few FOR EACH ROW EXECUTE FUNCTION half()",
    )
    shop.writer().write(*(order(n, total=n) for n in range(4)))
    assert shop.rows("id FROM orders ORDER BY id") == [(0,), (1,), (3,)]


def test_a_type_that_is_only_called_as_one_of_the_servers_is_for_the_server_to_judge(shop: Shop) -> None:
    shop.tables(
        f"CREATE TYPE {shop.schema}.text AS ENUM ('a', 'b')",
        f"CREATE TABLE letters (id int PRIMARY KEY, letter {shop.schema}.text, others {shop.schema}.text[])",
    )
    rows = [
        sent("shop.letters", f'{{"id":{n},"letter":"{letter}","others":["{letter}"]}}')
        for n, letter in enumerate("zab")
    ]
    (refused,) = shop.writer().write(*rows, parts=1)
    assert (refused.offset, "letter" in refused.error) == (0, True)
    assert shop.rows("id, letter::text, others::text FROM letters ORDER BY id") == [
        (1, "a", "{a}"),
        (2, "b", "{b}"),
    ]


def test_a_failure_at_the_commit_leaves_the_files_for_another_try(shop: Shop) -> None:
    """Two sessions that wait for each other: one of the two transactions is undone, and tried again."""
    shop.tables(ORDERS)
    writer = shop.writer()
    staged = writer.stage(*(order(n, total=n) for n in range(4)))
    with psycopg.connect(shop.target.uri) as other:
        other.execute(f"LOCK TABLE {shop.schema}.orders IN ACCESS EXCLUSIVE MODE")
        connection = writer.publisher._connection  # type: ignore[attr-defined]
        connection.execute("SET lock_timeout = '50ms'")
        with pytest.raises(PenstockError):
            writer.publisher.publish(staged, SinkPosition("log", 0, 4))
    writer.publisher.close()
    writer.publisher.open(SinkPosition("log", 0, 0))
    writer.publisher.publish(staged, SinkPosition("log", 0, 4))
    assert shop.rows("count(*) FROM orders") == [(4,)]


SURE = {
    "smallint": ["0", "-1", "9999", "-9999", "32767", "-32768", "32768", "-32769", "99999"],
    "integer": ["999999999", "-999999999", "2147483647", "-2147483648", "2147483648", "9999999999"],
    "bigint": ["9" * 18, "-" + "9" * 18, str(2**63 - 1), str(-(2**63)), str(2**63), "9" * 19],
    "oid": ["0", "999999999", "4294967295", "4294967296", "-1"],
    "boolean": ["true", "false"],
    "real": ["0", "1.5", "-0.1", "9" * 15 + "." + "9" * 20, "0." + "0" * 19 + "1", "1e10", "1e39", "1e-46"],
    "double precision": ["0", "1e99", "-1.5e-99", "9" * 15 + ".5e+99", "1e400", "1e-400", "0." + "0" * 400 + "1"],
    "numeric": ["1." + "0" * 99 + "1", "9" * 101, "9" * 102, "1e131072", "1e-20000"],
    "numeric(5,2)": ["999.99", "-999.99", "1000", "1000.5", "0.001", "999", "99999"],
    "numeric(3)": ["999", "-999", "1000", "0.5"],
    "numeric(2,2)": ["0", "0.99", "1"],
    "numeric(2,4)": ["0", "0.0099", "0.01"],
    "numeric(4,-2)": ["0", "100", "999900", "1000000", "150"],
    "date": ["2024-02-29", "2023-02-29", "1900-02-29", "2000-02-29", "1999-12-31", "2023-04-31", "2023-13-01",
             "2023-00-01", "2023-01-00", "0001-01-01", "0000-01-01", "99999-01-01", "5874898-01-01", "9999-12-31"],
    "time": ["00:00:00", "23:59:59.999999", "24:00:00", "29:00:00", "12:30:60"],
    "timetz": ["12:00:00Z", "12:00:00+14:59", "12:00:00-15:59", "12:00:00+16:00", "12:00:00+99:00"],
    "timestamp": ["2024-02-29T23:59:59", "2023-02-29T00:00:00", "1000-01-01 00:00:00", "300000-01-01T00:00:00"],
    "timestamptz": ["2024-02-29T23:59:59Z", "9999-12-31T23:59:59.999999-14:59", "1000-01-01T00:00:00+14:59",
                    "2023-01-01T00:00:00+15:00", "2023-01-01T00:00:00+99:99", "2023-06-31T00:00:00Z"],
    "uuid": ["1fc2f65b-ef76-4981-8290-2f6ea12912d6", "1FC2F65B-EF76-4981-8290-2F6EA12912D6"],
    "text": ["", "x" * 1000], "varchar": ["", "☃"], "varchar(3)": ["", "☃☃☃", "☃☃☃☃", "abc ", "abcd"],
    "char(3)": ["abc", "abcd"], "inet": ["10.0.0.1", "nowhere"], "interval": ["1 day", "soon"],
}  # fmt: skip
"""Values about the limits of what a type takes."""

FORMS = {
    "date": "$localDate", "time": "$localTime", "timetz": "$time", "timestamp": "$localTimestamp",
    "timestamptz": "$date", "uuid": "$uuid",
}  # fmt: skip
TEXTS = {"text", "varchar", "varchar(3)", "char(3)", "inet", "interval"}


def near(type: str) -> list[str]:
    """The values of `SURE`, and others in which some digits are not the same."""
    rng = random.Random(type)
    found = dict.fromkeys(SURE[type])
    if type in TEXTS or type in ("boolean", "uuid"):
        return list(found)
    for _ in range(300):
        value = rng.choice(SURE[type])
        places = [place for place, letter in enumerate(value) if letter.isdigit()]
        for place in rng.sample(places, min(len(places), rng.randint(1, 3))):
            value = value[:place] + rng.choice("0123456789") + value[place + 1 :]
        found[value] = None
    return list(found)


def documents(type: str, values: list[str]) -> Iterator[str]:
    for value in values:
        if type in FORMS:
            yield f'{{"v":{{"{FORMS[type]}":"{value}"}}}}'
        else:
            yield f'{{"v":"{value}"}}' if type in TEXTS else f'{{"v":{value}}}'


def table_with(shop: Shop, type: str) -> Table:
    shop.tables(f"CREATE TABLE kept (v {type})")
    with psycopg.connect(shop.target.uri, autocommit=True) as connection:
        return tables_of(connection, [Name(shop.schema, "kept")])[Name(shop.schema, "kept")]


@pytest.mark.parametrize("type", SURE)
def test_whatever_counts_as_sure_is_taken_by_the_server(shop: Shop, type: str) -> None:
    reader = AlikeReader(table_with(shop, type).columns)
    values = near(type)
    sure = []
    for value, document in zip(values, documents(type, values), strict=True):
        found = reader.read(pa.array([document]))
        if found is not None and found.sure:
            assert not found.odd
            sure.append((value, found.columns["v"][0].as_py()))
    expected = {
        "char(3)": 0,
        "inet": 0,
        "interval": 0,
        "numeric(2,2)": 0,
        "numeric(2,4)": 0,
        "numeric(4,-2)": 0,
    }
    assert (len(sure) > 0) == (expected.get(type) is None), "nothing goes straight, or what should not"
    with psycopg.connect(shop.target.uri, autocommit=True) as connection:
        connection.execute(f"SET search_path = {shop.schema}; SET timezone = UTC; SET datestyle = 'ISO, YMD'")
        for value, text in sure:
            try:
                with connection.cursor().copy("COPY kept FROM STDIN") as copy:
                    copy.write(f"{text}\n")
            except psycopg.Error as error:
                pytest.fail(f"{value} is not taken: {error}")


def test_a_table_that_the_sink_has_made_gets_its_next_rows_straight(shop: Shop) -> None:
    writer = shop.writer(create_tables=True)
    assert files(writer.stage(order(1, total=1), parts=1)) == []  # its fields are not known: as they came
    writer.write(order(1, total=1))
    assert files(writer.stage(order(2, total=1), parts=1)) == [1]
