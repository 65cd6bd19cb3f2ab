"""The checker of the documentation finds the mistakes of a page. No environment is built here."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from page_runner import PageError, PageRunner, normalised, shows
from pages import Page, name_problems


def page(text: str, path: Path = Path("page.md")) -> Page:
    return Page(path, text)


class Runner(PageRunner):
    """In the environment of the tests, for pages that need no semel."""

    def _set_up(self) -> None:
        self.here.mkdir(parents=True)
        self.logs.mkdir()
        folder = Path(sys.executable).parent
        self._exports.write_text(f"export PATH='{folder}:/usr/bin:/bin' PWD='{self.here}'", encoding="utf-8")


def run(text: str, folder: Path) -> None:
    read = page(text)
    assert not read.block_problems()
    Runner(read, folder, folder / "no.whl").run()


def test_a_page_that_shows_what_happens_passes(tmp_path: Path) -> None:
    run(
        """
```python
# greeting.py
print("took 17 ms, at 12:30:01")
```

```console
$ python greeting.py
took 3 ms, at 08:00:00
$ export NAME=world && mkdir sub && cd sub
$ echo "hello $NAME" \\
    from $(basename $PWD)
hello … sub
```

```python
import os

assert os.environ["NAME"] == "world"
```
""",
        tmp_path,
    )


def test_a_page_that_shows_another_output_fails_and_names_line_and_command(tmp_path: Path) -> None:
    with pytest.raises(PageError) as caught:
        run("Say hello:\n\n```console\n$ true\n$ echo hello\ngoodbye\n```\n", tmp_path)
    message = str(caught.value)
    assert "page.md:5: $ echo hello" in message
    assert "-goodbye\n+hello" in message
    assert str(tmp_path) in message


def test_a_command_that_fails_fails_its_page_unless_the_page_shows_its_exit_code(tmp_path: Path) -> None:
    with pytest.raises(PageError, match="exit code 3"):
        run("```console\n$ (exit 3)\n```\n", tmp_path / "1")
    with pytest.raises(PageError, match="not what the page shows"):
        run("```console\n$ (exit 3)\n$ echo $?\n2\n```\n", tmp_path / "2")
    run("```console\n$ (exit 3)\n$ echo $?  # too bad\n3\n```\n", tmp_path / "3")


def test_a_python_block_that_raises_fails_its_page(tmp_path: Path) -> None:
    with pytest.raises(PageError, match="ZeroDivisionError"):
        run("```python\n1 / 0\n```\n", tmp_path)


def test_a_block_with_tests_is_run_by_pytest(tmp_path: Path) -> None:
    with pytest.raises(PageError, match="1 failed"):
        run("```python\ndef test_it() -> None:\n    assert 1 > 2\n```\n", tmp_path)


SERVER = """
```python
# server.py
import {module}

print("ready on 127.0.0.1:9324", flush=True)
{wait}
```

