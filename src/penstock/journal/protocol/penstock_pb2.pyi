# mypy: disable-error-code="type-arg"
from penstock.journal.protocol import journal_pb2 as _journal_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AppendBatch(_message.Message):
    __slots__ = ("appends", "independent", "unsummed")
    APPENDS_FIELD_NUMBER: _ClassVar[int]
    INDEPENDENT_FIELD_NUMBER: _ClassVar[int]
    UNSUMMED_FIELD_NUMBER: _ClassVar[int]
    appends: _containers.RepeatedCompositeFieldContainer[_journal_pb2.AppendRequest]
    independent: bool
    unsummed: bool
    def __init__(self, appends: _Optional[_Iterable[_Union[_journal_pb2.AppendRequest, _Mapping]]] = ..., independent: bool = ..., unsummed: bool = ...) -> None: ...

class AppendBatchResult(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[AppendResult]
    def __init__(self, results: _Optional[_Iterable[_Union[AppendResult, _Mapping]]] = ...) -> None: ...

class AppendResult(_message.Message):
    __slots__ = ("response", "error", "in_doubt")
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    IN_DOUBT_FIELD_NUMBER: _ClassVar[int]
    response: _journal_pb2.AppendResponse
    error: str
    in_doubt: bool
    def __init__(self, response: _Optional[_Union[_journal_pb2.AppendResponse, _Mapping]] = ..., error: _Optional[str] = ..., in_doubt: bool = ...) -> None: ...

class TrimRequest(_message.Message):
    __slots__ = ("journal", "offset")
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    journal: str
    offset: int
    def __init__(self, journal: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class TrimResponse(_message.Message):
    __slots__ = ("status", "header", "begin", "fragments", "bytes")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    status: _journal_pb2.Status
    header: _journal_pb2.Header
    begin: int
    fragments: int
    bytes: int
    def __init__(self, status: _Optional[_Union[_journal_pb2.Status, str]] = ..., header: _Optional[_Union[_journal_pb2.Header, _Mapping]] = ..., begin: _Optional[int] = ..., fragments: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class RollRequest(_message.Message):
    __slots__ = ("journal",)
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    journal: str
    def __init__(self, journal: _Optional[str] = ...) -> None: ...

class RollResponse(_message.Message):
    __slots__ = ("status", "header", "offset")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    status: _journal_pb2.Status
    header: _journal_pb2.Header
    offset: int
    def __init__(self, status: _Optional[_Union[_journal_pb2.Status, str]] = ..., header: _Optional[_Union[_journal_pb2.Header, _Mapping]] = ..., offset: _Optional[int] = ...) -> None: ...

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

class HeadsRequest(_message.Message):
    __slots__ = ("selector", "do_not_proxy")
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    DO_NOT_PROXY_FIELD_NUMBER: _ClassVar[int]
    selector: _journal_pb2.LabelSelector
    do_not_proxy: bool
    def __init__(self, selector: _Optional[_Union[_journal_pb2.LabelSelector, _Mapping]] = ..., do_not_proxy: bool = ...) -> None: ...

class HeadsResponse(_message.Message):
    __slots__ = ("heads",)
    HEADS_FIELD_NUMBER: _ClassVar[int]
    heads: _containers.RepeatedCompositeFieldContainer[Head]
    def __init__(self, heads: _Optional[_Iterable[_Union[Head, _Mapping]]] = ...) -> None: ...

class Head(_message.Message):
    __slots__ = ("journal", "write_head")
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    WRITE_HEAD_FIELD_NUMBER: _ClassVar[int]
    journal: str
    write_head: int
    def __init__(self, journal: _Optional[str] = ..., write_head: _Optional[int] = ...) -> None: ...
