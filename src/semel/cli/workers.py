"""`semel workers`: list the workers and their messages; pause, resume, resize or stop them."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semel.cli.errors import UsageError, wrong_usage
from semel.cli.looking import add_control_token
from semel.errors import SemelError

_EXAMPLES = """\
examples:
  semel workers                              all workers of this user on this
                                             machine, and their messages
  semel workers pause --queue orders         stop receiving from orders; finish
                                             the messages in progress
  semel workers resume
  semel workers concurrency 8 --queue orders 8 messages at a time, per process
  semel workers stop --worker 10.0.0.5:8080  as SIGTERM: finish the messages in
                                             progress, then exit
  semel workers --json |
    jq '.[].queues.orders.messages[] | select(.since > 600)'

exit codes:
  0  done
  1  at least one worker did not answer, or refused
  2  wrong usage
"""


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "workers",
        help="list workers and their messages; pause, resume, resize or stop them",
        description="List or control workers that were started with `semel run --health`.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = ("ls", "pause", "resume", "concurrency", "stop")
    parser.add_argument("action", nargs="?", default="ls", choices=actions, help="what to do (default ls)")
    parser.add_argument("value", nargs="?", type=int, metavar="N", help="messages at a time, per process (concurrency)")
    parser.add_argument("--queue", metavar="NAME", help="only this queue (default: all queues of a worker)")
    parser.add_argument(
        "--worker",
        action="append",
        default=[],
        metavar="ID|HOST:PORT",
        help="only this worker: its id, or the address of its health endpoint; may be repeated",
    )
    add_control_token(parser)
    parser.add_argument("--all", action="store_true", help="with stop: stop all workers")
    parser.add_argument("--json", action="store_true", help="print the whole answers as JSON")
    parser.set_defaults(run=run)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one worker answered; `error`: why it did not."""

    worker: str
    url: str
    answer: dict[str, Any] | None = None
    error: str = ""


def run(given: argparse.Namespace) -> int:
    from semel.state_folder import state_folder
    from semel.telemetry.control import Command

    if given.action != "ls":  # what is wrong with it is said before any worker is asked
        if given.action == "concurrency" and given.value is None:
            raise UsageError("concurrency needs a number: semel workers concurrency 8")
        with wrong_usage():
            Command.read({"action": given.action, "queue": given.queue, "value": given.value})
    elif given.value is not None:
        raise UsageError(f"only concurrency takes a number: semel workers concurrency {given.value}")
    if given.action == "stop" and not given.worker and not given.all:
        raise UsageError("name the worker with --worker, or use --all")
    chosen = _chosen(given.worker, state_folder())
    log = _Log(given) if given.action != "ls" else None
    if log is not None:
        log.begun([worker for worker, _ in chosen])
    answers = _ask_all(given, chosen)
    if log is not None:
        log.ended(answers)
    if given.json:
        shown = [one.answer or {"id": one.worker, "url": one.url, "error": one.error} for one in answers]
        print(json.dumps(shown, indent=2))
    else:
        for one in answers:
            print(_listed(one, given.queue) if given.action == "ls" else f"{one.worker}: {_outcome(one)}")
    return 1 if any(answer.error for answer in answers) else 0


def _chosen(wanted: Sequence[str], folder: Path) -> list[tuple[str, str]]:
    """(id, URL) of each chosen worker."""
    from semel.telemetry import worker_registry as registry

    known = {entry.id: entry.url for entry in registry.workers(folder)}
    if not wanted:
        if not known:
            raise SemelError(
                "no worker with a health endpoint was found for this user on this machine: start one with "
                "`semel run APP --health 0`, or name one: --worker HOST:PORT"
            )
        return list(known.items())
    found = []
    for name in wanted:
        if name in known:
            found.append((name, known[name]))
        elif name.rpartition(":")[2].isdigit():
            found.append((name, _url(name)))
        else:
            raise SemelError(f"there is no worker {name!r}; known are {', '.join(known) or 'none'}; or give HOST:PORT")
    return found


def _url(address: str) -> str:
    if "://" in address:
        return address
    host, _, port = address.rpartition(":")
    return f"http://{host or '127.0.0.1'}:{port}"


def _ask_all(given: argparse.Namespace, chosen: Sequence[tuple[str, str]]) -> list[_Answer]:
    """Side by side, on threads that nobody waits for after a Ctrl-C."""
    answers: dict[int, _Answer] = {}

    def ask(place: int) -> None:
        answers[place] = _ask(given, *chosen[place])

    threads = [threading.Thread(target=ask, args=(place,), daemon=True) for place in range(len(chosen))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [answers[place] for place in range(len(chosen))]


def _ask(given: argparse.Namespace, worker: str, url: str) -> _Answer:
    from semel.telemetry import worker_client

    try:
        if given.action == "ls":
            return _Answer(worker, url, worker_client.get_worker(url, token=given.control_token))
        command = {"queue": given.queue, "value": given.value, "token": given.control_token}
        return _Answer(worker, url, worker_client.send_command(url, given.action, **command))
    except SemelError as error:
        return _Answer(worker, url, error=str(error))


def _outcome(one: _Answer) -> str:
    return one.error or str((one.answer or {}).get("done", "done"))


class _Log:
    """The audit log: what cannot be written there is not done."""

    def __init__(self, given: argparse.Namespace) -> None:
        from semel.dlq.audit import Audit, somebody
        from semel.state_folder import state_folder

        self._log, self._who, self._given = Audit.at(state_folder()), somebody(), given

    def begun(self, workers: Sequence[str]) -> None:
        for worker in workers:
            self._log.write(self._who, outcome="begun", **self._of(worker))

    def ended(self, answers: Sequence[_Answer]) -> None:
        for one in answers:
            outcome = f"failed: {one.error}" if one.error else f"done: {_outcome(one)}"
            if problem := self._log.add(self._who, outcome=outcome, **self._of(one.worker)):
                print(f"semel workers: {problem}", file=sys.stderr)

    def _of(self, worker: str) -> dict[str, Any]:
        given = self._given
        details = {"worker": worker, "value": "" if given.value is None else str(given.value)}
        return {"action": f"{given.action} worker", "queue": given.queue or "", "details": details}


def _listed(one: _Answer, only: str | None) -> str:
    if one.answer is None:
        return f"{one.worker}: {one.error}"
    found = one.answer
    up = _span(time.time() - float(found["started"]))
    lines = [f"{found['id']}  {found['app']}  pid {found['pid']}, {found['processes']} processes, up {up}"]
    for name, queue in sorted(found["queues"].items()):
        if only is not None and name != only:
            continue
        state = "paused" if queue["paused"] else f"concurrency {queue['concurrency']}"
        lines.append(f"  {name}: {state}, {queue['in_progress']} in progress")
        lines += [
            f"    {message['message_id']}  {message['state']} for {_span(message['since'])}, attempt "
            f"{message['attempt']}, heartbeat {_span(message['heartbeat_age'])} ago, key {message['key']!r}"
            for message in queue["messages"][:10]
        ]
        if queue["in_progress"] > 10:
            lines.append(f"    … and {queue['in_progress'] - 10:,} more: --json shows up to 1,000, the longest first")
    return "\n".join(lines)


def _span(seconds: float) -> str:
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 7_200 else f"{whole // 3_600} h"
