"""A proxy in front of a broker that refuses some operations, as IAM would."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.error import HTTPError

from semel.broker import EmbeddedBroker


class Authorisation:
    """`refused` has operations, or `operation queue` for one queue only. `asked` has all operations in order."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.refused: set[str] = set()
        self.asked: list[str] = []


@contextmanager
def gatekeeper(broker: EmbeddedBroker) -> Iterator[Authorisation]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            operation = self.headers["X-Amz-Target"].partition(".")[2]
            params = json.loads(body)
            queue = params.get("QueueName") or params.get("QueueUrl", "").rpartition("/")[2]
            auth.asked.append(operation)
            if auth.refused & {operation, f"{operation} {queue}"}:
                text = f"User is not authorized to perform: sqs:{operation} on resource {queue}"
                error = {"__type": "com.amazonaws.sqs#AccessDeniedException", "message": text}
                self._answer(403, json.dumps(error).encode(), "AccessDenied;Sender")
                return
            request = urllib.request.Request(broker.url, body, dict(self.headers))
            try:
                with urllib.request.urlopen(request) as answer:
                    self._answer(answer.status, answer.read())
            except HTTPError as error:
                with error:
                    self._answer(error.code, error.read(), error.headers["x-amzn-query-error"])

        def _answer(self, status: int, body: bytes, code: str | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.0")
            self.send_header("Content-Length", str(len(body)))
            if code:
                self.send_header("x-amzn-query-error", code)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    auth = Authorisation(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield auth
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
