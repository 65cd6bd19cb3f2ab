"""`semel dlq`: list, redrive, edit, delete and restore the messages of dead-letter queues, and watch for new ones."""

from __future__ import annotations

from typing import Any

from semel.cli.command import command_group
from semel.cli.dlq import delete, edit, listings, redrive, watch


def add_to(commands: Any) -> None:
    actions = command_group(
        commands,
        "dlq",
        "list, redrive, edit and delete dead-letter messages",
        description="""Work on dead-letter queues: list messages and group them by error, redrive them once, edit,
        delete and restore them, and watch for new ones.""",
        examples="""
        semel dlq queues                             all dead-letter queues
        semel dlq groups orders-dlq                  the errors, with counts
        semel dlq list orders-dlq --where 'error ~ timeout and $.total > 100'
        semel dlq show orders-dlq 6d2f0c1a-…         one message in full
        semel dlq redrive orders-dlq --where 'error ~ timeout' --rate 50
                                                     three messages first, the
                                                     rest if those succeed
        semel dlq edit orders-dlq 6d2f0c1a-…         edit a copy and send it
        semel dlq delete orders-dlq --where 'age > 7d'
                                                     asks, keeps a snapshot
        semel dlq restore snapshot.jsonl             from the snapshot
        semel dlq watch --expires-within 6h --webhook https://hooks.example/x
                                                     alert on new messages, and
                                                     before messages expire
        """,
    )
    for family in (listings, redrive, edit, delete, watch):
        family.add_to(actions)
