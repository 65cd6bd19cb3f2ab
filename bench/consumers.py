"""The consumer with its defaults, compared with its peers: `make bench-consumer`.

Runs one durable broker in its own process, and one consumer process at a time on a queue that was filled beforehand.
The conditions define how fast the broker answers (its latency fault) and what the handler does; see consumer_bench/.
Contestants take turns in each round, every other round in reverse order; the figure is the median of the rounds. Rates
come from the broker's own count of deletes, after a warm-up.

The loops, Celery and dramatiq_sqs have no ledger, so they do less than Semel and Powertools.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "tests"))  # the servers that the tests use

from broker_bench import machine
from broker_bench.progress import Progress
from broker_bench.targets import DATA, Unavailable
from broker_bench.wire import WrongAnswer
from consumer_bench import heartbeat, profiler, report
from consumer_bench.conditions import CONDITIONS, Condition
from consumer_bench.contestants import CONTESTANTS, Contestant
from consumer_bench.report import Figures
from consumer_bench.site import Ended, Race, Site, opened
from peer_bench.arguments import names
from peer_bench.libraries import prepare
from peer_bench.tables import as_markdown, bars_table, laid_out

EXAMPLE = """\
examples:
  python bench/consumers.py                             everything, about 8 minutes
  python bench/consumers.py --contestants tuned,sqlite --conditions no-latency
  python bench/consumers.py --rounds 1 --messages 5000  a first look
  python bench/consumers.py --conditions heartbeat      only runs if you name it
  python bench/consumers.py --profile --flame consumer.svg
