"""The client's configuration: credentials, region, endpoint, attempts, TLS and proxies, all as botocore resolves them.

A botocore client is created, queried and discarded, so every way to configure boto3 also configures this client. Only
botocore's public interface is used, and no other module of the client imports botocore.

Two things differ from botocore. AWS_REGION is read, and takes precedence over AWS_DEFAULT_REGION. An endpoint on
loopback needs no region and no credentials: if none are configured, it gets defaults.
"""

from __future__ import annotations

import os
import ssl
import threading
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final
from urllib.parse import urlsplit

import botocore.credentials
import botocore.exceptions
import botocore.httpsession
import botocore.loaders
import botocore.session
import botocore.utils
from botocore.config import Config

from semel.sqs.client.signer import KeyPair
from semel.sqs.client.transport import Address, Proxy
from semel.sqs.errors import BadConfiguration, NoCredentials
from semel.sqs.hosts import is_loopback

_ATTEMPTS: Final = {"legacy": 5, "standard": 3, "adaptive": 3}
_LOCAL_REGION: Final = "us-east-1"
_LOCAL_KEY: Final = "local"  # a broker on this machine that checks no signatures accepts any key pair
_HARMLESS_CALLS: Final = {"sqs": "list_queues", "dynamodb": "list_tables"}
_KEYS: Final = (
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE, give the machine a role, or pass access_key and "
    "secret_key (for a local broker any will do)."
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the caller asked for; None leaves it to the environment and the configuration files."""

    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    session: Any = None
    max_attempts: int | None = None
    access_key: str | None = None
    secret_key: str | None = None
    session_token: str | None = None
    service: str = "sqs"


@dataclass(frozen=True, slots=True)
class Resolved:
    url: str  # as it is shown to people
    host: str  # the Host header
    path: str
    region: str
    address: Address
    max_attempts: int
    credentials: CredentialSource
    session: Any  # botocore's or boto3's

    @property
    def request_address(self) -> str:
        """What comes before the path in the request line: a proxy for plain HTTP needs the host there."""
        return f"http://{self.host}" if self.address.proxy and self.address.tls is None else ""

    @property
    def proxy_headers(self) -> bytes:
        return self.address.proxy.authorization if self.address.proxy and self.address.tls is None else b""


class CredentialSource:
    """The key pair to sign with: looked up at the first call, then refreshed by botocore before it expires.

    `local`: the endpoint is on loopback, so there is a default if nothing is configured."""

    def __init__(self, session: Any, fixed: botocore.credentials.Credentials | None, *, local: bool) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._credentials: botocore.credentials.Credentials | None = fixed
        self._local = local

    def __call__(self) -> KeyPair:
        credentials = self._credentials or self._find()
        try:
            return credentials.get_frozen_credentials()
        except botocore.exceptions.BotoCoreError as error:
            raise NoCredentials(f"the credentials could not be refreshed: {error}. {_KEYS}") from error

    def _find(self) -> botocore.credentials.Credentials:
        with self._lock:
            if self._credentials is None:
                try:
                    self._credentials = self._session.get_credentials()
                except botocore.exceptions.BotoCoreError as error:
                    raise NoCredentials(f"the credentials could not be found: {error}. {_KEYS}") from error
            if self._credentials is None and self._local:
                self._credentials = botocore.credentials.Credentials(_LOCAL_KEY, _LOCAL_KEY)
            if self._credentials is None:
                raise NoCredentials(f"there are no AWS credentials. {_KEYS}")
            return self._credentials

    def renew(self) -> bool:
        """Looks the credentials up again, because SQS says that they have expired. False if none can be found."""
        with self._lock:
            if getattr(self._credentials, "method", "") == "explicit":  # passed by hand
                return False
            session = getattr(self._session, "_session", self._session)  # where boto3 keeps botocore's session
            try:
                credentials = session.get_component("credential_provider").load_credentials()
            except botocore.exceptions.BotoCoreError:
                return False
            if credentials is None:
                return False
            self._credentials = credentials
            return True


def resolve(wanted: Wanted) -> Resolved:
    if wanted.max_attempts is not None and wanted.max_attempts < 1:
        raise BadConfiguration(f"max_attempts={wanted.max_attempts}: the first attempt counts, so give at least 1")
    try:
        session, client, url = _located(wanted)
        local = is_loopback(url.hostname or "")
        if local and wanted.session is None:
            # Asking for the role of a machine that has none takes seconds.
            session.get_component("credential_provider").remove("iam-role")
        return Resolved(
            url=f"{url.scheme}://{url.netloc}{url.path.rstrip('/')}",
            host=_host(url),
            path=url.path or "/",
            region=client.meta.region_name,
            address=_address(url, session, client.meta.config),
            max_attempts=wanted.max_attempts or _attempts(client.meta.config),
            credentials=CredentialSource(session, _fixed(wanted), local=local),
            session=session,
        )
    except botocore.exceptions.NoRegionError as error:
        raise BadConfiguration(
            "there is no AWS region. Pass region= (--region on the command line), set AWS_REGION, or add it to "
            "~/.aws/config."
        ) from error
    except botocore.exceptions.BotoCoreError as error:
        raise BadConfiguration(f"the AWS configuration is not usable: {error}") from error


def _fixed(wanted: Wanted) -> botocore.credentials.Credentials | None:
    if wanted.access_key is None and wanted.secret_key is None:
        return None
    if not wanted.access_key or not wanted.secret_key:
        absent = "secret_key" if wanted.access_key else "access_key"
        raise NoCredentials(f"{absent} is missing: pass access_key and secret_key together, or neither.")
    return botocore.credentials.Credentials(wanted.access_key, wanted.secret_key, wanted.session_token)


def _located(wanted: Wanted) -> tuple[Any, Any, Any]:
    """A session, its client, and the URL that it calls. An endpoint on loopback has a default region."""
    try:
        session, client = _botocore_client(wanted)
        return session, client, _url(client, wanted.service)
    except botocore.exceptions.NoRegionError:
        session, client = _botocore_client(replace(wanted, region=_LOCAL_REGION))
        url = _url(client, wanted.service)
        if not is_loopback(url.hostname or ""):
            raise
        return session, client, url


def _botocore_client(wanted: Wanted) -> tuple[Any, Any]:
    if wanted.session is not None and wanted.profile is not None:
        raise BadConfiguration("pass session or profile, not both: a session has its profile already")
    session = wanted.session or new_session(wanted.profile)
    make = getattr(session, "create_client", None) or getattr(session, "client", None)
    if make is None:
        raise BadConfiguration(f"session is a botocore or boto3 session, not {session!r}")
    options: dict[str, Any] = {"region_name": wanted.region, "endpoint_url": wanted.endpoint_url}
    try:
        # Unsigned: this client needs no credentials, and looking for them may take seconds.
        return session, make(wanted.service, **options, config=Config(signature_version=botocore.UNSIGNED))
    except botocore.exceptions.BotoCoreError:
        raise
    except ValueError as error:
        where = f"endpoint_url={wanted.endpoint_url}"
        if wanted.endpoint_url is None:
            where = f"AWS_ENDPOINT_URL_{wanted.service.upper()}, AWS_ENDPOINT_URL or endpoint_url in ~/.aws/config"
        raise BadConfiguration(f"{where}: {error}. Write http://host:port.") from error


def new_session(profile: str | None) -> Any:
    """A botocore session that honours AWS_REGION, as AWS's other SDKs do."""
    session = botocore.session.Session(profile=profile)
    if region := os.environ.get("AWS_REGION"):
        session.set_config_variable("region", region)
    # Most of the time to make a client is spent reading botocore's data; a shared loader reads it only once.
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    return session


@cache
def _loader(path: str | None) -> Any:
    return botocore.loaders.create_loader(path)


def _url(client: Any, service: str) -> Any:
    """The URL that the client would call. botocore applies its endpoint rules only to a call, so one is begun here."""
    urls: list[str] = []

    def stop(params: dict[str, Any], **_: Any) -> tuple[Any, dict[str, Any]]:
        urls.append(params["url"])
        return _Nothing(), {}

    client.meta.events.register(f"before-call.{service}", stop)
    getattr(client, _HARMLESS_CALLS[service])()
    return urlsplit(urls[0])


class _Nothing:
    status_code = 200


def _host(url: Any) -> str:
    host = f"[{url.hostname}]" if ":" in url.hostname else str(url.hostname)
    return host if url.port in (None, _default_port(url)) else f"{host}:{url.port}"


def _default_port(url: Any) -> int:
    return 443 if url.scheme == "https" else 80


def _attempts(config: Any) -> int:
    retries = config.retries or {}
    return int(retries.get("total_max_attempts") or _ATTEMPTS.get(retries.get("mode", ""), 3))


def _address(url: Any, session: Any, config: Any) -> Address:
    proxies = botocore.utils.get_environ_proxies(url.geturl()) if config.proxies is None else config.proxies
    tls = _tls(session, config.client_cert) if url.scheme == "https" else None
    proxy: str = proxies.get(url.scheme) or ""
    try:
        via = Proxy.parse(proxy) if proxy else None
    except ValueError as error:
        raise BadConfiguration(
            f"the proxy {_without_password(proxy)} cannot be used: {error}. "
            f"Change {url.scheme.upper()}_PROXY, or add {url.hostname} to NO_PROXY."
        ) from error
    return Address(url.hostname, url.port or _default_port(url), tls, via)


def _without_password(proxy: str) -> str:
    before, _, after = proxy.rpartition("@")
    return f"{before.partition('//')[0]}//…@{after}" if before else after


def _tls(session: Any, client_cert: Any) -> ssl.SSLContext:
    inner = getattr(session, "_session", session)
    bundle = inner.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE")
    path: str = bundle or botocore.httpsession.get_cert_path(True) or ""
    try:
        context = ssl.create_default_context(cafile=path if os.path.isfile(path) else None)
        if os.path.isdir(path):
            context.load_verify_locations(capath=path)
        elif not os.path.isfile(path):
            raise FileNotFoundError(2, "there is no such file", path)
        if client_cert:
            context.load_cert_chain(*(client_cert if isinstance(client_cert, tuple | list) else (client_cert,)))
    except OSError as error:
        raise BadConfiguration(
            f"the certificates in {path} cannot be used: {error.strerror or error}. Check AWS_CA_BUNDLE or ca_bundle."
        ) from error
    return context
