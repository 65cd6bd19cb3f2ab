"""Compares what was sent with what is in the table: the only figures that count in the end.

The rule: every delivery of an order or a broken message after its first has exactly one cause. The producer counts the
orders that it sent twice. A delivery that no finished batch of the pipeline accounts for was in the driver when it was
killed. SQS caused the rest: it delivered a message twice at once, or again because it had lost the delete. The broker
counts both of these faults, but they can hit the same message and bring it back only once, so the audit does not use
the broker's counts.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from semel.demo.producer import Sent


@dataclass(frozen=True, slots=True)
class Audit:
    """`delivered`: by SQS, including duplicates. `duplicates` is the sum of the three fields after it."""

    orders: int
    sent: int
    poison: int
    delivered: int
    duplicates: int
    sent_twice: int
    delivered_again: int
    driver_killed: int
    rows_at_kill: int
    rows: int
    lost: int
    doubled: int
    euros_sent: int
    euros_in_table: int
    dead_letters: int

    @property
    def problems(self) -> list[str]:
        problems = []
        if self.lost or self.doubled:
            problems.append(f"{self.lost} orders are lost, {self.doubled} are doubled")
        if self.euros_sent != self.euros_in_table:
            problems.append(f"{self.euros_sent} € were sent, {self.euros_in_table} € are in the table")
        if self.dead_letters < self.poison:
            problems.append(f"of {self.poison} broken messages, {self.dead_letters} are in the dead-letter queue")
        causes = (self.sent_twice, self.delivered_again, self.driver_killed)
        if min(causes) < 0 or sum(causes) != self.duplicates:
            problems.append(f"the audit does not add up: {self.duplicates} duplicates, the causes are {causes}")
        return problems

    def plain(self) -> dict[str, Any]:
        return asdict(self) | {"passed": not self.problems}


def table_rows(table: Path) -> list[tuple[str, int]]:
    """Id and euros of every row."""
    import pyarrow.dataset as ds

    if not table.exists():
        return []
    rows = ds.dataset(table, format="parquet").to_table()
    return list(zip(*(rows.column(name).to_pylist() for name in ("id", "euros")), strict=True)) if rows.num_rows else []


def audit(
    sent: Sent, rows: list[tuple[str, int]], *, rows_at_kill: int, delivered: int, received: int, dead_letters: int
) -> Audit:
    """`received`: deliveries that the pipeline's finished batches account for."""
    ids = {id_ for id_, _ in rows}
    return Audit(
        orders=sent.orders,
        sent=sent.messages,
        poison=sent.poison,
        delivered=delivered,
        duplicates=delivered - sent.orders - sent.poison,
        sent_twice=sent.again,
        delivered_again=received - sent.messages,
        driver_killed=delivered - received,
        rows_at_kill=rows_at_kill,
        rows=len(rows),
        lost=len(sent.ids - ids),
        doubled=len(rows) - len(ids),
        euros_sent=sent.euros,
        euros_in_table=sum(euros for _, euros in rows),
        dead_letters=dead_letters,
    )


def lines(audit: Audit) -> list[str]:
    """The audit as text."""

    def line(text: str, count: int) -> str:
        return f"  {text:<46}{count:>10,}"

    return [
        line("orders", audit.orders),
        line("messages sent", audit.sent),
        line("deliveries by SQS", audit.delivered),
        line("of them duplicates", audit.duplicates),
        line("    the producer sent the order twice", audit.sent_twice),
        line("    SQS delivered the message again", audit.delivered_again),
        line("    the driver was killed before it was done", audit.driver_killed),
        line("broken messages", audit.poison),
        line("messages in the dead-letter queue", audit.dead_letters),
        line("rows in the table", audit.rows),
        line("euros sent", audit.euros_sent),
        line("euros in the table", audit.euros_in_table),
        "",
        line("orders lost", audit.lost),
        line("orders doubled", audit.doubled),
    ]
