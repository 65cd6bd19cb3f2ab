"""Requests with an AWS signature that is made by hand, so that every part of a request can be altered afterwards."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import quote

KEY, SECRET = "AKIAINTRUDED", "owner-secret-of-forty-characters-or-so"
ALGORITHM: Final = "AWS4-HMAC-SHA256"


@dataclass(frozen=True, slots=True)
class Signed:
    """One signed request. `headers` are sent as they are."""

    method: str = "POST"
    path: str = "/"
    query: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b"{}"
    authorization: str = field(default="", repr=False)

    def raw(self) -> bytes:
        target = self.path + (f"?{self.query}" if self.query else "")
        headers = [*self.headers, ("Authorization", self.authorization), ("Content-Length", str(len(self.body)))]
        lines = [f"{name}: {value}" for name, value in headers if value or name != "Authorization"]
        return "\r\n".join([f"{self.method} {target} HTTP/1.1", *lines, "", ""]).encode("latin-1") + self.body

    def with_header(self, name: str, value: str) -> Signed:
        return replace(
            self, headers=tuple((key, value if key.lower() == name.lower() else old) for key, old in self.headers)
        )

    def with_more(self, name: str, value: str) -> Signed:
        return replace(self, headers=(*self.headers, (name, value)))

    def with_authorization(self, old: str, new: str) -> Signed:
        assert old in self.authorization
        return replace(self, authorization=self.authorization.replace(old, new))


def sign(
    operation: str,
    host: str,
    body: bytes = b"{}",
    *,
    path: str = "/",
    query: str = "",
    key: str = KEY,
    secret: str = SECRET,
    minutes: float = 0,
    region: str = "us-east-1",
    service: str = "sqs",
    day: str = "",
    more: tuple[tuple[str, str], ...] = (),
    payload: str | None = None,
    unsigned: str = "",
) -> Signed:
    """A call in AWS JSON. `minutes`: how far the client's clock is ahead; `day`: the day in the scope, if not the
    clock's; `payload`: what is signed in place of the body's hash; `unsigned`: a header that the signature does not
    cover."""
    stamp = (datetime.now(UTC) + timedelta(minutes=minutes)).strftime("%Y%m%dT%H%M%SZ")
    headers = (("Host", host), ("X-Amz-Date", stamp), ("X-Amz-Target", f"AmazonSQS.{operation}"), *more)
    ordered = sorted((name.lower(), value) for name, value in headers if name != unsigned)
    names = ";".join(name for name, _ in ordered)
    digest = hashlib.sha256(body).hexdigest() if payload is None else payload
    lines = [f"{name}:{value}" for name, value in ordered]
    canonical = "\n".join(["POST", quote(path), query, *lines, "", names, digest])
    scope = "/".join((day or stamp[:8], region, service, "aws4_request"))
    text = "\n".join((ALGORITHM, stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()))
    signing_key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        signing_key = hmac.digest(signing_key, part.encode(), "sha256")
    signature = hmac.digest(signing_key, text.encode(), "sha256").hex()
    authorization = f"{ALGORITHM} Credential={key}/{scope}, SignedHeaders={names}, Signature={signature}"
    return Signed("POST", path, query, headers, body, authorization)


def signature_of(request: Signed) -> str:
    return request.authorization.rpartition("=")[2]
