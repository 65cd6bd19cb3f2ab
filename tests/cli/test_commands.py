"""What every command has: help that fits a terminal and has an example, and exit code 2 for wrong usage."""

from __future__ import annotations

import argparse
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from semel.cli import build_parser, main
from semel.cli.command import parsers

# Nobody listens there: what exits with 2 was refused before anything was asked of SQS.
NOWHERE: Final = "--endpoint-url http://127.0.0.1:1"


ALL: Final = {parser.prog: parser for parser in parsers(build_parser())}


def examples(parser: argparse.ArgumentParser) -> Iterator[list[str]]:
    """The arguments of each example in its help, up to a pipe or a redirection. Two spaces begin a comment."""
    text = re.sub(r"\\\n *", "", parser.epilog or "")
    for line in re.findall(r"^ +(?:.*\$\()?(semel .*?)(?:\).*)?$", text, re.MULTILINE):
        words = shlex.shlex(re.split("  +", line)[0], posix=True, punctuation_chars="|>&;")
        words.whitespace_split = True
        yield list(itertools.takewhile(lambda word: word not in ("|", ">", "&&", "&", ";"), words))[1:]


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.jsonl").touch()


@pytest.mark.parametrize("name", ALL)
def test_no_line_of_the_help_exceeds_80_columns(name: str) -> None:
    assert [line for line in ALL[name].format_help().splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("name", ALL)
def test_no_line_of_the_help_ends_in_the_middle_of_an_option(name: str) -> None:
    assert re.findall(r"--[a-z-]+-$", ALL[name].format_help(), re.MULTILINE) == []


@pytest.mark.parametrize("name", ALL)
def test_the_help_of_every_command_has_an_example(name: str) -> None:
    _, _, examples = ALL[name].format_help().lower().partition("example")
    assert f"{name} " in examples


@pytest.mark.parametrize("name", ALL)
def test_every_example_in_the_help_is_a_command_that_is_understood(name: str) -> None:
    commands = list(examples(ALL[name]))
    assert commands
    for command in commands:
        build_parser().parse_args(command)


@pytest.mark.parametrize("name", ALL)
def test_every_option_says_what_it_does_and_what_its_default_is(name: str) -> None:
    for action in ALL[name]._actions:
        if isinstance(action, argparse._SubParsersAction):
            continue
        assert action.help, action
        if action.help != argparse.SUPPRESS and action.nargs != 0 and action.default not in (None, [], ""):
            assert re.search(r"\(default: .+\)", action.help), action


@pytest.mark.parametrize("name", ALL)
def test_no_command_takes_a_part_of_an_options_name_for_the_option(name: str) -> None:
    assert not ALL[name].allow_abbrev


@pytest.mark.parametrize("name", ALL)
def test_where_an_endpoint_can_be_given_so_can_a_region_and_a_profile(name: str) -> None:
    options = {option for action in ALL[name]._actions for option in action.option_strings}
    assert {"--region", "--profile"} <= options or "--endpoint-url" not in options


@pytest.mark.parametrize(
    "line",
    [
        *(f"{name} --frobnicate" for name in ALL),
        "semel broker --port 99999",
        "semel broker --fault bogus",
        "semel broker --fault duplicate",
        "semel broker --fault duplicate=7",
        "semel broker --account abc",
        "semel broker --region Mars",
        "semel broker --host 0.0.0.0",
        "semel broker --ephemeral --dashboard-port 99999",
        "semel broker --ephemeral --dashboard-port 0 --dashboard-token x",
        "semel run shop:app --ledger ledger.db",
        f"semel dashboard {NOWHERE} --port 99999",
        f"semel dashboard {NOWHERE} --host 0.0.0.0",
        f"semel dashboard {NOWHERE} --token x",
        f"semel dashboard {NOWHERE} --name http://x",
        f"semel dashboard {NOWHERE} --ledger bogus",
        f"semel dashboard {NOWHERE} --worker bogus",
        "semel dashboard --endpoint-url 127.0.0.1:9324",
        f"semel top {NOWHERE} --interval 0",
        f"semel top {NOWHERE} --interval nan",
        f"semel top {NOWHERE} --worker bogus",
        f"semel top {NOWHERE} --ledger bogus",
        "semel dlq queues --endpoint-url http://127.0.0.1:port",
        "semel dlq queues --dashboard bogus",
        f"semel dlq list q {NOWHERE} --limit 0",
        f"semel dlq redrive q --all {NOWHERE} --rate -1",
        f"semel dlq redrive q --all {NOWHERE} --canary bogus",
        f"semel dlq redrive q --all {NOWHERE} --ledger bogus",
        "semel dlq redrive q --all --dashboard http://127.0.0.1:1 --ledger sqlite:///x.db",
        f"semel dlq restore absent.jsonl {NOWHERE}",
        f"semel dlq export q there.jsonl --all {NOWHERE}",
        f"semel dlq delete q --all {NOWHERE}",
        f"semel dlq delete q --yes {NOWHERE}",
        f"semel dlq queues --dashboard http://127.0.0.1:1 {NOWHERE}",
        f"semel dlq watch {NOWHERE} --webhook bogus",
        f"semel dlq watch {NOWHERE} --expires-within bogus",
        "semel jobs pause",
        "semel jobs wait x --timeout bogus",
        "semel audit --where 'bogus ~~'",
        "semel audit --limit 0",
        "semel annotate",
        "semel annotate text --dashboard bogus",
        f"semel queues create 'no name' {NOWHERE}",
        f"semel queues purge q {NOWHERE}",
        f"semel send q {NOWHERE}",
        f"semel messages send q x --file there.jsonl {NOWHERE}",
        f"semel messages send q x --attribute a {NOWHERE}",
        f"semel messages tail q --limit 0 {NOWHERE}",
        "semel workers bogus",
        "semel workers stop",
        "semel workers scale 0",
        "semel workers scale 1000000",
        "semel workers health bogus",
        "semel workers list --queue ''",
        "semel completion tcsh",
        "semel pipeline run absent.toml",
        "semel run shop:app --checkpoint x",
        "semel run shop:app --processes 0",
        "semel run shop:app --control-token secret",
        "semel doctor bogus",
        "semel doctor rules bogus",
        "semel alarms q --dlq x",
        "semel doctor",
        "semel doctor --log there.jsonl --cores 0",
        "semel demo handler --orders 0",
        "semel demo pipeline --orders 99",
    ],
)
def test_wrong_usage_exits_with_2_and_names_the_mistake(capsys: pytest.CaptureFixture[str], line: str) -> None:
    try:
        code = main(shlex.split(line)[1:])
    except SystemExit as exit:
        code = int(exit.code or 0)
    said = capsys.readouterr()
    assert code == 2, said
    assert said.out == ""
    assert said.err
    assert "Traceback" not in said.err
