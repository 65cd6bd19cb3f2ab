"""`semel doctor` as a user types it: options, output and exit codes. Its findings are tested elsewhere."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import interrupted
from doctor import sample
from semel.broker import EmbeddedBroker
from semel.cli import main
from semel.cli.doctor import options as doctor_options
from semel.cli.progress import Progress
from semel.doctor import SAMPLE, diagnosis, rules
from semel.doctor.errors import DoctorError
from semel.doctor.model import Diagnosis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Captured = pytest.CaptureFixture[str]
NOW = sample.NOW


@dataclasses.dataclass
class Answers:
    """What the doctor is asked for, and the diagnoses that it answers with, whatever the logs."""

    diagnoses: list[Diagnosis | Exception] = dataclasses.field(default_factory=lambda: [sample.rich()])
    requests: list[Any] = dataclasses.field(default_factory=list)
    then: Callable[[], None] = lambda: None

    def diagnose(self, request: Any, *, on_progress: Callable[[str], None], now: float | None = None) -> Diagnosis:
        self.requests.append(request)
        on_progress("reading 312 files")
        (answer,) = self.diagnoses
        if isinstance(answer, Exception):
            raise answer
        return answer

    def watch(
        self,
        request: Any,
        *,
        interval: float,
        window: float,
        on_diagnosis: Callable[[Diagnosis], None],
        on_progress: Callable[[str], None],
        stop: threading.Event,
    ) -> None:
        self.requests.append((request, interval, window))
        on_progress("watching")
        for answer in self.diagnoses:
            assert isinstance(answer, Diagnosis)
            on_diagnosis(answer)
        self.then()
        stop.wait(10)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    answers = Answers()
    monkeypatch.setattr(diagnosis, "diagnose", answers.diagnose)
    monkeypatch.setattr(diagnosis, "watch", answers.watch)
    monkeypatch.setattr("time.time", lambda: NOW)
    return answers


def doctor(*arguments: str) -> int:
    return main(["doctor", *arguments])


# What is asked for.


def test_every_option_reaches_the_doctor(answers: Answers) -> None:
    words = """
        --log a b --log c --map id=.m,time=.t,event=.e --events started=begin --queue orders --queue http://x/1/q
        --metrics m.json orders=o.json --since 2h --until now --ledger redis://r --ledger-retention 14d
        --alarms alarms.json --visibility 30s --visibility orders=2m --read-timeout 70 --lambda-timeout 15m --probe
        --endpoint-url http://e --region eu-west-1 --profile p --engine spark --master local[3] --cores 2
    """
    doctor(*words.split())
    (request,) = answers.requests
    assert dataclasses.asdict(request) == {
        "logs": ("a", "b", "c"),
        "mapping": "id=.m,time=.t,event=.e",
        "words": "started=begin",
        "queues": ("orders", "http://x/1/q"),
        "metrics": ("m.json", "orders=o.json"),
        "since": NOW - 7_200,
        "until": NOW,
        "ledger": "redis://r",
        "ledger_retention": 14 * 86_400.0,
        "alarms": "alarms.json",
        "visibility": {"": 30.0, "orders": 120.0},
        "read_timeout": 70.0,
        "lambda_timeout": 900.0,
        "probe": True,
        "endpoint_url": "http://e",
        "region": "eu-west-1",
        "profile": "p",
        "engine": "spark",
        "master": "local[3]",
        "cores": 2,
        "rules": (),
        "ignore": (),
    }


def test_rules_are_chosen_by_name(answers: Answers) -> None:
    first, second, third = (rule.name for rule in rules.ALL[:3])
    doctor("--queue", "orders", "--rule", first, second, "--ignore", third)
    assert (answers.requests[0].rules, answers.requests[0].ignore) == ((first, second), (third,))


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("now", NOW),
        ("2h", NOW - 7_200),
        ("1h30m ago", NOW - 5_400),
        ("3d", NOW - 259_200),
        ("2026-11-15", sample.DAY),
        ("2026-11-15T08:00Z", sample.DAY + 8 * 3_600),
        ("2026-11-15T08:00:00.5+01:00", sample.DAY + 7 * 3_600 + 0.5),
        ("2026-11-15 08:00", sample.DAY + 8 * 3_600),
    ],
)
def test_times_are_written_as_people_do_and_are_utc(text: str, at: float) -> None:
    assert doctor_options.moment(text, NOW) == at


# What comes out.


def test_the_summary_goes_to_standard_output_and_progress_to_standard_error(answers: Answers, capsys: Captured) -> None:
    assert doctor("--log", "a") == 3
    printed = capsys.readouterr()
    assert printed.out.startswith("semel doctor: 2 critical")
    assert "\x1b" not in printed.out
    assert sample.FINDINGS[-1].rule in printed.out  # no terminal: nothing is cut
    assert printed.err == "semel doctor: reading 312 files\n"


def test_quiet_says_nothing_but_the_report(answers: Answers, capsys: Captured) -> None:
    doctor("--log", "a", "--quiet")
    assert capsys.readouterr().err == ""


def test_json_is_one_document(answers: Answers, capsys: Captured) -> None:
    assert doctor("--log", "a", "--output", "json") == 3
    assert json.loads(capsys.readouterr().out)["worst"] == "critical"


def test_html_goes_to_standard_output_unless_a_file_is_named(
    answers: Answers, tmp_path: Path, capsys: Captured
) -> None:
    doctor("--log", "a", "--output", "html")
    printed = capsys.readouterr().out
    doctor("--log", "a", "--output", "html", "--report", str(tmp_path / "report.html"))
    assert capsys.readouterr().out == ""
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == printed
    assert printed.startswith("<!doctype html>")
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_verbose_adds_the_evidence(answers: Answers, capsys: Captured) -> None:
    doctor("--log", "a", "--verbose")
    assert "For example message 5fea7756" in capsys.readouterr().out


class Terminal(io.TextIOWrapper):
    """Standard output on a terminal."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding, write_through=True)

    def isatty(self) -> bool:
        return True

    def shown(self) -> str:
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode("utf-8")


