"""Why a message is where it is, in sentences, the most important first. Pure: nothing is read here."""

from __future__ import annotations

from collections.abc import Iterator

from semel import durations
from semel.dashboard.sources.facts import QueueFacts
from semel.dashboard.views.model import InProgress, LedgerEntry
from semel.dlq.messages import DeadLetterMessage
from semel.telemetry.message_trail import TrailEvent
from semel.text import count


def retries_left(message: DeadLetterMessage, facts: QueueFacts) -> int | None:
    """Receives before SQS moves it to the dead-letter queue; None: no limit."""
    if facts.max_receives is None or facts.dead_letter_queue is None:
        return None
    return max(0, facts.max_receives - (message.receives if message.receives_here is None else message.receives_here))


def reasons(
    message: DeadLetterMessage,
    facts: QueueFacts,
    *,
    now: float,
    is_dead_letter: bool,
    ledger: LedgerEntry | None = None,
    in_progress: InProgress | None = None,
    trail: tuple[TrailEvent, ...] = (),
    workers: int = 0,
    blocked_by: str | None = None,
) -> tuple[str, ...]:
    """`workers`: how many known workers receive from its queue. `blocked_by`: an earlier message of its FIFO group."""
    return (
        *_state(message, facts, now, is_dead_letter, in_progress, workers, blocked_by, trail),
        *_ledger(message, ledger, now),
        *_errors(message, trail, now, is_dead_letter),
        *_limits(message, facts, now, is_dead_letter),
    )


def _state(
    message: DeadLetterMessage,
    facts: QueueFacts,
    now: float,
    is_dead_letter: bool,
    in_progress: InProgress | None,
    workers: int,
    blocked_by: str | None,
    trail: tuple[TrailEvent, ...],
) -> Iterator[str]:
    if in_progress is not None:
        yield f"{in_progress.worker} has been processing it for {_for(in_progress.since)}{_heartbeat(in_progress)}."
    elif message.state == "in_flight" and trail and trail[-1].step == "retried":
        yield f"It failed and waits for its next attempt: visible again in {_for((message.visible_at or now) - now)}."
    elif message.state == "in_flight":
        until = f"for another {_for((message.visible_at or now) - now)}"
        yield (
            f"It is in flight {until}: it was received and not deleted, and no worker that this dashboard knows is "
            "processing it. If its worker crashed, it is visible again then."
        )
    elif message.state == "delayed":
        yield f"It is delayed for another {_for((message.visible_at or now) - now)}, and cannot be received before."
    elif is_dead_letter:
        source = f" of {message.source}" if message.source else ""
        yield f"It is a dead-letter message{source}: it stays here until it is redriven, deleted or expires."
    elif blocked_by is not None:
        yield (
            f"Message {blocked_by} of the same group {message.group} comes before it and is in flight: this one cannot "
            "be received until that one is deleted."
        )
    elif message.state == "visible" or not message.state:
        yield from _waits(message, facts, now, workers)


def _waits(message: DeadLetterMessage, facts: QueueFacts, now: float, workers: int) -> Iterator[str]:
    age = _for(now - message.sent)
    if workers:
        yield (
            f"It can be received now and has been waiting for {age}; {count(workers, 'worker')} "
            f"{'receives' if workers == 1 else 'receive'} from {facts.name}, which has "
            f"{count(facts.visible, 'visible message')}."
        )
    else:
        yield (
            f"It can be received now and has been waiting for {age}, and no worker that this dashboard knows receives "
            f"from {facts.name}. Start one with --health, or name it with --worker."
        )


def _ledger(message: DeadLetterMessage, ledger: LedgerEntry | None, now: float) -> Iterator[str]:
    if ledger is None:
        return
    if ledger.status == "done":
        yield (
            f"Its key has been done in the ledger for {_for(now - ledger.changed)}: its effect has happened. When it "
            "is delivered again, it is deleted and not run."
        )
    elif ledger.status == "claimed":
        left = (ledger.lease_ends or now) - now
        if left > 0:
            yield f"Its key is claimed in the ledger for another {_for(left)}; other workers return it to the queue."
        else:
            yield f"Its key is claimed in the ledger, but the lease ended {_for(-left)} ago: the next delivery runs it."
    elif ledger.status == "rejected":
        source = f" from {ledger.source}" if ledger.source else ""
        yield f"Its key is rejected in the ledger{source}. A redrive may run it again."
    elif ledger.status == "free" and ledger.attempt:
        yield f"The ledger has {count(ledger.attempt, 'attempt')} of its key; the last claim was released."
    if message.key and ledger.steps:
        yield f"Finished steps are recorded and are not run again: {', '.join(ledger.steps[:10])}."


def _errors(
    message: DeadLetterMessage, trail: tuple[TrailEvent, ...], now: float, is_dead_letter: bool
) -> Iterator[str]:
    failed = [event for event in trail if event.error]
    if failed:
        last = failed[-1]
        by = f" on {last.worker}" if last.worker else ""
        yield f"Its last error, {_for(now - last.at)} ago{by}: {last.error[:300]}"
    elif message.error:
        yield f"It was dead-lettered after {count(message.attempts, 'attempt')}: {message.error[:300]}"
    elif is_dead_letter and not message.reason:
        yield "SQS moved it here because it was received too often; the error is not known."


def _limits(message: DeadLetterMessage, facts: QueueFacts, now: float, is_dead_letter: bool) -> Iterator[str]:
    if not is_dead_letter:
        left = retries_left(message, facts)
        if left == 0:
            yield f"The next receive moves it to {facts.dead_letter_queue}: all {facts.max_receives} receives are used."
        elif left is not None and message.receives:
            yield f"{count(left, 'receive')} left before SQS moves it to {facts.dead_letter_queue}."
        elif left is None and message.receives >= 3:
            yield (
                f"It was received {message.receives} times, and {facts.name} has no dead-letter queue: it is delivered "
                "again until its retention ends."
            )
    if message.expires is not None:
        ends = message.expires - now
        if ends < 24 * 3600:
            yield (
                f"SQS deletes it in {_for(ends)}: its retention ends then." if ends > 0 else "Its retention has ended."
            )


def _heartbeat(in_progress: InProgress) -> str:
    if in_progress.heartbeat_age is not None:
        return f"; its last heartbeat was {_for(in_progress.heartbeat_age)} ago"
    return ""


def _for(duration: float) -> str:
    return durations.text(round(duration))
