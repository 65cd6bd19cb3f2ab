"""`python -m soak --minutes 60`: runs the soak and both overloads, and ends with a report and an exit code.

The code is 1 if messages were lost or doubled, if something leaked or grew without bound, or if it clearly became
slower. Figures that a busy machine can spoil are only in the report.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import psutil

from soak import overload, report
from soak.app import FLAWS
from soak.run import STORES, Plan, Soak


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="semel-soak-", dir=options.folder))
    began = time.monotonic()

    def notify(text: str) -> None:
        print(f"[{time.monotonic() - began:7.1f} s] {text}", flush=True)

    machine = f"{psutil.cpu_count()} CPUs, {psutil.virtual_memory().total >> 30} GiB, load {psutil.getloadavg()[0]:.1f}"
    lines = [f"Load and soak, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {machine} at the start.", ""]
    failed = False
    if not options.only_overload:
        plan = Plan(
            seconds=options.minutes * 60,
            folder=_made(folder / "soak"),
            store=options.store,
            workers=options.workers,
            share=options.share,
            rate=options.rate,
            flaw=options.flaw,
            seed=options.seed,
        )
        result = Soak(plan, notify).run()
        lines += [*report.summary(result), ""]
        failed = bool(result.findings or result.slow)
    if not options.only_soak:
        notify("overload of the broker")
        of_broker = overload.overload_broker(_made(folder / "broker"), options.overload_seconds, notify=notify)
        notify("overload of a worker")
        of_worker = overload.overload_worker(_made(folder / "worker"), options.overload_seconds)
        lines += [*of_broker.lines(), "", *of_worker.lines()]
        for each in (of_broker, of_worker):
            failed = failed or bool(each.findings or each.slow)
    text = "\n".join(lines)
    print(f"\n{text}\n\n{'FAILED' if failed else 'passed'} in {time.monotonic() - began:.0f} s", flush=True)
    if options.markdown is not None:
        options.markdown.write_text(text + "\n")
    if failed:
        print(f"logs and data are in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return int(failed)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="length of the soak (default: 5)")
    parser.add_argument("--store", choices=STORES, default="sqlite", help="the ledger (default: sqlite)")
    parser.add_argument("--workers", type=int, default=2, help="worker processes (default: 2)")
    parser.add_argument("--share", type=float, default=0.7, help="share of the peak for the soak (default: 0.7)")
    parser.add_argument("--rate", type=float, default=0.0, help="messages per second, instead of a share of the peak")
    parser.add_argument("--overload-seconds", type=float, default=20.0, help="length of each overload (default: 20)")
    parser.add_argument("--seed", type=int, default=7, help="seed of the faults (default: 7)")
    parser.add_argument("--flaw", choices=FLAWS, default="", help="put this bug into the app: the run must fail")
    parser.add_argument("--markdown", type=Path, help="write the report to this file as well")
    parser.add_argument("--folder", type=Path, help="parent folder for the run's data (default: the system's)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--only-soak", action="store_true")
    which.add_argument("--only-overload", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main())
