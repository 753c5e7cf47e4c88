"""Only what a pipeline needs has to be installed: the core does without any driver, and who lacks one is told which."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from penstock import adaptors

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"

MODULES = {
    "adbc-driver-postgresql": "adbc_driver_postgresql", "aiohttp": "aiohttp", "confluent-kafka": "confluent_kafka",
    "nats-py": "nats", "obstore": "obstore", "pika": "pika", "psycopg": "psycopg", "pymongo": "pymongo",
    "PyMySQL": "pymysql", "redis": "redis", "urllib3": "urllib3", "zstandard": "zstandard",
}  # fmt: skip
"""What the packages of the extras are called by those who import them."""

ASKED = {
    "elasticsearch": [{"uri": "http://127.0.0.1:1"}],
    "http": [{"uri": "http://127.0.0.1:1/in"}, {"listen": "127.0.0.1:1"}],
    "kafka": [{"uri": "kafka://127.0.0.1:1"}],
    "mongodb": [{"uri": "mongodb://127.0.0.1:1/shop"}],
    "mysql": [{"uri": "mysql://a:b@127.0.0.1:1/shop"}],
    "nats": [{"uri": "nats://127.0.0.1:1", "stream": "s"}],
    "postgres": [{"uri": "postgresql://a:b@127.0.0.1:1/shop"}],
    "rabbitmq": [{"uri": "amqp://127.0.0.1:1/", "queues": ["q"]}],
    "redis": [{"uri": "redis://127.0.0.1:1/0"}],
    "s3": [{"uri": "s3://lake/orders/"}],
}
"""Settings with which each is asked; nothing listens there, and nobody should come so far."""

SCRIPT = """
import json, sys, threading

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

asked, BLOCKED = json.loads(sys.argv[1])
sys.meta_path.insert(0, Without())

from penstock import Pipeline, adaptors, functions
from penstock.adaptors.base import SinkPosition
from penstock.base.errors import UsageError

def read(adaptor):
    source = adaptor.source()
    source.namespaces()
    for _ in source.read(lambda ns: True, {}, threading.Event()):
        break

def told(ask):
    try:
        ask()
    except UsageError as error:
        return [error.message, error.hint]
    return ["it did not ask for anything", ""]

found = {}
for name, several in asked.items():
    for settings in several:
        adaptor = getattr(adaptors, name)(**settings)
        found.setdefault(name, []).append(told(lambda: read(adaptor)))
        if "listen" not in settings:
            found[name].append(told(lambda: adaptor.sink().publisher().open(SinkPosition("log", 0, 0))))
Pipeline("p").source("in", adaptors.file(uri="file://in")).save("out", adaptors.sqlite(uri="sqlite://out.db"))
print(json.dumps(found))
"""


def extras() -> dict[str, list[str]]:
    told: dict[str, list[str]] = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    return told


def package(requirement: str) -> str:
    """The name in a requirement, such as `psycopg[binary]>=3.2,<4`."""
    return requirement.partition("[")[0].partition(">")[0].partition(";")[0].strip()


@pytest.fixture(scope="module")
def without_drivers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[str]]]:
    """What each adaptor says where none of the drivers is installed."""
    given = json.dumps([ASKED, sorted({*MODULES.values(), "bson", "adbc_driver_manager"})])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, given],
        capture_output=True, text=True, timeout=120, cwd=tmp_path_factory.mktemp("nowhere"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, list[list[str]]] = json.loads(done.stdout)
    return found


def test_each_extra_of_an_adaptor_is_one_that_can_be_installed() -> None:
    wanted = {kind.extra for kind in adaptors.ALL.values() if kind.extra}
    assert wanted == set(ASKED), "an adaptor with an extra is asked below"
    assert wanted <= set(extras())
    assert {package(one) for name in wanted for one in extras()[name]} == set(MODULES)


@pytest.mark.parametrize("name", ASKED)
def test_who_lacks_a_driver_is_told_what_to_install(
    name: str, without_drivers: dict[str, list[list[str]]]
) -> None:
    for message, hint in without_drivers[name]:
        assert message.startswith(f"adaptor '{name}' needs the module '"), message
        assert hint == f"install it with `pip install 'penstock[{name}]'`"
