"""What the stream of a real server becomes: whole rows, in their order, none twice, none missing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping

import msgspec
import psycopg
import pytest
from tests.adaptors.postgres_shop import PATIENCE, Shop, rows_of
from tests.servers.postgres import PostgresServer

from penstock.adaptors.postgres import changes as postgres_changes
from penstock.adaptors.postgres import reader as postgres_reader
from penstock.adaptors.postgres import run as postgres_run
from penstock.adaptors.postgres import snapshot as postgres_snapshot
from penstock.adaptors.postgres import stream as postgres_stream
from penstock.base.errors import AwayError, UsageError
from penstock.log.message import Mode, Op
from penstock.testing.adaptors.bench import writing
from penstock.testing.adaptors.model import Log, messages_of

pytestmark = pytest.mark.xdist_group("postgres")

LARGE = "repeat(md5(random()::text), 2000)"
"""A value that PostgreSQL stores beside its row, and does not send if an update leaves it alone."""


@pytest.fixture
def shop(postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr(postgres_run, "LOOK_SECONDS", 0.3)
    monkeypatch.setattr(postgres_run, "BACK_SECONDS", 0.3)
    shop = Shop(postgres_server)
    yield shop
    shop.close()


def large_table(shop: Shop, identity: str) -> None:
    shop.sql(
        "CREATE TABLE papers (id int PRIMARY KEY, title text, body text)",
        "ALTER TABLE papers ALTER body SET STORAGE EXTERNAL",
        f"ALTER TABLE papers REPLICA IDENTITY {identity}",
        f"INSERT INTO papers SELECT i, 'old', {LARGE} FROM generate_series(1, 3) i",
    )


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_an_update_has_the_large_values_that_it_did_not_touch(shop: Shop, identity: str) -> None:
    large_table(shop, identity)
    with shop.reading() as reading:
        shop.settle(reading)
        shop.sql("UPDATE papers SET title = 'new' WHERE id = 2")
        shop.settle(reading)
    (body,) = shop.query("SELECT body FROM papers WHERE id = 2")
    assert shop.changes("public.papers") == [("update", {"id": 2, "title": "new", "body": body[0]})]


def test_an_update_whose_row_is_gone_is_left_out_since_its_delete_follows(shop: Shop) -> None:
    large_table(shop, "DEFAULT")
    with shop.reading() as reading:
        shop.settle(reading)
    shop.transaction(
        "UPDATE papers SET title = 'new' WHERE id = 1",
        "UPDATE papers SET id = 20 WHERE id = 2",
        "DELETE FROM papers WHERE id IN (1, 20)",
    )
    with shop.reading() as reading:
        shop.settle(reading)
    changes = shop.changes("public.papers")
    assert ("delete", {"id": 2}) in changes, "its key changed on the way: the old one has to go"
    assert ("delete", {"id": 1}) in changes
    assert [op for op, _ in changes if op != "delete"] == []


def test_a_table_without_a_key_is_followed_by_whole_rows(shop: Shop) -> None:
    shop.sql("CREATE TABLE notes (a int, b text)", "ALTER TABLE notes REPLICA IDENTITY FULL",
             "INSERT INTO notes VALUES (1, 'x'), (1, 'x')")  # fmt: skip
    with shop.reading() as reading:
        shop.settle(reading)
        shop.sql("UPDATE notes SET b = 'y' WHERE a = 1", "DELETE FROM notes")
        shop.settle(reading)
    assert [message.key for message in shop.messages("public.notes")] == [None] * 6
    whole = {"a": 1, "b": "y"}
    assert shop.changes("public.notes") == [("update", whole)] * 2 + [("delete", whole)] * 2


def test_a_table_without_identity_is_refused_and_the_application_goes_on(shop: Shop) -> None:
    shop.sql("CREATE TABLE loose (a int)", "INSERT INTO loose VALUES (1)")
    with shop.reading() as reading, pytest.raises(UsageError, match=r"public\.loose") as caught:
        reading.step(PATIENCE)
    assert caught.value.hint is not None
    assert 'ALTER TABLE "public"."loose" REPLICA IDENTITY FULL' in caught.value.hint
    shop.sql("UPDATE loose SET a = 2")
    shop.sql('ALTER TABLE "public"."loose" REPLICA IDENTITY FULL')
    with shop.reading() as reading:
        shop.settle(reading)


def test_a_chosen_identity_index_is_the_key(shop: Shop) -> None:
    shop.sql("CREATE TABLE people (id int PRIMARY KEY, mail text NOT NULL UNIQUE)",
             "ALTER TABLE people REPLICA IDENTITY USING INDEX people_mail_key",
             "INSERT INTO people VALUES (1, 'a@b')")  # fmt: skip
    with shop.reading() as reading:
        shop.settle(reading)
        shop.sql("UPDATE people SET mail = 'c@d'", "UPDATE people SET id = 7")
        shop.settle(reading)
    moved, renumbered = shop.messages("public.people")[1:]
    assert (moved.old_key, moved.key) == (b'{"mail":"a@b"}', b'{"mail":"c@d"}')
    assert (renumbered.old_key, renumbered.key, renumbered.data) == (
        None, b'{"mail":"c@d"}', b'{"id":7,"mail":"c@d"}',
    )  # fmt: skip


def test_a_key_of_several_columns_keeps_the_order_of_its_index(shop: Shop) -> None:
    shop.sql("CREATE TABLE pairs (a int, b text, c int, PRIMARY KEY (b, a))",
             "INSERT INTO pairs SELECT i % 7, 'k' || i % 900, i FROM generate_series(1, 6000) i")  # fmt: skip
    with shop.reading() as reading:
        shop.settle(reading)
        shop.sql("UPDATE pairs SET b = b || '!' WHERE a = 3 AND b = 'k3'", "DELETE FROM pairs WHERE a = 4")
        shop.settle(reading)
    ((b, a),) = shop.query("SELECT b, a FROM pairs ORDER BY b, a LIMIT 1")
    assert shop.messages("public.pairs")[0].key == b'{"b":"%s","a":%d}' % (b.encode(), a)
    assert len(shop.rows("public.pairs")) == shop.query("SELECT count(*) FROM pairs")[0][0]
    assert shop.log.batches > 5


def test_a_partitioned_table_is_one_namespace(shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE sales (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
        "CREATE TABLE sales_1 PARTITION OF sales FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')",
        "CREATE TABLE sales_2 PARTITION OF sales FOR VALUES FROM ('2026-02-01') TO ('2026-03-01')",
        "INSERT INTO sales VALUES (1, '2026-01-05'), (2, '2026-02-05')",
    )
    with shop.reading() as reading:
        shop.settle(reading)
        shop.sql(
            "INSERT INTO sales_2 VALUES (3, '2026-02-06')", "UPDATE sales SET day = '2026-02-07' WHERE id = 1"
        )
        shop.settle(reading)
    assert {message.ns for message in shop.log.messages} == {"public.sales", "public.mark"}
    assert sorted(shop.rows("public.sales")) == [
        b'{"id":%d,"day":{"$localDate":"2026-02-0%d"}}' % pair for pair in ((1, 7), (2, 5), (3, 6))
    ]


def test_a_partitioned_table_without_a_key_is_copied_by_its_partitions(shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE hits (id int, what text) PARTITION BY LIST (what)",
        "CREATE TABLE \"hits a\" PARTITION OF hits FOR VALUES IN ('a')",
        "CREATE TABLE hits_b PARTITION OF hits DEFAULT",
        "INSERT INTO hits SELECT i, chr(97 + i % 3) FROM generate_series(1, 5000) i",
    )
    with shop.reading(tail=False) as reading:
        reading.to_the_end(PATIENCE)
    copied = [message.data for message in shop.messages("public.hits")]
    assert len(copied) == len(set(copied)) == 5000
    assert shop.log.batches > 5


def test_a_table_that_others_inherit_from_has_its_own_rows_and_theirs_can_still_be_changed(
    shop: Shop,
) -> None:
    """The stream has the rows of each under its own name; and publishing one that has no key would stop its owner."""
    shop.sql("CREATE TABLE things (id int PRIMARY KEY, v text)", "CREATE TABLE boxes () INHERITS (things)",
             "INSERT INTO things VALUES (1, 'thing')", "INSERT INTO boxes VALUES (1, 'box'), (2, 'box')")  # fmt: skip
    with shop.reading(accept=lambda ns: ns != "public.boxes") as reading:
        shop.complete(reading, "public.things", "public.mark")
        shop.sql(
            "UPDATE boxes SET v = 'large box' WHERE id = 2", "UPDATE things SET v = 'moved' WHERE id = 1"
        )
        assert reading.until(lambda: len(shop.messages("public.things")) > 1, PATIENCE)
    assert shop.rows("public.things") == {b'{"id":1}': b'{"id":1,"v":"moved"}'}


def test_a_key_that_the_server_computes_is_not_in_the_stream_and_so_none(shop: Shop) -> None:
    shop.sql("CREATE TABLE twice (a int, b int GENERATED ALWAYS AS (a * 2) STORED PRIMARY KEY)",
             "INSERT INTO twice VALUES (1)")  # fmt: skip
    with shop.reading(tail=False) as reading:
        reading.to_the_end(PATIENCE)
    assert [(message.data, message.key) for message in shop.messages("public.twice")] == [(b'{"a":1}', None)]
    shop.log = Log()
    with shop.reading() as reading, pytest.raises(UsageError, match=r"public\.twice cannot be followed"):
        reading.step(PATIENCE)


def test_a_column_that_is_added_while_the_slot_is_being_made_is_copied(shop: Shop) -> None:
    """The server makes a slot when all transactions of the time are over, which may be long after the first look."""
    shop.sql("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with psycopg.connect(shop.uri) as busy, shop.reading() as reading:
        busy.execute("INSERT INTO mark VALUES (100)")
        deadline = time.monotonic() + PATIENCE
        while not shop.query(
            "SELECT FROM pg_stat_activity WHERE query LIKE 'CREATE_REPLICATION%' AND wait_event_type = 'Lock'"
        ):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        shop.sql("ALTER TABLE t ADD COLUMN c int", "UPDATE t SET c = 7")
        busy.commit()
        shop.settle(reading)
    assert shop.rows("public.t") == {b'{"id":1}': b'{"id":1,"c":7}'}


def test_the_changes_of_a_transaction_keep_their_order_across_tables(shop: Shop) -> None:
    shop.sql("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY REFERENCES a)")
    with shop.reading() as reading:
        shop.settle(reading)
        shop.transaction(*(f"INSERT INTO {table} VALUES ({i})" for i in range(5) for table in "ab"))
        batch = reading.step(PATIENCE)
    assert batch is not None
    assert [(one.ns, one.data) for one in messages_of(batch)] == [
        (f"public.{table}", b'{"id":%d}' % i) for i in range(5) for table in "ab"
    ]
    assert len({one.ts for one in messages_of(batch)}) == 1, "the time of the commit"
    assert abs(messages_of(batch)[0].ts / 1e6 - time.time()) < 60


@pytest.mark.parametrize("packed_from", [1, 10**9], ids=["packed", "as messages"])
def test_a_large_transaction_comes_in_parts_and_once_whatever_crashes(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, packed_from: int
) -> None:
    monkeypatch.setattr(postgres_reader, "MOST_ROWS", 300)
    monkeypatch.setattr(postgres_changes, "PACK_FROM", packed_from)
    shop.sql("CREATE TABLE big (id int PRIMARY KEY, v text)", "CREATE TABLE side (id int PRIMARY KEY)")
    with shop.reading() as reading:
        shop.settle(reading)
    shop.transaction(
        "INSERT INTO big SELECT i, 'v' || i FROM generate_series(1, 1000) i", "INSERT INTO side VALUES (1)",
        "UPDATE big SET id = id + 10000 WHERE id % 2 = 0", "DELETE FROM big WHERE id % 5 = 0",
    )  # fmt: skip
    parts = []
    for _ in range(40):
        with shop.reading() as reading:
            given = reading.step(PATIENCE)
            assert given is not None
            parts.append(given.more)
            if not given.more:
                break
    assert parts == [True] * (len(parts) - 1) + [False]
    assert len(parts) > 4
    with shop.reading() as reading:
        shop.settle(reading)
    assert len(shop.messages("public.big")) == 1000 + 500 + 200
    assert len(shop.messages("public.side")) == 1
    assert len(shop.rows("public.big")) == 800


def test_a_transaction_that_a_crash_cut_goes_on_before_anything_is_copied(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_reader, "MOST_ROWS", 300)
    shop.sql("CREATE TABLE big (id int PRIMARY KEY)")
    with shop.reading() as reading:
        shop.settle(reading)
    shop.sql("INSERT INTO big SELECT generate_series(1, 1000)")
    with shop.reading() as reading:
        first = reading.step(PATIENCE)
    assert first is not None
    assert first.more
    shop.sql("CREATE TABLE late (id int PRIMARY KEY)", "INSERT INTO late SELECT generate_series(1, 5)")
    batches = []
    with shop.reading() as reading:
        while "public.late" not in shop.log.completed:
            given = reading.step(PATIENCE)
            assert given is not None
            batches.append(given)
    end = next(i for i, batch in enumerate(batches) if not batch.more)
    assert end > 0
    assert all("public.late" not in batch.positions for batch in batches[: end + 1])
    assert len(shop.messages("public.big")) == 1000


def test_a_column_that_changes_within_a_transaction_splits_its_batch(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (id int PRIMARY KEY, a int, b text)")
    with shop.reading() as reading:
        shop.settle(reading)
        shop.transaction(
            "INSERT INTO t VALUES (1, 1, 'x')",
            "ALTER TABLE t DROP COLUMN b", "ALTER TABLE t ADD COLUMN c numeric(5,1)",
            "INSERT INTO t VALUES (2, 2, 2.5)", "ALTER TABLE t RENAME COLUMN a TO z", "INSERT INTO t VALUES (3, 3, 3)",
        )  # fmt: skip
        shop.settle(reading)
    told = [
        (at, [field.name for field in schema.fields])
        for at, ns, schema in shop.log.schemas
        if ns == "public.t"
    ]
    texts = [(shop.log.messages.index(one), one.data) for one in shop.messages("public.t")]
    assert [data for _, data in texts] == [
        b'{"id":1,"a":1,"b":"x"}', b'{"id":2,"a":2,"c":2.5}', b'{"id":3,"z":3,"c":3.0}',
    ]  # fmt: skip
    assert [names for _, names in told] == [["id", "a", "b"], ["id", "a", "c"], ["id", "z", "c"]]
    assert [at for at, _ in told[1:]] == [at for at, _ in texts[1:]]


@pytest.mark.parametrize("key", ['text COLLATE "C"', "timestamptz", "int"])
def test_a_copy_that_crashes_at_every_range_leaves_what_the_table_has(shop: Shop, key: str) -> None:
    """Rows are changed, deleted and given other keys all the while, on both sides of where the copy is."""
    made = {"timestamptz": "timestamptz '2026-01-01' + {} * interval '1 hour'", "int": "{}"}
    name = made.get(key, "'k' || {}")
    shop.sql(f"CREATE TABLE t (id {key} PRIMARY KEY, n int, v text)",
             f"INSERT INTO t SELECT {name.format('i')}, i, 'v' FROM generate_series(1, 2000) i")  # fmt: skip

    def change(turn: int) -> None:
        at = turn * 37 % 2000
        shop.transaction(
            f"UPDATE t SET v = 'turn {turn}' WHERE n = {at}",
            f"DELETE FROM t WHERE n = {(at * 13 + 5) % 2000}",
            f"UPDATE t SET id = {name.format(f'({(at + 1000) % 2000} + 10000 + {turn})')} WHERE n = {at + 1}",
            f"INSERT INTO t VALUES ({name.format(f'({20000 + turn})')}, {20000 + turn}, 'new')",
        )

    with writing(change):
        for _ in range(60):
            if "public.t" in shop.log.completed:
                break
            with shop.reading(range_bytes=5 * 1024) as reading:
                assert reading.step(PATIENCE) is not None
                reading.step(PATIENCE)
                reading.take(0.2)
    with shop.reading() as reading:
        shop.settle(reading)
    assert shop.log.batches > 6
    final = Log()
    shop.log, before = final, shop.log
    with shop.reading(tail=False) as reading:
        reading.to_the_end(PATIENCE)
    assert rows_of(before.of("public.t")) == rows_of(final.of("public.t"))


@pytest.mark.parametrize("tail", [False, True])
@pytest.mark.parametrize("key", ["b", "b, a"])
def test_a_copy_of_a_table_that_got_another_key_begins_anew(shop: Shop, tail: bool, key: str) -> None:
    """What stands behind the last key in one order is not what does in another."""
    shop.sql("CREATE TABLE t (a int PRIMARY KEY, b int NOT NULL, v text)",
             "INSERT INTO t SELECT i, -i, repeat('x', 100) FROM generate_series(1, 1000) i")  # fmt: skip
    with shop.reading(tail=tail) as reading:
        while len(shop.messages("public.t")) < 300:
            assert reading.step(PATIENCE) is not None
    assert "public.t" not in shop.log.completed
    shop.sql("ALTER TABLE t DROP CONSTRAINT t_pkey", f"ALTER TABLE t ADD PRIMARY KEY ({key})")
    with shop.reading(tail=tail) as reading:
        shop.complete(reading, "public.t")
    copied = {msgspec.json.decode(message.data)["a"] for message in shop.messages("public.t")}
    assert copied == set(range(1, 1001))


@pytest.mark.parametrize("tail", [False, True])
def test_a_copy_steps_aside_for_whoever_waits_to_change_its_table(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, tail: bool
) -> None:
    """The next range would wait behind him, and he for the copy: nobody could use the table any more."""
    monkeypatch.setattr(postgres_snapshot, "ASIDE_SECONDS", 1)
    shop.sql("CREATE TABLE a (id int PRIMARY KEY, v text)", "CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a)",
             "INSERT INTO a SELECT i, repeat('x', 300) FROM generate_series(1, 2000) i",
             "INSERT INTO b SELECT i, i FROM generate_series(1, 50) i")  # fmt: skip
    change = threading.Thread(
        target=shop.transaction, args=("TRUNCATE a CASCADE", "INSERT INTO a VALUES (7, 'new')")
    )
    with shop.reading(tail=tail) as reading:
        while len(shop.messages("public.a")) < 300:
            assert reading.step(PATIENCE) is not None
        change.start()
        with pytest.raises(AwayError, match="steps aside"):
            reading.until(lambda: False, PATIENCE)
    change.join(PATIENCE)
    assert shop.query("SELECT id FROM a") == [(7,)]
    with shop.reading(tail=tail) as reading:
        shop.complete(reading, "public.a", "public.b")
        if tail:
            shop.settle(reading)
            assert list(shop.rows("public.a")) == [b'{"id":7}']
            assert not shop.rows("public.b")


def test_a_table_that_is_emptied_between_two_parts_of_its_copy_ends_up_right(shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT i, 'v' FROM generate_series(1, 3000) i",
    )
    with shop.reading() as reading:
        while not shop.messages("public.t"):
            assert reading.step(PATIENCE) is not None
    shop.sql("TRUNCATE t", "INSERT INTO t SELECT i, 'after' FROM generate_series(2900, 3100) i")
    with shop.reading() as reading:
        shop.complete(reading, "public.t")
        shop.settle(reading)
    messages = shop.messages("public.t")
    assert Op.COMMAND in {message.op for message in messages}
    left: dict[bytes | None, bytes] = {}
    for message in messages:
        if message.op is Op.COMMAND:
            left.clear()
        else:
            left[message.key] = message.data
    assert sorted(left.values()) == sorted(b'{"id":%d,"v":"after"}' % i for i in range(2900, 3101))


def test_a_backfill_with_a_condition_copies_those_rows_and_goes_on_from_before(shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT i, 'v' FROM generate_series(1, 2000) i",
    )
    with shop.reading() as reading:
        shop.settle(reading)
    shop.sql("UPDATE t SET v = 'w' WHERE id = 3")
    first = len(shop.messages("public.t"))
    shop.backfill("public.t", "id > 1000 AND v <> 'it''s' -- a comment")
    with shop.reading() as reading:
        assert reading.until(lambda: shop.log.completed.count("public.t") == 2, PATIENCE)
        shop.settle(reading)
    again = shop.messages("public.t")[first:]
    assert [message.data for message in again if message.mode is Mode.COPY] == [
        b'{"id":%d,"v":"v"}' % i for i in range(1001, 2001)
    ]
    assert [message.data for message in again if message.mode is Mode.SYNC] == [b'{"id":3,"v":"w"}']


NO_CONDITIONS = [
    "id >",
    "true); DROP TABLE t; --",
    "true) OR (true",
    "1",
    "(SELECT",
    "nothing = 1",
    "true; SELECT 1",
]


@pytest.mark.parametrize("tail", [False, True])
def test_what_is_no_condition_is_refused_before_a_row_is_read(shop: Shop, tail: bool) -> None:
    shop.sql("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    for where in NO_CONDITIONS:
        shop.backfill("public.t", where)
        with (
            shop.reading(tail=tail) as reading,
            pytest.raises(UsageError, match=r"backfill of 'public\.t' is not"),
        ):
            reading.step(PATIENCE)
    assert shop.query("SELECT * FROM t") == [(1,)]
    assert shop.log.messages == []


def test_a_condition_cannot_write(shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)", "CREATE TABLE trap (id serial PRIMARY KEY)",
        "CREATE FUNCTION spring() RETURNS bool LANGUAGE sql AS 'INSERT INTO public.trap DEFAULT VALUES RETURNING true'",
    )  # fmt: skip
    shop.backfill("public.t", "public.spring()")
    with shop.reading(tail=False) as reading, pytest.raises(Exception, match="read-only"):
        reading.to_the_end(PATIENCE)
    assert shop.query("SELECT * FROM trap") == []


def test_a_slow_consumer_does_not_lose_the_stream(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is taken for longer than the server's patience, with more to come than the buffer holds."""
    monkeypatch.setattr(postgres_stream, "BUFFER_BYTES", 64 * 1024)
    monkeypatch.setattr(postgres_reader, "MOST_BYTES", 32 * 1024)
    shop.sql(f"ALTER DATABASE {shop.name} SET wal_sender_timeout = '1500ms'",
             "CREATE TABLE t (id int PRIMARY KEY, v text)")  # fmt: skip
    with shop.reading() as reading:
        shop.settle(reading)
        (pid,) = shop.query(
            "SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'penstock_shop_db'"
        )
        shop.sql("INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 8000) i")
        threading.Event().wait(2.5)
        assert shop.query(
            "SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'penstock_shop_db'"
        ) == [pid]
        shop.settle(reading)
    assert len(shop.rows("public.t")) == 8000
    shop.sql(f"ALTER DATABASE {shop.name} RESET ALL")


