"""Each status that one broker can answer with (reference 8), its condition brought about for real."""

from __future__ import annotations

import asyncio
import hashlib
import time
from pathlib import Path

import grpc
import pytest

from penstock.journal import keys
from penstock.journal.auth import KeyedAuthorizer, Keys, sign
from penstock.journal.claims import Capability, Claims
from penstock.journal.health import Pace
from penstock.journal.keys import MemberId
from penstock.journal.labels import parse_selector
from penstock.journal.protocol import (
    AppendRequest,
    AppendResponse,
    ApplyRequest,
    BrokerSpec,
    FragmentsRequest,
    FragmentStoreHealthRequest,
    JournalSpec,
    LabelSelector,
    ReadRequest,
    RollRequest,
    Route,
    Status,
)
from penstock.journal.replica import Replica
from penstock.journal.server import Options
from penstock.journal.topology import LocalTopology

from .brokers import in_loop, until
from .foreign import JOURNAL, Foreign, Served, dialed, journal, label_set, opened, refusal, served

SUSPEND = AppendRequest.Suspend
FULL = JournalSpec.Suspend(level=JournalSpec.Suspend.FULL)
PARTIAL = JournalSpec.Suspend(level=JournalSpec.Suspend.PARTIAL)
EMPTY_ROUTE = Route(primary=-1)


async def every_answer(foreign: Foreign, name: str) -> list[tuple[int, Route]]:
    """Status and route that the calls on one journal are answered with."""
    append = await foreign.append(name, b"x")
    (read,) = (await foreign.read(name))[-1:]
    fragments = await foreign.fragments(name)
    return [
        (append.status, append.header.route),
        (read.status, read.header.route),
        (fragments.status, fragments.header.route),
    ]


def test_JOURNAL_NOT_FOUND_by_name(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, _):
            answers = await every_answer(foreign, "no/such/journal")
            assert answers == [(Status.JOURNAL_NOT_FOUND, EMPTY_ROUTE)] * 3

    in_loop(test)


def test_JOURNAL_NOT_FOUND_by_the_selector_of_the_claims(tmp_path: Path) -> None:
    secrets = Keys((b"secret",))

    async def test() -> None:
        options = Options(authorizer=KeyedAuthorizer(secrets))
        async with served(tmp_path, options=options) as running:
            async with dialed(running.address, token=_token(secrets, LabelSelector())) as owner:
                await owner.upsert(journal(labels=(("kind", "open"),)), journal("b/journal"))
            limited = _token(secrets, parse_selector("kind=open"))
            async with dialed(running.address, token=limited) as foreign:
                assert (await foreign.append(JOURNAL, b"x")).status == Status.OK
                answers = await every_answer(foreign, "b/journal")
                assert answers == [(Status.JOURNAL_NOT_FOUND, EMPTY_ROUTE)] * 3
                assert list(await foreign.specs()) == [JOURNAL]

    in_loop(test)


def _token(secrets: Keys, selector: LabelSelector) -> str:
    return sign(secrets, Claims(Capability.ALL, selector), now=time.time(), lifetime=60)


def test_SUSPENDED_at_level_FULL_by_every_call_but_an_append_that_resumes(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path, journal(suspend=FULL)) as (foreign, _):
            assert (await foreign.read(JOURNAL))[-1].status == Status.SUSPENDED
            assert (await foreign.fragments(JOURNAL)).status == Status.SUSPENDED
            for suspend in set(SUSPEND.keys()) - {"SUSPEND_RESUME"}:
                response = await foreign.append(AppendRequest(journal=JOURNAL, suspend=suspend))
                assert response.status == Status.SUSPENDED, suspend
                assert not response.HasField("commit")
            resumed = await foreign.append(JOURNAL, b"x")
            assert (resumed.status, resumed.commit.end) == (Status.OK, 1)
            assert (await foreign.specs())[JOURNAL].spec.suspend.level == JournalSpec.Suspend.NONE

    in_loop(test)


