"""May this Spark master run this pipeline? Asked by `plan --master` and at the start of a run.

Tasks on other machines reach the log over the network, so they need a broker that listens there, a token that lets
them in, and a store that every machine can read. A master on this machine's loopback address has its workers here
too, since none from elsewhere could join it: for it the data directory's own broker will do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from penstock.base.errors import UsageError

SHARED_SCHEMES = ("s3", "gs", "azure", "azure-ad")
"""Stores that a machine reaches by the network."""

_LOCAL = re.compile(r"local(\[[^\]]*\])?|local-cluster\[[^\]]*\]")
_LOOPBACK = re.compile(r"localhost|127\.\d+\.\d+\.\d+|\[?::1\]?")
_CLUSTERS = ("spark", "k8s", "mesos")


def is_remote(master: str | None) -> bool:
    """Whether a master's tasks may run on other machines; refuses what is no master at all."""
    if master is None or _LOCAL.fullmatch(master):
        return False
    if master == "yarn":
        return True
    scheme, separator, rest = master.partition("://")
    if not separator or scheme not in _CLUSTERS or not rest:
        raise UsageError(
            f"'{master}' is no Spark master",
            hint="expected local[4], spark://HOST:PORT, k8s://https://HOST:PORT or yarn",
        )
    hosts = [host.rpartition(":")[0] or host for host in rest.split(",")]
    return scheme != "spark" or not all(_LOOPBACK.fullmatch(host) for host in hosts)


def check_master(
    master: str | None,
    *,
    broker: str | None = None,
    token: bool = False,
    stores: Sequence[str] | None = None,
) -> None:
    """Refuse a master on other machines that could not reach the log.

    `broker` is the broker's address, None for the data directory's own; `token` says whether one is at hand; `stores`
    are those in which the pipeline's journals keep their fragments, None if nobody knows.
    """
    if not is_remote(master):
        return
    if broker is None or broker.startswith("unix:"):
        own = "the data directory's own broker" if broker is None else f"the broker at {broker}"
        raise _refusal(
            master,
            f"{own} cannot be reached from other machines",
            "start one with `penstock broker serve`, and name it with --broker http://HOST:PORT",
        )
    host = urlsplit(broker if "://" in broker else f"http://{broker}").hostname or ""
    if _LOOPBACK.fullmatch(host):
        raise _refusal(
            master,
            f"the broker's address {broker} means this machine only",
            "give the name that others know it by",
        )
    if not token:
        raise _refusal(
            master,
            "the broker would have to let anyone in, since there is no token",
            "serve it with --auth-keys, and give --auth-token or --auth-keys here",
        )
    foreign = [url for url in stores or () if urlsplit(url).scheme not in SHARED_SCHEMES]
    if not stores or foreign:
        what = (
            f"the store {foreign[0]} lies on one machine" if foreign else "no store is known that they share"
        )
        raise _refusal(
            master,
            what,
            f"give the pipeline's journals one of {_schemes()} with `penstock journals edit`",
        )


def _refusal(master: str | None, what: str, hint: str) -> UsageError:
    return UsageError(f"Spark master '{master}' runs tasks on other machines: {what}", hint=hint)


def _schemes() -> str:
    return ", ".join(f"{scheme}://" for scheme in SHARED_SCHEMES[:3])
