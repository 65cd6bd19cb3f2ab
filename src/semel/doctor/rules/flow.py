"""Rules on the flow: the numbers of messages received, in flight and deleted must fit together."""

from __future__ import annotations

from statistics import median

from semel.doctor.model import Case, Point, Series, Severity
from semel.doctor.rules.duplicates import LEDGER
from semel.doctor.rules.rule import Observation, rule
from semel.doctor.text_format import share
from semel.durations import text as duration
from semel.sqs import limits
from semel.text import count

_NEAR_CAP = 0.8
_DRIFT = 0.05
_ENOUGH = 20  # messages
_ENOUGH_POINTS = 5
_FLAT = 0.3


@rule(
    "in-flight-near-cap",
    Severity.WARNING,
    title="messages in flight near the limit of SQS, 120,000",
    needs="queue attributes or metrics",
    remedy="hold fewer; delete what is done",
)
def near_cap(case: Case) -> Observation | None:
    now = float(case.state.in_flight) if case.state is not None else 0.0
    points = case.series.points if case.series is not None else ()
    most = max((point.in_flight for point in points if point.in_flight is not None), default=0.0)
    highest = max(now, most)
    if highest < _NEAR_CAP * limits.MAX_IN_FLIGHT:
        return None
    when = "are" if now >= most else "were, at the highest,"
    return Observation(
        observed=(
            f"{count(highest, 'message')} {when} in flight, {share(highest, limits.MAX_IN_FLIGHT)} of the "
            f"{count(limits.MAX_IN_FLIGHT)} that SQS allows."
        ),
        why=(
            "At the limit a FIFO queue delivers nothing more, without an error."
            if case.is_fifo
            else "At the limit short polls fail with OverLimit, and long polls return nothing, without an error."
        ),
        remedy=(
            "Delete messages when they are done, and limit how many each worker receives ahead. If messages are in "
            "flight that nobody works on, the visibility timeout is too long, or deletes fail."
        ),
        figures={"in_flight": highest, "cap": limits.MAX_IN_FLIGHT},
    )


@rule(
    "received-not-deleted",
    Severity.WARNING,
    title="more is received than deleted, all the time",
    needs="metrics or logs",
    remedy="find the cause in the logs",
)
def received_not_deleted(case: Case) -> Observation | None:
    drift = (_drift_of_series(case.series) if case.series is not None else None) or _drift_of_log(case)
    if drift is None:
        return None
    received, deleted, span, source = drift
    behaviour = case.behaviour
    known = behaviour.duplicates + behaviour.retries if behaviour is not None else 0
    explained = f" The logs explain {count(known)} of them: duplicates and retries." if known else ""
    return Observation(
        observed=(
            f"In {duration(span)} {count(received, 'message')} were received and {count(deleted)} deleted, by "
            f"{source}: {share(received - deleted, received)} came back.{explained}"
        ),
        why="A message that is received and not deleted is delivered again, or fails.",
        remedy=(
            "Give the doctor the logs of the consumers (--log): they show whether it is the timeout, crashes, lost "
            f"deletes or errors. {LEDGER}"
            if behaviour is None
            else "See the findings on duplicates and on errors for the causes. The rest are messages that a consumer "
            "received and never recorded an outcome for."
        ),
        figures={"received": received, "deleted": deleted, "seconds": span},
    )


@rule(
    "in-flight-plateau",
    Severity.WARNING,
    title="in flight stays at visibility timeout × rate: nothing is deleted early",
    needs="metrics, with queue attributes or logs",
    remedy="delete; return failed messages at once",
)
def plateau(case: Case) -> Observation | None:
    series, visibility = case.series, case.visibility
    if series is None or not visibility or not series.period:
        return None
    points = [point for point in series.points if point.in_flight is not None and point.received is not None]
    points = [point for point in points if point.in_flight or point.received]
    points = points[len(points) // 2 :]  # the climb to a plateau is left out
    if len(points) < _ENOUGH_POINTS:
        return None
    levels = sorted(point.in_flight or 0.0 for point in points)
    level = median(levels)
    low, high = levels[len(levels) // 10], levels[-1 - len(levels) // 10]
    rate = median((point.received or 0.0) / series.period for point in points)
    if level < _ENOUGH or not rate or high - low > _FLAT * level or not 0.8 <= level / rate / visibility <= 1.2:
        return None
    deleted = [point.deleted for point in points if point.deleted is not None]
    gone = sum(deleted) / max(1.0, sum(point.received or 0 for point in points)) if deleted else 0.0
    return Observation(
        observed=(
            f"In flight stays near {count(level)}: {rate:,.1f} messages a second times the visibility timeout of "
            f"{duration(visibility)} ({count(rate * visibility)})."
        ),
        why="Messages stay hidden for the whole timeout: they are received, and neither deleted nor returned.",
        remedy=(
            "Check whether deletes are sent and succeed, and return messages that fail to the queue at once "
            "(ChangeMessageVisibility 0) instead of waiting for the timeout."
        ),
        severity=Severity.INFO if gone >= 0.9 else None,
        figures={"in_flight": level, "received_per_second": round(rate, 3), "visibility": visibility},
    )


def _drift_of_series(series: Series) -> tuple[float, float, float, str] | None:
    """Received, deleted and over how long; what is still in flight is not counted as received."""
    points = [point for point in series.points if point.received is not None and point.deleted is not None]
    if len(points) < _ENOUGH_POINTS:
        return None
    half = len(points) // 2
    both = [_between(part) for part in (points, points[:half], points[half:])]
    if not all(_drifts(received, deleted) for received, deleted in both):
        return None
    received, deleted = both[0]
    return received, deleted, len(points) * series.period, "the metrics"


def _between(points: list[Point]) -> tuple[float, float]:
    received = sum(point.received or 0 for point in points)
    in_flight = [point.in_flight for point in points if point.in_flight is not None]
    grown = max(0.0, in_flight[-1] - in_flight[0]) if in_flight else 0.0
    return received - grown, sum(point.deleted or 0 for point in points)


def _drifts(received: float, deleted: float) -> bool:
    return received >= _ENOUGH and received - deleted > _DRIFT * received


def _drift_of_log(case: Case) -> tuple[float, float, float, str] | None:
    behaviour = case.behaviour
    if behaviour is None or not behaviour.windows:
        return None
    # The work on the last messages may still go on when the log ends.
    end = behaviour.windows[-1].start + behaviour.window - (case.visibility or 0.0)
    counted = [window for window in behaviour.windows if window.start + behaviour.window <= end]
    received = float(sum(window.received for window in counted))
    deleted = float(sum(window.deleted for window in behaviour.windows))
    # A log without a single delete does not log deletes.
    if not counted or not deleted or not _drifts(received, deleted):
        return None
    return received, deleted, len(counted) * behaviour.window, "the logs"
