"""The driver: connections with Penstock's settings, the management API, and what errors mean."""

from __future__ import annotations

import base64
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

import msgspec

from penstock.adaptors import tls
from penstock.adaptors.needs import need
from penstock.adaptors.rabbitmq import RabbitMq
from penstock.base.errors import AwayError, PenstockError, UsageError
from penstock.base.secrets import mask

if TYPE_CHECKING:
    from pika import BlockingConnection, ConnectionParameters

NOT_FOUND, DENIED = 404, 403


class Queue(msgspec.Struct):
    """A queue as the management API tells of it."""

    name: str
    messages: int | None = None


def driver() -> ModuleType:
    return need("pika", "rabbitmq")


def connected(settings: RabbitMq) -> BlockingConnection:
    """A connection that notices within the timeout that its server is gone, or takes no messages."""
    connection: BlockingConnection = driver().BlockingConnection(parameters_of(settings))
    return connection


def parameters_of(settings: RabbitMq) -> ConnectionParameters:
    pika, parts = driver(), urlsplit(settings.uri)
    host = unquote(parts.path[1:]) or "/"
    user, password = unquote(parts.username or "guest"), unquote(parts.password or "guest")
    options = None
    if parts.scheme == "amqps":
        options = pika.SSLOptions(context(settings), parts.hostname)
    parameters: ConnectionParameters = pika.ConnectionParameters(
        host=parts.hostname, port=int(settings.place.rpartition(":")[2]), virtual_host=host,
        credentials=pika.PlainCredentials(user, password), ssl_options=options, heartbeat=int(settings.timeout) + 1,
        socket_timeout=settings.timeout, stack_timeout=settings.timeout,
        blocked_connection_timeout=settings.timeout, client_properties={"connection_name": "penstock"},
    )  # fmt: skip
    return parameters


def context(settings: RabbitMq) -> ssl.SSLContext:
    return tls.context(settings.ca, settings.certificate, settings.private_key)


@contextmanager
def asking(settings: RabbitMq, what: str) -> Iterator[None]:
    """Errors of the driver come out as Penstock's; `what` could not be done."""
    try:
        yield
    except (driver().exceptions.AMQPError, OSError) as error:
        raise told(settings, what, error) from None


def told(settings: RabbitMq, what: str, error: Exception) -> PenstockError:
    errors = driver().exceptions
    if distrust := tls.untrusted(error, settings.place):
        return distrust
    reason = mask(str(error) or type(error).__name__)
    text = f"{what} at {settings.place}: {reason}"
    if isinstance(error, errors.ProbableAuthenticationError | errors.AuthenticationError):
        return UsageError(text, hint="see user and password in the setting 'uri'")
    if isinstance(error, errors.ProbableAccessDeniedError):
        return UsageError(text, hint="see the virtual host in the setting 'uri', and the rights of its user")
    if isinstance(error, errors.ChannelClosedByBroker) and error.reply_code in (NOT_FOUND, DENIED):
        return UsageError(text, hint="see that it is there, and that the user of this pipeline has the right")
    if isinstance(error, errors.ConnectionClosedByBroker) and error.reply_code == DENIED:
        return UsageError(text, hint="see user and password in the setting 'uri'")
    return AwayError(text)


def closed(connection: BlockingConnection) -> None:
    """Close what may be closed already, or be beyond closing."""
    with suppress(driver().exceptions.AMQPError, OSError):
        connection.close()


def listed(settings: RabbitMq) -> list[Queue]:
    """The queues of the virtual host, as the management API has them."""
    parts = urlsplit(settings.uri)
    vhost = quote(unquote(parts.path[1:]) or "/", safe="")
    url = f"{settings.management.rstrip('/')}/api/queues/{vhost}?columns=name,messages"
    login = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
    request = urllib.request.Request(
        url, headers={"Authorization": "Basic " + base64.b64encode(login.encode()).decode()}
    )
    secure = context(settings) if url.startswith("https") else None
    what = f"cannot list the queues at {urlsplit(settings.management).netloc.rpartition('@')[2]}"
    try:
        with urllib.request.urlopen(request, timeout=settings.timeout, context=secure) as answer:
            return msgspec.json.decode(answer.read(), type=list[Queue])
    except urllib.error.HTTPError as error:
        kind = AwayError if error.code >= 500 else UsageError
        raise kind(f"{what}: {error.code} {error.reason}") from None
    except (OSError, ValueError) as error:
        if distrust := tls.untrusted(error, urlsplit(settings.management).netloc.rpartition("@")[2]):
            raise distrust from None
        raise AwayError(f"{what}: {mask(str(error))}") from None
