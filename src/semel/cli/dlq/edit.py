"""`semel dlq edit`: opens a message as JSON in an editor, and sends it as a copy. The text is kept until it is sent."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semel.cli import confirmation, options, output
from semel.cli.command import ExitCode, UsageError, command, option
from semel.cli.dlq import selection
from semel.cli.service import add_places, open_service
from semel.errors import SemelError

if TYPE_CHECKING:
    from semel.dlq.edit import Key, Wanted
    from semel.dlq.messages import DeadLetterMessage


def add_to(actions: Any) -> None:
    parser = command(
        actions,
        "edit",
        _edit,
        "edit a copy of a message and send it",
        description="""Open a message as JSON in $VISUAL or $EDITOR. What you save is sent to its source queue, and the
        message is deleted. The copy keeps the key of the message unless --new-key is given. If the copy is not sent,
        what you wrote is kept: --file sends it later.""",
        examples="""
        semel dlq edit orders-dlq 6d2f0c1a-…
        semel dlq edit orders-dlq 6d2f0c1a-… --body fixed.json --yes
        semel dlq edit orders-dlq 6d2f0c1a-… --new-key auto
        """,
        codes={ExitCode.FAILED: "failed, or not confirmed", ExitCode.INTERRUPTED: "interrupted with Ctrl-C"},
    )
    options.add_queue(parser)
    parser.add_argument("id", type=options.some_text, metavar="ID", help="the message id")
    option(parser, "--to QUEUE", "send the copy to this queue (default: the message's source queue)", env="never")
    option(parser, "--new-key KEY", "a new key for the copy; `auto` generates one", env="never")
    source = parser.add_mutually_exclusive_group()
    option(source, "--body FILE", "take the body from this file, without an editor; - is standard input", env="never")
    option(source, "--file FILE", "send the document that an earlier edit kept, without an editor", env="never")
    option(parser, "--group GROUP", "message group of the copy (default: that of the message)", env="never")
    options.add_ledger(parser)
    options.add(parser, "--any-queue", "--yes", "--receive")
    add_places(parser)
    options.add_output(parser)


def _edit(args: argparse.Namespace) -> int:
    from semel.dlq.edit import Key

    key: str | Key = Key.KEEP if args.new_key is None else Key.NEW if args.new_key == "auto" else args.new_key
    confirmation.check_terminal(args, "send")
    with _Draft(args) as draft, open_service(args) as service:
        info = selection.dead_letter_queue(service, args)
        message = service.message(args.queue, args.id, receive=args.receive)
        wanted = _wanted(message, key, args, draft)
        if wanted is None:
            print("nothing was changed, and nothing was sent")
            return ExitCode.OK
        to = wanted.to or args.to or ""
        if not args.yes:
            target = output.one_line(to or message.source or "its source queue")
            print(f"changed: {', '.join(wanted.changed) or 'nothing'}; key: {output.one_line(_key_text(message, key))}")
            print(f"send 1 message to {target}, and delete it from {info.name}\n  at {service.address(info)}")
            if not confirmation.agreed(f"Send it to {target}?"):
                print("nothing was sent")
                return ExitCode.FAILED
        resent = service.resend(
            args.queue,
            message.id,
            body=wanted.body,
            attributes=wanted.attributes,
            group=args.group if args.group is not None else wanted.group,
            key=key,
            to=to,
            any_queue=args.any_queue,
            receive=args.receive,
        )
        draft.sent = True
    with_key = f", key {output.one_line(resent.key)}" if resent.key else ""
    output.show(args, resent, lambda: f"sent to {resent.queue} as {resent.message_id}{with_key}")
    output.notes(*resent.notes)
    return ExitCode.OK if resent.deleted else ExitCode.FAILED


def _key_text(message: DeadLetterMessage, key: str | Key) -> str:
    if isinstance(key, str):
        return f"{key} (new)"
    return "a new one" if key.value == "new" else f"{message.key or 'none'} (kept)"


def _wanted(message: DeadLetterMessage, key: str | Key, args: argparse.Namespace, draft: _Draft) -> Wanted | None:
    """What the copy changes; None if nothing."""
    from semel.dlq.edit import EditError, Wanted, read_document

    to = args.to or ""
    if args.body is not None:
        return Wanted(_content("--body", args.body), None, args.group, key, to)
    if args.file is None:
        return _edited(message, key, args, draft)
    try:
        return read_document(_content("--file", args.file), message, key, to)
    except EditError as error:
        raise EditError(f"--file {args.file}: {error}; nothing was sent") from None


def _content(name: str, file: str) -> str:
    try:
        content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return content.decode()
    except OSError as error:
        raise UsageError(f"{name} {file}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} {file}: it is not UTF-8: {error.reason} at byte {error.start}") from None


class _Draft:
    """The file for the editor. It is removed if its text was sent or not changed. Otherwise it is kept, however the
    command ends, and the command that sends it is printed."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.sent = False
        self._args = args
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
        with contextlib.suppress(OSError):  # the user has removed it
            content = self._path.read_bytes()
            if self.sent or content in (b"", self._before.encode()):
                self._path.unlink()
            else:
                print(f"what you wrote is kept in {self._path}; to send it:", file=sys.stderr)
                print(f"  {shlex.join(self._command())}", file=sys.stderr)

    def _command(self) -> list[str]:
        args, words = self._args, ["semel", "dlq", "edit", self._args.queue, self._args.id]
        words += ["--file", str(self._path)]
        for name in ("to", "new_key", "group", "ledger", "endpoint_url", "region", "profile", "dashboard"):
            value = getattr(args, name)
            if value and name not in args.environment:
                words += [f"--{name.replace('_', '-')}", value]
        return words


def _edited(message: DeadLetterMessage, key: str | Key, args: argparse.Namespace, draft: _Draft) -> Wanted | None:
    """Opens the editor. If the saved text is not valid and the user wants to correct it, opens the editor again."""
    from semel.dlq.edit import EditError, document, read_document

    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    to = args.to or ""
    path = draft.open(message, document(message, to))
    while True:
        _run_editor(editor, path)
        try:
            return read_document(path.read_text(encoding="utf-8"), message, key, to)
        except (EditError, UnicodeDecodeError) as error:
            again = sys.stdin.isatty() and not args.yes
            if not again or not confirmation.agreed(f"{output.one_line(str(error))}\nOpen the editor again?"):
                raise EditError(f"message {message.id}: {error}; nothing was sent") from None


def _run_editor(editor: str, path: Path) -> None:
    try:
        code = subprocess.run([*shlex.split(editor), str(path)], check=False).returncode
    except (OSError, ValueError) as error:
        raise SemelError(f"the editor {editor!r} cannot be started: {error}; set EDITOR, or use --body FILE") from None
    if code:
        raise SemelError(f"the editor {editor!r} exited with {code}; nothing was sent")
