"""Redrive of the messages that match a filter, started through the dashboard's API."""

from __future__ import annotations

import json
import time
import urllib.request
from dataclasses import dataclass
from typing import Any

from dashboard_bench.places import DEAD


@dataclass(frozen=True)
class Redriven:
    count: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.count / self.seconds if self.seconds else 0.0


def measured(dashboard: str, where: str, limit: int) -> Redriven:
    job = _ask(dashboard, f"dead-letters/{DEAD}/redrive", {"where": where, "limit": limit, "canary": 0})
    while job["state"] in ("planned", "running", "canary", "paused"):
        time.sleep(0.2)
        job = _ask(dashboard, f"jobs/{job['id']}")
    if job["state"] != "done":
        raise SystemExit(f"bench-dashboard: the redrive ended as {job['state']}: {job['reason']}")
    return Redriven(job["counts"]["deleted"], job["ended"] - job["started"])


def _ask(dashboard: str, path: str, content: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(f"{dashboard}/api/v1/{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        job: dict[str, Any] = json.load(answer)
        return job
