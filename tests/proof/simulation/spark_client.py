"""The connections of drivers and tasks to SQS and the ledger. At each call, the process may die or stand still."""

from __future__ import annotations

from collections.abc import Callable
from email.utils import formatdate
from typing import Any, Final, TypeVar

import orjson

from semel.ledger.contract import Ledger
from semel.sqs import Cancel
from semel.sqs.client import error_parser
from semel.sqs.client.connection import Answer
from semel.sqs.client.transport import CannotConnect
from semel.sqs.errors import Cancelled, Unreachable
from simulation.broker import Queues, SimulatedBroker, SimulatedClient
from simulation.faults import CallFaults
from simulation.ledger import Observer, Outage, SimulatedLedger
from simulation.simulator import Simulator
from simulation.spark_store import Perils, SparkProcess

T = TypeVar("T")
LATE_MORE_OFTEN: Final = ("DeleteMessageBatch", "ChangeMessageVisibilityBatch")


class SparkBroker(SimulatedBroker):
    """`forgetful`: a delete with a receipt handle that is not the newest of its message succeeds and deletes nothing,
    as SQS documents it. Otherwise it deletes the message, as Semel's broker does."""

    def __init__(self, simulator: Simulator, queues: Queues, seed: int, *, forgetful: bool) -> None:
        super().__init__(simulator, queues, seed)
        self._forgetful = forgetful

    def perform(self, operation: str, body: bytes) -> dict[str, Any]:
        if operation != "DeleteMessageBatch" or not self._forgetful:
            return super().perform(operation, body)
        params = orjson.loads(body)
        name = params["QueueUrl"].rpartition("/")[2]
        forgotten = [entry for entry in params["Entries"] if self._is_superseded(name, entry["ReceiptHandle"])]
        if not forgotten:
            return super().perform(operation, body)
        self.simulator.note("broker", "forgets", len(forgotten), "deletes with receipts that are not the newest")
        kept = [entry for entry in params["Entries"] if entry not in forgotten]
        answer = super().perform(operation, orjson.dumps({**params, "Entries": kept})) if kept else {}
        done = [*answer.get("Successful", ()), *({"Id": entry["Id"]} for entry in forgotten)]
        return {**answer, "Successful": done}

    def _is_superseded(self, name: str, handle: str) -> bool:
        store = self.engine.store
        queue, receipt = store.queues[name], store.receipts.parse(handle)
        state = queue.generation.states.get(receipt.row - queue.generation.low)
        return not queue.fifo and state is not None and state.receives > receipt.receive


class SparkClient(SimulatedClient):
    def __init__(self, broker: SimulatedBroker, process: SparkProcess, perils: Perils) -> None:
        super().__init__(broker, process)
        self._mortal, self._perils = process, perils

    def perform(self, operation: str, body: bytes, **options: Any) -> dict[str, Any]:
        """Deletes and heartbeats fail or come late more often than other calls, to test unconfirmed deletes."""
        if operation in LATE_MORE_OFTEN and self._perils.delete_faults.next():
            late = self._simulator.choices.one_of((0.0, 15.0, 50.0, 130.0))
            self._simulator.sleep(late)
            if not late:
                self._process.note(operation, "does not arrive")
                raise Unreachable(f"{operation}: no answer", operation=operation)
        return super().perform(operation, body, **options)

    def _attempt(
        self, operation: str, body: bytes, queue: str, timeout: float, cancel: Cancel | None
    ) -> dict[str, Any]:
        if cancel is not None and cancel.is_set():
            raise Cancelled(f"{operation}: cancelled")
        peril = self._perils.before(self._mortal)
        answer = super()._attempt(operation, body, queue, timeout, cancel)
        self._perils.after(self._mortal, peril)
        return answer

    def exchange(
        self, method: str, target: str, body: bytes = b"", *, signed: bool = True, timeout: float | None = None
    ) -> Answer:
        """The answer has SQS's time in its Date header: the second in which the request arrived."""
        del body, signed
        assert timeout is not None
        peril = self._perils.before(self._mortal)
        simulator, faults = self._simulator, self._broker.faults
        there, back = faults.delays()
        fault = faults.next()
        there += faults.slow() if fault == "slow request" else 0.0
        back += faults.slow() if fault == "slow answer" else 0.0
        call = self._call(f"{method} {target}", "")
        if fault.startswith("lost") or there + back > timeout:
            simulator.sleep(timeout)
            self._process.note("does not hear what time it is")
            raise error_parser.from_exception(TimeoutError(), call, timeout)
        simulator.sleep(there)
        if not self._broker.up:
            raise error_parser.from_exception(CannotConnect("refused"), call, timeout)
        head = f"HTTP/1.1 404 \r\nDate: {formatdate(int(simulator.now), usegmt=True)}".encode()
        simulator.sleep(back)
        self._perils.after(self._mortal, peril)
        return Answer(404, head, b"")

    def pause(self, seconds: float, cancel: Cancel | None = None) -> None:
        del cancel
        self._simulator.sleep(seconds)


class SparkLedger(SimulatedLedger):
    def __init__(
        self,
        ledger: Ledger,
        observer: Observer,
        process: SparkProcess,
        faults: CallFaults,
        outage: Outage,
        perils: Perils,
    ) -> None:
        super().__init__(ledger, observer, process, faults, outage)
        self._mortal, self._perils = process, perils

    def _call(self, name: str, work: Callable[[], T], timeout: float | None = None) -> T:
        peril = self._perils.before(self._mortal)
        self._perils.slow_claim(self._mortal)
        answer = super()._call(name, work, timeout)
        self._perils.after(self._mortal, peril)
        return answer
