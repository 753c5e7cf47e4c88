"""What stands in the way of writing the collections of a MongoDB database, for `plan`.

A collection that is missing is made by its first document. What cannot be written is a view, and a time series, whose
documents are not replaced or deleted by `_id`; and what the user has no right to, as far as the server tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.adaptors.base import Finding
from penstock.adaptors.mongodb import MongoDb
from penstock.adaptors.mongodb.client import Bson
from penstock.adaptors.needs import need

if TYPE_CHECKING:
    from pymongo import MongoClient

WANTED = ("find", "insert", "update", "remove")
_EVERY_KIND = "anyResource"


def findings_of(client: MongoClient[Bson], settings: MongoDb, namespaces: Sequence[str]) -> Iterator[Finding]:
    """Changes nothing."""
    database = client.get_database(settings.database)
    kinds = {str(one["name"]): str(one.get("type", "collection")) for one in database.list_collections()}
    told = _told(client)
    for ns in sorted(namespaces):
        kind = kinds.get(ns, "collection")
        if kind != "collection":
            yield Finding(f"'{ns}' is a {kind}: its documents cannot be replaced", fatal=True)
    for ns in (*sorted(namespaces), settings.own_collection):
        lacks = lacking(told, str(settings.database), ns) if told is not None else []
        if lacks:
            yield Finding(
                f"the user may not {', '.join(lacks)} in '{ns}'", _grant(told, settings, ns), fatal=True
            )


def _told(client: MongoClient[Bson]) -> Mapping[str, Any] | None:
    """Who is logged in, and what they may do; None if nobody is, or the server does not tell."""
    errors = need("pymongo.errors", "mongodb")
    try:
        told = client.admin.command("connectionStatus", showPrivileges=True).get("authInfo", {})
    except errors.OperationFailure:
        return None
    return told if told.get("authenticatedUsers") and "authenticatedUserPrivileges" in told else None


def lacking(told: Mapping[str, Any], database: str, collection: str) -> list[str]:
    """The actions of `WANTED` that no privilege gives for a collection."""
    given = {
        action
        for privilege in told["authenticatedUserPrivileges"]
        if _covers(privilege["resource"], database, collection)
        for action in privilege["actions"]
    }
    return [action for action in WANTED if action not in given and "anyAction" not in given]


def _covers(resource: Mapping[str, Any], database: str, collection: str) -> bool:
    """An empty name in a resource stands for every name, but for those of the system."""
    if resource.get(_EVERY_KIND):
        return True
    if "db" not in resource or "collection" not in resource:
        return False
    return resource["db"] in ("", database) and resource["collection"] in ("", collection)


def _grant(told: Mapping[str, Any] | None, settings: MongoDb, ns: str) -> str:
    users = told["authenticatedUsers"] if told else []
    user = users[0]["user"] if users else "USER"
    return f'db.grantRolesToUser("{user}", [{{role: "readWrite", db: "{settings.database}"}}])'
