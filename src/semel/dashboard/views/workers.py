"""The workers: those that left a note in the state folder, and those that were named; asked over their health endpoint.

The rules: all are asked at once and none is waited for longer than two seconds; one that does not answer is shown with
the reason, never left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from semel.dashboard.sources.cache import TtlCache
from semel.dashboard.views.errors import DashboardError, NotThere
from semel.dashboard.views.model import InProgress, WorkerQueue, WorkerRow, WorkersPage
from semel.errors import SemelError
from semel.telemetry import worker_client
from semel.telemetry import worker_registry as registry
from semel.telemetry.health_server import Health
from semel.telemetry.worker_client import WorkerError

PATIENCE: Final = 2.0  # seconds
MOST: Final = 256
_MOMENT: Final = 0.8
_AT_ONCE: Final = 16
HOW: Final = "Start one with `semel run APP --health 0`, or name it: semel dashboard --worker HOST:PORT"


@dataclass(frozen=True, slots=True)
class Address:
    """Where to ask. `id` is known if the worker left a note."""

    url: str
    id: str = ""
    host: str = ""
    pid: int | None = None
    started: float | None = None
    app: str = ""
    queues: tuple[str, ...] = ()


class WorkerDirectory:
    """All workers that are known. Thread-safe."""

    def __init__(self, named: Sequence[str] = (), *, token: str | None = None, folder: Path | None = None) -> None:
        self._named = [address_of(text) for text in named]
        self._token, self._folder = token, folder
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="semel-workers")
        self._page: TtlCache[WorkersPage] = TtlCache(_MOMENT)

    def addresses(self) -> list[Address]:
        """Each endpoint once: what it says of itself in a note counts for more than that it was named."""
        noted = {
            note.url: Address(note.url, note.id, note.host, note.pid, note.started, note.app, note.queues)
            for note in registry.workers(self._folder)
        }
        named = {url: Address(url) for url in self._named if url not in noted}
        return list((noted | named).values())[:MOST]

    def page(self) -> WorkersPage:
        return self._page.get("", self._look)

    def takers(self) -> Mapping[str, int]:
        """How many workers take from each queue."""
        found: dict[str, int] = {}
        for worker in self.page().workers:
            for queue in worker.queues:
                if not queue.paused:
                    found[queue.name] = found.get(queue.name, 0) + 1
        return found

    def holding(self, message_id: str) -> InProgress | None:
        held = (one for worker in self.page().workers for queue in worker.queues for one in queue.in_progress)
        return next((one for one in held if one.message_id == message_id), None)

    def metrics(self) -> dict[str, str]:
        """The metrics page of each worker that answers, by its id or URL."""
        addresses = self.addresses()
        texts = self._pool.map(_metrics, addresses)
        return {address.id or address.url: text for address, text in zip(addresses, texts, strict=True) if text}

    def control(self, worker: str, action: str, queue: str | None, value: int | None) -> str:
        """Tell a worker what to do; returns what was done, in a sentence."""
        row = next((row for row in self.page().workers if row.id == worker), None)
        if row is None:
            raise NotThere(f"there is no worker {worker} any more", "reload the list of workers")
        try:
            told = worker_client.send_command(row.url, action, queue=queue, value=value, token=self._token)
        except WorkerError as error:
            raise DashboardError(f"worker {worker}: {error}", _advice(error.status), error.status or 502) from None
        finally:
            self._page.forget()
        return str(told.get("done", "done"))

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _look(self) -> WorkersPage:
        workers = tuple(self._pool.map(self._row, self.addresses()))
        notes = () if workers else (f"No worker is known. {HOW}",)
        return WorkersPage(workers, notes)

    def _row(self, address: Address) -> WorkerRow:
        known: dict[str, Any] = {
            "id": address.id or address.url.partition("://")[2],
            "url": address.url,
            "host": address.host,
            "pid": address.pid,
            "started": address.started,
            "app": address.app,
        }
        try:
            told = worker_client.get_worker(address.url, token=self._token, timeout=PATIENCE)
        except WorkerError as error:
            queues = tuple(WorkerQueue(name, paused=False, concurrency=None) for name in address.queues)
            return WorkerRow(**known, queues=queues, error=f"{error} {_advice(error.status)}".strip())
        state = _health(address.url)
        known |= {name: told[name] for name in ("id", "host", "pid", "started", "app", "version") if told.get(name)}
        found = tuple(_queue(name, queue, str(known["id"])) for name, queue in sorted(told.get("queues", {}).items()))
        return WorkerRow(
            **known,
            live=state.live,
            ready=state.ready and not told.get("stopping"),
            paused=bool(found) and all(queue.paused for queue in found),
            controllable=True,
            processes=int(told.get("processes", 1)),
            queues=found,
        )


def _queue(name: str, told: Mapping[str, Any], worker: str) -> WorkerQueue:
    return WorkerQueue(
        name=name,
        paused=bool(told.get("paused")),
        concurrency=told.get("concurrency"),
        in_progress=tuple(_in_progress(name, worker, told.get("messages", ()))),
        in_flight=int(told.get("in_progress", 0)),
        settings={key: str(value) for key, value in (told.get("settings") or {}).items() if value is not None},
    )


def _in_progress(queue: str, worker: str, messages: Sequence[Mapping[str, Any]]) -> Iterator[InProgress]:
    for told in messages:
        yield InProgress(
            message_id=str(told.get("message_id", "")),
            queue=queue,
            worker=worker,
            key=str(told.get("key") or ""),
            handler=str(told.get("handler") or ""),
            state=str(told.get("state") or ""),
            since=float(told.get("since") or 0.0),
            attempt=told.get("attempt"),
            fence=told.get("fence"),
            heartbeat_age=told.get("heartbeat_age"),
            visible_for=told.get("visible_for"),
            lease_for=told.get("lease_for"),
            group=str(told.get("group") or ""),
        )


def address_of(text: str) -> str:
    """`host:port` or a URL, as a URL."""
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        port, parts = None, urlsplit("http://")
    if parts.scheme not in ("http", "https") or not parts.hostname or port is None:
        raise SemelError(f"--worker {text}: write HOST:PORT, the one that `semel run --health` says it listens on")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port}"


def _metrics(address: Address) -> str:
    try:
        return worker_client.get_metrics(address.url, timeout=PATIENCE)
    except WorkerError:
        return ""  # its row says why


def _health(url: str) -> Health:
    try:
        return worker_client.get_health(url, timeout=PATIENCE)
    except SemelError as error:
        return Health(False, False, {"error": str(error)})


def _advice(status: int) -> str:
    if status in (401, 403):
        return "Give its token: semel dashboard --control-token, or SEMEL_CONTROL_TOKEN"
    return ""