"""
WINDOW = 4.0  # seconds
WARM_UP = 1.0
LARGEST = 150_000  # messages of one round
SAMPLED = 10.0  # seconds, of a profile
ATTEMPTS = 5  # of profiling, because the sampler can crash the worker
HEARTBEAT = "heartbeat"


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    progress = Progress()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if options.profile or options.flame:
            return sample(options, progress)
        return compare(options, progress)
    except KeyboardInterrupt:
        progress.report("interrupted; everything is stopped")
        return 130
    except Unavailable as error:
        progress.report(f"bench-consumer: {error}")
        return 2
    finally:
        progress.finish()


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/consumers.py",
        description="Measure the consumer (with its defaults), boto3 loops, Powertools, Celery and dramatiq_sqs.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--contestants", type=names(CONTESTANTS), help=f"a subset of {','.join(CONTESTANTS)} (all)")
    parser.add_argument(
        "--conditions",
        type=names([*CONDITIONS, HEARTBEAT]),
        help=f"a subset of {','.join(CONDITIONS)} (all of these), or {HEARTBEAT}",
    )
    parser.add_argument("--rounds", type=_positive, default=3, metavar="N", help="rounds of each contestant (3)")
    parser.add_argument(
        "--messages",
        type=_positive,
        metavar="N",
        help=f"messages in each round (enough for {WARM_UP + WINDOW:g} s at the contestant's speed)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables as Markdown")
    parser.add_argument(
        "--profile",
        action="store_true",
        help="no comparison: print one worker's CPU by thread role and function "
        "(for the first contestant and condition; by default sqlite and no-latency)",
    )
    parser.add_argument("--flame", type=Path, metavar="FILE.svg", help="no comparison: draw its flame graph")
    options = parser.parse_args(arguments)
    if (options.profile or options.flame) and HEARTBEAT in (options.conditions or []):
        parser.error(f"{HEARTBEAT} has no profile; choose one of {', '.join(CONDITIONS)}")
    return options


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1")
    return int(text)


# Comparing.


def compare(options: argparse.Namespace, progress: Progress) -> int:
    conditions = options.conditions or list(CONDITIONS)
    races = [CONDITIONS[name] for name in conditions if name != HEARTBEAT]
    taking_part = {name for condition in races for name in condition.contestants}
    chosen = [CONTESTANTS[name] for name in options.contestants or CONTESTANTS if name in taking_part]
    if races and not chosen:
        raise Unavailable(f"none of {', '.join(options.contestants)} takes part in {', '.join(conditions)}")
    versions = prepare([contestant.library for contestant in chosen if contestant.library], progress.report)
    ready = [contestant for contestant in chosen if contestant.library is None or contestant.library.name in versions]
    progress.expect(
        options.rounds * sum(contestant.name in condition.contestants for condition in races for contestant in ready)
    )
    figures: Figures = {}
    held = None
    with opened(progress, [*ready, heartbeat.HOLDING]) as site:
        for condition in races:
            figures |= rounds(
                site,
                condition,
                [contestant for contestant in ready if contestant.name in condition.contestants],
                options,
            )
        if HEARTBEAT in conditions:
            held = heartbeat.share(site)
    show(options, header(options, versions), conditions, figures, held)
    return 1 if any(CONTESTANTS[name].is_semel and not figure.samples for (_, name), figure in figures.items()) else 0


def rounds(site: Site, condition: Condition, contestants: list[Contestant], options: argparse.Namespace) -> Figures:
    races: dict[str, list[Race]] = {contestant.name: [] for contestant in contestants}
    failed: dict[str, str] = {}
    for number in range(options.rounds):
        for contestant in contestants if number % 2 == 0 else reversed(contestants):
            place = f"{condition.title}, {contestant.label}"
            if contestant.name in failed:
                site.progress.step(f"{place}: failed")
                continue
            amount = options.messages or messages_for(contestant, condition, races[contestant.name])
            try:
                race = site.race(contestant, condition, -(-amount // 10) * 10, WARM_UP, WINDOW)
            except (Unavailable, WrongAnswer, OSError) as error:
                failed[contestant.name] = " ".join(str(error).split())[:600]
                site.progress.report(f"{place} failed: {failed[contestant.name]}")
                site.progress.step(f"{place}: failed")
                continue
            races[contestant.name].append(race)
            site.progress.step(f"{place}: {race.rate:,.0f} messages/s")
    return {
        (condition.name, contestant.name): report.figure(races[contestant.name], failed.get(contestant.name, ""))
        for contestant in contestants
    }


def messages_for(
    contestant: Contestant, condition: Condition, races: list[Race], seconds: float = WARM_UP + WINDOW
) -> int:
    """Enough messages to keep the contestant busy all the time, estimated from its previous rounds."""
    expected = max((race.rate for race in races), default=min(contestant.first, condition.first))
    return min(LARGEST, max(100, round(expected * seconds * 1.3)))


def header(options: argparse.Namespace, versions: dict[str, str]) -> list[str]:
    DATA.mkdir(exist_ok=True)
    median, worst = machine.fdatasync_ms(DATA)
    known = machine.description() | {"fdatasync of 4 KiB": f"{median:.2f} ms (99 %: {worst:.2f} ms)"}
    amount = f"{options.messages:,} messages" if options.messages else f"{WINDOW:g} s"
    threads = ", ".join(
        f"{contestant.label} {contestant.threads}" for contestant in CONTESTANTS.values() if not contestant.is_semel
    )
    return [
        *(f"{name}: {value}" for name, value in known.items()),
        "peers: " + ("; ".join(f"{CONTESTANTS[name].label} {version}" for name, version in versions.items()) or "none"),
        "broker: semel serve, durable; bodies of 100 bytes (Celery's and dramatiq's own envelopes are larger)",
        f"{options.rounds} rounds of {amount} after {WARM_UP:g} s of warm-up, order of contestants alternating",
        "Semel: semel run, every setting at its default, a queue with SQS's defaults; "
        "SQLite: one message a call; PostgreSQL: batches, one transaction each",
        f"threads of the others: {threads}",
        "ledgers: SQLite synchronous=FULL; PostgreSQL with fsync; Powertools' DynamoDB is moto, which sets its pace",
    ]


def show(
    options: argparse.Namespace, head: list[str], conditions: list[str], figures: Figures, held: float | None
) -> None:
    reached = report.targets(conditions, figures, held)
    notes = report.notes(figures)
    parts = [(CONDITIONS[name].title, report.table(name, figures)) for name in conditions if name != HEARTBEAT]
    parts.append(("Targets", bars_table(reached)))
    print("\n".join(head), *(f"{title}\n\n{laid_out(table)}" for title, table in parts), sep="\n\n")
    print("\nNotes\n\n" + "\n".join(notes))
    if options.json:
        options.json.write_text(json.dumps(report.as_json(head, figures, reached), indent=2) + "\n")
    if options.markdown:
        text = ["# The consumer and its peers", "\n".join(f"- {line}" for line in head)]
        text += [f"## {title}\n\n{as_markdown(table)}" for title, table in parts]
        text += ["## Notes", "\n".join(f"- {note}" for note in notes)]
        options.markdown.write_text("\n\n".join(text) + "\n")


# Profiling.


def sample(options: argparse.Namespace, progress: Progress) -> int:
    """Sample one worker under load; print tables, draw a flame graph, or both."""
    contestant = CONTESTANTS[(options.contestants or ["sqlite"])[0]]
    condition = CONDITIONS[(options.conditions or ["no-latency"])[0]]
    if not contestant.is_semel or contestant.arguments:
        raise Unavailable(
            f"only one process of Semel can be sampled, not {contestant.label}: --contestants sqlite or postgres"
        )
    with opened(progress, [contestant]) as site:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                profile = sampled(site, contestant, condition, options.messages)
                break
            except Ended as error:  # see sampler.py
                if error.code != -signal.SIGSEGV or attempt == ATTEMPTS:
                    raise
                progress.report("the sampler crashed the worker: once more")
    title = f"{contestant.label}: {condition.title}; {profile.messages / profile.seconds:,.0f} messages/s while sampled"
    print(f"{title}; {profile.samples:,} samples")
    if options.profile:
        print("", laid_out(profiler.roles_table(profile)), "", laid_out(profiler.functions_table(profile)), sep="\n")
    if options.flame:
        options.flame.write_text(profiler.flame_graph(profile, title))
        text = options.flame.with_suffix(".collapsed")
        text.write_text(profiler.collapsed(profile))
        print(f"\nflame graph: {options.flame}; the same as collapsed stacks: {text}")
    return 0


def sampled(site: Site, contestant: Contestant, condition: Condition, messages: int | None) -> profiler.Profile:
    amount = messages or messages_for(contestant, condition, [], WARM_UP + SAMPLED)
    with (
        tempfile.TemporaryDirectory(dir=DATA) as folder,
        site.working(contestant, condition.handler, -(-amount // 10) * 10, condition.latency, folder) as worker,
    ):
        worker.warm_up(WARM_UP)
        profile = profiler.profile(worker, SAMPLED)
        if not sum(worker.counts()):
            raise Unavailable(f"{amount:,} messages were too few to keep the worker busy: give more with --messages")
        return profile


if __name__ == "__main__":
    sys.exit(main())
