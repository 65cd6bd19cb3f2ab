"""The service behind the commands: at an endpoint of SQS, or through a dashboard. And the records of this user, which
need no endpoint: jobs, audit log, annotations."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from semel.cli import options
from semel.cli.command import UsageError
from semel.errors import SemelError

if TYPE_CHECKING:
    from semel.dlq.records import OperatorRecords
    from semel.dlq.remote_service import RemoteDeadLetterService
    from semel.dlq.service import DeadLetterService
    from semel.ledger.contract import Ledger

    Service = DeadLetterService | RemoteDeadLetterService
    Records = OperatorRecords | RemoteDeadLetterService


def add_places(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say where the queues are: an endpoint, or a dashboard."""
    group = parser.add_argument_group("endpoint")
    options.add_aws(group)
    options.add_dashboard(group)


@contextlib.contextmanager
def open_service(args: argparse.Namespace) -> Iterator[Service]:
    from semel.dlq.access import PeekRisk

    try:
        with _opened(args) as service:
            yield service
    except PeekRisk as error:
        raise SemelError(f"{error}; --receive accepts that") from None


@contextlib.contextmanager
def _opened(args: argparse.Namespace) -> Iterator[Service]:
    ledger_url = getattr(args, "ledger", None)
    if url := options.dashboard(args):
        from semel.dlq.remote_service import RemoteDeadLetterService

        if ledger_url and "ledger" not in args.environment:
            raise UsageError("--ledger and --dashboard exclude each other: the dashboard has its own ledger")
        if getattr(args, "max_receive", None) and "max_receive" not in args.environment:
            raise UsageError("--max-receive and --dashboard exclude each other: a dashboard receives 1,000 messages")
        yield RemoteDeadLetterService(url, args.token or "")
        return
    from semel.dlq.service import DeadLetterService

    with contextlib.ExitStack() as stack:
        ledger: Ledger | None = None
        if ledger_url:
            from semel.ledger.connect import connect

            ledger = stack.enter_context(contextlib.closing(connect(ledger_url)))
        client = stack.enter_context(options.client(args))
        max_receive = getattr(args, "max_receive", None)
        if max_receive is None:
            yield DeadLetterService(client, ledger=ledger)
        else:
            yield DeadLetterService(client, ledger=ledger, max_receive=max_receive)


# Records.


def open_records(args: argparse.Namespace) -> Records:
    """The records of a dashboard, or of the state folder, which is shared by all processes of this user."""
    if url := options.dashboard(args):
        from semel.dlq.remote_service import RemoteDeadLetterService

        return RemoteDeadLetterService(url, args.token or "")
    from semel.dlq.records import OperatorRecords

    return OperatorRecords()
