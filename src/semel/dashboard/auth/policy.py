"""Who may come in, and who may act: decisions only, about the headers of a request.

The rules:
1. A name that the dashboard was not told of is refused, so that a page whose name was made to point here reads nothing.
2. Whatever changes something comes from our own pages or from no page at all: a foreign Origin is refused, and a
   session also shows its CSRF token. A token in Authorization counts as shown only because no page can send it.
3. Tokens are compared in constant time; a session is a signed cookie that no script and no other site gets to use.
4. Readers look, and nothing else.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final
from urllib.parse import SplitResult, urlsplit

from semel.dashboard.settings import Settings
from semel.dashboard.views.model import Viewer
from semel.sqs.hosts import is_address
from semel.sqs.web_pages import other_site

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
SESSION: Final = 12 * 3600.0  # seconds
TRIES: Final = 10  # wrong tokens from one address in a minute
_REMEMBERED: Final = 10_000
_FORMS: Final = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
_BROWSERS: Final = ("origin", "sec-fetch-site", "cookie")


class Refused(Exception):
    """Why a request is not carried out, with the status that says so."""

    def __init__(self, status: int, error: str, what_to_do: str) -> None:
        super().__init__(error)
        self.status, self.error, self.what_to_do = status, error, what_to_do


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who was let in. `session` is "" if there is none; `proven`: showed what no foreign page can show."""

    viewer: Viewer
    session: str = ""
    proven: bool = False


class AccessPolicy:
    """`clock` gives seconds since 1970. Thread-safe: what it keeps are single dictionary operations."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.time) -> None:
        self._settings, self._clock = settings, clock
        self._secret = secrets.token_bytes(32)
        self._ended: OrderedDict[str, float] = OrderedDict()  # sessions that were logged out
        self._wrong: OrderedDict[str, list[float]] = OrderedDict()
        self.cookie = f"semel-{settings.port}"

    # Where from.

    def check_host(self, host: str) -> None:
        name = _split(f"//{host}").hostname or ""
        if name in ("localhost", self._settings.host, *(known.lower() for known in self._settings.names)):
            return
        if not is_address(name):
            raise Refused(
                403,
                f"this dashboard is not called {name or 'nothing'}",
                f"open it by its address or as localhost, or start it with --name {name or 'HOST'}",
            )

    def check_origin(self, headers: Mapping[str, str]) -> None:
        """For requests that change something, or that cost something."""
        site = other_site(headers.get, self._settings.names if self._settings.proxy else ())
        if site is not None:
            raise Refused(403, f"requests from pages of {site[:100]} are refused", "do it on the dashboard's own pages")

    # Who.

    def caller(self, headers: Mapping[str, str], cookie: str | None, remote: str) -> Caller | None:
        """Who calls; None if that is not known and somebody must be asked for a token. Raises Refused."""
        where = self._remote(headers, remote)
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and not self._settings.is_open:
            role = self._role(given.strip(), where)
            return Caller(self._viewer(role, where, headers), proven=True)
        session = self._session(cookie) if cookie else None
        if self._settings.is_open:
            browses = any(name in headers for name in _BROWSERS)
            key = session[1] if session else ""
            return Caller(self._viewer("operator", where, headers, key), key, proven=not browses)
        if session is None:
            return None
        role, key = session
        return Caller(self._viewer(role, where, headers, key), key)

    def check_may_act(self, caller: Caller) -> None:
        if not caller.viewer.can_act:
            raise Refused(
                403,
                f"{caller.viewer.name} may look, but not act",
                "the dashboard was started with --read-only"
                if self._settings.read_only
                else "log in with the token that may act",
            )

    def check_act(self, caller: Caller, given: str | None, kind: str = "") -> None:
        """Whether the caller may change something; `given` is the CSRF token that came with the request, `kind` the
        type of its body."""
        self.check_may_act(caller)
        # A form is what a page of any site can send, with browsers of old even without an Origin.
        if caller.proven and (self._settings.token or self._settings.reader_token or kind not in _FORMS):
            return
        if not caller.session or given is None or not _same(given, self.csrf(caller.session)):
            raise Refused(403, "this form is too old, or was not sent by our page", "reload the page and do it again")

    # Sessions.

    def begin(self, token: str, headers: Mapping[str, str], remote: str) -> str:
        """The cookie of a new session for whoever knows a token. Raises Refused."""
        return self._signed(self._role(token.strip(), self._remote(headers, remote)))

    def begin_open(self) -> str:
        """The cookie that gives an open dashboard's pages their CSRF token."""
        return self._signed("operator")

    def end(self, session: str) -> None:
        self._ended[session] = self._clock()
        while len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)

    def csrf(self, session: str) -> str:
        return self._mac(f"csrf {session}")

    # Inside.

    def _role(self, token: str, where: str) -> str:
        wrong = [at for at in self._wrong.get(where, ()) if at > self._clock() - 60]
        if len(wrong) >= TRIES:
            raise Refused(429, "too many wrong tokens from this address", "wait a minute")
        settings = self._settings
        # Both are compared, always: how long it takes says nothing.
        operator = _same(token, settings.token or secrets.token_hex())
        reader = _same(token, settings.reader_token or secrets.token_hex())
        if operator or reader:
            return "operator" if operator else "reader"
        self._wrong[where] = [*wrong, self._clock()]
        self._wrong.move_to_end(where)
        while len(self._wrong) > _REMEMBERED:
            self._wrong.popitem(last=False)
        raise Refused(401, "the token is wrong", "give the one that `semel dashboard --token` was started with")

    def _signed(self, role: str) -> str:
        text = f"{role}.{int(self._clock())}.{secrets.token_urlsafe(18)}"
        return f"{text}.{self._mac(text)}"

    def _session(self, cookie: str) -> tuple[str, str] | None:
        text, _, mac = cookie.rpartition(".")
        if not _same(mac, self._mac(text)):
            return None
        role, began, _ = text.split(".", 2)
        if text in self._ended or not 0 <= self._clock() - int(began) + 60 < SESSION:
            return None
        return role, text

    def _mac(self, text: str) -> str:
        return hmac.new(self._secret, text.encode("utf-8", "replace"), sha256).hexdigest()

    def _viewer(self, role: str, where: str, headers: Mapping[str, str], session: str = "") -> Viewer:
        role = "reader" if self._settings.read_only else role
        user = headers.get("x-forwarded-user", "") if self._settings.proxy else ""
        known = "".join(sign for sign in user if sign.isprintable())[:100]
        return Viewer(
            name=f"{known} ({role}, {where})" if known else f"{role} {where}",
            can_act=role == "operator",
            csrf=self.csrf(session) if session else "",
            can_log_out=bool(session) and not self._settings.is_open,
        )

    def _remote(self, headers: Mapping[str, str], remote: str) -> str:
        """The address that calls; behind a proxy the last one that it added itself."""
        if self._settings.proxy and (forwarded := headers.get("x-forwarded-for")):
            last = forwarded.rpartition(",")[2].strip()
            return last if is_address(last) else remote
        return remote


def _same(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), known.encode())


def _split(address: str) -> SplitResult:
    try:
        return urlsplit(address)
    except ValueError:
        raise Refused(400, "the request has a header that cannot be read", "send it again") from None
