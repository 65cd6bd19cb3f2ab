"""Who may see and do what: over real HTTP, with requests as browsers and scripts send them."""

from __future__ import annotations

import http.client
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Page, expect

from browsing import Browser
from dashboard.serving import Answer, Shop, Site, serving, shop
from semel.dashboard.auth.access_policy import LIFETIME, MAX_FAILURES, AccessPolicy, Refused
from semel.dashboard.auth.middleware import MAX_BODY
from semel.dashboard.views import Settings
from semel.dlq.audit import Audit
from semel.errors import StartError
from semel.sqs import Client
from servers import moto

TOKEN, READER = "operator-token", "reader-token"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with shop(tmp_path_factory.mktemp("state")) as place:
        yield place


@pytest.fixture(scope="module")
def open_site(place: Shop) -> Iterator[Site]:
    with place.dashboard() as site:
        yield site


@pytest.fixture(scope="module")
def closed_site(place: Shop) -> Iterator[Site]:
    with place.dashboard(token=TOKEN, reader_token=READER) as site:
        yield site


def cookie_of(answer: Answer) -> str:
    return answer.cookies[0].partition(";")[0]


def session(site: Site, token: str = TOKEN) -> str:
    """The cookie of somebody who has logged in."""
    return cookie_of(site.form("/login", {"token": token}))


# Settings.


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (Settings(host="0.0.0.0"), "--token"),
        (Settings(host="10.1.2.3", read_only=True), "--token"),
        (Settings(host="10.1.2.3", open_access=True), "--token"),
        (Settings(proxy=True), "--token"),
        (Settings(proxy=True, open_access=True), "--token"),
        (Settings(token=TOKEN, open_access=True), "leave out --open"),
        (Settings(token="elevenchars"), "12 or more"),
        (Settings(token="with a space in it"), "ASCII"),
        (Settings(token=TOKEN, reader_token=TOKEN), "choose another"),
        (Settings(token=TOKEN, names=("http://ops",)), "without http"),
        (Settings(port=70_000), "65535"),
    ],
)
def test_settings_that_would_let_anybody_in_are_refused(settings: Settings, says: str) -> None:
    with pytest.raises(StartError, match=re.escape(says)):
        settings.check()


def test_beyond_this_machine_it_listens_with_a_token() -> None:
    Settings(host="0.0.0.0", token=TOKEN).check()
    Settings(host="::1").check()
    Settings(host="::1", open_access=True).check()


def test_a_token_is_made_only_if_there_is_none() -> None:
    made = {Settings().with_token().token for _ in range(2)}
    assert len(made) == 2
    assert all(token and len(token) >= 32 for token in made)
    for settings in (Settings(token=TOKEN), Settings(reader_token=READER), Settings(open_access=True)):
        assert settings.with_token() is settings


