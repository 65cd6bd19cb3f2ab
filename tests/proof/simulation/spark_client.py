"""The client of a driver or a task: at each of its calls the process may die or stand still."""

from __future__ import annotations

from typing import Any

from semel.sqs import Cancel
from semel.sqs.errors import Cancelled
from simulation.broker import SimulatedBroker, SimulatedClient
from simulation.spark_store import Perils, SparkProcess


class SparkClient(SimulatedClient):
    def __init__(self, broker: SimulatedBroker, process: SparkProcess, perils: Perils) -> None:
        super().__init__(broker, process)
        self._mortal, self._perils = process, perils

    def _attempt(
        self, operation: str, body: bytes, queue: str, timeout: float, cancel: Cancel | None
    ) -> dict[str, Any]:
        if cancel is not None and cancel.is_set():
            raise Cancelled(f"{operation}: cancelled")
        peril = self._perils.before(self._mortal)
        answer = super()._attempt(operation, body, queue, timeout, cancel)
        self._perils.after(self._mortal, peril)
        return answer

    def pause(self, seconds: float, cancel: Cancel | None = None) -> None:
        del cancel
        self._simulator.sleep(seconds)
