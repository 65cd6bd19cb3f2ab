"""The gate as a layer around the whole application: nothing behind it is reached by a request that it refuses.

It also bounds what a request may send, and puts the headers on every answer that keep a page to itself: no foreign
script, frame or form, nothing kept in caches, nothing guessed about types.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from html import escape
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qs, quote, unquote_plus

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from semel.dashboard.auth.policy import SAFE, SESSION, AccessPolicy, Caller, Refused
from semel.errors import SemelError

MAX_BODY: Final = 8 * 1024 * 1024  # a message of a mebibyte, as JSON escapes or a form writes it
MAX_UPLOAD: Final = 512 * 1024 * 1024
MAX_FIELD: Final = 16 * 1024  # within which the first field of an upload must be
CSRF_FIELD: Final = "csrf"
CSRF_HEADER: Final = "x-csrf-token"
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
_PUBLIC: Final = ("/static/", "/login", "/health", "/favicon.ico")
_FIELD: Final = re.compile(rb'name="?csrf"?\r\n(?:[^\r\n]+\r\n)*\r\n([0-9a-f]{1,200})\r\n')
_IN_FORM: Final = re.compile(rb"(?:^|&)csrf=([^&]*)")

# How a refusal looks to people: (scope, refusal) -> HTML.
Refusal = Callable[[Scope, Refused], str]


def plain_refusal(_scope: Scope, refused: Refused) -> str:
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Semel: refused</title><main><h1>"
        f"{escape(refused.error)}</h1><p>{escape(refused.what_to_do)}</p><p><a href=/>To the queues</a></p></main>"
    )


class AuthMiddleware:
    """Puts who calls into `request.state.viewer`, and refuses what the gate refuses."""

    def __init__(
        self,
        app: ASGIApp,
        policy: AccessPolicy,
        *,
        is_open: bool,
        refusal: Refusal = plain_refusal,
        costs: Callable[[], bool] = lambda: True,
    ) -> None:
        """`costs`: whether looking at messages counts against them."""
        self._app, self._gate, self._is_open, self._refusal, self._costs = app, policy, is_open, refusal, costs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        answer = _with_headers(scope, send)
        try:
            receive, answer = await self._admit(scope, headers, receive, answer)
        except Refused as refused:
            await self._refuse(scope, refused, answer)
            return
        except _TooLarge:
            await self._refuse(scope, _too_large(scope), answer)
            return
        await self._app(scope, receive, answer)

    async def _admit(self, scope: Scope, headers: dict[str, str], receive: Receive, send: Send) -> tuple[Receive, Send]:
        policy, path, safe = self._gate, scope["path"], scope["method"] in SAFE
        policy.check_host(headers.get("host", ""))
        looks = safe and _looks(scope) and await run_in_threadpool(self._counts_against)
        if not safe or looks:
            policy.check_origin(headers)
        length = headers.get("content-length", "0")
        most = MAX_UPLOAD if path.endswith("/restore") else MAX_BODY
        if not length.isdigit() or int(length) > most:
            raise _too_large(scope)
        receive = _bounded(receive, most)
        remote = (scope.get("client") or ("unknown", 0))[0]
        cookie = _cookie(headers.get("cookie", ""), policy.cookie)
        if path.startswith(_PUBLIC):
            scope.setdefault("state", {}).update(viewer=None, session="")
            return receive, send
        caller = policy.caller(headers, cookie, remote)
        if caller is None:
            raise Refused(401, "this dashboard asks who you are", "send the token as Authorization: Bearer TOKEN")
        if self._is_open and not caller.session and safe and "text/html" in headers.get("accept", ""):
            begun = policy.begin_open()
            caller = policy.caller(headers, begun, remote) or caller
            send = _with_cookie(send, session_cookie(policy, scope, headers, begun))
        if not safe:
            given, receive = await _csrf(headers, receive)
            policy.check_act(caller, given, _kind(headers))
        elif looks:
            policy.check_may_act(caller)
        _remember(scope, caller)
        return receive, send

    def _counts_against(self) -> bool:
        try:
            return self._costs()
        except SemelError:
            return True  # nothing answers: then nothing is shown, either

    async def _refuse(self, scope: Scope, refused: Refused, send: Send) -> None:
        headers: list[tuple[bytes, bytes]] = []
        if not is_for_people(scope):
            headers.append((b"content-type", b"application/json"))
            body = orjson.dumps({"error": refused.error, "what_to_do": refused.what_to_do})
            if refused.status == 401:
                headers.append((b"www-authenticate", b'Bearer realm="semel"'))
        elif refused.status == 401:
            refused = Refused(303, refused.error, refused.what_to_do)
            target = scope["path"] + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
            # Back to where it was, but only if that was a look: what was to be done is not done unasked.
            after = f"?next={quote(target, safe='')}" if scope["method"] in SAFE and target != "/" else ""
            headers.append((b"location", f"/login{after}".encode()))
            body = b""
        else:
            headers.append((b"content-type", b"text/html; charset=utf-8"))
            body = self._refusal(scope, refused).encode()
        headers += [(b"content-length", str(len(body)).encode()), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": refused.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def is_for_people(scope: Scope) -> bool:
    return not str(scope["path"]).startswith("/api/v1")


def _looks(scope: Scope) -> bool:
    """Whether a GET asks for a look that counts against messages: on SQS, whoever sees a message has received it."""
    if scope["path"].endswith("/export"):
        return True
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
    return query.get("receive", [""])[-1].lower() in ("1", "true", "on", "yes", "t", "y")


def _remember(scope: Scope, caller: Caller) -> None:
    scope.setdefault("state", {}).update(viewer=caller.viewer, session=caller.session)


def session_cookie(
    policy: AccessPolicy, scope: Scope, headers: dict[str, str], value: str, *, ends: bool = False
) -> bytes:
    """The header's value; a cookie with an empty value ends the session."""
    secure = scope.get("scheme") == "https" or headers.get("x-forwarded-proto") == "https"
    age = 0 if ends else int(SESSION)
    return (
        f"{policy.cookie}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age}{'; Secure' if secure else ''}"
    ).encode("latin-1")


