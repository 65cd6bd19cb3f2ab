"""A bucket in memory behind a simulated network, for the checkpoint, the segment log and Spark's progress.

It keeps the contract of semel.spark.segments.storage: exactly one put-if-absent of a name succeeds, and an answered
write is durable. Any call may be slow, may fail before or after it took effect, and may kill or stop the process that
makes it. A put-if-absent whose answer is lost is repeated, and then finds its own file; or it fails and arrives later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar
from zlib import crc32

from semel.errors import SemelError
from semel.spark.segments import codec
from semel.spark.segments.segment_log import COMMITS
from semel.spark.segments.storage import StorageError, StorageUnavailable
from simulation.faults import CallFaults
from simulation.simulator import START, Process, Simulator

T = TypeVar("T")

STORE_FAULTS: Final = {"unreachable": 20, "lost answer": 25, "repeated": 40, "late": 12, "slow": 25}
PERILS: Final = {"crash before": 10, "crash after": 10, "pause before": 6, "pause after": 6}
PAUSES: Final = (2.0, 15.0, 50.0, 170.0)
LATE: Final = (0.5, 3.0, 8.0)  # seconds after which a request arrives whose sender has given up
SEGMENTS: Final = "segments/"
SINK_COMMITS: Final = ".commits/"  # in the folder of a Parquet sink


class SparkProcess(Process):
    """A driver, a task's attempt, or an operator's command. `ack` is the setting that it runs with. Each is on a host
    that was booted at another time, so their monotonic clocks cannot be compared."""

    def __init__(self, simulator: Simulator, name: str, skew: float = 0.0, *, mortal: bool = True) -> None:
        super().__init__(simulator, name, skew)
        self.mortal = mortal
        self.ack = "sealed"
        self.margin = 10.0
        self._booted = START - 1_000.0 - crc32(name.encode()) % 1_000_000

    def monotonic(self) -> float:
        return self.simulator.now - self._booted


class Perils:
    """What may happen to a process at any of its calls: it dies or stands still, before or after the call's effect."""

    def __init__(self, simulator: Simulator, focus: str) -> None:
        self.simulator = simulator
        choices, drivers = simulator.choices, focus == "drivers"
        self.faults = CallFaults(choices, PERILS, 0.6)
        self.delete_faults = CallFaults(choices, {"fails": 300}, 1.0 if focus == "deletes" else 0.4)
        self.claim_faults = CallFaults(choices, {"slow": 250})
        self.plan_faults = CallFaults(choices, {"slow": 300}, 1.0 if drivers else 0.4)
        self.commit_faults = CallFaults(choices, {"slow": 300}, 1.0 if drivers else 0.5)
        self.seal_faults = CallFaults(choices, {"slow": 100}, 0.5)
        self.start_faults = CallFaults(choices, {"slow": 200})

    def calm_down(self) -> None:
        for faults in vars(self).values():
            if isinstance(faults, CallFaults):
                faults.on = False

    def slow_claim(self, process: SparkProcess) -> None:
        """The ledger is slow, between the receive of messages and their seal."""
        self._stand_still(process, self.claim_faults)

    def slow_plan(self, process: SparkProcess) -> None:
        """The driver is swapped out, or collects garbage, between the plan of a batch and the seal of that plan."""
        self._stand_still(process, self.plan_faults)

    def slow_commit(self, process: SparkProcess) -> None:
        """The same between the deletes of a batch and its commit. Another driver may commit it meanwhile."""
        self._stand_still(process, self.commit_faults)

    def slow_seal(self, process: SparkProcess) -> None:
        """The same in the instant before a seal. Meanwhile another attempt may seal, or the log may be replaced."""
        self._stand_still(process, self.seal_faults)

    def start_delay(self) -> float:
        """Seconds until the executor of a task is up. Meanwhile, messages of other tasks may become visible again."""
        return self.simulator.choices.one_of(PAUSES) if self.start_faults.next() else 0.0

    def _stand_still(self, process: SparkProcess, faults: CallFaults) -> None:
        if process.mortal and faults.next():
            process.pause(self.simulator.choices.one_of(PAUSES))
            self.simulator.sleep(0.0)

    def before(self, process: SparkProcess) -> str:
        peril = self.faults.next() if process.mortal else ""
        if peril:
            self._strike(process, peril, "before")
        return peril

    def after(self, process: SparkProcess, peril: str) -> None:
        if peril:
            self._strike(process, peril, "after")

    def _strike(self, process: Process, peril: str, when: str) -> None:
        if peril == f"crash {when}":
            process.kill()
        elif peril == f"pause {when}":
            process.pause(self.simulator.choices.one_of(PAUSES))
            self.simulator.sleep(0.0)


