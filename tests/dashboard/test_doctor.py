"""The doctor on the dashboard: its results for attempt logs, on its own page and on the Once page, and when it runs."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dashboard.serving import Shop, shop
from semel import App, SqliteLedger
from semel.dashboard.views import QueueInspector
from semel.dashboard.views.doctor import GOOD_FOR, RETRY_AFTER
from semel.dashboard.views.duplicate_causes import WINDOW, CauseCounter
from semel.dashboard.views.model import DuplicateCauses
from semel.doctor.logs.follower import LogFollower
from semel.doctor.model import CAUSES, Cause
from semel.telemetry.attempt_log import Attempt, AttemptLog, Step
from waiting import until

NOW = time.time()


def delivery(id_: str, *steps: Step, at: float, receives: int = 1, key: str = "") -> list[Attempt]:
    """One delivery of a message, a tenth of a second from step to step."""
    return [
        Attempt(
            at + place / 10, step, "orders", id_, key=key or id_, receive_count=receives, visibility=30, worker="w1"
        )
        for place, step in enumerate(steps)
    ]


DONE = (Step.RECEIVED, Step.CLAIMED, Step.STARTED, Step.RECORDED, Step.DELETED)
NOT_RUN = (Step.RECEIVED, Step.DUPLICATE, Step.DELETED)


def lost_delete(id_: str, at: float = NOW - 600) -> list[Attempt]:
    return delivery(id_, *DONE, at=at) + delivery(id_, *NOT_RUN, at=at + 60, receives=2)


def sent_twice(key: str, at: float = NOW - 600) -> list[Attempt]:
    return delivery(f"{key}-1", *DONE, at=at, key=key) + delivery(f"{key}-2", *NOT_RUN, at=at + 60, key=key)


def looked(counter: CauseCounter) -> DuplicateCauses:
    """The answer after the next look at the log."""
    counter._due_at = 0.0
    counter.latest()
    until(lambda: counter._thread is None, "the look at the log")
    return counter._latest


def counts(causes: DuplicateCauses) -> dict[str, tuple[int, int]]:
    return {row.cause: (row.duplicates, row.ran) for row in causes.rows}


@pytest.fixture
def without_duckdb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.extras.find_spec", lambda name: None if name == "duckdb" else find_spec(name))


# Causes.


def test_duplicates_are_counted_by_cause_while_the_log_is_written(tmp_path: Path) -> None:
    crashed = delivery("c", Step.RECEIVED, Step.STARTED, at=NOW - 500) + delivery("c", *DONE, at=NOW - 400, receives=2)
    with AttemptLog.open(str(tmp_path)) as log, closing(CauseCounter([str(tmp_path)])) as counter:
        assert counter.latest() == DuplicateCauses(note="The attempt log is being read.")
        log.add_all([*lost_delete("a"), *sent_twice("b"), *crashed])
        log.add_all(lost_delete("old", at=NOW - WINDOW - 3_600))
        assert log.flush()
        causes = looked(counter)
        assert counts(causes) == {"lost-delete": (1, 0), "producer": (1, 0), "crash": (1, 1)}
        assert causes.note == ""
        log.add_all([*sent_twice("d"), *sent_twice("e")])
        assert log.flush()
        assert counts(looked(counter)) == {"producer": (3, 0), "lost-delete": (1, 0), "crash": (1, 1)}
        log.add_all(lost_delete("f"))
        log.close()  # the file gets another name
        after = looked(counter)
    assert counts(after) == {"producer": (3, 0), "lost-delete": (2, 0), "crash": (1, 1)}
    assert (after.rows[0].title, after.rows[0].text) == CAUSES[Cause.PRODUCER]  # the most frequent first


def test_two_messages_of_one_key_that_come_at_once_were_sent_twice(tmp_path: Path) -> None:
    with AttemptLog.open(str(tmp_path)) as log, closing(CauseCounter([str(tmp_path)])) as counter:
        for number in range(20):
            at, key = NOW - 600 + number, f"k{number}"
            log.add_all(delivery(f"{key}-1", *DONE, at=at, key=key))
            log.add_all(delivery(f"{key}-2", Step.RECEIVED, Step.BOUNCED, at=at, key=key))
        assert log.flush()
        assert counts(looked(counter)) == {"producer": (20, 0)}


def test_duplicates_of_a_parquet_log_count_once_when_its_file_is_complete(tmp_path: Path) -> None:
    with AttemptLog.open(str(tmp_path), format="parquet") as log, closing(CauseCounter([str(tmp_path)])) as counter:
        log.add_all(lost_delete("a"))
        assert log.flush()
        assert looked(counter).note == "The attempt log of the last 24 hours shows no duplicate."
        log.close()
        assert counts(looked(counter)) == {"lost-delete": (1, 0)}


def test_a_log_that_has_not_changed_is_not_read_and_one_that_has_not_sooner_than_in_ten_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    look = LogFollower.look

    def counted(follower: LogFollower, now: float) -> bool:
        looks.append(now)
        return look(follower, now)

    monkeypatch.setattr(LogFollower, "look", counted)
    now = [NOW // 3600 * 3600]
    with (
        AttemptLog.open(str(tmp_path)) as log,
        closing(CauseCounter([str(tmp_path)], clock=lambda: now[0])) as counter,
    ):
        log.add_all(lost_delete("a", at=now[0] - WINDOW + 3_000))
        assert log.flush()
        first = looked(counter)
        now[0] += 1_000
        assert looked(counter) is first
        assert len(looks) == 1
        log.add_all(lost_delete("b", at=now[0] - 7_200))
        assert log.flush()
        for _ in range(100):
            assert counter.latest() is first
        assert counter._thread is None
        assert counts(looked(counter)) == {"lost-delete": (2, 0)}
        now[0] += 3_600  # the first one has left the window
        assert counts(looked(counter)) == {"lost-delete": (1, 0)}
        now[0] += 2 * WINDOW  # no file is in the window
        assert looked(counter) == DuplicateCauses(note="The attempt log of the last 24 hours shows no duplicate.")


def test_a_log_that_is_too_large_or_cannot_be_read_here_is_said_so(tmp_path: Path, without_duckdb: None) -> None:
    assert CauseCounter(["s3://logs/attempts"]).latest() == DuplicateCauses()
    with AttemptLog.open(str(tmp_path)) as log:
        log.add_all(lost_delete("a"))
    with closing(CauseCounter([str(tmp_path)])) as counter:
        note = looked(counter).note
    assert note == "Counting duplicates by cause needs duckdb, which is not installed: pip install 'semel[doctor]'"


def test_more_than_can_be_read_beside_the_pages_is_left_to_the_doctor(tmp_path: Path) -> None:
    with AttemptLog.open(str(tmp_path)) as log, closing(CauseCounter([str(tmp_path)], max_bytes=2_000)) as counter:
        log.add_all(lost_delete("a"))
        assert log.flush()
        assert counts(looked(counter)) == {"lost-delete": (1, 0)}
        log.add_all(lost_delete("b"))
        assert log.flush()
        assert "too large" in looked(counter).note


def test_an_analysis_that_fails_is_begun_anew_when_the_log_has_grown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with AttemptLog.open(str(tmp_path)) as log, closing(CauseCounter([str(tmp_path)])) as counter:
        log.add_all(lost_delete("a"))
        assert log.flush()
        assert counts(looked(counter)) == {"lost-delete": (1, 0)}
        assert counter._engine is not None
        counter._engine.connection.close()
        log.add_all(lost_delete("b"))
        assert log.flush()
        with caplog.at_level(logging.CRITICAL, "semel.dashboard"):
            assert "could not be analysed: ConnectionException" in looked(counter).note
        log.add_all(lost_delete("c"))
        assert log.flush()
        assert counts(looked(counter)) == {"lost-delete": (3, 0)}


def test_the_once_page_shows_the_causes_of_what_real_workers_logged(tmp_path: Path, credentials: None) -> None:
    folder = str(tmp_path / "log")
    done: list[str] = []
    with shop(tmp_path / "state") as place, place.dashboard(attempt_logs=(folder,)) as site:
        app = App(SqliteLedger(str(tmp_path / "ledger.db")), client=place.client, wait=1, attempt_log=folder)
        app.handler("orders", key="$.key")(lambda body: done.append(body["key"]))
        for key in ("a", "a", "b", "b", "c"):
            place.orders.send(json.dumps({"key": key}))
        with ExitStack() as stack:
            runtime = app.start(stack)
            until(lambda: len(done) == 3 and place.orders.attributes()["ApproximateNumberOfMessages"] == "0", "work")
            runtime.stop()
            runtime.finish()

        def causes() -> Any:
            causes = site.api("deliveries")["causes"]
            return causes if causes["rows"] else None

        (row,) = until(causes, "the causes")["rows"]
        assert (row["cause"], row["duplicates"], row["ran"]) == ("producer", 2, 0)
        page = site.get("/deliveries").text
        assert "Causes of duplicates" in page
        assert CAUSES[Cause.PRODUCER][1][1:] in page


# The doctor's page.


@pytest.fixture
def place(tmp_path: Path, credentials: None) -> Iterator[Shop]:
    with shop(tmp_path / "state") as place:
        yield place


def examined(inspector: QueueInspector) -> Any:
    """The page after the examination that a look has started, if it has."""
    inspector.doctor()
    assert inspector.doctor_job.wait(60)
    return inspector.doctor()


def test_the_first_look_examines_the_attempt_logs_too(place: Shop, tmp_path: Path) -> None:
    with AttemptLog.open(str(tmp_path / "log")) as log:
        for number in range(50):
            log.add_all(lost_delete(f"m{number}"))
    with place.dashboard(attempt_logs=(str(tmp_path / "log"),)) as site:
        assert "Checking." in site.get("/doctor").text
        page = until(lambda: (now := site.api("doctor"))["made_at"] and not now["running"] and now, "the examination")
        assert page["error"] is None
        assert page["with_logs"] is True
        assert "delete was lost" in site.get("/doctor/report").text


def test_a_look_examines_again_when_the_last_time_was_minutes_ago(place: Shop) -> None:
    now = [time.time()]
    inspector = QueueInspector(place.settings(), client=place.client, clock=lambda: now[0])
    first = examined(inspector).made_at
    now[0] += GOOD_FOR - 1
    assert examined(inspector).made_at == first
    now[0] += 2
    assert inspector.doctor().running
    assert examined(inspector).made_at == now[0]
    inspector.close()


def test_without_the_extra_the_page_says_what_to_install_and_examines_the_rest(
    place: Shop, tmp_path: Path, without_duckdb: None
) -> None:
    with AttemptLog.open(str(tmp_path / "log")) as log:
        log.add_all(lost_delete("a"))
    with place.dashboard(attempt_logs=(str(tmp_path / "log"),)) as site:
        page = until(lambda: (now := site.api("doctor"))["made_at"] and not now["running"] and now, "the examination")
        assert page["error"].endswith("needs duckdb, which is not installed: pip install 'semel[doctor]'")
        assert any("short-polling" in finding["rule"] for finding in page["findings"])
        shown = site.get("/doctor").text
        assert "pip install &#39;semel[doctor]&#39;" in shown
        assert "short-polling" in shown


def test_an_examination_that_fails_leaves_the_last_one_and_is_tried_again_soon(place: Shop) -> None:
    now = [time.time()]
    inspector = QueueInspector(place.settings(), client=place.client, clock=lambda: now[0])
    before = examined(inspector)
    names = inspector.doctor_job._queues
    inspector.doctor_job._queues = lambda: ["no-such-queue"]
    inspector.doctor_job.start()
    failed = examined(inspector)
    assert "no-such-queue" in failed.error
    assert failed.findings == before.findings
    inspector.doctor_job._queues = names
    now[0] += RETRY_AFTER
    assert examined(inspector).error is None
    inspector.close()


def test_only_one_examination_runs_at_a_time(place: Shop) -> None:
    inspector = QueueInspector(place.settings(), client=place.client)
    go = threading.Event()
    names = inspector.doctor_job._queues
    inspector.doctor_job._queues = lambda: names() if go.wait(60) else []
    assert inspector.doctor_job.start()
    assert not inspector.doctor_job.start()
    assert inspector.doctor().running
    go.set()
    assert inspector.doctor_job.wait(60)
    inspector.close()
