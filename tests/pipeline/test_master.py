"""Which Spark masters may run a pipeline: on this machine any, elsewhere only with broker, token and store."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.base.errors import UsageError
from penstock.pipeline.master import check_master, is_remote

REMOTE = "spark://10.0.0.5:7077"
ENOUGH: dict[str, Any] = {"broker": "http://10.0.0.4:8080", "token": True, "stores": ["s3://logs/shop/"]}


@pytest.mark.parametrize(
    "master",
    [
        None,
        "local",
        "local[*]",
        "local[2,4]",
        "local-cluster[2,1,1024]",
        "spark://localhost:7077",
        "spark://127.0.0.1:7077",
        "spark://[::1]:7077",
    ],
)
def test_a_master_on_this_machine_needs_nothing(master: str | None) -> None:
    assert not is_remote(master)
    check_master(master)


@pytest.mark.parametrize(
    "master",
    [REMOTE, "spark://host:7077", "spark://localhost:7077,other:7077", "k8s://https://10.0.0.1:6443", "yarn"],
)
def test_a_master_elsewhere_needs_broker_token_and_store(master: str) -> None:
    assert is_remote(master)
    check_master(master, **ENOUGH)
    with pytest.raises(UsageError, match="runs tasks on other machines"):
        check_master(master)


@pytest.mark.parametrize(
    ("lacking", "words"),
    [
        ({"broker": None}, "the data directory's own broker cannot be reached from other machines"),
        ({"broker": "unix:/run/b.sock"}, "the broker at unix:/run/b.sock cannot be reached"),
        ({"broker": "http://localhost:8080"}, "http://localhost:8080 means this machine only"),
        ({"broker": "https://127.0.0.1:8080"}, "means this machine only"),
        ({"broker": "http://[::1]:8080"}, "means this machine only"),
        ({"token": False}, "there is no token"),
        ({"stores": None}, "no store is known that they share"),
        ({"stores": []}, "no store is known that they share"),
        ({"stores": ["s3://a/", "file:///"]}, "the store file:/// lies on one machine"),
    ],
)
def test_what_is_lacking_is_told_with_the_way_out(lacking: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_master(REMOTE, **{**ENOUGH, **lacking})
    assert caught.value.message.startswith(f"Spark master '{REMOTE}' runs tasks on other machines: ")
    assert words in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "master", ["", "locl[2]", "10.0.0.5:7077", "spark://", "http://host:1", "spark:host"]
)
def test_what_is_no_master(master: str) -> None:
    with pytest.raises(UsageError, match="is no Spark master"):
        check_master(master)