```console
$ python server.py &
ready on 127.0.0.1:9324
```
"""


def test_a_command_in_the_background_is_waited_for_and_stopped_by_ctrl_c(tmp_path: Path) -> None:
    stops = "try:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    print('stopped')"
    start = time.monotonic()
    run(SERVER.format(module="time", wait=stops), tmp_path)
    assert time.monotonic() - start < 30
    assert any("stopped" in log.read_text() for log in (tmp_path / "logs").iterdir())


def test_a_command_in_the_background_that_ends_with_a_traceback_fails_its_page(tmp_path: Path) -> None:
    with pytest.raises(PageError, match="KeyboardInterrupt"):
        run(SERVER.format(module="time", wait="time.sleep(60)"), tmp_path)


def test_a_command_that_leaves_a_process_behind_fails_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("page_runner.GRACE", 0.1)
    with pytest.raises(PageError, match="left a process behind: sleep 60"):
        run("```console\n$ (sleep 60 >/dev/null &)\n```\n", tmp_path)


def test_the_ports_of_a_page_are_replaced_everywhere_by_free_ones(tmp_path: Path) -> None:
    lines = ("$ semel broker &", "on 127.0.0.1:9324", "$ semel serve --port 8001 --dashboard-port 8080 &", "ready")
    text = "\n".join(("```console", *lines, "```", ""))
    commands = [command.text for command in Runner(page(text), tmp_path, tmp_path).page.blocks[0].commands()]
    assert "9324" not in commands[0]
    assert "--port" in commands[0]
    assert "8001" not in commands[1]
    assert "8080" not in commands[1]
    assert commands[1].count("--port") == 1


def test_a_port_of_a_page_is_none_that_the_system_hands_to_others(tmp_path: Path) -> None:
    text = "```console\n$ semel serve --port 8001 &\nready\n```\n"
    (command,) = Runner(page(text), tmp_path, tmp_path).page.blocks[0].commands()
    assert 10_000 <= int(command.text.split()[3]) < 30_000


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("    $ semel serve\n", "indented block"),
        ("Do this:\n\n    semel serve\n", "indented block"),
        ("```\n$ semel serve\n```\n", "a block in no language is not executed"),
        ("```json\n{}\n```\n", "a block in json is not executed"),
        ("```bash\nsemel serve\n```\n", "a block in bash is not executed"),
        ("```text\n$ semel serve\n```\n", "commands belong in a console block"),
        ("```console\nsemel serve\n```\n", "begins with a command"),
        ("```console\n$ semel serve &\n```\n", "says it is ready"),
        ("```python\n# shop.py\nx = 1\n```\n", "no later block uses shop.py"),
        ("<!-- not executed: -->\n```json\n{}\n```\n", "without a reason"),
        ("<!-- not executed: why -->\n\nWords.\n\n```python\nx = 1\n```\n", "directly before"),
    ],
)
def test_what_would_escape_execution_is_refused(text: str, problem: str) -> None:
    (refusal,) = page(text).block_problems()
    assert problem in refusal


def test_a_block_that_cannot_be_executed_says_why() -> None:
    read = page("<!-- not executed: needs an AWS account -->\n```console\n$ aws s3 ls\n```\n")
    assert read.block_problems() == []
    assert read.blocks[0].not_executed == "needs an AWS account"


def test_a_link_that_leads_to_nothing_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# The `key`, and more\n\n## Again\n\n## Again\n", encoding="utf-8")
    good = (
        "# Here\n\n[a](other.md) [b](other.md#the-key-and-more) [c](other.md#again-1) [d](https://x.org) [e](#here)\n"
    )
    assert page(good, tmp_path / "page.md").link_problems() == []
    bad = "[a](missing.md)\n\n[b](other.md#missing)\n\n![c](missing.png)\n\n[d](#missing)\n\n<img src='no.png'>\n"
    problems = page(bad, tmp_path / "page.md").link_problems()
    assert [problem.split(":")[1] for problem in problems] == ["1", "3", "5", "7", "9"]


def test_undefined_names_and_syntax_errors_are_found_at_their_lines(tmp_path: Path) -> None:
    read = page("Text\n\n```python\nfrom os import path\n\nprint(path, shop)\n```\n\n```python\ndef (:\n```\n")
    problems = name_problems([read], tmp_path)
    assert "page.md:6: Undefined name `shop`" in problems
    assert any(problem.startswith("page.md:10:") for problem in problems)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("20,522 sent in 0.3 s", "7 sent in 12 ms"),
        ("13d 23h left", "2m left"),
        ("id 8ab9bf8c4e", "id 654eba798e"),
        ("2026-11-16 09:16 to 09:17 UTC", "2027-01-02 10:00 to 11:30 UTC"),
        ("f3b1c8de-0f4e-4b8e-9a53-3d7f1f1a2b3c done", "00000000-0000-0000-0000-000000000000 done"),
        ("COUNT   FIRST", "COUNT FIRST"),
        ("3 arrived", "\a\x1b[1m3\x1b[0m arrived"),
        ("orders at …", "orders at http://127.0.0.1:5"),
        ("first\n…\nlast", "first\na\nb\nlast"),
        ("first\n...\nlast", "first\nlast"),
    ],
)
def test_numbers_ids_times_and_ellipses_match_anything_of_their_kind(shown: str, printed: str) -> None:
    assert shows(tuple(shown.splitlines()), printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("3 sent", "3 received"),
        ("first\nlast", "first\nmiddle\nlast"),
        ("first", "first\nlast"),
        ("first\nlast", "first"),
        ("dead beef", "cafe beef"),
        ("orders …", "refunds 7"),
    ],
)
def test_words_and_missing_lines_do_not_match(shown: str, printed: str) -> None:
    assert not shows(tuple(shown.splitlines()), printed)


def test_words_survive_normalising() -> None:
    assert normalised("semel-dlq: decade  of 5 messages") == "semel-dlq: decade of # messages"
