"""The session of Spark that adaptors work through, and what its errors mean.

Whoever runs a pipeline lends its session: `provide` says how to get it, which may start Spark. A process in which
Spark runs already needs nothing of that. Each user of the session gets a clone, with settings and views of its own.

What the JVM throws is told by `telling`, by the classes and messages of the error and all its causes:

    a server that does not answer, a lost connection       AwayError
    a class, format, catalog, right or file that is missing,
    a connector for another version of Spark               UsageError
    a value that does not fit its column                   RefusedError
    anything else                                          PenstockError
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from penstock.adaptors.base import Finding
from penstock.adaptors.needs import need
from penstock.base.errors import AwayError, PenstockError, RefusedError, UsageError
from penstock.base.secrets import mask

Session: TypeAlias = Any
"""A `pyspark.sql.SparkSession`."""

Frame: TypeAlias = Any
"""A `pyspark.sql.DataFrame`."""

_start: Callable[[], Session] | None = None

_AWAY = (
    "ConnectException", "SocketTimeoutException", "SocketException", "UnknownHostException", "NoRouteToHostException",
    "SQLTransientConnectionException", "SQLNonTransientConnectionException", "SQLRecoverableException",
    "the connection attempt failed", "connection refused", "connection has been closed", "communications link failure",
    "terminating connection", "the database system is", "an i/o error occurred while sending", "sqlstate 08",
    "sqlstate 57p", "sqlstate 53300", "no space left on device",
)  # fmt: skip
_REFUSED = (
    "CAST_OVERFLOW", "CAST_INVALID_INPUT", "NUMERIC_VALUE_OUT_OF_RANGE", "NUMERIC_OUT_OF_SUPPORTED_RANGE",
    "USER_RAISED_EXCEPTION", "DELTA_VIOLATE_CONSTRAINT", "DELTA_NOT_NULL_CONSTRAINT", "NOT_NULL_ASSERT_VIOLATION",
    "sqlstate 22", "sqlstate 23",
)  # fmt: skip
_LINKAGE = (
    "NoSuchMethodError", "NoSuchFieldError", "NoClassDefFoundError", "AbstractMethodError",
    "IncompatibleClassChangeError",
)  # fmt: skip
_USAGE = (
    "ClassNotFoundException", "DATA_SOURCE_NOT_FOUND", "AccessControlException", "AccessDeniedException",
    "FileNotFoundException", "No FileSystem for scheme", "UnsupportedFileSystemException", "CATALOG_NOT_FOUND",
    "REQUIRES_SINGLE_PART_NAMESPACE", "Cannot find catalog plugin", "PATH_NOT_FOUND", "No suitable driver",
    "ParentNotDirectoryException", "Not a directory", "sqlstate 28", "sqlstate 3d", "sqlstate 42",
)  # fmt: skip


@dataclass(frozen=True)
class Package:
    """A connector in Maven: its name for a version of Spark, and the releases that are known, by that version."""

    name: str
    releases: Mapping[str, str]

    def coordinate(self, version: str) -> str:
        """What to fetch for a Spark of this version, as `4.1`; empty if no release for it is known here."""
        return (
            f"{self.name.format(spark=version)}:{self.releases[version]}" if version in self.releases else ""
        )

    def missing(self, spark: Session, what: str) -> Finding:
        """What to tell people whose Spark does not have it."""
        version = ".".join(spark.version.split(".")[:2])
        known = self.coordinate(version)
        newest = max(self.releases)
        package = known or f"{self.name.format(spark=version)}:RELEASE"
        fix = f'set packages="{package}", or --conf spark.jars.packages={package}'
        if not known:
            fix += f" (the newest that is known here, {self.coordinate(newest)}, is for Spark {newest} alone)"
        return Finding(f"this Spark, {spark.version}, has no connector for {what}", fix, fatal=True)


def provide(start: Callable[[], Session]) -> None:
    """From now on `session` asks `start`."""
    global _start
    _start = start


def withdraw(start: Callable[[], Session]) -> None:
    """Take back what was provided, if nobody else has provided since."""
    global _start
    if _start == start:
        _start = None


def session() -> Session:
    """A clone of the session of this process: its settings and views are the caller's alone."""
    found = _start() if _start is not None else _running()
    if found is None:
        raise UsageError(
            "there is no Spark in this process to work through",
            hint="this needs a run: `penstock run`, which starts it",
        )
    return type(found)(found.sparkContext, found._jsparkSession.cloneSession())