@pytest.mark.parametrize(
    ("suspend", "status", "level"),
    [
        ("SUSPEND_RESUME", Status.OK, "NONE"),
        ("SUSPEND_NO_RESUME", Status.SUSPENDED, "PARTIAL"),
        ("SUSPEND_IF_FLUSHED", Status.SUSPENDED, "PARTIAL"),
        ("SUSPEND_NOW", Status.SUSPENDED, "PARTIAL"),
        ("SUSPEND_KEEP", Status.OK, "PARTIAL"),
    ],
)
def test_SUSPENDED_at_level_PARTIAL(tmp_path: Path, suspend: str, status: int, level: str) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, _):
            await foreign.append(JOURNAL, b"abc")
            await foreign.upsert(journal(suspend=PARTIAL))
            response = await foreign.append(AppendRequest(journal=JOURNAL, suspend=suspend))
            assert response.status == status
            found = (await foreign.specs())[JOURNAL].spec.suspend
            assert JournalSpec.Suspend.Level.Name(found.level) == level
            # A partly suspended journal is read like any other.
            assert await foreign.content() == b"abc"

    in_loop(test)


def test_INSUFFICIENT_JOURNAL_BROKERS_with_more_replicas_wanted_than_brokers(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path, journal(replication=2)) as (foreign, _):
            response = await foreign.append(JOURNAL, b"x")
            assert response.status == Status.INSUFFICIENT_JOURNAL_BROKERS
            assert len(response.header.route.members) == 1
            # Only an append needs all of them.
            assert (await foreign.read(JOURNAL))[-1].status == Status.OFFSET_NOT_YET_AVAILABLE
            await foreign.upsert(journal(replication=1))
            assert (await foreign.append(JOURNAL, b"x")).status == Status.OK

    in_loop(test)


def test_the_wanted_replicas_are_capped_by_the_broker(tmp_path: Path) -> None:
    async def test() -> None:
        options = Options(max_replication=1)
        async with opened(tmp_path, journal(replication=3), options=options) as (foreign, _):
            assert (await foreign.append(JOURNAL, b"x")).status == Status.OK

    in_loop(test)


def test_NOT_ALLOWED_to_read_a_write_only_journal(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path, journal(flags=JournalSpec.O_WRONLY)) as (foreign, _):
            assert (await foreign.append(JOURNAL, b"x")).status == Status.OK
            responses = await foreign.read(JOURNAL)
            assert [response.status for response in responses] == [Status.NOT_ALLOWED]
            assert (await foreign.fragments(JOURNAL)).status == Status.NOT_ALLOWED

    in_loop(test)


def test_NOT_ALLOWED_to_append_content_to_a_read_only_journal(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path, journal(flags=JournalSpec.O_RDONLY)) as (foreign, _):
            assert (await foreign.append(JOURNAL, b"x")).status == Status.NOT_ALLOWED
            assert (await foreign.append(JOURNAL)).status == Status.OK
            assert await foreign.content() == b""

    in_loop(test)


@pytest.mark.parametrize("suspend", ["SUSPEND_IF_FLUSHED", "SUSPEND_NOW", "SUSPEND_KEEP"])
def test_NOT_ALLOWED_to_append_content_with_a_suspension(tmp_path: Path, suspend: str) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, _):
            await foreign.append(JOURNAL, b"abc")
            first = AppendRequest(journal=JOURNAL, suspend=suspend)
            response = await foreign.append(first, b"refused")
            assert response.status == Status.NOT_ALLOWED
            assert await foreign.content() == b"abc"
            assert (await foreign.append(JOURNAL, b"d")).commit.begin == 3

    in_loop(test)


def test_OFFSET_NOT_YET_AVAILABLE_tells_offset_and_write_head(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, _):
            await foreign.append(JOURNAL, b"abc")
            for offset, told in ((3, 3), (7, 7), (-1, 3)):
                (response,) = await foreign.read(ReadRequest(journal=JOURNAL, offset=offset))
                assert response.status == Status.OFFSET_NOT_YET_AVAILABLE
                assert (response.offset, response.write_head) == (told, 3)

    in_loop(test)


