"""Answers of the console: JSON, what is wrong, and events; all under one policy.

By it a page loads nothing from elsewhere, and no other page can show it in a frame. Only the page itself is told who
referred to it: a browser that may tell nobody says that the login form has no origin.
"""

from __future__ import annotations

import msgspec
from aiohttp import web

from penstock.base.secrets import mask

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def json_answer(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value, enc_hook=str), content_type="application/json")


def masked(value: object) -> object:
    """Plain values without any secret in their texts, however deep."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {name: masked(one) for name, one in value.items()}
    return [masked(one) for one in value] if isinstance(value, list | tuple) else value


def problem(status: int, message: str, hint: str | None = None) -> web.Response:
    response = json_answer({"error": message, "hint": hint})
    response.set_status(status)
    return response


def event(name: str, data: bytes) -> bytes:
    """One server-sent event."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
