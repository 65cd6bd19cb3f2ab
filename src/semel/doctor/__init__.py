"""The doctor: finds duplicates, their cause and the remedy, from logs, queue attributes and metrics, on Spark."""

from pathlib import Path
from typing import Final

SAMPLE: Final = Path(__file__).with_name("sample.jsonl")  # a log to try it on; bench/doctor_sample.py makes it
