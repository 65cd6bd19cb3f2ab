"""docs/reference/options.md, made from the parsers: `python -m semel.cli.reference > docs/reference/options.md`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import Final

from semel.cli import build_parser
from semel.cli.command import MEANINGS, kind, parsers, variable
from semel.consumer.settings import OPTIONS

_INTRODUCTION: Final = """\
# Options

This page is made from the code: `python -m semel.cli.reference > docs/reference/options.md`.

Most options of the command line have an environment variable: `SEMEL_`, the command and the option, so that
`SEMEL_BROKER_PORT` is `semel broker --port`. An option that means the same in several commands has one variable for all
of them: `SEMEL_LEDGER`. The first of these that is set wins: the flag, what the handler or the `App` sets in code (for
`semel run`), the variable, the default. An option that can be repeated takes several values from its variable,
separated by commas; a switch is turned on by `1`. An empty variable counts as not set. Options that say what an action
affects, or that confirm it, such as `--all` and `--yes`, have no variable. Options cannot be abbreviated.

SQS's endpoint, region and profile have the variables of AWS: `AWS_ENDPOINT_URL_SQS`, `AWS_REGION`, `AWS_PROFILE`.
Two more variables: `SEMEL_STATE` is the folder of jobs, audit log and snapshots, and `SEMEL_SPARK_LOG` is the
level of Spark's own log (`warn`, `info`).
"""
_AWS: Final = {"--endpoint-url": "AWS_ENDPOINT_URL_SQS", "--region": "AWS_REGION", "--profile": "AWS_PROFILE"}


def page() -> str:
    root = build_parser()
    commands = [parser for parser in parsers(root) if list(_options(parser))]
    lines = [_INTRODUCTION, "## Exit codes", "", "| code | meaning |", "|--:|---|"]
    lines += [f"| {code.value} | {text} |" for code, text in MEANINGS.items()]
    lines += ["", "`semel COMMAND --help` says what they mean for a command.", "", *_settings()]
    for parser in commands:
        lines += [f"## {parser.prog}", "", *_table(parser), ""]
    return "\n".join(lines).rstrip() + "\n"


def _options(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        if action.option_strings and action.help != argparse.SUPPRESS and action.dest not in ("help", "version"):
            yield action


def _table(parser: argparse.ArgumentParser) -> Iterator[str]:
    of_app = any(_declared(action)[1] for action in _options(parser))
    of_file = any(_declared(action)[2] for action in _options(parser))
    titles = ["option", "environment", *["in code"] * of_app, *["pipeline file"] * of_file, "meaning"]
    yield _row(titles)
    yield _row("---" for _ in titles)
    aws = {action.option_strings[-1] for action in _options(parser)} >= _AWS.keys()
    for action in _options(parser):
        _, code, toml = _declared(action)
        name = variable(parser, action) or (_AWS.get(action.option_strings[-1]) if aws else None)
        cells = [_code(_written(action)), _code(name)]
        cells += [", ".join(map(_code, code.split(", ")))] * of_app + [_code(toml)] * of_file
        yield _row([*cells, str(action.help).replace("%%", "%").replace("|", "\\|")])


def _settings() -> Iterator[str]:
    """The table of handler settings, most of which have no flag."""
    yield from ("## Settings of handlers", "")
    yield "In code: `@app.handler(lease=…)` for one handler, `App(lease=…)` or `app.run(lease=…)` for all of an app."
    yield from ("", _row(("setting", "environment", "option of `semel run`", "meaning")), _row(["---"] * 4))
    (run,) = [parser for parser in parsers(build_parser()) if parser.prog == "semel run"]
    flags = {action.dest: action.option_strings[-1] for action in _options(run) if kind(action) == "app"}
    for name, setting in OPTIONS.items():
        environment = f"SEMEL_{name.upper()}" if setting.environment else ""
        yield _row((_code(name), _code(environment), _code(flags.get(name, "")), setting.description))
    yield ""


def _declared(action: argparse.Action) -> tuple[str, str, str]:
    declared: tuple[str, str, str] = getattr(action, "semel", ("command", "", ""))
    return declared


def _written(action: argparse.Action) -> str:
    if action.nargs == 0:
        return action.option_strings[-1]
    values = "|".join(map(str, action.choices)) if action.choices else action.metavar or action.dest.upper()
    return f"{action.option_strings[-1]} {values}{' …' if action.nargs == '+' else ''}"


def _code(text: str | None) -> str:
    return f"`{text}`".replace("|", "\\|") if text else ""


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(page(), end="")