def test_REGISTER_MISMATCH_returns_the_registers(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, _):
            registers = label_set(("AA", "1"))
            await foreign.append(AppendRequest(journal=JOURNAL, union_registers=registers), b"abc")
            first = AppendRequest(journal=JOURNAL, check_registers=parse_selector("AA=2"))
            response = await foreign.append(first, b"refused")
            assert (response.status, response.registers) == (Status.REGISTER_MISMATCH, registers)
            assert not response.HasField("commit")
            assert await foreign.content() == b"abc"

    in_loop(test)


def test_empty_registers_match_anything(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, _):
            for selector in ("AA=2", "AA=2,!BB", "name=other/journal"):
                first = AppendRequest(journal=JOURNAL, check_registers=parse_selector(selector))
                assert (await foreign.append(first, b"x")).status == Status.OK

    in_loop(test)


def put_fragment(root: Path, begin: int, content: bytes) -> None:
    """A fragment that another broker has stored."""
    name = f"{begin:016x}-{begin + len(content):016x}-{hashlib.sha1(content).hexdigest()}.raw"
    (root / JOURNAL).mkdir(parents=True, exist_ok=True)
    (root / JOURNAL / name).write_bytes(content)


async def with_a_fragment_beyond(foreign: Foreign, running: Served) -> None:
    """Three bytes of ours, and five that the store has from offset 10."""
    await foreign.append(JOURNAL, b"abc")
    put_fragment(running.broker.directory.fragments, 10, b"hello")
    await running.broker._replicas[JOURNAL].refresh()


def test_INDEX_HAS_GREATER_OFFSET_if_the_store_knows_more_than_the_spool(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, running):
            await with_a_fragment_beyond(foreign, running)
            for content in ((b"x",), ()):
                response = await foreign.append(JOURNAL, *content)
                assert response.status == Status.INDEX_HAS_GREATER_OFFSET
        async with opened(tmp_path) as (foreign, _):
            assert (await foreign.append(JOURNAL, b"x")).status == Status.INDEX_HAS_GREATER_OFFSET

    in_loop(test)


def test_WRONG_APPEND_OFFSET_for_any_offset_but_the_furthest_end(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, running):
            await with_a_fragment_beyond(foreign, running)
            for offset in (1, 3, 10, 14, 16, (1 << 63) - 1):
                response = await foreign.append(AppendRequest(journal=JOURNAL, offset=offset), b"x")
                assert response.status == Status.WRONG_APPEND_OFFSET, offset

    in_loop(test)


def test_an_append_at_the_confirmed_offset_resets_the_head(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, running):
            await with_a_fragment_beyond(foreign, running)
            keep = AppendRequest(journal=JOURNAL, offset=15, suspend=AppendRequest.SUSPEND_KEEP)
            reset = await foreign.append(keep)
            assert (reset.status, reset.commit.begin, reset.commit.end) == (Status.OK, 15, 15)
            after = await foreign.append(JOURNAL, b"!")
            assert (after.commit.begin, after.commit.end) == (15, 16)
            assert await foreign.content(offset=10) == b"hello!"

    in_loop(test)


def test_a_correct_explicit_offset_is_an_ordinary_append(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, _):
            await foreign.append(JOURNAL, b"abc")
            response = await foreign.append(AppendRequest(journal=JOURNAL, offset=3), b"def")
            assert (response.commit.begin, response.commit.end) == (3, 6)
            assert [(f.spec.begin, f.spec.end) for f in (await foreign.fragments(JOURNAL)).fragments][-1][
                1
            ] == 6

    in_loop(test)


