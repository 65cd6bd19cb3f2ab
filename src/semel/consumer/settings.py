"""Every setting of a handler, its value, and where that came from.

Resolved in one place, from the nearest to the farthest: command line, handler, app, environment, the queue's own
attributes, default. `semel run --explain` prints what this found.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from semel.consumer.backoff import Backoff, Exponential
from semel.durations import seconds
from semel.errors import SemelError

MISSING_KEY: Final = ("reject", "message-id", "skip")
ON_FAILURE: Final = ("block_group", "skip_message")
SHORTEST_LEASE: Final = 10  # seconds; a queue whose timeout is shorter is not a choice but an oversight
DEFAULT_LEASE: Final = 30


class Setting(NamedTuple):
    value: Any
    source: str


def _at_least(least: float, kind: type = int) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        number = kind(value)
        if number < least:
            raise ValueError(f"{least} is the least")
        return number

    return check


def _duration(least: float, most: float) -> Callable[[Any], float]:
    def check(value: Any) -> float:
        duration = seconds(value)
        if not least <= duration <= most:
            raise ValueError(f"it must be from {least:g} to {most:g} seconds")
        return duration

    return check


def _one_of(*names: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value not in names:
            raise ValueError(f"it is one of {', '.join(names)}")
        return str(value)

    return check


def _backoff(value: Any) -> Backoff:
    if not hasattr(value, "delay"):
        raise ValueError("it is a back-off such as Exponential(base=2, cap=900), Fixed(5) or Schedule([1, 10, 60])")
    found: Backoff = value
    return found


def _optional(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None or value == "none" else check(value)


def _flag(value: Any) -> bool:
    if isinstance(value, str):
        if value.lower() not in ("0", "1", "true", "false"):
            raise ValueError("it is true or false")
        return value.lower() in ("1", "true")
    return bool(value)


class _Option(NamedTuple):
    default: Any
    check: Callable[[Any], Any]
    meaning: str
    environment: bool = True


HOURS_12: Final = 12 * 3_600
OPTIONS: Final[dict[str, _Option]] = {
    "concurrency": _Option(32, _at_least(1), "messages worked on at a time; of a batch handler: batches"),
    "lease": _Option(DEFAULT_LEASE, _duration(1, HOURS_12), "seconds a dead worker keeps its message from others"),
    "wait": _Option(20, _at_least(0), "seconds of a long poll"),
    "max_attempts": _Option(None, _optional(_at_least(1)), "attempts until a message becomes a dead letter"),
    "retry": _Option(Exponential(), _backoff, "how long a failed message waits", environment=False),
    "max_runtime": _Option(HOURS_12 - 60, _duration(1, HOURS_12 - 60), "seconds after which a handler is given up on"),
    "max_bytes": _Option(64 << 20, _at_least(1 << 20), "bytes of bodies in memory at which receiving pauses"),
    "dead_letter": _Option(None, _optional(str), "queue for dead letters", environment=False),
    "missing_key": _Option("reject", _one_of(*MISSING_KEY), "what to do with a message that has no key"),
    "on_failure": _Option("block_group", _one_of(*ON_FAILURE), "FIFO: what a failure does to its group"),
    "keep": _Option(None, _optional(_duration(1, 3_650 * 86_400)), "how long the ledger remembers"),
    "keep_result": _Option(False, _flag, "store what the handler returns, as JSON, in the ledger"),
    "size": _Option(100, _at_least(1), "batch handlers: messages of one call, at most"),
    "linger": _Option(0.2, _duration(0, 60), "batch handlers: seconds that a batch waits to fill up"),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What a lane works by. `max_receives` is the queue's own limit, after which SQS moves a message itself."""

    concurrency: int
    lease: float
    wait: int
    max_attempts: int | None
    retry: Backoff
    max_runtime: float
    max_bytes: int
    dead_letter: str | None
    missing_key: str
    on_failure: str
    keep: float | None
    keep_result: bool
    size: int
    linger: float
    max_receives: int | None
    sources: Mapping[str, str]


def check_names(options: Mapping[str, Any], whose: str) -> None:
    for name in options:
        if name not in OPTIONS:
            raise SemelError(f"{whose} has no option {name!r}; there are {', '.join(sorted(OPTIONS))}")


def resolve(
    *,
    queue: str,
    command_line: Mapping[str, Any],
    handler: Mapping[str, Any],
    app: Mapping[str, Any],
    environment: Mapping[str, str],
    attributes: Mapping[str, str],
) -> Settings:
    """All settings of the handler of `queue`, whose SQS attributes are `attributes`."""
    from_queue, max_receives = _of_queue(attributes)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, option in OPTIONS.items():
        variable = f"SEMEL_{name.upper()}"
        offers = (
            (command_line.get(name), "command line"),
            (handler.get(name), "handler"),
            (app.get(name), "app"),
            (environment.get(variable) if option.environment else None, f"environment: {variable}"),
            from_queue.get(name, (None, "")),
        )
        value, source = next(((value, source) for value, source in offers if value is not None), (None, ""))
        if value is None:
            value, source = option.default, "default"
        try:
            values[name] = option.check(value)
        except (ValueError, TypeError, SemelError) as error:
            raise SemelError(f"{name}={value!r} ({source}) for the queue {queue!r} is not possible: {error}") from None
        sources[name] = source
    if values["wait"] > 20:
        raise SemelError(f"wait={values['wait']} for the queue {queue!r} is not possible: SQS polls for 20 s at most")
    return Settings(**values, max_receives=max_receives, sources=sources)


def _of_queue(attributes: Mapping[str, str]) -> tuple[dict[str, Setting], int | None]:
    """What the queue's own attributes say, and after how many receives SQS gives a message up."""
    found: dict[str, Setting] = {}
    visibility = int(attributes.get("VisibilityTimeout", DEFAULT_LEASE))
    if visibility >= SHORTEST_LEASE:
        found["lease"] = Setting(visibility, "queue: VisibilityTimeout")
    max_receives = None
    if policy := attributes.get("RedrivePolicy"):
        redrive = json.loads(policy)
        max_receives = int(redrive["maxReceiveCount"])
        found["dead_letter"] = Setting(redrive["deadLetterTargetArn"], "queue: RedrivePolicy")
        found["max_attempts"] = Setting(max_receives, "queue: RedrivePolicy")
    return found, max_receives
