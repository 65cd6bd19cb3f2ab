"""Ports that a server listens on. If one cannot be used, a StartError says what to do."""

from __future__ import annotations

import errno
import socket
from typing import Final

from semel.errors import StartError

_BACKLOG: Final = 4096  # connections that wait to be accepted; a client that finds no room retries after a second


def listen(host: str, port: int, *, option: str = "--port") -> socket.socket:
    """A listening socket. `option` is what the user chooses the port with."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            # If two processes start at once, both can bind, but only one can listen.
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            advice = f"stop what uses it, or choose another with {option} (0 picks a free one)"
            raise StartError(f"port {port} on {host} is in use; {advice}") from None
        raise StartError(f"cannot listen on {host} port {port}: {error.strerror or error}") from None
    except UnicodeError:
        raise StartError(f"cannot listen on {host} port {port}: this is no host name") from None
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