@pytest.mark.parametrize("no_colour", ["", "1"])
def test_a_terminal_gets_one_screen_in_colour_unless_it_wants_none(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, no_colour: str
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    for name, value in (("COLUMNS", "80"), ("LINES", "24"), ("TERM", "xterm"), ("NO_COLOR", no_colour)):
        monkeypatch.setenv(name, value)
    doctor("--log", "a")
    assert terminal.shown().count("\n") < 24
    assert ("\x1b[1;31m" in terminal.shown()) is not bool(no_colour)


def test_a_terminal_without_unicode_gets_ascii(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal("ascii")
    monkeypatch.setattr("sys.stdout", terminal)
    doctor("--log", "a")
    assert terminal.shown().isascii()


# Exit codes.


@pytest.mark.parametrize(
    ("findings", "fail_on", "code"),
    [
        (sample.FINDINGS, None, 3),
        (sample.FINDINGS[2:], None, 3),  # warnings
        (sample.FINDINGS[4:], None, 0),  # a note
        ((), None, 0),
        (sample.FINDINGS[2:], "critical", 0),
        (sample.FINDINGS, "critical", 3),
        (sample.FINDINGS[4:], "info", 3),
        (sample.FINDINGS, "never", 0),
    ],
)
def test_the_exit_code_is_3_from_the_chosen_severity_on(
    answers: Answers, findings: Any, fail_on: str | None, code: int
) -> None:
    answers.diagnoses = [dataclasses.replace(sample.rich(), findings=findings)]
    assert doctor("--log", "a", *(["--fail-on", fail_on] if fail_on else [])) == code


@pytest.mark.parametrize("error", [DoctorError("no such folder: a"), RuntimeError("out of luck\n  at Java.java:7")])
def test_could_not_examine_differs_from_found(answers: Answers, error: Exception, capsys: Captured) -> None:
    answers.diagnoses = [error]
    assert doctor("--log", "a", "--quiet") == 1
    assert str(error).splitlines()[0] in capsys.readouterr().err


def test_an_unexpected_error_is_one_line_and_verbose_shows_its_stack_trace(answers: Answers, capsys: Captured) -> None:
    answers.diagnoses = [RuntimeError("out of luck\n  at Java.java:7")]
    assert doctor("--log", "a", "--quiet") == 1
    printed = "semel doctor: unexpected RuntimeError: out of luck. This is a bug."
    assert capsys.readouterr().err == f"{printed} --verbose shows where.\n"
    assert doctor("--log", "a", "--quiet", "--verbose") == 1
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback (most recent call last)")
    assert shown.endswith(f"{printed}\n")


def test_without_the_extra_for_logs_no_work_begins_and_the_pip_line_is_printed(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert doctor("--log", "a", "--queue", "orders") == 1
    assert capsys.readouterr().err == (
        "semel doctor: semel doctor needs duckdb, which is not installed: pip install 'semel[doctor]'\n"
    )
    assert answers.requests == []


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        ("", "semel doctor --log /var/log/semel/attempts --queue orders"),
        ("--queue q --map id=.m", "--map is for --log"),
        ("--log a --map nonsense", "--map"),
        ("--log a --probe", "--probe is for --queue"),
        ("--queue q --watch", "--watch is for --log"),
        ("--log a --since 1h --until 2h", "--since 1h is not before --until 2h"),
        ("--log a --since yesterday", "--since: 'yesterday' is no time; write 2026-11-15T08:00Z"),
        ("--log a --visibility orders=", "--visibility"),
        ("--log a --visibility 0", "above 0"),
        ("--log a --cores 0", "--cores: '0'"),
        ("--log a --ledger-retention 3d", "--ledger-retention is for --ledger"),
        ("--queue q --rule no-such-rule", "--rule no-such-rule"),
        ("--log a --report /no/such/folder/report.html", "/no/such/folder"),
        ("--log a --watch --output html", "--report"),
        ("--log a --watch --interval 0s", "--interval"),
        ("--sample --log a", "--log does not go with --sample"),
        ("--log a --lambda-timeout soon", "--lambda-timeout"),
        ("--log a --engine duckdb --master local[2]", "--master is for --engine spark"),
        ("--log a --watch --engine spark", "--watch runs in this process"),
        ("--log a --watch --master local[2]", "--watch runs in this process"),
    ],
)
def test_wrong_usage_is_2_names_the_option_and_begins_no_work(
    answers: Answers, arguments: str, printed: str, capsys: Captured
) -> None:
    try:
        code = doctor(*arguments.split())
    except SystemExit as ended:
        code = int(ended.code or 0)
    assert code == 2
    assert printed in capsys.readouterr().err
    assert answers.requests == []


def test_a_report_that_cannot_be_written_is_1(
    answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fail)
    assert doctor("--log", "a", "--report", str(tmp_path / "report.txt")) == 1


def test_help_has_examples_and_exit_codes_and_fits_a_terminal(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        doctor("--help")
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "semel doctor --log app.jsonl --map" in printed
    assert "could not examine" in printed
    assert [line for line in printed.splitlines() if len(line) > 80] == []


def test_the_rules_are_listed(capsys: Captured) -> None:
    assert doctor("rules") == 0
    printed = capsys.readouterr().out
    assert all(rule.name in printed for rule in rules.ALL)
    assert doctor("rules", "--output", "json") == 0
    assert [row["rule"] for row in json.loads(capsys.readouterr().out)] == [rule.name for rule in rules.ALL]


# Watching.


def stages(*findings: Any) -> list[Diagnosis | Exception]:
    return [
        dataclasses.replace(sample.rich(), made_at=NOW + 10 * index, findings=stage)
        for index, stage in enumerate(findings)
    ]


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_watching_tells_what_became_true_and_what_is_gone_until_it_is_ended(answers: Answers, capsys: Captured) -> None:
    first, second = sample.FINDINGS[:2]
    answers.diagnoses, answers.then = stages((), (first,), (first, second), (second,)), terminate
    before = signal.getsignal(signal.SIGTERM)
    assert doctor("--log", "a", "--watch", "--interval", "5s", "--window", "2h") == 3
    assert signal.getsignal(signal.SIGTERM) is before
    assert answers.requests[0][1:] == (5.0, 7_200.0)
    changes = [line.split()[1:4] for line in capsys.readouterr().out.splitlines() if line.startswith("00:")]
    assert changes == [
        ["new", "critical", "orders"],
        ["new", "critical", "payments"],
        ["gone", "orders", f"[{first.rule}]"],
    ]


def test_watching_as_json_is_one_line_for_each_change(answers: Answers, tmp_path: Path) -> None:
    worse = sample.FINDINGS[2]
    milder = dataclasses.replace(worse, severity=sample.FINDINGS[4].severity)
    answers.diagnoses, answers.then = stages((milder,), (worse,), (worse,), ()), terminate
    file = tmp_path / "changes.jsonl"
    assert doctor("--log", "a", "--watch", "--output", "json", "--report", str(file)) == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["change"], line["at"] - NOW, line["finding"]["severity"]) for line in lines] == [
        ("new", 0, "info"),
        ("changed", 10, "warning"),
        ("gone", 30, "warning"),
    ]


