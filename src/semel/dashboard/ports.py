"""The port of a dashboard."""

from __future__ import annotations

import errno
import socket

from semel.errors import StartError


def listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(2048)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise StartError(
                f"port {port} on {host} is in use; stop what uses it, or choose another: --port 0 picks a free one"
            ) from None
        raise StartError(f"cannot listen on {host} port {port}: {error.strerror or error}") from None
    except UnicodeError:
        raise StartError(f"cannot listen on {host} port {port}: this is no host name") from None
    return listener


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
