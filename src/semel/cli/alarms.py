"""`semel alarms`: the alarms that queues need, ready to apply."""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING, Any, Final

from semel.cli import options, output
from semel.cli.command import ExitCode, UsageError, command, option

if TYPE_CHECKING:
    from semel.doctor.model import Case

_TARGETS: Final = ("cloudformation", "terraform", "prometheus", "cli")
_TOPIC: Final = re.compile(r"arn:aws[a-z-]*:sns:[a-z0-9-]+:\d{12}:[A-Za-z0-9_-]+")


def add_to(commands: Any) -> None:
    parser = command(
        commands,
        "alarms",
        run,
        "write the alarms that queues need",
        description="Write alarms for queues: dead-letter messages, age of the oldest message, messages in flight "
        "near the limit, messages received but not deleted. Thresholds come from the queue's own attributes.",
        examples="""
            semel alarms orders --sns arn:aws:sns:eu-west-1:123456789012:ops > alarms.yaml
            semel alarms orders refunds --target terraform > alarms.tf
            semel alarms orders --target cli | sh
            semel alarms orders --target prometheus --endpoint-url http://127.0.0.1:9324
            semel alarms orders --offline --dlq orders-dead      without calling SQS
        """,
        codes={
            ExitCode.OK: "written to standard output",
            ExitCode.FAILED: "a queue does not exist, or SQS could not be called",
        },
    )
    parser.add_argument("queues", nargs="+", metavar="QUEUE", help="name, URL or ARN of a queue")
    option(
        parser,
        "--target",
        "format of the alarms; cli: commands of the AWS CLI",
        choices=_TARGETS,
        default="cloudformation",
    )
    option(parser, "--sns ARN", "SNS topic that CloudWatch alarms notify", type=str)
    options.add_aws(parser)
    option(parser, "--offline", "do not call SQS: use its defaults, and QUEUE-dlq as dead-letter queue")
    option(parser, "--dlq QUEUE", "the dead-letter queue; with --offline and one QUEUE")


def run(args: argparse.Namespace) -> int:
    from semel.doctor.alarms import alarms
    from semel.doctor.alarms import formats as alarm_formats

    if args.dlq and not (args.offline and len(args.queues) == 1):
        raise UsageError("--dlq needs --offline and one QUEUE; otherwise the dead-letter queue is read from SQS")
    if args.sns is not None and not _TOPIC.fullmatch(args.sns):
        raise UsageError(
            f"--sns {args.sns}: not the ARN of a topic; it looks like arn:aws:sns:eu-west-1:123456789012:ops"
        )
    cases = _offline(args) if args.offline else _live(args)
    # Queues that share a dead-letter queue share its alarm.
    by_name = {
        alarm.name: alarm
        for case, region in cases
        for alarm in alarms.alarms_for(case, dead_letter_queue=args.dlq, region=region)
    }
    print(alarm_formats.render(tuple(by_name.values()), args.target, sns=args.sns), end="")
    for case, _ in cases:
        if case.state is not None and case.state.dead_letters is None and not case.state.sources:
            name = output.one_line(case.queue)
            print(f"semel: {name} has no dead-letter queue, so there is no alarm for one", file=sys.stderr)
    return ExitCode.OK


def _offline(args: argparse.Namespace) -> list[tuple[Case, str | None]]:
    from semel.doctor.model import Case
    from semel.doctor.remedies import name_of, region_of

    return [(Case(queue=name_of(queue)), region_of(queue, queue) or args.region) for queue in args.queues]


def _live(args: argparse.Namespace) -> list[tuple[Case, str | None]]:
    from semel.doctor.errors import DoctorError
    from semel.doctor.inputs.queues import look
    from semel.doctor.model import Case

    with options.client(args) as client:
        states, notes = look(client, args.queues)
    if len(states) < len(set(args.queues)):
        raise DoctorError(f"{'; '.join(notes)} (--offline does not call SQS)")
    for note in notes:
        print(f"semel: {output.one_line(note)}", file=sys.stderr)
    return [(Case(queue=state.queue, state=state), args.region) for state in states]