def test_watching_as_html_writes_the_file_again_at_each_look(answers: Answers, tmp_path: Path) -> None:
    answers.diagnoses, answers.then = stages(sample.FINDINGS, sample.FINDINGS[4:]), terminate
    file = tmp_path / "report.html"
    assert doctor("--log", "a", "--watch", "--output", "html", "--report", str(file)) == 0
    assert "<strong>1 note in 3 queues</strong>" in file.read_text(encoding="utf-8")


def test_progress_on_a_terminal_is_one_line_that_is_erased_and_cannot_be_broken() -> None:
    terminal = Terminal()
    with Progress("semel doctor", stream=terminal) as progress:
        progress.update("reading\n\x1b[2J files")
        wait = threading.Event()
        while "reading" not in terminal.shown():
            wait.wait(0.01)
        progress.above("a finding", terminal)
    assert "\x1b[2J" not in terminal.shown()
    assert terminal.shown().count("\n") == 1
    assert terminal.shown().endswith("\r\x1b[K")


# With a real log.


def test_from_a_log_to_the_cause_and_the_exit_code(tmp_path: Path, capsys: Captured) -> None:
    """Work of 3 s under a timeout of 2 s: a second worker has it before the first is done."""
    log = write_slow_work(tmp_path)
    assert doctor("--log", str(log), "--map", FIELDS, "--visibility", "2s", "--output", "json") == 3
    report = json.loads(capsys.readouterr().out)
    (orders,) = report["queues"]
    assert (orders["queue"], orders["behaviour"]["duplicates"]) == ("orders", 1)
    assert [cause["cause"] for cause in orders["behaviour"]["causes"]] == ["visibility"]
    assert "duplicates-visibility" in [finding["rule"] for finding in report["findings"]]
    assert report["quality"]["malformed"] == 1


