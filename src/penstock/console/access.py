"""Who may use the console, and for what.

On a loopback address the user who started it, and root, need no secret: the kernel tells whose connection it is, for
each connection anew, so there is nothing that could be stolen, or run out. Everybody else logs in with a secret, in
the page's form or as a bearer token. Secrets are compared in constant time, and to an address that sends too many
wrong ones nothing is answered for a while. A session of somebody who has logged in is a random cookie that no script
can read. What changes something also needs a second secret, which only the page itself knows.

A viewer may look at everything and change nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import pwd
import secrets
import socket
import stat
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.base.errors import UsageError
from penstock.base.secrets import register
from penstock.base.webpages import is_loopback

OPERATOR, VIEWER = "operator", "viewer"
SESSION_SECONDS = 12 * 3600.0
_MOST_SESSIONS = 1000
_SHORTEST_SECRET = 12
_WRONG_ALLOWED, _WRONG_SECONDS = 10, 60.0
_MOST_ADDRESSES = 10_000


@dataclass(frozen=True, slots=True)
class User:
    """Who asks."""

    name: str
    role: str

    @property
    def may_change(self) -> bool:
        return self.role == OPERATOR


@dataclass(frozen=True, slots=True)
class Credential:
    """A secret, and whose it is."""

    user: User
    digest: bytes


@dataclass(frozen=True, slots=True)
class Session:
    """Somebody who is let in. Without an `id` it is for one request: whose it is was told by something else."""

    id: str
    csrf: str
    user: User
    expires: float


def credential(name: str, role: str, secret: str) -> Credential:
    """A secret must be one that nobody guesses."""
    if len(secret) < _SHORTEST_SECRET:
        raise UsageError(
            f"the secret of '{name}' has {len(secret)} characters, at least {_SHORTEST_SECRET} are needed",
            hint="for example: openssl rand -base64 24",
        )
    register(secret)
    return Credential(User(name, role), _digest(secret))


def read_users(path: Path) -> list[Credential]:
    """A file of users: NAME ROLE SECRET a line, ROLE being operator or viewer; nobody else may read it."""
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise UsageError(f"{path} can be read by others", hint=f"chmod 600 {path}")
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"cannot read the users from {path}: {error.strerror}") from None
    found = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 3 or words[1] not in (OPERATOR, VIEWER):
            raise UsageError(f"{path}, line {number}: expected NAME operator|viewer SECRET")
        found.append(credential(*words))
    if not found:
        raise UsageError(f"{path} names no user", hint="a line is NAME operator|viewer SECRET")
    return found


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).digest()


class Attempts:
    """Wrong secrets, by the address that they came from; of an IPv6 address the network counts. Bounded."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._wrong: dict[str, deque[float]] = {}

    def add(self, host: str) -> None:
        came = self._wrong.pop(_network(host), None) or deque(maxlen=_WRONG_ALLOWED)
        came.append(self._clock())
        self._wrong[_network(host)] = came
        while len(self._wrong) > _MOST_ADDRESSES:
            del self._wrong[next(iter(self._wrong))]

    def too_many(self, host: str) -> bool:
        came = self._wrong.get(_network(host), ())
        return sum(self._clock() - at <= _WRONG_SECONDS for at in came) >= _WRONG_ALLOWED


def _network(host: str) -> str:
    try:
        address, _ = _plain((host.partition("%")[0], 0))
    except ValueError:
        return host
    return str(ipaddress.ip_network((address, 64), strict=False)) if ":" in address else address


class Access:
    """The door. Used from one event loop."""

    def __init__(
        self,
        credentials: Sequence[Credential],
        *,
        local: bool,
        read_only: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`local`: whether the owner of a connection on this machine may come in without a secret."""
        self.credentials = tuple(credentials)
        self.local = local
        self.read_only = read_only
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._attempts = Attempts(clock)
        self._local_csrf = secrets.token_urlsafe(32)

    def by_secret(self, secret: str, host: str) -> User | None:
        """Whose secret came from `host`. All are compared, whichever fits; None also after too many wrong ones."""
        if self.locked(host):
            return None
        given, found = _digest(secret), None
        for known in self.credentials:
            if hmac.compare_digest(given, known.digest):
                found = known.user
        if found is None:
            self._attempts.add(host)
        return self._allowed(found) if found else None

    def locked(self, host: str) -> bool:
        """Whether so many wrong secrets came from there that none is looked at."""
        return self._attempts.too_many(host)

    def by_connection(self, peer: tuple[str, int], here: tuple[str, int]) -> Session | None:
        """For who has the other end of a connection on this machine, if that one may come in without a secret."""
        if not self.local or not is_loopback(peer[0]):
            return None
        uid = connection_owner(peer, here)
        if uid is None or uid not in (os.getuid(), 0):
            return None
        user = self._allowed(User(f"{_user_name(uid)}@{socket.gethostname()}", OPERATOR))
        return Session("", self._local_csrf, user, float("inf"))

    def begin(self, user: User) -> Session:
        """A new session; the oldest goes when there are too many."""
        now = self._clock()
        self._sessions = {key: one for key, one in self._sessions.items() if one.expires > now}
        while len(self._sessions) >= _MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        session = Session(secrets.token_urlsafe(32), secrets.token_urlsafe(32), user, now + SESSION_SECONDS)
        self._sessions[session.id] = session
        return session

    def session(self, identifier: str | None) -> Session | None:
        found = self._sessions.get(identifier or "")
        return found if found is not None and found.expires > self._clock() else None

    def end(self, session: Session) -> None:
        self._sessions.pop(session.id, None)

    def holds(self, session: Session) -> bool:
        """Whether somebody who was let in still is: not logged out meanwhile, and not for too long."""
        return not session.id or self.session(session.id) is not None

    def _allowed(self, user: User) -> User:
        return User(user.name, VIEWER) if self.read_only else user


def connection_owner(peer: tuple[str, int], here: tuple[str, int]) -> int | None:
    """The user id that has the other end of a TCP connection on this machine; None if the kernel does not tell.

    A connection that its owner has closed belongs to nobody, and is listed as one of root: it has no inode.
    """
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if _end(words[1]) == _plain(peer) and _end(words[2]) == _plain(here):
                return int(words[7]) if words[9] != "0" else None
    return None


def _plain(end: tuple[str, int]) -> tuple[str, int]:
    address = ipaddress.ip_address(end[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address), end[1]


def _end(text: str) -> tuple[str, int]:
    """`0100007F:20D0`: words of 32 bits in the machine's order, then the port."""
    digits, _, port = text.partition(":")
    raw = b"".join(int(digits[at : at + 8], 16).to_bytes(4, "little") for at in range(0, len(digits), 8))
    return _plain((str(ipaddress.ip_address(raw)), int(port, 16)))


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
