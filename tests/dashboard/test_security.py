"""Who may come in, and who may act: over real HTTP, as browsers and as scripts send it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboard.serving import Answer, Shop, Site, shop
from semel.dashboard.auth.middleware import MAX_BODY
from semel.dashboard.auth.policy import SESSION, TRIES, AccessPolicy, Refused
from semel.dashboard.views import Settings
from semel.errors import StartError
from servers import moto

TOKEN, READER = "operator-token", "reader-token"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with shop(tmp_path_factory.mktemp("state")) as found:
        yield found


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


def csrf_of(answer: Answer) -> str:
    found = re.search(r'name="csrf"[^>]*value="([0-9a-f]+)"|name="csrf-token" content="([0-9a-f]+)"', answer.text)
    assert found, "the page has no CSRF token"
    return found[1] or found[2]


def browse(site: Site) -> tuple[str, str]:
    """The cookie and the CSRF token that a browser gets with a page."""
    page = site.ask("GET", "/queues/orders?tab=send", headers={"accept": "text/html"})
    return cookie_of(page), csrf_of(page)


# Where it listens.


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (Settings(host="0.0.0.0"), "--token"),
        (Settings(host="10.1.2.3", read_only=True), "--token"),
        (Settings(proxy=True), "--token"),
        (Settings(token="short"), "8 or more"),
        (Settings(token="with a space in it"), "ASCII"),
        (Settings(token=TOKEN, reader_token=TOKEN), "take another"),
        (Settings(token=TOKEN, names=("http://ops",)), "without http"),
        (Settings(port=70_000), "65535"),
    ],
)
def test_what_would_let_anybody_in_does_not_start(settings: Settings, says: str) -> None:
    with pytest.raises(StartError, match=re.escape(says)):
        settings.check()


def test_beyond_this_machine_it_listens_with_a_token() -> None:
    Settings(host="0.0.0.0", token=TOKEN).check()
    Settings(host="::1").check()


# Foreign names and pages.


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9325", "localhost.evil.example", ""])
def test_a_foreign_name_that_points_here_reads_nothing(open_site: Site, host: str) -> None:
    answer = open_site.ask("GET", "/api/v1/queues", headers={"host": host})
    assert answer.status == 403
    assert "orders" not in answer.text


def test_addresses_localhost_and_given_names_are_served(place: Shop) -> None:
    with place.dashboard(names=("ops.example",)) as site:
        for host in ("127.0.0.1:1", "localhost", "[::1]:9325", "ops.example:80"):
            assert site.ask("GET", "/api/v1/queues", headers={"host": host}).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://127.0.0.1:1"},  # another port is another site
        {"referer": "http://evil.example/page"},
    ],
)
def test_a_foreign_page_changes_nothing(open_site: Site, place: Shop, headers: dict[str, str]) -> None:
    before = place.orders.attributes()["ApproximateNumberOfMessages"]
    answer = open_site.ask(
        "POST", "/api/v1/queues/orders/messages", b'{"body": "x"}', {"content-type": "application/json", **headers}
    )
    assert answer.status == 403
    assert answer.json()["what_to_do"]
    assert place.orders.attributes()["ApproximateNumberOfMessages"] == before


def test_a_form_of_a_foreign_page_is_refused_though_the_browser_sends_no_origin(open_site: Site) -> None:
    """An old browser: what it does send is the cookie, and what it cannot know is the CSRF token."""
    cookie, _ = browse(open_site)
    headers = {"content-type": "application/x-www-form-urlencoded", "cookie": cookie}
    answer = open_site.ask("POST", "/queues/orders/messages", b"body=x", headers)
    assert answer.status == 403


def test_our_own_form_is_taken_with_its_token_and_only_of_its_session(open_site: Site) -> None:
    cookie, csrf = browse(open_site)
    _, other = browse(open_site)
    assert open_site.form("/doctor", {"csrf": other}, cookie=cookie).status == 403
    assert open_site.form("/doctor", {"csrf": csrf}, cookie=cookie).status == 303
    assert open_site.form("/doctor", {}, cookie=cookie, x_csrf_token=csrf).status == 303


def test_an_upload_shows_its_token_first(open_site: Site) -> None:
    cookie, csrf = browse(open_site)

    def upload(token: str) -> Answer:
        body = (
            f'--b\r\nContent-Disposition: form-data; name="csrf"\r\n\r\n{token}\r\n'
            '--b\r\nContent-Disposition: form-data; name="file"; filename="x.jsonl"\r\n\r\nno letters\r\n--b--\r\n'
        )
        headers = {"content-type": "multipart/form-data; boundary=b", "cookie": cookie, "origin": open_site.url}
        return open_site.ask("POST", "/dead-letters/orders-dlq/restore", body.encode(), headers)

    assert upload("0" * 64).status == 403
    assert upload(csrf).status in (303, 400)  # the file is none, but it was looked at


def test_a_script_on_this_machine_needs_no_token_of_an_open_dashboard(open_site: Site) -> None:
    assert open_site.post("/api/v1/queues/orders/messages", {"body": "from a script"}).status == 200


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=b"])
def test_what_any_page_can_send_is_not_taken_for_a_script(open_site: Site, kind: str) -> None:
    answer = open_site.ask("POST", "/api/v1/annotations", b'{"text": "forged"}', {"content-type": kind})
    assert answer.status == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "[::1"},
        {"origin": "http://[::1"},
        {"cookie": "\xe9=\xe9; semel-0=\xe9.\xe9"},
        {"x-csrf-token": "\xe9", "origin": "{url}", "cookie": "semel-0=x"},
        {"authorization": "Bearer \xe9"},
        {"authorization": "Basic x"},
        {"content-length": "\xb2"},
    ],
)
def test_headers_that_make_no_sense_are_refused_and_break_nothing(open_site: Site, headers: dict[str, str]) -> None:
    given = {name: value.replace("{url}", open_site.url) for name, value in headers.items()}
    answer = open_site.ask("POST", "/api/v1/doctor/run", None, given)
    assert answer.status in (202, 400, 403, 413), answer.text


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


def test_who_logs_in_gets_a_cookie_that_no_script_and_no_other_site_can_use(closed_site: Site) -> None:
    answer = closed_site.form("/login", {"token": TOKEN, "next": "/deliveries"})
    assert (answer.status, answer.headers["location"]) == (303, "/deliveries")
    cookie = answer.cookies[0]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert TOKEN not in cookie
    page = closed_site.ask("GET", "/deliveries", headers={"cookie": cookie_of(answer)})
    assert page.status == 200
    assert closed_site.form("/doctor", {"csrf": csrf_of(page)}, cookie=cookie_of(answer)).status == 303


def test_a_session_ends_when_somebody_logs_out(closed_site: Site) -> None:
    cookie = cookie_of(closed_site.form("/login", {"token": TOKEN}))
    csrf = csrf_of(closed_site.ask("GET", "/deliveries", headers={"cookie": cookie}))
    assert closed_site.form("/logout", {"csrf": csrf}, cookie=cookie).status == 303
    assert closed_site.ask("GET", "/deliveries", headers={"cookie": cookie}).status == 303


@pytest.mark.parametrize("target", ["//evil.example", "http://evil.example", "/\\evil.example", "evil"])
def test_logging_in_leads_nowhere_else(closed_site: Site, target: str) -> None:
    assert closed_site.form("/login", {"token": TOKEN, "next": target}).headers["location"] == "/"


def test_a_forged_session_is_none(closed_site: Site) -> None:
    cookie = cookie_of(closed_site.form("/login", {"token": READER}))
    forged = cookie.replace("reader", "operator", 1)
    assert closed_site.ask("GET", "/deliveries", headers={"cookie": forged}).status == 303


def test_tokens_cannot_be_tried_out() -> None:
    now = [1_000.0]
    policy = AccessPolicy(Settings(token=TOKEN), clock=lambda: now[0])
    for _ in range(TRIES):
        with pytest.raises(Refused, match="wrong"):
            policy.begin("guess-guess", {}, "10.0.0.9")
    with pytest.raises(Refused, match="too many"):
        policy.begin(TOKEN, {}, "10.0.0.9")
    assert policy.begin(TOKEN, {}, "10.0.0.10")  # others are not locked out
    now[0] += 61
    assert policy.begin(TOKEN, {}, "10.0.0.9")


def test_a_session_ends_by_itself() -> None:
    now = [1_000.0]
    policy = AccessPolicy(Settings(token=TOKEN), clock=lambda: now[0])
    cookie = policy.begin(TOKEN, {}, "10.0.0.9")
    assert policy.caller({}, cookie, "10.0.0.9")
    now[0] += SESSION + 1
    assert policy.caller({}, cookie, "10.0.0.9") is None


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
        assert site.api("audit", where="action = mark", limit=1)["rows"][0]["who"] == "alice (operator, 10.0.0.7)"


def test_nobody_gives_himself_a_name_without_a_proxy(place: Shop) -> None:
    with place.dashboard() as site:
        site.headers = {"x-forwarded-user": "alice", "x-forwarded-for": "10.0.0.7"}
        assert site.post("/api/v1/annotations", {"text": "not behind a proxy"}).status == 200
        assert site.api("audit", where="action = mark", limit=1)["rows"][0]["who"] == "operator 127.0.0.1"


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
    import http.client

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
    from semel.sqs import Client

    with moto.running() as url, Client(url, moto.REGION, access_key="test", secret_key="test") as client:
        client.create_queue("orders").send("body")
        from dashboard.serving import serving

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
            found = site.ask("GET", f"{path}?receive=1", headers=operator).json()
            assert [message["body"] for message in found["messages"]] == ["body"]
            assert found["cost"]["receives"]
