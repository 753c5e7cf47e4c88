"""Java libraries for test servers, from Maven Central: resolved and fetched by the Ivy that PySpark brings.

    place = jars("kafka-4.1.0", "org.apache.kafka:kafka_2.13:4.1.0")
    subprocess.Popen([java(), "-cp", f"{place}/*", "kafka.Kafka", ...])

A coordinate is `group:artifact:version`, or `group:artifact:version:classifier`; all that they need comes with them.
`exclude` leaves modules out, as `group:artifact`. What is fetched stays in the cache (`tests.servers.cache`).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

from tests.servers.cache import UnavailableError, cached

from penstock.base.errors import PenstockError
from penstock.spark.java import choose, probe

PATIENCE = 600.0
"""Seconds that a download may take."""


def jars(name: str, *coordinates: str, exclude: Sequence[str] = ()) -> Path:
    """A directory with the jars of `coordinates` and all that they need; `name` is for the cache.

    Raises `UnavailableError` if they cannot be fetched.
    """
    return cached(name, lambda place: _fetch(place, coordinates, exclude))


def java() -> str:
    """A Java for servers: the one that Spark is started with. Raises `UnavailableError` if there is none."""
    try:
        home = choose(probe(os.environ)).home
    except PenstockError as error:
        raise UnavailableError(str(error)) from error
    assert home is not None
    return str(home / "bin" / "java")


def _fetch(place: Path, coordinates: Sequence[str], exclude: Sequence[str]) -> None:
    """Let Ivy fill `place`. Its own cache goes with it and is taken away: a half of it must not be used again."""
    work = place / ".ivy"
    work.mkdir()
    wanted = work / "ivy.xml"
    wanted.write_text(_module(coordinates, exclude), encoding="utf-8")
    command = [
        java(), "-jar", str(_ivy()), "-cache", str(work / "cache"), "-ivy", str(wanted),
        "-confs", "default", "-types", "jar", "bundle",
        "-retrieve", f"{place}/[artifact]-[revision](-[classifier]).[ext]",
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, cwd=work, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"cannot fetch {', '.join(coordinates)}: {error}") from error
    if done.returncode or not any(place.glob("*.jar")) or "UNRESOLVED DEPENDENCIES" in done.stdout:
        told = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise UnavailableError(f"cannot fetch {', '.join(coordinates)}:\n{told}")
    shutil.rmtree(work)


def _module(coordinates: Sequence[str], exclude: Sequence[str]) -> str:
    """What Ivy is asked for: a module of our own that depends on the coordinates."""
    lines = []
    for coordinate in coordinates:
        group, artifact, version, *classifier = coordinate.split(":")
        about = f"org={quoteattr(group)} name={quoteattr(artifact)} rev={quoteattr(version)}"
        if classifier:
            special = (
                f"<artifact name={quoteattr(artifact)} e:classifier={quoteattr(classifier[0])} type='jar'/>"
            )
            lines.append(f"<dependency {about} conf='default->default'>{special}</dependency>")
        else:
            lines.append(f"<dependency {about} conf='default->default'/>")
    for module in exclude:
        group, artifact = module.split(":")
        lines.append(f"<exclude org={quoteattr(group)} module={quoteattr(artifact)}/>")
    return (
        "<ivy-module version='2.0' xmlns:e='http://ant.apache.org/ivy/extra'>"
        "<info organisation='penstock' module='servers'/>"
        "<configurations><conf name='default'/></configurations>"
        f"<dependencies>{''.join(lines)}</dependencies></ivy-module>"
    )


def _ivy() -> Path:
    spec = importlib.util.find_spec("pyspark")
    found = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar")) if spec and spec.origin else []
    if not found:
        raise UnavailableError("PySpark is not here, or came without its Ivy")
    return found[-1]
