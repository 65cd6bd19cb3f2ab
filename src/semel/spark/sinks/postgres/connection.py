"""Connections to PostgreSQL, and what its errors mean to a pipeline.

The rule: an error that waiting may fix is a `SinkUnavailable`: the server is unreachable, restarting, overloaded, full
or read-only after a failover. An error that waiting cannot fix, such as a wrong table or column, is a `SinkError`; if
it is about passwords or permissions, a `SinkPermissionDenied`.
"""

from __future__ import annotations

import re
from typing import Any, Final

import psycopg

from semel.ledger.connect import PERCENT, is_ambiguous
from semel.spark.sinks.contract import SinkError, SinkPermissionDenied, SinkUnavailable

Connection = psycopg.Connection[Any]

# SQLSTATEs that waiting does not fix, although psycopg calls them operational: authentication, no such database, a
# limit of PostgreSQL itself, an object in the wrong state, a database that was dropped.
_PERMANENT: Final = ("28", "3D", "54", "55000", "57P04")
# SQLSTATEs that waiting may fix, although psycopg does not call them operational: a standby, or a session or
# transaction that was ended by a timeout.
_PASSING: Final = ("25006", "25P03", "25P04")
# A failed connection has no SQLSTATE, only a text.
_REFUSED: Final = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|does not exist|is not permitted to log in|"
    r"permission denied|does not support SSL|certificate|Name or service not known|nodename nor servname"
)
# Authentication, and permissions on a table or schema: SQLSTATEs, and the texts of failed connections.
_DENIED: Final = ("28", "42501")
_DENIED_TEXT: Final = re.compile(r"authentication failed|no password supplied|pg_hba\.conf|not permitted|denied")
# Whether the role is configured as read-only, and not the server.
READ_ONLY_ROLE: Final = """
SELECT source IN ('user', 'database user', 'client') AND NOT pg_is_in_recovery()
FROM pg_settings WHERE name = 'default_transaction_read_only'
"""


def connect(dsn: str, *, autocommit: bool = False) -> Connection:
    if is_ambiguous(dsn):
        raise psycopg.ProgrammingError("a part of the password would be taken for a host or a database")
    return psycopg.connect(
        dsn, autocommit=autocommit, client_encoding="UTF8", application_name="semel", connect_timeout=10
    )


def is_outage(error: Exception) -> bool:
    if not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError) and not _REFUSED.search(str(error))
    if error.sqlstate in _PASSING:
        return True
    return isinstance(error, psycopg.OperationalError) and not error.sqlstate.startswith(_PERMANENT)


def is_denied(error: psycopg.Error) -> bool:
    if error.sqlstate is None:
        return bool(_DENIED_TEXT.search(str(error)))
    return error.sqlstate.startswith(_DENIED)


def failure(sink: str, what: str, error: psycopg.Error) -> SinkError:
    """The error to raise, with PostgreSQL's own text, what it is about, and what happens next."""
    if error.sqlstate is None and isinstance(error, psycopg.ProgrammingError):  # its text may quote the password
        return SinkError(
            f"{sink}: [sink] dsn cannot be read; write postgresql://user:password@host:port/database, or a connection "
            f"string of libpq; {PERCENT}"
        )
    text = _text(error)
    lasting = SinkPermissionDenied if is_denied(error) else SinkError
    if error.sqlstate is None:
        kind = SinkUnavailable if is_outage(error) else lasting
        return kind(f"{sink}: no connection (check [sink] dsn, and that the server runs): {text}")
    if is_outage(error):
        hint = " Free some space there." if isinstance(error, psycopg.errors.DiskFull) else ""
        return SinkUnavailable(
            f"{sink}: cannot {what}: {text}.{hint} It is tried again; a batch that is in the table already is found"
        )
    return lasting(f"{sink}: PostgreSQL refuses to {what}: {text}. Nothing of the batch is in the table")


def _text(error: psycopg.Error) -> str:
    diagnosis = error.diag
    text = " ".join((diagnosis.message_primary or str(error) or type(error).__name__).split()).rstrip(".")
    about = [f"column {diagnosis.column_name}"] if diagnosis.column_name else []
    about += [f"constraint {diagnosis.constraint_name}"] if diagnosis.constraint_name else []
    about += [detail[:300] for detail in (diagnosis.message_detail, diagnosis.context) if detail]
    about += [diagnosis.message_hint] if diagnosis.message_hint else []
    return f"{text} ({'; '.join(about)})" if about else text
