"""How the client finds SQS and its credentials: like botocore, from every source that botocore supports."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import boto3
import botocore.config
import botocore.session
import pytest
from clients import Naps
from scripted_server import Request, answer, in_turn, scripted

from semel.sqs import Client
from semel.sqs.errors import BadConfiguration, BadRequest, NoCredentials, Unreachable


@pytest.fixture(autouse=True)
def blank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No configuration but the test's own, and no looking for the credentials of a machine."""
    for name in list(os.environ):
        if name.startswith("AWS_") or name.lower().endswith("_proxy") or name == "REQUESTS_CA_BUNDLE":
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_RETRY_MODE", "standard")  # the default of some versions of botocore


def environment(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


# Endpoint and region.


@pytest.mark.parametrize(
    ("variables", "options", "expected"),
    [
        ({"AWS_DEFAULT_REGION": "eu-west-1"}, {}, "https://sqs.eu-west-1.amazonaws.com"),
        ({"AWS_DEFAULT_REGION": "us-east-1"}, {}, "https://sqs.us-east-1.amazonaws.com"),
        ({"AWS_DEFAULT_REGION": "us-east-1"}, {"region": "cn-north-1"}, "https://sqs.cn-north-1.amazonaws.com.cn"),
        ({"AWS_USE_FIPS_ENDPOINT": "true"}, {"region": "us-east-1"}, "https://sqs-fips.us-east-1.amazonaws.com"),
        ({"AWS_USE_DUALSTACK_ENDPOINT": "true"}, {"region": "us-east-1"}, "https://sqs.us-east-1.api.aws"),
        ({"AWS_ENDPOINT_URL": "http://a:1"}, {"region": "us-west-2"}, "http://a:1"),
        (
            {"AWS_ENDPOINT_URL": "http://a:1", "AWS_ENDPOINT_URL_SQS": "http://b:2"},
            {"region": "us-west-2"},
            "http://b:2",
        ),
        ({"AWS_ENDPOINT_URL_SQS": "http://b:2"}, {"region": "us-west-2", "endpoint_url": "http://c:3"}, "http://c:3"),
        (
            {"AWS_ENDPOINT_URL_SQS": "http://b:2", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"},
            {"region": "eu-west-1"},
            "https://sqs.eu-west-1.amazonaws.com",
        ),
        ({}, {"region": "us-west-2", "endpoint_url": "http://[::1]:9/some/path"}, "http://[::1]:9/some/path"),
    ],
)
def test_the_endpoint_is_the_one_that_botocore_would_use(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], options: dict[str, str], expected: str
) -> None:
    environment(monkeypatch, **variables)
    with Client(**options) as client:  # type: ignore[arg-type]
        assert client.endpoint == expected


def test_profiles_give_region_endpoint_attempts_and_credentials(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "credentials").write_text("[work]\naws_access_key_id=WORKER\naws_secret_access_key=s\n")
    with scripted(in_turn(answer())) as server:
        (tmp_path / "config").write_text(
            "[profile work]\nregion=eu-north-1\nmax_attempts=9\nservices=local\n"
            f"[services local]\nsqs =\n  endpoint_url = {server.url}\n"
        )
        with Client(profile="work") as client:
            client.call("ListQueues")
            assert (client.region, client.endpoint, client.max_attempts) == ("eu-north-1", server.url, 9)
        environment(monkeypatch, AWS_PROFILE="work")
        with Client() as client:
            client.call("ListQueues")
        first, second = [request.headers["authorization"] for request in server.requests]
        assert "Credential=WORKER/" in first
        assert "/eu-north-1/sqs/" in second


@pytest.mark.parametrize("kind", ["boto3", "botocore"])
def test_a_session_of_boto3_or_botocore_is_used_as_it_is(kind: str) -> None:
    session: Any
    if kind == "boto3":
        session = boto3.session.Session("SESSION", "s", "t", "ap-south-1")
    else:
        session = botocore.session.Session()
        session.set_credentials("SESSION", "s", "t")
        session.set_config_variable("region", "ap-south-1")
        session.set_default_client_config(botocore.config.Config(retries={"total_max_attempts": 7}))
    with scripted(in_turn(answer())) as server, Client(server.url, session=session) as client:
        client.call("ListQueues")
        assert client.region == "ap-south-1"
        assert client.max_attempts == (7 if kind == "botocore" else 3)
        (request,) = server.requests
        assert "Credential=SESSION/" in request.headers["authorization"]
        assert request.headers["x-amz-security-token"] == "t"


def test_credentials_are_read_anew_for_each_call_so_that_botocore_can_refresh_them() -> None:
    session: Any = botocore.session.Session()
    session.set_config_variable("region", "eu-west-1")
    from botocore.credentials import RefreshableCredentials

    far = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)).isoformat()
    past = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=1)).isoformat()
    fetched: list[str] = []

    def fetch() -> dict[str, str]:
        fetched.append(f"KEY{len(fetched)}")
        return {"access_key": fetched[-1], "secret_key": "s", "token": "t", "expiry_time": far}

    old = {"access_key": "OLD", "secret_key": "s", "token": "t", "expiry_time": past}
    session._credentials = RefreshableCredentials.create_from_metadata(old, fetch, "test")
    with scripted(in_turn(answer())) as server, Client(server.url, session=session) as client:
        client.call("ListQueues")
        client.call("ListQueues")
        assert fetched == ["KEY0"]
        assert all("Credential=KEY0/" in request.headers["authorization"] for request in server.requests)


