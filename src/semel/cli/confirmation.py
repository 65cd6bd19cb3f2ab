"""Questions before something is changed. Without a terminal, nothing is done unless --yes is given."""

from __future__ import annotations

import argparse
import sys

from semel.cli.command import UsageError


def check_terminal(args: argparse.Namespace, action: str) -> None:
    if not args.yes and not sys.stdin.isatty():
        raise UsageError(f"there is no terminal to confirm at: add --yes to {action} without confirmation")


def ask(question: str) -> str:
    """Returns what the user types; an empty text at the end of the input."""
    # Not `input`: a Ctrl-C right after its prompt is lost until a key is pressed.
    print(question, end="", flush=True)
    line = sys.stdin.readline()
    if not line:
        print()
    return line.strip()


def agreed(question: str) -> bool:
    return ask(f"{question} [y/N] ").lower() in ("y", "yes")


def typed(name: str, action: str) -> bool:
    """Whether the name was typed, which confirms the action."""
    if ask(f"Type {name} to {action}: ") == name:
        return True
    print(f"that is not {name}; nothing was changed")
    return False
