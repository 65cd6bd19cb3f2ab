"""Probes: details of SQS, taken from recordings of the live service."""

from __future__ import annotations

import base64
import json
import time
import uuid

from behaviour_probes.site import Result, Site, judged, last, probe, refused

# Queues.


@probe("queue attributes take True and False, and tell true and false")
def booleans(site: Site) -> Result:
    queue = site.queue(fifo=True, ContentBasedDeduplication="True", SqsManagedSseEnabled="False")
    attributes = [site.attribute(queue, name) for name in ("ContentBasedDeduplication", "SqsManagedSseEnabled")]
    first, second = (site.send(queue, "same", MessageGroupId="g")["MessageId"] for _ in range(2))
    return judged(
        {f"told in lower case (got {attributes})": attributes == ["true", "false"], "True is meant": first == second}
    )


@probe("the bare name of a queue does for its URL")
def bare_name(site: Site) -> Result:
    queue = site.queue()
    site.send(last(queue))
    return judged({"a send and a receive find it": len(site.receive(last(queue))) == 1})


@probe("queues of one name in two regions are two queues")
def regions(site: Site) -> Result:
    queue, elsewhere = site.queue(), site.client("sqs", "eu-west-1")
    site.send(queue)
    twin = elsewhere.create_queue(QueueName=last(queue))["QueueUrl"]
    arn = elsewhere.get_queue_attributes(QueueUrl=twin, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    checks = {
        "the message is in one of them": "Messages" not in elsewhere.receive_message(QueueUrl=twin),
        f"each has its own ARN (got {arn})": ":eu-west-1:" in arn,
    }
    return judged(checks)


@probe("a queue has at most 50 tags; a tag value of null is refused")
def tags(site: Site) -> Result:
    queue = site.queue()
    many = {f"k{number}": "v" for number in range(51)}
    body = json.dumps({"QueueUrl": queue, "Tags": {"a": None}}).encode()
    kind = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.TagQueue"}
    status, _ = site.signed("POST", "/", body, kind)
    checks = {
        "51 are refused": bool(refused(site.sqs.tag_queue, QueueUrl=queue, Tags=many)),
        f"null is refused (got HTTP {status})": status == 400,
    }
    return judged(checks)


@probe("cancelling a move task of a queue that is not there says so")
def cancel_nowhere(site: Site) -> Result:
    arn = site.arn(site.queue()) + "-not"
    handle = base64.b64encode(json.dumps({"taskId": str(uuid.uuid4()), "sourceArn": arn}).encode()).decode()
    code = refused(site.sqs.cancel_message_move_task, TaskHandle=handle) or "no error"
    return judged({f"ResourceNotFoundException (got {code})": code == "ResourceNotFoundException"})


# Messages.


@probe("FIFO: groups take turns when messages are put back")
def turns(site: Site) -> Result:
    queue, order = site.queue(fifo=True), ""
    for group in "abc":
        site.push(queue, group, group)
    for _ in range(6):
        (message,) = site.receive(queue)
        order += message["Body"]
        site.sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    return judged({f"a, b, c and again (got {', '.join(order)})": order == "abcabc"})


@probe("an older handle changes the visibility of a Standard message")
def older_handle(site: Site) -> Result:
    queue = site.queue(VisibilityTimeout="1")
    site.send(queue)
    (older,) = site.receive(queue)
    time.sleep(1.2)
    held = site.receive(queue, VisibilityTimeout=60)
    site.sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=older["ReceiptHandle"], VisibilityTimeout=0)
    checks = {"it is received a second time": len(held) == 1, "and is visible again": len(site.receive(queue)) == 1}
    return judged(checks, strict=True)


@probe("FIFO: a batch with one entry that lacks its id is refused whole")
def whole_batch(site: Site) -> Result:
    queue = site.queue(fifo=True)
    entries = [{"Id": name, "MessageBody": name, "MessageGroupId": "g"} for name in "ab"]
    entries[0]["MessageDeduplicationId"] = "a"
    code = refused(site.sqs.send_message_batch, QueueUrl=queue, Entries=entries) or "no error"
    checks = {
        f"InvalidParameterValue (got {code})": code == "InvalidParameterValue",
        "nothing is sent": site.count(queue) == 0,
    }
    return judged(checks)


@probe("MessageAttributeNames: * means all")
def star(site: Site) -> Result:
    queue = site.queue()
    site.send(queue, MessageAttributes={"a": {"DataType": "String", "StringValue": "b"}})
    (message,) = site.receive(queue, MessageAttributeNames=["*"])
    return judged({"the attribute comes": "a" in message.get("MessageAttributes", {})})


@probe("names of message attributes: letters of any script, no other signs")
def attribute_names(site: Site) -> Result:
    queue, name = site.queue(), "attr.1øßä"
    value = {"DataType": "String", "StringValue": "x"}
    accepted = not refused(site.send, queue, MessageAttributes={name: value})
    messages = site.receive(queue, MessageAttributeNames=["All"]) if accepted else []
    codes = [refused(site.send, queue, MessageAttributes={f"a{sign}": value}) for sign in '!"§(?']
    checks = {
        f"{name} is taken and comes back": [message["MessageAttributes"] for message in messages] == [{name: value}],
        f'! " § ( ? are refused (got {codes})': all(codes),
    }
    return judged(checks)


# The older protocol.


@probe("Query: answers are JSON where JSON is accepted")
def query_as_json(site: Site) -> Result:
    queue = site.queue()
    site.send(queue, "hello")
    accept = {"Accept": "application/json"}
    _, listed = site.signed("GET", "/?Action=ListQueues&Version=2012-11-05", headers=accept)
    _, received = site.signed("GET", site.path(queue) + "?Action=ReceiveMessage&Version=2012-11-05", headers=accept)
    urls = json.loads(listed)["ListQueuesResponse"]["ListQueuesResult"]["queueUrls"]
    (message,) = json.loads(received)["ReceiveMessageResponse"]["ReceiveMessageResult"]["messages"]
    return judged({"a list of queues": last(queue) in map(last, urls), "a message": message["Body"] == "hello"})


@probe("Query: no CreateQueue or ListQueues at a queue's own URL")
def own_url(site: Site) -> Result:
    path = site.path(site.queue())
    status, text = site.signed("GET", path + "?Action=ListQueues&Version=2012-11-05")
    nothing, _ = site.signed("GET", path)
    checks = {
        f"ListQueues is an InvalidAction (got HTTP {status})": status == 400 and "InvalidAction" in text,
        f"no action at all is a 404 (got HTTP {nothing})": nothing == 404,
    }
    return judged(checks)


@probe("Query: an empty result is written as one tag")
def one_tag(site: Site) -> Result:
    _, text = site.signed("GET", site.path(site.queue()) + "?Action=ReceiveMessage&Version=2012-11-05")
    return judged({"<ReceiveMessageResult/>": "<ReceiveMessageResult/>" in text.replace(" />", "/>")})
