"""How a dashboard is run: which queues it shows, where it listens, and who may do what."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from semel.errors import StartError
from semel.sqs.hosts import is_loopback

DEFAULT_PORT: Final = 9325
SHORTEST_TOKEN: Final = 12
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`token` allows everything, `reader_token` only reading. With `read_only`, nobody may change anything.
    `open_access`: no token is needed; allowed only on a loopback address. Without a token and without open access, the
    dashboard makes a token at the start. `names`: its host names. `proxy`: trust the X-Forwarded headers."""

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
    def has_token(self) -> bool:
        return self.token is not None or self.reader_token is not None

    def with_token(self) -> Settings:
        """The same settings; with a random token if one is needed and none is set."""
        return self if self.has_token or self.open_access else replace(self, token=secrets.token_hex(24))

    def check(self) -> None:
        """Raises StartError, which says how to correct the settings."""
        if not 0 <= self.port <= 65535:
            raise StartError(f"--port {self.port}: a port is a number from 0 to 65535; 0 picks a free one")
        if self.open_access and self.has_token:
            raise StartError("--open means that no token is needed: leave out --open, or the tokens")
        if not self.has_token and not is_loopback(self.host):
            raise StartError(
                f"--host {self.host} can be reached from other machines: choose a token with --token (or SEMEL_TOKEN) "
                "for those who may act, or with --read-only-token for those who may only read"
            )
        if not self.has_token and self.proxy:
            raise StartError(
                "--proxy is for requests from other machines: choose a token with --token, and let the proxy send it "
                "as Authorization: Bearer TOKEN"
            )
        for option, token in (("--token", self.token), ("--read-only-token", self.reader_token)):
            if token is not None and len(token) < SHORTEST_TOKEN:
                raise StartError(
                    f"{option}: {len(token)} characters can be guessed; use {SHORTEST_TOKEN} or more, for example "
                    "from: openssl rand -hex 16"
                )
            if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
                raise StartError(f"{option}: a token is sent in a header; use ASCII letters, digits and symbols only")
        if self.token is not None and self.token == self.reader_token:
            raise StartError("--read-only-token is the same as --token, so readers could act: choose another")
        for name in self.names:
            if not _NAME.match(name):
                raise StartError(f"--name {name}: not a host name; write it without http:// and without a port")
