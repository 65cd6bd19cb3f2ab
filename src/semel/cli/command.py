"""How every command of `semel` is declared, which exit codes there are, and how options are read from the environment.

The variable of an option is SEMEL_, the command and the option: SEMEL_BROKER_PORT is `semel broker --port`. An option
that means the same in several commands (`common`) has one variable for all of them: SEMEL_LEDGER. A flag wins over its
variable. What an App sets wins over the variable, too, so the App itself reads such variables (`app`). Options that say
what an action affects, or that confirm it (`never`: --all, --yes, …), have no variable: they must be given each time.
"""

from __future__ import annotations

import argparse
import os
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, Final, Literal

from semel.errors import InvalidRequest, SemelError


class ExitCode(IntEnum):
    """The exit codes of all commands."""

    OK = 0
    FAILED = 1
    USAGE = 2
    FOUND = 3
    STOPPED = 4
    INTERRUPTED = 130


MEANINGS: Final[Mapping[ExitCode, str]] = {
    ExitCode.OK: "done",
    ExitCode.FAILED: "failed; the reason is on standard error",
    ExitCode.USAGE: "wrong usage",
    ExitCode.FOUND: "found something, or an alarm",
    ExitCode.STOPPED: "stopped early",
    ExitCode.INTERRUPTED: "interrupted with Ctrl-C",
}

_ALWAYS: Final = (ExitCode.OK, ExitCode.FAILED, ExitCode.USAGE, ExitCode.INTERRUPTED)

Variable = Literal["command", "common", "app", "never"]
_YES: Final = ("1", "true", "yes", "on")
_NO: Final = ("0", "false", "no", "off")


class UsageError(InvalidRequest):
    """The options or arguments are wrong, whatever the state of the queues. Exit code 2."""


@contextmanager
def wrong_usage(option: str = "") -> Iterator[None]:
    """For code that only checks options: turns its errors into UsageError, which names `option` if it is given."""
    try:
        yield
    except (SemelError, ValueError) as error:
        raise UsageError(f"{option}: {error}" if option else str(error)) from None


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """No line ends in the middle of an option: `--no-canary` can be found and copied."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """Options cannot be abbreviated: `--y` is not `--yes`. Subcommands are parsers of this kind, too.

    `environment` of the parsed namespace has the names of the options that come from the environment."""

    codes: tuple[ExitCode, ...] = ()  # the exit codes that its help explains

    def __init__(self, *arguments: Any, **options: Any) -> None:
        defaults: dict[str, Any] = {"allow_abbrev": False, "formatter_class": _HelpFormatter}
        super().__init__(*arguments, **(defaults | options))

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        values = {
            action: text
            for action in self._actions
            if kind(action) != "app" and (text := os.environ.get(variable(self, action) or ""))
        }
        defaults = {action: action.default for action in values}
        required = {action: action.required for action in values}
        try:
            for action in values:
                action.default, action.required = _NotGiven(), False
            parsed, rest = super().parse_known_args(args, namespace)
        finally:
            for action, default in defaults.items():
                action.default, action.required = default, required[action]
        used: set[str] = set(getattr(parsed, "environment", ()))
        for action, text in values.items():
            value = getattr(parsed, action.dest, None)
            if not isinstance(value, _NotGiven):
                continue
            if value:  # flags were appended to it
                setattr(parsed, action.dest, list(value))
            else:
                setattr(parsed, action.dest, self._value(action, text))
                used.add(action.dest)
        parsed.environment = used
        return parsed, rest

    def _value(self, action: argparse.Action, text: str) -> Any:
        """The value of an option, from the text of its variable."""
        try:
            if action.nargs == 0:
                return self._switch(action, text)
            if isinstance(action, argparse._AppendAction | argparse._ExtendAction):
                values = [self._get_values(action, [part.strip()]) for part in text.split(",") if part.strip()]
                nested = isinstance(action, argparse._ExtendAction)
                return [item for value in values for item in value] if nested else values
            return self._get_values(action, [text])
        except argparse.ArgumentError as error:
            self.error(f"${variable(self, action)}: {error.message}")

    def _switch(self, action: argparse.Action, text: str) -> Any:
        if text.lower() in _YES:
            return action.const
        if text.lower() in _NO:
            return action.default
        raise argparse.ArgumentError(action, f"{text!r} is neither 1 nor 0")


class RootParser(Parser):
    """Shows its commands by subject."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._by_subject: dict[str, list[argparse.Action]] = {}

    def add_subparsers(self, **options: Any) -> Any:
        self._commands = super().add_subparsers(parser_class=Parser, **options)
        return self._commands

    @contextmanager
    def subject(self, name: str) -> Iterator[None]:
        """Commands that are added inside this block are listed under this subject."""
        before = len(self._commands._get_subactions())
        yield
        self._by_subject[name] = self._commands._get_subactions()[before:]

    def format_help(self) -> str:
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        options = [action for action in self._actions if action is not self._commands]
        for title, actions in {**self._by_subject, "options": options}.items():
            formatter.start_section(title)
            formatter.add_arguments(actions)
            formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()


