"""The slot and the publication of the source at a real server: made, kept, watched, missed, and taken away."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg
import pytest
from tests.adaptors.postgres_shop import PATIENCE, SLOT, Shop
from tests.servers.postgres import PostgresServer

from penstock import adaptors
from penstock.adaptors.base import Finding
from penstock.adaptors.postgres import monitor as postgres_monitor
from penstock.adaptors.postgres import run as postgres_run
from penstock.adaptors.postgres import stream as postgres_stream
from penstock.base.errors import AwayError, PenstockError, UsageError
from penstock.testing.adaptors.model import Log

pytestmark = pytest.mark.xdist_group("postgres")


@pytest.fixture
def shop(postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr(postgres_run, "LOOK_SECONDS", 0.3)
    monkeypatch.setattr(postgres_run, "NOTE_SECONDS", 0.3)
    monkeypatch.setattr(postgres_monitor, "SECONDS", 0.3)
    shop = Shop(postgres_server)
    yield shop
    shop.close()


def refused(shop: Shop, complaint: str) -> UsageError:
    """The source refuses to go on, and says that a backfill is wanted."""
    with shop.reading() as reading, pytest.raises(UsageError, match=complaint) as caught:
        reading.step(PATIENCE)
    return caught.value


def followed(shop: Shop) -> None:
    """Log everything that is there, and wait until the server has noticed that the reader is gone."""
    with shop.reading() as reading:
        shop.settle(reading)
    deadline = time.monotonic() + PATIENCE
    while shop.slot()[1] and time.monotonic() < deadline:
        time.sleep(0.02)


def test_a_slot_that_somebody_dropped_is_told_and_a_backfill_mends_it(shop: Shop) -> None:
    followed(shop)
    shop.sql(f"SELECT pg_drop_replication_slot('{SLOT}')", "INSERT INTO mark VALUES (100)")
    error = refused(shop, rf"replication slot '{SLOT}' is gone: changes of public\.mark")
    assert error.hint is not None
    assert "`penstock backfill public.mark`" in error.hint
    shop.log.backfill("public.mark")
    shop.log.messages.clear()
    with shop.reading() as reading:
        shop.settle(reading)
    assert b'{"id":100}' in shop.rows("public.mark").values()


def test_a_slot_that_somebody_made_anew_is_not_taken_for_the_old_one(shop: Shop) -> None:
    followed(shop)
    shop.sql(f"SELECT pg_drop_replication_slot('{SLOT}')", "INSERT INTO mark VALUES (100)",
             f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")  # fmt: skip
    refused(shop, r"was moved on or made anew by somebody else: changes of public\.mark")


def test_a_slot_that_somebody_moved_on_is_told(shop: Shop) -> None:
    followed(shop)
    shop.sql(
        "INSERT INTO mark VALUES (100)", f"SELECT pg_replication_slot_advance('{SLOT}', pg_current_wal_lsn())"
    )
    refused(shop, "was moved on")


def test_a_slot_whose_log_the_server_removed_is_told(shop: Shop) -> None:
    followed(shop)
    try:
        shop.server.restart(max_slot_wal_keep_size="1MB", min_wal_size="32MB", max_wal_size="48MB")
        for _ in range(4):
            shop.sql(
                "SELECT pg_logical_emit_message(false, 'x', repeat('x', 20000000))",
                "SELECT pg_switch_wal()",
                "CHECKPOINT",
            )
        assert shop.slot()[2] == "lost"
        error = refused(shop, "is lost")
        findings = inspected(shop)
        assert any("is lost" in finding.what and finding.fatal for finding in findings)
        assert error.hint is not None
        shop.log.backfill("public.mark")
        shop.log.messages.clear()
        with shop.reading() as reading:
            shop.settle(reading)
    finally:
        shop.server.restart()


def test_a_slot_that_is_dropped_under_the_stream_is_told(shop: Shop) -> None:
    with shop.reading() as reading:
        shop.settle(reading)
        shop.sql(f"SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = '{SLOT}'",
                 f"SELECT pg_drop_replication_slot('{SLOT}')")  # fmt: skip
        with pytest.raises(AwayError):
            reading.until(lambda: False, PATIENCE)
    refused(shop, "is gone")


@pytest.mark.parametrize("loss", ["ALTER PUBLICATION {} DROP TABLE mark", "DROP PUBLICATION {}"])
def test_a_publication_that_lost_a_table_is_told(shop: Shop, loss: str) -> None:
    followed(shop)
    shop.sql(loss.format(SLOT), "INSERT INTO mark VALUES (100)")
    refused(shop, r"changes of public\.mark")


def test_a_table_that_was_dropped_and_made_anew_is_told(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (id int PRIMARY KEY)")
    followed(shop)
    with shop.reading() as reading:
        shop.settle(reading)
        shop.transaction(
            "DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1)"
        )
        with pytest.raises(UsageError, match=r"'public\.t' was dropped and made anew"):
            reading.until(lambda: False, PATIENCE)
    refused(shop, r"'public\.t' was dropped and made anew")


def test_a_table_that_was_copied_without_tail_cannot_be_followed(shop: Shop) -> None:
    with shop.reading(tail=False) as reading:
        reading.to_the_end(PATIENCE)
    refused(shop, r"'public\.mark' was copied without `tail`")


def test_a_position_of_another_server_is_told(shop: Shop) -> None:
    followed(shop)
    known = shop.log.resume()
    known["public.mark"].position["system"] = "1"
    shop.log.resume = lambda: known  # type: ignore[method-assign]
    refused(shop, "was followed at another server")


def test_a_server_that_was_set_back_is_told(shop: Shop) -> None:
    """Its log goes another way from there on, and all of it up to what was read would be taken for known."""
    followed(shop)
    known = shop.log.resume()
    ((end,),) = shop.query("SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint")
    known["public.mark"].position["lsn"] = end + 10_000_000
    shop.log.resume = lambda: known  # type: ignore[method-assign]
    refused(shop, r"the server's log was set back to .*: changes of public\.mark")


def test_the_slot_is_in_use_by_another_run(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_stream, "IN_USE_SECONDS", 0.3)
    with shop.reading() as reading:
        shop.settle(reading)
        log, shop.log = shop.log, Log()
        for ns, known in log.resume().items():
            shop.log._of(ns).position, shop.log._of(ns).mode = known.position, known.mode
        with shop.reading() as second, pytest.raises(AwayError, match="active for PID"):
            second.until(lambda: False, PATIENCE)


def test_an_idle_database_does_not_hold_back_the_log_of_the_others(shop: Shop) -> None:
    followed(shop)
    with shop.reading() as reading:
        shop.settle(reading)
        shop.server.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 3000000))")
        assert reading.until(lambda: shop.slot()[3] < 1_000_000, PATIENCE), shop.slot()
        messages = len(shop.log.messages)
    with shop.reading() as reading:
        shop.settle(reading)
    assert len(shop.log.messages) == messages + 1


def test_nothing_is_acknowledged_that_a_table_under_copy_still_needs(shop: Shop) -> None:
    """The stream of `mark` goes on far beyond the moment of the copy of `t`; then all of `t` is there nevertheless."""
    followed(shop)
    shop.sql("CREATE TABLE t (id int PRIMARY KEY, v text)",
             "INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 4000) i")  # fmt: skip
    with shop.reading() as reading:
        while not shop.messages("public.t"):
            assert reading.step(PATIENCE) is not None
        confirmed = shop.slot()[0]
        shop.sql("UPDATE t SET v = 'late' WHERE id = 1", "UPDATE t SET v = 'late' WHERE id = 4000")
        for i in range(50, 60):
            shop.sql(f"INSERT INTO mark VALUES ({i})")
        seen = lambda: any(one.data == b'{"id":59}' for one in shop.messages("public.mark"))  # noqa: E731
        assert reading.until(seen, PATIENCE)
        assert confirmed is not None
    with shop.reading() as reading:
        shop.settle(reading)
    rows = shop.rows("public.t")
    assert rows[b'{"id":1}'] == b'{"id":1,"v":"late"}'
    assert rows[b'{"id":4000}'] == b'{"id":4000,"v":"late"}'


def test_a_publication_and_a_slot_of_ones_own(shop: Shop) -> None:
    with shop.reading(publication="everything", slot="mine") as reading:
        with pytest.raises(UsageError, match="'everything' is not there") as caught:
            reading.step(PATIENCE)
        assert caught.value.hint is not None
    shop.sql(caught.value.hint)
    with shop.reading(publication="everything", slot="mine") as reading:
        shop.settle(reading)
        shop.sql("CREATE TABLE later (id int PRIMARY KEY)", "INSERT INTO later VALUES (1)")
        reading.until(lambda: False, 1.0)
        assert "public.later" not in shop.log.completed, "the publication is not the source's to change"
    source = adaptors.postgres(uri=shop.uri, tail=True, publication="everything", slot="mine").source()
    assert list(source.release()) == ["replication slot mine"]
    assert shop.query("SELECT pubname FROM pg_publication") == [("everything",)]


def test_a_publication_for_all_tables_takes_in_what_is_made_later(shop: Shop) -> None:
    shop.sql("CREATE PUBLICATION everything FOR ALL TABLES WITH (publish_via_partition_root = true)")
    with shop.reading(publication="everything") as reading:
        shop.settle(reading)
        shop.sql("CREATE TABLE later (id int PRIMARY KEY)", "INSERT INTO later VALUES (1)")
        shop.complete(reading, "public.later")
        shop.sql("INSERT INTO later VALUES (2)")
        shop.settle(reading)
    assert sorted(shop.rows("public.later").values()) == [b'{"id":1}', b'{"id":2}']


def test_columns_that_a_publication_leaves_out_are_not_copied_either(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (id int PRIMARY KEY, secret text, v text)", "INSERT INTO t VALUES (1, 's', 'v')",
             "CREATE PUBLICATION parts FOR TABLE t (id, v), mark")  # fmt: skip
    with shop.reading(publication="parts") as reading:
        shop.settle(reading)
        shop.sql("INSERT INTO t VALUES (2, 's', 'w')")
        shop.settle(reading)
    assert [one.data for one in shop.messages("public.t")] == [b'{"id":1,"v":"v"}', b'{"id":2,"v":"w"}']
    assert len([ns for _, ns, _ in shop.log.schemas if ns == "public.t"]) == 1


@pytest.mark.parametrize("kinds", ["insert", "insert, update, delete"])
def test_a_publication_that_leaves_out_changes_is_not_followed(shop: Shop, kinds: str) -> None:
    shop.sql(f"CREATE PUBLICATION part FOR TABLE mark WITH (publish = '{kinds}')")
    with shop.reading(publication="part") as reading:
        with pytest.raises(UsageError, match=r"'part' leaves out every .*truncate") as caught:
            reading.step(PATIENCE)
        assert caught.value.hint is not None
    assert [finding.fix for finding in inspected(shop, publication="part") if finding.fatal] == [
        caught.value.hint
    ]
    shop.sql(caught.value.hint)
    with shop.reading(publication="part") as reading:
        shop.settle(reading)
        shop.sql("TRUNCATE mark")
        shop.settle(reading)
    assert len(shop.rows("public.mark")) == 1


def test_gauges_copying_and_release(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (id int PRIMARY KEY, v text)",
             "INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 4000) i", "ANALYZE")  # fmt: skip
    with shop.reading() as reading:
        while not shop.messages("public.t"):
            assert reading.step(PATIENCE) is not None
        copying = {one.ns: one for one in reading.source.copying()}
        assert 0 < copying["public.t"].rows < 4000
        assert copying["public.t"].of == 4000
        shop.settle(reading)
        assert reading.source.copying() == []
        deadline = time.monotonic() + PATIENCE
        while not reading.source.gauges().get("slot_active"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        gauges = reading.source.gauges()
    assert set(gauges) >= {"held_back_bytes", "lag_bytes", "slot_active", "slot_there"}
    assert gauges["held_back_bytes"] >= gauges["lag_bytes"] >= 0
    released = reading.source.release()
    assert released == [f"replication slot {SLOT}", f"publication {SLOT}"]
    assert shop.query("SELECT 1 FROM pg_replication_slots WHERE database = current_database()") == []
    assert reading.source.release() == []


def inspected(shop: Shop, user: str = "", **settings: object) -> list[Finding]:
    uri = shop.server.uri(shop.name, user, "guest-password") if user else shop.uri
    source = adaptors.postgres(**{"uri": uri, "tail": True, **settings}).source()
    source.use(source.copier, "shop.db")
    return list(source.inspect(lambda ns: True).findings)


def test_inspect_lists_tables_with_estimates_and_keys(shop: Shop) -> None:
    shop.sql("CREATE SCHEMA other", "CREATE TABLE other.t (a int, b int, PRIMARY KEY (b, a))",
             "INSERT INTO other.t SELECT i, i FROM generate_series(1, 100) i",
             "CREATE VIEW v AS SELECT 1", "CREATE TABLE p (id int) PARTITION BY LIST (id)",
             "CREATE TABLE p1 PARTITION OF p DEFAULT", "ANALYZE")  # fmt: skip
    source = adaptors.postgres(uri=shop.uri).source()
    found = {one.ns: (one.rows, list(one.key)) for one in source.inspect(lambda ns: True).namespaces}
    assert found == {"other.t": (100, ["b", "a"]), "public.mark": (0, ["id"]), "public.p": (0, [])}
    assert source.namespaces() == ["other.t", "public.mark", "public.p"]


def test_each_finding_has_the_statement_that_mends_it(shop: Shop) -> None:
    shop.server.execute("CREATE ROLE guest LOGIN PASSWORD 'guest-password'")
    shop.sql("CREATE SCHEMA closed", "CREATE TABLE closed.t (id int PRIMARY KEY)",
             "CREATE TABLE loose (a int)", "CREATE UNLOGGED TABLE fast (id int PRIMARY KEY)")  # fmt: skip
    try:
        for _ in range(12):
            mending = [finding for finding in inspected(shop, "guest") if finding.fatal]
            if not mending:
                break
            assert mending[0].fix is not None
            shop.sql(mending[0].fix)
            if mending[0].what.startswith("guest cannot publish"):
                shop.sql(
                    *(
                        f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO guest"
                        for schema in ("public", "closed")
                    )
                )
        assert mending == []
        with shop.reading(uri=shop.server.uri(shop.name, "guest", "guest-password")) as reading:
            shop.complete(reading, "public.loose", "closed.t", "public.fast")
    finally:
        shop.close()
        shop.sql("DROP OWNED BY guest", "DROP ROLE guest", "CREATE TABLE mark (id int PRIMARY KEY)")


def test_findings_that_do_no_harm(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (id int PRIMARY KEY, body text, twice int GENERATED ALWAYS AS (id * 2) STORED)",
             "CREATE TABLE f (a int)", "ALTER TABLE f REPLICA IDENTITY FULL")  # fmt: skip
    found = {finding.what: finding for finding in inspected(shop)}
    assert not any(finding.fatal for finding in found.values())
    told = " ".join(found)
    assert "public.t: an update that leaves a large value of body" in told
    assert "public.t: generated columns are not read: twice" in told
    assert "public.f has no primary key" in told


def test_a_server_that_is_not_set_up_is_told_with_what_to_set(shop: Shop) -> None:
    try:
        shop.server.restart(wal_level="replica", max_replication_slots=1, max_wal_senders=1)
        whats = {finding.what.split(":")[0]: finding.fix for finding in inspected(shop) if finding.fatal}
        assert (
            whats["wal_level is replica"]
            == "ALTER SYSTEM SET wal_level = 'logical'; -- and restart the server"
        )
        assert any(what.startswith("max_replication_slots is 1") for what in whats)
        assert any(what.startswith("max_wal_senders is 1") for what in whats)
        error = refused(shop, "wal_level")
        assert error.hint is not None
    finally:
        shop.server.restart()


def test_no_free_slot_is_for_a_person(shop: Shop) -> None:
    try:
        shop.server.restart(max_replication_slots=1)
        shop.sql("SELECT pg_create_logical_replication_slot('other', 'pgoutput')")
        error = refused(shop, "all replication slots are in use")
        assert error.hint is not None
        assert "max_replication_slots" in error.hint
    finally:
        shop.sql("SELECT pg_drop_replication_slot('other')")
        shop.server.restart()


@pytest.mark.parametrize(
    ("uri", "complaint"),
    [
        ("postgresql://owner:wrong-password@127.0.0.1:{port}/{name}", "password"),
        ("postgresql://owner:not-to-be-shown@127.0.0.1:{port}/nowhere", "does not exist"),
    ],
)
def test_a_uri_that_is_wrong_is_for_a_person_and_shows_no_password(
    shop: Shop, uri: str, complaint: str
) -> None:
    adaptor = adaptors.postgres(uri=uri.format(port=shop.server.port, name=shop.name), tail=True)
    with pytest.raises(UsageError, match=complaint) as caught:
        adaptor.source().namespaces()
    assert "wrong-password" not in f"{caught.value} {caught.value.hint} {adaptor!r}"
    assert "not-to-be-shown" not in f"{caught.value} {caught.value.hint} {adaptor!r}"


@pytest.fixture
def poor(shop: Shop) -> Iterator[str]:
    """The uri of a role, `poor`, that has no rights but what a test gives it."""
    shop.server.execute("CREATE ROLE poor LOGIN PASSWORD 'guest-password'")
    yield shop.server.uri(shop.name, "poor", "guest-password")
    shop.sql("DROP OWNED BY poor", "DROP ROLE poor")


def refused_to(shop: Shop, uri: str, complaint: str) -> None:
    """A copy by this role is for a person to mend."""
    with shop.reading(uri=uri, tail=False) as reading, pytest.raises(UsageError, match=complaint):
        reading.to_the_end(PATIENCE)


def test_a_copy_that_may_not_read_is_for_a_person(shop: Shop, poor: str) -> None:
    refused_to(shop, poor, "permission denied")
    with shop.reading(uri=poor) as reading, pytest.raises(PenstockError, match="permission denied"):
        reading.to_the_end(PATIENCE)


def test_a_copy_does_not_leave_out_rows_that_a_policy_hides(shop: Shop, poor: str) -> None:
    shop.sql("CREATE TABLE t (id int PRIMARY KEY, who text)", "INSERT INTO t VALUES (1, 'poor'), (2, 'rich')",
             "ALTER TABLE t ENABLE ROW LEVEL SECURITY", "CREATE POLICY own ON t USING (who = current_user)",
             "GRANT USAGE ON SCHEMA public TO poor", "GRANT SELECT ON t, mark TO poor")  # fmt: skip
    refused_to(shop, poor, "row-level security")
    (finding,) = (one for one in inspected(shop, "poor") if "policies" in one.what)
    assert (finding.what, finding.fatal) == ("policies hide rows of public.t from poor", True)
    assert finding.fix is not None
    shop.sql(finding.fix)
    with shop.reading(uri=poor, tail=False) as reading:
        reading.to_the_end(PATIENCE)
    assert len(shop.rows("public.t")) == 2


def test_tables_that_would_be_one_namespace_are_refused_unless_both_are_left_out(shop: Shop) -> None:
    shop.sql('CREATE TABLE "a.b" (id int PRIMARY KEY)', 'CREATE SCHEMA "public.a"',
             'CREATE TABLE "public.a".b (id int PRIMARY KEY)')  # fmt: skip
    try:
        for tail in (False, True):
            with (
                shop.reading(tail=tail) as reading,
                pytest.raises(UsageError, match=r"are both 'public\.a\.b'"),
            ):
                reading.step(PATIENCE)
        shop.copied("public.mark", accept=lambda ns: ns == "public.mark")
    finally:
        shop.sql('DROP SCHEMA "public.a" CASCADE')


def test_a_table_is_held_as_it_is_while_it_is_copied(shop: Shop) -> None:
    """Rewriting or emptying a table would make its rows vanish from the moment that is being copied."""
    shop.sql("CREATE TABLE t (id int PRIMARY KEY, v text)",
             "INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 4000) i")  # fmt: skip
    with shop.reading() as reading:
        while not shop.messages("public.t"):
            assert reading.step(PATIENCE) is not None
        with psycopg.connect(shop.uri, autocommit=True) as connection:
            connection.execute("SET lock_timeout = '200ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                connection.execute("TRUNCATE t")
        shop.settle(reading)
    shop.sql("TRUNCATE t")
