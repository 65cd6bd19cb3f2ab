"""Shell completion, by argcomplete: the shell calls `semel` with the line so far, and the parsers answer.

argcomplete is imported only for completion and to print a script.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, Final

from semel.cli.command import ExitCode, Parser, command, parsers

SHELLS: Final = ("bash", "zsh", "fish")
_FILES: Final = ("FILE", "FOLDER", "PATH")  # metavars
_INSTALL: Final = {
    "bash": "semel completion bash > ~/.local/share/bash-completion/completions/semel",
    "zsh": 'semel completion zsh > "${fpath[1]}/_semel"',
    "fish": "semel completion fish > ~/.config/fish/completions/semel.fish",
}


def add_to(commands: Any) -> None:
    parser = command(
        commands,
        "completion",
        run,
        "print the completion script of a shell",
        description="Print a script with which a shell completes commands, options and values of semel.",
        examples="""
            eval "$(semel completion bash)"      in ~/.bashrc
            semel completion fish > ~/.config/fish/completions/semel.fish
        """,
    )
    parser.add_argument("shell", choices=SHELLS, help="bash, zsh or fish")


def run(args: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    first, *rest = shellcode(["semel"], shell=args.shell).strip().splitlines()
    install = f"# To install it: {_INSTALL[args.shell]}"
    # zsh wants its own line, #compdef, to come first.
    print("\n".join([first, install, *rest] if first.startswith("#compdef") else [install, first, *rest]))
    return ExitCode.OK


def complete(parser: Parser) -> None:
    """Answers the shell, and exits."""
    import argcomplete
    from argcomplete.completers import FilesCompleter

    for part in parsers(parser):
        for action in part._actions:
            if action.choices is None:
                is_file = str(action.metavar).rpartition("]")[2] in _FILES
                action.completer = FilesCompleter() if is_file else _nothing  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser, always_complete_options="long")


def _nothing(**_: object) -> Sequence[str]:
    """No completion: names of queues and addresses are not known here, and names of files would be wrong."""
    return ()
