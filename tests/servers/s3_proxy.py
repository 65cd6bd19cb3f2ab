"""A proxy in front of an S3-compatible server. It can answer instead of the server, or lose the server's answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, bytes]


class Proxy:
    """Sits between the store and a real server. `fault` may answer instead of the server, or lose its answer (None)."""

    def __init__(self, server: str) -> None:
        self.requests: list[str] = []
        self.dropped_header = ""
        self.fault: Callable[[str, Callable[[], Answer]], Answer | None] = lambda _, forward: forward()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                proxy.requests.append(self.command)
                answered: dict[str, str] = {}

                def forward() -> Answer:
                    connection = HTTPConnection(server)
                    headers = {name: value for name, value in self.headers.items() if name != proxy.dropped_header}
                    connection.request(self.command, self.path, body, headers)
                    answer = connection.getresponse()
                    answered.update(answer.getheaders())
                    return answer.status, answer.read()

                answer = proxy.fault(self.command, forward)
                self.close_connection = True
                if answer is None:
                    return
                self.send_response(answer[0])
                for name in ("ETag", "Last-Modified", "Content-Type"):
                    if name in answered:
                        self.send_header(name, answered[name])
                self.send_header("Content-Length", answered.get("Content-Length", str(len(answer[1]))))
                self.end_headers()
                self.wfile.write(answer[1])

            do_GET = do_PUT = do_POST = handle_any

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def error(status: int, code: str) -> Answer:
    return status, f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>as told</Message></Error>".encode()


def first(count: int, fault: Callable[[Callable[[], Answer]], Answer | None], method: str = "PUT") -> Any:
    """The first `count` calls of a method have this fault."""
    left = [count]

    def choose(command: str, forward: Callable[[], Answer]) -> Answer | None:
        if command == method and left[0]:
            left[0] -= 1
            return fault(forward)
        return forward()

    return choose


def losing_the_answer(forward: Callable[[], Answer]) -> None:
    forward()
