"""AWS Signature V4: who sent a request, and whether it arrived as it was signed.

The rules of this file:
- The client is not trusted. The body's hash is computed, never taken from it; because the broker speaks plain HTTP,
  `UNSIGNED-PAYLOAD` is refused.
- The broker relies on nothing that can change without breaking the signature. Every `x-amz-*` header must be signed,
  and the canonical query is built from the parameters as the broker decodes them. `Content-Type` may be unsigned: curl
  and SDKs for PHP leave it out, and the broker tells its protocols apart by `X-Amz-Target`.
- A session token must be signed, like any `x-amz-*` value; its content is not checked, as there are no sessions here.
- An error text may show what the client sent, but never a secret or the correct signature.
"""

from __future__ import annotations

import configparser
import hmac
import re
from base64 import b32encode, b64decode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from semel.broker.engine.addresses import ACCOUNT, REGION
from semel.broker.engine.identity import Identity
from semel.broker.protocol.query import resolved
from semel.errors import StartError
from semel.sqs import errors
from semel.sqs.errors import ServiceError

_ALGORITHM: Final = b"AWS4-HMAC-SHA256"
_TERMINATOR: Final = b"aws4_request"
_SKEW: Final = 900
_LONGEST_LIFETIME: Final = 604_800
_SIGNING_KEYS_KEPT: Final = 128
_IDENTITIES_KEPT: Final = 1_024
_LARGEST_EXPLANATION: Final = 4_096
_TIMESTAMP: Final = re.compile(rb"\d{8}T\d{6}Z")
# The slash and the comma separate the parts of a credential in the Authorization header.
_ACCESS_KEY: Final = re.compile(r"[!-+.0-~-]{1,128}")
_USER_ID: Final = re.compile(r"[\w+=,.@:-]{1,128}", re.ASCII)
# If one of these came twice, it would be unclear which one counts.
_ONLY_ONCE: Final = frozenset(
    b"authorization content-type date host x-amz-content-sha256 x-amz-date x-amz-security-token x-amz-target".split()
)
_MISMATCH: Final = (
    "The request signature we calculated does not match the signature you provided. "
    "Check your AWS Secret Access Key and signing method. Consult the service documentation for details."
)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request as it was received: nothing decoded, header order kept. `target` is the path plus `?query`."""

    method: str
    target: str
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes


class User(NamedTuple):
    """The profile of a key pair. Values that the file does not set are empty."""

    name: str
    account: str = ""
    user_id: str = ""


class Credentials(dict[str, str]):
    """Who may call: a dictionary of secret access keys by access key id. Its repr shows only the ids."""

    def __init__(self, secrets: Mapping[str, str] | None = None) -> None:
        super().__init__(secrets or {})
        self.users: dict[str, User] = {}

    def operator(self, account: str) -> tuple[str, str]:
        """The first key pair of the broker's own account, which may use the admin interface; else the first of all."""
        mine = (key for key, user in self.users.items() if user.account in ("", account))
        key = next(mine, next(iter(self)))
        return key, self[key]

    @classmethod
    def load(cls, path: Path) -> Credentials:
        """Read an AWS shared-credentials file; every profile with a key pair is one user."""
        profiles, secrets = _profiles(path), cls()
        for name in profiles.sections():
            access_key = profiles.get(name, "aws_access_key_id", fallback="")
            secret = profiles.get(name, "aws_secret_access_key", fallback="")
            where = f"{path}: profile [{name}]"
            if bool(access_key) != bool(secret):
                absent = "aws_secret_access_key" if access_key else "aws_access_key_id"
                raise StartError(f"{where} has no {absent}. Add it, or remove the other half of the pair.")
            if access_key and not _ACCESS_KEY.fullmatch(access_key):
                raise StartError(f"{where} has an unusable aws_access_key_id. Use letters and digits only.")
            if access_key and secrets.setdefault(access_key, secret) != secret:
                raise StartError(f"{where} gives {access_key} another secret than a profile above. Remove one.")
            if access_key:
                user = _user(profiles, name, where)
                if secrets.users.setdefault(access_key, user)[1:] != user[1:]:
                    raise StartError(
                        f"{where} puts {access_key} into another account than a profile above. Remove one."
                    )
        if not secrets:
            raise StartError(
                f"{path}: no profile has a key pair. Add a line [default] and below it "
                "aws_access_key_id = … and aws_secret_access_key = …"
            )
        return secrets

    def __repr__(self) -> str:
        return f"Credentials({', '.join(self)})"


