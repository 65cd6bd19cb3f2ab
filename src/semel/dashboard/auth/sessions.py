"""Sessions of browsers: a signed cookie that scripts cannot read, and that ends after twelve hours or at the logout.

SameSite is Lax and not Strict: a link to the dashboard in a chat or a ticket must not lead to the login page. A link
only shows something; whatever has an effect is checked by `semel.dashboard.auth.policy`.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Final

from itsdangerous import BadSignature, TimestampSigner

LIFETIME: Final = 12 * 3600  # seconds
_MAX_ENDED: Final = 10_000


@dataclass(frozen=True, slots=True)
class Session:
    id: str
    role: str


class Sessions:
    """`clock` returns seconds since 1970. The key is of this process: a restart ends all sessions."""

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
