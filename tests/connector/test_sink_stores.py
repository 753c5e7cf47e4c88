"""Ready sinks of rows: SQLite, Parquet and PostgreSQL through votes, decisions and crashes between any two steps."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pyarrow.parquet as pq
import pytest
from tests.servers.postgres import PostgresServer

from penstock.base.disk import Disk
from penstock.base.errors import CorruptError
from penstock.connector.inner import Phase1, Phase2
from penstock.connector.sink import Storage, Workers
from penstock.connector.sink.keeper import Keeper
from penstock.connector.sink.ledger import RuleError
from penstock.connector.sink.parquet import STAGED, ParquetStorage
from penstock.connector.sink.postgres import PostgresStorage
from penstock.connector.sink.sqlite import SqliteStorage, rows_of
from penstock.testing.powerloss import Mark, RecordingDisk, check, every_sync_matters, marked

Rows = list[tuple[str, int, str]]


class Store:
    """A kind of storage under test, and what its readers see."""

    def __init__(self, storage: Callable[[str], Storage], rows: Callable[[], Rows]) -> None:
        self.storage = storage
        self.rows = rows

    def content(self, worker: str = "w") -> str:
        return "".join(f"{data}\n" for name, _, data in self.rows() if name == worker)


def parquet_rows(directory: Path) -> Rows:
    found = []
    for path in sorted(directory.glob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            found.append(
                (
                    path.name.rsplit("-", 2)[0],
                    row["at"],
                    row["data"],
                )
            )
    return found


def postgres_rows(uri: str) -> Rows:
    with psycopg.connect(uri) as connection:
        query = "SELECT worker, at, data::text FROM output ORDER BY worker, at"
        return [(str(w), int(at), str(data)) for w, at, data in connection.execute(query).fetchall()]


@pytest.fixture(
    params=[
        "sqlite",
        "parquet",
        pytest.param("postgres", marks=pytest.mark.xdist_group("postgres")),
        pytest.param("postgres staged", marks=pytest.mark.xdist_group("postgres")),
    ]
)
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Two lines and more are fed to a store that takes them as they come; a single one waits for PHASE1."""
    monkeypatch.setattr("penstock.connector.sink.rows.FEED", 100)
    if request.param == "sqlite":
        path = tmp_path / "out.db"
        yield Store(lambda worker: SqliteStorage(path, "output", worker), lambda: rows_of(path, "output"))
    elif request.param == "parquet":
        yield Store(
            lambda worker: ParquetStorage(tmp_path / "out", worker), lambda: parquet_rows(tmp_path / "out")
        )
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        uri = server.database(f"sink_{uuid.uuid4().hex[:12]}")

        def storage(worker: str) -> Storage:
            made = PostgresStorage(uri, "output", worker)
            made._prepares = request.param == "postgres"
            return made

        yield Store(storage, lambda: postgres_rows(uri))
        query = "SELECT gid FROM pg_prepared_xacts WHERE database = '" + uri.rpartition("/")[2] + "'"
        assert server.query(query) == [], "nothing prepared is left"


@pytest.fixture
def workers(store: Store, tmp_path: Path) -> Iterator[Workers]:
    with closing(Workers(tmp_path / "txns", store.storage, patience=5.0)) as made:
        yield made


def send(keeper: Keeper, transaction: str, text: str) -> bool:
    start = keeper.offset
    keeper.data(start, memoryview(text.encode()))
    return keeper.phase1(Phase1(transaction, ((1, start, start + len(text)),)))


def line(number: int) -> str:
    return f'{{"n": {number}, "text": "tab \\\\t and backslash \\\\\\\\"}}\n'


