"""A few messages are sent first. The others follow only if all of these succeed; otherwise the others stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from semel.dlq import fingerprints
from semel.dlq.jobs import Job, JobStopped
from semel.dlq.messages import DeadLetterMessage
from semel.dlq.queues import max_receives
from semel.dlq.redrive.outcomes import Outcome, Outcomes, SentBack
from semel.sqs.client import Queue
from semel.text import count as counted

SHORTEST_WAIT: Final = 60.0
LONGEST_WAIT: Final = 900.0
_CHECK_EVERY: Final = 1.0  # seconds, where a check costs nothing
_CHECK_SELDOM: Final = 5.0
_QUOTED: Final = 3  # failures


class CanaryFailed(JobStopped):
    """The canary messages did not succeed; nothing else was sent. Fix what made them fail, then redrive again."""


def choose(messages: Sequence[DeadLetterMessage], count: int) -> list[DeadLetterMessage]:
    """Picks `count` messages, spread over the errors, the oldest of each first. They keep their order."""
    groups: dict[str, list[int]] = {}
    for place, message in enumerate(messages):
        groups.setdefault(fingerprints.of(message), []).append(place)
    chosen: list[int] = []
    depth = 0
    while len(chosen) < min(count, len(messages)):
        chosen += [places[depth] for places in groups.values() if depth < len(places)][: count - len(chosen)]
        depth += 1
    return [messages[place] for place in sorted(chosen)]


def default_wait(targets: Sequence[Queue]) -> float:
    """Twice the time in which a message can use up all its receives, but at least 1 and at most 15 minutes."""
    longest = 0.0
    for target in targets:
        attributes = target.attributes("VisibilityTimeout", "RedrivePolicy")
        visibility = float(attributes.get("VisibilityTimeout", 30))
        longest = max(longest, 2 * visibility * (max_receives(attributes) or 1))
    return min(LONGEST_WAIT, max(SHORTEST_WAIT, longest))


def watch(
    job: Job,
    outcomes: Outcomes,
    copies: Sequence[SentBack],
    wait: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> None:
    """Returns when all copies have succeeded; raises CanaryFailed if one failed, or is still pending after `wait`. If
    nothing can be known but that no copy came back, it waits until then and returns."""
    until = clock() + wait
    job.log(f"sent {counted(len(copies), 'canary message')}; waiting up to {wait:g} s for the outcome")
    while True:
        verdicts = outcomes.of(copies)
        failed = [
            (copy, verdict) for copy, verdict in zip(copies, verdicts, strict=True) if verdict.outcome is Outcome.FAILED
        ]
        if failed:
            job.add(returned=len(failed))
            quoted = "; ".join(f"{copy.message.id}: {verdict.why}" for copy, verdict in failed[:_QUOTED])
            raise CanaryFailed(f"{_share(len(failed), copies)} failed again, so the rest was not sent: {quoted}")
        pending = sum(verdict.outcome is Outcome.PENDING for verdict in verdicts)
        if not pending:
            job.log(f"{'the canary message' if len(copies) == 1 else f'all {len(copies)} canary messages'} succeeded")
            return
        if clock() >= until:
            break
        sleep(min(_CHECK_EVERY if outcomes.certain else _CHECK_SELDOM, max(0.05, until - clock())))
    if outcomes.only_absence(copies):
        job.log(
            f"no canary message came back within {wait:g} s. No more is known here; with a ledger, or on Semel's "
            "broker, their outcome is known"
        )
        return
    raise CanaryFailed(
        f"the outcome of {_share(pending, copies)} is not known after {wait:g} s, so the rest was not sent. "
        "Is a worker running on their queue? A longer --canary-wait gives it more time."
    )


def _share(number: int, copies: Sequence[SentBack]) -> str:
    return "the canary message" if len(copies) == 1 else f"{number} of the {len(copies)} canary messages"
