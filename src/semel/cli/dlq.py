"""`semel dlq`: look at dead letters, understand them, send them back, or let them go."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semel.cli import dlq_acting, dlq_watch
from semel.cli import dlq_options as options
from semel.cli import dlq_text as text
from semel.cli.dlq_options import command, printed, tell_cost
from semel.cli.errors import UsageError
from semel.cli.options import some_text

if TYPE_CHECKING:
    from semel.cli.dlq_options import AnyService
    from semel.dlq.jobs import Control
    from semel.dlq.messages import DeadLetterQueue

_EXAMPLES = """\
examples:
  semel dlq ls                                   all dead-letter queues
  semel dlq list orders-dlq --group-by error     messages, grouped by error
  semel dlq list orders-dlq --where 'error ~ timeout and $.total > 100'
  semel dlq show orders-dlq 6d2f0c1a-…           one message, in full
  semel dlq redrive orders-dlq --where 'error ~ timeout' --canary --rate 50
                                                 three first; the rest only
                                                 if those succeed
  semel dlq edit orders-dlq 6d2f0c1a-…           edit a copy and send it
  semel dlq drop orders-dlq --where 'age > 7d'   asks first, keeps a snapshot
  semel dlq restore snapshot.jsonl               restore from the snapshot
  semel dlq watch --before 6h --webhook https://…
                                                 alert when messages arrive,
                                                 and before they expire
"""


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "dlq",
        help="look at dead letters and send them back",
        description="Dead letters: look at them, understand them, redrive them once, or drop them.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    where, which = options.places(), options.looking()
    _add_ls(actions, where)
    _add_list(actions, where, which)
    _add_show(actions, where)
    _add_export(actions, where)
    dlq_acting.add_to(actions, where)
    dlq_watch.add_to(actions, where)
    _add_jobs(actions, where)


# ls


def _add_ls(actions: Any, where: Any) -> None:
    parser = command(
        actions,
        "ls",
        _ls,
        where,
        help="the dead-letter queues: depth, age, when the first letter is lost, sources",
        description="All dead-letter queues. OLDEST and FIRST EXPIRES are known on Semel's broker (~: from the first "
        "1,000); SQS tells them only to those who look (--look).",
        examples="  semel dlq ls\n  semel dlq ls --json\n  semel dlq ls --look",
    )
    parser.add_argument("--look", action="store_true", help="on SQS: receive up to ten of each for their age")
    options.add_receive(parser)
    parser.add_argument("--json", action="store_true", help="as JSON")


def _ls(given: argparse.Namespace) -> int:
    now = time.time()
    with options.service(given) as service:
        found = service.queues()
        if given.look:
            found = [
                _looked(service, one, now, bool(given.receive)) if one.depth and one.oldest_age is None else one
                for one in found
            ]
    if given.json:
        printed([asdict(one) | {"depth": one.depth} for one in found])
    else:
        print(text.queues(found, now))
    return 0


def _looked(service: AnyService, info: DeadLetterQueue, now: float, receive: bool) -> DeadLetterQueue:
    from semel.dlq import queues as listing
    from semel.dlq.access import PeekRisk

    try:
        seen = service.messages(info.name, limit=10, receive=receive)
    except PeekRisk as error:
        print(f"note: {error}; --receive accepts that", file=sys.stderr)
        return info
    if str(seen.cost):
        print(f"note: {info.name}: {seen.cost}", file=sys.stderr)
    return listing.estimated(info, seen.messages, now)


# list


def _add_list(actions: Any, where: Any, which: Any) -> None:
    parser = command(
        actions,
        "list",
        _list,
        which,
        where,
        help="letters, or what they died of",
        description="Letters of a dead-letter queue that match, oldest first; or grouped by their error, without "
        "numbers, ids and quoted text.",
        examples="  semel dlq list orders-dlq\n  semel dlq list orders-dlq --group-by error\n"
        "  semel dlq list orders-dlq --where 'fingerprint = 5c1fd0a9e2' --limit 20 --json",
        more=options.FILTERS,
    )
    parser.add_argument("queue", metavar="QUEUE", help="its name, URL or ARN")
    parser.add_argument("--group-by", choices=("error",), help="count by error fingerprint")
    parser.add_argument("--limit", type=options.at_least(1), default=50, metavar="N", help="show so many (50)")
    parser.add_argument("--after", metavar="PLACE", help="go on where an earlier list ended (its `next`)")
    parser.add_argument("--bodies", action="store_true", help="with --json: whole bodies")
    options.add_receive(parser)
    parser.add_argument("--json", action="store_true", help="as JSON")


def _list(given: argparse.Namespace) -> int:
    from semel.dlq.messages import as_json

    now = time.time()
    with options.service(given) as service:
        if given.group_by:
            found = service.groups(given.queue, given.where, receive=bool(getattr(given, "receive", False)))
            if given.json:
                printed(asdict(found))
            elif found.groups:
                print(text.groups(found.groups, now))
                print(f"\n{found.matched:,} of {found.looked_at:,} letters, {len(found.groups):,} kinds of errors")
                print(f"one kind:  semel dlq list {given.queue} --where '{found.groups[0].where}'")
            else:
                print(_none(given, found.looked_at))
            tell_cost(found.cost, found.notes)
            return 0
        page = service.messages(
            given.queue,
            given.where,
            given.limit,
            given.after,
            bodies=given.bodies,
            receive=bool(getattr(given, "receive", False)),
        )
    if given.json:
        messages = [as_json(one, now=now) for one in page.messages]
        content: dict[str, Any] = {"messages": messages, "next": page.next, "looked_at": page.looked_at}
        printed(content | {"complete": page.complete, "cost": asdict(page.cost), "notes": page.notes})
    elif page.messages:
        print(text.messages(page.messages, now))
        if page.next:
            print(f"\nmore: --after {page.next}, or a larger --limit")
    else:
        print(_none(given, page.looked_at))
    tell_cost(page.cost, page.notes)
    return 0


def _none(given: argparse.Namespace, looked_at: int) -> str:
    if looked_at:
        return f"none of the {looked_at:,} messages in {given.queue} match"
    return f"the queue {given.queue} has no messages to show"


# show


def _add_show(actions: Any, where: Any) -> None:
    parser = command(
        actions,
        "show",
        _show,
        where,
        help="one letter, whole",
        description="One letter: why it is there, its key, attributes and body.",
        examples="  semel dlq show orders-dlq 6d2f0c1a-…\n  semel dlq show orders-dlq 6d2f0c1a-… --body > body.json",
    )
    parser.add_argument("queue", metavar="QUEUE")
    parser.add_argument(
        "id", type=some_text, metavar="ID", help="its message id here, or in the queue that it came from"
    )
    parser.add_argument("--body", action="store_true", help="the body alone, as it is")
    options.add_receive(parser)
    parser.add_argument("--json", action="store_true", help="as JSON")


def _show(given: argparse.Namespace) -> int:
    from semel.dlq.messages import as_json

    now = time.time()
    with options.service(given) as service:
        answer = service.find(given.queue, given.id, receive=bool(getattr(given, "receive", False)))
    (found,) = answer.messages
    if given.body:
        sys.stdout.write(found.body)
    elif given.json:
        printed(as_json(found, now=now))
    else:
        print(text.message(found, now))
    tell_cost(answer.cost, answer.notes)
    return 0


# export


def _add_export(actions: Any, where: Any) -> None:
    parser = command(
        actions,
        "export",
        _export,
        where,
        help="letters as JSON lines, to keep or to restore",
        description="Write letters as JSON lines, whole; they stay in the queue.",
        examples="  semel dlq export orders-dlq letters.jsonl --all\n"
        "  semel dlq export orders-dlq - --where 'age > 1d' | jq .body",
        more=options.FILTERS,
    )
    parser.add_argument("queue", metavar="QUEUE")
    parser.add_argument("file", type=some_text, metavar="FILE", help="where to; - is standard output")
    options.add_selection(parser)
    parser.add_argument("--force", action="store_true", help="replace the file if it is there")
    options.add_receive(parser)


def _export(given: argparse.Namespace) -> int:
    path = None if given.file == "-" else Path(given.file)
    if path is not None and path.exists() and not given.force:
        raise UsageError(f"{path} is there already; --force replaces it")
    with options.service(given) as service:
        options.dead_letter_queue(service, given)
        done = service.export(
            given.queue,
            to=path or sys.stdout.buffer,
            any_queue=given.any_queue,
            receive=bool(getattr(given, "receive", False)),
            **options.selection(given),
        )
    sys.stdout.flush()
    print(f"{done.count:,} letters {'in ' + str(path) if path else 'written'}", file=sys.stderr)
    tell_cost(done.cost, done.notes)
    return 0


# jobs

_JOB_CODES = """\
exit codes:
  0  shown; or the job has acknowledged what was asked of it
  1  failed: the job has ended, its process is gone, or it has not
     acknowledged what was asked of it
  2  wrong usage