def test_rows_are_seen_when_they_are_committed_and_never_else(store: Store, workers: Workers) -> None:
    keeper = workers.attach("w")
    assert send(keeper, "t1", line(1) + line(2))
    assert store.content() == ""
    keeper.phase2(Phase2("t1", True))
    assert store.content() == line(1) + line(2)
    assert [at for _, at, _ in store.rows()] == [0, len(line(1))]
    assert send(keeper, "t2", line(3))
    keeper.phase2(Phase2("t2", False))
    assert send(keeper, "t3", "")
    keeper.phase2(Phase2("t3", True))
    assert send(keeper, "t4", line(4))
    keeper.phase2(Phase2("t4", True))
    assert not send(keeper, "t5", '{"cut":'), "a transaction ends with a line"
    keeper.phase2(Phase2("t5", False))
    workers.detach(keeper)
    assert store.content() == line(1) + line(2) + line(4)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("at", ["prepared", "published"])
def test_a_crash_between_the_steps_changes_nothing(
    store: Store, workers: Workers, commit: bool, at: str
) -> None:
    keeper = workers.attach("w")
    send(keeper, "t1", line(1))
    keeper.phase2(Phase2("t1", True))
    send(keeper, "t2", line(2))
    if at == "published":  # the storage has done it, the log does not know
        prepared = keeper.ledger.prepared
        assert prepared is not None
        if commit:
            keeper._storage.commit(_transaction(prepared))
        else:
            keeper._storage.discard(prepared.start)
    workers.detach(keeper)
    keeper = workers.attach("w")
    assert list(keeper.ledger.unresolved) == ["t2"]
    keeper.phase2(Phase2("t2", commit))
    send(keeper, "t3", line(3))
    keeper.phase2(Phase2("t3", True))
    workers.detach(keeper)
    assert store.content() == line(1) + (line(2) if commit else "") + line(3)


def test_what_was_prepared_without_a_vote_is_gone_when_the_worker_comes_again(
    store: Store, workers: Workers
) -> None:
    keeper = workers.attach("w")
    keeper.data(0, memoryview(line(1).encode()))
    keeper._storage.prepare(_transaction(_Voted("t1", 0, len(line(1)))))
    workers.detach(keeper)
    keeper = workers.attach("w")
    assert keeper.ledger.unresolved == {}
    assert send(keeper, "t2", line(2))
    keeper.phase2(Phase2("t2", True))
    workers.detach(keeper)
    assert store.content() == line(2)


def test_one_whose_connection_is_on_its_way_out_has_left(store: Store, workers: Workers) -> None:
    keeper = workers.attach("w")
    with pytest.raises(RuleError, match="has not left"):
        workers.left("w", ["w"])
    with ThreadPoolExecutor(1) as others:
        told = others.submit(workers.left, "other", ["w"])
        time.sleep(0.1)  # for it to be there first; if it is not, nothing is shown, and nothing fails
        workers.detach(keeper)
        told.result(60)


def test_a_worker_that_left_keeps_its_rows_and_begins_anew(store: Store, workers: Workers) -> None:
    """What was committed, that is: of a transaction that nobody decided nothing is left."""
    keeper = workers.attach("w")
    send(keeper, "t1", line(1))
    keeper.phase2(Phase2("t1", True))
    assert send(keeper, "open", line(2))
    workers.detach(keeper)
    workers.left("other", ["w"])
    keeper = workers.attach("w")
    assert keeper.offset == 0
    send(keeper, "t1", line(1))
    keeper.phase2(Phase2("t1", True))
    workers.detach(keeper)
    assert sorted(data for _, _, data in store.rows()) == [line(1).rstrip()] * 2