# Hosts.


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9325", "localhost.evil.example", "", "[::1"])
def test_a_foreign_name_that_points_here_reads_nothing(open_site: Site, host: str) -> None:
    answer = open_site.ask("GET", "/api/v1/queues", headers={"host": host})
    assert answer.status == 403
    assert "--name" in answer.json()["what_to_do"]
    assert "orders" not in answer.text


def test_addresses_localhost_and_given_names_are_served(place: Shop) -> None:
    with place.dashboard(names=("Ops.example",)) as site:
        for host in ("127.0.0.1:1", "localhost", "[::1]:9325", "ops.example:80", "OPS.example"):
            assert site.ask("GET", "/api/v1/queues", headers={"host": host}).status == 200


# Cross-site requests.

JOB: Final = "/api/v1/jobs/none/pause"  # 404: the request was let in
FORM, MULTIPART, JSON = "application/x-www-form-urlencoded", "multipart/form-data; boundary=b", "application/json"
LINK: Final = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
FRAME: Final = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}
IMAGE: Final = {"sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
SCRIPT: Final = {"sec-fetch-mode": "cors", "sec-fetch-dest": "empty"}


@pytest.mark.parametrize(
    ("method", "site", "origin", "cookie", "authorization", "content_type", "with_token", "without"),
    [
        # Our own pages, and what the user typed.
        ("POST", "same-origin", "own", True, None, FORM, 404, 404),
        ("POST", "same-origin", "own", True, None, MULTIPART, 404, 404),
        ("POST", "none", None, True, None, FORM, 404, 404),
        ("PATCH", "same-origin", "own", True, None, JSON, 405, 405),
        # Foreign pages, with all that a browser sends.
        ("POST", "cross-site", "http://evil.example", True, None, FORM, 403, 403),
        ("POST", "cross-site", "http://evil.example", False, None, "text/plain", 403, 403),
        ("POST", "cross-site", "null", True, None, FORM, 403, 403),
        ("POST", "cross-site", None, True, None, FORM, 403, 403),
        ("POST", "same-site", "http://127.0.0.1:1", True, None, FORM, 403, 403),
        ("POST", "surprise", "own", True, None, FORM, 403, 403),
        ("PUT", "cross-site", "http://evil.example", True, None, JSON, 403, 403),
        ("DELETE", "cross-site", "http://evil.example", True, None, None, 403, 403),
        # The same through a proxy that adds the token.
        ("POST", "cross-site", "http://evil.example", False, "bearer", JSON, 403, 403),
        # Browsers that say the origin only, as they do over plain HTTP to another machine.
        ("POST", None, "own", True, None, FORM, 404, 404),
        ("POST", None, "http://evil.example", True, None, FORM, 403, 403),
        ("POST", None, "http://127.0.0.1:1", True, None, FORM, 403, 403),
        ("POST", None, "null", True, None, FORM, 403, 403),
        ("POST", None, "http://[::1", True, None, FORM, 403, 403),
        ("POST", None, "http://evil.example", False, "bearer", JSON, 403, 403),
        # Browsers that say nothing: a page can make them send a cookie, and a form.
        ("POST", None, None, True, None, JSON, 403, 403),
        ("POST", None, None, True, None, None, 403, 403),
        ("POST", None, None, True, None, FORM, 403, 403),
        ("POST", None, None, False, None, FORM, 403, 403),
        ("POST", None, None, False, None, MULTIPART, 403, 403),
        ("POST", None, None, False, None, "text/plain; charset=utf-8", 403, 403),
        ("POST", None, None, False, None, "", 403, 403),
        ("POST", None, None, False, "basic", FORM, 403, 403),
        ("DELETE", None, None, True, None, None, 403, 403),
        # Scripts.
        ("POST", None, None, False, "bearer", JSON, 404, 404),
        ("POST", None, None, False, "bearer", FORM, 404, 404),
        ("POST", None, None, True, "bearer", JSON, 404, 404),
        ("POST", None, None, False, None, JSON, 401, 404),
        ("POST", None, None, False, None, None, 401, 404),
    ],
)
def test_only_our_own_pages_and_scripts_have_an_effect(
    closed_site: Site,
    open_site: Site,
    method: str,
    site: str | None,
    origin: str | None,
    cookie: bool,
    authorization: str | None,
    content_type: str | None,
    with_token: int,
    without: int,
) -> None:
    """`content_type`: None is no body, "" a body without a type."""
    for dashboard, status in ((closed_site, with_token), (open_site, without)):
        optional_headers = {
            "sec-fetch-site": site,
            "origin": dashboard.url if origin == "own" else origin,
            "cookie": session(closed_site).replace(port_of(closed_site), port_of(dashboard)) if cookie else None,
            "authorization": {"bearer": f"Bearer {TOKEN}", "basic": "Basic eDp5"}.get(authorization or ""),
            "content-type": content_type or None,
        }
        headers = {name: value for name, value in optional_headers.items() if value is not None}
        answer = dashboard.ask(method, JOB, None if content_type is None else b"{}", headers)
        assert answer.status == status, answer.text


def port_of(site: Site) -> str:
    return site.host.rpartition(":")[2]


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", {}, 200),
        ("GET", {"sec-fetch-site": "same-origin", **SCRIPT}, 200),
        ("GET", {"sec-fetch-site": "none", **LINK}, 200),
        # Links in a chat, or on a page that was loaded over plain HTTP.
        ("GET", {"sec-fetch-site": "cross-site", **LINK}, 200),
        ("GET", {"sec-fetch-site": "same-site", **LINK}, 200),
        ("GET", {"referer": "http://evil.example/page"}, 200),
        # What a page loads without being asked.
        ("GET", {"sec-fetch-site": "cross-site"}, 403),
        ("GET", {"sec-fetch-site": "cross-site", **IMAGE}, 403),
        ("GET", {"sec-fetch-site": "cross-site", **FRAME}, 403),
        ("GET", {"sec-fetch-site": "same-site", **SCRIPT}, 403),
        ("GET", {"sec-fetch-site": "cross-site", "sec-purpose": "prefetch;prerender", **LINK}, 403),
        ("GET", {"origin": "http://evil.example"}, 403),
        ("HEAD", {"sec-fetch-site": "cross-site", **IMAGE}, 403),
        ("OPTIONS", {"sec-fetch-site": "cross-site", "origin": "http://evil.example", **SCRIPT}, 403),
    ],
)
@pytest.mark.parametrize("path", ["/api/v1/queues", "/queues/orders"])
def test_a_foreign_page_may_link_to_the_dashboard_and_not_load_it(
    open_site: Site, closed_site: Site, path: str, method: str, headers: dict[str, str], status: int
) -> None:
    for site in (open_site, closed_site):
        answer = site.ask(method, path, headers={**headers, "cookie": session(closed_site)})
        assert answer.status == status, answer.text


