"""Executes the blocks of a documentation page in order, as a reader would: in an empty folder, with the built wheel, in
a new environment that has only what the page's own `pip install` installs. docs/documentation.md has the conventions.

Five things differ from a reader's shell, so that pages run on any machine and several can run at once:
- HOME is an empty folder, and of this machine's settings only those of uv and the network are passed on;
- `pip` is uv, which takes seconds instead of minutes, and semel is the wheel of this source tree;
- the ports in a page (9324, 9325, and those after a host or --port) are replaced by free ones, wherever they appear;
- `semel serve` and `semel dashboard` get their default port as an option, so that it is replaced too;
- servers that a page assumes (postgresql://localhost/shop) are replaced by those of the tests.
"""

from __future__ import annotations

import difflib
import os
import pty
import random
import re
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
from pages import Block, Command, Page
from uv import find_uv_bin

UV: Final = find_uv_bin()
PATIENCE: Final = 300.0  # seconds for a command, on a loaded machine
START: Final = 60.0  # seconds until a command in the background must report that it is ready
SHUTDOWN: Final = 40.0  # seconds from Ctrl-C to the end of a process
INTERRUPTED: Final = 130  # the exit code of a command that Ctrl-C ends at once, such as `semel doctor --watch`
GRACE = 10.0  # seconds after the end of a command for the processes that it started to end, too
PATH: Final = "/usr/local/bin:/usr/bin:/bin"
KEPT: Final = re.compile(r"UV_\w+|(HTTPS?|NO|ALL)_PROXY|(https?|no|all)_proxy|SSL_CERT_\w+|TMPDIR|SPARK_SUBMIT_OPTS")
DEFAULT_PORTS: Final = {"broker": "9324", "serve": "9324", "dashboard": "9325"}
_PORT: Final = re.compile(
    r"(?:(?:127\.0\.0\.1|localhost|0\.0\.0\.0):|(?:-port|--health|workers health)[ =])(\d{4,5})\b"
)
_ANY_LINES: Final = ("…", "...")


class PageError(Exception):
    """A page does not work as it shows."""