class _NotGiven(list[Any]):
    """Stands for an option that no flag has set; a list, because flags may be appended to it."""


def some_text(text: str) -> str:
    """Refuses an empty text, which usually comes from an unset variable of the shell."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty; is a variable unset?")
    return text


def option(
    target: Any,
    usage: str,
    help: str,
    *,
    env: Variable = "command",
    repeat: bool = False,
    code: str = "",
    toml: str = "",
    **details: Any,
) -> argparse.Action:
    """Adds an option to a parser or to a group. `usage` is the name of the option and of its value, such as `--rate N`;
    without a value it is a switch. A default is added to the help; if it is a text, it is parsed like a value. `code`
    and `toml` are the same option in Python and in a pipeline file, for the table of options in docs/."""
    name, _, metavar = usage.partition(" ")
    default = details.get("default")
    if isinstance(default, str | int) and default != "":
        help = f"{help} (default: {default})"
    if repeat:
        details |= {"action": "append", "default": []}
    if metavar:
        details = {"metavar": metavar, "type": str if "choices" in details else some_text} | details
    elif "choices" not in details:
        details = {"action": "store_true"} | details
    action: argparse.Action = target.add_argument(name, help=help, **details)
    action.semel = (env, code, toml)  # type: ignore[attr-defined]
    return action


def kind(action: argparse.Action) -> Variable:
    declared: Variable = getattr(action, "semel", ("command",))[0]
    return declared


def variable(parser: argparse.ArgumentParser, action: argparse.Action) -> str | None:
    """The environment variable of an option; None if it has none."""
    name = next((name for name in action.option_strings if name.startswith("--")), None)
    if name is None or kind(action) == "never" or action.help == argparse.SUPPRESS or name in ("--help", "--version"):
        return None
    words = [] if kind(action) in ("common", "app") else parser.prog.split()[1:]
    return "_".join(("semel", *words, name.removeprefix("--"))).replace("-", "_").upper()


def command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], int],
    help: str,
    *,
    examples: str,
    description: str = "",
    notes: str = "",
    codes: Mapping[ExitCode, str] | None = None,
    **details: Any,
) -> Parser:
    """Adds a command. Without a description, its help is used as a sentence. `codes` has the meanings that differ from
    the common meanings of exit codes."""
    shown = {code: MEANINGS[code] for code in _ALWAYS} | dict(codes or {})
    more = [textwrap.dedent(notes).strip()] if notes else []
    more.append("exit codes:\n" + "\n".join(_code_lines(shown)))
    parser = _add_parser(commands, name, help, description, examples, *more, **details)
    parser.codes = tuple(sorted(shown))
    parser.set_defaults(run=run)
    return parser


def command_group(commands: Any, name: str, help: str, *, examples: str, description: str = "") -> Any:
    """Adds a command that only has subcommands. Add these to the object that is returned."""
    parser = _add_parser(commands, name, help, description, examples)
    return parser.add_subparsers(title="commands", metavar="COMMAND", required=True)


def _add_parser(
    commands: Any, name: str, help: str, description: str, examples: str, *more: str, **details: Any
) -> Parser:
    sentences = " ".join(description.split()) or f"{help[0].upper()}{help[1:]}."
    first = f"examples:\n{textwrap.indent(textwrap.dedent(examples).strip(), '  ')}"
    parser: Parser = commands.add_parser(
        name, help=help, description=textwrap.fill(sentences, 80), epilog="\n\n".join((first, *more)), **details
    )
    return parser


def _code_lines(codes: Mapping[ExitCode, str]) -> Iterator[str]:
    for code, text in sorted(codes.items()):
        first, *more = textwrap.wrap(text, 71)
        yield f"  {code.value:<3}  {first}"
        yield from (f"       {line}" for line in more)


def parsers(parser: Parser) -> Iterator[Parser]:
    """This parser and those of all its commands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in dict.fromkeys(action.choices.values()):
                yield from parsers(child)