def test_behind_a_proxy_a_token_does_not_show_that_no_page_sent_it(place: Shop) -> None:
    """The proxy adds it to every request that its user's browser sends."""
    with place.dashboard(token=TOKEN, proxy=True) as site:
        headers = {"authorization": f"Bearer {TOKEN}", "content-type": FORM}
        assert site.ask("POST", JOB, b"", headers).status == 403
        assert site.ask("POST", JOB, b"{}", headers | {"content-type": JSON}).status == 404


@contextmanager
def foreign_page() -> Iterator[str]:
    """Another site, for a browser: it is called localhost, and the dashboard 127.0.0.1."""

    class Evil(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>evil</title><link rel=icon href=data:,>")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Evil) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}/"
        server.shutdown()


def test_a_foreign_page_in_a_browser_has_no_effect_on_an_open_dashboard(open_site: Site, browser: Browser) -> None:
    attack = """async ([url, body]) => {
      const send = (type) => fetch(url + '/api/v1/annotations', {
        method: 'POST', mode: 'no-cors', headers: type ? {'content-type': type} : {}, body }).catch(() => null);
      for (const type of ['', 'text/plain', 'application/x-www-form-urlencoded', 'application/json']) await send(type);
      await fetch(url + '/api/v1/annotations', { method: 'POST', headers: {'content-type': 'application/json'}, body })
        .catch(() => null);
      await new Promise((done) => {
        const image = new Image(); image.onerror = image.onload = done; image.src = url + '/dead-letters/orders-dlq';
      });
    }"""

    def visit(page: Page) -> None:
        page.evaluate(attack, [open_site.url, '{"text": "forged"}'])
        page.evaluate(
            """url => {
              const form = document.body.appendChild(document.createElement('form'));
              form.method = 'post'; form.action = url + '/doctor'; form.submit();
            }""",
            open_site.url,
        )
        expect(page.get_by_role("alert")).to_contain_text("Requests from pages of")

    with foreign_page() as address:
        requests = browser.look(address, visit).requests
    assert len([url for url in requests if url.startswith(open_site.url)]) >= 7
    assert "forged" not in open_site.get("/api/v1/annotations").text
    assert open_site.api("audit", where="action = doctor")["rows"] == []


def test_a_link_on_a_foreign_page_leads_to_the_dashboard_without_another_login(
    closed_site: Site, browser: Browser
) -> None:
    with foreign_page() as address:

        def follow(page: Page) -> None:
            page.goto(f"{closed_site.url}/login")
            page.get_by_label("Token").fill(TOKEN)
            page.get_by_role("button", name="Log in").click()
            expect(page.get_by_role("heading", name="Queues")).to_be_visible()
            page.goto(address)
            page.evaluate("url => { location.href = url }", f"{closed_site.url}/queues/orders")
            expect(page.get_by_role("heading", level=1)).to_have_text("orders")

        browser.look(address, follow)


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "[::1"},
        {"origin": "http://[::1"},
        {"cookie": "\xe9=\xe9; semel-0=\xe9.\xe9"},
        {"authorization": "Bearer \xe9"},
        {"authorization": "Basic x"},
        {"content-length": "\xb2"},
    ],
)
def test_headers_that_make_no_sense_are_refused_and_break_nothing(
    open_site: Site, closed_site: Site, headers: dict[str, str]
) -> None:
    for site in (open_site, closed_site):
        answer = site.ask("POST", JOB, None, headers)
        assert answer.status in (400, 401, 403, 404, 413), answer.text


