"""`semel workers`: who works on what, and telling them to pause, resume, take more or fewer at a time, or stop."""

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
  semel workers pause --queue orders         receive nothing more from orders;
                                             what is in progress goes on
  semel workers resume
  semel workers concurrency 8 --queue orders eight at a time, in each process
  semel workers stop --worker 10.0.0.5:8080  as SIGTERM does: what is in
                                             progress is finished first
  semel workers --json |
    jq '.[].queues.orders.messages[] | select(.since > 600)'

exit codes:
  0  done
  1  at least one worker did not answer, or would not
  2  wrong usage
"""


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "workers",
        help="see what workers do; pause, resume, resize or stop them",
        description="Ask the workers that `semel run --health` started, or tell them what to do.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = ("ls", "pause", "resume", "concurrency", "stop")
    parser.add_argument("action", nargs="?", default="ls", choices=actions, help="what to do (default ls)")
    parser.add_argument("value", nargs="?", type=int, metavar="N", help="with concurrency: so many at a time")
    parser.add_argument("--queue", metavar="NAME", help="only this queue; default: all queues of a worker")
    parser.add_argument(
        "--worker",
        action="append",
        default=[],
        metavar="ID|HOST:PORT",
        help="only this one: its id, or where its health endpoint is; may be repeated",
    )
    add_control_token(parser)
    parser.add_argument("--all", action="store_true", help="with stop: all of them")
    parser.add_argument("--json", action="store_true", help="print all that they say")
    parser.set_defaults(run=run)


@dataclass(frozen=True, slots=True)
class _Said:
    """What one worker answered; `error`: why it did not."""

    worker: str
    url: str
    answer: dict[str, Any] | None = None
    error: str = ""


def run(given: argparse.Namespace) -> int:
    from semel.state_folder import state_folder
    from semel.telemetry.control import Command

    if given.action != "ls":  # whatever is wrong with it is said before anybody is told
        if given.action == "concurrency" and given.value is None:
            raise UsageError("concurrency takes a number: semel workers concurrency 8")
        with wrong_usage():
            Command.read({"action": given.action, "queue": given.queue, "value": given.value})
    elif given.value is not None:
        raise UsageError(f"{given.value} is for concurrency: semel workers concurrency {given.value}")
    if given.action == "stop" and not given.worker and not given.all:
        raise UsageError("name the worker that is to stop with --worker, or say --all")
    chosen = _chosen(given.worker, state_folder())
    log = _Log(given) if given.action != "ls" else None
    if log is not None:
        log.begun([worker for worker, _ in chosen])
    said = _ask_all(given, chosen)
    if log is not None:
        log.ended(said)
    if given.json:
        shown = [one.answer or {"id": one.worker, "url": one.url, "error": one.error} for one in said]
        print(json.dumps(shown, indent=2))
    else:
        for one in said:
            print(_listed(one, given.queue) if given.action == "ls" else f"{one.worker}: {_outcome(one)}")
    return 1 if any(one.error for one in said) else 0


def _chosen(wanted: Sequence[str], folder: Path) -> list[tuple[str, str]]:
    """(id, URL) of each worker that is meant."""
    from semel.telemetry import worker_registry as registry

    known = {note.id: note.url for note in registry.workers(folder)}
    if not wanted:
        if not known:
            raise SemelError(
                "no worker of this user runs on this machine with a health endpoint: start one with "
                "`semel run APP --health 0`, or name it: --worker HOST:PORT"
            )
        return list(known.items())
    found = []
    for name in wanted:
        if name in known:
            found.append((name, known[name]))
        elif name.rpartition(":")[2].isdigit():
            found.append((name, _url(name)))
        else:
            raise SemelError(f"there is no worker {name!r}; there are {', '.join(known) or 'none'}, or give HOST:PORT")
    return found


def _url(address: str) -> str:
    if "://" in address:
        return address
    host, _, port = address.rpartition(":")
    return f"http://{host or '127.0.0.1'}:{port}"


def _ask_all(given: argparse.Namespace, chosen: Sequence[tuple[str, str]]) -> list[_Said]:
    """Side by side, on threads that nobody waits for after a Ctrl-C."""
    said: dict[int, _Said] = {}

    def ask(place: int) -> None:
        said[place] = _ask(given, *chosen[place])

    threads = [threading.Thread(target=ask, args=(place,), daemon=True) for place in range(len(chosen))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [said[place] for place in range(len(chosen))]


def _ask(given: argparse.Namespace, worker: str, url: str) -> _Said:
    from semel.telemetry import worker_client

    try:
        if given.action == "ls":
            return _Said(worker, url, worker_client.get_worker(url, token=given.control_token))
        command = {"queue": given.queue, "value": given.value, "token": given.control_token}
        return _Said(worker, url, worker_client.send_command(url, given.action, **command))
    except SemelError as error:
        return _Said(worker, url, error=str(error))


def _outcome(one: _Said) -> str:
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

    def ended(self, said: Sequence[_Said]) -> None:
        for one in said:
            outcome = f"failed: {one.error}" if one.error else f"done: {_outcome(one)}"
            if problem := self._log.add(self._who, outcome=outcome, **self._of(one.worker)):
                print(f"semel workers: {problem}", file=sys.stderr)

    def _of(self, worker: str) -> dict[str, Any]:
        given = self._given
        details = {"worker": worker, "value": "" if given.value is None else str(given.value)}
        return {"action": f"{given.action} worker", "queue": given.queue or "", "details": details}


def _listed(one: _Said, only: str | None) -> str:
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
