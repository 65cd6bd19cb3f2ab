"""`semel jobs`: the redrives, deletes and restores of this user, or of a dashboard, in whichever process they run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from semel.cli import options, output
from semel.cli.command import ExitCode, command, command_group, option
from semel.cli.job_display import exit_code, follow, summary
from semel.cli.service import open_records

if TYPE_CHECKING:
    from semel.dlq.jobs import Job

_CONTROLS: Final = {
    "pause": "A paused job releases the messages that it has claimed, and claims them again when it is resumed.",
    "resume": "It continues where it was paused.",
    "cancel": "It ends at its next checkpoint. What it has done stays done; the rest stays in the queue.",
}


def add_to(commands: Any) -> None:
    actions = command_group(
        commands,
        "jobs",
        "list, pause, resume, cancel and wait for jobs",
        description="""List and control the redrives, deletes and restores of this user, in any terminal or dashboard
        on this machine; or those of a dashboard (--dashboard). The last 200 are kept.""",
        examples="""
        semel jobs list
        semel jobs cancel 20261116-120000-a1b2c3
        semel jobs wait 20261116-120000-a1b2c3 --timeout 10m
        """,
    )
    _add(
        actions,
        "list",
        _list,
        "list jobs, newest first",
        description="List the last 200 jobs, newest first.",
        examples="semel jobs list\nsemel jobs list --output jsonl",
    )
    _add(
        actions,
        "show",
        _show,
        "show one job with its messages",
        description="Show one job: its plan, its counts, and the lines that it printed.",
        examples="semel jobs show 20261116-120000-a1b2c3",
    )
    for action, text in _CONTROLS.items():
        _add(
            actions,
            action,
            _control,
            f"{action} a job",
            description=f"Ask a job to {action}, in whichever process it runs. {text}",
            examples=f"semel jobs {action} 20261116-120000-a1b2c3",
            codes={
                ExitCode.OK: "the job has acknowledged the request",
                ExitCode.FAILED: "the job has ended, its process is gone, or it has not acknowledged the request yet",
            },
        ).set_defaults(action=action)
    wait = _add(
        actions,
        "wait",
        _wait,
        "wait for a job to end",
        description="Wait until a job has ended. Ctrl-C ends the waiting, not the job.",
        examples="semel jobs wait 20261116-120000-a1b2c3 --timeout 10m",
        codes={
            ExitCode.OK: "the job is done",
            ExitCode.FAILED: "the job failed, or had not ended when the timeout passed",
            ExitCode.STOPPED: "the job stopped early (canary, --stop-after), or was cancelled",
            ExitCode.INTERRUPTED: "interrupted with Ctrl-C; the job goes on",
        },
    )
    option(wait, "--timeout TIME", "give up after this time (default: never)", type=options.duration)
    options.add(wait, "--quiet")


def _add(actions: Any, name: str, run: Any, help: str, **words: Any) -> argparse.ArgumentParser:
    parser = command(actions, name, run, help, **words)
    if name != "list":
        parser.add_argument("id", type=options.some_text, metavar="ID", help="the job's id, as `semel jobs list` shows")
    options.add_dashboard(parser)
    options.add_output(parser)
    return parser


def _list(args: argparse.Namespace) -> int:
    jobs = open_records(args).jobs()
    output.show(args, jobs, lambda: table(jobs) if jobs else "there are no jobs")
    return 0


def table(jobs: Sequence[Job]) -> str:
    rows = [
        (
            job.id,
            job.kind,
            job.queue,
            str(job.state),
            f"{job.counts.sent:,}",
            f"{job.counts.deleted:,}",
            f"{job.counts.failed:,}",
            job.reason,
        )
        for job in jobs
    ]
    heads = ("JOB", "KIND", "QUEUE", "STATE", "SENT", "DELETED", "FAILED", "REASON")
    return output.table(heads, rows, right=("SENT", "DELETED", "FAILED"), optional=("DELETED", "FAILED"))


def _show(args: argparse.Namespace) -> int:
    job = open_records(args).job(args.id)
    output.show(args, job, lambda: _details(job))
    return 0


def _details(job: Job) -> str:
    plan = [f"{name}={value}" for name, value in job.plan.items() if value not in (None, "", [], 0, False, job.queue)]
    counts = [f"{value:,} {name.replace('_', ' ')}" for name, value in job.to_json()["counts"].items() if value]
    rows = [
        ("job", job.id),
        ("kind", job.kind),
        ("queue", job.queue),
        ("plan", ", ".join(plan)),
        ("started by", job.who),
        ("started", f"{output.moment(job.started)} UTC"),
        ("ended", f"{output.moment(job.ended)} UTC" if job.ended else "not yet" if not job.state.ended else "?"),
        ("state", str(job.state)),
        ("reason", job.reason),
        ("counts", ", ".join(counts) or "none"),
        *(("result", f"{name}: {value}") for name, value in job.result.items()),
    ]
    lines = [f"{output.moment(line.at)}  {output.one_line(line.text)}" for line in job.messages]
    return "\n".join([output.pairs([row for row in rows if row[1]]), *([""] if lines else []), *lines])


def _control(args: argparse.Namespace) -> int:
    control = open_records(args).control(args.id, args.action)
    content = control.job.to_json() | {"acknowledged": control.acknowledged, "outcome": str(control)}
    output.show(args, content, lambda: f"{args.action} job {control.job.id}: {control}")
    if control.acknowledged:
        return ExitCode.OK
    print(f"see the job: semel jobs show {control.job.id}", file=sys.stderr)
    return ExitCode.FAILED


def _wait(args: argparse.Namespace) -> int:
    records = open_records(args)
    job = follow(records, records.job(args.id), quiet=args.quiet, cancel=False, timeout=args.timeout).job
    output.show(args, job, lambda: summary(job))
    if not job.state.ended:
        print(
            f"semel: job {job.id} is still {job.state} after {output.duration(args.timeout)}; it goes on",
            file=sys.stderr,
        )
        return ExitCode.FAILED
    return exit_code(job)
