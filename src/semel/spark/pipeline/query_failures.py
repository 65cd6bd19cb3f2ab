"""What went wrong in a query, in one line, and whether waiting may help.

Spark wraps an error of a Python worker in texts of its own, and those in the text of the failed query. The rule: if
that text has a Semel error in it, the user sees the text of that error; otherwise the last line of the last traceback.
The whole text is kept as `trace`, for the status file and never for the terminal.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Final, Literal

from semel.errors import PermissionDenied, SemelError, Unavailable
from semel.telemetry.logs import safe_text

MAX_LINE: Final = 2_000
MAX_TRACE: Final = 20_000
# The end of an error's text inside Spark's: an empty line, Java's frames, the next cause, Spark's own code.
_END: Final = re.compile(
    r"\n\s*(?:\n|at |SQLSTATE|Caused by|Driver stacktrace|JVM stacktrace|=== |\.\.\. \d+ more)|\s*$"
)
_SEMEL: Final = re.compile(r"^(semel(?:\.\w+)*)\.(\w+): ", re.MULTILINE)
_TRACEBACK: Final = "Traceback (most recent call last):"
_PYTHON: Final = re.compile(r"^([A-Za-z_][\w.]*): ?", re.MULTILINE)
_CAUSE: Final = re.compile(r"^Caused by: (?:[\w$]+\.)*([\w$]+): ?", re.MULTILINE)
_SQLSTATE: Final = re.compile(r"\s*SQLSTATE: \w+.*", re.DOTALL)

_CONNECTOR: Final = (
    'Spark has no Hadoop connector for {}://, where its part of the checkpoint is; set "spark.jars.packages" = '
    '"org.apache.hadoop:{}:VERSION" in [spark], with the VERSION of the jar hadoop-client-api that Spark has'
)

# (what Spark says, what it means and what to do)
_KNOWN: Final = (
    ("CONCURRENT_STREAM_LOG_UPDATE", "another query is running on the same checkpoint; stop one of the two"),
    ("Multiple streaming queries are concurrently using", "another query is running on the same checkpoint; stop one"),
    (
        "java.lang.OutOfMemoryError",
        "Spark's Java process ran out of memory; set spark.driver.memory (or spark.executor.memory) higher in [spark], "
        "or max_messages_per_batch lower in [source]",
    ),
    ("No space left on device", "no space is left on the disk of the checkpoint, the table or Spark's temporary files"),
    ("S3AFileSystem not found", _CONNECTOR.format("s3a", "hadoop-aws")),
    ("GoogleHadoopFileSystem not found", _CONNECTOR.format("gs", "hadoop-gcp")),
    ("AzureBlobFileSystem not found", _CONNECTOR.format("abfss", "hadoop-azure")),
)


Kind = Literal["outage", "permission", "other"]


class PipelineFailed(SemelError):
    """The query of a pipeline ended with an error. `trace` is all that is known about it. Fix the cause, then run the
    pipeline again."""

    def __init__(self, text: str, trace: str = "", kind: Kind = "other") -> None:
        super().__init__(text)
        self.trace, self.kind = trace, kind


class SparkGone(PipelineFailed):
    """Spark's Java process has ended while the driver used it. What was committed is safe. Check the machine's memory,
    then run the pipeline again."""


# Spark's texts if the machine or the cluster is short of resources for a while.
_PASSING: Final = ("Python worker failed to connect back", "ExecutorLostFailure")


def kind_of(error: BaseException) -> Kind:
    """The kind of an error: by its class if it is a Semel error, else by the one that Spark's text in it names."""
    if isinstance(error, PipelineFailed):
        return error.kind
    kind = type(error) if isinstance(error, SemelError) else _semel_error(str(error))[0]
    if issubclass(kind, Unavailable):
        return "outage"
    if kind is SemelError and any(sign in str(error) for sign in _PASSING):
        return "outage"
    return "permission" if issubclass(kind, PermissionDenied) else "other"


def _semel_error(text: str) -> tuple[type[SemelError], str]:
    """The class and text of the last Semel error in a text of Spark; SemelError and "" if there is none."""
    names = list(_SEMEL.finditer(text))
    if not names:
        return SemelError, ""
    name = names[-1]
    words = safe_text(_until_end(text[name.end() :]), MAX_LINE)
    try:
        kind = getattr(import_module(name[1]), name[2], None)
    except ImportError:  # of another version, on an executor
        kind = None
    return (kind if isinstance(kind, type) and issubclass(kind, SemelError) else SemelError), words


def explained(error: BaseException) -> SemelError:
    """The error as one line for the user; a Semel error stays what it is."""
    if isinstance(error, SemelError):
        return error
    trace = safe_text(f"{type(error).__module__}.{type(error).__qualname__}: {error}", MAX_TRACE)
    if type(error).__name__ in ("Py4JNetworkError", "Py4JError", "ConnectionRefusedError", "ConnectionResetError"):
        return SparkGone(
            "Spark's Java process has ended. Was it killed, or did the machine run out of memory? What was committed "
            "is safe; start the pipeline again and it goes on from there",
            trace,
        )
    return PipelineFailed(in_one_line(str(error)) or type(error).__name__, trace, kind_of(error))


def in_one_line(text: str) -> str:
    """What a text of Spark means: the text of the Semel error in it, if there is one."""
    _, words = _semel_error(text)
    if words:
        return words
    for sign, meaning in _KNOWN:
        if sign in text:
            return meaning
    return safe_text(_from_python(text) or _from_java(text), MAX_LINE)


def _until_end(text: str) -> str:
    end = _END.search(text)
    assert end is not None  # at the latest, the end of the text
    return text[: end.start()].strip()


def _from_python(text: str) -> str:
    """The last line of the last traceback, with the error's name."""
    _, traceback, rest = text.rpartition(_TRACEBACK)
    if not traceback:
        return ""
    rest = _until_end(rest)
    names = list(_PYTHON.finditer(rest))
    return f"{names[-1][1].rpartition('.')[2]}: {rest[names[-1].end() :].strip()}" if names else ""


def _from_java(text: str) -> str:
    causes = list(_CAUSE.finditer(text))
    if causes:
        return f"{causes[-1][1]}: {_until_end(text[causes[-1].end() :])}"
    return _SQLSTATE.sub("", text.strip().partition("\n")[0])
