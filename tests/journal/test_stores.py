"""The file store: paths, listings, and what is left when a step fails (reference, 19 "Store URLs")."""

import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.disk import Disk
from penstock.base.errors import CorruptError, UsageError
from penstock.journal.fragment import Codec, Fragment, parse_path
from penstock.journal.stores import FileStore, Listed, LocalSpan, open_store
from penstock.journal.tokens import ValidationError

from .storing import PATH, files_below, read


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
    with pytest.raises(ValidationError):
        open_store("nope", root, Disk())


@pytest.mark.parametrize(
    "url", ["s3://bucket/a%20b/?endpoint=x&acl=y", "gs://bucket/a%20b/", "azure://container/a%20b/"]
)
def test_with_file_only_every_scheme_is_kept_below_the_root(root: Path, url: str) -> None:
    (root / "a b").mkdir()
    store = open_store(url, root, Disk(), file_only=True)
    assert store.url == url
    store.put(PATH, [b"x"])
    assert files_below(root) == [f"a b/{PATH}"]
    assert store.sign("foo/x", timedelta(minutes=1)) == "file:///a%20b/foo/x"
    with pytest.raises(UsageError, match="needs a root directory"):
        open_store(url, None, Disk(), file_only=True)


def test_with_file_only_rewriting_stays_and_no_url_leads_out(root: Path) -> None:
    store = open_store("s3://bucket/?find=foo&replace=baz&region=x", root, Disk(), file_only=True)
    store.put("foo/x", [b"x"])
    assert files_below(root) == ["baz/x"]
    for url in ("s3://bucket/../", "gs://bucket/%2e%2e/", "azure-ad://t/a/../../c/"):
        with pytest.raises(ValidationError):
            open_store(url, root, Disk(), file_only=True)


def test_reading_starts_at_a_position(store: FileStore) -> None:
    store.put(PATH, [b"foobar"])
    for position in range(9):
        with store.open(PATH, position=position) as file:
            assert file.read() == b"foobar"[position:]


def test_a_read_only_store_is_never_written_nor_swept(root: Path) -> None:
    FileStore("file:///", root, Disk()).put(PATH, [b"x"])
    (root / "foo/.partial-of-its-owner").write_bytes(b"")
    before = files_below(root)
    store = open_store("file:///", root, Disk(), read_only=True)
    calls: list[Callable[[], object]] = [lambda: store.put(PATH, [b"y"]), lambda: store.remove(PATH)]
    for call in calls:
        with pytest.raises(PermissionError, match="the store of a read-only journal is never written"):
            call()
    assert files_below(root) == before
    assert [listed.path for listed in store.list("foo")] == ["bar/date=1/part.raw"]
    with store.open(PATH) as file:
        assert file.read() == b"x"


def test_the_path_of_a_health_check_is_a_path(store: FileStore) -> None:
    store.put(".test/health-check", [b"x"])
    assert [listed.path for listed in store.list(".test")] == ["health-check"]


def test_object_stores_are_imported_only_when_one_is_opened() -> None:
    code = "import penstock.journal.stores, penstock.journal.codecs, penstock.journal.storeset, sys; "
    code += "print([m for m in ('obstore', 'zstandard', 'cramjam', 'snappy') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def test_authorization_errors_are_told_from_others(store: FileStore) -> None:
    assert store.is_authorization_error(PermissionError())
    assert not store.is_authorization_error(FileNotFoundError())
