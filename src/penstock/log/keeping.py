"""Where the journals of a pipeline are kept: their store and how many brokers replicate them.

Journals are made with the broker's own `file:///` store and one replica. A pipeline that says otherwise has its
journals' specs changed, those that are there and, soon after they are made, those that come later; fragments in the
old store stay readable there.
"""

from __future__ import annotations

from penstock.base.errors import PenstockError
from penstock.journal import labels
from penstock.journal.client import Client
from penstock.journal.protocol import ApplyRequest, JournalSpec

_ATTEMPTS = 8


def keep(client: Client, pipeline: str, store: str | None, replication: int | None) -> int:
    """Bring the specs of the pipeline's journals in line; how many were changed. None leaves things as they are."""
    if store is None and replication is None:
        return 0
    changed = 0
    for _ in range(_ATTEMPTS):
        journals = client.list(labels.parse_selector(f"prefix=pipelines/{pipeline}/"))
        changes = [
            ApplyRequest.Change(expect_mod_revision=journal.mod_revision, upsert=journal.spec)
            for journal in journals
            if _moved(journal.spec, store, replication)
        ]
        if not changes:
            return changed
        if client.apply(changes):
            changed += len(changes)
    raise PenstockError(f"the journals of '{pipeline}': others keep changing their specs", hint="start again")


def _moved(spec: JournalSpec, store: str | None, replication: int | None) -> bool:
    """Change the spec; whether that was needed. New fragments go to the first store, the others are read."""
    before = spec.SerializeToString()
    if store is not None and (not spec.fragment.stores or spec.fragment.stores[0] != store):
        others = [known for known in spec.fragment.stores if known != store]
        del spec.fragment.stores[:]
        spec.fragment.stores.extend([store, *others])
    if replication is not None:
        spec.replication = replication
    return spec.SerializeToString() != before
