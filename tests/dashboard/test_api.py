"""The JSON API: everything that the pages do, for scripts; and the description of the API."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate

from dashboard.serving import Shop, Site, serving, shop
from semel.sqs import Client
from semel.sqs.client.messages import Attribute
from waiting import until


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, credentials: None) -> Iterator[Shop]:
    with shop(tmp_path_factory.mktemp("state")) as place:
        place.orders.send('{"order": 1}', attributes={"tenant": "acme"})
        place.client.create_queue("mail.fifo")
        yield place


@pytest.fixture(scope="module")
def site(place: Shop) -> Iterator[Site]:
    with place.dashboard() as site:
        yield site


def finished(site: Site, job: dict[str, Any]) -> dict[str, Any]:
    ends = ("done", "failed", "stopped", "cancelled")
    outcome = until(lambda: (now := site.api(f"jobs/{job['id']}"))["state"] in ends and now, "the end of the job")
    assert isinstance(outcome, dict)
    return outcome


# Queues and messages.


def test_queues_are_told_with_their_dead_letter_queues_and_alarms(site: Site) -> None:
    page = site.api("queues")
    rows = {row["name"]: row for row in page["rows"]}
    assert page["is_ours"] is True
    assert rows["orders"]["dead_letter_queue"] == "orders-dlq"
    assert rows["orders-dlq"]["sources"] == ["orders"]
    assert rows["mail.fifo"]["fifo"] is True
    assert {alarm["name"] for alarm in rows["orders"]["alarms"]} == {"dead-letters", "age", "in-flight", "not-deleted"}


def test_a_queue_explains_its_attributes(site: Site) -> None:
    page = site.api("queues/orders")
    known = {attribute["name"]: attribute for attribute in page["attributes"]}
    assert known["VisibilityTimeout"]["shown"] == "30 s"
    assert known["RedrivePolicy"]["shown"] == "to orders-dlq after 3 receives"
    assert all(attribute["meaning"] for attribute in page["attributes"])


def test_messages_are_found_by_a_filter_and_cost_nothing(site: Site, place: Shop) -> None:
    queue = place.client.create_queue("found")
    for number in range(30):
        queue.send(json.dumps({"n": number}))
    first = site.api("queues/found/messages", where="$.n >= 10", limit=5)
    assert [json.loads(message["body"])["n"] for message in first["messages"]] == [10, 11, 12, 13, 14]
    rest = site.api("queues/found/messages", where="$.n >= 10", limit=50, after=first["next"])
    assert [json.loads(message["body"])["n"] for message in rest["messages"]] == list(range(15, 30))
    assert rest["next"] is None
    assert {message["receives"] for message in rest["messages"]} == {0}


def test_a_message_is_told_whole_and_why_it_waits(site: Site) -> None:
    row = site.api("queues/orders/messages", limit=1)["messages"][0]
    for hint in ({}, {"place": row["place"]}, {"place": 999_999}):
        page = site.api(f"queues/orders/messages/{row['id']}", **hint)
        assert page["message"]["body"] == '{"order": 1}'
    assert page["message"]["attributes"] == {"tenant": {"type": "String", "value": "acme"}}
    assert page["max_receives"] == page["retries_left"] == 3
    assert "no worker" in page["stuck"][0]
    assert "--ledger" in page["ledger_note"]


def test_a_message_can_be_sent(site: Site, place: Shop) -> None:
    queue = place.client.create_queue("sent")
    raw = base64.b64encode(bytes(range(256))).decode()
    message = {"body": "héllo \u202e", "attributes": {"raw": {"base64": raw}, "n": {"type": "Number", "value": "7"}}}
    sent = site.post("/api/v1/queues/sent/messages", message).json()
    (received,) = queue.receive(10, 0)
    assert received.message_id == sent["id"]
    assert received.body == "héllo \u202e"
    assert received.attributes == {"raw": Attribute("Binary", bytes(range(256))), "n": Attribute("Number", "7")}
    logged = site.api("audit", where="action = send", limit=1)["rows"][0]
    assert (logged["queue"], logged["count"], logged["details"]["id"]) == ("sent", 1, sent["id"])


def test_a_fifo_message_needs_a_group_and_gets_the_rest(site: Site) -> None:
    refused = site.post("/api/v1/queues/mail.fifo/messages", {"body": "x"})
    assert refused.status == 400
    assert "MessageGroupId" in refused.json()["error"]
    for _ in range(2):  # two of the same are two: nothing was said that makes them one
        assert site.post("/api/v1/queues/mail.fifo/messages", {"body": "x", "group": "g"}).status == 200
    assert site.api("queues/mail.fifo")["row"]["visible"] == 2


def test_a_body_of_a_mebibyte_goes_in_and_comes_out(site: Site, place: Shop) -> None:
    queue = place.client.create_queue("large")
    body = "\u0001\ufffd😀"[1:] * 100_000
    body = body[: 1024 * 1024 // 7]
    sent = site.post("/api/v1/queues/large/messages", {"body": body})
    assert sent.status == 200, sent.text
    assert len(queue.receive(1, 0)[0].body) == len(body)
    page = site.api(f"queues/large/messages/{sent.json()['id']}")
    assert page["message"]["body"] == body
    row = site.api("queues/large/messages")["messages"][0]
    assert (len(row["body"]), row["cut"]) == (200, True)
    assert row["body_bytes"] == len(body.encode())
    assert site.api("queues/large/messages", bodies=1)["messages"][0]["body"] == body


def test_what_cannot_be_written_to_the_audit_log_is_not_done(tmp_path: Path) -> None:
    with shop(tmp_path) as place, place.dashboard() as site:
        (tmp_path / "audit.jsonl").mkdir()
        for path, content, method in (
            ("queues/orders/messages", {"body": "{}"}, "POST"),
            ("queues/orders/faults", {"kind": "duplicate", "rate": 0.5}, "PUT"),
            ("annotations", {"text": "deployed"}, "POST"),
            ("workers/w-1/control", {"action": "pause"}, "POST"),
            ("doctor/run", None, "POST"),
        ):
            refused = site.post(f"/api/v1/{path}", content, method=method)
            assert (refused.status, "not done" in refused.json()["error"]) == (400, True), path
        assert place.broker.peek("orders") == []
        assert not [fault for fault in site.api("queues/orders/faults") if fault["rate"]]
        assert site.api("annotations")["annotations"] == []
        assert site.services.inspector.doctor_job.wait(0)
        assert site.services.inspector.doctor_job.diagnosis is None


def test_a_send_is_in_the_audit_log_before_it_begins_and_when_it_has_failed(tmp_path: Path) -> None:
    with (
        shop(tmp_path) as place,
        Client(place.broker.url, "us-east-1", access_key="test", secret_key="test", sleep=lambda _: None) as client,
        serving(place.settings(), client=client) as site,
    ):
        client.queue("orders").url  # noqa: B018 - it is known before the endpoint fails
        site.post("/api/v1/queues/orders/faults", {"kind": "server-error", "rate": 1}, method="PUT")
        assert site.post("/api/v1/queues/orders/messages", {"body": "{}"}).status == 502
        failed, begun = site.api("audit", where="action = send")["rows"]
        assert (begun["outcome"], failed["outcome"].partition(":")[0]) == ("begun", "failed")


def test_every_action_is_in_the_audit_log_before_and_after_also_if_it_fails(tmp_path: Path) -> None:
    with shop(tmp_path) as place, place.dashboard() as site:
        site.post("/api/v1/queues/orders/faults", {"kind": "duplicate", "rate": 0.5}, method="PUT")
        site.post("/api/v1/queues/orders/faults", {"kind": "nonsense", "rate": 0.5}, method="PUT")
        site.post("/api/v1/queues/orders/faults", method="DELETE")
        site.post("/api/v1/workers/nobody/control", {"action": "pause"})
        site.post("/api/v1/queues/nope/messages", {"body": "x"})
        logged = [(row["action"], row["outcome"].partition(":")[0]) for row in site.api("audit")["rows"]][::-1]
    assert logged == [
        ("set fault", "begun"),
        ("set fault", "done"),
        ("set fault", "begun"),
        ("set fault", "failed"),
        ("clear faults", "begun"),
        ("clear faults", "done"),
        ("pause worker", "begun"),
        ("pause worker", "failed"),
        ("send", "begun"),
        ("send", "failed"),
    ]


def test_faults_are_set_for_one_queue_and_ended(site: Site, place: Shop) -> None:
    set_ = site.post("/api/v1/queues/orders/faults", {"kind": "duplicate", "rate": 0.5}, method="PUT").json()
    assert {(fault["kind"], fault["queue"], fault["rate"]) for fault in set_ if fault["rate"]} == {
        ("duplicate", "orders", 0.5)
    }
    assert not [fault for fault in site.api("queues/mail.fifo/faults") if fault["rate"]]
    assert not [fault for fault in site.post("/api/v1/queues/orders/faults", method="DELETE").json() if fault["rate"]]
    wrong = site.post("/api/v1/queues/orders/faults", {"kind": "nonsense", "rate": 0.5}, method="PUT")
    assert wrong.status == 400
    assert "duplicate" in wrong.json()["error"]


@pytest.mark.parametrize("form", ["cloudformation", "terraform", "prometheus", "cli"])
def test_alarms_are_written_in_every_format(site: Site, form: str) -> None:
    answer = site.get("/api/v1/alarms/orders", format=form)
    assert answer.status == 200
    assert "orders-dlq" in answer.text


# Dead letters.


def test_dead_letter_messages_are_grouped_found_and_shown(site: Site, place: Shop) -> None:
    place.dead.purge()
    ids = place.dead_letter(4, "Timeout: no answer from 10.0.0.1") + place.dead_letter(2, "KeyError: 'total'", start=10)
    (queue,) = [queue for queue in site.api("dead-letters")["queues"] if queue["name"] == "orders-dlq"]
    assert (queue["visible"], queue["sources"]) == (6, ["orders"])
    groups = site.api("dead-letters/orders-dlq/groups")
    assert [group["count"] for group in groups["groups"]] == [4, 2]
    chosen = site.api("dead-letters/orders-dlq/messages", where=groups["groups"][1]["where"])
    assert [message["id"] for message in chosen["messages"]] == ids[4:]
    message = site.api(f"dead-letters/orders-dlq/messages/{ids[0]}")
    assert (message["key"], message["source"], message["attempts"]) == ("order-0", "orders", 3)
    assert site.api("dead-letters/orders-dlq/impact", where="error ~ KeyError")["count"] == 2


def listed(site: Site, queue: str, **query: Any) -> list[str]:
    """The ids that a page lists."""
    page = site.get(f"/dead-letters/{queue}", **query)
    assert page.status == 200, page.text
    return re.findall(r'<tr data-key="([0-9a-f-]{36})"', page.text)


@pytest.mark.parametrize("where", ["", "error ~ KeyError", "$.order >= 5 and key exists", "age < 1d", "id = nothing"])
def test_page_and_api_list_the_same_messages(site: Site, place: Shop, where: str) -> None:
    place.dead.purge()
    place.dead_letter(70, "Timeout: no answer")
    place.dead_letter(60, "KeyError: 'total'", start=70)
    site.services.inspector.changed("orders-dlq")
    query = {"where": where} if where else {}
    pages, next_ = 0, None
    while pages == 0 or next_ is not None:
        after: dict[str, str] = {"after": next_} if next_ else {}
        answer = site.api("dead-letters/orders-dlq/messages", **query, **after)
        ids = [message["id"] for message in answer["messages"]]
        assert len(ids) == 50 or answer["next"] is None  # the default of both
        assert until(lambda: listed(site, "orders-dlq", **query, **after) == ids, "the same list")  # noqa: B023
        pages, next_ = pages + 1, answer["next"]
    groups = site.api("dead-letters/orders-dlq/groups", **query)["groups"]
    page = site.services.inspector.dead_letters("orders-dlq", where, wait=60)
    assert [(group["fingerprint"], group["count"]) for group in groups] == [
        (group.fingerprint, group.count) for group in page.groups
    ]


def test_dead_letter_messages_are_redriven_as_a_job(site: Site, place: Shop) -> None:
    place.dead.purge()
    place.dead_letter(5, "Timeout: x")
    place.dead_letter(1, "KeyError: y", start=50)
    before = int(place.orders.attributes()["ApproximateNumberOfMessages"])
    dry = site.post("/api/v1/dead-letters/orders-dlq/redrive", {"where": "error ~ Timeout", "dry_run": True})
    assert dry.status == 202
    assert finished(site, dry.json())["counts"]["matched"] == 5
    begun = site.post("/api/v1/dead-letters/orders-dlq/redrive", {"where": "error ~ Timeout", "canary": 0}).json()
    job = finished(site, begun)
    assert (job["state"], job["counts"]["sent"], job["counts"]["deleted"]) == ("done", 5, 5)
    assert int(place.orders.attributes()["ApproximateNumberOfMessages"]) == before + 5
    assert job["id"] in [row["id"] for row in site.api("jobs")["jobs"]]
    logged = until(lambda: site.api("audit", where=f"job = {job['id']}")["rows"], "the entry in the audit log")
    assert (logged[0]["action"], logged[0]["count"], logged[0]["who"]) == ("redrive", 5, "operator 127.0.0.1")


def test_what_is_dropped_can_be_restored_from_its_export(site: Site, place: Shop) -> None:
    place.dead.purge()
    place.dead_letter(3)
    export = site.get("/api/v1/dead-letters/orders-dlq/export", all=1)
    assert export.headers["content-type"].startswith("application/x-ndjson")
    assert len(export.body.splitlines()) == 3
    shown_messages = site.api("dead-letters/orders-dlq/impact", all=1)["shown"]
    job = finished(
        site, site.post("/api/v1/dead-letters/orders-dlq/delete", {"all": True, "shown": shown_messages}).json()
    )
    assert (job["state"], job["counts"]["deleted"]) == ("done", 3), job
    assert site.api("dead-letters/orders-dlq/messages")["messages"] == []
    headers = {"content-type": "application/x-ndjson"}
    begun = site.ask("POST", "/api/v1/dead-letters/orders-dlq/restore", export.body, headers)
    assert begun.status == 202, begun.text
    assert finished(site, begun.json())["counts"]["sent"] == 3
    back = site.api("dead-letters/orders-dlq/messages")["messages"]
    assert [message["key"] for message in back] == ["order-0", "order-1", "order-2"]


def test_a_drop_says_what_was_seen_and_touches_nothing_else(site: Site, place: Shop) -> None:
    place.dead.purge()
    shown = place.dead_letter(4)
    for blind in ({"all": True}, {"where": "$.order < 9"}):
        answer = site.post("/api/v1/dead-letters/orders-dlq/delete", blind)
        assert answer.status == 400
        assert "impact" in answer.json()["error"]
    shown_messages = site.api("dead-letters/orders-dlq/impact", where="$.order < 9")["shown"]
    assert (shown_messages["count"], shown_messages["ids"]) == (4, shown)
    finished(site, site.post("/api/v1/dead-letters/orders-dlq/redrive", {"ids": shown[:3]}).json())
    later = place.dead_letter(3)
    begun = site.post("/api/v1/dead-letters/orders-dlq/delete", {"where": "$.order < 9", "shown": shown_messages})
    assert begun.status == 202, begun.text
    assert finished(site, begun.json())["counts"]["deleted"] == 1
    assert [message["id"] for message in site.api("dead-letters/orders-dlq/messages")["messages"]] == later


@pytest.mark.parametrize(
    "nothing",
    [
        {},
        {"ids": []},
        {"ids": [""]},
        {"where": ""},
        {"where": " "},
        {"where": "$.order = 1", "ids": []},
        {"where": "$.order = 1", "all": True},
        {"ids": ["a"], "all": True},
    ],
)
def test_selecting_nothing_or_twice_over_the_api_is_an_error(site: Site, place: Shop, nothing: dict[str, Any]) -> None:
    place.dead.purge()
    place.dead_letter(2)
    for action, more in (("redrive", {}), ("delete", {"shown": {"count": 2, "place": 10_000, "at": 2e9}})):
        answer = site.post(f"/api/v1/dead-letters/orders-dlq/{action}", nothing | more)
        assert answer.status == 400, answer.text
        assert "exactly one of where, ids" in answer.json()["what_to_do"]
    query = {{"ids": "id"}.get(name, name): argument for name, argument in nothing.items()}
    if query != {"id": []} and query != {"where": "$.order = 1", "id": []}:  # which an address cannot say
        for look in ("impact", "export"):
            assert site.get(f"/api/v1/dead-letters/orders-dlq/{look}", **query).status == 400
    assert len(place.broker.peek("orders-dlq", "visible")) == 2


def test_a_queue_that_is_no_dead_letter_queue_needs_any_queue_over_the_api(site: Site, place: Shop) -> None:
    live = place.client.create_queue("live")
    id = live.send("{}").message_id
    path = "/api/v1/dead-letters/live"
    for answer in (
        site.post(f"{path}/redrive", {"all": True, "to": "live"}),
        site.post(f"{path}/delete", {"ids": [id]}),
        site.post(f"{path}/messages/{id}/resend", {"to": "live"}),
        site.get(f"{path}/export", all=1),
    ):
        assert answer.status == 409, answer.text
        assert "live is not the dead-letter queue of any queue" in answer.json()["error"]
        assert "any_queue" in answer.json()["what_to_do"]
    assert site.get(f"{path}/export", all=1, any_queue=1).status == 200
    assert (
        finished(site, site.post(f"{path}/delete", {"ids": [id], "any_queue": True}).json())["counts"]["deleted"] == 1
    )
    live.drop()


def test_one_dead_letter_message_is_changed_and_sent_with_its_key(site: Site, place: Shop) -> None:
    place.dead.purge()
    target = place.client.create_queue("elsewhere")
    (id,) = place.dead_letter(1)
    path = f"/api/v1/dead-letters/orders-dlq/messages/{id}/resend"
    sent = site.post(path, {"body": '{"order": 0, "fixed": true}', "to": "elsewhere"})
    assert sent.status == 200, sent.text
    assert sent.json()["key"] == "order-0"
    (received,) = target.receive(10, 0)
    assert json.loads(received.body)["fixed"] is True
    assert received.attributes["semel-key"].value == "order-0"
    assert site.post(path, {}).status == 404


def test_what_needs_the_ledger_is_refused_until_it_answers_and_then_done(place: Shop, tmp_path: Path) -> None:
    place.dead.purge()
    (id,) = place.dead_letter(1)
    path = f"/api/v1/dead-letters/orders-dlq/messages/{id}/resend"
    settings = place.settings(ledger=f"sqlite:///{tmp_path}/not-yet/ledger.db")
    with serving(settings, client=place.client) as site:
        for action, content in (
            (path, {"body": "{}"}),
            ("/api/v1/dead-letters/orders-dlq/redrive", {"where": "key exists", "canary": 1}),
        ):
            refused = site.post(action, content)
            assert (refused.status, "the ledger does not answer" in refused.json()["error"]) == (503, True)
        assert len(place.broker.peek("orders-dlq", "visible")) == 1
        (tmp_path / "not-yet").mkdir()
        assert site.post(path, {"body": "{}"}).json()["deleted"] is True


def test_a_job_is_paused_and_cancelled_over_the_api(site: Site, place: Shop) -> None:
    place.dead.purge()
    place.dead_letter(20)
    job = site.post("/api/v1/dead-letters/orders-dlq/redrive", {"all": True, "rate": 1}).json()
    assert site.post(f"/api/v1/jobs/{job['id']}/pause").status == 200
    until(lambda: site.api(f"jobs/{job['id']}")["state"] == "paused", "the pause")
    assert site.post(f"/api/v1/jobs/{job['id']}/cancel").status == 200
    assert finished(site, job)["state"] == "cancelled"
    assert site.post(f"/api/v1/jobs/{job['id']}/explode").status == 422
    assert site.get("/api/v1/jobs/nope").status == 404


# The rest.


def test_a_moment_is_marked_and_shows_on_the_charts(site: Site) -> None:
    before = time.time()
    mark = site.post("/api/v1/annotations", {"text": "deploy 7"}).json()
    assert mark["text"] == "deploy 7"
    assert mark["at"] >= before
    assert "deploy 7" in [annotation["text"] for annotation in site.api("queues/orders")["annotations"]]
    assert "deploy 7" in [annotation["text"] for annotation in site.api("annotations", since=before)["annotations"]]


def test_the_doctor_examines_and_tells_the_cure(site: Site) -> None:
    assert site.post("/api/v1/doctor/run").status == 202
    page = until(lambda: (now := site.api("doctor"))["made_at"] and not now["running"] and now, "the examination")
    assert page["with_logs"] is False
    assert any("short-polling" in finding["rule"] for finding in page["findings"])
    assert all(finding["remedy"] for finding in page["findings"])
    report = site.get(page["report"])
    assert "short-polling" in report.text
    assert "script-src 'self'" not in report.headers["content-security-policy"]  # its own: no script at all


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("queues/nope", 404, "list of queues"),
        ("queues/nope/messages", 404, "list of queues"),
        ("queues/orders/messages/nope", 404, "audit"),
        ("dead-letters/nope/messages", 404, "nope"),
        ("dead-letters/orders-dlq/messages/nope", 404, "reload"),
        ("queues/orders/messages?where=age+%3E", 400, "^"),
        ("dead-letters/orders-dlq/messages?where=nonsense+%3D+5", 400, "nonsense"),
        ("audit?where=%28", 400, "("),
        ("queues/orders/messages?limit=0", 422, "limit"),
        ("queues/orders/messages?after=x", 400, "next"),
        ("alarms/orders?format=xml", 422, "format"),
        ("nope", 404, "nothing"),
    ],
)
def test_what_goes_wrong_is_told_with_the_way_out(site: Site, path: str, status: int, says: str) -> None:
    answer = site.get(f"/api/v1/{path}")
    assert answer.status == status, answer.text
    error = answer.json()
    assert set(error) == {"error", "what_to_do"}
    assert says in error["error"] + error["what_to_do"]


def test_a_broker_that_is_gone_is_told_and_not_a_traceback(tmp_path: Any) -> None:
    with shop(tmp_path) as place:
        settings = place.settings()
    from dashboard.serving import serving
    from semel.sqs import Client

    with Client(settings.endpoint_url, "us-east-1", access_key="t", secret_key="t", max_attempts=1) as client:
        with serving(settings, client=client) as site:
            answer = site.get("/api/v1/queues")
            assert answer.status == 503
            assert "--endpoint-url" in answer.json()["what_to_do"]
            page = site.get("/")
            assert page.status == 503
            assert "semel broker" in page.text


# The description.


def test_the_description_is_valid_openapi_and_names_every_call(site: Site) -> None:
    described = site.get("/api/v1/openapi.json").json()
    validate(described)
    paths = set(described["paths"])
    assert all(path.startswith("/api/v1/") for path in paths)
    assert {"/api/v1/queues", "/api/v1/dead-letters/{queue}/redrive", "/api/v1/jobs/{id}/{action}"} <= paths
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], (method, path)
            assert operation["tags"], (method, path)
            assert "4XX" in operation["responses"], (method, path)


def test_the_fields_and_bounds_of_a_redrive_are_described_and_checked(site: Site, place: Shop) -> None:
    schemas = site.get("/api/v1/openapi.json").json()["components"]["schemas"]
    fields = schemas["RedrivePlan"]["properties"]
    assert "queue" not in fields  # it is in the address
    assert (fields["canary"]["minimum"], fields["canary"]["maximum"], fields["canary"]["default"]) == (0, 50, 3)
    assert {"where", "ids", "all", "to", "rate", "dry_run", "stop_after_failures", "engine"} <= fields.keys()
    place.dead.purge()
    place.dead_letter(1)
    for wrong, named in (
        ({"canary": 51}, "canary"),
        ({"canary": "many"}, "canary"),
        ({"rate": 0}, "rate"),
        ({"engine": "magic"}, "engine"),
        ({"ids": "m-1"}, "ids"),
        ({"cannary": 3}, "cannary"),
        ({"queue": "other-dlq"}, "queue"),
    ):
        answer = site.post("/api/v1/dead-letters/orders-dlq/redrive", {"all": True, "dry_run": True, **wrong})
        assert answer.status == 400, (wrong, answer.text)
        assert named in answer.json()["error"]
    assert site.post("/api/v1/dead-letters/orders-dlq/redrive", ["all"]).status == 422


def test_answers_are_as_they_are_described(site: Site, place: Shop) -> None:
    place.dead.purge()
    (dead_letter,) = place.dead_letter(1)
    message = site.api("queues/orders/messages", limit=1)["messages"][0]["id"]
    described = site.get("/api/v1/openapi.json").json()
    names = {"queue": "orders", "id": message}
    for path, operations in described["paths"].items():
        if "get" not in operations:
            continue
        dead = "/dead-letters/" in path
        known = {"queue": "orders-dlq", "id": dead_letter} if dead else names
        if path.startswith("/api/v1/jobs/"):
            begun = site.post("/api/v1/dead-letters/orders-dlq/redrive", {"all": True, "dry_run": True}).json()
            known = {"id": finished(site, begun)["id"]}
        chosen = {"all": 1} if path.endswith(("/impact", "/export")) else {}
        answer = site.get(path.format(**known), **chosen)
        assert answer.status == 200, (path, answer.text)
        content = operations["get"]["responses"]["200"]["content"]
        if "application/json" in content and "schema" in content["application/json"]:
            schema = {**content["application/json"]["schema"], "components": described["components"]}
            OAS31Validator(schema).validate(answer.json())
