"""The options of `semel doctor`, and the request that they make. Wrong options are reported before any work."""

from __future__ import annotations

import argparse
import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from semel.cli import options
from semel.cli.command import UsageError, option, wrong_usage
from semel.durations import seconds
from semel.errors import SemelError

if TYPE_CHECKING:
    from semel.doctor.diagnosis import Request

SAMPLE_VISIBILITY: Final = "2s"
SAMPLE_MAP: Final = (
    "id=.msg.messageId,receives=.msg.receives,time=.ts,event=.event,seconds=.took,key=.order,worker=.host,queue=orders"
)
ENGINES: Final = ("duckdb", "spark")
FORMATS: Final = ("text", "json", "html")
LEVELS: Final = ("info", "warning", "critical", "never")


def add_inputs(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to examine, alone or together")
    many: dict[str, Any] = {"action": "extend", "nargs": "+", "default": [], "type": str}
    option(
        group,
        "--log PATH",
        "files or folders, local or s3://…: Semel's attempt log, or the log of any other consumer",
        **many,
    )
    option(group, "--sample", "examine a log that comes with Semel: a boto3 loop that charges orders twice")
    option(group, "--map FIELDS", "fields of your own JSON lines, such as id=.msg.id,time=.ts", type=str)
    option(group, "--events WORDS", "your words for events, such as started=begin,recorded=ok", type=str)
    option(
        group,
        "--queue QUEUE",
        "read the settings of this queue from SQS: its name, URL or ARN; repeatable",
        repeat=True,
    )
    option(
        group,
        "--metrics SOURCE",
        "[QUEUE=]FILE with the output of get-metric-data, or the URL of a Semel broker",
        **many,
    )
    option(group, "--since TIME", "ignore older events: 2026-11-15T08:00Z, or how long ago, such as 3d or 2h", type=str)
    option(group, "--until TIME", "ignore newer events (default: now)", type=str)
    options.add_ledger(group)
    option(group, "--ledger-retention TIME", "how long the ledger keeps a key, such as 14d", type=options.duration)
    option(group, "--alarms FILE", "output of `aws cloudwatch describe-alarms`", type=str)
    option(
        group,
        "--visibility [QUEUE=]TIME",
        "visibility timeout, if neither logs nor SQS have it; repeatable",
        repeat=True,
        type=visibility,
    )
    option(group, "--read-timeout TIME", "read timeout of the consumers' AWS SDK", default="60s", type=options.duration)
    option(
        group, "--lambda-timeout TIME", "timeout of the Lambda function that consumes the queues", type=options.duration
    )
    option(group, "--probe", "test permissions with a receipt handle that does not exist")


def add_places(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where")
    options.add_aws(group)
    option(
        group,
        "--engine",
        "what reads the logs (default: duckdb, or spark if they are too large for this machine)",
        choices=ENGINES,
    )
    options.add(group, "--master URL", "--cores N")


def use_sample(args: argparse.Namespace) -> str:
    """Sets the options that `--sample` stands for; returns the command with all of them."""
    from semel.doctor import SAMPLE

    for name in ("log", "map", "events", "queue", "visibility", "watch"):
        if getattr(args, name):
            raise UsageError(f"--{name} does not go with --sample, which is a log with a mapping of its own")
    args.log, args.map, args.visibility = [str(SAMPLE)], SAMPLE_MAP, [visibility(SAMPLE_VISIBILITY)]
    path = shlex.quote(str(SAMPLE))
    return f"semel doctor --log {path} \\\n  --visibility {SAMPLE_VISIBILITY} --map \\\n  {SAMPLE_MAP}"


def request(args: argparse.Namespace, now: float) -> Request:
    """The request that the options make. Raises UsageError if they do not go together."""
    from semel.doctor import diagnosis as examine

    since, until = _at("--since", args.since, now), _at("--until", args.until, now)
    _refuse_nonsense(args, since, until)
    return examine.Request(
        logs=tuple(args.log),
        mapping=args.map,
        words=args.events,
        queues=tuple(args.queue),
        endpoint_url=args.endpoint_url,
        region=args.region,
        profile=args.profile,
        metrics=tuple(args.metrics),
        since=since,
        until=until,
        ledger=args.ledger,
        ledger_retention=args.ledger_retention,
        alarms=args.alarms,
        visibility=dict(args.visibility),
        read_timeout=args.read_timeout,
        lambda_timeout=args.lambda_timeout,
        probe=args.probe,
        rules=tuple(args.rule),
        ignore=tuple(args.ignore),
        engine=args.engine,
        master=args.master,
        cores=args.cores,
    )


def _refuse_nonsense(args: argparse.Namespace, since: float | None, until: float | None) -> None:
    from semel.doctor import rules

    if not (args.log or args.queue or args.metrics):
        raise UsageError(
            "nothing to examine: give logs, queues or metrics, for example\n"
            "  semel doctor --log /var/log/semel/attempts --queue orders\n"
            "  semel doctor --log app.jsonl --map id=.messageId,time=.ts,event=.event\n"
            "  semel doctor --sample"
        )
    for name, value, needs in (
        ("--map", args.map, "log"),
        ("--events", args.events, "log"),
        ("--probe", args.probe, "queue"),
        ("--watch", args.watch, "log"),
    ):
        if value and not getattr(args, needs):
            raise UsageError(f"{name} is for --{needs}, which is not given")
    if args.ledger_retention and not args.ledger:
        raise UsageError("--ledger-retention is for --ledger, which is not given")
    if args.engine == "duckdb" and args.master:
        raise UsageError("--master is for --engine spark")
    if args.watch and (args.engine == "spark" or args.master):
        raise UsageError("--watch runs in this process, on DuckDB; leave out --engine spark and --master")
    if since is not None and until is not None and since >= until:
        raise UsageError(f"--since {args.since} is not before --until {args.until}")
    if args.map is not None:
        from semel.doctor.logs import mapping

        with wrong_usage():
            mapping.parse(args.map, args.events)
    with wrong_usage():
        rules.choose(args.rule, args.ignore)


def _at(name: str, text: str | None, now: float) -> float | None:
    if text is None:
        return None
    with wrong_usage(name):
        return moment(text, now)


def moment(text: str, now: float) -> float:
    """A time of ISO 8601 (UTC if it has no offset), "now", or how long ago: "2h", "3d"."""
    if text.strip().lower() == "now":
        return now
    try:
        read = datetime.fromisoformat(text.strip())
    except ValueError:
        pass
    else:
        return (read if read.tzinfo is not None else read.replace(tzinfo=UTC)).timestamp()
    try:
        return now - seconds(text.strip().removesuffix(" ago"))
    except SemelError:
        raise UsageError(
            f"{text!r} is no time; write 2026-11-15T08:00Z, 2026-11-15, now, or how long ago, such as 2h or 3d"
        ) from None


def visibility(text: str) -> tuple[str, float]:
    """`[QUEUE=]TIME`; the queue "" stands for all queues."""
    queue, _, time = text.rpartition("=")
    return queue, options.duration(time)
