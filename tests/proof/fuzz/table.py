"""The targets, and the module of each. A process imports only the module of its own target."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Final

Fuzz = Callable[[bytes], None]

HERE: Final = Path(__file__).parent
CORPUS: Final = HERE / "corpus"
REGRESSIONS: Final = HERE / "regressions"

_MODULES: Final = {
    "fuzz.broker_targets": ("http", "calls", "json_reader", "query_reader"),
    "fuzz.access_targets": ("signature", "authorization", "credentials_file", "receipt", "policy", "address"),
    "fuzz.message_targets": ("dead_letter_attributes", "key", "json_path", "body", "duration"),
    "fuzz.client_targets": ("connection", "answer", "received"),
    "fuzz.log_targets": ("trail", "attempt_log", "foreign_log", "log_mapping", "metrics_file"),
    "fuzz.pipeline_targets": ("pipeline_file", "ddl", "json_schema"),
    "fuzz.dlq_targets": ("filter", "snapshot", "job_file", "control_file", "audit_log", "annotations", "workers"),
    "fuzz.location_targets": ("location",),
    "fuzz.storage_targets": ("segment", "segment_log"),
    "fuzz.database_targets": ("ledger_file", "broker_file"),
}
NAMES: Final = tuple(name for names in _MODULES.values() for name in names)
MODULES: Final = {name: module for module, names in _MODULES.items() for name in names}


def target(name: str) -> Fuzz:
    """The function of a target. Its docstring says what must hold."""
    function: Fuzz = getattr(import_module(MODULES[name]), f"fuzz_{name}")
    return function


def seeds(name: str) -> list[bytes]:
    """The examples that a target starts from, and the inputs that once broke something."""
    return [path.read_bytes() for path in files(CORPUS / name)] + [data for _, data in regressions(name)]


def regressions(name: str) -> list[tuple[str, bytes]]:
    return [(path.name, path.read_bytes()) for path in files(REGRESSIONS / name)]


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.is_file())
