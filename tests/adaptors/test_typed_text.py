"""Typed text on its way to a file: functions and the sink leave every byte of it that they were not asked to edit."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.log.value_strategies import documents, same

from penstock import adaptors as a
from penstock import functions as f
from penstock.adaptors.base import Stage
from penstock.functions.base import Function
from penstock.functions.chain import Chain, Step
from penstock.log import values
from penstock.log.values import Document

names = itertools.count()


@dataclass(frozen=True)
class All:
    def matches(self, ns: str) -> bool:
        return True


def batch_of(texts: list[bytes]) -> pa.RecordBatch:
    size = len(texts)
    return pa.record_batch(
        {
            "offset": pa.array(range(size), pa.int64()),
            "ts": pa.array([0] * size, pa.timestamp("us", "UTC")),
            "mode": ["copy"] * size,
            "op": ["insert"] * size,
            "ns": ["n"] * size,
            "key": pa.array([None] * size, pa.string()),
            "data": pa.array([text.decode() for text in texts], pa.string()),
        }
    )


def lines_through(texts: list[bytes], *steps: Function) -> list[bytes]:
    """What a file sink stages of these texts, behind these functions."""
    chain = Chain([Step(f"step{n}", function, All()) for n, function in enumerate(steps)])
    applied = chain.apply(batch_of(texts), All())
    assert not applied.refused
    with tempfile.TemporaryDirectory() as folder:
        stager = a.file(uri=f"file://{folder}/out.jsonl").sink().stager()
        report = stager.stage(Stage(Path(folder), f"part{next(names)}", 0), iter([applied.batch]))
        assert report.messages == len(texts)
        assert not report.refused
        return Path(report.part).read_bytes().splitlines()


@settings(deadline=None, max_examples=30)
@given(st.lists(documents, min_size=1, max_size=4))
def test_text_that_nobody_edits_is_the_same_text_in_the_target(batch: list[Document]) -> None:
    texts = [values.encode_document(document) for document in batch]
    found = lines_through(
        texts, f.omit(fields=["no such"]), f.rename(field_map={"no such": "x"}), f.remap(ns_map={"n": "m"})
    )
    assert found == texts
    assert all(map(same, batch, map(values.decode_document, found)))


@settings(deadline=None, max_examples=30)
@given(st.lists(documents, min_size=1, max_size=4))
def test_an_edit_of_one_field_leaves_the_text_of_the_others(batch: list[Document]) -> None:
    batch = [{name: one for name, one in document.items() if name != "old"} for document in batch]
    texts = [values.encode_document(document) for document in batch]
    longer = [values.encode_document({**document, "old": 1}) for document in batch]
    assert lines_through(longer, f.omit(fields=["old"])) == texts
    fields = list(dict.fromkeys(name for document in batch for name in document))
    if fields:
        picked = lines_through(longer, f.pick(fields=fields))
        reordered = [{name: one[name] for name in fields if name in one} for one in batch]
        assert picked == [values.encode_document(document) for document in reordered]