# Tokens.


def test_without_a_token_nothing_is_shown(closed_site: Site) -> None:
    answer = closed_site.get("/api/v1/queues")
    assert answer.status == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    page = closed_site.get("/queues/orders", where="a b")
    assert page.status == 303
    assert page.headers["location"] == "/login?next=%2Fqueues%2Forders%3Fwhere%3Da%2Bb"
    assert closed_site.get("/api/v1/openapi.json").status == 401
    assert closed_site.get("/health").status == 200
    assert closed_site.get("/static/style.css").status == 200


def test_a_wrong_token_is_refused(place: Shop) -> None:
    with place.dashboard(token=TOKEN) as site:
        for wrong in ("operator-toke", "operator-token2", "", "Operator-token", "é"):
            headers = {"authorization": f"Bearer {wrong}".encode().decode("latin-1")}
            assert site.ask("GET", "/api/v1/queues", headers=headers).status == 401
            assert site.form("/login", {"token": wrong}).status == 401


def test_a_right_token_opens_the_api(closed_site: Site) -> None:
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    assert closed_site.ask("GET", "/api/v1/queues", headers=headers).status == 200
    answer = closed_site.ask("POST", "/api/v1/queues/orders/messages", b'{"body": "x"}', headers)
    assert answer.status == 200


@pytest.mark.parametrize("path", ["/api/v1/annotations", "/login"])
def test_a_foreign_page_gets_nowhere_though_a_proxy_adds_the_token(closed_site: Site, path: str) -> None:
    headers = {"authorization": f"Bearer {TOKEN}", "origin": "http://evil.example", "content-type": "application/json"}
    assert closed_site.ask("POST", path, b'{"text": "forged"}', headers).status == 403


def test_who_logs_in_gets_a_cookie_that_no_script_can_read_and_no_other_site_can_use(closed_site: Site) -> None:
    answer = closed_site.form("/login", {"token": TOKEN, "next": "/deliveries"})
    assert (answer.status, answer.headers["location"]) == (303, "/deliveries")
    cookie = answer.cookies[0]
    assert cookie.startswith(f"semel-{port_of(closed_site)}=")
    assert "; HttpOnly" in cookie
    assert "; SameSite=Lax" in cookie
    assert "Secure" not in cookie
    assert TOKEN not in cookie
    assert closed_site.ask("GET", "/deliveries", headers={"cookie": cookie_of(answer)}).status == 200
    assert closed_site.form("/jobs/none/pause", {}, cookie=cookie_of(answer)).status == 404


def test_the_cookie_is_for_https_only_behind_a_proxy_that_speaks_it(closed_site: Site) -> None:
    answer = closed_site.form("/login", {"token": TOKEN}, x_forwarded_proto="https")
    assert answer.cookies[0].endswith("; Secure")


@pytest.mark.parametrize("token", [TOKEN, READER])
def test_a_session_ends_when_somebody_logs_out(closed_site: Site, token: str) -> None:
    cookie, other = session(closed_site, token), session(closed_site, token)
    answer = closed_site.form("/logout", {}, cookie=cookie)
    assert answer.status == 303
    assert "Max-Age=0" in answer.cookies[0]
    assert closed_site.ask("GET", "/deliveries", headers={"cookie": cookie}).status == 303
    assert closed_site.ask("GET", "/deliveries", headers={"cookie": other}).status == 200


@pytest.mark.parametrize("target", ["//evil.example", "http://evil.example", "/\\evil.example", "evil"])
def test_logging_in_leads_nowhere_else(closed_site: Site, target: str) -> None:
    assert closed_site.form("/login", {"token": TOKEN, "next": target}).headers["location"] == "/"


def test_a_forged_session_is_none(closed_site: Site) -> None:
    cookie = session(closed_site, READER)
    assert "=reader." in cookie
    forged = cookie.replace("reader", "operator", 1)
    for value in (forged, cookie[:-1], f"semel-{port_of(closed_site)}=operator.x", f"semel-{port_of(closed_site)}="):
        assert closed_site.ask("GET", "/deliveries", headers={"cookie": value}).status == 303


