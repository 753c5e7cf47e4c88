"""Real MariaDB and MySQL servers for tests, from Debian's packages: row binlog with full metadata, GTIDs.

MariaDB is this machine's release, MySQL the one of Debian's unstable suite, which brings its own libraries. Each
listens on a free port of 127.0.0.1 alone and keeps its data in a directory of its own. Nothing is synced to disk, which
only a loss of power would show: `kill` and `start` again lose nothing.

    with running(MARIADB) as server:
        uri = server.database("shop")       # a new, empty database
        server.restart()                    # same data, same port
        server.kill(); server.start()       # as a crash
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql
from tests.servers.cache import UnavailableError, cached, missing
from tests.servers.debian import Tree, unpacked
from tests.servers.process import ProcessServer

USER = "owner"
PASSWORD = "not-to-be-shown"
"""Of the user with all rights whom `uri` is for."""

_OPTIONS: Mapping[str, str | int] = {
    "bind-address": "127.0.0.1", "server-id": 77, "log-bin": "bin", "binlog-format": "ROW", "binlog-row-image": "FULL",
    "binlog-row-metadata": "FULL", "sync-binlog": 0, "innodb-flush-log-at-trx-commit": 2,
    "innodb-buffer-pool-size": "64M", "max-allowed-packet": "64M",
    # Neither is what a reader should depend on.
    "default-time-zone": "+05:30", "character-set-server": "latin1",
}  # fmt: skip


@dataclass(frozen=True)
class Flavour:
    """A kind of server: which packages, which program, and what it is started with."""

    name: str
    packages: Sequence[str]
    program: str
    suite: str | None = None
    options: Mapping[str, str | int] = field(default_factory=dict)


MARIADB = Flavour("MariaDB", ["mariadb-server-core"], "usr/sbin/mariadbd", None, {"gtid-strict-mode": 1})
MYSQL = Flavour(
    "MySQL", ["mysql-server-core"], "usr/sbin/mysqld", "sid",
    {
        "gtid-mode": "ON", "enforce-gtid-consistency": "ON", "mysqlx": "OFF", "secure-file-priv": "NULL",
        "innodb-redo-log-capacity": "16M",
    },
)  # fmt: skip


class MySqlServer(ProcessServer):
    """One server process with its data directory."""

    patience = 60.0

    def __init__(self, home: Path, flavour: Flavour) -> None:
        super().__init__(home)
        self.flavour, self.name = flavour, flavour.name
        self._tree = unpacked(flavour.name.lower(), flavour.packages, flavour.suite)
        # The directory that a first start makes is the same each time.
        made = cached(f"{self._tree.root.name}-data", lambda place: _initialise(self._tree, flavour, place))
        shutil.copytree(made / "data", home / "data")

    @property
    def version(self) -> str:
        """As in `MariaDB 10.11.19`."""
        (found,) = self.query("SELECT VERSION()")
        return f"{self.flavour.name} {str(found[0]).split('-')[0]}"

    def uri(self, database: str = "", user: str = USER, password: str = PASSWORD) -> str:
        return f"mysql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def database(self, name: str) -> str:
        """A new database of utf8mb4; the uri to use it."""
        self.execute(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")
        return self.uri(name)

    def connect(self, database: str | None = None) -> pymysql.Connection[Any]:
        """Without TLS, for which the driver would first read all certificates that this machine trusts."""
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user=USER, password=PASSWORD, database=database, charset="utf8mb4",
            autocommit=True, read_timeout=60, write_timeout=60, connect_timeout=5, ssl_disabled=True,
        )  # fmt: skip

    def execute(self, *statements: str, database: str | None = None) -> None:
        """Run statements, each in its own transaction, in a session with UTC."""
        with closing(self.connect(database)) as connection, connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00'")
            for statement in statements:
                cursor.execute(statement)

    def query(self, statement: str, database: str | None = None) -> list[tuple[Any, ...]]:
        with closing(self.connect(database)) as connection, connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00'")
            cursor.execute(statement)
            return list(cursor.fetchall())

    def start(self, **options: str | int) -> None:
        """Start on the same data and port; `options` as on the command line, until the next start."""
        chosen = {
            **_OPTIONS,
            **self.flavour.options,
            **{name.replace("_", "-"): v for name, v in options.items()},
        }
        command = self._tree.command(
            self.flavour.program, *_base(self._tree, self.home / "data"), f"--port={self.port}",
            f"--socket={self.home / 'socket'}", f"--pid-file={self.home / 'pid'}", f"--tmpdir={self.home}",
            *(f"--{name}={value}" for name, value in chosen.items()),
        )  # fmt: skip
        self.launch(command, env=self._tree.environment())

    def restart(self, **options: str | int) -> None:
        self.stop()
        self.start(**options)

    def answers(self) -> bool:
        try:
            self.connect().close()
        except pymysql.MySQLError:
            return False
        return True


@contextmanager
def running(flavour: Flavour) -> Iterator[MySqlServer]:
    """A server of its own, as long as the block lasts. Skips the test, or fails it in CI, if there is none."""
    home = Path(tempfile.mkdtemp(prefix=f"penstock-{flavour.name.lower()}-"))
    try:
        try:
            server = MySqlServer(home, flavour)
        except UnavailableError as error:
            missing(flavour.name, error)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _base(tree: Tree, data: Path) -> list[str]:
    """Options of any start. Run by root, a server wants to be told that this is meant."""
    options = ["--no-defaults", f"--basedir={tree.path('usr')}", f"--datadir={data}"]
    options += [f"--lc-messages-dir={tree.path('usr/share/mysql')}"]
    return [*options, "--user=root"] if os.geteuid() == 0 else options


def _initialise(tree: Tree, flavour: Flavour, place: Path) -> None:
    """Make a data directory with the one user."""
    data = place / "data"
    users = f"CREATE USER '{USER}'@'%' IDENTIFIED BY '{PASSWORD}';\n"
    users += f"GRANT ALL ON *.* TO '{USER}'@'%' WITH GRANT OPTION;\n"
    if flavour is MYSQL:
        (place / "users.sql").write_text(users)
        options = [
            "--initialize-insecure",
            f"--init-file={place / 'users.sql'}",
            "--innodb-redo-log-capacity=16M",
        ]
        script = ""
    else:
        data.mkdir()
        options = ["--bootstrap", "--innodb-log-file-size=16M"]
        parts = ("mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql")
        script = "CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket = NULL;\n"
        script += "".join(tree.path(f"usr/share/mysql/{part}").read_text() for part in parts)
        script += f"FLUSH PRIVILEGES;\n{users}"
    done = subprocess.run(
        tree.command(flavour.program, *_base(tree, data), *options), input=script, text=True, timeout=300,
        capture_output=True, env=tree.environment(), check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise UnavailableError(f"{flavour.name} cannot set up its data: {done.stderr[-2000:]}")
