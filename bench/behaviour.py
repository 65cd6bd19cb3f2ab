"""What Semel, moto's server and MiniStack really do: `python bench/behaviour.py`.

Each probe talks to a real server, with boto3 or raw HTTP, in its own queues and in real time. It checks for what SQS
does; for duplicates and clients that hang up, it checks for what SQS does not promise but its users want. A server that
passes all checks of a probe gets "yes", one that passes some gets "partly", and an error during the probe gives "no"
with its reason. A race that did not show in this run counts as "yes". For each peer, two cells come from its
documentation and code, because there is nothing to call: moving time, and faults. The table also has what Semel lacks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import boto3
from botocore.exceptions import ClientError

from behaviour_probes import delivery, details, service
from behaviour_probes.site import (
    PROBES,
    RETENTION,
    Probed,
    Result,
    Run,
    Site,
)
from broker_bench.progress import Progress
from broker_bench.targets import DATA, TARGETS, Unavailable

FILES = (delivery, details, service)  # importing them fills PROBES
EXAMPLE = """\
example:
  python bench/behaviour.py                                   everything, about two minutes
  python bench/behaviour.py --targets semel,moto --probes FIFO
  python bench/behaviour.py --markdown table.md --json table.json
"""
COMPARED = ("semel", "moto", "ministack")

# The run.

Table = dict[str, dict[str, Result]]


def attempted(run: Run, site: Site) -> Result:
    try:
        return run(site)
    except ClientError as error:
        status, code = error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"]
        text = f"{error.operation_name} is answered with HTTP {status}"
        return Result("no", text if code == str(status) else f"{text}, {code}")
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is a result
        return Result("no", " ".join(f"{type(error).__name__}: {error}".split())[:160])


def measured(sites: Sequence[Site], chosen: Mapping[str, Run], progress: Progress) -> Table:
    for site in sites:
        queue = site.queue(MessageRetentionPeriod=str(RETENTION))
        site.send(queue)
        site.planted = queue, time.monotonic()
    progress.expect(len(chosen) * len(sites))
    table: Table = {title: {} for title in chosen}
    for title, run in sorted(
        chosen.items(), key=lambda item: item[1] is service.retention
    ):  # this one takes a minute, so it runs last
        for site in sites:
            result = table[title][site.name] = attempted(run, site)
            if not site.server.alive:
                raise Unavailable(f"{site.target.label} ended in '{title}'; it said: {site.server.last_words()}")
            progress.step(f"{site.target.label}: {result.verdict}: {title}")
    return table


def written(table: Table, labels: Sequence[str]) -> str:
    """The table, readable as text and as Markdown, and the numbered reasons that its cells refer to."""
    notes: dict[str, int] = {}
    rows = [["behaviour", *labels], []]
    for title, results in table.items():
        rows.append([title])
        for result in results.values():
            note = "" if result.verdict == "yes" else f" [{notes.setdefault(result.reason, len(notes) + 1)}]"
            rows[-1].append(result.verdict + (f", {result.figure}" if result.figure else "") + note)
    widths = [max(map(len, column)) for column in zip(*rows[:1], *rows[2:], strict=True)]
    rows[1] = ["-" * width for width in widths]
    shown = [" | ".join(map(str.ljust, row, widths)) for row in rows]
    return "\n".join([*(f"| {row} |" for row in shown), "", *(f"{i}. {text}" for text, i in notes.items())])


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/behaviour.py",
        description="Probe Semel, moto's server and MiniStack for behaviour that can lose or repeat messages.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--targets", default=",".join(COMPARED), metavar="NAMES", help="a subset of %(default)s")
    parser.add_argument("--probes", default="", metavar="TEXT", help="run only the probes whose name contains TEXT")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every result with its reason as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table as Markdown")
    options = parser.parse_args(arguments)
    options.targets = options.targets.split(",")
    if unknown := set(options.targets) - set(COMPARED):
        parser.error(f"no {', '.join(sorted(unknown))} here; there are: {', '.join(COMPARED)}")
    options.chosen = {title: run for title, run in PROBES.items() if options.probes.lower() in title.lower()}
    if not options.chosen:
        parser.error(f"no probe has {options.probes!r} in its name")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    progress, began = Progress(), time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    DATA.mkdir(exist_ok=True)
    versions: dict[str, str] = {}
    sites: list[Site] = []
    try:
        with contextlib.ExitStack() as running:
            for target in (TARGETS[name] for name in options.targets):
                try:
                    versions[target.name] = target.prepare(progress.report)
                    sites.append(Site(running.enter_context(Probed(target))))
                except Unavailable as error:
                    progress.report(f"{target.label} is left out: {error}")
            if not sites:
                return 2
            table = measured(sites, options.chosen, progress)
    except KeyboardInterrupt:
        progress.report("interrupted; every server is stopped")
        return 130
    except Unavailable as error:
        progress.report(str(error))
        return 2
    finally:
        progress.finish()
        with contextlib.suppress(OSError):
            DATA.rmdir()
    labels = [site.target.label for site in sites]
    heading = ", ".join(f"{site.target.label} {versions[site.name]}" for site in sites)
    heading += f"; boto3 {boto3.__version__}, Python {sys.version.split()[0]}"
    report = f"{heading}; probed in {time.monotonic() - began:.0f} s.\n\n{written(table, labels)}\n"
    print(report)
    if options.json:
        rows = {title: {name: asdict(result) for name, result in row.items()} for title, row in table.items()}
        options.json.write_text(json.dumps({"versions": versions, "behaviours": rows}, indent=2) + "\n")
    if options.markdown:
        options.markdown.write_text("Written by `python bench/behaviour.py`: " + report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
