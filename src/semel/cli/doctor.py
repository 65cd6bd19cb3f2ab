"""`semel doctor`: what goes wrong with queues, why, and the cure; from logs, settings and metrics."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from semel.cli import doctor_options as options
from semel.cli.errors import UsageError
from semel.cli.progress import Progress
from semel.errors import SemelError
from semel.extras import require
from semel.signals import SignalNotifier

if TYPE_CHECKING:
    from semel.doctor.diagnosis import Request
    from semel.doctor.model import Diagnosis, Severity

FOUND: Final = 1
COULD_NOT_LOOK: Final = 3
_FILE_WIDTH: Final = 100

_EXAMPLES = """\
examples:
  semel doctor --sample                            try it, on a log of ours
  semel doctor --log /var/log/semel/attempts       from Semel's attempt log
  semel doctor --log s3://logs/attempts --from 1d --queue orders payments
  semel doctor --log app.jsonl --visibility 30s    from your own log
  semel doctor --log app.jsonl --map id=.msg.id,time=.ts,event=.event
                                                   if the guess is wrong
  semel doctor --queue orders --fail-on critical   settings only
  semel doctor --log attempts --format html --output report.html
  semel doctor --log attempts --watch              findings as they become true
  semel doctor --list-rules

exit codes:
  0  nothing was found at or above --fail-on
  1  something was: warnings too, unless --fail-on critical or never says
     otherwise, as a warning is what costs time or money now, or will; notes
     (info) do not count unless asked for
  2  wrong usage
  3  could not look: no access, no such file, no event in it, a package that
     is not installed (the reason is on standard error)
  130  stopped by Ctrl-C
"""


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="find duplicates, their cause and the cure",
        description="Find what is wrong with queues and their consumers, why, and what cures it.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_inputs(parser)
    options.add_places(parser)
    many: dict[str, Any] = {"action": "extend", "nargs": "+", "default": [], "metavar": "RULE"}
    parser.add_argument("--rule", help="only these rules", **many)
    parser.add_argument("--ignore", help="not these rules", **many)
    parser.add_argument("--list-rules", action="store_true", help="say which rules there are, and exit")
    parser.add_argument("--format", choices=options.FORMATS, default="text", help="of the report (text)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the report here (standard output)")
    parser.add_argument("--fail-on", choices=options.LEVELS, default="warning", help="when to exit with 1 (warning)")
    parser.add_argument("--verbose", action="store_true", help="with evidence, commands and all findings")
    parser.add_argument("--quiet", action="store_true", help="no progress on standard error")
    parser.add_argument("--watch", action="store_true", help="go on, and report what changes, until it is stopped")
    parser.add_argument("--interval", default="10s", metavar="TIME", help="with --watch: how often to look (10s)")
    parser.add_argument("--window", default="1h", metavar="TIME", help="with --watch: how far back (1h)")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    try:
        return _list_rules(as_json=given.format == "json") if given.list_rules else _work(given)
    except UsageError:
        raise
    except SemelError as error:
        print(f"semel doctor: {error}", file=sys.stderr)
    except Exception as error:  # noqa: BLE001 - Python would exit with 1, and that means "found"
        _report_bug(error, verbose=given.verbose)
    return COULD_NOT_LOOK


def _report_bug(error: Exception, *, verbose: bool) -> None:
    if verbose:
        traceback.print_exc()
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason is given")
    more = "" if verbose else " --verbose shows where."
    print(f"semel doctor: unexpected {type(error).__name__}: {reason[:300]}. This is a bug.{more}", file=sys.stderr)


def _work(given: argparse.Namespace) -> int:
    command = options.use_sample(given) if given.sample else None
    wanted = options.request(given, time.time())
    _check_output(given)
    interval, window = (options.span(f"--{one}", getattr(given, one)) for one in ("interval", "window"))
    renderer = {"text": ["rich"], "html": ["jinja2"], "json": []}[given.format]
    require("semel doctor", *(["duckdb"] if wanted.logs else []), *renderer, extra="doctor")
    if command and not given.quiet:
        print(f"semel doctor: --sample stands for\n{command}", file=sys.stderr)
    return _watch(given, wanted, interval, window) if given.watch else _diagnose(given, wanted)


def _diagnose(given: argparse.Namespace, wanted: Request) -> int:
    from semel.doctor.diagnosis import diagnose

    with Progress("semel doctor", quiet=given.quiet) as progress:
        diagnosis = diagnose(wanted, say=progress.say)
    _deliver(_rendered(diagnosis, given), given.output)
    return _code(diagnosis.worst, given.fail_on)


def _rendered(diagnosis: Diagnosis, given: argparse.Namespace) -> str:
    if given.format == "json":
        from semel.doctor.report import json as as_json

        return as_json.render(diagnosis)
    if given.format == "html":
        from semel.doctor.report import html

        return html.render(diagnosis)
    from semel.doctor.report import text
    from semel.doctor.report.words import ascii_only

    on_screen = given.output is None and sys.stdout.isatty()
    size = shutil.get_terminal_size() if on_screen else os.terminal_size((_FILE_WIDTH, 0))
    report = text.render(
        diagnosis,
        width=size.columns,
        height=size.lines if on_screen else None,
        colour=on_screen and _colour(),
        verbose=given.verbose,
    )
    knows_unicode = given.output is not None or "utf" in (sys.stdout.encoding or "").lower()
    return report if knows_unicode else "\n".join(map(ascii_only, report.split("\n")))


def _colour() -> bool:
    """https://no-color.org"""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _deliver(report: str, output: Path | None) -> None:
    if output is not None:
        beside = output.with_name(f".{output.name}.part")  # nobody sees half a report
        try:
            beside.write_text(report, encoding="utf-8")
            beside.replace(output)
        except OSError as error:
            raise SemelError(f"--output {output}: cannot be written: {error.strerror}") from None
        return
    try:
        sys.stdout.buffer.write(report.encode("utf-8"))
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # whoever read it has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _code(worst: Severity | None, fail_on: str) -> int:
    from semel.doctor.model import Severity

    return FOUND if worst is not None and fail_on != "never" and worst >= Severity[fail_on.upper()] else 0


