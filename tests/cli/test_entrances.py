"""The same options, exit codes and defaults everywhere: commands, API, pages and terminal."""

from __future__ import annotations

import argparse
import ast
import asyncio
import inspect
import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final

import pytest

from dashboard.serving import shop
from semel.cli import build_parser
from semel.cli.command import ExitCode, Parser, kind, parsers
from semel.dlq.redrive.plan import RedrivePlan

ALL: Final = {parser.prog: parser for parser in parsers(build_parser())}
# What differs, and why it has to. Everything else about an option of this name is the same in all commands.
# "*" stands for all of it: another thing by the same name.
_OF_AN_APP: Final = "what an App sets wins over the variable"
_SAID_EACH_TIME: Final = "what an action is about has no variable"
_OF_WHAT: Final = "it says of what"
EXCEPTIONS: Final[dict[str, dict[str, str]]] = {
    "--all": {"help": _OF_WHAT},
    "--attempt-log": {
        **dict.fromkeys(("repeats", "default"), "a worker writes one log; the dashboard reads those of several"),
        "help": "run writes it, the dashboard reads it",
        "variable": _OF_AN_APP,
    },
    "--body": {"*": "dlq show prints the body, dlq edit reads it from a file"},
    "--control-token": {"variable": _OF_AN_APP},
    "--delay": {"help": "of a queue, or of one message"},
    "--dlq": {"*": "queues create can make up the name; alarms needs it if SQS is not asked"},
    "--engine": {"*": "the doctor's engine reads logs, that of a redrive moves messages"},
    "--events": {"help": "the doctor and verify tell different events apart"},
    "--exit-when-empty": {"help": "a pipeline ends with the backlog of its start, which is what Spark can do"},
    "--file": {"help": "messages send reads a body from it, dlq edit a whole document"},
    "--group": {"help": _OF_WHAT},
    "--interval": dict.fromkeys(("default", "help"), "what is asked often must be cheap"),
    "--ledger": {"variable": _OF_AN_APP},
    "--limit": {
        "default": "a list is cut; an action and a tail are not",
        "help": _OF_WHAT,
        "variable": _SAID_EACH_TIME,
    },
    "--orders": {"help": "Spark needs more of them to be worth its start"},
    "--output": {
        **dict.fromkeys(("choices", "default", "variable"), "the doctor's report is a text or a page, not a table"),
        "help": "it says what is printed",
    },
    "--port": dict.fromkeys(("default", "help"), "each server has its own port"),
    "--queue": {
        "default": "a list that is empty, or None for all queues",
        "help": "run and workers choose among queues, the doctor asks about one",
        "variable": _SAID_EACH_TIME,
    },
    "--region": {"*": "the broker has a region; all others call one"},
    "--sample": {"*": "the doctor's is a log; dlq receives some messages"},
    "--to": {"help": "the default depends on what is known of the message"},
    "--token": {"help": "the dashboard's own, or one to call it with"},
    "--visibility": {"*": "a queue is created with one; the doctor is told that of each queue"},
    "--where": {
        **dict.fromkeys(("type", "default"), "for an action an empty filter is a mistake, for a list it is none"),
        "help": _OF_WHAT,
    },
    "--worker": {
        **dict.fromkeys(("metavar", "type", "help"), "workers can be named by their id where the registry is read"),
        "variable": _SAID_EACH_TIME,
    },
}


def options() -> Iterator[tuple[str, Parser, argparse.Action]]:
    for parser in ALL.values():
        for action in parser._actions:
            for name in action.option_strings:
                if name.startswith("--") and action.help != argparse.SUPPRESS and name not in ("--help", "--version"):
                    yield name, parser, action


def described(action: argparse.Action) -> dict[str, Any]:
    made: Any = action.type
    if isinstance(made, FunctionType) and made.__closure__:  # such as at_least(1): two of them are the same
        made = (made.__qualname__, *(cell.cell_contents for cell in made.__closure__))
    return {
        "metavar": action.metavar,
        "type": made,
        "default": action.default,
        "choices": action.choices,
        "repeats": isinstance(action, argparse._AppendAction | argparse._ExtendAction),
        "values": action.nargs,
        "variable": kind(action),
        "help": action.help,
    }