RANDOM: Mapping[str, tuple[str, str]] = {
    "f": ("float8", "(random() - .5) * 10 ^ (i % 300)"),
    "g": ("float4", "(random() - .5) * 10 ^ (i % 30)"),
    "n": ("numeric", "(random() - .5)::numeric * 10::numeric ^ (i % 60)"),
    "m": ("numeric(20,6)", "random() * 1e9"),
    "t": ("timestamptz", "to_timestamp(random() * 1e11)"),
    "l": ("timestamp", "to_timestamp(random() * 4e9)::timestamp"),
    "d": ("date", "(random() * 1e6)::int + date '0001-01-01'"),
    "i": ("interval", "random() * 1e6 * interval '1 s' - (i % 50) * interval '1 mon'"),
    "a": ("float8[]", "ARRAY[random(), NULL, i]"),
    "x": ("bytea", "decode(md5(i::text), 'hex')"),
    "j": ("jsonb", "jsonb_build_object('k', random(), 'n', NULL, '$date', i::text)"),
    "s": ("text", "chr(1 + i) || chr(i % 26 + 65) || chr(200 + i)"),
    "u": ("uuid", "md5(i::text)::uuid"),
    "c": ("char(9)", "i::text"),
    "b": ("bool", "i % 2 = 0"),
    "p": ("money", "((random() - .5) * 1e7)::numeric::money"),
    "h": ("inet", "('10.' || i % 255 || '.3.4/' || i % 33)::inet"),
    "z": ("timetz", "('12:00:00.' || i || '+0' || i % 10 || ':30')::timetz"),
}


