"""How a dashboard is run: what it looks at, where it listens, and who may do what."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from semel.errors import StartError
from semel.sqs.hosts import is_loopback

DEFAULT_PORT: Final = 9325
SHORTEST_TOKEN: Final = 8
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`token` may do everything, `reader_token` may look; `read_only` lets nobody act. `names`: host names, beside
    addresses and localhost, that the dashboard is called by. `proxy`: what stands before it may say who calls."""

    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    ledger: str | None = None
    workers: tuple[str, ...] = ()
    control_token: str | None = None
    attempt_logs: tuple[str, ...] = ()
    cloudwatch: bool = False
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    token: str | None = None
    reader_token: str | None = None
    open_access: bool = False
    read_only: bool = False
    names: tuple[str, ...] = ()
    proxy: bool = False
    state: Path | None = None

    @property
    def is_open(self) -> bool:
        """Whether nobody is asked for a token."""
        return self.token is None and self.reader_token is None

    def check(self) -> None:
        """Raises StartError with the way out."""
        if not 0 <= self.port <= 65535:
            raise StartError(f"--port {self.port}: a port is a number from 0 to 65535; 0 picks a free one")
        if self.is_open and not is_loopback(self.host):
            raise StartError(
                f"--host {self.host} can be reached from other machines, and nothing would ask who is calling: "
                "give --token (or SEMEL_TOKEN) for those who may act, --read-only-token for those who may look"
            )
        if self.is_open and self.proxy:
            raise StartError(
                "--proxy takes calls from other machines, and nothing would ask whether they come through the proxy: "
                "give --token, and let the proxy send it as Authorization: Bearer"
            )
        for option, token in (("--token", self.token), ("--read-only-token", self.reader_token)):
            if token is not None and len(token) < SHORTEST_TOKEN:
                raise StartError(
                    f"{option}: {len(token)} characters can be guessed; take {SHORTEST_TOKEN} or more, for example "
                    "from: openssl rand -hex 16"
                )
            if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
                raise StartError(f"{option}: a token travels in a header; take ASCII letters, digits and signs only")
        if self.token is not None and self.token == self.reader_token:
            raise StartError("--read-only-token is the same as --token: whoever may look could act; take another")
        for name in self.names:
            if not _NAME.match(name):
                raise StartError(f"--name {name}: not a host name; write it without http:// and without a port")
