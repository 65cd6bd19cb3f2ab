"""The programs in examples/ are what users start from: each runs as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_demo_tells_the_whole_story() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "demo.py"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    steps = [line.split("  ")[1].strip() for line in done.stdout.splitlines() if line.startswith("  ")]
    assert steps == ["send", "receive", "receive", "redelivery", "dead letter", "redrive", "receive", "delete"]
    assert "orders: 0 visible, 0 in flight · orders-dlq: 0 visible, 0 in flight" in done.stdout
