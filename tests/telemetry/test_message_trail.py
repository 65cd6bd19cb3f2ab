"""The trail of one message in the attempt log: it is complete, fast to find, and says what was not read."""

from __future__ import annotations

import builtins
import importlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from semel.telemetry import message_trail as trail
from semel.telemetry.attempt_log import Attempt, AttemptLog, Step
from semel.telemetry.message_trail import Trail, TrailError

NOON = 1_794_830_400.0  # of a day


def stopped() -> float:
    """A clock on which no time limit ends."""
    return 0.0


def at(hour: float, step: Step, message: str = "m-1", key: str = "order-1", **more: Any) -> Attempt:
    return Attempt(at=NOON + hour * 3600, step=step, queue="orders", message_id=message, key=key, **more)


def write(folder: Path, events: list[Attempt], **options: Any) -> None:
    """Each day in files of its own, as workers do."""
    for event in events:
        with AttemptLog.open(str(folder), clock=partial(float, event.at), keep_days=None, **options) as log:
            log.add(event)


def steps(answer: trail.TrailResult) -> list[str]:
    return [event.step for event in answer.events]


STORY = [
    at(-30, Step.RECEIVED, key="", receive_count=1),
    at(-29.9, Step.CLAIMED, fence=7, attempt=1),
    at(
        -29, Step.RETRIED, fence=7, attempt=1, error="Timeout: the bank did not answer", seconds=3.5, worker="web1/4711"
    ),
    at(-1, Step.STARTED, message="m-2", fence=8, attempt=2, handler="shop.ship"),
    at(0, Step.RECORDED, message="m-2", fence=8, attempt=2),
]
OTHERS = [at(hour, Step.RECEIVED, f"other-{hour}", f"order-{hour}0") for hour in range(-40, 2, 7)]


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_the_steps_of_a_message_and_of_its_key_are_found_oldest_first(tmp_path: Path, format: str) -> None:
    write(tmp_path, [*STORY, *OTHERS], format=format)
    log = Trail.of(tmp_path)
    assert steps(log.events(clock=stopped, message_id="m-1")) == ["received", "claimed", "retried"]
    answer = log.events(clock=stopped, message_id="m-1", key="order-1")
    assert steps(answer) == ["received", "claimed", "retried", "started", "recorded"]
    assert answer.complete
    assert answer.reasons == ()
    failed = answer.events[2]
    assert (failed.error, failed.seconds, failed.attempt) == ("Timeout: the bank did not answer", 3.5, 1)
    assert (failed.worker, failed.fence, failed.at) == ("web1/4711", 7, NOON - 29 * 3600)
    assert answer.events[0].key == "", "the id tells what the key does not"
    assert log.events(clock=stopped, message_id=["m-1", "m-2"]).events == answer.events
    assert log.events(clock=stopped, message_id="m-9").events == ()


def test_another_queue_with_the_same_key_is_another_message(tmp_path: Path) -> None:
    write(tmp_path, [at(0, Step.CLAIMED), at(1, Step.CLAIMED)._replace(queue="emails")])
    log = Trail.of(tmp_path)
    assert len(log.events(clock=stopped, key="order-1").events) == 2
    assert [event.queue for event in log.events(clock=stopped, key="order-1", queue="emails").events] == ["emails"]


def test_what_is_being_written_is_read_too(tmp_path: Path) -> None:
    with AttemptLog.open(str(tmp_path)) as log:
        log.add(at(0, Step.STARTED))
        assert log.flush(60)
        assert steps(Trail.of(tmp_path).events(clock=stopped, message_id="m-1")) == ["started"]


def test_the_open_file_of_a_parquet_log_holds_lines(tmp_path: Path) -> None:
    with AttemptLog.open(str(tmp_path), format="parquet") as log:
        log.add(at(0, Step.STARTED))
        assert log.flush(60)
        assert steps(Trail.of(tmp_path).events(clock=stopped, key="order-1")) == ["started"]


