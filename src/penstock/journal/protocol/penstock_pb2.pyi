# mypy: disable-error-code="type-arg"
from penstock.journal.protocol import journal_pb2 as _journal_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LocateRequest(_message.Message):
    __slots__ = ("journal", "begin", "end")
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    journal: str
    begin: int
    end: int
    def __init__(self, journal: _Optional[str] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class LocateResponse(_message.Message):
    __slots__ = ("status", "spans", "write_head")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    WRITE_HEAD_FIELD_NUMBER: _ClassVar[int]
    status: _journal_pb2.Status
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    write_head: int
    def __init__(self, status: _Optional[_Union[_journal_pb2.Status, str]] = ..., spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ..., write_head: _Optional[int] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("begin", "end", "path", "position", "compression_codec")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_CODEC_FIELD_NUMBER: _ClassVar[int]
    begin: int
    end: int
    path: str
    position: int
    compression_codec: _journal_pb2.CompressionCodec
    def __init__(self, begin: _Optional[int] = ..., end: _Optional[int] = ..., path: _Optional[str] = ..., position: _Optional[int] = ..., compression_codec: _Optional[_Union[_journal_pb2.CompressionCodec, str]] = ...) -> None: ...
