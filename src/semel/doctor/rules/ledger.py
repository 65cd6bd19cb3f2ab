"""Rules on the ledger: it must remember for as long as SQS can deliver again, and must not forget when it is full."""

from __future__ import annotations

from semel.doctor import recommendations
from semel.doctor.model import Case, Remedy, Severity
from semel.doctor.rules.rule import Observation, Rule
from semel.doctor.wording import seconds


def _short_memory(case: Case) -> Observation | None:
    ledger, state = case.ledger, case.state
    if ledger is None or ledger.retention is None or (state is not None and state.sources):
        return None
    wanted = recommendations.ledger_memory(case)
    if ledger.retention >= wanted:
        return None
    source = state.retention if state is not None else None
    long = f"{case.queue} keeps messages for {seconds(source)}" if source is not None else "a message can come back"
    together = f", with its dead-letter queue {seconds(wanted)}" if source is not None and wanted > source else ""
    if source is None:
        long = f"a message can come back for {seconds(wanted)} (twice 14 days, the most that SQS allows)"
    return Observation(
        observed=f"The ledger at {ledger.where} remembers for {seconds(ledger.retention)}; {long}{together}.",
        why="A message that comes back after the ledger has forgotten it takes effect a second time.",
        remedy=Remedy(
            text=(
                f"Let the ledger remember for {seconds(wanted)} (`retention={wanted:.0f}`, in seconds), or keep "
                "messages for less."
            )
        ),
        severity=Severity.CRITICAL if source is not None and ledger.retention < source else Severity.WARNING,
        figures={"retention": ledger.retention, "recommended": wanted},
    )


def _evicts(case: Case) -> Observation | None:
    ledger = case.ledger
    if ledger is None or ledger.eviction is None or ledger.eviction == "noeviction":
        return None
    return Observation(
        observed=f"Redis at {ledger.where} evicts (maxmemory-policy {ledger.eviction}).",
        why=(
            "When its memory is full it forgets keys, whatever their age, and their messages take effect a second time."
        ),
        remedy=Remedy(
            text=(
                "Set maxmemory-policy to noeviction, in redis.conf too; on ElastiCache in the parameter group. A "
                "full Redis then refuses claims, and messages wait in the queue."
            ),
            cli=(
                f"redis-cli -u {ledger.where} CONFIG SET maxmemory-policy noeviction"
                if "://" in ledger.where
                else "redis-cli CONFIG SET maxmemory-policy noeviction",
            ),
            terraform=(
                'resource "aws_elasticache_parameter_group" "ledger" {\n'
                '  name   = "ledger"\n'
                '  family = "redis7"\n\n'
                "  parameter {\n"
                '    name  = "maxmemory-policy"\n'
                '    value = "noeviction"\n'
                "  }\n}"
            ),
        ),
    )


RULES = (
    Rule(
        "ledger-forgets",
        Severity.WARNING,
        "the ledger remembers for less than the queue and its dead-letter queue keep messages",
        "the ledger's memory (`--ledger-retention`), better with queue attributes",
        "its retention ≥ that of both queues",
        _short_memory,
    ),
    Rule(
        "ledger-evicts",
        Severity.CRITICAL,
        "a Redis ledger that evicts keys when it is full",
        "the ledger's address (`--ledger`)",
        "maxmemory-policy noeviction",
        _evicts,
    ),
)
