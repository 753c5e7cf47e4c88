"""The conformance kit against the adaptors that need no server."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.testing.subjects import FileTarget, GenerateSubject, SqliteSubject

from penstock.testing.adaptors import SinkConformance, SourceConformance


class TestGenerate(SourceConformance):
    @pytest.fixture
    def subject(self) -> GenerateSubject:
        return GenerateSubject()


class TestSqlite(SourceConformance):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> SqliteSubject:
        return SqliteSubject(tmp_path / "shop.db")


class TestFileSink(SinkConformance):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> FileTarget:
        return FileTarget(tmp_path)
