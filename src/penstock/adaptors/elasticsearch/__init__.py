"""`elasticsearch`: the indices of Elasticsearch or OpenSearch, copied and written.

Speaks to Elasticsearch 7, 8 and 9 and to OpenSearch 1, 2 and 3, over plain HTTP; which one it is, the server says.
Each index is a namespace. What the source promises is told in `penstock.adaptors.elasticsearch.source`, what the
sink promises in `penstock.adaptors.elasticsearch.sink`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import urlsplit

from penstock.adaptors.base import Adaptor, Sink, Source
from penstock.base.secrets import mask
from penstock.base.settings import setting
from penstock.base.units import Unit


@dataclass(frozen=True, repr=False)
class Elasticsearch(Adaptor):
    """An Elasticsearch or OpenSearch cluster."""

    name: ClassVar[str] = "elasticsearch"
    description: ClassVar[str] = (
        "Elasticsearch and OpenSearch. Source: copies indices as they are at one moment. Sink: indexes and deletes "
        "documents by their keys, with the offset as version, so that what comes again or late does no harm."
    )
    reads: ClassVar[bool] = True
    writes: ClassVar[bool] = True
    extra: ClassVar[str] = "elasticsearch"

    uri: str = setting("the cluster", example="https://penstock:${SEARCH_PASSWORD}@search.example:9200")
    api_key: str = setting(
        "an API key in its encoded form, instead of user and password", default="", secret=True
    )
    ca: str = setting("TLS: a file with the certificates to trust; if not given, the machine's", default="")
    sort: str = setting(
        "source: the field by which documents are read, of which no two may have the same value",
        default="_id",
    )
    index_prefix: str = setting("sink: what goes in front of the namespace to name the index", default="")
    indices: dict[str, str] = setting(  # noqa: RUF009 - a field, made by a function
        "sink: indices by namespace; others are named by the namespace in lower case", default={}
    )
    mappings: dict[str, dict[str, object]] = setting(  # noqa: RUF009 - a field, made by a function
        "sink: the body with which an index is made if it is not there, by namespace: mappings, settings",
        default={},
    )
    own_index: str = setting("sink: the index in which it keeps its position", default="penstock")
    bulk_bytes: int = setting("sink: size of one bulk request", default=5 << 20, unit=Unit.BYTES)
    bulk_rows: int = setting("sink: actions in one bulk request", default=1000)
    timeout: float = setting("seconds to wait for an answer", default=30.0)

    def __post_init__(self) -> None:
        parts = urlsplit(self.uri)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("setting 'uri': expected http://HOST:PORT or https://USER:PASSWORD@HOST:PORT")
        for name in ("timeout", "bulk_bytes", "bulk_rows"):
            if not getattr(self, name) > 0:
                raise ValueError(f"setting '{name}': expected more than 0, got {getattr(self, name)}")

    def __repr__(self) -> str:
        return f"Elasticsearch({self.shown!r})"

    @property
    def shown(self) -> str:
        """The uri for people."""
        return mask(self.uri)

    def source(self) -> Source:
        from penstock.adaptors.elasticsearch.source import SearchSource

        return SearchSource(self)

    def sink(self) -> Sink:
        from penstock.adaptors.elasticsearch.sink import SearchSink

        return SearchSink(self)
