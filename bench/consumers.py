"""The consumer against its peers: `make bench-consumer`.

One durable broker in a process of its own, one consumer process at a time with a handler that does nothing, and a queue
that was filled before. Twice: the broker answers after 8 ms (its latency fault), as SQS does in its region, or at once.
Rates come from the broker's own count of deletes: see consumer_bench/site.py. Contestants take turns in each round, the
figure is the median of the rounds, and slow contestants get fewer messages.

None of the loops, Celery and dramatiq_sqs keep a ledger: they do less than Semel and Powertools do.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent / "tests"))  # the servers that the tests use

from broker_bench import machine
from broker_bench.progress import Progress
from broker_bench.results import Bar, Figure, at_least, at_most, ratio
from broker_bench.targets import DATA, Unavailable
from broker_bench.wire import WrongAnswer
from consumer_bench import heartbeat
from consumer_bench.contestants import CONTESTANTS, OURS, Contestant
from consumer_bench.site import Race, Site, opened
from peer_bench.arguments import names
from peer_bench.libraries import prepare
from peer_bench.tables import Table, as_markdown, bars_table, laid_out, quotient, rate

EXAMPLE = """\
example:
  python bench/consumers.py                                            everything, some 10 minutes
  python bench/consumers.py --quick --contestants tutorial,tuned,sqlite
  python bench/consumers.py --conditions once --json consumer.json
