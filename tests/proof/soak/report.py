"""The report of a soak, in Markdown: a table with a row for each window of time, then the verdict."""

from __future__ import annotations

from soak import figures
from soak.figures import MIB
from soak.run import Result, lines


def summary(result: Result) -> list[str]:
    """A paragraph and a table."""
    plan, trend = result.plan, result.trend()
    faults = ", ".join(f"{kind} {count:,}" for kind, count in sorted(result.faults.items()))
    sent = len(result.sends)
    verdict = "holds" if trend.holds else "clearly missed" if trend.fails_clearly else "missed, as on a noisy machine"
    part = figures.compared_seconds(plan.seconds)
    return [
        f"Soak: {_duration(plan.seconds)} at {result.rate:,.0f} messages/s, {_share(result)}; ledger {plan.store}, "
        f"{plan.workers} workers. Faults injected: {faults or 'none'}.",
        "",
        *lines(_windows(result)),
        "",
        f"- {sent:,} messages sent, {len(result.effects):,} effects (with those of the peak).",
        f"- p99 of the last {part:.0f} s to the first: {trend.last * 1000:.0f} ms / {trend.first * 1000:.0f} ms = "
        f"{trend.ratio:.2f} (bar {figures.RATIO}: {verdict}).",
        *_memory(result),
        *(f"- FAILED: {finding}" for finding in (*result.findings, *result.slow)),
        *([] if result.findings else ["- Nothing lost, nothing doubled, no leak of memory, files or threads."]),
    ]


def _share(result: Result) -> str:
    return f"{result.rate / result.peak:.0%} of the peak of {result.peak:,.0f}" if result.peak else "peak not measured"


def _duration(seconds: float) -> str:
    return f"{seconds / 60:g} minutes" if seconds >= 120 else f"{seconds:g} s"


def _windows(result: Result) -> list[list[str]]:
    length = figures.window_seconds(result.plan.seconds)
    rows = [
        [
            "until",
            "messages/s",
            "p50 ms",
            "p99 ms",
            "broker MiB",
            "workers MiB",
            "files",
            "threads",
            "data MiB",
            "ledger MiB",
        ]
    ]
    latencies = result.latencies()
    count = round(result.plan.seconds / length)
    for number in range(count):
        start, end = number * length, (number + 1) * length
        values = result.window(start, end, latencies)
        if count > 20 and number % (count // 12) and number != count - 1:
            continue
        rows.append(
            [
                f"{end:.0f} s",
                f"{len(values) / length:,.0f}",
                *_latency(values),
                *_uses(result, end),
                *_disk(result, end),
            ]
        )
    return rows


def _latency(values: list[float]) -> list[str]:
    return [f"{figures.percentile(values, share) * 1000:.1f}" for share in (0.5, 0.99)]


def _uses(result: Result, at: float) -> list[str]:
    newest = {sample.process: sample for sample in result.samples if sample.at <= at}
    workers = [sample.rss for name, sample in newest.items() if name != "broker"]
    broker = newest["broker"].rss if "broker" in newest else 0
    return [
        f"{broker / MIB:.1f}",
        " + ".join(f"{rss / MIB:.1f}" for rss in workers),
        str(sum(sample.files for sample in newest.values())),
        str(sum(sample.threads for sample in newest.values())),
    ]


def _disk(result: Result, at: float) -> list[str]:
    sizes = [disk for disk in result.disk if disk.at <= at]
    return [f"{sizes[-1].broker / MIB:.1f}", f"{sizes[-1].ledger / MIB:.1f}"] if sizes else ["", ""]


def _memory(result: Result) -> list[str]:
    bullets = []
    for process in figures.processes(result.samples):
        points = [(sample.at, float(sample.rss)) for sample in result.samples if sample.process == process]
        grown = figures.growth(points, result.plan.seconds)
        bullets.append(f"- Memory of the {process} in the second half: {grown / MIB:+.1f} MiB.")
    return bullets