@pytest.mark.parametrize(
    "key",
    ['quo"te', "back\\slash", "tab\tnew\nline", "größe €", "\x00", "emoji 😀", "half \ud800", "</script>", "\x7f"],
)
def test_a_key_may_be_any_text(tmp_path: Path, key: str) -> None:
    write(tmp_path, [at(0, Step.CLAIMED, key=key), at(1, Step.CLAIMED, key=f"x{key}")])
    events = Trail.of(tmp_path).events(clock=stopped, key=key).events
    if key == "half \ud800":
        assert events == (), "what cannot be written cannot be searched for"
        return
    assert [event.key for event in events] == [key]
    lines = tmp_path / "other.jsonl"
    lines.write_text(json.dumps({"at": 1.0, "step": "received", "key": key}) + "\n")
    assert len(Trail.of(lines).events(clock=stopped, key=key).events) == 1, "also as other programs write it"


def test_a_message_id_that_is_only_mentioned_is_not_one_of_its_events(tmp_path: Path) -> None:
    write(tmp_path, [at(0, Step.RETRIED, "m-2", "k", error='"m-1"'), at(1, Step.RETRIED, "m-1x", "k")])
    assert Trail.of(tmp_path).events(clock=stopped, message_id="m-1").events == ()


def test_what_happened_at_the_same_time_keeps_its_order(tmp_path: Path) -> None:
    with AttemptLog.open(str(tmp_path)) as log:
        log.add_all([at(0, step) for step in (Step.RECEIVED, Step.CLAIMED, Step.STARTED, Step.RECORDED)])
    assert steps(Trail.of(tmp_path).events(clock=stopped, key="order-1")) == [
        "received",
        "claimed",
        "started",
        "recorded",
    ]


# Limits.


def test_of_many_steps_the_newest_are_shown_and_it_says_so(tmp_path: Path) -> None:
    write(tmp_path, [at(hour, Step.HEARTBEAT, seconds=hour) for hour in range(1, 10)])
    answer = Trail.of(tmp_path).events(clock=stopped, message_id="m-1", limit=3)
    assert [event.seconds for event in answer.events] == [7, 8, 9]
    assert not answer.complete
    assert answer.reasons == ("only the newest events are shown",)
    assert Trail.of(tmp_path).events(clock=stopped, message_id="m-1", limit=9).complete


def test_the_newest_days_are_read_first_and_no_more_than_allowed(tmp_path: Path) -> None:
    write(tmp_path, [at(-24 * day, Step.STARTED, seconds=day) for day in range(5)])
    answer = Trail.of(tmp_path).events(clock=stopped, message_id="m-1", most_bytes=1)
    assert [event.at for event in answer.events] == [NOON]
    assert not answer.complete
    assert "MiB were read" in answer.reasons[0]


