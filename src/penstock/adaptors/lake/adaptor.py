"""The settings that the adaptors of this package share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from penstock.adaptors.base import Adaptor
from penstock.adaptors.lake.events import Options
from penstock.adaptors.lake.session import joined
from penstock.base import secrets
from penstock.base.settings import setting

_SECRET = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class LakeAdaptor(Adaptor):
    """Tables that are reached through a connector of Spark."""

    packages: str = setting(
        "the connector for Spark to fetch, if it does not have one: its coordinate in Maven", default=""
    )
    spark: dict[str, str] = setting(  # noqa: RUF009 - a field, made by a function
        "further settings of Spark, such as those of a catalog or an object store", default={}
    )
    keys: dict[str, list[str]] = setting(  # noqa: RUF009 - a field, made by a function
        "the fields of the key by namespace, where table or messages do not say", default={}
    )
    mode: Literal["upsert", "append"] = setting(
        "sink: 'upsert' keeps the newest state of each row, by its key; 'append' adds a row for each message",
        default="upsert",
    )
    metadata: bool = setting(
        "sink: 'append' also fills the columns `penstock_offset`, `penstock_op` and `penstock_ts`",
        default=False,
    )
    create_tables: bool = setting("sink: make tables that are missing", default=True)
    add_columns: bool = setting("sink: add columns for fields that a table has none for", default=True)
    unknown_fields: Literal["error", "ignore"] = setting(
        "sink: a field without a column: stop with an 'error', or 'ignore' the field", default="error"
    )

    def __post_init__(self) -> None:
        for name, value in self.spark.items():
            if _SECRET.search(name):
                secrets.register(value)

    @property
    def options(self) -> Options:
        return Options(self.mode, self.metadata, self.keys)

    def wanted(self) -> Mapping[str, str]:
        """What the connector itself asks of a session."""
        return {}

    def spark_settings(self) -> Mapping[str, str]:
        packages = {"spark.jars.packages": self.packages} if self.packages else {}
        return joined(self.wanted(), packages, self.spark)