def test_copy_and_stream_give_the_same_text_for_random_rows(shop: Shop) -> None:
    columns = ", ".join(f"{name} {about[0]}" for name, about in RANDOM.items())
    values = ", ".join(about[1] for about in RANDOM.values())
    shop.sql(f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
    with shop.reading() as reading:
        shop.settle(reading)
        shop.sql(f"INSERT INTO t SELECT i, {values} FROM generate_series(1, 500) i")
        shop.sql("INSERT INTO t(id) VALUES (501)")
        shop.settle(reading)
    streamed = shop.rows("public.t")
    shop.log = Log()
    with shop.reading(tail=False) as reading:
        reading.to_the_end(PATIENCE)
    assert len(streamed) == 501
    assert shop.rows("public.t") == streamed


def test_keys_of_any_characters_are_cut_and_compared_as_they_are(shop: Shop) -> None:
    """A range ends at each of them, and the copy crashes there."""
    shop.sql('CREATE TABLE "odd ""name" ("the ""key" text PRIMARY KEY, v int)')
    keys = [
        "",
        "'",
        "''",
        "\\",
        "\\'",
        '"',
        "a\nb",
        "a\tb",
        "\u2603",
        "E'x'",
        "%s",
        "{}",
        "$1",
        "--",
        "/*",
        ";",
        "NULL",
        "\x01",
    ]
    with psycopg.connect(shop.uri) as connection:
        connection.cursor().executemany('INSERT INTO "odd ""name" VALUES (%s, 0)', [(key,) for key in keys])
    ns = 'public.odd "name'
    for _ in range(len(keys) + 2):
        if ns in shop.log.completed:
            break
        with shop.reading(range_bytes=1) as reading:
            reading.until(grown(shop, ns), PATIENCE)
    with psycopg.connect(shop.uri) as connection:
        connection.execute('UPDATE "odd ""name" SET v = v + 1')
    with shop.reading() as reading:
        shop.settle(reading)
    rows = {
        msgspec.json.decode(data)['the "key']: msgspec.json.decode(data)["v"]
        for data in shop.rows(ns).values()
    }
    assert rows == dict.fromkeys(keys, 1)


def grown(shop: Shop, ns: str) -> Callable[[], bool]:
    """Whether there are more messages than now, or the copy is over."""
    before = len(shop.messages(ns))
    return lambda: len(shop.messages(ns)) > before or ns in shop.log.completed
