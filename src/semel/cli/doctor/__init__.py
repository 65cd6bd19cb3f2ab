"""`semel doctor`: what is wrong with queues, why, and the remedy; from logs, settings and metrics."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from semel.cli import options as common
from semel.cli import output
from semel.cli.command import ExitCode, UsageError, command, option
from semel.cli.doctor import options
from semel.cli.progress import Progress
from semel.errors import SemelError
from semel.extras import require
from semel.signals import OnSignals

if TYPE_CHECKING:
    from semel.doctor.diagnosis import Request
    from semel.doctor.model import Diagnosis, Severity

_FILE_WIDTH: Final = 100


def add_to(commands: Any) -> None:
    parser = command(
        commands,
        "doctor",
        run,
        "find duplicates and other problems, their cause and remedy",
        usage="semel doctor [OPTIONS]\n       semel doctor rules [-h] [--output FORMAT]",
        description="Find what is wrong with queues and their consumers, why, and what to do about it.",
        examples="""
            semel doctor --sample                            try it with a sample log
            semel doctor --log /var/log/semel/attempts       Semel's attempt log
            semel doctor --log s3://logs/attempts --since 1d --queue orders
            semel doctor --log app.jsonl --visibility 30s    your own log
            semel doctor --log app.jsonl --map id=.msg.id,time=.ts,event=.event
                                                             if the guess is wrong
            semel doctor --queue orders --fail-on critical   settings only
            semel doctor --log attempts --output html --report report.html
            semel doctor --log attempts --watch              findings as they arise
            semel doctor rules                               list the rules
        """,
        codes={
            ExitCode.OK: "nothing was found at or above --fail-on",
            ExitCode.FAILED: "could not examine: no access, no such file, no event in it, or a package is missing; the "
            "reason is on standard error",
            ExitCode.FOUND: "something was found at or above --fail-on",
        },
    )
    options.add_inputs(parser)
    options.add_places(parser)
    many: dict[str, Any] = {"action": "extend", "nargs": "+", "default": [], "type": str}
    option(parser, "--rule RULE", "only these rules", **many)
    option(parser, "--ignore RULE", "not these rules", **many)
    option(
        parser, "--output FORMAT", "format of the report: text, json or html", choices=options.FORMATS, default="text"
    )
    option(parser, "--report FILE", "write the report to FILE (default: standard output)", type=Path)
    option(
        parser,
        "--fail-on",
        "least severe finding that makes the exit code 3",
        choices=options.LEVELS,
        default="warning",
    )
    option(parser, "--verbose", "show evidence, commands and all findings")
    common.add(parser, "--quiet")
    option(parser, "--watch", "continue until stopped, and report changes of the findings")
    common.add_interval(parser, "10s", "with --watch: ")
    option(parser, "--window TIME", "with --watch: how far back to examine", type=common.duration, default="1h")
    # Not required: without a subcommand, the options run an examination.
    more = parser.add_subparsers(title="commands", prog="semel doctor", metavar="COMMAND")
    rules = command(
        more,
        "rules",
        list_rules,
        "list the rules",
        description="List the rules, their severity, and what they need.",
        examples="semel doctor rules --output json",
    )
    common.add_output(rules)


def run(args: argparse.Namespace) -> int:
    try:
        return _work(args)
    except UsageError:
        raise
    except SemelError as error:
        print(f"semel doctor: {output.printable(str(error))}", file=sys.stderr)
    except Exception as error:  # noqa: BLE001 - in one line, as any other error
        _report_bug(error, verbose=args.verbose)
    return ExitCode.FAILED


def _report_bug(error: Exception, *, verbose: bool) -> None:
    if verbose:
        traceback.print_exc()
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason is given")
    more = "" if verbose else " --verbose shows where."
    shown = output.one_line(reason[:300])
    print(f"semel doctor: unexpected {type(error).__name__}: {shown}. This is a bug.{more}", file=sys.stderr)


def _work(args: argparse.Namespace) -> int:
    command = options.use_sample(args) if args.sample else None
    wanted = options.request(args, time.time())
    _check_output(args)
    renderer = {"text": ["rich"], "html": ["jinja2"], "json": []}[args.output]
    require("semel doctor", *(["duckdb"] if wanted.logs else []), *renderer, extra="doctor")
    if command and not args.quiet:
        print(f"semel doctor: --sample stands for\n{command}", file=sys.stderr)
    return _watch(args, wanted) if args.watch else _diagnose(args, wanted)


def _diagnose(args: argparse.Namespace, wanted: Request) -> int:
    from semel.doctor.diagnosis import diagnose

    with Progress("semel doctor", quiet=args.quiet) as progress:
        diagnosis = diagnose(wanted, on_progress=progress.update)
    _deliver(_rendered(diagnosis, args), args.report)
    return _code(diagnosis.worst, args.fail_on)


def _rendered(diagnosis: Diagnosis, args: argparse.Namespace) -> str:
    if args.output == "json":
        from semel.doctor.report import json_report

        return json_report.render(diagnosis)
    if args.output == "html":
        from semel.doctor.report import html_report

        return html_report.render(diagnosis)
    from semel.doctor.report import text_report
    from semel.doctor.text_format import ascii_only

    on_screen = args.report is None and sys.stdout.isatty()
    size = shutil.get_terminal_size() if on_screen else os.terminal_size((_FILE_WIDTH, 0))
    report = text_report.render(
        diagnosis,
        width=size.columns,
        height=size.lines if on_screen else None,
        colour=on_screen and _colour(),
        verbose=args.verbose,
    )
    knows_unicode = args.report is not None or "utf" in (sys.stdout.encoding or "").lower()
    return report if knows_unicode else "\n".join(map(ascii_only, report.split("\n")))


def _colour() -> bool:
    """https://no-color.org"""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _deliver(report: str, file: Path | None) -> None:
    if file is not None:
        beside = file.with_name(f".{file.name}.part")  # nobody sees half a report
        try:
            beside.write_text(report, encoding="utf-8")
            beside.replace(file)
        except OSError as error:
            raise SemelError(f"--report {file}: cannot be written: {error.strerror}") from None
        return
    try:
        sys.stdout.buffer.write(report.encode("utf-8"))
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _code(worst: Severity | None, fail_on: str) -> int:
    from semel.doctor.model import Severity

    fails = worst is not None and fail_on != "never" and worst >= Severity[fail_on.upper()]
    return ExitCode.FOUND if fails else ExitCode.OK


