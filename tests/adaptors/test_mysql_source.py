"""The MySQL source against real servers: the conformance kit, on MariaDB and, among the long runs, on MySQL."""

from __future__ import annotations

import pytest
from tests.adaptors.mysql_subject import MySqlSubject
from tests.servers.mariadb import MySqlServer

from penstock.testing.adaptors import SourceConformance


@pytest.mark.xdist_group("mariadb")
class TestMariaDbSource(SourceConformance):
    @pytest.fixture
    def subject(self, mariadb_server: MySqlServer) -> MySqlSubject:
        return MySqlSubject(mariadb_server, "source_kit")


@pytest.mark.soak
@pytest.mark.xdist_group("mysql")
class TestMySqlSource(SourceConformance):
    @pytest.fixture
    def subject(self, mysql_server: MySqlServer) -> MySqlSubject:
        return MySqlSubject(mysql_server, "source_kit")
