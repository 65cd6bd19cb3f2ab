"""A server whose answers are full of escape sequences. It poses as SQS, as a dashboard and as a worker."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

ESCAPES: Final = "\x1b]0;owned\x07\x1b[2J\u009b31m\u202eevil\r"
MESSAGE: Final = {"message_id": ESCAPES, "state": ESCAPES, "since": 1.0, "attempt": 1, "heartbeat_age": 1.0}
QUEUE: Final = {"paused": False, "concurrency": 1, "receivers": 1, "seconds_since_poll": 1.0, "in_progress": 1}
ANSWERS: Final[dict[str, dict[str, Any]]] = {
    "/health": {"live": True, "ready": True, "details": {"queues": {ESCAPES: QUEUE}}},
    "/workers": {
        **dict.fromkeys(("id", "host", "version", "app"), ESCAPES),
        "pid": 1,
        "pids": [1],
        "processes": 1,
        "started": 1.0,
        "stopping": False,
        "queues": {ESCAPES: {**QUEUE, "handler": ESCAPES, "messages": [{**MESSAGE, "key": ESCAPES}]}},
    },
    "/control": {"done": ESCAPES, "queues": {}},
}
REFUSAL: Final = dict.fromkeys(("__type", "message", "error", "what_to_do"), ESCAPES)


class _Hostile(BaseHTTPRequestHandler):
    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        known = ANSWERS.get(self.path.partition("?")[0])
        body = json.dumps(known or REFUSAL).encode()
        self.send_response(200 if known else 403, "\x1b[2J")
        self.send_header("Content-Type", "application/json")
        self.send_header("x-amzn-query-error", "\x1b[2J;Sender")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = _answer

    def log_message(self, format: str, *args: Any) -> None: ...


@contextmanager
def hostile_server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Hostile) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
