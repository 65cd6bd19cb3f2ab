"""Reads a pipeline's file. All mistakes in it are told at once, each with its section, its option and the way out."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from semel.errors import SemelError
from semel.spark.pipeline import ddl, json_schema
from semel.spark.pipeline.config import (
    DEDUP_PARTITIONS,
    METADATA,
    Ack,
    Dedup,
    Extra,
    HandlerSpec,
    LogSpec,
    MetricsSpec,
    Pipeline,
    RejectSpec,
    RejectTo,
    SchemaSpec,
    SinkSpec,
    SourceSpec,
    SqsSpec,
    TriggerSpec,
)
from semel.spark.pipeline.config_sections import Notes, Section, nearest
from semel.spark.pipeline.config_sections import PipelineFileError as PipelineFileError
from semel.spark.pipeline.config_sinks import SINKS, read_sink
from semel.spark.pipeline.schema import Constraint, Field, SchemaError, closed, find

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}\Z")
_SOURCE: Final = (
    *("queues", "key", "dedup", "dedup_partitions", "remember", "ledger", "ack", "receivers", "threads"),
    *("max_messages_per_batch", "max_bytes_per_batch", "max_seconds_per_batch", "visibility"),
    *("endpoint_url", "region", "profile"),
)
_SCHEMA: Final = ("ddl", "json_schema", "raw", "metadata", "extra", "any_as_text", "constraints")
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "": ("name", "checkpoint", "source", "schema", "rejects", "sink", "trigger", "log", "metrics", "spark"),
    "[source]": _SOURCE,
    "[schema]": _SCHEMA,
    "[[schema.constraints]]": ("name", "field", "check"),
    "[rejects]": ("to", "queue", "table"),
    "[trigger]": ("every",),
    "[log]": ("attempts",),
    "[metrics]": ("health",),
}


def load(
    path: str | Path,
    *,
    endpoint_url: str | None = None,
    region: str | None = None,
    profile: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Pipeline:
    """The pipeline that a file describes; where SQS is, as given here, comes before what [source] says of it. Raises
    PipelineFileError."""
    path = Path(path)
    table = _toml(path)
    if isinstance(table.get("source"), dict):
        given = {"endpoint_url": endpoint_url, "region": region, "profile": profile}
        table["source"] |= {option: value for option, value in given.items() if value is not None}
    notes = Notes(path.resolve().parent, os.environ if environment is None else environment)
    pipeline = _pipeline(Section("", table, notes), path)
    if not notes.mistakes:
        notes.mistakes += _together(pipeline)
    if notes.mistakes:
        raise PipelineFileError(path, notes.mistakes)
    return pipeline


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PipelineFileError(
            path, [f"there is no such file; `semel pipeline init {path}` writes one to start from"]
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineFileError(path, [f"it cannot be read: {error}"]) from None
    except tomllib.TOMLDecodeError as error:
        raise PipelineFileError(
            path, [f"it is not TOML: {error}. Texts are in quotes, sections in [brackets]"]
        ) from None


def _pipeline(root: Section, path: Path) -> Pipeline:
    name = root.text("name", required="what the pipeline is called, such as orders") or ""
    if name and not _NAME.match(name):
        root.wrong("name", "it has up to 80 letters, digits, dots, - and _, and begins with a letter or digit")
    checkpoint = root.place("checkpoint", required="a folder, or s3://…, that keeps the pipeline's progress") or ""
    if checkpoint and "://" in checkpoint and not re.match(r"(file|s3|s3a)://.", checkpoint):
        root.wrong("checkpoint", "it is a folder that all executors see, file:///… or s3://bucket/prefix")
    source = _source(root.section("source", required='where messages come from, with queues = ["…"]'))
    sink_section = root.section("sink", required=f"where rows go, with type = one of {', '.join(SINKS)}")
    sink = read_sink(sink_section, source, _elsewhere)
    pipeline = Pipeline(
        name=name,
        checkpoint=checkpoint,
        source=source,
        schema=_schema(root.section("schema"), sink, given="schema" in root.table),
        sink=sink,
        rejects=_rejects(root.section("rejects")),
        trigger=TriggerSpec(_checked(root.section("trigger")).seconds("every", 0, 86_400)),
        log=LogSpec(_checked(root.section("log")).place("attempts")),
        metrics=MetricsSpec(_checked(root.section("metrics")).text("health")),
        spark=dict(_spark(root.section("spark"))),
        path=path,
    )
    root.only(OPTIONS[""], _elsewhere(""))
    return pipeline


def _elsewhere(section: str) -> dict[str, tuple[str, ...]]:
    places = {name or "the top of the file": options for name, options in OPTIONS.items() if name != section}
    if not section.startswith("[sink]"):
        places |= {f'[sink] type = "{name}"': options for name, options in SINKS.items()}
    return places


def _checked(section: Section) -> Section:
    section.only(OPTIONS[section.name], _elsewhere(section.name))
    return section


def _source(given: Section) -> SourceSpec:
    section = _checked(given)
    for number, queue in enumerate(queues := section.texts("queues", required='the queues, such as ["orders"]')):
        _check_queue(section, "queues", queue, number)
    visibility = section.seconds("visibility", 10, 43_200)
    spec = SourceSpec(
        queues=queues,
        key=_key(section),
        dedup=section.choice("dedup", Dedup) or Dedup.SEGMENTS,
        dedup_partitions=section.number("dedup_partitions", 1, 10_000) or DEDUP_PARTITIONS,
        remember=section.seconds("remember", 60, 3_650 * 86_400),
        ledger=section.text("ledger"),
        ack=section.choice("ack", Ack) or Ack.SEALED,
        receivers=section.number("receivers", 1, 10_000),
        threads=section.number("threads", 1, 256),
        max_messages_per_batch=section.number("max_messages_per_batch", 1, 100_000_000),
        max_bytes_per_batch=section.number("max_bytes_per_batch", 1 << 20, 1 << 40),
        max_seconds_per_batch=section.seconds("max_seconds_per_batch", 0.1, 3_600),
        visibility=None if visibility is None else int(visibility),
        endpoint_url=section.text("endpoint_url"),
        region=section.text("region"),
        profile=section.text("profile"),
    )
    _check_dedup(section, spec)
    return spec


def _check_queue(section: Section, option: str, queue: str, number: int = 0) -> None:
    from semel.sqs.client.queue import Reference

    if "," in queue:
        section.wrong(option, f"entry {number + 1} has a comma in it; give each queue by itself")
        return
    try:
        Reference.parse(queue, "", "")
    except SemelError as error:
        section.wrong(option, str(error))


def _key(section: Section) -> str | None:
    from semel.messages.keys import key_rule

    rule = section.text("key")
    if rule is not None:
        try:
            key_rule(rule)
        except SemelError:
            section.wrong(
                "key", "it is '$.order.id' (a field of the body), 'attribute:NAME', 'message-id' or 'dedup-id'"
            )
    return rule


def _check_dedup(section: Section, spec: SourceSpec) -> None:
    if spec.dedup is Dedup.LEDGER and "ledger" not in section.table:
        section.mistake('ledger is missing: dedup = "ledger" needs its address, such as postgresql://host/db')
    if spec.dedup is not Dedup.LEDGER and "ledger" in section.table:
        section.mistake(f'ledger is given, but dedup is "{spec.dedup}": set dedup = "ledger", or leave it out')
    for option in ("dedup_partitions", "remember"):
        if option in section.table and spec.dedup is not Dedup.KEY:
            section.mistake(f'{option} is for dedup = "key", and dedup is "{spec.dedup}"; leave it out')


def _schema(section: Section, sink: SinkSpec, *, given: bool) -> SchemaSpec:
    _checked(section)
    if not given and isinstance(sink, SqsSpec | HandlerSpec):
        return SchemaSpec((), raw=True)
    way_out = (
        'the body\'s fields, such as ddl = "id STRING NOT NULL, amount DECIMAL(12,2)"; raw = true keeps it as text'
    )
    which = section.one_of("ddl", "json_schema", "raw", required=way_out)
    raw = section.flag("raw")
    if which == "raw" and not raw and section.table["raw"] is False:
        section.mistake(f"raw = false, and neither ddl nor json_schema is given: {way_out}")
    extra = section.choice("extra", Extra) or Extra.IGNORE
    body = _body(section, which)
    fields = closed(body.fields) if extra is Extra.REJECT else body.fields
    if raw and (unused := [one for one in ("extra", "any_as_text") if one in section.table]):
        section.mistake(f"{unused[0]} is about a body's fields, and with raw = true there are none; leave it out")
    if raw and "constraints" in section.table:
        section.mistake(
            "constraints need the body's fields, and with raw = true there are none; give ddl or json_schema"
        )
    return SchemaSpec(
        fields=fields,
        constraints=(*body.constraints, *_constraints(section, fields)),
        metadata=_metadata(section, sink, fields),
        extra=Extra.REJECT if body.closed else extra,
        any_as_text=section.flag("any_as_text"),
        raw=raw,
    )


def _body(section: Section, which: str | None) -> json_schema.Read:
    try:
        if which == "ddl" and (text := section.text("ddl")) is not None:
            return json_schema.Read(ddl.parse(text), (), closed=False)
        if which == "json_schema" and (place := section.place("json_schema")) is not None:
            return json_schema.parse(_text_of(place))
    except SchemaError as error:
        section.mistake(f"{which}: {error}")
    return json_schema.Read((), (), closed=False)


def _text_of(place: str) -> str:
    try:
        return Path(place).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SchemaError(f"{place} cannot be read: {error}") from None


def _constraints(section: Section, fields: tuple[Field, ...]) -> Iterator[Constraint]:
    names: set[str] = set()
    for one in section.sections("constraints"):
        _checked(one)
        name = one.text("name", required='what a row that breaks it is told, such as "amount is positive"') or ""
        check = one.text("check", required='a condition in SQL, such as "amount > 0"') or ""
        field = one.text("field")
        if field is not None and fields and find(fields, field) is None:
            one.wrong("field", f"the schema has no such field{nearest(field, [f.name for f in fields], None)}")
        if name in names:
            one.wrong("name", "another constraint has this name; rejects would not tell them apart")
        names.add(name)
        yield Constraint(name, field, check)


def _metadata(section: Section, sink: SinkSpec, fields: tuple[Field, ...]) -> tuple[str, ...]:
    names = section.texts("metadata")
    if names and isinstance(sink, HandlerSpec):
        section.mistake("metadata: a handler gets the whole message anyway; leave it out")
    taken = {one.name.lower() for one in fields}
    for name in names:
        if name not in METADATA:
            section.mistake(f"metadata: the source has no column {name!r}{nearest(name, METADATA, None)}")
        elif f"_{name}" in taken:
            section.mistake(f"metadata: {name!r} becomes the column _{name}, and the schema has a field of that name")
    return names


def _rejects(given: Section) -> RejectSpec:
    section = _checked(given)
    which = section.one_of("to", "queue", "table")
    if which == "queue" and (queue := section.text("queue")) is not None:
        _check_queue(section, "queue", queue)
        return RejectSpec(RejectTo.QUEUE, queue)
    if which == "table":
        return RejectSpec(RejectTo.TABLE, section.place("table"))
    if which == "to" and section.text("to") not in (None, RejectTo.DEAD_LETTER_QUEUE):
        section.wrong("to", 'it is "dead-letter-queue"; for another queue or a table write queue = "…" or table = "…"')
    return RejectSpec()


def _spark(section: Section) -> Iterator[tuple[str, str]]:
    """Settings of Spark: `executor.memory = "4g"` under [spark] is spark.executor.memory."""

    def walk(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
        for name, value in table.items():
            path = f"{prefix}.{name}"
            if isinstance(value, dict):
                yield from walk(value, path)
            elif isinstance(value, bool):
                yield path, str(value).lower()
            elif isinstance(value, str | int | float):
                yield path, section.notes.filled(str(value), f"[spark] {path}")
            else:
                section.mistake(f"{path}: a text, a number or true or false is needed")

    yield from walk({name.removeprefix("spark."): value for name, value in section.table.items()}, "spark")


def _together(pipeline: Pipeline) -> Iterator[str]:
    """What each section allows, and all of them together do not."""
    from semel.spark.pipeline.config_sinks import invalid_rows
    from semel.spark.source.options import OptionError, read_options

    try:
        read_options(pipeline.source.options(pipeline.checkpoint))
    except OptionError as error:
        yield f"[source] {error}"
    yield from invalid_rows(pipeline)