FIELDS = "id=.id,time=.ts,event=.event,receives=.receives,worker=.host,queue=orders"


def write_slow_work(folder: Path) -> Path:
    lines = [
        {"ts": sample.DAY + after, "event": event, "id": "m-1", "receives": receives, "host": host}
        for after, event, receives, host in (
            (0.0, "received", 1, "web1"),
            (0.1, "started", 1, "web1"),
            (2.1, "received", 2, "web2"),
            (2.2, "started", 2, "web2"),
            (3.1, "done", 1, "web1"),
            (3.2, "deleted", 1, "web1"),
            (5.2, "done", 2, "web2"),
        )
    ]
    log = folder / "app.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines) + "not json\n")
    return log


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "reason"), [(("--engine", "spark"), "--engine spark"), (("--master", "local[2]"), "--master is given")]
)
def test_spark_reads_the_logs_if_it_is_asked_for(
    spark: SparkSession, tmp_path: Path, capsys: Captured, options: tuple[str, ...], reason: str
) -> None:
    log = write_slow_work(tmp_path)
    command = ["--log", str(log), "--map", FIELDS, "--visibility", "2s", "--output", "json"]
    assert doctor(*command) == 3
    by_duckdb = capsys.readouterr()
    assert doctor(*command, *options) == 3
    by_spark = capsys.readouterr()
    assert f"starting Spark ({reason}; " in by_spark.err
    assert "starting DuckDB (" in by_duckdb.err
    theirs, ours = json.loads(by_spark.out), json.loads(by_duckdb.out)
    assert [queue["behaviour"] for queue in theirs["queues"]] == [queue["behaviour"] for queue in ours["queues"]]
    for name in ("findings", "recommendations", "quality"):
        assert theirs[name] == ours[name], name