def _watch(given: argparse.Namespace, wanted: Request, interval: float, window: float) -> int:
    from semel.doctor import diagnosis
    from semel.doctor.report import changes

    open_now: changes.Open = {}
    lines = given.output.open("a", encoding="utf-8") if given.output and given.format != "html" else sys.stdout

    def on_diagnosis(latest: Diagnosis) -> None:
        nonlocal open_now
        if given.format == "html":
            _deliver(_rendered(latest, given), given.output)
        for change in changes.since(open_now, latest):
            if given.format == "json":
                progress.above(changes.as_line(change), lines)
            else:
                target = sys.stderr if given.format == "html" else lines
                width = shutil.get_terminal_size().columns if target.isatty() else _FILE_WIDTH
                progress.above(changes.as_text(change, width=width, colour=target.isatty() and _colour()), target)
        open_now = changes.opened(latest)

    with Progress("semel doctor", quiet=given.quiet) as progress, _set_by_sigterm() as stop:
        diagnosis.watch(
            wanted, interval=interval, window=window, on_diagnosis=on_diagnosis, say=progress.say, stop=stop
        )
    if lines is not sys.stdout:
        lines.close()
    return _code(changes.worst(open_now), given.fail_on)


@contextmanager
def _set_by_sigterm() -> Iterator[threading.Event]:
    """SIGTERM ends the watch after the examination under way; Ctrl-C ends it at once."""
    stop = threading.Event()
    notifier = SignalNotifier(stop.set)
    before = signal.signal(signal.SIGTERM, lambda _number, _frame: notifier.notify())
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)
        notifier.close()


def _check_output(given: argparse.Namespace) -> None:
    """Before the work, not after it."""
    if given.watch and given.format == "html" and given.output is None:
        raise UsageError("--watch --format html needs --output FILE, which it writes again at each look")
    if given.output is None:
        return
    if given.output.is_dir():
        raise UsageError(f"--output {given.output} is a folder; a file is needed")
    folder = given.output.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"--output {given.output}: the folder {folder} is not there, or not writable")


def _list_rules(*, as_json: bool) -> int:
    from semel.doctor import rules

    if as_json:
        known = [
            {"rule": one.name, "severity": one.severity.word, "title": one.title, "needs": one.needs}
            for one in rules.ALL
        ]
        print(json.dumps(known, indent=2))
        return 0
    widest = max(len(one.name) for one in rules.ALL)
    for one in rules.ALL:
        print(f"{one.severity.word:<10}{one.name:<{widest}}  {one.title} (needs {one.needs})")
    return 0
