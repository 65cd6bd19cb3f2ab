"""Which parts of a pipeline's file may change once it has run, and which must not.

The rule: a change is refused if existing rows, or sealed messages, would no longer be what the new file says, or if a
message could be written twice, or not at all. All other changes are accepted, some with a notice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import types

from semel.errors import SemelError
from semel.spark.pipeline import body_schema
from semel.spark.pipeline.body_sql import body_fields
from semel.spark.pipeline.checkpoint import RECORD, CheckpointError
from semel.spark.pipeline.config import Dedup, Pipeline, PostgresSpec
from semel.spark.sinks.table_schema import ChangeKind, Difference, differences, sql_name

ANEW: Final = "begin a new checkpoint and a new table for it"
# A larger number is a stronger guarantee.
_STRENGTH: Final = {"segments": 0, "key": 1, "ledger": 1}


class PipelineChanged(SemelError):
    """The pipeline's file has changed in a way that would break exactly once. Undo each change, or follow the text for
    it."""

    def __init__(self, changes: list[Change]) -> None:
        texts = "".join(f"\n  - {change.text}" for change in changes)
        super().__init__(f"the file does not fit what this checkpoint has done so far:{texts}")
        self.changes = tuple(changes)


@dataclass(frozen=True, slots=True)
class Change:
    """One difference, in one sentence. `breaking`: the pipeline must not be run on this checkpoint."""

    text: str
    breaking: bool


def recorded(pipeline: Pipeline) -> dict[str, Any]:
    """What the checkpoint keeps of the file, as JSON values; of a database only the table, no secrets."""
    source, rows, sink = pipeline.source, pipeline.schema, pipeline.sink
    target: dict[str, Any] = {
        name: value for name, value in asdict(sink).items() if name not in ("dsn", "endpoint_url", "region", "profile")
    }
    if isinstance(sink, PostgresSpec):
        target["key"] = list(sink.key)
    elif "attributes" in target:
        target["attributes"] = list(target["attributes"])
    return {
        "source": {
            "queues": list(source.queues),
            "key": source.key,
            "dedup": source.dedup.value,
            "dedup_partitions": source.dedup_partitions if source.dedup is Dedup.KEY else None,
            "retention": source.retention,
            "ledger": None if source.ledger is None else _without_secrets(source.ledger),
            "ack": source.ack.value,
        },
        "schema": body_schema.encode(body_fields(pipeline)),
        "metadata": list(rows.metadata),
        "sink": target,
    }


def compare(former: Mapping[str, Any], spec: Mapping[str, Any]) -> list[Change]:
    """The changes between two results of `recorded`. Raises CheckpointError if the former one has another form."""
    try:
        return [
            *_sources(former["source"], spec["source"]),
            *_sinks(former["sink"], spec["sink"]),
            *map(_column, differences(body_schema.decode(former["schema"]), body_schema.decode(spec["schema"]))),
            *_metadata(former["metadata"], spec["metadata"]),
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{RECORD} of this checkpoint cannot be read ({error!r}): it is damaged, or of another version of Semel. "
            f"Restore this one file from a copy, go on with the Semel that wrote it, or {ANEW}"
        ) from error


def check(former: Mapping[str, Any], spec: Mapping[str, Any]) -> list[Change]:
    """The changes, if all are allowed. Raises PipelineChanged if one is not."""
    changes = compare(former, spec)
    breaking = [change for change in changes if change.breaking]
    if breaking:
        raise PipelineChanged(breaking)
    return changes


def _sources(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    gone = [name for name in old["queues"] if name not in new["queues"]]
    more = [name for name in new["queues"] if name not in old["queues"]]
    if gone:
        yield Change(
            f"[source] queues: {', '.join(gone)} is no longer read, but messages of it may be sealed and not yet "
            f"deleted, and would come twice elsewhere; name it again, or {ANEW}",
            breaking=True,
        )
    if more:
        yield Change(f"[source] queues: {', '.join(more)} is read from now on", breaking=False)
    if old["key"] != new["key"]:
        yield Change(
            f"[source] key was {old['key'] or 'the default'} and is {new['key'] or 'the default'}: what came under "
            f"the old key would not be recognised under the new one; keep the old key, or {ANEW}",
            breaking=old["dedup"] != Dedup.SEGMENTS or new["dedup"] != Dedup.SEGMENTS,
        )
    if old["dedup"] != new["dedup"]:
        yield _dedup(old["dedup"], new["dedup"])
    elif old["dedup_partitions"] != new["dedup_partitions"]:
        yield Change(
            f"[source] dedup_partitions was {old['dedup_partitions']} and is {new['dedup_partitions']}: the state of "
            f"the keys is laid out for the old number; keep it, or {ANEW}",
            breaking=True,
        )
    if old.get("ledger") != new.get("ledger") and old["dedup"] == new["dedup"]:
        yield Change(
            f"[source] ledger was {old.get('ledger')} and is {new.get('ledger')}, which does not know what was done so "
            f"far: deliveries of it again would get in twice; change it back, or {ANEW}",
            breaking=True,
        )
    if old.get("retention", old.get("remember")) != new.get("retention"):  # "remember" in older checkpoints
        yield Change(f"[source] keys are kept for {_days(new.get('retention'))} from now on", breaking=False)
    if old["ack"] != new["ack"]:
        yield Change(f"[source] ack is {new['ack']} from now on", breaking=False)


def _without_secrets(address: str) -> str:
    """The address without user and password, which may change."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _days(seconds: float | None) -> str:
    return "the queues' retention" if seconds is None else f"{seconds / 86_400:g} days"