def differences() -> dict[str, dict[str, dict[str, list[str]]]]:
    """By option and property: which commands have which value."""
    by_option: dict[str, dict[str, dict[str, list[str]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for name, parser, action in options():
        for field, value in described(action).items():
            by_option[name][field][repr(value)].append(parser.prog)
    return {
        name: differing
        for name, fields in by_option.items()
        if (differing := {field: by_value for field, by_value in fields.items() if len(by_value) > 1})
    }


def test_an_option_is_the_same_in_every_command_that_has_it() -> None:
    unexplained = [
        (name, field, by_value)
        for name, fields in differences().items()
        for field, by_value in fields.items()
        if not {field, "*"} & EXCEPTIONS.get(name, {}).keys()
    ]
    assert unexplained == []


def test_every_exception_is_one() -> None:
    by_option = differences()
    assert [
        (name, field)
        for name, fields in EXCEPTIONS.items()
        for field in fields
        if not by_option.get(name) or (field != "*" and field not in by_option[name])
    ] == []


# Exit codes.


def _reached(function: Callable[..., Any], functions: set[Any]) -> None:
    """Adds all functions of the command line that it may call."""
    if function in functions:
        return
    functions.add(function)
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        value = None
        if isinstance(node, ast.Name):
            value = function.__globals__.get(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = function.__globals__.get(node.value.id)
            value = getattr(module, node.attr, None) if isinstance(module, ModuleType) else None
        if isinstance(value, FunctionType) and value.__module__.startswith("semel.cli"):
            _reached(value, functions)


def exit_codes(run: Callable[..., Any]) -> set[ExitCode]:
    """All that the source of a command and of what it calls names, without what `main` returns for errors."""
    functions: set[Any] = set()
    _reached(run, functions)
    return {
        ExitCode[node.attr]
        for function in functions
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function))))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ExitCode"
    }


COMMANDS: Final = [name for name, parser in ALL.items() if parser.get_default("run")]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_explains_the_exit_codes_that_a_command_returns_and_no_others(name: str) -> None:
    always = {ExitCode.OK, ExitCode.FAILED, ExitCode.USAGE, ExitCode.INTERRUPTED}  # from `main`
    assert set(ALL[name].codes) == exit_codes(ALL[name].get_default("run")) | always
    for code in ALL[name].codes:
        assert re.search(rf"^  {code.value} +\S", ALL[name].format_help(), re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_has_an_exit_code_of_its_own(name: str) -> None:
    """Others than 0 are members of ExitCode, not figures."""
    functions: set[Any] = set()
    _reached(ALL[name].get_default("run"), functions)
    run = ALL[name].get_default("run")
    figures = [
        node.value.value
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(run))))
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Constant) and type(node.value.value) is int
    ]
    assert not any(figures)


# A redrive.

PLAN: Final = RedrivePlan(queue="orders-dlq", all=True)
IN_COMMAND: Final = {"stop_after_failures": "stop_after"}  # by another name there
FIELDS: Final = ("canary", "canary_wait", "threads", "rate", "limit", "stop_after_failures", "to", "dry_run")


@pytest.mark.parametrize("field", FIELDS)
def test_the_command_has_the_defaults_of_the_plan(field: str) -> None:
    arguments = vars(build_parser().parse_args(["dlq", "redrive", "orders-dlq", "--all"]))
    assert (arguments[IN_COMMAND.get(field, field)] or None) == (getattr(PLAN, field) or None)


def test_api_and_page_have_the_defaults_of_the_plan(tmp_path: Path) -> None:
    with shop(tmp_path) as place, place.dashboard() as site:
        described = site.get("/api/v1/openapi.json").json()
        page = site.get("/dead-letters/orders-dlq/redrive", where="key exists").text
    (path,) = [path for path in described["paths"] if path.endswith("/redrive")]
    body = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    while "$ref" in body:
        body = described["components"]["schemas"][body["$ref"].rpartition("/")[2]]
    in_api = {name: body["properties"][name].get("default") or None for name in FIELDS if name in body["properties"]}
    assert in_api.keys() >= {"canary", "threads"}
    assert in_api == {name: getattr(PLAN, name) or None for name in in_api}
    fields = re.findall(r'<input[^>]* name="(\w+)"[^>]*', page)
    values = dict(re.findall(r'<input[^>]* name="(\w+)"[^>]* value="([^"]*)"', page))
    assert "canary" in fields
    in_page = {name: values.get(name, "") for name in FIELDS if name in fields}
    assert in_page == {name: str(getattr(PLAN, name) or "") for name in in_page}


def test_the_terminal_has_the_defaults_of_the_plan() -> None:
    from textual.app import App
    from textual.widgets import Input

    from semel.dashboard.terminal.dialogs import RedriveForm, RedriveSelection

    async def values() -> dict[str, str]:
        app: App[None] = App()
        async with app.run_test():
            form = RedriveForm(RedriveSelection("orders-dlq", "", 1, True, "here"))
            await app.push_screen(form)
            return {str(field.id): field.value for field in form.query(Input)}

    in_terminal = {name: value for name, value in asyncio.run(values()).items() if name in FIELDS}
    assert "canary" in in_terminal
    assert in_terminal == {name: str(getattr(PLAN, name) or "") for name in in_terminal}
