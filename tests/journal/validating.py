"""Messages to validate, legal until a test spoils them."""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf.duration_pb2 import Duration

from penstock.journal.labels import label_set
from penstock.journal.protocol import Fragment, Header, JournalSpec, Label, LabelSet, Route
from penstock.journal.validation import ValidationError


def complaint(check: Callable[[], object]) -> str:
    """What a check says, or "" if it has nothing to say."""
    try:
        check()
    except ValidationError as error:
        return str(error)
    return ""


def refused(text: str, check: Callable[[], object]) -> None:
    assert text in complaint(check)


def labels(*pairs: tuple[str, str]) -> LabelSet:
    """In the given order, right or wrong."""
    return LabelSet(labels=[Label(name=name, value=value) for name, value in pairs])


def spec() -> JournalSpec:
    spec = JournalSpec(name="foo/bar", replication=1, labels=label_set({"app": "x"}))
    spec.fragment.length = 1 << 20
    spec.fragment.compression_codec = 1  # type: ignore[assignment]
    spec.fragment.stores.append("s3://bucket/")
    spec.fragment.refresh_interval.FromSeconds(300)
    return spec


def seconds(count: int, nanos: int = 0) -> Duration:
    return Duration(seconds=count, nanos=nanos)


def change(message: object, fields: dict[str, object]) -> None:
    for name, value in fields.items():
        if isinstance(value, list):
            del getattr(message, name)[:]
            getattr(message, name).extend(value)
        elif isinstance(value, Duration):
            getattr(message, name).CopyFrom(value)
        else:
            setattr(message, name, value)


def header() -> Header:
    header = Header(route=Route(primary=-1))
    header.etcd.cluster_id, header.etcd.member_id, header.etcd.revision, header.etcd.raft_term = 1, 2, 3, 4
    return header


def fragment(**fields: object) -> Fragment:
    message = Fragment(journal="foo/bar", begin=3, end=5)
    message.compression_codec = 1  # type: ignore[assignment]
    change(message, fields)
    return message