def _watch(args: argparse.Namespace, wanted: Request) -> int:
    from semel.doctor import diagnosis
    from semel.doctor.report import changes

    open_now: changes.Open = {}
    lines = args.report.open("a", encoding="utf-8") if args.report and args.output != "html" else sys.stdout

    def on_diagnosis(latest: Diagnosis) -> None:
        nonlocal open_now
        if args.output == "html":
            _deliver(_rendered(latest, args), args.report)
        for change in changes.since(open_now, latest):
            if args.output == "json":
                progress.above(changes.as_line(change), lines)
            else:
                target = sys.stderr if args.output == "html" else lines
                width = shutil.get_terminal_size().columns if target.isatty() else _FILE_WIDTH
                progress.above(changes.as_text(change, width=width, colour=target.isatty() and _colour()), target)
        open_now = changes.opened(latest)

    stop = threading.Event()
    # SIGTERM ends the watch after the examination under way; Ctrl-C ends it at once.
    with Progress("semel doctor", quiet=args.quiet) as progress, OnSignals(stop.set, (signal.SIGTERM,)):
        diagnosis.watch(
            wanted,
            interval=args.interval,
            window=args.window,
            on_diagnosis=on_diagnosis,
            on_progress=progress.update,
            stop=stop,
        )
    if lines is not sys.stdout:
        lines.close()
    return _code(changes.worst(open_now), args.fail_on)


def _check_output(args: argparse.Namespace) -> None:
    """Called before the work, so that no report is lost."""
    if args.watch and args.output == "html" and args.report is None:
        raise UsageError("--watch --output html needs --report FILE, which it writes again at each update")
    if args.report is None:
        return
    if args.report.is_dir():
        raise UsageError(f"--report {args.report} is a folder; a file is needed")
    folder = args.report.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"--report {args.report}: the folder {folder} is not there, or not writable")


def list_rules(args: argparse.Namespace) -> int:
    from semel.doctor import rules

    if args.output != "table":
        known = [
            {"rule": rule.name, "severity": rule.severity.word, "title": rule.title, "needs": rule.needs}
            for rule in rules.ALL
        ]
        output.print_json(known, args.output)
        return ExitCode.OK
    widest = max(len(rule.name) for rule in rules.ALL)
    for rule in rules.ALL:
        print(f"{rule.severity.word:<10}{rule.name:<{widest}}  {rule.title} (needs {rule.needs})")
    return ExitCode.OK