@pytest.mark.parametrize(
    ("variables", "options", "expected"),
    [
        ({}, {}, 3),
        ({"AWS_RETRY_MODE": "legacy"}, {}, 5),
        ({"AWS_MAX_ATTEMPTS": "8"}, {}, 8),
        ({"AWS_MAX_ATTEMPTS": "8"}, {"max_attempts": 2}, 2),
    ],
)
def test_attempts_are_counted_as_botocore_counts_them(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], options: dict[str, int], expected: int
) -> None:
    environment(monkeypatch, **variables)
    with Client("http://127.0.0.1:1", "eu-west-1", **options) as client:  # type: ignore[arg-type]
        assert client.max_attempts == expected


def test_the_path_of_an_endpoint_is_kept() -> None:
    with (
        scripted(in_turn(answer())) as server,
        Client(f"{server.url}/sqs", "eu-west-1", access_key="a", secret_key="b") as client,
    ):
        client.call("ListQueues")
        assert server.requests[0].line in ("POST /sqs HTTP/1.1", "POST /sqs/ HTTP/1.1")
        assert server.requests[0].headers["host"] == f"127.0.0.1:{server.port}"


def test_aws_region_comes_before_aws_default_region_and_after_what_is_passed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text("[default]\nregion=eu-north-1\n")
    environment(monkeypatch, AWS_REGION="eu-west-1")
    with Client() as client:
        assert client.endpoint == "https://sqs.eu-west-1.amazonaws.com"
    environment(monkeypatch, AWS_DEFAULT_REGION="eu-west-2")
    with Client() as client:
        assert client.endpoint == "https://sqs.eu-west-1.amazonaws.com"
    with Client(region="eu-west-3") as client:
        assert client.endpoint == "https://sqs.eu-west-3.amazonaws.com"
    with Client(session=boto3.session.Session(region_name="ap-south-1")) as client:
        assert client.region == "ap-south-1"


# Loopback: what is not configured has a default.


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:1", "http://127.9.8.7:1", "http://[::1]:1", "http://localhost:1", "http://SQS.LocalHost.:1"],
)
def test_an_endpoint_on_loopback_needs_no_region_and_no_credentials(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    for configured in ({"endpoint_url": url}, {}):
        if not configured:
            environment(monkeypatch, AWS_ENDPOINT_URL_SQS=url)
        with Client(**configured, sleep=Naps(), max_attempts=1) as client:  # type: ignore[arg-type]
            assert client.region == "us-east-1"
            with pytest.raises(Unreachable):  # which is later than a lack of credentials
                client.call("ListQueues")


def test_what_is_configured_is_used_on_loopback_too(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[default]\nregion=eu-north-1\n[profile bare]\n")
    (tmp_path / "credentials").write_text("[default]\naws_access_key_id=CONFIGURED\naws_secret_access_key=s\n")
    with scripted(in_turn(answer())) as server:
        for profile in (None, "bare"):
            with Client(server.url, profile=profile) as client:
                client.call("ListQueues")
        configured, default = [request.headers["authorization"] for request in server.requests]
    assert "Credential=CONFIGURED/" in configured
    assert "/eu-north-1/sqs/" in configured
    assert "Credential=local/" in default
    assert "/us-east-1/sqs/" in default


def test_the_role_of_a_machine_is_not_asked_for_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(in_turn(answer())) as metadata, scripted(in_turn(answer())) as server:
        monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
        environment(monkeypatch, AWS_EC2_METADATA_SERVICE_ENDPOINT=metadata.url)
        with Client(server.url) as client:
            client.call("ListQueues")
        assert not metadata.requests


# What is missing or wrong.


ELSEWHERE = ["http://192.0.2.1:1", "http://localhost.example.com", "http://127.0.0.1.example.com", "http://0.0.0.0:1"]


@pytest.mark.parametrize("url", [None, *ELSEWHERE])
def test_no_region_says_where_to_put_one(url: str | None) -> None:
    with pytest.raises(BadConfiguration, match=r"no AWS region. Pass region= .*, set AWS_REGION"):
        Client(url, access_key="a", secret_key="b")


@pytest.mark.parametrize("url", [None, *ELSEWHERE])
def test_no_credentials_says_where_to_put_them(url: str | None) -> None:
    with Client(url, "eu-west-1") as client:
        with pytest.raises(NoCredentials, match=r"no AWS credentials. Set AWS_ACCESS_KEY_ID") as caught:
            client.queue("orders").receive(10, 0)
        assert not caught.value.retryable


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"profile": "absent"}, "profile .absent. could not be found"),
        ({"access_key": "a"}, "secret_key is missing"),
        ({"secret_key": "a"}, "access_key is missing"),
        ({"max_attempts": 0}, "max_attempts=0"),
        ({"endpoint_url": "127.0.0.1:9324"}, "endpoint_url=127.0.0.1:9324: .*Write http://host:port"),
        ({"session": "default"}, "session is a botocore or boto3 session"),
        ({"session": object(), "profile": "x"}, "not both"),
        ({"region": "not a region", "endpoint_url": None}, "not usable"),
    ],
)
def test_a_wrong_setting_is_named(options: dict[str, Any], text: str) -> None:
    settings: dict[str, Any] = {"endpoint_url": "http://127.0.0.1:1", "region": "eu-west-1"}
    with pytest.raises(BadConfiguration, match=text):
        Client(**(settings | options))