def test_random_crashes_leave_exactly_the_stream(store: Store, workers: Workers) -> None:
    """Transactions that are committed or aborted, with a crash of the sink at any step in between."""
    dice = random.Random(4)
    expected, number, committed = "", 0, set[str]()
    for turn in range(25):
        keeper = workers.attach("w")
        for transaction in list(keeper.ledger.unresolved):
            keeper.phase2(Phase2(transaction, transaction in committed))
        text = "".join(line(number + more) for more in range(dice.randint(0, 3)))
        if dice.random() < 0.8 and send(keeper, f"t{turn}", text) and dice.random() < 0.8:
            committed.add(f"t{turn}")
            expected, number = expected + text, number + text.count("\n")
        if dice.random() < 0.5 and f"t{turn}" in keeper.ledger.unresolved:
            keeper.phase2(Phase2(f"t{turn}", f"t{turn}" in committed))
        workers.detach(keeper)
        assert expected.startswith(store.content())
    keeper = workers.attach("w")
    for transaction in list(keeper.ledger.unresolved):
        keeper.phase2(Phase2(transaction, transaction in committed))
    workers.detach(keeper)
    assert store.content() == expected


class _Voted:
    def __init__(self, transaction: str, start: int, end: int) -> None:
        self.transaction, self.start, self.end = transaction, start, end


def _transaction(voted: object):  # type: ignore[no-untyped-def]
    from penstock.connector.sink.keeper import _transaction as made

    return made(voted)  # type: ignore[arg-type]


def test_what_was_taken_ahead_of_a_vote_to_abort_is_gone(store: Store, workers: Workers) -> None:
    """The range is not what came, so the storage is not even asked."""
    keeper = workers.attach("w")
    text = (line(1) + line(2)).encode()
    keeper.data(0, memoryview(text))
    assert not keeper.phase1(Phase1("t1", ((1, 0, len(text) - 1),)))
    keeper.phase2(Phase2("t1", False))
    assert send(keeper, "t2", line(3) + line(4))
    keeper.phase2(Phase2("t2", True))
    workers.detach(keeper)
    assert store.content() == line(3) + line(4)


@pytest.mark.xdist_group("postgres")
@pytest.mark.parametrize("feed", [1, 1 << 20])
@pytest.mark.parametrize("refused", [b"not json\n", b"[" * 20_000 + b"]" * 20_000 + b"\n"])
def test_rows_that_postgres_refuses_are_a_vote_to_abort(
    postgres_server: PostgresServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    feed: int,
    refused: bytes,
) -> None:
    monkeypatch.setattr("penstock.connector.sink.rows.FEED", feed)
    uri = postgres_server.database(f"sink_{uuid.uuid4().hex[:12]}")
    with closing(
        Workers(tmp_path / "txns", lambda worker: PostgresStorage(uri, "output", worker))
    ) as workers:
        keeper = workers.attach("w")
        keeper.data(0, memoryview(refused))
        keeper.data(len(refused), memoryview(b"{}\n"))
        assert not keeper.phase1(Phase1("t1", ((1, 0, len(refused) + 3),)))
        assert "PostgreSQL refused the rows" in keeper.ledger.unresolved["t1"].reason
        keeper.phase2(Phase2("t1", False))
        assert send(keeper, "t2", "{}\n")
        keeper.phase2(Phase2("t2", True))
        workers.detach(keeper)
    assert postgres_rows(uri) == [("w", 0, "{}")]


@pytest.mark.xdist_group("postgres")
def test_workers_that_come_at_once_to_a_new_database_all_come_in(postgres_server: PostgresServer) -> None:
    uri = postgres_server.database(f"sink_{uuid.uuid4().hex[:12]}")
    together = threading.Barrier(8)

    def come(number: int) -> None:
        together.wait(60)
        PostgresStorage(uri, "output", f"w{number}").close()

    with ThreadPoolExecutor(8) as pool:
        for coming in [pool.submit(come, number) for number in range(8)]:
            coming.result()


