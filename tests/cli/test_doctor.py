"""`semel doctor` as a user types it: its words, its outputs and its exit codes. What it finds is tested in its room."""

from __future__ import annotations

import dataclasses
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
from semel.cli import doctor_options, main
from semel.cli.progress import Progress
from semel.doctor import SAMPLE, rules
from semel.doctor import diagnosis as examine
from semel.doctor.errors import DoctorError
from semel.doctor.model import Diagnosis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Captured = pytest.CaptureFixture[str]
NOW = sample.NOW


@dataclasses.dataclass
class Room:
    """Stands for the examination: what was asked for, and what it answers."""

    answers: list[Diagnosis | Exception] = dataclasses.field(default_factory=lambda: [sample.rich()])
    asked: list[Any] = dataclasses.field(default_factory=list)
    then: Callable[[], None] = lambda: None

    def examine(self, request: Any, *, say: Callable[[str], None], now: float | None = None) -> Diagnosis:
        self.asked.append(request)
        say("reading 312 files")
        (answer,) = self.answers
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
        say: Callable[[str], None],
        stop: threading.Event,
    ) -> None:
        self.asked.append((request, interval, window))
        say("watching")
        for answer in self.answers:
            assert isinstance(answer, Diagnosis)
            on_diagnosis(answer)
        self.then()
        stop.wait(10)


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Room:
    room = Room()
    monkeypatch.setattr(examine, "examine", room.examine)
    monkeypatch.setattr(examine, "watch", room.watch)
    monkeypatch.setattr("time.time", lambda: NOW)
    return room


def doctor(*arguments: str) -> int:
    return main(["doctor", *arguments])


# What is asked for.


def test_every_option_reaches_the_examination(room: Room) -> None:
    words = """
        --log a b --log c --map id=.m,time=.t,event=.e --events started=begin --queue orders http://x/1/q
        --metrics m.json orders=o.json --from 2h --to now --ledger redis://r --ledger-retention 14d
        --alarms alarms.json --visibility 30s --visibility orders=2m --read-timeout 70 --probe
        --endpoint-url http://e --region eu-west-1 --profile p --master local[3] --cores 2
    """
    doctor(*words.split())
    (request,) = room.asked
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
        "probe": True,
        "endpoint_url": "http://e",
        "region": "eu-west-1",
        "profile": "p",
        "master": "local[3]",
        "cores": 2,
        "rules": (),
        "ignore": (),
    }


def test_rules_are_chosen_by_name(room: Room) -> None:
    first, second, third = (rule.name for rule in rules.ALL[:3])
    doctor("--queue", "orders", "--rule", first, second, "--ignore", third)
    assert (room.asked[0].rules, room.asked[0].ignore) == ((first, second), (third,))


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


def test_the_summary_goes_to_standard_output_and_progress_to_standard_error(room: Room, capsys: Captured) -> None:
    assert doctor("--log", "a") == 1
    told = capsys.readouterr()
    assert told.out.startswith("semel doctor: 2 critical")
    assert "\x1b" not in told.out
    assert sample.FINDINGS[-1].rule in told.out  # no terminal: nothing is cut
    assert told.err == "semel doctor: reading 312 files\n"


def test_quiet_says_nothing_but_the_report(room: Room, capsys: Captured) -> None:
    doctor("--log", "a", "--quiet")
    assert capsys.readouterr().err == ""


def test_json_is_one_document(room: Room, capsys: Captured) -> None:
    assert doctor("--log", "a", "--format", "json") == 1
    assert json.loads(capsys.readouterr().out)["worst"] == "critical"


def test_html_goes_to_standard_output_unless_a_file_is_named(room: Room, tmp_path: Path, capsys: Captured) -> None:
    doctor("--log", "a", "--format", "html")
    printed = capsys.readouterr().out
    doctor("--log", "a", "--format", "html", "--output", str(tmp_path / "report.html"))
    assert capsys.readouterr().out == ""
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == printed
    assert printed.startswith("<!doctype html>")
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_verbose_adds_the_evidence(room: Room, capsys: Captured) -> None:
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
    room: Room, monkeypatch: pytest.MonkeyPatch, no_colour: str
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    for name, value in (("COLUMNS", "80"), ("LINES", "24"), ("TERM", "xterm"), ("NO_COLOR", no_colour)):
        monkeypatch.setenv(name, value)
    doctor("--log", "a")
    assert terminal.shown().count("\n") < 24
    assert ("\x1b[1;31m" in terminal.shown()) is not bool(no_colour)


