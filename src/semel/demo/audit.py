"""What was sent against what is in the table: the only figures that count in the end."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from semel.demo.producer import Sent


@dataclass(frozen=True, slots=True)
class Audit:
    """`delivered`: by SQS, duplicates and all. `driver_killed` is what no other cause explains; a message that SQS
    delivered twice and whose delete it lost, too, counts under both, so it is rather too low."""

    orders: int
    sent: int
    delivered: int
    duplicates: int
    producer_twice: int
    delivered_twice: int
    delete_lost: int
    driver_killed: int
    rows: int
    lost: int
    doubled: int
    euros_sent: int
    euros_in_table: int
    poison: int
    dead_letters: int

    @property
    def passed(self) -> bool:
        exact = self.lost == self.doubled == 0 and self.euros_sent == self.euros_in_table
        return exact and self.poison <= self.dead_letters

    def plain(self) -> dict[str, Any]:
        return asdict(self) | {"passed": self.passed}


def audit(sent: Sent, table: Path, delivered: int, faults: dict[str, int], dead_letters: int) -> Audit:
    import pyarrow.dataset as ds

    rows = ds.dataset(table, format="parquet").to_table(columns=["id", "euros"])
    ids = rows.column("id").to_pylist()
    distinct = set(ids)
    twice, lost_deletes = faults.get("duplicate", 0), faults.get("lost-delete", 0)
    beyond = delivered - sent.orders - sent.poison
    return Audit(
        orders=sent.orders,
        sent=sent.messages,
        delivered=delivered,
        producer_twice=sent.again,
        delivered_twice=twice,
        delete_lost=lost_deletes,
        duplicates=beyond,
        driver_killed=max(0, beyond - sent.again - twice - lost_deletes),
        rows=len(ids),
        lost=len(sent.ids - distinct),
        doubled=len(ids) - len(distinct),
        euros_sent=sent.euros,
        euros_in_table=sum(rows.column("euros").to_pylist()),
        poison=sent.poison,
        dead_letters=dead_letters,
    )


def told(found: Audit) -> list[str]:
    """The table for people."""

    def line(text: str, count: int, after: str = "") -> str:
        return f"  {text:<46}{count:>9,}{after}"

    return [
        line("orders", found.orders),
        line("messages sent", found.sent, f"   with {found.poison} that are no orders"),
        line("deliveries by SQS", found.delivered),
        line("of them duplicates", found.duplicates),
        line("    the producer sent twice", found.producer_twice),
        line("    SQS delivered twice", found.delivered_twice),
        line("    SQS lost the delete", found.delete_lost),
        line("    the driver was killed with them in hand", found.driver_killed),
        line("rows in the table", found.rows, f"   {found.euros_in_table:,} € of {found.euros_sent:,} €"),
        line("dead letters, with their reason", found.dead_letters),
        "",
        line("lost", found.lost),
        line("doubled", found.doubled),
    ]
