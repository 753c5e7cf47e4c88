"""Store health and the set of a broker's stores (reference, 19 "Health", 20 "FragmentStoreHealth")."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.disk import Buffer, Disk
from penstock.base.errors import UsageError
from penstock.journal.health import CONTENT, PATH, Pace, Schedule, check, probe_delete
from penstock.journal.metrics import Metrics
from penstock.journal.stores import FileStore, FragmentStore
from penstock.journal.storeset import ABANDONED, CountedStore, Stores
from penstock.journal.tokens import ValidationError

from .s3 import S3Server, aws_environment, s3_server
from .storing import files_below

QUICK = Pace(healthy=0.02, failing=(0.0, 0.02), timeout=30)
MIDDLE = 0.5  # no jitter


@pytest.fixture(autouse=True)
def environment() -> Iterator[pytest.MonkeyPatch]:
    with aws_environment() as patch:
        yield patch


@pytest.fixture
def files(tmp_path: Path) -> Path:
    root = tmp_path / "files"
    root.mkdir()
    return root


def run(
    root: Path | None,
    body: Callable[[Stores, Metrics], Awaitable[None]],
    pace: Pace = QUICK,
    *,
    file_only: bool = False,
    shared: bool = False,
) -> Metrics:
    """Run `body` with the stores of a broker, and see that they leave no task behind."""
    metrics = Metrics()

    async def main() -> None:
        def spawn(work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
            return asyncio.create_task(work, name=name)

        with ThreadPoolExecutor(2) as executor:
            stores = Stores(
                root,
                Disk(),
                executor,
                metrics,
                file_only=file_only,
                shared=shared,
                spawn=spawn,
                pace=pace,
                chance=lambda: MIDDLE,
            )
            await asyncio.wait_for(body(stores, metrics), 60)
            await stores.close()
            assert stores.active == 0
            assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    return metrics


def test_failing_checks_come_soon_and_then_seldom() -> None:
    schedule = Schedule(Pace())
    assert schedule.after(True, MIDDLE) == 1800
    waits = [schedule.after(False, MIDDLE) for _ in range(9)]
    assert waits == [0, 0.1, 1, 1, 10, 10, 100, 100, 100]
    assert schedule.after(True, MIDDLE) == 1800
    assert [schedule.after(False, MIDDLE) for _ in range(2)] == [0, 0.1]


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1, exclude_max=True)), min_size=1))
def test_every_wait_is_within_a_fifth_of_its_place(outcomes: list[tuple[bool, float]]) -> None:
    drawn, middle = Schedule(Pace()), Schedule(Pace())
    for ok, chance in outcomes:
        wait, expected = drawn.after(ok, chance), middle.after(ok, MIDDLE)
        assert expected * 0.8 <= wait <= expected * 1.2
    assert Schedule(Pace()).after(True, 0) == pytest.approx(1440)
    assert Schedule(Pace()).after(True, 0.999999) == pytest.approx(2160, rel=1e-4)


def test_a_healthy_file_store(files: Path) -> None:
    assert check(FileStore("file:///", files, Disk())) == ""
    assert files_below(files) == [PATH]
    assert (files / PATH).read_bytes() == CONTENT


def test_a_healthy_s3_store_and_one_without_its_bucket(s3: S3Server) -> None:
    async def body(stores: Stores, metrics: Metrics) -> None:
        assert await in_thread_check(stores.get(s3.store_url("a/"))) == ""
        error = await in_thread_check(stores.get(s3.store_url(bucket="nowhere")))
        assert "NoSuchBucket" in error

    metrics = run(None, body)
    ok = {operation for (_, operation, status) in metrics.store_operations if status == "ok"}
    assert ok == {"put", "get", "list"}
    assert metrics.store_put_bytes[s3.store_url("a/"), ""] == len(CONTENT)
    assert metrics.store_listed[s3.store_url("a/")] == 1
    assert metrics.store_operations[s3.store_url(bucket="nowhere"), "put", "error"].calls == 1


class Lying(FileStore):
    """Damages what is put, in a way of the test's choice."""

    def __init__(self, root: Path, lie: str) -> None:
        super().__init__("file:///", root, Disk())
        self._lie = lie

    def put(self, path: str, source: Iterable[Buffer], *, content_encoding: str = "") -> None:
        if self._lie == "forgets":
            return
        super().put(path, [b"something else"] if self._lie == "changes" else source)

    def list(self, directory: str) -> Iterator[object]:  # type: ignore[override]
        return iter(()) if self._lie == "hides" else super().list(directory)