def test_a_terminal_without_unicode_gets_ascii(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal("ascii")
    monkeypatch.setattr("sys.stdout", terminal)
    doctor("--log", "a")
    assert terminal.shown().isascii()


# Exit codes.


@pytest.mark.parametrize(
    ("findings", "fail_on", "code"),
    [
        (sample.FINDINGS, None, 1),
        (sample.FINDINGS[2:], None, 1),  # warnings
        (sample.FINDINGS[4:], None, 0),  # a note
        ((), None, 0),
        (sample.FINDINGS[2:], "critical", 0),
        (sample.FINDINGS, "critical", 1),
        (sample.FINDINGS[4:], "info", 1),
        (sample.FINDINGS, "never", 0),
    ],
)
def test_the_exit_code_is_1_from_the_chosen_severity_on(
    room: Room, findings: Any, fail_on: str | None, code: int
) -> None:
    room.answers = [dataclasses.replace(sample.rich(), findings=findings)]
    assert doctor("--log", "a", *(["--fail-on", fail_on] if fail_on else [])) == code


@pytest.mark.parametrize("error", [DoctorError("no such folder: a"), RuntimeError("out of luck\n  at Java.java:7")])
def test_could_not_look_is_told_apart_from_found(room: Room, error: Exception, capsys: Captured) -> None:
    room.answers = [error]
    assert doctor("--log", "a", "--quiet") == 3
    assert str(error).splitlines()[0] in capsys.readouterr().err


def test_an_unexpected_error_is_one_line_and_verbose_shows_its_stack_trace(room: Room, capsys: Captured) -> None:
    room.answers = [RuntimeError("out of luck\n  at Java.java:7")]
    assert doctor("--log", "a", "--quiet") == 3
    told = "semel doctor: unexpected RuntimeError: out of luck. This is a bug."
    assert capsys.readouterr().err == f"{told} --verbose shows where.\n"
    assert doctor("--log", "a", "--quiet", "--verbose") == 3
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback (most recent call last)")
    assert shown.endswith(f"{told}\n")


def test_without_the_extra_for_spark_no_work_begins_and_the_pip_line_is_told(
    room: Room, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert doctor("--log", "a", "--queue", "orders") == 3
    assert capsys.readouterr().err == (
        "semel doctor: reading logs needs pyspark, which is not installed: pip install 'semel[spark]'\n"
    )
    assert room.asked == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("", "semel doctor --log /var/log/semel/attempts --queue orders"),
        ("--queue q --map id=.m", "--map is for --log"),
        ("--log a --map nonsense", "--map"),
        ("--log a --probe", "--probe is for --queue"),
        ("--queue q --watch", "--watch is for --log"),
        ("--log a --from 1h --to 2h", "--from 1h is not before --to 2h"),
        ("--log a --from yesterday", "--from: 'yesterday' is no time; write 2026-11-15T08:00Z"),
        ("--log a --visibility orders=", "--visibility"),
        ("--log a --visibility 0", "above 0"),
        ("--log a --cores 0", "--cores 0"),
        ("--log a --ledger-retention 3d", "--ledger-retention is for --ledger"),
        ("--queue q --rule no-such-rule", "--rule no-such-rule"),
        ("--log a --output /no/such/folder/report.html", "/no/such/folder"),
        ("--log a --watch --format html", "--output"),
        ("--log a --watch --interval 0s", "--interval"),
        ("--sample --log a", "--log does not go with --sample"),
    ],
)
def test_wrong_usage_is_2_names_the_option_and_begins_no_work(
    room: Room, arguments: str, told: str, capsys: Captured
) -> None:
    assert doctor(*arguments.split()) == 2
    assert told in capsys.readouterr().err
    assert room.asked == []


def test_a_report_that_cannot_be_written_is_3(room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any, **more: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fail)
    assert doctor("--log", "a", "--output", str(tmp_path / "report.txt")) == 3


def test_help_has_examples_and_exit_codes(capsys: Captured) -> None:
    with pytest.raises(SystemExit) as ended:
        doctor("--help")
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert "semel doctor --log app.jsonl --map" in told
    assert "could not look" in told


def test_the_rules_are_listed(capsys: Captured) -> None:
    assert doctor("--list-rules") == 0
    told = capsys.readouterr().out
    assert all(rule.name in told for rule in rules.ALL)
    assert doctor("--list-rules", "--format", "json") == 0
    assert [one["rule"] for one in json.loads(capsys.readouterr().out)] == [rule.name for rule in rules.ALL]


# Watching.