def _running() -> Session | None:
    """A session that somebody else has started, as in a notebook."""
    if "pyspark" not in sys.modules:
        return None
    if need("pyspark", "spark").SparkContext._active_spark_context is None:
        return None
    return need("pyspark.sql", "spark").SparkSession._instantiatedSession


def has_class(spark: Session, name: str) -> bool:
    """Whether the JVM knows a class, from whichever jar."""
    try:
        spark._jvm.org.apache.spark.util.Utils.classForName(name, False, True)
    except Exception as error:
        if "java_exception" not in vars(error) and type(error).__module__.split(".")[0] != "py4j":
            raise
        return False
    return True


@contextmanager
def working(spark: Session, what: str) -> Iterator[None]:
    """As `telling`, with the session as the one that counts in this thread: catalogs are looked up by it."""
    sessions = spark._jvm.org.apache.spark.sql.classic.SparkSession
    with telling(what):
        before = sessions.getActiveSession()
        sessions.setActiveSession(spark._jsparkSession)
        try:
            yield
        finally:
            if before.isDefined():
                sessions.setActiveSession(before.get())
            else:
                sessions.clearActiveSession()


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Errors of Spark, and of what is behind it, come out with their meaning. `what` could not be done."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("py4j", "pyspark"):
            raise
        raise told(what, error) from None


def told(what: str, error: Exception) -> PenstockError:
    """The error to raise instead."""
    causes = list(causes_of(error))
    text = f"{what}: {mask(_said(causes, error))}"
    everything = "\n".join(causes) or str(error)
    if any(word in everything for word in _LINKAGE):
        return UsageError(
            text, hint="the connector is made for another version of Spark: take the one for this"
        )
    lower = everything.lower()
    for words, kind in ((_REFUSED, RefusedError), (_AWAY, AwayError), (_USAGE, UsageError)):
        if any(word.lower() in lower for word in words):
            return kind(text)
    return PenstockError(text)


def causes_of(error: Exception) -> Iterator[str]:
    """The class and message of a Java error and of what caused it, the outermost first."""
    cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    for _ in range(12):
        if cause is None:
            return
        state = f" sqlstate {cause.getSQLState()}" if _is_sql(cause) else ""
        yield f"{cause.getClass().getName()}: {cause.getMessage()}{state}"
        cause = cause.getCause()


def _is_sql(cause: Any) -> bool:
    kind = cause.getClass()
    while kind is not None and kind.getName() != "java.sql.SQLException":
        kind = kind.getSuperclass()
    return kind is not None


def _said(causes: list[str], error: Exception) -> str:
    """The first line of the innermost cause that says something."""
    for cause in reversed(causes):
        name, _, message = cause.partition(": ")
        first = message.strip().partition("\n")[0]
        if first and first != "null":
            return f"{name.rpartition('.')[2]}: {first}"
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def joined(*settings: Mapping[str, str]) -> dict[str, str]:
    """Settings of Spark from several hands: lists are joined, of all else the last word counts."""
    found: dict[str, str] = {}
    for some in settings:
        for name, value in some.items():
            before = found.get(name)
            if before and name in ("spark.jars", "spark.jars.packages", "spark.sql.extensions"):
                known = before.split(",")
                value = ",".join([*known, *(one for one in value.split(",") if one not in known)])
            found[name] = value
    return found