def _dedup(old: str, new: str) -> Change:
    if _STRENGTH[new] < _STRENGTH[old]:
        why = "is a weaker guarantee: what is delivered again would get in twice"
    else:
        why = f'does not know what came under "{old}": deliveries of it again would get in twice'
    default = ", the default" if new == Dedup.KEY else ""
    text = (
        f'[source] dedup was "{old}" and is "{new}"{default}, which {why}; '
        f'write dedup = "{old}" under [source] to go on, or {ANEW}'
    )
    # The query's plan would have other state, which Spark itself refuses with a much longer text.
    return Change(text, breaking=True)


def _sinks(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for name in sorted(set(old) | set(new)):
        was, now = old.get(name), new.get(name)
        if was == now:
            continue
        if name == "app":
            yield Change(f"[sink] app is {now} from now on; what the ledger knows as done stays done", breaking=False)
        elif name in ("body", "group", "attributes"):
            yield Change(f"[sink] {name} is {now} from now on", breaking=False)
        else:
            yield Change(
                f"[sink] {name} was {was} and is {now}: rows would be in two places, or in neither if a batch is "
                f"run again; change it back, or {ANEW}",
                breaking=True,
            )


def _column(difference: Difference) -> Change:
    """Breaking if the table cannot take it, or if existing rows would not be as the file says."""
    kind, path, old, new = difference
    match kind:
        case ChangeKind.REMOVED:
            text = "is gone: its column would be missing in new rows; keep it, as one that may be null"
        case ChangeKind.ADDED if new.nullable:
            text = "is new; existing rows have null for it"
        case ChangeKind.ADDED:
            text = "is new and NOT NULL, but existing rows have no value for it; leave NOT NULL out"
        case ChangeKind.NOW_NULLABLE:
            text = "may be null from now on; the table's column must allow it"
        case ChangeKind.NOW_NOT_NULL:
            text = (
                "is NOT NULL now, but existing rows may have null for it; leave NOT NULL out, and add a constraint "
                "if new messages without it are to be rejected"
            )
        case ChangeKind.RETYPED:
            hint = (
                " (a wider type too: files and tables that are there keep the old one)" if _is_wider(old, new) else ""
            )
            text = (
                f"was {_shown(old)} and is {_shown(new)}: the table has the old type{hint}; add a field with another "
                f"name, or {ANEW}"
            )
    return Change(f"[schema] {path} {text}", difference.breaking or kind is ChangeKind.NOW_NOT_NULL)


def _is_wider(old: pa.Field, new: pa.Field) -> bool:
    if types.is_decimal(old.type):
        return bool(types.is_decimal(new.type))
    families = (types.is_integer, types.is_floating)
    is_same_family = any(family(old.type) and family(new.type) for family in families)
    return bool(is_same_family and old.type.bit_width < new.type.bit_width)


def _shown(field: pa.Field) -> str:
    without_nulls = any(not part.nullable for part in body_schema.parts(field.type)) and not types.is_struct(field.type)
    return sql_name(field.type) + (" without nulls" if without_nulls else "")


def _metadata(old: list[str], new: list[str]) -> Iterator[Change]:
    for name in old:
        if name not in new:
            yield Change(f"[schema] metadata: {name} is gone: the table has a column _{name}; keep it", breaking=True)
    for name in new:
        if name not in old:
            yield Change(f"[schema] metadata: _{name} is new; existing rows have null for it", breaking=False)
