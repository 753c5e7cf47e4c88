"""The conformance kit against files, directories and objects."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.adaptors.file_subjects import (
    CsvTarget,
    FolderSubject,
    FolderTarget,
    LineFileSubject,
    S3PartitionsTarget,
    S3Subject,
)
from tests.journal.s3 import S3Server, aws_environment, s3_server

from penstock.adaptors.formats import walks
from penstock.testing.adaptors import SinkConformance, SourceConformance


@pytest.fixture(autouse=True)
def blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller than usual, so that what the kit calls several rows are several batches."""
    monkeypatch.setattr(walks, "BLOCK", 1 << 20)


class TestFile(SourceConformance):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> LineFileSubject:
        return LineFileSubject(tmp_path)


class TestDirectory(SourceConformance):
    """Each format; those that differ from the first one only in how a file is read are for the long runs."""

    @pytest.fixture(
        params=[
            "csv",
            pytest.param("parquet", marks=pytest.mark.soak),
            pytest.param("jsonl.gz", marks=pytest.mark.soak),
        ]
    )
    def subject(self, tmp_path: Path, request: pytest.FixtureRequest) -> FolderSubject:
        return FolderSubject(tmp_path, request.param)


class TestCsvSink(SinkConformance):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> CsvTarget:
        return CsvTarget(tmp_path)


class TestParquetSink(SinkConformance):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> FolderTarget:
        return FolderTarget(tmp_path)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with aws_environment(), s3_server() as running:
        yield running


SERVER = f"moto {version('moto')}"


@pytest.mark.xdist_group("s3")
class TestS3(SourceConformance):
    @pytest.fixture
    def subject(self, server: S3Server) -> S3Subject:
        return S3Subject(server.store_url, SERVER, "jsonl")


@pytest.mark.xdist_group("s3")
class TestS3Sink(SinkConformance):
    @pytest.fixture
    def subject(self, server: S3Server) -> S3PartitionsTarget:
        return S3PartitionsTarget(server.store_url(f"t{uuid.uuid4().hex[:8]}/"), SERVER)