def _cookie(header: str, name: str) -> str | None:
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return None
    return found.value if found else None


# Bodies.


class _TooLarge(HTTPException):
    """Raised where the body is read, however deep inside."""

    def __init__(self, most: int) -> None:
        super().__init__(413, f"more than {most // 1024 // 1024} MiB were sent")


def _too_large(scope: Scope) -> Refused:
    most = MAX_UPLOAD if scope["path"].endswith("/restore") else MAX_BODY
    return Refused(413, f"more than {most // 1024 // 1024} MiB were sent", "send less at a time, or use semel dlq")


def _bounded(receive: Receive, most: int) -> Receive:
    """Counts what comes in, for those who do not say its length before."""
    left = most

    async def counted() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise _TooLarge(most)
        return message

    return counted


def _kind(headers: dict[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


async def _csrf(headers: dict[str, str], receive: Receive) -> tuple[str | None, Receive]:
    """The CSRF token of a request, from its header, or from the form; what was read for it is handed on."""
    if (given := headers.get(CSRF_HEADER)) is not None:
        return given, receive
    kind = _kind(headers)
    if kind == "application/x-www-form-urlencoded":
        whole, receive = await _read(receive, MAX_BODY)
        found = _IN_FORM.search(whole)
        return unquote_plus(found[1].decode("latin-1")) if found else None, receive
    if kind == "multipart/form-data":
        # The field stands first, so that a large file need not be read before it is known who sends it.
        start, receive = await _read(receive, MAX_FIELD)
        field = _FIELD.search(start[:MAX_FIELD])
        return field[1].decode() if field else None, receive
    return None, receive


async def _read(receive: Receive, most: int) -> tuple[bytes, Receive]:
    messages: list[Message] = []
    size = 0
    more = True
    while more and size < most:
        message = await receive()
        messages.append(message)
        size += len(message.get("body", b""))
        more = message["type"] == "http.request" and message.get("more_body", False)
    kept = iter(messages)

    async def again() -> Message:
        message = next(kept, None)
        return await receive() if message is None else message

    return b"".join(message.get("body", b"") for message in messages), again


# Answers.


def _with_headers(scope: Scope, send: Send) -> Send:
    # A static file's address has its digest in it, if our page names it.
    lasting = scope["path"].startswith("/static/") and scope.get("query_string", b"").startswith(b"v=")
    kept = b"public, max-age=31536000, immutable" if lasting else b"no-store"

    async def decorated(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers: list[tuple[bytes, bytes]] = list(message.get("headers", ()))
            present = {name.lower() for name, _ in headers}
            added = (*_HEADERS, (b"cache-control", kept))
            message["headers"] = headers + [pair for pair in added if pair[0] not in present]
        await send(message)

    return decorated


def _with_cookie(send: Send, cookie: bytes) -> Callable[[Message], Awaitable[None]]:
    async def decorated(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"set-cookie", cookie)]
        await send(message)

    return decorated
