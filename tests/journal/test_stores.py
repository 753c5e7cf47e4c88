"""The file store: paths, listings, and what is left when a step fails (reference, 19 "Store URLs")."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.disk import Buffer, Disk, DiskFile
from penstock.base.errors import CorruptError, UsageError
from penstock.journal.fragment import Codec, Fragment, parse_path
from penstock.journal.stores import FileStore, Listed, LocalSpan, open_store
from penstock.journal.tokens import ValidationError

PATH = "foo/bar/date=1/part.raw"


class Power(BaseException):
    """The process is gone: nothing may catch this and go on."""


class StepFile(DiskFile):
    def write_at(self, data: Buffer, position: int) -> None:
        self.steps.take("write", self.path)
        super().write_at(data, position)

    def sync(self) -> None:
        self.steps.take("sync", self.path)
        super().sync()

    @property
    def steps(self) -> "StepDisk":
        assert isinstance(self.disk, StepDisk)
        return self.disk


class StepDisk(Disk):
    """Records every step, and fails one of them: once, or from then on for ever as a killed process does."""

    def __init__(
        self, fail_at: int = -1, error: type[BaseException] = OSError, *, dead: bool = False
    ) -> None:
        self.taken: list[tuple[str, Path]] = []
        self._fail_at, self._error, self._dead = fail_at, error, dead

    def take(self, step: str, path: Path) -> None:
        now = len(self.taken)
        self.taken.append((step, path))
        if now == self._fail_at or (self._dead and 0 <= self._fail_at < now):
            raise self._error(f"{step} {path}")

    def open(self, path: Path, *, create: bool = False, mode: int = 0o640) -> DiskFile:
        self.take("open", path)
        file = super().open(path, create=create, mode=mode)
        return StepFile(self, path, file.fileno())

    def make_dir(self, path: Path, mode: int) -> None:
        self.take("make_dir", path)
        super().make_dir(path, mode)

    def rename(self, source: Path, target: Path) -> None:
        self.take("rename", target)
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self.take("remove", path)
        super().remove(path)

    def sync_dir(self, path: Path) -> None:
        self.take("sync_dir", path)
        super().sync_dir(path)

    def steps(self) -> list[str]:
        return [step for step, _ in self.taken]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    root.mkdir()
    return root


@pytest.fixture
def store(root: Path) -> FileStore:
    return FileStore("file:///", root, Disk())


def files_below(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def read(store: FileStore, path: str) -> bytes:
    with store.open(path) as file:
        return file.read()


def test_put_then_read_list_and_remove(store: FileStore, root: Path) -> None:
    assert not store.exists(PATH)
    store.put(PATH, [b"foo", memoryview(b"bar"), bytearray(b"!")])
    assert store.exists(PATH)
    assert read(store, PATH) == b"foobar!"
    assert store.path_of(PATH) == root / PATH
    mod_time = int((root / PATH).stat().st_mtime)
    assert list(store.list("foo/bar")) == [Listed("date=1/part.raw", 7, mod_time)]
    store.remove(PATH)
    assert not store.exists(PATH)
    assert list(store.list("foo/bar")) == []
    with pytest.raises(FileNotFoundError):
        store.open(PATH)


def test_removing_what_is_not_there_is_no_error(store: FileStore) -> None:
    store.remove(PATH)
    store.put(PATH, [b"x"])
    store.remove(PATH)
    store.remove(PATH)


def test_put_replaces(store: FileStore, root: Path) -> None:
    store.put(PATH, [b"a longer first version"])
    store.put(PATH, [b"second"])
    assert read(store, PATH) == b"second"
    assert files_below(root) == [PATH]


def test_an_empty_source_is_an_empty_file(store: FileStore) -> None:
    store.put(PATH, [])
    assert read(store, PATH) == b""


def test_directories_and_files_are_not_open_to_others(store: FileStore, root: Path) -> None:
    store.put(PATH, [b"x"])
    assert (root / "foo/bar").stat().st_mode & 0o027 == 0
    assert (root / PATH).stat().st_mode & 0o137 == 0


def test_a_span_of_a_local_file_is_a_source(store: FileStore, tmp_path: Path) -> None:
    content = bytes(range(256)) * 12_000  # more than one chunk
    (tmp_path / "spool").write_bytes(content)
    with Disk().open(tmp_path / "spool") as file:
        span = LocalSpan(file, 100, len(content) - 300)
        store.put(PATH, span)
        assert read(store, PATH) == content[100:-200]
        store.put("foo/bar/again.raw", span)
    assert read(store, "foo/bar/again.raw") == content[100:-200]


def test_a_local_file_that_ends_early_is_not_stored(store: FileStore, root: Path, tmp_path: Path) -> None:
    (tmp_path / "spool").write_bytes(b"short")
    with (
        Disk().open(tmp_path / "spool") as file,
        pytest.raises(CorruptError, match="byte 5: the file ends here, 4 bytes early"),
    ):
        store.put(PATH, LocalSpan(file, 1, 8))
    assert files_below(root) == []


def test_a_journal_is_listed_without_its_neighbours(store: FileStore) -> None:
    for path in ("foo/bar/a.raw", "foo/barn/b.raw", "foo/bar/x/c.raw", "foo/d.raw"):
        store.put(path, [b"x"])
    assert [listed.path for listed in store.list("foo/bar")] == ["a.raw", "x/c.raw"]
    assert list(store.list("foo/nothing")) == []


def test_what_is_listed_parses_back(store: FileStore) -> None:
    fragment = Fragment("foo/bar", 0, 6, b"s" * 20, Codec.GZIP, path_postfix="date=1")
    store.put(fragment.content_path, [b"foobar"])
    [listed] = store.list("foo/bar")
    assert parse_path("foo/bar", listed.path).content_path == fragment.content_path


BAD_PATHS = [
    "../x",
    "..",
    "/etc/passwd",
    "foo/../../x",
    "foo//x",
    "foo/./x",
    "",
    "foo/\x00",
    "foo/a b",
    "~/x#",
]


@pytest.mark.parametrize("path", BAD_PATHS)
def test_no_name_leads_out_of_the_store(store: FileStore, tmp_path: Path, path: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.exists(path),
        lambda: store.put(path, [b"x"]),
        lambda: store.open(path),
        lambda: list(store.list(path)),
        lambda: store.remove(path),
        lambda: store.sign(path, timedelta(minutes=1)),
    ]
    for call in calls:
        with pytest.raises(ValidationError):
            call()
    assert files_below(tmp_path) == []


@given(st.text(alphabet="ab./%", max_size=12))
def test_every_path_is_below_the_store_or_refused(path: str) -> None:
    store = FileStore("file:///", Path("/"), Disk(), sweep=False)
    store.directory = Path("/somewhere/store")
    try:
        found = store.path_of(path)
    except ValidationError:
        return
    assert ".." not in found.parts
    assert store.directory in found.parents


def test_a_prefix_is_a_directory_that_must_exist(root: Path) -> None:
    with pytest.raises(UsageError, match=r"the directory .*store/below of the store file:///below/ does not"):
        FileStore("file:///below/", root, Disk())
    (root / "below").mkdir()
    store = FileStore("file:///below/", root, Disk())
    store.put(PATH, [b"x"])
    assert files_below(root) == [f"below/{PATH}"]
    assert store.url == "file:///below/"


@pytest.mark.parametrize(
    "url", ["s3://bucket/", "file://host/", "file:///x", "file:///../", "x", "file:///%2e%2e/"]
)
def test_other_urls_are_refused(root: Path, url: str) -> None:
    with pytest.raises(ValidationError):
        FileStore(url, root, Disk())


def test_signed_urls_leave_the_root_out(root: Path) -> None:
    (root / "a b").mkdir()
    minute = timedelta(minutes=1)
    plain = FileStore("file:///", root, Disk())
    assert plain.sign("foo/bar/0-1-a=b+c.raw", minute) == "file:///foo/bar/0-1-a=b+c.raw"
    below = FileStore("file:///a%20b/", root, Disk())
    assert below.sign("foo/50%/é.raw", minute) == "file:///a%20b/foo/50%25/%C3%A9.raw"


def test_find_and_replace_rewrite_the_first_occurrence(root: Path) -> None:
    store = FileStore("file:///?FIND=foo/&Replace=baz/", root, Disk())
    store.put("foo/bar/foo/x.raw", [b"x"])
    assert files_below(root) == ["baz/bar/foo/x.raw"]
    assert store.exists("foo/bar/foo/x.raw")
    assert [listed.path for listed in store.list("foo/bar")] == ["foo/x.raw"]
    assert store.sign("foo/bar/x.raw", timedelta(minutes=1)) == "file:///baz/bar/x.raw"
    store.remove("foo/bar/foo/x.raw")
    assert files_below(root) == []


def test_rewriting_does_not_lead_out_of_the_store(root: Path) -> None:
    store = FileStore("file:///?find=foo&replace=..", root, Disk())
    for call in (lambda: store.put("foo/x", [b"x"]), lambda: list(store.list("foo"))):
        with pytest.raises(ValidationError):
            call()
    joining = FileStore("file:///?find=/&replace=_", root, Disk())
    with pytest.raises(ValidationError, match="leave directories apart"):
        list(joining.list("foo"))


def test_unknown_arguments_are_named(root: Path) -> None:
    with pytest.raises(ValidationError, match=r"unknown argument 'fnd' .*did you mean 'find'"):
        FileStore("file:///?fnd=x", root, Disk())


def test_open_store(root: Path) -> None:
    assert isinstance(open_store("file:///", root, Disk()), FileStore)
    with pytest.raises(UsageError, match="needs a root directory"):
        open_store("file:///", None, Disk())
    with pytest.raises(UsageError, match="file:/// stores only"):
        open_store("s3://bucket/", root, Disk())
    with pytest.raises(ValidationError):
        open_store("nope", root, Disk())


def test_authorization_errors_are_told_from_others(store: FileStore) -> None:
    assert store.is_authorization_error(PermissionError())
    assert not store.is_authorization_error(FileNotFoundError())


# Durability: what is promised before which step.


def test_content_is_synced_before_it_gets_its_name_and_names_up_to_the_root_after(root: Path) -> None:
    disk = StepDisk()
    FileStore("file:///", root, disk).put(PATH, [b"foo", b"bar"])
    steps = disk.steps()
    rename = steps.index("rename")
    opened = disk.taken[steps.index("open")][1]
    assert opened.parent == (root / PATH).parent
    assert opened.name.startswith(".partial-")
    assert steps[rename - 3 : rename] == ["write", "write", "sync"]
    assert disk.taken[rename][1] == root / PATH
    after = disk.taken[rename + 1 :]
    assert after == [("sync_dir", root / path) for path in ("foo/bar/date=1", "foo/bar", "foo", "")]


def test_directories_that_were_there_are_synced_again(root: Path) -> None:
    # An earlier put may have made them and failed before the sync.
    (root / PATH).parent.mkdir(parents=True)
    disk = StepDisk()
    FileStore("file:///", root, disk).put(PATH, [b"x"])
    assert ("sync_dir", root) in disk.taken
    assert ("sync_dir", root / "foo") in disk.taken


def test_what_exists_is_made_durable_before_it_is_told(root: Path) -> None:
    # Whoever put it may have died between its rename and its sync; the caller will free its own copy.
    Disk().make_dirs((root / PATH).parent)
    (root / PATH).write_bytes(b"x")
    disk = StepDisk()
    assert FileStore("file:///", root, disk).exists(PATH)
    assert disk.taken == [("sync_dir", root / path) for path in ("foo/bar/date=1", "foo/bar", "foo", "")]
    failing = FileStore("file:///", root, StepDisk(fail_at=2))
    with pytest.raises(OSError, match="sync_dir"):
        failing.exists(PATH)


def test_what_is_listed_is_made_durable_before_it_is_told(root: Path) -> None:
    FileStore("file:///", root, Disk()).put(PATH, [b"x"])
    disk = StepDisk()
    listing = FileStore("file:///", root, disk).list("foo/bar")
    assert next(listing).path == "date=1/part.raw"
    synced = {path for step, path in disk.taken if step == "sync_dir"}
    assert synced == {root / path for path in ("foo/bar/date=1", "foo/bar", "foo", "")}


def test_a_removal_is_durable_even_if_an_earlier_one_was_not(root: Path) -> None:
    FileStore("file:///", root, Disk()).put(PATH, [b"x"])
    disk = StepDisk()
    store = FileStore("file:///", root, disk)
    store.remove(PATH)
    store.remove(PATH)
    parent = (root / PATH).parent
    assert disk.taken == [("remove", root / PATH), ("sync_dir", parent)] * 2


def steps_of_a_put(root: Path) -> int:
    disk = StepDisk()
    FileStore("file:///", root, disk).put(PATH, [b"foo", b"bar"])
    return len(disk.taken)


def each_failure(tmp_path: Path, prepare: Callable[[Path], object]) -> Iterator[tuple[int, Path]]:
    """A fresh root for each step of a put that could fail."""
    count = tmp_path / "count"
    count.mkdir()
    prepare(count)
    for step in range(steps_of_a_put(count)):
        root = tmp_path / str(step)
        root.mkdir()
        prepare(root)
        yield step, root


def with_old_version(root: Path) -> None:
    FileStore("file:///", root, Disk()).put(PATH, [b"old"])


@pytest.mark.parametrize("prepare", [lambda root: None, with_old_version])
def test_a_put_that_fails_at_any_step_leaves_the_old_or_the_whole_new(
    tmp_path: Path, prepare: Callable[[Path], object]
) -> None:
    for step, root in each_failure(tmp_path, prepare):
        before = files_below(root)
        disk = StepDisk(fail_at=step)
        with pytest.raises(OSError, match=str(root)):
            FileStore("file:///", root, disk).put(PATH, [b"foo", b"bar"])
        assert files_below(root) in (before, [PATH]), f"step {step} left something behind"
        if (root / PATH).exists():
            assert (root / PATH).read_bytes() in (b"old", b"foobar")
            was_renamed = "rename" in disk.steps()[:-1]
            assert was_renamed or before
        again = FileStore("file:///", root, Disk())
        again.put(PATH, [b"foo", b"bar"])
        assert read(again, PATH) == b"foobar"
        assert files_below(root) == [PATH]


@pytest.mark.parametrize("prepare", [lambda root: None, with_old_version])
def test_a_kill_at_any_step_leaves_nothing_that_is_listed_and_the_next_start_sweeps(
    tmp_path: Path, prepare: Callable[[Path], object]
) -> None:
    left_behind = 0
    for step, root in each_failure(tmp_path, prepare):
        with pytest.raises(Power):
            FileStore("file:///", root, StepDisk(step, Power, dead=True)).put(PATH, [b"foo", b"bar"])
        left_behind += any(".partial-" in name for name in files_below(root))
        reader = FileStore("file:///", root, Disk(), sweep=False)
        assert [listed.path for listed in reader.list("foo/bar")] in ([], ["date=1/part.raw"])
        store = FileStore("file:///", root, Disk())
        assert files_below(root) in ([], [PATH])
        if store.exists(PATH):
            assert read(store, PATH) in (b"old", b"foobar")
        store.put(PATH, [b"foo", b"bar"])
        assert read(store, PATH) == b"foobar"
    assert left_behind, "the test never saw a leftover to sweep"


def test_a_source_that_fails_leaves_nothing(store: FileStore, root: Path) -> None:
    def source() -> Iterator[bytes]:
        yield b"half"
        raise RuntimeError("the compressor broke")

    with pytest.raises(RuntimeError, match="the compressor broke"):
        store.put(PATH, source())
    assert files_below(root) == []


def test_sweeping_spares_a_put_that_is_under_way(root: Path) -> None:
    store = FileStore("file:///", root, Disk())
    started, go_on = threading.Event(), threading.Event()

    def source() -> Iterator[bytes]:
        yield b"foo"
        started.set()
        assert go_on.wait(10)
        yield b"bar"

    put = threading.Thread(target=store.put, args=(PATH, source()))
    put.start()
    assert started.wait(10)
    FileStore("file:///foo/", root, Disk())
    assert list(store.list("foo/bar")) == []
    go_on.set()
    put.join()
    assert read(store, PATH) == b"foobar"


def test_sweeping_takes_only_what_puts_leave(root: Path) -> None:
    kept = ["foo/bar/notes.txt", "foo/.partial-journal/0-1-x.raw", "foo/partial-x"]
    for path in [*kept, "foo/bar/.partial-dead", ".partial-dead"]:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"x")
    FileStore("file:///", root, Disk(), sweep=False)
    assert len(files_below(root)) == 5
    FileStore("file:///", root, Disk())
    assert files_below(root) == sorted(kept)
