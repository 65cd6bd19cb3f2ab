"""The app: handlers for queues, the ledger that they share, and how they are run.

The rule: anything that cannot work is an error before the first message is received.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, TypeVar

from semel.consumer import key_rules, preflight
from semel.consumer import settings as settings_
from semel.consumer.context import Context, current, logger
from semel.consumer.handler import Handler, inspect_handler
from semel.consumer.queue_setup import QueueSetup, Tools
from semel.consumer.run_report import Report
from semel.consumer.runtime import Runtime
from semel.consumer.runtime_control import RuntimeControl
from semel.durations import Duration, seconds
from semel.errors import SemelError
from semel.ledger.connect import without_password
from semel.ledger.contract import Ledger, LedgerError
from semel.messages.dead_letter_queue import create_dead_letter_queue
from semel.messages.keys import KeySpec, PayloadSpec
from semel.signals import OnSignals
from semel.sqs import Client
from semel.telemetry import endpoint, logs
from semel.telemetry.attempt_log import AttemptLog
from semel.telemetry.worker_control import Identity

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_LEDGER: Final = "sqlite:///semel-ledger.db"
DEFAULT_DRAIN: Final = 25.0  # with the flush after it, below the 30 seconds that Kubernetes allows
PYTHON_GC_THRESHOLD: Final = (700, 10, 10)
GC_THRESHOLD: Final = (20_000, 20, 50)


class App:
    """Handlers for queues, with one ledger.

    `ledger`: a Ledger or its address. The default is SEMEL_LEDGER or, if that is not set and SQS is on this machine,
    the SQLite file semel-ledger.db in the working folder. `attempt_log`: a folder, local or remote. `drain`: how long
    handlers may take to finish after SIGTERM; the default is SEMEL_DRAIN, else 25 seconds. Every option of a handler
    can also be set here, for all handlers; see `semel run --explain`.

    >>> from semel import App, Client
    >>> app = App(ledger="sqlite:///ledger.db")
    >>> @app.handler("orders", key="$.id")
    ... def ship(order: dict) -> None:
    ...     print("shipping", order["id"])
    >>> message = Client().create_queue("orders").send('{"id": 7}')
    >>> app.run(exit_when_empty=True).completed
    shipping 7
    1
    """

    def __init__(
        self,
        ledger: Ledger | str | None = None,
        *,
        client: Client | None = None,
        endpoint_url: str | None = None,
        region: str | None = None,
        profile: str | None = None,
        attempt_log: AttemptLog | str | None = None,
        drain: Duration | None = None,
        **options: Any,
    ) -> None:
        settings_.check_names(options, "an app")
        self._ledger = ledger
        self._client = client
        self._address: tuple[str | None, ...] = (endpoint_url, region, profile)
        self._attempt_log = attempt_log
        self.drain_limit = _drain_from_environment() if drain is None else seconds(drain)
        self.options = options
        self.handlers: dict[str, Handler] = {}
        self._drain: Callable[[], int] | None = None

    # Registering.

    def handler(
        self, queue: str, *, key: KeySpec = None, payload: PayloadSpec | None = None, **options: Any
    ) -> Callable[[F], F]:
        """Register a function, which is called with each message of `queue`, a name, URL or ARN.

        `key`: where a message's key comes from: "$.order.id", "attribute:NAME", "dedup-id", or a function of the body.
        The default is the attribute `idempotency-key` if the producer has set it, else the MessageId.
        `payload`: what must be the same in all messages with the same key: the body (True), fields, or a function of
        the body. If it differs, the message is rejected as a conflict. By default the key alone decides, and messages
        whose body differs are only counted. Options: see `semel.consumer.settings`.
        """
        return self._register(queue, key, payload, options, is_batch=False)

    def batch_handler(
        self, queue: str, *, key: KeySpec = None, payload: PayloadSpec | None = None, **options: Any
    ) -> Callable[[F], F]:
        """Register a function, which is called with a Batch of up to `size` messages, at most `linger` seconds after
        the first of them arrived."""
        return self._register(queue, key, payload, {"concurrency": 1, **options}, is_batch=True)

    def _register(
        self, queue: str, key: KeySpec, payload: PayloadSpec | None, options: dict[str, Any], *, is_batch: bool
    ) -> Callable[[F], F]:
        def register(function: F) -> F:
            settings_.check_names(options, f"the handler of {queue!r}")
            handler = inspect_handler(queue, function, is_batch=is_batch, key=key, payload=payload, options=options)
            if queue in self.handlers:
                names = f"{self.handlers[queue].name} and {handler.name}"
                raise SemelError(f"the queue {queue!r} has two handlers: {names}")
            self.handlers[queue] = handler
            return function

        return register

    @property
    def current(self) -> Context:
        """The context of the handler that is running in this thread or task."""
        return current()

    # Running.

    def run(self, **options: Any) -> Report:
        """Run until SIGTERM or SIGINT, or with exit_when_empty=True until the queues are empty; return after the drain.

        Options: exit_when_empty, health ("host:port"), control_token, drain, create_dlq, and every option of a handler.
        An option of a handler that is given here overrides the value that the handlers and the app set.
        """
        if gc.get_threshold() == PYTHON_GC_THRESHOLD:
            # Messages are many and short-lived: with Python's default, a tenth of the time is spent looking for cycles.
            gc.set_threshold(*GC_THRESHOLD)
        with ExitStack() as stack:
            runtime = self.prepare(stack, **options)
            setups = [consumer.setup for consumer in runtime.consumers]
            self.announce(setups, runtime.ledger, runtime.client, options.get("name", ""))
            gc.freeze()  # what exists now is never garbage, so it need not be examined again
            if threading.current_thread() is threading.main_thread():
                stack.enter_context(OnSignals(runtime.stop))
            report = runtime.run()
        logger.info("stopped, %s", report)
        return report

    def start(self, stack: ExitStack, **options: Any) -> Runtime:
        """Internal. Start a runtime, which the caller must stop and finish."""
        runtime = self.prepare(stack, **options)
        runtime.start()
        return runtime

    def prepare(
        self,
        stack: ExitStack,
        *,
        exit_when_empty: bool = False,
        health: str | None = None,
        control_token: str | None = None,
        name: str = "",
        drain: Duration | None = None,
        create_dlq: bool = False,
        tools: Tools | None = None,
        queues: Collection[str] | None = None,
        **command_line: Any,
    ) -> Runtime:
        """Internal. A runtime that can be started; `stack` closes what was opened for it."""
        tools = tools or self.tools(stack)
        client, ledger = self.client(), self.ledger(stack)
        setups = self.queue_setups(client, ledger, tools, create_dlq=create_dlq, only=queues, **command_line)
        limit = self.drain_limit if drain is None else seconds(drain)
        runtime = Runtime(setups, ledger, client, tools, drain=limit, exit_when_empty=exit_when_empty)
        if health is not None:
            identity = Identity.new(name or os.path.basename(sys.argv[0]))
            endpoint.serve(
                stack,
                health,
                identity,
                [setup.name for setup in setups],
                health=runtime.health,
                metrics=tools.metrics.text,
                control=RuntimeControl(runtime, identity),
                token=control_token,
            )
        return runtime

    def tools(self, stack: ExitStack, **options: Any) -> Tools:
        """Internal. What all queue consumers of a run share."""
        log = self._attempt_log or os.environ.get("SEMEL_ATTEMPT_LOG")
        if isinstance(log, str):
            log = AttemptLog.open(log)
            stack.callback(log.close)
        tools = Tools(worker=f"{socket.gethostname()}/{os.getpid()}/{time.time_ns():x}", log=log, **options)
        if log is not None:
            opened = log
            tools.metrics.queue().counter("attempts_dropped", lambda: opened.dropped)
        return tools

    def connect_to(
        self, endpoint_url: str | None = None, region: str | None = None, profile: str | None = None
    ) -> None:
        """Use this SQS instead of the configured one. An argument that is None changes nothing."""
        address = (endpoint_url, region, profile)
        self._address = tuple(new or old for new, old in zip(address, self._address, strict=True))
        self._client = Client(*self._address)

    def use_ledger(self, address: str) -> None:
        """Use this ledger instead of the configured one."""
        self._ledger = address

    def log_to(self, folder: str) -> None:
        """Write the attempt log to this folder."""
        self._attempt_log = folder

    @property
    def profile(self) -> str | None:
        """Internal. The AWS profile that was configured, if any."""
        return self._address[2]

    def client(self) -> Client:
        """Internal. The SQS client of the app, created on first use."""
        if self._client is None:
            self._client = Client(*self._address)
        return self._client

    @property
    def configured_ledger(self) -> Ledger | str:
        """Internal. The ledger, or the address of the one that is opened when the app runs."""
        return self._chosen_ledger or DEFAULT_LEDGER

    @property
    def _chosen_ledger(self) -> Ledger | str | None:
        return self._ledger or os.environ.get("SEMEL_LEDGER")

    def ledger(self, stack: ExitStack) -> Ledger:
        """Internal. Open the ledger. Raises SemelError if none is configured and SQS is not on this machine."""
        if not self._chosen_ledger:
            preflight.check_ledger_is_chosen(self.client().endpoint)
        configured = self.configured_ledger
        if isinstance(configured, Ledger):
            return configured
        ledger = Ledger.connect(configured)
        stack.callback(ledger.close)
        return ledger

    def queue_setups(
        self,
        client: Client,
        ledger: Ledger,
        tools: Tools,
        *,
        create_dlq: bool = False,
        only: Collection[str] | None = None,
        **command_line: Any,
    ) -> list[QueueSetup]:
        """Internal. A setup for each handler, with its settings resolved. Raises SemelError for what cannot work."""
        if not self.handlers:
            raise SemelError("the app has no handlers: decorate a function with @app.handler('queue')")
        settings_.check_names(command_line, "a run")
        handlers = [handler for name, handler in self.handlers.items() if only is None or name in only]
        return [self._queue_setup(handler, client, ledger, tools, command_line, create_dlq) for handler in handlers]

    def announce(self, setups: Sequence[QueueSetup], ledger: Ledger, client: Client, name: str = "") -> None:
        """Internal. Log what is about to run, with warnings."""
        what = f"started {name}" if name else "started"
        logger.info("%s: ledger %s, SQS at %s", what, self.ledger_name, client.endpoint)
        for setup in setups:
            logger.info(
                "queue %s: handler %s, %s; key %s, concurrency %d, dead-letter queue %s",
                setup.name,
                setup.handler.name,
                setup.handler.guarantee.summary,
                setup.handler.key,
                setup.settings.concurrency,
                setup.dead_letters.name if setup.dead_letters else "none",
            )
        for warning in preflight.warnings(setups, ledger, client.endpoint):
            logger.warning("%s", warning)
        _warn_of_new_keys(setups, ledger)

    @property
    def ledger_name(self) -> str:
        """Internal. The ledger's address, its password hidden; the name of its class if there is no address."""
        configured = self.configured_ledger
        if isinstance(configured, Ledger):
            return type(configured).__name__
        return logs.safe_text(without_password(configured), 1_000)

    def _queue_setup(
        self,
        handler: Handler,
        client: Client,
        ledger: Ledger,
        tools: Tools,
        command_line: Mapping[str, Any],
        create_dlq: bool,
    ) -> QueueSetup:
        queue = client.queue(handler.queue)
        attributes = queue.attributes()
        if create_dlq and "RedrivePolicy" not in attributes and "dead_letter" not in handler.options:
            attributes = create_dead_letter_queue(client, queue, logger)
        resolved = settings_.resolve(
            queue=queue.name,
            command_line=command_line,
            handler=handler.options,
            app=self.options,
            environment=os.environ,
            attributes=attributes,
        )
        if handler.transaction and not ledger.transactional:
            raise LedgerError(
                f"the handler {handler.name} takes a transaction, and a {type(ledger).__name__} has none: use a "
                "PostgreSQL, DynamoDB or SQLite ledger, or remove `tx` from the handler"
            )
        dead_letters = client.queue(resolved.dead_letter) if resolved.dead_letter else None
        return QueueSetup(handler, resolved, queue, dead_letters, ledger, tools)

    # In tests.

    def drain(self) -> int:
        """Handle the messages that can be received now, on this thread. Returns how many messages took effect. See
        semel.testing."""
        if self._drain is None:
            raise SemelError("app.drain() is for tests: use it inside `with semel.testing.driving(app, broker):`")
        return self._drain()

    @contextmanager
    def driven_by(self, drain: Callable[[], int]) -> Iterator[None]:
        """Internal. `drain` calls this function while the block lasts."""
        self._drain = drain
        try:
            yield
        finally:
            self._drain = None


def _drain_from_environment() -> float:
    text = os.environ.get("SEMEL_DRAIN")
    try:
        return seconds(text) if text else DEFAULT_DRAIN
    except SemelError as error:
        raise SemelError(f"invalid SEMEL_DRAIN: {error}") from None


def _warn_of_new_keys(setups: Sequence[QueueSetup], ledger: Ledger) -> None:
    rules = {setup.scope: str(setup.handler.key) for setup in setups}
    names = {setup.scope: setup.name for setup in setups}
    try:
        former_rules = key_rules.update(rules, ledger, setups[0].tools.claimant())
    except LedgerError as error:
        logger.warning("could not check in the ledger whether the key of a queue has changed: %s", error)
        return
    for scope, former in former_rules.items():
        logger.warning(
            "the key of %s is now %s and was %s: messages that were completed under the old key and are delivered or "
            "sent again will run again; to prevent that, go back to the old key until the queue and its dead-letter "
            "queue are empty",
            names[scope],
            rules[scope],
            former,
        )
