"""The conformance kit: one battery of tests for every adaptor, for those that Penstock has and for yours.

A test module subclasses `SourceConformance` or `SinkConformance` and gives it a fixture `subject`: the small class
that knows the outside system. `docs/writing-adaptors.md` shows one. What is tested, and against which server, is kept
by the pytest plugin `penstock.testing.adaptors.results`.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "penstock.testing.adaptors.bench",
    "penstock.testing.adaptors.sink",
    "penstock.testing.adaptors.sink_once",
    "penstock.testing.adaptors.source",
    "penstock.testing.adaptors.source_copy",
    "penstock.testing.adaptors.source_tail",
)

from penstock.testing.adaptors.sink import SinkConformance  # noqa: E402
from penstock.testing.adaptors.source import SourceConformance  # noqa: E402
from penstock.testing.adaptors.subject import (  # noqa: E402
    SINK,
    SOURCE,
    Can,
    Holds,
    Row,
    SinkSubject,
    SourceSubject,
    TypedDelivery,
    TypedRow,
)

__all__ = [
    "SINK", "SOURCE", "Can", "Holds", "Row", "SinkConformance", "SinkSubject", "SourceConformance", "SourceSubject",
    "TypedDelivery", "TypedRow",
]  # fmt: skip