def test_FRAGMENT_STORE_UNHEALTHY_for_an_append_whose_store_stays_bad(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("good", "bad"):
        (root / name).mkdir(parents=True)
    (root / "bad" / ".test").write_bytes(b"not a directory, so no check can succeed")

    async def test() -> None:
        options = Options(file_root=root)
        async with served(tmp_path / "data", options=options) as running, dialed(running.address) as foreign:
            running.broker.stores._pace = Pace(failing=(0.0, 0.01), jitter=0.0)
            for store, complaint in (("file:///bad/", ".test"), ("file:///gone/", "does not exist")):
                await foreign.upsert(journal(stores=[store]))
                response = await foreign.append(JOURNAL, b"x")
                assert response.status == Status.FRAGMENT_STORE_UNHEALTHY
                assert complaint in response.store_health_error
            await foreign.upsert(journal(stores=["file:///good/"]))
            assert (await foreign.append(JOURNAL, b"x")).status == Status.OK

    in_loop(test)


def test_FRAGMENT_STORE_UNHEALTHY_by_FragmentStoreHealth(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "good").mkdir(parents=True)

    async def test() -> None:
        options = Options(file_root=root)
        async with served(tmp_path / "data", options=options) as running, dialed(running.address) as foreign:
            good, bad = "file:///good/", "file:///gone/"
            for request, status in (
                (FragmentStoreHealthRequest(fragment_store=good), Status.OK),
                (FragmentStoreHealthRequest(fragment_store=good, check_delete=True), Status.OK),
                (
                    FragmentStoreHealthRequest(
                        fragment_store=good, check_delete=True, check_delete_prefix="some/where/"
                    ),
                    Status.OK,
                ),
                (FragmentStoreHealthRequest(fragment_store=bad), Status.FRAGMENT_STORE_UNHEALTHY),
            ):
                response = await foreign.health(request)
                assert response.status == status
                assert bool(response.store_health_error) == (status != Status.OK)
            assert not [path for path in root.rglob("*") if "probe" in path.name]

    in_loop(test)


def test_ETCD_TRANSACTION_FAILED_changes_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, _):
            known = (await foreign.specs())[JOURNAL]
            other = ApplyRequest.Change(expect_mod_revision=0, upsert=journal("b/journal"))
            for expected in (0, known.mod_revision + 1, known.mod_revision - 1):
                wrong = ApplyRequest.Change(expect_mod_revision=expected, upsert=journal(length=4096))
                if expected < 0:
                    continue
                response = await foreign.apply(other, wrong)
                assert response.status == Status.ETCD_TRANSACTION_FAILED
            wrong = ApplyRequest.Change(expect_mod_revision=known.mod_revision + 7, delete=JOURNAL)
            assert (await foreign.apply(other, wrong)).status == Status.ETCD_TRANSACTION_FAILED
            assert await foreign.specs() == {JOURNAL: known}
            right = ApplyRequest.Change(expect_mod_revision=known.mod_revision, upsert=journal(length=4096))
            applied = await foreign.apply(other, right)
            assert applied.status == Status.OK
            specs = await foreign.specs()
            assert {found.mod_revision for found in specs.values()} == {applied.header.etcd.revision}
            assert specs[JOURNAL].create_revision == known.create_revision

    in_loop(test)


async def reassigned(running: Served, *members: tuple[MemberId, int]) -> None:
    """Have the journal assigned to these members and slots, as an allocator elsewhere might."""
    topology = running.broker.topology
    assert isinstance(topology, LocalTopology)
    gone = [key for key, _ in topology.keyspace.under(keys.assignments_of(JOURNAL))]
    puts = []
    for member, slot in members:
        spec = BrokerSpec(journal_limit=1)
        spec.process_spec.id.zone, spec.process_spec.id.suffix = member
        spec.process_spec.endpoint = "http://elsewhere:1"
        puts += [
            (keys.member_key(member), spec.SerializeToString()),
            (keys.assignment_key(keys.Assignment(JOURNAL, member, slot)), b""),
        ]
    assert await topology.transact({}, puts, gone)


