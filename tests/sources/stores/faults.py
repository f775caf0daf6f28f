"""A proxy before a server of HTTP that throttles, breaks off, shortens and loses objects."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

_BUSY = "SlowDown", "Please reduce your request rate."
_GONE = "NoSuchKey", "The specified key does not exist."
#: What stands in the query of a listing: of S3, and of Azure.
_LISTINGS = ("list-type", "comp=list")
#: What the proxy writes itself.
_OWN_HEADERS = ("content-length", "transfer-encoding", "connection")
ALWAYS = 1_000_000


@dataclass
class Faults:
    """What the proxy does to objects whose key contains a text, how often, and how much of each key it sent.

    A connection that is cut breaks in the middle of the content; of what is shortened half is given as all of it. What
    is lost is listed, but not there.
    """

    throttled: dict[str, int] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    shortened: dict[str, int] = field(default_factory=dict)
    lost: str = ""
    bytes_sent: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, counts: dict[str, int], key: str) -> bool:
        """Whether a fault is due, which is then over once more."""
        with self.lock:
            due = next((text for text, count in counts.items() if text in key and count > 0), None)
            if due is not None:
                counts[due] -= 1
            return due is not None

    def is_lost(self, key: str) -> bool:
        return bool(self.lost) and self.lost in key


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, origin: str, faults: Faults) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.origin = urlsplit(origin).netloc
        self.faults = faults


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Proxy

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _serve(self) -> None:
        faults, parts = self.server.faults, urlsplit(self.path)
        key, is_listing = unquote(parts.path), any(word in parts.query for word in _LISTINGS)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if faults.take(faults.throttled, key):
            self._refuse(503, _BUSY)
        elif faults.is_lost(key):
            self._refuse(404, _GONE)
        else:
            self._pass_on(key, body, is_listing=is_listing)

    do_GET = do_HEAD = do_PUT = do_POST = _serve  # noqa: N815 - the names that http.server calls

    def _refuse(self, status: int, problem: tuple[str, str]) -> None:
        content = "<Error><Code>{}</Code><Message>{}</Message></Error>".format(*problem).encode()
        self._answer(status, [("Content-Type", "application/xml")], content)

    def _pass_on(self, key: str, body: bytes, *, is_listing: bool) -> None:
        faults = self.server.faults
        connection = HTTPConnection(self.server.origin, timeout=60)
        connection.request(self.command, self.path, body, dict(self.headers))
        response = connection.getresponse()
        if self.command == "HEAD":
            self._pass_on_head(response)
        else:
            content = response.read()
            is_content, half = self.command == "GET" and not is_listing, len(content) // 2
            is_cut = is_content and faults.take(faults.cut, key)
            if is_content and faults.take(faults.shortened, key):
                content = content[:half]
            with faults.lock:
                faults.bytes_sent[key] += len(content)
            self._answer(response.status, response.getheaders(), content, half if is_cut else None)
        connection.close()

    def _pass_on_head(self, response: HTTPResponse) -> None:
        self.send_response_only(response.status)
        for name, value in response.getheaders():
            self.send_header(name, value)
        if response.headers.get("Content-Length") is None:
            self.send_header("Content-Length", "0")
        self.end_headers()

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes, sent: int | None = None) -> None:
        """Answer with a body, of which only so many bytes are sent."""
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in _OWN_HEADERS:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body[:sent])
        if sent is not None:
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def faulty(server: str, faults: Faults) -> Iterator[str]:
    """The address of a proxy before a server."""
    proxy = _Proxy(server, faults)
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{proxy.server_port}"
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()
