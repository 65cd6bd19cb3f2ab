"""A broker in a thread, for tests: `with semel.broker.running() as sqs:`."""

from __future__ import annotations

import asyncio
import json
import threading
from base64 import b64encode
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

from semel.broker.auth import Credentials
from semel.broker.faults import Setting
from semel.broker.startup import Options, Running, start
from semel.errors import SemelError
from semel.extras import require

if TYPE_CHECKING:
    from boto3.session import Session
    from mypy_boto3_sqs import SQSClient


class EmbeddedClock:
    """The clock of an embedded broker."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker

    def now(self) -> float:
        """Broker time, in seconds since 1970."""
        return float(self._broker.admin("GET", "clock")["now"])

    def advance(self, seconds: float) -> None:
        """Moves a manual clock; returns when everything that fell due has happened."""
        self._broker.admin("POST", "clock/advance", {"seconds": seconds})


class EmbeddedFaults:
    """The faults of an embedded broker."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker

    def set(self, kind: str, rate: float, *, queue: str | None = None, milliseconds: float | None = None) -> None:
        """Switches a fault on, for all queues or for one; a rate of 0 switches it off."""
        setting = {"kind": kind, "rate": rate, "queue": queue, "milliseconds": milliseconds}
        self._broker.admin("PUT", "faults", setting)

    def clear(self, kind: str | None = None) -> None:
        """Switches one kind of fault off, or all of them."""
        self._broker.admin("DELETE", f"faults?{urlencode({'kind': kind})}" if kind else "faults")

    def counts(self) -> dict[str, int]:
        """How often each fault was injected."""
        return dict(self._broker.admin("GET", "faults")["injected"])


class EmbeddedBroker:
    """A broker that runs in a thread of this process. Everything here works from any thread.

    >>> from semel import Client
    >>> from semel.broker import running
    >>> with running(clock="manual") as broker:
    ...     sent = Client(broker.url).create_queue("orders").send("hello", delay=60)
    ...     broker.clock.advance(60)
    ...     [message] = broker.peek("orders", "visible")
    >>> message["Body"]
    'hello'
    """

    def __init__(self, url: str, region: str, key_pair: tuple[str, str] | None = None) -> None:
        """Internal. Use `running`."""
        self.url = url
        self.region = region
        self._key_pair = key_pair
        self.clock = EmbeddedClock(self)
        self.faults = EmbeddedFaults(self)

    def client(self, **overrides: Any) -> SQSClient:
        """A boto3 client for this broker, without retries, and with its first credentials or dummy ones.

        boto3 comes with `pip install 'semel[testing]'`; `semel.Client(broker.url)` needs no extra."""
        from botocore.config import Config

        require("broker.client()", "boto3", extra="testing")
        settings: dict[str, Any] = {
            "endpoint_url": self.url,
            "region_name": self.region,
            "aws_access_key_id": self._key_pair[0] if self._key_pair else "test",
            "aws_secret_access_key": self._key_pair[1] if self._key_pair else "test",
            "config": Config(retries={"total_max_attempts": 1}, max_pool_connections=64),
        }
        with _session_lock:
            client: SQSClient = _session().client("sqs", **(settings | overrides))
        return client

    def peek(self, queue: str, state: str | None = None, limit: int = 100, **filters: str) -> list[dict[str, Any]]:
        """Shows messages without receiving them. `state`: visible, in_flight or delayed."""
        messages: list[dict[str, Any]] = []
        wanted = {**filters, "state": state} if state else dict(filters)
        after = 0
        # One answer is bounded in size; large messages take several.
        while len(messages) < limit:
            query = urlencode({**wanted, "limit": min(limit - len(messages), 1000), "after": after})
            page = self.admin("GET", f"queues/{quote(queue, safe='')}/messages?{query}")
            messages += page["Messages"]
            if "Next" not in page:
                break
            after = page["Next"]
        return messages

    def metrics(self) -> str:
        """The Prometheus metrics."""
        return self._fetch("GET", "/metrics", None).decode()

    def admin(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One request to the admin interface."""
        answer: dict[str, Any] = json.loads(self._fetch(method, f"/_semel/{path}", body))
        return answer

    def _fetch(self, method: str, path: str, body: Mapping[str, Any] | None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if self._key_pair:
            headers["Authorization"] = f"Basic {b64encode(':'.join(self._key_pair).encode()).decode()}"
        request = Request(self.url + path, data=data, headers=headers, method=method)
        try:
            with urlopen(request, timeout=60) as answer:
                return bytes(answer.read())
        except HTTPError as error:
            with error:
                raise SemelError(json.loads(error.read())["error"]) from None


_session_lock = threading.Lock()


@cache
def _session() -> Session:
    """One boto3 session for all clients, because making one takes a fifth of a second."""
    import boto3

    return boto3.session.Session()


@contextmanager
def running(
    *,
    data: Path | str | None = None,
    clock: Literal["system", "manual"] = "system",
    cooldowns: bool = True,
    faults: Mapping[str, float | Setting] | None = None,
    fault_seed: int = 0,
    host: str = "127.0.0.1",
    port: int = 0,
    account: str = "000000000000",
    region: str = "us-east-1",
    credentials: Path | str | None = None,
) -> Iterator[EmbeddedBroker]:
    """Runs a broker for as long as the block lasts: on a free port, and in memory unless `data` names a folder.

    >>> from semel import Client
    >>> from semel.broker import running
    >>> with running() as broker:
    ...     sent = Client(broker.url).create_queue("orders").send("hello")
    ...     len(broker.peek("orders"))
    1
    """
    options = Options(
        host=host,
        port=port,
        data=None if data is None else Path(data),
        account=account,
        region=region,
        manual_clock=clock == "manual",
        cooldowns=cooldowns,
        faults=faults or {},
        fault_seed=fault_seed,
        credentials=None if credentials is None else Path(credentials),
    )
    ready: Future[tuple[Running, asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    thread = threading.Thread(target=_serve, args=(options, ready), name="semel-broker", daemon=True)
    thread.start()
    try:
        started, loop, stop = ready.result()
    except BaseException:
        thread.join()
        raise
    key_pair = Credentials.load(options.credentials).operator(account) if options.credentials else None
    try:
        yield EmbeddedBroker(started.url, region, key_pair)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


def _serve(options: Options, ready: Future[tuple[Running, asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
    async def main() -> None:
        stop = asyncio.Event()
        try:
            started = await start(options)
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits for us
            ready.set_exception(error)
            return
        ready.set_result((started, asyncio.get_running_loop(), stop))
        await stop.wait()
        await started.stop()

    with asyncio.Runner(loop_factory=event_loop) as runner:
        runner.run(main())


def event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it exists, else Python's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
