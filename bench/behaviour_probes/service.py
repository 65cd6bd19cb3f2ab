"""Probes: visibility, polling and time; protocol and limits; features around the queue."""

from __future__ import annotations

import json
import statistics
import time
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from botocore import UNSIGNED
from botocore.exceptions import ClientError

from behaviour_probes.site import (
    MISSING,
    PROMPT_MS,
    RETENTION,
    Probed,
    Result,
    Site,
    Variant,
    fetch,
    folder,
    judged,
    last,
    names,
    probe,
    refused,
    secured,
)
from broker_bench.wire import Requests, connect

# Visibility, polling, time.


@probe("visibility ends 12 hours after the receive at the latest")
def twelve_hours(site: Site) -> Result:
    queue = site.queue()
    site.send(queue)
    time.sleep(3.2)
    handle = {"QueueUrl": queue, "ReceiptHandle": site.receive(queue)[0]["ReceiptHandle"]}
    change = site.sqs.change_message_visibility
    early = refused(change, **handle, VisibilityTimeout=43_197)
    time.sleep(1.2)
    checks = {
        f"43197 s are granted right after the receive (got {early or 'no error'})": not early,
        "43200 s are refused 1.2 s later": bool(refused(change, **handle, VisibilityTimeout=43_200)),
    }
    return judged(checks)


@probe("a long poll wakes on a send (median of 9)")
def wakes_on_send(site: Site) -> Result:
    queue, took = site.queue(), []
    with ThreadPoolExecutor(1) as pool:
        for number in range(9):
            poll = pool.submit(lambda: (site.receive(queue, WaitTimeSeconds=3), time.perf_counter()))
            time.sleep(0.2 + number * 0.03)
            began = time.perf_counter()
            site.send(queue)
            messages, ended = poll.result()
            took.append((ended - began) * 1000 if messages else 3000.0)
    median = statistics.median(took)
    checks = {"the poll gets it": median < 1000, f"within {PROMPT_MS:.0f} ms of the send": median < PROMPT_MS}
    return judged(checks, figure=f"{median:.0f} ms")


@probe("a long poll wakes when a visibility timeout ends")
def wakes_on_timeout(site: Site) -> Result:
    queue = site.queue(VisibilityTimeout="1")
    site.send(queue)
    before = time.perf_counter()
    site.receive(queue)
    after = time.perf_counter()
    time.sleep(0.4)
    messages, now = site.receive(queue, WaitTimeSeconds=4), time.perf_counter()
    late = max(0.0, now - after - 1) * 1000
    checks = {"the poll gets it": bool(messages), "not early": now - before > 0.99, "within 150 ms": late < 150}
    return judged(checks, strict=not messages, figure=f"{late:.0f} ms late")


@probe("a client that hangs up in a long poll swallows no message")
def hang_up(site: Site) -> Result:
    queue, address = site.queue(), site.server.address
    sock = connect(address, 5)
    sock.sendall(Requests(address).make("ReceiveMessage", {"QueueUrl": queue, "WaitTimeSeconds": 5}))
    time.sleep(0.3)
    sock.close()
    time.sleep(0.3)
    site.send(queue)
    time.sleep(0.3)
    messages = site.receive(queue, WaitTimeSeconds=1)
    uncounted = bool(messages) and messages[0]["Attributes"]["ApproximateReceiveCount"] == "1"
    return judged({"the next client gets it": bool(messages), "as its first receive": uncounted})


@probe(f"messages end with their retention ({RETENTION} s, waited for)")
def retention(site: Site) -> Result:
    queue, sent = site.planted
    time.sleep(max(0.0, sent + RETENTION + 1 - time.monotonic()))
    return judged({"it is not counted": site.count(queue) == 0, "it is not delivered": not site.receive(queue, 10)})


# Protocol and limits.


@probe("a missing queue: right class and code in boto3, right code in XML")
def missing_queue(site: Site) -> Result:
    caught, code = "nothing", ""
    try:
        site.send(site.queue() + "-not")
    except ClientError as error:
        caught, code = type(error).__name__, error.response["Error"]["Code"]
    in_xml = site.query("GetQueueUrl", QueueName="not-there").findtext(".//{*}Code")
    checks = {
        f"boto3 raises QueueDoesNotExist (got {caught})": caught == "QueueDoesNotExist",
        f"its code is {MISSING} (got {code})": code == MISSING,
        f"XML has the same code (got {in_xml})": in_xml == MISSING,
    }
    return judged(checks)


@probe("the older Query/XML protocol: send, receive, delete")
def query_protocol(site: Site) -> Result:
    queue, body = site.queue(), "größer & <kleiner>\r\n"
    site.query("SendMessage", QueueUrl=queue, MessageBody=body)
    answer = site.query("ReceiveMessage", QueueUrl=queue, VisibilityTimeout="0")
    got = answer.findtext(".//{*}Body") or ""
    site.query("DeleteMessage", QueueUrl=queue, ReceiptHandle=answer.findtext(".//{*}ReceiptHandle") or "")
    checks = {"the body comes back": got.strip() == body.strip(), "a carriage return survives": got == body}
    return judged(checks | {"the delete works": not site.receive(queue)})


