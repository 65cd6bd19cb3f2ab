"""Options from environment variables: one rule for their names, and a command line option takes precedence."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

import pytest

from semel.cli import build_parser, reference
from semel.cli.command import kind, parsers, variable
from semel.consumer.settings import OPTIONS

# Read elsewhere, and no option: the state folder, Spark's log.
OTHERS: Final = {"SEMEL_STATE", "SEMEL_SPARK_LOG", "SEMEL_SPARK_KILL"}


def parsed(*arguments: str) -> argparse.Namespace:
    return build_parser().parse_args(arguments)


def usage_error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit, match="2"):
        parsed(*arguments)
    return capsys.readouterr().err.splitlines()[-1]


def every_option() -> list[tuple[argparse.ArgumentParser, argparse.Action]]:
    return [(parser, action) for parser in parsers(build_parser()) for action in parser._actions]


@pytest.mark.parametrize(
    ("name", "text", "arguments", "field", "value"),
    [
        ("SEMEL_BROKER_PORT", "8001", ["broker"], "port", 8001),
        ("SEMEL_BROKER_PORT", "8001", ["serve"], "port", 8001),
        ("SEMEL_BROKER_EPHEMERAL", "1", ["broker"], "ephemeral", True),
        ("SEMEL_BROKER_EPHEMERAL", "0", ["broker"], "ephemeral", False),
        ("SEMEL_BROKER_FAULT", "duplicate=0.1,throttle=0.2", ["broker"], "fault", ["duplicate=0.1", "throttle=0.2"]),
        ("SEMEL_DASHBOARD_PORT", "8002", ["dashboard"], "port", 8002),
        ("SEMEL_TOKEN", "secret", ["dashboard"], "token", "secret"),
        ("SEMEL_LEDGER", "sqlite:///x.db", ["top"], "ledger", "sqlite:///x.db"),
        ("SEMEL_ATTEMPT_LOG", "a,b", ["dashboard"], "attempt_log", ["a", "b"]),
        ("SEMEL_OUTPUT", "jsonl", ["workers", "list"], "output", "jsonl"),
        ("SEMEL_OUTPUT", "jsonl", ["doctor", "rules"], "output", "jsonl"),
        ("SEMEL_OUTPUT", "jsonl", ["doctor"], "output", "text"),  # which has other formats, and a variable of its own
        ("SEMEL_DOCTOR_OUTPUT", "html", ["doctor"], "output", "html"),
        ("SEMEL_DOCTOR_LOG", "a,b", ["doctor"], "log", ["a", "b"]),
        ("SEMEL_TOP_INTERVAL", "1m", ["top"], "interval", 60.0),
        ("SEMEL_PIPELINE_RUN_CORES", "2", ["pipeline", "run", "orders.toml"], "cores", 2),
    ],
)
def test_a_variable_sets_its_option(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, arguments: list[str], field: str, value: Any
) -> None:
    default = getattr(parsed(*arguments), field)
    monkeypatch.setenv(name, text)
    assert getattr(parsed(*arguments), field) == value
    monkeypatch.setenv(name, "")
    assert getattr(parsed(*arguments), field) == default, "an empty variable is none"


def test_a_flag_wins_over_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMEL_BROKER_PORT", "8001")
    monkeypatch.setenv("SEMEL_BROKER_FAULT", "duplicate=0.1")
    arguments = parsed("broker", "--port", "8002", "--fault", "throttle=0.2")
    assert (arguments.port, arguments.fault, arguments.environment) == (8002, ["throttle=0.2"], set())


def test_a_value_that_makes_no_sense_is_wrong_usage_of_the_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SEMEL_BROKER_PORT", "http")
    assert "$SEMEL_BROKER_PORT: invalid int value: 'http'" in usage_error(capsys, "broker")
    monkeypatch.delenv("SEMEL_BROKER_PORT")
    monkeypatch.setenv("SEMEL_OUTPUT", "yaml")
    assert "$SEMEL_OUTPUT: invalid choice: 'yaml'" in usage_error(capsys, "workers", "list")
    monkeypatch.delenv("SEMEL_OUTPUT")
    monkeypatch.setenv("SEMEL_BROKER_INSECURE", "maybe")
    assert "$SEMEL_BROKER_INSECURE: 'maybe' is neither 1 nor 0" in usage_error(capsys, "broker")


# Which messages, queues and workers an action is about, what it sends, and whether it is confirmed: said each time.
SAID_EACH_TIME: Final = {
    *("--all", "--where", "--id", "--limit", "--after", "--to", "--worker", "--queue"),
    *("--body", "--file", "--lines", "--key", "--new-key", "--attribute", "--group", "--dedup-id", "--fifo", "--dlq"),
    *("--yes", "--force", "--accept-loss", "--adopt", "--any-queue", "--receive", "--no-canary"),
}
OF_AWS: Final = {"--endpoint-url", "--region", "--profile"}


def test_every_option_has_a_variable_but_for_what_is_said_each_time() -> None:
    without = {
        action.option_strings[-1]
        for parser, action in every_option()
        if action.option_strings
        and action.help != argparse.SUPPRESS
        and action.dest not in ("help", "version")
        and variable(parser, action) is None
    }
    assert without == SAID_EACH_TIME | OF_AWS


def test_a_variable_stands_for_one_option_and_for_nothing_else() -> None:
    options: dict[str, set[str]] = {}
    for parser, action in every_option():
        if name := variable(parser, action):
            options.setdefault(name, set()).add(action.option_strings[-1])
    assert {name: which for name, which in options.items() if len(which) > 1} == {}
    assert not options.keys() & OTHERS
    settings = {f"SEMEL_{name.upper()}": f"--{name.replace('_', '-')}" for name in OPTIONS}
    assert {name: options[name] for name in options.keys() & settings.keys()} == {
        name: {settings[name]} for name in options.keys() & settings.keys()
    }


def test_what_an_app_can_set_itself_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the variable would come in as a flag, and win over what the App says."""
    (run,) = [parser for parser in parsers(build_parser()) if parser.prog == "semel run"]
    left = [action for action in run._actions if kind(action) == "app"]
    assert {action.dest for action in left} == {
        *("concurrency", "prefetch", "lease", "drain", "ledger", "control_token", "attempt_log")
    }
    for action in left:
        monkeypatch.setenv(str(variable(run, action)), "7")
    arguments = parsed("run", "shop:app")
    assert {getattr(arguments, action.dest) for action in left} == {None}


def test_the_page_of_all_options_is_what_the_code_says() -> None:
    """`python -m semel.cli.reference > docs/reference/options.md` makes it so."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "options.md"
    assert page.read_text(encoding="utf-8") == reference.page()
