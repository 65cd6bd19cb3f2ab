"""`semel queues`: list, create, describe, purge and delete queues, on AWS and on Semel's broker alike."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from semel.cli import confirmation, options, output
from semel.cli.command import ExitCode, UsageError, command, command_group, option
from semel.errors import SemelError

if TYPE_CHECKING:
    from semel.sqs import Client
    from semel.sqs.client import Queue

_THREADS: Final = 8


def add_to(commands: Any) -> None:
    actions = command_group(
        commands,
        "queues",
        "list, create, describe, purge and delete queues",
        description="List, create, describe, purge and delete queues, on AWS and on Semel's broker.",
        examples="""
        semel queues list
        semel queues create orders --dlq
        semel queues describe orders
        semel queues purge orders
        """,
    )
    _add_list(actions)
    _add_create(actions)
    _add_describe(actions)
    _add_removals(actions)


class QueueSummary(NamedTuple):
    """`error`: why its attributes could not be read; then only its name and URL are known."""

    name: str
    url: str
    fifo: bool
    visible: int = 0
    in_flight: int = 0
    delayed: int = 0
    dead_letter_queue: str | None = None
    max_receives: int | None = None
    sources: tuple[str, ...] = ()
    error: str | None = None

    @property
    def depth(self) -> int:
        return self.visible + self.in_flight + self.delayed

    @property
    def counts(self) -> str:
        return f"{self.visible:,} visible, {self.in_flight:,} in flight, {self.delayed:,} delayed"


def _add_list(actions: Any) -> None:
    parser = command(
        actions,
        "list",
        _list,
        "list queues with their message counts",
        description="List queues with their message counts and dead-letter queues.",
        examples="semel queues list\nsemel queues list --prefix orders --output json",
    )
    option(parser, "--prefix TEXT", "only queues whose names begin with this")
    options.add_aws(parser)
    options.add_output(parser)


def _list(args: argparse.Namespace) -> int:
    from concurrent.futures import ThreadPoolExecutor

    sources: dict[str | None, list[str]] = defaultdict(list)
    with options.client(args) as client:
        queues = sorted(client.queues(args.prefix or ""), key=lambda queue: queue.name)
        with ThreadPoolExecutor(_THREADS) as pool:
            summaries = list(pool.map(_summary, queues))
        address = client.endpoint
    for summary in summaries:
        sources[summary.dead_letter_queue].append(summary.name)
    summaries = [summary._replace(sources=tuple(sources[summary.name])) for summary in summaries]
    output.show(args, summaries, lambda: _table(summaries) if summaries else _none(args.prefix, address))
    unread = [summary for summary in summaries if summary.error]
    if unread and args.output == "table":
        output.notes(f"{output.count(len(unread), 'queue')} could not be read; --output json has the errors in full")
    return ExitCode.OK


def _none(prefix: str | None, address: str) -> str:
    named = f" whose names begin with {prefix}" if prefix else ""
    return f"there are no queues{named} at {address}\ncreate one: semel queues create NAME --dlq"


def _summary(queue: Queue) -> QueueSummary:
    from semel.sqs.errors import SqsError

    try:
        return _summarized(queue, queue.attributes())
    except SqsError as error:  # no permission, or deleted since
        return QueueSummary(queue.name, queue.url, queue.fifo, error=str(error))


def _summarized(queue: Queue, attributes: Mapping[str, str]) -> QueueSummary:
    from semel.dlq.queues import dead_letter_queue_name, max_receives

    visible, in_flight, delayed = (
        int(attributes.get(f"ApproximateNumberOfMessages{kind}", "0")) for kind in ("", "NotVisible", "Delayed")
    )
    return QueueSummary(
        queue.name,
        queue.url,
        queue.fifo,
        visible,
        in_flight,
        delayed,
        dead_letter_queue_name(attributes) or None,
        max_receives(attributes),
    )


def _table(queues: Sequence[QueueSummary]) -> str:
    rows = []
    for queue in queues:
        counts = (queue.visible, queue.in_flight, queue.delayed)
        shown = ["?" if queue.error else f"{count:,}" for count in counts]
        role = f"not readable: {queue.error}" if queue.error else _role(queue)
        rows.append((queue.name, *shown, "fifo" if queue.fifo else "standard", role))
    heads = ("QUEUE", "VISIBLE", "IN FLIGHT", "DELAYED", "TYPE", "DEAD-LETTER QUEUE")
    return output.table(heads, rows, right=heads[1:4], optional=("DELAYED", "TYPE"))


def _role(summary: QueueSummary) -> str:
    target = f"{summary.dead_letter_queue} ({summary.max_receives} receives)" if summary.dead_letter_queue else ""
    of = f"(of {', '.join(summary.sources)})" if summary.sources else ""
    return " ".join(filter(None, (target, of))) or "-"


def _add_create(actions: Any) -> None:
    parser = command(
        actions,
        "create",
        _create,
        "create a queue, with its dead-letter queue",
        description="""Create a queue. With --dlq its dead-letter queue is created too, unless it exists, with a
        retention of 14 days. If the queue exists with the same attributes, it is left as it is; with other
        attributes, that is an error.""",
        examples="""
        semel queues create orders --dlq
        semel queues create payments --fifo --dlq --max-receives 3 --visibility 5m
        semel queues create audit --retention 14d --tag team=billing
        """,
    )
    parser.add_argument("name", type=options.some_text, metavar="NAME", help="the queue's name")
    option(parser, "--fifo", "create a FIFO queue; .fifo is added to the name", env="never")
    option(parser, "--content-deduplication", "FIFO: equal bodies within five minutes are one message")
    option(
        parser,
        "--dlq NAME",
        "also create a dead-letter queue (default name: the queue's name with -dlq)",
        env="never",
        nargs="?",
        const=True,
    )
    option(
        parser,
        "--max-receives N",
        "receives after which a message is moved to the dead-letter queue (default: 5)",
        type=options.at_least(1),
    )
    for name, bounds, text in (
        ("--visibility", ("MAX_VISIBILITY",), "visibility timeout (default: 30s)"),
        ("--retention", ("MAX_RETENTION", "MIN_RETENTION"), "message retention (default: 4d)"),
        ("--delay", ("MAX_DELAY",), "delay of new messages (default: 0s)"),
        ("--wait", ("MAX_WAIT",), "how long a receive waits unless it says otherwise (default: 0s)"),
    ):
        option(parser, f"{name} TIME", text, type=options.whole_seconds(*bounds))
    option(parser, "--tag KEY=VALUE", "a tag; may be repeated", type=_tag, repeat=True)
    options.add_aws(parser)
    options.add_output(parser)


def _tag(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def _fifo_name(name: str, fifo: bool) -> str:
    return f"{name}.fifo" if fifo and not name.endswith(".fifo") else name


def _create(args: argparse.Namespace) -> int:
    from semel.messages.dead_letter_queue import RECOMMENDED_RECEIVES
    from semel.sqs import limits

    name = _fifo_name(args.name, args.fifo)
    fifo = name.endswith(".fifo")
    if not limits.QUEUE_NAME.match(name):
        raise UsageError(f"{name!r} is not the name of a queue: 1 to 80 letters, digits, - and _, and .fifo at the end")
    if args.max_receives and args.dlq is None:
        raise UsageError("--max-receives needs --dlq: without a dead-letter queue nothing is moved")
    if args.content_deduplication and not fifo:
        raise UsageError("--content-deduplication is for FIFO queues: add --fifo")
    dlq = None if args.dlq is None else _dlq_name(args.dlq, name, fifo)
    wanted = {
        "VisibilityTimeout": args.visibility,
        "MessageRetentionPeriod": args.retention,
        "DelaySeconds": args.delay,
        "ReceiveMessageWaitTimeSeconds": args.wait,
        "ContentBasedDeduplication": "true" if args.content_deduplication else None,
    }
    attributes = {key: str(value) for key, value in wanted.items() if value is not None}
    receives = args.max_receives or RECOMMENDED_RECEIVES
    with options.client(args) as client:
        queue, created = client.queue(name), list[str]()
        existing = _existing(queue)
        policy = _checked(name, existing, attributes, dlq, receives)
        with _audited("create queue", name):
            if dlq is not None and policy is None:
                policy = json.dumps({"deadLetterTargetArn": _target(client, dlq, created), "maxReceiveCount": receives})
                attributes["RedrivePolicy"] = policy
            if existing is None:
                client.forget(queue)
                queue = client.create_queue(name, attributes, dict(args.tag))
                created.append(name)
            elif "RedrivePolicy" in attributes:
                queue.call("SetQueueAttributes", {"Attributes": {"RedrivePolicy": policy}})
            if existing is not None and args.tag:
                queue.call("TagQueue", {"Tags": dict(args.tag)})
        summary = _summarized(queue, queue.attributes())
        address = _address(client, queue)
    output.show(args, summary, lambda: _created_text(summary, created, address))
    return ExitCode.OK


def _existing(queue: Queue) -> dict[str, str] | None:
    from semel.sqs.errors import QueueNotFound

    try:
        return queue.attributes()
    except QueueNotFound:
        return None


def _checked(
    name: str, existing: Mapping[str, str] | None, attributes: Mapping[str, str], dlq: str | None, receives: int
) -> str | None:
    """The RedrivePolicy that the queue already has, if any. Raises, before anything is created, if the queue exists
    with attributes other than those wanted."""
    from semel.dlq.queues import dead_letter_queue_name, max_receives

    if existing is None:
        return None
    different = [
        f"{key} is {existing.get(key) or 'not set'}, not {value}"
        for key, value in attributes.items()
        if existing.get(key) != value
    ]
    target, most = dead_letter_queue_name(existing), max_receives(existing)
    if dlq is not None and target and (target, most) != (dlq, receives):
        different.append(f"messages go to {target} after {most} receives, not to {dlq} after {receives}")
    if different:
        raise SemelError(
            f"queue {name} exists with other attributes: {'; '.join(different)}. Leave these options out, or choose "
            f"another name; semel queues describe {name} shows all attributes"
        )
    return existing.get("RedrivePolicy") or None


def _created_text(summary: QueueSummary, created: Sequence[str], address: str) -> str:
    lines = [f"created {name}" for name in created] or [f"{summary.name} exists with these attributes"]
    if summary.dead_letter_queue:
        lines.append(
            f"messages go to {summary.dead_letter_queue} after {output.count(summary.max_receives or 0, 'receive')}"
        )
    return "\n".join([*lines, f"  at {address}"])


def _dlq_name(value: str | bool, name: str, fifo: bool) -> str:
    """`value` of --dlq: a name, or True if it has none."""
    dlq = value if isinstance(value, str) else f"{name.removesuffix('.fifo')}-dlq{'.fifo' if fifo else ''}"
    if dlq.endswith(".fifo") != fifo:
        kind = "FIFO" if fifo else "standard"
        raise UsageError(f"--dlq {dlq}: the dead-letter queue of a {kind} queue is a {kind} queue")
    if dlq == name:
        raise UsageError(f"--dlq {dlq}: a queue cannot be its own dead-letter queue")
    return dlq


def _target(client: Client, dlq: str, created: list[str]) -> str:
    """The ARN of the dead-letter queue, which is created if it does not exist."""
    from semel.sqs.limits import MAX_RETENTION

    target = client.queue(dlq)
    existing = _existing(target)
    if existing is None:
        client.forget(target)
        target = client.create_queue(dlq, {"MessageRetentionPeriod": str(MAX_RETENTION)})
        created.append(dlq)
    elif (retention := int(existing.get("MessageRetentionPeriod", MAX_RETENTION))) < MAX_RETENTION:
        output.notes(
            f"{dlq} exists and keeps messages for {output.duration(retention)} only, counted from when they were "
            "first sent"
        )
    return target.arn


def _add_describe(actions: Any) -> None:
    parser = command(
        actions,
        "describe",
        _describe,
        "show a queue's counts and attributes, explained",
        description="Show a queue: message counts, dead-letter queue, source queues, and its attributes, explained.",
        examples="semel queues describe orders\nsemel queues describe orders --output json",
    )
    options.add_queue(parser)
    options.add_aws(parser)
    options.add_output(parser)


def _describe(args: argparse.Namespace) -> int:
    with options.client(args) as client:
        queue = client.queue(args.queue)
        summary, attributes = _read(queue)
        tags = _tags(queue)
        address = _address(client, queue)
    content = output.as_json(summary) | {"attributes": attributes, "tags": tags}
    output.show(args, content, lambda: _description(summary, attributes, tags, address))
    return ExitCode.OK


def _read(queue: Queue) -> tuple[QueueSummary, dict[str, str]]:
    """The summary, with the source queues of a dead-letter queue; and the attributes."""
    from semel.dlq.queues import no_such_queue, source_urls
    from semel.sqs.errors import QueueNotFound, SqsError

    try:
        attributes = queue.attributes()
    except QueueNotFound:
        raise no_such_queue(queue) from None
    try:
        sources = tuple(sorted(source_urls(queue)))
    except SqsError:  # no permission for that
        sources = ()
    return _summarized(queue, attributes)._replace(sources=sources), attributes


def _tags(queue: Queue) -> dict[str, str]:
    from semel.sqs.errors import SqsError

    try:
        return dict(queue.call("ListQueueTags", {}).get("Tags") or {})
    except SqsError:  # no permission for that
        return {}


def _description(summary: QueueSummary, attributes: Mapping[str, str], tags: Mapping[str, str], address: str) -> str:
    from semel.dashboard.views.attributes import explained

    rows = [
        ("queue", summary.name),
        ("at", address),
        ("type", "FIFO" if summary.fifo else "standard"),
        ("messages", summary.counts),
        ("dead-letter queue", _role(summary._replace(sources=()))),
        ("sources", ", ".join(summary.sources) or "-"),
        *(("tag", f"{name}={value}") for name, value in tags.items()),
    ]
    lines = [output.pairs(rows), ""]
    room = min(output.width(), 100)
    for attribute in explained(attributes):
        if attribute.name.startswith("ApproximateNumberOf"):
            continue
        lines.append(f"{attribute.name}: {output.one_line(attribute.shown)}")
        lines += textwrap.wrap(attribute.meaning, room - 4, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def _add_removals(actions: Any) -> None:
    for name, help, description in (
        (
            "purge",
            "delete all messages of a queue",
            "Delete all messages of a queue, without a snapshot. Messages that arrive within the next minute may be "
            "deleted too.",
        ),
        ("delete", "delete a queue with its messages", "Delete a queue and all its messages."),
    ):
        parser = command(
            actions,
            name,
            _remove,
            help,
            description=f"{description} The queue's name must be typed, unless --yes is given.",
            examples=f"semel queues {name} orders\nsemel queues {name} orders --yes",
            codes={ExitCode.FAILED: "failed, or not confirmed"},
        )
        options.add_queue(parser)
        parser.set_defaults(action=name)
        options.add(parser, "--yes")
        options.add_aws(parser)
        options.add_output(parser)


def _remove(args: argparse.Namespace) -> int:
    action = args.action
    confirmation.check_terminal(args, action)
    with options.client(args) as client:
        queue = client.queue(args.queue)
        summary, _ = _read(queue)
        messages = output.count(summary.depth, "message")
        what = (
            f"delete all {messages} of {summary.name}" if action == "purge" else f"delete {summary.name} and {messages}"
        )
        print(f"{what}: {summary.counts}\n  at {_address(client, queue)}", file=sys.stderr)
        if summary.sources:
            print(f"  it is the dead-letter queue of {', '.join(summary.sources)}", file=sys.stderr)
        if not args.yes and not confirmation.typed(summary.name, action + " it"):
            return ExitCode.FAILED
        with _audited(f"{action} queue", summary.name) as ending:
            ending.count = summary.depth
            queue.purge() if action == "purge" else queue.drop()
    past = {"purge": "purged", "delete": "deleted"}[action]
    output.show(args, summary, lambda: f"{past} {summary.name}: {messages}")
    return ExitCode.OK


def _audited(action: str, queue: str) -> Any:
    from semel.dlq.audit import Audit, somebody
    from semel.state_folder import state_folder

    return Audit.at(state_folder()).around(somebody(), action, queue=queue)


def _address(client: Client, queue: Queue) -> str:
    from semel.dlq.queues import address

    return address(queue.url, client.region, client.endpoint)
