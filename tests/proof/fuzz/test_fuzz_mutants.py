"""The targets can fail: each of these mutants breaks a promise, and its target finds that within seconds."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings

import suite
from fuzz import table
from fuzz.strategies import inputs
from semel.broker import auth
from semel.broker.engine import attributes, queue_policy, receipts
from semel.broker.protocol import query
from semel.dlq.filter import fields
from semel.messages import dead_letter_attributes
from semel.spark.segments import codec
from semel.sqs.client import connection

Patch = pytest.MonkeyPatch


def is_found(name: str, most: int = 2_000) -> bool:
    """Whether the target fails on one of at most `most` inputs."""
    target = table.target(name)

    @settings(
        max_examples=most,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs(name))
    def run(data: bytes) -> None:
        target(data)

    try:
        run()
    except Exception:  # noqa: BLE001 - whatever the mutant raises
        return True
    return False


def segments_are_not_verified(patch: Patch) -> None:
    def unverified(data: bytes, where: str) -> Any:
        if len(data) < codec._TRAILER:
            raise codec.SegmentDamaged(where, "it is too short")
        return pa.py_buffer(data).slice(0, len(data) - codec._TRAILER)

    patch.setattr(codec, "_verified", unverified)


def signatures_are_not_compared(patch: Patch) -> None:
    patch.setattr(auth, "hmac", SimpleNamespace(digest=hmac.digest, compare_digest=lambda *_: True))


def paths_are_not_resolved(patch: Patch) -> None:
    """Only where the broker reads the call. Signatures are still checked against the resolved path."""
    patch.setattr(query, "resolved", lambda path: path)


def tags_of_receipts_are_not_compared(patch: Patch) -> None:
    patch.setattr(receipts, "compare_digest", lambda *_: True)


def denials_that_are_not_understood_are_ignored(patch: Patch) -> None:
    original = queue_policy.Statement.matches
    patch.setattr(
        queue_policy.Statement, "matches", lambda self, *call: self.parts is not None and original(self, *call)
    )


def documents_of_any_depth_are_read(patch: Patch) -> None:
    patch.setattr(attributes, "_parsed", json.loads)


def texts_are_not_escaped_in_xml(patch: Patch) -> None:
    patch.setattr(query, "_text", str)


def quotes_are_not_escaped_in_filters(patch: Patch) -> None:
    patch.setattr(fields, "quoted", lambda text: f'"{text}"')


def any_text_is_a_number_of_attempts(patch: Patch) -> None:
    patch.setattr(dead_letter_attributes, "is_count", lambda _text: True)


def chunks_may_have_any_size(patch: Patch) -> None:
    patch.setattr(connection, "_chunk_size", lambda text: int(text, 16))


Mutant = tuple[str, Callable[[Patch], None]]
QUICK: tuple[Mutant, ...] = (
    ("signature", signatures_are_not_compared),
    ("receipt", tags_of_receipts_are_not_compared),
    ("policy", denials_that_are_not_understood_are_ignored),
    ("policy", documents_of_any_depth_are_read),
    ("segment", segments_are_not_verified),
)
OTHERS: tuple[Mutant, ...] = (
    ("signature", paths_are_not_resolved),
    ("query_reader", texts_are_not_escaped_in_xml),
    ("filter", quotes_are_not_escaped_in_filters),
    ("dead_letter_attributes", any_text_is_a_number_of_attempts),
    ("connection", chunks_may_have_any_size),
)


@pytest.mark.parametrize("mutant", [*QUICK, *suite.slow(*OTHERS)], ids=lambda mutant: mutant[1].__name__)
def test_a_target_finds_a_promise_that_is_broken(mutant: Mutant, monkeypatch: Patch) -> None:
    target, mutate = mutant
    table.target(target)
    mutate(monkeypatch)
    assert is_found(target)
