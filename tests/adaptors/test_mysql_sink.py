"""The MySQL sink against real servers: the conformance kit, on MariaDB and, among the long runs, on MySQL."""

from __future__ import annotations

import pytest
from tests.adaptors.mysql_target import MySqlTarget
from tests.servers.mariadb import MySqlServer

from penstock.testing.adaptors import SinkConformance


@pytest.mark.xdist_group("mariadb")
class TestMariaDbSink(SinkConformance):
    @pytest.fixture
    def subject(self, mariadb_server: MySqlServer) -> MySqlTarget:
        return MySqlTarget(mariadb_server, "sink_kit")


@pytest.mark.soak
@pytest.mark.xdist_group("mysql")
class TestMySqlSink(SinkConformance):
    @pytest.fixture
    def subject(self, mysql_server: MySqlServer) -> MySqlTarget:
        return MySqlTarget(mysql_server, "sink_kit")