@probe("1 MiB is accepted, one byte more refused; attributes count too")
def size(site: Site) -> Result:
    queue, largest = site.queue(), "x" * 1_048_576
    attributes = {"a": {"DataType": "String", "StringValue": "b"}}
    checks = {
        "1 MiB is accepted": not refused(site.send, queue, largest),
        "1 MiB + 1 is refused": bool(refused(site.send, queue, largest + "x")),
        "1 MiB and an attribute are refused": bool(refused(site.send, queue, largest, MessageAttributes=attributes)),
    }
    return judged(checks)


@probe("characters outside XML are refused as InvalidMessageContents")
def bad_characters(site: Site) -> Result:
    codes = [refused(site.send, site.queue(), f"a{character}b") for character in "\x00\x0b\ufffe"]
    return judged({f"U+0000, U+000B, U+FFFE are (got {codes})": set(codes) == {"InvalidMessageContents"}})


@probe("fair queues: a noisy tenant does not delay a quiet one")
def fair(site: Site) -> Result:
    queue = site.queue()
    site.fill(queue, 100, MessageGroupId="loud")
    for _ in range(6):
        site.receive(queue, 10)
    site.send(queue, "quiet", MessageGroupId="quiet")
    bodies = names(site.receive(queue), "Body")
    return judged({"with 60 of one tenant in flight, another's message is next": bodies == ["quiet"]})


# Around the queue.


@probe("AWS signatures can be verified")
def signatures(site: Site) -> Result:
    with secured(site) as safe:
        wrong, unsigned = safe.client("sqs", secret="wrong"), safe.client("sqs", signature_version=UNSIGNED)
        checks = {
            "the right secret is accepted": not refused(safe.sqs.list_queues),
            "a wrong one is refused": bool(refused(wrong.list_queues)),
            "no signature is refused": bool(refused(unsigned.list_queues)),
        }
        return judged(checks, strict=not checks["a wrong one is refused"])


@probe("queue policies can be enforced")
def policies(site: Site) -> Result:
    with secured(site) as safe:
        queue = safe.queue()
        deny = {"Effect": "Deny", "Principal": "*", "Action": "sqs:SendMessage", "Resource": safe.arn(queue)}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [deny]})
        safe.sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": policy})
        return judged({"a send that the policy denies is refused": bool(refused(safe.send, queue))})


@probe("messages can be looked at without receiving them")
def peek(site: Site) -> Result:
    queue, other = site.queue(), site.queue()
    site.send(queue, "look-at-me")
    site.send(other, "not-at-me")
    place = {
        "semel": f"/_semel/queues/{last(queue)}/messages",
        "ministack": f"/_ministack/sqs/messages?QueueUrl={urllib.parse.quote(queue)}",
        "moto": "/moto-api/data.json",
    }[site.name]
    shown = fetch(site.url + place)
    is_shown = "look-at-me" in shown and site.receive(queue)[0]["Attributes"]["ApproximateReceiveCount"] == "1"
    return judged({"it is shown": is_shown, "one queue can be chosen": is_shown and "not-at-me" not in shown})


@probe("time can be moved by hand")
def clock(site: Site) -> Result:
    if site.name != "semel":
        return Result("no", "neither its documentation nor its code has a way to do it in the server")
    with folder() as place, Probed(Variant(site.target, place, ["--clock", "manual"])) as server:
        still = Site(server)
        queue = still.queue(VisibilityTimeout="3600")
        still.send(queue)
        still.receive(queue)
        fetch(still.url + "/_semel/clock/advance", b'{"seconds": 3601}')
        return judged({"a visibility timeout of an hour ends at once": bool(still.receive(queue))})


@probe("faults on demand (duplicates, lost deletes, throttling ...)")
def faults(site: Site) -> Result:
    if site.name != "semel":
        return Result("no", "neither its documentation nor its code has a way to do it to SQS")
    queue = site.queue()
    setting = {"kind": "duplicate", "rate": 1, "queue": last(queue)}
    fetch(site.url + "/_semel/faults", json.dumps(setting).encode(), "PUT")
    site.send(queue)
    first, second = names(site.receive(queue)), names(site.receive(queue))
    return judged({"a message is delivered twice when asked for": first == second != []})


@probe("beyond SQS: SNS delivers to a queue")
def beyond(site: Site) -> Result:
    queue = site.queue()

    def publish() -> None:
        sns = site.client("sns")
        topic = sns.create_topic(Name="probe")["TopicArn"]
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=site.arn(queue))
        sns.publish(TopicArn=topic, Message="news")

    delivered = not refused(publish) and len(site.receive(queue, 10, WaitTimeSeconds=1)) == 1
    return judged({"SNS delivers": delivered})
