"""`semel dlq redrive`, `drop`, `restore` and `edit`: what changes something, followed on the terminal to its end."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from semel.cli import dlq_options as options
from semel.cli import dlq_text as text
from semel.cli.dlq_options import command, printed, tell_cost
from semel.cli.errors import UsageError
from semel.cli.following import follow, summary
from semel.cli.options import ledger_url, some_text
from semel.errors import SemelError

if TYPE_CHECKING:
    from semel.cli.dlq_options import AnyService
    from semel.dlq.edit import Key, Wanted
    from semel.dlq.jobs import Job
    from semel.dlq.messages import DeadLetterMessage, DeadLetterQueue, Impact

_CODES: Final = """\
exit codes:
  0    done
  1    failed, or stopped because too much came back
  2    wrong usage
{canary}  130  cancelled with Ctrl-C; what was in progress is back in the queue
"""
_CANARY: Final = """\
  4    stopped by the canary: the first messages failed again, the rest is
       where it was
"""
_SHOWN: Final = 5  # groups


def add_to(actions: Any, where: Any) -> None:
    _add_redrive(actions, where)
    _add_edit(actions, where)
    _add_drop(actions, where)
    _add_restore(actions, where)


def finished(service: AnyService, job: Job, given: argparse.Namespace) -> int:
    """Follows the job to its end, tells it, and returns the exit code."""
    from semel.dlq.jobs import State

    job = follow(service, job, quiet=given.quiet)
    if given.json:
        printed(job.to_json())
    else:
        print(summary(job))
    if job.state is State.DONE:
        return 0
    if job.reason and given.quiet:
        print(f"semel dlq {job.kind}: {text.plain(job.reason)}", file=sys.stderr)
    if job.state is State.CANCELLED:
        return options.INTERRUPTED
    return options.CANARY if job.result.get("stopped_by") == "canary" else options.FAILED


# redrive


def _add_redrive(actions: Any, where: Any) -> None:
    parser = command(
        actions,
        "redrive",
        _redrive,
        where,
        help="send letters back to work, once",
        description="Send letters back to the queue that each came from, with the key that it had: the ledger still "
        "knows what was done, so nothing is done twice. Sent before deleted; a crash loses nothing, run it again.",
        examples="  semel dlq redrive orders-dlq --all --dry-run\n"
        "  semel dlq redrive orders-dlq --where 'error ~ timeout' --canary 5 --rate 50\n"
        "  semel dlq redrive orders-dlq --id 6d2f0c1a-… --to orders-slow\n"
        "  semel dlq redrive orders-dlq --all --limit 100 --stop-after 1",
        codes=_CODES.format(canary=_CANARY),
        more=options.FILTERS,
    )
    parser.add_argument("queue", metavar="QUEUE", help="the dead-letter queue")
    options.add_selection(parser, limit=True)
    group = parser.add_argument_group("how")
    group.add_argument("--to", type=some_text, metavar="QUEUE", help="all to this queue (each to where it came from)")
    group.add_argument("--dry-run", action="store_true", help="count what matches and touch nothing")
    group.add_argument("--rate", type=float, metavar="N", help="at most so many a second")
    group.add_argument(
        "--canary",
        nargs="?",
        type=options.at_least(1),
        const=3,
        default=0,
        metavar="N",
        help="so many first (3), the rest only if they succeed",
    )
    group.add_argument("--canary-wait", type=options.span, metavar="TIME", help="how long their fate is awaited")
    group.add_argument(
        "--stop-after", type=options.at_least(0), metavar="N", help="end when so many came back (10 or 5 %%; 0: never)"
    )
    group.add_argument(
        "--ledger", type=ledger_url, metavar="URL", help="the workers' ledger: knows the canary's fate also on SQS"
    )
    group.add_argument(
        "--engine",
        choices=("stream", "sqs-move"),
        default="stream",
        help="sqs-move: SQS's own task, with --all and --rate only; it does not stop when messages come back",
    )
    group.add_argument("--threads", type=options.at_least(1), default=4, metavar="N", help="for sending (4)")
    options.add_receive(group)
    _outputs(parser)


def _outputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="no progress on standard error")
    parser.add_argument("--json", action="store_true", help="the job at its end, as JSON")


def _redrive(given: argparse.Namespace) -> int:
    from semel.dlq.filter import parser as filters
    from semel.dlq.redrive.plan import Engine, RedrivePlan

    filters.parse(given.where or "")
    plan = RedrivePlan(
        queue=given.queue,
        where=given.where or "",
        ids=tuple(given.id or ()),
        all=given.all,
        any_queue=given.any_queue,
        limit=given.limit,
        to=given.to or "",
        rate=given.rate,
        dry_run=given.dry_run,
        canary=given.canary,
        canary_wait=given.canary_wait,
        stop_after_failures=given.stop_after,
        engine=Engine(given.engine),
        threads=given.threads,
    )
    with options.service(given) as service:
        info = options.dead_letter_queue(service, given)
        if not given.quiet:
            to = f" to {given.to}" if given.to else ""
            print(f"redrive of {text.plain(_meant(info, given) + to)}\n  at {service.address(info)}", file=sys.stderr)
        return finished(service, service.redrive(plan, receive=bool(getattr(given, "receive", False))), given)


def _meant(info: DeadLetterQueue, given: argparse.Namespace) -> str:
    """Which messages, in words, as far as that is known without looking."""
    if given.id:
        found = f"{len(given.id):,} by id, of {info.depth:,} messages in {info.name}"
    elif given.where:
        found = f"what matches, of {info.depth:,} messages in {info.name}"
    else:
        found = f"all {info.depth:,} messages in {info.name}"
    return f"{found}, {given.limit:,} at most" if getattr(given, "limit", None) else found


# drop


def _add_drop(actions: Any, where: Any) -> None:
    parser = command(
        actions,
        "drop",
        _drop,
        where,
        help="delete letters, after a snapshot",
        description="Delete letters. What would go is shown first, and the queue's name must be typed; nothing that "
        "was not shown is deleted. Each letter is in a snapshot on disk before it is deleted: semel dlq restore brings "
        "it back.",
        examples="  semel dlq drop orders-dlq --where 'age > 7d'\n"
        "  semel dlq drop orders-dlq --where 'age > 7d' --yes --snapshot gone.jsonl",
        codes=_CODES.format(canary=""),
        more=options.FILTERS,
    )
    parser.add_argument("queue", metavar="QUEUE", help="the dead-letter queue")
    options.add_selection(parser)
    parser.add_argument("--snapshot", type=_file, metavar="FILE", help="where to keep them (the state folder)")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    options.add_receive(parser)
    _outputs(parser)


def _file(name: str) -> Path:
    return Path(some_text(name))


def _drop(given: argparse.Namespace) -> int:
    _check_terminal(given, "drop")
    chosen = options.selection(given)
    with options.service(given) as service:
        info = options.dead_letter_queue(service, given)
        impact: Impact | None = None
        if not given.yes or service.remote:
            impact = service.impact(given.queue, receive=bool(getattr(given, "receive", False)), **chosen)
            if not impact.count:
                print(f"none of the {impact.looked_at:,} messages in {info.name} match; nothing was dropped")
                return 0
        if given.yes or impact is None:
            if not given.quiet:
                which = _meant(info, given) if impact is None else f"{impact.count:,} messages in {info.name}"
                print(f"drop of {text.plain(which)}\n  at {service.address(info)}", file=sys.stderr)
        else:
            _show_impact(impact, info, service.address(info))
            if _asked(f"Type {info.name} to drop them: ").strip() != info.name:
                print("that is not its name; nothing was dropped")
                return options.FAILED
        shown = None if impact is None else impact.shown
        job = service.delete(
            given.queue,
            snapshot=given.snapshot,
            shown=shown,
            any_queue=given.any_queue,
            receive=bool(getattr(given, "receive", False)),
            **chosen,
        )
        code = finished(service, job, given)
        if impact is not None and not impact.complete:
            print("note: not all messages could be looked at; those that were not looked at stay", file=sys.stderr)
        return code


def _check_terminal(given: argparse.Namespace, what: str) -> None:
    """What is asked, is asked at a terminal; where there is none, nothing is done without --yes."""
    if not given.yes and not sys.stdin.isatty():
        raise UsageError(f"there is no terminal to confirm at: add --yes to {what} without being asked")


def _show_impact(impact: Impact, info: DeadLetterQueue, address: str) -> None:
    now = time.time()
    print(text.groups(impact.groups[:_SHOWN], now))
    if len(impact.groups) > _SHOWN:
        print(f"and {len(impact.groups) - _SHOWN} more kinds of errors")
    oldest, newest = (now - (at or now) for at in (impact.oldest, impact.newest))
    print(f"\ndrop {impact.count:,} messages in {info.name}, {text.span(newest)} to {text.span(oldest)} old")
    print(f"  at {address}")
    if not impact.complete:
        print("  not all could be looked at: those that were not stay")
    tell_cost(impact.cost, impact.notes)


def _asked(question: str) -> str:
    """What is typed; the end of the input is no answer."""
    try:
        return input(question)
    except EOFError:
        print()
        return ""


# restore


def _add_restore(actions: Any, where: Any) -> None:
    parser = command(
        actions,
        "restore",
        _restore,
        where,
        help="bring dropped letters back",
        description="Send the letters of a snapshot or an export back into their dead-letter queue, with their keys "
        "and attributes. A second run sends only what the first did not.",
        examples="  semel dlq restore gone.jsonl\n  semel dlq restore letters.jsonl --to orders-dlq",
    )
    parser.add_argument("file", metavar="FILE", help="as `drop` or `export` wrote it")
    parser.add_argument("--to", type=some_text, metavar="QUEUE", help="into this queue (the one that they were in)")
    _outputs(parser)


def _restore(given: argparse.Namespace) -> int:
    path = Path(given.file)
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    with options.service(given) as service:
        if not given.quiet:
            for name, count in _in_file(path, given.to or "").items():
                print(f"restore of {count:,} messages into {text.plain(name)}", file=sys.stderr)
                print(f"  at {service.address(service.queue(name))}", file=sys.stderr)
        return finished(service, service.restore(path, given.to or ""), given)


def _in_file(path: Path, to: str) -> Counter[str]:
    """How many messages would go to which queue."""
    from semel.dlq import snapshots

    return Counter(to or message.queue for message in snapshots.messages_in(path))


# edit


def _add_edit(actions: Any, where: Any) -> None:
    parser = command(
        actions,
        "edit",
        _edit,
        where,
        help="change a copy of a letter and send it",
        description="Open a letter as JSON in $VISUAL or $EDITOR; what is saved is sent to the queue that it came "
        "from, and the letter is deleted. The copy keeps the letter's key unless --new-key is given.",
        examples="  semel dlq edit orders-dlq 6d2f0c1a-…\n"
        "  semel dlq edit orders-dlq 6d2f0c1a-… --body fixed.json --yes\n"
        "  semel dlq edit orders-dlq 6d2f0c1a-… --new-key auto",
    )
    parser.add_argument("queue", metavar="QUEUE", help="the dead-letter queue")
    parser.add_argument("id", type=some_text, metavar="ID", help="the message id of the letter")
    parser.add_argument("--to", type=some_text, metavar="QUEUE", help="send it to this queue")
    parser.add_argument("--new-key", metavar="KEY", help="a key of its own; `auto` makes one up")
    parser.add_argument(
        "--body", metavar="FILE", help="take the body from here and open no editor; - is standard input"
    )
    parser.add_argument("--group", metavar="GROUP", help="another message group")
    parser.add_argument(
        "--ledger", type=ledger_url, metavar="URL", help="the workers' ledger: says whether the copy would run"
    )
    options.add_any_queue(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask before sending")
    options.add_receive(parser)
    parser.add_argument("--json", action="store_true", help="what was sent, as JSON")


def _edit(given: argparse.Namespace) -> int:
    from dataclasses import asdict

    from semel.dlq.edit import Key, Wanted

    key: str | Key = Key.KEEP if given.new_key is None else Key.NEW if given.new_key == "auto" else given.new_key
    _check_terminal(given, "send")
    with options.service(given) as service, _Draft() as draft:
        info = options.dead_letter_queue(service, given)
        message = service.message(given.queue, given.id, receive=bool(getattr(given, "receive", False)))
        if given.body is not None:
            wanted: Wanted | None = Wanted(_body(given.body), None, given.group, key, given.to or "")
        else:
            wanted = _edited(message, key, given, draft)
        if wanted is None:
            print("nothing was changed, and nothing was sent")
            return 0
        to = wanted.to or given.to or ""
        if not given.yes:
            target = text.plain(to or message.source or "its queue")
            print(f"changed: {', '.join(wanted.changed) or 'nothing'}; key: {text.plain(_key_told(message, key))}")
            print(f"send 1 message to {target}, and delete it from {info.name}\n  at {service.address(info)}")
            if _asked(f"Send it to {target}? [y/N] ").strip().lower() not in ("y", "yes"):
                print("nothing was sent")
                return options.FAILED
        resent = service.resend(
            given.queue,
            message.id,
            body=wanted.body,
            attributes=wanted.attributes,
            group=given.group if given.group is not None else wanted.group,
            key=key,
            to=to,
            any_queue=given.any_queue,
            receive=bool(getattr(given, "receive", False)),
        )
        draft.used = True
    if given.json:
        printed(asdict(resent))
    else:
        print(f"sent to {resent.queue} as {resent.message_id}" + (f", key {resent.key}" if resent.key else ""))
    for note in resent.notes:
        print(f"note: {text.plain(note)}", file=sys.stderr)
    return 0 if resent.deleted else options.FAILED


def _key_told(message: DeadLetterMessage, key: str | Key) -> str:
    if isinstance(key, str):
        return f"{key} (new)"
    return "a new one" if key.value == "new" else f"{message.key or 'none'} (kept)"


def _body(file: str) -> str:
    try:
        content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return content.decode()
    except OSError as error:
        raise UsageError(f"--body {file}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"--body {file}: it is no UTF-8: {error.reason} at byte {error.start}") from None


class _Draft:
    """The editor's file. It is removed once it was sent, or if nothing was changed in it; else it stays, and the user
    is told its path."""

    def __init__(self) -> None:
        self.used = False
        self._path: Path | None = None
        self._before = ""

    def open(self, message: DeadLetterMessage, content: str) -> Path:
        handle, name = tempfile.mkstemp(prefix=f"semel-{message.id[:8]}-", suffix=".json")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content)
        self._path, self._before = Path(name), content
        return self._path

    def __enter__(self) -> _Draft:
        return self

    def __exit__(self, *_: object) -> None:
        if self._path is None:
            return
        with contextlib.suppress(OSError):  # it is gone already
            content = self._path.read_bytes()
            if self.used or content in (b"", self._before.encode()):
                self._path.unlink()
            else:
                print(f"note: what you wrote is in {self._path}", file=sys.stderr)


def _edited(message: DeadLetterMessage, key: str | Key, given: argparse.Namespace, draft: _Draft) -> Wanted | None:
    """Opens the editor, again and again while what was saved cannot be read and somebody wants to mend it."""
    from semel.dlq.edit import EditError, document, read_document

    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    to = given.to or ""
    path = draft.open(message, document(message, to))
    while True:
        _run_editor(editor, path)
        try:
            return read_document(path.read_text(encoding="utf-8"), message, key, to)
        except (EditError, UnicodeDecodeError) as error:
            again = sys.stdin.isatty() and not given.yes
            if not again or _asked(f"{error}\nOpen it again? [y/N] ").strip().lower() not in ("y", "yes"):
                raise EditError(f"message {message.id}: {error}; nothing was sent") from None


def _run_editor(editor: str, path: Path) -> None:
    try:
        code = subprocess.run([*shlex.split(editor), str(path)], check=False).returncode
    except (OSError, ValueError) as error:
        raise SemelError(f"the editor {editor!r} cannot be started: {error}; set EDITOR, or use --body FILE") from None
    if code:
        raise SemelError(f"the editor {editor!r} ended with {code}; nothing was sent")