def test_a_session_ends_by_itself(tmp_path: Path) -> None:
    now = [1_000_000_000.0]
    policy = AccessPolicy(Settings(token=TOKEN), Audit.at(tmp_path), clock=lambda: now[0])
    headers = {"cookie": f"{policy.sessions.cookie}={policy.log_in(TOKEN, {}, '10.0.0.9')}"}
    now[0] += LIFETIME
    assert policy.caller(headers, "10.0.0.9")
    now[0] += 1
    assert policy.caller(headers, "10.0.0.9") is None


def test_wrong_tokens_are_limited_and_never_lock_out_right_ones(tmp_path: Path) -> None:
    now = [1_000_000_000.0]
    policy = AccessPolicy(Settings(token=TOKEN), Audit.at(tmp_path), clock=lambda: now[0])

    def status(token: str, address: str) -> int:
        try:
            policy.caller({"authorization": f"Bearer {token}"}, address)
        except Refused as refused:
            return refused.status
        return 200

    assert [status("guess", "10.0.0.9") for _ in range(MAX_FAILURES + 2)] == [401] * MAX_FAILURES + [429] * 2
    assert status(TOKEN, "10.0.0.9") == 200
    assert policy.log_in(TOKEN, {}, "10.0.0.9")
    assert status("guess", "10.0.0.9") == 429, "a right token does not start the count anew"
    assert status("guess", "10.0.0.10") == 401
    now[0] += 61
    assert status("guess", "10.0.0.9") == 401


def test_the_right_token_works_after_many_wrong_ones_from_the_same_address(place: Shop) -> None:
    with place.dashboard(token=TOKEN) as site:
        wrong = [site.post(JOB, authorization="Bearer wrong").status for _ in range(12)]
        assert wrong == [401] * 10 + [429] * 2
        assert site.form("/login", {"token": "wrong"}).status == 429
        assert site.post(JOB, authorization=f"Bearer {TOKEN}").status == 404
        assert site.form("/login", {"token": TOKEN}).status == 303


def test_logins_and_logouts_are_in_the_audit_log_with_the_address_and_without_the_token(tmp_path: Path) -> None:
    with shop(tmp_path) as place, place.dashboard(token=TOKEN, proxy=True) as site:
        site.headers = {"x-forwarded-for": "10.0.0.7"}
        site.form("/login", {"token": "guess-one"})
        site.ask("GET", "/api/v1/queues", headers={"authorization": "Bearer guess-two"})
        site.get("/", token="guess-three")
        cookie = session(site)
        assert site.form("/logout", {}, cookie=cookie).status == 303
        for _ in range(20):
            site.form("/login", {"token": "guess-four"})
        lines = [(row.who, row.action, row.outcome) for row in Audit.at(tmp_path).entries()]
    wrong = ("unknown 10.0.0.7", "log in", "refused: wrong token")
    last = (*wrong[:2], "refused: wrong token; further ones are not recorded for a minute")
    logs = [("operator 10.0.0.7", "log in", "done"), ("operator 10.0.0.7", "log out", "done")]
    assert lines[::-1] == [wrong] * 3 + logs + [wrong] * 6 + [last]
    text = (tmp_path / "audit.jsonl").read_text()
    assert TOKEN not in text
    assert "guess" not in text


def test_somebody_can_log_in_though_the_audit_log_cannot_be_written(tmp_path: Path) -> None:
    policy = AccessPolicy(Settings(token=TOKEN), Audit(tmp_path))  # a folder, and no file
    assert policy.log_in(TOKEN, {}, "10.0.0.9")
    with pytest.raises(Refused, match="wrong"):
        policy.log_in("guess", {}, "10.0.0.9")


# The token that the dashboard made.


def test_without_a_token_of_the_user_the_dashboard_makes_one_and_asks_for_it(place: Shop) -> None:
    with place.dashboard(open_access=False) as site:
        token = site.services.settings.token
        assert token
        assert site.get("/api/v1/queues").status == 401
        assert site.post("/api/v1/annotations", {"text": "x"}).status == 401
        assert site.ask("GET", "/api/v1/queues", headers={"authorization": f"Bearer {token}"}).status == 200


