"""Just enough of Azure's and of Google's blob services to see that our requests arrive as meant.

Both keep objects under `container/key`. Azure puts large ones as blocks and a list of them, removes by a batch,
and has a token service; Google has the uploads and listings of S3.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

MODIFIED = "Sun, 06 Nov 2022 08:49:37 GMT"
XML = '<?xml version="1.0" encoding="utf-8"?>'


@dataclass
class Blobs:
    """What a server holds and what it was told."""

    endpoint: str = ""
    content: dict[str, bytes] = field(default_factory=dict)
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    parts: dict[tuple[str, str], bytes] = field(default_factory=dict)
    tokens: list[str] = field(default_factory=list)
    """What the token service was asked with."""
    authorizations: list[str] = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    blobs: Blobs

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content_Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def received(self) -> tuple[str, dict[str, list[str]], bytes]:
        parts = urlsplit(self.path)
        self.blobs.authorizations.append(self.headers.get("Authorization", "").split(" ")[0])
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        return unquote(parts.path).lstrip("/"), parse_qs(parts.query, keep_blank_values=True), body

    def store(self, path: str, content: bytes) -> None:
        self.blobs.content[path] = content
        self.blobs.headers[path] = dict(self.headers.items())

    def do_POST(self) -> None:
        path, query, body = self.received()
        if query.get("comp") == ["batch"]:
            self.remove_batch(body.decode())
        elif "uploads" in query:
            start = f"<Bucket>x</Bucket><Key>x</Key><UploadId>{escape(path)}</UploadId>"
            self.answer(
                200, f"{XML}<InitiateMultipartUploadResult>{start}</InitiateMultipartUploadResult>".encode()
            )
        elif "uploadId" in query:
            numbers = re.findall(r"<PartNumber>(\d+)<", body.decode())
            self.store(path, b"".join(self.blobs.parts[path, number] for number in numbers))
            done = f"{XML}<CompleteMultipartUploadResult><ETag>1</ETag></CompleteMultipartUploadResult>"
            self.answer(200, done.encode())
        else:
            self.blobs.tokens.append(body.decode())
            self.answer(200, b'{"access_token": "token", "expires_in": 3600, "token_type": "Bearer"}')

    def remove_batch(self, body: str) -> None:
        parts = []
        for number, url in enumerate(re.findall(r"DELETE (\S+) HTTP", body)):
            found = self.blobs.content.pop(unquote(urlsplit(url).path).lstrip("/"), None)
            status = "404 Not Found" if found is None else "202 Accepted"
            parts.append(
                "--cut\r\nContent-Type: application/http\r\n"
                f"Content-ID: {number}\r\n\r\nHTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n\r\n"
            )
        self.answer(
            202, "".join([*parts, "--cut--\r\n"]).encode(), Content_Type="multipart/mixed; boundary=cut"
        )

    def do_PUT(self) -> None:
        path, query, body = self.received()
        part = query.get("blockid") or query.get("partNumber")
        if part is not None:
            self.blobs.parts[path, part[0]] = body
        elif query.get("comp") == ["blocklist"]:
            ids = re.findall(r"<(?:Uncommitted|Latest)>([^<]*)<", body.decode())
            self.store(path, b"".join(self.blobs.parts[path, block] for block in ids))
        else:
            self.store(path, body)
        self.answer(201, ETag='"1"', Last_Modified=MODIFIED)

    def do_DELETE(self) -> None:
        path, _, _ = self.received()
        self.answer(404 if self.blobs.content.pop(path, None) is None else 204)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path, query, _ = self.received()
        if "comp" in query or "list-type" in query:
            self.answer(200, self.listing(path, query.get("prefix", [""])[0], azure="comp" in query))
            return
        content = self.blobs.content.get(path)
        if content is None:
            self.answer(404)
            return
        told = {"ETag": '"1"', "Last_Modified": MODIFIED, "x_ms_blob_type": "BlockBlob"}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if wanted is None:
            self.answer(200, content, **told)
            return
        start, end = int(wanted[1]), min(int(wanted[2]) + 1, len(content))
        if start >= len(content):
            self.answer(416)
            return
        self.answer(206, content[start:end], Content_Range=f"bytes {start}-{end - 1}/{len(content)}", **told)

    def listing(self, container: str, prefix: str, *, azure: bool) -> bytes:
        found = {
            escape(path.removeprefix(f"{container}/")): len(content)
            for path, content in sorted(self.blobs.content.items())
            if path.startswith(f"{container}/{prefix}")
        }
        if not azure:
            contents = "".join(
                f"<Contents><Key>{name}</Key><Size>{size}</Size><ETag>1</ETag>"
                "<LastModified>2022-11-06T08:49:37.000Z</LastModified></Contents>"
                for name, size in found.items()
            )
            return f"{XML}<ListBucketResult>{contents}</ListBucketResult>".encode()
        contents = "".join(
            f"<Blob><Name>{name}</Name><Properties><Last-Modified>{MODIFIED}</Last-Modified>"
            f"<Content-Length>{size}</Content-Length><Content-Type>x/y</Content-Type><Etag>1</Etag>"
            "</Properties></Blob>"
            for name, size in found.items()
        )
        return (
            f"{XML}<EnumerationResults><Blobs>{contents}</Blobs><NextMarker/></EnumerationResults>".encode()
        )


@contextmanager
def blob_server() -> Iterator[Blobs]:
    blobs = Blobs()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"blobs": blobs}))
    blobs.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield blobs
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
