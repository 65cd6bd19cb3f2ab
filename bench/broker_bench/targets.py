"""The servers under test: how each is installed, started, checked for readiness, and stopped.

A server is started as its users start it. Each peer has its own environment under bench/.envs, so that its
dependencies cannot conflict with Semel's. Every server listens on 127.0.0.1 only and is stopped with the benchmark.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import venv
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from broker_bench import machine
from broker_bench.wire import Address, Session, WrongAnswer

HERE = Path(__file__).parent.parent
ENVIRONMENTS = HERE / ".envs"
DATA = HERE / ".data"
START_LIMIT = 30.0
STOP_LIMIT = 5.0
SAVE_LIMIT = 60.0  # for a shutdown that may first have to write everything to disk


Call = tuple[str, dict[str, Any]]  # an operation and its parameters
LIST_QUEUES: Call = ("ListQueues", {})


class Unavailable(Exception):
    """A target cannot be installed or started here; the text says why and what to do."""


class Target(ABC):
    """One server to measure. `says_ready`: it prints a line with its address when it is ready."""

    name: str
    label: str
    says_ready = False
    stores = True

    @abstractmethod
    def prepare(self, report: Callable[[str], None]) -> str:
        """Install what is missing; returns the version. Raises Unavailable."""

    @abstractmethod
    def command(self, port: int, folder: Path) -> list[str]: ...

    def environment(self, port: int, folder: Path) -> dict[str, str]:  # noqa: ARG002
        return {}

    def keeping(self) -> Target | None:
        """The same server, configured to keep its messages across a restart; None if it cannot do that."""
        return None


class Semel(Target):
    says_ready = True

    def __init__(self, durable: bool) -> None:
        self.durable = durable
        self.name, self.label = ("semel", "Semel durable") if durable else ("ephemeral", "Semel ephemeral")
        self.binary = Path(sys.executable).parent / "semel"

    def prepare(self, report: Callable[[str], None]) -> str:  # noqa: ARG002
        if not self.binary.exists():
            raise Unavailable(f"there is no `semel` beside {sys.executable}; start this with `make bench-broker`")
        try:
            return metadata.version("semel")
        except metadata.PackageNotFoundError as error:
            raise Unavailable(f"semel is not installed beside {sys.executable}; use `make bench-broker`") from error

    def command(self, port: int, folder: Path) -> list[str]:
        kept = ["--data", str(folder / "data")] if self.durable else ["--ephemeral"]
        return [str(self.binary), "serve", "--port", str(port), *kept]

    def keeping(self) -> Target | None:
        return self if self.durable else None


class Echo(Target):
    """The ceiling: on the broker's own HTTP stack, or, if `bare`, on the libraries alone."""

    says_ready, stores = True, False

    def __init__(self, bare: bool) -> None:
        self.bare = bare
        self.name, self.label = ("bare", "bare echo") if bare else ("echo", "echo")

    def prepare(self, report: Callable[[str], None]) -> str:  # noqa: ARG002
        try:
            return ", ".join(f"{name} {metadata.version(name)}" for name in ("uvloop", "httptools", "orjson"))
        except metadata.PackageNotFoundError as error:
            raise Unavailable(f"{error.name} is not installed beside {sys.executable}") from error

    def command(self, port: int, folder: Path) -> list[str]:  # noqa: ARG002
        return [sys.executable, str(HERE / "broker_bench" / "echo.py"), str(port), *(["--bare"] if self.bare else [])]


class Peer(Target):
    """A server from PyPI, in its own environment."""

    package: str
    requirement: str

    @property
    def home(self) -> Path:
        return ENVIRONMENTS / self.name

    def prepare(self, report: Callable[[str], None]) -> str:
        python = self.home / "bin" / "python"
        done = self.home / ".ready"
        if not done.exists():
            report(f"installing {self.requirement} into {self.home} (once) ...")
            shutil.rmtree(self.home, ignore_errors=True)
            try:
                venv.create(self.home, with_pip=True)
            except (OSError, subprocess.CalledProcessError) as error:
                raise Unavailable(f"no environment for {self.requirement}: {error}") from error
            pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", self.requirement]
            run = subprocess.run(pip, capture_output=True, text=True, check=False)
            if run.returncode:
                reason = (run.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
                raise Unavailable(f"pip could not install {self.requirement}: {reason}")
            done.touch()
        asking = f"from importlib.metadata import version; print(version({self.package!r}))"
        return subprocess.run([python, "-c", asking], capture_output=True, text=True, check=True).stdout.strip()


class Moto(Peer):
    name, label, package, requirement = "moto", "moto", "moto", "moto[server]"

    def command(self, port: int, folder: Path) -> list[str]:  # noqa: ARG002
        return [str(self.home / "bin" / "moto_server"), "--host", "127.0.0.1", "--port", str(port)]


class MiniStack(Peer):
    """It logs errors only and runs without its SFTP and MQTT listeners, which can only improve its figures.

    `keeps`: it saves its state on a clean shutdown, and loads it when it starts.
    """

    name, label, package, requirement = "ministack", "MiniStack", "ministack", "ministack"

    def __init__(self, keeps: bool = False) -> None:
        self.keeps = keeps

    def command(self, port: int, folder: Path) -> list[str]:  # noqa: ARG002
        return [str(self.home / "bin" / "ministack")]

    def environment(self, port: int, folder: Path) -> dict[str, str]:
        return {
            "GATEWAY_PORT": str(port),
            "BIND_HOST": "127.0.0.1",
            "LOG_LEVEL": "ERROR",
            "SFTP_ENABLED": "0",
            "IOT_MTLS_ENABLED": "0",
            "DOCKER_HOST": "unix://" + str(folder / "no-docker"),
            "TMPDIR": str(folder),
            **({"PERSIST_STATE": "1", "STATE_DIR": str(folder / "state")} if self.keeps else {}),
        }

    def keeping(self) -> Target | None:
        return MiniStack(keeps=True)


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (Semel(durable=True), Semel(durable=False), MiniStack(), Moto(), Echo(bare=False), Echo(bare=True))
}


