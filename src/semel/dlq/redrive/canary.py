"""A few go first. Only when all of them were worked off well do the others follow; else those stay where they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from semel.dlq import fingerprints
from semel.dlq.access.leases import redrive_policy
from semel.dlq.jobs import Job, JobStopped
from semel.dlq.messages import DeadLetterMessage
from semel.dlq.redrive.outcomes import Outcome, Outcomes, SentBack
from semel.sqs.client import Queue

SHORTEST_WAIT: Final = 60.0
LONGEST_WAIT: Final = 900.0
_LOOK_EVERY: Final = 1.0  # seconds; where nothing but a look at a broker or a ledger is to be had
_LOOK_SELDOM: Final = 5.0
_SHOWN: Final = 3  # failures that are quoted


class CanaryFailed(JobStopped):
    """Those that went first were not worked off; nothing else was sent."""


def choose(messages: Sequence[DeadLetterMessage], count: int) -> list[DeadLetterMessage]:
    """So many, spread over what they died of, the oldest of each first; in the order in which they were given."""
    groups: dict[str, list[int]] = {}
    for place, message in enumerate(messages):
        groups.setdefault(fingerprints.of(message), []).append(place)
    chosen: list[int] = []
    depth = 0
    while len(chosen) < min(count, len(messages)):
        chosen += [places[depth] for places in groups.values() if depth < len(places)][: count - len(chosen)]
        depth += 1
    return [messages[place] for place in sorted(chosen)]


def patience(targets: Sequence[Queue]) -> float:
    """Seconds within which a message has been tried as often as it is at all, twice over; from 1 to 15 minutes."""
    longest = 0.0
    for target in targets:
        visibility = float(target.attributes("VisibilityTimeout").get("VisibilityTimeout", 30))
        longest = max(longest, 2 * visibility * int(redrive_policy(target).get("maxReceiveCount", 1)))
    return min(LONGEST_WAIT, max(SHORTEST_WAIT, longest))


def watch(
    job: Job,
    fates: Outcomes,
    copies: Sequence[SentBack],
    wait: float,
    clock: Callable[[], float],
    sleep: Callable[[Job, float], None],
) -> None:
    """Returns when all of them succeeded; raises CanaryFailed when one did not, or nothing is known after `wait`."""
    until = clock() + wait
    while True:
        verdicts = fates.of(copies)
        failed = [
            (copy, verdict) for copy, verdict in zip(copies, verdicts, strict=True) if verdict.fate is Outcome.FAILED
        ]
        if failed:
            job.add(returned=len(failed))
            shown = "; ".join(f"{copy.message.id}: {verdict.why}" for copy, verdict in failed[:_SHOWN])
            raise CanaryFailed(
                f"{len(failed)} of the {len(copies)} that went first failed again, so the rest was not sent: {shown}"
            )
        pending = sum(verdict.fate is Outcome.PENDING for verdict in verdicts)
        if not pending:
            job.say(f"all {len(copies)} that went first were worked off")
            return
        if clock() >= until:
            break
        sleep(job, min(_LOOK_EVERY if fates.sure else _LOOK_SELDOM, max(0.05, until - clock())))
    if fates.presumed(copies):
        job.say(
            f"none of the {len(copies)} that went first came back within {wait:g} s. That is all that can be seen "
            "here; with a ledger, or on Semel's broker, it is known"
        )
        return
    raise CanaryFailed(
        f"the fate of {pending} of the {len(copies)} that went first is not known after {wait:g} s, so the rest was "
        "not sent. Is a worker running on their queue? A longer canary_wait gives it more time."
    )
