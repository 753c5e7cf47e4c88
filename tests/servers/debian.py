"""Servers from Debian's packages, unpacked into the cache: no root rights, nothing installed, nothing run at install.

`unpacked` gives a tree with the named packages and the libraries that this machine lacks for them. A package may come
from another suite than this machine's (`suite="sid"`): then all its libraries come with it, the C library too, and
`Tree.command` starts a program with the loader of the tree.

Which mirror the packages come from is what this machine is set to.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.servers.cache import UnavailableError, cached

_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


@dataclass(frozen=True)
class Tree:
    """Unpacked packages. `foreign` tells whether they bring their own C library."""

    root: Path
    foreign: bool

    def path(self, name: str) -> Path:
        """A file of the packages, named as if they were installed: `usr/sbin/mariadbd`."""
        return self.root / name

    def libraries(self) -> str:
        """What to set `LD_LIBRARY_PATH` to."""
        found = [
            str(directory)
            for parent in ("usr/lib", "lib")
            for directory in [*sorted((self.root / parent).glob("*-linux-gnu*")), self.root / parent]
            if directory.is_dir()
        ]
        return ":".join(found)

    def command(self, program: str, *arguments: str) -> list[str]:
        """How to start a program of the tree; run it with `environment`."""
        path = str(self.path(program))
        if not self.foreign:
            return [path, *arguments]
        loader = next(self.root.glob("usr/lib*/ld-linux*.so.*"), None) or next(
            self.root.glob("lib*/ld-linux*.so.*")
        )
        return [str(loader), "--library-path", self.libraries(), path, *arguments]

    def environment(self) -> dict[str, str]:
        # A foreign C library must not reach programs that the server itself may start.
        return {**os.environ, **({} if self.foreign else {"LD_LIBRARY_PATH": self.libraries()})}


def unpacked(name: str, packages: Sequence[str], suite: str | None = None) -> Tree:
    """The tree of these packages under `name` in the cache, made at the first call. Raises `UnavailableError`."""
    kept = cached(name if suite is None else f"{name}-{suite}", lambda place: _fill(place, packages, suite))
    return Tree(kept, foreign=suite is not None)


def _fill(tree: Path, packages: Sequence[str], suite: str | None) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise UnavailableError(f"no apt-get and dpkg-deb here to fetch {' '.join(packages)} with")
    with tempfile.TemporaryDirectory(dir=tree.parent, prefix=f".{tree.name}.") as scratch:
        place = Path(scratch)
        archives = place / "archives"
        archives.mkdir()
        apt, wanted = _resolved(place, packages, suite)
        apt.run("download", *wanted, cwd=archives)
        for archive in sorted(archives.glob("*.deb")):
            _run(["dpkg-deb", "-x", str(archive), str(tree)])


@dataclass(frozen=True)
class _Apt:
    """apt-get with a configuration file of its own, or with the machine's."""

    configuration: Path | None = None

    def run(self, *arguments: str, cwd: Path | None = None) -> str:
        added = {"APT_CONFIG": str(self.configuration)} if self.configuration else {}
        return _run(["apt-get", "-qq", *arguments], cwd=cwd, env={**os.environ, "LC_ALL": "C", **added})

    def needed(self, packages: Sequence[str]) -> list[str]:
        """The packages that an installation would add."""
        listed = self.run("-s", "--no-install-recommends", "install", *packages)
        return re.findall(r"^Inst (\S+)", listed, re.MULTILINE)


def _resolved(place: Path, packages: Sequence[str], suite: str | None) -> tuple[_Apt, list[str]]:
    """An apt that knows the packages, and all that has to be downloaded."""
    if suite is not None:
        apt = _Apt(_configured(place, suite))
        apt.run("update")
        return apt, [
            one for one in apt.needed(packages) if one.startswith(("lib", "zlib")) or one in packages
        ]
    machine = _Apt()
    try:
        return machine, sorted({*packages, *machine.needed(packages)})
    except UnavailableError:
        apt = _Apt(_configured(place, None))
        apt.run("update")
        return apt, sorted({*packages, *apt.needed(packages)})


def _configured(place: Path, suite: str | None) -> Path:
    """A configuration under which package lists are kept in `place`; with a suite, those of that suite alone."""
    (place / "lists" / "partial").mkdir(parents=True)
    (place / "cache" / "archives" / "partial").mkdir(parents=True)
    lines = [
        f'Dir::State::lists "{place}/lists";',
        f'Dir::Cache "{place}/cache";',
        'APT::Sandbox::User "root";',
    ]
    if suite is not None:
        sources = place / "sources.list"
        signed = f"[signed-by={_KEYRING}] " if _KEYRING.exists() else ""
        sources.write_text(f"deb {signed}{_mirror()} {suite} main\n")
        lines += [
            f'Dir::Etc::sourcelist "{sources}";',
            'Dir::Etc::sourceparts "-";',
            # As on a machine that has nothing: all libraries come along.
            'Dir::State::status "/dev/null";',
            'Acquire::Languages "none";',
            'Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";',
        ]
    configuration = place / "apt.conf"
    configuration.write_text("\n".join(lines) + "\n")
    return configuration


def _mirror() -> str:
    """The mirror that this machine takes its main packages from."""
    listed = _run(["apt-get", "indextargets", "--format", "$(CREATED_BY) $(COMPONENT) $(REPO_URI)"])
    found = re.findall(r"^Packages main (\S+/debian/?)$", listed, re.MULTILINE)
    if not found:
        raise UnavailableError("this machine has no source of Debian's packages")
    return str(found[0])


def _run(command: Sequence[str], cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            command, cwd=cwd, env=env, capture_output=True, text=True, timeout=600, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{command[0]}: {error}") from None
    if done.returncode != 0:
        raise UnavailableError(f"{' '.join(command[:4])} …: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
