"""Every setting of a handler: its value, and where the value came from.

The rule: the first source that sets it wins, in this order: command line, handler, app, environment variable, the
queue's attributes, default. `semel run --explain` prints the result.
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
SHORTEST_LEASE: Final = 10  # seconds; a queue's VisibilityTimeout below this is taken for a mistake, and not used
DEFAULT_LEASE: Final = 30
RECOMMENDED_RECEIVES: Final = 5  # maxReceiveCount that --create-dlq sets and the doctor recommends


class Setting(NamedTuple):
    value: Any
    source: str


def _at_least(least: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        try:
            number = int(value)
        except ValueError:
            raise ValueError("it must be a whole number") from None
        if number < least:
            raise ValueError(f"the minimum is {least}")
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
            raise ValueError(f"it must be one of {', '.join(names)}")
        return str(value)

    return check


def _backoff(value: Any) -> Backoff:
    if not hasattr(value, "delay"):
        raise ValueError(
            "it must be a back-off such as Exponential(base=2, cap=900), Fixed(5) or Schedule([1, 10, 60])"
        )
    backoff: Backoff = value
    return backoff


def _flag(value: Any) -> bool:
    if isinstance(value, str):
        if value.lower() not in ("0", "1", "true", "false"):
            raise ValueError("it must be true or false")
        return value.lower() in ("1", "true")
    return bool(value)


@dataclass(frozen=True, slots=True)
class Option:
    """One setting. `unset`: the word that stands for None, if None is allowed, as in `SEMEL_PREFETCH=auto`."""

    default: Any
    parse: Callable[[Any], Any]
    description: str
    unset: str | None = None
    environment: bool = True  # whether SEMEL_NAME sets it
    is_duration: bool = False

    def check(self, value: Any) -> Any:
        if self.unset is not None and value in (None, self.unset):
            return None
        return self.parse(value)

    def text(self, value: Any) -> str:
        """The value as a user would write it."""
        if value is None:
            return self.unset or "none"
        return duration_text(value) if self.is_duration else str(value)


def _time(default: float | None, least: float, most: float, description: str, unset: str | None = None) -> Option:
    return Option(default, _duration(least, most), description, unset, is_duration=True)


HOUR: Final = 3_600
MAX_RUNTIME: Final = 12 * HOUR - 60
OPTIONS: Final[dict[str, Option]] = {
    "concurrency": Option(32, _at_least(1), "maximum number of handlers that run at once (batch handler: of batches)"),
    "prefetch": Option(
        None,
        _at_least(0),
        "maximum number of messages received ahead of the handlers; 0: only as many as there are free handlers",
        unset="auto",
    ),
    "lease": _time(
        DEFAULT_LEASE,
        1,
        12 * HOUR,
        "visibility timeout and ledger lease; a crashed worker's messages return to the queue after this long",
    ),
    "wait": Option(20, _at_least(0), "seconds of a long poll (WaitTimeSeconds)"),
    "max_attempts": Option(
        None, _at_least(1), "attempts after which a message goes to the dead-letter queue", unset="none"
    ),
    "retry": Option(Exponential(), _backoff, "back-off: how long a failed message stays hidden", environment=False),
    "max_runtime": _time(MAX_RUNTIME, 1, MAX_RUNTIME, "how long a handler may run before its claim is given up"),
    "max_bytes": Option(64 << 20, _at_least(1 << 20), "bytes of message bodies in memory at which receiving pauses"),
    "dead_letter": Option(None, str, "dead-letter queue: name, URL or ARN", unset="none", environment=False),
    "missing_key": Option("reject", _one_of(*MISSING_KEY), "what to do with a message that has no key"),
    "on_failure": Option("block_group", _one_of(*ON_FAILURE), "FIFO: whether a failed message blocks its group"),
    "retention": _time(
        None,
        1,
        3_650 * 24 * HOUR,
        "how long the ledger keeps a key; by default as long as the ledger is set to",
        "none",
    ),
    "keep_result": Option(False, _flag, "store the handler's return value in the ledger, as JSON"),
    "size": Option(100, _at_least(1), "batch handlers: maximum number of messages in a batch"),
    "linger": _time(0.2, 0, 60, "batch handlers: how long a batch waits to fill up"),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one handler. `max_receives`: the queue's maxReceiveCount, after which SQS itself moves a message
    to the dead-letter queue; `sources`: where each setting came from."""

    concurrency: int
    prefetch: int | None
    lease: float
    wait: int
    max_attempts: int | None
    retry: Backoff
    max_runtime: float
    max_bytes: int
    dead_letter: str | None
    missing_key: str
    on_failure: str
    retention: float | None
    keep_result: bool
    size: int
    linger: float
    max_receives: int | None
    sources: Mapping[str, str]


def duration_text(duration: float) -> str:
    """The duration as a user would write it in an option: `28d`, `36h`, `90s`, `0.2s`."""
    for unit, length in (("d", 24 * HOUR), ("h", HOUR), ("m", 60)):
        if duration >= length and duration % length == 0:
            return f"{duration / length:g}{unit}"
    return f"{duration:g}s"


def check_names(options: Mapping[str, Any], whose: str) -> None:
    for name in options:
        if name not in OPTIONS:
            raise SemelError(f"{whose} has no option {name!r}; the options are {', '.join(sorted(OPTIONS))}")


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
    from_queue, max_receives = _from_queue(attributes)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, option in OPTIONS.items():
        variable = f"SEMEL_{name.upper()}"
        candidates = (
            Setting(command_line.get(name), "command line"),
            Setting(handler.get(name), "handler"),
            Setting(app.get(name), "app"),
            Setting((environment.get(variable) or None) if option.environment else None, f"environment: {variable}"),
            from_queue.get(name, Setting(None, "")),
        )
        default = Setting(option.default, "default")
        value, source = next((candidate for candidate in candidates if candidate.value is not None), default)
        try:
            values[name] = option.check(value)
        except (ValueError, TypeError, SemelError) as error:
            raise SemelError(f"invalid {name}={value!r} ({source}) for the queue {queue!r}: {error}") from None
        sources[name] = source
    if values["wait"] > 20:
        raise SemelError(f"invalid wait={values['wait']} for the queue {queue!r}: SQS allows at most 20 seconds")
    return Settings(**values, max_receives=max_receives, sources=sources)


def _from_queue(attributes: Mapping[str, str]) -> tuple[dict[str, Setting], int | None]:
    """What the queue's own attributes set, and its maxReceiveCount."""
    settings: dict[str, Setting] = {}
    visibility = int(attributes.get("VisibilityTimeout", DEFAULT_LEASE))
    if visibility >= SHORTEST_LEASE:
        settings["lease"] = Setting(visibility, "queue: VisibilityTimeout")
    max_receives = None
    if policy := attributes.get("RedrivePolicy"):
        redrive = json.loads(policy)
        max_receives = int(redrive["maxReceiveCount"])
        settings["dead_letter"] = Setting(redrive["deadLetterTargetArn"], "queue: RedrivePolicy")
        settings["max_attempts"] = Setting(max_receives, "queue: RedrivePolicy")
    return settings, max_receives
