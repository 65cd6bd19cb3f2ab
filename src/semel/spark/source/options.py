"""The options of `format("sqs")`: each is declared once, as a field of a dataclass, and read by `parse_options`.

Names are in camelCase, as usual in Spark; upper and lower case make no difference. The writer and the pipeline's file
use these functions, too. Spark's Python workers import this module, so it uses nothing heavier than dataclasses.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Final

from semel.errors import SemelError
from semel.spark.source.column_types import COLUMN_NAMES as COLUMN_NAMES
from semel.spark.suggestions import did_you_mean
from semel.sqs import limits

MIB: Final = 1 << 20
# Spark adds these by itself.
_NOT_OURS: Final = frozenset({"path", "checkpointlocation", "queryname", "outputmode"})


class OptionError(SemelError):
    """An option of the Spark source or sink is wrong. Correct the option that the text names."""


# How options are declared and read.


def option(
    default: Any = MISSING,
    *,
    name: str = "",
    limits: tuple[float, float] | None = None,
    choices: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    """A dataclass field for an option. `name`: only if it is not the field's name in camelCase. An option with `limits`
    is a number, and an integer if they are. A `secret` is left out of the repr."""
    return field(default=default, repr=not secret, metadata={"name": name, "limits": limits, "choices": choices})


def options_of(kind: type) -> dict[str, Field[Any]]:
    """The options that a dataclass declares, by their camelCase names."""
    return {field.metadata["name"] or camel(field.name): field for field in fields(kind) if "name" in field.metadata}


def limits_of(kind: type, field_name: str) -> tuple[float, float]:
    (bounds,) = (field.metadata["limits"] for field in fields(kind) if field.name == field_name)
    return bounds  # type: ignore[no-any-return]


def parse_options(kind: type, options: Mapping[str, str], what: str) -> dict[str, Any]:
    """Values for the fields of `kind`; blank options are ignored. Raises OptionError, which names the option."""
    known = options_of(kind)
    by_lower = {name.lower(): name for name in known}
    values: dict[str, Any] = {}
    for spelled, value in options.items():
        name = by_lower.get(spelled.lower())
        if name is None:
            if spelled.lower() not in _NOT_OURS:
                raise OptionError(f"{what} has no option {spelled!r}{did_you_mean(spelled, known)}")
        elif value.strip():
            values[known[name].name] = _value(name, value.strip(), known[name].metadata)
    return values


def _value(name: str, text: str, allowed: Mapping[str, Any]) -> Any:
    if allowed["limits"] is not None:
        return _number(name, text, *allowed["limits"])
    if allowed["choices"] and text not in allowed["choices"]:
        raise OptionError(f"option '{name}' is {text!r}: possible are {', '.join(allowed['choices'])}")
    return text


def _number(name: str, text: str, low: float, high: float) -> float:
    try:
        value = type(low)(text.replace("_", ""))
    except ValueError:
        raise OptionError(f"option '{name}' is {text!r}, which is no number") from None
    if not low <= value <= high:
        raise OptionError(f"option '{name}' is {text}: it must be from {low:g} to {high:g}")
    return value


def camel(name: str) -> str:
    """max_messages becomes maxMessages."""
    first, *others = name.split("_")
    return first + "".join(part.capitalize() for part in others)


# The options of the source.


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of `spark.readStream.format("sqs")`. docs/reference/spark.md explains each."""

    queues: tuple[str, ...] = option(name="queue")
    segments: str | None = option(None)
    receivers: int | None = option(None, limits=(1, 10_000))
    threads: int = option(8, limits=(1, 256))
    max_messages: int = option(100_000, name="maxMessagesPerBatch", limits=(1, 100_000_000))
    max_bytes: int = option(128 * MIB, name="maxBytesPerBatch", limits=(MIB, 1 << 40))
    max_seconds: float = option(10.0, name="maxSecondsPerBatch", limits=(0.1, 3_600.0))
    visibility: int = option(120, limits=(10, limits.MAX_VISIBILITY))
    ack: str = option("sealed", choices=("sealed", "committed"))
    dedup: str = option("segments", choices=("segments", "ledger"))
    ledger: str | None = option(None, name="ledgerUrl", secret=True)  # Spark redacts options with `url` in their name
    key: str | None = option(None)
    columns: tuple[str, ...] | None = option(None)
    in_flight: str = option("leave", choices=("leave", "wait"))
    attempt_log: str | None = option(None)
    owner: str | None = option(None)  # the name of the query that the log belongs to; only pipelines have one
    endpoint_url: str | None = option(None)
    region: str | None = option(None)
    profile: str | None = option(None)

    @property
    def address(self) -> tuple[str | None, str | None, str | None]:
        return self.endpoint_url, self.region, self.profile

    @property
    def margin(self) -> float:
        """A message is sealed only if it stays hidden for this many seconds: enough for the seal and the delete."""
        return min(30.0, self.visibility / 4)

    def receivers_of(self, queue: str) -> int:
        """How many tasks receive from a queue at once. By default one for FIFO: a partition then has each group in
        order."""
        if self.receivers is not None:
            return self.receivers
        return 1 if queue.rstrip("/").endswith(".fifo") else min(8, os.cpu_count() or 2)


def read_options(raw: Mapping[str, str]) -> ReadOptions:
    """Reads the options. Raises OptionError, which names the wrong option and what is possible."""
    values = parse_options(ReadOptions, raw, "format 'sqs'")
    queues = values["queues"] = _list(values.get("queues", ""))
    if not queues:
        raise OptionError("option 'queue' is missing: a queue's name, URL or ARN, or several with commas between them")
    if len(set(queues)) != len(queues):
        raise OptionError(f"option 'queue' names a queue twice: {', '.join(queues)}")
    if "columns" in values:
        values["columns"] = _list(values["columns"])
        for name in values["columns"]:
            if name not in COLUMN_NAMES:
                raise OptionError(f"option 'columns': there is no column {name!r}{did_you_mean(name, COLUMN_NAMES)}")
    options = ReadOptions(**values)
    _check_together(options)
    return options


def _check_together(options: ReadOptions) -> None:
    if options.dedup == "ledger" and options.ledger is None:
        raise OptionError("dedup 'ledger' needs the option 'ledgerUrl', such as postgresql://host/db or redis://host")
    if options.ledger is not None and options.dedup != "ledger":
        raise OptionError("option 'ledgerUrl' is given, but dedup is 'segments': set dedup to 'ledger' or leave it out")
    if options.visibility < 2 * options.max_seconds + options.margin:
        raise OptionError(
            f"visibility {options.visibility} s is too short for batches that receive for {options.max_seconds:g} s: "
            f"messages would be visible again before they are sealed. Set visibility to at least "
            f"{int(2 * options.max_seconds + 30)}, or maxSecondsPerBatch lower"
        )


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