class PageRunner:
    """Executes one page in a folder. Files and logs stay there, to find out why a page failed."""

    def __init__(self, page: Page, folder: Path, wheel: Path, servers: Mapping[str, str] | None = None) -> None:
        text = _with_default_ports(page.text)
        replaced = {**_free_ports(text), **(servers or {})}
        shown = "|".join(map(re.escape, replaced))
        self.page = Page(page.path, re.sub(rf"(?<!\w)(?:{shown})(?!\w)", lambda match: replaced[match[0]], text))
        self.folder = folder
        self.here = folder / "here"  # the working directory of the page's commands, with its files
        self.logs = folder / "logs"
        self.wheel = wheel
        self._exports = folder / "exports.sh"
        self._code = 0  # of the last command
        self._background: list[_Process] = []

    def run(self) -> None:
        self._set_up()
        try:
            for block in self.page.blocks:
                if block.not_executed is None:
                    self._execute(block)
        finally:
            stopped = [(process, process.stop()) for process in reversed(self._background)]
        for process, problem in stopped:
            if problem:
                raise self._error(process.line, process.text, problem, process.output())

    def _execute(self, block: Block) -> None:
        if block.language == "console":
            commands = list(block.commands())
            for command, following in zip(commands, [*commands[1:], None], strict=True):
                code_is_shown = following is not None and following.is_exit_code
                self._command(command, may_fail=code_is_shown)
        elif block.file is not None:
            path = self.here / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            name = f"{'test_' if block.has_tests else ''}block_{block.line}.py"
            (self.here / name).write_text(block.text, encoding="utf-8")
            self._command(Command(block.line, f"python {'-m pytest -q ' * block.has_tests}{self.here / name}", ()))

    def _command(self, command: Command, *, may_fail: bool = False) -> None:
        process = self._start(command)
        if command.in_background:
            self._background.append(process)
            problem = process.wait_for(command.shown)
        else:
            problem = process.finish()
            self._code = process.code
            if problem is None and self._code and not may_fail:
                problem = f"exit code {self._code}"
            exactly = command.is_exit_code  # here numbers must match, too
            if problem is None and command.shown and not shows(command.shown, process.output(), exactly=exactly):
                problem = "the output is not what the page shows:\n" + difference(command.shown, process.output())
        if problem:
            raise self._error(command.line, command.text, problem, process.output())

    def _start(self, command: Command) -> _Process:
        text = re.sub(r"&\s*(?=#|$)", "", command.text) if command.in_background else command.text
        # Each command has its own shell, which continues with the state of the previous one.
        script = f'. {self._exports}; cd "$PWD"; (exit {self._code})\n{text}\ncode=$?; '
        script += f"export -p >{self._exports}; exit $code" if not command.in_background else "exit $code"
        terminal, end = pty.openpty()  # as a reader has it: programs write other things into files
        termios.tcsetwinsize(end, (24, 80))
        started = subprocess.Popen(
            ["bash", "--norc", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=end,
            stderr=end,
            cwd=self.here,
            env={},
            start_new_session=True,
        )
        os.close(end)
        log = self.logs / f"line-{command.line}.log"
        copier = threading.Thread(target=_copy, args=(terminal, log), daemon=True)
        copier.start()
        return _Process(command.line, command.text, log, started, copier, self.folder)

    def _set_up(self) -> None:
        home, environment = self.folder / "home", self.folder / "environment"
        for folder in (home, self.here, self.logs):
            folder.mkdir(parents=True)
        constraints = self.folder / "constraints.txt"
        locked = Path(__file__).parents[2] / "constraints.txt"
        versions = locked.read_text(encoding="utf-8") if locked.exists() else ""
        constraints.write_text(f"{versions}\nsemel @ {self.wheel.as_uri()}\n", encoding="utf-8")
        variables = {name: value for name, value in os.environ.items() if KEPT.fullmatch(name)} | {
            "HOME": str(home),
            "PATH": f"{environment / 'bin'}:{PATH}",
            "PWD": str(self.here),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "NO_COLOR": "1",
            "VIRTUAL_ENV": str(environment),
            "AWS_EC2_METADATA_DISABLED": "true",  # this machine may have an AWS role; a page must not use it
            "UV_CONSTRAINT": str(constraints),
            "UV_CACHE_DIR": os.environ.get("UV_CACHE_DIR") or uv("cache", "dir"),
            "UV_NO_PROGRESS": "1",
        }
        quoted = (f"export {name}='{value}'" for name, value in variables.items())
        self._exports.write_text("\n".join(quoted), encoding="utf-8")
        uv("venv", "--quiet", "--no-config", "--python", sys.executable, str(environment))
        pip = environment / "bin" / "pip"
        # Packages in uv's cache need no network, even if the package index forbids caching.
        pip.write_text(f'#!/bin/sh\n{UV} --offline pip "$@" 2>/dev/null || exec {UV} pip "$@"\n', encoding="utf-8")
        pip.chmod(0o755)
        if "pip install" not in "".join(block.text for block in self.page.blocks if block.not_executed is None):
            self._command(Command(0, "pip install semel", ()))

    def _error(self, line: int, command: str, problem: str, output: str) -> PageError:
        where = f"{self.page.path}:{line}: $ {command}"
        return PageError(f"{where}\n{problem}\n--- it printed:\n{output}\n--- its files and logs: {self.folder}")


@dataclass(slots=True)
class _Process:
    line: int
    text: str
    log: Path
    started: subprocess.Popen[bytes]
    copier: threading.Thread  # copies the output to the log
    folder: Path

    @property
    def code(self) -> int:
        return self.started.returncode

    def output(self) -> str:
        text = self.log.read_bytes().decode(errors="replace").replace("\r\n", "\n") if self.log.exists() else ""
        text = "\n".join(line.rpartition("\r")[2] for line in text.split("\n"))  # overwritten lines
        return text.replace(str(self.folder / "here"), ".").replace(str(self.folder), "")

    def finish(self, patience: float = PATIENCE) -> str | None:
        """Wait for the end of the command; returns what went wrong, if anything."""
        try:
            self.started.wait(patience)
        except subprocess.TimeoutExpired:
            self._kill()
            return f"it did not end within {patience:.0f} s; a command that runs on ends in ` &` on the page"
        deadline = time.monotonic() + GRACE
        while self._group():
            if time.monotonic() > deadline:
                left = ", ".join(" ".join(process.cmdline()[:4]) for process in self._group())
                self._kill()
                return f"it left a process behind: {left}"
            time.sleep(0.05)
        self.copier.join(GRACE)
        return None

    def wait_for(self, shown: tuple[str, ...]) -> str | None:
        """Wait until a background command has printed what the page shows; returns what went wrong, if anything."""
        deadline = time.monotonic() + START
        while not shows(shown, self.output(), so_far=True):
            if self.started.poll() is not None:
                return f"it ended, with exit code {self.code}, before it had printed what the page shows"
            if time.monotonic() > deadline:
                return "the output is not what the page shows:\n" + difference(shown, self.output())
            time.sleep(0.05)
        return None

    def stop(self) -> str | None:
        """Press Ctrl-C and wait for the end; returns what went wrong, if anything."""
        if self.started.poll() is None:
            os.killpg(self.started.pid, signal.SIGINT)
        if problem := self.finish(SHUTDOWN):
            return f"after Ctrl-C at the page's end: {problem}"
        if self.code not in (0, INTERRUPTED) or "Traceback (most recent call last)" in self.output():
            return f"it ended badly after Ctrl-C at the page's end: exit code {self.code}"
        return None

    def _kill(self) -> None:
        if self.started.poll() is None or self._group():
            os.killpg(self.started.pid, signal.SIGKILL)
        self.started.wait()

    def _group(self) -> list[psutil.Process]:
        """The processes of the command that still run."""
        group = []
        for process in psutil.process_iter(["status"]):
            try:
                if process.info["status"] != psutil.STATUS_ZOMBIE and os.getpgid(process.pid) == self.started.pid:
                    group.append(process)
            except (ProcessLookupError, psutil.NoSuchProcess):
                continue
        return group


def shows(shown: tuple[str, ...], printed: str, *, so_far: bool = False, exactly: bool = False) -> bool:
    """Whether the output is what the page shows, except for numbers, ids, times and white space. `…` stands for any
    text in a line, and on a line of its own for any number of lines. `so_far`: more output may follow.
    """
    normal = str.strip if exactly else normalised
    pattern = ""
    for line in shown:
        if line.strip() in _ANY_LINES:
            pattern += r"(?:[^\n]*\n)*?"
        else:
            pattern += r"[^\n]*".join(re.escape(part) for part in normal(line).split("…")) + r"\n"
    text = "".join(normal(line) + "\n" for line in printed.splitlines() if line.strip())
    return (re.match if so_far else re.fullmatch)(pattern, text) is not None


def difference(shown: tuple[str, ...], printed: str) -> str:
    before, after = ([normalised(line) for line in lines if line.strip()] for lines in (shown, printed.splitlines()))
    return "\n".join(difflib.unified_diff(before, after, "the page", "this run", lineterm="", n=2))


_NORMAL: Final = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\x1b\[[0-9;?]*[A-Za-z]|\a", ""),  # colours and the bell
        (r"/(?:tmp|var/folders)/[^\s'\"]+", "PATH"),
        (r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b", "#"),
        (r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b", "#"),
        (r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?", "#"),
        (r"\b\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?\b", "#"),
        (r"\d+(?:[.,]\d+)*", "#"),
        (r"#(?: ?(?:ns|us|µs|ms|s|sec|m|min|h|d))(?:,? ?#(?: ?(?:ms|s|sec|m|min|h)))*\b", "#s"),  # durations
        (r"([-─━═=])\1+", r"\1"),  # rules of a table
        (r"\s+", " "),
    )
]


def normalised(line: str) -> str:
    for pattern, replacement in _NORMAL:
        line = pattern.sub(replacement, line)
    return line.strip()


def _copy(terminal: int, log: Path) -> None:
    with log.open("wb", buffering=0) as file, open(terminal, "rb", buffering=0) as output:
        while True:
            try:
                data = output.read(65536)
            except OSError:  # on Linux: the other end is closed
                return
            if not data:
                return
            file.write(data)


def _with_default_ports(text: str) -> str:
    for command, port in DEFAULT_PORTS.items():
        text = re.sub(rf"^(\$ .*\bsemel {command}\b)(?!.* --port)", rf"\1 --port {port}", text, flags=re.MULTILINE)
    return text


def _free_ports(text: str) -> dict[str, str]:
    """Ports outside the ephemeral range, so that no other program gets one before the page's server starts."""
    ports = sorted({*_PORT.findall(text), *DEFAULT_PORTS.values()})
    free = (port for port in random.sample(range(10_000, 30_000), 1_000) if _is_free(port))
    return {port: str(next(free)) for port in ports}


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def uv(*arguments: str) -> str:
    return subprocess.run([UV, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
