"""A queue at one moment, its history in one form, and the protocol of the sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from semel.dashboard.views.model import Rates, Series
from semel.dlq import queues as dead_letter_queues

COUNTED: Final = ("sent", "received", "deleted", "empty_receives", "dead_lettered")
MEASURED: Final = ("visible", "in_flight", "delayed", "oldest_age")
RECENT: Final = 65.0  # seconds over which the current rates are averaged
Column = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """A queue's attributes and counts at one moment."""

    name: str
    url: str
    arn: str = ""
    fifo: bool = False
    visible: int = 0
    in_flight: int = 0
    delayed: int = 0
    oldest_age: float | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None

    def number(self, name: str, default: float) -> float:
        try:
            return float(self.attributes[name])
        except (KeyError, ValueError):
            return default

    @property
    def depth(self) -> int:
        return self.visible + self.in_flight + self.delayed

    @property
    def retention(self) -> float:
        return self.number("MessageRetentionPeriod", 345_600.0)

    @property
    def dead_letter_arn(self) -> str:
        return str(dead_letter_queues.redrive_policy(self.attributes).get("deadLetterTargetArn") or "")

    @property
    def dead_letter_queue(self) -> str | None:
        return dead_letter_queues.dead_letter_queue_name(self.attributes) or None

    @property
    def max_receives(self) -> int | None:
        return dead_letter_queues.max_receives(self.attributes)


class Source(Protocol):
    """Thread-safe. Results are cached for a moment."""

    is_ours: bool

    def facts(self) -> Sequence[QueueFacts]:
        """The facts about all queues, by name."""

    def series(self, names: Sequence[str], since: float) -> Mapping[str, Series]:
        """The history of these queues, of all if none is named; queues without one are left out."""

    def notes(self) -> Sequence[str]:
        """What could not be read, and why."""

    def now(self) -> float:
        """The time by the clock that messages are stamped with."""

    def forget(self) -> None:
        """Drops cached data, because something was changed."""

    def close(self) -> None: ...


# The history.


def from_broker(columns: Mapping[str, Sequence[float]], period: float) -> Series:
    """From the broker's history, which counts what happened in each period."""
    seconds = columns["seconds"]
    known: dict[str, Any] = {
        name: tuple(
            round(count / span, 3) if span else None for count, span in zip(columns[name], seconds, strict=True)
        )
        for name in COUNTED
    }
    known |= {name: tuple(columns[name]) for name in MEASURED}
    return Series(at=tuple(columns["at"]), source="broker", period=period, **known)


def rates(series: Series, now: float) -> Rates:
    """The rates over the last minute; None where there is no sample."""
    first = next((place for place, at in enumerate(series.at) if at > now - RECENT), len(series.at))
    return Rates(*(_mean(column[first:]) for column in (series.sent, series.received, series.deleted)))


def thinned(series: Series, most: int) -> Series:
    """At most `most` samples: neighbours are merged, by the mean of rates and the last of measured values."""
    if len(series.at) <= most:
        return series
    step = -(-len(series.at) // most)

    # From the newest backwards, so that the last sample stays the last one.
    places = range(len(series.at), 0, -step)
    pieces = [slice(max(0, place - step), place) for place in places][::-1]

    def reduced(column: Column, how: Callable[[Sequence[float | None]], float | None]) -> Column:
        return tuple(how(column[piece]) for piece in pieces) if column else ()

    return Series(
        at=tuple(series.at[piece][-1] for piece in pieces),
        source=series.source,
        period=series.period * step,
        **{name: reduced(getattr(series, name), _mean) for name in COUNTED},
        **{name: reduced(getattr(series, name), lambda values: values[-1]) for name in MEASURED},
    )


def later(series: Series, than: float) -> Series:
    """The samples after a moment."""
    return newest(series, sum(at > than for at in series.at))


def newest(series: Series, most: int) -> Series:
    """The last samples, at most `most`."""
    first = max(0, len(series.at) - most)
    if first == 0:
        return series
    columns = {name: getattr(series, name)[first:] for name in (*COUNTED, *MEASURED)}
    return Series(at=series.at[first:], source=series.source, period=series.period, **columns)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 3) if known else None
