"""Settings of a handler: which source takes precedence, and which values are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from semel import App
from semel.consumer import settings
from semel.consumer.app import DEFAULT_DRAIN
from semel.consumer.settings import OPTIONS, Settings, duration_text
from semel.durations import seconds
from semel.errors import SemelError


def resolve(**sources: Any) -> Settings:
    names = ("command_line", "handler", "app", "environment", "attributes")
    return settings.resolve(queue="orders", **{name: sources.get(name, {}) for name in names})


def test_the_nearest_source_of_a_setting_counts_and_is_named() -> None:
    sources: dict[str, dict[str, Any]] = {
        "attributes": {"VisibilityTimeout": "60"},
        "environment": {"SEMEL_LEASE": "50"},
        "app": {"lease": 40},
        "handler": {"lease": "30s"},
        "command_line": {"lease": "20"},
    }
    leases = []
    while sources:
        resolved = resolve(**sources)
        leases.append((resolved.lease, resolved.sources["lease"]))
        sources.popitem()
    assert leases == [
        (20, "command line"), (30, "handler"), (40, "app"), (50, "environment: SEMEL_LEASE"),
        (60, "queue: VisibilityTimeout"),
    ]  # fmt: skip
    assert resolve().lease == 30


@pytest.mark.parametrize(("setting", "prefetch"), [(None, None), ("auto", None), (0, 0), ("0", 0), ("250", 250)])
def test_prefetch_is_automatic_unless_a_limit_is_set_and_0_is_a_limit(setting: Any, prefetch: int | None) -> None:
    for source in ("command_line", "handler", "app"):
        assert resolve(**{source: {"prefetch": setting}}).prefetch == prefetch
    assert resolve(environment={} if setting is None else {"SEMEL_PREFETCH": str(setting)}).prefetch == prefetch


def test_automatic_prefetch_on_the_command_line_replaces_the_handlers_limit() -> None:
    assert resolve(command_line={"prefetch": "auto"}, handler={"prefetch": 5}).prefetch is None


def test_concurrency_does_not_depend_on_prefetch() -> None:
    assert [resolve(app={"prefetch": prefetch}).concurrency for prefetch in (None, 0, 1_000)] == [32, 32, 32]


def test_the_redrive_policy_limits_the_attempts_and_names_the_dead_letter_queue() -> None:
    policy = {"deadLetterTargetArn": "arn:aws:sqs:us-east-1:1:orders-dlq", "maxReceiveCount": "7"}
    attributes = {"RedrivePolicy": json.dumps(policy)}
    resolved = resolve(attributes=attributes)
    assert (resolved.max_attempts, resolved.max_receives, resolved.dead_letter) == (7, 7, policy["deadLetterTargetArn"])
    assert resolve(handler={"dead_letter": "none"}, attributes=attributes).dead_letter is None


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("prefetch", -1, "invalid prefetch=-1 (handler) for the queue 'orders': the minimum is 0"),
        ("prefetch", "many", "invalid prefetch='many' (handler) for the queue 'orders': it must be a whole number"),
        ("concurrency", 0, "the minimum is 1"),
        ("lease", "13h", "it must be from 1 to 43200 seconds"),
        ("on_failure", "panic", "it must be one of block_group, skip_message"),
        ("retry", 5, "it must be a back-off such as"),
        ("wait", 21, "SQS allows at most 20 seconds"),
    ],
)
def test_what_is_not_possible_is_refused_with_the_reason_the_queue_and_the_source(
    name: str, value: Any, said: str
) -> None:
    with pytest.raises(SemelError) as raised:
        resolve(handler={name: value})
    assert said in str(raised.value)


def test_a_duration_is_written_as_it_can_be_given_to_an_option() -> None:
    durations = {"28d": 28 * 86_400.0, "36h": 129_600.0, "90s": 90.0, "5m": 300.0, "0.2s": 0.2, "0s": 0.0}
    assert {duration_text(duration): duration for duration in durations.values()} == durations
    assert {text: seconds(text) for text in durations} == durations


def test_an_app_drains_as_long_as_it_says_else_as_the_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert App().drain_limit == DEFAULT_DRAIN
    monkeypatch.setenv("SEMEL_DRAIN", "2m")
    assert App().drain_limit == 120
    assert App(drain=0).drain_limit == 0
    monkeypatch.setenv("SEMEL_DRAIN", "soon")
    with pytest.raises(SemelError, match="invalid SEMEL_DRAIN: 'soon' is not a duration"):
        App()


def test_an_empty_variable_counts_as_not_set() -> None:
    settings = resolve(environment={f"SEMEL_{name.upper()}": "" for name in OPTIONS})
    assert settings == resolve()
