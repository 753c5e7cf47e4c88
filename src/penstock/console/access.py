"""Who may use the console, and for what.

On a loopback address the user who started it, and root, need no secret: the kernel tells whose connection it is.
Everybody else logs in with a secret, in the page's form or as a bearer token. Secrets are compared in constant time,
and too many wrong ones are not answered for a while. A session is a random cookie that no script can read; what
changes something also needs the session's second secret, which only the page itself knows.

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

OPERATOR, VIEWER = "operator", "viewer"
SESSION_SECONDS = 12 * 3600.0
_MOST_SESSIONS = 1000
_SHORTEST_SECRET = 12
_WRONG_ALLOWED, _WRONG_SECONDS = 10, 60.0


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
    """Somebody who is let in."""

    id: str
    csrf: str
    user: User
    expires: float


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


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
    return hashlib.sha256(secret.encode()).digest()


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
        self._wrong: deque[float] = deque()

    def by_secret(self, secret: str) -> User | None:
        """Whose secret this is. All are compared, whichever fits; None also while too many wrong ones came."""
        if self.locked:
            return None
        given, found = _digest(secret), None
        for known in self.credentials:
            if hmac.compare_digest(given, known.digest):
                found = known.user
        if found is None:
            self._wrong.append(self._clock())
        return self._allowed(found) if found else None

    @property
    def locked(self) -> bool:
        """Whether so many wrong secrets came that none is looked at."""
        now = self._clock()
        while self._wrong and now - self._wrong[0] > _WRONG_SECONDS:
            self._wrong.popleft()
        return len(self._wrong) >= _WRONG_ALLOWED

    def by_connection(self, peer: tuple[str, int], here: tuple[str, int]) -> User | None:
        """Who has the other end of a connection on this machine, if that one may come in without a secret."""
        if not self.local or not is_loopback(peer[0]):
            return None
        uid = connection_owner(peer, here)
        if uid is None or uid not in (os.getuid(), 0):
            return None
        return self._allowed(User(f"{_user_name(uid)}@{socket.gethostname()}", OPERATOR))

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

    def _allowed(self, user: User) -> User:
        return User(user.name, VIEWER) if self.read_only else user


def connection_owner(peer: tuple[str, int], here: tuple[str, int]) -> int | None:
    """The user id that has the other end of a TCP connection on this machine; None if the kernel does not tell."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if _end(words[1]) == _plain(peer) and _end(words[2]) == _plain(here):
                return int(words[7])
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