def test_NO_JOURNAL_PRIMARY_BROKER_and_INSUFFICIENT_JOURNAL_BROKERS_without_an_assignment(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, running):
            await reassigned(running)
            append, read, fragments = await every_answer(foreign, JOURNAL)
            assert append == (Status.NO_JOURNAL_PRIMARY_BROKER, EMPTY_ROUTE)
            assert read == fragments == (Status.INSUFFICIENT_JOURNAL_BROKERS, EMPTY_ROUTE)

    in_loop(test)


def test_NOT_JOURNAL_BROKER_if_others_serve_it_and_no_proxy_is_wanted(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, running):
            await reassigned(running, (MemberId("zone", "elsewhere"), 1))
            assert (await foreign.append(JOURNAL)).status == Status.NO_JOURNAL_PRIMARY_BROKER
            await reassigned(running, (MemberId("zone", "elsewhere"), 0))
            append = await foreign.append(AppendRequest(journal=JOURNAL, do_not_proxy=True))
            assert append.status == Status.NOT_JOURNAL_PRIMARY_BROKER
            (read,) = await foreign.read(ReadRequest(journal=JOURNAL, do_not_proxy=True))
            assert read.status == Status.NOT_JOURNAL_BROKER
            fragments = await foreign.fragments(FragmentsRequest(journal=JOURNAL, do_not_proxy=True))
            assert fragments.status == Status.NOT_JOURNAL_BROKER
            # Nor can it pass an append on; an OK without a commit would be a lie.
            code, text = await refusal(foreign.append(JOURNAL, b"x"))
            assert (code, "another broker" in text) == (grpc.StatusCode.UNKNOWN, True)
            for header in (append.header, read.header, fragments.header):
                assert header.process_id.suffix == "broker", "who says no says who it is"
                assert list(header.route.endpoints) == ["http://elsewhere:1"]

    in_loop(test)


def test_an_append_that_waits_for_its_store_does_not_keep_the_journal(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "bad").mkdir(parents=True)
    (root / "bad" / ".test").write_bytes(b"not a directory, so no check can succeed")

    async def test() -> None:
        options = Options(file_root=root)
        async with served(tmp_path / "data", options=options) as running, dialed(running.address) as foreign:
            running.broker.stores._pace = Pace(failing=(100.0,))
            await foreign.upsert(journal(stores=["file:///bad/"]))
            waiting = asyncio.ensure_future(foreign.append(JOURNAL, b"x"))
            await until(lambda: running.broker._replicas[JOURNAL].pipeline_slot.owned)
            await foreign.delete(JOURNAL)
            assert (await waiting).status == Status.JOURNAL_NOT_FOUND

    in_loop(test)


def test_the_order_of_the_checks(tmp_path: Path) -> None:
    """Each request breaks several rules at once; the first in the reference's order is told."""

    async def statuses(foreign: Foreign, **fields: object) -> AppendResponse:
        return await foreign.append(AppendRequest(journal=JOURNAL, **fields), b"x")  # type: ignore[arg-type]

    async def test() -> None:
        flags = JournalSpec.O_WRONLY
        async with opened(tmp_path, journal(replication=2, suspend=FULL, flags=flags)) as (foreign, running):
            no_resume = AppendRequest.SUSPEND_NO_RESUME
            # FULL before too few brokers, and before what the flags forbid.
            assert (await statuses(foreign, suspend=no_resume)).status == Status.SUSPENDED
            assert (await foreign.read(JOURNAL))[-1].status == Status.SUSPENDED
            await foreign.upsert(journal(replication=2))
            check = parse_selector("AA=2")
            assert (await statuses(foreign, offset=9)).status == Status.INSUFFICIENT_JOURNAL_BROKERS
            await foreign.upsert(journal())
            await statuses(foreign, union_registers=label_set(("AA", "1")))
            await with_a_fragment_beyond(foreign, running)
            await foreign.upsert(journal(suspend=PARTIAL))
            # Registers before the index, the index before the offset, the offset before the suspension.
            assert (await statuses(foreign, check_registers=check)).status == Status.REGISTER_MISMATCH
            assert (
                await statuses(foreign, check_registers=check, offset=9)
            ).status == Status.REGISTER_MISMATCH
            assert (await statuses(foreign, suspend=no_resume)).status == Status.INDEX_HAS_GREATER_OFFSET
            assert (await statuses(foreign, suspend=no_resume, offset=9)).status == Status.WRONG_APPEND_OFFSET
            assert (await statuses(foreign, suspend=no_resume, offset=15)).status == Status.SUSPENDED

    in_loop(test)


