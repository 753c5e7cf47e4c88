"""Messages on their way to a server, many at a time: a connection with a thread of its own.

The driver's blocking channel waits for the confirm of each message before the next one; here a whole bulk is sent, and
then its confirms are waited for. The thread also answers heartbeats while there is nothing to publish.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from penstock.adaptors.rabbitmq import RabbitMq
from penstock.adaptors.rabbitmq.client import closed, connected, driver, parameters_of
from penstock.base.errors import PenstockError

if TYPE_CHECKING:
    from pika import BasicProperties
    from pika.adapters.asyncio_connection import AsyncioConnection
    from pika.channel import Channel
    from pika.frame import Method

Result = TypeVar("Result")

_LAST = 5.0
"""Seconds for a connection to say good-bye."""


class Outgoing(NamedTuple):
    """A message to be published; `offset` is for texts."""

    exchange: str
    key: str
    body: bytes
    properties: BasicProperties
    offset: int


class NotTakenError(Exception):
    """What became of a message that is in no queue."""

    def __init__(self, message: Outgoing) -> None:
        super().__init__(message.offset)
        self.message = message


class UnroutedError(NotTakenError):
    """It reached none."""


class NackedError(NotTakenError):
    """The server did not take it."""


class Publishing:
    """Opened when made. Errors are those of the driver, `TimeoutError`, and those above; after one, close it."""

    def __init__(self, settings: RabbitMq) -> None:
        # The blocking connection tells apart why there is none: a password, a certificate, a host that is not there.
        closed(connected(settings))
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rabbitmq publisher", daemon=True)
        self._thread.start()
        self._connection: AsyncioConnection | None = None
        self._channel: Channel | None = None
        self._gone: asyncio.Future[None] = self._loop.create_future()
        """Set, with the reason, when connection or channel end."""
        self._sent = 0
        self._open: dict[int, Outgoing] = {}
        """What waits for its confirm, by delivery tag."""
        self._returned: set[str] = set()
        self._confirmed: asyncio.Future[None] | None = None
        try:
            self._run(self._connect())
        except BaseException:
            self.close()
            raise

    def publish(self, bulk: Sequence[Outgoing]) -> None:
        """Send them, in their order, and wait until the server has them all."""
        self._run(self._publish(bulk))

    def check(self) -> None:
        """Raise why there is no connection any more."""
        self._run(self._still_there())

    def close(self) -> None:
        """Let go of it, in any state."""
        if self._loop.is_closed():
            return
        with suppress(Exception):  # what is wrong with a connection that ends is of no interest any more
            self._run(self._disconnect())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[None, None, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _connect(self) -> None:
        from pika.adapters.asyncio_connection import AsyncioConnection

        ready: asyncio.Future[None] = self._loop.create_future()
        channels: list[Channel] = []
        self._connection = AsyncioConnection(
            parameters_of(self._settings),
            on_open_callback=lambda _: ready.set_result(None),
            on_open_error_callback=lambda _, reason: ready.set_exception(_as_error(reason)),
            on_close_callback=lambda _, reason: self._ended(reason),
            custom_ioloop=self._loop,
        )
        await self._within(ready)
        opened: asyncio.Future[None] = self._loop.create_future()

        def on_channel(channel: Channel) -> None:
            channels.append(channel)
            opened.set_result(None)

        self._connection.channel(on_open_callback=on_channel)
        await self._within(opened)
        (channel,) = channels
        channel.add_on_close_callback(lambda _, reason: self._ended(reason))
        channel.add_on_return_callback(self._came_back)
        selected: asyncio.Future[None] = self._loop.create_future()
        channel.confirm_delivery(self._answered, callback=lambda _: selected.set_result(None))
        await self._within(selected)
        self._channel = channel

    async def _publish(self, bulk: Sequence[Outgoing]) -> None:
        await self._still_there()
        channel = self._channel
        if channel is None:
            raise PenstockError(f"the sink at {self._settings.place} is not open")
        self._returned.clear()
        self._confirmed = self._loop.create_future()
        for one in bulk:
            self._sent += 1
            self._open[self._sent] = one
            channel.basic_publish(one.exchange, one.key, one.body, one.properties, self._settings.mandatory)
        if self._open:
            await self._within(self._confirmed)
        for one in bulk:
            if one.properties.message_id in self._returned:
                raise UnroutedError(one)

    async def _still_there(self) -> None:
        if self._gone.done():
            self._gone.result()

    async def _within(self, wanted: asyncio.Future[None]) -> None:
        """Wait for it, as long as something moves."""
        while not wanted.done():
            before = len(self._open)
            done, _ = await asyncio.wait(
                {wanted, self._gone}, timeout=self._settings.timeout, return_when=asyncio.FIRST_COMPLETED
            )
            if self._gone in done and not wanted.done():
                self._gone.result()
            if not done and len(self._open) == before:
                raise TimeoutError(f"no answer for {self._settings.timeout:g} s")
        wanted.result()

    def _answered(self, frame: Method) -> None:
        """A confirm: of one message, or of all up to one."""
        answer = frame.method
        tags = (
            [tag for tag in self._open if tag <= answer.delivery_tag]
            if answer.multiple
            else [answer.delivery_tag]
        )
        found = [self._open.pop(tag) for tag in tags if tag in self._open]
        if self._confirmed is None or self._confirmed.done():
            return
        if isinstance(answer, driver().spec.Basic.Nack) and found:
            self._confirmed.set_exception(NackedError(found[0]))
        elif not self._open:
            self._confirmed.set_result(None)

    def _came_back(self, _: object, __: object, properties: BasicProperties, ___: object) -> None:
        """A message that reached no queue: told before its confirm."""
        self._returned.add(properties.message_id or "")

    def _ended(self, reason: BaseException) -> None:
        if not self._gone.done():
            self._gone.set_exception(_as_error(reason))
            self._gone.exception()  # it may never be asked for

    async def _disconnect(self) -> None:
        connection = self._connection
        if connection is None or connection.is_closed:
            return
        if not connection.is_closing:
            connection.close()
        await asyncio.wait({self._gone}, timeout=_LAST)


def _as_error(reason: BaseException | str) -> BaseException:
    """The driver's reasons are exceptions, or texts."""
    return reason if isinstance(reason, BaseException) else driver().exceptions.AMQPConnectionError(reason)
