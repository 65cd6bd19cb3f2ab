"""The workers that are registered in the state folder or named in the settings, as their health endpoints report.

All are asked in parallel, for two seconds at most; a worker that does not answer is shown with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from semel.dashboard.sources.cache import TtlCache
from semel.dashboard.views.model import DashboardError, InProgress, NotThere, WorkerQueue, WorkerRow, WorkersPage
from semel.errors import SemelError
from semel.telemetry import worker_client
from semel.telemetry import worker_registry as registry
from semel.telemetry.health_server import Health
from semel.telemetry.worker_client import WorkerError

TIMEOUT: Final = 2.0  # seconds
MAX_WORKERS: Final = 256
_CACHE_SECONDS: Final = 0.8
_THREADS: Final = 16
_IDENTITY: Final = ("id", "host", "pid", "started", "app", "version")
HOW: Final = "Start one with `semel run APP --health 0`, or name it: semel dashboard --worker HOST:PORT"


class WorkerDirectory:
    """Thread-safe."""

    def __init__(self, named: Sequence[str] = (), *, token: str | None = None, folder: Path | None = None) -> None:
        self._named = [address_of(text) for text in named]
        self._token, self._folder = token, folder
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="semel-workers")
        self._page: TtlCache[WorkersPage] = TtlCache(_CACHE_SECONDS)

    def addresses(self) -> list[WorkerRow]:
        """Each endpoint once, with what is known without a request. A registry entry replaces a bare address."""
        registered = {worker.url: _registered(worker) for worker in registry.workers(self._folder)}
        named = {url: WorkerRow(url.partition("://")[2], url) for url in self._named if url not in registered}
        return list((registered | named).values())[:MAX_WORKERS]

    def page(self) -> WorkersPage:
        return self._page.get("", self._read)

    def count_by_queue(self) -> Mapping[str, int]:
        """How many workers receive from each queue."""
        return Counter(queue.name for worker in self.page().workers for queue in worker.queues if not queue.paused)

    def in_progress(self, message_id: str) -> InProgress | None:
        messages = (
            message for worker in self.page().workers for queue in worker.queues for message in queue.in_progress
        )
        return next((message for message in messages if message.message_id == message_id), None)

    def metrics(self) -> dict[str, str]:
        """The metrics page of each worker that answers, by its id."""
        workers = self.addresses()
        texts = self._pool.map(_metrics, workers)
        return {worker.id: text for worker, text in zip(workers, texts, strict=True) if text}

    def control(self, worker: str, action: str, queue: str | None, value: int | None) -> str:
        """Returns what the worker did, in a sentence."""
        row = next((row for row in self.page().workers if row.id == worker), None)
        if row is None:
            raise NotThere(f"there is no worker {worker}", "reload the list of workers")
        try:
            answer = worker_client.send_command(row.url, action, queue=queue, value=value, token=self._token)
        except WorkerError as error:
            raise DashboardError(f"worker {worker}: {error}", _advice(error.status), error.status or 502) from None
        finally:
            self._page.forget()
        return str(answer.get("done", "done"))

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _read(self) -> WorkersPage:
        workers = tuple(self._pool.map(self._row, self.addresses()))
        notes = () if workers else (f"No worker is known. {HOW}",)
        return WorkersPage(workers, notes)

    def _row(self, known: WorkerRow) -> WorkerRow:
        try:
            answer = worker_client.get_worker(known.url, token=self._token, timeout=TIMEOUT)
        except WorkerError as error:
            return replace(known, error=f"{error} {_advice(error.status)}".strip())
        health = _health(known.url)
        row = replace(known, **{name: answer[name] for name in _IDENTITY if answer.get(name)})
        queues = tuple(_queue(name, queue, row.id) for name, queue in sorted(answer.get("queues", {}).items()))
        return replace(
            row,
            live=health.live,
            ready=health.ready and not answer.get("stopping"),
            paused=bool(queues) and all(queue.paused for queue in queues),
            controllable=True,
            processes=int(answer.get("processes", 1)),
            queues=queues,
        )


def _registered(worker: registry.Registered) -> WorkerRow:
    queues = tuple(WorkerQueue(name, paused=False, concurrency=None) for name in worker.queues)
    return WorkerRow(worker.id, worker.url, worker.host, worker.pid, worker.started, app=worker.app, queues=queues)


def _queue(name: str, answer: Mapping[str, Any], worker: str) -> WorkerQueue:
    return WorkerQueue(
        name=name,
        paused=bool(answer.get("paused")),
        concurrency=answer.get("concurrency"),
        in_progress=tuple(_in_progress(name, worker, message) for message in answer.get("messages", ())),
        in_flight=int(answer.get("in_progress", 0)),
        settings={key: str(value) for key, value in (answer.get("settings") or {}).items() if value is not None},
    )


def _in_progress(queue: str, worker: str, message: Mapping[str, Any]) -> InProgress:
    known = {name: value for name, value in message.items() if value is not None}
    return msgspec.convert({"message_id": "", **known, "queue": queue, "worker": worker}, InProgress, strict=False)


def address_of(text: str) -> str:
    """`host:port` or a URL, as a URL."""
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        port, parts = None, urlsplit("http://")
    if parts.scheme not in ("http", "https") or not parts.hostname or port is None:
        raise SemelError(f"--worker {text}: write HOST:PORT, as `semel run --health` reports it")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port}"


def _metrics(worker: WorkerRow) -> str:
    try:
        return worker_client.get_metrics(worker.url, timeout=TIMEOUT)
    except WorkerError:
        return ""  # its row says why


def _health(url: str) -> Health:
    try:
        return worker_client.get_health(url, timeout=TIMEOUT)
    except SemelError as error:
        return Health(False, False, {"error": str(error)})


def _advice(status: int) -> str:
    if status in (401, 403):
        return "Pass its token: semel dashboard --control-token, or SEMEL_CONTROL_TOKEN"
    return ""
