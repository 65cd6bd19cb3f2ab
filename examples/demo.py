"""The same faulty queue, worked off twice: by the loop from every tutorial, and by Semel. Run it with `make demo`.

The queue misbehaves exactly as SQS may: it delivers some messages twice and loses some deletes. While Semel works, one
of its two worker processes is killed, with SIGKILL, every half second.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from semel import Client
from semel.broker import EmbeddedBroker, running
from semel.sqs import Entry, Queue

ORDERS = 300
FAULTS = {"duplicate": 0.1, "lost-delete": 0.1}
HERE = Path(__file__).parent


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, running(data=folder, faults=FAULTS, fault_seed=1) as broker:
        print(f"An SQS on {broker.url}: delivers 10 % of messages twice, loses 10 % of deletes.\n")
        with Client(broker.url, "us-east-1", access_key="demo", secret_key="demo") as client:
            tell("the tutorial's loop", tutorial(client))
            tell("Semel, two workers, one killed every half second", once(client, broker, Path(folder)))
    print("\nNext: README.md, and examples/orders.py, payments.py and accounts.py.")


def filled(client: Client, name: str) -> Queue:
    queue = client.create_queue(name, {"VisibilityTimeout": "2"})
    queue.send_many([Entry(f'{{"order": {n}, "euro": 40}}') for n in range(ORDERS)])
    return queue


def tell(who: str, charges: Counter[int]) -> None:
    twice = sum(count > 1 for count in charges.values())
    print(f"  {who}")
    total = sum(charges.values())
    print(f"    {len(charges)} of {ORDERS} orders charged, {twice} of them more than once: {total} charges\n")


def tutorial(client: Client) -> Counter[int]:
    """Receive, work, delete."""
    queue = filled(client, "tutorial")
    charges: Counter[int] = Counter()
    while is_filled(queue):
        for message in queue.receive(wait=1):
            charges[int(message.body.split()[1].strip(","))] += 1
            queue.delete([message.receipt])
    return charges


def is_filled(queue: Queue) -> bool:
    names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
    return any(int(count) for count in queue.attributes(*names).values())


def once(client: Client, broker: EmbeddedBroker, folder: Path) -> Counter[int]:
    """The same with examples/charges.py, whose writes and whose record in the ledger are one transaction."""
    queue = filled(client, "charges")
    database = folder / "charges.db"
    environment = {
        **os.environ,
        "CHARGES_LEDGER": f"sqlite:///{database}",
        "AWS_ENDPOINT_URL_SQS": broker.url,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "demo",
        "AWS_SECRET_ACCESS_KEY": "demo",
    }
    command = [sys.executable, "-m", "semel.cli", "run", "charges:app", "--log-level", "error"]
    workers = [subprocess.Popen(command, cwd=HERE, env=environment) for _ in range(2)]
    try:
        kills, began = 0, time.monotonic()
        while is_filled(queue):
            time.sleep(0.5)
            if any(worker.poll() for worker in workers):
                sys.exit("a worker could not start: its reason is above")
            if time.monotonic() - began > 2 + kills * 0.5 and kills < 6:  # once they are at work
                victim = workers.pop(0)
                victim.kill()
                victim.wait()
                workers.append(subprocess.Popen(command, cwd=HERE, env=environment))
                kills += 1
    finally:
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        for worker in workers:
            worker.wait()
    connection = sqlite3.connect(database)
    try:
        return Counter(n for (n,) in connection.execute("SELECT number FROM charges"))
    finally:
        connection.close()


if __name__ == "__main__":
    main()
