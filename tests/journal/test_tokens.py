"""Tokens, paths and the names of journals (reference, 6, first rows, and 24, quirk 2)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.errors import PenstockError
from penstock.journal.tokens import (
    PATH_SYMBOLS,
    TOKEN_SYMBOLS,
    ValidationError,
    check_path,
    check_token,
    clean_path,
    split_meta,
)
from penstock.journal.validation import validate_journal, validate_request_journal


def test_the_error_is_ours_and_a_value_error() -> None:
    error = ValidationError("cannot begin with '/' (/a)", field="Journal").inside("Changes[2]")
    assert isinstance(error, PenstockError)
    assert isinstance(error, ValueError)
    assert str(error) == "Changes[2].Journal: cannot begin with '/' (/a)"
    assert error.exit_code == 2


CLEANED = [
    ("", "."),
    ("abc", "abc"),
    ("abc/def", "abc/def"),
    ("a/b/c", "a/b/c"),
    (".", "."),
    ("..", ".."),
    ("../..", "../.."),
    ("../../abc", "../../abc"),
    ("/abc", "/abc"),
    ("/", "/"),
    ("abc/", "abc"),
    ("abc/def/", "abc/def"),
    ("./", "."),
    ("../", ".."),
    ("/abc/", "/abc"),
    ("abc//def//ghi", "abc/def/ghi"),
    ("//abc", "/abc"),
    ("///abc", "/abc"),
    ("//abc//", "/abc"),
    ("abc/./def", "abc/def"),
    ("/./abc/def", "/abc/def"),
    ("abc/.", "abc"),
    ("abc/def/ghi/../jkl", "abc/def/jkl"),
    ("abc/def/../ghi/../jkl", "abc/jkl"),
    ("abc/def/..", "abc"),
    ("abc/def/../..", "."),
    ("/abc/def/../..", "/"),
    ("abc/def/../../..", ".."),
    ("/abc/def/../../..", "/"),
    ("abc/def/../../../ghi/jkl/../../../mno", "../../mno"),
    ("abc/./../def", "def"),
    ("abc//./../def", "def"),
    ("...", "..."),
    ("a/.../b", "a/.../b"),
]


@pytest.mark.parametrize("path, expected", CLEANED)
def test_clean_path(path: str, expected: str) -> None:
    assert clean_path(path) == expected


@given(st.text(alphabet="ab./", max_size=12))
def test_a_cleaned_path_is_clean_and_as_rooted_as_before(path: str) -> None:
    cleaned = clean_path(path)
    assert clean_path(cleaned) == cleaned
    assert cleaned.startswith("/") == path.startswith("/")
    assert "//" not in cleaned


@pytest.mark.parametrize("symbols", [TOKEN_SYMBOLS, PATH_SYMBOLS])
@pytest.mark.parametrize("text", ["abc", "AZ09", "-_+/.", "größe", "日本語", "Ⅷ½٣", "ǅʰ"])
def test_letters_and_numbers_of_any_script_make_tokens(text: str, symbols: str) -> None:
    check_token(text, 1, 100, symbols)


NO_TOKENS = [
    *("a b", "a#b", "a;b", "a:b", "a\x00b", "a€b", "a'b", "😀", "\ud800"),
    "a\u0301b",  # a combining mark
    "a\u200bb",  # a space without width
]


@pytest.mark.parametrize("symbols", [TOKEN_SYMBOLS, PATH_SYMBOLS])
@pytest.mark.parametrize("text", NO_TOKENS)
def test_everything_else_does_not(text: str, symbols: str) -> None:
    with pytest.raises(ValidationError, match="not a valid token"):
        check_token(text, 0, 100, symbols)


@pytest.mark.parametrize("text", ["a=b", "a%b"])
def test_equals_and_percent_are_of_paths_only(text: str) -> None:
    check_token(text, 0, 100, PATH_SYMBOLS)
    with pytest.raises(ValidationError, match=rf"not a valid token \({text}\)"):
        check_token(text, 0, 100)


@given(st.characters(max_codepoint=0x23))
def test_nothing_up_to_the_separator_of_keys_is_in_an_alphabet(character: str) -> None:
    with pytest.raises(ValidationError, match="not a valid token"):
        check_token(character, 0, 9, PATH_SYMBOLS)


@given(st.text(alphabet="ab./=", max_size=20))
def test_a_legal_path_stays_below_where_it_starts(path: str) -> None:
    try:
        check_path(path, 1, 100)
    except ValidationError:
        return
    assert not {"", ".", ".."} & set(path.split("/"))


NAMES = [
    ("foo/bar", ""),
    ("abcd", ""),
    ("a/b.c-d_e+f=g%h/9", ""),
    ("..foo/bar", ""),
    ("foo/..bar", ""),
    ("größe/日本", ""),
    ("x" * 512, ""),
    ("abc", "invalid length (3; expected 4 <= length <= 512)"),
    ("", "invalid length (0; expected 4 <= length <= 512)"),
    ("x" * 513, "invalid length (513; expected 4 <= length <= 512)"),
    ("é" * 257, "invalid length (514; expected 4 <= length <= 512)"),
    ("/invalid/name", "cannot begin with '/' (/invalid/name)"),
    ("invalid journal name", "not a valid token (invalid journal name)"),
    ("foo//bar", "must be a clean path (foo//bar)"),
    ("foo/bar/", "must be a clean path (foo/bar/)"),
    ("foo/./bar", "must be a clean path (foo/./bar)"),
    ("foo/../bar", "must be a clean path (foo/../bar)"),
    ("./foo", "must be a clean path (./foo)"),
    ("../foo", "cannot begin with '.' or '..' as a segment (../foo)"),
    ("../../foo", "cannot begin with '.' or '..' as a segment (../../foo)"),
    ("foo/bar;meta", "not a valid token (foo/bar;meta)"),
]


@pytest.mark.parametrize("name, expected", NAMES)
def test_journal_name(name: str, expected: str) -> None:
    if not expected:
        validate_journal(name)
        return
    with pytest.raises(ValidationError) as caught:
        validate_journal(name)
    assert str(caught.value) == expected


META = [
    ("foo/bar", ("foo/bar", ""), ""),
    ("foo/bar;m", ("foo/bar", "m"), ""),
    ("foo/bar;a/b=%", ("foo/bar", "a/b=%"), ""),
    ("foo/bar;", ("foo/bar", ""), "Meta: invalid length (0; expected 1 <= length <= 512)"),
    ("foo/bar;" + "m" * 513, ("foo/bar", "m" * 513), "Meta: invalid length (513"),
    ("foo/bar;/m", ("foo/bar", "/m"), "Meta: cannot begin with '/' (/m)"),
    ("foo/bar;a//b", ("foo/bar", "a//b"), "Meta: must be a clean path (a//b)"),
    ("foo/bar;a;b", ("foo/bar", "a;b"), "Meta: not a valid token (a;b)"),
    ("foo;meta", ("foo", "meta"), "invalid length (3"),
]


@pytest.mark.parametrize("name, parts, expected", META)
def test_journal_name_in_a_request(name: str, parts: tuple[str, str], expected: str) -> None:
    assert split_meta(name) == parts
    if not expected:
        validate_request_journal(name)
        return
    with pytest.raises(ValidationError) as caught:
        validate_request_journal(name)
    assert str(caught.value).startswith(expected)