def _user(profiles: configparser.RawConfigParser, name: str, where: str) -> User:
    account = profiles.get(name, "aws_account_id", fallback="")
    user_id = profiles.get(name, "aws_user_id", fallback="")
    if account and not ACCOUNT.match(account):
        raise StartError(f"{where} has an unusable aws_account_id. An AWS account has 12 digits.")
    if user_id and not _USER_ID.fullmatch(user_id):
        raise StartError(f"{where} has an unusable aws_user_id. Use up to 128 letters and digits, as in AIDAEXAMPLE.")
    return User(name, account, user_id)


def user_id_of(account: str, name: str) -> str:
    """A user id like those of IAM, always the same for this name in this account."""
    return "AIDA" + b32encode(sha256(f"{account}:{name}".encode()).digest()).decode()[:17]


def _profiles(path: Path) -> configparser.RawConfigParser:
    profiles = configparser.RawConfigParser(default_section="")
    try:
        with path.open(encoding="utf-8-sig") as file:
            profiles.read_file(file)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise StartError(f"{path}: cannot read the credentials: {why}. Check --credentials.") from None
    except configparser.Error as error:
        # The error's own text quotes the line, which may have the secret.
        line = getattr(error, "lineno", None) or next((number for number, _ in getattr(error, "errors", ())), "?")
        section = getattr(error, "section", None)
        what = f"repeats something in profile [{section}]" if section else "is not [profile] or key = value"
        raise StartError(f"{path}: line {line} {what}. Correct or remove it.") from None
    return profiles


class _Signature(NamedTuple):
    """The signature of a request, from its headers or its query. None of it is verified yet."""

    algorithm: bytes
    credential: bytes
    signed_headers: bytes
    signature: bytes
    date: bytes
    lifetime: int = _SKEW


class Verifier:
    """Checks requests against a set of credentials. A user belongs to `account` unless the credentials say
    otherwise; `region` is for callers who do not sign for one."""

    def __init__(
        self,
        credentials: Mapping[str, str],
        *,
        service: str = "sqs",
        region: str = "us-east-1",
        account: str = "000000000000",
    ) -> None:
        self._secrets = dict(credentials)
        self._users = credentials.users if isinstance(credentials, Credentials) else {}
        self._service = service.encode()
        self._region, self._account = region, account
        self._identity = lru_cache(maxsize=_IDENTITIES_KEPT)(self._make_identity)
        self._signing_key = lru_cache(maxsize=_SIGNING_KEYS_KEPT)(_signing_key)

    def _make_identity(self, access_key: str, region: str) -> Identity:
        user = self._users.get(access_key) or User(access_key)
        account = user.account or self._account
        user_id = user.user_id or user_id_of(account, user.name)
        return Identity(access_key, account, user_id, f"arn:aws:iam::{account}:user/{user.name}", region)

    def by_password(self, authorization: str) -> Identity | None:
        """The user whose key pair is in an HTTP Basic header: for monitoring, which cannot sign requests."""
        scheme, _, encoded = authorization.partition(" ")
        try:
            access_key, _, secret = b64decode(encoded, validate=True).decode().partition(":")
        except ValueError:
            return None
        known = self._secrets.get(access_key)
        if scheme.lower() != "basic" or known is None or not hmac.compare_digest(known.encode(), secret.encode()):
            return None
        return self._identity(access_key, self._region)

    def verify(self, request: HttpRequest, now: float) -> Identity:
        """Who signed `request`, and for which region. Raises the ServiceError that AWS would return."""
        headers = _by_name(request.headers)
        path, _, query = request.target.encode("utf-8", "surrogatepass").partition(b"?")
        parameters = _decoded(query) if query else []
        presigned = any(name == b"X-Amz-Algorithm" for name, _ in parameters)
        signature = _from_query(parameters, headers) if presigned else _from_header(headers)

        _check_time(signature, now)
        names = signature.signed_headers.split(b";")
        _check_signed(names, headers)
        access_key, date, region = self._check_scope(signature)
        secret = self._secrets.get(access_key)
        if secret is None:
            raise ServiceError(errors.INVALID_CLIENT_TOKEN, "The security token included in the request is invalid.")

        body_hash = sha256(request.body).hexdigest().encode()
        if headers.get(b"x-amz-content-sha256", body_hash) != body_hash:
            raise _refused("The provided 'x-amz-content-sha256' header does not match what was computed.")
        canonical = b"\n".join(
            (
                request.method.encode("utf-8", "surrogatepass"),
                path if path == b"/" else _canonical_path(path),
                _canonical_query(parameters, presigned=presigned) if parameters else b"",
                *[b"%b:%b" % (name, b" ".join(headers[name].split())) for name in names],
                b"",
                signature.signed_headers,
                body_hash,
            )
        )
        scope = b"/".join((date, region, self._service, _TERMINATOR))
        to_sign = b"\n".join((_ALGORITHM, signature.date, scope, sha256(canonical).hexdigest().encode()))
        key = self._signing_key(secret, date, region, self._service)
        if not hmac.compare_digest(hmac.digest(key, to_sign, "sha256").hex().encode(), signature.signature):
            raise _mismatch(canonical, to_sign)
        return self._identity(access_key, region.decode())

    def _check_scope(self, signature: _Signature) -> tuple[str, bytes, bytes]:
        """Access key id, date and region of the credential."""
        if signature.algorithm != _ALGORITHM:
            got = _shown(signature.algorithm)
            raise _incomplete(f"Unsupported AWS 'algorithm': '{got}' (only AWS4-HMAC-SHA256 for now).")
        parts = signature.credential.split(b"/")
        if len(parts) != 5:
            raise _incomplete(
                "Credential must have exactly 5 slash-delimited elements, e.g. keyid/date/region/service/term, "
                f"got '{_shown(signature.credential)}'"
            )
        access_key, date, region, service, terminator = parts
        wrong = []
        if not REGION.match(region.decode("latin-1")):
            wrong.append(f"Credential should be scoped to a valid region, not '{_shown(region)}'.")
        if service != self._service:
            wrong.append(f"Credential should be scoped to correct service: '{self._service.decode()}'.")
        if terminator != _TERMINATOR:
            got = _shown(terminator)
            wrong.append(f"Credential should be scoped with a valid terminator: 'aws4_request', not '{got}'.")
        if date != signature.date[:8]:
            wrong.append(
                "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP: "
                f"'{_shown(date)}' != '{_shown(signature.date[:8])}', from '{_shown(signature.date)}'."
            )
        if wrong:
            raise _refused(" ".join(wrong))
        return access_key.decode("latin-1"), date, region


