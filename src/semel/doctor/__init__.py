"""The doctor: finds duplicates, their causes and remedies in logs, queue settings and metrics, on DuckDB or Spark."""

from pathlib import Path
from typing import Final

__all__ = ["SAMPLE"]

SAMPLE: Final = Path(__file__).with_name("sample.jsonl")  # a log to try it on; bench/doctor_sample.py makes it
