"""The replication slot and the publication: made, checked, watched and taken away.

A slot makes the server keep its log until it was acknowledged; a publication says which tables are in the stream. Both
are named after the pipeline and the source, `penstock_shop_db`, unless the settings name others. A table whose rows the
server could not identify is never published: from then on the server would refuse its updates.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from penstock.adaptors.postgres.connection import Connection, Server, literal, quoted
from penstock.adaptors.postgres.pgoutput import lsn_of, lsn_text
from penstock.adaptors.postgres.table import Table
from penstock.base.errors import UsageError

KINDS = ("insert", "update", "delete", "truncate")
"""Of changes, as publications name them."""


@dataclass(frozen=True)
class Slot:
    """A slot as the server has it. `lost` says why it is of no use any more, if so."""

    confirmed: int
    active: bool
    lost: str
    plugin: str
    here: bool


@dataclass(frozen=True)
class Names:
    """What the source calls its things at the server; `own` are those it may make and take away."""

    slot: str
    publication: str
    own_publication: bool

    @classmethod
    def of(cls, source: str, slot: str, publication: str) -> Names:
        """`source` is as in `Source.name`."""
        plain = re.sub(r"[^a-z0-9_]+", "_", f"penstock_{source}".lower().rstrip("."))[:63]
        return cls(slot or plain, publication or plain, not publication)


def system_of(connection: Connection) -> str:
    """What tells this server's log from another's."""
    return str(_one(connection, "SELECT system_identifier::text FROM pg_control_system()")[0])


def end_of_log(connection: Connection) -> int | None:
    """Up to where the server has written its log; None for a standby, which may just not have it all yet."""
    (found,) = _one(
        connection, "SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_lsn()::text END"
    )
    return lsn_of(str(found)) if found is not None else None


def slot_of(connection: Connection, name: str) -> Slot | None:
    found = connection.execute(
        "SELECT confirmed_flush_lsn::text, active, coalesce(wal_status, ''), plugin, database = current_database(), "
        "to_jsonb(s) ->> 'invalidation_reason' FROM pg_replication_slots s WHERE slot_name = %s",
        [name],
    ).fetchone()
    if found is None:
        return None
    confirmed, active, status, plugin, here, reason = found
    lost = reason or ("its log was removed" if status == "lost" else "")
    return Slot(lsn_of(confirmed) if confirmed else 0, active, lost, plugin or "", bool(here))


def check_slot(slot: Slot | None, name: str, wanted: Mapping[str, int], end: int | None = None) -> None:
    """Refuse to go on if the stream cannot have all that the namespaces in `wanted` miss, from their LSN on.

    `end` is that of the server's log, if known. One that ends before what was read from it is another one since: of a
    server that was set back, or of a standby that took over and had not all of it.
    """
    if slot is not None and (slot.plugin != "pgoutput" or not slot.here):
        raise UsageError(
            f"replication slot '{name}' belongs to another database or is not for pgoutput",
            hint="name another one with the setting 'slot'",
        )
    if not wanted:
        return
    if slot is None:
        _refuse(f"replication slot '{name}'", "is gone", wanted)
    elif slot.lost:
        _refuse(f"replication slot '{name}'", f"is lost ({slot.lost})", wanted)
    else:
        behind = {ns: lsn for ns, lsn in wanted.items() if lsn < slot.confirmed}
        if behind:
            _refuse(f"replication slot '{name}'", "was moved on or made anew by somebody else", behind)
        ahead = {ns: lsn for ns, lsn in wanted.items() if end is not None and lsn > end}
        if ahead:
            _refuse("the server's log", f"was set back to {lsn_text(end or 0)}, before what was read", ahead)


def _refuse(thing: str, what: str, wanted: Mapping[str, int]) -> None:
    raise UsageError(
        f"{thing} {what}: changes of {', '.join(sorted(wanted))} since the last ones logged "
        "cannot be read any more",
        hint="copy them anew: " + "; ".join(f"`penstock backfill {ns}`" for ns in sorted(wanted)),
    )


def drop_slot(connection: Connection, name: str) -> bool:
    """Whether there was one. Ends a stream that is still open, of a run that is just ending."""
    found = connection.execute(
        "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", [name]
    ).fetchone()
    if found is None:
        return False
    if found[0] is not None:
        connection.execute("SELECT pg_terminate_backend(%s, 5000)", [found[0]])
    connection.execute("SELECT pg_drop_replication_slot(%s)", [name])
    return True


def published(connection: Connection, publication: str) -> Mapping[str, Sequence[str] | None] | None:
    """The tables of a publication with the columns that it limits them to; None if there is no such publication."""
    if (
        connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", [publication]).fetchone()
        is None
    ):
        return None
    found = connection.execute(
        "SELECT schemaname, tablename, (SELECT array_agg(c) FROM jsonb_array_elements_text("
        "  CASE jsonb_typeof(to_jsonb(t) -> 'attnames') WHEN 'array' THEN to_jsonb(t) -> 'attnames' END) c) "
        "FROM pg_publication_tables t WHERE pubname = %s",
        [publication],
    ).fetchall()
    return {f"{schema}.{name}": columns for schema, name, columns in found}


def unpublished(connection: Connection, publication: str) -> list[str]:
    """The kinds of changes that a publication does not tell of."""
    found = connection.execute(
        f"SELECT {', '.join(f'pub{kind}' for kind in KINDS)} FROM pg_publication WHERE pubname = %s",
        [publication],
    ).fetchone()
    return [kind for kind, told in zip(KINDS, found, strict=True) if not told] if found else []


def publish_all(name: str) -> str:
    return f"ALTER PUBLICATION {quoted(name)} SET (publish = '{', '.join(KINDS)}')"


def create_publication(name: str, tables: Sequence[Table]) -> str:
    listed = f" FOR TABLE {', '.join(table.own for table in tables)}" if tables else ""
    return f"CREATE PUBLICATION {quoted(name)}{listed} WITH (publish_via_partition_root = true)"


def add_to_publication(name: str, tables: Sequence[Table]) -> str:
    return f"ALTER PUBLICATION {quoted(name)} ADD TABLE {', '.join(table.own for table in tables)}"


def publish(
    server: Server,
    connection: Connection,
    names: Names,
    tables: Sequence[Table],
    followed: Collection[str] = (),
) -> None:
    """See to it that the publication has these tables; one that the settings name is only looked at.

    Of those that are `followed` already, changes were lost if they are not in it.
    """
    without = [table for table in tables if not table.has_identity]
    if without:
        raise UsageError(
            f"the changes of {', '.join(table.ns for table in without)} cannot be followed: no primary key, and no "
            "other replica identity",
            hint="; ".join(f"ALTER TABLE {table.sql} REPLICA IDENTITY FULL" for table in without)
            + "; or leave them out with the source's namespace pattern",
        )
    unlogged = [table for table in tables if table.unlogged]
    if unlogged:
        raise UsageError(
            f"the changes of {', '.join(table.ns for table in unlogged)} cannot be followed: not in the server's log",
            hint="; ".join(f"ALTER TABLE {table.sql} SET LOGGED" for table in unlogged)
            + "; or leave them out with the source's namespace pattern",
        )
    there = published(connection, names.publication)
    if untold := unpublished(connection, names.publication):
        raise UsageError(
            f"publication '{names.publication}' leaves out every {', '.join(untold)}",
            hint=publish_all(names.publication),
        )
    missing = [table for table in tables if there is None or table.ns not in there]
    if there is not None and not missing:
        return
    lost = {table.ns: 0 for table in missing if table.ns in followed}
    if lost:
        _refuse(f"publication '{names.publication}'", "had them taken out, or is gone", lost)
    statement = (
        create_publication(names.publication, tables)
        if there is None
        else add_to_publication(names.publication, missing)
    )
    if not names.own_publication:
        raise UsageError(
            f"publication '{names.publication}' "
            + ("is not there" if there is None else f"lacks {', '.join(table.ns for table in missing)}"),
            hint=statement,
        )
    with server.telling(f"cannot set up publication '{names.publication}' ({statement})"):
        connection.execute(statement)


def drop_publication(connection: Connection, name: str) -> bool:
    found = connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", [name]).fetchone()
    if found is not None:
        connection.execute(f"DROP PUBLICATION {quoted(name)}")
    return found is not None


def gauges_of(connection: Connection, name: str) -> Mapping[str, float]:
    """What the slot costs the server, and how far behind it is."""
    found = connection.execute(
        "SELECT pg_wal_lsn_diff(here, restart_lsn), pg_wal_lsn_diff(here, confirmed_flush_lsn), active, "
        "coalesce(safe_wal_size, -1) FROM pg_replication_slots, LATERAL (SELECT CASE WHEN pg_is_in_recovery() "
        "THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END AS here) w "
        f"WHERE slot_name = {literal(name)}"
    ).fetchone()
    if found is None:
        return {"slot_there": 0.0}
    held, lag, active, safe = found
    gauges = {"held_back_bytes": held, "lag_bytes": lag, "slot_active": active, "slot_there": 1}
    if safe is not None and safe >= 0:
        gauges["slot_safe_bytes"] = safe
    return {gauge: float(value or 0) for gauge, value in gauges.items()}


def _one(connection: Connection, statement: str) -> tuple[object, ...]:
    found: tuple[object, ...] | None = connection.execute(statement).fetchone()
    if found is None:
        raise UsageError(f"the server answers nothing to {statement}")
    return found
