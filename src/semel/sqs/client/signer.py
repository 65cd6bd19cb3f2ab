"""AWS Signature V4 for the one kind of request that the client makes: POST of AWS JSON 1.0.

Every header but User-Agent and Content-Length is signed. Parts that do not change from call to call are made once: the
text for each operation, the time stamp for each second, the signing key for each day.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from hashlib import sha256
from time import gmtime, strftime
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote

from semel.sqs.errors import NoCredentials

_ALGORITHM: Final = b"AWS4-HMAC-SHA256"
_CONTENT_TYPE: Final = b"application/x-amz-json-1.0"


class KeyPair(Protocol):
    """Frozen credentials, as botocore gives them."""

    @property
    def access_key(self) -> str | None: ...
    @property
    def secret_key(self) -> str | None: ...
    @property
    def token(self) -> str | None: ...


class _Stamp(NamedTuple):
    """What all requests of one second and one key pair share."""

    second: int
    keys: KeyPair
    date: bytes
    scope: bytes
    to_sign: bytes
    signing_key: bytes
    credential: bytes


class _Texts(NamedTuple):
    """What all requests for one operation and one key pair's token share."""

    token: str | None
    canonical: bytes
    head: bytes


class Signer:
    """Makes complete signed requests. `address` goes before the path in the request line, for plain HTTP proxies.

    The defaults are SQS's. Other services that speak AWS JSON 1.0 have another `service` and `target`."""

    def __init__(
        self,
        *,
        host: str,
        path: str,
        region: str,
        key_pair: Callable[[], KeyPair],
        user_agent: str,
        address: str = "",
        headers: bytes = b"",
        service: str = "sqs",
        target: str = "AmazonSQS",
        query_mode: bool = True,
    ) -> None:
        self._host = host.encode()
        self._target = f"{address}{path}".encode()
        # The path is URI-encoded a second time, as for all services except S3.
        self._canonical_path = quote(path, safe="/~").encode()
        self._region = region.encode()
        self._service = service.encode()
        self._target_prefix, self._query_mode = f"{target}.".encode(), query_mode
        self._key_pair = key_pair
        self._headers = b"User-Agent: %b\r\n%b" % (user_agent.encode(), headers)
        self._stamp: _Stamp | None = None
        self._texts: dict[str, _Texts] = {}

    def request(self, operation: str, body: bytes, now: float) -> bytes:
        """The bytes to send. `now` is the time as SQS sees it."""
        keys = self._key_pair()
        second = int(now)
        stamp = self._stamp
        # One tuple, replaced as a whole, so that threads never see half of a change.
        if stamp is None or stamp.second != second or stamp.keys != keys:
            stamp = self._stamp = self._stamped(second, keys, stamp)
        texts = self._texts.get(operation)
        if texts is None or texts.token != keys.token:
            texts = self._texts[operation] = self._written(operation, keys.token)
        canonical = texts.canonical % (stamp.date, sha256(body).hexdigest().encode())
        to_sign = stamp.to_sign + sha256(canonical).hexdigest().encode()
        signature = hmac.digest(stamp.signing_key, to_sign, "sha256").hex().encode()
        return texts.head % (stamp.date, stamp.credential, signature, len(body)) + body

    def _stamped(self, second: int, keys: KeyPair, before: _Stamp | None) -> _Stamp:
        access_key, secret_key = _sound("access key", keys.access_key), _sound("secret key", keys.secret_key)
        if keys.token:
            _sound("session token", keys.token)
        date = strftime("%Y%m%dT%H%M%SZ", gmtime(second)).encode()
        scope = b"%b/%b/%b/aws4_request" % (date[:8], self._region, self._service)
        if before is not None and before.scope == scope and before.keys == keys:
            signing_key = before.signing_key
        else:
            signing_key = b"AWS4" + secret_key.encode()
            for part in scope.split(b"/"):
                signing_key = hmac.digest(signing_key, part, "sha256")
        return _Stamp(
            second=second,
            keys=keys,
            date=date,
            scope=scope,
            to_sign=b"%b\n%b\n%b\n" % (_ALGORITHM, date, scope),
            signing_key=signing_key,
            credential=b"%b/%b" % (access_key.encode(), scope),
        )

    def _written(self, operation: str, token: str | None) -> _Texts:
        # Both become templates; `_template` escapes the per cent signs in tokens and paths.
        headers = [(b"content-type", _CONTENT_TYPE), (b"host", self._host), (b"x-amz-date", b"\0")]
        if token:
            headers.append((b"x-amz-security-token", token.encode()))
        headers.append((b"x-amz-target", self._target_prefix + operation.encode()))
        if self._query_mode:  # only for SQS: asks for errors with the codes of its older protocol
            headers.append((b"x-amzn-query-mode", b"true"))
        names = b";".join(name for name, _ in headers)
        canonical = b"POST\n%b\n\n%b\n%b\n" % (
            self._canonical_path,
            b"".join(b"%b:%b\n" % header for header in headers),
            names,
        )
        head = b"POST %b HTTP/1.1\r\n%b%bAuthorization: %b Credential=\0, SignedHeaders=%b, Signature=\0\r\n" % (
            self._target,
            b"".join(b"%b: %b\r\n" % header for header in headers),
            self._headers,
            _ALGORITHM,
            names,
        )
        return _Texts(token, _template(canonical) + b"%b", _template(head) + b"Content-Length: %d\r\n\r\n")


def plain_signature(
    method: str, target: str, body: bytes, host: str, region: str, keys: KeyPair, now: float, service: str = "sqs"
) -> dict[str, str]:
    """The headers that sign any other request. `target` is a path and its query, both already encoded."""
    access_key, secret_key = _sound("access key", keys.access_key), _sound("secret key", keys.secret_key)
    date = strftime("%Y%m%dT%H%M%SZ", gmtime(now))
    headers = {"host": host, "x-amz-date": date}
    if keys.token:
        headers["x-amz-security-token"] = _sound("session token", keys.token)
    path, _, query = target.partition("?")
    pairs = [pair.partition("=")[::2] for pair in query.split("&") if pair]
    names = ";".join(headers)
    canonical = "\n".join(
        (
            method,
            quote(path, safe="/~"),
            "&".join(f"{name}={value}" for name, value in sorted(pairs)),
            *[f"{name}:{value}" for name, value in headers.items()],
            "",
            names,
            sha256(body).hexdigest(),
        )
    )
    scope = f"{date[:8]}/{region}/{service}/aws4_request"
    to_sign = f"{_ALGORITHM.decode()}\n{date}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    shown = f"{_ALGORITHM.decode()} Credential={access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {name: value for name, value in headers.items() if name != "host"} | {"Authorization": shown}


def _sound(what: str, value: str | None) -> str:
    """Refuses a line break or a blank, as copying may add one: SQS would only report a wrong signature."""
    if not value or not value.isascii() or any(not "!" <= character <= "~" for character in value):
        raise NoCredentials(f"the AWS {what} is empty or has a blank or a line break in it. Copy it again.")
    return value


def _template(text: bytes) -> bytes:
    return text.replace(b"%", b"%%").replace(b"\0", b"%b")
