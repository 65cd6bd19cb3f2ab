"""Starting a broker: checks of the options, the event loop, and the two ways to run one (process and thread)."""

from __future__ import annotations

import asyncio
import logging
import re
import resource
import shutil
import socket
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from threading import Thread
from typing import Final

from semel.broker.auth import Credentials, Verifier
from semel.broker.clock import ManualClock, SystemClock
from semel.broker.connections import Limits
from semel.broker.engine import Engine
from semel.broker.engine.addresses import ACCOUNT, REGION
from semel.broker.engine.schema import DATABASE_NAME, open_database
from semel.broker.faults import Faults, Setting
from semel.broker.protocol import is_warm, warm_up
from semel.broker.server import Broker
from semel.errors import StartError
from semel.ports import listen, url_of
from semel.sqs.hosts import is_loopback

log = logging.getLogger("semel.broker")

DEFAULT_PORT: Final = 9324
DEFAULT_DATA: Final = Path("semel-data")
_ACCEPTED_AT_ONCE: Final = 64
_NO_ROOM_SECONDS: Final = 1.0
_OWN_FILES: Final = 128  # open files that are not connections: the database, the log, others of this process
_FEWEST: Final = 16  # connections


@dataclass(frozen=True, slots=True)
class Options:
    """How to run a broker. `data` None keeps everything in memory."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    data: Path | None = DEFAULT_DATA
    account: str = "000000000000"
    region: str = "us-east-1"
    manual_clock: bool = False
    cooldowns: bool = True
    faults: Mapping[str, float | Setting] = field(default_factory=dict)
    fault_seed: int = 0
    credentials: Path | None = None
    insecure: bool = False
    allowed_hosts: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)

    def check(self) -> None:
        """Raises StartError, which says what to do."""
        if not ACCOUNT.match(self.account):
            raise StartError(f"--account {self.account}: an AWS account has 12 digits")
        if not REGION.match(self.region):
            raise StartError(f"--region {self.region}: not a region; write for example eu-west-1")
        if not 0 <= self.port <= 65535:
            raise StartError(f"--port {self.port}: a port is a number from 0 to 65535; 0 picks a free one")
        for name in self.allowed_hosts:
            if not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", name):
                raise StartError(f"--allow-host {name}: give a host name without a port, for example sqs.example.com")
        if self.credentials is None and not self.insecure and not is_loopback(self.host):
            raise StartError(
                f"--host {self.host} can be reached from other machines, and nothing would ask who is calling: "
                "give --credentials FILE to check signatures, or --insecure to allow everybody"
            )


class Acceptor:
    """Accepts clients, several in each turn of the event loop. uvloop's own server accepts one in each turn: while
    calls are carried out, a turn takes milliseconds, and clients that connect together would wait for seconds. While
    the broker is overloaded, one is accepted in each turn: to accept a client only to refuse it costs more than to let
    it wait."""

    def __init__(self, listener: socket.socket, broker: Broker) -> None:
        self._listener, self._broker = listener, broker
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._loop.add_reader(listener, self._accept)

    async def close(self) -> None:
        """Stops accepting. Returns when all clients accepted so far have been passed to the broker."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        await asyncio.gather(*self._tasks)

    def _accept(self) -> None:
        for _ in range(1 if self._broker.overloaded else _ACCEPTED_AT_ONCE):
            try:
                client, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no file descriptor or no memory is left for it
                log.error("no connection can be accepted for %g s: %s", _NO_ROOM_SECONDS, error.strerror)
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(_NO_ROOM_SECONDS, self._resume)
                return
            task = self._loop.create_task(self._take_in(client))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._accept)

    async def _take_in(self, client: socket.socket) -> None:
        client.setblocking(False)
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(self._broker.connect, client)
        except OSError:  # the client has gone
            client.close()


class Running:
    """A broker that listens. Belongs to the event loop that started it."""

    def __init__(self, broker: Broker, acceptor: Acceptor, url: str) -> None:
        self.broker, self.url = broker, url
        self._acceptor = acceptor

    async def stop(self) -> None:
        """Takes no new connection, finishes what is under way, and returns when all of it is on disk."""
        await self._acceptor.close()
        await self.broker.stop()
        # Connections that are being closed still send their last answers; give them a moment.
        for _ in range(100):
            if not self.broker.connections:
                break
            await asyncio.sleep(0.01)


async def start(options: Options) -> Running:
    """Starts a broker that listens. Raises StartError if that is not possible."""
    options.check()
    credentials = Credentials.load(options.credentials) if options.credentials else None
    listener = listen(options.host, options.port)
    try:
        broker = _open(options, credentials)
    except BaseException:
        listener.close()
        raise
    acceptor = Acceptor(listener, broker)
    if not is_warm():
        Thread(target=warm_up, name="semel-broker-warm-up", daemon=True).start()
    return Running(broker, acceptor, url_of(listener))


def _open(options: Options, credentials: Credentials | None) -> Broker:
    faults = Faults(options.fault_seed)
    for kind, setting in options.faults.items():
        chosen = setting if isinstance(setting, Setting) else Setting(setting)
        faults.set(kind, chosen.rate, milliseconds=chosen.milliseconds)
    engine = open_engine(options, faults)
    home = {"region": options.region, "account": options.account}
    verifier = Verifier(credentials, **home) if credentials is not None else None
    clock = ManualClock() if options.manual_clock else SystemClock()
    return Broker(
        engine,
        clock,
        faults,
        log=None if options.data is None else options.data / f"{DATABASE_NAME}-wal",
        verifier=verifier,
        allowed_hosts=options.allowed_hosts,
        limits=_that_fit(options.limits),
        free_space=None if options.data is None else partial(_free_space, options.data),
    )


def raise_file_limit(limits: Limits) -> None:
    """Every connection is an open file, and many systems allow 1,024 of them unless a process asks for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.connections + limits.lingering + _OWN_FILES
    if soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _that_fit(limits: Limits) -> Limits:
    """The limits, with no more connections than this process may have open files."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY or files >= limits.connections + limits.lingering + _OWN_FILES:
        return limits
    room = max(_FEWEST, files - _OWN_FILES)
    return replace(limits, connections=room - room // 8, lingering=room // 8)


def open_engine(options: Options, faults: Faults) -> Engine:
    """The engine over the data folder. Raises StartError if what is in there cannot be read."""
    rng = Random()  # seeded by the operating system; ids need to be unique, not secret
    db = open_database(options.data)
    try:
        return Engine(
            db, rng, region=options.region, account=options.account, cooldowns=options.cooldowns, faults=faults
        )
    except Exception as error:
        db.close()
        what = error if isinstance(error, sqlite3.Error) else f"its content is damaged ({error!r})"
        where = f"data folder {options.data}: {DATABASE_NAME}"
        raise StartError(f"{where}: {what}; move it away, or choose another with --data") from error


def _free_space(folder: Path) -> int:
    return shutil.disk_usage(folder).free
