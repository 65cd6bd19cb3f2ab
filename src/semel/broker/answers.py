"""Turns a call that was carried out into the bytes of its answer, and a failure of the broker into an error of SQS."""

from __future__ import annotations

import logging
import sqlite3
from typing import Final

from semel.broker import protocol as wire
from semel.broker.calls import PendingCall
from semel.broker.engine import Received
from semel.broker.http import render
from semel.sqs.errors import INTERNAL_FAILURE, SERVICE_UNAVAILABLE, ServiceError

log = logging.getLogger("semel.broker")

_JSON: Final = wire.Protocol.JSON  # Python 3.11 looks a member up each time it is named
_DAMAGE: Final = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
_DISK_TROUBLE: Final = ("SQLITE_FULL", "SQLITE_IOERR")
_DAMAGED: Final = "the data folder is damaged (%s): stop the broker, and restore it from a backup"


def rendered(call: PendingCall) -> bytes:
    headers = b"x-amzn-RequestId: %b\r\n" % call.request_id.encode()
    keep_alive = call.request.keep_alive
    if call.error is not None:
        if call.protocol is _JSON:
            headers += b"x-amzn-query-error: %b\r\n" % wire.query_error_header(call.error).encode()
        content_type, body = wire.error_answer(call.protocol, call.error, call.request_id)
        return render(call.error.kind.status, content_type, body, keep_alive=keep_alive, headers=headers)
    assert call.parsed is not None
    result = call.result or {}
    if isinstance(result, Received):
        if call.protocol is _JSON:
            return render(200, wire.json.CONTENT_TYPE, result.json.encode(), keep_alive=keep_alive, headers=headers)
        result = result.as_dict()
    content_type, body = wire.answer(call.parsed, result, call.request_id)
    return render(200, content_type, body, keep_alive=keep_alive, headers=headers)


def error_of(cause: Exception) -> ServiceError:
    """The error for a client whose call failed inside the broker. The log has more."""
    if is_disk_trouble(cause):
        return ServiceError(
            SERVICE_UNAVAILABLE,
            f"The broker's disk does not take this change ({cause}); nothing was stored. Make room and try again.",
        )
    if is_damage(cause):
        log_damage(cause)
        return ServiceError(INTERNAL_FAILURE, f"The broker's data folder is damaged ({cause}); see its log.")
    log.error("a call failed", exc_info=cause)
    return ServiceError(INTERNAL_FAILURE, "The broker failed on this request; see its log.")


def is_disk_trouble(error: Exception) -> bool:
    return _is_sqlite_error(error, _DISK_TROUBLE)


def is_damage(error: Exception) -> bool:
    return _is_sqlite_error(error, _DAMAGE)


def log_damage(error: Exception) -> None:
    log.critical(_DAMAGED, error)


def _is_sqlite_error(error: Exception, names: tuple[str, ...]) -> bool:
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorname", "").startswith(names)
