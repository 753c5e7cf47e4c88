"""The gateway's JSON calls, its pages, and what pages of other origins may do (reference, 21)."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from penstock.base.errors import PenstockError
from penstock.journal.auth import KeyedAuthorizer, bearer, parse_keys, sign
from penstock.journal.claims import Capability, Claims
from penstock.journal.protocol import JournalSpec, LabelSelector, ListResponse

from .gateways import HEADER, FakeService, answers, browsing, chunk, in_loop, metadata

KEYS = parse_keys("c2VjcmV0")


def _token(capability: Capability) -> dict[str, str]:
    claims = Claims(capability, LabelSelector())
    return {"Authorization": bearer(sign(KEYS, claims, now=time.time(), lifetime=3600))}


def _keyed() -> KeyedAuthorizer:
    return KeyedAuthorizer(KEYS)


def test_list_answers_a_line_for_each_message_with_defaults_and_camel_case() -> None:
    async def test() -> None:
        service = FakeService()
        spec = JournalSpec(name="a/journal", replication=1, max_append_rate=1 << 40)
        journal = ListResponse.Journal(spec=spec, mod_revision=7)
        service.to_list = lambda: answers(ListResponse(header=HEADER), ListResponse(journals=[journal]))
        async with browsing(service) as client:
            query = {"selector": {"include": {"labels": [{"name": "prefix", "value": "a/"}]}}}
            async with client.post("/v1/journals/list", json=query) as response:
                assert response.status == 200
                assert response.content_type == "application/json"
                lines = (await response.text()).splitlines()
        first, second = (json.loads(line)["result"] for line in lines)
        assert first["status"] == "OK"
        assert first["journals"] == []
        assert first["header"]["etcd"] == {
            "clusterId": "1",
            "memberId": "2",
            "revision": "3",
            "raftTerm": "4",
        }
        assert second["journals"][0]["spec"]["maxAppendRate"] == str(1 << 40)
        assert second["journals"][0]["createRevision"] == "0"
        (label,) = service.lists[0][0].selector.include.labels
        assert (label.name, label.value) == ("prefix", "a/")

    in_loop(test)


def test_read_answers_statuses_as_results_and_later_errors_as_the_last_line() -> None:
    async def test() -> None:
        service = FakeService()
        service.to_read = lambda: answers(metadata(), chunk(150, b"\x00\xff"), PenstockError("gone"))
        async with browsing(service) as client:
            query = {"journal": "a/journal", "offset": "150", "metadataOnly": True}
            async with client.post("/v1/journals/read", json=query) as response:
                results = [json.loads(line) for line in (await response.text()).splitlines()]
        assert results[0]["result"]["fragment"]["compressionCodec"] == "SNAPPY"
        assert results[1]["result"]["content"] == "AP8="
        assert results[2] == {"error": {"code": 2, "message": "gone"}}
        assert service.reads[0][0].metadata_only
        assert service.read_closed.is_set()

    in_loop(test)


def test_no_body_is_the_empty_request() -> None:
    async def test() -> None:
        service = FakeService()
        async with browsing(service) as client, client.post("/v1/journals/list") as response:
            assert response.status == 200
        assert len(service.lists) == 1

    in_loop(test)


@pytest.mark.parametrize(
    "path, body, status, code",
    [
        ("list", b"{", 400, 3),
        ("list", b"\xff\xfe\xfd", 400, 3),
        ("list", b"[" * 100_000, 400, 3),
        ("list", b'{"sel": {}}', 400, 3),
        ("list", b'{"watch": 1}', 400, 3),
        ("list", b" " * ((1 << 20) + 1), 413, 3),
        ("read", b'{"journal": "../x/y"}', 400, 3),
        ("read", b'{"journal": "a/journal", "offset": -2}', 400, 3),
        ("read", b"", 400, 3),
    ],
)
def test_a_bad_body_is_refused(path: str, body: bytes, status: int, code: int) -> None:
    async def test() -> None:
        service = FakeService()
        async with browsing(service) as client, client.post(f"/v1/journals/{path}", data=body) as response:
            assert response.status == status
            error = json.loads(await response.text())["error"]
            assert error["code"] == code
            assert error["message"]
        assert service.untouched

    in_loop(test)


def test_errors_of_a_call_have_a_status_and_a_code() -> None:
    async def test() -> None:
        service = FakeService()
        service.to_list = lambda: answers(PenstockError("not serving"))
        async with browsing(service) as client:
            async with client.post("/v1/journals/list") as response:
                assert response.status == 500
                assert await response.text() == '{"error":{"code":2,"message":"not serving"}}\n'
            async with client.get("/v1/journals/list") as response:
                assert response.status == 405
                assert json.loads(await response.text())["error"]["code"] == 12

    in_loop(test)


# Pages, and pages of others


def test_ready_and_metrics_need_no_token() -> None:
    async def test() -> None:
        state = (True, "ready")
        async with browsing(FakeService(), _keyed(), metrics=lambda: b"x 1\n", ready=lambda: state) as client:
            for path, body in (
                ("/ready", "ready\n"),
                ("/debug/ready", "ready\n"),
                ("/metrics", "x 1\n"),
                ("/debug/metrics", "x 1\n"),
            ):
                async with client.get(path) as response:
                    assert (response.status, await response.text()) == (200, body)
            assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            state = (False, "no store answers")
            async with client.get("/ready") as response:
                assert (response.status, await response.text()) == (503, "no store answers\n")
            async with client.get("/debug/ready") as response:
                assert response.status == 200
            async with client.put("/ready", data=b"x") as response:
                assert response.status == 405

    in_loop(test)


def test_without_metrics_their_page_is_not_there() -> None:
    async def test() -> None:
        async with browsing(FakeService()) as client, client.get("/metrics") as response:
            assert response.status == 404

    in_loop(test)


@pytest.mark.parametrize(
    "allowed, origin, expected",
    [
        (["https://a.test"], "https://a.test", "https://a.test"),
        (["https://a.test"], "https://b.test", None),
        (["*"], "https://b.test", "*"),
        ([], "https://a.test", None),
    ],
)
def test_pages_of_allowed_origins_may_call(allowed: list[str], origin: str, expected: str | None) -> None:
    async def test() -> None:
        service = FakeService()
        async with browsing(service, _keyed(), allow_origins=allowed) as client:
            asks = {"Origin": origin, "Access-Control-Request-Method": "POST"}
            async with client.options("/v1/journals/list", headers=asks) as response:
                assert response.headers.get("Access-Control-Allow-Origin") == expected
                assert (response.status == 204) == (expected is not None)
                if expected:
                    assert response.headers["Access-Control-Allow-Methods"] == "GET, POST, OPTIONS"
                    assert "Authorization" in response.headers["Access-Control-Allow-Headers"]
            for headers in ({"Origin": origin}, {"Origin": origin} | _token(Capability.LIST)):
                async with client.post("/v1/journals/list", headers=headers) as response:
                    assert response.headers.get("Access-Control-Allow-Origin") == expected

    in_loop(test)


@pytest.mark.parametrize(
    "headers, status",
    [
        ({"Origin": "http://evil.test"}, 403),
        ({"Host": "evil.test"}, 421),
        ({"Origin": "http://evil.test", "Host": "evil.test"}, 403),
        ({"Origin": "https://ours.test"}, 204),
        ({"Host": "localhost"}, 204),
    ],
    ids=str,
)
def test_without_keys_no_page_of_others_reads_or_appends(headers: dict[str, str], status: int) -> None:
    """Under a name of its own that leads to this machine, a page may ask for anything that its browser can send."""

    async def test() -> None:
        service = FakeService()
        async with browsing(service, allow_origins=["https://ours.test"]) as client:
            async with client.put("/a/journal", data=b"x", headers=headers) as response:
                assert response.status == status
            assert service.committed == (status == 204)
            if status != 204:
                async with client.get("/a/journal", headers=headers) as response:
                    assert response.status == status

    in_loop(test)


@pytest.mark.parametrize(
    "package, module", [("aiohttp", "gateway"), ("prometheus_client", "prometheus")], ids=str
)
def test_a_missing_extra_is_told_with_how_to_get_it(package: str, module: str) -> None:
    program = f"""
import sys
sys.modules["{package}"] = None
from penstock.base.errors import UsageError
try:
    import penstock.journal.{module}
except UsageError as error:
    print(error.hint)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "pip install 'penstock[broker]'\n"
