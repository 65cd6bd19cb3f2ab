"""Log lines that name their message: JSON for machines, text for people, both with queue, key, fence and attempt.

The rule: no line is longer than a limit, and no line contains a secret. Bodies, receipts and credentials are masked,
also inside the texts of errors.
"""

from __future__ import annotations

import logging
import math
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final, Literal, TextIO

import orjson

from semel.errors import StartError
from semel.user_exceptions import described

MAX_TEXT: Final = 4_000  # characters of a message
MAX_FIELD: Final = 500  # characters of any other field
MAX_TRACE: Final = 8_000  # characters of a traceback; its end says what happened

MESSAGE_FIELDS: Final = ("queue", "message_id", "key", "fence", "attempt")
# What a LogRecord has by itself; whatever else it carries was given as `extra`.
_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_HIDDEN: Final = re.compile(
    r"(^|_)(body|payload|receipt|receipt_handle|secret|password|passwd|token|authorization|credentials?|api_?key|"
    r"access_key|secret_key|cookie)$",
    re.IGNORECASE,
)
_MASK: Final = "***"
# (pattern of a secret, what replaces it)
_SECRETS: Final = (
    (re.compile(r"(\w://[^\s/:@]*:)\S+@"), rf"\1{_MASK}@"),  # user:password@ in an address
    (re.compile(r"(?i)\b(authorization[\"']?\s*[=:]|AWS4-HMAC-SHA256\b).*"), rf"\1 {_MASK}"),  # up to the line's end
    (
        re.compile(
            r"(?i)\b((?:password|passwd|secret|aws_secret_access_key|aws_session_token|signature|receipthandle|"
            r"x-amz-security-token|x-amz-signature)[\"']?\s*[=:]\s*[\"']?)[^\s\"'&,;]+"
        ),
        rf"\1{_MASK}",
    ),
    (re.compile(r"(?i)\b(bearer)\s+[\w.~+/=-]{8,}"), rf"\1 {_MASK}"),
)
_CONTROL: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code not in (9, 10)}
_LINES: Final = {**_CONTROL, 9: "\\t", 10: "\\n"}


def safe_text(text: str, limit: int, *, end: bool = False) -> str:
    """The text without its secrets, cut to about `limit` characters; `end` keeps its end instead of its beginning."""
    # What is cut off anyway need not be searched; the margin is for a secret that straddles the cut.
    text = text[-2 * limit :] if end else text[: 2 * limit]
    for pattern, masked in _SECRETS:
        text = pattern.sub(masked, text)
    if len(text) <= limit:
        return text
    return f"… {text[-limit:]}" if end else f"{text[:limit]} …"


class MessageLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that names the message in every line; the `extra` of a call is added to that and does not replace it."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        own: Mapping[str, object] = self.extra or {}
        extra = kwargs.get("extra")
        kwargs["extra"] = {**extra, **own} if extra else own
        return msg, kwargs


def message_logger(
    queue: str,
    message_id: str,
    key: str,
    fence: int,
    attempt: int,
    *,
    logger: logging.Logger = logging.getLogger("semel.handler"),  # noqa: B008  one and the same for all
) -> MessageLogger:
    fields = {"queue": queue, "message_id": message_id, "key": key, "fence": fence, "attempt": attempt}
    return MessageLogger(logger, fields)


