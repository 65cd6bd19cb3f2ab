"""Rules on the ledger: it must keep keys for as long as SQS can deliver again, also when it is full."""

from __future__ import annotations

from semel.doctor import recommendations, remedies
from semel.doctor.model import Case, Remedy, Severity
from semel.doctor.rules.rule import Observation, rule
from semel.durations import text as duration
from semel.messages.dead_letter_queue import MAX_REDELIVERY, redelivery_period


@rule(
    "ledger-forgets",
    Severity.WARNING,
    title="the ledger keeps keys for less time than the queue and its dead-letter queue keep messages",
    needs="the ledger's retention (`--ledger-retention`), better with queue attributes",
    remedy="its retention ≥ that of both queues",
)
def short_retention(case: Case) -> Observation | None:
    ledger, state = case.ledger, case.state
    if ledger is None or ledger.retention is None or (state is not None and state.sources):
        return None
    if state is None:
        needed = MAX_REDELIVERY
        messages = f"a message can come back for {duration(needed)} (twice 14 d, the most that SQS allows)"
    else:
        dlq = state.dead_letters
        dead = (dlq.retention or recommendations.MAX_RETENTION) if dlq is not None else 0.0
        needed = redelivery_period(state.retention, dead)
        messages = f"{case.queue} keeps messages for {duration(state.retention)}"
        messages += f", and its dead-letter queue for {duration(dead)}" if dead else ""
    if ledger.retention >= needed:
        return None
    return Observation(
        observed=f"The ledger at {ledger.where} keeps keys for {duration(ledger.retention)}; {messages}.",
        why="A message that comes back after the ledger has dropped its key takes effect a second time.",
        remedy=remedies.joined(recommendations.ledger_remedy(case), "Or keep messages for less time."),
        severity=Severity.CRITICAL if state is not None and ledger.retention < state.retention else None,
        figures={"retention": ledger.retention, "recommended": recommendations.ledger_retention(case)},
    )


@rule(
    "ledger-evicts",
    Severity.CRITICAL,
    title="a Redis ledger that evicts keys when it is full",
    needs="the ledger's address (`--ledger`)",
    remedy="maxmemory-policy noeviction",
)
def evicts(case: Case) -> Observation | None:
    ledger = case.ledger
    if ledger is None or ledger.eviction is None or ledger.eviction == "noeviction":
        return None
    address = f" -u {ledger.where}" if "://" in ledger.where else ""
    return Observation(
        observed=f"Redis at {ledger.where} evicts keys (maxmemory-policy {ledger.eviction}).",
        why="When its memory is full it drops keys, however young, and their messages take effect a second time.",
        remedy=Remedy(
            text=(
                "Set maxmemory-policy to noeviction, in redis.conf too; on ElastiCache in the parameter group. A "
                "full Redis then refuses claims, and messages wait in the queue."
            ),
            cli=(f"redis-cli{address} CONFIG SET maxmemory-policy noeviction",),
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