class Server:
    """A running target with a new folder. Use as a context manager: leaving it stops the server and removes the folder.

    `ready_seconds` is the time from the start of the process to its ready line, or to its first successful answer if it
    prints none. `answer_seconds` is the time to the first successful answer.
    """

    def __init__(self, target: Target, cores: set[int] | None = None) -> None:
        self.target = target
        DATA.mkdir(exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix=f"{target.name}-", dir=DATA))
        self._log = (self.folder / "log").open("w+b")
        self._cores = cores
        self._launch(LIST_QUEUES)

    def restart(self, first_call: Call, *, kill: bool = False) -> dict[str, Any]:
        """Stop or kill the server and start it again on the same folder; returns the answer to its first call."""
        self._end(SAVE_LIMIT, signal.SIGKILL if kill else signal.SIGTERM)
        return self._launch(first_call)

    def _launch(self, first_call: Call) -> dict[str, Any]:
        target, cores = self.target, self._cores
        port = 0 if target.says_ready else free_port()
        command = target.command(port, self.folder)
        before = os.sched_getaffinity(0)
        try:
            if cores:
                os.sched_setaffinity(0, cores)  # inherited by the child and by every thread that it starts
            began = time.perf_counter()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if target.says_ready else self._log,
                stderr=self._log,
                env={**os.environ, **target.environment(port, self.folder)},
                start_new_session=True,
            )
        except OSError as error:
            self._clean()
            raise Unavailable(f"cannot start {command[0]}: {error}") from error
        finally:
            os.sched_setaffinity(0, before)
        try:
            self.address = self._ready_line() if target.says_ready else ("127.0.0.1", port)
            self.ready_seconds = time.perf_counter() - began
            answer = self._first_answer(began, first_call)
        except BaseException:
            self.stop()
            raise
        self.answer_seconds = time.perf_counter() - began
        if not target.says_ready:
            self.ready_seconds = self.answer_seconds
        return answer

    def _ready_line(self) -> Address:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], START_LIMIT)[0]:
            raise Unavailable(
                f"{self.target.label} printed no ready line within {START_LIMIT:.0f} s: {self.last_words()}"
            )
        line = self._process.stdout.readline().decode()
        host, _, port = line.strip().rpartition("/")[2].rpartition(":")
        if not port.isdigit():
            raise Unavailable(f"{self.target.label} did not become ready; it said: {line.strip() or self.last_words()}")
        return host, int(port)

    def _first_answer(self, began: float, call: Call) -> dict[str, Any]:
        while True:
            session = Session(self.address)
            try:
                return session.call(call[0], **call[1])
            except (OSError, WrongAnswer) as error:
                if self._process.poll() is not None:
                    raise Unavailable(f"{self.target.label} ended at its start: {self.last_words()}") from error
                if time.perf_counter() - began > START_LIMIT:
                    raise Unavailable(f"{self.target.label} gave no answer within {START_LIMIT:.0f} s") from error
                time.sleep(0.005)
            finally:
                session.close()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """If the block fails because the server has died, raise an error that says so."""
        try:
            yield
        except (OSError, WrongAnswer) as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(0.5)
                raise Unavailable(f"the server ended with code {code}; its last words: {self.last_words()}") from error
            raise

    def last_words(self) -> str:
        self._log.flush()
        lines = (self.folder / "log").read_text(errors="replace").strip().splitlines()
        return " / ".join(lines[-3:]) or "nothing"

    def cpu(self) -> float:
        return machine.cpu_seconds(self._process.pid)

    def memory(self) -> tuple[float, float]:
        return machine.memory_mb(self._process.pid)

    def pause(self) -> None:
        """Stop the process, so that a server that waits for its turn uses no CPU while another one is measured."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Terminate the server, and kill it if necessary, with any processes that it has left behind."""
        self._end(STOP_LIMIT, signal.SIGTERM)
        self._clean()

    def _end(self, patience: float, ending: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            self.resume()
            self._process.send_signal(ending)
            self._process.wait(patience)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _clean(self) -> None:
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
