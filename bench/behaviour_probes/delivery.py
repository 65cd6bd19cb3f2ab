"""Probes: lost and duplicate messages, dead-letter queues, FIFO queues."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from behaviour_probes.site import (
    Probed,
    Result,
    Site,
    Variant,
    folder,
    judged,
    last,
    names,
    probe,
    refused,
)

# Losses and duplicates.


def survival(site: Site, kill: bool) -> Result:
    with folder() as place:
        kept = Variant(site.target, place, PERSIST_STATE="1", STATE_DIR=str(place / "state"))  # MiniStack's options
        with Probed(kept) as server:
            old = Site(server)
            queue, fifo = old.queue(VisibilityTimeout="600"), old.queue(fifo=True)
            sent = {old.send(queue)["MessageId"] for _ in range(50)}
            once = old.push(fifo, "once")["MessageId"]
            messages = old.receive(queue, 10)
            for message in messages[:5]:
                old.delete(queue, message)
            if kill:
                server.kill()
        with Probed(kept) as server:
            new = Site(server)
            if last(queue) not in map(last, new.sqs.list_queues().get("QueueUrls", [])):
                return Result("no", "the queues are gone afterwards")
            queue, fifo = (new.sqs.get_queue_url(QueueName=last(url))["QueueUrl"] for url in (queue, fifo))
            back = {name for _ in range(8) for name in names(new.receive(queue, 10))}
            left = sent - set(names(messages))
            checks = {
                f"all {len(left)} acknowledged sends are there": left <= back,
                "deleted messages stay deleted, those in flight hidden": back <= left,
                "the dedup window is kept": new.push(fifo, "once")["MessageId"] == once,
            }
            return judged(checks, strict=kill)


@probe("kill -9 loses nothing acknowledged: sends, deletes, in flight, dedup")
def survives_kill(site: Site) -> Result:
    return survival(site, kill=True)


@probe("a clean stop and start keeps the same")
def survives_restart(site: Site) -> Result:
    return survival(site, kill=False)


@probe("8 threads receive 10 x 100 messages: none comes twice")
def no_duplicates(site: Site) -> Result:
    def drain(queue: str) -> list[str]:
        got: list[str] = []
        misses = 0
        while misses < 3:
            messages = site.receive(queue, 10)
            got += names(messages)
            misses = 0 if messages else misses + 1
        return got

    with ThreadPoolExecutor(8) as pool:
        for number in range(10):
            queue = site.queue(VisibilityTimeout="120")
            site.fill(queue, 100)
            ids = [name for got in pool.map(drain, [queue] * 8) for name in got]
            if len(ids) != 100 or len(set(ids)) != 100:
                twice = len(ids) - len(set(ids))
                return Result("no", f"of 100 messages {len(set(ids))} came, {twice} twice, in round {number + 1} of 10")
    return Result("yes", "each of 1,000 messages came once")


@probe("8 threads send, receive and delete: none comes back, none is lost")
def no_returns(site: Site) -> Result:
    queue = site.queue(VisibilityTimeout="2")
    deleted: dict[str, float] = {}
    received_ids: set[str] = set()
    returned: set[str] = set()

    def consume(idle: float) -> None:
        latest = time.monotonic()
        while (began := time.monotonic()) - latest < idle:
            for message in site.receive(queue, 10):
                latest, name = time.monotonic(), message["MessageId"]
                received_ids.add(name)
                if deleted.get(name, began) < began:  # this receive began after the delete was acknowledged
                    returned.add(name)
                site.delete(queue, message)
                deleted.setdefault(name, time.monotonic())

    with ThreadPoolExecutor(8) as pool:
        consumers = [pool.submit(consume, 0.5) for _ in range(6)]
        sent = set(pool.map(lambda _: site.send(queue)["MessageId"], range(400)))
        for consumer in consumers:
            consumer.result()
    time.sleep(2.1)
    consume(0.3)
    lost = len(sent - received_ids)
    checks = {f"none came back ({len(returned)} did)": not returned, f"none is lost ({lost} of 400)": not lost}
    return judged(checks, strict=True)


@probe("delete: twice is fine; an old handle works on Standard, not on FIFO")
def deletes(site: Site) -> Result:
    standard, fifo = site.queue(VisibilityTimeout="1"), site.queue(fifo=True, VisibilityTimeout="1")
    site.send(standard)
    site.push(fifo, "m")
    (old,), (expired,) = site.receive(standard), site.receive(fifo)
    time.sleep(1.2)
    (new,) = site.receive(standard)
    older, _, again = (refused(site.delete, standard, message) or "no error" for message in (old, new, new))
    ended = refused(site.delete, fifo, expired) or "no error"
    checks = {
        f"Standard accepts a handle from before the latest receive (got {older})": older == "no error",
        f"Standard accepts the same delete again (got {again})": again == "no error",
        f"FIFO refuses an expired handle as InvalidParameterValue (got {ended})": ended == "InvalidParameterValue",
    }
    return judged(checks)


# Dead letters.


def dead_letters(site: Site, count: int = 1) -> tuple[str, str, list[str], dict[str, bool]]:
    """A source queue with maxReceiveCount 2, its dead-letter queue, the sent ids, and the checks of the move."""
    queue = site.queue()
    policy = json.dumps({"deadLetterTargetArn": site.arn(queue), "maxReceiveCount": 2})
    source = site.queue(VisibilityTimeout="0", RedrivePolicy=policy)
    sent = [site.send(source)["MessageId"] for _ in range(count)]
    checks = {
        "it is delivered twice": all(len(site.receive(source, 10)) == count for _ in range(2)),
        "it is not moved before a third receive": site.count(queue) == 0,
        "the third receive does not return it": not site.receive(source, 10),
        "it is in the dead-letter queue then": site.count(queue) == count,
    }
    return source, queue, sent, checks


@probe("maxReceiveCount N: N deliveries, moved on receive N+1, not before")
def dead_on_the_next(site: Site) -> Result:
    return judged(dead_letters(site)[3], strict=True)


@probe("a dead letter keeps its MessageId and count, and names its source")
def dead_identity(site: Site) -> Result:
    source, queue, sent, _ = dead_letters(site)
    (message,) = site.receive(queue)
    attributes = message["Attributes"]
    checks = {
        "the MessageId is the same": message["MessageId"] == sent[0],
        "the receive count goes on": attributes["ApproximateReceiveCount"] == "3",
        "DeadLetterQueueSourceArn is there": attributes.get("DeadLetterQueueSourceArn") == site.arn(source),
    }
    return judged(checks)


@probe("redrive (StartMessageMoveTask) with progress and new MessageIds")
def redrive(site: Site) -> Result:
    source, queue, sent, _ = dead_letters(site, 5)
    arn, until = site.arn(queue), time.monotonic() + 3
    site.sqs.start_message_move_task(SourceArn=arn)
    task: dict[str, Any] = {}
    while task.get("Status") != "COMPLETED" and time.monotonic() < until:
        (task,) = site.sqs.list_message_move_tasks(SourceArn=arn)["Results"]
    back = names(site.receive(source, 10))
    checks = {
        "all 5 are back": len(back) == 5,
        "the task says that 5 were moved": task.get("ApproximateNumberOfMessagesMoved") == 5,
        "they have new MessageIds": not set(back) & set(sent),
    }
    return judged(checks)


# FIFO.


@probe("FIFO: a group in flight is blocked; order holds after a timeout")
def fifo_order(site: Site) -> Result:
    queue = site.queue(fifo=True, VisibilityTimeout="1")
    numbers = [int(site.push(queue, body, body[0])["SequenceNumber"]) for body in ("a1", "b1", "a2", "b2", "a3")]
    first, others = names(site.receive(queue), "Body"), names(site.receive(queue, 10), "Body")
    time.sleep(1.2)
    again = names(site.receive(queue, 10), "Body")
    in_order = sorted(again, key=lambda body: body[0]) == ["a1", "a2", "a3", "b1", "b2"]
    checks = {
        f"with a1 in flight only group b is delivered (got {first}, {others})": others == ["b1", "b2"],
        f"after the timeout all come in order (got {again})": in_order,
        "SequenceNumbers increase": numbers == sorted(numbers),
    }
    return judged(checks, strict=True)


@probe("FIFO: dedup is queue-wide, or by group with DeduplicationScope")
def dedup_scope(site: Site) -> Result:
    wide, narrow = site.queue(fifo=True), site.queue(fifo=True, DeduplicationScope="messageGroup")
    for queue, group in ((wide, "g1"), (wide, "g2"), (narrow, "g1"), (narrow, "g2")):
        site.push(queue, "m", group)
    return judged({"by default one is kept": site.count(wide) == 1, "by group both are": site.count(narrow) == 2})


@probe("FIFO: a duplicate gets the original's ids, also after its delete")
def dedup_answer(site: Site) -> Result:
    queue = site.queue(fifo=True)
    first, second = site.push(queue, "m"), site.push(queue, "m")
    site.delete(queue, site.receive(queue)[0])
    site.push(queue, "m")
    checks = {f"the same {name}": first[name] == second[name] for name in ("MessageId", "SequenceNumber")}
    return judged(checks | {"no second delivery after the delete": not site.receive(queue)})


@probe("FIFO: ReceiveRequestAttemptId repeats an answer with its handles")
def attempt(site: Site) -> Result:
    queue = site.queue(fifo=True)
    site.push(queue, "1")
    site.push(queue, "2")
    first, again = (site.receive(queue, 10, ReceiveRequestAttemptId="try-1") for _ in range(2))
    keys = {"messages": "MessageId", "handles": "ReceiptHandle"}
    return judged({f"the same {what}": names(first, key) == names(again, key) for what, key in keys.items()})