def test_the_address_with_the_token_logs_in_and_leads_to_the_page_without_it(closed_site: Site) -> None:
    answer = closed_site.get("/queues/orders", tab="send", token=TOKEN, where="a&b")
    assert (answer.status, answer.headers["location"]) == (303, "/queues/orders?tab=send&where=a%26b")
    page = closed_site.ask("GET", answer.headers["location"], headers={"cookie": cookie_of(answer)})
    assert page.status == 200


def test_a_wrong_token_in_the_address_leads_to_the_login_page_without_it(closed_site: Site) -> None:
    answer = closed_site.get("/queues/orders", token="guess")
    address, _, notice = answer.headers["location"].partition("&notice=")
    assert (answer.status, address) == (303, "/login?next=%2Fqueues%2Forders")
    assert not answer.cookies
    assert "The token is wrong" in closed_site.get("/login", next="/queues/orders", notice=notice).text
    assert "The token is wrong" not in closed_site.get("/login", next="/queues/orders").text


def test_the_address_with_the_token_leads_nowhere_else(closed_site: Site) -> None:
    for path in ("//evil.example", "/%5Cevil.example", "//evil.example/%2e%2e"):
        answer = closed_site.get(path, token=TOKEN)
        assert (answer.status, answer.headers["location"].startswith(("//", "/\\"))) == (303, False)


def test_a_token_in_the_address_of_the_api_is_none(closed_site: Site) -> None:
    assert closed_site.get("/api/v1/queues", token=TOKEN).status == 401


def test_no_access_log_has_the_token(place: Shop, caplog: pytest.LogCaptureFixture) -> None:
    with place.dashboard(token=TOKEN) as site:
        log = logging.getLogger("uvicorn.access")
        log.addHandler(caplog.handler)
        log.setLevel(logging.INFO)
        try:
            site.get("/queues/orders", token=TOKEN, tab="send")
            site.get("/queues/orders", token="wrong-token", tab="send")
        finally:
            log.removeHandler(caplog.handler)
            log.setLevel(logging.NOTSET)
    assert [record.getMessage().split('"')[1] for record in caplog.records if record.name == log.name] == [
        "GET /queues/orders?tab=send HTTP/1.1"
    ] * 2


def test_a_browser_opens_the_address_with_the_token_and_stays_logged_in(place: Shop, browser: Browser) -> None:
    with place.dashboard(open_access=False) as first, place.dashboard(open_access=False) as second:

        def visit(page: Page) -> None:
            expect(page.get_by_role("heading", level=1)).to_have_text("orders")
            assert page.url == f"{first.url}/queues/orders?tab=send"
            page.goto(f"{second.url}/")
            expect(page.get_by_role("heading", name="Log in")).to_be_visible()
            page.goto(f"{second.url}/?token={second.services.settings.token}")
            expect(page.get_by_role("heading", name="Queues")).to_be_visible()
            # Cookies are shared among the ports of a host: the second login must not end the first.
            page.goto(f"{first.url}/deliveries")
            expect(page.get_by_role("heading", level=1)).not_to_have_text("Log in")
            page.get_by_role("button", name="Log out").click()
            expect(page.get_by_role("heading", name="Log in")).to_be_visible()
            page.goto(f"{second.url}/deliveries")
            expect(page.get_by_role("heading", level=1)).not_to_have_text("Log in")

        browser.look(f"{first.url}/queues/orders?tab=send&token={first.services.settings.token}", visit)


# Roles.


def test_a_reader_looks_and_nothing_else(closed_site: Site) -> None:
    headers = {"authorization": f"Bearer {READER}", "content-type": "application/json"}
    assert closed_site.ask("GET", "/api/v1/queues", headers=headers).status == 200
    for method, path in (
        ("POST", "queues/orders/messages"),
        ("PUT", "queues/orders/faults"),
        ("DELETE", "queues/orders/faults"),
        ("POST", "dead-letters/orders-dlq/redrive"),
        ("POST", "dead-letters/orders-dlq/delete"),
        ("POST", "dead-letters/orders-dlq/restore"),
        ("POST", "jobs/x/cancel"),
        ("POST", "workers/x/control"),
        ("POST", "doctor/run"),
        ("POST", "marks"),
    ):
        assert closed_site.ask(method, f"/api/v1/{path}", b"{}", headers).status == 403, path


def test_a_read_only_dashboard_lets_nobody_act(place: Shop) -> None:
    with place.dashboard(read_only=True, token=TOKEN) as site:
        headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
        answer = site.ask("POST", "/api/v1/annotations", b'{"text": "x"}', headers)
    assert answer.status == 403
    assert "--read-only" in answer.json()["what_to_do"]