class Bucket:
    """`sealed`: the keys in each existing segment. `names`: keys by message id."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self.files: dict[str, bytes] = {}
        self.away = self.full = False
        self.sealed: dict[str, frozenset[str]] = {}
        self.on_seal: Callable[[str, bytes], None] = lambda _n, _d: None

    def put(self, name: str, data: bytes) -> None:
        self.files[name] = data
        if name.endswith(".seg"):
            self.sealed[name] = self._keys(data, name)
            self.on_seal(name, data)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if name in self.files:
            return False
        self.put(name, data)
        return True

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self.files.pop(name, None)
            self.sealed.pop(name, None)

    def holds(self, message_id: str) -> bool:
        """Whether a segment has this message, and not only another one with its key."""
        return any(message_id in ids_in(self.files[name], name) for name in self.sealed)

    def _keys(self, data: bytes, name: str) -> frozenset[str]:
        return frozenset(self._names[id_] for id_ in ids_in(data, name))

    def names(self, prefix: str) -> list[str]:
        return sorted([name for name in self.files if name.startswith(prefix)])

    def copy(self) -> dict[str, bytes]:
        return dict(self.files)

    def restore(self, files: dict[str, bytes]) -> None:
        self.files = dict(files)
        self.sealed = {name: self._keys(data, name) for name, data in files.items() if name.endswith(".seg")}


def ids_in(data: bytes, name: str) -> list[str]:
    try:
        ids: list[str] = codec.decode(data, name)[1].column("message_id").to_pylist()
    except codec.SegmentDamaged:
        return []
    return ids


class Remote:
    """The calls of one process to a service. `_failure` makes the error of a call that failed, or seems to have."""

    def __init__(self, process: SparkProcess, perils: Perils, faults: CallFaults) -> None:
        self._process = process
        self._perils = perils
        self._faults = faults
        self._simulator = process.simulator

    def _away(self) -> bool:
        return False

    def _failure(self, what: str) -> Exception:
        raise NotImplementedError

    def _call(self, what: tuple[Any, ...], effect: Callable[[], T], *, changes: bool = True, create: bool = False) -> T:
        process, faults, simulator = self._process, self._faults, self._simulator
        there, _ = faults.delays()
        fault = faults.next()
        peril = self._perils.before(process)
        simulator.sleep(there + faults.slow() if fault == "slow" else there)
        if fault == "unreachable" or self._away():
            process.note(*what, "does not arrive")
            raise self._failure("no answer")
        if fault == "late" and create:
            self._later(what, effect)
            raise self._failure("timed out")
        result = effect()
        if changes:
            process.note(*what, *([] if result is None else ["->", result]))
        if fault == "lost answer" and changes:
            process.note("the answer is lost")
            raise self._failure("the connection broke")
        if fault == "repeated" and create:
            process.note("the answer is lost, the call is repeated")
            simulator.sleep(there)
            result = effect()
        self._perils.after(process, peril)
        return result

    def _later(self, what: tuple[Any, ...], effect: Callable[[], object]) -> None:
        network = Process(self._simulator, "network")
        self._process.note(*what, "is on its way, and nobody waits for it")

        def deliver() -> None:
            try:
                network.note("delivers late:", *what, "->", effect())
            except SemelError as error:
                network.note("delivers late:", *what, "->", type(error).__name__)

        network.spawn("late request", deliver, self._simulator.choices.one_of(LATE))


class SimulatedStore(Remote):
    """The interface of the real stores, for the names with one prefix in a bucket."""

    def __init__(
        self, bucket: Bucket, process: SparkProcess, perils: Perils, faults: CallFaults, prefix: str = ""
    ) -> None:
        super().__init__(process, perils, faults)
        self._bucket = bucket
        self._prefix = prefix
        self.on_create: Callable[[SparkProcess, str, bytes], None] = lambda _p, _n, _d: None
        self.url = f"s3://bucket/{prefix}".rstrip("/")
        self.spark_url = self.url

    def _away(self) -> bool:
        return self._bucket.away

    def _failure(self, what: str) -> StorageUnavailable:
        return StorageUnavailable(f"{self.url}: {what}")

    def put(self, name: str, data: bytes) -> None:
        if SINK_COMMITS in name:
            self._perils.slow_commit(self._process)
        self._slow_seal(name)
        self._call(("put", name), lambda: self._written(self._bucket.put, name, data))

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if name.startswith(COMMITS):
            self._perils.slow_commit(self._process)
        self.on_create(self._process, name, data)
        self._slow_seal(name)
        return self._call(("create", name), lambda: self._written(self._bucket.put_if_absent, name, data), create=True)

    def _slow_seal(self, name: str) -> None:
        if name.endswith(".seg"):
            self._perils.slow_seal(self._process)

    def _written(self, put: Callable[[str, bytes], T], name: str, data: bytes) -> T:
        if self._bucket.full:
            raise StorageError(f"{self.url}/{name}: No space left on device")
        return put(self._prefix + name, data)

    def read(self, name: str) -> bytes | None:
        return self._call(("read", name), lambda: self._bucket.files.get(self._prefix + name), changes=False)

    def names(self, folder: str = "") -> list[str]:
        prefix = f"{self._prefix}{folder}/" if folder else self._prefix
        cut = len(self._prefix)
        return self._call(("list", folder), lambda: [name[cut:] for name in self._bucket.names(prefix)], changes=False)

    def names_with(self, prefix: str) -> list[str]:
        start, cut = self._prefix + prefix, len(self._prefix)
        return self._call(("list", prefix), lambda: [name[cut:] for name in self._bucket.names(start)], changes=False)

    def delete(self, names: Iterable[str]) -> None:
        paths = [self._prefix + name for name in names]
        if paths:
            self._call(("delete", *paths), lambda: self._bucket.delete(paths))