def test_a_wrong_endpoint_of_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", "127.0.0.1:9324")
    with pytest.raises(
        BadConfiguration, match=r"^AWS_ENDPOINT_URL_SQS, .*: Invalid endpoint: .*Write http://host:port"
    ):
        Client(region="eu-west-1")


def test_credentials_that_cannot_be_fetched_say_why(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[default]\nregion=eu-west-1\ncredential_process=/bin/false\n")
    with Client("http://127.0.0.1:1") as client:
        with pytest.raises(NoCredentials, match=r"could not be found: .*custom-process"):
            client.call("ListQueues")


def test_an_unreachable_endpoint_is_named_with_its_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    naps = Naps()
    with Client(f"http://127.0.0.1:{port}", "x-1", access_key="a", secret_key="b", sleep=naps) as client:
        with pytest.raises(Unreachable, match=rf"cannot connect to http://127.0.0.1:{port}: Connection refused"):
            client.call("ListQueues")
    assert len(naps) == 2


def test_a_host_without_an_address_is_named() -> None:
    with Client("http://no.such.host.invalid", "x-1", access_key="a", secret_key="b", max_attempts=1) as client:
        with pytest.raises(Unreachable, match=r"cannot connect to http://no.such.host.invalid: "):
            client.call("ListQueues")


def test_an_arn_of_another_region_names_the_client_to_make() -> None:
    with Client(region="eu-west-1") as client:
        with pytest.raises(BadRequest, match=r"Client\(region='us-east-2'\)"):
            client.queue("arn:aws:sqs:us-east-2:123456789012:orders")
        assert client.queue("arn:aws:sqs:eu-west-1:123456789012:orders").name == "orders"


# TLS.


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that signs itself, with its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    path.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return path


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def tls_client(url: str, **options: Any) -> Client:
    return Client(url, "eu-west-1", access_key="a", secret_key="b", sleep=Naps(), **options)


@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"])
def test_https_works_with_the_certificates_that_botocore_would_trust(
    monkeypatch: pytest.MonkeyPatch, certificate: Path, tls: ssl.SSLContext, variable: str
) -> None:
    environment(monkeypatch, **{variable: str(certificate)})
    body = {"a": "x" * 100_000}
    with scripted(in_turn(answer(body)), tls) as server, tls_client(server.url) as client:
        assert [client.call("ListQueues") for _ in range(3)] == [body] * 3
        assert server.connections == 1
        server.hang_up()
        assert client.call("ListQueues") == body
        assert server.connections == 2


def test_a_long_poll_over_https_can_be_cancelled(
    monkeypatch: pytest.MonkeyPatch, certificate: Path, tls: ssl.SSLContext
) -> None:
    from semel.sqs import Cancel
    from semel.sqs.errors import Cancelled

    environment(monkeypatch, AWS_CA_BUNDLE=str(certificate))
    cancel, release = Cancel(), threading.Event()

    def script(request: Request) -> bytes:
        cancel.set()
        release.wait()
        return answer()

    with scripted(script, tls) as server, tls_client(server.url) as client:
        try:
            with pytest.raises(Cancelled):
                client.queue(f"{server.url}/1/orders").receive(cancel=cancel)
        finally:
            release.set()


def test_a_certificate_that_is_not_trusted_is_named_as_the_reason(tls: ssl.SSLContext) -> None:
    with scripted(in_turn(answer()), tls) as server, tls_client(server.url, max_attempts=1) as client:
        with pytest.raises(Unreachable, match="its certificate is not trusted"):
            client.call("ListQueues")


def test_certificates_that_are_not_there_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment(monkeypatch, AWS_CA_BUNDLE=str(tmp_path / "absent.pem"))
    with pytest.raises(BadConfiguration, match=r"absent.pem cannot be used: .*AWS_CA_BUNDLE"):
        tls_client("https://127.0.0.1:1")
    (tmp_path / "empty.pem").write_text("not a certificate")
    environment(monkeypatch, AWS_CA_BUNDLE=str(tmp_path / "empty.pem"))
    with pytest.raises(BadConfiguration, match=r"empty.pem cannot be used"):
        tls_client("https://127.0.0.1:1")


# Proxies.


def test_plain_http_goes_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(in_turn(answer())) as proxy:
        environment(monkeypatch, HTTP_PROXY=f"http://me:se%40cret@127.0.0.1:{proxy.port}")
        with tls_client("http://sqs.example:81/base") as client:
            client.call("ListQueues")
        (request,) = proxy.requests
        assert request.line.startswith("POST http://sqs.example:81/base")
        assert request.headers["host"] == "sqs.example:81"
        assert request.headers["proxy-authorization"] == "Basic bWU6c2VAY3JldA=="


def test_https_goes_through_a_tunnel_of_a_proxy(
    monkeypatch: pytest.MonkeyPatch, certificate: Path, tls: ssl.SSLContext
) -> None:
    with scripted(in_turn(answer({"a": 1})), tls) as server, tunnelling_proxy() as proxy:
        environment(monkeypatch, AWS_CA_BUNDLE=str(certificate), HTTPS_PROXY=f"http://127.0.0.1:{proxy.port}")
        with tls_client(server.url) as client:
            assert [client.call("ListQueues") for _ in range(2)] == [{"a": 1}] * 2
        assert proxy.heads == [f"CONNECT 127.0.0.1:{server.port} HTTP/1.1"]
        assert "proxy-authorization" not in server.requests[0].headers
        environment(monkeypatch, NO_PROXY="127.0.0.1")
        with tls_client(server.url) as client:
            client.call("ListQueues")
        assert len(proxy.heads) == 1


def test_a_proxy_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(in_turn(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")) as proxy:
        environment(monkeypatch, HTTPS_PROXY=f"http://127.0.0.1:{proxy.port}")
        with tls_client("https://sqs.example", max_attempts=1) as client:
            with pytest.raises(Unreachable, match=rf"the proxy 127.0.0.1:{proxy.port} refused to connect: .*407"):
                client.call("ListQueues")


def test_a_proxy_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    environment(monkeypatch, HTTPS_PROXY=f"http://127.0.0.1:{port}")
    with tls_client("https://sqs.example", max_attempts=1) as client:
        with pytest.raises(Unreachable, match=rf"Connection refused \(proxy 127.0.0.1:{port}\)"):
            client.call("ListQueues")


def test_a_proxy_of_a_kind_that_we_cannot_use_is_refused_without_showing_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment(monkeypatch, HTTPS_PROXY="socks5://me:secret@proxy:1080")
    with pytest.raises(BadConfiguration, match=r"the proxy socks5://…@proxy:1080 cannot be used.*NO_PROXY") as caught:
        tls_client("https://sqs.example")
    assert "secret" not in str(caught.value)


class Tunnel:
    """A proxy that knows CONNECT, and nothing else."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.heads: list[str] = []
        self._threads: list[threading.Thread] = []
        self._spawn(self._accept)

    def _spawn(self, target: Any, *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += near.recv(1)
            self.heads.append(head.decode().partition("\r\n")[0])
            host, _, port = self.heads[-1].split()[1].rpartition(":")
            far = socket.create_connection((host, int(port)))
            near.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            done = threading.Barrier(2)
            self._spawn(_copy, near, far, done)
            self._spawn(_copy, far, near, done)

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Tunnel:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def tunnelling_proxy() -> Tunnel:
    return Tunnel()


def _copy(source: socket.socket, target: socket.socket, done: threading.Barrier) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
    done.wait()
    source.close()


def test_the_environment_of_a_program_is_all_that_it_needs(tmp_path: Path) -> None:
    """As a user would do it: a program without a word about AWS, told by its environment."""
    with scripted(in_turn(answer({"QueueUrls": []}))) as server:
        run = subprocess.run(
            [sys.executable, "-c", "from semel.sqs import Client; print(Client().queues())"],
            env={
                "AWS_ENDPOINT_URL_SQS": server.url,
                "AWS_DEFAULT_REGION": "eu-west-1",
                "AWS_ACCESS_KEY_ID": "ENV",
                "AWS_SECRET_ACCESS_KEY": "s",
                "AWS_SESSION_TOKEN": "t",
                "HOME": str(tmp_path),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert (run.stdout, run.stderr) == ("[]\n", "")
        assert "Credential=ENV/" in server.requests[0].headers["authorization"]