def test_the_audit_log_says_who_and_from_where(place: Shop) -> None:
    with place.dashboard(token=TOKEN, proxy=True, names=("ops.example",)) as site:
        site.headers = {
            "authorization": f"Bearer {TOKEN}",
            "x-forwarded-user": "alice",
            "x-forwarded-for": "1.1.1.1, 10.0.0.7",
        }
        assert site.post("/api/v1/annotations", {"text": "behind a proxy"}, origin="https://ops.example").status == 200
        assert site.api("audit", where="action = annotate", limit=1)["rows"][0]["who"] == "alice (operator, 10.0.0.7)"


def test_nobody_gives_himself_a_name_without_a_proxy(place: Shop) -> None:
    with place.dashboard() as site:
        site.headers = {"x-forwarded-user": "alice", "x-forwarded-for": "10.0.0.7"}
        assert site.post("/api/v1/annotations", {"text": "not behind a proxy"}).status == 200
        assert site.api("audit", where="action = annotate", limit=1)["rows"][0]["who"] == "operator 127.0.0.1"


# What answers carry, and what requests may.


@pytest.mark.parametrize("path", ["/", "/api/v1/queues", "/nope", "/health"])
def test_every_answer_keeps_to_itself(open_site: Site, path: str) -> None:
    headers = open_site.get(path).headers
    policy = headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "same-origin"


def test_static_files_that_name_their_content_are_kept(open_site: Site) -> None:
    assert "immutable" in open_site.get("/static/style.css", v="abc").headers["cache-control"]
    assert open_site.get("/static/style.css").headers["cache-control"] == "no-store"
    assert open_site.get("/static/../settings.py").status == 404


def test_too_much_is_refused_before_it_is_read(open_site: Site) -> None:
    headers = {"content-type": "application/json", "content-length": str(MAX_BODY + 1)}
    assert open_site.ask("POST", "/api/v1/annotations", b"", headers).status == 413


def test_too_much_is_refused_though_its_length_was_not_said(open_site: Site) -> None:
    connection = http.client.HTTPConnection(open_site.host, timeout=60)
    blocks = (b"x" * 65_536 for _ in range(MAX_BODY // 65_536 + 2))
    try:
        connection.request("POST", "/api/v1/annotations", blocks, {"content-type": "application/json"})
        assert connection.getresponse().status == 413
    except (BrokenPipeError, ConnectionResetError):
        pass  # it did not even wait for the rest
    finally:
        connection.close()
    assert open_site.get("/health").status == 200


def test_a_look_that_costs_receives_is_not_for_readers_nor_for_foreign_pages(tmp_path: Path) -> None:
    with moto.running() as url, Client(url, moto.REGION, access_key="test", secret_key="test") as client:
        client.create_queue("orders").send("body")
        settings = Settings(endpoint_url=client.endpoint, port=0, state=tmp_path, token=TOKEN, reader_token=READER)
        with serving(settings, client=client) as site:
            reader, operator = ({"authorization": f"Bearer {token}"} for token in (READER, TOKEN))
            path = "/api/v1/queues/orders/messages"
            assert site.ask("GET", path, headers=operator).status == 409
            assert site.ask("GET", f"{path}?receive=1", headers=reader).status == 403
            foreign = operator | {"sec-fetch-site": "cross-site"}
            assert site.ask("GET", f"{path}?receive=1", headers=foreign).status == 403
            for export in ("/api/v1/dead-letters/orders/export", "/dead-letters/orders/export"):
                assert site.ask("GET", export, headers=reader).status == 403
            # Over plain HTTP to another machine a link may say nothing of where it was.
            cookie = {"cookie": session(site)}
            assert site.ask("GET", f"{path}?receive=1", headers=cookie).status == 403
            assert site.ask("GET", f"{path}?receive=1", headers=cookie | {"sec-fetch-site": "none"}).status == 200
            assert site.ask("GET", f"{path}?receive=1", headers=cookie | {"referer": f"{site.url}/"}).status == 200
            page = site.ask("GET", f"{path}?receive=1", headers=operator).json()
            assert [message["body"] for message in page["messages"]] == ["body"]
            assert page["cost"]["receives"]
