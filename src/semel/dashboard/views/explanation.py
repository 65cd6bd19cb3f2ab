"""Why a message is where it is, in sentences: the question behind every look at a single message.

Nothing is asked here: it is decided from what is known. The most telling sentence comes first.
"""

from __future__ import annotations

from collections.abc import Iterator

from semel import durations
from semel.dashboard.sources.facts import QueueFacts
from semel.dashboard.views.model import AttemptEvent, InProgress, LedgerEntry, Message
from semel.doctor.wording import count


def retries_left(message: Message, facts: QueueFacts) -> int | None:
    """Receives before SQS moves it to the dead-letter queue; None: it never does."""
    if facts.max_receives is None or facts.dead_letter_queue is None:
        return None
    return max(0, facts.max_receives - (message.receives if message.receives_here is None else message.receives_here))


def reasons(
    message: Message,
    facts: QueueFacts,
    *,
    now: float,
    ledger: LedgerEntry | None = None,
    in_progress: InProgress | None = None,
    trail: tuple[AttemptEvent, ...] = (),
    workers: int = 0,
    blocked_by: str | None = None,
) -> tuple[str, ...]:
    """`workers`: known ones that take from its queue. `blocked_by`: an earlier message of its FIFO group."""
    return (
        *_where(message, facts, now, in_progress, workers, blocked_by, trail),
        *_remembered(message, ledger, now),
        *_past(message, trail, now),
        *_future(message, facts, now),
    )


def _where(
    message: Message,
    facts: QueueFacts,
    now: float,
    in_progress: InProgress | None,
    workers: int,
    blocked_by: str | None,
    trail: tuple[AttemptEvent, ...],
) -> Iterator[str]:
    if in_progress is not None:
        yield f"{in_progress.worker} works on it, for {_for(in_progress.since)} now{_pulse(in_progress)}."
    elif message.state == "in_flight" and trail and trail[-1].step == "retried":
        yield f"It failed and waits for its next attempt: it comes back in {_for((message.visible_at or now) - now)}."
    elif message.state == "in_flight":
        until = f"for another {_for((message.visible_at or now) - now)}"
        yield (
            f"It is in flight {until}: somebody received it and has not deleted it, and no worker that this dashboard "
            "knows holds it. If its worker crashed, it comes back then."
        )
    elif message.state == "delayed":
        yield f"It is delayed for another {_for((message.visible_at or now) - now)}; nobody can receive it before."
    elif message.is_dead_letter:
        came = f" from {message.source}" if message.source else ""
        yield f"It is a dead letter{came}: nobody takes from here unless somebody redrives it."
    elif blocked_by is not None:
        yield (
            f"Message {blocked_by} of the same group {message.group} comes before it and is in flight; FIFO order "
            "holds this one back until that one is deleted."
        )
    elif message.state == "visible" or not message.state:
        yield from _waits(message, facts, now, workers)


def _waits(message: Message, facts: QueueFacts, now: float, workers: int) -> Iterator[str]:
    age = _for(now - message.sent)
    if workers:
        yield (
            f"It can be received now and waits since {age}; {count(workers, 'worker')} "
            f"{'takes' if workers == 1 else 'take'} from {facts.name}, and {count(facts.visible, 'message')} wait."
        )
    else:
        yield (
            f"It can be received now and waits since {age}, and no worker that this dashboard knows takes from "
            f"{facts.name}. Start one with --health, or name it with --worker."
        )


def _remembered(message: Message, ledger: LedgerEntry | None, now: float) -> Iterator[str]:
    if ledger is None:
        return
    if ledger.status == "done":
        yield (
            f"The ledger has its key as done since {_for(now - ledger.changed)}: its effect is there. When it is "
            "delivered again it is deleted without being run."
        )
    elif ledger.status == "claimed":
        left = (ledger.lease_ends or now) - now
        if left > 0:
            yield f"The ledger has its key as claimed for another {_for(left)}; whoever else gets it puts it back."
        else:
            yield f"The ledger has its key as claimed, but the lease ran out {_for(-left)} ago: the next delivery wins."
    elif ledger.status == "rejected":
        told = f" from {ledger.source}" if ledger.source else ""
        yield f"The ledger has its key as rejected{told}: given up on. A redrive may run it again."
    elif ledger.status == "free" and ledger.attempt:
        yield f"The ledger counts {count(ledger.attempt, 'attempt')} of its key; the last one was given back."
    if message.key and ledger.steps:
        yield f"Finished steps are remembered and are not run again: {', '.join(ledger.steps[:10])}."


def _past(message: Message, trail: tuple[AttemptEvent, ...], now: float) -> Iterator[str]:
    failed = [event for event in trail if event.error]
    if failed:
        last = failed[-1]
        by = f" on {last.worker}" if last.worker else ""
        yield f"Its last error, {_for(now - last.at)} ago{by}: {last.error[:300]}"
    elif message.error:
        yield f"It was given up on after {count(message.attempts, 'attempt')}: {message.error[:300]}"
    elif message.is_dead_letter and not message.reason:
        yield "SQS moved it here by itself: it was received too often, and nobody wrote down why."


def _future(message: Message, facts: QueueFacts, now: float) -> Iterator[str]:
    if not message.is_dead_letter:
        left = retries_left(message, facts)
        if left == 0:
            yield f"The next receive moves it to {facts.dead_letter_queue}: all {facts.max_receives} are used up."
        elif left is not None and message.receives:
            yield f"{count(left, 'receive')} left before SQS moves it to {facts.dead_letter_queue}."
        elif left is None and message.receives >= 3:
            yield (
                f"It was received {message.receives} times, and {facts.name} has no dead-letter queue: it comes back "
                "until its retention ends."
            )
    if message.expires is not None:
        ends = message.expires - now
        if ends < 24 * 3600:
            yield (
                f"SQS deletes it in {_for(ends)}: its retention ends then." if ends > 0 else "Its retention has ended."
            )


def _pulse(in_progress: InProgress) -> str:
    if in_progress.heartbeat_age is not None:
        return f"; its last heartbeat was {_for(in_progress.heartbeat_age)} ago"
    return ""


def _for(duration: float) -> str:
    return durations.text(round(duration))
