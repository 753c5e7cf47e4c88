"""The PostgreSQL sink against a real server: the kit's battery, constraints, its position, and what `plan` says."""

from __future__ import annotations

import psycopg
import pytest
from tests.adaptors.postgres_sink_shop import ORDERS, Shop, order, told
from tests.adaptors.postgres_target import PostgresTarget, sent
from tests.servers.postgres import PostgresServer

from penstock import adaptors as a
from penstock.adaptors.base import SinkPosition
from penstock.adaptors.postgres import sink as postgres_sink
from penstock.adaptors.postgres import sink_session as postgres_sink_session
from penstock.base.errors import AwayError, PenstockError, RefusedError, UsageError
from penstock.log.message import Message, Op
from penstock.log.schema import KnownSchemas
from penstock.testing.adaptors import SinkConformance

pytestmark = pytest.mark.xdist_group("postgres")


class TestPostgresSink(SinkConformance):
    @pytest.fixture
    def subject(self, postgres_server: PostgresServer) -> PostgresTarget:
        return PostgresTarget(postgres_server)


FAMILY = (
    "CREATE TABLE parent (id int PRIMARY KEY)",
    "CREATE TABLE child (id int PRIMARY KEY, parent int NOT NULL REFERENCES parent)",
)


def parent(id: int, op: Op = Op.INSERT) -> Message:
    return sent("shop.parent", f'{{"id":{id}}}', op)


def child(id: int, parent: int, op: Op = Op.INSERT) -> Message:
    return sent("shop.child", f'{{"id":{id},"parent":{parent}}}', op)


# Batches that overlap


@pytest.mark.parametrize("shop", ["tables"], indirect=True)
def test_what_is_staged_behind_a_batch_is_left_alone_when_that_is_published(shop: Shop) -> None:
    shop.tables(ORDERS)
    writer = shop.writer()
    abandoned = writer.stage(order(1), parts=1)
    one = writer.stage(order(1), parts=1)
    two = writer.stage(order(2), parts=1, ahead=1)
    assert writer.publisher.overlaps(one)
    writer.publisher.publish(one, SinkPosition("log", 0, 1))
    assert [shop.staged(part) for part in (*abandoned, *one, *two)] == [False, False, True]
    writer.publisher.publish(two, SinkPosition("log", 0, 2))
    assert shop.rows("id FROM orders ORDER BY id") == [(1,), (2,)]
    assert not shop.staged(two[0])


@pytest.mark.parametrize("shop", ["tables"], indirect=True)
def test_a_new_publisher_drops_what_was_staged_for_any_batch(shop: Shop) -> None:
    shop.tables(ORDERS)
    writer = shop.writer()
    parts = [*writer.stage(order(1), parts=1), *writer.stage(order(2), parts=1, ahead=1)]
    writer.reopen()
    assert [shop.staged(part) for part in parts] == [False, False]


def test_rows_whose_table_is_to_change_are_waited_for(shop: Shop) -> None:
    writer = shop.writer(create_tables=True)
    assert not writer.publisher.overlaps(writer.stage(order(1, new="field")))


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


@pytest.mark.parametrize(
    "key", ["PRIMARY KEY", "PRIMARY KEY DEFERRABLE", "GENERATED ALWAYS AS IDENTITY PRIMARY KEY"]
)
def test_a_row_whose_key_is_only_written_differently_stays_and_so_do_those_that_refer_to_it(
    shop: Shop, key: str
) -> None:
    type = "int" if "IDENTITY" in key else "numeric"
    referring = "" if "DEFERRABLE" in key else "REFERENCES orders ON DELETE CASCADE ON UPDATE CASCADE"
    shop.tables(f"CREATE TABLE orders (id {type} {key}, total int, extra text)",
                f"CREATE TABLE lines (id int PRIMARY KEY, of {type} {referring})")  # fmt: skip
    writer = shop.writer()
    writer.write(sent("shop.orders", '{"id":1.0,"total":1}'), sent("shop.lines", '{"id":1,"of":1.0}'))
    shop.tables("UPDATE orders SET extra = 'kept'")
    writer.write(sent("shop.orders", '{"id":1.00,"total":2}', Op.UPDATE, old='{"id":1.0}'))
    assert shop.rows("id::int, total, extra FROM orders") == [(1, 2, "kept")]
    assert shop.rows("id FROM lines") == [(1,)]