def stages(*findings: Any) -> list[Diagnosis | Exception]:
    return [
        dataclasses.replace(sample.rich(), made_at=NOW + 10 * index, findings=found)
        for index, found in enumerate(findings)
    ]


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_watching_tells_what_became_true_and_what_is_gone_until_it_is_ended(room: Room, capsys: Captured) -> None:
    first, second = sample.FINDINGS[:2]
    room.answers, room.then = stages((), (first,), (first, second), (second,)), terminate
    before = signal.getsignal(signal.SIGTERM)
    assert doctor("--log", "a", "--watch", "--interval", "5s", "--window", "2h") == 1
    assert signal.getsignal(signal.SIGTERM) is before
    assert room.asked[0][1:] == (5.0, 7_200.0)
    changes = [line.split()[1:4] for line in capsys.readouterr().out.splitlines() if line.startswith("00:")]
    assert changes == [
        ["new", "critical", "orders"],
        ["new", "critical", "payments"],
        ["gone", "orders", f"[{first.rule}]"],
    ]


def test_watching_as_json_is_one_line_for_each_change(room: Room, tmp_path: Path) -> None:
    worse = sample.FINDINGS[2]
    milder = dataclasses.replace(worse, severity=sample.FINDINGS[4].severity)
    room.answers, room.then = stages((milder,), (worse,), (worse,), ()), terminate
    file = tmp_path / "changes.jsonl"
    assert doctor("--log", "a", "--watch", "--format", "json", "--output", str(file)) == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(one["change"], one["at"] - NOW, one["finding"]["severity"]) for one in lines] == [
        ("new", 0, "info"),
        ("changed", 10, "warning"),
        ("gone", 30, "warning"),
    ]


def test_watching_as_html_writes_the_file_again_at_each_look(room: Room, tmp_path: Path) -> None:
    room.answers, room.then = stages(sample.FINDINGS, sample.FINDINGS[4:]), terminate
    file = tmp_path / "report.html"
    assert doctor("--log", "a", "--watch", "--format", "html", "--output", str(file)) == 0
    assert "<strong>1 note in 3 queues</strong>" in file.read_text(encoding="utf-8")


def test_progress_on_a_terminal_is_one_line_that_is_erased_and_cannot_be_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    with Progress("semel doctor", stream=terminal) as progress:
        progress.say("reading\n\x1b[2J files")
        wait = threading.Event()
        while "reading" not in terminal.shown():
            wait.wait(0.01)
        progress.above("a finding", terminal)
    assert "\x1b[2J" not in terminal.shown()
    assert terminal.shown().count("\n") == 1
    assert terminal.shown().endswith("\r\x1b[K")


# The real thing.


@pytest.mark.slow
def test_from_a_log_to_the_cause_and_the_exit_code(spark: SparkSession, tmp_path: Path, capsys: Captured) -> None:
    """Work of 3 s under a timeout of 2 s: a second worker has it before the first is done."""
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
    log = tmp_path / "app.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines) + "not json\n")
    fields = "id=.id,time=.ts,event=.event,receives=.receives,worker=.host,queue=orders"
    assert doctor("--log", str(log), "--map", fields, "--visibility", "2s", "--format", "json") == 1
    found = json.loads(capsys.readouterr().out)
    (orders,) = found["queues"]
    assert (orders["queue"], orders["behaviour"]["duplicates"]) == ("orders", 1)
    assert [cause["cause"] for cause in orders["behaviour"]["causes"]] == ["visibility"]
    assert "duplicates-visibility" in [finding["rule"] for finding in found["findings"]]
    assert found["quality"]["malformed"] == 1


def test_settings_alone_need_no_spark(
    sqs_broker: EmbeddedBroker, capsys: Captured, monkeypatch: pytest.MonkeyPatch, credentials: None
) -> None:
    sqs_broker.client().create_queue(QueueName="orders")
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert doctor("--queue", "orders", "--endpoint-url", sqs_broker.url) == 1
    assert "[no-dead-letter-queue]" in capsys.readouterr().out
    assert doctor("--queue", "no-such-queue", "--endpoint-url", sqs_broker.url) == 3
    assert "no-such-queue" in capsys.readouterr().err


