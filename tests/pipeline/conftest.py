"""What tests of this room share: a log to deliver from by hand, and one pipeline's life (`story.py`), lived once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker

from .byhand import ByHand

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .story import Story


@pytest.fixture
def here(tmp_path: Path) -> Iterator[ByHand]:
    with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
        yield ByHand(client, tmp_path)


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Story:
    from .story import Story

    story = Story(tmp_path_factory.mktemp("story"), spark)
    story.tell()
    return story