@pytest.mark.parametrize("key", ["PRIMARY KEY", "PRIMARY KEY DEFERRABLE"])
def test_an_identity_beside_the_key_is_written_as_it_comes_though_no_update_may_set_it(
    shop: Shop, key: str
) -> None:
    shop.tables(
        f"CREATE TABLE orders (id int {key}, seq int GENERATED ALWAYS AS IDENTITY, total int, extra text)"
    )
    writer = shop.writer()
    writer.write(*(order(id, seq=10 + id, total=1) for id in range(1, 6)))
    shop.tables("UPDATE orders SET extra = 'row ' || id")
    writer.write(order(1, Op.UPDATE, seq=11, total=2), order(2, Op.DELETE), order(2, seq=22, total=3))
    writer.write(
        sent("shop.orders", '{"id":6,"seq":13,"total":4}', Op.UPDATE, old='{"id":3}'),
        sent("shop.orders", '{"id":7,"seq":24,"total":5}', Op.UPDATE, old='{"id":4}'),
        sent("shop.orders", '{"id":5,"seq":25,"total":6}', Op.UPDATE, old='{"id":50}'),
    )
    assert shop.rows("* FROM orders ORDER BY id") == [
        (1, 11, 2, "row 1"), (2, 22, 3, None), (5, 25, 6, None), (6, 13, 4, "row 3"), (7, 24, 5, None),
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


@pytest.mark.parametrize("shop", ["tables"], indirect=True)
def test_the_staging_of_another_sink_is_left_alone_and_so_is_that_of_a_late_task(shop: Shop) -> None:
    shop.tables(ORDERS)
    one, two = shop.writer(), shop.writer(name="shop.other")
    staged = two.stage(order(7), parts=1)
    late = one.stage(order(8), parts=1)
    name = told(late[0]).tables[0].stage
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
    sink.use(KnownSchemas({}), "shop.db")
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


def test_inspect_names_tables_that_inherit_from_others_that_are_written(shop: Shop) -> None:
    """A delete reaches the rows of heirs; where rows lie in heirs alone, as in chunks, that is what is wanted."""
    shop.tables(FAMILY[0], "CREATE TABLE heir (PRIMARY KEY (id)) INHERITS (parent)")
    sink = shop.writer().sink
    (found,) = sink.inspect(["parent", "heir"])
    assert f"{shop.schema}.heir inherits from {shop.schema}.parent" in found.what
    assert found.fatal
    assert sink.inspect(["parent"]) == sink.inspect(["heir"]) == []
    assert found.fix is not None
    shop.tables(found.fix)
    assert sink.inspect(["parent", "heir"]) == []


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
    sink.use(KnownSchemas({}), "shop.db")
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
    making.use(KnownSchemas({}), "shop.db")
    fixes = [finding.fix or "" for finding in making.inspect(["orders", "items"])]
    assert [fix.split()[0] for fix in fixes] == ["GRANT", "ALTER"]
    shop.target.execute(*fixes)
    assert making.inspect(["orders", "items"]) == []


def test_settings_are_checked_and_the_password_is_not_shown() -> None:
    with pytest.raises(UsageError, match="mode"):
        a.postgres(uri="postgresql://x/y", mode="replace")
    adaptor = a.postgres(uri="postgresql://me:very-secret-word@db/shop")
    assert "very-secret-word" not in f"{adaptor!r} {adaptor.sink().stager()._options!r}"  # type: ignore[attr-defined]