def test_time_is_limited_also_within_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trail, "WINDOW", 500)
    write(tmp_path, [])
    lines = [json.dumps({"at": float(n), "step": "started", "message_id": "m-1"}) for n in range(100)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    ticks = iter(range(1_000))
    answer = Trail.of(tmp_path).events(message_id="m-1", most_seconds=4, clock=lambda: float(next(ticks)))
    assert not answer.complete
    assert "within 4 s" in answer.reasons[0]
    assert 0 < len(answer.events) < 100
    assert answer.events[-1].at == 99, "the end of the file is read first"
    whole = Trail.of(tmp_path).events(clock=stopped, message_id="m-1")
    assert [event.at for event in whole.events] == [float(n) for n in range(100)]
    assert whole.complete


@pytest.mark.parametrize("window", [1, 7, 64, 1_000])
def test_windows_of_any_size_find_every_line_once(tmp_path: Path, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [json.dumps({"at": float(n), "step": "s" * (n % 5), "message_id": "m-1"}) for n in range(30)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))  # the last line has no end
    whole = Trail.of(tmp_path).events(clock=stopped, message_id="m-1").events
    assert len(whole) == 30
    monkeypatch.setattr(trail, "WINDOW", window)
    events = Trail.of(tmp_path).events(clock=stopped, message_id="m-1").events
    assert events == (whole if window >= max(map(len, lines)) + 1 else events)
    assert len(set(events)) == len(events)


def test_the_trail_of_one_message_in_a_large_log_is_found_without_parsing_it(tmp_path: Path) -> None:
    other = [
        json.dumps({"at": float(n), "step": "received", "message_id": f"x{n}", "key": f"k{n}"}) for n in range(10_000)
    ]
    (tmp_path / "a.jsonl").write_text(
        "\n".join(other * 20) + "\n" + json.dumps({"at": 1, "step": "s", "key": "k"}) + "\n"
    )
    parsed: list[int] = []
    loads = orjson.loads

    class Counting:
        JSONDecodeError = orjson.JSONDecodeError
        dumps = staticmethod(orjson.dumps)

        @staticmethod
        def loads(data: bytes) -> Any:
            parsed.append(len(data))
            return loads(data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trail, "orjson", Counting)
        assert len(Trail.of(tmp_path).events(clock=stopped, key="k").events) == 1
    assert len(parsed) == 1


# Damaged and foreign files.


def test_other_files_in_the_folder_are_skipped(tmp_path: Path) -> None:
    write(tmp_path, [at(0, Step.STARTED)])
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "binary.jsonl").write_bytes(bytes(range(256)) * 40 + b'"m-1"')
    (tmp_path / "list.jsonl").write_text('["m-1"]\n{"message_id": "m-1", "at": "late", "step": 7, "fence": true}\n')
    (tmp_path / "notes.txt").write_text('{"message_id": "m-1"}')
    (tmp_path / "_temporary").mkdir()
    (tmp_path / "_temporary" / "a.jsonl").write_text('{"message_id": "m-1"}')
    answer = Trail.of(tmp_path).events(clock=stopped, message_id="m-1")
    assert sorted(steps(answer)) == ["", "started"]
    assert answer.complete


def test_a_damaged_file_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    write(tmp_path, [at(0, Step.STARTED)])
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 no")
    answer = Trail.of(tmp_path).events(clock=stopped, message_id="m-1")
    assert steps(answer) == ["started"]
    assert not answer.complete
    assert "damaged.parquet was not read" in answer.reasons[0]


def test_without_pyarrow_parquet_is_named_and_lines_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, [at(0, Step.STARTED)])
    write(tmp_path, [at(1, Step.RECORDED)], format="parquet")
    real = importlib.import_module

    def without(name: str, package: str | None = None) -> Any:
        if name.startswith("pyarrow"):
            raise builtins.ImportError(name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", without)
    answer = Trail.of(tmp_path).events(clock=stopped, message_id="m-1")
    assert steps(answer) == ["started"]
    assert "pip install pyarrow" in answer.reasons[0]


def test_a_file_that_is_completed_while_we_read_is_not_reported_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, [at(0, Step.STARTED)])
    there = Trail.of(tmp_path)
    gone = [tmp_path / ".attempts-web1-1-x-20261116T101500-000001.jsonl.open", *there._files()]
    monkeypatch.setattr(Trail, "_files", lambda self: gone)
    answer = there.events(clock=stopped, message_id="m-1")
    assert steps(answer) == ["started"]
    assert answer.complete


@pytest.mark.parametrize(
    ("path", "said"),
    [("/nowhere/at/all", "no attempt log at /nowhere"), ("s3://bucket/log", "not from s3://bucket/log")],
)
def test_a_log_that_is_not_there_is_named(path: str, said: str) -> None:
    with pytest.raises(TrailError, match=said):
        Trail.of(path).events(clock=stopped, message_id="m-1")


def test_a_trail_of_nothing_is_refused(tmp_path: Path) -> None:
    for nothing in (None, ""):
        with pytest.raises(TrailError, match="needs its id or its key"):
            Trail.of(tmp_path).events(clock=stopped, message_id=nothing, key=[])


def test_files_are_found_by_address_and_by_name_and_read_once(tmp_path: Path) -> None:
    write(tmp_path, [at(0, Step.STARTED)])
    file = next(tmp_path.rglob("*.jsonl"))
    answer = Trail.of([f"file://{tmp_path}", str(tmp_path), file]).events(clock=stopped, message_id="m-1")
    assert steps(answer) == ["started"]
