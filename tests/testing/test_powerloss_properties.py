"""The power-loss harness: properties, on runs that hypothesis makes up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.base.disk import Disk
from penstock.testing.powerloss import RecordingDisk, images, sync_sites

from .toylogs import Files

NAMES = st.sampled_from(["a", "b", "c", "d/a", "d/b"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), NAMES, st.integers(0, 6), st.binary(min_size=1, max_size=5)),
        st.tuples(st.just("truncate"), NAMES, st.integers(0, 8), st.just(b"")),
        st.tuples(st.just("sync"), NAMES, st.just(0), st.just(b"")),
        st.tuples(st.just("rename"), NAMES, st.integers(0, 4), st.just(b"")),
        st.tuples(st.just("link"), NAMES, st.integers(0, 4), st.just(b"")),
        st.tuples(st.just("free"), NAMES, st.integers(0, 6), st.just(b"")),
        st.tuples(st.just("remove"), NAMES, st.just(0), st.just(b"")),
        st.tuples(st.just("sync_dir"), st.sampled_from([".", "d"]), st.just(0), st.just(b"")),
        st.tuples(st.just("replace"), NAMES, st.just(0), st.binary(max_size=5)),
    ),
    max_size=14,
)
ALL_NAMES = ["a", "b", "c", "d/a", "d/b"]


def play(disk: Disk, root: Path, steps: Sequence[tuple[str, str, int, bytes]]) -> None:
    for kind, name, number, data in steps:
        path = root / name
        match kind:
            case "write":
                with disk.open(path, create=True) as file:
                    file.write_at(data, number)
            case "truncate" | "free" | "sync" if path.exists():
                with disk.open(path) as file:
                    if kind == "sync":
                        file.sync()
                    elif kind == "free":
                        file.free(number, 2)
                    else:
                        file.truncate(number)
            case "rename" if path.exists():
                disk.rename(path, root / ALL_NAMES[number])
            case "link" if path.exists() and not (root / ALL_NAMES[number]).exists():
                disk.link(path, root / ALL_NAMES[number])
            case "remove" if path.exists():
                disk.remove(path)
            case "sync_dir":
                disk.sync_dir(path)
            case "replace":
                disk.replace_file(path, data)


def seen_on(root: Path) -> Files:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, seed=st.integers(0, 3))
def test_one_image_is_the_real_directory_and_each_can_be_built(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, int, bytes]], seed: int
) -> None:
    root = tmp_path_factory.mktemp("run")
    (root / "d").mkdir()
    disk = RecordingDisk(root)
    play(disk, root, steps)
    log = disk.log
    at_the_end = list(images(log, seed=seed, cuts=[len(log.events)]))
    assert seen_on(root) in [image.files for image in at_the_end]
    for number, image in enumerate(at_the_end):
        built = root.with_name(f"{root.name}-{number}")
        image.build(built)
        assert seen_on(built) == image.files


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, seed=st.integers(0, 3))
def test_after_everything_is_synced_only_the_real_directory_is_possible(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, int, bytes]], seed: int
) -> None:
    root = tmp_path_factory.mktemp("run")
    (root / "d").mkdir()
    disk = RecordingDisk(root)
    play(disk, root, steps)
    play(disk, root, [("sync", name, 0, b"") for name in ALL_NAMES])
    play(disk, root, [("sync_dir", name, 0, b"") for name in (".", "d")])
    log = disk.log
    assert [image.files for image in images(log, seed=seed, cuts=[len(log.events)])] == [seen_on(root)]


@settings(max_examples=100, deadline=None)
@given(
    writes=st.lists(
        st.tuples(st.integers(0, 8), st.binary(min_size=1, max_size=6)) | st.just("sync"),
        min_size=1,
        max_size=8,
    )
)
def test_each_byte_is_durable_or_from_an_unsynced_write_or_zero_past_the_end(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[int, bytes] | str]
) -> None:
    root = tmp_path_factory.mktemp("run")
    (root / "f").write_bytes(b"old")
    disk = RecordingDisk(root)
    durable, unsynced = bytearray(b"old"), list[tuple[int, bytes]]()
    with disk.open(root / "f") as file:
        for write in writes:
            if isinstance(write, tuple):
                file.write_at(write[1], write[0])
                unsynced.append(write)
                continue
            file.sync()
            for position, data in unsynced:
                durable.extend(bytes(max(0, position - len(durable))))
                durable[position : position + len(data)] = data
            unsynced.clear()
    log = disk.log
    longest = max([len(durable), *(position + len(data) for position, data in unsynced)])
    for image in images(log, seed=1, cuts=[len(log.events)], per_cut=40):
        content = image.files["f"]
        assert len(durable) <= len(content) <= longest
        for at, byte in enumerate(content):
            sources = {data[at - position] for position, data in unsynced if 0 <= at - position < len(data)}
            assert byte in sources | {durable[at] if at < len(durable) else 0}


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_dropping_a_sync_adds_only_disks_that_lost_something_it_had_covered(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, int, bytes]]
) -> None:
    root = tmp_path_factory.mktemp("run")
    (root / "d").mkdir()
    disk = RecordingDisk(root)
    play(disk, root, steps)
    log = disk.log
    cut = len(log.events)
    for site in sync_sites(log):
        added = list(images(log, seed=1, cuts=[cut], drop=site))
        honest = next(iter(images(log, seed=1, cuts=[cut])))
        for image in added:
            covered = {atom.key for atom in image.unsynced} - {atom.key for atom in honest.unsynced}
            assert any(image.made_by.fates[key] is not True for key in covered)
