"""The small models: no interleaving of two workers or two drivers breaks a rule, and each of 26 mistakes is found."""

from __future__ import annotations

import pytest
from models import batches, batches_mutants, claims, claims_mutants
from models.batches import Batches
from models.claims import Claims
from models.driver import Driver
from models.explorer import explore

import suite

NO_FAULTS = batches.Faults(0, 0, 0, 0, 0, 0)
EACH_FAULT = [field for field in batches.Faults._fields if field != "total"]


@pytest.mark.parametrize("transaction", [False, True], ids=["lease", "transaction"])
def test_no_interleaving_of_two_workers_breaks_a_rule_or_leaves_a_key_stuck(transaction: bool) -> None:
    faults = claims.Faults(total=suite.effort(fast=2, full=3))
    exploration = explore(Claims(transaction=transaction, faults=faults))
    assert exploration.violation is None, str(exploration.violation)
    assert exploration.states > 8_000
    assert exploration.finals > 100


@pytest.mark.parametrize("mistake", claims_mutants.MUTANTS)
def test_each_mistake_of_a_ledger_or_a_consumer_is_found(mistake: str) -> None:
    assert explore(claims_mutants.MUTANTS[mistake]()).violation is not None


@pytest.mark.parametrize("ack", ["sealed", "committed"])
def test_no_interleaving_of_two_drivers_loses_or_doubles_a_message(ack: str) -> None:
    """With one message, all interleavings of the drivers. With two messages, a driver may be interrupted once (in the
    full tier: twice) while the other one continues."""
    for model in (
        Batches(Driver(ack), faults=NO_FAULTS, messages=1),
        Batches(Driver(ack), faults=NO_FAULTS, switches=suite.effort(fast=1, full=2)),
    ):
        exploration = explore(model, live=False)
        assert exploration.violation is None, str(exploration.violation)
        assert exploration.states > 2_000
        assert exploration.finals > 100


@pytest.mark.slow
@pytest.mark.parametrize("ack", ["sealed", "committed"])
@pytest.mark.parametrize("fault", EACH_FAULT)
def test_no_fault_makes_two_drivers_lose_or_double_a_message(ack: str, fault: str) -> None:
    """A driver or a task dies, a message is redelivered, a delete gets no answer, or the checkpoint is removed. Each
    may happen at any step."""
    faults = NO_FAULTS._replace(**{fault: 1, "total": 1})
    exploration = explore(Batches(Driver(ack), faults=faults, switches=1), live=False)
    assert exploration.violation is None, str(exploration.violation)
    assert exploration.finals > 100


@pytest.mark.parametrize(
    "mistake",
    [
        pytest.param(mistake, marks=pytest.mark.slow if mistake in batches_mutants.LONG else ())
        for mistake in batches_mutants.MUTANTS
    ],
)
def test_each_mistake_of_a_source_a_log_or_a_sink_is_found(mistake: str) -> None:
    assert explore(batches_mutants.MUTANTS[mistake](), live=False).violation is not None


def test_the_way_to_a_violation_can_be_read() -> None:
    mistake = claims_mutants.MUTANTS["a record does not look at the fence"]()
    text = str(explore(mistake).violation)
    assert text.startswith("broken: only the newest fence writes, and fence 1 did\n  1. A receives the message")
    assert "stands still until its lease is over" in text