class RateLimitedLog:
    """Logs the same line at most once in `every` seconds, and how often it was left out in between. Thread-safe."""

    def __init__(self, logger: logging.Logger, monotonic: Callable[[], float], every: float = 5.0) -> None:
        self._logger, self._monotonic, self._every = logger, monotonic, every
        self._said: dict[str, tuple[float, int]] = {}  # when it was last logged, and how often it was left out since
        self._lock = threading.Lock()

    def error(self, about: str, text: str, *args: object) -> None:
        """Lines with the same `about` count as the same. Use few different ones, because all are kept in memory."""
        self._log(logging.ERROR, about, text, *args)

    def warning(self, about: str, text: str, *args: object) -> None:
        self._log(logging.WARNING, about, text, *args)

    def _log(self, level: int, about: str, text: str, *args: object) -> None:
        now = self._monotonic()
        with self._lock:
            last, left_out = self._said.get(about, (-math.inf, 0))
            if now - last < self._every:
                self._said[about] = (last, left_out + 1)
                return
            self._said[about] = (now, 0)
        if left_out:
            self._logger.log(level, f"{text} (repeated %d more times since)", *args, left_out)
        else:
            self._logger.log(level, text, *args)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The fields of a line: first those that name the message, then the `extra` of the call."""
    extra = {name: value for name, value in vars(record).items() if name not in _OWN}
    names = {name: extra.pop(name) for name in MESSAGE_FIELDS if name in extra}
    fields = {name: value for name, value in names.items() if value not in (None, "")} | extra
    return {name: _safe_value(name, value) for name, value in fields.items()}


def _safe_value(name: str, value: Any) -> Any:
    if _HIDDEN.search(name):
        return _MASK
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**63):
        return value
    return safe_text(str(value), MAX_FIELD)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, the message's names, the error and its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": safe_text(record.getMessage(), MAX_TEXT),
        }
        for name, value in fields_of(record).items():
            line.setdefault(name, value)
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line["error"] = safe_text(described(error), MAX_FIELD)
            line["traceback"] = safe_text(self.formatException(record.exc_info), MAX_TRACE, end=True)
        try:
            return orjson.dumps(line).decode()
        except TypeError:  # half a surrogate pair in a text
            clean = {_whole(name): _whole(value) for name, value in line.items()}
            return orjson.dumps(clean, default=str).decode()


def _whole(value: Any) -> Any:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


class TextFormatter(logging.Formatter):
    """For a terminal: time, level, text, then name=value. Text from a sender cannot look like a line of its own."""

    def format(self, record: logging.LogRecord) -> str:
        clock = f"{time.strftime('%H:%M:%S', time.localtime(record.created))}.{int(record.msecs):03d}"
        text = safe_text(record.getMessage(), MAX_TEXT)
        parts = [clock, f"{record.levelname:<7}", f"{record.name}:", _indented(text)]
        parts += [f"{name}={_quoted(value)}" for name, value in fields_of(record).items()]
        line = " ".join(parts)
        if record.exc_info and record.exc_info[1] is not None:
            trace = safe_text(self.formatException(record.exc_info), MAX_TRACE, end=True)
            line += f"\n    {_indented(trace)}"
        return _whole(line) if not line.isascii() else line


def _indented(text: str) -> str:
    return text.translate(_CONTROL).replace("\n", "\n    ")


def _quoted(value: Any) -> str:
    text = str(value).translate(_LINES)
    return f'"{text}"' if not text or " " in text or "=" in text else text


class _Handler(logging.StreamHandler[TextIO]):
    """The handler that `configure` installed, so that a second call finds it."""


def configure(
    format: Literal["auto", "json", "text"] = "auto",
    level: str | int = "INFO",
    *,
    stream: TextIO | None = None,
) -> None:
    """Log everything of this process to standard error (or `stream`): text on a terminal, else JSON lines."""
    out = sys.stderr if stream is None else stream
    if format not in ("auto", "json", "text"):
        raise StartError(f"unknown log format {format!r}: choose auto, json or text")
    known = logging.getLevelNamesMapping()
    number = level if isinstance(level, int) else known.get(level.upper())
    if number is None:
        raise StartError(f"unknown log level {level!r}: choose debug, info, warning, error or critical")
    handler = _Handler(out)
    as_text = format == "text" or (format == "auto" and out.isatty())
    handler.setFormatter(TextFormatter() if as_text else JsonFormatter())
    root = logging.getLogger()
    for former in [existing for existing in root.handlers if isinstance(existing, _Handler)]:
        root.removeHandler(former)
    root.addHandler(handler)
    root.setLevel(number)
    for chatty in ("botocore", "boto3", "urllib3", "s3transfer"):  # their debug lines show headers and bodies
        logging.getLogger(chatty).setLevel(max(number, logging.WARNING))
