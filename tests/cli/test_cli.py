"""The command `semel`: its help shows examples, its errors are one line, and its exit codes have a meaning."""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import semel
from semel.broker.faults import Fault
from semel.cli import build_parser, main

SEMEL: Final = str(Path(sys.executable).with_name("semel"))


class Said(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """`semel broker` tunes the process that it has to itself; this one goes on."""
    interval = sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval)


def semel_says(capsys: pytest.CaptureFixture[str], *arguments: str) -> Said:
    """Runs the command in this process."""
    try:
        code = main(arguments)
    except SystemExit as ended:
        code = int(ended.code or 0)
    said = capsys.readouterr()
    return Said(code, said.out, said.err)


def run(*command: str, folder: Path) -> Said:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    return Said(done.returncode, done.stdout, done.stderr)


def broker_parser() -> argparse.ArgumentParser:
    for action in build_parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            parser: argparse.ArgumentParser = action.choices["broker"]
            return parser
    raise AssertionError("there is no command broker")


# Help.


def test_help_shows_what_there_is_and_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    said = semel_says(capsys, "--help")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("usage: semel ")
    assert "examples:\n  semel broker" in said.out
    assert re.search(r"^ +broker \(serve\) +\S", said.out, re.MULTILINE)


def test_help_on_the_broker_shows_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    said = semel_says(capsys, "broker", "--help")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("usage: semel broker ")
    assert "examples:\n  semel broker " in said.out
    assert "exit codes:\n  0 " in said.out


def test_the_example_with_the_aws_command_names_the_port_that_the_broker_listens_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    defaults = build_parser().parse_args(["broker"])
    assert f"--endpoint-url http://{defaults.host}:{defaults.port} " in semel_says(capsys, "broker", "--help").out
    assert (defaults.host, defaults.port) == ("127.0.0.1", 9324)


def test_the_aws_command_of_the_help_works_without_any_aws_configuration(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (command,) = re.findall(r"^  (aws (?:.*\\\n)*.*)$", semel_says(capsys, "broker", "--help").out, re.MULTILINE)
    with semel.broker.running() as broker:
        ran = subprocess.run(
            ["/bin/sh", "-c", command.replace("http://127.0.0.1:9324", broker.url)],
            env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.stderr == ""
        assert f"{broker.url}/000000000000/orders" in ran.stdout


def test_every_option_says_what_it_does() -> None:
    for action in broker_parser()._actions:
        assert action.help, action


def test_the_help_names_every_kind_of_fault(capsys: pytest.CaptureFixture[str]) -> None:
    shown = " ".join(semel_says(capsys, "broker", "--help").out.split())
    for kind in Fault:
        assert kind in shown.replace("- ", "-")


def test_help_does_not_load_the_server(tmp_path: Path) -> None:
    code = "import sys, semel.cli; semel.cli.build_parser().format_help(); print('semel.broker' in sys.modules)"
    assert run(sys.executable, "-c", code, folder=tmp_path) == Said(0, "False\n", "")


# The version.


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert semel_says(capsys, "--version") == Said(0, f"semel {semel.__version__}\n", "")
    assert importlib.metadata.version("semel") == semel.__version__


@pytest.mark.parametrize("command", [(SEMEL,), (sys.executable, "-m", "semel.cli")], ids=["semel", "python -m"])
def test_the_command_can_be_called_by_its_name_and_as_a_module(command: tuple[str, ...], tmp_path: Path) -> None:
    assert run(*command, "--version", folder=tmp_path) == Said(0, f"semel {semel.__version__}\n", "")


@pytest.mark.parametrize("command", [(SEMEL,), (sys.executable, "-m", "semel")], ids=["semel", "python -m"])
def test_ctrl_c_while_a_dataclass_is_made_is_exit_code_130(command: tuple[str, ...], tmp_path: Path) -> None:
    """Dataclasses execute texts, and so does this app while it is imported."""
    (tmp_path / "shop.py").write_text('exec("import os, signal; os.kill(os.getpid(), signal.SIGINT)")\n')
    assert run(*command, "run", "shop:app", folder=tmp_path) == Said(130, "", "")


# Wrong usage.


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("frobnicate",),
        ("--frobnicate",),
        ("broker", "more"),
        ("broker", "--frobnicate"),
        ("broker", "--port"),
        ("broker", "--port", "http"),
        ("broker", "--clock", "sundial"),
        ("broker", "--data", "x", "--ephemeral"),
        ("broker", "--fault-seed", "lucky"),
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_2_and_shows_the_usage(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    said = semel_says(capsys, *arguments)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("usage: semel")
    assert re.search(r"^semel( broker)?: error: .+$", said.err.rstrip().splitlines()[-1])
    assert "Traceback" not in said.err


# Errors.


def assert_one_line(said: Said, *expected: str, code: int = 1) -> None:
    assert (said.code, said.out) == (code, "")
    assert said.err.startswith("semel: ")
    assert said.err.endswith("\n")
    assert said.err.count("\n") == 1, said.err
    for text in expected:
        assert text in said.err


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--account", "12"),
        ("--account", "1234567890123"),
        ("--region", "Mars"),
        ("--port", "70000"),
        ("--fault", "zap=1"),
    ],
)
def test_a_bad_value_is_one_line_that_names_the_value(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, value: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_one_line(semel_says(capsys, "broker", "--ephemeral", "--port", "0", option, value), option, value, code=2)


def test_credentials_that_are_not_there_are_a_failure_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert_one_line(semel_says(capsys, "broker", "--ephemeral", "--credentials", "missing"), "--credentials", "missing")


def test_a_port_that_is_taken_is_one_line_with_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        assert_one_line(semel_says(capsys, "broker", "--ephemeral", "--port", port), port, "--port")


def test_a_data_folder_that_is_a_file_is_one_line_with_the_way_out(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    assert_one_line(
        semel_says(capsys, "broker", "--port", "0", "--data", str(tmp_path / "file")), str(tmp_path / "file"), "--data"
    )


def test_an_error_of_a_real_process_is_one_line_on_standard_error(tmp_path: Path) -> None:
    assert_one_line(run(SEMEL, "broker", "--ephemeral", "--account", "12", folder=tmp_path), "--account 12", code=2)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_is_no_stack_trace(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("semel.broker.process.serve", interrupted)
    assert semel_says(capsys, "broker", "--ephemeral") == Said(130, "", "")
