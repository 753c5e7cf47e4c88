"""A database that is reached by JDBC: through Spark for rows, and through a connection of its JVM for all else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.adaptors.base import Finding
from penstock.adaptors.lake.session import Frame, Session, has_class, told
from penstock.base.errors import PenstockError, UsageError
from penstock.base.secrets import mask

TIMEOUT = 30
"""Seconds to wait for a connection."""

SILENCE = 15 * 60 * 1000
"""Milliseconds that a statement may take before the connection counts as lost."""


class Driver(NamedTuple):
    """A driver that people use: its class, and the package that has it."""

    driver: str
    coordinate: str


DRIVERS: Mapping[str, Driver] = {
    "postgresql": Driver("org.postgresql.Driver", "org.postgresql:postgresql:42.7.14"),
    "mysql": Driver("com.mysql.cj.jdbc.Driver", "com.mysql:mysql-connector-j:9.5.0"),
    "mariadb": Driver("org.mariadb.jdbc.Driver", "org.mariadb.jdbc:mariadb-java-client:3.5.6"),
    "sqlserver": Driver(
        "com.microsoft.sqlserver.jdbc.SQLServerDriver", "com.microsoft.sqlserver:mssql-jdbc:13.2.1.jre11"
    ),
    "oracle": Driver("oracle.jdbc.OracleDriver", "com.oracle.database.jdbc:ojdbc17:23.26.0.0.0"),
    "db2": Driver("com.ibm.db2.jcc.DB2Driver", "com.ibm.db2:jcc:12.1.3.0"),
    "h2": Driver("org.h2.Driver", "com.h2database:h2:2.4.240"),
    "derby": Driver("org.apache.derby.iapi.jdbc.AutoloadedDriver", ""),
}
"""By what stands behind `jdbc:`. Spark brings the last one."""


@dataclass(frozen=True, repr=False)
class Database:
    """Where it is, and who asks."""

    uri: str
    user: str
    password: str
    driver: str
    schema: str = ""
    coordinate: str = ""

    def __repr__(self) -> str:
        return f"Database({self.shown!r})"

    @property
    def shown(self) -> str:
        return mask(self.uri)

    def missing(self, spark: Session) -> Finding | None:
        """What the user's Spark lacks."""
        if has_class(spark, self.driver):
            return None
        package = self.coordinate or "the coordinate of its package"
        return Finding(
            f"this Spark has no JDBC driver {self.driver}",
            fix=f'set packages="{package}", or --conf spark.jars.packages={package}',
            fatal=True,
        )

    def read(self, spark: Session, table: str, where: Sequence[str] = ()) -> Frame:
        """The rows of a table, by its name in SQL, that meet each of these conditions: a partition for each."""
        if not where:
            return spark.read.format("jdbc").options(**self._options(table)).load()
        return spark.read.jdbc(self.uri, table, predicates=list(where), properties=self._options(table))

    def write(self, rows: Frame, table: str) -> None:
        """Make a table of rows."""
        rows.write.format("jdbc").options(**self._options(table), batchsize="5000").mode("overwrite").save()

    def _options(self, table: str) -> dict[str, str]:
        options = {"url": self.uri, "dbtable": table, "driver": self.driver, "fetchsize": "1000"}
        options |= {"queryTimeout": str(SILENCE // 1000), "preferTimestampNTZ": "true"}
        return options | {n: v for n, v in (("user", self.user), ("password", self.password)) if v}

    @contextmanager
    def connected(self, spark: Session) -> Iterator[Connection]:
        """A connection as long as the block lasts; errors come out with their meaning."""
        missing = self.missing(spark)
        if missing is not None:
            raise UsageError(missing.what, hint=missing.fix)
        connection = self.connect(spark)
        try:
            yield connection
        except PenstockError:
            raise
        except Exception as error:
            if type(error).__module__.split(".")[0] not in ("py4j", "pyspark"):
                raise
            raise told(f"cannot use {self.shown}", error) from None
        finally:
            connection.close()

    def connect(self, spark: Session) -> Connection:
        jvm = spark._jvm
        registry = jvm.org.apache.spark.sql.execution.datasources.jdbc.DriverRegistry
        try:
            registry.register(self.driver)
            jvm.java.sql.DriverManager.setLoginTimeout(TIMEOUT)
            about = jvm.java.util.Properties()
            for name, value in (("user", self.user), ("password", self.password)):
                if value:
                    about.setProperty(name, value)
            made = registry.get(self.driver).connect(self.uri, about)
            if made is None:
                raise UsageError(f"the driver {self.driver} does not take {self.shown}")
            return Connection(jvm, made)
        except PenstockError:
            raise
        except Exception as error:
            if type(error).__module__.split(".")[0] != "py4j":
                raise
            raise told(f"cannot connect to {self.shown}", error) from None


class Connection:
    """A `java.sql.Connection`, which commits each statement by itself unless told otherwise."""

    def __init__(self, jvm: Any, made: Any) -> None:
        self._made = made
        with suppress_java():
            made.setNetworkTimeout(jvm.java.util.concurrent.ForkJoinPool.commonPool(), SILENCE)
        self._quote = str(made.getMetaData().getIdentifierQuoteString()).strip() or '"'

    def close(self) -> None:
        with suppress_java():
            self._made.close()

    def quoted(self, *names: str) -> str:
        """A name as this database has it; of a table, with its schema."""
        return ".".join(
            f"{self._quote}{name.replace(self._quote, self._quote * 2)}{self._quote}" for name in names
        )

    def execute(self, statement: str, *values: str | int) -> int:
        """Run a statement; how many rows it changed."""
        prepared = self._prepared(statement, values)
        try:
            return int(prepared.executeUpdate())
        finally:
            prepared.close()

    def query(self, statement: str, *values: str | int) -> list[tuple[Any, ...]]:
        """The rows of an answer that is small."""
        prepared = self._prepared(statement, values)
        try:
            return _rows(prepared.executeQuery())
        finally:
            prepared.close()

    def types(self, table: str) -> dict[str, str] | None:
        """The types of a table's columns, in the database's words; None if there is no such table."""
        try:
            statement = self._made.prepareStatement(f"SELECT * FROM {table} WHERE 1 = 0")
            try:
                about = statement.executeQuery().getMetaData()
                return {about.getColumnName(i): _type(about, i) for i in range(1, about.getColumnCount() + 1)}
            finally:
                statement.close()
        except Exception as error:
            state = _state(error)
            if state is None or not state.startswith("42"):
                raise
            return None

    def tables(self, schema: str, pattern: str = "%") -> list[tuple[str, str]]:
        """Schema and name of each table."""
        about = self._made.getMetaData()
        found = _rows(about.getTables(self._made.getCatalog(), schema or None, pattern, None))
        kinds = ("TABLE", "BASE TABLE", "PARTITIONED TABLE")
        return [(row[1] or "", row[2]) for row in found if row[3] in kinds]

    def key(self, schema: str, table: str) -> tuple[str, ...]:
        """The columns of the primary key."""
        found = _rows(self._made.getMetaData().getPrimaryKeys(self._made.getCatalog(), schema or None, table))
        return tuple(row[3] for row in sorted(found, key=lambda row: row[4]))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All statements of the block, or none."""
        self._made.setAutoCommit(False)
        try:
            yield
            self._made.commit()
        except BaseException:
            with suppress_java():
                self._made.rollback()
            raise
        finally:
            with suppress_java():
                self._made.setAutoCommit(True)

    def _prepared(self, statement: str, values: Sequence[str | int]) -> Any:
        prepared = self._made.prepareStatement(statement)
        for index, value in enumerate(values, 1):
            if isinstance(value, int):
                prepared.setLong(index, value)
            else:
                prepared.setString(index, value)
        return prepared


@contextmanager
def suppress_java() -> Iterator[None]:
    """Pass over what a driver cannot do, or a connection that is gone has to say."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.split(".")[0] != "py4j":
            raise


def _rows(answer: Any) -> list[tuple[Any, ...]]:
    found = []
    try:
        width = answer.getMetaData().getColumnCount()
        while answer.next():
            found.append(tuple(answer.getObject(i) for i in range(1, width + 1)))
    finally:
        with suppress(Exception):
            answer.close()
    return found


def _type(about: Any, index: int) -> str:
    """A type that a column can be made of; a numeric with its digits."""
    name = str(about.getColumnTypeName(index))
    if name.lower() in ("numeric", "decimal", "number") and 0 < about.getPrecision(index) <= 38:
        return f"{name}({about.getPrecision(index)},{about.getScale(index)})"
    return {"serial": "integer", "bigserial": "bigint", "smallserial": "smallint"}.get(name, name)


def _state(error: Exception) -> str | None:
    """The SQLSTATE of a Java error, if it is one of SQL."""
    java = getattr(error, "java_exception", None)
    with suppress_java():
        return None if java is None else str(java.getSQLState())
    return None
