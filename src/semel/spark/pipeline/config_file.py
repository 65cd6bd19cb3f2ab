"""Reads a pipeline's file.

All mistakes of a file are reported at once, each with its section, its option and a remedy. No error shows the value of
an option that may hold a password, a password within a URL, or the value of an environment variable.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields as fields_of
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, cast

import pyarrow as pa
from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from semel.spark.pipeline import body_schema, ddl, json_schema
from semel.spark.pipeline.body_sql import row_fields
from semel.spark.pipeline.config import (
    METADATA,
    PROBLEMS,
    SINKS,
    STRICT,
    Extra,
    Location,
    LogSpec,
    MetricsSpec,
    Pipeline,
    PipelineFileError,
    PostgresSpec,
    Queue,
    RejectSpec,
    RejectTo,
    SchemaSpec,
    SinkSpec,
    SourceSpec,
    SqsSpec,
    Text,
    Texts,
    TriggerSpec,
    matching,
    setting,
)
from semel.spark.segments.storage import WHERE
from semel.spark.source.options import OptionError, read_options
from semel.spark.suggestions import did_you_mean

_BODY: Final = (
    'the body\'s fields, such as ddl = "id STRING NOT NULL, amount DECIMAL(12,2)"; raw = true keeps it as text'
)
_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}"
_NAME_RULE: Final = "it has up to 80 letters, digits, dots, - and _, and begins with a letter or digit"
_FOLDER: Final = r"(?!.*://).*|(file|s3a?|gs|az|abfss?)://.+"
_FOLDER_RULE: Final = f"it is {WHERE}"
_OTHER_REJECTS: Final = 'it is "dead-letter-queue"; for another queue or a table write queue = "…" or table = "…"'

# The parts of the file that are written in another form than they are kept.


def _from_ddl(text: str) -> json_schema.Read:
    try:
        return json_schema.Read(ddl.parse(text), (), closed=False)
    except body_schema.SchemaError as error:
        raise ValueError(str(error)) from None


def _from_json_schema(path: str) -> json_schema.Read:
    try:
        return json_schema.parse(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None
    except body_schema.SchemaError as error:
        raise ValueError(str(error)) from None


def _check_metadata(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in METADATA:
            raise ValueError(f"the source has no column {name!r}{did_you_mean(name, METADATA)}")
    return names


@dataclass(frozen=True, config=STRICT)
class _Constraint:
    name: Text = Field(description='what a row that breaks it is told, such as "amount is positive"')
    check: Text = Field(description='a condition in SQL, such as "amount > 0"')
    field: Text | None = None


@dataclass(frozen=True, config=STRICT)
class _Schema:
    ddl: Annotated[Text, AfterValidator(_from_ddl)] | None = None
    json_schema: Annotated[Location, AfterValidator(_from_json_schema)] | None = None
    raw: StrictBool = False
    metadata: Annotated[Texts, AfterValidator(_check_metadata)] = ()
    extra: Extra = Extra.IGNORE
    any_as_text: StrictBool = False
    constraints: tuple[_Constraint, ...] = ()


@dataclass(frozen=True, config=STRICT)
class _Rejects:
    to: Annotated[Text, matching(RejectTo.DEAD_LETTER_QUEUE, _OTHER_REJECTS)] | None = None
    queue: Queue | None = None
    table: Location | None = None


def _rejects(section: _Rejects) -> RejectSpec:
    if section.queue is not None:
        return RejectSpec(RejectTo.QUEUE, section.queue)
    return RejectSpec() if section.table is None else RejectSpec(RejectTo.TABLE, section.table)


def _schema(section: _Schema) -> SchemaSpec:
    """Raises ValueError with everything that does not fit the body's fields."""
    body = cast(json_schema.Read | None, section.ddl or section.json_schema) or json_schema.Read((), (), closed=False)
    fields = body_schema.closed(body.fields) if section.extra is Extra.REJECT else body.fields
    names = [field.name for field in fields]
    problems = [
        f"[schema] metadata: {name!r} becomes the column _{name}, and the schema has a field of that name"
        for name in section.metadata
        if f"_{name}" in (field.lower() for field in names)
    ]
    for number, constraint in enumerate(section.constraints):
        label = "[[schema.constraints]]"
        if constraint.field is not None and names and body_schema.find(fields, constraint.field) is None:
            hint = did_you_mean(constraint.field, names)
            problems.append(f'{label} field = "{constraint.field}": the schema has no such field{hint}')
        if any(constraint.name == other.name for other in section.constraints[:number]):
            problem = "another constraint has this name; rejects by the two could not be told apart"
            problems.append(f'{label} name = "{constraint.name}": {problem}')
    if problems:
        raise ValueError(*problems)
    constraints = (
        body_schema.Constraint(constraint.name, constraint.field, constraint.check)
        for constraint in section.constraints
    )
    extra = Extra.REJECT if body.closed else section.extra
    return SchemaSpec(
        fields, (*body.constraints, *constraints), section.metadata, extra, section.any_as_text, section.raw
    )


