"""Threads, locks and pools of the source as tasks of a simulated process. While a simulation runs, they replace
`threading` and `ThreadPoolExecutor` in the source's modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar

from simulation.simulator import Simulator, Task

T = TypeVar("T")


class Waiters:
    """Tasks that wait for something and are all woken together."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self._tasks: list[Task] = []

    def wait(self, seconds: float | None = None) -> None:
        simulator = self._simulator
        task = simulator.task
        self._tasks.append(task)
        if seconds is None:
            simulator.sleep_until_woken()
        else:
            simulator.sleep(seconds)
        if task in self._tasks:  # it timed out
            self._tasks.remove(task)

    def wake(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            if task.process.alive and task.greenlet:
                self._simulator.wake(task)


class Lock:
    def __init__(self, simulator: Simulator) -> None:
        self._waiters = Waiters(simulator)
        self._held = False

    def __enter__(self) -> None:
        while self._held:
            self._waiters.wait()
        self._held = True

    def __exit__(self, *_error: object) -> None:
        self._held = False
        self._waiters.wake()


class Condition:
    """It needs no lock: nothing else runs until a task makes a call that takes time."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self._waiters = Waiters(simulator)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_error: object) -> None:
        pass

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        ends = None if timeout is None else self._simulator.now + timeout
        while not (answer := predicate()):
            left = None if ends is None else ends - self._simulator.now
            if left is not None and left <= 0:
                return answer
            self._waiters.wait(left)
        return answer

    def notify(self) -> None:
        self._waiters.wake()

    notify_all = notify


class Thread:
    def __init__(
        self,
        simulator: Simulator,
        target: Callable[..., None],
        args: tuple[Any, ...] = (),
        name: str = "",
        daemon: bool = True,
    ) -> None:
        del daemon
        self._process = simulator.task.process
        self._name = name
        self._run = partial(target, *args)

    def start(self) -> None:
        self._process.spawn(self._name, self._run)


class Threading:
    """Replaces the module `threading`."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator

    def Lock(self) -> Lock:
        return Lock(self._simulator)

    def Condition(self) -> Condition:
        return Condition(self._simulator)

    def Thread(self, **options: Any) -> Thread:
        return Thread(self._simulator, **options)


class Future(Generic[T]):
    def __init__(self, simulator: Simulator) -> None:
        self._waiters = Waiters(simulator)
        self.done = False
        self._value: T | None = None
        self._error: Exception | None = None

    def run(self, call: Callable[[], T]) -> None:
        try:
            self._value = call()
        except Exception as error:  # noqa: BLE001 - raised by `result`
            self._error = error
        self.done = True
        self._waiters.wake()

    def result(self) -> T:
        while not self.done:
            self._waiters.wait()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


class Pool:
    """Replaces ThreadPoolExecutor. Every call is a task of its own."""

    def __init__(self, simulator: Simulator, _threads: int, thread_name_prefix: str = "pool") -> None:
        self._simulator = simulator
        self._name = thread_name_prefix
        self._futures: list[Future[Any]] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_error: object) -> None:
        self.shutdown()

    def submit(self, call: Callable[..., T], *arguments: Any) -> Future[T]:
        process = self._simulator.task.process
        future: Future[T] = Future(self._simulator)
        self._futures.append(future)
        process.spawn(self._name, lambda: future.run(lambda: call(*arguments)))
        return future

    def map(self, call: Callable[[Any], T], values: Iterable[Any]) -> Iterator[T]:
        futures = [self.submit(call, value) for value in values]
        return (future.result() for future in futures)

    def shutdown(self) -> None:
        for future in self._futures:
            while not future.done:
                future._waiters.wait()
