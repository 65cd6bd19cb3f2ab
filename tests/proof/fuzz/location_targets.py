"""Target for locations, the paths and URLs that users write on the command line and in files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from semel.dashboard.views.workers import address_of
from semel.dlq import remote_service
from semel.dlq.watch import check_webhook
from semel.doctor.inputs.ledger import without_password
from semel.doctor.logs import discovery
from semel.errors import SemelError
from semel.ledger.connect import options_from_url
from semel.spark.segments.storage import open_store
from semel.telemetry.attempt_log import log as attempt_log
from semel.telemetry.message_trail import Trail


def fuzz_location(data: bytes) -> None:
    """A path or a URL, as a user writes it: it is understood, or refused with a SemelError that says why. It has no
    NUL, because command lines and environments cannot contain one."""
    text = data.decode("utf-8", "replace").replace("\0", "")
    for read in _READERS:
        try:
            read(text)
        except SemelError as error:
            assert str(error)


def _open_store(text: str) -> None:
    if not text.startswith(("s3://", "s3a://", "gs://", "az://", "abfs://", "abfss://")):  # those need a network
        open_store(text)


_READERS: Final[tuple[Callable[[str], object], ...]] = (
    Trail.of,
    discovery.local_path,
    attempt_log._local,
    _open_store,
    remote_service._is_http,
    check_webhook,
    without_password,
    address_of,
    lambda text: options_from_url(f"redis://{text}", {"retention": float}),
    lambda text: options_from_url(text, {}),
)