@dataclass(frozen=True, config=STRICT)
class _File:
    name: Annotated[Text, matching(_NAME, _NAME_RULE)] = Field(
        description="what the pipeline is called, such as orders"
    )
    checkpoint: Annotated[Location, matching(_FOLDER, _FOLDER_RULE)] = Field(
        description="a folder, or s3://…, that keeps the pipeline's progress"
    )
    source: SourceSpec = Field(description='where messages come from, with queues = ["…"]')
    sink: SinkSpec = Field(discriminator="type", description=f"where rows go, with type = one of {', '.join(SINKS)}")
    schema: Annotated[_Schema, AfterValidator(_schema)] = Field()
    rejects: Annotated[_Rejects, AfterValidator(_rejects)] = Field()
    trigger: TriggerSpec = TriggerSpec()
    log: LogSpec = LogSpec()
    metrics: MetricsSpec = MetricsSpec()
    spark: dict[str, Annotated[str, BeforeValidator(setting)]] = Field(default_factory=dict)


_SECTIONS: Final = ("source", "schema", "rejects", "sink", "trigger", "log", "metrics", "spark")
_MODELS: Final[Mapping[str, Any]] = {
    "[source]": SourceSpec,
    "[schema]": _Schema,
    "[[schema.constraints]]": _Constraint,
    "[rejects]": _Rejects,
    "[trigger]": TriggerSpec,
    "[log]": LogSpec,
    "[metrics]": MetricsSpec,
}
_ADDRESS: Final = ("endpoint_url", "region", "profile")
_VARIABLE: Final = re.compile(r"(\$?)\$\{([^}]*)\}")
_LOGIN: Final = re.compile(r"(?<=://)[^\s\"']*@")
_UNSHOWN: Final = frozenset({"dsn", "ledger", "ddl", "json_schema"})  # secrets, and long values
_SHORTEST_SECRET: Final = 4
_TOO_DEEP: Final = "it is nested too deep to be read"


@cache
def _adapter() -> TypeAdapter[_File]:
    return TypeAdapter(_File)


# Reading.


