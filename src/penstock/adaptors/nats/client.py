"""The driver: a connection in a loop of its own, the requests of JetStream's API, and what its errors mean.

A connection that is lost is not made again here: that is `AwayError`, and the runner begins anew with what the log or
the target holds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from penstock.adaptors import tls
from penstock.adaptors.eventloop import EventLoop
from penstock.adaptors.nats import Nats
from penstock.adaptors.needs import need
from penstock.base.errors import AwayError, PenstockError, UsageError
from penstock.base.secrets import mask

if TYPE_CHECKING:
    from nats.aio.client import Client as Driver
    from nats.aio.msg import Msg

T = TypeVar("T")
NANO = 1_000_000_000
NO_STREAM, NO_MESSAGE, NO_CONSUMER = 10059, 10037, 10014
WRONG_SEQUENCE, WRONG_STREAM = 10071, 10060

_NO_ROOM = frozenset({10023, 10047, 10077, 10122, 10028, 10002})
"""Out of memory, of storage, of a stream's limits; or the stream has no leader now."""


class AnswerError(PenstockError):
    """JetStream answered that it will not; `number` is its own of the error."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


class _Error(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Answer(msgspec.Struct):
    error: _Error | None = None


class Taken(msgspec.Struct):
    """The acknowledgement of a message that was published."""

    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: _Error | None = None


class Got(NamedTuple):
    """A message of a stream."""

    subject: str
    headers: Mapping[str, str]
    data: bytes
    sequence: int
    """In the stream."""
    number: int
    """Of those that the consumer was given."""
    moment: int
    """When the stream took it, in nanoseconds."""


class Pulled(NamedTuple):
    """What one pull gave; `status` is 0 if as many messages came as were asked for."""

    messages: Sequence[Got]
    status: int


class Out(NamedTuple):
    """A message to publish."""

    subject: str
    data: bytes
    headers: Mapping[str, str]


class Client:
    """One connection; use it from one thread at a time."""

    def __init__(self, settings: Nats) -> None:
        self._settings = settings
        self._library = need("nats", "nats")
        self._trouble: list[Exception] = []
        self._loop = EventLoop("nats")
        try:
            self._driver: Driver = self._do("cannot connect", self._connected(), 2 * settings.timeout)
        except BaseException:
            self._loop.close()
            raise

    @property
    def max_payload(self) -> int:
        """The most bytes that a message may have, headers too."""
        return int(self._driver.max_payload)

    def ask(self, subject: str, body: object, kind: Callable[[bytes], T], what: str) -> T:
        """One request of JetStream's API."""
        answer = self._do(what, self._asked(subject, body), self._settings.timeout)
        told = msgspec.json.decode(answer, type=_Answer)
        if told.error is not None:
            raise self.error(what, told.error)
        return kind(answer)

    def pull(self, stream: str, consumer: str, count: int, size: int | None, wait: float) -> Pulled:
        """Messages that are there, at most so many and of so many bytes; if there are none, those of the next while."""
        asked: dict[str, object] = {"batch": count, "no_wait": True, "expires": int(wait * NANO)}
        asked |= {} if size is None else {"max_bytes": size}
        work = self._pulled(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", asked, count)
        return self._do(f"cannot read the stream '{stream}'", work, self._settings.timeout + wait)

    def publish(self, messages: Sequence[Out]) -> list[Taken]:
        """Publish in this order, and wait for all answers; one that nobody gave has the error 503."""
        return self._do("cannot publish", self._published(messages), self._settings.timeout)

    def close(self) -> None:
        if not self._driver.is_closed:
            try:
                self._loop.run(self._driver.close(), self._settings.timeout)
            except (TimeoutError, OSError, self._library.errors.Error):
                self._trouble.clear()  # it is gone either way
        self._loop.close()

    def error(self, what: str, error: _Error) -> PenstockError:
        text = f"{what} at {self._settings.place}: {mask(error.description)} ({error.err_code})"
        if error.err_code in _NO_ROOM or error.code == 503:
            return AwayError(text)
        return AnswerError(text, error.err_code)

    def _do(self, what: str, work: Coroutine[object, object, T], timeout: float) -> T:
        errors, text = self._library.errors, f"{what} at {self._settings.place}"
        try:
            return self._loop.run(work, timeout)
        except errors.MaxPayloadError:
            raise PenstockError(f"{text}: a message is larger than the server takes") from None
        except errors.NoRespondersError:
            raise UsageError(
                f"{text}: nobody answers; JetStream is not there, or not for this account",
                hint="start the servers with JetStream, or give the user of this pipeline rights to $JS.API.>",
            ) from None
        except (errors.Error, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            told = self._trouble[-1] if self._trouble else error
            if distrust := tls.untrusted(told, self._settings.place):
                raise distrust from None
            reason = mask(str(told) or type(error).__name__)
            if "uthorization" in reason or "ermissions" in reason:
                raise UsageError(
                    f"{text}: {reason}", hint="see user and password in the setting 'uri'"
                ) from None
            raise AwayError(f"{text}: {reason}") from None

    async def _connected(self) -> Driver:
        settings = self._settings

        async def failed(error: Exception) -> None:
            self._trouble[:] = [error]

        options: dict[str, object] = {}
        if settings.token:
            options["token"] = settings.token
        if settings.credentials:
            options["user_credentials"] = settings.credentials
        if settings.ca or settings.certificate or settings.uri.startswith("tls"):
            options["tls"] = tls.context(settings.ca, settings.certificate, settings.private_key)
        driver: Driver = await self._library.connect(
            list(settings.servers), allow_reconnect=False, max_reconnect_attempts=1, reconnect_time_wait=0.05,
            connect_timeout=settings.timeout, ping_interval=settings.timeout, max_outstanding_pings=2,
            error_cb=failed, name="penstock", **options,
        )  # fmt: skip
        return driver

    async def _asked(self, subject: str, body: object) -> bytes:
        content = b"" if body is None else msgspec.json.encode(body)
        answer = await self._driver.request(f"$JS.API.{subject}", content, timeout=self._settings.timeout)
        return bytes(answer.data)

    async def _pulled(self, subject: str, asked: object, count: int) -> Pulled:
        inbox = self._driver.new_inbox()
        answers = await self._driver.subscribe(inbox)
        try:
            await self._driver.publish(subject, msgspec.json.encode(asked), reply=inbox)
            messages: list[Got] = []
            while len(messages) < count:
                one = await self._next(answers.next_msg)
                status = int((one.headers or {}).get("Status", 0)) if not one.reply else 0
                if status == 100:
                    continue
                if status:
                    return Pulled(messages, status)
                messages.append(_got(one))
            return Pulled(messages, 0)
        finally:
            if not self._driver.is_closed:
                await answers.unsubscribe()

    async def _published(self, messages: Sequence[Out]) -> list[Taken]:
        inbox = self._driver.new_inbox()
        answers = await self._driver.subscribe(f"{inbox}.*")
        try:
            for i, one in enumerate(messages):
                await self._driver.publish(
                    one.subject, one.data, reply=f"{inbox}.{i}", headers=dict(one.headers)
                )
            taken: dict[int, Taken] = {}
            while len(taken) < len(messages):
                answer = await self._next(answers.next_msg)
                taken[int(answer.subject.rpartition(".")[2])] = _taken(answer)
            return [taken[i] for i in range(len(messages))]
        finally:
            if not self._driver.is_closed:
                await answers.unsubscribe()

    async def _next(self, wait: Callable[[float], Coroutine[object, object, Msg]]) -> Msg:
        """The next message; a connection that is lost meanwhile is noticed."""
        deadline = time.monotonic() + self._settings.timeout
        while True:
            if self._driver.is_closed:
                raise ConnectionError("the connection was lost")
            try:
                return await wait(0.25)
            except self._library.errors.TimeoutError:
                if time.monotonic() > deadline:
                    raise


def _got(message: Msg) -> Got:
    # $JS.ACK.STREAM.CONSUMER.DELIVERED.SEQUENCE.NUMBER.MOMENT.PENDING; with a domain two more stand before STREAM.
    words = message.reply.split(".")
    first = 4 if len(words) == 9 else 6
    sequence, number, moment = (int(word) for word in words[first + 1 : first + 4])
    return Got(message.subject, message.headers or {}, message.data, sequence, number, moment)


def _taken(answer: Msg) -> Taken:
    if (answer.headers or {}).get("Status") == "503":
        return Taken(error=_Error(404, 503, "no stream takes this subject"))
    return msgspec.json.decode(answer.data, type=Taken)
