"""What a shell offers after Tab."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

BIN: Final = Path(sys.executable).parent
ENVIRONMENT: Final = {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": "/nonexistent"}
# As readline calls it: the function that `complete -F` names, with the line in its variables.
BASH: Final = """
eval "$(semel completion bash)"
COMP_LINE="$1" COMP_POINT=${#1} COMP_TYPE=9 COMP_WORDBREAKS=$' \\t\\n"\\'><=;|&(:'
function=$(complete -p semel | sed 's/.*-F \\([^ ]*\\).*/\\1/')
$function semel
printf '%s\\n' "${COMPREPLY[@]}"
"""
LINES: Final = [
    ("semel wor", {"workers"}),
    ("semel workers s", {"scale", "stop"}),
    ("semel broker --dashboard-", {"--dashboard-port", "--dashboard-token"}),
    ("semel serve --fault-", {"--fault-seed"}),
    ("semel doctor --output ", {"text", "json", "html"}),
    ("semel workers list --output j", {"json", "jsonl"}),
    ("semel completion ", {"bash", "zsh", "fish", "--help"}),
    ("semel pipeline check or", {"orders.toml"}),
    ("semel broker --credentials or", {"orders.toml"}),
    ("semel alarms or", set()),  # a queue: the file orders.toml is not meant
]


def offered(text: str) -> set[str]:
    return {line.split("\t")[0].strip() for line in text.splitlines() if line.strip()}


@pytest.mark.parametrize(("line", "expected"), LINES)
def test_bash_completes_commands_options_values_and_files(tmp_path: Path, line: str, expected: set[str]) -> None:
    (tmp_path / "orders.toml").touch()
    done = subprocess.run(
        ["bash", "--norc", "-c", BASH, "bash", line],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (offered(done.stdout), done.stderr) == (expected, "")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_are_answered_in_their_own_form(shell: str, tmp_path: Path) -> None:
    """As their scripts call it: the line in the environment, the answer on file descriptor 8."""
    line = "semel workers s"
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_SHELL": shell, "COMP_LINE": line, "COMP_POINT": str(len(line))}
    separators = {"_ARGCOMPLETE_IFS": "\n", **({"_ARGCOMPLETE_DFS": "\t"} if shell == "fish" else {})}
    done = subprocess.run(
        ["bash", "-c", "semel 8>&1 9>&2 1>/dev/null"],
        cwd=tmp_path,
        env={**ENVIRONMENT, **asked, **separators},
        capture_output=True,
        text=True,
        check=False,
    )
    between = "\t" if shell == "fish" else ":"
    answers = dict(answer.split(between, 1) for answer in done.stdout.splitlines())
    assert answers.keys() == {"scale", "stop"}
    assert answers["scale"].strip() == "set the number of messages that are handled at a time"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_says_how_to_install_it_and_the_shell_can_read_it(shell: str) -> None:
    done = subprocess.run([BIN / "semel", "completion", shell], capture_output=True, text=True, check=True)
    assert f"# To install it: semel completion {shell} > " in done.stdout
    if shell == "zsh":
        assert done.stdout.startswith("#compdef semel\n")
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=done.stdout, text=True, check=True)


def test_nothing_of_it_is_loaded_unless_a_shell_asks() -> None:
    code = "import sys, semel.cli; semel.cli.build_parser(); print('argcomplete' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