"""
CONDITIONS = {"latency": 8.0, "once": 0.0}  # milliseconds
TITLES = {"latency": "answers after 8 ms", "once": "answers at once"}
NOISY = 0.25  # of a core used by others: beyond it a figure should be taken again
PAUSE = 2.0  # seconds without a delete that are worth a note
LARGEST = 150_000  # messages of one round

# What each of Semel's contestants is to reach: messages/s, or so many times another's.
BARS: dict[tuple[str, str], dict[str, float]] = {
    ("latency", "sqlite"): {"tutorial": 100, "tuned": 2, "powertools": 20, "celery": 10, "dramatiq": 10},
    ("latency", "postgres"): {"tutorial": 70, "powertools": 20, "celery": 10, "dramatiq": 10},
    ("once", "sqlite"): {"": 5_000, "tuned": 2, "powertools": 20, "celery": 10, "dramatiq": 10},
    ("once", "postgres"): {"": 3_000, "powertools": 20, "celery": 10, "dramatiq": 10},
}


@dataclasses.dataclass(frozen=True)
class Settings:
    window: float = 8.0
    rounds: int = 3
    leases: float = 1.5  # for which the heartbeat is watched


QUICK = Settings(window=2.5, rounds=1, leases=1.1)
Figures = dict[tuple[str, str], Figure]  # by condition and contestant


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    progress = Progress()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings = QUICK if options.quick else Settings()
    if options.rounds:
        settings = dataclasses.replace(settings, rounds=options.rounds)
    try:
        versions, figures, share = measure(options, settings, progress)
    except KeyboardInterrupt:
        progress.say("interrupted; everything is stopped")
        return 130
    except Unavailable as error:
        progress.say(f"bench-consumer: {error}")
        return 2
    finally:
        progress.finish()
    head = header(settings, versions, options.quick)
    bars = all_bars(options.conditions, figures, share)
    parts = [(f"The broker {TITLES[name]}", figures_of(name, figures)) for name in options.conditions]
    parts.append(("Bars", bars_table(bars)))
    print("\n".join(head), *(f"{title}\n\n{laid_out(table)}" for title, table in parts), sep="\n\n")
    print("\nNotes\n\n" + "\n".join(notes(figures)))
    if options.json:
        options.json.write_text(json.dumps(as_json(head, figures, bars), indent=2) + "\n")
    if options.markdown:
        text = ["# The consumer and its peers", "\n".join(f"- {line}" for line in head)]
        text += [f"## {title}\n\n{as_markdown(table)}" for title, table in parts]
        text += ["## Notes", "\n".join(f"- {note}" for note in notes(figures))]
        options.markdown.write_text("\n\n".join(text) + "\n")
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/consumers.py",
        description="Measure the consumer against boto3 loops, Powertools, Celery and dramatiq_sqs.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--contestants", type=names(CONTESTANTS), default=list(CONTESTANTS), help=f"some of {','.join(CONTESTANTS)}"
    )
    parser.add_argument(
        "--conditions", type=names(CONDITIONS), default=list(CONDITIONS), help=f"some of {','.join(CONDITIONS)}"
    )
    parser.add_argument("--quick", action="store_true", help="one short round; not for figures to quote")
    parser.add_argument("--rounds", type=int, metavar="N", help="how often each is measured (3; quick: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables as Markdown")
    return parser.parse_args(arguments)


def measure(
    options: argparse.Namespace, settings: Settings, progress: Progress
) -> tuple[dict[str, str], Figures, float | None]:
    chosen = [CONTESTANTS[name] for name in options.contestants]
    versions = prepare([one.library for one in chosen if one.library], progress.say)
    ready = [one for one in chosen if one.library is None or one.library.name in versions]
    progress.expect(len(ready) * len(options.conditions) * settings.rounds)
    figures: Figures = {}
    with opened(progress, ready) as site:
        for condition in options.conditions:
            figures |= rounds(site, condition, ready, settings)
        return versions, figures, held(site, settings, progress) if "sqlite" in options.contestants else None


def held(site: Site, settings: Settings, progress: Progress) -> float | None:
    try:
        return heartbeat.share(site, settings.leases)
    except (Unavailable, WrongAnswer, OSError) as error:
        progress.say(f"the heartbeat was not measured: {error}")
        return None


def rounds(site: Site, condition: str, contestants: list[Contestant], settings: Settings) -> Figures:
    races: dict[str, list[Race]] = {one.name: [] for one in contestants}
    failed: dict[str, str] = {}
    for _ in range(settings.rounds):
        for one in contestants:
            place = f"{TITLES[condition]}, {one.label}"
            if one.name in failed:
                site.progress.step(f"{place}: failed")
                continue
            expected = max((race.rate for race in races[one.name]), default=one.first)
            amount = min(LARGEST, max(100, round(expected * settings.window * 1.3 / 100) * 100))
            try:
                race = site.race(one, amount, settings.window, CONDITIONS[condition])
            except (Unavailable, WrongAnswer, OSError) as error:
                failed[one.name] = " ".join(str(error).split())[:400]
                site.progress.say(f"{place} failed: {failed[one.name]}")
                site.progress.step(f"{place}: failed")
                continue
            races[one.name].append(race)
            site.progress.step(f"{place}: {race.rate:,.0f} messages/s")
    return {(condition, one.name): figure(races[one.name], failed.get(one.name, "")) for one in contestants}


def figure(races: list[Race], failure: str) -> Figure:
    if failure or not races:
        return Figure(note=failure or "not measured")
    pause = max(race.pause for race in races)
    return Figure(
        samples=tuple(race.rate for race in races),
        note=f"for up to {pause:.1f} s it deleted nothing, though messages were waiting" if pause > PAUSE else "",
        per_round=statistics.median(race.messages for race in races),
        cpu_us=statistics.median(race.cpu / race.messages * 1e6 for race in races),
        others_share=statistics.median(race.others for race in races),
    )


def header(settings: Settings, versions: dict[str, str], quick: bool) -> list[str]:
    DATA.mkdir(exist_ok=True)
    median, worst = machine.fdatasync_ms(DATA)
    known = machine.description() | {"fdatasync of 4 KiB": f"{median:.2f} ms (99 %: {worst:.2f} ms)"}
    return [
        *(["QUICK RUN: one short round, not for figures to quote"] if quick else []),
        *(f"{name}: {value}" for name, value in known.items()),
        "peers: " + ("; ".join(f"{CONTESTANTS[name].label} {version}" for name, version in versions.items()) or "none"),
        "broker: semel serve, durable; bodies of 100 bytes (Celery's and dramatiq's own envelopes are larger)",
        f"{settings.rounds} rounds of at most {settings.window:g} s; threads: "
        + ", ".join(f"{one.label} {one.threads}" for one in CONTESTANTS.values() if one.name not in OURS),
        "Semel with SQLite has up to 320 messages in hand (concurrency), the tuned loop 160; "
        "with PostgreSQL batches of 100, its default",
        "ledgers: SQLite synchronous=FULL; PostgreSQL with fsync; Powertools' DynamoDB is moto, which sets its pace",
    ]


def figures_of(condition: str, figures: Figures) -> Table:
    tutorial, tuned = figures.get((condition, "tutorial")), figures.get((condition, "tuned"))
    lines: Table = [("consumer", "messages/s", "× tutorial", "× tuned", "CPU µs a message")]
    for one in CONTESTANTS.values():
        found = figures.get((condition, one.name))
        if found is not None:
            cpu = f"{found.cpu_us:,.0f}" if found.cpu_us is not None else "–"
            lines.append((one.label, rate(found), quotient(found, tutorial), quotient(found, tuned), cpu))
    return lines


def all_bars(conditions: list[str], figures: Figures, share: float | None) -> list[tuple[str, Bar]]:
    found: list[tuple[str, Bar]] = []
    for (condition, name), wanted in BARS.items():
        if condition not in conditions:
            continue
        reached = _value(figures, condition, name)
        work = f"{CONTESTANTS[name].label}, {TITLES[condition]}"
        for other, limit in wanted.items():
            if other:
                times = ratio(reached, _value(figures, condition, other))
                bar = at_least(f"≥ {limit:g} × {CONTESTANTS[other].label}", limit, times, "×")
            else:
                bar = at_least(f"≥ {limit:,.0f} messages/s", limit, reached, "messages/s")
            found.append((work, bar))
    percent = None if share is None else share * 100
    return [*found, ("heartbeat, 10,000 in flight", at_most("< 10 % of a core", 10, percent, "%"))]


def _value(figures: Figures, condition: str, name: str) -> float | None:
    found = figures.get((condition, name))
    return found.value if found else None


def notes(figures: Figures) -> list[str]:
    found = []
    for (condition, name), seen in figures.items():
        place = f"{CONTESTANTS[name].label}, {TITLES[condition]}"
        if seen.note:
            found.append(f"{place}: {seen.note}")
        if (seen.others_share or 0.0) > NOISY:
            found.append(f"{place}: other work used {seen.others_share:.0%} of a core meanwhile; repeat it")
    found.append("×: so many times the rate of that loop in the same run. CPU: of the consumer process alone")
    return found


def as_json(head: list[str], figures: Figures, bars: list[tuple[str, Bar]]) -> dict[str, Any]:
    return {
        "head": head,
        "figures": [
            {"condition": condition, "contestant": name, "messages_per_second": one.value} | dataclasses.asdict(one)
            for (condition, name), one in figures.items()
        ],
        "bars": [dataclasses.asdict(bar) | {"work": work, "verdict": bar.verdict} for work, bar in bars],
    }


if __name__ == "__main__":
    sys.exit(main())
