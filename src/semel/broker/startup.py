"""Starting a broker: checks of the options, the event loop, and the two ways to run one (process and thread)."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from threading import Thread
from typing import Final

from semel.broker.auth import Credentials, Verifier
from semel.broker.clock import ManualClock, SystemClock
from semel.broker.engine import Engine
from semel.broker.engine.addresses import ACCOUNT, REGION
from semel.broker.engine.schema import DATABASE_NAME, open_database
from semel.broker.faults import Faults, Setting
from semel.broker.protocol import is_warm, warm_up
from semel.broker.server import Broker
from semel.errors import StartError
from semel.sqs.hosts import is_loopback

DEFAULT_PORT: Final = 9324
DEFAULT_DATA: Final = Path("semel-data")


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
    max_connections: int = 4096

    def check(self) -> None:
        """Raises StartError with the way out."""
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


class Running:
    """A broker that listens. Belongs to the event loop that started it."""

    def __init__(self, broker: Broker, server: asyncio.Server, url: str) -> None:
        self.broker, self.url = broker, url
        self._server = server

    async def stop(self) -> None:
        """Takes no new connection, finishes what is under way, and returns when all of it is on disk."""
        self._server.close()
        await self.broker.stop()
        # Closed connections still send what they have; give them a moment to.
        for _ in range(100):
            if not self.broker.connections:
                break
            await asyncio.sleep(0.01)


async def start(options: Options) -> Running:
    """A listening broker. Raises StartError if it can't be had."""
    options.check()
    credentials = Credentials.load(options.credentials) if options.credentials else None
    listener = _listen(options.host, options.port)
    try:
        engine, broker = _open(options, credentials)
    except BaseException:
        listener.close()
        raise
    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(broker.connect, sock=listener, backlog=1024)
    except BaseException:
        engine.close()
        raise
    if not is_warm():
        Thread(target=warm_up, name="semel-broker-warm-up", daemon=True).start()
    host, port = listener.getsockname()[:2]
    return Running(broker, server, f"http://{f'[{host}]' if ':' in host else host}:{port}")


def _open(options: Options, credentials: Credentials | None) -> tuple[Engine, Broker]:
    faults = Faults(options.fault_seed)
    for kind, setting in options.faults.items():
        chosen = setting if isinstance(setting, Setting) else Setting(setting)
        faults.set(kind, chosen.rate, milliseconds=chosen.milliseconds)
    engine = open_engine(options, faults)
    home = {"region": options.region, "account": options.account}
    verifier = Verifier(credentials, **home) if credentials is not None else None
    clock = ManualClock() if options.manual_clock else SystemClock()
    broker = Broker(
        engine,
        clock,
        faults,
        log=None if options.data is None else options.data / f"{DATABASE_NAME}-wal",
        verifier=verifier,
        allowed_hosts=options.allowed_hosts,
        max_connections=options.max_connections,
        free_space=None if options.data is None else partial(_free_space, options.data),
    )
    return engine, broker


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
        raise StartError(f"data folder {options.data}: {what}; move it away, or choose another with --data") from error


def _free_space(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            # Two that start at once can both bind; only one can listen.
            listener.listen(1024)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise StartError(
                f"port {port} on {host} is taken; stop what uses it, or choose another with --port (0 picks a free one)"
            ) from None
        raise StartError(f"cannot listen on {host} port {port}: {error.strerror or error}") from None
    return listener