def load(
    path: str | Path,
    *,
    endpoint_url: str | None = None,
    region: str | None = None,
    profile: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Pipeline:
    """The pipeline that a file describes. `endpoint_url`, `region` and `profile` override those in [source]. Raises
    PipelineFileError."""
    path = Path(path)
    table = _toml(path)
    if isinstance(table.get("source"), dict):
        address = {"endpoint_url": endpoint_url, "region": region, "profile": profile}
        table["source"] |= {option: value for option, value in address.items() if value is not None}
    reading = _Reading(path, table, os.environ if environment is None else environment)
    try:
        pipeline = reading.pipeline()
    except RecursionError:
        raise PipelineFileError(path, [_TOO_DEEP]) from None
    if pipeline is None:
        raise PipelineFileError(path, reading.mistakes)
    return pipeline


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        problem = f"there is no such file; `semel pipeline init {path}` writes one to start from"
    except OSError as error:
        problem = f"it cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        problem = "it is not UTF-8 text"
    except tomllib.TOMLDecodeError as error:
        problem = f"it is not TOML: {error}. Texts are in quotes, sections in [brackets]"
    except RecursionError:
        problem = _TOO_DEEP
    raise PipelineFileError(path, [problem])


class _Reading:
    """Reads one file, and collects its mistakes and the values of its variables. `raw`: the file as it is written."""

    def __init__(self, path: Path, table: dict[str, Any], environment: Mapping[str, str]) -> None:
        self.path, self.raw, self.environment = path, table, environment
        self.mistakes: list[str] = []
        self._filled: dict[str, str] = {}  # by a variable's value: how the variable is written
        self._unset: set[tuple[str, str]] = set()  # sections and options with a variable that is not set

    def pipeline(self) -> Pipeline | None:
        """None if there are mistakes."""
        for name in _SECTIONS:
            if not isinstance(self.raw.get(name, {}), dict):
                value = _shown(self.raw.pop(name))
                self.add([f"{name} = {value}: it is a section; write [{name}] with its options below"])
        if "spark" in self.raw:
            self.raw["spark"] = dict(_flat(self.raw["spark"], "spark"))
        table = _with_defaults(self.fill(self.raw, ()))
        self.add(_conflicts(table))
        try:
            file = _adapter().validate_python(table, context=self.path.resolve().parent)
        except ValidationError as error:
            for detail in error.errors(include_url=False, include_input=False):
                self.add(self.worded(detail["type"], detail["loc"], detail.get("ctx", {})))
        if not self.mistakes:
            pipeline = Pipeline(**{field.name: getattr(file, field.name) for field in fields_of(file)}, path=self.path)
            self.add(_together(pipeline))
        return None if self.mistakes else pipeline

    def add(self, mistakes: Iterable[str]) -> None:
        for mistake in mistakes:
            for value, variable in self._filled.items():
                mistake = mistake.replace(value, variable)
            mistake = _LOGIN.sub("…@", mistake)
            self.mistakes += [mistake] * (mistake not in self.mistakes)

    def fill(self, value: Any, location: tuple[Any, ...]) -> Any:
        """`${NAME}` replaced by the environment's value; `$${NAME}` stands for itself."""
        if isinstance(value, dict):
            return {name: self.fill(inner, (*location, name)) for name, inner in value.items()}
        if isinstance(value, list):
            return [self.fill(inner, (*location, number)) for number, inner in enumerate(value)]
        if isinstance(value, str):
            return _VARIABLE.sub(lambda match: self.variable(match[2], match, location), value)
        return value

    def variable(self, name: str, match: re.Match[str], location: tuple[Any, ...]) -> str:
        if match[1]:
            return match[0][1:]
        value = self.environment.get(name)
        if value is None:
            section, option = where = _where(location)
            self._unset.add(where)
            problem = f"{match[0]} names no environment variable; write $${{ for a plain ${{"
            if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                advice = f"; set it, or write $${{{name}}} if that is meant as it stands"
                problem = f"there is no environment variable {name}{did_you_mean(name, self.environment, advice)}"
            self.add([f"{section} {option}: {problem}".strip()])
        elif len(value) >= _SHORTEST_SECRET:
            self._filled[value] = match[0]
        return value or ""

    def worded(self, kind: str, location: tuple[Any, ...], context: Mapping[str, Any]) -> Iterator[str]:
        """An error of pydantic in our words. Its own text is not used, as it may show a value."""
        section, option = _where(location)
        model = _MODELS.get(section, _File)
        if location[0] == "sink" and len(location) > 1:  # the second part is the sink's type
            model, option = SINKS[location[1]], location[2]
        if kind.startswith("union_tag"):
            section, option = "[sink]", "type"
        if (section, option) in self._unset:
            return
        value = self.written(section, location).get(option)
        shown = "" if option in _UNSHOWN or section == "[spark]" else f" = {_shown(value)}"
        match kind:
            case "value_error" if len(location) == 1 and option in _SECTIONS:
                yield from context["error"].args
                return
            case "missing":
                name = f"[{option}]" if option in _SECTIONS and not section else option
                text = f"{name} is missing: {model.__pydantic_fields__[option].description}"
            case "union_tag_not_found":
                text = f"type is missing: one of {', '.join(SINKS)}"
            case "unexpected_keyword_argument":
                text = f"{option}: there is no such option{_way_out(option, model)}"
            case "union_tag_invalid" | "enum":
                possible = re.findall("'([^']+)'", context.get("expected_tags", context.get("expected")))
                hint = did_you_mean(str(value), possible, "")
                text = f"{option}{shown}: it is not one of {', '.join(possible)}{hint}"
            case "value_error":
                text = f"{option}{shown}: {context['error']}"
            case _ if option == "constraints":
                text = "constraints: it is a list of sections; write [[schema.constraints]] with its options below"
            case _:
                kind = "tuple_type" if isinstance(location[-1], int) else kind
                text = f"{option}{shown}: {PROBLEMS.get(kind, 'it is not of the right type')}"
        yield f"{section} {text}".strip()

    def written(self, section: str, location: tuple[Any, ...]) -> Mapping[str, Any]:
        """The section as it is in the file, before variables were filled in."""
        if section == "[[schema.constraints]]":
            return self.raw["schema"]["constraints"][location[2]]  # type: ignore[no-any-return]
        return self.raw.get(section.strip("[]"), {}) if section else self.raw


def _where(location: tuple[Any, ...]) -> tuple[str, str]:
    """The section, as it is written in the file, and the option; "" for the top of the file."""
    match location:
        case ("schema", "constraints", int(), option, *_):
            return "[[schema.constraints]]", option
        case (section, option, *_):
            return f"[{section}]", option
        case _:
            return "", location[0]


def _way_out(option: str, model: Any) -> str:
    sinks = {f'[sink] type = "{name}"': sink for name, sink in SINKS.items()}
    others = {"the top of the file": _File, **sinks, **_MODELS}
    elsewhere = [name for name, other in others.items() if option in other.__pydantic_fields__]
    if elsewhere:
        return f"; it belongs to {' or '.join(elsewhere)}"
    return did_you_mean(option, list(model.__pydantic_fields__))


def _flat(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Settings of Spark: `executor.memory = "4g"` under [spark] is spark.executor.memory."""
    for name, value in table.items():
        path = f"{prefix}.{name.removeprefix('spark.')}"
        yield from _flat(value, path) if isinstance(value, dict) else [(path, value)]


def _shown(value: Any) -> str:
    text = _LOGIN.sub("…@", json.dumps(value, ensure_ascii=False, default=str))
    return text if len(text) <= 80 else f"{text[:80]}…"


# Rules about several options or sections.


def _with_defaults(table: dict[str, Any]) -> dict[str, Any]:
    source, sink = table.get("source", {}), table.get("sink", {})
    if source:
        # Handlers have a ledger, which knows the keys.
        table["source"] = {"dedup": "segments" if sink.get("type") == "handler" else "key"} | source
    table.setdefault("schema", {"raw": True} if sink.get("type") in ("sqs", "handler") else {})
    table.setdefault("rejects", {})
    if sink.get("type") == "sqs" and not sink.keys() & _ADDRESS:
        table["sink"] = sink | {option: source[option] for option in _ADDRESS if option in source}
    return table


def _conflicts(table: Mapping[str, Any]) -> Iterator[str]:
    """Conflicts within sections. They are found in the file as written, so that they are reported with other
    mistakes."""
    source, body, sink = table.get("source", {}), table.get("schema", {}), table.get("sink", {})
    dedup = source.get("dedup")
    if dedup == "ledger" and "ledger" not in source:
        yield '[source] ledger is missing: dedup = "ledger" needs its address, such as postgresql://host/db'
    if dedup != "ledger" and "ledger" in source:
        yield f'[source] ledger is given, but dedup is "{dedup}": set dedup = "ledger", or leave it out'
    for option in ("dedup_partitions", "retention"):
        if option in source and dedup != "key":
            yield f'[source] {option} is for dedup = "key", and dedup is "{dedup}"; leave it out'
    for name, options in (("schema", ("ddl", "json_schema", "raw")), ("rejects", ("to", "queue", "table"))):
        chosen = [option for option in options if option in table.get(name, {})]
        if len(chosen) > 1:
            yield f"[{name}] {' and '.join(chosen)} are both given, and exclude each other: keep one of them"
        if name == "schema" and not chosen:
            yield f"[schema] ddl or json_schema or raw is missing: {_BODY}"
        if chosen == ["raw"] and body["raw"] is False:
            yield f"[schema] raw = false, and neither ddl nor json_schema is given: {_BODY}"
    if body.get("raw") is True:
        for option in [name for name in ("extra", "any_as_text", "constraints") if name in body]:
            yield f"[schema] {option} is about the body's fields, and with raw = true there are none; leave it out"
    if sink.get("type") == "handler":
        if dedup != "segments":
            yield (
                f'[source] dedup = "{dedup}": the ledger of the handlers recognises duplicates. Here, a message that '
                "is to be tried again would be taken for one, and be lost. Leave it out"
            )
        if source.get("ack") == "sealed":
            yield '[source] ack = "sealed": a message stays in its queue until its handler is done; leave it out'
        if "metadata" in body:
            yield "[schema] metadata: a handler gets the whole message anyway; leave it out"
    if sink.get("type") == "postgres":
        if sink.get("mode") == "upsert" and "key" not in sink:
            yield '[sink] key is missing: mode = "upsert" needs the columns that tell rows apart, such as ["id"]'
        if sink.get("mode", "append") == "append" and "key" in sink:
            yield '[sink] key is given, but mode is "append": set mode = "upsert", or leave it out'


# Mistakes that each section allows, but all of them together do not.


def _together(pipeline: Pipeline) -> Iterator[str]:
    try:
        read_options(pipeline.source.options(pipeline.checkpoint))
    except OptionError as error:
        yield f"[source] {error}"
    match pipeline.sink:
        case PostgresSpec(key=key):
            yield from _unknown_columns(pipeline, "key", key)
        case SqsSpec() as sink:
            yield from _sqs_mistakes(pipeline, sink)


def _sqs_mistakes(pipeline: Pipeline, sink: SqsSpec) -> Iterator[str]:
    for option, names in (("body", (sink.body,)), ("group", (sink.group,)), ("attributes", sink.attributes)):
        yield from _unknown_columns(pipeline, option, names)
    body = _columns(pipeline).get(sink.body or "")
    if body is not None and body.type != pa.string():
        yield f'[sink] body = "{sink.body}": it is no STRING; leave it out to send the row as JSON'
    if sink.queue.rstrip("/").endswith(".fifo") and sink.group is None:
        yield f'[sink] group is missing: {sink.queue} is a FIFO queue, so say which field is the group, group = "…"'
    if sink.queue in pipeline.source.queues:
        yield f'[sink] queue = "{sink.queue}": it is read by this very pipeline: an endless loop'


def _unknown_columns(pipeline: Pipeline, option: str, names: Sequence[str | None]) -> Iterator[str]:
    columns = _columns(pipeline)
    for name in names:
        if name is not None and name not in columns:
            yield f"[sink] {option}: the rows have no field {name!r}{did_you_mean(name, columns)}"


def _columns(pipeline: Pipeline) -> dict[str, pa.Field]:
    return {field.name: field for field in row_fields(pipeline)}
