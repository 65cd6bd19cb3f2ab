"""What an SQS call costs the client: `make bench-client`.

Semel's client and boto3 take turns at the same work on the same broker, which runs in its own process: receive ten
messages with all their attributes, then delete them. Measures the CPU time of this process, user and system, and the
wall time per pair of calls, with one thread and with eight. Filling the queue is not measured. Both sign every call.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from broker_bench import machine
from broker_bench.progress import Progress
from broker_bench.targets import TARGETS, Server, Unavailable
from semel.sqs import Client, Entry, Queue

BAR = 5.0
THREADS = 8
QUEUE = "bench-client"
EXAMPLE = """\
example:
  python bench/client.py                     about 40 seconds
  python bench/client.py --quick             a first look
  python bench/client.py --json client.json  also write the figures as JSON
"""

# One pair of calls: receives up to ten messages, deletes them, returns how many there were.
Pair = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Round:
    """`cpu` and `wall` in microseconds per pair of calls."""

    client: str
    threads: int
    pairs: int
    cpu: float
    wall: float

    @property
    def calls_per_second(self) -> float:
        return 2e6 / self.wall


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    progress = Progress()
    try:
        rounds = run(options, progress)
    except Unavailable as error:
        progress.report(f"bench-client: {error}")
        return 2
    finally:
        progress.finish()
    print(as_text(rounds))
    if options.json:
        figures = {
            "machine": machine.description(),
            "rounds": [asdict(each) for each in rounds],
            "ratio": ratio(rounds),
        }
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--rounds", type=int, help="rounds of each client (7; with --quick: 3)")
    parser.add_argument("--pairs", type=int, help="pairs of calls in a round (400; with --quick: 100)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE as JSON")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (3 if options.quick else 7)
    options.pairs = options.pairs or (100 if options.quick else 400)
    return options


def run(options: argparse.Namespace, progress: Progress) -> list[Round]:
    target = TARGETS["ephemeral"]
    target.prepare(progress.report)
    progress.report(f"receive(10) + delete(10), {options.pairs} pairs a round, {options.rounds} rounds ...")
    cores = sorted(os.sched_getaffinity(0))
    rounds = []
    with Server(target, set(cores[1:]) or None) as server:
        url = f"http://{server.address[0]}:{server.address[1]}"
        with Client(url, "us-east-1", access_key="bench", secret_key="bench") as client:
            queue = client.create_queue(QUEUE)
            pairs = {"Semel": semel_pair(queue), "boto3": boto3_pair(url, queue.url)}
            progress.expect(len(pairs) * 2 * options.rounds)
            for pair in pairs.values():  # opens connections, fills caches, runs lazy imports
                measure("", pair, queue, 1, 20)
            for threads in (1, THREADS):
                for _ in range(options.rounds):
                    for name, pair in pairs.items():
                        round_ = measure(name, pair, queue, threads, options.pairs)
                        rounds.append(round_)
                        progress.step(f"{name}, threads: {threads}: {round_.cpu:,.0f} µs of CPU a pair")
    return rounds


def semel_pair(queue: Queue) -> Pair:
    def pair() -> int:
        messages = queue.receive(10, 0)
        if messages:
            queue.delete([message.receipt for message in messages])
        return len(messages)

    return pair


def boto3_pair(endpoint: str, queue_url: str) -> Pair:
    try:
        import boto3
        from botocore.config import Config
    except ImportError as error:
        raise Unavailable("boto3 is not installed here; start this with `make bench-client`") from error
    sqs = boto3.session.Session().client(
        "sqs",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="bench",
        aws_secret_access_key="bench",
        config=Config(max_pool_connections=THREADS),
    )

    def pair() -> int:
        messages = sqs.receive_message(
            QueueUrl=queue_url,
            MaxNumberOfMessages=10,
            WaitTimeSeconds=0,
            MessageSystemAttributeNames=["All"],
            MessageAttributeNames=["All"],
        ).get("Messages", [])
        if messages:
            sqs.delete_message_batch(
                QueueUrl=queue_url,
                Entries=[
                    {"Id": str(place), "ReceiptHandle": message["ReceiptHandle"]}
                    for place, message in enumerate(messages)
                ],
            )
        return len(messages)

    return pair


def measure(name: str, pair: Pair, queue: Queue, threads: int, pairs: int) -> Round:
    """One round: the queue is filled, then emptied by `pairs` full pairs of calls."""
    queue.send_many([Entry("x" * 100, attributes={"tenant": "blue"})] * (pairs * 10))
    share = [pairs // threads + (number < pairs % threads) for number in range(threads)]
    wrong: list[int] = []

    def work(count: int) -> None:
        for _ in range(count):
            got = pair()
            if got != 10:
                wrong.append(got)

    workers = [threading.Thread(target=work, args=(count,)) for count in share]
    wall, cpu = time.perf_counter(), time.process_time()
    if threads == 1:
        work(pairs)
    else:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    if wrong:
        raise Unavailable(f"{name} received {wrong[0]} messages where there were 10: the figures would not be fair")
    return Round(name, threads, pairs, cpu / pairs * 1e6, wall / pairs * 1e6)


def median(rounds: list[Round], client: str, threads: int, figure: Callable[[Round], float]) -> float:
    return statistics.median(figure(each) for each in rounds if (each.client, each.threads) == (client, threads))


def ratio(rounds: list[Round], threads: int = 1) -> float:
    """boto3's CPU divided by that of Semel's client."""
    semel, boto3 = (median(rounds, client, threads, lambda each: each.cpu) for client in ("Semel", "boto3"))
    return boto3 / semel


def as_text(rounds: list[Round]) -> str:
    lines = [f"- {name}: {value}" for name, value in machine.description().items()]
    lines += [
        f"- boto3: {metadata.version('boto3')}",
        "",
        "| client | threads | CPU a pair, µs | wall a pair, µs | calls/s |",
    ]
    lines.append("|---|--:|--:|--:|--:|")
    for threads in (1, THREADS):
        for client in ("Semel", "boto3"):
            cpu, wall, calls = (
                median(rounds, client, threads, figure)
                for figure in (lambda each: each.cpu, lambda each: each.wall, lambda each: each.calls_per_second)
            )
            lines.append(f"| {client} | {threads} | {cpu:,.0f} | {wall:,.0f} | {calls:,.0f} |")
    reached = ratio(rounds)
    verdict = "pass" if reached >= BAR else "short"
    lines += ["", f"boto3's CPU ÷ Semel's, one thread: {reached:.1f} (bar: {BAR:.0f}: {verdict})"]
    lines.append(f"boto3's CPU ÷ Semel's, {THREADS} threads: {ratio(rounds, THREADS):.1f}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
