"""Calls from outside over HTTP: each becomes an Impulse, and is answered once it is in the log and handled.

    POST /call/METHOD        arguments as a JSON array or object; `Idempotency-Key`: the same key happens once
    GET  /ready              answers as long as this is the primary
    GET  /methods/METHOD     whether there is such a method to call
    GET  /state              the declared fields
    GET  /sinks/NAME         what a pipeline's sink has delivered here
    POST /sinks/NAME         messages of a pipeline's sink (MessagePack)
    GET  /emitted?after=N    what was emitted behind number N; waits a while for more
    POST /taken?number=N     the pipeline's log has it up to N

Only a primary listens, and without a token it answers no web page (`base.webpages`). A request whose answer does not
come in time may still happen: ask again with the same key.
"""

from __future__ import annotations

import asyncio
import hmac
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.base.errors import UsageError
from penstock.base.webpages import refusal
from penstock.immortal.binding.shell import Shell
from penstock.immortal.binding.snapshot import Outcome, SinkState

if TYPE_CHECKING:
    from aiohttp import web

MAX_BODY = 32 << 20
MAX_WAITING = 10_000
ANSWER = 30.0
POLL = 20.0
MOST = 10_000
MOST_BYTES = 1 << 20


class Posted(msgspec.Struct, frozen=True, array_like=True):
    """The body of a delivery: the sink's position after it, the method, the messages."""

    after: SinkState
    method: str
    messages: list[bytes]


class Ingress:
    """The HTTP endpoint of one primary."""

    def __init__(self, shell: Shell, *, token: str = "", timeout: float = ANSWER) -> None:
        self._shell = shell
        self._machine = shell.machine
        self._token = token
        self._timeout = timeout

    async def serve(self, host: str, port: int, listening: Callable[[int], None] | None = None) -> None:
        """Serve until cancelled."""
        from aiohttp import web

        app = web.Application(client_max_size=MAX_BODY, middlewares=[self._checked(host)])
        app.router.add_post("/call/{method}", self._call)
        app.router.add_get("/ready", self._ready)
        app.router.add_get("/methods/{method}", self._method)
        app.router.add_get("/state", self._state)
        app.router.add_get("/sinks/{name}", self._sink)
        app.router.add_post("/sinks/{name}", self._deliver)
        app.router.add_get("/emitted", self._emitted)
        app.router.add_post("/taken", self._taken)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port)
            await site.start()
            if listening is not None:
                addresses: list[Any] = runner.addresses
                listening(int(addresses[0][1]))
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    def _checked(self, host: str) -> Any:
        from aiohttp import web

        @web.middleware
        async def checked(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
            if self._token and not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
                return answer({"error": "Unauthorized", "message": "a bearer token is wanted"}, 401)
            refused = None if self._token else refusal(host, request.headers)
            if refused is not None:
                return answer(
                    {"error": "Forbidden", "message": f"{refused.why}, or set a token"}, refused.status
                )
            if len(self._shell.waiting.futures) >= MAX_WAITING:
                return answer({"error": "Busy", "message": f"{MAX_WAITING} calls wait already"}, 503)
            try:
                return await handler(request)
            except UsageError as error:
                return answer({"error": "UsageError", "message": str(error)}, 400)
            except (msgspec.DecodeError, ValueError, OverflowError) as error:
                return answer({"error": "BadRequest", "message": str(error)}, 400)

        return checked

    async def _ask(self, send: Callable[[str], None]) -> Outcome | None:
        """Send something that has an outcome, and wait for it; None if that takes too long."""
        request = uuid.uuid4().hex
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._shell.waiting.futures[request] = future
        try:
            send(request)
            self._shell.wrote()
            async with asyncio.timeout(self._timeout):
                return await future
        except TimeoutError:
            return None
        finally:
            self._shell.waiting.futures.pop(request, None)

    async def _call(self, request: web.Request) -> web.Response:
        body = await request.read()
        arguments = msgspec.json.decode(body) if body.strip() else []
        if not isinstance(arguments, list | dict):
            raise UsageError("arguments are a JSON array, or an object by name")
        key = request.headers.get("Idempotency-Key", "")
        method = request.match_info["method"]
        services = self._machine.services
        outcome = await self._ask(lambda asked: services.ask(time.time(), asked, key, method, arguments))
        return self._told(outcome)

    def _told(self, outcome: Outcome | None) -> web.Response:
        if outcome is None:
            text = "no answer in time; it may still happen: ask again with the same Idempotency-Key"
            return answer({"error": "TimeOut", "message": text}, 504)
        if outcome.kind:
            status = 400 if outcome.kind == "UsageError" else 422
            return answer({"error": outcome.kind, "message": outcome.error}, status)
        result = msgspec.msgpack.decode(outcome.result) if outcome.result else None
        return answer({"result": result})

    async def _ready(self, request: web.Request) -> web.Response:
        return answer({"instance": self._machine.name})

    async def _method(self, request: web.Request) -> web.Response:
        self._machine.services.method(request.match_info["method"])
        return answer({})

    async def _state(self, request: web.Request) -> web.Response:
        return answer(self._machine.state())

    async def _sink(self, request: web.Request) -> web.Response:
        known = self._machine.runtime.sinks.get(request.match_info["name"])
        return answer(known)

    async def _deliver(self, request: web.Request) -> web.Response:
        posted = msgspec.msgpack.decode(await request.read(), type=Posted)
        name = request.match_info["name"]
        services = self._machine.services
        outcome = await self._ask(
            lambda asked: services.deliver(
                time.time(), asked, name, posted.after, posted.method, posted.messages
            )
        )
        return self._told(outcome)

    async def _emitted(self, request: web.Request) -> web.Response:
        after = int(request.query.get("after", "0"))
        deadline = time.monotonic() + min(POLL, float(request.query.get("wait", "0")))
        runtime = self._machine.runtime
        while runtime.emitted <= after and (left := deadline - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(left), self._shell.moved:
                    await self._shell.moved.wait()
            except TimeoutError:
                break
        runtime = self._machine.runtime
        found: list[list[object]] = []
        size = 0
        for item in runtime.outbox:
            if item.number > after:
                key = None if item.key is None else item.key.decode()
                found.append([item.number, item.ts, item.ns, item.op, item.data.decode(), key])
                size += len(item.data)
                if len(found) >= MOST or size >= MOST_BYTES:
                    break
        page = {
            "instance": self._machine.name,
            "first": runtime.outbox[0].number if runtime.outbox else runtime.emitted + 1,
            "emitted": runtime.emitted,
            "namespaces": list(runtime.namespaces),
            "messages": found,
        }
        return answer(page)

    async def _taken(self, request: web.Request) -> web.Response:
        self._machine.services.taken(time.time(), int(request.query.get("number", "")))
        self._shell.wrote()
        return answer({})


def answer(value: object, status: int = 200) -> web.Response:
    from aiohttp import web

    body = msgspec.json.encode(value, enc_hook=str)
    return web.Response(body=body, status=status, content_type="application/json")