@pytest.mark.parametrize(
    ("lie", "complaint"),
    [("changes", "gave b'something e"), ("hides", "not in the list"), ("forgets", "No such")],
)
def test_a_store_that_lies_is_found_out(files: Path, lie: str, complaint: str) -> None:
    assert complaint in check(Lying(files, lie))


def test_whatever_goes_wrong_is_an_outcome(files: Path) -> None:
    class Broken(FileStore):
        def put(self, path: str, source: Iterable[Buffer], *, content_encoding: str = "") -> None:
            raise ZeroDivisionError("a bug")

    assert "ZeroDivisionError: a bug" in check(Broken("file:///", files, Disk()))


def test_a_signed_url_that_does_not_work_is_found_out(s3: S3Server) -> None:
    async def body(stores: Stores, metrics: Metrics) -> None:
        store = stores.get(s3.store_url("signed/"))
        assert isinstance(store, CountedStore)
        store.sign = lambda path, ttl: f"{s3.endpoint}/fragments/elsewhere"  # type: ignore[method-assign]
        assert "the signed URL of .test/health-check" in await in_thread_check(store)

    run(None, body)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


async def in_thread_check(store: FragmentStore) -> str:
    return await asyncio.to_thread(check, store)


async def until(stores: Stores, url: str, healthy: bool) -> str:
    """Wait, as an append does, for the store to be so."""
    while True:
        health = stores.health(url)
        changed = health.changed()
        if health.checked and (health.error == "") == healthy:
            return health.error
        await changed.wait()


def test_a_store_that_goes_down_is_seen_and_so_is_its_return() -> None:
    with s3_server() as server:
        url = server.store_url("health/")

        async def body(stores: Stores, metrics: Metrics) -> None:
            health = stores.health(url)
            assert not health.checked
            assert health.error == ""
            await health.first_check()
            assert (health.checked, health.error) == (True, "")
            server.kill()
            assert "Connection refused" in await until(stores, url, healthy=False)
            await asyncio.to_thread(server.start)
            await until(stores, url, healthy=True)
            assert stores.health(url) is health

        metrics = run(None, body)
        assert metrics.store_health_checks[url, "ok"] >= 2
        assert metrics.store_health_checks[url, "error"] >= 1


def test_a_read_only_store_is_listed_and_never_written(files: Path) -> None:
    async def body(stores: Stores, metrics: Metrics) -> None:
        store = stores.get("file:///", read_only=True)
        assert stores.as_used("file:///") is store
        health = stores.health("file:///")
        await health.first_check()
        await health.changed().wait()
        assert health.error == ""
        with pytest.raises(PermissionError, match="never written"):
            await probe_delete(stores.as_used("file:///"), "foo/")

    (files / ".partial-of-its-owner").write_bytes(b"")
    metrics = run(files, body)
    assert {operation for (_, operation, _) in metrics.store_operations} == {"list", "put"}
    assert files_below(files) == [".partial-of-its-owner"]


def test_a_store_that_is_written_after_all_is_checked_again(files: Path) -> None:
    async def body(stores: Stores, metrics: Metrics) -> None:
        stores.get("file:///", read_only=True)
        health = stores.health("file:///")
        await health.first_check()
        assert files_below(files) == []
        stores.get("file:///")
        assert not health.checked, "that it could be listed says nothing about writing"
        await health.first_check()
        assert files_below(files) == [PATH]
        assert not stores.as_used("file:///").read_only

    run(files, body, Pace())


