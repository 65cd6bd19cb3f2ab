"""Who may see and do what: decisions about the headers of a request.

A foreign page can make a browser send requests here, with our cookie, but it cannot choose Sec-Fetch-Site or Origin:
- A request with an effect must say that it comes from our own pages, or from no page: Sec-Fetch-Site is same-origin or
  none; where that is missing (plain HTTP to another machine), Origin must be our Host.
- If both are missing, it comes from a script, or from a browser older than 2020. A foreign page could make such a
  browser send a cookie or the body of a form, so a request with either is refused. A bearer token makes up for that,
  unless there is a proxy: no page can add one, but a proxy can.
- A request without an effect still costs work, so foreign pages get an answer only to links that the user follows.
- A browser takes a foreign name that points at this address (DNS rebinding) for our own site, so Host is checked.

A browser's session is a signed cookie that scripts cannot read. It ends after twelve hours or at the logout. SameSite
is Lax and not Strict: a link to the dashboard in a chat or a ticket must not lead to the login page. A link only shows
something; requests with an effect are checked as above.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Final

from itsdangerous import BadSignature, TimestampSigner

from semel.dashboard.settings import Settings
from semel.dashboard.views.model import DashboardError, Viewer
from semel.dlq.audit import Audit
from semel.sqs.hosts import can_be_rebound, is_address, is_link, other_site, says_no_site

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
MAX_FAILURES: Final = 10  # wrong tokens from one address in a minute
_MAX_ADDRESSES: Final = 10_000
# The content types that a page can send to any site without a CORS preflight; "" is a body without a type.
_FORM_TYPES: Final = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain", "")
_log: Final = logging.getLogger("semel.dashboard")
LIFETIME: Final = 12 * 3600  # seconds
_MAX_ENDED: Final = 10_000


class Refused(DashboardError):
    """Why a request is not answered."""


@dataclass(frozen=True, slots=True)
class Caller:
    viewer: Viewer
    session: Session | None = None


class AccessPolicy:
    """Thread-safe."""

    def __init__(self, settings: Settings, audit: Audit, *, clock: Callable[[], float] = time.time) -> None:
        self.settings, self._audit, self._clock = settings, audit, clock
        self._failures: OrderedDict[str, list[float]] = OrderedDict()  # times by address
        self._lock = threading.Lock()
        self._own_names = {settings.host, *(name.lower() for name in settings.names)}
        self.sessions = Sessions(settings.port, clock=clock)

    # Host and origin.

    def check_host(self, host: str) -> None:
        if not host or can_be_rebound(host, self._own_names):
            name = host.partition(":")[0][:100] or "HOST"
            raise Refused(
                f"the host name {name!r} is not known to be this dashboard's",
                f"open it by its IP address or as localhost, or start it with --name {name}",
                403,
            )

    def check_origin(self, headers: Mapping[str, str], *, has_effect: bool) -> None:
        site = other_site(headers.get, self.settings.names if self.settings.proxy else ())
        if not has_effect:
            # A link from a page that was loaded over plain HTTP has a Referer and nothing else.
            follows_link = is_link(headers.get) or not ("sec-fetch-site" in headers or "origin" in headers)
            if site is not None and not follows_link:
                raise Refused(f"pages of {site[:100]} may not load the dashboard", "open it in a tab of its own", 403)
        elif site is not None:
            raise Refused(f"requests from pages of {site[:100]} are refused", "use the dashboard's own pages", 403)
        elif says_no_site(headers.get) and self._could_be_forged(headers):
            raise Refused(
                "the request does not say which page sent it",
                "send it as application/json, or with Authorization: Bearer TOKEN",
                403,
            )

    def _could_be_forged(self, headers: Mapping[str, str]) -> bool:
        if _bearer(headers) and not self.settings.proxy:
            return False
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        return "cookie" in headers or (content_type in _FORM_TYPES and (has_body or content_type != ""))

    # Roles.

    def caller(self, headers: Mapping[str, str], remote: str) -> Caller | None:
        """None: a token is needed. Raises Refused for a wrong one."""
        if self.settings.open_access:
            return Caller(self._viewer("operator", headers, remote))
        if token := _bearer(headers):
            return Caller(self._viewer(self._role(token, headers, remote), headers, remote))
        session = self.sessions.find(headers.get("cookie", ""))
        return None if session is None else Caller(self._viewer(session.role, headers, remote, session), session)

    def check_may_act(self, caller: Caller) -> None:
        if not caller.viewer.can_act:
            read_only = self.settings.read_only
            what_to_do = "the dashboard was started with --read-only" if read_only else "log in with another token"
            raise Refused(f"{caller.viewer.name} may not change anything", what_to_do, 403)

    def log_in(self, token: str, headers: Mapping[str, str], remote: str) -> str:
        """The cookie of a new session. Raises Refused."""
        role = self._role(token.strip(), headers, remote)
        self._record(self._viewer(role, headers, remote).name, "log in", "done")
        return self.sessions.begin(role)

    def log_out(self, caller: Caller) -> None:
        if caller.session is not None:
            self.sessions.end(caller.session)
            self._record(caller.viewer.name, "log out", "done")

    def _role(self, token: str, headers: Mapping[str, str], remote: str) -> str:
        settings = self.settings
        # Both are compared, so that the time it takes reveals nothing.
        operator = _same(token, settings.token or secrets.token_hex())
        reader = _same(token, settings.reader_token or secrets.token_hex())
        if operator or reader:
            return "operator" if operator else "reader"
        self._count_failure(self._address(headers, remote))
        raise Refused("the token is wrong", "pass the token that the dashboard was started with", 401)

    def _count_failure(self, address: str) -> None:
        """A correct token is never refused, as others may have the same address. The limit protects the audit log;
        tokens cannot be guessed because they are long."""
        now = self._clock()
        with self._lock:
            recent = [at for at in self._failures.pop(address, ()) if at > now - 60]
            count = len(recent) + 1
            self._failures[address] = recent if count > MAX_FAILURES else [*recent, now]
            if len(self._failures) > _MAX_ADDRESSES:
                self._failures.popitem(last=False)
        if count > MAX_FAILURES:
            raise Refused(f"too many wrong tokens from {address}", "wait a minute, then pass the right one", 429)
        last = "; further ones are not recorded for a minute" if count == MAX_FAILURES else ""
        self._record(f"unknown {address}", "log in", f"refused: wrong token{last}")

    def _record(self, who: str, action: str, outcome: str) -> None:
        # A full disk must not lock out those who look for what went wrong.
        if problem := self._audit.add(who, action, outcome=outcome):
            _log.warning("%s, %s: %s", action, who, problem)

    def _viewer(self, role: str, headers: Mapping[str, str], remote: str, session: Session | None = None) -> Viewer:
        role = "reader" if self.settings.read_only else role
        address = self._address(headers, remote)
        user = headers.get("x-forwarded-user", "") if self.settings.proxy else ""
        user = "".join(sign for sign in user if sign.isprintable())[:100]
        return Viewer(
            name=f"{user} ({role}, {address})" if user else f"{role} {address}",
            can_act=role == "operator",
            can_log_out=session is not None,
        )

    def _address(self, headers: Mapping[str, str], remote: str) -> str:
        """The client's address. Behind a proxy, it is the last one in X-Forwarded-For, which the proxy itself added."""
        if self.settings.proxy and (forwarded := headers.get("x-forwarded-for")):
            last = forwarded.rpartition(",")[2].strip()
            return last if is_address(last) else remote
        return remote


