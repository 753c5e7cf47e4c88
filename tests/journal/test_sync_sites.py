"""Every sync in the package is there for a reason, and a test proves it: a new one without a proof fails here.

The proofs take the syncs of one place away and want a promise to break (`every_sync_matters`), or do the same
by hand. The table names, for each place that asks the disk for durability, the test that fails without it.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock

PACKAGE = Path(penstock.__file__).parent
TESTS = Path(__file__).parents[1]

ASKING = {"sync", "sync_dir", "replace_file", "make_dirs", "_sync_up"}
"""Names that make something durable, whether called at once or handed to a thread."""

KERNEL = {"fsync", "fdatasync", "sync_file_range", "O_SYNC", "O_DSYNC"}
"""What only the disk itself may use: a promise made beside it escapes the harness."""

DISK = "base/test_disk.py::"
KEYSPACE = "journal/test_keyspace.py::test_no_sync_of_the_key_space_is_there_for_nothing"
JOURNAL = "journal/test_durability.py::test_no_sync_of_the_journal_is_there_for_nothing"
STORE = "journal/test_stores_durability.py::test_no_sync_of_the_store_is_there_for_nothing"
FILE_SINK = "adaptors/test_file_sink.py::test_power_loss_neither_loses_nor_doubles_and_no_sync_is_needless"
FILE_SINK_KILLED = (
    "adaptors/test_file_sink.py::test_what_a_killed_publisher_left_is_durable_before_it_is_told"
)

DIRECTORY = "adaptors/test_partition_crashes.py::"
DIRECTORY_SINK = DIRECTORY + "test_power_loss_neither_loses_nor_doubles_and_no_sync_is_needless"
DIRECTORY_KILLED = DIRECTORY + "test_what_a_killed_publisher_left_is_durable_before_it_is_told"

SINK = "connector/test_sink_durability.py::"
CONNECTOR_SINK = SINK + "test_no_sync_of_the_sink_is_there_for_nothing"
PARQUET_SINK = "connector/test_sink_stores.py::test_no_sync_of_the_parquet_sink_is_there_for_nothing"
FOREACH = "spark/test_foreach.py::test_the_decision_is_durable_before_the_sink_is_told"
SHOWN_FOLDER = "immortal/test_folder.py::test_a_folder_that_was_shown_survives_power_loss_with_a_file_in_it"

PROOFS = {
    "adaptors/file/partition_local.py LocalTarget.bring make_dirs": DIRECTORY_SINK,
    "adaptors/file/partition_local.py LocalTarget.bring sync": DIRECTORY_SINK,
    "adaptors/file/partition_local.py LocalTarget.bring sync_dir": DIRECTORY_SINK,
    "adaptors/file/partition_local.py LocalTarget.load sync_dir": DIRECTORY_KILLED,
    "adaptors/file/partition_local.py LocalTarget.note replace_file": DIRECTORY_SINK,
    "adaptors/file/partition_local.py LocalTarget.open make_dirs": DIRECTORY
    + "test_a_position_without_files_is_durable_from_the_first_one_on",
    "adaptors/file/partition_local.py LocalTarget.remove sync_dir": DIRECTORY_SINK,
    "adaptors/file/partition_local.py LocalTarget.save replace_file": DIRECTORY_SINK,
    "adaptors/file/sink.py FilePublisher.open sync_dir": FILE_SINK_KILLED,
    "adaptors/file/sink.py FilePublisher.publish sync": FILE_SINK,
    "adaptors/file/sink.py FilePublisher._claimed sync": FILE_SINK,
    "adaptors/file/sink.py FilePublisher._keep replace_file": FILE_SINK,
    "base/disk.py Disk.make_dirs make_dirs": DISK
    + "test_a_folder_that_a_killed_process_made_is_durable_before_anything_rests_on_it",
    "base/disk.py Disk.make_dirs sync_dir": DISK + "test_the_sync_of_make_dirs_matters",
    "base/disk.py Disk.replace_file sync": DISK + "test_both_syncs_of_replace_file_matter",
    "base/disk.py Disk.replace_file sync_dir": DISK + "test_both_syncs_of_replace_file_matter",
    "connector/sink/files.py FileStorage.__init__ make_dirs": CONNECTOR_SINK,
    "connector/sink/files.py FileStorage._opened sync_dir": CONNECTOR_SINK,
    "connector/sink/files.py FileStorage._cut sync": CONNECTOR_SINK,
    "connector/sink/files.py FileStorage.prepare sync": CONNECTOR_SINK,
    "connector/sink/files.py FileStorage.retire sync_dir": CONNECTOR_SINK,
    "connector/sink/parquet.py ParquetStorage.__init__ make_dirs": PARQUET_SINK,
    "connector/sink/parquet.py ParquetStorage.publish sync_dir": PARQUET_SINK,
    "connector/sink/parquet.py ParquetStorage.stage sync": PARQUET_SINK,
    "connector/sink/parquet.py ParquetStorage.stage sync_dir": PARQUET_SINK,
    "connector/sink/txnlog.py TransactionLog.__init__ sync": CONNECTOR_SINK,
    "connector/sink/txnlog.py TransactionLog.__init__ sync_dir": CONNECTOR_SINK,
    "connector/sink/txnlog.py TransactionLog._rewrite replace_file": SINK
    + "test_a_log_that_is_written_anew_loses_nothing",
    "connector/sink/txnlog.py TransactionLog.append sync": CONNECTOR_SINK,
    "connector/sink/workers.py Workers.__init__ make_dirs": CONNECTOR_SINK,
    "immortal/folder.py Folder._fill sync_dir": SHOWN_FOLDER,
    "immortal/folder.py Folder._show make_dirs": SHOWN_FOLDER,
    "journal/hosting.py Hosting.__init__ make_dirs": (
        "journal/test_durability.py::test_the_folder_of_fragments_is_made_durable_before_a_spool_goes"
    ),
    "journal/datadir.py DataDir.create make_dirs": JOURNAL,
    "journal/datadir.py DataDir.create replace_file": JOURNAL,
    "journal/datadir.py DataDir.create sync_dir": JOURNAL,
    "journal/datadir.py Lock.__init__ make_dirs": (
        "journal/test_datadir.py::test_every_folder_down_to_a_new_directory_survives_power_loss"
    ),
    "journal/keyspace.py LocalKeySpace.__init__ sync": KEYSPACE,
    "journal/keyspace.py LocalKeySpace.__init__ sync_dir": KEYSPACE,
    "journal/keyspace.py LocalKeySpace._rewrite replace_file": KEYSPACE,
    "journal/keyspace.py LocalKeySpace.write sync": KEYSPACE,
    "journal/localspool.py LocalSpool._create_file make_dirs": JOURNAL,
    "journal/spoolfile.py SpoolFile.commit sync": JOURNAL,
    "journal/spoolfile.py SpoolFile.create sync": JOURNAL,
    "journal/spoolfile.py SpoolFile.create sync_dir": JOURNAL,
    "journal/spoolfile.py SpoolFile.recover sync": JOURNAL,
    "journal/spoolfile.py SpoolFile.give_up sync": JOURNAL,
    "journal/spoolfile.py SpoolFile._move_slots sync": (
        "journal/test_durability.py::test_power_loss_while_commit_records_make_room_for_content"
    ),
    "journal/spoolfile.py SpoolFile.make_whole sync": JOURNAL,
    "journal/spoolfile.py SpoolFile.make_whole sync_dir": JOURNAL,
    "journal/spoolrecovery.py found sync_dir": JOURNAL,
    "journal/spoolrecovery.py write_epoch replace_file": (
        "journal/test_replication_durability.py::test_content_is_never_without_what_it_rests_on"
    ),
    "spark/foreach.py ConnectorBatches.__init__ make_dirs": FOREACH,
    "spark/foreach.py ConnectorBatches.__init__ sync_dir": FOREACH,
    "spark/foreach.py ConnectorBatches._record replace_file": FOREACH,
    "journal/stores.py FileStore._sync_up sync_dir": STORE,
    "journal/stores.py FileStore.adopt _sync_up": JOURNAL,
    "journal/stores.py FileStore.exists _sync_up": STORE,
    "journal/stores.py FileStore.list _sync_up": STORE,
    "journal/stores.py FileStore.list sync_dir": STORE,
    "journal/stores.py FileStore.put _sync_up": STORE,
    "journal/stores.py FileStore.put sync": STORE,
    "journal/stores.py FileStore.remove sync_dir": STORE,
}


def uses(names: set[str], tree: ast.AST, scope: tuple[str, ...] = ()) -> Iterator[str]:
    """Every use of an attribute of these names, as `Class.function attribute`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Attribute) and node.attr in names:
            yield f"{'.'.join(scope)} {node.attr}"
        named = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        yield from uses(names, node, (*scope, node.name) if named else scope)  # type: ignore[attr-defined]