@pytest.mark.xdist_group("postgres")
def test_rows_that_somebody_rolled_back_after_the_vote_are_not_taken_for_committed(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    uri = postgres_server.database(f"sink_{uuid.uuid4().hex[:12]}")
    with closing(
        Workers(tmp_path / "txns", lambda worker: PostgresStorage(uri, "output", worker))
    ) as workers:
        keeper = workers.attach("w")
        assert send(keeper, "t1", line(1))
        with psycopg.connect(uri, autocommit=True) as somebody:
            query = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
            for (gid,) in somebody.execute(query).fetchall():
                somebody.execute(f"ROLLBACK PREPARED '{gid}'".encode())
        with pytest.raises(CorruptError, match="the rows of t1 are gone"):
            keeper.phase2(Phase2("t1", True))
        workers.detach(keeper)
        keeper = workers.attach("w")
        assert not keeper.ledger.unresolved["t1"].commit
        keeper.phase2(Phase2("t1", False))
        assert send(keeper, "t2", line(2))
        keeper.phase2(Phase2("t2", True))
        workers.detach(keeper)
    assert postgres_rows(uri) == [("w", 0, line(2)[:-1])]


@pytest.mark.xdist_group("postgres")
def test_where_no_place_for_prepared_transactions_is_free_rows_are_staged(
    postgres_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that commit together would wait for each other's place for ever."""
    monkeypatch.setattr("penstock.connector.sink.rows.FEED", 100)
    uri = postgres_server.database(f"sink_{uuid.uuid4().hex[:12]}")
    with (
        closing(Workers(tmp_path / "txns", lambda worker: PostgresStorage(uri, "output", worker))) as workers,
        psycopg.connect(uri, autocommit=True) as other,
    ):
        keeper = workers.attach("w")
        assert send(keeper, "t1", line(1))
        keeper.phase2(Phase2("t1", True))
        taken = 0
        with pytest.raises(psycopg.errors.OutOfMemory):  # noqa: PT012 - at the first one for which there is no place
            while True:
                other.execute("BEGIN")
                other.execute(f"PREPARE TRANSACTION 'other-{taken}'".encode())
                taken += 1
        try:
            assert send(keeper, "t2", line(2) + line(3))
            keeper.phase2(Phase2("t2", False))
            assert send(keeper, "t3", line(2) + line(3))
            workers.detach(keeper)
            keeper = workers.attach("w")
            assert list(keeper.ledger.unresolved) == ["t3"]
            assert [at for _, at, _ in postgres_rows(uri)] == [0]
        finally:
            for number in range(taken):
                other.execute(f"ROLLBACK PREPARED 'other-{number}'".encode())
        keeper.phase2(Phase2("t3", True))
        assert send(keeper, "t4", line(4))
        keeper.phase2(Phase2("t4", True))
        workers.detach(keeper)
    assert [data + "\n" for _, _, data in postgres_rows(uri)] == [line(1), line(2), line(3), line(4)]


def test_an_older_database_is_not_taken_for_the_newer_one(tmp_path: Path) -> None:
    path = tmp_path / "out.db"
    with closing(Workers(tmp_path / "txns", lambda worker: SqliteStorage(path, "output", worker))) as workers:
        keeper = workers.attach("w")
        send(keeper, "t1", line(1))
        keeper.phase2(Phase2("t1", True))
        workers.detach(keeper)
        path.unlink()
        with pytest.raises(CorruptError, match="the database knows 0"):
            workers.attach("w")


# Parquet and power loss


class Promise(tuple[int, ...]):
    """These rows are published, or can still be."""


def sqlite_workers(root: Path, table: str) -> Workers:
    return Workers(root / f"{table}.txns", lambda worker: SqliteStorage(root / "out.db", table, worker))


def test_sinks_of_one_sqlite_database_keep_their_workers_of_one_name_apart(tmp_path: Path) -> None:
    """Wallaroo's workers are called the same at all sinks."""
    with closing(sqlite_workers(tmp_path, "a")) as one, closing(sqlite_workers(tmp_path, "b")) as other:
        first, second = one.attach("w"), other.attach("w")
        assert send(first, "t1", line(1) + line(2))
        other.detach(second)
        second = other.attach("w")
        assert send(second, "t1", line(3))
        first.phase2(Phase2("t1", True))
        second.phase2(Phase2("t1", True))
        one.detach(first)
        other.detach(second)
    found = {table: [data for _, _, data in rows_of(tmp_path / "out.db", table)] for table in ("a", "b")}
    assert found == {"a": [line(1)[:-1], line(2)[:-1]], "b": [line(3)[:-1]]}


def test_what_versions_before_kept_in_sqlite_is_that_of_the_table_that_its_worker_comes_to(
    tmp_path: Path,
) -> None:
    with closing(sqlite_workers(tmp_path, "a")) as workers:
        keeper = workers.attach("w")
        assert send(keeper, "t1", line(1))
        keeper.phase2(Phase2("t1", True))
        assert send(keeper, "t2", line(2))
        workers.detach(keeper)
        with closing(sqlite3.connect(tmp_path / "out.db")) as database:
            for kept in ("penstock_workers", "penstock_staged"):
                database.execute(f"UPDATE {kept} SET worker = 'w'")
            database.commit()
        keeper = workers.attach("w")
        keeper.phase2(Phase2("t2", True))
        workers.detach(keeper)
    assert rows_of(tmp_path / "out.db", "a") == [
        ("w", 0, line(1)[:-1]),
        ("w", len(line(1)), line(2)[:-1]),
    ]


def publishing(disk: RecordingDisk, root: Path) -> None:
    with closing(parquet_workers(disk, root)) as workers:
        keeper = workers.attach("w")
        for number, commit in enumerate((True, False, True)):
            assert send(keeper, f"t{number}", f"{number}\n")
            disk.mark(Promise((number, commit, False)))
            keeper.phase2(Phase2(f"t{number}", commit))
            disk.mark(Promise((number, commit, True)))
        workers.detach(keeper)


def leaving(disk: RecordingDisk, root: Path) -> None:
    with closing(parquet_workers(disk, root)) as workers:
        keeper = workers.attach("w")
        send(keeper, "t0", "0\n")
        keeper.phase2(Phase2("t0", True))
        disk.mark(Promise((0, True, True)))
        workers.detach(keeper)
        workers.left("other", ["w"])
        keeper = workers.attach("w")
        send(keeper, "t2", "2\n")
        disk.mark(Promise((2, True, False)))
        keeper.phase2(Phase2("t2", True))
        disk.mark(Promise((2, True, True)))
        workers.detach(keeper)


def parquet_workers(disk: Disk, root: Path) -> Workers:
    return Workers(
        root / "state" / "txns", lambda worker: ParquetStorage(root / "lake" / "out", worker, disk), disk=disk,
        clock=lambda: 7,
    )  # fmt: skip


def verify(root: Path, marks: Sequence[Mark]) -> None:
    promises = marked(marks, Promise)
    told = {number: (commit, done) for number, commit, done in promises}
    with closing(parquet_workers(Disk(), root)) as workers:
        keeper = workers.attach("w")
        for transaction in list(keeper.ledger.unresolved):
            keeper.phase2(Phase2(transaction, bool(told.get(int(transaction[1:]), (False, False))[0])))
        workers.detach(keeper)
        workers.detach(
            workers.attach("w")
        )  # a file that has both its names is cleared away with the next start
    published = {int(data) for _, _, data in parquet_rows(root / "lake" / "out")}
    for number, (commit, done) in told.items():
        assert number in published if commit else not done or number not in published, number
    assert list((root / "lake" / "out" / STAGED).iterdir()) == []


LOCK = ("state/txns/.lock",)


def test_no_sync_of_the_parquet_sink_is_there_for_nothing() -> None:
    for recording in (publishing, leaving):
        check(recording, verify, seed=1, untracked=LOCK)
    failures = every_sync_matters(
        [publishing, leaving], verify, seed=1, untracked=LOCK, exempt=("workers.py:*", "txnlog.py:*")
    )
    assert {site.label for site in failures} >= {
        "parquet.py:ParquetStorage.__init__ Disk.make_dirs",
        "parquet.py:ParquetStorage.stage",
        "parquet.py:ParquetStorage.publish",
    }