def test_a_check_that_hangs_is_a_failure_and_no_second_one_is_started(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, go_on = [], threading.Event()

    def put(self: FileStore, path: str, source: Iterable[Buffer], *, content_encoding: str = "") -> None:
        started.append(path)
        go_on.wait(30)
        real(self, path, source)

    real = FileStore.put
    monkeypatch.setattr(FileStore, "put", put)

    async def body(stores: Stores, metrics: Metrics) -> None:
        health = stores.health("file:///")
        await health.first_check()
        assert health.error == "the store file:/// did not answer within 0.05 s"
        for _ in range(3):
            await health.changed().wait()
        assert started == [PATH]
        go_on.set()
        await until(stores, "file:///", healthy=True)

    run(files, body, Pace(healthy=100, failing=(0.0,), timeout=0.05))


def test_stores_nobody_asks_for_are_dropped(files: Path) -> None:
    (files / "kept").mkdir()
    pace = Pace(sweep=0.05)

    async def body(stores: Stores, metrics: Metrics) -> None:
        first, dropped = stores.get("file:///"), stores.health("file:///")
        await dropped.first_check()
        changed = dropped.changed()
        stores.health("file:///kept/")
        deadline = time.monotonic() + 60
        while stores.active == 2:
            assert time.monotonic() < deadline
            stores.get("file:///kept/")
            await asyncio.sleep(0.01)
        await changed.wait()  # nobody waits for ever for a store that is gone
        await asyncio.sleep(0)
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert [name for name in names if "health" in name] == ["health of file:///kept/"]
        first.put("foo/x.raw", [b"still works"])
        assert stores.get("file:///") is not first
        assert stores.health("file:///") is not dropped
        await stores.health("file:///").first_check()

    run(files, body, pace)


def test_a_store_is_opened_once(files: Path) -> None:
    async def body(stores: Stores, metrics: Metrics) -> None:
        store = stores.get("file:///")
        assert stores.get("file:///") is store
        assert stores.get("file:///", read_only=True) is not store
        assert stores.active == 1
        assert store.local_path("foo/x") == files / "foo/x"

    run(files, body)


def test_a_store_that_cannot_be_opened_is_told_at_once(files: Path) -> None:
    async def body(stores: Stores, metrics: Metrics) -> None:
        with pytest.raises(UsageError, match="does not exist"):
            stores.get("file:///missing/")
        with pytest.raises(ValidationError, match="unknown argument"):
            stores.health("s3://bucket/?regoin=x")
        assert stores.active == 0

    run(files, body)


def test_with_file_only_every_scheme_is_kept_in_files(files: Path) -> None:
    (files / "prefix").mkdir()

    async def body(stores: Stores, metrics: Metrics) -> None:
        await stores.health("s3://bucket/prefix/?region=x").first_check()

    run(files, body, file_only=True)
    assert files_below(files) == [f"prefix/{PATH}"]


def test_what_a_dead_process_left_is_swept_when_a_store_is_first_used(files: Path) -> None:
    async def body(stores: Stores, metrics: Metrics) -> None:
        stores.get("file:///")

    (files / ".partial-left").write_bytes(b"")
    run(files, body)
    assert files_below(files) == []


def test_what_another_broker_is_writing_to_a_shared_store_is_left_alone(files: Path) -> None:
    async def body(stores: Stores, metrics: Metrics) -> None:
        stores.get("file:///")

    for name in (".partial-of-another", ".partial-left"):
        (files / name).write_bytes(b"")
    os.utime(files / ".partial-left", (0, time.time() - ABANDONED - 60))
    run(files, body, shared=True)
    assert files_below(files) == [".partial-of-another"]


def test_the_delete_probe_puts_and_removes(files: Path) -> None:
    async def body(stores: Stores, metrics: Metrics) -> None:
        await probe_delete(stores.get("file:///"), "foo/bar/")
        await probe_delete(stores.get("file:///"), "")

    metrics = run(files, body)
    assert files_below(files) == []
    assert (files / "foo/bar").is_dir()
    for operation in ("put", "remove"):
        assert metrics.store_operations["file:///", operation, "ok"].calls == 2


def test_the_delete_probe_tells_of_a_store_that_hangs_or_keeps(files: Path) -> None:
    hanging = threading.Event()

    class Keeping(FileStore):
        def remove(self, path: str) -> None:
            hanging.wait(20)
            raise PermissionError("not you")

    async def body(stores: Stores, metrics: Metrics) -> None:
        store = Keeping("file:///", files, Disk())
        with pytest.raises(TimeoutError, match=r"foo/\.gazette-delete-probe within 0\.05 s"):
            await probe_delete(store, "foo/", limit=0.05)
        hanging.set()
        with pytest.raises(PermissionError, match="not you"):
            await probe_delete(store, "foo/")

    run(files, body)


def test_refusals_are_counted_apart_and_numbers_after_the_loop_are_let_go(files: Path) -> None:
    kept: list[FragmentStore] = []

    async def body(stores: Stores, metrics: Metrics) -> None:
        store = stores.get("file:///", read_only=True)
        kept.append(store)
        with pytest.raises(PermissionError):
            store.put("foo/x.raw", [b"x"])
        with pytest.raises(FileNotFoundError):
            store.open("foo/x.raw")
        assert not store.exists("foo/x.raw")

    metrics = run(files, body)
    counted = {(operation, status) for (_, operation, status) in metrics.store_operations}
    assert counted == {("put", "denied"), ("get", "error"), ("exists", "ok")}
    assert not kept[0].exists("foo/x.raw")
    assert metrics.store_operations["file:///", "exists", "ok"].calls == 1