def uses_in_package(names: set[str]) -> Counter[str]:
    return Counter(
        f"{file.relative_to(PACKAGE).as_posix()} {use}"
        for file in sorted(PACKAGE.rglob("*.py"))
        if "testing" not in file.relative_to(PACKAGE).parts
        for use in uses(names, ast.parse(file.read_text(encoding="utf-8")))
    )


def test_every_sync_has_a_test_that_fails_without_it() -> None:
    found = uses_in_package(ASKING)
    unproved = sorted(set(found) - set(PROOFS))
    assert not unproved, "write the test that fails without it, then name it in PROOFS"
    assert not sorted(set(PROOFS) - set(found)), "these are gone; take them out of PROOFS"
    assert not [site for site, count in found.items() if count > 1], "give each a function of its own"


@pytest.mark.parametrize("proof", sorted(set(PROOFS.values())))
def test_the_proofs_are_there(proof: str) -> None:
    path, _, name = proof.partition("::")
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_nobody_syncs_beside_the_disk() -> None:
    assert sorted(uses_in_package(KERNEL)) == [
        "base/disk.py Disk.sync_dir fsync",
        "base/disk.py DiskFile.sync fdatasync",
    ]


def test_a_new_sync_would_be_noticed() -> None:
    code = "class A:\n    async def f(self):\n        await to_thread(self.file.sync)\ndisk.sync_dir(x)\n"
    assert list(uses(ASKING, ast.parse(code))) == ["A.f sync", " sync_dir"]