def test_the_sample_log_shows_duplicates_and_the_command_that_reads_it_without_spark(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pyspark", "pyarrow", "pandas"):  # so that no Java can be started either
        monkeypatch.setitem(sys.modules, name, None)
    assert doctor("--sample", "--output", "json") == 3
    printed = capsys.readouterr()
    (orders,) = json.loads(printed.out)["queues"]
    assert (orders["queue"], orders["behaviour"]["messages"]) == ("orders", 100)
    assert orders["behaviour"]["doubled"] == 8
    assert [cause["cause"] for cause in orders["behaviour"]["causes"]] == ["visibility"]
    command = printed.err.partition("--sample stands for\n")[2].partition("\nsemel doctor: ")[0]
    assert shlex.split(command.replace("\\\n", "")) == [
        *("semel", "doctor", "--log", str(SAMPLE), "--visibility", "2s", "--map", doctor_options.SAMPLE_MAP)
    ]


def test_settings_alone_need_neither_spark_nor_duckdb(
    sqs_broker: EmbeddedBroker, capsys: Captured, monkeypatch: pytest.MonkeyPatch, credentials: None
) -> None:
    sqs_broker.client().create_queue(QueueName="orders")
    for name in ("pyspark", "duckdb"):
        monkeypatch.setitem(sys.modules, name, None)
    assert doctor("--queue", "orders", "--endpoint-url", sqs_broker.url) == 3
    assert "[no-dead-letter-queue]" in capsys.readouterr().out
    assert doctor("--queue", "no-such-queue", "--endpoint-url", sqs_broker.url) == 1
    assert "no-such-queue" in capsys.readouterr().err


def test_a_queue_that_cannot_be_asked_about_is_1_and_not_nothing_to_look_at(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, credentials: None
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    assert doctor("--queue", "orders", "--endpoint-url", "http://127.0.0.1:1") == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "queue orders: " in printed.err
    assert "cannot connect to http://127.0.0.1:1" in printed.err


@pytest.mark.parametrize(
    ("lines", "options", "printed"),
    [
        (
            '{"ts": 1794830400, "msg": {"id": "a"}, "event": "done"}\n',
            ("--map", "id=.id,time=.ts", "--since", "1h"),
            "1 line, and no event by this --map: 1 without id, time or event.\n"
            "The fields of its first line: .ts, .msg.id, .event\n"
            "Correct the paths of --map: they are id=.id, time=.ts",
        ),
        (
            '{"ts": 1794830400, "id": "a", "event": "hummed"}\n',
            ("--map", "id=.id,time=.ts,event=.event"),
            "1 line, and no event by this --map: 1 with an unknown event.\n"
            "Say what its words mean (hummed), for example: --events started=hummed",
        ),
        (
            "junk\nmore junk\n",
            ("--map", "id=.id,time=.ts"),
            "2 lines, and no event by this --map: 2 not JSON.\nFor example: LOG:1: junk\nThe doctor reads JSON lines",
        ),
        ("junk\n", (), "1 not JSON"),
    ],
    ids=["wrong mapping", "unknown words", "junk with a mapping", "junk"],
)
def test_a_log_without_a_single_event_is_1_with_what_is_wrong_and_the_way_out(
    tmp_path: Path, capsys: Captured, lines: str, options: tuple[str, ...], printed: str
) -> None:
    log = tmp_path / "app.jsonl"
    log.write_text(lines)
    assert doctor("--log", str(log), "--quiet", *options) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"semel doctor: --log {log}: ")
    assert printed.replace("LOG", str(log)) in shown.err
    assert len(shown.err.splitlines()) <= 3


def test_a_log_whose_fields_are_not_recognised_is_1_with_the_option_that_names_them(
    tmp_path: Path, capsys: Captured
) -> None:
    log = tmp_path / "app.jsonl"
    log.write_text('{"ts": 1794830400, "event": "done"}\n')
    assert doctor("--log", str(log), "--quiet") == 1
    assert capsys.readouterr().err.endswith(
        "Its fields: .ts, .event\nSay which field is which, beginning with: --map id=.path.of.message_id,time=.ts\n"
    )


def test_a_damaged_file_alone_is_1(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    assert doctor("--log", str(tmp_path / "a.parquet"), "--quiet") == 1
    assert "1 file cannot be read" in capsys.readouterr().err


def test_an_empty_log_is_1(tmp_path: Path, capsys: Captured) -> None:
    log = tmp_path / "app.jsonl"
    log.touch()
    assert doctor("--log", str(log), "--quiet") == 1
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", f"semel doctor: --log {log}: 1 file, without a single line\n")


def test_a_log_with_events_of_another_time_only_is_not_an_error(tmp_path: Path, capsys: Captured) -> None:
    log = tmp_path / "app.jsonl"
    log.write_text('{"ts": 1794830400, "id": "a"}\nStarting up\n')
    assert doctor("--log", str(log), "--map", "id=.id,time=.ts", "--until", "2020-01-01") == 0
    assert "nothing happened in that time" in capsys.readouterr().out


def test_a_path_that_is_not_there_is_1(capsys: Captured) -> None:
    assert doctor("--log", "/no/such/folder") == 1
    assert "/no/such/folder" in capsys.readouterr().err


# Ctrl-C, in a process of its own.

SOON = 2.0  # seconds of CPU time: the query that is interrupted takes more


def write_large_log(folder: Path, lines: int) -> None:
    """Many events of few messages, in a small file: a hundred times the same."""
    block = "".join(
        f'{{"id": "m-{number % 50}", "t": {1_794_830_400 + number / 8}, "e": "{("start", "done")[number % 2]}"}}\n'
        for number in range(lines // 100)
    )
    folder.mkdir()
    (folder / "app.jsonl.gz").write_bytes(gzip.compress(block.encode(), 1) * 100)


def interrupted_at(moment: str, tmp_path: Path, *options: str) -> interrupted.Ended:
    """The doctor with temporary files of its own. It must end with 130, without a trace."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = ["env", f"TMPDIR={temporary}", sys.executable, "-m", "semel.cli", "doctor", *options]
    when = interrupted.starts_java if moment == "starting Java" else lambda output, _: moment in output
    ended = interrupted.interrupt(command, tmp_path, when)
    assert (ended.code, ended.left) == (130, ())
    assert {line.partition(": ")[0] for line in ended.output.splitlines()} == {"semel doctor"}
    assert list(temporary.glob("semel-doctor-*")) == []
    return ended


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["reading the logs: ", "finding the causes"])
def test_ctrl_c_ends_a_long_read_and_a_long_query_at_once(moment: str, tmp_path: Path) -> None:
    write_large_log(tmp_path / "log", 20_000_000 if moment.startswith("reading") else 2_000_000)
    ended = interrupted_at(moment, tmp_path, "--log", str(tmp_path / "log"), "--map", "id=.id,time=.t,event=.e")
    assert "counting" not in ended.output  # it was in the middle of it
    assert ended.cpu < SOON


@pytest.mark.slow
def test_ctrl_c_ends_the_watch_at_once(tmp_path: Path) -> None:
    write_large_log(tmp_path / "log", 100)
    log = ["--log", str(tmp_path / "log"), "--map", "id=.id,time=.t,event=.e"]
    ended = interrupted_at("watching", tmp_path, *log, "--watch", "--window", "3650d", "--interval", "1h")
    assert ended.seconds < interrupted.PATIENCE  # and not when the interval is over


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["starting Java", "reading the logs", "finding the causes"])
def test_ctrl_c_ends_the_doctor_on_spark_in_seconds_and_leaves_nothing(moment: str, tmp_path: Path) -> None:
    write_large_log(tmp_path / "log", 2_000_000)
    log = ["--log", str(tmp_path / "log"), "--map", "id=.id,time=.t,event=.e"]
    ended = interrupted_at(moment, tmp_path, *log, "--engine", "spark")
    assert "counting" not in ended.output  # it was in the middle of it
    assert ended.seconds < 10