def _bearer(headers: Mapping[str, str]) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _same(token: str, expected: str) -> bool:
    return hmac.compare_digest(token.encode("utf-8", "replace"), expected.encode())


# Sessions.


@dataclass(frozen=True, slots=True)
class Session:
    id: str
    role: str


class Sessions:
    """`clock` returns seconds since 1970. The signing key is made at the start, so a restart ends all sessions."""

    def __init__(self, port: int, *, clock: Callable[[], float]) -> None:
        self.cookie = f"semel-{port}"  # browsers share the cookies of a host among its ports
        self._signer = _Signer(clock)
        self._ended: OrderedDict[str, None] = OrderedDict()

    def begin(self, role: str) -> str:
        """The value of the cookie."""
        return self._signer.sign(f"{role}.{secrets.token_urlsafe(18)}").decode()

    def find(self, cookie_header: str) -> Session | None:
        try:
            cookie = SimpleCookie(cookie_header).get(self.cookie)
            text = self._signer.unsign(cookie.value, max_age=LIFETIME).decode() if cookie else ""
        except (CookieError, BadSignature, UnicodeError):
            return None
        role, _, id = text.partition(".")
        return Session(id, role) if id and id not in self._ended else None

    def end(self, session: Session) -> None:
        self._ended[session.id] = None
        while len(self._ended) > _MAX_ENDED:
            self._ended.popitem(last=False)

    def set_cookie(self, value: str, *, secure: bool) -> str:
        """The Set-Cookie header; an empty value removes the cookie."""
        age = LIFETIME if value else 0
        return f"{self.cookie}={value}; Path=/; HttpOnly; SameSite=Lax; Max-Age={age}{'; Secure' if secure else ''}"


class _Signer(TimestampSigner):
    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(secrets.token_bytes(32), salt="semel.session", digest_method=hashlib.sha256)
        self._clock = clock

    def get_timestamp(self) -> int:
        return int(self._clock())
