"""The log that comes with the doctor can be generated again."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Final

import pytest

from semel.doctor import SAMPLE

SCRIPT: Final = Path(__file__).parents[2] / "bench" / "doctor_sample.py"


@pytest.mark.slow
def test_the_script_makes_lines_of_the_same_shape_as_the_sample() -> None:
    spec = importlib.util.spec_from_file_location("doctor_sample", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    made = [json.loads(line) for line in script.main(orders=3)]
    kept = [json.loads(line) for line in SAMPLE.read_text(encoding="utf-8").splitlines()]
    assert {(line["event"], *line, *line["msg"]) for line in made} == {
        (line["event"], *line, *line["msg"]) for line in kept
    }