def test_a_minimum_revision_is_waited_for(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as (foreign, running):
            revision = running.broker._keyspace.revision
            waiting = asyncio.gather(
                foreign.append(AppendRequest(journal="b/journal", min_etcd_revision=revision + 1), b"x"),
                foreign.read(ReadRequest(journal="b/journal", min_etcd_revision=revision + 1)),
            )
            await until(lambda: len(running.broker._local._waits._waiting) == 2)
            assert not waiting.done()
            await foreign.upsert(journal("b/journal"))
            append, read = await waiting
            assert append.status == Status.OK
            assert read[-1].status == Status.OFFSET_NOT_YET_AVAILABLE
            assert append.header.etcd.revision >= revision + 1

    in_loop(test)


def test_a_signed_page_of_fragments(tmp_path: Path) -> None:
    """Pages follow each other by their token, and only stored fragments are signed."""

    async def test() -> None:
        async with opened(tmp_path, journal(length=1024)) as (foreign, running):
            for _ in range(6):
                await foreign.append(JOURNAL, bytes(1100))
            await until(lambda: not running.broker._replicas[JOURNAL]._persisting)
            request = FragmentsRequest(journal=JOURNAL, page_limit=2)
            request.signatureTTL.FromSeconds(60)
            begins, signed = [], 0
            while True:
                page = await foreign.fragments(request)
                begins += [found.spec.begin for found in page.fragments]
                signed += sum(bool(found.signed_url) for found in page.fragments)
                if not page.next_page_token:
                    break
                request.next_page_token = page.next_page_token
            assert begins == [1100 * i for i in range(6)]
            assert signed == 5

    in_loop(test)


def test_fragments_are_not_listed_without_what_the_store_has(tmp_path: Path) -> None:
    store = tmp_path / "fragments" / "store"

    async def test() -> None:
        spec = journal(stores=["file:///store/"])
        async with served(tmp_path) as running, dialed(running.address) as foreign:
            store.mkdir()
            await foreign.upsert(spec)
            await foreign.append(JOURNAL, b"abc")
            await foreign.stubs.roll(RollRequest(journal=JOURNAL))
            await until(lambda: not running.broker._replicas[JOURNAL]._persisting)
        store.rename(tmp_path / "away")
        async with served(tmp_path) as running, dialed(running.address) as foreign:
            code, text = await refusal(foreign.fragments(JOURNAL))
            assert (code, "what its stores hold is not known" in text) == (grpc.StatusCode.UNKNOWN, True)
            (tmp_path / "away").rename(store)
            await until(lambda: running.broker._replicas[JOURNAL].listed)
            assert [found.spec.end for found in (await foreign.fragments(JOURNAL)).fragments] == [3]

    in_loop(test)


def test_fragments_are_not_listed_by_a_broker_that_stops_before_it_knows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(replica: Replica) -> None:
        await asyncio.Event().wait()

    async def test() -> None:
        async with served(tmp_path) as running, dialed(running.address) as foreign:
            monkeypatch.setattr(Replica, "refresh", never)
            await foreign.upsert(journal())
            listing = asyncio.ensure_future(foreign.fragments(JOURNAL))
            await asyncio.sleep(0.1)
            running.broker.end_waits()
            code, _ = await refusal(listing)
            assert code is grpc.StatusCode.UNAVAILABLE

    in_loop(test)
