"""`semel workers`: list the workers and their messages; pause, resume, scale or stop them."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from semel.cli import options, output
from semel.cli.command import ExitCode, UsageError, Variable, command, command_group, option, wrong_usage
from semel.errors import SemelError

if TYPE_CHECKING:
    from semel.telemetry.health_server import Health

_SILENT: Final = "at least one worker did not answer, or refused; its line says why"


def add_to(commands: Any) -> None:
    actions = command_group(
        commands,
        "workers",
        "list, pause, resume, scale or stop workers",
        description="List or control workers that were started with `semel run --health`. Workers of this user on this "
        "machine are found automatically.",
        examples="""
            semel workers list                     all workers and their messages
            semel workers pause --queue orders     stop receiving from orders
            semel workers scale 8 --queue orders   8 messages at a time, per process
            semel workers health 8080
        """,
    )
    listing = _add(
        actions,
        "list",
        list_workers,
        "list workers and the messages that they process",
        """
            semel workers list
            semel workers list --queue orders --worker 10.0.0.5:8080
            semel workers list --output json |
              jq '.[].queues.orders.messages[] | select(.since > 600)'
        """,
    )
    _add_chosen(listing, "command")
    for name, text, examples in _ACTIONS:
        action = _add(actions, name, act, text, examples)
        action.set_defaults(action="concurrency" if name == "scale" else name, value=None, queue=None)
        if name == "scale":
            action.add_argument("value", type=options.at_least(1), metavar="N", help="messages at a time, per process")
        if name == "stop":
            option(action, "--all", "stop all workers", env="never")
        _add_chosen(action, "never", queues=name != "stop")
    health = _add(
        actions,
        "health",
        check_health,
        "check whether workers are live and ready",
        """
            semel workers health                   all workers on this machine
            semel workers health 8080
            semel workers health http://10.0.0.7:8080 --output json
        """,
        {
            ExitCode.OK: "live and ready",
            ExitCode.FAILED: "a worker did not answer",
            ExitCode.FOUND: "a worker is not live or not ready",
        },
    )
    health.add_argument(
        "address",
        nargs="*",
        type=options.worker_address,
        metavar="[HOST:]PORT",
        help="health endpoint of a worker (default: all workers of this user on this machine)",
    )


_ACTIONS: Final = (
    (
        "pause",
        "stop receiving; messages in progress are finished",
        "semel workers pause --queue orders\nsemel workers pause --worker 10.0.0.5:8080",
    ),
    ("resume", "receive again after a pause", "semel workers resume\nsemel workers resume --queue orders"),
    ("scale", "set the number of messages that are handled at a time", "semel workers scale 8 --queue orders"),
    (
        "stop",
        "stop workers as SIGTERM does: messages in progress are finished",
        "semel workers stop --worker 10.0.0.5:8080\nsemel workers stop --all",
    ),
)


def _add(
    actions: Any,
    name: str,
    run: Callable[[argparse.Namespace], int],
    text: str,
    examples: str,
    codes: dict[ExitCode, str] | None = None,
) -> argparse.ArgumentParser:
    parser = command(actions, name, run, text, examples=examples, codes=codes or {ExitCode.FAILED: _SILENT})
    options.add_output(parser)
    return parser


def _add_chosen(parser: Any, variable: Variable, *, queues: bool = True) -> None:
    """`variable` is "never" for actions: the workers that they affect must be named each time."""
    if queues:
        option(
            parser, "--queue QUEUE", "only this queue; repeatable (default: all queues)", env=variable, action="append"
        )
    option(
        parser,
        "--worker ID|[HOST:]PORT",
        "only this worker: its id, or the address of its health endpoint; repeatable"
        + (" (default: all workers of this user on this machine)" if queues else ""),
        env=variable,
        repeat=True,
    )
    options.add_control_token(parser)


class _Answer(NamedTuple):
    """What one worker answered; `error`: why it did not."""

    worker: str
    url: str
    answer: Any = None
    error: str = ""


def list_workers(args: argparse.Namespace) -> int:
    from semel.telemetry.worker_client import get_worker

    answers = _ask_all(_chosen(args.worker), lambda url: get_worker(url, token=args.control_token))
    _show(answers, args.output, lambda answer: _listed(answer, args.queue))
    return _code(answers)


def check_health(args: argparse.Namespace) -> int:
    from semel.telemetry.worker_client import get_health

    chosen = [(url, url) for url in args.address] or _chosen([])
    answers = _ask_all(chosen, get_health)
    if args.output == "table":
        for answer in answers:
            text = output.printable(answer.error or _health(answer))
            print(text, file=sys.stderr if answer.error else sys.stdout)
    else:
        shown = [
            {
                "id": reply.worker,
                "url": reply.url,
                "live": reply.answer.live,
                "ready": reply.answer.ready,
                **reply.answer.details,
            }
            if reply.answer
            else {"id": reply.worker, "url": reply.url, "live": False, "ready": False, "error": reply.error}
            for reply in answers
        ]
        output.print_json(shown, args.output)
    if any(reply.error for reply in answers):
        return ExitCode.FAILED
    ready = all(reply.answer.live and reply.answer.ready for reply in answers)
    return ExitCode.OK if ready else ExitCode.FOUND


def act(args: argparse.Namespace) -> int:
    from semel.telemetry.worker_control import Command

    with wrong_usage():
        for queue in args.queue or [None]:
            Command.read({"action": args.action, "queue": queue, "value": args.value})
    if args.action == "stop" and not args.worker and not args.all:
        raise UsageError("name the worker with --worker, or use --all")
    chosen = _chosen(args.worker)
    log = _Log(args)
    log.begun([worker for worker, _ in chosen])
    answers = _ask_all(chosen, lambda url: _command(args, url))
    log.ended(answers)
    _show(answers, args.output, lambda reply: f"{reply.worker}: {_outcome(reply)}")
    return _code(answers)


def _command(args: argparse.Namespace, url: str) -> dict[str, Any]:
    """The last answer, which has the state of all queues; its `done` says what was done for each one."""
    from semel.telemetry.worker_client import send_command

    answers = [
        send_command(url, args.action, queue=queue, value=args.value, token=args.control_token)
        for queue in args.queue or [None]
    ]
    return {**answers[-1], "done": "; ".join(str(answer.get("done", "done")) for answer in answers)}


def _code(answers: Sequence[_Answer]) -> int:
    return ExitCode.FAILED if any(answer.error for answer in answers) else ExitCode.OK


def _show(answers: Sequence[_Answer], format: str, text: Callable[[_Answer], str]) -> None:
    if format == "table":
        for reply in answers:
            print(output.printable(text(reply)))  # it contains text of the worker
    else:
        shown = [reply.answer or {"id": reply.worker, "url": reply.url, "error": reply.error} for reply in answers]
        output.print_json(shown, format)


def _chosen(wanted: Sequence[str]) -> list[tuple[str, str]]:
    """(id, URL) of each chosen worker."""
    from semel.state_folder import state_folder
    from semel.telemetry import worker_registry as registry

    known = {entry.id: entry.url for entry in registry.workers(state_folder())}
    if not wanted:
        if not known:
            raise SemelError(
                "no worker with a health endpoint was found for this user on this machine: start one with "
                "`semel run APP --health 0`, or name one: --worker HOST:PORT"
            )
        return list(known.items())
    return [(name, known[name] if name in known else _url(name, known)) for name in wanted]


def _url(name: str, known: dict[str, str]) -> str:
    if not name.rpartition(":")[2].isdigit():
        raise SemelError(f"there is no worker {name!r}; known are {', '.join(known) or 'none'}; or give HOST:PORT")
    try:
        return options.worker_address(name)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"--worker: {error}") from None


def _ask_all(chosen: Sequence[tuple[str, str]], ask: Callable[[str], Any]) -> list[_Answer]:
    """Asks all workers in parallel, on daemon threads, so that a Ctrl-C does not wait for them."""
    answers: dict[int, _Answer] = {}

    def asked(place: int) -> None:
        worker, url = chosen[place]
        try:
            answers[place] = _Answer(worker, url, ask(url))
        except SemelError as error:
            answers[place] = _Answer(worker, url, error=str(error))

    threads = [threading.Thread(target=asked, args=(place,), daemon=True) for place in range(len(chosen))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [answers[place] for place in range(len(chosen))]


def _outcome(reply: _Answer) -> str:
    return reply.error or str(reply.answer["done"])


class _Log:
    """The audit log. An action that cannot be written there is not carried out."""

    def __init__(self, args: argparse.Namespace) -> None:
        from semel.dlq.audit import Audit, somebody
        from semel.state_folder import state_folder

        self._log, self._who, self._args = Audit.at(state_folder()), somebody(), args

    def begun(self, workers: Sequence[str]) -> None:
        for worker in workers:
            self._log.write(self._who, outcome="begun", **self._of(worker))

    def ended(self, answers: Sequence[_Answer]) -> None:
        for reply in answers:
            outcome = f"failed: {reply.error}" if reply.error else f"done: {_outcome(reply)}"
            if problem := self._log.add(self._who, outcome=outcome, **self._of(reply.worker)):
                print(f"semel workers: {output.one_line(problem)}", file=sys.stderr)

    def _of(self, worker: str) -> dict[str, Any]:
        args = self._args
        details = {"worker": worker, "value": "" if args.value is None else str(args.value)}
        return {"action": f"{args.action} worker", "queue": ", ".join(args.queue or ()), "details": details}


def _health(reply: _Answer) -> str:
    health: Health = reply.answer
    lines = [f"{reply.worker}: {'live' if health.live else 'not live'}, {'ready' if health.ready else 'not ready'}"]
    for name, queue in health.details.get("queues", {}).items():
        polled = "paused" if queue.get("paused") else f"last poll {queue['seconds_since_poll']} s ago"
        lines.append(f"  {name}: {queue['in_progress']} in progress, {polled}")
    return "\n".join(lines)


def _listed(reply: _Answer, only: Sequence[str] | None) -> str:
    if reply.answer is None:
        return f"{reply.worker}: {reply.error}"
    worker = reply.answer
    up = output.duration(round(time.time() - float(worker["started"])))
    processes = output.count(worker["processes"], "process")
    lines = [f"{worker['id']}  {worker['app']}  pid {worker['pid']}, {processes}, up {up}"]
    for name, queue in sorted(worker["queues"].items()):
        if only and name not in only:
            continue
        state = "paused" if queue["paused"] else f"concurrency {queue['concurrency']}"
        lines.append(f"  {name}: {state}, {queue['in_progress']} in progress")
        for message in queue["messages"][:10]:
            since, heartbeat = (output.duration(round(message[name])) for name in ("since", "heartbeat_age"))
            lines.append(
                f"    {message['message_id']}  {message['state']} for {since}, attempt {message['attempt']}, "
                f"heartbeat {heartbeat} ago, key {message['key']!r}"
            )
        if queue["in_progress"] > 10:
            more = queue["in_progress"] - 10
            lines.append(f"    … and {more:,} more: --output json shows up to 1,000, the longest first")
    return "\n".join(lines)