def _by_name(received: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Headers under their lower-case names; the values of one sent several times are joined by commas, as signed."""
    headers: dict[bytes, bytes] = {}
    repeated: dict[bytes, list[bytes]] = {}
    for name, value in received:
        key = name.lower()
        if key not in headers:
            headers[key] = value.strip()
        elif key in _ONLY_ONCE:
            raise _incomplete(f"The header '{_shown(key)}' must not be sent more than once.")
        else:
            repeated.setdefault(key, [headers[key]]).append(value.strip())
    for key, values in repeated.items():
        headers[key] = b",".join(values)
    return headers


def _decoded(query: bytes) -> list[tuple[bytes, bytes]]:
    """The parameters of a query, decoded like a form: '+' is a space, and '#' is refused."""
    if b"#" in query:
        raise _incomplete("The query string must not contain '#'. Encode it as %23.")
    pairs = (part.replace(b"+", b" ").partition(b"=") for part in query.split(b"&") if part)
    return [(unquote_to_bytes(name), unquote_to_bytes(value)) for name, _, value in pairs]


def _from_header(headers: Mapping[bytes, bytes]) -> _Signature:
    algorithm, _, rest = headers.get(b"authorization", b"").partition(b" ")
    if not algorithm.startswith(b"AWS4-"):
        raise ServiceError(errors.MISSING_AUTHENTICATION_TOKEN, "Request is missing Authentication Token")
    fields: dict[bytes, bytes] = {}
    for field in rest.replace(b",", b" ").split():
        name, equals, value = field.partition(b"=")
        if not equals or name in fields:
            what = "repeats a parameter" if equals else "not a valid key=value pair (missing equal-sign)"
            raise _incomplete(f"'{_shown(field)}' {what} in Authorization header.")
        fields[name] = value
    date = headers.get(b"x-amz-date") or headers.get(b"date", b"")
    required = (b"Credential", b"Signature", b"SignedHeaders")
    absent = [f"Authorization header requires '{_shown(name)}' parameter." for name in required if not fields.get(name)]
    if not date:
        absent.append("Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header.")
    if absent:
        raise _incomplete(" ".join(absent))
    return _Signature(algorithm, fields[b"Credential"], fields[b"SignedHeaders"], fields[b"Signature"], date)


def _from_query(parameters: Iterable[tuple[bytes, bytes]], headers: Mapping[bytes, bytes]) -> _Signature:
    if b"authorization" in headers:
        raise _refused("Found both 'X-Amz-Algorithm' as a query-string param and 'Authorization' as HTTP header.")
    fields: dict[bytes, bytes] = {}
    for name, value in parameters:
        if name.startswith(b"X-Amz-"):
            if name in fields:
                raise _incomplete(f"AWS query-string parameters must not include '{_shown(name)}' more than once.")
            fields[name] = value
    required = [b"X-Amz-" + name for name in (b"Algorithm", b"Credential", b"SignedHeaders", b"Signature", b"Date")]
    absent = [_shown(name) for name in required if not fields.get(name)]
    if absent:
        each = " ".join([f"AWS query-string parameters must include '{name}'." for name in absent])
        raise _incomplete(f"{each} Re-examine the query-string parameters.")
    # SQS gives every presigned URL 15 minutes, whatever it asks for. Here it is valid for as long as it asks for.
    lifetime = fields.get(b"X-Amz-Expires", b"%d" % _SKEW)
    if not re.fullmatch(rb"\d{1,6}", lifetime) or not 1 <= int(lifetime) <= _LONGEST_LIFETIME:
        raise _incomplete(f"X-Amz-Expires must be a number from 1 to {_LONGEST_LIFETIME}, not '{_shown(lifetime)}'.")
    algorithm, credential, signed_headers, signature, date = (fields[name] for name in required)
    return _Signature(algorithm, credential, signed_headers, signature, date, int(lifetime))


def _check_time(signature: _Signature, now: float) -> None:
    date, lifetime = _shown(signature.date), signature.lifetime
    try:
        signed_at = datetime.fromisoformat(date).timestamp() if _TIMESTAMP.fullmatch(signature.date) else None
    except ValueError:
        signed_at = None
    if signed_at is None:
        hint = "See http://en.wikipedia.org/wiki/ISO_8601"
        raise _incomplete(f"Date must be in ISO-8601 'basic format'. Got '{date}'. {hint}")
    if signed_at < now - lifetime:
        span = f"{lifetime // 60} min." if lifetime % 60 == 0 else f"{lifetime} sec."
        earliest = f"{_timestamp(now - lifetime)} ({_timestamp(now)} - {span})"
        raise _refused(f"Signature expired: {date} is now earlier than {earliest}")
    if signed_at > now + _SKEW:
        latest = f"{_timestamp(now + _SKEW)} ({_timestamp(now)} + 15 min.)"
        raise _refused(f"Signature not yet current: {date} is still later than {latest}")


def _check_signed(names: Sequence[bytes], headers: Mapping[bytes, bytes]) -> None:
    signed = frozenset(names)
    if b"host" not in signed:
        raise _refused("'Host' or ':authority' must be a 'SignedHeader' in the AWS Authorization.")
    # A list that named one long header many times would turn a small request into a huge canonical one.
    if len(signed) != len(names):
        raise _incomplete("SignedHeaders must not name a header more than once.")
    for name in headers:
        if name.startswith(b"x-amz-") and name not in signed:
            raise _refused(f"'{_shown(name)}' must be a 'SignedHeader' in the AWS Authorization.")
    for name in names:
        if name not in headers:
            raise _refused(f"The header '{_shown(name)}' is among the SignedHeaders but was not received.")


def _canonical_path(path: bytes) -> bytes:
    """The path without dot segments and double slashes, URI-encoded once more than it was sent."""
    return quote(resolved(path.decode("utf-8", "surrogatepass")), errors="surrogatepass").encode()


def _canonical_query(parameters: Iterable[tuple[bytes, bytes]], *, presigned: bool) -> bytes:
    left_out = b"X-Amz-Signature" if presigned else None
    encoded = [(quote(name, safe=""), quote(value, safe="")) for name, value in parameters if name != left_out]
    return "&".join([f"{name}={value}" for name, value in sorted(encoded)]).encode()


def _signing_key(secret: str, date: bytes, region: bytes, service: bytes) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (date, region, service, _TERMINATOR):
        key = hmac.digest(key, part, "sha256")
    return key


def _timestamp(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y%m%dT%H%M%SZ")


def _shown(received: bytes) -> str:
    """What a client sent, in a form for error texts: as ASCII, and cut if it is long."""
    return received[:80].decode("ascii", "backslashreplace")


def _incomplete(text: str) -> ServiceError:
    return ServiceError(errors.INCOMPLETE_SIGNATURE, text)


def _refused(text: str) -> ServiceError:
    return ServiceError(errors.SIGNATURE_DOES_NOT_MATCH, text)


def _mismatch(canonical: bytes, to_sign: bytes) -> ServiceError:
    """As AWS does, show what was signed here, so that a client's author can see where the two differ."""
    if len(canonical) > _LARGEST_EXPLANATION:
        return _refused(_MISMATCH)
    ours, line = (text.decode("ascii", "backslashreplace") for text in (canonical, to_sign))
    return _refused(
        f"{_MISMATCH}\n\nThe Canonical String for this request should have been\n'{ours}'"
        f"\n\nThe String-to-Sign should have been\n'{line}'\n"
    )
