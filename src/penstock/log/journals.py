"""The journals of a pipeline: their names, labels and specs.

    pipelines/P/log             the commit log
    pipelines/P/compacted       what compaction kept of it; read before the log
    pipelines/P/offsets/SINK    one offset log a sink
    pipelines/P/dead            the dead letters
    pipelines/P/control         what operators asked for and runs told

Each carries a format-version label: newer formats are refused, older ones read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from penstock.base.errors import CorruptError, PenstockError
from penstock.journal import labels
from penstock.journal.client import BytesGoneError, Client, HoleError
from penstock.journal.fragment import Codec
from penstock.journal.protocol import ApplyRequest, JournalSpec, ListResponse

FORMAT = 1
FORMAT_LABEL = "penstock.dev/format"
ID_LABEL = "penstock.dev/log"
PIPELINE_LABEL = "penstock.dev/pipeline"
KIND_LABEL = "penstock.dev/kind"
SINK_LABEL = "penstock.dev/sink"

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""Of a pipeline, a source, a function or a sink: journals are called after them."""

_ATTEMPTS = 8

T = TypeVar("T")


def log_journal(pipeline: str) -> str:
    return f"pipelines/{pipeline}/log"


def companion_journal(log: str) -> str:
    """The companion of a commit log, by the log's name."""
    return f"{log.removesuffix('/log')}/compacted"


def offsets_journal(pipeline: str, sink: str) -> str:
    return f"pipelines/{pipeline}/offsets/{sink}"


def dead_journal(pipeline: str) -> str:
    return f"pipelines/{pipeline}/dead"


def control_journal(pipeline: str) -> str:
    return f"pipelines/{pipeline}/control"


def journal_spec(name: str, segment_bytes: int, extra: Mapping[str, str]) -> JournalSpec:
    """The spec of a journal that Penstock makes for itself in an embedded broker."""
    spec = JournalSpec(
        name=name, replication=1, labels=labels.label_set({FORMAT_LABEL: str(FORMAT), **extra})
    )
    spec.fragment.length = segment_bytes
    spec.fragment.compression_codec = Codec.NONE.to_proto()
    spec.fragment.stores.append("file:///")
    spec.fragment.refresh_interval.FromSeconds(300)
    return spec


def journal_labels(client: Client, journal: str) -> dict[str, str] | None:
    """The labels of a journal, or None if there is none; refuses a format newer than ours."""
    found = _listed(client, journal)
    return _readable_labels(found) if found is not None else None


def ensure(client: Client, spec: JournalSpec) -> dict[str, str]:
    """Make a journal unless it is there; its labels as they are then."""
    found = _listed(client, spec.name)
    if found is None:
        client.create(spec)  # False if somebody was faster, which is as good
        found = _listed(client, spec.name)
    if found is None:
        raise PenstockError(f"journal {spec.name} was made and is gone again", hint="start again")
    return _readable_labels(found)


def resize(client: Client, journal: str, segment_bytes: int) -> None:
    """Have the journal's fragments close at another length from the next one on, if it is another."""
    for _ in range(_ATTEMPTS):
        found = _listed(client, journal)
        if found is None or found.spec.fragment.length == segment_bytes:
            return
        found.spec.fragment.length = segment_bytes
        change = ApplyRequest.Change(expect_mod_revision=found.mod_revision, upsert=found.spec)
        if client.apply([change]):
            return
    raise PenstockError(f"journal {journal}: others keep changing its spec", hint="start again")


class Extent(NamedTuple):
    """The bytes that a journal still has: [begin, head)."""

    begin: int
    head: int

    @property
    def size(self) -> int:
        return self.head - self.begin


def extent(client: Client, journal: str) -> Extent:
    """What there is to read. The begin of a journal of which nothing is left is its head."""
    begin = client.begin(journal)
    return Extent(begin, client.head(journal))


def read_whole(client: Client, journal: str, begin: int, end: int) -> bytes:
    """Bytes [begin, end), all of them: `BytesGoneError` if they were trimmed, be it just now."""
    if begin >= end:
        return b""
    content = client.read_bytes(journal, begin, end)
    if len(content) != end - begin:
        raise BytesGoneError(f"journal {journal}: bytes {begin + len(content)} to {end} are gone")
    return content


def steadily(read: Callable[[], T]) -> T:
    """Read again from the new begin if the front was trimmed between looking for it and reading it."""
    for _ in range(_ATTEMPTS):
        try:
            return read()
        except HoleError:
            raise
        except BytesGoneError:
            continue
    return read()


def _listed(client: Client, journal: str) -> ListResponse.Journal | None:
    found = client.list(labels.parse_selector(f"name={journal}"))
    return found[0] if found else None


def _readable_labels(journal: ListResponse.Journal) -> dict[str, str]:
    values = {label.name: label.value for label in journal.spec.labels.labels}
    if int(values.get(FORMAT_LABEL, FORMAT)) > FORMAT:
        raise CorruptError(
            f"log format {values[FORMAT_LABEL]}, this version of Penstock reads up to {FORMAT}",
            where=journal.spec.name,
            position=0,
            hint="use the newer Penstock that wrote it",
        )
    return values
