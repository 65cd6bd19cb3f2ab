"""The access policy around the whole application, which never sees a request that the policy refuses.

It also limits the size of requests, and adds security headers to every response: no foreign scripts, frames or forms,
no caching, no guessing of content types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import parse_qs, parse_qsl, quote, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from semel.dashboard.auth.access_policy import SAFE, AccessPolicy, Caller, Refused
from semel.errors import SemelError

MAX_BODY: Final = 8 * 1024 * 1024  # room for a message of one MiB, escaped in JSON or encoded in a form
MAX_LOGIN: Final = 64 * 1024  # for requests that need no token, such as the login form
MAX_UPLOAD: Final = 512 * 1024 * 1024
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
)
_TRUE: Final = frozenset({"1", "true", "on", "yes", "t", "y"})  # what FastAPI reads as true
_PUBLIC: Final = ("/static/", "/login", "/health", "/favicon.ico")


class AuthMiddleware:
    """Sets `request.state.caller` and, for pages, `request.state.viewer`. Both are None on paths that need no token.

    `refusal` makes the response to a refused request. `counts`: whether showing messages counts as receiving them."""

    def __init__(
        self,
        app: ASGIApp,
        policy: AccessPolicy,
        *,
        refusal: Callable[[Scope, Refused], Response],
        counts: Callable[[], bool],
    ) -> None:
        self._app, self._policy, self._refusal, self._counts = app, policy, refusal, counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        if scope["type"] != "http":
            return
        send = _with_headers(scope, send)
        try:
            response = await self._admit(scope)
        except Refused as refused:
            response = self._refused(scope, refused)
        if response is None:
            await self._app(scope, _limited(scope, receive), send)
        else:
            response.headers["connection"] = "close"  # the rest of the request is not read
            await response(scope, receive, send)

    async def _admit(self, scope: Scope) -> Response | None:
        """None to let the request through, or a response to send instead of the application's."""
        policy, headers, safe = self._policy, Headers(scope=scope), scope["method"] in SAFE
        hosts = headers.getlist("host")
        policy.check_host(hosts[0] if len(hosts) == 1 else "")
        has_effect = not safe or (_shows_messages(scope) and await run_in_threadpool(self._counts_as_receive))
        policy.check_origin(headers, has_effect=has_effect)
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or int(length) > _max_size(scope):
            raise Refused(_too_large(scope), "send less at a time, or use semel dlq", 413)
        state = scope.setdefault("state", {})
        state.update(caller=None, viewer=None)
        if scope["path"].startswith(_PUBLIC):
            return None
        remote = (scope.get("client") or ("unknown", 0))[0]
        if safe and is_page(scope) and not policy.settings.open_access and (token := _take_token(scope)):
            cookie = await run_in_threadpool(policy.log_in, token, headers, remote)
            return logged_in(policy, headers, cookie, _address(scope))
        # A wrong token is written to the audit log, which may take a moment.
        caller: Caller | None
        if "authorization" in headers:
            caller = await run_in_threadpool(policy.caller, headers, remote)
        else:
            caller = policy.caller(headers, remote)
        if caller is None and is_page(scope):
            return RedirectResponse(login_address(scope), 303)
        if caller is None:
            raise Refused("this dashboard needs a token", "send it as Authorization: Bearer TOKEN", 401)
        if has_effect and scope["path"] != "/logout":
            policy.check_may_act(caller)
        state.update(caller=caller, viewer=caller.viewer)
        return None

    def _counts_as_receive(self) -> bool:
        try:
            return self._counts()
        except SemelError:
            return True  # the endpoint does not answer, so no messages are shown either

    def _refused(self, scope: Scope, refused: Refused) -> Response:
        response = self._refusal(scope, refused)
        if refused.status == 401:
            response.headers["www-authenticate"] = 'Bearer realm="semel"'
        return response


def logged_in(policy: AccessPolicy, headers: Mapping[str, str], cookie: str, page: str) -> Response:
    """Redirects to a page and sets the session cookie; an empty cookie ends the session."""
    secure = headers.get("x-forwarded-proto") == "https"
    return RedirectResponse(own_page(page), 303, {"set-cookie": policy.sessions.set_cookie(cookie, secure=secure)})


def login_address(scope: Scope) -> str:
    """The login page. It leads back to the page that was asked for, but does not repeat an action."""
    page = _address(scope) if scope["method"] in SAFE else "/"
    return "/login" if page == "/" else f"/login?next={quote(page, safe='')}"


def own_page(address: str) -> str:
    """The address if it is our own, else the start page: a link to the dashboard must not lead to another site."""
    return address if address.startswith("/") and not address.startswith(("//", "/\\", "/login")) else "/"


def is_page(scope: Scope) -> bool:
    return not str(scope["path"]).startswith("/api/v1")


def _address(scope: Scope) -> str:
    query = scope["query_string"].decode("latin-1")
    return quote(scope["path"]) + (f"?{query}" if query else "")


def _take_token(scope: Scope) -> str:
    """Returns the token in the address of a page and removes it there, so that no log and no redirect contains it."""
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    tokens = [value for name, value in pairs if name == "token"]
    if tokens:
        scope["query_string"] = urlencode([pair for pair in pairs if pair[0] != "token"]).encode()
    return tokens[0] if tokens else ""


def _shows_messages(scope: Scope) -> bool:
    """Whether a GET asks for messages. On SQS, they must be received for that."""
    if scope["path"].endswith("/export"):
        return True
    query = parse_qs(scope["query_string"].decode("latin-1"))
    return query.get("receive", [""])[-1].lower() in _TRUE


# Requests.


def _max_size(scope: Scope) -> int:
    if scope["path"].startswith(_PUBLIC):
        return MAX_LOGIN
    return MAX_UPLOAD if scope["path"].endswith("/restore") else MAX_BODY


def _too_large(scope: Scope) -> str:
    return f"the request is larger than {_max_size(scope) // 1024:,} KiB"


def _limited(scope: Scope, receive: Receive) -> Receive:
    """Counts the bytes that arrive, for requests that do not give their length."""
    left = _max_size(scope)

    async def limited() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise HTTPException(413, _too_large(scope))
        return message

    return limited


# Responses.


def _with_headers(scope: Scope, send: Send) -> Send:
    # Pages link to a static file with the hash of its content.
    lasting = scope["path"].startswith("/static/") and scope.get("query_string", b"").startswith(b"v=")
    caching = b"public, max-age=31536000, immutable" if lasting else b"no-store"

    async def decorated(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers: list[tuple[bytes, bytes]] = list(message.get("headers", ()))
            present = {name.lower() for name, _ in headers}
            added = (*_HEADERS, (b"cache-control", caching))
            message["headers"] = headers + [pair for pair in added if pair[0] not in present]
        await send(message)

    return decorated