def test_a_queue_that_cannot_be_asked_about_is_3_and_not_nothing_to_look_at(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, credentials: None
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    assert doctor("--queue", "orders", "--endpoint-url", "http://127.0.0.1:1") == 3
    told = capsys.readouterr()
    assert told.out == ""
    assert "queue orders: " in told.err
    assert "cannot connect to http://127.0.0.1:1" in told.err


@pytest.mark.parametrize(
    ("lines", "options", "told"),
    [
        (
            '{"ts": 1794830400, "msg": {"id": "a"}, "event": "done"}\n',
            (),
            "1 line, and no event of Semel's attempt log: 1 without message_id, at or step.\n"
            "The fields of its first line: .ts, .msg.id, .event\n"
            "If it is your application's own log, say where its fields are, for example: --map id=.messageId,",
        ),
        (
            '{"ts": 1794830400, "msg": {"id": "a"}, "event": "done"}\n',
            ("--map", "id=.id,time=.ts", "--from", "1h"),
            "1 line, and no event by this --map: 1 without id, time or event.\n"
            "The fields of its first line: .ts, .msg.id, .event\n"
            "Correct the paths of --map: they are id=.id, time=.ts",
        ),
        pytest.param(
            '{"ts": 1794830400, "id": "a", "event": "hummed"}\n',
            ("--map", "id=.id,time=.ts,event=.event"),
            "1 line, and no event by this --map: 1 with an unknown event.\n"
            "Say what its words mean (hummed), for example: --events started=hummed",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "junk\nmore junk\n",
            ("--map", "id=.id,time=.ts"),
            "2 lines, and no event by this --map: 2 not JSON.\nFor example: junk\nThe doctor reads JSON lines",
            marks=pytest.mark.slow,
        ),
        pytest.param("junk\n", (), "1 not JSON", marks=pytest.mark.slow),
    ],
    ids=["no mapping", "wrong mapping", "unknown words", "junk with a mapping", "junk"],
)
def test_a_log_without_a_single_event_is_3_with_what_is_wrong_and_the_way_out(
    spark: SparkSession, tmp_path: Path, capsys: Captured, lines: str, options: tuple[str, ...], told: str
) -> None:
    log = tmp_path / "app.jsonl"
    log.write_text(lines)
    assert doctor("--log", str(log), "--quiet", *options) == 3
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"semel doctor: --log {log}: ")
    assert told in shown.err
    assert len(shown.err.splitlines()) <= 3


def test_a_damaged_file_alone_is_3(spark: SparkSession, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    assert doctor("--log", str(tmp_path / "a.parquet"), "--quiet") == 3
    assert "1 file cannot be read" in capsys.readouterr().err


def test_a_log_with_events_of_another_time_only_is_no_error(
    spark: SparkSession, tmp_path: Path, capsys: Captured
) -> None:
    log = tmp_path / "app.jsonl"
    log.write_text('{"ts": 1794830400, "id": "a"}\nStarting up\n')
    assert doctor("--log", str(log), "--map", "id=.id,time=.ts", "--to", "2020-01-01") == 0
    assert "nothing happened in that time" in capsys.readouterr().out


@pytest.mark.slow
def test_the_sample_log_shows_duplicates_and_the_command_that_reads_it(spark: SparkSession, capsys: Captured) -> None:
    assert doctor("--sample", "--format", "json") == 1
    told = capsys.readouterr()
    (orders,) = json.loads(told.out)["queues"]
    assert (orders["queue"], orders["behaviour"]["messages"]) == ("orders", 100)
    assert orders["behaviour"]["doubled"] == 8
    assert [cause["cause"] for cause in orders["behaviour"]["causes"]] == ["visibility"]
    command = told.err.partition("--sample stands for\n")[2].partition("\nsemel doctor: ")[0]
    assert shlex.split(command.replace("\\\n", "")) == [
        *("semel", "doctor", "--log", str(SAMPLE), "--visibility", "2s", "--map", doctor_options.SAMPLE_MAP)
    ]


def test_a_path_that_is_not_there_is_3(spark: SparkSession, capsys: Captured) -> None:
    assert doctor("--log", "/no/such/folder") == 3
    assert "/no/such/folder" in capsys.readouterr().err


# Ctrl-C, in a process of its own.


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["starting Java", "reading the logs", "watching"])
def test_ctrl_c_ends_the_doctor_in_seconds_with_130_and_leaves_no_process(moment: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.mkdir()
    (log / "app.jsonl").write_bytes(SAMPLE.read_bytes())
    fields = ["--map", doctor_options.SAMPLE_MAP, "--visibility", "2s"]
    watch = ["--watch", "--window", "3650d"] if moment == "watching" else []
    command = [sys.executable, "-m", "semel.cli", "doctor", "--log", str(log), *fields, *watch]
    when = interrupted.starts_java if moment == "starting Java" else lambda output, _: moment in output
    ended = interrupted.interrupt(command, tmp_path, when)
    assert (ended.code, ended.left) == (130, ())
    assert {line.partition(": ")[0] for line in ended.output.splitlines()} == {"semel doctor"}
    assert ended.seconds < 10