"""


def _add_jobs(actions: Any, where: Any) -> None:
    parser = command(
        actions,
        "jobs",
        _jobs,
        where,
        help="what was redriven, dropped and restored",
        description="The last jobs of this user, or of a dashboard (--via). One that runs can be paused, resumed and "
        "cancelled, also when it runs in another terminal or in a dashboard of this user.",
        examples="  semel dlq jobs\n  semel dlq jobs 20261116-120000-a1b2c3\n"
        "  semel dlq jobs 20261116-120000-a1b2c3 --cancel",
        codes=_JOB_CODES,
    )
    parser.add_argument("job", nargs="?", metavar="ID", help="all about one")
    for action in ("pause", "resume", "cancel"):
        parser.add_argument(
            f"--{action}", action="store_const", const=action, dest="action", help=f"ask the job to {action}"
        )
    parser.add_argument("--json", action="store_true", help="as JSON")


def _jobs(given: argparse.Namespace) -> int:
    if given.action and not given.job:
        raise UsageError(f"--{given.action} needs the id of a job: semel dlq jobs ID --{given.action}")
    with options.service(given) as service:
        if given.job is None:
            found = service.jobs()
            if given.json:
                printed([job.to_json() for job in found])
            else:
                print(text.jobs(found))
            return 0
        if given.action:
            return _controlled(service.control(given.job, given.action), given)
        job = service.job(given.job)
    if given.json:
        printed(job.to_json())
        return 0
    print(text.jobs([job]))
    for line in job.messages:
        print(f"  {text.moment(line.at)}  {text.plain(line.text)}")
    return 0


def _controlled(control: Control, given: argparse.Namespace) -> int:
    if given.json:
        printed(control.job.to_json() | {"acknowledged": control.acknowledged, "outcome": str(control)})
    else:
        print(f"{control.action} job {control.job.id}: {control}")
        if not control.acknowledged:
            print(f"see what came of it: semel dlq jobs {control.job.id}", file=sys.stderr)
    return 0 if control.acknowledged else options.FAILED
