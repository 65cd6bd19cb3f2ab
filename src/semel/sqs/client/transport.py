"""Kept-alive connections to one endpoint, shared by all threads; the most recently used one is used next.

The other side may close an idle connection at any time. So a connection that was idle for a while is checked before
use, and a call whose connection ends before the first byte of the answer is repeated at once on a new connection.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import weakref
from base64 import b64encode
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Final
from urllib.parse import unquote, urlsplit

from semel.sqs.client.cancellation import Cancel
from semel.sqs.client.connection import Answer, Connection, Malformed
from semel.sqs.errors import Cancelled

MAX_IDLE: Final = 256
LOOK_AFTER: Final = 0.5
IDLE_SECONDS: Final = 60.0


class CannotConnect(OSError):
    """There is no connection to the endpoint; nothing was sent."""


@dataclass(frozen=True, slots=True)
class Proxy:
    host: str
    port: int
    authorization: bytes = b""

    @classmethod
    def parse(cls, url: str) -> Proxy:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError("only proxies that speak plain HTTP are supported, such as http://proxy:3128")
        authorization = b""
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            authorization = b"Proxy-Authorization: Basic " + b64encode(pair.encode()) + b"\r\n"
        return cls(parts.hostname, parts.port or 80, authorization)


@dataclass(frozen=True, slots=True)
class Address:
    """Where to connect to. With `tls`, the connection is encrypted; with `proxy`, it goes through that proxy."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    proxy: Proxy | None = None

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Transport:
    """Carries requests to one address. Safe to use from any thread, and after a fork."""

    def __init__(self, address: Address, connect_timeout: float) -> None:
        self._address = address
        self._connect_timeout = connect_timeout
        # Taking from and adding to the end of a list are atomic: no lock is needed.
        self._idle: list[Connection] = []
        self._closed = False
        _transports.add(self)

    def exchange(self, request: bytes, timeout: float, cancel: Cancel | None = None, *, repeat: bool = True) -> Answer:
        """One request and its answer. Raises OSError, or Cancelled. Without `repeat` it is sent at most once, so that
        CannotConnect proves that it was not sent."""
        connection = self._kept(look_after=LOOK_AFTER if repeat else 0.0) or self._dial(cancel, timeout)
        try:
            return self._over(connection, request, timeout, cancel)
        except OSError as error:
            stale = connection.used and not connection.heard and not isinstance(error, TimeoutError)
            if not (stale and repeat):
                raise
        return self._over(self._dial(cancel, timeout), request, timeout, cancel)._replace(sent=2)

    def _over(self, connection: Connection, request: bytes, timeout: float, cancel: Cancel | None) -> Answer:
        if cancel is None:
            try:
                answer = connection.exchange(request, timeout)
            except BaseException:
                connection.close()
                raise
        else:
            answer = self._over_until(cancel, connection, request, timeout)
        if connection.reusable:
            self._keep(connection)
        else:
            connection.close()
        return answer

    def _over_until(self, cancel: Cancel, connection: Connection, request: bytes, timeout: float) -> Answer:
        if not cancel.begin(connection):
            self._keep(connection)
            raise Cancelled("cancelled")
        try:
            answer = connection.exchange(request, timeout)
        except BaseException as error:
            cancel.end(connection)
            connection.close()
            if cancel.is_set() and isinstance(error, OSError):
                raise Cancelled("cancelled") from None
            raise
        cancel.end(connection)
        if cancel.is_set():
            connection.reusable = False  # it may have been interrupted after its answer arrived
        return answer

    # Keeping.

    def _kept(self, look_after: float) -> Connection | None:
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            idle = monotonic() - connection.idle_since
            if idle < look_after or (idle < IDLE_SECONDS and not connection.gone()):
                return connection
            connection.close()
        return None

    def _keep(self, connection: Connection) -> None:
        now = connection.idle_since = monotonic()
        if self._closed or len(self._idle) >= MAX_IDLE:
            connection.close()
            return
        self._idle.append(connection)
        # The least recently used are at the front; checking one of them at each call closes them soon enough.
        with contextlib.suppress(IndexError):
            if now - self._idle[0].idle_since > IDLE_SECONDS:
                self._idle.pop(0).close()

    def close(self) -> None:
        """Closes idle connections; a connection in use is closed when its call ends."""
        self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        while True:
            try:
                self._idle.pop().close()
            except IndexError:
                return

    def __del__(self) -> None:
        self._close_idle()

    # Dialling.

    def _dial(self, cancel: Cancel | None, timeout: float = inf) -> Connection:
        if cancel is not None and cancel.is_set():
            raise Cancelled("cancelled")
        address = self._address
        via = address.proxy
        where = (via.host, via.port) if via else (address.host, address.port)
        try:
            sock = socket.create_connection(where, min(timeout, self._connect_timeout))
        except OSError as error:
            raise CannotConnect(f"{_reason(error)}{f' (proxy {via.host}:{via.port})' if via else ''}") from error
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if address.tls is not None:
                if via:
                    self._tunnel(sock, via)
                sock = address.tls.wrap_socket(sock, server_hostname=address.host)
        except OSError as error:
            sock.close()
            raise CannotConnect(_reason(error)) from error
        except BaseException:
            sock.close()
            raise
        return Connection(sock)

    def _tunnel(self, sock: socket.socket, via: Proxy) -> None:
        authority = self._address.authority.encode()
        sock.sendall(b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (authority, authority, via.authorization))
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            # Byte by byte: what follows the head is already for the TLS layer.
            byte = sock.recv(1)
            if not byte or len(head) > 65536:
                raise Malformed(f"the proxy {via.host}:{via.port} gave no answer to CONNECT")
            head += byte
        if head[9:12] != b"200":
            line = head.partition(b"\r\n")[0].decode("latin-1")
            raise Malformed(f"the proxy {via.host}:{via.port} refused to connect: {line}")


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return "no answer to the attempt to connect"
    return error.strerror or str(error)


# A child process must not use the connections of its parent.
_transports: weakref.WeakSet[Transport] = weakref.WeakSet()


def _forget_connections() -> None:
    for transport in list(_transports):
        transport._close_idle()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_connections)
